//! Arrays, and texture and surface objects.
//!
//! **Numbers of objects.** Kernels receive them by value, so an object that is created again must get its former number. The driver
//! assigns the lowest free number, to textures and surfaces alike, but a number that was just released only after a while
//! (tests/gpu/driver/textures.c). Additional objects are created as fillers until the right number appears; if only higher ones appear, the
//! driver is given time. If the number does not appear, another one is returned, which ends the replay.
//!
//! **Contents.** The contents of an array are accessible only by copies, so moves use copies too: each array has a window of numbers for
//! its bytes in packed order (`cuda_api::array`), and reads and writes of a window become copies of boxes. Arrays without memory of their
//! own have none: the contents of their tiles belong to the memory to which these are mapped (`tiles.rs`).

use super::checker::HostEnds;
use super::state::arrays::{Made, Window};
use super::{ContextState, Executor, short};
use crate::pending::{Mark, Pending};
use crate::pools::{Buffer, PIECE};
use cuda_api::arg::stage_stream;
use cuda_api::array::{
    ARRAY, ArrayMake, CopyBox, CopyBoxLate, DEVICE, HOST, Layout, ObjectMake, Sampling, WITHOUT_MEMORY, parts,
};
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_api::lock::lock;
use cuda_api::ops::TensorMapIm2col;
use cuda_api::wire::Wire;
use cuda_api::work::{Copy3, CopyEnd};
use std::time::{Duration, Instant};

/// Maximum number of fillers in the search for a number.
const MAX_FILLERS: usize = 1 << 16;
/// How long to wait until the driver frees a number. It takes milliseconds after the GPU has become idle, and more than half a second on
/// one that nine other processes use (observed, 580 driver).
const FREE_AGAIN: Duration = Duration::from_secs(3);

impl Executor {
    /// Creates an array; returns its layout if it has no memory.
    pub(super) fn make_array(&self, mut body: &[u8]) -> Result<Option<Layout>, Code> {
        let op = ArrayMake::get(&mut body).map_err(short)?;
        let mipmapped = !op.levels.is_empty();
        let right = |handle: u64, wanted| kind(handle) == Some(wanted);
        let handles = right(op.handle, if mipmapped { Kind::Mipmap } else { Kind::Array });
        if !handles || op.levels.len() > 64 || op.levels.iter().any(|l| !right(*l, Kind::Array)) {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        let count = op.levels.len() as u32;
        let shapes: Vec<_> = (0..count.max(1)).map(|n| if mipmapped { op.shape.level(n) } else { op.shape }).collect();
        let bytes = shapes.iter().try_fold(0u64, |sum, s| sum.checked_add(s.bytes()?).ok_or(code::ERROR_INVALID_VALUE))?;
        let shapes = shapes.iter().map(|s| s.rows()).collect::<Result<Vec<_>, Code>>()?;
        let mut arrays = lock(&self.arrays);
        let has_memory = op.shape.flags & WITHOUT_MEMORY == 0;
        if arrays.made.contains_key(&op.handle) || has_memory && !arrays.has_room(op.window, bytes) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let held = has_memory.then(|| self.memory.hold(bytes)).transpose()?;
        let live = self.gpu.make_array(&op.shape, mipmapped.then_some(count))?;
        let seen: Result<(Vec<u64>, Option<Layout>), Code> = (|| {
            let levels: Result<Vec<u64>, Code> =
                if mipmapped { (0..count).map(|n| self.gpu.level(live, n)).collect() } else { Ok(vec![live]) };
            let layout = if has_memory { None } else { Some(self.gpu.layout(live, mipmapped, op.shape.flags)?) };
            Ok((levels?, layout))
        })();
        let (levels, layout) = seen.inspect_err(|_| {
            // The first error is reported.
            let _ = self.gpu.destroy_array(live, mipmapped);
        })?;
        self.bindings.bind(op.handle, live);
        for (handle, level) in op.levels.iter().zip(&levels) {
            self.bindings.bind(*handle, *level);
        }
        if has_memory {
            arrays.windows.insert(op.window, Window { bytes, arrays: levels, shapes });
        }
        arrays.made.insert(op.handle, Made { window: op.window, live, levels: op.levels, _held: held });
        Ok(layout)
    }

    pub(super) fn end_array(&self, life: &ContextState, handle: u64) -> Result<(), Code> {
        let _going = self.no_transfers(life)?;
        let mut arrays = lock(&self.arrays);
        let made = arrays.made.get(&handle).ok_or(code::ERROR_INVALID_HANDLE)?;
        self.gpu.destroy_array(made.live, kind(handle) == Some(Kind::Mipmap))?;
        if let Some(made) = arrays.made.remove(&handle) {
            arrays.windows.remove(&made.window);
            made.levels.iter().chain([&handle]).for_each(|h| self.bindings.unbind(*h));
        }
        Ok(())
    }

    /// Creates an object; returns its number, and for a texture the sampling as the driver reports it.
    pub(super) fn make_object(&self, mut body: &[u8]) -> Result<(u64, Option<Sampling>), Code> {
        let op = ObjectMake::get(&mut body).map_err(short)?;
        if kind(op.handle) != Some(Kind::Object) {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        let resource = self.check_resource(&op.resource)?;
        let surface = op.sampling.is_none();
        let make = || self.gpu.make_object(&resource, op.sampling.as_ref(), op.view.as_ref());
        let mut number = make()?;
        let mut fillers = Vec::new();
        while op.number != 0 && number != op.number && fillers.len() < MAX_FILLERS {
            fillers.push(number);
            if number > op.number {
                // One deadline for all: a number that was not freed for one object will not be for the next.
                if Instant::now() > *lock(&self.arrays).until.get_or_insert_with(|| Instant::now() + FREE_AGAIN) {
                    break;
                }
                self.gpu.synchronize()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            let Ok(next) = make() else { break };
            number = next;
        }
        let found = op.number == 0 || number == op.number;
        if !found && fillers.last() != Some(&number) {
            fillers.push(number);
        }
        for filler in fillers {
            self.gpu.destroy_object(filler, surface)?;
        }
        if found {
            let mut arrays = lock(&self.arrays);
            arrays.until = None;
            arrays.objects.insert(op.handle, (number, surface));
        }
        // A number other than the requested one is unused: the replayer sees that it differs.
        let sampling = if surface || !found { None } else { Some(self.gpu.sampling(number)?) };
        Ok((number, sampling))
    }

    pub(super) fn end_object(&self, handle: u64) -> Result<(), Code> {
        let (number, surface) = *lock(&self.arrays).objects.get(&handle).ok_or(code::ERROR_INVALID_HANDLE)?;
        self.gpu.destroy_object(number, surface)?;
        lock(&self.arrays).objects.remove(&handle);
        Ok(())
    }

    /// Notes that arrays and objects were destroyed with their context.
    pub(super) fn arrays_ended(&self) {
        let arrays = std::mem::take(&mut *lock(&self.arrays));
        for pool in arrays.pools.into_values() {
            // Fails only if the driver has already released the memory.
            let _ = self.gpu.release_memory(pool.memory);
        }
    }

    /// Destroys all arrays and objects before the context is released.
    pub(super) fn end_arrays(&self) {
        let arrays = std::mem::take(&mut *lock(&self.arrays));
        // Fails only if the driver has already destroyed them.
        for (number, surface) in arrays.objects.into_values() {
            let _ = self.gpu.destroy_object(number, surface);
        }
        for (handle, made) in arrays.made {
            let _ = self.gpu.destroy_array(made.live, kind(handle) == Some(Kind::Mipmap));
        }
        for pool in arrays.pools.into_values() {
            let _ = pool.end(&self.gpu);
        }
    }

    /// Windows of all arrays: first number, bytes.
    pub fn arrays(&self) -> Vec<(u64, u64)> {
        lock(&self.arrays).windows.iter().map(|(at, w)| (*at, w.bytes)).collect()
    }

    /// The window that contains a range.
    pub(super) fn window_of(&self, at: u64, bytes: u64) -> Option<(u64, u64)> {
        let arrays = lock(&self.arrays);
        let (&start, w) = arrays.windows.range(..=at).next_back()?;
        (at.checked_add(bytes)? <= start + w.bytes).then_some((start, w.bytes))
    }

    /// Copies a range of a window from (`out`) or to host memory.
    ///
    /// # Safety
    /// `host` has so many bytes until the copies are complete.
    pub(super) unsafe fn copy_window(&self, at: u64, host: u64, bytes: u64, out: bool, stream: u64) -> Result<(), Code> {
        let arrays = lock(&self.arrays);
        let (start, window) = arrays.windows.range(..=at).next_back().ok_or(code::ERROR_INVALID_VALUE)?;
        let skip = at - start;
        if skip.checked_add(bytes).is_none_or(|end| end > window.bytes) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        for part in parts(&window.shapes, skip, bytes) {
            let ([x, y, z], [width, rows, depth]) = (part.from, part.size);
            let array = CopyEnd { memory: ARRAY, array: window.arrays[part.level], x, y, z, ..CopyEnd::default() };
            let line = CopyEnd { memory: HOST, host: host + part.at, pitch: width, height: rows, ..CopyEnd::default() };
            let (src, dst) = if out { (array, line) } else { (line, array) };
            // SAFETY: the part lies inside the bytes that the caller guarantees.
            unsafe { self.gpu.copy_3d(&Copy3 { src, dst, width, rows, depth }, stream) }?;
        }
        Ok(())
    }

    /// Makes a copy with pointers of this process, in a stream of the driver.
    ///
    /// # Errors
    /// The driver's error, or `DEINITIALIZED` if the executor is closed.
    ///
    /// # Safety
    /// Host ends of the copy are valid until it is complete.
    pub unsafe fn copy_box_here(&self, c: &Copy3, stream: u64) -> Result<(), Code> {
        self.make_current()?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.gpu.copy_3d(&self.check_copy(c, HostEnds::None)?, stream) }
    }

    /// The copy of an operation, checked: an end that is not host memory is an array or device memory. With the driver's arrays, and the stream
    /// as encoded.
    fn copy_box_op(&self, body: &mut &[u8], host: [bool; 2], ends: HostEnds) -> Result<(Copy3, u64), Code> {
        let op = CopyBox::get(body).map_err(short)?;
        let wanted = |e: &CopyEnd, host| if host { e.memory == HOST } else { matches!(e.memory, ARRAY | DEVICE) };
        if !wanted(&op.copy.src, host[0]) || !wanted(&op.copy.dst, host[1]) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        Ok((self.check_copy(&op.copy, ends)?, op.stream))
    }

    pub(super) fn copy_box(&self, body: &[u8]) -> Result<(), Code> {
        let ends = CopyBox::get(&mut { body }).map_err(short)?.copy;
        let host = [ends.src.memory == HOST, ends.dst.memory == HOST];
        let (copy, stream) = self.copy_box_op(&mut { body }, host, HostEnds::Pinned)?;
        let stream = stage_stream(stream, &self.bindings)?;
        if host == [true, true] {
            // The driver would wait for the stream.
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        if host[0] && copy.rows == 1 && copy.depth == 1 {
            self.await_turn(stream, copy.width)?;
        }
        // SAFETY: a host end is pinned memory of the job, mapped until the job unregisters it, which waits for the copies of it.
        unsafe { self.gpu.copy_3d(&copy, stream) }
    }

    pub(super) fn copy_box_in(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let (mut copy, stream) = self.copy_box_op(&mut body, [true, false], HostEnds::Staged)?;
        let (bytes, stream) = (packed(&copy)?, self.stream_or_lane(life, stream)?);
        if body.len() != bytes {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let mut buffer = life.pools.buffer(bytes, false)?;
        buffer.bytes_mut()[..bytes].copy_from_slice(body);
        copy.src = line(buffer.as_ptr(), &copy);
        self.copy_box_from(life, &copy, buffer, stream)
    }

    /// The same with bytes that the job sends when the stream is there.
    pub(super) fn copy_box_late(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let CopyBoxLate { token, to } = CopyBoxLate::get(&mut { body }).map_err(short)?;
        body = body.get(size_of::<u64>()..).unwrap_or_default();
        let (mut copy, stream) = self.copy_box_op(&mut body, [true, false], HostEnds::Staged)?;
        let (bytes, stream) = (packed(&copy)?, stage_stream(stream, &self.bindings)?);
        let buffer = life.pools.late_buffer(to.stream, bytes)?;
        copy.src = line(buffer.as_ptr(), &copy);
        let room = (buffer.as_ptr() as usize, bytes);
        let pending = match self.hold_for_bytes(life, (to.stream, stream), token, room) {
            Ok(pending) => pending,
            Err(rc) => {
                life.pools.give_back([buffer]);
                return Err(rc);
            }
        };
        self.copy_box_from(life, &copy, buffer, stream).inspect_err(|_| self.holds.give_up(token))?;
        Ok(Some(pending))
    }

    /// Copies from a buffer, which is free again when the copy is complete.
    fn copy_box_from(&self, life: &ContextState, copy: &Copy3, buffer: Buffer, stream: u64) -> Result<(), Code> {
        // SAFETY: the buffer is not reused until the event below.
        match unsafe { self.gpu.copy_3d(copy, stream) }.and_then(|()| life.pools.mark(stream)) {
            Ok(event) => life.pools.fly(event, vec![buffer]),
            Err(rc) => {
                // Nothing was submitted, or the context has failed and nothing runs.
                life.pools.give_back([buffer]);
                return Err(rc);
            }
        }
        Ok(())
    }

    pub(super) fn copy_box_out(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let (mut copy, stream) = self.copy_box_op(&mut body, [false, true], HostEnds::Staged)?;
        let (bytes, stream) = (packed(&copy)?, self.stream_or_lane(life, stream)?);
        let mut pending = self.pending(life, Vec::new());
        let buffer = life.pools.buffer(bytes, true)?;
        copy.dst = line(buffer.as_ptr(), &copy);
        pending.bytes.push((buffer, bytes));
        // SAFETY: the buffer belongs to the answer until the mark below.
        let submitted = unsafe { self.gpu.copy_3d(&copy, stream) };
        let mark = life.pools.mark(stream);
        pending.marks.extend(mark.ok().map(Mark::Own));
        submitted.and(mark.map(|_| Some(pending)))
    }

    pub(super) fn tensor_map_im2col(&self, mut body: &[u8], reply: &mut Vec<u8>) -> Result<(), Code> {
        let op = TensorMapIm2col::get(&mut body).map_err(short)?;
        self.check_tensor(op.address)?;
        self.gpu.tensor_map_im2col(&op)?.put(reply);
        Ok(())
    }

    pub(super) fn replace_tensor_map_address(&self, mut body: &[u8], reply: &mut Vec<u8>) -> Result<(), Code> {
        let (map, address) = Wire::get(&mut body).map_err(short)?;
        self.check_tensor(address)?;
        self.gpu.replace_tensor_map_address(map, address)?.put(reply);
        Ok(())
    }
}

/// Number of packed bytes of a copy; the sender must split a copy that does not fit in a buffer.
fn packed(c: &Copy3) -> Result<usize, Code> {
    let bytes = c.width.checked_mul(c.rows).and_then(|n| n.checked_mul(c.depth));
    bytes.filter(|n| (1..=PIECE as u64).contains(n)).map(|n| n as usize).ok_or(code::ERROR_INVALID_VALUE)
}

/// The end of a copy that is a buffer.
fn line(at: *mut u8, c: &Copy3) -> CopyEnd {
    CopyEnd { memory: HOST, host: at as u64, pitch: c.width, height: c.rows, ..CopyEnd::default() }
}
