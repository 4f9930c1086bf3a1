//! Copies and fills: some thirty driver functions are reduced to one rectangle each, from host or device to host or device. The functions
//! themselves are in [`calls`], [`batch`] and [`fill`]; large in-process copies in [`bulk`].

use crate::array_copy;
use crate::enter::{CallContext, encoded};
use crate::graph;
use crate::host_function::Read;
use crate::job::Device;
use crate::memory::{self, attributes, is_device};
use crate::place::{Place, Waiting, lost};
use crate::{cross_device, host_function, host_memory, host_waiting, ipc, landing, peer, stream_memory, variables};
use cuda_api::arg::{Capture, LEGACY, stage_stream};
use cuda_api::array::ARRAY;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, CopyDevice, CopyIn, CopyInLate, CopyOut, Fill};
use cuda_api::sys;
use cuda_api::wire::Wire;
use cuda_api::work::{Copy3, CopyEnd, Work};
use executor::Direct;
use faults::Point;
use rcuda_forwarder::Landing;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::Ordering;

mod batch;
mod bulk;
mod calls;
mod fill;
pub(crate) use batch::*;
pub(crate) use calls::*;
pub(crate) use fill::*;

/// Maximum size of one operation in bytes: larger copies are split into several, which a stream keeps in order.
const PIECE: u64 = 4 << 20;
/// The longest copy that is sent to an idle stream without a wait: a place processes no other call while it makes the copy.
const SHORT: u64 = 64 << 10;

/// Copies to the device up to this size are searched for addresses of pinned memory at any place; for a place that does not share such
/// memory, all copies are.
const TABLE: u64 = 16 << 10;

/// Above all addresses of host and device.
const END_OF_ADDRESSES: u64 = 1 << 57;

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) device: bool,
}

impl End {
    fn at(address: u64, pitch: u64) -> End {
        End { address, pitch, device: is_device(address) }
    }

    fn host(p: *const c_void, pitch: u64) -> End {
        End { address: p as u64, pitch, device: false }
    }

    /// A device address; an address of pinned host memory is recognized.
    fn device(address: u64, pitch: u64) -> End {
        End { address, pitch, device: is_device(address) || host_memory::find(address).is_none() }
    }

    fn is_pinned(&self, r: &Rect) -> Result<bool, Code> {
        Ok(host_memory::is_pinned(self.address, self.span(r.width, r.rows)?))
    }

    /// Number of bytes from the first to the last; an error if the addresses would overflow.
    fn span(&self, width: u64, rows: u64) -> Result<u64, Code> {
        let bytes = (rows - 1).checked_mul(self.pitch).and_then(|b| b.checked_add(width));
        let inside = |bytes: &u64| self.address.checked_add(*bytes).is_some_and(|end| end <= END_OF_ADDRESSES);
        bytes.filter(inside).ok_or(code::ERROR_INVALID_VALUE)
    }
}

/// A copy of `rows` rows of `width` bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rect {
    pub(crate) dst: End,
    pub(crate) src: End,
    pub(crate) width: u64,
    pub(crate) rows: u64,
}

impl Rect {
    /// Its parts of at most [`PIECE`] bytes, in order.
    pub(crate) fn pieces(&self) -> Vec<Rect> {
        let mut all = Vec::new();
        // Collecting the pieces cannot fail.
        let _ = pieces(*self, |piece| {
            all.push(piece);
            Ok(())
        });
        all
    }

    /// Returns whether a worker has the host end, so that its driver makes the copy by itself, in stream order.
    fn reached_from_afar(&self, place: &Place) -> Result<bool, Code> {
        if let Place::Local { .. } = place {
            return Ok(false);
        }
        let host = if self.src.device { self.dst } else { self.src };
        Ok(host_memory::is_reached(place, host.address, host.span(self.width, self.rows)?))
    }

    /// The copy between addresses that the place can access.
    fn within_reach(&self, stream: u64) -> CopyDevice {
        CopyDevice {
            dst: self.dst.address,
            dst_pitch: self.dst.pitch,
            src: self.src.address,
            src_pitch: self.src.pitch,
            width: self.width,
            rows: self.rows,
            stream,
        }
    }
}

/// When the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// When the bytes are where the caller may use them.
    Done,
    /// When the source may be changed, if it is pageable; at once if it is pinned.
    Submitted,
}

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

const HOST: u32 = sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32;
/// `CU_MEMORYTYPE_DEVICE`
pub(crate) const DEVICE: u32 = sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32;

/// Both ends of a described copy from their first byte on, with the number of bytes that they span; destination first. `None` for arrays.
pub(crate) fn ends(c: &Copy3) -> Result<[Option<(End, u64)>; 2], Code> {
    let bad = code::ERROR_INVALID_VALUE;
    let one = |e: &CopyEnd| {
        if e.memory == ARRAY {
            return Ok(None);
        }
        let pitch = if e.pitch == 0 { c.width } else { e.pitch };
        let height = if e.height == 0 { c.rows } else { e.height };
        let at = |x: u64, y: u64, z: u64| {
            let row = z.checked_mul(height).and_then(|rows| rows.checked_add(y))?;
            row.checked_mul(pitch)?.checked_add(x)
        };
        if e.lod != 0 || e.x.checked_add(c.width).is_none_or(|end| c.rows.saturating_mul(c.depth) > 1 && end > pitch) {
            return Err(bad);
        }
        let end = described(e.memory, e.host as *const c_void, e.device, pitch as usize, at(e.x, e.y, e.z).ok_or(bad)?)?;
        let last = at(c.width, c.rows.saturating_sub(1), c.depth.saturating_sub(1)).ok_or(bad)?;
        if end.address.checked_add(last).is_none_or(|end| end > END_OF_ADDRESSES) {
            return Err(bad);
        }
        Ok(Some((end, last)))
    };
    Ok([one(&c.dst)?, one(&c.src)?])
}

/// One end of a 2-D or 3-D copy, from the fields that its memory type selects.
fn described(kind: u32, host: *const c_void, device: u64, pitch: usize, offset: u64) -> Result<End, Code> {
    use sys::CUmemorytype_enum as M;
    let pitch = pitch as u64;
    let end = if kind == M::CU_MEMORYTYPE_HOST as u32 {
        End::host(host, pitch)
    } else if kind == M::CU_MEMORYTYPE_DEVICE as u32 {
        End::device(device, pitch)
    } else if kind == M::CU_MEMORYTYPE_UNIFIED as u32 {
        End::at(device, pitch)
    } else {
        return Err(code::ERROR_NOT_SUPPORTED);
    };
    Ok(End { address: end.address.checked_add(offset).ok_or(code::ERROR_INVALID_VALUE)?, ..end })
}

/// Checks both ends of a described copy on a device.
pub(crate) fn check_ends(device: &Device, c: &Copy3) -> Result<(), Code> {
    if c.width == 0 || c.rows == 0 || c.depth == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    for (end, memory) in [&c.dst, &c.src].into_iter().zip(ends(c)?) {
        match memory {
            None => array_copy::check(device, end, c)?,
            Some((end, span)) if end.device => drop(device.check_range(end.address, span)?),
            Some((end, _)) if end.address == 0 => return Err(code::ERROR_INVALID_VALUE),
            Some(_) => {}
        }
    }
    Ok(())
}

/// A described copy with explicit memory kinds and with both ends at their first byte; for arrays with the fields that count.
pub(crate) fn plain(c: &Copy3) -> Copy3 {
    let Ok([dst, src]) = ends(c) else { return *c };
    let one = |memory: Option<(End, u64)>, was: &CopyEnd| {
        let Some((e, _)) = memory else {
            return CopyEnd { memory: ARRAY, array: was.array, x: was.x, y: was.y, z: was.z, ..CopyEnd::default() };
        };
        let height = if was.height == 0 { c.rows } else { was.height };
        let (host, device) = if e.device { (0, e.address) } else { (e.address, 0) };
        let pitch = if e.pitch == 0 { c.width } else { e.pitch };
        CopyEnd { memory: if e.device { DEVICE } else { HOST }, host, device, pitch, height, ..CopyEnd::default() }
    };
    Copy3 { dst: one(dst, &c.dst), src: one(src, &c.src), ..*c }
}

/// The rows of a host end of a [`plain`] copy, in order.
fn rows(c: &Copy3, e: &CopyEnd) -> impl Iterator<Item = u64> {
    let (first, pitch, height) = (e.host, e.pitch, e.height);
    (0..c.depth).flat_map(move |z| (0..c.rows).map(move |y| (z, y))).map(move |(z, y)| first + (z * height + y) * pitch)
}

/// Returns whether a [`plain`] copy takes pageable memory to the device: it is read when the graph is launched (docs/measurements.md).
pub(crate) fn pageable(c: &Copy3) -> bool {
    let from = source(c);
    c.src.memory == HOST && c.dst.memory != HOST && !host_memory::is_pinned(from.start, from.end - from.start)
}

/// The range from the first to the last byte of the host memory that a [`plain`] copy reads.
pub(crate) fn source(c: &Copy3) -> Range<u64> {
    let span = ((c.depth - 1) * c.src.height + c.rows - 1) * c.src.pitch + c.width;
    c.src.host..c.src.host + span
}

/// The range from the first to the last byte of the host memory that a [`plain`] copy writes.
pub(crate) fn destination(c: &Copy3) -> Range<u64> {
    let span = ((c.depth - 1) * c.dst.height + c.rows - 1) * c.dst.pitch + c.width;
    c.dst.host..c.dst.host + span
}

/// Notes the addresses of pinned memory among the bytes that a [`plain`] copy from the host is about to read, if they are few. The bytes
/// of a graph's copy are searched again when its node is reached, but then a stream waits for the round trip.
pub(crate) fn note_node(cx: &CallContext, c: &Copy3) -> Result<(), Code> {
    if c.dst.memory == HOST || !host_memory::any_unmapped() || c.bytes().is_none_or(|n| n > TABLE) {
        return Ok(());
    }
    // SAFETY: the program keeps the memory of a graph's copies valid as long as it launches the graph.
    host_memory::note_copied(cx, 0, &unsafe { read_plain(c) })
}

/// Returns whether a [`plain`] copy from the device goes to host memory that the place has.
pub(crate) fn is_written_there(place: &Place, c: &Copy3) -> bool {
    let bytes = || destination(c).end - c.dst.host;
    c.src.memory != HOST && c.dst.memory == HOST && host_memory::is_reached(place, c.dst.host, bytes())
}

/// Returns whether a [`plain`] copy to the device comes from host memory that the place has.
pub(crate) fn is_read_there(place: &Place, c: &Copy3) -> bool {
    if c.src.memory != HOST || c.dst.memory == HOST {
        return false;
    }
    let from = source(c);
    host_memory::is_reached(place, from.start, from.end - from.start)
}

/// The bytes that a [`plain`] copy reads from the host.
///
/// # Safety
/// The source is readable.
pub(crate) unsafe fn read_plain(c: &Copy3) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((c.width * c.rows * c.depth) as usize);
    for row in rows(c, &c.src) {
        // SAFETY: guaranteed by the caller.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(row as *const u8, c.width as usize) });
    }
    bytes
}

/// Writes the bytes of a [`plain`] copy to the host; returns false if there are fewer than the copy needs.
///
/// # Safety
/// The destination is writable.
pub(crate) unsafe fn write_plain(c: &Copy3, bytes: &[u8]) -> bool {
    if c.bytes() != Some(bytes.len() as u64) {
        return false;
    }
    for (row, bytes) in rows(c, &c.dst).zip(bytes.chunks_exact(c.width as usize)) {
        // SAFETY: guaranteed by the caller.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), row as *mut u8, bytes.len()) };
    }
    true
}

/// The encoding of a value.
pub(crate) fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    value.put(&mut body);
    body
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
        let home = |e: End| if e.device { memory::home(cx.job, e.address) } else { None }.unwrap_or(device);
        let (from, to) = (home(r.src), home(r.dst));
        if from.index != device.index || to.index != device.index {
            return elsewhere(cx, r, (device, stream), (from, to), until);
        }
    }
    if cx.job.graphs.capturing() && graph::take(cx, device, stream, until == Until::Done, || node(device, r))? {
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
    if r.dst.device && !r.src.device && host_memory::any_unmapped() && r.width.saturating_mul(r.rows) <= TABLE {
        // SAFETY: the program guarantees that its source has these bytes.
        unsafe { packed(&r, |bytes| host_memory::note_copied(cx, r.dst.address, bytes)) }?;
    }
    match (r.src.device, r.dst.device) {
        (true, true) => {
            copy_device(cx, device, known, r, stream)?;
            let waits = until == Until::Done && [r.dst, r.src].iter().any(|e| attributes::waits(cx, e.address));
            if waits { cx.settle_stream(device, stream) } else { Ok(()) }
        }
        (true, false) | (false, true) if r.reached_from_afar(cx.place(device))? => {
            faults::at(if r.dst.device { Point::CopyIn } else { Point::CopyOut });
            landing::before_work(cx, device, stream)?;
            operate(cx, device, known, &r.within_reach(stream))?;
            if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) }
        }
        (false, true) => {
            // A synchronous copy reads the bytes when everything before it in the stream is complete.
            let pinned = r.src.is_pinned(&r)?;
            let changes = stream_memory::waited_here()
                || changes_later(cx, device, stream, r.src.address, r.src.span(r.width, r.rows)?)
                || pinned && host_waiting::holds(cx, device, stream);
            if until == Until::Done && changes {
                cx.settle_turn(device, stream)?;
            }
            if known && bulk::copy(cx, device, &r, stream, until)?
                || copy_here(cx, device, &r, stream, until)?
                || known && copy_at_rest(cx, device, &r, stream, until)?
            {
                return Ok(());
            }
            copy_in(cx, device, known, r, stream, until)?;
            // Later launches on any stream must find the bytes.
            if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) }
        }
        (true, false) => {
            if known && bulk::copy(cx, device, &r, stream, until)? || copy_here(cx, device, &r, stream, until)? {
                return Ok(());
            }
            copy_out(cx, device, r, stream, if known { until } else { Until::Done })
        }
        (false, false) => {
            if until == Until::Submitted && is_queued(&r)? {
                // SAFETY: the program guarantees that the source has this size.
                return host_function::copy_in_order(cx, device, stream, unsafe { HostCopy::later(&r) }?);
            }
            cx.settle_turn(device, stream)?;
            // SAFETY: both are host memory of the program, which guarantees this size.
            unsafe { HostCopy::of(&r).carry_out() };
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
    let managed = |e: End| host_memory::is_managed(e.address);
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
    graph::forbid_on(cx, device, stream)?;
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
        if r.dst.device && host_memory::any_unmapped() {
            // SAFETY: the program guarantees that its source has these bytes.
            unsafe { packed(&r, |bytes| host_memory::note_copied(cx, r.dst.address, bytes)) }?;
        }
        return cross_device::carry(cx, (device, stream), (r.src.device.then_some(from), r.dst.device.then_some(to)), r)
            .map(drop);
    }
    // Between pageable memory and a device whose context is not current: begins in stream order, and is complete when the call returns.
    cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes())?;
    cx.on(if r.src.device { from } else { to });
    copy(cx, r, LEGACY, Until::Done)
}

/// A copy that the device can make by itself.
pub(crate) fn copy_device(cx: &CallContext, device: &'static Device, known: bool, r: Rect, stream: u64) -> Result<(), Code> {
    landing::before_work(cx, device, stream)?;
    operate(cx, device, known, &r.within_reach(stream))
}

/// A copy inside host memory.
#[derive(Debug)]
pub(crate) struct HostCopy {
    rect: Rect,
    /// The source's bytes at the time of the call, if they count: the rectangle's source then refers to them.
    _taken: Vec<u8>,
}

impl HostCopy {
    fn of(r: &Rect) -> HostCopy {
        HostCopy { rect: *r, _taken: Vec::new() }
    }

    /// A copy that is carried out in stream order: pageable memory is read now, since the program may change it when the call returns.
    ///
    /// # Safety
    /// The source is valid memory.
    unsafe fn later(r: &Rect) -> Result<HostCopy, Code> {
        if r.src.is_pinned(r)? {
            return Ok(HostCopy::of(r));
        }
        // SAFETY: guaranteed by the caller.
        let taken = unsafe { gather(r.src.address, r.src.pitch, r.width, r.rows) };
        let src = End { address: taken.as_ptr() as u64, pitch: r.width, device: false };
        Ok(HostCopy { rect: Rect { src, ..*r }, _taken: taken })
    }

    /// # Safety
    /// Both ends are valid memory.
    pub(crate) unsafe fn carry_out(&self) {
        let r = &self.rect;
        for row in 0..r.rows {
            let (from, to) = (r.src.address + row * r.src.pitch, r.dst.address + row * r.dst.pitch);
            // SAFETY: guaranteed by the caller; the rows may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, r.width as usize) };
        }
    }
}

/// A fill of host memory.
#[derive(Debug)]
pub(crate) struct HostFill(Fill);

impl HostFill {
    /// # Safety
    /// It is valid memory.
    pub(crate) unsafe fn carry_out(&self) {
        let Fill { dst, pitch, value, element, width, rows, .. } = self.0;
        let value = value.to_le_bytes();
        let pattern = &value[..usize::from(element).min(value.len())];
        for row in 0..rows {
            let start = (dst + row * pitch) as *mut u8;
            // SAFETY: guaranteed by the caller.
            let row = unsafe { std::slice::from_raw_parts_mut(start, width as usize * pattern.len()) };
            row.chunks_exact_mut(pattern.len()).for_each(|one| one.copy_from_slice(pattern));
        }
    }
}

/// Returns whether earlier work that the next work of a stream may follow may still change these bytes of host memory: a host function
/// that has not run, a copy that has not landed, a stream that waits for another GPU, another process, or a word of memory (after which
/// the program itself may write them).
pub(crate) fn changes_later(cx: &CallContext, device: &'static Device, stream: u64, address: u64, bytes: u64) -> bool {
    host_function::may_come_before(cx, device, stream)
        || stream_memory::any_waiting()
        || cross_device::any()
        || ipc::any_waiting()
        || landing::any_to(address, bytes)
}

/// Sends work on memory that the recorder knows; for other addresses waits for the place's answer, since only the place can tell whether
/// they are valid.
pub(crate) fn submit(cx: &CallContext, device: &'static Device, known: bool, op: u16, parts: &[&[u8]]) -> Result<(), Code> {
    if known { cx.work(device, op, parts) } else { cx.ask(device, op, parts).map(drop) }
}

/// As [`submit`], for an operation that needs no encoding in this process.
fn operate<O: Direct>(cx: &CallContext, device: &'static Device, known: bool, op: &O) -> Result<(), Code> {
    if known || cx.place(device).in_process().is_some() {
        return cx.operate(device, op).map(drop);
    }
    encoded(op, |body| cx.ask(device, O::ID, &[body])).map(drop)
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
    let (Some(inwards), Some(outwards)) = (calls.cuMemcpyHtoD_v2, calls.cuMemcpyDtoH_v2) else { return Ok(false) };
    let bytes = r.width as usize;
    cx.wait_here(device, exec, |_| {
        // SAFETY: the program's pointers and size, checked against what is known of them.
        let rc = unsafe {
            if r.dst.device {
                inwards(r.dst.address, r.src.address as *const c_void, bytes)
            } else {
                outwards(r.dst.address as *mut c_void, r.src.address, bytes)
            }
        };
        if rc == code::SUCCESS { Ok(()) } else { Err(rc) }
    })?;
    Ok(true)
}

/// A short copy to the device while its stream and the default stream are known to be idle; returns false if they are not. No thread
/// waits for it: the place makes the copy before it processes any later call, which is all that the program can observe. So the streams
/// are idle after it, and a wait for them needs no round trip.
fn copy_at_rest(cx: &CallContext, device: &'static Device, r: &Rect, stream: u64, until: Until) -> Result<bool, Code> {
    let bytes = r.width.saturating_mul(r.rows);
    // An asynchronous copy from pinned memory is meant to overlap other work.
    if bytes > SHORT || (until == Until::Submitted && r.src.is_pinned(r)?) {
        return Ok(false);
    }
    let Place::Remote { link, .. } = cx.place(device) else { return Ok(false) };
    let at_rest = |stream| device.quiet_at(cx.place(device), Some(stream));
    // The work of other streams may follow that of the default stream, and vice versa.
    let Some(position) = at_rest(LEGACY).filter(|p| stream == LEGACY || at_rest(stream) == Some(*p)) else { return Ok(false) };
    let op = CopyIn { dst: r.dst.address, pitch: r.dst.pitch, width: r.width, rows: r.rows, stream };
    faults::at(Point::CopyIn);
    // SAFETY: the program guarantees that its source has these bytes.
    unsafe { packed(r, |bytes| note_many(cx, r, bytes)) }?;
    // SAFETY: as above.
    let sent =
        unsafe { packed(r, |bytes| link.send_at(position, ops::id::COPY_IN_AT_REST, &[&encode(&op), bytes])) }.map_err(lost);
    let span = device.record_error(sent)?;
    device.still_quiet(span.clone());
    if span.is_some() && until == Until::Done {
        // As in every call that waits; the text has arrived already.
        cx.show_text();
    }
    Ok(span.is_some())
}

fn copy_in(cx: &mut CallContext, device: &'static Device, known: bool, r: Rect, stream: u64, until: Until) -> Result<(), Code> {
    if let Place::Local { exec, .. } = cx.place(device) {
        let live = stage_stream(stream, exec.bindings())?;
        // Copies of pinned memory are left to the driver as natively, and managed memory is pinned here.
        if r.rows == 1 && (until == Until::Done || host_memory::is_managed(r.src.address)) {
            exec.make_current()?;
            device.record_error(exec.await_turn(live, r.width))?;
        }
        return device.record_error(direct_rect(exec, r, live));
    }
    landing::before_work(cx, device, stream)?;
    let span = r.src.span(r.width, r.rows)?;
    let late = until == Until::Submitted
        && host_memory::is_pinned(r.src.address, span)
        && (changes_later(cx, device, stream, r.src.address, span) || host_waiting::holds(cx, device, stream));
    if late && !known {
        // Only the place can tell whether the address is valid, and the answer to a late copy arrives late.
        cx.settle_stream(device, stream)?;
    }
    pieces(r, |piece| {
        let op = CopyIn { dst: piece.dst.address, pitch: piece.dst.pitch, width: piece.width, rows: piece.rows, stream };
        if late && known {
            if host_memory::any_unmapped() {
                // They are searched again when they are read, but then a stream waits for the round trip. SAFETY: the program guarantees
                // that its source has these bytes.
                unsafe { packed(&piece, |bytes| note_many(cx, &piece, bytes)) }?;
            }
            let body = |token| encode(&CopyInLate { token, to: op });
            return host_function::copy_late(cx, (device, stream), ops::id::COPY_IN_LATE, Read::of(&piece), body);
        }
        faults::at(Point::CopyIn);
        let send = |bytes: &[u8]| {
            note_many(cx, &piece, bytes)?;
            submit(cx, device, known, ops::id::COPY_IN, &[&encode(&op), bytes])
        };
        // SAFETY: the program guarantees that its source has these bytes.
        unsafe { packed(&piece, send) }
    })
}

/// Notes the addresses among more bytes than [`copy`] has searched.
fn note_many(cx: &CallContext, r: &Rect, bytes: &[u8]) -> Result<(), Code> {
    if bytes.len() as u64 > TABLE { host_memory::note_copied(cx, r.dst.address, bytes) } else { Ok(()) }
}

/// Passes the bytes of a rectangle of host memory, rows packed, to `use_them`; without a copy if they are contiguous.
///
/// # Safety
/// The source is readable.
unsafe fn packed<T>(r: &Rect, use_them: impl FnOnce(&[u8]) -> T) -> T {
    if r.rows == 1 || r.src.pitch == r.width {
        // SAFETY: guaranteed by the caller.
        return use_them(unsafe { std::slice::from_raw_parts(r.src.address as *const u8, (r.width * r.rows) as usize) });
    }
    // SAFETY: as above, row by row.
    use_them(&unsafe { gather(r.src.address, r.src.pitch, r.width, r.rows) })
}

/// The bytes of a rectangle of host memory, rows packed.
///
/// # Safety
/// The rectangle is readable.
pub(crate) unsafe fn gather(address: u64, pitch: u64, width: u64, rows: u64) -> Vec<u8> {
    let mut packed = Vec::with_capacity((width * rows) as usize);
    for row in 0..rows {
        // SAFETY: guaranteed by the caller.
        packed.extend_from_slice(unsafe { std::slice::from_raw_parts((address + row * pitch) as *const u8, width as usize) });
    }
    packed
}

/// Writes packed rows to host memory.
///
/// # Safety
/// The rectangle is writable.
pub(crate) unsafe fn scatter(bytes: &[u8], address: u64, pitch: u64, width: u64) {
    for (row, bytes) in (0..).zip(bytes.chunks_exact(width as usize)) {
        // SAFETY: guaranteed by the caller.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (address + row * pitch) as *mut u8, bytes.len()) };
    }
}

fn copy_out(cx: &mut CallContext, device: &'static Device, r: Rect, stream: u64, until: Until) -> Result<(), Code> {
    if let Place::Local { exec, .. } = cx.place(device) {
        let live = stage_stream(stream, exec.bindings())?;
        device.record_error(direct_rect(exec, r, live))?;
        // With the driver of this process a pageable destination is written when the call returns; otherwise waits for the stream.
        return if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) };
    }
    let pinned = r.dst.is_pinned(&r)?;
    let (mut last, mut epoch): (Option<Waiting>, _) = (None, 0);
    pieces(r, |piece| {
        // Queried for each piece: the place may have changed during a wait outside the gate.
        let link = match cx.place(device) {
            Place::Local { .. } => return copy_out(cx, device, piece, stream, Until::Done),
            Place::Remote { link, .. } => link.clone(),
        };
        let op = CopyOut { src: piece.src.address, pitch: piece.src.pitch, width: piece.width, rows: piece.rows, stream };
        let landing = Landing {
            ptr: piece.dst.address as *mut u8,
            pitch: piece.dst.pitch as usize,
            width: piece.width as usize,
            rows: piece.rows as usize,
        };
        if until == Until::Submitted && pinned {
            // SAFETY: the program keeps its destination valid until the copy is complete: CUDA's contract for it.
            let answer = device.record_error(unsafe { Place::send_into(&link, ops::id::COPY_OUT, &[&encode(&op)], landing) })?;
            faults::at(Point::CopyOut);
            // Answers arrive in stream order: a later wait for the stream finds the bytes landed (docs/formats.md).
            let end = piece.dst.address + piece.dst.span(piece.width, piece.rows)?;
            landing::note(device, stream, piece.dst.address..end, landing::Arrival::Reply(answer));
            return Ok(());
        }
        // SAFETY: as above.
        let waiting = device.record_error(unsafe { Place::begin_into(&link, ops::id::COPY_OUT, &[&encode(&op)], landing) })?;
        faults::at(Point::CopyOut);
        epoch = device.epoch.load(Ordering::Relaxed);
        last.replace(waiting).map_or(Ok(()), |before| cx.wait_for(device, before).map(drop))
    })?;
    last.map_or(Ok(()), |w| cx.wait_for_stream(device, w, epoch, stream))
}

/// Splits a rectangle into pieces of at most [`PIECE`] bytes, in order.
fn pieces(r: Rect, mut each: impl FnMut(Rect) -> Result<(), Code>) -> Result<(), Code> {
    let step = |e: End, bytes: u64| End { address: e.address + bytes, ..e };
    if r.width > PIECE {
        for row in 0..r.rows {
            let mut at = 0;
            while at < r.width {
                let width = PIECE.min(r.width - at);
                let (dst, src) = (step(r.dst, row * r.dst.pitch + at), step(r.src, row * r.src.pitch + at));
                each(Rect { dst, src, width, rows: 1 })?;
                at += width;
            }
        }
        return Ok(());
    }
    let at_once = (PIECE / r.width).max(1);
    let mut row = 0;
    while row < r.rows {
        let rows = at_once.min(r.rows - row);
        each(Rect { dst: step(r.dst, row * r.dst.pitch), src: step(r.src, row * r.src.pitch), rows, ..r })?;
        row += rows;
    }
    Ok(())
}

/// A copy by the driver of this process, with the program's own pointers.
fn direct_rect(exec: &executor::Executor, r: Rect, live: u64) -> Result<(), Code> {
    exec.make_current()?;
    let calls = &exec.driver().memory;
    let stream = live as sys::CUstream;
    let kind = |e: End| {
        use sys::CUmemorytype_enum as M;
        if e.device { M::CU_MEMORYTYPE_DEVICE } else { M::CU_MEMORYTYPE_HOST }
    };
    let missing = code::ERROR_NOT_FOUND;
    let rc = if r.rows == 1 && !r.src.device {
        let f = calls.cuMemcpyHtoDAsync_v2.ok_or(missing)?;
        // SAFETY: the program's pointers and size, checked against what is known of them.
        unsafe { f(r.dst.address, r.src.address as *const c_void, r.width as usize, stream) }
    } else if r.rows == 1 {
        let f = calls.cuMemcpyDtoHAsync_v2.ok_or(missing)?;
        // SAFETY: as above.
        unsafe { f(r.dst.address as *mut c_void, r.src.address, r.width as usize, stream) }
    } else {
        let f = calls.cuMemcpy2DAsync_v2.ok_or(missing)?;
        // Zero is not a memory type, so the struct is a valid value only when both types have been written.
        let mut c = std::mem::MaybeUninit::<sys::CUDA_MEMCPY2D>::zeroed();
        let p = c.as_mut_ptr();
        // SAFETY: `p` points at a local struct; all fields but the two written here are numbers and pointers, valid as zero.
        let c = unsafe {
            (&raw mut (*p).srcMemoryType).write(kind(r.src));
            (&raw mut (*p).dstMemoryType).write(kind(r.dst));
            c.assume_init_mut()
        };
        (c.srcHost, c.srcDevice, c.srcPitch) = (r.src.address as *const c_void, r.src.address, r.src.pitch as usize);
        (c.dstHost, c.dstDevice, c.dstPitch) = (r.dst.address as *mut c_void, r.dst.address, r.dst.pitch as usize);
        (c.WidthInBytes, c.Height) = (r.width as usize, r.rows as usize);
        // SAFETY: as above; the struct is only read during the call.
        unsafe { f(&raw const *c, stream) }
    };
    if rc == code::SUCCESS { Ok(()) } else { Err(rc) }
}

#[cfg(test)]
mod tests;
