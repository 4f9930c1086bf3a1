//! Jobs that move when a GPU has no memory for an allocation.

use crate::{LIMIT, LONG, assert_identical, process};
use tests::{Job, Outcome, Report, Scene, Server};

/// Memory of a GPU that is too small for the program's blocks, and of one that is a little larger.
const SMALL: &str = "268435456";
const MEDIUM: &str = "402653184";
/// Blocks of a thread, and the size of each in MiB.
const BLOCKS: [&str; 2] = ["16", "20"];

/// Runs the program on a server until its end. Returns that, and the moves it has made.
fn run(scene: &Scene, from: &Server, to: &str, args: &[&str]) -> (Outcome, Vec<Report>) {
    let name = format!("full-{}-{}", args[0], args[1]);
    let options = ["--server", &from.place(0), "--when-full", to, "--name", &name];
    let outcome = Job::start(scene, &name, &options, &process::build(scene, "full"), args, &[]).wait(LIMIT);
    let past = scene.mrcuda().args(["moves", "--json", "--program", &name]).output().unwrap();
    let moves: Vec<serde_json::Value> = serde_json::from_slice(&past.stdout).unwrap();
    let moves: Vec<Report> = moves.into_iter().map(Report).collect();
    assert!(moves.iter().all(|it| it.0["by"] == "out-of-memory"), "{moves:?}");
    (outcome, moves)
}

fn small(scene: &Scene) -> Server {
    Server::start_with(scene, "small", &[], &[("SOFTGPU_MEMORY", SMALL)])
}

fn blocks(outcome: &Outcome) -> u32 {
    assert!(outcome.ok() && outcome.stdout.ends_with(" blocks\nRESULT ok\n"), "{outcome:?}");
    outcome.stdout.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn an_allocation_of_each_kind_that_does_not_fit_moves_the_job() {
    let scene = Scene::new("full");
    let (small, large) = (small(&scene), Server::start(&scene, "large"));
    for way in ["alloc", "pitch", "async", "pool", "create", "array", "graph"] {
        let args = [&[way, "1"][..], &BLOCKS].concat();
        let native = Job::native(&scene, "native", &process::build(&scene, "full"), &args).wait(LIMIT);
        assert_eq!(native.stdout, "16 blocks\nRESULT ok\n", "{native:?}");
        let (outcome, moves) = run(&scene, &small, &large.place(0), &args);
        assert_identical(&outcome, &native);
        let ends: Vec<(&str, &str)> = moves.iter().map(|it| (it.state(), it.to())).collect();
        assert_eq!(ends, [("done", &*large.place(0))], "{way}");
    }
    let shown = scene.mrcuda().args(["moves", "--program", "full-alloc"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("done, because memory ran out"), "{shown}");
}

#[test]
fn threads_that_find_no_memory_at_once_wait_for_one_move() {
    let scene = Scene::new("fullthreads");
    let (small, large) = (small(&scene), Server::start(&scene, "large"));
    for way in ["alloc", "async"] {
        let args = [way, "8", "4", "10"];
        let native = Job::native(&scene, "native", &process::build(&scene, "full"), &args).wait(LIMIT);
        assert_eq!(native.stdout, "32 blocks\nRESULT ok\n", "{native:?}");
        let (outcome, moves) = run(&scene, &small, &large.place(0), &args);
        assert_identical(&outcome, &native);
        assert_eq!(moves.len(), 1, "{moves:?}");
    }
}

#[test]
fn without_a_place_that_fits_the_call_fails_as_natively() {
    let scene = Scene::new("fullfull");
    let medium = Server::start_with(&scene, "medium", &[], &[("SOFTGPU_MEMORY", MEDIUM)]);
    let (small, other) = (small(&scene), Server::start_with(&scene, "other", &[], &[("SOFTGPU_MEMORY", SMALL)]));
    // More than any of them has.
    for threads in ["1", "6"] {
        let args = ["alloc", threads, "100", "20"];
        let to = format!("{},{},{}", other.place(0), medium.place(0), small.place(0));
        let (outcome, moves) = run(&scene, &small, &to, &args);
        assert!(blocks(&outcome) > 12, "{outcome:?}");
        let done: Vec<&str> = moves.iter().filter(|it| it.ok()).map(Report::to).collect();
        assert_eq!(done, [medium.place(0)], "{moves:?}");
        // The other one before this move, and the first one after it.
        let refused: Vec<&str> = moves.iter().filter(|it| !it.ok()).map(Report::code).collect();
        assert!(refused.len() >= 2 && refused.iter().all(|code| *code == "no-memory"), "{moves:?}");
        assert_eq!(
            outcome.stderr.lines().filter(|line| line.starts_with("full after")).count(),
            threads.parse::<usize>().unwrap()
        );
    }
}

#[test]
fn a_place_that_cannot_be_reached_is_not_asked_by_each_thread() {
    let scene = Scene::new("fullgone");
    let small = small(&scene);
    // Each thread finds no memory.
    let (outcome, moves) = run(&scene, &small, "127.0.0.1:1", &["alloc", "4", "100", "20"]);
    assert!((1..=12).contains(&blocks(&outcome)), "{outcome:?}");
    assert!((1..4).contains(&moves.len()), "{moves:?}");
    assert!(moves.iter().all(|it| (it.state(), it.code()) == ("failed", "target-unreachable")), "{moves:?}");
    assert!(outcome.stderr.contains(&format!("GPU 0 stays at {}", small.place(0))), "{outcome:?}");
}

#[test]
fn the_places_are_listed_and_those_to_which_no_job_can_move_are_refused() {
    let scene = Scene::new("fullodd");
    let server = Server::start(&scene, "one");
    let options = ["--server", &server.place(0), "--when-full", "local,helper:1"];
    let mut job = Job::orbit(&scene, "job", &options, &LONG, &[]);
    assert_eq!(job.wait_ready(LIMIT).unwrap()["when_full"], "local,helper:1");
    drop(job);
    for (place, word) in [("memory", "nothing is executed"), ("nowhere", "invalid place")] {
        let output = scene.mrcuda().args(["run", "--driver", "soft", "--when-full", place, "--", "true"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && stderr.contains(word), "{stderr}");
    }
}
