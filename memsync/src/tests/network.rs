//! Rounds over a fake network: two places end up equal, or the move fails and the source is as it was.

use super::*;
use fake_network::{Network, Random, to_its_end};
use std::sync::atomic::{AtomicUsize, Ordering};

const SEEDS: u64 = 200;

/// A place with a few regions, of which some pages are the same at every place.
fn place(random: &mut Random) -> Fake {
    let seed = random.draw() as u8;
    let place = Fake::new(&[
        (0x2000_0000_0000, 2 * PAGE as usize + 5000, Kind::Chunk, seed),
        (0x2000_1000_0000, PAGE as usize, Kind::Chunk, 9),
        (0x3000_0000_0000, 300, Kind::Global, seed),
    ]);
    if random.below(2) == 0 {
        let mut all = place.regions.lock().expect("lock");
        all.get_mut(&0x2000_0000_0000).expect("chunk").1[..PAGE as usize].fill(3);
    }
    place
}

/// Rounds that the source has given up.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Rounds in which something was compressed.
static COMPRESSED: AtomicUsize = AtomicUsize::new(0);

fn moves(seed: u64, breaks: bool) {
    let mut network = Network::new(seed);
    let (from, to) = (place(network.random()), place(network.random()));
    let to = if network.random().below(3) == 0 { to.beside(&from, 1) } else { to };
    let verify = [Verify::Skip, Verify::Auto, Verify::Hash, Verify::Bytes][network.random().below(4) as usize];
    let stripes = 1 + network.random().below(3);
    let broken = network.random().below(stripes);
    let connect = |number| {
        let faults = fake_network::Faults::of(network.random());
        // Pages are large: with less room a round is only long.
        let mut faults = fake_network::Faults { room: faults.room.max(500), ..faults };
        if breaks && number == broken {
            // As much as may be sent on it.
            faults = faults.breaking(network.random(), 250_000);
        }
        let (a, b) = network.connect_with(faults);
        (Box::new(a) as Box<dyn Stream>, Box::new(b) as Box<dyn Stream>)
    };
    let ends: (Ends, Ends) = (0..stripes).map(connect).unzip();
    let before = from.contents();
    // Half of the connections are known to be slow, so that batches on them are compressed if that pays.
    let known = |_| if network.random().below(2) == 0 { compression::known_as_slow() } else { Compression::default() };
    let known = (0..stripes).map(known).collect();
    let (source, target) = round_with(known, ends, &from, &to, verify, Faults::default());
    COMPRESSED
        .fetch_add(usize::from(source.as_ref().is_ok_and(|round| round.bytes_carried < round.bytes_sent)), Ordering::Relaxed);
    assert!(from.contents() == before, "seed {seed}: the source has changed");
    assert!(breaks || source.is_ok() && target.is_ok(), "seed {seed}: {source:?} {target:?}");
    BROKEN.fetch_add(usize::from(source.is_err()), Ordering::Relaxed);
    // The source says whether the move succeeds: the answer of a target that is done may be lost.
    if let Ok(source) = source {
        let target = target.unwrap_or_else(|e| panic!("seed {seed}: the source succeeds, and the target fails: {e}"));
        assert!(source.digest == target.digest && to.contents() == before, "seed {seed}: the places differ");
    }
}

#[test]
fn places_are_equal_after_a_round_over_a_bad_network() {
    for seed in fake_network::seeds(SEEDS) {
        to_its_end(seed, move || moves(seed, false));
    }
    assert!(COMPRESSED.load(Ordering::Relaxed) > 12, "nearly nothing is compressed");
}

#[test]
fn a_round_over_a_network_that_breaks_succeeds_or_leaves_the_source_alone() {
    for seed in fake_network::seeds(SEEDS) {
        to_its_end(seed, move || moves(seed, true));
    }
    assert!(BROKEN.load(Ordering::Relaxed) > 12, "nearly nothing breaks");
}
