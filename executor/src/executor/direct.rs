//! Calls in the job's own process: the arguments of the program's threads are passed to the driver directly, without encoding.
//!
//! None of them takes a lock, except large copies. A concurrent reset or end of the context is a race of the program, as natively: the
//! driver refuses late calls.

use super::{Executor, copies};
use crate::bulk::{self, Bulk};
use crate::host_rows::HostRows;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::launch_args::KernelParams;
use cuda_api::ops::{CopyDevice, EventRecord, Fill, Launch, StreamWaitEvent, id};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::ffi::c_void;

/// An operation without an answer.
pub trait Direct: Wire {
    /// Its number in encoded form.
    const ID: u16;
    /// Carries it out; the context is current.
    fn carry_out(&self, e: &Executor) -> Result<(), Code>;
}

impl Direct for EventRecord {
    const ID: u16 = id::EVENT_RECORD;
    fn carry_out(&self, e: &Executor) -> Result<(), Code> {
        let (event, stream) = (e.bindings.live(Kind::Event, self.event)?, stage_stream(self.stream, &e.bindings)?);
        if self.flags == 0 { e.gpu.record(event, stream) } else { e.gpu.record_with_flags(event, stream, self.flags) }
    }
}

impl Direct for StreamWaitEvent {
    const ID: u16 = id::STREAM_WAIT_EVENT;
    fn carry_out(&self, e: &Executor) -> Result<(), Code> {
        e.gpu.wait_event(stage_stream(self.stream, &e.bindings)?, e.bindings.live(Kind::Event, self.event)?)
    }
}

impl Direct for Fill {
    const ID: u16 = id::FILL;
    fn carry_out(&self, e: &Executor) -> Result<(), Code> {
        if self.width == 0 || self.rows == 0 {
            return Ok(());
        }
        e.check_pitched(self.dst, self.pitch, self.width.saturating_mul(self.element.into()), self.rows)?;
        e.gpu.fill(self, stage_stream(self.stream, &e.bindings)?)
    }
}

impl Direct for CopyDevice {
    const ID: u16 = id::COPY_DEVICE;
    fn carry_out(&self, e: &Executor) -> Result<(), Code> {
        e.copy_on_device(self)
    }
}

impl Executor {
    /// Carries out an operation.
    ///
    /// # Errors
    /// The driver's error, or `DEINITIALIZED` if the executor is closed.
    #[inline]
    pub fn carry_out(&self, op: &impl Direct) -> Result<(), Code> {
        self.make_current()?;
        op.carry_out(self)
    }

    /// Returns success if a stream or an event is complete (`STREAM_QUERY` and `EVENT_QUERY`), `NOT_READY` otherwise.
    ///
    /// # Errors
    /// As [`Executor::carry_out`].
    pub fn is_done(&self, call: u16, handle: u64) -> Result<(), Code> {
        self.make_current()?;
        match call {
            id::STREAM_QUERY => self.query_stream(handle),
            id::EVENT_QUERY => self.query_event(handle),
            _ => Err(code::ERROR_NOT_SUPPORTED),
        }
    }

    /// Waits in the driver for a stream or an event (`STREAM_SYNC` and `EVENT_SYNC`). This shows what device code has printed.
    ///
    /// # Errors
    /// As [`Executor::carry_out`].
    pub fn wait_for(&self, call: u16, handle: u64) -> Result<(), Code> {
        self.make_current()?;
        match call {
            id::STREAM_SYNC => self.gpu.synchronize_stream(stage_stream(handle, &self.bindings)?),
            id::EVENT_SYNC => self.gpu.synchronize_event(self.bindings.live(Kind::Event, handle)?),
            _ => Err(code::ERROR_NOT_SUPPORTED),
        }
    }

    /// Makes a large copy of pageable memory with several threads (`threads` overrides their number); returns false if the copy is left
    /// to the driver. The device's end is memory of the job.
    ///
    /// # Errors
    /// As [`Executor::carry_out`].
    pub fn copy_bulk(&self, copy: &Bulk, threads: Option<usize>) -> Result<bool, Code> {
        self.make_current()?;
        // The lock is not held during the copy, which may wait for another thread's action.
        let pools = self.life().pools.clone();
        let made = bulk::copy(&self.gpu, &pools, copy, threads);
        let waited = made == Ok(true) && (copy.wait || !copy.to_device);
        if made.is_err_and(code::is_sticky) || waited && self.prints() {
            // The driver shows what device code has printed, and why it has failed, in the calls that wait.
            let shown = self.gpu.synchronize_stream(copy.stream);
            return made.and_then(|made| shown.map(|()| made));
        }
        made
    }

    /// Copies rows of the program's memory to rows of the device, whose beginnings are `pitch` bytes apart, in the order of a stream of
    /// the driver.
    ///
    /// # Errors
    /// As [`Executor::carry_out`].
    #[inline]
    pub fn copy_rows_in(&self, (to, pitch): (u64, u64), from: &HostRows, stream: u64) -> Result<(), Code> {
        self.make_current()?;
        if from.is_one() {
            // SAFETY: the rows stay valid until the copy is complete.
            return unsafe { self.gpu.copy_in(to, from.address() as *const u8, from.width(), stream) };
        }
        let mut c = copies::rectangle(from.width(), from.rows());
        c.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        (c.srcHost, c.srcPitch) = (from.address() as *const c_void, from.pitch() as usize);
        (c.dstDevice, c.dstPitch) = (to, pitch as usize);
        // SAFETY: as above.
        unsafe { self.gpu.copy_2d(&c, stream) }
    }

    /// Copies rows of the device to rows of the program's memory, likewise.
    ///
    /// # Errors
    /// As [`Executor::carry_out`].
    #[inline]
    pub fn copy_rows_out(&self, to: &HostRows, (from, pitch): (u64, u64), stream: u64) -> Result<(), Code> {
        self.make_current()?;
        if to.is_one() {
            // SAFETY: the rows stay valid until the copy is complete.
            return unsafe { self.gpu.copy_out(to.address() as *mut u8, from, to.width(), stream) };
        }
        let mut c = copies::rectangle(to.width(), to.rows());
        c.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        (c.dstHost, c.dstPitch) = (to.address() as *mut c_void, to.pitch() as usize);
        (c.srcDevice, c.srcPitch) = (from, pitch as usize);
        // SAFETY: as above.
        unsafe { self.gpu.copy_2d(&c, stream) }
    }

    /// Copies one row between the program's memory and the device by the driver's functions that wait for the copy. The context is
    /// current ([`Executor::make_current`]).
    ///
    /// # Errors
    /// The driver's error.
    #[inline]
    pub fn copy_row_now(&self, device: u64, host: &HostRows, to_device: bool) -> Result<(), Code> {
        // SAFETY: the row stays valid until the copy is complete.
        unsafe { self.gpu.copy_now(device, host.address(), host.width(), to_device) }
    }

    /// Launches a graph instance none of whose nodes calls the job.
    ///
    /// # Errors
    /// As [`Executor::carry_out`].
    pub fn launch_instance(&self, instance: u64, stream: u64) -> Result<(), Code> {
        self.make_current()?;
        self.note_instance_launch(instance, stream);
        self.gpu.launch_graph(self.bindings.live(Kind::GraphExec, instance)?, stage_stream(stream, &self.bindings)?)
    }

    /// Launches with the program's own parameters, which it has passed for this function; `attached` are its attributes.
    ///
    /// # Errors
    /// As [`Executor::carry_out`].
    pub fn launch_with(&self, head: &Launch, attached: &[u8], params: KernelParams) -> Result<(), Code> {
        self.make_current()?;
        let function = self.callable(head.function)?;
        self.launches(head.function);
        let stream = stage_stream(head.stream, &self.bindings)?;
        if head.attributes == 0 && !head.cooperative {
            // SAFETY: what the program has passed for this function.
            return unsafe { self.gpu.launch_with(function, head.grid, head.block, head.shared, stream, params.as_ptr()) };
        }
        let mut list = copies::attributes(self, head, attached)?;
        // SAFETY: as above; the attributes are in the list.
        unsafe { self.gpu.launch_ex_with(&copies::config(head, stream, &mut list), function, params.as_ptr()) }
    }
}
