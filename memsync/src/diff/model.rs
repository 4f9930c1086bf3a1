//! Model check of what a round copies: all small memories of both ends, and random larger ones, with connections that break at every
//! point. The contents of a page are one number here, which is also its hash.

use super::*;
use crate::region::{PAGE, leave_out};
use interleave::{Choices, every_choice, random_choices};
use std::collections::{BTreeMap, BTreeSet};

/// The contents of a page that no longer exists.
const GONE: u8 = 0;

/// A wrong round, which the model must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    SendsEverything,
    ForgetsTheLastPage,
    SkipsAConnection,
    SendsTwice,
    UsesTheNumbersOfTheSource,
    FetchesEqualPages,
    SendsWhatIsGone,
}

/// The memory of an end: regions, and the contents of each page by its address.
#[derive(Debug, Clone, Default)]
struct End {
    regions: Vec<Region>,
    pages: BTreeMap<u64, u8>,
}

impl End {
    fn add(&mut self, region: Region, mut contents: impl FnMut() -> u8) {
        self.regions.push(region);
        self.pages.extend((0..region.pages()).map(|n| (region.page(n).address, contents())));
    }

    fn pages(&self) -> Pages {
        Pages::of(self.regions.clone())
    }

    /// Hashes of pages; those of other regions than its own are left out.
    fn hashes(&self, pages: &Pages) -> Vec<PageHash> {
        let hash = |p: Page| self.pages.get(&p.address).map_or(NO_HASH, |c| if *c == GONE { NO_HASH } else { [*c; 32] });
        let mut hashes: Vec<PageHash> = pages.iter().map(hash).collect();
        leave_out(&mut hashes, pages, |r| self.regions.contains(r));
        hashes
    }

    /// The pages of a target that differ here.
    fn differing(&self, target: &End, pages: &Pages) -> Vec<u64> {
        differing_hashes(&target.hashes(pages), &self.hashes(pages))
    }

    fn has(&self, address: u64) -> bool {
        self.pages.get(&address).is_some_and(|contents| *contents != GONE)
    }
}

/// Sends one round of pages; it breaks after `most` batches. Returns whether it was complete.
fn send(source: &End, target: &mut End, connections: usize, most: usize, mistake: Mistake, choices: &mut Choices) -> bool {
    let (theirs, ours) = (target.pages(), source.pages());
    let mut wanted = to_send(&theirs, &source.differing(target, &theirs));
    match mistake {
        Mistake::SendsEverything => wanted = everything(&theirs),
        Mistake::ForgetsTheLastPage => drop(wanted.pop()),
        Mistake::SendsTwice => wanted.extend(wanted.last().copied()),
        Mistake::SendsWhatIsGone => {
            wanted = to_send(&theirs, &differing_hashes(&target.hashes(&theirs), &vec![[9; 32]; theirs.len()]));
        }
        Mistake::UsesTheNumbersOfTheSource => wanted.iter_mut().for_each(|w| {
            w.number = ours.iter().position(|p| p == w.page).unwrap_or_default() as u32;
        }),
        _ => {}
    }
    let mut shares: Vec<Vec<&[Wanted]>> = by_connection(&wanted, connections)
        .into_iter()
        .map(|mut s| {
            s.reverse();
            s
        })
        .collect();
    assert_eq!(shares.len(), connections);
    if mistake == Mistake::SkipsAConnection {
        shares.remove(0);
    }
    let (mut sent, mut written) = (0, BTreeSet::new());
    // The connections advance in any order.
    loop {
        let waiting: Vec<usize> = (0..shares.len()).filter(|i| !shares[*i].is_empty()).collect();
        if waiting.is_empty() || sent == most {
            break;
        }
        let Some(batch) = shares[waiting[choices.pick(waiting.len())]].pop() else { break };
        sent += 1;
        let bytes: u64 = batch.iter().map(|w| w.page.bytes).sum();
        assert!(!batch.is_empty() && batch.len() <= BATCH_PAGES && bytes <= BATCH as u64, "it does not fit a buffer");
        let numbers: Vec<u32> = batch.iter().map(|w| w.number).collect();
        let places = places(&theirs, &numbers, bytes as usize).expect("a batch that the target accepts");
        for (w, place) in batch.iter().zip(places) {
            assert_eq!(place, w.page, "it is written elsewhere");
            assert!(written.insert(place.address), "a page is sent twice");
            assert!(source.has(place.address), "a page is sent that the source does not have");
            let new = source.pages[&place.address];
            let old = target.pages.insert(place.address, new);
            assert_ne!(old, Some(new), "an equal page is sent");
        }
    }
    shares.iter().all(Vec::is_empty)
}

/// Copies what is in view, in one step.
fn fetch(source: &End, target: &mut End, seen: &Pages, mistake: Mistake) {
    let bits = source.differing(target, seen);
    let ranges = match mistake {
        Mistake::FetchesEqualPages => ranges(seen.iter()),
        _ => ranges(seen.marked(&bits).map(|(_, page)| page)),
    };
    assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "adjacent ranges are joined");
    let mut bytes = 0;
    for page in seen.iter().filter(|p| ranges.iter().any(|(at, len)| p.address >= *at && p.address < at + len)) {
        assert!(source.has(page.address));
        let new = source.pages[&page.address];
        assert_ne!(target.pages.insert(page.address, new), Some(new), "an equal page is fetched");
        bytes += page.bytes;
    }
    assert_eq!(bytes, ranges.iter().map(|(_, len)| len).sum::<u64>(), "a range has bytes that are no page's");
}

/// Two memories: some regions at both ends, some at one of them.
fn memories(regions: usize, most_pages: u64, choices: &mut Choices) -> (End, End) {
    let (mut source, mut target) = (End::default(), End::default());
    let mut address = 1 << 40;
    for _ in 0..regions {
        let pages = 1 + choices.pick(most_pages as usize) as u64;
        let kind = if choices.pick(2) == 0 { Kind::Chunk } else { Kind::Global };
        let region = Region { address, bytes: pages * PAGE - if kind == Kind::Global { 7 } else { 0 }, kind };
        // The next region may be adjacent.
        address += pages * PAGE;
        match choices.pick(4) {
            0 => source.add(region, || 1 + choices.pick(2) as u8),
            1 => target.add(region, || 1 + choices.pick(2) as u8),
            _ => {
                source.add(region, || choices.pick(3) as u8);
                target.add(region, || 1 + choices.pick(2) as u8);
            }
        }
    }
    (source, target)
}

/// What both have is equal now, as far as the source still has it; the rest of the target is as before.
fn check(source: &End, before: &End, target: &End) {
    let shared: BTreeSet<u64> = {
        let common = source.regions.iter().filter(|r| before.regions.contains(r));
        common.flat_map(|r| (0..r.pages()).map(|n| r.page(n).address)).collect()
    };
    for (address, contents) in &target.pages {
        let expected =
            if shared.contains(address) && source.has(*address) { source.pages[address] } else { before.pages[address] };
        assert_eq!(*contents, expected, "a page was not copied, or another one was");
    }
}

/// Rounds until one is complete: what a broken one has copied is not sent again.
fn run(regions: usize, most_pages: u64, mistake: Mistake, choices: &mut Choices) {
    let (source, mut target) = memories(regions, most_pages, choices);
    let before = target.clone();
    let connections = 1 + choices.pick(3);
    let most = choices.pick(3);
    if !send(&source, &mut target, connections, most, mistake, choices) {
        // Each page is as it was, or as it is at the source.
        assert!(target.pages.iter().all(|(at, c)| before.pages[at] == *c || source.pages.get(at) == Some(c)));
        assert!(send(&source, &mut target, connections, usize::MAX, mistake, choices));
    }
    check(&source, &before, &target);
    let nothing = to_send(&target.pages(), &source.differing(&target, &target.pages()));
    assert!(nothing.is_empty(), "a second round sends something");
    // The same memory in view.
    let mut copied = before.clone();
    let both: Vec<Region> = source.regions.iter().filter(|r| before.regions.contains(r)).copied().collect();
    fetch(&source, &mut copied, &Pages::of(both), mistake);
    check(&source, &before, &copied);
}

#[test]
fn exactly_the_differing_pages_are_copied() {
    let small = every_choice(|c| run(1, 3, Mistake::None, c));
    let two = every_choice(|c| run(2, 1, Mistake::None, c));
    assert!(small > 1000 && two > 1000, "{small} {two}");
    // Several batches for each connection.
    random_choices(300, |c| run(4, 200, Mistake::None, c));
}

#[test]
fn mistakes_are_detected() {
    let found = |mistake| std::panic::catch_unwind(|| random_choices(60, |c| run(3, 70, mistake, c))).is_err();
    assert!(!found(Mistake::None));
    for mistake in [
        Mistake::SendsEverything,
        Mistake::ForgetsTheLastPage,
        Mistake::SkipsAConnection,
        Mistake::SendsTwice,
        Mistake::UsesTheNumbersOfTheSource,
        Mistake::FetchesEqualPages,
        Mistake::SendsWhatIsGone,
    ] {
        assert!(found(mistake), "{mistake:?}");
    }
}

#[test]
fn a_comparison_is_complete_only_with_every_page() {
    every_choice(|c| {
        let (_, target) = memories(1, 3, c);
        let all = target.pages();
        let compared = Compared::none_of(&all);
        let wanted = everything(&all);
        let left_out = c.pick(wanted.len() + 1);
        for share in by_connection(&wanted, 2) {
            for batch in share {
                let numbers: Vec<u32> = batch.iter().map(|w| w.number).filter(|n| *n as usize != left_out).collect();
                // A page that is compared twice counts once.
                (0..2).for_each(|_| compared.note(&numbers));
            }
        }
        assert_eq!(compared.is_complete(), left_out == wanted.len());
    });
    let page = |n: u64| Region { address: 1 << 40, bytes: 3 * 4, kind: Kind::Global }.page(n);
    let pages: Vec<Page> = (0..3).map(|n| Page { address: n * 4, bytes: 4, ..page(0) }).collect();
    assert_eq!(differing(&pages, &[1; 12], &[1; 12]), None);
    assert_eq!(differing(&pages, &[1; 12], &[1, 1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 1]), Some((2, 4)));
}
