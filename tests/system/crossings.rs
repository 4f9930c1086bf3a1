//! Copies between the GPUs of a job: mapped, where their places are on one machine, otherwise through the job. Arrays always go through the job.

use crate::{LIMIT, assert_identical, with_time};
use tests::scene::wait_for;
use tests::{Job, Linkage, Outcome, Programs, Scene, Server};

const FOUR: (&str, &str) = ("SOFTGPU_DEVICES", "4");
const LOG: (&str, &str) = ("MRCUDA_LOG", "memory=debug,job=trace");
const TCP_IS_FAR: (&str, &str) = ("MRCUDA_FAULT_TCP_IS_FAR", "1");
const STEPS: &str = "60";

fn native(scene: &Scene) -> Outcome {
    let program = Programs::get().path(Linkage::Static, "crossings");
    let native = Job::native(scene, "native", &program, &["--steps", STEPS]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    native
}

fn crossings<'a>(scene: &'a Scene, name: &str, places: &str, pace_us: u32, env: &[(&str, &str)]) -> Job<'a> {
    let program = Programs::get().path(Linkage::Static, "crossings");
    let args = ["--steps", STEPS, "--pace", &pace_us.to_string()];
    Job::start(scene, name, &["--server", places], &program, &args, &[env, &[FOUR, LOG]].concat())
}

/// For each device by which copies were made the number of times that memory of others was mapped for it.
fn mapped(stderr: &str) -> [usize; 3] {
    let line = |line: &str| line.split_once("are mapped at GPU ")?.1.split(' ').next()?.parse::<usize>().ok();
    let mut all = [0; 3];
    stderr.lines().filter_map(line).for_each(|gpu| all[gpu] += 1);
    all
}

#[test]
fn gpus_of_one_machine_copy_without_the_job() {
    let scene = Scene::new("mapped");
    let native = native(&scene);
    let server = Server::start_with(&scene, "one", &[], &[FOUR]);
    for (name, places) in [
        ("unix", format!("{},{},{}", server.unix_place(0), server.unix_place(1), server.unix_place(2))),
        ("tcp", format!("{},{},{}", server.place(0), server.place(1), server.place(2))),
        ("mixed", format!("{},{},{}", server.place(3), server.unix_place(1), server.place(0))),
        ("here", "local,helper,helper".to_owned()),
    ] {
        let outcome = crossings(&scene, name, &places, 0, &[]).wait(LIMIT);
        assert_identical(&outcome, &native);
        let mapped = mapped(&outcome.stderr);
        assert!(mapped.iter().all(|n| *n > 0), "{places}: {mapped:?}");
        // Each allocation is mapped once at most, and most copies find it mapped.
        assert!(mapped.iter().sum::<usize>() < 100, "{places}: {mapped:?}");
    }
}

/// Number of copies that went from place to place.
fn linked(stderr: &str) -> usize {
    stderr.matches("bytes went from place to place").count()
}

/// Grows with the copies that do not go through the job.
fn past_the_job(stderr: &str) -> usize {
    mapped(stderr).iter().sum::<usize>() + linked(stderr)
}

#[test]
fn gpus_of_several_machines_copy_past_the_job() {
    let scene = Scene::new("linked");
    let native = native(&scene);
    let servers = ["one", "two"].map(|name| Server::start_with(&scene, name, &["--allow-plain"], &[FOUR]));
    let (one, two) = (&servers[0], &servers[1]);
    for (name, places) in [
        ("tls", format!("{},{},{}", one.place(0), two.place(1), one.place(2))),
        ("tcp", format!("{},{},{}", one.plain(0), two.plain(1), two.plain(2))),
    ] {
        // Copies go through the job until the places are connected.
        let outcome = crossings(&scene, name, &places, 20_000, &[TCP_IS_FAR]).wait(LIMIT);
        assert_identical(&outcome, &native);
        assert_eq!(mapped(&outcome.stderr), [0; 3]);
        assert_eq!(outcome.stderr.matches("are connected for copies").count(), 3, "{}", outcome.stderr);
        assert!(linked(&outcome.stderr) > 5, "{places}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("made through the job"), "{}", outcome.stderr);
    }
}

#[test]
fn gpus_that_may_not_connect_copy_through_the_job() {
    let scene = Scene::new("apart");
    let native = native(&scene);
    let servers = ["one", "two"].map(|name| Server::start_with(&scene, name, &["--allow-target", "none"], &[FOUR]));
    let places = format!("{},{},{}", servers[0].place(0), servers[1].place(1), servers[0].place(2));
    let outcome = crossings(&scene, "two", &places, 0, &[TCP_IS_FAR]).wait(LIMIT);
    assert_identical(&outcome, &native);
    assert_eq!((mapped(&outcome.stderr), linked(&outcome.stderr)), ([0; 3], 0));
}

/// Runs a program with GPUs of two places that may be connected, of two that may not, and of one that is this process.
fn on_two_gpus(name: &str) {
    let scene = Scene::new(name);
    let program = Programs::get().path(Linkage::Static, name);
    let natives = ["1", "2"].map(|gpus| {
        let mut command = scene.native(&program);
        command.env("SOFTGPU_DEVICES", gpus);
        Job::spawn(&scene, gpus, command).wait(LIMIT)
    });
    let [native, with_two] = &natives;
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    assert_identical(with_two, native);
    let one = Server::start_with(&scene, "one", &[], &[FOUR]);
    let two = Server::start_with(&scene, "two", &[], &[FOUR]);
    let alone = Server::start_with(&scene, "alone", &["--allow-target", "none"], &[FOUR]);
    for (case, places) in [
        ("linked", format!("{},{}", one.place(0), two.place(1))),
        ("apart", format!("{},{}", one.place(0), alone.place(1))),
        ("here", format!("local,{}", two.place(1))),
    ] {
        let outcome = Job::start(&scene, case, &["--server", &places], &program, &[], &[FOUR, LOG, TCP_IS_FAR]).wait(LIMIT);
        assert_identical(&outcome, native);
    }
}

#[test]
fn code_is_loaded_while_streams_wait_for_copies_of_the_job() {
    on_two_gpus("carried");
}

#[test]
fn arrays_and_rows_are_copied_between_gpus() {
    on_two_gpus("shapes");
}

#[test]
fn gpus_that_copy_to_each_other_move_alone_and_together() {
    let scene = Scene::new("moving");
    let native = native(&scene);
    let servers = [Server::start_with(&scene, "one", &[], &[FOUR]), Server::start_with(&scene, "two", &[], &[FOUR])];
    let (one, two) = (&servers[0], &servers[1]);
    with_time([40_000, 150_000, 500_000], |pace| {
        let places = format!("{},{},{}", one.unix_place(0), one.place(1), two.unix_place(2));
        let mut job = crossings(&scene, "moved", &places, pace, &[]);
        job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
        // Not before there is something to give up; and what the move gives up is made again.
        let mut seen = 0;
        let mut again = |job: &mut Job<'_>| {
            let more = wait_for(LIMIT, || (past_the_job(&job.stderr()) > seen || !job.runs()).then_some(()));
            more.filter(|()| job.runs()).ok_or("the job has ended, or all copies go through it")?;
            seen = past_the_job(&job.stderr());
            Ok::<_, &str>(())
        };
        for (to, gpu) in [
            (two.place(0), "0"),
            ("local".to_owned(), "1"),
            (one.unix_place(2), "2"),
            (format!("{},{},{}", one.place(3), two.unix_place(1), "local"), "all"),
        ] {
            again(&mut job)?;
            let report = job.migrate_with(&to, &["--gpu", gpu])?;
            assert!(report.ok(), "GPU {gpu} to {to}: {}", report.reason());
        }
        again(&mut job)?;
        assert_identical(&job.wait(LIMIT), &native);
        Ok(())
    });
}

#[test]
fn a_lost_place_ends_the_copies_of_others() {
    let scene = Scene::new("lost-peer");
    let (one, mut two) = (Server::start_with(&scene, "one", &[], &[FOUR]), Server::start_with(&scene, "two", &[], &[FOUR]));
    let places = format!("{},{},{}", one.unix_place(0), two.unix_place(1), one.place(2));
    let job = crossings(&scene, "lost", &places, 50_000, &[]);
    let begun = wait_for(LIMIT, || (past_the_job(&job.stderr()) > 3).then_some(()));
    assert!(begun.is_some(), "{}", job.stderr());
    two.kill();
    let outcome = job.wait(LIMIT);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("(46)"), "{}", outcome.stderr);
}
