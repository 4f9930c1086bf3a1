//! What GPUs of one job do with each other, and processes with each other's memory.

use crate::{LIMIT, TWO_GPUS, assert_identical, with_time, words_of_mrcuda};
use tests::{Job, Linkage, Outcome, Programs, Scene, Server};

const FOUR: (&str, &str) = ("SOFTGPU_DEVICES", "4");
const STEPS: &str = "300";

fn native(scene: &Scene) -> Outcome {
    let program = Programs::get().path(Linkage::Static, "peers");
    let native = Job::native(scene, "native", &program, &["--steps", STEPS]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    native
}

fn peers<'a>(scene: &'a Scene, places: &str, pace_us: u32) -> Job<'a> {
    let program = Programs::get().path(Linkage::Static, "peers");
    let pace = pace_us.to_string();
    let mut job = Job::start(scene, "two", &["--server", places], &program, &["--steps", STEPS, "--pace", &pace], &[FOUR]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    job
}

fn says(outcome: &Outcome, access: &str) {
    assert!(outcome.stderr.contains(&format!("peer access: {access}\n")), "{}", outcome.stderr);
    // Two GPUs are two places, and a graph has one: `cudaErrorNotSupported`.
    assert!(outcome.stderr.contains("a capture from GPU to GPU: 801\n"), "{}", outcome.stderr);
}

#[test]
fn gpus_of_two_machines_wait_for_each_other_and_copy() {
    let scene = Scene::new("apart");
    let native = native(&scene);
    let servers = [Server::start(&scene, "one"), Server::start_with(&scene, "two", &[], &[FOUR])];
    with_time(TWO_GPUS, |pace| {
        let job = peers(&scene, &format!("{},{}", servers[0].place(0), servers[1].unix_place(1)), pace);
        // Each alone, while streams of the other wait for it, then both.
        for (to, gpu) in [
            (servers[1].place(2), "0"),
            ("local".to_owned(), "1"),
            (servers[0].place(0), "0"),
            ("local,helper".to_owned(), "all"),
        ] {
            let report = job.migrate_with(&to, &["--gpu", gpu])?;
            assert!(report.ok(), "GPU {gpu} to {to}: {}", report.reason());
        }
        let outcome = job.wait(LIMIT);
        assert_identical(&outcome, &native);
        says(&outcome, "no");
        Ok(())
    });
}

#[test]
fn gpus_of_one_machine_use_each_others_memory_and_move_together() {
    let scene = Scene::new("together");
    let native = native(&scene);
    let server = |name| Server::start_with(&scene, name, &[], &[FOUR]);
    let servers = [server("one"), server("two")];
    with_time(TWO_GPUS, |pace| {
        let job = peers(&scene, &format!("{},{}", servers[0].unix_place(1), servers[0].place(3)), pace);
        let report = job.migrate_with(&servers[1].place(0), &["--gpu", "0"])?;
        assert!(!report.ok() && report.code() == "peer-access", "{}", report.reason());
        // Where they could not reach each other they do not go either.
        let report = job.migrate(&format!("{},{}", servers[1].place(0), servers[0].place(0)))?;
        assert!(!report.ok() && report.code() == "target-peer-access", "{}", report.reason());
        for to in [
            format!("{},{}", servers[1].place(2), servers[1].unix_place(0)),
            "local".to_owned(),
            format!("{},{}", servers[0].place(0), servers[0].place(1)),
        ] {
            let report = job.migrate(&to)?;
            assert!(report.ok(), "to {to}: {}", report.reason());
        }
        let outcome = job.wait(LIMIT);
        assert_identical(&outcome, &native);
        says(&outcome, "yes");
        Ok(())
    });
}

#[test]
fn gpus_in_and_beside_the_process_are_peers() {
    let scene = Scene::new("here");
    let native = native(&scene);
    let outcome = peers(&scene, "local,helper", 0).wait(LIMIT);
    assert_identical(&outcome, &native);
    says(&outcome, "yes");
    assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
}

#[test]
fn processes_share_memory_by_handle() {
    let scene = Scene::new("ipc");
    let program = Programs::get().path(Linkage::Static, "ipc");
    let server = Server::start_with(&scene, "one", &[], &[FOUR]);
    let run = |name: &str, places: &str, args: &[&str]| {
        let outcome = Job::start(&scene, name, &["--server", places], &program, args, &[FOUR]).wait(LIMIT);
        assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{places}: {outcome:?}");
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
        outcome
    };
    let unix = run("unix", &server.unix_place(0), &[]);
    // Memory of one GPU opened on another one, by processes whose places are reached in different ways.
    let tcp = run("tcp", &format!("{},{}", server.place(2), server.unix_place(1)), &["--gpu"]);
    assert_eq!(unix.stdout, tcp.stdout);
    let local = run("local", "local", &[]);
    assert_eq!(unix.stdout, local.stdout);
}

#[test]
fn shared_memory_stays_where_it_is() {
    let scene = Scene::new("stays");
    let program = Programs::get().path(Linkage::Static, "ipc");
    let server = Server::start(&scene, "one");
    let args = ["--steps", "40", "--pace", "50000"];
    let mut job = Job::start(&scene, "two", &["--server", &server.place(0)], &program, &args, &[]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    // It may move until the first handle is made.
    let mut to = ["local".to_owned(), server.place(0)];
    let refused = tests::scene::wait_for(LIMIT, || {
        let report = job.migrate(&to[0]).unwrap();
        if report.ok() {
            to.reverse();
        }
        (report.code() == "shared-with-processes").then_some(())
    });
    assert!(refused.is_some(), "the move was not refused");
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{outcome:?}");
}

#[test]
fn processes_share_memory_and_pools_by_descriptors() {
    let scene = Scene::new("handles");
    let program = Programs::get().path(Linkage::Static, "handles");
    let native = Job::native(&scene, "native", &program, &[]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "{native:?}");
    let server = Server::start_with(&scene, "one", &[], &[FOUR]);
    for (name, places) in [
        ("remote", server.place(0)),
        ("unix", server.unix_place(1)),
        ("local", "local".to_owned()),
        ("helper", "helper".to_owned()),
    ] {
        let outcome = Job::start(&scene, name, &["--server", &places], &program, &[], &[FOUR]).wait(LIMIT);
        assert_identical(&outcome, &native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    }
    // With another GPU than the one that has the memory.
    let places = format!("{},{}", server.place(2), server.unix_place(1));
    let tcp = Job::start(&scene, "tcp", &["--server", &places], &program, &["--gpu"], &[FOUR]).wait(LIMIT);
    assert_identical(&tcp, &native);
}

#[test]
fn lent_memory_stays_until_it_is_given_back() {
    let scene = Scene::new("lent");
    let program = Programs::get().path(Linkage::Static, "handles");
    let server = Server::start(&scene, "one");
    let args = ["--steps", "40", "--pace", "50000"];
    let go = scene.path.join("go").display().to_string();
    let mut job = Job::start(&scene, "two", &["--server", &server.place(0)], &program, &args, &[("HANDLES_GO", &go)]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    let mut to = ["local".to_owned(), server.place(0)];
    let refused = tests::scene::wait_for(LIMIT, || {
        let report = job.migrate(&to[0]).unwrap();
        if report.ok() {
            to.reverse();
        }
        (report.code() == "shared-with-processes").then_some(())
    });
    assert!(refused.is_some(), "the move was not refused");
    let alone = tests::scene::wait_for(LIMIT, || (job.stderr().lines().any(|l| l == "alone") || !job.runs()).then_some(()));
    assert!(alone.is_some() && job.runs(), "{}", job.stderr());
    let report = job.migrate(&to[0]).unwrap();
    assert!(report.ok(), "{}", report.reason());
    std::fs::write(&go, "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{outcome:?}");
}
