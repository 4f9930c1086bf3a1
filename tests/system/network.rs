//! A bad network between a job and its servers, by seed: bytes are split, delayed and held up, and connections are cut.

use crate::{LIMIT, assert_identical, native_orbit, words_of_mrcuda};
use std::time::Duration;
use tests::proxy::{Proxy, Trouble};
use tests::{Job, Outcome, Random, Scene, Server, random};

/// Short enough for a run over a slow network, long enough for some moves.
const STEPS: [&str; 3] = ["--steps", "1500", "--progress"];
/// A stall that is no reason to give a worker up: without a sign of life for ten seconds it would be.
const STALL: Duration = Duration::from_millis(900);

/// The ways to a server on a network.
#[derive(Debug, Clone, Copy)]
enum Way {
    Tls,
    Plain,
}

/// Two servers, each behind a bad network.
struct Network {
    _servers: [Server; 2],
    proxies: [Proxy; 2],
    places: Vec<String>,
}

impl Network {
    fn new(scene: &Scene, way: Way, seed: u64, cut: Option<u64>) -> Network {
        let servers = ["one", "two"].map(|name| Server::start_with(scene, name, &["--allow-plain"], &[]));
        let trouble = |number| Trouble { seed: seed + number, delay: Duration::from_millis(3), stall: STALL, cut };
        let proxies = [0, 1].map(|n| Proxy::troubled(servers[n].address, trouble(n as u64)).unwrap());
        let place = |p: &Proxy| match way {
            Way::Tls => format!("tls://{}/0", p.address),
            Way::Plain => format!("plain://{}/0", p.address),
        };
        let places = proxies.iter().map(place).collect();
        Network { _servers: servers, proxies, places }
    }

    /// Runs a job that moves to and fro until it ends. Returns how it ended, and how many moves succeeded.
    fn run(&self, scene: &Scene, random: &mut Random) -> (Outcome, u32) {
        let mut job = Job::orbit(scene, "job", &["--server", &self.places[0]], &STEPS, &[]);
        let (mut at, mut moves) = (0, 0);
        // It may fail before it is a job.
        if job.wait_ready(LIMIT).is_ok() {
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(random.below(150)));
                let places = [&self.places[0], &self.places[1], "local"];
                let to = (at + 1 + random.below(2) as usize) % places.len();
                match job.migrate(places[to]) {
                    Ok(report) if report.ok() => (at, moves) = (to, moves + 1),
                    Ok(report) => assert_ne!(report.code(), "not-identical", "{}", report.reason()),
                    // It has ended.
                    Err(_) => break,
                }
            }
        }
        (job.wait(LIMIT), moves)
    }
}

/// A network that is only slow and uneven changes nothing, and moves succeed.
fn bears(way: Way) {
    let scene = Scene::new(&format!("network-bad-{way:?}"));
    let native = native_orbit(&scene, &STEPS);
    for seed in [random::seed(), 7] {
        let (outcome, moves) = Network::new(&scene, way, seed, None).run(&scene, &mut Random::new(seed));
        assert!(!outcome.hung, "seed {seed}: it hangs: {}", outcome.stderr);
        assert_identical(&outcome, &native);
        assert!(moves > 0, "seed {seed}: no move succeeded: {}", outcome.stderr);
    }
}

/// A network that breaks is the loss of a server, wherever it breaks: the program ends natively, or with an error that says so.
fn breaks(way: Way) {
    let scene = Scene::new(&format!("network-cut-{way:?}"));
    let native = native_orbit(&scene, &STEPS);
    let first = random::seed();
    let mut cuts = 0;
    for (seed, most) in (first..first + 8).zip([500, 5000, 50_000, 200_000, 400_000, 1 << 20, 4 << 20, 16 << 20]) {
        let network = Network::new(&scene, way, seed, Some(most));
        let (outcome, _) = network.run(&scene, &mut Random::new(seed));
        assert!(!outcome.hung, "seed {seed}, {most}: it hangs: {}", outcome.stderr);
        cuts += network.proxies.iter().map(Proxy::cuts).sum::<usize>();
        if outcome.ok() {
            assert_identical(&outcome, &native);
            continue;
        }
        // No signal, no result that is wrong: an error of the program, and a line that says why.
        assert!(!outcome.stdout.contains("RESULT"), "seed {seed}, {most}: {outcome:?}");
        let words = words_of_mrcuda(&outcome);
        let says_why = |w: &&str| w.contains("lost") || w.contains("cannot");
        assert!(outcome.code.is_some() && words.iter().any(says_why), "seed {seed}, {most}: {outcome:?}");
    }
    assert!(cuts > 0, "nothing was cut from seed {first} on");
}

#[test]
fn an_uneven_network_changes_nothing_over_tls() {
    bears(Way::Tls);
}

#[test]
fn an_uneven_network_changes_nothing_without_encryption() {
    bears(Way::Plain);
}

#[test]
fn a_broken_network_is_a_lost_server_over_tls() {
    breaks(Way::Tls);
}

#[test]
fn a_broken_network_is_a_lost_server_without_encryption() {
    breaks(Way::Plain);
}
