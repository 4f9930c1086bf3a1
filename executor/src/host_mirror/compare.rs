//! Comparing memory with its shadow copy.

use super::line::{LINE, Line, WORDS};
use crate::share::with_signals_blocked;
use cuda_api::address_map::PAGE;
use cuda_api::lock::lock;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of bytes that one of several threads compares at a time.
pub(super) const PIECE: usize = 1 << 20;
/// Maximum number of threads with which a place compares.
const THREADS: usize = 8;

const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// A bit for each byte that is not zero.
pub(super) fn bits(word: u64) -> u64 {
    let top = (((word & LOW_BITS) + LOW_BITS) | word) & !LOW_BITS;
    // Moves each byte's bit to a place of its own in the highest byte; no two of them meet on the way.
    (top >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// All bits of the bytes whose bits are set.
pub(super) fn spread(bits: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const ONE_OF_EACH: u64 = 0x8040_2010_0804_0201;
    let set = ((bits & 0xff) * EACH) & ONE_OF_EACH;
    ((((set + LOW_BITS) | set) >> 7) & EACH) * 0xff
}

/// A word that others may write to at any time.
///
/// # Safety
/// The address is a multiple of 8, in memory that stays mapped during the borrow.
pub(super) unsafe fn word<'a>(at: u64) -> &'a AtomicU64 {
    // SAFETY: guaranteed by the caller.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }
}

/// Memory of whole pages, by its address, and its shadow copy.
pub(super) type Piece<'a> = (u64, &'a mut [u64]);

/// With how many threads a place compares much memory: it has a machine to itself.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| THREADS.min(n.get()))
}

/// The results of `work` for all items, in their order. It is done by up to so many threads.
pub(super) fn in_threads<T: Send, R: Send>(items: Vec<T>, threads: usize, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    if threads.min(items.len()) < 2 {
        return items.into_iter().map(work).collect();
    }
    let (left, done) = (Mutex::new(items.into_iter().enumerate()), Mutex::new(Vec::new()));
    let some = || {
        loop {
            let Some((number, item)) = lock(&left).next() else { break };
            let result = work(item);
            lock(&done).push((number, result));
        }
    };
    std::thread::scope(|s| {
        (1..threads).for_each(|_| {
            // If a thread cannot be started, the others do its work. In the job's process, none of them may run the program's handlers.
            let _ = with_signals_blocked(|| std::thread::Builder::new().spawn_scoped(s, some));
        });
        some();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// What `keep` makes of each changed line in these pieces of at most [`PIECE`] bytes, by address: a list for each piece. Several threads compare
/// if there is much to compare; `active` pages are skipped.
pub(super) fn found_in<T: Send>(
    pieces: Vec<Piece<'_>>,
    active: &BTreeSet<u64>,
    threads: usize,
    keep: impl Fn(Line, [u64; WORDS]) -> T + Sync,
) -> Vec<Vec<T>> {
    // Starting a thread takes about as long as comparing a quarter of a piece.
    let bytes: usize = pieces.iter().map(|(_, ours)| size_of_val(*ours)).sum();
    in_threads(pieces, threads.min(bytes / PIECE), |(start, ours)| {
        let mut found = Vec::new();
        let pages = (start..).step_by(PAGE as usize).zip(ours.chunks_exact_mut(PAGE as usize / 8));
        for (page, ours) in pages.filter(|(page, _)| active.is_empty() || !active.contains(page)) {
            compare(page, ours, |line, was| found.push(keep(line, was)));
        }
        found
    })
}

/// The lines of the memory at an address in which two copies of it differ, by address and in lists; `was` becomes the same as `now`. Both are
/// whole pages, and no other thread writes to them.
pub(crate) fn differing_lines(address: u64, now: &[u8], was: &mut [u64]) -> Vec<Vec<Line>> {
    let start = now.as_ptr() as u64;
    assert!(start.is_multiple_of(PAGE) && now.len() == size_of_val(was) && now.len().is_multiple_of(PAGE as usize));
    let pieces = (start..).step_by(PIECE).zip(was.chunks_mut(PIECE / 8)).collect();
    let mut lists = found_in(pieces, &BTreeSet::new(), threads(), |line, _| line);
    lists.retain(|lines| !lines.is_empty());
    lists.iter_mut().flatten().for_each(|line| line[0] = line[0] - start + address);
    lists
}

/// Calls `found` with each line of a page that differs from the shadow copy, and with what the copy had; it becomes the same.
pub(super) fn compare(page: u64, ours: &mut [u64], mut found: impl FnMut(Line, [u64; WORDS])) {
    // SAFETY: the page is mapped (`MirroredMemory::add`). Others may write to it: a concurrent change may be found now or later.
    if unsafe { libc::memcmp(page as *const c_void, ours.as_ptr().cast(), PAGE as usize) } == 0 {
        return;
    }
    for (at, ours) in (page..).step_by(LINE as usize).zip(ours.as_chunks_mut::<WORDS>().0) {
        // SAFETY: inside of a mapped page.
        let now: [u64; WORDS] = std::array::from_fn(|i| unsafe { word(at + 8 * i as u64) }.load(Ordering::Acquire));
        if now == *ours {
            continue;
        }
        let mask = (0..WORDS).fold(0, |mask, i| mask | bits(now[i] ^ ours[i]) << (8 * i));
        let mut line = [at, mask, 0, 0, 0, 0, 0, 0, 0, 0];
        line[2..].copy_from_slice(&now);
        let was = std::mem::replace(ours, now);
        found(line, was);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_bits() {
        let slowly = |bits: u64| (0..8).filter(|i| bits >> i & 1 != 0).fold(0, |word, i| word | 0xff << (8 * i));
        for set in 0..=0xff {
            assert_eq!(spread(set), slowly(set), "{set:#x}");
            // The lowest bit of a byte, the highest, several, all.
            for byte in [0x01, 0x80, 0x36, 0x7f, 0xff] {
                assert_eq!(bits((0x0101_0101_0101_0101 * byte) & slowly(set)), set, "{set:#x} of {byte:#x}");
            }
        }
    }

    #[test]
    fn threads_give_their_results_in_order() {
        for threads in [1, 3] {
            assert_eq!(in_threads((0..100).collect(), threads, |n: usize| n * n), (0..100).map(|n| n * n).collect::<Vec<_>>());
        }
    }
}
