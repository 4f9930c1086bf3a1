//! Hashes that are not good enough, each for another reason: the battery must find them all.

/// Threads that share a page.
const THREADS: usize = 256;

fn words(page: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = page.as_chunks::<8>();
    let last = (!rest.is_empty()).then(|| {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        word
    });
    whole.iter().copied().chain(last).map(u64::from_le_bytes)
}

/// One odd multiplication and one shift for each word, a lane for each thread. A difference in bit 63 becomes one in bits 63 and 31,
/// which the next word of the lane can cancel.
pub fn multiply_and_shift(page: &[u8]) -> (u64, u64) {
    fn mix(h: u64, word: u64) -> u64 {
        let h = (h ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        h ^ (h >> 32)
    }
    fn step((a, b): (u64, u64), x: u64, y: u64) -> (u64, u64) {
        let a = mix(a, x);
        (a, mix(b.wrapping_add(a), y))
    }
    let mut lanes: Vec<(u64, u64)> =
        (1..=THREADS as u64).map(|n| n.wrapping_mul(0xD6E8_FEB8_6659_FD93)).map(|a| (a, !a ^ page.len() as u64)).collect();
    let whole = page.len() / 16 * 16;
    for (i, pair) in page[..whole].chunks_exact(16).enumerate() {
        let mut both = words(pair);
        let lane = &mut lanes[i % THREADS];
        *lane = step(*lane, both.next().unwrap_or(0), both.next().unwrap_or(0));
    }
    if whole < page.len() {
        let mut rest = words(&page[whole..]);
        lanes[0] = step(lanes[0], rest.next().unwrap_or(0), rest.next().unwrap_or(0));
    }
    let mut half = THREADS / 2;
    while half > 0 {
        for i in 0..half {
            let (a, b) = lanes[i];
            let (x, y) = lanes[i + half];
            lanes[i] = step((a.wrapping_mul(3), b.wrapping_mul(5)), x, y);
        }
        half /= 2;
    }
    lanes[0]
}

/// All words combined bit by bit, and their number.
pub fn exclusive_or(page: &[u8]) -> (u64, usize) {
    (words(page).fold(0, |sum, word| sum ^ word), page.len())
}

/// All words added.
pub fn sum(page: &[u8]) -> u64 {
    words(page).fold(0, u64::wrapping_add)
}

/// A sum in which places count, but only 64 of them: rows of the page are alike.
pub fn sum_by_place(page: &[u8]) -> (u64, usize) {
    let place = |(i, word): (usize, u64)| word.wrapping_mul(super::battery::random(i as u64 % 512) | 1);
    (words(page).enumerate().map(place).fold(0, u64::wrapping_add), page.len())
}

/// Products of keyed pairs of words of which only the lower half is kept: a high bit disappears as often as the key's other half is even.
pub fn half_products(page: &[u8]) -> ([u64; 2], usize) {
    let words: Vec<u64> = words(page).collect();
    let key = |i: usize| super::battery::random(i as u64 + 99);
    let sum = |shift: usize| {
        let product = |(i, pair): (usize, &[u64])| {
            let one = pair[0].wrapping_add(key(2 * i + shift));
            one.wrapping_mul(pair.get(1).unwrap_or(&0).wrapping_add(key(2 * i + 1 + shift)))
        };
        words.chunks(2).enumerate().map(product).fold(0, u64::wrapping_add)
    };
    ([sum(0), sum(2)], page.len())
}
