//! Managed memory in the GPU's memory, for a job whose host does not touch it while kernels run.

use super::*;
use cuda_api::address_map::{HOST, HOST_END, SLOT, slot};
use executor::staging::ToHost;
use host_mirror::{Line, MESSAGE_LINES, MORE};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// `fill` writes a word with the number of its element added to each `step`-th byte; `wait` waits for a word; `count` writes words until another
/// one is set.
const KERNELS: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 to, .param .u64 step, .param .u32 value, .param .u32 n) {
  .reg .b64 %rd<5>; .reg .b32 %r<8>; .reg .pred %p;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [step]; ld.param.u32 %r1, [value]; ld.param.u32 %r2, [n];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p, %r6, %r2; @%p bra done;
  cvt.u64.u32 %rd3, %r6; mad.lo.u64 %rd4, %rd3, %rd2, %rd1; add.u32 %r7, %r1, %r6; st.global.u32 [%rd4], %r7;
done: ret;
}
.visible .entry wait(.param .u64 flag) {
  .reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p;
  ld.param.u64 %rd1, [flag];
again: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p, %r1, 0; @%p bra again;
  ret;
}
.visible .entry count(.param .u64 to, .param .u64 flag, .param .u32 n) {
  .reg .b64 %rd<6>; .reg .b32 %r<6>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [flag]; ld.param.u32 %r1, [n]; mov.u32 %r2, 0;
again: rem.u32 %r3, %r2, %r1; mul.wide.u32 %rd3, %r3, 4; add.s64 %rd4, %rd1, %rd3; st.volatile.global.u32 [%rd4], %r2;
  add.u32 %r2, %r2, 1; ld.volatile.global.u32 %r4, [%rd2]; setp.eq.u32 %p1, %r4, 0; @%p1 bra again;
  ret;
}
";

/// The kernels that softgpu runs at a time: so many fill it.
const AT_ONCE: u32 = 16;

/// A place with a block, and the job's copy of it.
struct Job {
    p: Place,
    at: u64,
    bytes: Vec<u8>,
    functions: [u64; 3],
}

fn pin(p: &Place, address: u64, bytes: u64, exclusive: bool) -> (i32, bool) {
    let pin = ops::HostPin { address, bytes, flags: 0, apart: true, exclusive, slab: ops::Slab::default() };
    let (rc, reply) = p.try_apply(id::HOST_PIN, &body(&pin, &[]));
    (rc, reply == [1])
}

/// The lines that make `to` of `from`, by address.
fn changes(at: u64, from: &[u8], to: &[u8]) -> Vec<Line> {
    let line = |(number, (from, to)): (usize, (&[u8], &[u8]))| {
        let mask = (0..from.len()).filter(|i| from[*i] != to[*i]).fold(0, |mask, i| mask | 1 << i);
        let mut line: Line = [0; 10];
        (line[0], line[1]) = (at + 64 * number as u64, mask);
        let mut all = [0; 64];
        all[..to.len()].copy_from_slice(to);
        let words = all.as_chunks().0.iter().map(|w| u64::from_le_bytes(*w));
        line[2..].iter_mut().zip(words).for_each(|(to, word)| *to = word);
        line
    };
    from.chunks(64).zip(to.chunks(64)).enumerate().map(line).filter(|line| line[1] != 0).collect()
}

/// The messages with these lines.
fn messages(lines: &[Line]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = lines.chunks(MESSAGE_LINES).map(|some| host_mirror::bytes_of(some).to_vec()).collect();
    let last = all.len().saturating_sub(1);
    all[..last].iter_mut().for_each(|message| message.push(MORE));
    all
}

/// A chunk that leaves no room for such blocks.
fn chunk_of_all_that_is_free(p: &Place) -> Vec<u8> {
    let bytes = p.exec.free_bytes().unwrap() & !((2 << 20) - 1);
    assert!(bytes > p.exec.device().total_bytes / 2);
    body(&Chunk { address: address_map::own_base(DEVICE), bytes }, &[])
}

impl Job {
    fn new(bytes: u64) -> Job {
        Job::at(place(), bytes)
    }

    fn at(p: Place, bytes: u64) -> Job {
        let at = HOST + 3 * SLOT;
        assert_eq!(pin(&p, at, bytes, true), (code::SUCCESS, true));
        let module = p.load(1, KERNELS, false);
        let functions = [(1, "fill"), (2, "wait"), (3, "count")].map(|(slot, name)| p.function(slot, module, name).0);
        Job { p, at, bytes: vec![0; bytes as usize], functions }
    }

    /// The program writes to its copy.
    fn write(&mut self, change: impl FnOnce(&mut [u8])) -> i32 {
        let before = self.bytes.clone();
        change(&mut self.bytes);
        let messages = messages(&changes(self.at, &before, &self.bytes));
        let told = messages.iter().map(|message| self.p.try_apply(id::HOST_BYTES, message).0);
        told.fold(code::SUCCESS, |all, rc| if all == code::SUCCESS { rc } else { all })
    }

    /// Takes the place's changes; returns how many lines there were.
    fn wait(&mut self) -> usize {
        let (at, bytes, mut count) = (self.at, &mut self.bytes, 0);
        let scanned = self.p.exec.collect_gpu_changes(0, &mut |changes| {
            for line in &changes.lines {
                let start = (line[0] - at) as usize;
                let words: Vec<u8> = line[2..].iter().flat_map(|w| w.to_le_bytes()).collect();
                for i in (0..64).filter(|i| line[1] >> i & 1 != 0) {
                    assert_ne!(bytes[start + i], words[i], "a byte that has not changed");
                    bytes[start + i] = words[i];
                }
                count += 1;
            }
        });
        assert_eq!(scanned, Ok(()));
        count
    }

    /// As [`Job::wait`], for a block in host memory.
    fn wait_for_host(&mut self) -> usize {
        let lines = self.p.exec.collect_changes().lines;
        for line in &lines {
            let start = (line[0] - self.at) as usize;
            let words: Vec<u8> = line[2..].iter().flat_map(|w| w.to_le_bytes()).collect();
            (0..64).filter(|i| line[1] >> i & 1 != 0).for_each(|i| self.bytes[start + i] = words[i]);
        }
        lines.len()
    }

    fn fill(&self, offset: u64, step: u64, value: u32, n: u32, stream: u64) {
        let mut params: Vec<u8> = [self.at + offset, step].iter().flat_map(|v| v.to_le_bytes()).collect();
        params.extend([value, n].iter().flat_map(|v| v.to_le_bytes()));
        self.p.launch(self.functions[0], n.div_ceil(256), 256.min(n), stream, &params);
    }

    fn sync(&self, stream: u64) {
        self.p.apply(id::STREAM_SYNC, &body(&stream, &[]));
    }

    /// What the GPU has.
    fn on_gpu(&self) -> Vec<u8> {
        self.p.read(self.at, self.bytes.len() as u64, LEGACY)
    }

    fn is_alike(&self) {
        assert!(self.on_gpu() == self.bytes, "both sides have the same");
    }

    fn copy(&self, dst: u64, src: u64, width: u64) -> i32 {
        let op = CopyDevice { dst, dst_pitch: 0, src, src_pitch: 0, width, rows: 1, stream: LEGACY };
        let rc = self.p.try_apply(id::COPY_DEVICE, &body(&op, &[])).0;
        self.sync(LEGACY);
        rc
    }
}

#[test]
fn changes_of_both_sides_meet() {
    let mut job = Job::new((5 << 20) + 100);
    assert!(job.p.exec.has_apart() && job.wait() == 0);
    job.is_alike();
    // Few runs and many, up to the last byte.
    assert_eq!(job.write(|b| b[5] = 1), code::SUCCESS);
    assert_eq!(job.write(|b| b.iter_mut().enumerate().for_each(|(i, b)| *b = if i % 3 == 0 { 7 } else { *b })), code::SUCCESS);
    assert_eq!(job.write(|b| b[(5 << 20) + 99..].fill(9)), code::SUCCESS);
    assert_eq!(job.write(|b| b[100_000..300_000].fill(0x55)), code::SUCCESS);
    assert_eq!(job.wait(), 0, "what the job has told is not told to it");
    job.is_alike();
    // The GPU writes each 1000th byte's word, then the last one.
    job.fill(0, 1000, 0x0101_0101, 5000, LEGACY);
    job.fill((5 << 20) + 96, 0, 0x0203_0405, 1, LEGACY);
    job.sync(LEGACY);
    assert!(job.wait() >= 4000);
    job.is_alike();
    assert_eq!((job.wait(), job.bytes[(5 << 20) + 99]), (0, 2));
    // Both in one line, in different bytes.
    job.fill(64, 0, 0x7172_7374, 1, LEGACY);
    job.sync(LEGACY);
    assert_eq!(job.write(|b| (b[68], b[90]) = (0x66, 0x67)), code::SUCCESS);
    assert_eq!(job.wait(), 1);
    job.is_alike();
    assert_eq!((job.bytes[64], job.bytes[68], job.bytes[90]), (0x74, 0x66, 0x67));
    // There and back: what was agreed on is what was found, not what was there before.
    for turn in 0..3u32 {
        for value in [0xaaaa_aaaa, 0xbbbb_bbbb, 0xaaaa_aaaa] {
            let value = value + turn;
            job.fill(70_000, 0, value, 1, LEGACY);
            job.sync(LEGACY);
            assert_eq!(job.wait(), 1);
            assert_eq!(job.bytes[70_000..70_004], value.to_le_bytes());
        }
        assert_eq!(job.write(|b| b[70_000] = 0), code::SUCCESS);
        job.fill(70_000, 0, 0xaaaa_aaaa + turn, 1, LEGACY);
        job.sync(LEGACY);
        assert_eq!(job.wait(), 1, "changed back by the GPU");
        job.is_alike();
    }
    // A line twice in a message: the later words are the newer ones.
    let mut twice = changes(job.at, &job.bytes[..64], &[0x21; 64]);
    twice.extend(changes(job.at, &[0x21; 64], &[0x22; 64]));
    assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&twice)).0, code::SUCCESS);
    job.bytes[..64].fill(0x22);
    assert_eq!(job.wait(), 0);
    job.is_alike();
    // Lines outside are none of the job's business; those beside them are applied.
    let mut mixed = vec![[job.at + (8 << 20), 1, 1, 0, 0, 0, 0, 0, 0, 0], [job.at + 3, 1, 1, 0, 0, 0, 0, 0, 0, 0]];
    mixed.push([job.at + 128, 0xff, 0x1234, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&mixed)).0, code::ERROR_INVALID_VALUE);
    job.bytes[128..136].copy_from_slice(&0x1234u64.to_le_bytes());
    job.is_alike();
    job.p.leave();
}

#[test]
fn its_copies_are_those_of_device_memory() {
    let mut job = Job::new(4 << 20);
    let a = job.p.map(0, 4 << 20);
    let bytes: Vec<u8> = (0..1u32 << 20).map(|i| ((i * 7) >> 5) as u8).collect();
    job.p.write(job.at + 1000, &bytes, LEGACY);
    job.p.apply(id::FILL, &body(&Fill { dst: job.at, pitch: 0, value: 3, element: 1, width: 500, rows: 1, stream: LEGACY }, &[]));
    assert_eq!(job.copy(a, job.at + 1000, 1 << 20), code::SUCCESS);
    assert_eq!(job.p.read(a, 1 << 20, LEGACY), bytes);
    assert_eq!(job.copy(job.at + (2 << 20), a + 64, (1 << 20) - 64), code::SUCCESS);
    assert_ne!(job.copy(job.at + (4 << 20) - 8, a, 16), code::SUCCESS, "beyond its end");
    let rows = CopyDevice { dst: a, dst_pitch: 100, src: job.at, src_pitch: 3000, width: 50, rows: 40, stream: LEGACY };
    job.p.apply(id::COPY_DEVICE, &body(&rows, &[]));
    job.wait();
    job.is_alike();
    assert_eq!((job.bytes[499], job.bytes[500], &job.bytes[1000..1100]), (3, 0, &bytes[..100]));
    assert_eq!(job.p.read(a + 3900, 50, LEGACY), job.bytes[39 * 3000..39 * 3000 + 50]);
    // Beside it is mirrored host memory, from and to which it is copied.
    let host = HOST + (1 << 40);
    assert_eq!(pin(&job.p, host, 8192, false), (code::SUCCESS, false));
    assert_eq!((job.copy(host, job.at + 1000, 64), job.copy(job.at, host, 64)), (code::SUCCESS, code::SUCCESS));
    assert_eq!(job.p.exec.collect_changes().lines.len(), 1);
    job.wait();
    job.is_alike();
    assert_eq!(job.bytes[..64], bytes[..64]);
    job.p.apply(id::HOST_UNPIN, &body(&host, &[]));
    job.p.leave();
}

#[test]
fn what_changes_during_a_scan_is_found_by_the_next() {
    let mut job = Job::new(2 << 20);
    let stream = job.p.stream(1, 1);
    let word = HOST + (1 << 40);
    assert_eq!(pin(&job.p, word, 8192, false), (code::SUCCESS, false));
    let mut params: Vec<u8> = [job.at + 4096, word].iter().flat_map(|v| v.to_le_bytes()).collect();
    params.extend(50_000u32.to_le_bytes());
    job.p.launch(job.functions[2], 1, 1, stream, &params);
    let (mut lines, mut last) = (0, 0);
    let began = std::time::Instant::now();
    while lines < 5 && began.elapsed() < std::time::Duration::from_secs(60) {
        lines += usize::from(job.wait() > 0);
        // Each word only grows, and the job writes beside them.
        let now = u32::from_le_bytes(job.bytes[4096..4100].try_into().unwrap());
        assert!(now >= last);
        last = now;
        assert_eq!(job.write(|b| b[100] = b[100].wrapping_add(1)), code::SUCCESS);
    }
    assert!(lines >= 5, "changes are found while the kernel runs");
    let go: Line = [word, 1, 1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[go])).0, code::SUCCESS);
    job.sync(stream);
    job.wait();
    job.is_alike();
    assert_eq!(job.wait(), 0);
    job.p.apply(id::HOST_UNPIN, &body(&word, &[]));
    job.p.leave();
}

#[test]
fn nothing_waits_for_kernels_that_fill_the_gpu() {
    let mut job = Job::new(6 << 20);
    let word = HOST + (1 << 40);
    assert_eq!(pin(&job.p, word, 8192, false), (code::SUCCESS, false));
    let streams: Vec<u64> = (1..=AT_ONCE).map(|slot| job.p.stream(slot, 1)).collect();
    for round in 0..2u8 {
        job.fill(1 << 20, 4096, 0x3132_3300 + u32::from(round), 100, LEGACY);
        job.sync(LEGACY);
        for stream in &streams {
            job.p.launch(job.functions[1], 1, 1, *stream, &(word + u64::from(round) * 64).to_le_bytes());
        }
        // The first kernel that is late is the one that looks for changes, or the one that writes them.
        if round == 0 {
            assert_eq!(job.wait(), 100, "found by copies");
        }
        let scattered = |b: &mut [u8]| b.iter_mut().step_by(2).take(2000).for_each(|b| *b = b.wrapping_add(3));
        assert_eq!(job.write(scattered), code::SUCCESS);
        assert_eq!(job.write(scattered), code::SUCCESS);
        assert_eq!(job.wait(), if round == 0 { 0 } else { 100 });
        // More messages than are launched before one is waited for.
        assert_eq!(job.write(|b| b[..4 << 20].iter_mut().for_each(|b| *b = b.wrapping_add(5))), code::SUCCESS);
        assert_eq!(job.write(|b| b[5 << 20] = 1 + round), code::SUCCESS);
        // Another block comes meanwhile.
        assert_eq!(pin(&job.p, job.at + SLOT, 2 << 20, true), (code::SUCCESS, true));
        let go: Line = [word + u64::from(round) * 64, 1, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[go])).0, code::SUCCESS);
        streams.iter().for_each(|stream| job.sync(*stream));
        job.p.apply(id::HOST_UNPIN, &body(&(job.at + SLOT), &[]));
        // What was called off has not been made up for.
        job.fill(5 << 20, 64, 0x0900_0000 << round, 3000, LEGACY);
        job.sync(LEGACY);
        assert_eq!(job.wait(), 3000);
        job.is_alike();
        assert_eq!(job.wait(), 0);
    }
    job.p.apply(id::HOST_UNPIN, &body(&word, &[]));
    job.p.leave();
}

/// The message behind as many as are launched at a time, when the GPU is filled: what was called off uses none of it.
#[test]
fn launches_that_were_called_off_write_nothing_of_later_messages() {
    let mut job = Job::new(3 << 20);
    let (flags, other) = (job.p.map(0, 2 << 20), job.at + SLOT);
    job.p.write(flags, &[0; 4096], LEGACY);
    assert_eq!(pin(&job.p, other, 8 << 20, true), (code::SUCCESS, true));
    for round in 0..4u8 {
        let streams: Vec<u64> = (1..=AT_ONCE).map(|slot| job.p.stream(slot + u32::from(round) * AT_ONCE, 1)).collect();
        for stream in &streams {
            job.p.launch(job.functions[1], 1, 1, *stream, &(flags + u64::from(round) * 64).to_le_bytes());
        }
        // So that all of them run, on most machines.
        std::thread::sleep(std::time::Duration::from_millis(100));
        // Half the lines of the first block again and again, then some of the other one, which has its other copy at another distance.
        let of_first = |turn: u8| -> Vec<Line> {
            (0..1600)
                .map(|number| [job.at + 64 * number, u64::MAX, u64::from(turn), 1, 2, 3, 4, 5, 6, u64::from(round)])
                .collect()
        };
        for turn in 0..32 {
            let message = [host_mirror::bytes_of(&of_first(turn)), &[MORE]].concat();
            assert_eq!(job.p.try_apply(id::HOST_BYTES, &message).0, code::SUCCESS);
        }
        let of_other: Vec<Line> =
            (0..1200).map(|number| [other + 64 * (number + 70_000), u64::MAX, 9, 9, 9, 9, 9, 9, 9, u64::from(round)]).collect();
        let message = [host_mirror::bytes_of(&of_other), &[MORE]].concat();
        assert_eq!(job.p.try_apply(id::HOST_BYTES, &message).0, code::SUCCESS);
        // Before anything has waited for the last message.
        let copies = job.p.stream(1 + (u32::from(round) + 4) * AT_ONCE, 1);
        job.p.write(flags + u64::from(round) * 64, &1u32.to_le_bytes(), copies);
        streams.iter().for_each(|stream| job.sync(*stream));
        for line in of_first(31) {
            let words = line[2..].iter().flat_map(|word| word.to_le_bytes());
            job.bytes.splice((line[0] - job.at) as usize..(line[0] - job.at) as usize + 64, words);
        }
        assert_eq!(job.wait(), 0, "what was agreed on is what is there, round {round}");
        job.is_alike();
        let last = job.p.read(other + 64 * (70_000 + 1199) + 56, 8, LEGACY);
        assert_eq!(last, u64::from(round).to_le_bytes());
        assert_eq!(job.p.read(other + 64 * (70_000 + 1200), 64, LEGACY), [0; 64]);
    }
    job.p.apply(id::HOST_UNPIN, &body(&other, &[]));
    job.p.leave();
}

#[test]
fn what_the_gpu_cannot_have_is_in_host_memory() {
    let p = place();
    let at = HOST + 4 * SLOT;
    let total = p.exec.device().total_bytes;
    // Small, at another address, larger than its part, not to be had at all.
    for (address, bytes) in [(at, (2 << 20) - 1), (at + 4096, 2 << 20)] {
        assert_eq!(pin(&p, address, bytes, true), (code::SUCCESS, false), "{address:x} {bytes:x}");
        p.apply(id::HOST_UNPIN, &body(&address, &[]));
    }
    assert!(!p.exec.has_apart());
    for (address, bytes) in [(0, 2 << 20), (address_map::own_base(DEVICE), 2 << 20), (HOST_END, 2 << 20), (at, u64::MAX)] {
        assert_eq!(pin(&p, address, bytes, true), (code::ERROR_INVALID_VALUE, false), "{address:x} {bytes:x}");
    }
    assert_eq!(pin(&p, at, 4 << 20, true), (code::SUCCESS, true));
    // No other block lies between its two copies.
    assert_eq!(pin(&p, at + (64 << 20), 4096, false), (code::ERROR_OUT_OF_MEMORY, false));
    assert_eq!(pin(&p, at + (64 << 20), 4096, true), (code::ERROR_OUT_OF_MEMORY, false));
    assert!(!p.exec.has_collided() && p.exec.pinned_host() == [(at, 4 << 20)]);
    // Made again at its address it is zero.
    p.write(at, &[1; 64], LEGACY);
    p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
    assert_eq!(pin(&p, at, 3 << 20, true), (code::SUCCESS, true));
    assert_eq!(p.read(at, 64, LEGACY), [0; 64]);
    let used = p.exec.memory().used();
    assert_eq!(used, 8 << 20);
    // More than a quarter of the GPU's memory with both copies.
    let large = at + slot(total).unwrap();
    assert_eq!(pin(&p, large, total / 8, true), (code::SUCCESS, false));
    assert_eq!(p.exec.memory().used(), used);
    p.apply(id::HOST_UNPIN, &body(&at, &[]));
    assert_eq!(p.exec.memory().used(), 0);
    p.leave();
}

#[test]
fn a_new_context_and_allocations_without_room_have_it_in_host_memory() {
    for reset in [true, false] {
        let mut job = Job::new(3 << 20);
        assert_eq!(job.write(|b| b.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8)), code::SUCCESS);
        job.fill(4096, 4096, 0x0102_0304, 200, LEGACY);
        job.sync(LEGACY);
        let now = job.on_gpu();
        if reset {
            job.p.apply(id::CONTEXT_RESET, &[]);
        } else {
            job.p.apply(id::CHUNK_MAP, &chunk_of_all_that_is_free(&job.p));
        }
        assert_eq!(job.wait(), 0, "there are no such blocks any more");
        assert_eq!(job.wait_for_host(), 200, "what was not sent yet");
        assert!(job.bytes == now);
        assert_eq!(job.write(|b| b[9] = 99), code::SUCCESS);
        job.is_alike();
        assert!(job.p.exec.has_apart());
        job.p.apply(id::HOST_UNPIN, &body(&job.at, &[]));
        assert!(!job.p.exec.has_apart());
        job.p.leave();
    }
}

#[test]
fn messages_that_others_follow_are_applied_before_anything_looks() {
    let mut job = Job::new(4 << 20);
    // What looks next, and how it is told.
    let first_ones = |job: &mut Job, count: usize, value: u8| {
        let before = job.bytes.clone();
        job.bytes[..count * MESSAGE_LINES * 64].fill(value);
        let mut told = messages(&changes(job.at, &before, &job.bytes));
        if let Some(last) = told.last_mut() {
            last.push(MORE);
        }
        told.iter().for_each(|message| assert_eq!(job.p.try_apply(id::HOST_BYTES, message).0, code::SUCCESS));
    };
    first_ones(&mut job, 40, 1);
    assert_eq!(job.wait(), 0, "a scan");
    job.is_alike();
    // A line of other memory in the next message, which a kernel may be waiting for.
    let word = HOST + (1 << 40);
    assert_eq!(pin(&job.p, word, 8192, false), (code::SUCCESS, false));
    let stream = job.p.stream(1, 1);
    job.p.launch(job.functions[1], 1, 1, stream, &word.to_le_bytes());
    first_ones(&mut job, 3, 2);
    let go: Line = [word, 1, 1, 0, 0, 0, 0, 0, 0, 0];
    let line: Line = [job.at + 64, 1, 77, 0, 0, 0, 0, 0, 0, 0];
    job.bytes[64] = 77;
    let mixed = [host_mirror::bytes_of(&[line, go]), &[MORE]].concat();
    assert_eq!(job.p.try_apply(id::HOST_BYTES, &mixed).0, code::SUCCESS);
    job.sync(stream);
    job.is_alike();
    // The last message may have no line on the GPU: what the first ones have is there when it was applied.
    for round in 0..20 {
        first_ones(&mut job, 20, 50 + round);
        let other: Line = [word + 128, 1, round.into(), 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[other])).0, code::SUCCESS);
        assert_eq!(job.p.read(job.at + 20 * 1600 * 64 - 1, 1, stream), [50 + round]);
    }
    // Another mark, and more than a mark.
    for rest in [&[2][..], &[MORE, MORE]] {
        let unknown = [host_mirror::bytes_of(&[line]), rest].concat();
        assert_eq!(job.p.try_apply(id::HOST_BYTES, &unknown).0, code::ERROR_INVALID_VALUE);
    }
    // The block becomes one of the host.
    first_ones(&mut job, 5, 3);
    let chunk = chunk_of_all_that_is_free(&job.p);
    assert_eq!(job.p.try_apply(id::CHUNK_MAP, &chunk).0, code::SUCCESS);
    assert_eq!((job.wait(), job.wait_for_host()), (0, 0));
    job.is_alike();
    // Another one ends.
    let (at, other) = (job.at, job.at + SLOT);
    job.p.apply(id::CHUNK_UNMAP, &chunk);
    job.p.apply(id::HOST_UNPIN, &body(&word, &[]));
    for last in [false, true] {
        assert_eq!(pin(&job.p, other, 2 << 20, true), (code::SUCCESS, true));
        job.at = other;
        job.bytes = vec![0; 2 << 20];
        first_ones(&mut job, 7, 4);
        if !last {
            job.p.apply(id::HOST_UNPIN, &body(&other, &[]));
        }
    }
    job.p.apply(id::HOST_UNPIN, &body(&at, &[]));
    job.p.leave();
}

/// Bytes of host memory that the blocks of a place need beside what they need when they are moved there.
const BUFFERS: u64 = (33 << 20) + 32 * 1600 * 80;

fn limited(pinned: u64) -> Place {
    let p = place();
    p.exec.limit(executor::Limits { images: u64::MAX, pinned, memory: u64::MAX });
    p
}

#[test]
fn without_host_memory_for_all_blocks_they_stay_on_the_gpu() {
    // Room for one of them.
    let mut job = Job::at(limited(BUFFERS + (3 << 20)), 2 << 20);
    let other = job.at + SLOT;
    assert_eq!(pin(&job.p, other, 2 << 20, true), (code::SUCCESS, true));
    let line: Line = [other, 0xff, 77, 0, 0, 0, 0, 0, 0, 0];
    for round in 0..2 {
        job.fill(4096, 4096, 0x0102_0304 + round, 200, LEGACY);
        job.sync(LEGACY);
        assert_eq!(job.p.try_apply(id::CHUNK_MAP, &chunk_of_all_that_is_free(&job.p)).0, code::ERROR_OUT_OF_MEMORY);
        assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[line])).0, code::SUCCESS);
        assert_eq!(job.wait(), 200, "nothing of the GPU's changes is lost");
        job.is_alike();
        assert_eq!(job.p.read(other, 4, LEGACY), 77u32.to_le_bytes());
    }
    // What was held for the first one was given back.
    job.p.apply(id::HOST_UNPIN, &body(&other, &[]));
    job.fill(4096, 4096, 0x0900_0000, 200, LEGACY);
    job.sync(LEGACY);
    job.p.apply(id::CHUNK_MAP, &chunk_of_all_that_is_free(&job.p));
    assert_eq!((job.wait(), job.wait_for_host()), (0, 200));
    job.is_alike();
    // The buffers stay pinned, and are counted as long as they are.
    let more = HOST + (1 << 40);
    assert_eq!(pin(&job.p, more, 2 << 20, false).0, code::ERROR_OUT_OF_MEMORY);
    assert_eq!(pin(&job.p, more, 1 << 20, false).0, code::SUCCESS);
    job.p.apply(id::HOST_UNPIN, &body(&more, &[]));
    job.p.apply(id::CONTEXT_RESET, &[]);
    assert_eq!(pin(&job.p, more, 32 << 20, false).0, code::SUCCESS);
    [job.at, more].iter().for_each(|at| _ = job.p.apply(id::HOST_UNPIN, &body(at, &[])));
    job.p.leave();
}

#[test]
fn after_a_reset_without_host_memory_for_all_blocks_the_place_and_the_others_are_there() {
    let mut job = Job::at(limited(BUFFERS + (3 << 20)), 2 << 20);
    // There is room for the first one and the last one, which is in host memory from the start.
    let (large, small) = (job.at + SLOT, job.at + 2 * SLOT);
    assert_eq!(pin(&job.p, large, 4 << 20, true), (code::SUCCESS, true));
    assert_eq!(pin(&job.p, small, 4096, true), (code::SUCCESS, false));
    job.fill(4096, 4096, 0x0102_0304, 200, LEGACY);
    job.sync(LEGACY);
    assert_eq!(job.p.try_apply(id::CONTEXT_RESET, &[]).0, code::ERROR_OUT_OF_MEMORY);
    assert_eq!((job.wait(), job.wait_for_host()), (0, 200));
    job.is_alike();
    let line: Line = [large, 0xff, 77, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[line])).0, code::ERROR_INVALID_VALUE, "it is gone");
    // The new context is the place's, for this thread and for others.
    let a = job.p.map(0, 2 << 20);
    std::thread::scope(|s| s.spawn(|| job.p.write(a, &[5; 64], LEGACY)).join().unwrap());
    assert_eq!(job.p.read(a, 64, LEGACY), [5; 64]);
    assert_eq!(job.p.read(small, 64, LEGACY), [0; 64]);
    [job.at, small].iter().for_each(|at| _ = job.p.apply(id::HOST_UNPIN, &body(at, &[])));
    job.p.leave();
}

#[test]
fn blocks_come_while_all_are_taken_from_the_gpu() {
    let p = place();
    let chunk = chunk_of_all_that_is_free(&p);
    // Blocks come and are written beside allocations, and are read and freed between these, as by a worker.
    let (between, stop, maps) = (Mutex::new(()), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let mapping = s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Otherwise the other thread seldom gets the lock.
                std::thread::sleep(std::time::Duration::from_micros(100));
                let _one = lock(&between);
                if p.try_apply(id::CHUNK_MAP, &chunk).0 == code::SUCCESS {
                    maps.fetch_add(1, Ordering::Relaxed);
                    p.apply(id::CHUNK_UNMAP, &chunk);
                }
            }
        });
        let began = std::time::Instant::now();
        let (mut on_gpu, mut wrong) = (0, None);
        for turn in 0u64.. {
            let at = HOST + (3 + turn % 3) * SLOT;
            let (rc, is_on_gpu) = pin(&p, at, 2 << 20, true);
            let apart = p.exec.has_apart();
            let line: Line = [at + 64, 0xff, turn + 1, 0, 0, 0, 0, 0, 0, 0];
            let told = p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[line])).0;
            let _one = lock(&between);
            let read = CopyOut { src: at + 64, pitch: 8, width: 8, rows: 1, stream: LEGACY };
            let (read, bytes) = p.try_apply(id::COPY_OUT, &body(&read, &[]));
            // The one before: all blocks are taken only if there is another one.
            let unpinned = p.try_apply(id::HOST_UNPIN, &body(&(HOST + (3 + (turn + 2) % 3) * SLOT), &[])).0;
            if [rc, told, read, unpinned] != [code::SUCCESS; 4] || !apart || bytes != (turn + 1).to_le_bytes() {
                wrong = Some((turn, is_on_gpu, [rc, told, read, unpinned], apart, bytes));
                break;
            }
            on_gpu += u32::from(is_on_gpu);
            let enough = on_gpu >= 100 && maps.load(Ordering::Relaxed) >= 100;
            if enough || began.elapsed() > std::time::Duration::from_secs(10) {
                break;
            }
        }
        // Before anything can fail: the other thread ends by it only.
        stop.store(true, Ordering::Relaxed);
        assert!(mapping.join().is_ok());
        assert_eq!(wrong, None);
        (3..6).for_each(|slot| _ = p.apply(id::HOST_UNPIN, &body(&(HOST + slot * SLOT), &[])));
        assert!(on_gpu > 0 && maps.load(Ordering::Relaxed) > 0);
    });
    p.leave();
}

#[test]
fn without_memory_for_the_comparing_kernel_changes_are_found_by_copies() {
    const LIMIT: &str = "SOFTGPU_PINNED";
    const NAME: &str = "exclusive::without_memory_for_the_comparing_kernel_changes_are_found_by_copies";
    // softgpu reads its limit once, so this needs a process of its own.
    if std::env::var_os(LIMIT).is_none() {
        let own = std::env::current_exe().expect("own path");
        let done = std::process::Command::new(own).args(["--exact", NAME]).env(LIMIT, (128 << 20).to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        return assert!(done.status.success() && text.contains("1 passed"), "{text}");
    }
    let mut job = Job::new(3 << 20);
    // So that the place has its other buffers.
    job.is_alike();
    job.fill(4096, 4096, 0x0102_0304, 200, LEGACY);
    job.sync(LEGACY);
    let mut at = HOST + (1 << 40);
    for bytes in (12..=26).rev().map(|bits| 1 << bits) {
        while pin(&job.p, at, bytes, false).0 == code::SUCCESS {
            at += bytes;
        }
    }
    assert_eq!(job.wait(), 200, "nothing is left for the kernel's table");
    job.is_alike();
    assert_eq!(job.wait(), 0);
    job.p.leave();
}

/// A run in what a connection carries: its address, and a mask and the bytes of each line.
fn runs(mut message: &[u8]) -> Vec<(u64, Vec<u64>, &[u8])> {
    let mut all = Vec::new();
    while !message.is_empty() {
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        let (count, is_masked) = (word(8) as u32 as usize, word(8) >> 32 != 0);
        let lines = 16 + if is_masked { 8 * count } else { 0 };
        let masks = (0..count).map(|i| if is_masked { word(16 + 8 * i) } else { u64::MAX }).collect();
        all.push((word(0), masks, &message[lines..lines + 64 * count]));
        message = &message[lines + 64 * count..];
    }
    all
}

/// Sets a flag at its end, also after a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Several times as much as is copied to the host at a time; the pieces take turns with the buffers.
#[test]
fn connections_carry_many_changes_and_have_arrived_when_a_scan_ends() {
    let mut job = Job::new((21 << 20) + 4096);
    let exec = job.p.exec.clone();
    exec.staging().begin_to_carry_changes();
    let (carried, stop, last_is_held) = (Mutex::new(Vec::new()), AtomicBool::new(false), AtomicBool::new(false));
    let carry = || {
        let (mut masks, mut message) = (Vec::new(), Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let Some(ToHost::Changes(changes)) = exec.staging().try_next_to_host() else {
                std::thread::sleep(std::time::Duration::from_micros(50));
                continue;
            };
            if let Some(after) = exec.staging().encode(changes, &mut masks, &mut message) {
                lock(&carried).push((after, message.clone()));
                while last_is_held.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                exec.staging().changes_arrived();
            }
        }
    };
    std::thread::scope(|s| {
        let _stop = SetAtEnd(&stop);
        (0..3).for_each(|_| _ = s.spawn(carry));
        let apply = |bytes: &mut [u8], at: u64, turn: u64| {
            let messages = std::mem::take(&mut *lock(&carried));
            for (address, masks, lines) in messages.iter().flat_map(|(after, message)| {
                assert_eq!(*after, turn);
                runs(message)
            }) {
                for (i, byte) in lines.iter().enumerate().filter(|(i, _)| masks[i / 64] >> (i % 64) & 1 != 0) {
                    let old = &mut bytes[(address - at) as usize + i];
                    assert_ne!(*old, *byte, "a byte that has not changed");
                    *old = *byte;
                }
            }
            messages.len()
        };
        for turn in 1..4 {
            // All bytes of most lines, a byte of each eleventh word behind them, and the last line.
            let (whole, value) = (18 << 20, 0x0101_0101 * turn as u32);
            let fill = Fill { dst: job.at, pitch: 0, value, element: 4, width: whole / 4, rows: 1, stream: LEGACY };
            job.p.apply(id::FILL, &body(&fill, &[]));
            job.fill(whole, 44, turn as u32 - 1, 3 << 14, LEGACY);
            job.fill((21 << 20) + 4092, 4, 77 + turn as u32, 1, LEGACY);
            job.sync(LEGACY);
            exec.collect_gpu_changes(turn, &mut |_| panic!("so many changes take the connections")).unwrap();
            let at = job.at;
            assert!(apply(&mut job.bytes, at, turn) > 20);
            job.is_alike();
        }
        // What has not arrived is waited for.
        last_is_held.store(true, Ordering::Relaxed);
        job.p.apply(
            id::FILL,
            &body(&Fill { dst: job.at, pitch: 0, value: 9, element: 4, width: 1 << 19, rows: 1, stream: LEGACY }, &[]),
        );
        job.sync(LEGACY);
        let scan = s.spawn(|| exec.collect_gpu_changes(9, &mut |_| ()));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!scan.is_finished());
        last_is_held.store(false, Ordering::Relaxed);
        scan.join().unwrap().unwrap();
        let at = job.at;
        assert!(apply(&mut job.bytes, at, 9) > 0);
        // Few changes are passed on as lines, unless the comparing kernel is late.
        job.fill(4096, 4096, 0x0102_0304, 100, LEGACY);
        job.sync(LEGACY);
        let lines = job.wait();
        assert_ne!(lines == 100, apply(&mut job.bytes, at, 0) > 0, "{lines}");
    });
    job.is_alike();
    job.p.leave();
}

#[test]
fn messages_come_while_scans_run() {
    let mut job = Job::new(2 << 20);
    let (stop, scans) = (AtomicBool::new(false), AtomicU32::new(0));
    let exec = job.p.exec.clone();
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let found = |changes: host_mirror::PlaceChanges| assert!(changes.lines.is_empty(), "the GPU has changed nothing");
                exec.collect_gpu_changes(0, &mut { found }).unwrap();
                scans.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut turn = 0u8;
        let began = std::time::Instant::now();
        while scans.load(Ordering::Relaxed) < 5 && began.elapsed() < std::time::Duration::from_secs(60) {
            turn = turn.wrapping_add(1);
            assert_eq!(job.write(|b| b.iter_mut().step_by(771).for_each(|b| *b = turn)), code::SUCCESS);
        }
        stop.store(true, Ordering::Relaxed);
    });
    job.is_alike();
    job.p.leave();
}

/// The runs that make `to` of `from`, in messages for parts of memory of so many bytes.
fn messages_of_runs(at: u64, from: &[u8], to: &[u8], part: usize) -> Vec<Vec<u8>> {
    let message = |number: usize, (from, to): (&[u8], &[u8])| {
        let mut message = Vec::new();
        // Every other line in a run of its own, where all lines have changed too.
        for pair in changes(at + (part * number) as u64, from, to).chunks(2) {
            for run in if pair.len() == 2 && pair[1][0] == pair[0][0] + 64 { vec![pair] } else { pair.chunks(1).collect() } {
                message.extend(run[0][0].to_le_bytes());
                message.extend((run.len() as u64 | 1 << 32).to_le_bytes());
                run.iter().for_each(|line| message.extend(line[1].to_le_bytes()));
                run.iter().flat_map(|line| &line[2..]).for_each(|word| message.extend(word.to_le_bytes()));
            }
        }
        message
    };
    let messages = from.chunks(part).zip(to.chunks(part)).enumerate().map(|(number, both)| message(number, both));
    messages.filter(|message| !message.is_empty()).collect()
}

/// Answers questions for changes of the job with these messages, and has them applied.
fn give(exec: &executor::Executor, messages: Vec<Vec<u8>>) -> i32 {
    let (messages, stop) = (Mutex::new(messages), AtomicBool::new(false));
    std::thread::scope(|s| {
        let _stop = SetAtEnd(&stop);
        for _ in 0..3 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(ToHost::Ask(_)) = exec.staging().try_next_to_host() else {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                        continue;
                    };
                    let next = lock(&messages).pop();
                    exec.staging().answered(next.map(|message| {
                        let mut lines = exec.staging().buffer();
                        assert!(lines.fill(&message));
                        lines
                    }));
                }
            });
        }
        match exec.apply(id::HOST_RUNS, &[], &mut Vec::new()) {
            executor::Applied::Done(rc) => rc,
            executor::Applied::Pending(_) => panic!("it waits for nothing"),
        }
    })
}

/// Also beside kernels that write bytes of the same lines, and behind kernels that fill the GPU.
#[test]
fn connections_bring_what_the_job_has_changed() {
    let mut job = Job::new((9 << 20) + 4096);
    let exec = job.p.exec.clone();
    let word = HOST + (1 << 40);
    assert_eq!(pin(&job.p, word, 8192, false), (code::SUCCESS, false));
    assert_eq!(job.p.try_apply(id::HOST_RUNS, &[]).0, code::ERROR_OPERATING_SYSTEM, "there are no connections");
    exec.staging().begin_to_carry_changes();
    assert_eq!(give(&exec, Vec::new()), code::SUCCESS);
    let streams: Vec<u64> = (1..=AT_ONCE).map(|slot| job.p.stream(slot, 1)).collect();
    let mut random = 3u32;
    for round in 0..4u8 {
        // All lines, many of which differ entirely; then few bytes of each.
        let before = job.bytes.clone();
        for (i, byte) in job.bytes.iter_mut().enumerate() {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // The first half of each page is the host's.
            if i % 4096 < 2048 - 4 && (round % 2 == 0 || random >> 28 == 0) {
                *byte = byte.wrapping_add(1 + (random >> 25) as u8);
            }
        }
        let messages = messages_of_runs(job.at, &before, &job.bytes, if round < 2 { 512 << 10 } else { 4096 * 3 });
        assert!(messages.len() > 17);
        let filled = round == 3;
        if filled {
            for stream in &streams {
                job.p.launch(job.functions[1], 1, 1, *stream, &word.to_le_bytes());
            }
        } else {
            // In the lines of the host's last bytes.
            job.fill(2048 - 4, 4096, 0x0a0b_0000 + u32::from(round) * 0x101, 2000, streams[0]);
        }
        assert_eq!(give(&exec, messages), code::SUCCESS);
        if filled {
            let go: Line = [word, 1, 1, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(job.p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[go])).0, code::SUCCESS);
        }
        streams.iter().for_each(|stream| job.sync(*stream));
        let changed_here = if filled { 0 } else { 2000 };
        let all = Mutex::new(Vec::new());
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let _stop = SetAtEnd(&stop);
            s.spawn(|| {
                let (mut masks, mut message) = (Vec::new(), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let Some(ToHost::Changes(changes)) = exec.staging().try_next_to_host() else {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                        continue;
                    };
                    if exec.staging().encode(changes, &mut masks, &mut message).is_some() {
                        lock(&all).push(message.clone());
                        exec.staging().changes_arrived();
                    }
                }
            });
            exec.collect_gpu_changes(0, &mut |changes| assert!(changes.lines.is_empty(), "they are many")).unwrap();
        });
        let mut lines = 0;
        for (address, masks, bytes) in lock(&all).iter().flat_map(|message| runs(message)) {
            lines += masks.len();
            for i in (0..bytes.len()).filter(|i| masks[i / 64] >> (i % 64) & 1 != 0) {
                job.bytes[(address - job.at) as usize + i] = bytes[i];
            }
        }
        assert_eq!(lines, changed_here, "round {round}: only what the GPU has changed");
        job.is_alike();
    }
    // Of other memory, and beyond the end: nothing is written there, and what is in the block is.
    let other = pin(&job.p, job.at + SLOT, 2 << 20, true);
    assert_eq!(other, (code::SUCCESS, true));
    let before = job.bytes.clone();
    job.bytes[..64].fill(0x44);
    let outside = messages_of_runs(job.at + (9 << 20) + 4096, &[0; 4096], &[7; 4096], 4096);
    // With the last page of the block, as it is.
    let (last, not_last): (Vec<u8>, Vec<u8>) = job.bytes[9 << 20..].iter().map(|byte| (*byte, !byte)).unzip();
    let across =
        messages_of_runs(job.at + (9 << 20), &[&not_last[..], &[0; 4096]].concat(), &[&last[..], &[7; 4096]].concat(), 8192);
    let (chunk, device) = (address_map::own_base(DEVICE), 2 << 20);
    job.p.apply(id::CHUNK_MAP, &body(&Chunk { address: chunk, bytes: device }, &[]));
    let of_device = messages_of_runs(chunk, &[0; 4096], &[7; 4096], 4096);
    let was = job.p.read(chunk, 4096, LEGACY);
    let inside = messages_of_runs(job.at, &before, &job.bytes, 512 << 10);
    let all = [inside, outside, across, of_device, messages_of_runs(4096, &[0; 4096], &[7; 4096], 4096)].concat();
    assert_eq!(give(&exec, all), code::ERROR_INVALID_VALUE);
    assert_eq!(job.p.read(chunk, 4096, LEGACY), was);
    assert!(job.p.read(job.at + SLOT, 2 << 20, LEGACY).iter().all(|byte| *byte == 0));
    job.is_alike();
    [word, job.at + SLOT].iter().for_each(|at| _ = job.p.apply(id::HOST_UNPIN, &body(at, &[])));
    job.p.leave();
}
