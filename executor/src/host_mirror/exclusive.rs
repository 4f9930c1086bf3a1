//! Memory that the job uses exclusively ([`cuda_api::ops::HostPin::exclusive`]): only one side writes to it at a time. Nothing polls it, so neither the
//! order of its changes among themselves nor a common moment matters: it is compared once, in parts, each of which is sent before
//! the next one is compared. Other memory that may announce these changes is sent behind them.

use super::compare::{PIECE, found_in, in_threads, spread};
use super::line::{LINE, Line, WORDS, of_word};
use super::part_locks::PART as MESSAGE_PART;
use super::{LINE_BYTES, MirroredMemory, word_of_line};
use cuda_api::address_map::PAGE;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Maximum number of threads with which a job compares or changes such memory: the program mostly waits for that.
const THREADS: usize = 4;
/// Minimum number of lines that are worth a thread.
const SHARE: usize = 2048;
/// Maximum number of bytes in a part.
const PART: u64 = 16 << 20;

/// Exclusive memory that may have changed and was not compared since: ranges of at most a piece, the last one first.
#[derive(Debug)]
pub struct Touched(Vec<Range<u64>>);

impl Touched {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Parts of it whose changes fit into one message of runs each ([`MirroredMemory::encode_part`]), the last one first.
    pub fn into_parts(self) -> Vec<Range<u64>> {
        let cut = |range: Range<u64>| {
            let starts = (range.start / MESSAGE_PART..range.end.div_ceil(MESSAGE_PART)).rev();
            starts.map(move |i| range.start.max(i * MESSAGE_PART)..range.end.min((i + 1) * MESSAGE_PART))
        };
        self.0.into_iter().flat_map(cut).collect()
    }
}

impl MirroredMemory {
    /// As [`MirroredMemory::add`], for memory that the job uses exclusively: only [`MirroredMemory::next_lines`] finds its changes.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn add_exclusive(&mut self, at: u64, bytes: u64) -> io::Result<()> {
        // SAFETY: as the caller says.
        unsafe { self.add(at, bytes) }?;
        if let Some(part) = self.parts.get_mut(&at) {
            part.exclusive = true;
            self.any_exclusive = true;
        }
        Ok(())
    }

    /// What may have changed of exclusive memory since the last call.
    pub fn touched(&mut self) -> Touched {
        let mut touched = Touched(Vec::new());
        if !self.any_exclusive {
            return touched;
        }
        let mut reading = None;
        for (start, part) in self.parts.iter_mut().filter(|(_, part)| part.exclusive) {
            self.pages.clear();
            if !part.take_written(&mut reading, &mut self.pages) {
                self.pages.extend(0..part.agreed.len / PAGE as usize);
            }
            // A range is in one block.
            let follow = |a: &usize, b: &usize| a + 1 == *b;
            for run in self.pages.chunk_by(follow).flat_map(|run| run.chunks(PIECE / PAGE as usize)) {
                let from = start + run[0] as u64 * PAGE;
                touched.0.push(from..from + run.len() as u64 * PAGE);
            }
        }
        touched.0.reverse();
        touched
    }

    /// The changed lines of the next part of what was touched, by address and in lists; `None` after the last part.
    pub fn next_lines(&mut self, touched: &mut Touched) -> Option<Vec<Vec<Line>>> {
        let mut left = PART;
        let mut pieces = Vec::new();
        touched.0.last()?;
        for (start, part) in &mut self.parts {
            let end = start + part.agreed.len as u64;
            let (exclusive, mut rest, mut at) = (part.exclusive, part.agreed.words(), *start);
            while let Some(range) = touched.0.pop_if(|range| range.start < end && left > 0) {
                // Otherwise it is memory that has ended meanwhile.
                if exclusive && range.start >= at && range.end <= end {
                    let (_, from) = rest.split_at_mut((range.start - at) as usize / 8);
                    let (ours, behind) = from.split_at_mut((range.end - range.start) as usize / 8);
                    pieces.push((range.start, ours));
                    (rest, at) = (behind, range.end);
                }
                left = left.saturating_sub(range.end - range.start);
            }
        }
        if left > 0 {
            // Behind the last block.
            touched.0.clear();
        }
        Some(found_in(pieces, &BTreeSet::new(), THREADS, |line, _| line))
    }

    /// Applies many lines of one block, given by address, with several threads; `None` if they are not such lines.
    pub(super) fn take_over_exclusive(&mut self, lines: &[[u8; LINE_BYTES]], own: &(impl Fn(u64) -> u64 + Sync)) -> Option<()> {
        let at = |line: &[u8; LINE_BYTES]| word_of_line(line, 0);
        let [first, .., last] = lines else { return None };
        let known = lines.len() >= 2 * SHARE && lines.iter().all(|line| at(line).is_multiple_of(LINE));
        if !known || !lines.is_sorted_by(|a, b| at(a) < at(b)) {
            return None;
        }
        let (start, part) = self.parts.range_mut(..=at(first)).next_back().filter(|(_, part)| part.exclusive)?;
        if at(last) - start >= part.agreed.len as u64 {
            return None;
        }
        let (mut rest, mut from, mut shares) = (part.agreed.words(), *start, Vec::new());
        for share in lines.chunks(lines.len().div_ceil(THREADS)) {
            let (first, end) = (at(&share[0]), at(&share[share.len() - 1]) + LINE);
            let (_, behind) = rest.split_at_mut((first - from) as usize / 8);
            let (ours, behind) = behind.split_at_mut((end - first) as usize / 8);
            shares.push((share, ours));
            (rest, from) = (behind, end);
        }
        in_threads(shares, THREADS, |(share, ours)| {
            let first = at(&share[0]);
            for line in share {
                let begin = (at(line) - first) as usize / 8;
                let mask = word_of_line(line, 1) & !own(at(line));
                for (i, agreed) in ours[begin..begin + WORDS].iter_mut().enumerate() {
                    let (bits, theirs) = (of_word(mask, i), word_of_line(line, 2 + i));
                    // SAFETY: inside a part, which is mapped.
                    unsafe { store(at(line) + 8 * i as u64, bits, theirs) };
                    *agreed = *agreed & !spread(bits) | theirs & spread(bits);
                }
            }
        });
        Some(())
    }
}

/// Stores some bytes of a word. Others may write to the bytes beside them, but not to these: the program does not use them now.
///
/// # Safety
/// The word is mapped and writable.
pub(super) unsafe fn store(at: u64, mut bits: u64, word: u64) {
    if bits == 0xff {
        // SAFETY: guaranteed by the caller; a word of a line is aligned.
        unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(word, Ordering::Release);
        return;
    }
    let bytes = word.to_le_bytes();
    while bits != 0 {
        let i = bits.trailing_zeros() as usize;
        // SAFETY: a byte of that word.
        unsafe { AtomicU8::from_ptr((at as *mut u8).add(i)) }.store(bytes[i], Ordering::Release);
        bits &= bits - 1;
    }
}
