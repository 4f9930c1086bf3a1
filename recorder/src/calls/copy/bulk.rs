//! Large copies between pageable memory and a device, by several threads: in-process by the executor ([`executor::bulk`]), at a place that
//! shares memory with this process through page-locked memory that both have; there also shorter synchronous ones, and those of memory that
//! the program has registered.

use crate::base::config;
use crate::calls::copy::apart;
use crate::calls::copy::rect::{Rect, Until};
use crate::calls::copy::sending::operate;
use crate::calls::copy::transfer::{copy_in, copy_out};
use crate::calls::host_function::changes_later;
use crate::enter::CallContext;
use crate::host_memory::{self, Slots};
use crate::job::Device;
use crate::order::landing;
use crate::pinned::{blocks, naming};
use crate::place::Waiting;
use cuda_api::arg::{LEGACY, stage_stream};
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, CopyDevice};
use executor::bulk::{Bulk, SMALLEST};
use faults::{Faults, Point};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most and the least bytes of a part of a copy of at least [`SMALLEST`]. It has at least four of them, if it is long enough, so that
/// copying in memory and copying to the GPU go on at the same time.
const PART: std::ops::RangeInclusive<u64> = 1 << 20..=host_memory::HALF;

/// The shortest synchronous copy that goes through memory which the place shares. It waits for an answer in any case, and by the connection
/// its bytes would be copied twice more: by the worker's driver, into page-locked memory of its own.
const SMALLEST_SHARED: u64 = 32 << 10;
const SMALLEST_IN_TESTS: u64 = 4 << 10;
/// So many bytes of copies shorter than [`SMALLEST`] travel with the calls before such memory is made for them: it takes some milliseconds.
const UNSHARED: u64 = 8 << 20;

/// Returns whether a copy is long enough to go this way. Which ones are depends on what has been copied before.
fn is_long_enough(r: &Rect, shared: bool, until: Until) -> bool {
    static COPIED: AtomicU64 = AtomicU64::new(0);
    if r.width >= SMALLEST as u64 {
        return true;
    }
    let tests = Faults::from_env().small_copies;
    let suits = shared && until == Until::Done && r.width >= if tests { SMALLEST_IN_TESTS } else { SMALLEST_SHARED };
    suits && (COPIED.fetch_add(r.width, Ordering::Relaxed) >= UNSHARED || tests)
}

/// Makes such a copy. False if it is another one, or is left to the other ways. The device's end is known memory. Before a synchronous copy
/// everything that may still change the host's end has been waited for.
pub(super) fn copy(cx: &mut CallContext, device: &'static Device, r: &Rect, stream: u64, until: Until) -> Result<bool, Code> {
    if r.rows != 1 || r.width < SMALLEST_IN_TESTS {
        return Ok(false);
    }
    let host = if r.dst.device { r.src } else { r.dst };
    // Pinned memory that the place's driver knows is copied as natively, by the driver itself. It does not know memory that the program has
    // registered, unless it is in this process or mirrors that memory.
    let pinned = blocks::touches(host.address..host.address + r.width);
    if pinned && (until == Until::Submitted || r.width >= apart::SMALLEST) {
        return Ok(false);
    }
    let suits = |cx: &CallContext| {
        let place = cx.place(device);
        place.maps_file() && !(pinned && place.has_apart()) || !pinned && place.in_process().is_some()
    };
    if !suits(cx) || !is_long_enough(r, cx.place(device).maps_file(), until) {
        return Ok(false);
    }
    if r.dst.device && r.width >= SMALLEST as u64 && !is_at_rest(cx, device, stream, host.address, r.width)? {
        match until {
            // It reads its source when its turn has come, as natively.
            Until::Done => cx.settle_turn(device, stream)?,
            // How the driver reads memory natively while the stream is busy, only the driver knows.
            Until::Submitted => return Ok(false),
        }
    }
    let slots = loop {
        // The waits are outside of the gate: the job may have moved.
        if cx.place(device).in_process().is_some() {
            return in_process(cx, device, r, stream, until);
        }
        if !suits(cx) {
            return Ok(false);
        }
        match host_memory::take_slots() {
            Some(slots) => break slots,
            // By the connection, other calls would wait behind its bytes.
            None if r.width >= SMALLEST as u64 && cx.waiting(device, host_memory::await_slots) => {}
            None => return Ok(false),
        }
    };
    if !slots.reach(cx, device) {
        host_memory::release_slots(slots);
        return Ok(false);
    }
    landing::before_work(cx, device, stream)?;
    let mut staged = Staged { device, r, stream, slots, at: 0, halves: [None, None] };
    // After an error the GPU may still use the slots: nobody gets them any more.
    let rest = if r.dst.device { staged.inwards(cx) } else { staged.outwards(cx) }?;
    host_memory::release_slots(staged.slots);
    match rest {
        None => {}
        // The job has moved meanwhile, to where the memory is not shared.
        Some(rest) if r.dst.device => {
            copy_in(cx, device, true, rest, stream, until)?;
            if until == Until::Done {
                cx.settle_stream(device, stream)?;
            }
        }
        Some(rest) => {
            // Another thread writes the bytes, and must not meet a bad pointer of the program.
            rest.destination().touch(true);
            copy_out(cx, device, rest, stream, until)?;
        }
    }
    Ok(true)
}

/// Whether nothing is before the next work of a stream: neither in it nor in others that it may have to follow.
fn is_at_rest(cx: &CallContext, device: &'static Device, stream: u64, address: u64, bytes: u64) -> Result<bool, Code> {
    if changes_later(cx, device, stream, address, bytes) {
        return Ok(false);
    }
    for one in [stream, LEGACY] {
        if device.is_quiet(cx.place(device), Some(one)) {
            continue;
        }
        match cx.query(device, ops::id::STREAM_QUERY, one) {
            Ok(_) => {}
            Err(code::ERROR_NOT_READY) => return Ok(false),
            Err(rc) => return Err(rc),
        }
    }
    Ok(true)
}

fn threads() -> Option<usize> {
    config::get().ok().and_then(|c| c.copy_threads)
}

fn in_process(cx: &CallContext, device: &'static Device, r: &Rect, stream: u64, until: Until) -> Result<bool, Code> {
    let Some(exec) = cx.place(device).in_process() else { return Ok(false) };
    let (to_device, wait) = (r.dst.device, until == Until::Done);
    let device_end = if to_device { r.dst.address } else { r.src.address };
    let stream = stage_stream(stream, exec.bindings())?;
    let copy = Bulk { device: device_end, host: r.host(), to_device, stream, wait };
    let mut made = false;
    cx.wait_here(device, exec, |exec| {
        made = exec.copy_bulk(&copy, threads())?;
        Ok(())
    })?;
    Ok(made)
}

/// A part that a place has: the answer that tells that it has been copied, the epoch in which it was asked for, where the part begins in the
/// copy, its bytes.
type Under = Option<(Waiting, u64, u64, u64)>;

/// Bytes of the part that begins at `at` of a copy of `width` bytes. Copies shorter than [`SMALLEST`] are one part, so that work of other
/// threads finds all of their bytes or none. Other parts end where a word of the device's memory does: addresses of host memory are looked
/// for in each part by itself.
fn part(device_end: u64, width: u64, at: u64) -> u64 {
    let (left, part) = (width - at, (width / 4).next_multiple_of(4096).clamp(*PART.start(), *PART.end()));
    if width < SMALLEST as u64 || part >= left { left.min(*PART.end()) } else { part - (device_end + at + part) % 8 }
}

/// A copy through slots.
struct Staged<'a> {
    device: &'static Device,
    r: &'a Rect,
    stream: u64,
    slots: Slots,
    /// Where the next part begins.
    at: u64,
    halves: [Under; 2],
}

impl Staged<'_> {
    fn part(&self) -> u64 {
        let device_end = if self.r.dst.device { self.r.dst.address } else { self.r.src.address };
        part(device_end, self.r.width, self.at)
    }

    /// What has not been begun.
    fn rest(&self) -> Rect {
        let (mut rest, at) = (*self.r, self.at);
        (rest.dst.address, rest.src.address, rest.width) = (rest.dst.address + at, rest.src.address + at, rest.width - at);
        rest
    }

    /// Submits the copy of a part, and the question when it has ended.
    fn submit(&mut self, cx: &CallContext, second: bool, bytes: u64) -> Result<(), Code> {
        let (slot, at) = (self.slots.half(second), self.at);
        let (dst, src) = if self.r.dst.device { (self.r.dst.address + at, slot) } else { (slot, self.r.src.address + at) };
        let copy = CopyDevice { dst, dst_pitch: bytes, src, src_pitch: bytes, width: bytes, rows: 1, stream: self.stream };
        faults::at(if self.r.dst.device { Point::CopyIn } else { Point::CopyOut });
        operate(cx, self.device, true, &copy)?;
        let epoch = self.device.epoch.load(Ordering::Relaxed);
        let pending = cx.place(self.device).begin(ops::id::STREAM_SYNC, &[&self.stream.to_le_bytes()]);
        self.halves[usize::from(second)] = Some((self.device.record_error(pending)?, epoch, at, bytes));
        self.at += bytes;
        Ok(())
    }

    /// Waits until a half's part has been copied: where it begins and its bytes.
    fn wait(&mut self, cx: &CallContext, second: bool) -> Result<Option<(u64, u64)>, Code> {
        let Some((waiting, epoch, at, bytes)) = self.halves[usize::from(second)].take() else { return Ok(None) };
        // The stream is known to be idle then: what follows need not ask.
        cx.wait_for_stream(self.device, waiting, epoch, self.stream)?;
        Ok(Some((at, bytes)))
    }

    /// To the device. Returns what is left to other ways.
    fn inwards(&mut self, cx: &CallContext) -> Result<Option<Rect>, Code> {
        let (mut second, mut rest) = (false, None);
        while self.at < self.r.width {
            self.wait(cx, second)?;
            // The wait was outside of the gate: the job may have moved.
            if !self.slots.reach(cx, self.device) {
                rest = Some(self.rest());
                break;
            }
            let bytes = self.part();
            let from = self.r.source().part(self.at, bytes);
            let device_end = self.r.dst.address + self.at;
            let looked = naming::any_unmapped();
            // Of an odd destination a word may lie across two of the parts that are looked at.
            let odd = !device_end.is_multiple_of(8);
            let look = |bytes: &[u8]| looked && (odd || naming::may_be_named_at(device_end, bytes));
            from.touch(false);
            if self.slots.take_in(second, from, &look, threads()) {
                host_memory::note_copied(cx, device_end, self.slots.bytes(second, bytes))?;
                // For the memory that was named all places may have left the job's file, and the slots with it.
                if !self.slots.reach(cx, self.device) {
                    rest = Some(self.rest());
                    break;
                }
            }
            self.submit(cx, second, bytes)?;
            second = !second;
        }
        for half in [second, !second] {
            self.wait(cx, half)?;
        }
        Ok(rest)
    }

    /// To the host. Returns what is left to other ways.
    fn outwards(&mut self, cx: &CallContext) -> Result<Option<Rect>, Code> {
        let (mut second, mut rest) = (false, None);
        loop {
            if let Some((at, bytes)) = self.wait(cx, second)? {
                let to = self.r.destination().part(at, bytes);
                to.touch(true);
                self.slots.put_out(second, to, threads());
            } else if (self.at == self.r.width || rest.is_some()) && self.halves.iter().all(Option::is_none) {
                return Ok(rest);
            }
            if self.at < self.r.width && rest.is_none() {
                if self.slots.reach(cx, self.device) {
                    let bytes = self.part();
                    self.submit(cx, second, bytes)?;
                } else {
                    rest = Some(self.rest());
                }
            }
            second = !second;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fit_a_half_and_end_where_words_of_the_device_do() {
        let whole = SMALLEST as u64;
        let widths =
            [1, 4096, 1 << 20, (3 << 20) + 5, whole - 1, whole, whole + 3, (32 << 20) - 1, (32 << 20) + 8191, (100 << 20) + 1];
        for (width, device_end) in widths.into_iter().flat_map(|w| (0..9).map(move |odd| (w, 0x2000_0000_0000 + odd))) {
            let (mut at, mut parts) = (0, 0);
            while at < width {
                let bytes = part(device_end, width, at);
                assert!((1..=host_memory::HALF).contains(&bytes) && bytes <= width - at, "{bytes} of {width} at {at}");
                (at, parts) = (at + bytes, parts + 1);
                assert!(at == width || (device_end + at).is_multiple_of(8), "{width} at {at}");
            }
            assert!(parts == 1 || width >= whole, "{width}: {parts}");
        }
    }
}
