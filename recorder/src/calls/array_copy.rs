//! Copies with an array at one end or both: one operation at the place, pieces of whole rows from and to the host.

use crate::base::encoding;
use crate::calls::copy::checks::{self, check};
use crate::calls::copy::in_flight::InFlight;
use crate::calls::copy::rect::{self, Until};
use crate::calls::copy::sending;
use crate::calls::{cross_device, host_function};
use crate::device_memory::regions;
use crate::enter::CallContext;
use crate::host_memory::places;
use crate::job::Device;
use crate::order::{captures, host_waiting, landing};
use crate::pinned::{blocks, naming};
use crate::place::Place;
use cuda_api::arg::{Capture, LEGACY, stage_stream};
use cuda_api::array::{ARRAY, CopyBox, CopyBoxLate, DEVICE, HOST};
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::work::{Copy3, CopyEnd, Work};
use cuda_api::{ops, sys};
use faults::Point;
use std::ffi::c_void;

/// Maximum size of one operation in bytes; the widest row of an array is half of it.
const PIECE: u64 = 4 << 20;

/// Number of bytes of host memory from the first to the last that is copied.
fn span(e: &CopyEnd, c: &Copy3) -> u64 {
    ((c.depth - 1) * e.height + c.rows - 1) * e.pitch + c.width
}

pub(crate) fn copy(cx: &mut CallContext, c: &Copy3, stream: u64, until: Until) -> Result<(), Code> {
    let stream = cx.use_stream(stream)?;
    let device = cx.device()?;
    if cx.job.devices.len() > 1 {
        let (from, to) = (home(cx, &c.src)?, home(cx, &c.dst)?);
        if [from, to].into_iter().flatten().any(|d| d.index != device.index) {
            return elsewhere(cx, c, (device, stream), (from, to), until);
        }
    }
    if cx.job.graphs.capturing() {
        let node = || checks::check_ends(device, c).map(|()| Work::Copy(*c));
        if captures::take(cx, device, stream, until == Until::Done, node)? {
            return Ok(());
        }
    }
    let [to, from] = rect::ends(c)?;
    let mut known = true;
    for (e, memory) in [(&c.dst, to), (&c.src, from)] {
        match memory {
            None => check(device, e, c)?,
            Some((end, span)) if end.device => known &= device.check_range(end.address, span)?,
            Some((end, _)) if end.address == 0 => return Err(code::ERROR_INVALID_VALUE),
            Some(_) => {}
        }
    }
    if c.width == 0 || c.rows == 0 || c.depth == 0 {
        return Ok(());
    }
    device.check()?;
    let c = rect::plain(c);
    let (from_host, to_host) = (c.src.memory == HOST, c.dst.memory == HOST);
    let host = if to_host { c.dst } else { c.src };
    let in_place = matches!(cx.place(device), Place::Remote { .. })
        && from_host != to_host
        && places::is_reached(cx.place(device), host.host, span(&host, &c));
    if in_place {
        // The place's driver makes the copy, in stream order.
        landing::before_work(cx, device, stream)?;
        sending::submit(cx, device, known, ops::id::COPY_BOX, &[&encoding::encode(&CopyBox { copy: c, stream })])?;
        return if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) };
    }
    // The copy takes the bytes that are there when the stream gets here.
    let changes = from_host
        && (host_function::changes_later(cx, device, stream, c.src.host, span(&c.src, &c))
            || naming::is_mapped(c.src.host)
            || host_waiting::holds(cx, device, stream));
    if changes && until == Until::Done {
        cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes())?;
    }
    let late = changes && until == Until::Submitted && blocks::is_pinned(c.src.host, span(&c.src, &c));
    if let Place::Local { exec, .. } = cx.place(device) {
        let live = stage_stream(stream, exec.bindings())?;
        device.record_error(direct(exec, &c, live))?;
        if until == Until::Submitted || !(from_host || to_host) {
            return Ok(());
        }
        return cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes()).map(drop);
    }
    if to_host {
        return copy_out(cx, device, &c, stream, until);
    }
    landing::before_work(cx, device, stream)?;
    if !from_host {
        return sending::submit(cx, device, known, ops::id::COPY_BOX, &[&encoding::encode(&CopyBox { copy: c, stream })]);
    }
    pieces(&c, |piece| {
        let op = CopyBox { copy: Copy3 { src: CopyEnd { memory: HOST, ..CopyEnd::default() }, ..piece }, stream };
        if late {
            let body = |token| encoding::encode(&CopyBoxLate { token, to: op });
            return host_function::copy_late(cx, (device, stream), ops::id::COPY_BOX_LATE, rect::source_rows(&piece), body);
        }
        let bytes = rect::source_rows(&piece).read();
        faults::at(Point::CopyIn);
        cx.work(device, ops::id::COPY_BOX_IN, &[&encoding::encode(&op), &bytes])
    })?;
    if until == Until::Done { cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes()).map(drop) } else { Ok(()) }
}

/// The device of an end's array or memory; none for host memory.
fn home(cx: &CallContext, e: &CopyEnd) -> Result<Option<&'static Device>, Code> {
    if e.memory != ARRAY {
        return Ok(if e.memory == HOST { None } else { regions::home(cx.job, e.device) });
    }
    if e.array == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    Ok(cx.job.devices.get(cx.job.tables.device(Kind::Array, e.array)? as usize))
}

/// A copy with an end on another device than the stream's: through the job.
fn elsewhere(
    cx: &mut CallContext,
    c: &Copy3,
    (device, stream): (&'static Device, u64),
    (from, to): (Option<&'static Device>, Option<&'static Device>),
    until: Until,
) -> Result<(), Code> {
    captures::forbid_on(cx, device, stream)?;
    let memory = rect::ends(c)?;
    for (home, e, memory) in [(to, &c.dst, memory[0]), (from, &c.src, memory[1])] {
        match (home, memory) {
            (Some(home), None) => check(home, e, c)?,
            (Some(home), Some((end, span))) => drop(home.check_range(end.address, span)?),
            (None, Some((end, _))) if end.address != 0 => {}
            (None, _) => return Err(code::ERROR_INVALID_VALUE),
        }
    }
    if c.width == 0 || c.rows == 0 || c.depth == 0 {
        return Ok(());
    }
    let c = rect::plain(c);
    let boxes = || {
        let mut all = Vec::new();
        pieces(&c, |piece| {
            all.push(piece);
            Ok(())
        })
        .map(|()| all)
    };
    let (gpu, host) = match (from, to) {
        (Some(from), Some(to)) => {
            return cross_device::copy_boxes(cx, (device, stream), (from, to), boxes()?, until == Until::Done);
        }
        (Some(gpu), None) => (gpu, &c.dst),
        (None, Some(gpu)) => (gpu, &c.src),
        (None, None) => return Err(code::ERROR_INVALID_VALUE),
    };
    if until == Until::Submitted && stream != LEGACY && blocks::is_pinned(host.host, span(host, &c)) {
        return cross_device::carry_boxes(cx, (device, stream), (from, to), boxes()?).map(drop);
    }
    // Begins in stream order, and is complete when the call returns.
    cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes())?;
    cx.on(gpu);
    copy(cx, &c, LEGACY, Until::Done)
}

fn copy_out(cx: &mut CallContext, device: &'static Device, c: &Copy3, stream: u64, until: Until) -> Result<(), Code> {
    // Later kernels that use the memory by its address must find the bytes.
    let pinned = blocks::is_pinned(c.dst.host, span(&c.dst, c)) && !naming::is_mapped(c.dst.host);
    let mut in_flight = InFlight::new();
    let requested = pieces(c, |piece| {
        // Queried for each piece: the place may have changed during a wait outside the gate.
        let link = match cx.place(device) {
            Place::Local { exec, .. } => {
                device.record_error(direct(exec, &piece, stage_stream(stream, exec.bindings())?))?;
                return cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes()).map(drop);
            }
            Place::Remote { link, .. } => link.clone(),
        };
        let (to, is_registered) = (rect::destination_rows(&piece), blocks::is_registered(piece.dst.host));
        let op = CopyBox { copy: Copy3 { dst: CopyEnd { memory: HOST, ..CopyEnd::default() }, ..piece }, stream };
        let body = encoding::encode(&op);
        if until == Until::Submitted && pinned {
            let answer = device.record_error(Place::send_into(&link, ops::id::COPY_BOX_OUT, &[&body], to, is_registered))?;
            faults::at(Point::CopyOut);
            // Answers arrive in stream order: a later wait for the stream finds the bytes landed (docs/formats.md).
            let to = piece.dst.host..piece.dst.host + span(&piece.dst, &piece);
            landing::note(device, stream, to, landing::Arrival::Reply(answer));
            return Ok(());
        }
        let waiting = device.record_error(Place::begin_into(&link, ops::id::COPY_BOX_OUT, &[&body], to, is_registered))?;
        faults::at(Point::CopyOut);
        in_flight.add(waiting, |before| cx.wait_for(device, before).map(drop))
    });
    in_flight.end(requested, |last| cx.wait_for(device, last).map(drop))
}

/// Splits a copy into pieces of rows of one slice, of at most [`PIECE`] bytes, in order.
fn pieces(c: &Copy3, mut each: impl FnMut(Copy3) -> Result<(), Code>) -> Result<(), Code> {
    let at_once = (PIECE / c.width).max(1);
    let step = |e: &CopyEnd, row: u64, slice: u64| match e.memory {
        ARRAY => CopyEnd { y: e.y + row, z: e.z + slice, ..*e },
        DEVICE => CopyEnd { device: e.device + (slice * e.height + row) * e.pitch, ..*e },
        _ => CopyEnd { host: e.host + (slice * e.height + row) * e.pitch, ..*e },
    };
    for slice in 0..c.depth {
        let mut row = 0;
        while row < c.rows {
            let rows = at_once.min(c.rows - row);
            each(Copy3 { dst: step(&c.dst, row, slice), src: step(&c.src, row, slice), width: c.width, rows, depth: 1 })?;
            row += rows;
        }
    }
    Ok(())
}

/// A copy by the driver of this process, with the program's own pointers.
#[expect(unsafe_code, reason = "the driver of this process copies from and to the program's memory")]
fn direct(exec: &executor::Executor, c: &Copy3, stream: u64) -> Result<(), Code> {
    // SAFETY: the program's pointers and sizes, checked against what is known of them.
    unsafe { exec.copy_box_here(c, stream) }
}

fn line(cx: &mut CallContext, dst: CopyEnd, src: CopyEnd, bytes: usize, stream: u64, until: Until) -> Result<(), Code> {
    if bytes == 0 {
        // The driver does not check the array then (measured, 580 driver).
        return cx.device()?.check();
    }
    copy(cx, &Copy3 { src, dst, width: bytes as u64, rows: 1, depth: 1 }, stream, until)
}

fn of_array(array: sys::CUarray, at: usize) -> CopyEnd {
    CopyEnd { memory: ARRAY, array: array as u64, x: at as u64, ..CopyEnd::default() }
}

fn of_host(at: *const c_void) -> CopyEnd {
    CopyEnd { memory: HOST, host: at as u64, ..CopyEnd::default() }
}

fn of_device(at: sys::CUdeviceptr) -> CopyEnd {
    CopyEnd { memory: DEVICE, device: at, ..CopyEnd::default() }
}

pub(crate) fn cuMemcpyDtoA_v2(
    cx: &mut CallContext,
    to: sys::CUarray,
    at: usize,
    from: sys::CUdeviceptr,
    n: usize,
) -> Result<(), Code> {
    line(cx, of_array(to, at), of_device(from), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyAtoD_v2(
    cx: &mut CallContext,
    to: sys::CUdeviceptr,
    from: sys::CUarray,
    at: usize,
    n: usize,
) -> Result<(), Code> {
    line(cx, of_device(to), of_array(from, at), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyHtoA_v2(
    cx: &mut CallContext,
    to: sys::CUarray,
    at: usize,
    from: *const c_void,
    n: usize,
) -> Result<(), Code> {
    line(cx, of_array(to, at), of_host(from), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyAtoH_v2(
    cx: &mut CallContext,
    to: *mut c_void,
    from: sys::CUarray,
    at: usize,
    n: usize,
) -> Result<(), Code> {
    line(cx, of_host(to), of_array(from, at), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyAtoA_v2(
    cx: &mut CallContext,
    to: sys::CUarray,
    to_at: usize,
    from: sys::CUarray,
    from_at: usize,
    n: usize,
) -> Result<(), Code> {
    line(cx, of_array(to, to_at), of_array(from, from_at), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyHtoAAsync_v2(
    cx: &mut CallContext,
    to: sys::CUarray,
    at: usize,
    from: *const c_void,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    line(cx, of_array(to, at), of_host(from), n, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyAtoHAsync_v2(
    cx: &mut CallContext,
    to: *mut c_void,
    from: sys::CUarray,
    at: usize,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    line(cx, of_host(to), of_array(from, at), n, stream as u64, Until::Submitted)
}

#[cfg(test)]
mod tests;
