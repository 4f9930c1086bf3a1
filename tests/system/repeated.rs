//! Programs that work until so many moves have succeeded, and then check themselves.
//!
//! `crowd` and `storm` are sixteen threads that disturb each other, and are moved in the middle of captures, host functions, long
//! kernels, allocations: no deadlock. `differences` and `simulations` change their memory in the ways that weak sums do not see,
//! and compare all of it at the end: no page is taken for one that has not changed. `cargo xtask soak --only
//! crowd,storm,differences,simulations --moves-at-least 1000` makes a thousand such moves of each.

use crate::{LIMIT, assert_identical};
use tests::{Job, Linkage, Programs, Random, Scene, Server};

/// Moves that must succeed.
const MOVES: u32 = 12;
/// Moves that may be refused meanwhile: a host function may need the lock of a thread that waits at the gate.
const REFUSED: u32 = 6;

/// Runs a program until so many moves to random places have succeeded; it finds out by itself whether all was right.
fn moved_again_and_again(name: &str, seed: u64) {
    let scene = Scene::new(name);
    let program = Programs::get().path(Linkage::Static, name);
    let until =
        |file: &std::path::Path| ["--pace".to_owned(), "1000".to_owned(), "--until".to_owned(), file.display().to_string()];
    // The directory is there already: no rounds.
    let none = until(&scene.path);
    let native = Job::native(&scene, "native", &program, &none.each_ref().map(String::as_str)).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");

    // From some places to others memory is copied by the GPU, otherwise it travels.
    let servers = [Server::start_beside(&scene, "one"), Server::start(&scene, "two")];
    let [one, two] = &servers;
    let places = [one.place(0), two.place(0), one.unix_place(0), two.unix_place(0), "local".to_owned(), "helper".to_owned()];
    let enough = scene.path.join("enough");
    let args = until(&enough);
    let mut job = Job::start(&scene, "moved", &["--server", &places[0]], &program, &args.each_ref().map(String::as_str), &[]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    let (mut random, mut at, mut refused) = (Random::new(seed), 0, 0);
    let mut succeeded = 0;
    while succeeded < MOVES {
        std::thread::sleep(std::time::Duration::from_millis(random.below(60)));
        let to = (at + 1 + random.below(places.len() as u64 - 1) as usize) % places.len();
        let report = job.migrate(&places[to]).unwrap_or_else(|why| panic!("to {}: {why}\n{}", places[to], job.stderr()));
        if report.ok() {
            (at, succeeded) = (to, succeeded + 1);
        } else {
            assert_eq!(report.code(), "not-idle", "to {}: {}", places[to], report.reason());
            refused += 1;
            assert!(refused <= REFUSED, "it is refused again and again: {}", report.reason());
        }
    }
    assert!(job.runs(), "{}", job.stderr());
    std::fs::write(&enough, "").unwrap();
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn crowd_is_moved_again_and_again() {
    moved_again_and_again("crowd", 5);
}

#[test]
fn storm_is_moved_again_and_again() {
    moved_again_and_again("storm", 6);
}

#[test]
fn differences_is_moved_again_and_again() {
    moved_again_and_again("differences", 7);
}

#[test]
fn simulations_is_moved_again_and_again() {
    moved_again_and_again("simulations", 8);
}
