//! Mirrored host memory: the job and a place on another machine each have a copy, and these are kept equal.
//!
//! Each side has a shadow copy: what both sides last agreed on. Bytes that differ from it were changed on this side and are sent to the
//! other one, byte by byte, so that changes of both sides within one page do not conflict. Memory is scanned while others write to it,
//! and a reader that sees a flag must also see what was written before the flag:
//! * A scan passes over all memory repeatedly until a pass finds no further change: the changes sent are then the contents at one moment.
//!   A writer that never stops is not waited for: then the changes sent are those up to a pass after which only the same few words have
//!   changed again, such as a counter of progress. They miss nothing that was written before any of them, except in those words
//!   themselves. If other words change in each pass for half a millisecond, the scan ends: what its last pass has found in words that are
//!   not of this kind is sent too, and may be ahead of data that were written just after that pass had read them.
//! * The inner parts of long runs are sent first, then their ends, and last isolated lines, those with few changed bytes after the
//!   others: these few lines are applied within a short time, whichever of them is the flag.
//!
//! None of this is done for [memory that the job uses exclusively](exclusive).

mod changes;
mod compare;
mod exclusive;
mod line;
mod part_locks;
mod runs;
mod written;

use cuda_api::address_map::PAGE;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use changes::joined;
use changes::{Change, in_order, newest, only_the_same, restless, take_words};
pub(crate) use compare::differing_lines;
use compare::{PIECE, bits, compare, found_in, spread, threads, word};
pub use exclusive::Touched;
pub(crate) use line::LINE;
pub use line::Line;
use line::{WORDS, of_word};
use part_locks::PartLocks;
pub use runs::{LinesOfRuns, RUNS_BYTES};
pub(crate) use runs::{RUNS_LINES, encode_runs};
pub use written::UnseenWriter;
use written::{Reading, Written};

/// While changes are found there are at least this many passes, and as long as they are found in other words, passes for this time. In tests
/// it is longer than a busy machine keeps a thread waiting.
const PASSES: usize = 8;
const PASSES_TIME: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_micros(500) };
/// With more changed lines than this (144 MiB) no further pass is made: a program that writes so much is not waited for.
const MANY: usize = 1 << 20;
/// Maximum number of changes in one pass whose pages are tracked as active.
const MANY_ACTIVE: usize = 1 << 16;
/// Number of lines at the end of a message that are prepared before any of them is written.
const LAST: usize = 64;

/// Size of a line in a message, in bytes.
pub const LINE_BYTES: usize = size_of::<Line>();

/// Maximum number of the job's lines in a message, which goes through the ring.
pub const MESSAGE_LINES: usize = 1600;
/// A byte behind the lines of a message, all of exclusive memory, which says that the next message has more of the same changes: these need not
/// have been applied before those.
pub const MORE: u8 = 1;

/// The encoding of lines.
pub fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: words have no padding, and this machine's byte order is that of all formats.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// A word of an encoded line.
pub(crate) fn word_of_line(line: &[u8; LINE_BYTES], number: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| line[8 * number + byte]))
}

/// The shadow copy, in memory of its own.
#[derive(Debug)]
struct Agreed {
    at: *mut c_void,
    len: usize,
}

// SAFETY: the only owner of its mapping.
unsafe impl Send for Agreed {}
// SAFETY: a shared reference gives atomics only.
unsafe impl Sync for Agreed {}

impl Agreed {
    fn new(len: usize) -> io::Result<Agreed> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping anywhere.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Agreed { at, len }) }
    }

    fn words(&mut self) -> &mut [u64] {
        // SAFETY: the mapping, borrowed exclusively; pages are aligned.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len / 8) }
    }

    /// The same for threads that change it at the same time.
    fn shared_words(&self) -> &[AtomicU64] {
        // SAFETY: as above; without an exclusive borrow only atomics change it.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.len / 8) }
    }
}

impl Drop for Agreed {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference to it remains.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// A block of memory on one side.
#[derive(Debug)]
struct Part {
    agreed: Agreed,
    /// Tracks written pages, if the system can.
    written: Option<Written>,
    /// Number of parts added before.
    number: u64,
    /// Only one side writes to it at a time ([`exclusive`]).
    exclusive: bool,
}

impl Part {
    /// Stores the numbers of the pages that may have changed since the last call in `to`. Returns false if all may have changed.
    fn take_written(&mut self, reading: &mut Option<Reading>, to: &mut Vec<usize>) -> bool {
        self.written.as_mut().is_some_and(|written| written.take(reading.get_or_insert_with(Reading::begin), to))
    }
}

/// Changes of a place's copies.
#[derive(Debug, Default)]
pub struct PlaceChanges {
    /// Number of the job's messages of changes that were applied before they were found.
    pub messages: u64,
    /// Number of the job's requests for blocks ([`cuda_api::ops::id::HOST_BLOCK`]) that were applied before. Another block may have been
    /// at the address of a block that was requested later.
    pub blocks: u64,
    /// The changes, in the order in which the job must apply them.
    pub lines: Vec<Line>,
}

/// One side's view of all mirrored memory.
#[derive(Debug, Default)]
pub struct MirroredMemory {
    /// By first address; whole pages.
    parts: BTreeMap<u64, Part>,
    /// Whether the writer is this process, so that the system can track its writes.
    noted: bool,
    /// Pages of a part that may have changed; a reused buffer.
    pages: Vec<usize>,
    /// Pages with changes that the last scan has found and not returned.
    left: BTreeSet<u64>,
    /// Number of parts added so far.
    added: u64,
    /// Whether any part is or was exclusive.
    any_exclusive: bool,
    /// For threads that find or apply changes of exclusive memory at the same time.
    part_locks: PartLocks,
}

impl MirroredMemory {
    /// The side of a place: the GPU's writes to its memory cannot be tracked.
    pub fn of_place() -> MirroredMemory {
        MirroredMemory::default()
    }

    /// The side of the job: only written pages are compared, where the system tracks them.
    pub fn of_job() -> MirroredMemory {
        MirroredMemory { noted: true, ..MirroredMemory::default() }
    }

    /// Adds memory of whole pages. Both sides initially assume that it contains zeros.
    ///
    /// # Safety
    /// It stays mapped and readable, and writable if the other side changes it, until it is [removed](MirroredMemory::remove).
    ///
    /// # Errors
    /// There is not enough memory for the shadow copy.
    pub unsafe fn add(&mut self, at: u64, bytes: u64) -> io::Result<()> {
        // SAFETY: as the caller says.
        unsafe { self.add_as(at, bytes, &[]) }
    }

    /// As [`MirroredMemory::add`], for memory of which both sides have agreed on these bytes from its start on, and on zeros behind them.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn add_as(&mut self, at: u64, bytes: u64, was: &[u8]) -> io::Result<()> {
        let len = bytes.next_multiple_of(PAGE);
        let mut agreed = Agreed::new(len as usize)?;
        for (to, from) in agreed.words().iter_mut().zip(was.as_chunks().0) {
            *to = u64::from_le_bytes(*from);
        }
        let written = if self.noted { Written::begin(at, len) } else { None };
        self.parts.insert(at, Part { agreed, written, number: self.added, exclusive: false });
        self.added += 1;
        Ok(())
    }

    /// Stops mirroring this memory.
    pub fn remove(&mut self, at: u64) {
        self.parts.remove(&at);
    }

    /// Returns whether no memory is mirrored.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The number of times that memory was added so far.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Whether an address is in memory that was added when memory had been added this many times, or later.
    pub fn is_new(&self, at: u64, added: u64) -> bool {
        self.parts.range(..=at).next_back().is_some_and(|(_, part)| part.number >= added)
    }

    /// The changes of this side since the last scan, in the order in which the other side must apply them.
    pub fn changes(&mut self) -> Vec<Line> {
        self.collect().0
    }

    /// As [`MirroredMemory::changes`]; also returns whether the memory contained all of it at one moment. If several results are collected before one
    /// is sent, they must be [`joined`].
    pub fn collect(&mut self) -> (Vec<Line>, bool) {
        let mut active = std::mem::take(&mut self.left);
        let (mut passes, mut lines) = (Vec::new(), 0);
        let began = Instant::now();
        let changes = loop {
            // Not by the time of the pass itself: one that was interrupted has the most to miss.
            let enough = passes.len() + 1 >= PASSES;
            let last = enough && began.elapsed() > PASSES_TIME;
            let found = self.scan_once(&active);
            if found.is_empty() {
                return (in_order(newest(passes)), true);
            }
            if found.len() <= MANY_ACTIVE {
                active.extend(found.iter().map(|c| page_of(&c.line)));
            }
            lines += found.len();
            if last || lines > MANY || enough && only_the_same(&found, &passes) {
                break found;
            }
            passes.push(found);
        };
        let restless = restless(&changes, &passes);
        let mut kept = newest(passes);
        let mut ahead = Vec::new();
        for (mut change, restless) in changes.into_iter().zip(restless) {
            // They become differences again, which the next scan finds.
            self.undo(&change, restless);
            change.line[1] &= !restless;
            if change.line[1] != 0 {
                take_words(&mut kept, &mut change.line);
                ahead.push(change.line);
            }
        }
        kept.retain(|line| line[1] != 0);
        let mut all = in_order(ahead);
        all.extend(in_order(kept));
        (all, false)
    }

    /// The changes since the last pass, by address. `active` pages are compared last: a flag mostly is in a page that has not changed for
    /// a while, and what was written before the flag must be found by the pass that finds the flag.
    fn scan_once(&mut self, active: &BTreeSet<u64>) -> Vec<Change> {
        let mut found = Vec::new();
        let mut whole = Vec::new();
        let mut reading = None;
        for (start, part) in self.parts.iter_mut().filter(|(_, part)| !part.exclusive) {
            self.pages.clear();
            let noted = part.take_written(&mut reading, &mut self.pages);
            let ours = part.agreed.words();
            if !noted {
                whole.extend((*start..).step_by(PIECE).zip(ours.chunks_mut(PIECE / 8)));
                continue;
            }
            for number in &self.pages {
                let first = number * PAGE as usize;
                let page = start + first as u64;
                if let Some(ours) = ours.get_mut(first / 8..(first + PAGE as usize) / 8).filter(|_| !active.contains(&page)) {
                    compare(page, ours, |line, was| found.push(Change { line, was }));
                }
            }
        }
        // In the job's process a single thread is used for this, so that the program finds no additional load.
        let threads = if self.noted { 1 } else { threads() };
        found.extend(found_in(whole, active, threads, |line, was| Change { line, was }).into_iter().flatten());
        // Also those that were not reported as written: they may have been since the report.
        for page in active {
            self.compare_page(*page, &mut found);
        }
        found.sort_unstable_by_key(|c| c.line[0]);
        found
    }

    /// Compares one page of this memory.
    fn compare_page(&mut self, page: u64, found: &mut Vec<Change>) {
        let Some((start, part)) = self.parts.range_mut(..=page).next_back() else { return };
        let first = ((page - start) / 8) as usize;
        if let Some(ours) = part.agreed.words().get_mut(first..first + PAGE as usize / 8) {
            compare(page, ours, |line, was| found.push(Change { line, was }));
        }
    }

    /// Makes the other side's copy of some words of a change what it was before.
    fn undo(&mut self, change: &Change, words: u64) {
        let Some((start, part)) = self.parts.range_mut(..=change.line[0]).next_back() else { return };
        let first = ((change.line[0] - start) / 8) as usize;
        for i in (0..WORDS).filter(|i| of_word(change.line[1] & words, *i) != 0) {
            part.agreed.words()[first + i] = change.was[i];
            self.left.insert(page_of(&change.line));
        }
    }

    /// Applies changes of the other side, except bytes for which `own` gives this side precedence. Bytes that this side has changed
    /// meanwhile stay, and are sent by the next scan. Lines outside of this memory are skipped; returns false if there are any.
    pub fn take_over(&mut self, message: &[u8], own: impl Fn(u64) -> u64 + Sync) -> bool {
        let lines = message.as_chunks::<LINE_BYTES>().0;
        if self.take_over_exclusive(lines, &own).is_some() {
            return true;
        }
        let few = lines.len().saturating_sub(LAST);
        let mut all_known = true;
        let mut here: Option<(u64, &mut Part)> = None;
        let mut last: Vec<Put> = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            let at = word_of_line(line, 0);
            let inside = |(start, part): &(u64, &mut Part)| at >= *start && at - *start < part.agreed.len as u64;
            if !here.as_ref().is_some_and(inside) {
                here = self.parts.range_mut(..=at).next_back().map(|(start, part)| (*start, part)).filter(inside);
            }
            let Some((start, part)) = here.as_mut().filter(|_| at.is_multiple_of(LINE)) else {
                all_known = false;
                continue;
            };
            let first = ((at - *start) / 8) as usize;
            let agreed = &mut part.agreed.words()[first..first + WORDS];
            // SAFETY: inside a part, which is mapped.
            unsafe { puts(line, own(at), agreed, |put| if number < few { put.carry_out() } else { last.push(put) }) };
        }
        // Their cache lines are loaded first, so that the stores follow each other within nanoseconds.
        for put in &last {
            put.word.fetch_or(0, Ordering::Relaxed);
        }
        let plain: Vec<Plain> = last.iter().map(Put::plain).collect();
        plain.into_iter().for_each(Plain::carry_out);
        all_known
    }
}

/// Calls `each` with what a line of the other side puts into memory, except the bytes in `own`; the shadow copy of the line has it at once.
///
/// # Safety
/// The line is in memory that stays mapped and writable for `'a`.
unsafe fn puts<'a>(line: &[u8; LINE_BYTES], own: u64, agreed: &mut [u64], mut each: impl FnMut(Put<'a>)) {
    let [at, mask] = [0, 1].map(|i| word_of_line(line, i));
    for (i, agreed) in agreed.iter_mut().enumerate().rev() {
        let (bits, theirs) = (of_word(mask & !own, i), word_of_line(line, 2 + i));
        if bits != 0 {
            // SAFETY: guaranteed by the caller.
            let put = Put { word: unsafe { word(at + 8 * i as u64) }, bits, was: *agreed, theirs };
            *agreed = *agreed & !spread(bits) | theirs & spread(bits);
            each(put);
        }
    }
}

/// Bytes of the other side for a word, where this side has not changed its own.
#[derive(Clone, Copy)]
struct Put<'a> {
    word: &'a AtomicU64,
    bits: u64,
    was: u64,
    theirs: u64,
}

/// How a [`Put`] is written: with one store, if its bytes are the only changes of a word, half, quarter or byte.
enum Plain<'a> {
    Word(&'a AtomicU64, u64),
    Half(&'a AtomicU32, u32),
    Quarter(&'a AtomicU16, u16),
    Byte(&'a AtomicU8, u8),
    Merge(Put<'a>),
}

impl<'a> Put<'a> {
    fn plain(&self) -> Plain<'a> {
        let at = self.word.as_ptr() as usize;
        let (first, count) = (self.bits.trailing_zeros(), self.bits.count_ones());
        let whole = self.bits >> first == (1 << count) - 1 && count.is_power_of_two() && first % count == 0;
        if !whole || (self.word.load(Ordering::Relaxed) ^ self.was) & spread(self.bits) != 0 {
            return Plain::Merge(*self);
        }
        let (at, value) = (at + first as usize, self.theirs >> (8 * first));
        // SAFETY: these bytes of the word are aligned to their number, and live as long as the word does.
        unsafe {
            match count {
                8 => Plain::Word(self.word, value),
                4 => Plain::Half(AtomicU32::from_ptr(at as *mut u32), value as u32),
                2 => Plain::Quarter(AtomicU16::from_ptr(at as *mut u16), value as u16),
                _ => Plain::Byte(AtomicU8::from_ptr(at as *mut u8), value as u8),
            }
        }
    }

    fn carry_out(self) {
        self.plain().carry_out();
    }

    fn merge(self) {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let wanted = spread(self.bits & !bits(now ^ self.was));
            let next = now & !wanted | self.theirs & wanted;
            if next == now {
                return;
            }
            match self.word.compare_exchange_weak(now, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }
}

impl Plain<'_> {
    fn carry_out(self) {
        match self {
            Plain::Word(to, v) => to.store(v, Ordering::Release),
            Plain::Half(to, v) => to.store(v, Ordering::Release),
            Plain::Quarter(to, v) => to.store(v, Ordering::Release),
            Plain::Byte(to, v) => to.store(v, Ordering::Release),
            Plain::Merge(put) => put.merge(),
        }
    }
}

/// The page of a line.
fn page_of(line: &Line) -> u64 {
    line[0] & !(PAGE - 1)
}

#[cfg(test)]
mod tests;
