//! Changes of exclusive memory as runs of lines, for connections that carry many of them (docs/formats.md, "Large copies"): 72 or 64 bytes for each
//! line instead of 80. Nothing depends on the order in which they are applied, so several threads do it at a time.

use super::compare::{spread, word};
use super::exclusive::store;
use super::line::{LINE, WORDS, of_word};
use super::part_locks::{PART, PartLocks};
use super::{LINE_BYTES, MirroredMemory};
use cuda_api::address_map::PAGE;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes before the masks and the lines of a run: its address, the number of its lines, and whether there are masks.
const HEAD: usize = 16;
/// All bytes of all lines have changed: there are no masks.
const WHOLE: u32 = 0;
const MASKED: u32 = 1;

/// Maximum number of lines of which one message is made.
pub const RUNS_LINES: usize = (PART / LINE) as usize;
/// Maximum number of bytes of its runs: each line is a run.
pub const RUNS_BYTES: usize = RUNS_LINES * (HEAD + 8 + LINE as usize);

const PAGE_BYTES: usize = PAGE as usize;

type Bytes = [u8; LINE as usize];

/// A bit for each byte that differs.
#[cfg(target_arch = "x86_64")]
fn differing_bytes(a: &Bytes, b: &Bytes) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
    (0..LINE as usize).step_by(16).fold(0, |all, i| {
        let [a, b] = [a, b].map(|line| line[i..i + 16].as_ptr().cast());
        // SAFETY: sixteen bytes of a line each; all processors of this architecture have these instructions.
        let equal = unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(a), _mm_loadu_si128(b))) };
        all | u64::from(!equal as u16) << i
    })
}

/// A bit for each byte that differs.
#[cfg(not(target_arch = "x86_64"))]
fn differing_bytes(a: &Bytes, b: &Bytes) -> u64 {
    a.iter().zip(b).enumerate().fold(0, |all, (i, (a, b))| all | u64::from(a != b) << i)
}

/// Appends what differs between two copies of the lines at an address, as runs; `was` becomes the same as `now`. `masks` is a reused buffer.
pub(crate) fn encode_runs(address: u64, now: &[u8], was: &mut [u8], masks: &mut Vec<u8>, to: &mut Vec<u8>) {
    let mut end_run = |masks: &mut Vec<u8>, end: usize| {
        let count = masks.len() / 8;
        if count == 0 {
            return;
        }
        let first = end - LINE as usize * count;
        let kind = if masks.iter().all(|bits| *bits == 0xff) { WHOLE } else { MASKED };
        to.extend_from_slice(&(address + first as u64).to_le_bytes());
        to.extend_from_slice(&(count as u32).to_le_bytes());
        to.extend_from_slice(&kind.to_le_bytes());
        to.extend_from_slice(if kind == MASKED { masks } else { &[] });
        to.extend_from_slice(&now[first..end]);
        masks.clear();
    };
    masks.clear();
    for (page, (ours, was)) in now.chunks(PAGE_BYTES).zip(was.chunks_mut(PAGE_BYTES)).enumerate() {
        let first = PAGE_BYTES * page;
        if ours == &*was {
            end_run(masks, first);
            continue;
        }
        for (line, (ours, was)) in ours.as_chunks().0.iter().zip(was.as_chunks_mut().0).enumerate() {
            match differing_bytes(ours, was) {
                0 => end_run(masks, first + LINE as usize * line),
                mask => {
                    masks.extend_from_slice(&mask.to_le_bytes());
                    *was = *ours;
                }
            }
        }
    }
    end_run(masks, now.len());
}

/// A run in a message.
struct Run<'a> {
    range: Range<u64>,
    /// A mask for each line, or none.
    masks: &'a [[u8; 8]],
    lines: &'a [Bytes],
}

impl<'a> Run<'a> {
    /// The first run of a message, and what follows it. `None` if it is malformed.
    fn first(message: &'a [u8]) -> Option<(Run<'a>, &'a [u8])> {
        let (address, rest) = message.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (address, count, kind) = (u64::from_le_bytes(*address), u32::from_le_bytes(*count), u32::from_le_bytes(*kind));
        let masks = match kind {
            WHOLE => 0,
            MASKED => 8 * count as usize,
            _ => return None,
        };
        let (masks, rest) = rest.split_at_checked(masks)?;
        let (lines, rest) = rest.split_at_checked(LINE as usize * count as usize)?;
        let end = address.checked_add(LINE * u64::from(count)).filter(|_| count > 0 && address.is_multiple_of(LINE))?;
        Some((Run { range: address..end, masks: masks.as_chunks().0, lines: lines.as_chunks().0 }, rest))
    }

    /// The addresses, masks and bytes of its lines.
    fn lines(&self) -> impl Iterator<Item = (u64, u64, &'a Bytes)> {
        let masks = self.masks;
        let mask = move |number: usize| masks.get(number).map_or(u64::MAX, |mask| u64::from_le_bytes(*mask));
        let starts = self.range.clone().step_by(LINE as usize);
        starts.zip(self.lines).enumerate().map(move |(number, (at, line))| (at, mask(number), line))
    }

    /// Applies it to the memory at its address.
    ///
    /// # Safety
    /// The memory is mapped and writable. `agreed` is its shadow copy.
    unsafe fn apply(&self, agreed: &[AtomicU64], locks: &PartLocks) {
        let mut locked: Option<(u64, MutexGuard<'_, ()>)> = None;
        for ((at, mask, line), agreed) in self.lines().zip(agreed.as_chunks().0) {
            if locked.as_ref().is_none_or(|(part, _)| *part != at / PART) {
                // The one before it first: two threads must not wait for each other.
                drop(locked.take());
                locked = Some((at / PART, locks.lock(at)));
            }
            let theirs: [u64; WORDS] = std::array::from_fn(|i| u64::from_le_bytes(line.as_chunks().0[i]));
            // SAFETY: guaranteed by the caller.
            unsafe { put(at, mask, &theirs, agreed) };
        }
    }
}

/// Lines as they are in other messages of changes, of which each has a higher address than the one before.
#[derive(Debug, Default)]
pub struct LinesOfRuns {
    pub(crate) lines: Vec<[u8; LINE_BYTES]>,
}

impl LinesOfRuns {
    /// Becomes the lines of a message of runs. Returns false if it is malformed, has more lines than one may have, or has them in another order.
    pub fn fill(&mut self, mut message: &[u8]) -> bool {
        self.lines.clear();
        self.lines.reserve_exact(RUNS_LINES);
        let mut end = 0;
        while !message.is_empty() {
            let Some((run, rest)) = Run::first(message) else { return false };
            if run.range.start < end || run.lines.len() > RUNS_LINES - self.lines.len() {
                return false;
            }
            (end, message) = (run.range.end, rest);
            self.lines.extend(run.lines().map(|(at, mask, bytes)| {
                let mut line = [0; LINE_BYTES];
                line[..8].copy_from_slice(&at.to_le_bytes());
                line[8..16].copy_from_slice(&mask.to_le_bytes());
                line[16..].copy_from_slice(bytes);
                line
            }));
        }
        true
    }

    /// From the first line to the end of the last one.
    pub(crate) fn range(&self) -> Range<u64> {
        let at = |line: Option<&[u8; LINE_BYTES]>| line.map(|line| super::word_of_line(line, 0));
        at(self.lines.first()).zip(at(self.lines.last())).map_or(0..0, |(first, last)| first..last + LINE)
    }
}

/// Writes the bytes of a line whose bits are set to memory and to its shadow copy. Others may write to the bytes beside them.
///
/// # Safety
/// The line is mapped and writable.
unsafe fn put(at: u64, mask: u64, theirs: &[u64; WORDS], agreed: &[AtomicU64; WORDS]) {
    for i in 0..WORDS {
        let bits = of_word(mask, i);
        // SAFETY: guaranteed by the caller.
        unsafe { store(at + 8 * i as u64, bits, theirs[i]) };
        let was = agreed[i].load(Ordering::Relaxed);
        agreed[i].store(was & !spread(bits) | theirs[i] & spread(bits), Ordering::Relaxed);
    }
}

impl MirroredMemory {
    /// Applies [encoded](encode_runs) changes of the other side. Other threads may do the same meanwhile, with lines of other addresses. Runs
    /// that are not in exclusive memory are skipped; returns false if the message is malformed.
    pub fn take_over_runs(&self, mut message: &[u8]) -> bool {
        while !message.is_empty() {
            let Some((run, rest)) = Run::first(message) else { return false };
            message = rest;
            let Some((start, part)) = self.parts.range(..=run.range.start).next_back().filter(|(_, part)| part.exclusive) else {
                continue;
            };
            let [first, end] = [run.range.start, run.range.end].map(|at| (at - start) as usize / 8);
            if let Some(agreed) = part.agreed.shared_words().get(first..end) {
                // SAFETY: inside of a part, which is mapped (`MirroredMemory::add`).
                unsafe { run.apply(agreed, &self.part_locks) };
            }
        }
        true
    }

    /// Writes what this side has changed in a [part](super::Touched::into_parts) of exclusive memory as runs; nothing if it is none any more. Other threads
    /// may do the same with other parts meanwhile. `seen` gets each page that has changed. `masks` is a reused buffer.
    pub fn encode_part(&self, part: &Range<u64>, masks: &mut Vec<u8>, to: &mut Vec<u8>, mut seen: impl FnMut(&[u8])) {
        to.clear();
        let block = self.parts.range(..=part.start).next_back().filter(|(_, block)| block.exclusive);
        let words = |start: &u64| (part.start - start) as usize / 8..(part.end - start) as usize / 8;
        let Some(agreed) = block.and_then(|(start, block)| block.agreed.shared_words().get(words(start))) else { return };
        let _found_by_one = self.part_locks.lock(part.start);
        let (mut now, mut was) = ([0u64; PAGE_BYTES / 8], [0u64; PAGE_BYTES / 8]);
        for (page, agreed) in (part.start..).step_by(PAGE_BYTES).zip(agreed.as_chunks::<{ PAGE_BYTES / 8 }>().0) {
            // SAFETY: the page is mapped (`MirroredMemory::add`), and only holders of this lock write to its shadow copy. The program may write to the
            // page: a concurrent change is found now or later.
            if unsafe { libc::memcmp(page as *const c_void, agreed.as_ptr().cast(), PAGE_BYTES) } == 0 {
                continue;
            }
            for (i, (now, was)) in now.iter_mut().zip(&mut was).enumerate() {
                // SAFETY: inside of that page. Each word is read once: the other side gets what is agreed on from now on.
                *now = unsafe { word(page + 8 * i as u64) }.load(Ordering::Relaxed);
                *was = agreed[i].load(Ordering::Relaxed);
            }
            // SAFETY: words have no padding, and this machine's byte order is that of all formats.
            let (ours, theirs) = unsafe {
                let theirs = std::slice::from_raw_parts_mut(was.as_mut_ptr().cast(), PAGE_BYTES);
                (std::slice::from_raw_parts(now.as_ptr().cast(), PAGE_BYTES), theirs)
            };
            seen(ours);
            encode_runs(page, ours, theirs, masks, to);
            agreed.iter().zip(&now).for_each(|(agreed, now)| agreed.store(*now, Ordering::Relaxed));
        }
    }

    /// The lines of a part, as if all of them had changed; none if it is no part any more.
    pub fn lines_of_part(&self, part: &Range<u64>) -> Vec<super::Line> {
        let block = self.parts.range(..=part.start).next_back().filter(|(_, block)| block.exclusive);
        if block.is_none_or(|(start, block)| part.end - start > block.agreed.len as u64) {
            return Vec::new();
        }
        let line = |at: u64| {
            let mut line = [at, u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0];
            // SAFETY: inside of a block, which is mapped (`MirroredMemory::add`).
            line[2..].iter_mut().enumerate().for_each(|(i, to)| *to = unsafe { word(at + 8 * i as u64) }.load(Ordering::Relaxed));
            line
        };
        part.clone().step_by(LINE as usize).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_mirror::Line;

    fn encoded(address: u64, now: &[u8], was: &mut [u8]) -> Vec<u8> {
        let (mut masks, mut all) = (vec![7; 8], Vec::new());
        encode_runs(address, now, was, &mut masks, &mut all);
        assert!(now == was);
        all
    }

    /// Lines of the same byte.
    fn lines(address: u64, count: usize, byte: u8) -> Vec<u8> {
        encoded(address, &vec![byte; 64 * count], &mut vec![0; 64 * count])
    }

    fn pages(count: usize) -> &'static mut [u8] {
        let layout = std::alloc::Layout::from_size_align(count * PAGE as usize, PAGE as usize).unwrap();
        // SAFETY: a layout that is not empty; never freed.
        unsafe { std::slice::from_raw_parts_mut(std::alloc::alloc_zeroed(layout), layout.size()) }
    }

    #[test]
    fn each_byte_has_a_bit() {
        let line: Bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(differing_bytes(&line, &line), 0);
        for i in 0..64 {
            let mut other = line;
            other[i] ^= 0x80;
            other[63 - i] ^= 1;
            assert_eq!(differing_bytes(&line, &other), 1 << i | 1 << (63 - i));
        }
    }

    #[test]
    fn whole_lines_have_no_masks_and_neighbours_share_an_address() {
        assert_eq!(lines(0x1000, 3, 1).len(), HEAD + 3 * 64);
        assert!(encoded(0x1000, &[1; 8192], &mut [1; 8192]).is_empty());
        let (mut now, mut was) = (vec![0; 2 * PAGE as usize], vec![0; 2 * PAGE as usize]);
        // Two lines, one of which has changed entirely; a run over the end of a page; the last line.
        now[64..128].fill(1);
        now[140] = 1;
        now[PAGE as usize - 64..PAGE as usize + 64].fill(2);
        now[2 * PAGE as usize - 1] = 3;
        let all = encoded(0x1_0000, &now, &mut was);
        let heads: Vec<u8> =
            [(0x1_0040u64, 2u32, MASKED), (0x1_0000 + PAGE - 64, 2, WHOLE), (0x1_0000 + 2 * PAGE - 64, 1, MASKED)]
                .iter()
                .flat_map(|(at, count, kind)| [&at.to_le_bytes()[..], &count.to_le_bytes(), &kind.to_le_bytes()].concat())
                .collect();
        let (first, second) = (&all[..HEAD + 144], &all[HEAD + 144..]);
        assert_eq!(first[..HEAD], heads[..HEAD]);
        assert_eq!(first[HEAD..HEAD + 16], [u64::MAX, 1 << 12].map(u64::to_le_bytes).concat());
        assert_eq!(first[HEAD + 16..], now[64..192]);
        assert_eq!(second[..HEAD], heads[HEAD..2 * HEAD]);
        assert_eq!(second[HEAD..HEAD + 128], [2; 128]);
        assert_eq!(second[HEAD + 128..][..HEAD], heads[2 * HEAD..]);
        assert_eq!(second.len(), 2 * HEAD + 128 + 72);
        // The most that there can be.
        let mut now = vec![0; 64 * RUNS_LINES];
        now.iter_mut().step_by(128).for_each(|byte| *byte = 1);
        assert!(encoded(0, &now, &mut vec![0; now.len()]).len() <= RUNS_BYTES);
    }

    #[test]
    fn runs_change_what_their_masks_say_and_the_shadow_copy_with_it() {
        let memory = pages(3);
        let at = memory.as_ptr() as u64;
        let mut mirrored = MirroredMemory::of_place();
        // SAFETY: the pages stay.
        unsafe { mirrored.add_exclusive(at, 3 * PAGE) }.unwrap();
        let mut was = vec![0u8; memory.len()];
        let mut random = 1u64;
        for round in 0..64 {
            let mut now = was.clone();
            for byte in &mut now {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // In most rounds few bytes change, in some all.
                if round % 8 == 7 || (random >> 33) % 64 < round / 8 {
                    *byte = byte.wrapping_add(1 + (random >> 60) as u8);
                }
            }
            // The program has changed a byte that the other side has not: it stays, and is found.
            let own = (random >> 40) as usize % memory.len();
            let stays = now[own] == was[own];
            memory[own] ^= if stays { 0x55 } else { 0 };
            let message = encoded(at, &now, &mut was);
            assert!(mirrored.take_over_runs(&message));
            let mut touched = mirrored.touched();
            let found: Vec<Line> = mirrored.next_lines(&mut touched).unwrap().concat();
            let want: Vec<(u64, u64)> = stays.then_some((at + (own as u64 & !63), 1 << (own % 64))).into_iter().collect();
            assert_eq!(found.iter().map(|line| (line[0], line[1])).collect::<Vec<_>>(), want);
            // It has been sent.
            now[own] = memory[own];
            was[own] = memory[own];
            assert!(memory == now, "round {round}");
        }
    }

    #[test]
    fn only_exclusive_memory_is_changed() {
        let memory = pages(4);
        let at = memory.as_ptr() as u64;
        let mut mirrored = MirroredMemory::of_place();
        // SAFETY: the pages stay.
        unsafe { mirrored.add_exclusive(at + PAGE, PAGE).and_then(|()| mirrored.add(at + 2 * PAGE, PAGE)) }.unwrap();
        // Before it, from before it into it, from it into what follows, other memory, behind all, and more than it has.
        for (from, count) in [(0, 1), (PAGE - 64, 2), (2 * PAGE - 64, 2), (2 * PAGE, 1), (3 * PAGE, 1), (PAGE, 65)] {
            assert!(mirrored.take_over_runs(&lines(at + from, count, 9)));
        }
        assert!(memory.iter().all(|byte| *byte == 0));
        assert!(mirrored.take_over_runs(&lines(at + PAGE, 64, 9)));
        let page = PAGE as usize;
        assert!(memory[page..2 * page].iter().all(|byte| *byte == 9));
        assert!(memory[..page].iter().chain(&memory[2 * page..]).all(|byte| *byte == 0));
        mirrored.remove(at + PAGE);
        assert!(mirrored.take_over_runs(&lines(at + PAGE, 1, 8)));
        assert_eq!(memory[page], 9, "memory that has ended");
    }

    /// The lines of a message: address, mask, bytes.
    fn lines_of(message: &[u8]) -> Vec<(u64, u64, Bytes)> {
        let mut lines = LinesOfRuns::default();
        assert!(lines.fill(message));
        let line = |line: &[u8; LINE_BYTES]| {
            let word = |i| super::super::word_of_line(line, i);
            (word(0), word(1), *line.last_chunk().unwrap())
        };
        lines.lines.iter().map(line).collect()
    }

    #[test]
    fn parts_have_what_was_changed_since_they_were_encoded() {
        const PAGES: usize = 2 * RUNS_LINES / 64 + 70;
        let memory = pages(PAGES);
        let at = memory.as_ptr() as u64;
        let mut mirrored = MirroredMemory::of_job();
        // SAFETY: the pages stay.
        unsafe { mirrored.add_exclusive(at, memory.len() as u64) }.unwrap();
        let (mut was, mut random) = (memory.to_vec(), 7u64);
        let (mut masks, mut message) = (vec![1], vec![1]);
        for round in 0..6 {
            for i in (0..memory.len()).filter(|i| round == 0 || i / 4096 % 7 == round) {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if random >> 60 < 3 {
                    memory[i] = (random >> 40) as u8;
                }
            }
            let mut touched = Vec::new();
            // Pages stay touched for a while after they were written: more may be looked at than was changed.
            for part in mirrored.touched().into_parts() {
                assert!(part.end - part.start <= PART && part.start / PART == (part.end - 1) / PART);
                mirrored.encode_part(&part, &mut masks, &mut message, |page| touched.push(page.to_vec()));
                assert!(message.len() <= RUNS_BYTES);
                for (address, mask, bytes) in lines_of(&message) {
                    assert!(part.contains(&address));
                    for i in 0..64 {
                        let old = &mut was[(address - at) as usize + i];
                        assert_eq!(mask >> i & 1 != 0, *old != bytes[i], "a bit for each byte that has changed");
                        *old = bytes[i];
                    }
                }
                mirrored.encode_part(&part, &mut masks, &mut message, |_| panic!("nothing has changed"));
                assert!(message.is_empty());
            }
            assert!(was == memory, "round {round}");
            let pages = PAGES.div_ceil(if round == 0 { 1 } else { 7 });
            assert!((pages - 1..=pages).contains(&touched.len()), "{} of {pages}", touched.len());
            assert!(touched.iter().all(|page| memory.chunks(4096).any(|now| now == &page[..])));
        }
        // Only parts of this memory.
        memory.fill(1);
        let end = at + memory.len() as u64;
        for part in [at - PAGE..at, end - PAGE..end + PAGE, end..end + PAGE] {
            mirrored.encode_part(&part, &mut masks, &mut message, |_| ());
            assert!(message.is_empty() && mirrored.lines_of_part(&part).is_empty());
        }
        let lines = mirrored.lines_of_part(&(at + PAGE..at + 2 * PAGE));
        assert_eq!(
            (lines.len(), lines[1]),
            (64, [vec![at + PAGE + 64, u64::MAX], vec![0x0101_0101_0101_0101; 8]].concat()[..].try_into().unwrap())
        );
    }

    #[test]
    fn what_one_thread_applies_no_other_finds_as_a_change_of_its_own() {
        let memory = pages(4);
        let at = memory.as_ptr() as u64;
        let mut mirrored = MirroredMemory::of_job();
        // SAFETY: the pages stay.
        unsafe { mirrored.add_exclusive(at, 4 * PAGE) }.unwrap();
        let (mirrored, done) = (&mirrored, std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut was = vec![0; 4 * PAGE as usize];
                for turn in 0..2000u32 {
                    let now: Vec<u8> = (0..4 * PAGE as u32).map(|i| (turn + i / 64) as u8).collect();
                    assert!(mirrored.take_over_runs(&encoded(at, &now, &mut was)));
                }
                done.store(true, Ordering::Relaxed);
            });
            let (mut masks, mut message) = (Vec::new(), Vec::new());
            while !done.load(Ordering::Relaxed) {
                mirrored.encode_part(&(at..at + 4 * PAGE), &mut masks, &mut message, |_| ());
                assert!(message.is_empty());
            }
        });
    }

    #[test]
    fn lines_of_runs_are_in_order_and_not_more_than_a_part() {
        let mut of = LinesOfRuns::default();
        let (first, second) = (lines(0x1000, 2, 1), lines(0x1080, 1, 2));
        assert!(of.fill(&[&first[..], &second].concat()));
        assert_eq!((of.lines.len(), of.range()), (3, 0x1000..0x10c0));
        assert!(of.fill(&second) && of.range() == (0x1080..0x10c0) && of.fill(&[]) && of.range() == (0..0));
        assert!(!of.fill(&[&second[..], &first].concat()) && !of.fill(&[&second[..], &second].concat()), "another order");
        assert!(!of.fill(&[&first[..], &lines(0x1040, 1, 2)].concat()), "a line twice");
        assert!(!of.fill(&first[..first.len() - 1]) && !of.fill(&[7; 16]), "malformed");
        assert!(of.fill(&lines(0, RUNS_LINES, 1)));
        assert!(!of.fill(&lines(0, RUNS_LINES + 1, 1)) && !of.fill(&[lines(0, RUNS_LINES, 1), lines(PART, 1, 1)].concat()));
        // Whatever the heads say: what is taken is in order.
        let masked = encoded(0x2000, &[1; 256], &mut [0, 1].repeat(128));
        let (good, mut random, mut taken) = ([&first[..], &second, &masked, &lines(0x3000, 1, 3)].concat(), 1u64, 0);
        for _ in 0..100_000 {
            let mut message = good.clone();
            for _ in 0..2 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let head = [0, HEAD + 128, 2 * HEAD + 192, 3 * HEAD + 192 + 4 * 72][random as usize >> 62];
                message[head + (random >> 40) as usize % HEAD] ^= 1 << ((random >> 32) % 8);
            }
            if of.fill(&message) {
                taken += 1;
                let at = |line: &[u8; LINE_BYTES]| super::super::word_of_line(line, 0);
                assert!(of.lines.is_sorted_by(|a, b| at(a) + LINE <= at(b)) && of.lines.len() <= RUNS_LINES);
                assert!(of.lines.iter().all(|line| at(line).is_multiple_of(LINE)));
                assert_eq!(of.range(), at(&of.lines[0])..at(&of.lines[of.lines.len() - 1]) + LINE);
            }
        }
        assert!((1_000..99_000).contains(&taken), "{taken}");
    }

    #[test]
    fn malformed_runs_are_refused() {
        let good = encoded(0x1000, &[1; 64], &mut [1, 0].repeat(32));
        let mirrored = MirroredMemory::of_place();
        let takes = |change: fn(&mut Vec<u8>)| {
            let mut message = good.clone();
            change(&mut message);
            mirrored.take_over_runs(&message)
        };
        assert!(takes(|_| ()) && takes(Vec::clear));
        assert!(!takes(|m| m[0] = 8), "an address inside of a line");
        assert!(!takes(|m| m[..8].copy_from_slice(&(u64::MAX - 63).to_le_bytes())), "past the end of all addresses");
        assert!(!takes(|m| m[8] = 0), "no line");
        assert!(!takes(|m| m[8] = 2) && !takes(|m| m[11] = 0x80), "lines that are not there");
        assert!(!takes(|m| m[12] = 2), "another kind");
        assert!(!takes(|m| _ = m.pop()) && !takes(|m| m.push(0)) && !takes(|m| m.truncate(15)), "another length");
    }
}
