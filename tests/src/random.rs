//! Repeatable random numbers: splitmix64, so that a seed in a report is enough to see a run again.

use std::time::{Duration, SystemTime};

/// The variable with the seed of a run of tests: tests that try a part of many cases choose it by this. `cargo xtask test` sets it.
pub const SEED: &str = "MRCUDA_TEST_SEED";

/// Each system test runs in one of so many runs with consecutive seeds (tests/README.md): on two processors all of them take about half an hour.
pub const TURNS: u64 = 16;

/// The seed of this run of tests; without one, the time.
pub fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now)
}

/// A generator; the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator from a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_repeats_and_the_range_is_used() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| a.draw() == b.draw()));
        let mut seen = [false; 8];
        (0..200).for_each(|_| seen[a.below(8) as usize] = true);
        assert_eq!(seen, [true; 8]);
        assert!((0..1000).map(|_| b.unit()).all(|x| (0.0..1.0).contains(&x)));
    }
}
