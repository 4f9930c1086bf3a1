//! The job's socket, as schedulers and others use it: scripts that know nothing of mrcuda but docs/scheduler.md.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step};
use std::process::{Command, Stdio};
use tests::{Job, Scene, Server, install};

/// Starts a script of `programs/scheduler/` with these arguments, in the job's scene.
fn script(scene: &Scene, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    scene.dress(&mut command);
    command.arg(install::root().join("tests/programs/scheduler").join(name)).args(args).stdin(Stdio::null());
    // No files beside the scripts.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[track_caller]
fn succeeds(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {text}");
}

#[test]
fn a_scheduler_needs_only_the_socket() {
    let scene = Scene::new("scheduler");
    // Slow enough on any machine for half a dozen moves.
    let steps = ["--steps", "3000", "--pace", "3000", "--progress"];
    let native = native_orbit(&scene, &steps);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (here, there) = (servers[0].place(0), servers[1].place(0));
    let mut job = remote_orbit(&scene, "moved", &here, &steps, &[]);
    wait_for_step(&mut job, 50);
    succeeds(script(&scene, "scheduler.py", &[&job.pid().to_string(), &here, &there]));
    assert!(job.runs(), "it was over before the scheduler was: {}", job.stderr());
    assert_identical(&job.wait(LIMIT), &native);
}

/// Slow clients take several seconds, and the job must still be at work after them.
const LONGER: [&str; 3] = ["--steps", "20000", "--progress"];

/// Clients of this kind do the job no harm: it can be asked and moved, and prints what it prints natively.
fn harmless(kinds: &[&str]) {
    let scene = Scene::new(kinds[0]);
    let native = native_orbit(&scene, &LONGER);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 50);
    let pid = job.pid().to_string();
    for kind in kinds {
        let mut client = script(&scene, "hostile.py", &[&pid, kind]).spawn().unwrap();
        // While it is at work.
        assert!(job.status().is_some(), "{kind}: the job does not answer");
        let status = client.wait().unwrap();
        assert!(status.success(), "{kind}: {status}");
    }
    move_and_end(job, &native);
}

fn move_and_end(job: Job<'_>, native: &tests::Outcome) {
    let report = job.migrate("local").unwrap();
    assert!(report.ok(), "{}", report.reason());
    assert_identical(&job.wait(LIMIT), native);
}

#[test]
fn garbage_is_answered_with_one_line() {
    harmless(&["garbage", "half", "long"]);
}

#[test]
fn slow_clients_hold_up_nobody() {
    harmless(&["slow"]);
}

#[test]
fn deaf_clients_hold_up_nobody() {
    harmless(&["deaf"]);
}

#[test]
fn a_crowd_keeps_nobody_out() {
    harmless(&["crowd", "listeners"]);
}

#[test]
fn another_user_is_sent_away() {
    // SAFETY: a system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        // Only root can become somebody else; elsewhere the directory's mode is all that can be tested.
        return;
    }
    let scene = Scene::new("stranger");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 50);
    succeeds(script(&scene, "hostile.py", &[&job.pid().to_string(), "stranger"]));
    // Whoever has opened the directory to others is told before anything is asked.
    let output = scene.mrcuda().args(["moves", &job.pid().to_string()]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && words.contains("its mode must be 0700"), "{words}");
    assert_identical(&job.wait(LIMIT), &native);
}
