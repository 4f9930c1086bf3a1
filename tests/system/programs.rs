//! Every program prints what it prints natively.

use crate::{LIMIT, assert_identical};
use tests::{Job, Linkage, Programs, Scene, Server};

/// Steps, and microseconds between them, that keep a program busy for more than a second.
fn arguments(name: &str) -> (u32, u32) {
    match name {
        "vecadd" => (400, 4000),
        "matmul" => (60, 25000),
        "stencil" => (4000, 300),
        "killer" => (480, 4000),
        "threads8" => (160, 10000),
        "twogpu" => (200, 8000),
        "peers" => (200, 8000),
        "crossings" => (60, 20000),
        "carried" => (24, 40000),
        "shapes" => (60, 20000),
        "capture" => (240, 6000),
        "graphs" => (240, 6000),
        "printf" => (120, 6000),
        "reduce" => (60, 15000),
        "symbols" => (150, 6000),
        "events" => (4000, 1500),
        "priorities" => (200, 5000),
        "parts" => (96, 10000),
        "external" => (60, 15000),
        "forks" => (160, 6000),
        "polls" => (60, 15000),
        "signals" => (200, 5000),
        "callbacks" => (300, 5000),
        "pinned" => (250, 6000),
        "mapped" | "managed" | "shared_variables" | "alike" | "writers" | "letters" => (160, 8000),
        "pools" => (60, 20000),
        "exclusive" => (16, 80000),
        "vmm" => (48, 25000),
        "storm" => (60, 20000),
        "graphhost" => (200, 6000),
        "graphpinned" => (96, 10000),
        "arrays" | "textures" | "surfaces" | "references" | "sparse" => (60, 20000),
        "rest" => (160, 6000),
        "graphmem" => (150, 8000),
        "instances" => (60, 8000),
        "batches" => (60, 15000),
        "turns" => (60, 15000),
        "groups" => (60, 15000),
        "hopper" | "linked" | "cubemaps" => (120, 8000),
        "crowd" => (40, 20000),
        "differences" | "simulations" => (400, 2500),
        "blocked" => (30, 20000),
        "pageable" => (12, 40000),
        "graphif" | "graphdeep" => (200, 6000),
        other => panic!("{other} is no test program"),
    }
}

/// The program that is moved takes so many times longer between steps, so that it does not end before its last move. What it prints
/// depends on its steps only.
const SLOWER: u32 = 6;
/// How often it may end before its last move all the same: each time it takes twice as long between steps, whatever the machine.
const ATTEMPTS: u32 = 6;

/// Natively, remote, and moved: remote, into the process, parked in memory, at a second server, parked in a file, and back.
fn same_everywhere(name: &str, linkage: Linkage) {
    let scene = Scene::new(name);
    let program = Programs::get().path(linkage, name);
    let (steps, pace) = arguments(name);
    let args = |slower: u32| ["--steps".to_owned(), steps.to_string(), "--pace".to_owned(), (pace * slower).to_string()];
    let usual = args(1);
    let usual = usual.each_ref().map(String::as_str);
    let native = Job::native(&scene, "native", &program, &usual).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");

    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (first, second) = (servers[0].place(0), servers[1].place(0));
    let remote = Job::start(&scene, "remote", &["--server", &first], &program, &usual, &[]).wait(LIMIT);
    assert_identical(&remote, &native);

    // On a busy machine a run can end before its last move: such a run must be right all the same, and another one is made.
    for attempt in 0.. {
        let slow = args(SLOWER << attempt);
        let slow = slow.each_ref().map(String::as_str);
        let mut moved = Job::start(&scene, "moved", &["--server", &first], &program, &slow, &[]);
        moved.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
        let mut late = None;
        let file = format!("file:{}", scene.path.join("park").display());
        for to in ["local", "memory", &second, &file, &first] {
            std::thread::sleep(native.wall / 12);
            match moved.migrate(to) {
                Ok(report) => assert!(report.ok(), "to {to}: {}", report.reason()),
                Err(why) => {
                    late = Some(format!("to {to}: {why}"));
                    break;
                }
            }
        }
        assert_identical(&moved.wait(LIMIT), &native);
        match late {
            None => break,
            Some(why) => assert!(attempt + 1 < ATTEMPTS, "it always ended before its last move: {why}"),
        }
    }
}

macro_rules! programs {
    ($($test:ident: $name:literal, $linkage:ident;)*) => {
        $(#[test] fn $test() { same_everywhere($name, Linkage::$linkage); })*
    };
}

programs! {
    vecadd_static: "vecadd", Static;
    vecadd_shared: "vecadd", Shared;
    vecadd_with_the_runtime_of_cuda_12: "vecadd", Shared12;
    matmul_static: "matmul", Static;
    matmul_shared: "matmul", Shared;
    stencil_static: "stencil", Static;
    stencil_shared: "stencil", Shared;
    stencil_with_the_runtime_of_cuda_12: "stencil", Shared12;
    vecadd_with_the_runtime_of_cuda_11: "vecadd", Shared11;
    stencil_with_the_runtime_of_cuda_11: "stencil", Shared11;
    killer_static: "killer", Static;
    killer_shared: "killer", Shared;
    threads8_static: "threads8", Static;
    pools_static: "pools", Static;
    pools_shared: "pools", Shared;
    vmm_static: "vmm", Static;
    vmm_shared: "vmm", Shared;
    storm_static: "storm", Static;
    graphhost_static: "graphhost", Static;
    graphhost_shared: "graphhost", Shared;
    graphpinned_static: "graphpinned", Static;
    rest_static: "rest", Static;
    rest_shared: "rest", Shared;
    graphmem_static: "graphmem", Static;
    instances_static: "instances", Static;
    instances_shared: "instances", Shared;
    letters_static: "letters", Static;
    letters_shared: "letters", Shared;
    graphif_static: "graphif", Static;
    graphdeep_static: "graphdeep", Static;
    crowd_static: "crowd", Static;
    pageable_static: "pageable", Static;
    blocked_static: "blocked", Static;
    blocked_shared: "blocked", Shared;
    batches_static: "batches", Static;
    batches_shared: "batches", Shared;
    turns_static: "turns", Static;
    turns_shared: "turns", Shared;
    groups_static: "groups", Static;
    groups_shared: "groups", Shared;
    hopper_static: "hopper", Static;
    hopper_shared: "hopper", Shared;
    linked_static: "linked", Static;
    linked_shared: "linked", Shared;
    cubemaps_static: "cubemaps", Static;
    cubemaps_shared: "cubemaps", Shared;
    threads8_shared: "threads8", Shared;
    arrays_static: "arrays", Static;
    arrays_shared: "arrays", Shared;
    textures_static: "textures", Static;
    textures_shared: "textures", Shared;
    surfaces_static: "surfaces", Static;
    surfaces_shared: "surfaces", Shared;
    sparse_static: "sparse", Static;
    sparse_shared: "sparse", Shared;
    references_static: "references", Static;
    references_shared: "references", Shared;
    twogpu_static: "twogpu", Static;
    twogpu_shared: "twogpu", Shared;
    peers_static: "peers", Static;
    peers_shared: "peers", Shared;
    crossings_static: "crossings", Static;
    crossings_shared: "crossings", Shared;
    carried_static: "carried", Static;
    shapes_static: "shapes", Static;
    capture_static: "capture", Static;
    capture_shared: "capture", Shared;
    graphs_static: "graphs", Static;
    graphs_shared: "graphs", Shared;
    printf_static: "printf", Static;
    printf_shared: "printf", Shared;
    reduce_static: "reduce", Static;
    reduce_shared: "reduce", Shared;
    symbols_static: "symbols", Static;
    symbols_shared: "symbols", Shared;
    events_static: "events", Static;
    events_shared: "events", Shared;
    priorities_static: "priorities", Static;
    priorities_shared: "priorities", Shared;
    parts_static: "parts", Static;
    parts_shared: "parts", Shared;
    external_static: "external", Static;
    external_shared: "external", Shared;
    forks_static: "forks", Static;
    forks_shared: "forks", Shared;
    polls_static: "polls", Static;
    polls_shared: "polls", Shared;
    signals_static: "signals", Static;
    signals_shared: "signals", Shared;
    callbacks_static: "callbacks", Static;
    callbacks_shared: "callbacks", Shared;
    pinned_static: "pinned", Static;
    pinned_shared: "pinned", Shared;
    mapped_static: "mapped", Static;
    mapped_shared: "mapped", Shared;
    managed_static: "managed", Static;
    exclusive_static: "exclusive", Static;
    managed_shared: "managed", Shared;
    shared_variables_static: "shared_variables", Static;
    shared_variables_shared: "shared_variables", Shared;
    alike_static: "alike", Static;
    alike_shared: "alike", Shared;
    writers_static: "writers", Static;
    writers_shared: "writers", Shared;
    differences_static: "differences", Static;
    differences_shared: "differences", Shared;
    simulations_static: "simulations", Static;
    simulations_shared: "simulations", Shared;
}
