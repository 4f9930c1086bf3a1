use super::*;
use crate::objects::ranges::tests::Random;
use std::collections::BTreeSet;

const START: u64 = 1 << 40;

/// Places a block, mapping a slab where one is asked for.
fn place(slabs: &mut Slabs, bytes: u64, mapped: &mut u64) -> Option<InSlab> {
    loop {
        match slabs.place(bytes, true) {
            Place::Alone => return None,
            Place::In(block) => return Some(block),
            Place::Map(size) => {
                *mapped += 1;
                slabs.add(Slab { address: START + *mapped * 4 * NEXT, bytes: size, number: *mapped }, true);
            }
        }
    }
}

#[test]
fn the_first_blocks_and_large_ones_have_memory_of_their_own() {
    let mut slabs = Slabs::new();
    assert_eq!(slabs.place(LARGEST + 1, false), Place::Alone);
    (0..ALONE).for_each(|_| assert_eq!(slabs.place(64, false), Place::Alone));
    assert_eq!(slabs.place(64, false), Place::Map(FIRST));
    assert_eq!(slabs.place(LARGEST + 1, true), Place::Alone);
    // One of the first goes, and another one takes its place.
    assert_eq!(slabs.release(START, 64, Slab::default(), false), None);
    assert_eq!(slabs.place(64, false), Place::Alone);
    assert_eq!(slabs.place(64, false), Place::Map(FIRST));
    // A large one is none of those that are counted.
    assert_eq!(slabs.release(START, LARGEST + 1, Slab::default(), false), None);
    assert_eq!(slabs.place(64, false), Place::Map(FIRST));
}

#[test]
fn a_slab_goes_with_its_last_block_and_the_next_one_is_fresh() {
    let (mut slabs, mut mapped) = (Slabs::new(), 0);
    let first = place(&mut slabs, 100, &mut mapped).unwrap();
    let second = place(&mut slabs, 100, &mut mapped).unwrap();
    assert_eq!((second.at - first.at, first.used, second.used), (2 * PAGE, false, false), "a page and a gap");
    assert_eq!(slabs.release(first.at, 100, first.slab, false), None);
    let again = place(&mut slabs, 5000, &mut mapped).unwrap();
    assert_ne!(again.at, first.at, "two pages do not fit there");
    let third = place(&mut slabs, 100, &mut mapped).unwrap();
    assert_eq!((third.at, third.used), (first.at, true));
    for (block, bytes) in [(second, 100), (again, 5000)] {
        assert_eq!(slabs.release(block.at, bytes, block.slab, false), None);
    }
    assert_eq!(slabs.release(third.at, 100, third.slab, false), Some(first.slab));
    let fresh = place(&mut slabs, 100, &mut mapped).unwrap();
    assert!(!fresh.used && fresh.slab.number != first.slab.number);
}

#[test]
fn retired_pages_are_used_by_no_other_block_of_the_slab() {
    let (mut slabs, mut mapped) = (Slabs::new(), 0);
    let first = place(&mut slabs, 100, &mut mapped).unwrap();
    let second = place(&mut slabs, 100, &mut mapped).unwrap();
    assert_eq!(slabs.release(first.at, 100, first.slab, true), None);
    let third = place(&mut slabs, 100, &mut mapped).unwrap();
    assert!(third.at > second.at && !third.used, "{third:?}");
    assert_eq!(slabs.release(second.at, 100, second.slab, true), None);
    assert_eq!(slabs.release(third.at, 100, third.slab, false), Some(first.slab), "with the last block all of it goes");
}

#[test]
fn blocks_never_overlap_and_everything_comes_back() {
    for seed in 0..200 {
        let (mut slabs, mut mapped, mut random) = (Slabs::new(), 0, Random::new(seed));
        let mut live: Vec<(InSlab, u64)> = Vec::new();
        let mut before: BTreeSet<(u64, u64)> = BTreeSet::new();
        for _ in 0..600 {
            if live.is_empty() || random.below(5) < 3 {
                let most = if random.below(4) == 0 { LARGEST } else { 3 * PAGE };
                let bytes = 1 + random.below(most);
                let block = place(&mut slabs, bytes, &mut mapped).unwrap();
                let end = block.at + (pages(bytes) as u64) * PAGE;
                assert!(block.at.is_multiple_of(PAGE) && block.at >= block.slab.address);
                assert!(end <= block.slab.address + block.slab.bytes);
                for (other, bytes) in &live {
                    let others = other.at + pages(*bytes) as u64 * PAGE;
                    assert!(end + PAGE <= other.at || others + PAGE <= block.at, "seed {seed}: no gap between two blocks");
                }
                let of = |at: u64| (block.slab.number, at);
                let used = (block.at..end).step_by(PAGE as usize).fold(false, |any, at| any | !before.insert(of(at)));
                assert_eq!(block.used, used, "seed {seed}");
                live.push((block, bytes));
            } else {
                let (block, bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
                let last = !live.iter().any(|(other, _)| other.slab == block.slab);
                assert_eq!(slabs.release(block.at, bytes, block.slab, false), last.then_some(block.slab), "seed {seed}");
            }
        }
        for (block, bytes) in std::mem::take(&mut live) {
            slabs.release(block.at, bytes, block.slab, false);
        }
        assert!(slabs.all.is_empty(), "seed {seed}: {slabs:?}");
    }
}
