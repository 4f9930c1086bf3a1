//! Pages that differ in the ways in which programs change memory and weak hashes see nothing: a page hash must tell all of them
//! apart. Each family is a set of different pages; two of them with one hash are a collision, and a good hash has none.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

/// Bytes of a page, as memsync compares them.
pub const PAGE: usize = 64 << 10;
/// 64-bit words of a page.
const WORDS: usize = PAGE / 8;
/// Words that a block of 256 threads reads at a time, 16 bytes for each thread.
const ROW: usize = 512;
/// Such rows in a page.
const ROWS: usize = WORDS / ROW;
const SIGN: u64 = 1 << 63;
/// Pages that are hashed at a time.
pub const BATCH: usize = 64;

/// How a hash did in each family: pages that had the hash of an earlier one, of how many.
pub type Findings = BTreeMap<&'static str, (usize, usize)>;

/// A change of a page, as its words.
type Change = Box<dyn Fn(&mut [u64])>;

/// The families in which there were collisions.
pub fn missed(findings: &Findings) -> Vec<&'static str> {
    findings.iter().filter(|(_, (collisions, _))| *collisions > 0).map(|(family, _)| *family).collect()
}

/// Hashes one of every `every` pages of each family, many at a time.
pub fn findings_in_batches<T: Eq + Hash>(every: usize, mut hash: impl FnMut(&[Vec<u8>]) -> Vec<T>) -> Findings {
    let mut all = Findings::new();
    let mut count = |family, pages: &mut dyn Iterator<Item = Vec<u8>>| {
        let (mut seen, mut many) = (HashSet::new(), 0);
        loop {
            let batch: Vec<Vec<u8>> = pages.take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            let hashes = hash(&batch);
            assert_eq!(hashes.len(), batch.len(), "a hash for each page");
            many += batch.len();
            seen.extend(hashes);
        }
        let entry: &mut (usize, usize) = all.entry(family).or_default();
        *entry = (entry.0 + many - seen.len(), entry.1 + many);
    };
    for (family, base, changes) in families() {
        let changed = |change: &Change| {
            let mut page = base.clone();
            change(&mut page);
            bytes_of(&page)
        };
        count(family, &mut std::iter::once(bytes_of(&base)).chain(changes.iter().step_by(every).map(changed)));
    }
    for (family, pages) in [("zero pages", zero_pages()), ("lengths", cut_pages()), ("lengths", lengthened_pages())] {
        // Short pages cost little: all of them.
        count(family, &mut pages.into_iter());
    }
    all
}

/// The same with a function for one page.
pub fn findings<T: Eq + Hash>(every: usize, hash: impl Fn(&[u8]) -> T) -> Findings {
    findings_in_batches(every, |pages| pages.iter().map(|page| hash(page)).collect())
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().map(|word| word.to_le_bytes()).collect::<Vec<_>>().into_flattened()
}

/// One step of splitmix64.
pub fn random(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn below(seed: usize, end: usize) -> usize {
    (random(seed as u64) % end as u64) as usize
}

/// What pages hold before they change.
fn zeros() -> Vec<u64> {
    vec![0; WORDS]
}

/// Floats of +-1.
fn spins() -> Vec<u64> {
    (0..WORDS as u64).map(|i| 0x3F80_0000_3F80_0000 | (random(i) & 0x8000_0000_8000_0000)).collect()
}

fn noise() -> Vec<u64> {
    (0..WORDS as u64).map(|i| random(i + 7_000_000)).collect()
}

/// Small numbers.
fn counters() -> Vec<u64> {
    (0..WORDS as u64).map(|i| 1000 + i % 10).collect()
}

fn xor(at: usize, bits: u64) -> impl Fn(&mut [u64]) {
    move |page| page[at] ^= bits
}

fn xor_two(one: usize, ones: u64, two: usize, twos: u64) -> Change {
    Box::new(move |page| {
        page[one] ^= ones;
        page[two] ^= twos;
    })
}

fn families() -> Vec<(&'static str, Vec<u64>, Vec<Change>)> {
    let mut all = Vec::new();
    for base in [zeros, spins] {
        all.push(("single bits", base(), single_bits()));
        all.push(("pairs of high bits", base(), pairs(SIGN, SIGN)));
        all.push(("pairs of high bits", base(), pairs(SIGN, SIGN | 1 << 31)));
        all.push(("pairs of low bits", base(), pairs(1, 1)));
        all.push(("pairs at every stride", base(), strides()));
    }
    for width in [512, 1000, 1024, 2048, 4096] {
        all.push(("signs in lattices", spins(), signs(width)));
    }
    for base in [counters, noise] {
        all.push(("exchanged amounts", base(), exchanges()));
        all.push(("rows of counters", base(), rows_of_counters()));
    }
    all.push(("exchanged words", noise(), exchanged_words()));
    all.push(("moved words", zeros(), moved_words()));
    all.push(("rotated rows", noise(), rotated_rows()));
    all.push(("rotated rows", noise(), rotated_pages()));
    all
}

/// The highest bit of every word, and another one.
fn single_bits() -> Vec<Change> {
    let one = |at: usize, bit: usize| -> Change { Box::new(xor(at, 1 << bit)) };
    (0..WORDS).flat_map(|at| [one(at, 63), one(at, at * 7 % 63)]).collect()
}

/// The same two patterns in every lane, in two rows at every distance.
fn pairs(ones: u64, twos: u64) -> Vec<Change> {
    let cases = (0..ROW).flat_map(|lane| (1..ROWS).map(move |distance| (lane, distance)));
    cases
        .map(|(lane, distance)| {
            let first = below(lane * ROWS + distance, ROWS - distance);
            xor_two(first * ROW + lane, ones, (first + distance) * ROW + lane, twos)
        })
        .collect()
}

/// Bit 63 and any bit, in two words at every distance.
fn strides() -> Vec<Change> {
    let two = |distance: usize, bit: usize| {
        let first = below(distance * 64 + bit, WORDS - distance);
        xor_two(first, 1 << bit, first + distance, 1 << bit)
    };
    (1..WORDS).flat_map(|distance| [two(distance, 63), two(distance, distance % 63)]).collect()
}

/// Two to four neighbouring floats in rows of `width` change their signs.
fn signs(width: usize) -> Vec<Change> {
    /// Sites by row and column.
    const SHAPES: [&[(usize, usize)]; 7] = [
        &[(0, 1), (1, 0), (1, 1)],
        &[(0, 0), (1, 0), (1, 1)],
        &[(0, 0), (0, 1), (1, 1)],
        &[(0, 0), (0, 1), (1, 0)],
        &[(0, 0), (0, 1), (1, 0), (1, 1)],
        &[(0, 0), (1, 0)],
        &[(0, 0), (0, 1)],
    ];
    let (columns, rows) = (width - 1, 2 * WORDS / width - 1);
    let cases = (0..columns).flat_map(|column| SHAPES.into_iter().map(move |shape| (column, shape)));
    cases
        .map(|(column, shape)| -> Change {
            let row = below(column, rows);
            Box::new(move |page| {
                for (down, right) in shape {
                    let at = (row + down) * width + column + right;
                    page[at / 2] ^= 1 << (32 * (at % 2) + 31);
                }
            })
        })
        .collect()
}

/// What one word loses another one gains: by one, by a power of two, by anything.
fn exchanges() -> Vec<Change> {
    let cases = (0..ROW).flat_map(|lane| (1..ROWS).map(move |distance| (lane, distance)));
    cases
        .map(|(lane, distance)| -> Change {
            let seed = lane * ROWS + distance;
            let amount = [1, 1 << below(seed + 1, 64), random(seed as u64) | 1][seed % 3];
            let one = below(seed, ROWS - distance) * ROW + lane;
            let two = one + distance * ROW;
            Box::new(move |page| {
                page[one] = page[one].wrapping_add(amount);
                page[two] = page[two].wrapping_sub(amount);
            })
        })
        .collect()
}

/// Counters that follow each other go up, those of another row down.
fn rows_of_counters() -> Vec<Change> {
    let cases = (0..ROWS).flat_map(|up| (0..ROWS).map(move |down| (up, down))).filter(|(up, down)| up != down);
    cases
        .flat_map(|(up, down)| {
            [2, 16, 64, ROW].map(|many| -> Change {
                let from = below(up * ROWS + down, ROW / many) * many;
                Box::new(move |page| {
                    for i in from..from + many {
                        page[up * ROW + i] = page[up * ROW + i].wrapping_add(1);
                        page[down * ROW + i] = page[down * ROW + i].wrapping_sub(1);
                    }
                })
            })
        })
        .collect()
}

/// Two words change places, at every distance.
fn exchanged_words() -> Vec<Change> {
    (1..WORDS)
        .map(|distance| -> Change {
            let one = below(distance, WORDS - distance);
            Box::new(move |page| page.swap(one, one + distance))
        })
        .collect()
}

/// One word, wherever it is.
fn moved_words() -> Vec<Change> {
    (0..WORDS).map(|at| -> Change { Box::new(xor(at, 0x0123_4567_89AB_CDEF)) }).collect()
}

/// One row of the page, by every number of words.
fn rotated_rows() -> Vec<Change> {
    let cases = (0..ROWS).flat_map(|row| (1..ROW).map(move |by| (row, by)));
    cases.map(|(row, by)| -> Change { Box::new(move |page| page[row * ROW..][..ROW].rotate_left(by)) }).collect()
}

/// The whole page, and the rows of the page in one lane.
fn rotated_pages() -> Vec<Change> {
    let whole = (1..WORDS).step_by(2).chain((1..ROWS).map(|rows| rows * ROW));
    let lanes = (0..ROW).flat_map(|lane| (1..ROWS).map(move |by| (lane, by)));
    let whole = whole.map(|by| -> Change { Box::new(move |page| page.rotate_left(by)) });
    let lanes = lanes.map(|(lane, by)| -> Change {
        Box::new(move |page| {
            let mut column: Vec<u64> = (0..ROWS).map(|row| page[row * ROW + lane]).collect();
            column.rotate_left(by);
            column.into_iter().enumerate().for_each(|(row, word)| page[row * ROW + lane] = word);
        })
    });
    whole.chain(lanes).collect()
}

/// Zeros of different lengths.
fn zero_pages() -> Vec<Vec<u8>> {
    (1..1200).chain((1..=16).map(|rows| rows * 4096)).map(|n| vec![0; n]).collect()
}

/// The same bytes, ended early: at every byte of the last rows.
fn cut_pages() -> Vec<Vec<u8>> {
    let whole = bytes_of(&noise());
    (1..300).chain(PAGE - 300..=PAGE).map(|n| whole[..n].to_vec()).collect()
}

/// Bytes that end in zeros, and the same without them.
fn lengthened_pages() -> Vec<Vec<u8>> {
    let whole = bytes_of(&noise());
    let ending = |n: usize| (0..40).map(move |zeros| (n, zeros));
    let pages = [1, 7, 8, 15, 16, 4096, 4097, 8192 - 5].into_iter().flat_map(ending);
    pages.map(|(n, zeros)| [&whole[100..100 + n], &vec![0; zeros]].concat()).collect::<HashSet<_>>().into_iter().collect()
}
