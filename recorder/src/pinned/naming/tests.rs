use super::*;

const BASE: u64 = 0x4000_0000_0000;

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn names(words: &[u64], lands: [Range<u64>; 2]) -> bool {
    may_name(&bytes(words), &lands)
}

#[test]
fn words_are_aligned_where_they_are_copied_to() {
    let all: Vec<u8> = (0..32).collect();
    assert_eq!((words_at(0x1000, &all).len(), words_at(0x1001, &all)[0], words_at(0x1007, &all)[0]), (32, 7, 1));
    assert!(words_at(0x1001, &all[..6]).is_empty() && words_at(0x1001, &all[..7]).is_empty());
    assert!(words_at(0x1001, &[]).is_empty());
}

#[test]
fn addresses_in_a_range_are_found() {
    let lands = || [BASE..BASE + (1 << 34), 0..0];
    assert!(names(&[1, 2, BASE], lands()) && names(&[BASE + (1 << 33), 0], lands()));
    assert!(!names(&[], lands()) && !names(&[0, u64::MAX, BASE - 1, 0x7fff_0000_0000], lands()));
}

#[test]
fn a_second_range_is_searched_too() {
    let lands = || [BASE..BASE + 4096, 0x7f00_0000_0000..0x7f00_1000_0000];
    assert!(names(&[0x7f00_0000_1000], lands()) && names(&[BASE], lands()) && !names(&[0x7e00_0000_0000], lands()));
}

#[test]
fn no_address_is_overlooked() {
    use crate::objects::ranges::tests::Random;
    for seed in 1..200 {
        let mut random = Random::new(seed);
        let land = |random: &mut Random| {
            let start = random.below(1 << 47);
            start..start + 1 + random.below(1 << 36)
        };
        let lands = [land(&mut random), land(&mut random)];
        let number = 1 + random.below(100);
        let mut words: Vec<u64> = (0..number).map(|_| random.below(u64::MAX)).collect();
        let of = &lands[random.below(2) as usize];
        words[random.below(number) as usize] = of.start + random.below(of.end - of.start);
        assert!(words.iter().any(|w| lies_in(&lands, *w)));
        assert!(search(&bytes(&words), &lands) && names(&words, lands), "{seed}");
    }
}

/// Each place of a block, and behind the last one; an upper half in the place of a lower one is no address.
#[test]
fn only_upper_halves_count_wherever_they_are() {
    let lands = [BASE..BASE + 4096, 0x7f00_0000_0000..0x7f00_1000_0000];
    for at in 0..70 {
        for (word, found) in [(BASE, true), (0x7f00_0000_1000, true), (BASE >> 32, false), (0x7f00, false), (BASE - 1, false)] {
            let mut words = [5; 70];
            words[at] = word;
            assert_eq!([search(&bytes(&words), &lands), names(&words, lands.clone())], [found; 2], "{word:#x} at {at}");
            // Bytes behind the last word.
            assert_eq!(may_name(&[&bytes(&words)[..], &BASE.to_le_bytes()[..7]].concat(), &lands), found);
        }
    }
}

#[test]
fn a_word_at_the_end_of_a_range_is_outside() {
    let lands = [10..20, 0..0];
    assert_eq!([9, 10, 19, 20, 0].map(|w| lies_in(&lands, w)), [false, true, true, false, false]);
}

/// A worker that takes whatever it is given.
struct Worker {
    executes: bool,
    has: std::cell::RefCell<Vec<u64>>,
}

impl Holder for Worker {
    fn has(&self, at: u64) -> bool {
        self.has.borrow().contains(&at)
    }

    fn executes(&self) -> bool {
        self.executes
    }

    unsafe fn pin(&self, at: u64, _: &Block) -> Result<Option<Range<u64>>, Code> {
        self.has.borrow_mut().push(at);
        Ok(None)
    }
}

#[test]
fn a_target_is_given_what_is_found_and_the_job_uses_it_as_before() {
    use crate::pinned::blocks::{HIGHEST_OWN, Kind, LOWEST_OWN, number};
    const AT: u64 = 0x7e00_0000_0000;
    add(
        AT,
        Block {
            bytes: 64,
            flags: 0,
            kind: Kind::Registered,
            filed: false,
            slab: cuda_api::ops::Slab::default(),
            exclusive: false,
            device: 0,
            id: number(),
            known: Known::Unused,
        },
    );
    LOWEST_OWN.fetch_min(AT, Ordering::Relaxed);
    HIGHEST_OWN.fetch_max(AT + 64, Ordering::Relaxed);
    let known = || lock(&BLOCKS)[&AT].known;
    let worker = |executes| Worker { executes, has: Default::default() };
    let target = worker(false);
    assert!(named([AT + 8].into_iter(), &target) && target.has(AT));
    assert_eq!(known(), Known::Unused);
    note_found(&[AT, AT + 64]);
    assert_eq!(known(), Known::Found, "after the commit");
    lock(&BLOCKS).get_mut(&AT).into_iter().for_each(|b| set(b, Known::Unused));
    let place = worker(true);
    assert!(named([AT + 8].into_iter(), &place) && place.has(AT));
    assert_eq!(known(), Known::Found);
    lock(&BLOCKS).get_mut(&AT).into_iter().for_each(|b| set(b, Known::Going));
    lock(&BLOCKS).remove(&AT);
}
