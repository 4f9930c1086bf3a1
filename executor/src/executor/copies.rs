//! Launches, copies, fills.

use super::checker::span;
use super::{ContextState, Executor, short};
use crate::pending::{Mark, Pending};
use crate::pools::{Buffer, PIECE};
use crate::staging::Word;
use crate::turns;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, ATTRIBUTE_BYTES, CopyDevice, CopyIn, CopyOut, Launch, TensorMapTiled};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// The largest piece of a copy through page-locked buffers, in bytes.
const LARGEST: u64 = PIECE as u64;
/// The largest answer to one copy in bytes: a sender splits larger copies.
const LARGEST_OUT: u64 = 512 << 20;
/// Copies from pinned memory up to this size may be read by the driver before their turn: 4 KiB were, 40 000 bytes were not.
const READ_EARLY: u64 = 32 << 10;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
const COOPERATIVE: u32 = 2;

/// Words of an attribute: its id, padding, and the value that starts with the second word.
type Attribute = [u64; ATTRIBUTE_BYTES / 8];

/// The attributes of a message, checked, with the driver's handles.
pub(super) fn attributes(e: &Executor, head: &Launch, bytes: &[u8]) -> Result<Vec<Attribute>, Code> {
    let mut all = Vec::with_capacity(usize::from(head.attributes) + 1);
    for one in bytes.chunks_exact(ATTRIBUTE_BYTES) {
        let mut words: Attribute = [0; ATTRIBUTE_BYTES / 8];
        for (word, eight) in words.iter_mut().zip(one.chunks_exact(8)) {
            *word = u64::get(&mut { eight }).map_err(short)?;
        }
        e.check_attribute(words[0] as u32, &mut words[1..])?;
        all.push(words);
    }
    if head.cooperative {
        let mut words: Attribute = [0; ATTRIBUTE_BYTES / 8];
        (words[0], words[1]) = (u64::from(COOPERATIVE), 1);
        all.push(words);
    }
    Ok(all)
}

pub(super) fn config(head: &Launch, stream: u64, attributes: &mut [Attribute]) -> sys::CUlaunchConfig {
    let ([gx, gy, gz], [bx, by, bz]) = (head.grid, head.block);
    sys::CUlaunchConfig {
        gridDimX: gx,
        gridDimY: gy,
        gridDimZ: gz,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: head.shared,
        hStream: stream as sys::CUstream,
        attrs: attributes.as_mut_ptr().cast(),
        numAttrs: attributes.len() as u32,
    }
}

/// A rectangle's pieces of at most `piece` bytes, in order: offset of the first row from the start, offset in the packed bytes, bytes of a
/// row, rows.
fn pieces(piece: u64, pitch: u64, width: u64, rows: u64) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    let wide = width > piece;
    let per_row = width.div_ceil(piece).max(1);
    let at_once = if wide { 1 } else { (piece / width.max(1)).max(1) };
    let steps = if width == 0 || rows == 0 { 0 } else { rows.div_ceil(at_once) };
    (0..steps).flat_map(move |step| {
        let row = step * at_once;
        (0..per_row).map(move |part| {
            let skip = part * piece;
            let bytes = if wide { piece.min(width - skip) } else { width };
            (row * pitch + skip, row * width + skip, bytes, at_once.min(rows - row))
        })
    })
}

/// Number of bytes of a rectangle, unless it or the last address overflows.
pub(super) fn size(start: u64, pitch: u64, width: u64, rows: u64) -> Result<u64, Code> {
    let last = rows.saturating_sub(1).checked_mul(pitch).and_then(|n| n.checked_add(width)).and_then(|n| n.checked_add(start));
    last.and(width.checked_mul(rows)).ok_or(code::ERROR_INVALID_VALUE)
}

/// A two-dimensional copy without its ends.
pub(super) fn rectangle(width: u64, rows: u64) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        dstPitch: 0,
        WidthInBytes: width as usize,
        Height: rows as usize,
    }
}

impl Executor {
    pub(super) fn launch(&self, body: &[u8]) -> Result<(), Code> {
        let (head, attached, params) = ops::split_launch(body).map_err(short)?;
        let function = self.callable(head.function)?;
        let (bytes, mut padded) = (self.param_bytes(head.function, function)?, Vec::new());
        let params = if params.len() >= bytes {
            params
        } else {
            // A driver reads as many bytes as the function has: what lies behind the message is not the job's.
            padded.extend_from_slice(params);
            padded.resize(bytes, 0);
            &padded[..]
        };
        self.launches(head.function);
        let stream = stage_stream(head.stream, &self.bindings)?;
        if head.attributes == 0 && !head.cooperative {
            return self.gpu.launch(function, head.grid, head.block, head.shared, stream, params);
        }
        let mut list = attributes(self, &head, attached)?;
        // SAFETY: complete attributes; the handles in them are the driver's own, pointers in them are device addresses.
        unsafe { self.gpu.launch_ex(&config(&head, stream, &mut list), function, params) }
    }

    pub(super) fn clusters(&self, op: ops::Op, body: &[u8]) -> Result<i32, Code> {
        let (head, attached, _) = ops::split_launch(body).map_err(short)?;
        let function = self.callable(head.function)?;
        let mut list = attributes(self, &head, attached)?;
        let config = config(&head, stage_stream(head.stream, &self.bindings)?, &mut list);
        if op == ops::Op::MaxActiveClusters {
            // SAFETY: as in `launch`.
            unsafe { self.gpu.max_active_clusters(function, &config) }
        } else {
            // SAFETY: as in `launch`.
            unsafe { self.gpu.max_cluster_size(function, &config) }
        }
    }

    pub(super) fn tensor_map(&self, mut body: &[u8], reply: &mut Vec<u8>) -> Result<(), Code> {
        let op = TensorMapTiled::get(&mut body).map_err(short)?;
        self.check_tensor(op.address)?;
        let map = self.gpu.tensor_map(&op)?;
        map.opaque.iter().for_each(|word| word.put(reply));
        Ok(())
    }

    pub(super) fn copy_in(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let op = CopyIn::get(&mut body).map_err(short)?;
        if size(op.dst, op.pitch, op.width, op.rows)? != body.len() as u64 {
            return Err(code::ERROR_INVALID_VALUE);
        }
        self.check_pitched(op.dst, op.pitch, op.width, op.rows)?;
        let stream = self.stream_or_lane(life, op.stream)?;
        for (skip, packed, width, rows) in pieces(LARGEST, op.pitch, op.width, op.rows) {
            let bytes = (width * rows) as usize;
            let source = body.get(packed as usize..packed as usize + bytes).ok_or(code::ERROR_INVALID_VALUE)?;
            let mut buffer = life.pools.buffer(bytes, false)?;
            buffer.bytes_mut()[..bytes].copy_from_slice(source);
            self.copy_from(life, &op, (skip, width, rows), buffer, stream)?;
            self.end_piece(bytes as u64, (op.stream, stream))?;
        }
        Ok(())
    }

    /// Lets copies of other streams go on behind a piece of more than half of [`LARGEST`]: there may be many in a row, of this copy or the
    /// next. Rows nearly never fill a piece to the last byte.
    fn end_piece(&self, bytes: u64, stream: (u64, u64)) -> Result<(), Code> {
        if bytes > LARGEST / 2 && self.has_turns() { self.end_turn(stream) } else { Ok(()) }
    }

    /// Copies one piece of a copy to the device (offset of its first row, bytes of a row, rows) from a buffer, which is free again when
    /// the copy is complete.
    pub(super) fn copy_from(
        &self,
        life: &ContextState,
        to: &CopyIn,
        (skip, width, rows): (u64, u64, u64),
        buffer: Buffer,
        stream: u64,
    ) -> Result<(), Code> {
        let submitted = if rows == 1 {
            // SAFETY: the buffer is not reused until the event below.
            unsafe { self.gpu.copy_in(to.dst + skip, buffer.as_ptr(), width, stream) }
        } else {
            let mut c = rectangle(width, rows);
            c.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
            (c.srcHost, c.srcPitch) = (buffer.as_ptr().cast_const().cast(), width as usize);
            (c.dstDevice, c.dstPitch) = (to.dst + skip, to.pitch as usize);
            // SAFETY: as above.
            unsafe { self.gpu.copy_2d(&c, stream) }
        };
        match submitted.and_then(|()| life.pools.mark(stream)) {
            Ok(event) => life.pools.fly(event, vec![buffer]),
            Err(rc) => {
                // Nothing was submitted, or the context has failed and nothing runs.
                life.pools.give_back([buffer]);
                return Err(rc);
            }
        }
        Ok(())
    }

    pub(super) fn copy_out(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = CopyOut::get(&mut body).map_err(short)?;
        let total = size(op.src, op.pitch, op.width, op.rows)?;
        if total > LARGEST_OUT {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if total == 0 {
            return Ok(None);
        }
        self.check_pitched(op.src, op.pitch, op.width, op.rows)?;
        let stream = self.stream_or_lane(life, op.stream)?;
        let mut pending = self.pending(life, Vec::new());
        // All buffers are acquired first: once a part is submitted the rest must follow at once, in the stream's order.
        for (_, _, width, rows) in pieces(LARGEST, op.pitch, op.width, op.rows) {
            let bytes = (width * rows) as usize;
            pending.bytes.push((life.pools.buffer(bytes, true)?, bytes));
        }
        let mut parts = pieces(LARGEST, op.pitch, op.width, op.rows).zip(&pending.bytes);
        let submitted = parts.try_for_each(|((skip, _, width, rows), (buffer, bytes))| {
            if rows == 1 {
                // SAFETY: the buffer belongs to the answer until the mark below.
                unsafe { self.gpu.copy_out(buffer.as_ptr(), op.src + skip, width, stream) }?;
            } else {
                let mut c = rectangle(width, rows);
                c.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
                (c.dstHost, c.dstPitch) = (buffer.as_ptr().cast(), width as usize);
                (c.srcDevice, c.srcPitch) = (op.src + skip, op.pitch as usize);
                // SAFETY: as above.
                unsafe { self.gpu.copy_2d(&c, stream) }?;
            }
            self.end_piece(*bytes as u64, (op.stream, stream))
        });
        // Also after an error: the parts before it may be under way, and the mark shows when their buffers are free.
        let mark = life.pools.mark(stream);
        pending.marks.extend(mark.ok().map(Mark::Own));
        submitted.and(mark.map(|_| Some(pending)))
    }

    pub(super) fn copy_on_device(&self, op: &CopyDevice) -> Result<(), Code> {
        let to_host = self.is_host_for_driver(op.dst, span(op.dst, op.dst_pitch, op.width, op.rows)?)?;
        let from_host = self.is_host_for_driver(op.src, span(op.src, op.src_pitch, op.width, op.rows)?)?;
        if op.width == 0 || op.rows == 0 {
            return Ok(());
        }
        if !to_host {
            self.check_pitched(op.dst, op.dst_pitch, op.width, op.rows)?;
        }
        if !from_host {
            self.check_pitched(op.src, op.src_pitch, op.width, op.rows)?;
        }
        let stream = stage_stream(op.stream, &self.bindings)?;
        if to_host && from_host {
            // The driver would wait for the stream.
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        let bytes = op.width.saturating_mul(op.rows);
        let piece = if to_host || from_host { self.piece_bytes(bytes, stream) } else { None };
        let Some(piece) = piece else { return self.copy_within_reach(op, (to_host, from_host), stream) };
        let destinations = pieces(piece, op.dst_pitch, op.width, op.rows);
        for ((to, _, width, rows), (from, ..)) in destinations.zip(pieces(piece, op.src_pitch, op.width, op.rows)) {
            let part = CopyDevice { dst: op.dst + to, src: op.src + from, width, rows, ..*op };
            self.copy_within_reach(&part, (to_host, from_host), stream)?;
            self.end_turn((op.stream, stream))?;
        }
        Ok(())
    }

    /// A copy between checked ends, one of which is host memory at most.
    fn copy_within_reach(&self, op: &CopyDevice, (to_host, from_host): (bool, bool), stream: u64) -> Result<(), Code> {
        match (to_host, from_host) {
            _ if op.rows > 1 => {}
            (false, true) => {
                self.await_turn(stream, op.width)?;
                // SAFETY: pinned memory of the job, mapped until the job unregisters it, which waits for the copies of it.
                return unsafe { self.gpu.copy_in(op.dst, op.src as *const u8, op.width, stream) };
            }
            // SAFETY: as above.
            (true, _) => return unsafe { self.gpu.copy_out(op.dst as *mut u8, op.src, op.width, stream) },
            (false, false) => return self.gpu.copy_device(op.dst, op.src, op.width, stream),
        }
        let mut c = rectangle(op.width, op.rows);
        (c.srcPitch, c.dstPitch) = (op.src_pitch as usize, op.dst_pitch as usize);
        if from_host {
            (c.srcMemoryType, c.srcHost) = (sys::CUmemorytype::CU_MEMORYTYPE_HOST, op.src as *const c_void);
        } else {
            c.srcDevice = op.src;
        }
        if to_host {
            (c.dstMemoryType, c.dstHost) = (sys::CUmemorytype::CU_MEMORYTYPE_HOST, op.dst as *mut c_void);
        } else {
            c.dstDevice = op.dst;
        }
        // SAFETY: both ends are device memory, or pinned memory as above.
        unsafe { self.gpu.copy_2d(&c, stream) }
    }

    /// Bytes of the pieces of a copy between the device and host memory; `None` if it is made as a whole ([`crate::turns`]).
    fn piece_bytes(&self, bytes: u64, stream: u64) -> Option<u64> {
        if turns::is_large(bytes) && self.has_turns() { self.turns.piece(stream, bytes) } else { None }
    }

    /// Whether streams can take turns. Without page-locked memory for that copies are made as a whole.
    fn has_turns(&self) -> bool {
        if self.turns.has_words() {
            return true;
        }
        let Ok(at) = self.gpu.pin(turns::BYTES) else { return false };
        // SAFETY: a fresh mapping, zero at first, that `end_turns` unmaps.
        if !unsafe { self.turns.provide(at) } {
            self.gpu.unpin(at, turns::BYTES);
        }
        true
    }

    /// Lets copies of other streams go on behind what a stream (its handle and the driver's value) has been given.
    fn end_turn(&self, stream: (u64, u64)) -> Result<(), Code> {
        let write = self.turns.write(stream.1);
        write.map_or(Ok(()), |(at, value)| self.words(stream, &[Word::Write(at, value)]))
    }

    /// Frees what streams need for their turns, in a context in which no work is running any more.
    pub(super) fn end_turns(&self) {
        if let Some(at) = self.turns.end() {
            self.gpu.unpin(at, turns::BYTES);
        }
    }

    /// Must be called before a copy of `bytes` in one row from pinned memory, which a driver may otherwise read before its turn: if the
    /// stream itself is idle, the driver puts a few bytes into its commands at once, and neglects that the stream may have to follow the
    /// legacy default stream, or that one all others (observed with a 580 driver up to 4 KiB; recording an event with timing prevents it,
    /// recording one without does not always).
    ///
    /// # Errors
    /// The driver's error.
    pub fn await_turn(&self, stream: u64, bytes: u64) -> Result<(), Code> {
        if bytes > READ_EARLY {
            return Ok(());
        }
        self.gpu.record(self.turn.load(Ordering::Acquire), stream)
    }
}

#[cfg(test)]
mod tests;
