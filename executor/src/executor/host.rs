//! Requests of streams to the job's process: its host functions, and bytes that must be read when the stream reaches a point.
//!
//! The driver calls a function of the executor in stream order. In the job's process this runs the program's function. Elsewhere it
//! reports that the stream is there ([`Pending`] then has its answer) and waits until the job has reported completion. Everything but the
//! program's functions waits in the stream itself, for a word of memory ([`super::holds`], [`super::graph_calls`]): host functions run
//! one after the other, and one of the program may wait until another stream has made its copies.

use super::state::copy_nodes::CopyCall;
use super::state::host_calls::{Call, Runner, Wait};
use super::{ContextState, Executor, short};
use crate::pending::{Mark, Pending};
use cuda_api::arg::{stage_stream, stream_name};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::{CopyInLate, HOLD, HostCall, StreamMemory};
use cuda_api::wire::Wire;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entry point of a host function: `data` is an `Arc<Call>`.
unsafe extern "C" fn function(data: *mut c_void) {
    // SAFETY: created by `Arc::into_raw` when the call was enqueued; the driver calls once.
    let call = unsafe { Arc::from_raw(data.cast_const().cast::<Call>()) };
    call.run(code::SUCCESS);
}

/// Entry point of a callback. The code has a plain integer type: a driver may know codes that the header lacks.
unsafe extern "C" fn callback(_stream: *mut c_void, status: Code, data: *mut c_void) {
    // SAFETY: as in `function`.
    let call = unsafe { Arc::from_raw(data.cast_const().cast::<Call>()) };
    call.run(status);
}

/// What keeps a GPU from being idle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busy {
    /// What each stream with unfinished work is doing, for people; empty if all are idle.
    pub what: String,
    /// The job's handle of a stream that may run a kernel.
    pub runs: Option<u64>,
}

impl Executor {
    /// Makes `run` carry out host functions, because this process is the job's.
    pub fn run_host_functions_here(&self, run: Runner) {
        // Set once, right after opening.
        let _ = self.hosts.runner.set(run);
    }

    /// Number of outstanding host calls.
    pub fn host_calls(&self) -> usize {
        self.hosts.count.load(Ordering::Acquire) + self.holds.count()
    }

    /// Returns whether any call waits for the job, whose report may have to be read while another call waits for the GPU.
    pub fn awaits_job(&self) -> bool {
        self.hosts.awaited.load(Ordering::Acquire) > 0 || self.holds.count() > 0
    }

    /// Handles the job's report that a host call is complete, or that a stream may continue. Waits for nothing.
    pub(super) fn job_says_done(&self, body: &[u8]) -> Result<(), Code> {
        let token = super::handle(body)?;
        if token & HOLD != 0 { self.holds.go(token, &body[size_of::<u64>()..]) } else { self.hosts.done(body) }
    }

    fn enqueue(&self, call: &Arc<Call>, live: u64) -> Result<(), Code> {
        let data = Arc::into_raw(call.clone());
        let at = data.cast_mut().cast::<c_void>();
        let enqueued = if call.callback {
            // SAFETY: called once with this data, which outlives the call.
            unsafe { self.gpu.add_callback(live, callback, at) }
        } else {
            // SAFETY: as above.
            unsafe { self.gpu.launch_host(live, function, at) }
        };
        enqueued.inspect_err(|_| {
            // SAFETY: the driver has refused the call and will not use the data.
            drop(unsafe { Arc::from_raw(data) });
            self.hosts.over(call.token);
        })
    }

    fn reached_by(&self, life: &ContextState, call: Arc<Call>, mark: u64) -> Pending {
        let mut pending = self.pending(life, vec![Mark::Own(mark)]);
        pending.call = Some(call);
        pending
    }

    pub(super) fn host_call(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = HostCall::get(&mut body).map_err(short)?;
        if op.token & HOLD != 0 {
            return self.hold_for_work(life, &op);
        }
        let live = stage_stream(op.stream, &self.bindings)?;
        // If the function runs in this process, no thread waits for an answer.
        let mark = if self.hosts.runner.get().is_none() { Some(life.pools.mark(live)?) } else { None };
        let call = self.hosts.begin(op.token, op.stream, op.callback)?;
        self.enqueue(&call, live)?;
        Ok(mark.map(|m| self.reached_by(life, call, m)))
    }

    pub(super) fn copy_in_late(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = CopyInLate::get(&mut body).map_err(short)?;
        let bytes = super::copies::size(op.to.dst, op.to.pitch, op.to.width, op.to.rows)?;
        let bytes = usize::try_from(bytes).map_err(|_| code::ERROR_INVALID_VALUE)?;
        self.check_pitched(op.to.dst, op.to.pitch, op.to.width, op.to.rows)?;
        let live = stage_stream(op.to.stream, &self.bindings)?;
        let buffer = life.pools.late_buffer(op.to.stream, bytes)?;
        let room = (buffer.as_ptr() as usize, bytes);
        let pending = match self.hold_for_bytes(life, (op.to.stream, live), op.token, room) {
            Ok(pending) => pending,
            Err(rc) => {
                life.pools.give_back([buffer]);
                return Err(rc);
            }
        };
        if let Err(rc) = self.copy_from(life, &op.to, (0, op.to.width, op.to.rows), buffer, live) {
            self.holds.give_up(op.token);
            return Err(rc);
        }
        Ok(Some(pending))
    }

    pub(super) fn stream_memory(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = StreamMemory::get(&mut body).map_err(short)?;
        self.check_stream_memory(&op)?;
        let live = stage_stream(op.stream, &self.bindings)?;
        let Some(wait) = op.parts.iter().find(|p| p.waits()) else {
            return self.gpu.stream_memory(live, &op).map(|()| None);
        };
        let before = life.pools.mark(live)?;
        self.gpu.stream_memory(live, &op)?;
        let after = life.pools.mark(live)?;
        let mut waits = lock(&self.hosts.waits);
        self.forget_waits(life, &mut waits);
        waits.push(Wait { stream: op.stream, address: wait.address, before, after });
        drop(waits);
        if self.hosts.runner.get().is_some() {
            return Ok(None);
        }
        Ok(Some(self.pending(life, vec![Mark::Own(life.pools.mark(live)?)])))
    }

    fn forget_waits(&self, life: &ContextState, waits: &mut Vec<Wait>) {
        waits.retain(|w| {
            let waiting = self.gpu.query_event(w.after) == Err(code::ERROR_NOT_READY);
            if !waiting {
                life.pools.recycle(w.before);
                life.pools.recycle(w.after);
            }
            waiting
        });
    }

    /// Forgets all waits before the context is destroyed with their events.
    pub(super) fn forget_all_waits(&self) {
        lock(&self.hosts.waits).clear();
    }

    /// What each stream with unfinished work is doing. Explains why a job cannot be quiesced.
    pub fn busy(&self) -> Result<Busy, Code> {
        self.make_current()?;
        let life = self.life();
        let (mut words, mut runs) = (Vec::new(), None);
        for stream in self.busy_streams()? {
            let name = stream_name(stream);
            let calls: Vec<Arc<Call>> = lock(&self.hosts.calls).values().filter(|c| c.stream == stream).cloned().collect();
            let waits = {
                let mut waits = lock(&self.hosts.waits);
                self.forget_waits(&life, &mut waits);
                let here = waits.iter().filter(|w| w.stream == stream && self.gpu.query_event(w.before) == Ok(()));
                here.map(|w| w.address).next()
            };
            let call = calls.iter().find(|c| c.reached.get().is_some());
            let copy = call.and_then(|c| c.copy.as_ref()).map(CopyCall::is_to_host);
            let held = self.holds.why(stream);
            words.push(match (call, waits) {
                _ if copy == Some(true) => (1, format!("{name} waits for the job to take bytes")),
                _ if copy == Some(false) => (1, format!("{name} waits for bytes that the job must read")),
                (Some(_), _) => (0, format!("{name} waits for a host function of the program that has not returned")),
                (None, Some(at)) => (0, format!("{name} waits for a value at {at:#x} that has not been written")),
                (None, None) if held.is_some() => (1, format!("{name} {}", held.unwrap_or_default())),
                (None, None) => {
                    runs = runs.or(Some(stream));
                    (2, format!("{name} runs kernels or copies that have not ended, or waits for another stream"))
                }
            });
        }
        // What else is busy may wait only for these, as the legacy stream does while a blocking stream has work (docs/driver-facts.md 6.3).
        if words.iter().any(|(class, _)| *class < 2) {
            runs = None;
        }
        if words.is_empty() && self.ended_streams_work() {
            words.push((2, "a stream that was destroyed has work that has not ended".to_owned()));
        }
        words.sort();
        Ok(Busy { what: words.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; "), runs })
    }
}
