//! Programs whose host does not touch managed memory while kernels run (`--managed exclusive`): at places on other machines large blocks of it lie in
//! the GPU's memory. The program is `tests/programs/cuda/exclusive.cu`.

use crate::{LIMIT, assert_identical, words_of_mrcuda};
use std::path::PathBuf;
use std::time::Duration;
use tests::{Job, Linkage, Outcome, Programs, Random, Scene, Server};

const STEPS: [&str; 2] = ["--steps", "16"];

fn program(name: &str) -> PathBuf {
    Programs::get().path(Linkage::Static, name)
}

fn native(scene: &Scene, name: &str, args: &[&str]) -> Outcome {
    let outcome = Job::native(scene, "native", &program(name), args).wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "natively: {outcome:?}");
    outcome
}

/// Runs the program at a server that mirrors its memory, with so many connections for large copies: for each block, whether it was in the GPU's memory
/// there, and how many bytes of the GPU's changes and of the host's these connections have carried.
fn blocks_at(scene: &Scene, server: &Server, native: &Outcome, connections: &str) -> (Vec<bool>, [u64; 2]) {
    let log = scene.path.join(format!("log-{connections}"));
    let env = [("MRCUDA_LOG", log.to_str().unwrap()), ("MRCUDA_BULK_CONNECTIONS", connections)];
    let options = ["--server", &server.place(0), "--managed", "exclusive"];
    let outcome = Job::start(scene, "job", &options, &program("exclusive"), &STEPS, &env).wait(LIMIT);
    assert_identical(&outcome, native);
    let log = std::fs::read_to_string(&log).unwrap();
    let carried = ["HostBytes", "HostRuns"].map(|call| {
        let of_changes = |line: &str| {
            let sent = line.split_once(&format!("exit: sent {call}: "))?.1.split_once(" bytes over connections of their own")?.0;
            sent.rsplit(' ').next()?.parse().ok()
        };
        log.lines().find_map(of_changes).unwrap_or(0)
    });
    let blocks = log.lines().filter_map(|line| Some(line.split_once("is in the GPU's memory there: ")?.1 == "true")).collect();
    (blocks, carried)
}

/// A load waits for streams, which wait for what the job sends behind changes of this memory.
#[test]
fn code_is_loaded_while_streams_wait_for_the_job() {
    let scene = Scene::new("exclusive-loading");
    let server = Server::start(&scene, "one");
    let native = native(&scene, "loading", &[]);
    for managed in ["exclusive", "concurrent"] {
        let options = ["--server", &server.place(0), "--managed", managed];
        let outcome = Job::start(&scene, managed, &options, &program("loading"), &[], &[]).wait(LIMIT);
        assert_identical(&outcome, &native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    }
}

#[test]
fn at_a_server_the_gpu_has_large_blocks() {
    let scene = Scene::new("exclusive-tcp");
    let server = Server::start(&scene, "one");
    let native = native(&scene, "exclusive", &STEPS);
    // Each kernel changes words all over a block of 2 MiB, and so does the host: the connections for large copies carry that, if there are any.
    for connections in ["0", "1", "5"] {
        let (blocks, carried) = blocks_at(&scene, &server, &native, connections);
        assert!(blocks.len() >= 3 && blocks.iter().all(|there| *there), "{blocks:?}");
        assert_eq!(carried.map(|bytes| bytes > 0), [connections != "0"; 2], "{carried:?} with {connections}");
    }
    // On this machine kernels use the job's own memory.
    for place in ["local", &server.unix_place(0)] {
        let options = ["--server", place, "--managed=exclusive"];
        let outcome = Job::start(&scene, "here", &options, &program("exclusive"), &STEPS, &[]).wait(LIMIT);
        assert_identical(&outcome, &native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    }
}

#[test]
fn a_small_gpu_has_none_of_them() {
    let scene = Scene::new("exclusive-small");
    // A quarter of this is less than any block with both its copies.
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_MEMORY", "15728640")]);
    let native = native(&scene, "exclusive", &STEPS);
    let (blocks, carried) = blocks_at(&scene, &server, &native, "2");
    assert!(blocks.len() >= 3 && blocks.iter().all(|there| !there), "{blocks:?}");
    assert_eq!(carried, [0, 0]);
}

#[test]
fn through_random_moves_every_byte_is_kept() {
    let scene = Scene::new("exclusive-moves");
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let park = format!("file:{}", scene.path.join("park").display());
    let places =
        [servers[0].place(0), servers[1].place(0), servers[1].unix_place(0), "local".to_owned(), "memory".to_owned(), park];
    let seed = tests::random::seed();
    let mut random = Random::new(seed);
    let native = native(&scene, "exclusive", &STEPS);
    // On a busy machine a run can end before there were many moves: it must be right all the same, and another one is made.
    for pace in [100_000, 400_000, 1_600_000] {
        let pace = pace.to_string();
        let args = [&STEPS[..], &["--pace", &pace]].concat();
        let options = ["--server", &places[0], "--managed", "exclusive"];
        let mut job = Job::start(&scene, "job", &options, &program("exclusive"), &args, &[]);
        job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
        let (mut at, mut succeeded) = (0, 0);
        while job.runs() && succeeded < 12 {
            std::thread::sleep(Duration::from_millis(random.below(200)));
            // Half of the moves go to a server of another machine.
            let to = if random.below(2) == 0 { random.below(2) as usize } else { random.below(places.len() as u64) as usize };
            if to == at {
                continue;
            }
            let Ok(report) = job.migrate(&places[to]) else { break };
            if report.ok() {
                (at, succeeded) = (to, succeeded + 1);
            }
        }
        // It must not stay parked.
        while job.runs() && at >= 4 {
            if job.migrate(&places[0]).is_ok_and(|report| report.ok()) {
                at = 0;
            }
        }
        let outcome = job.wait(LIMIT);
        assert_identical(&outcome, &native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
        if succeeded > 5 {
            return;
        }
    }
    panic!("too few moves with seed {seed}");
}

#[test]
fn another_way_to_use_managed_memory_is_an_error() {
    let scene = Scene::new("exclusive-wrong");
    let env = [("MRCUDA_MANAGED", "often")];
    let outcome = Job::start(&scene, "job", &["--server", "local"], &program("exclusive"), &STEPS, &env).wait(LIMIT);
    assert!(!outcome.ok() && outcome.stderr.contains("MRCUDA_MANAGED"), "{outcome:?}");
}
