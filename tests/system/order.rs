//! Host and GPU see each other's writes in order at every place (docs/consistency.md): the program `litmus`, natively and under mrcuda.
//! `LITMUS_ROUNDS` makes each test longer.

use crate::words_of_mrcuda;
use std::time::Duration;
use tests::programs::LITMUS;
use tests::{Job, Linkage, Outcome, Programs, Scene, Server};

/// Some thousand short rounds, each of which waits for what it is told.
const TIMEOUT: Duration = Duration::from_secs(900);
/// What copies of memory do not promise.
const OF_ONE_MEMORY: [&str; 2] = ["--except", "sb/"];

fn rounds() -> String {
    std::env::var("LITMUS_ROUNDS").unwrap_or_else(|_| "2".to_owned())
}

fn arguments<'a>(rounds: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--rounds", rounds, "--words", "8192", "--counts"], more].concat()
}

/// Every test of the program is right, and there are many.
fn assert_right(outcome: &Outcome, least: usize) {
    let wrong: Vec<&str> = outcome.stdout.lines().filter(|l| !l.contains(" ok ")).collect();
    assert!(outcome.ok() && wrong == ["RESULT ok"], "{wrong:#?}\n{}", outcome.stderr);
    assert!(outcome.stdout.lines().count() > least, "only {} tests", outcome.stdout.lines().count());
    assert!(words_of_mrcuda(outcome).is_empty(), "{}", outcome.stderr);
}

fn at(scene: &Scene, place: &str, more: &[&str], least: usize) {
    let (program, rounds) = (Programs::get().path(Linkage::Static, LITMUS), rounds());
    let job = Job::start(scene, "job", &["--server", place], &program, &arguments(&rounds, more), &[]);
    assert_right(&job.wait(TIMEOUT), least);
}

#[test]
fn natively_every_order_is_kept() {
    let scene = Scene::new("order-native");
    let (program, rounds) = (Programs::get().path(Linkage::Static, LITMUS), rounds());
    assert_right(&Job::native(&scene, "native", &program, &arguments(&rounds, &[])).wait(TIMEOUT), 1000);
}

#[test]
fn in_the_job_s_process_it_is_kept() {
    at(&Scene::new("order-local"), "local", &[], 1000);
}

#[test]
fn over_the_network_it_is_kept() {
    let scene = Scene::new("order-tcp");
    let server = Server::start(&scene, "one");
    at(&scene, &server.place(0), &OF_ONE_MEMORY, 1000);
}

#[test]
fn where_pinned_memory_is_one_it_is_kept() {
    let scene = Scene::new("order-unix");
    let server = Server::start(&scene, "one");
    at(&scene, &server.unix_place(0), &["--unregistered"], 400);
}

#[test]
fn in_a_helper_it_is_kept() {
    at(&Scene::new("order-helper"), "helper", &["--unregistered"], 400);
}

#[test]
fn with_registered_memory_beside_pinned_memory_it_is_kept() {
    let scene = Scene::new("order-registered");
    let server = Server::start(&scene, "one");
    at(&scene, &server.unix_place(0), &OF_ONE_MEMORY, 1000);
}
