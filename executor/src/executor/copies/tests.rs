use super::*;
use crate::executor::checker::tests::{Job, body, stand_in};
use crate::gpu::Gpu;
use crate::{Applied, turns};
use cuda_api::address_map::HOST;
use cuda_api::arg::LEGACY;
use cuda_api::ops::{Chunk, Slab, id};
use std::sync::Arc;

/// Bytes of the packed form that the pieces cover, as (device offset, packed offset).
fn covered(pitch: u64, width: u64, rows: u64) -> Vec<(u64, u64)> {
    let step = 1 << 20;
    let mut all = Vec::new();
    for (skip, packed, bytes, n) in pieces(LARGEST, pitch, width, rows) {
        assert!(bytes * n <= LARGEST);
        for row in 0..n {
            all.extend((0..bytes).step_by(step).map(|b| (skip + row * pitch + b, packed + row * bytes + b)));
        }
    }
    all
}

#[test]
fn pieces_cover_a_rectangle_in_order() {
    for (pitch, width, rows) in [(0, 10 << 20, 1), (16 << 20, 9 << 20, 3), (2 << 20, 1 << 20, 11), (4 << 20, 4 << 20, 2)] {
        let whole: Vec<(u64, u64)> =
            (0..rows).flat_map(|r| (0..width).step_by(1 << 20).map(move |b| (r * pitch + b, r * width + b))).collect();
        assert_eq!(covered(pitch, width, rows), whole, "{pitch} {width} {rows}");
    }
    assert!(covered(5, 0, 7).is_empty() && covered(5, 7, 0).is_empty());
}

#[test]
fn impossible_rectangles_are_refused() {
    assert_eq!(size(0x1000, 8, 8, 4), Ok(32));
    assert!(size(u64::MAX, 0, 2, 1).is_err());
    assert!(size(0, u64::MAX, 1, 3).is_err());
    assert!(size(0, 0, u64::MAX, 2).is_err());
}

const MIB: u64 = 1 << 20;
/// Bytes of memory at both ends.
const ROOM: u64 = 96 * MIB;

/// A place with [`ROOM`] of device memory and of pinned memory: their addresses.
struct Large {
    job: Job,
    device: u64,
    host: u64,
}

impl Large {
    fn open() -> Large {
        let job = Job::open();
        let device = job.memory + 2 * MIB;
        let map = body(&Chunk { address: device, bytes: ROOM }, &[]);
        assert!(matches!(job.exec.apply(id::CHUNK_MAP, &map, &mut Vec::new()), Applied::Done(code::SUCCESS)));
        // Where a job's pinned memory is.
        let host = HOST + (1 << 40);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address that nothing uses.
        let at = unsafe { libc::mmap(host as *mut c_void, ROOM as usize, prot, flags, -1, 0) };
        assert_eq!(at as u64, host);
        job.exec.pin_host(host, ROOM, 0, Slab::default()).expect("registered");
        Large { job, device, host }
    }

    /// The host's end.
    #[expect(clippy::mut_from_ref, reason = "the memory is no part of the structure")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: the mapping; tests have one such reference at a time, while no copy is under way.
        unsafe { std::slice::from_raw_parts_mut(self.host as *mut u8, ROOM as usize) }
    }

    /// Rows of the host's memory without gaps, those of the device `pitch` apart.
    fn copy(&self, (to_device, pitch, width, rows): (bool, u64, u64, u64)) -> Code {
        let ((dst, dst_pitch), (src, src_pitch)) =
            if to_device { ((self.device, pitch), (self.host, width)) } else { ((self.host, width), (self.device, pitch)) };
        let op = CopyDevice { dst, dst_pitch, src, src_pitch, width, rows, stream: LEGACY };
        match self.job.exec.apply(id::COPY_DEVICE, &body(&op, &[]), &mut Vec::new()) {
            Applied::Done(rc) => rc,
            Applied::Pending(_) => panic!("nothing to wait for"),
        }
    }

    fn close(self) {
        self.job.exec.unpin_host(self.host);
        self.job.exec.clone().close();
        // SAFETY: the mapping, which no driver uses any more.
        unsafe { libc::munmap(self.host as *mut c_void, ROOM as usize) };
    }
}

/// All bytes arrive, and nothing else is written, whatever the pieces are.
#[test]
fn large_copies_are_complete() {
    let large = Large::open();
    let gpu = &large.job.exec.gpu;
    let byte = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0];
    for (pitch, width, rows) in
        [(0, 32 * MIB, 1), (0, 80 * MIB + 13, 1), (36 * MIB, 33 * MIB + 5, 2), (9 * MIB, 7 * MIB + 1, 10), (4096, 4000, 20_000)]
    {
        let bytes = (width * rows) as usize;
        large.bytes().iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
        assert_eq!(large.copy((true, pitch, width, rows)), code::SUCCESS);
        gpu.synchronize_stream(LEGACY).unwrap();
        large.bytes().fill(7);
        assert_eq!(large.copy((false, pitch, width, rows)), code::SUCCESS);
        gpu.synchronize_stream(LEGACY).unwrap();
        let (copied, rest) = large.bytes().split_at(bytes);
        assert!(copied.iter().enumerate().all(|(i, b)| *b == byte(i)), "{pitch} {width} {rows}");
        assert!(rest.iter().all(|b| *b == 7), "{pitch} {width} {rows}");
    }
    large.close();
}

/// What lets copies of other streams go on is behind each piece of a large copy, and nothing is added to others.
#[test]
fn a_large_copy_is_given_to_the_driver_in_pieces() {
    let mut large = Large::open();
    let mut d = (*large.job.exec.gpu.0).clone();
    stand_in::replace(&mut d);
    let fake = Gpu(Arc::new(d));
    // The words are page-locked by the real driver.
    assert!(large.job.exec.has_turns());
    let exec = Arc::get_mut(&mut large.job.exec).expect("nobody else has it");
    let real = std::mem::replace(&mut exec.gpu, fake);
    for (to_device, copy) in [(true, "cuMemcpyHtoDAsync_v2"), (false, "cuMemcpyDtoHAsync_v2")] {
        for bytes in [4096, 31 * MIB, 32 * MIB, 90 * MIB + 1] {
            stand_in::seen();
            assert_eq!(large.copy((to_device, 0, bytes, 1)), code::SUCCESS);
            let calls: Vec<_> = stand_in::seen().into_iter().filter(|(name, _)| *name != "cuEventRecord").collect();
            let (copies, others): (Vec<_>, Vec<_>) = calls.iter().partition(|(name, _)| *name == copy);
            assert_eq!(copies.iter().map(|(_, words)| words[2]).sum::<u64>(), bytes);
            if !turns::is_large(bytes) {
                assert_eq!((copies.len(), others.len()), (1, 0), "{bytes}: {calls:?}");
                continue;
            }
            assert!(copies.iter().all(|(_, words)| words[2] <= 16 * MIB + 4096), "{copies:?}");
            let expected = [copy, "cuStreamBatchMemOp_v2"].into_iter().cycle();
            assert!(calls.iter().map(|(name, _)| *name).eq(expected.take(2 * copies.len())), "{calls:?}");
        }
    }
    let exec = Arc::get_mut(&mut large.job.exec).expect("nobody else has it");
    exec.gpu = real;
    large.close();
}

/// Rows nearly never fill a piece to the last byte, so pieces that carry their bytes are rarely of the full size.
#[test]
fn copies_that_carry_their_bytes_let_others_go_on_too() {
    let mut large = Large::open();
    let mut d = (*large.job.exec.gpu.0).clone();
    stand_in::replace(&mut d);
    assert!(large.job.exec.has_turns());
    let exec = Arc::get_mut(&mut large.job.exec).expect("nobody else has it");
    let real = std::mem::replace(&mut exec.gpu, Gpu(Arc::new(d)));
    for (width, rows, pieces, writes) in
        [(1000, 13_000, 4, 3), (3 * MIB, 3, 3, 3), (9 * MIB, 1, 3, 2), (4 * MIB, 1, 1, 1), (2 * MIB, 1, 1, 0), (1000, 100, 1, 0)]
    {
        stand_in::seen();
        let op = CopyIn { dst: large.device, pitch: width + 24, width, rows, stream: LEGACY };
        let bytes = vec![0; (width * rows) as usize];
        let applied = large.job.exec.apply(id::COPY_IN, &body(&op, &bytes), &mut Vec::new());
        assert!(matches!(applied, Applied::Done(code::SUCCESS)));
        let calls = stand_in::seen();
        let number = |start: &str| calls.iter().filter(|(name, _)| name.starts_with(start)).count();
        assert_eq!((number("cuMemcpy"), number("cuStreamBatchMemOp")), (pieces, writes), "{width} {rows}: {calls:?}");
    }
    let exec = Arc::get_mut(&mut large.job.exec).expect("nobody else has it");
    exec.gpu = real;
    large.close();
}
