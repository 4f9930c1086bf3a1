//! Memory that the job uses exclusively ([`cuda_api::ops::HostPin::exclusive`]): only one side writes to it at a time. Nothing waits for one of its
//! changes to become visible, so neither their order nor a common moment matters: it is compared once, in parts, each of which is sent before
//! the next one is compared.

use super::compare::{PIECE, in_threads, lines_in};
use super::line::{LINE, Line, WORDS};
use super::{LINE_BYTES, MirroredMemory, Put, puts, word_of_line};
use cuda_api::address_map::PAGE;
use std::io;
use std::ops::Range;

/// Maximum number of threads with which a job compares or changes such memory. Its own thread waits meanwhile.
const THREADS: usize = 4;
/// Minimum number of lines that are worth a thread.
const SHARE: usize = 2048;
/// Maximum number of bytes in a part.
const PART: u64 = 16 << 20;

/// Exclusive memory that may have changed and was not compared since: ranges of at most a piece, the last one first.
#[derive(Debug)]
pub struct Touched(Vec<Range<u64>>);

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
        Some(lines_in(pieces, THREADS))
    }
    /// Applies many lines of one block with several threads; `None` if they are few, not by address, or of other memory. Lines outside of the
    /// block are skipped; returns false if there are any.
    pub(super) fn take_over_exclusive(&mut self, lines: &[[u8; LINE_BYTES]], own: &(impl Fn(u64) -> u64 + Sync)) -> Option<bool> {
        if lines.len() < 2 * SHARE {
            return None;
        }
        let at = |line: &[u8; LINE_BYTES]| word_of_line(line, 0);
        let (start, part) = self.parts.range_mut(..=at(&lines[0])).next_back().filter(|(_, part)| part.exclusive)?;
        let shares = lines.chunks(lines.len().div_ceil(THREADS).max(SHARE));
        let (mut rest, mut from, mut all) = (part.agreed.words(), *start, Vec::new());
        for share in shares {
            let first = at(&share[0]);
            if !first.is_multiple_of(LINE) || first < from {
                return None;
            }
            let (before, behind) = rest.split_at_mut_checked((first - from) as usize / 8)?;
            if let Some((_, ours)) = all.last_mut() {
                *ours = before;
            }
            all.push((share, Default::default()));
            (rest, from) = (behind, first);
        }
        all.last_mut()?.1 = rest;
        Some(in_threads(all, THREADS, |(share, ours)| take_over_share(share, ours, own)).into_iter().all(|known| known))
    }
}

/// Applies lines by address, the first of which is at the beginning of the memory with this shadow copy.
fn take_over_share(lines: &[[u8; LINE_BYTES]], ours: &mut [u64], own: impl Fn(u64) -> u64) -> bool {
    let first = word_of_line(&lines[0], 0);
    let mut all_known = true;
    for line in lines {
        let at = word_of_line(line, 0);
        let begins = at.wrapping_sub(first) as usize / 8;
        let inside = at.is_multiple_of(LINE) && at >= first && begins < ours.len();
        let Some(ours) = ours.get_mut(begins..begins.saturating_add(WORDS)).filter(|_| inside) else {
            all_known = false;
            continue;
        };
        // SAFETY: inside a part, which is mapped.
        unsafe { puts(line, own(at), ours, Put::carry_out) };
    }
    all_known
}
