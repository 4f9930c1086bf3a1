//! What a move must carry of code that comes and goes, and journals that stay as small as what is alive.

use crate::{LIMIT, assert_identical, process};
use std::os::unix::net::{UnixListener, UnixStream};
use tests::scene::wait_for;
use tests::{Job, Linkage, Programs, Scene, Server};

/// Runs `reloads` in one of its ways, moves it to a second server and into the process when it is ready, and wants what it prints
/// natively. Gives records and bytes of its journal, and the records that the first move replayed.
fn moved(way: &str, n: u64) -> (u64, u64, u64) {
    let scene = Scene::new(way);
    let program = Programs::get().path(Linkage::Static, "reloads");
    let file = |name: &str| scene.path.join(name).display().to_string();
    let (open, go, count) = (file("open"), file("go"), n.to_string());
    std::fs::write(&open, "").unwrap();
    let native = Job::native(&scene, "native", &program, &[way, &open, &count]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");

    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let at = servers[0].place(0);
    let mut job = Job::start(&scene, "job", &["--server", &at], &program, &[way, &go, &count], &[]);
    let ready = wait_for(LIMIT, || (job.stderr().lines().any(|l| l == "ready") || !job.runs()).then_some(()));
    assert!(ready.is_some() && job.runs(), "{}", job.stderr());
    let status = job.status().expect("it answers");
    let figure = |name: &str| status["devices"][0][name].as_u64().unwrap_or_else(|| panic!("no {name} in {status}"));
    let mut replayed = None;
    for to in [&servers[1].place(0), "local"] {
        let report = job.migrate(to).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
        replayed.get_or_insert(report.number(&["records"]) as u64);
    }
    std::fs::write(&go, "").unwrap();
    let mut outcome = job.wait(LIMIT);
    outcome.stderr = outcome.stderr.replace("ready\n", "");
    assert_identical(&outcome, &native);
    (figure("records"), figure("journal_bytes"), replayed.unwrap_or_default())
}

#[test]
fn the_device_heap_outlives_the_code_that_allocated() {
    moved("heap", 1);
}

#[test]
fn modules_that_come_and_go_leave_a_small_journal() {
    let (records, bytes, replayed) = moved("pairs", 1000);
    // What was sent of images of which nothing is loaded is a small number, too.
    assert!(records < 100 && replayed < 100 && bytes < 4 << 20, "{records} records, {bytes} bytes, {replayed} replayed");
}

#[test]
fn modules_of_which_the_oldest_goes_leave_a_bounded_journal() {
    let (records, bytes, replayed) = moved("window", 1500);
    assert!(records < 5000 && replayed < 5000 && bytes < 32 << 20, "{records} records, {bytes} bytes, {replayed} replayed");
}

/// Over TCP a place describes functions when their code is loaded, and their code is placed by that: at the target too.
#[test]
fn functions_that_are_described_but_never_used_move_no_variable() {
    moved("large", 80_000);
}

#[test]
fn settings_leave_a_journal_of_the_last_ones() {
    let (records, bytes, replayed) = moved("settings", 4000);
    assert!(records < 40 && replayed < 40 && bytes < 4 << 20, "{records} records, {bytes} bytes, {replayed} replayed");
}

#[test]
fn resets_end_what_libraries_have_lent() {
    let (records, _, replayed) = moved("reset", 20);
    assert!(records < 40 && replayed < 40, "{records} records, {replayed} replayed");
}

/// Whoever is held at a point of [`faults`], until it is dropped.
fn held(at: &UnixListener) -> Option<UnixStream> {
    at.set_nonblocking(true).unwrap();
    wait_for(LIMIT, || at.accept().ok()).map(|(stream, _)| stream)
}

#[test]
fn code_that_comes_when_a_job_is_about_to_stand_still_is_loaded_while_it_works() {
    let scene = Scene::new("late-code");
    let program = process::build(&scene, "latecode");
    let (quiesce, load) = (scene.runtime().join("quiesce"), scene.runtime().join("load"));
    let (at_quiesce, at_load) = (UnixListener::bind(&quiesce).unwrap(), UnixListener::bind(&load).unwrap());
    let one = Server::start(&scene, "one");
    let two = Server::start_with(&scene, "two", &[], &[("MRCUDA_FAULT", &format!("load@{}", load.display()))]);
    let directory = scene.path.display().to_string();
    let fault = format!("quiesce@{}", quiesce.display());
    let options = ["--server", &one.place(0)];
    let mut job = Job::start(&scene, "job", &options, &program, &[&directory], &[("MRCUDA_FAULT", &fault)]);
    let steps = || std::fs::read_to_string(scene.path.join("steps")).ok()?.parse::<u64>().ok();
    let goes_on = || {
        let from = steps().unwrap_or_default();
        wait_for(LIMIT, || steps().filter(|now| *now > from + 20)).is_some()
    };
    job.wait_ready(LIMIT).unwrap();
    assert!(goes_on(), "{}", job.stderr());
    std::thread::scope(|s| {
        let moving = s.spawn(|| job.migrate(&two.place(0)));
        // What was loaded before the move.
        drop(held(&at_load).expect("the target loads"));
        let before_rest = held(&at_quiesce).expect("it is about to stand still");
        std::fs::write(scene.path.join("load"), "").unwrap();
        assert!(wait_for(LIMIT, || scene.path.join("loaded").exists().then_some(())).is_some());
        drop(before_rest);
        let late = held(&at_load).expect("the target loads what came late");
        let worked = goes_on();
        drop(late);
        assert!(worked, "it stood still while the target loaded code");
        drop(held(&at_quiesce).expect("it is about to stand still again"));
        let report = moving.join().unwrap().unwrap();
        assert!(report.ok(), "{}", report.reason());
    });
    std::fs::write(scene.path.join("go"), "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout == "right\n", "{outcome:?}");
}
