//! Random programs (tests/programs/cuda/mix.cu): each prints what it prints natively, wherever it is and however often it moves.
//! `cargo xtask soak --only mix` makes many more of them.

use crate::{LIMIT, assert_identical};
use std::time::Duration;
use tests::{Job, Linkage, Programs, Random, Scene, Server};

/// Moves a job from `places[at]` to random places, with pauses of less than `pause` milliseconds, until it ends. Returns how many moves
/// succeeded.
pub(crate) fn move_until_its_end(job: &mut Job<'_>, places: &[String], mut at: usize, random: &mut Random, pause: u64) -> u32 {
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    let mut succeeded = 0;
    while job.runs() {
        std::thread::sleep(Duration::from_millis(random.below(pause)));
        let to = (at + 1 + random.below(places.len() as u64 - 1) as usize) % places.len();
        // It may end meanwhile, and a move may meet a host function that takes long: neither may change what comes out.
        let Ok(report) = job.migrate(&places[to]) else { break };
        assert_ne!(report.code(), "not-identical", "to {}: {}", places[to], report.reason());
        if report.ok() {
            (at, succeeded) = (to, succeeded + 1);
        }
    }
    succeeded
}

/// Moves to random places at random moments, until the program ends.
fn plays_as_natively(seed: u64, threads: u32) {
    let scene = Scene::new(&format!("mix{seed}"));
    let program = Programs::get().path(Linkage::Static, "mix");
    let (seed_text, threads) = (seed.to_string(), threads.to_string());
    let args = |pace| ["--seed", &seed_text, "--threads", &threads, "--steps", "260", "--pace", pace];
    let native = Job::native(&scene, "native", &program, &args("0")).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");

    let servers = [Server::start_beside(&scene, "one"), Server::start(&scene, "two")];
    let [one, two] = &servers;
    let places = [one.place(0), two.place(0), one.unix_place(0), two.unix_place(0), "local".to_owned(), "helper".to_owned()];
    let mut random = Random::new(seed);
    // On a busy machine a move takes longer, and so does the program then.
    let moved = ["8000", "40000", "200000"].into_iter().any(|pace| {
        let at = random.below(places.len() as u64) as usize;
        let mut job = Job::start(&scene, "moved", &["--server", &places[at]], &program, &args(pace), &[]);
        let succeeded = move_until_its_end(&mut job, &places, at, &mut random, 120);
        assert_identical(&job.wait(LIMIT), &native);
        succeeded > 0
    });
    assert!(moved, "no move succeeded");
}

macro_rules! plays {
    ($($test:ident: $seed:literal, $threads:literal;)*) => {
        $(#[test] fn $test() { plays_as_natively($seed, $threads); })*
    };
}

plays! {
    one_thread: 12, 1;
    another_thread: 39, 1;
    two_threads: 554, 2;
    four_threads: 116, 4;
    sixteen_threads: 948, 16;
}
