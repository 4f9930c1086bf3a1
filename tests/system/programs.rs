//! Every program prints what it prints natively.

use crate::{LIMIT, assert_identical};
use tests::{Job, Linkage, Programs, Scene, Server};

/// Steps and pace that keep a program busy for some seconds.
fn arguments(name: &str) -> [&'static str; 4] {
    match name {
        "vecadd" => ["--steps", "400", "--pace", "4000"],
        "matmul" => ["--steps", "60", "--pace", "25000"],
        "stencil" => ["--steps", "4000", "--pace", "300"],
        "killer" => ["--steps", "480", "--pace", "4000"],
        "threads8" => ["--steps", "160", "--pace", "10000"],
        other => panic!("{other} is no test program"),
    }
}

/// Natively, remote, and moved: remote, into the process, to a second server, and back.
fn same_everywhere(name: &str, linkage: Linkage) {
    let scene = Scene::new(name);
    let program = Programs::get().path(linkage, name);
    let args = arguments(name);
    let native = Job::native(&scene, "native", &program, &args).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");

    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (first, second) = (servers[0].place(0), servers[1].place(0));
    let remote = Job::start(&scene, "remote", &["--server", &first], &program, &args, &[]).wait(LIMIT);
    assert_identical(&remote, &native);

    let mut moved = Job::start(&scene, "moved", &["--server", &first], &program, &args, &[]);
    moved.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    for to in ["local", &second, &first] {
        std::thread::sleep(native.wall / 8);
        assert!(moved.runs(), "it ended before it could move to {to}");
        let report = moved.migrate(to).unwrap_or_else(|why| panic!("to {to}: {why}"));
        assert!(report.ok(), "to {to}: {}", report.reason());
    }
    assert_identical(&moved.wait(LIMIT), &native);
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
    killer_static: "killer", Static;
    killer_shared: "killer", Shared;
    threads8_static: "threads8", Static;
    threads8_shared: "threads8", Shared;
}
