use super::*;

#[test]
fn ranges_join_and_fit() {
    let mut r = Ranges::default();
    r.put(0, 4096);
    let (a, b, c) = (r.take(512).unwrap(), r.take(1024).unwrap(), r.take(512).unwrap());
    assert_eq!((a, b, c), (0, 512, 1536));
    r.put(a, 512);
    r.put(c, 512);
    assert_eq!(r.take(512), Some(0), "the tightest fit, lowest address");
    r.put(0, 512);
    r.put(b, 1024);
    assert_eq!(r.by_address, BTreeMap::from([(0, 4096)]));
    assert_eq!((r.take(8192), r.bytes()), (None, 4096));
}

#[test]
fn units_stay_apart() {
    let mut r = Ranges::in_units(4096);
    r.put(4096, 4096);
    r.put(0, 4096);
    assert_eq!(r.take(8192), None);
    assert!(r.carve(4096, 512) && !r.carve(4096, 512));
    r.put(4096, 512);
    assert_eq!(r.by_address, BTreeMap::from([(0, 4096), (4096, 4096)]));
}

#[test]
fn alignment_and_exact_places() {
    let mut r = Ranges::default();
    r.put(512, 10_000);
    assert_eq!(r.take_aligned(1000, 4096), Some(4096));
    assert_eq!(r.take_aligned(5000, 4096), None);
    assert!(r.has(512, 3584) && !r.has(512, 3585) && !r.has(0, 1));
    assert!(r.carve(600, 100));
    assert_eq!(r.bytes(), 10_000 - 1100);
    r.put(600, 100);
    r.put(4096, 1000);
    assert_eq!(r.by_address, BTreeMap::from([(512, 10_000)]));
}

/// A small xorshift generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % n
    }
}

/// Both indexes and the sum say the same, no ranges touch or overlap, and none spans a multiple of the unit.
fn check(r: &Ranges) {
    let by_size: BTreeSet<(u64, u64)> = r.by_address.iter().map(|(at, len)| (*len, *at)).collect();
    assert_eq!(r.by_size, by_size);
    assert_eq!(r.bytes, r.by_address.values().sum::<u64>());
    let all: Vec<(u64, u64)> = r.by_address.iter().map(|(at, len)| (*at, *len)).collect();
    assert!(all.iter().all(|(at, len)| *len > 0 && at / r.unit == (at + len - 1) / r.unit), "{all:?}");
    for pair in all.windows(2) {
        let end = pair[0].0 + pair[0].1;
        assert!(end < pair[1].0 || end == pair[1].0 && end.is_multiple_of(r.unit), "{all:?}");
    }
}

#[test]
fn nothing_can_be_taken_from_nothing() {
    let mut r = Ranges::default();
    assert_eq!((r.take(1), r.take_aligned(1, 1), r.bytes()), (None, None, 0));
    assert!(!r.has(0, 1) && !r.carve(0, 1));
}

#[test]
fn the_smallest_range_that_fits_is_taken_though_another_is_lower() {
    let mut r = Ranges::default();
    r.put(0, 4096);
    r.put(10_000, 512);
    r.put(20_000, 1024);
    assert_eq!((r.take(512), r.take(600), r.take(600)), (Some(10_000), Some(20_000), Some(0)));
}

#[test]
fn a_range_that_fits_exactly_is_used_up() {
    let mut r = Ranges::default();
    r.put(4096, 512);
    assert_eq!(r.take(513), None);
    assert_eq!(r.take(512), Some(4096));
    assert_eq!((r.bytes(), r.by_address.len()), (0, 0));
}

#[test]
fn a_range_joins_the_one_before_it() {
    let mut r = Ranges::default();
    r.put(1000, 10);
    r.put(1010, 10);
    assert_eq!(r.by_address, BTreeMap::from([(1000, 20)]));
}

#[test]
fn a_range_joins_the_one_behind_it() {
    let mut r = Ranges::default();
    r.put(1010, 10);
    r.put(1000, 10);
    assert_eq!(r.by_address, BTreeMap::from([(1000, 20)]));
}

#[test]
fn a_range_closes_a_gap() {
    let mut r = Ranges::default();
    r.put(1000, 10);
    r.put(1020, 10);
    assert_eq!(r.take(11), None);
    r.put(1010, 10);
    assert_eq!(r.take(30), Some(1000));
}

#[test]
fn ranges_with_a_gap_of_one_byte_stay_apart() {
    let mut r = Ranges::default();
    r.put(1000, 10);
    r.put(1011, 10);
    assert!(r.has(1000, 10) && !r.has(1000, 11) && !r.has(1010, 1) && r.has(1011, 10));
}

#[test]
fn a_part_in_the_middle_leaves_both_sides() {
    let mut r = Ranges::default();
    r.put(1000, 100);
    assert!(r.carve(1040, 20));
    assert_eq!(r.by_address, BTreeMap::from([(1000, 40), (1060, 40)]));
}

#[test]
fn parts_at_the_ends_leave_the_rest() {
    let mut r = Ranges::default();
    r.put(1000, 100);
    assert!(r.carve(1000, 20) && r.carve(1080, 20));
    assert_eq!(r.by_address, BTreeMap::from([(1020, 60)]));
}

#[test]
fn what_is_only_partly_free_cannot_be_carved() {
    let mut r = Ranges::default();
    r.put(1000, 100);
    assert!(!r.carve(990, 20) && !r.carve(1090, 20) && !r.carve(900, 1000) && !r.carve(1100, 1));
    assert_eq!(r.bytes(), 100);
}

#[test]
fn sizes_that_overflow_are_not_free() {
    let mut r = Ranges::default();
    r.put(1 << 40, 4096);
    assert!(!r.has(1 << 40, u64::MAX) && !r.carve((1 << 40) + 1, u64::MAX));
    assert_eq!((r.take(u64::MAX), r.take_aligned(u64::MAX, 512), r.take_aligned(1, 1 << 63)), (None, None, None));
}

#[test]
fn an_aligned_range_may_begin_inside_a_free_one() {
    let mut r = Ranges::default();
    r.put(100, 8192);
    assert_eq!(r.take_aligned(4096, 4096), Some(4096));
    assert_eq!(r.by_address, BTreeMap::from([(100, 3996), (8192, 100)]));
}

#[test]
fn a_range_that_alignment_makes_too_short_is_passed_over() {
    let mut r = Ranges::default();
    r.put(4097, 4096);
    r.put(20_000, 10_000);
    assert_eq!(r.take_aligned(4096, 4096), Some(20_480));
    assert_eq!(r.take_aligned(4096, 1), Some(4097));
}

#[test]
fn all_ranges_of_another_one_are_joined_with_own_ones() {
    let (mut r, mut other) = (Ranges::default(), Ranges::default());
    r.put(1000, 10);
    r.put(2000, 10);
    other.put(1010, 10);
    other.put(3000, 5);
    r.put_all(other);
    assert_eq!(r.by_address, BTreeMap::from([(1000, 20), (2000, 10), (3000, 5)]));
    check(&r);
}

#[test]
fn ranges_of_one_unit_are_joined_and_those_of_two_are_not() {
    let mut r = Ranges::in_units(4096);
    for at in (0..16).rev() {
        r.put(1024 * at, 1024);
    }
    assert_eq!(r.by_address, BTreeMap::from([(0, 4096), (4096, 4096), (8192, 4096), (12_288, 4096)]));
    assert_eq!((r.take(4097), r.take_aligned(4096, 8192)), (None, Some(0)));
}

/// Takes, carves and puts back at random beside a plain model: one flag for each block.
fn beside_a_model(seed: u64, unit: u64) {
    const BLOCKS: u64 = 96;
    let mut random = Random::new(seed);
    let mut r = Ranges::in_units(unit);
    let mut free = [false; BLOCKS as usize];
    let mut taken: Vec<(u64, u64)> = Vec::new();
    let base = 16 * unit.min(1 << 40);
    for unit_start in (0..BLOCKS).step_by(unit.min(BLOCKS) as usize) {
        r.put(base + unit_start, unit.min(BLOCKS - unit_start));
    }
    free.fill(true);
    let fits = |free: &[bool], at: u64, n: u64| {
        at + n <= BLOCKS && at / unit == (at + n - 1) / unit && free[at as usize..(at + n) as usize].iter().all(|f| *f)
    };
    for _ in 0..600 {
        let n = 1 + random.below(9);
        let got = match random.below(4) {
            0 => r.take(n),
            1 => r.take_aligned(n, 1 << random.below(4)),
            2 => {
                let at = random.below(BLOCKS);
                let expected = fits(&free, at, n);
                assert_eq!(r.has(base + at, n), expected, "{at} {n}");
                let carved = r.carve(base + at, n);
                assert_eq!(carved, expected);
                carved.then_some(base + at)
            }
            _ => {
                if !taken.is_empty() {
                    let (at, n) = taken.swap_remove(random.below(taken.len() as u64) as usize);
                    free[at as usize..(at + n) as usize].fill(true);
                    r.put(base + at, n);
                }
                check(&r);
                continue;
            }
        };
        if let Some(at) = got {
            let at = at - base;
            assert!(fits(&free, at, n), "{at} {n} was not free");
            free[at as usize..(at + n) as usize].fill(false);
            taken.push((at, n));
        }
        assert_eq!(r.bytes(), free.iter().filter(|f| **f).count() as u64);
        check(&r);
    }
}

#[test]
fn ranges_agree_with_a_model_of_single_blocks() {
    (1..16).for_each(|seed| beside_a_model(seed, 1 << 50));
}

#[test]
fn ranges_in_units_agree_with_a_model_of_single_blocks() {
    (1..16).for_each(|seed| beside_a_model(seed, 32));
}

#[test]
fn what_does_not_fit_is_refused_only_if_no_range_is_long_enough() {
    for seed in 1..8 {
        let mut random = Random::new(seed);
        let mut r = Ranges::default();
        (0..20).for_each(|i| r.put(i * 1000, 1 + random.below(900)));
        for n in 1..950 {
            let longest = r.by_address.values().max().copied().unwrap_or(0);
            let best = r.by_address.values().filter(|len| **len >= n).min().copied();
            match r.take(n) {
                Some(at) => {
                    assert!(n <= longest);
                    r.put(at, n);
                    assert_eq!(r.by_address.values().filter(|len| **len >= n).min().copied(), best);
                }
                None => assert!(n > longest),
            }
        }
    }
}
