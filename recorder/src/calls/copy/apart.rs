//! Large copies at a place outside of the job's process: their bytes travel over connections of their own (docs/memory.md, "Large copies over connections of
//! their own"). So they do not hold up the calls, and several connections carry more than one.

use crate::base::config;
use crate::calls::copy::rect::{Rect, Until};
use crate::calls::copy::transfer::{copy_in, copy_out};
use crate::calls::host_function::changes_later;
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::Device;
use crate::order::{host_waiting, landing};
use crate::pinned::{blocks, naming};
use crate::place::{self, Place, Waiting, lost};
use cuda_api::code::{self, Code};
use cuda_api::ops::id;
use executor::host_rows::HostRows;
use faults::{Faults, Point};
use rcuda_forwarder::{BeforeSent, BulkCopy, BulkMemory, Link, Lost};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes from which on a copy is made in this way.
pub(super) const SMALLEST: u64 = 1 << 20;
const SMALLEST_IN_TESTS: u64 = 4 << 10;
/// The largest part of a copy: the stream has commands for each part, and a driver takes a thousand of them.
const PART: u64 = 512 << 20;
/// The same where the call searches each part before it is sent: short, so that it searches one while another is carried.
const SEARCHED_PART: u64 = 32 << 20;
const SEARCHED_PART_IN_TESTS: u64 = 16 << 10;
/// Parts of a copy under way, if the caller waits for it.
const AT_ONCE: usize = 2;

/// Makes such a copy. False if it is another one, or is left to the other ways. The device's end is known memory. Before a synchronous copy
/// everything that may still change the host's end has been waited for.
pub(super) fn copy(cx: &mut CallContext, device: &'static Device, r: &Rect, stream: u64, until: Until) -> Result<bool, Code> {
    let smallest = if Faults::from_env().small_copies { SMALLEST_IN_TESTS } else { SMALLEST };
    let r = in_one_row(r);
    if r.rows != 1 || r.width < smallest {
        return Ok(false);
    }
    let host = if r.dst.device { r.src } else { r.dst };
    let pinned = blocks::is_pinned(host.address, r.width);
    // Before connections are made that it would not use.
    if !pinned && !cx.place(device).is_over_network() {
        return Ok(false);
    }
    let Some(link) = reach(cx, device, r.dst.device) else { return Ok(false) };
    let range = host.address..host.address + r.width;
    // Changes of mirrored memory travel on the connection of the calls, and must keep their order with bytes that the program or the GPU
    // may look at meanwhile.
    if blocks::touches(range.clone()) && cx.place(device).has_apart() {
        return Ok(false);
    }
    let waits = until == Until::Done || !pinned;
    let late = r.dst.device
        && until == Until::Submitted
        && (changes_later(cx, device, stream, host.address, r.width) || host_waiting::holds(cx, device, stream));
    if late && !pinned {
        return Ok(false);
    }
    // The call itself searches what it sends to a place that shares memory.
    let searches = r.dst.device && !link.transport().is_network() && naming::any_unmapped();
    if searches {
        if late {
            return Ok(false);
        }
        // The program says that it keeps registered memory during the call. If it does not, this thread finds out, and not one of ours; and
        // it may leave the call for good, so nothing is under way yet.
        r.source().touch(false);
        // The bytes of a copy that is not waited for are given to the connections at once, so that no work of other threads comes between
        // two parts.
        if !waits && !search_here(cx, device, &r)? {
            return Ok(false);
        }
    }
    if r.dst.device && !late {
        landing::before_work(cx, device, stream)?;
    } else {
        landing::before_other_copy(cx, device, stream)?;
    }
    // Another thread searches the bytes, encrypts or decrypts them, or copies them for RDMA, and must not meet a bad pointer of the
    // program. Over a plain connection only the kernel uses the pointer.
    if !pinned && (link.transport().handles_large_copies() || r.dst.device && cx.place(device).may_lack_memory()) {
        r.host().touch(!r.dst.device);
    }
    let searches = searches && waits;
    let mut run = Run { device, stream, until, late, searches, whole: r, rest: r, link, under: VecDeque::new() };
    let made = if waits { run.all(cx) } else { run.submit_all(cx) };
    made?;
    run.leave_rest(cx)?;
    Ok(true)
}

/// Searches bytes for a place that shares pinned memory. False if the place has stopped sharing for the memory that they name: then only calls
/// keep the order.
fn search_here(cx: &CallContext, device: &'static Device, r: &Rect) -> Result<bool, Code> {
    let threads = config::get().ok().and_then(|c| c.copy_threads);
    r.source().with_bytes(|bytes| host_memory::note_many(cx, r.dst.address, bytes, threads))?;
    Ok(!cx.place(device).has_apart())
}

/// The link of a place outside of this process that has connections for this direction.
fn reach(cx: &CallContext, device: &'static Device, to_device: bool) -> Option<Arc<Link>> {
    let place = cx.place(device);
    let Place::Remote { link, .. } = place else { return None };
    link.has_bulk(to_device, || place::bulk_connections(link)).then(|| link.clone())
}

/// Rows without gaps are one row.
fn in_one_row(r: &Rect) -> Rect {
    match r.width.checked_mul(r.rows) {
        Some(width) if r.src.pitch == r.width && r.dst.pitch == r.width => Rect { width, rows: 1, ..*r },
        _ => *r,
    }
}

/// A part that was requested: its answer, the copy, and the epoch of the place.
type Under = (Waiting, BulkCopy, u64);

/// A copy in parts.
struct Run {
    device: &'static Device,
    stream: u64,
    until: Until,
    late: bool,
    /// Each part is searched before it is sent, while the part before it is under way.
    searches: bool,
    whole: Rect,
    /// What was not requested.
    rest: Rect,
    link: Arc<Link>,
    /// The parts whose answers are waited for, in order.
    under: VecDeque<Under>,
}

impl Run {
    fn to_device(&self) -> bool {
        self.rest.dst.device
    }

    /// The next part, if the place can still have it in this way.
    fn part(&self, cx: &CallContext) -> Result<Option<BulkMemory>, Code> {
        let r = &self.rest;
        let most = match (self.searches, Faults::from_env().small_copies) {
            (false, _) => PART,
            (true, false) => SEARCHED_PART,
            (true, true) => SEARCHED_PART_IN_TESTS,
        };
        let (host, device) = if r.dst.device { (r.src.address, r.dst.address) } else { (r.dst.address, r.src.address) };
        let bytes = match r.width {
            whole if whole <= most => whole,
            // Of an odd destination, too, no word lies in two parts.
            _ => most - (device + most) % 8,
        };
        if self.searches && !search_here(cx, self.device, &Rect { width: bytes, ..*r })? {
            return Ok(None);
        }
        // At other places the call has searched them. A late copy is read when more memory may be named.
        let may_name = self.late || cx.place(self.device).may_lack_memory();
        let searched = r.dst.device && self.link.transport().is_network() && may_name;
        let is_registered = blocks::is_registered(host);
        let before_sent = searched.then(|| search(cx.place(self.device), (r.host().part(0, bytes), is_registered), device));
        let (stream, late) = (self.stream, self.late);
        let to_device = r.dst.device;
        Ok(Some(BulkMemory { host: host as *mut u8, device, bytes, stream, to_device, late, is_registered, before_sent }))
    }

    fn requested(&mut self, bytes: u64) {
        let r = &mut self.rest;
        (r.dst.address, r.src.address, r.width) = (r.dst.address + bytes, r.src.address + bytes, r.width - bytes);
    }

    /// Whether the place is still the one with these connections: waits are outside of the gate.
    fn is_there(&self, cx: &CallContext) -> bool {
        matches!(cx.place(self.device), Place::Remote { link, .. } if Arc::ptr_eq(link, &self.link))
    }

    /// Makes the copy, or parts of it, and waits until the caller may go on.
    fn all(&mut self, cx: &CallContext) -> Result<(), Code> {
        // An asynchronous copy from pageable memory is only read when it returns.
        let only_read = self.until == Until::Submitted && self.to_device();
        while self.rest.width > 0 && self.is_there(cx) {
            let Some(part) = self.part(cx)? else { break };
            let began = if only_read { self.send_and_wait(cx, &part)? } else { self.request(&part)? };
            if began {
                self.requested(part.bytes);
            }
            // Without room for another part, or when enough are under way, the first one must be over.
            if (!began || self.under.len() == AT_ONCE) && !self.wait(cx)? {
                break;
            }
        }
        while self.wait(cx)? {}
        Ok(())
    }

    #[expect(unsafe_code, reason = "a connection sends from and receives into the program's memory")]
    fn request(&mut self, part: &BulkMemory) -> Result<bool, Code> {
        self.device.check()?;
        if part.to_device {
            faults::at(Point::CopyIn);
        }
        // SAFETY: the program keeps its memory during the call, and `wait` or the drop ends its use.
        let asked = self.device.record_error(unsafe { self.link.request_bulk(part) }.map_err(lost))?;
        let Some((reply, copy)) = asked else { return Ok(false) };
        if !part.to_device {
            faults::at(Point::CopyOut);
        }
        self.under.push_back((Waiting::Reply(reply), copy, self.device.epoch.load(Ordering::Relaxed)));
        Ok(true)
    }

    /// Waits for the first part under way. False if there is none.
    fn wait(&mut self, cx: &CallContext) -> Result<bool, Code> {
        let Some((waiting, copy, epoch)) = self.under.pop_front() else { return Ok(false) };
        let answered = cx.wait_for_stream(self.device, waiting, epoch, self.stream);
        let is_bad = copy.finish();
        answered?;
        if !is_bad {
            return Ok(true);
        }
        self.finish();
        Err(self.meet_bad_pointer())
    }

    /// Some of the program's memory could not be accessed. A bad pointer faults here, on the program's own thread: a signal handler may
    /// leave the call for good. No part is under way.
    fn meet_bad_pointer(&self) -> Code {
        self.whole.host().touch(!self.to_device());
        code::ERROR_INVALID_VALUE
    }

    /// Ends the use of the program's memory by parts whose answers are not waited for.
    fn finish(&mut self) {
        for (_, copy, _) in self.under.drain(..) {
            copy.finish();
        }
    }

    /// Sends a part without waiting for its answer. A later call reports a failure, and with `also_bad` that memory could not be
    /// accessed.
    #[expect(unsafe_code, reason = "a connection sends from and receives into the program's memory")]
    fn send(&self, part: &BulkMemory, also_bad: bool) -> Result<Option<BulkCopy>, Code> {
        self.device.check()?;
        let (device, call) = (self.device, if part.to_device { id::BULK_IN } else { id::BULK_OUT });
        let then = move |answer: Result<(Code, bool), Lost>| {
            let rc = match answer {
                Ok((code::SUCCESS, true)) if also_bad => code::ERROR_INVALID_VALUE,
                Ok((rc, _)) => rc,
                Err(e) => lost(e),
            };
            if rc != code::SUCCESS {
                device.failed_late(call, rc);
            }
        };
        if part.to_device {
            faults::at(Point::CopyIn);
        }
        // SAFETY: pageable memory is waited for; pinned memory the program keeps valid until the copy is complete: CUDA's contract.
        let copy = device.record_error(unsafe { self.link.send_bulk(part, then) }.map_err(lost))?;
        if !part.to_device {
            faults::at(Point::CopyOut);
        }
        Ok(copy)
    }

    /// Sends a part from pageable memory, and waits until it has been read.
    fn send_and_wait(&self, cx: &CallContext, part: &BulkMemory) -> Result<bool, Code> {
        let Some(copy) = self.send(part, false)? else { return Ok(false) };
        if cx.waiting(self.device, || copy.wait_sent()) {
            return Err(self.meet_bad_pointer());
        }
        self.device.check_late()?;
        Ok(true)
    }

    /// Submits a copy of pinned memory, or as many parts of it as there is room for.
    fn submit_all(&mut self, cx: &CallContext) -> Result<(), Code> {
        while self.rest.width > 0 {
            let Some(part) = self.part(cx)? else { break };
            let Some(copy) = self.send(&part, true)? else { break };
            if !part.to_device {
                let to = part.host as u64..part.host as u64 + part.bytes;
                landing::note_held(self.device, self.stream, to, landing::Arrival::Flag(copy.over()));
            }
            self.requested(part.bytes);
        }
        Ok(())
    }

    /// Leaves what was not requested to the ordinary ways: there is no room for it, or the job has moved meanwhile.
    fn leave_rest(&self, cx: &mut CallContext) -> Result<(), Code> {
        let Run { device, stream, until, rest, .. } = *self;
        if rest.width == 0 {
            return Ok(());
        }
        if !rest.dst.device {
            return copy_out(cx, device, rest, stream, until);
        }
        copy_in(cx, device, true, rest, stream, until)?;
        if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Searches bytes for addresses of pinned memory before they are sent, so that the place gets that memory.
fn search(place: &Place, (host, is_registered): (HostRows, bool), device: u64) -> BeforeSent {
    let (place, bytes) = (place.clone(), host.width());
    Arc::new(move |range: Range<u64>| {
        // Words are aligned on the device, and may lie across the borders of what one connection sends.
        let words = (device + range.start) / 8 * 8..(device + range.end).next_multiple_of(8);
        let (from, to) = (words.start.saturating_sub(device), (words.end - device).min(bytes));
        let from = if words.start < device { words.start + 8 - device } else { from };
        if from >= to {
            return;
        }
        let part = host.part(from, to - from);
        if is_registered {
            // The program may unmap it meanwhile.
            place.pin_named_and_wait(&rcuda_forwarder::read_registered(part.address(), part.width() as usize).0);
        } else {
            // It was touched, or is pinned memory of the job.
            part.with_bytes(|bytes| place.pin_named_and_wait(bytes));
        }
    })
}
