//! Copies and fills: some thirty driver functions are reduced to one rectangle ([`rect`]) each, from host or device to host or device. The
//! functions themselves are in [`calls`], [`batch`] and [`fill`]; large in-process copies in [`bulk`].

use crate::base::encoding::encode;
use crate::calls::copy::checks::check_ends;
use crate::calls::copy::rect::{DEVICE, End, HOST, HostCopy, Rect, TABLE, Until};
use crate::calls::copy::sending::{copy_device, operate};
use crate::calls::copy::transfer::{copy_in, copy_out, note_many};
use crate::calls::host_function::{self, changes_later};
use crate::calls::memory::attributes;
use crate::calls::{cross_device, stream_memory};
use crate::device_memory::{peer, regions, shared_handles, variables};
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::Device;
use crate::order::{captures, concerned, host_waiting, landing};
use crate::pinned::{blocks, naming};
use crate::place::{Place, lost};
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, CopyIn};
use cuda_api::work::{Copy3, CopyEnd, Work};
use faults::Point;

mod apart;
mod batch;
mod bulk;
mod calls;
pub(crate) mod checks;
mod fill;
pub(crate) mod in_flight;
pub(crate) mod rect;
pub(crate) mod sending;
pub(crate) mod transfer;
pub(crate) use batch::*;
pub(crate) use calls::*;
pub(crate) use fill::*;

/// The longest copy that is sent to an idle stream without a wait: a place processes no other call while it makes the copy.
const SHORT: u64 = 64 << 10;
/// The longest copy that is sent in such pieces to a place that is far away: for a longer one the round trip matters less.
const LONG: u64 = 4 << 20;

/// The graph node of a captured copy.
fn node(device: &Device, r: Rect) -> Result<Work<u64>, Code> {
    let end = |e: End| CopyEnd {
        memory: if e.device { DEVICE } else { HOST },
        device: if e.device { e.address } else { 0 },
        host: if e.device { 0 } else { e.address },
        pitch: e.pitch,
        ..CopyEnd::default()
    };
    let copy = Copy3 { src: end(r.src), dst: end(r.dst), width: r.width, rows: r.rows, depth: 1 };
    check_ends(device, &copy)?;
    Ok(Work::Copy(copy))
}

fn copy(cx: &mut CallContext, r: Rect, stream: u64, until: Until) -> Result<(), Code> {
    if r.width == 0 || r.rows == 0 {
        cx.device()?;
        return Ok(());
    }
    if r.rows > 1 && (r.width > r.dst.pitch || r.width > r.src.pitch) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let stream = cx.use_stream(stream)?;
    let device = cx.device()?;
    if cx.job.devices.len() > 1 {
        let home = |e: End| if e.device { regions::home(cx.job, e.address) } else { None }.unwrap_or(device);
        let (from, to) = (home(r.src), home(r.dst));
        if from.index != device.index || to.index != device.index {
            return elsewhere(cx, r, (device, stream), (from, to), until);
        }
    }
    if cx.job.graphs.capturing() && captures::take(cx, device, stream, until == Until::Done, || node(device, r))? {
        return Ok(());
    }
    let mut known = true;
    for end in [r.dst, r.src] {
        end.span(r.width, r.rows)?;
        if end.device {
            known &= is_known(cx, device, end, &r)?;
        } else if end.address == 0 {
            return Err(code::ERROR_INVALID_VALUE);
        }
    }
    device.check()?;
    if r.dst.device && !r.src.device && naming::any_unmapped() && r.width.saturating_mul(r.rows) <= TABLE {
        r.source().with_bytes(|bytes| host_memory::note_copied(cx, r.dst.address, bytes))?;
    }
    match (r.src.device, r.dst.device) {
        (true, true) => {
            copy_device(cx, device, known, r, stream)?;
            let waits = until == Until::Done && [r.dst, r.src].iter().any(|e| attributes::waits(cx, e.address));
            if waits { cx.settle_stream(device, stream) } else { Ok(()) }
        }
        (true, false) | (false, true) if r.is_mapped_at_worker(cx.place(device))? => {
            faults::at(if r.dst.device { Point::CopyIn } else { Point::CopyOut });
            landing::before_work(cx, device, stream)?;
            operate(cx, device, known, &r.within_reach(stream))?;
            if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) }
        }
        (false, true) => {
            // A synchronous copy reads the bytes when everything before it in the stream is complete, whatever memory they are in
            // (docs/driver-facts.md, 5.4).
            let bytes = r.src.span(r.width, r.rows)?;
            let changes = || {
                stream_memory::waited_here()
                    || changes_later(cx, device, stream, r.src.address, bytes)
                    || host_waiting::holds(cx, device, stream)
            };
            if until == Until::Done && changes() {
                cx.settle_turn(device, stream)?;
            }
            let long = r.width.saturating_mul(r.rows) > SHORT;
            if known && (long && bulk::copy(cx, device, &r, stream, until)? || apart::copy(cx, device, &r, stream, until)?)
                || copy_here(cx, device, &r, stream, until)?
            {
                return Ok(());
            }
            let rest = if known { copy_at_rest(cx, device, r, stream, until)? } else { Some(r) };
            let Some(r) = rest else { return Ok(()) };
            // What need not be waited for is faster than any copy that must.
            if known && !long && bulk::copy(cx, device, &r, stream, until)? {
                return Ok(());
            }
            copy_in(cx, device, known, r, stream, until)?;
            // Later launches on any stream must find the bytes.
            if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) }
        }
        (true, false) => {
            if known && (bulk::copy(cx, device, &r, stream, until)? || apart::copy(cx, device, &r, stream, until)?)
                || copy_here(cx, device, &r, stream, until)?
            {
                return Ok(());
            }
            if known && cx.place(device).in_process().is_none() {
                // Another thread writes the bytes, and must not meet a bad pointer of the program.
                r.destination().touch(true);
            }
            copy_out(cx, device, r, stream, if known { until } else { Until::Done })
        }
        (false, false) => {
            if until == Until::Submitted && is_queued(&r)? {
                return host_function::copy_in_order(cx, device, stream, HostCopy::later(&r)?);
            }
            cx.settle_turn(device, stream)?;
            HostCopy::new(&r).carry_out();
            Ok(())
        }
    }
}

/// Returns whether an end on a device is memory that the recorder knows: allocations, or variables of loaded code. Only the place can
/// tell whether other addresses are valid.
fn is_known(cx: &CallContext, device: &Device, end: End, r: &Rect) -> Result<bool, Code> {
    let bytes = end.span(r.width, r.rows)?;
    let variable = |v: variables::Found| bytes <= v.bytes - (end.address - v.start);
    Ok(device.check_range(end.address, bytes)? || variables::find(cx, end.address).is_some_and(variable))
}

/// Returns whether an asynchronous copy inside host memory is carried out in stream order: one from and to managed memory, which could be
/// the GPU's as well. Others are complete when the call returns, including one from managed to pageable memory (measured).
fn is_queued(r: &Rect) -> Result<bool, Code> {
    let managed = |e: End| blocks::is_managed(e.address);
    Ok(managed(r.dst) || managed(r.src) && r.dst.is_pinned(r)?)
}

/// A copy with an end on another device than the stream's.
fn elsewhere(
    cx: &mut CallContext,
    r: Rect,
    (device, stream): (&'static Device, u64),
    (from, to): (&'static Device, &'static Device),
    until: Until,
) -> Result<(), Code> {
    captures::forbid_on(cx, device, stream)?;
    if r.src.device && r.dst.device {
        let mut known = true;
        for (device, end) in [(from, r.src), (to, r.dst)] {
            known &= is_known(cx, device, end, &r)?;
        }
        if known && stream != LEGACY && peer::reaches(device, from) && peer::reaches(device, to) {
            return copy_device(cx, device, known, r, stream);
        }
        return cross_device::copy(cx, (device, stream), (from, to), r, until == Until::Done);
    }
    let ((gpu, at), host) = if r.src.device { ((from, r.src), r.dst) } else { ((to, r.dst), r.src) };
    let known = is_known(cx, gpu, at, &r)?;
    if known && until == Until::Submitted && stream != LEGACY && host.is_pinned(&r)? {
        if r.dst.device && naming::any_unmapped() {
            r.source().with_bytes(|bytes| host_memory::note_copied(cx, r.dst.address, bytes))?;
        }
        return cross_device::carry(cx, (device, stream), (r.src.device.then_some(from), r.dst.device.then_some(to)), r)
            .map(drop);
    }
    // Between pageable memory and a device whose context is not current: begins in stream order, and is complete when the call returns.
    cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes())?;
    cx.on(if r.src.device { from } else { to });
    copy(cx, r, LEGACY, Until::Done)
}

/// A synchronous copy on the default stream by the driver of this process, which has dedicated functions for it. Returns false if it is
/// another kind of copy, or the place is not in this process.
fn copy_here(cx: &CallContext, device: &'static Device, r: &Rect, stream: u64, until: Until) -> Result<bool, Code> {
    if until != Until::Done || r.rows != 1 || stream != LEGACY {
        return Ok(false);
    }
    let Some(exec) = cx.place(device).in_process() else { return Ok(false) };
    exec.make_current()?;
    let calls = &exec.driver().memory;
    if calls.cuMemcpyHtoD_v2.is_none() || calls.cuMemcpyDtoH_v2.is_none() {
        return Ok(false);
    }
    let (device_end, to_device) = if r.dst.device { (r.dst.address, true) } else { (r.src.address, false) };
    cx.wait_here(device, exec, |exec| exec.copy_row_now(device_end, &r.host(), to_device))?;
    Ok(true)
}

/// A short copy to the device, or the pieces of a longer one to a place that is far away, while its stream and the default stream are known
/// to be idle; returns what is left to copy if they are not. No thread waits for it: the place makes the copy before it processes any
/// later call, which is all that the program can observe unless somebody else observes the device ([`is_observed`]). So the streams are
/// idle after it, and a wait for them needs no round trip.
fn copy_at_rest(cx: &CallContext, device: &'static Device, mut r: Rect, stream: u64, until: Until) -> Result<Option<Rect>, Code> {
    let longest = if cx.place(device).is_over_network() && r.rows == 1 { LONG } else { SHORT };
    // An asynchronous copy from pinned memory is meant to overlap other work.
    if r.width.saturating_mul(r.rows) > longest || (until == Until::Submitted && r.src.is_pinned(&r)?) {
        return Ok(Some(r));
    }
    loop {
        let piece = if r.rows == 1 { Rect { width: r.width.min(SHORT), ..r } } else { r };
        if !copy_piece_at_rest(cx, device, &piece, stream)? {
            return Ok(Some(r));
        }
        if r.rows > 1 || piece.width == r.width {
            break;
        }
        r.src.address += piece.width;
        r.dst.address += piece.width;
        r.width -= piece.width;
    }
    if until == Until::Done {
        // As in every call that waits; the text has arrived already.
        cx.show_text();
    }
    Ok(None)
}

/// Returns whether somebody may see the memory of a device other than by later calls to its place: other processes, other GPUs of the job,
/// or work that is already at the place and goes on when the host says so. The bytes must then be there when a wait is over. The default
/// stream is known to be complete up to `position`, and so are the streams that it follows.
fn is_observed(device: &Device, place: &Place, position: u64) -> bool {
    let all_idle = || !device.has_independent_streams() || device.quiet_at(place, None) == Some(position);
    shared_handles::any()
        || peer::any()
        || concerned::any()
        || host_function::any_outstanding()
        || stream_memory::any_waiting()
        // A kernel may wait for a flag of the program, wherever it has found the flag's address.
        || landing::is_seen(place) && !all_idle()
}

/// Returns false if the streams are not known to be idle, or somebody else observes the device.
fn copy_piece_at_rest(cx: &CallContext, device: &'static Device, r: &Rect, stream: u64) -> Result<bool, Code> {
    let Place::Remote { link, .. } = cx.place(device) else { return Ok(false) };
    let at_rest = |stream| device.quiet_at(cx.place(device), Some(stream));
    // The work of other streams may follow that of the default stream, and vice versa.
    let Some(position) = at_rest(LEGACY).filter(|p| stream == LEGACY || at_rest(stream) == Some(*p)) else { return Ok(false) };
    // Not before the position is known: whatever is observed from now on sends a call first, and the copy then has another position.
    if is_observed(device, cx.place(device), position) {
        return Ok(false);
    }
    let op = CopyIn { dst: r.dst.address, pitch: r.dst.pitch, width: r.width, rows: r.rows, stream };
    faults::at(Point::CopyIn);
    r.source().with_bytes(|bytes| note_many(cx, r, bytes))?;
    let send = |bytes: &[u8]| link.send_at(position, ops::id::COPY_IN_AT_REST, &[&encode(&op), bytes]);
    let sent = r.source().with_bytes(send).map_err(lost);
    let span = device.record_error(sent)?;
    device.still_quiet(span.clone());
    Ok(span.is_some())
}
