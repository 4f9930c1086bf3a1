//! The common path of every call: the gate, and the ways in which it reaches a place. [`crate::carry`] carries out rows.

use crate::base::answers::Answers;
use crate::base::encoding::encoded;
use crate::base::log::{Watched, lock};
use crate::base::output;
use crate::gate::{self, Pass};
use crate::internal_error;
use crate::job::{self, Device, Job, PutOff, contexts};
use crate::ledger::Keep;
use crate::place::{Place, Waiting};
use crate::thread::{Here, here};
use cuda_api::arg::Edges;
use cuda_api::cancellation::Uncancelled;
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::ops;
use cuda_api::precedence::is_same;
use executor::{Direct, Executor};
use faults::Point;
use std::cell::Cell;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// One call of the program, inside the gate.
#[derive(Debug)]
pub(crate) struct CallContext {
    pub(crate) job: &'static Job,
    pub(crate) pass: Pass,
    /// Whether the `_ptsz`/`_ptds` form was called: stream 0 means the thread's own.
    pub(crate) per_thread: bool,
    pub(crate) device: Option<u32>,
    pub(crate) made: Few,
    /// Memory that a place did not have, if that may be why the call fails.
    shortage: Cell<Option<Shortage>>,
}

/// Memory that a device's place did not have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shortage {
    pub(crate) device: &'static Device,
    /// The device's epoch at that place.
    pub(crate) epoch: u64,
    /// What the call needed.
    pub(crate) bytes: u64,
}

/// Finds a place with more memory; the number says how often it has done so for this call. Returns whether the call is to be tried again.
pub(crate) type MakeRoom = fn(Shortage, usize) -> bool;

/// See [`CallContext::inside`].
pub(crate) struct Inside {
    cx: CallContext,
    _later: PutOff,
}

impl Deref for Inside {
    type Target = CallContext;
    fn deref(&self) -> &CallContext {
        &self.cx
    }
}

/// Runs the body of an exported symbol: catches panics, so that nothing unwinds into C, and returns an error if there is no job.
pub(crate) fn guard(symbol: &'static str, per_thread: bool, body: impl FnOnce(&mut CallContext) -> Result<(), Code>) -> Code {
    guard_at(gate::enter, symbol, per_thread, body)
}

/// A door of the gate.
pub(crate) type Door = fn(&'static Here, &'static str) -> Pass;

/// Calls that are answered from tables of this process, also while the job is parked. None of them uses a place.
const ANSWERED_WHILE_PARKED: [&str; 16] = [
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetByPCIBusId",
    "cuDeviceComputeCapability",
    "cuDeviceGetProperties",
    "cuDevicePrimaryCtxGetState",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetFlags",
    "cuCtxGetApiVersion",
];

/// The door that a function takes.
pub(crate) const fn door(name: &str) -> Door {
    let mut at = 0;
    while at < ANSWERED_WHILE_PARKED.len() {
        if is_same(ANSWERED_WHILE_PARKED[at], name) {
            return gate::enter_beside;
        }
        at += 1;
    }
    gate::enter
}

/// As [`guard`], by this door of the gate.
#[inline(always)]
pub(crate) fn guard_at(
    enter: Door,
    symbol: &'static str,
    per_thread: bool,
    body: impl FnOnce(&mut CallContext) -> Result<(), Code>,
) -> Code {
    let run = || -> Result<(), Code> {
        let (job, here) = (job::get()?, here());
        if here.in_host_function.get() {
            // The error that the driver's reference gives for calls in host functions and callbacks.
            return Err(code::ERROR_NOT_PERMITTED);
        }
        let mut cx = CallContext::new(job, enter(here, symbol), per_thread);
        let r = body(&mut cx);
        if r.is_err() {
            for h in &cx.made {
                cx.job.tables.end(*h);
            }
        }
        r
    };
    outermost(symbol, run)
}

/// As [`guard_at`]. A call that fails because its place had no memory is tried again after `make_room` has found some: it has left
/// nothing behind, as if the program itself tried again.
#[inline(always)]
pub(crate) fn guard_with_room(
    enter: Door,
    symbol: &'static str,
    per_thread: bool,
    make_room: MakeRoom,
    body: impl Fn(&mut CallContext) -> Result<(), Code>,
) -> Code {
    let mut tries = 0;
    loop {
        let mut shortage = None;
        let rc = guard_at(enter, symbol, per_thread, |cx| body(cx).inspect_err(|_| shortage = cx.shortage.take()));
        match shortage {
            Some(shortage) if rc == code::ERROR_OUT_OF_MEMORY && room_is_made(symbol, make_room, shortage, tries) => tries += 1,
            _ => return rc,
        }
    }
}

/// Outside the gate, since the device may move.
#[cold]
fn room_is_made(symbol: &'static str, make_room: MakeRoom, shortage: Shortage, tries: usize) -> bool {
    // A call of a thread that is inside another one would keep the gate from closing.
    let made = || here().depth.get() == 0 && make_room(shortage, tries);
    outermost(symbol, || if made() { Ok(()) } else { Err(code::ERROR_OUT_OF_MEMORY) }) == code::SUCCESS
}

/// As [`guard`], for calls that need no job.
pub(crate) fn outermost(symbol: &'static str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let uncancelled = Uncancelled::begin();
    let result = catch_unwind(AssertUnwindSafe(body));
    drop(uncancelled);
    match result {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(rc)) => rc,
        Err(_) => {
            internal_error::caught(symbol);
            code::ERROR_UNKNOWN
        }
    }
}

/// Logs the end of a call. The thread cannot be cancelled meanwhile: writing a line is a cancellation point.
#[cold]
pub(crate) fn end_watched(call: &Watched, arguments: &[(&str, u64)], rc: Code) {
    let _uncancelled = Uncancelled::begin();
    call.end(arguments, rc);
}

impl CallContext {
    fn new(job: &'static Job, pass: Pass, per_thread: bool) -> CallContext {
        CallContext { job, pass, per_thread, device: None, made: Few::new(), shortage: Cell::new(None) }
    }

    /// Notes that the place of a device has no memory for what the call needs.
    pub(crate) fn note_shortage(&self, device: &'static Device, bytes: u64) {
        let epoch = device.epoch.load(Ordering::Relaxed);
        self.shortage.set(Some(Shortage { device, epoch, bytes }));
    }

    /// Passes the gate for the recorder's own calls, which leave pending errors to calls of the program.
    pub(crate) fn inside(job: &'static Job) -> Inside {
        CallContext::inside_by(gate::enter, job)
    }

    /// As [`CallContext::inside`], by this door.
    pub(crate) fn inside_by(door: Door, job: &'static Job) -> Inside {
        let pass = door(here(), gate::OWN_CALL);
        Inside { cx: CallContext::new(job, pass, false), _later: PutOff::begin() }
    }

    /// The device of this call: that of its handles, otherwise of the thread's context.
    pub(crate) fn device(&self) -> Result<&'static Device, Code> {
        match self.device {
            Some(d) => self.job.devices.get(d as usize).ok_or(code::ERROR_INVALID_DEVICE),
            None => contexts::current_device(self.job),
        }
    }

    /// Sets the device of this call.
    pub(crate) fn on(&mut self, device: &Device) {
        self.device = Some(device.index);
    }

    /// The place of a device, valid while inside the gate.
    pub(crate) fn place(&self, device: &'static Device) -> &Place {
        device.place(&self.pass)
    }

    /// Writes the text that device code has printed; called where the driver does so.
    pub(crate) fn show_text(&self) {
        if output::waits() {
            self.pass.outside(output::show);
        }
    }

    /// Returns the answer to a query, from the cache or from the place.
    pub(crate) fn ask_about(&self, answers: &Answers, device: &'static Device, id: u16, body: &[u8]) -> Result<Vec<u8>, Code> {
        match answers.find(device.index, id, body) {
            Ok(known) => Ok(known),
            Err(version) => {
                let answer = self.ask(device, id, &[body])?;
                answers.keep(version, device.index, id, body, &answer);
                Ok(answer)
            }
        }
    }

    /// Sends a query and waits inside the gate: for answers that do not depend on the GPU's progress.
    pub(crate) fn ask(&self, device: &'static Device, id: u16, parts: &[&[u8]]) -> Result<Vec<u8>, Code> {
        self.answer(device, device.record_error(self.place(device).begin(id, parts))?)
    }

    /// Queries whether a stream or an event is complete; also returns the position of the query in the place's order, if it has one.
    pub(crate) fn query(&self, device: &'static Device, id: u16, handle: u64) -> Result<Option<Range<u64>>, Code> {
        if let Some(exec) = self.place(device).in_process() {
            return exec.is_done(id, handle).map(|()| None).map_err(|rc| self.failed(device, rc));
        }
        let waiting = device.record_error(self.place(device).begin(id, &[&handle.to_le_bytes()]))?;
        let span = waiting.span();
        // A query gives the GPU no work.
        device.still_quiet(span.clone());
        self.answer(device, waiting).map(|_| span)
    }

    /// Waits for an answer inside the gate.
    fn answer(&self, device: &'static Device, waiting: Waiting) -> Result<Vec<u8>, Code> {
        self.result(device, waiting.finish())
    }

    /// The bytes of an answer, or its error, which is recorded.
    pub(crate) fn result(&self, device: &'static Device, (rc, bytes): (Code, Vec<u8>)) -> Result<Vec<u8>, Code> {
        if rc == code::SUCCESS {
            return Ok(bytes);
        }
        if !bytes.is_empty() {
            tracing::debug!(target: "place", "a call failed with {rc}: {}", String::from_utf8_lossy(&bytes));
        }
        Err(self.failed(device, rc))
    }

    /// Records an error code that the place has returned.
    fn failed(&self, device: &'static Device, rc: Code) -> Code {
        device.note(rc);
        if code::is_sticky(rc) {
            // The text of a failed assertion. Callers may hold the ledger, so the gate is not left here.
            output::show();
        }
        rc
    }

    /// Sends a call and waits for its answer outside the gate: for answers that depend on the GPU's progress.
    pub(crate) fn wait(&self, device: &'static Device, id: u16, body: &[u8]) -> Result<Vec<u8>, Code> {
        device.check()?;
        let epoch = device.epoch.load(Ordering::Relaxed);
        let waiting = device.record_error(self.place(device).begin(id, &[body]))?;
        let span = waiting.span();
        let answer = self.wait_for(device, waiting)?;
        if let Some(span) = span.filter(|_| id == ops::id::CONTEXT_SYNC) {
            device.quiet_until(epoch, span, None);
        }
        Ok(answer)
    }

    /// Waits until all work of a device is complete; makes no round trip if there can be none.
    pub(crate) fn settle(&self, device: &'static Device) -> Result<(), Code> {
        if device.is_quiet(self.place(device), None) {
            return device.check();
        }
        self.wait(device, ops::id::CONTEXT_SYNC, &[]).map(drop)
    }

    /// Waits until all work of a stream is complete; makes no round trip if there can be none.
    pub(crate) fn settle_stream(&self, device: &'static Device, stream: u64) -> Result<(), Code> {
        if device.is_quiet(self.place(device), Some(stream)) {
            device.check()?;
            // The text has arrived: the place sends it before the answer that showed the completion.
            self.show_text();
            return Ok(());
        }
        device.check()?;
        if let Some(exec) = self.place(device).in_process() {
            return self.wait_here(device, exec, |exec| exec.wait_for(ops::id::STREAM_SYNC, stream));
        }
        let epoch = device.epoch.load(Ordering::Relaxed);
        let waiting = device.record_error(self.place(device).begin(ops::id::STREAM_SYNC, &[&stream.to_le_bytes()]))?;
        self.wait_for_stream(device, waiting, epoch, stream)
    }

    /// Waits until the next work of a stream could begin. That work may also follow work of other streams (the default stream, for a
    /// stream that waits for it), which a wait for a stream without work of its own does not cover: so this submits work and waits for
    /// that.
    pub(crate) fn settle_turn(&self, device: &'static Device, stream: u64) -> Result<(), Code> {
        if self.place(device).in_process().is_none() {
            // A worker's wait always is for work of the stream.
            return self.settle_stream(device, stream);
        }
        self.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes()).map(drop)
    }

    /// Waits for an answer that is sent when a stream has completed everything before it.
    pub(crate) fn wait_for_stream(&self, device: &'static Device, waiting: Waiting, epoch: u64, stream: u64) -> Result<(), Code> {
        let span = waiting.span();
        self.wait_for(device, waiting)?;
        if let Some(span) = span {
            device.quiet_until(epoch, span, Some(stream));
        }
        Ok(())
    }

    /// Waits outside the gate for an answer that is under way.
    pub(crate) fn wait_for(&self, device: &'static Device, waiting: Waiting) -> Result<Vec<u8>, Code> {
        let (rc, bytes) = self.waiting(device, || waiting.finish());
        device.note(rc);
        if rc != code::SUCCESS {
            return Err(rc);
        }
        // A failure of earlier work was reported before the answer: a caller that waited for that work must not get a success.
        device.check_late().map(|()| bytes)
    }

    /// Lets the driver of this process wait, outside the gate.
    pub(crate) fn wait_here(
        &self,
        device: &'static Device,
        exec: &Executor,
        wait: impl FnOnce(&Executor) -> Result<(), Code>,
    ) -> Result<(), Code> {
        // The executor stays as long as the wait is counted.
        device.record_error(self.waiting(device, || wait(exec)))?;
        device.check_late()
    }

    /// Steps outside the gate for a wait. The place stays open: a move waits for the counted waiters.
    pub(crate) fn waiting<T>(&self, device: &'static Device, wait: impl FnOnce() -> T) -> T {
        // Counted while still inside: a mover that finds the gate empty finds the waiter counted.
        device.waiters.fetch_add(1, Ordering::AcqRel);
        self.pass.outside(|| {
            faults::at(Point::Wait);
            let answer = wait();
            device.waiters.fetch_sub(1, Ordering::AcqRel);
            output::show();
            answer
        })
    }

    /// Carries out a state-building operation: waits for the answer, and records it in the journal on success.
    pub(crate) fn build(
        &self,
        device: &'static Device,
        op: u16,
        body: &[u8],
        edges: &Edges,
        keep: Keep,
    ) -> Result<Vec<u8>, Code> {
        device.check()?;
        let mut ledger = lock(&device.ledger);
        let bytes = self.ask(device, op, &[body])?;
        ledger.append(op, body, &bytes, edges, keep)?;
        Ok(bytes)
    }

    /// Sends an operation, which needs no encoding in this process; returns its position in the place's order, if it has one.
    pub(crate) fn operate<O: Direct>(&self, device: &'static Device, op: &O) -> Result<Option<Range<u64>>, Code> {
        device.check()?;
        match self.place(device) {
            Place::Local { exec, .. } => device.record_error(exec.carry_out(op)).map(|()| None),
            remote => encoded(op, |body| device.record_error(remote.send(O::ID, &[body]))),
        }
    }

    /// Sends work, which has no answer and no journal record.
    pub(crate) fn work(&self, device: &'static Device, op: u16, parts: &[&[u8]]) -> Result<(), Code> {
        self.work_at(device, op, parts).map(drop)
    }

    /// As [`CallContext::work`]; also returns its position in the place's order, if it has one.
    pub(crate) fn work_at(&self, device: &'static Device, op: u16, parts: &[&[u8]]) -> Result<Option<Range<u64>>, Code> {
        device.check()?;
        device.record_error(self.place(device).send(op, parts))
    }

    /// Keeps a handle that this call has created even if the rest of the call fails.
    pub(crate) fn keep(&mut self, h: u64) {
        self.made.retain(|m| *m != h);
    }
}
