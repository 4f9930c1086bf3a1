//! Requests of streams to the job's process: its host functions, and bytes that must be read when the stream reaches a point.
//!
//! The driver calls a function of the executor in stream order. In the job's process this runs the program's function. Elsewhere it
//! reports that the stream is there ([`Pending`] then has its answer) and waits until the job has reported completion. Everything but the
//! program's functions waits in the stream itself, for a word of memory ([`super::holds`], [`super::graph_calls`]): host functions run
//! one after the other, and one of the program may wait until another stream has made its copies.

use super::graph_calls::CopyCall;
use super::{ContextState, Executor, short};
use crate::pending::{Mark, Pending};
use crate::pools::{Recorded, lock};
use cuda_api::arg::{LEGACY, stage_stream};
use cuda_api::code::{self, Code};
use cuda_api::ops::{CopyInLate, HOLD, HostCall, StreamMemory};
use cuda_api::wire::Wire;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Maximum number of bytes that are stored for copies of graphs until their nodes are reached: a job sends much less before it is told
/// that they were reached.
const MOST_KEPT: usize = 64 << 20;

/// Runs a host function of this process: its token, and the status for a callback.
pub type Runner = fn(token: u64, status: Code);

/// The outstanding host calls of an executor.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    runner: OnceLock<Runner>,
    calls: Mutex<HashMap<u64, Arc<Call>>>,
    /// Their number,
    count: AtomicUsize,
    /// the number of those that continue only when the job has confirmed it,
    awaited: AtomicUsize,
    /// and the bytes that they store.
    kept: AtomicUsize,
    waits: Mutex<Vec<Wait>>,
}

/// A call that a stream makes when it gets there.
#[derive(Debug)]
pub(crate) struct Call {
    token: u64,
    /// The job's handle of the stream.
    stream: u64,
    callback: bool,
    /// For a graph: its copy.
    copy: Option<CopyCall>,
    /// For a graph: its launch, or why there is none.
    launch: Option<OnceLock<Result<Arc<Recorded>, Code>>>,
    /// Set when the stream has got there: the status for a callback.
    reached: OnceLock<Code>,
    /// Whether the job has reported completion.
    done: Mutex<bool>,
    said: Condvar,
    owner: Arc<Hosts>,
}

impl Call {
    /// The body of the function that the driver calls, on a thread of the driver.
    pub(super) fn run(&self, status: Code) {
        // The first value counts; the driver calls once.
        let _ = self.reached.set(status);
        match self.owner.runner.get() {
            Some(run) => run(self.token, status),
            None => {
                let done = lock(&self.done);
                drop(self.said.wait_while(done, |done| !*done).unwrap_or_else(PoisonError::into_inner));
            }
        }
        self.owner.over(self.token);
    }

    fn say(&self) {
        *lock(&self.done) = true;
        self.said.notify_all();
    }

    /// Its token.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Returns the status if the stream has got there. Valid only while the call's context exists.
    pub(crate) fn reached(&self) -> Option<Code> {
        if let Some(copy) = &self.copy
            && self.reached.get().is_none()
            && copy.has_come_to(self.token)
        {
            let _ = self.reached.set(code::SUCCESS);
        }
        self.reached.get().copied()
    }

    /// For a graph: notes that its launch was made or has failed.
    pub(super) fn launched(&self, launch: Result<Arc<Recorded>, Code>) {
        if let Some(cell) = &self.launch {
            // Each token is used by one launch; a second one changes nothing.
            let _ = cell.set(launch);
        }
    }

    /// Notes that the launch will not be made.
    pub(super) fn give_up(&self) {
        self.owner.over(self.token);
    }

    /// Checks a call for which [`Call::reached`] has no result: returns `None` if it may still come, otherwise the error why it never
    /// will.
    pub(crate) fn lost(&self, e: &Executor) -> Option<Code> {
        let rc = match self.launch.as_ref()?.get()? {
            Err(rc) => *rc,
            Ok(launch) => match e.gpu().query_event(launch.event()) {
                Err(code::ERROR_NOT_READY) => return None,
                // The stream has got there meanwhile.
                Ok(()) if self.reached().is_some() => return None,
                Ok(()) => code::ERROR_UNKNOWN,
                Err(rc) => {
                    e.show_text(launch.event());
                    rc
                }
            },
        };
        // If the driver calls in spite of this, nothing is waited for.
        self.say();
        self.copy.iter().for_each(|copy| copy.passes_by(self.token));
        self.give_up();
        Some(rc)
    }

    /// Called when the stream is there: passes the call's bytes to the job, or takes the stored ones; the stream then continues, unless
    /// that is up to the job.
    pub(crate) fn is_there(&self, reply: &mut Vec<u8>) -> Result<(), Code> {
        let Some(copy) = &self.copy else { return Ok(()) };
        let made = copy.at_node(reply);
        if !copy.awaits_job() {
            self.owner.over(self.token);
        }
        made
    }

    /// Returns whether it continues only when the job has confirmed it.
    fn awaits_job(&self) -> bool {
        self.copy.as_ref().is_none_or(CopyCall::awaits_job)
    }

    fn kept(&self) -> usize {
        self.copy.as_ref().map_or(0, CopyCall::kept)
    }

    /// Notes that the context has failed before the stream got there. Returns false if the driver will call in spite of that.
    pub(crate) fn fail(&self) -> bool {
        if !self.callback {
            self.owner.over(self.token);
        }
        !self.callback
    }
}

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

/// A stream that waits, or will wait, for words of memory.
#[derive(Debug)]
struct Wait {
    stream: u64,
    address: u64,
    /// Events around the wait: the stream has got there; it has continued.
    before: u64,
    after: u64,
}

impl Hosts {
    fn begin(self: &Arc<Self>, token: u64, stream: u64, callback: bool) -> Result<Arc<Call>, Code> {
        self.add(Call { callback, ..self.call(token, stream) })
    }

    /// Creates a call of a graph that will be launched.
    pub(super) fn begin_in_graph(self: &Arc<Self>, token: u64, stream: u64, copy: Option<CopyCall>) -> Result<Arc<Call>, Code> {
        self.add(Call { copy, launch: Some(OnceLock::new()), ..self.call(token, stream) })
    }

    /// The call of a graph with this token that no launch has used yet.
    pub(super) fn of_graph(&self, token: u64) -> Result<Arc<Call>, Code> {
        let new = |c: &&Arc<Call>| c.launch.as_ref().is_some_and(|l| l.get().is_none());
        lock(&self.calls).get(&token).filter(new).cloned().ok_or(code::ERROR_INVALID_VALUE)
    }

    /// Returns whether the program's functions are in this process.
    pub(super) fn runs_here(&self) -> bool {
        self.runner.get().is_some()
    }

    fn call(self: &Arc<Self>, token: u64, stream: u64) -> Call {
        Call {
            token,
            stream,
            callback: false,
            copy: None,
            launch: None,
            reached: OnceLock::new(),
            done: Mutex::default(),
            said: Condvar::new(),
            owner: self.clone(),
        }
    }

    fn add(&self, call: Call) -> Result<Arc<Call>, Code> {
        let call = Arc::new(call);
        let mut calls = lock(&self.calls);
        if calls.contains_key(&call.token) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if self.kept.load(Ordering::Relaxed) + call.kept() > MOST_KEPT {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        calls.insert(call.token, call.clone());
        self.awaited.fetch_add(usize::from(call.awaits_job()), Ordering::AcqRel);
        self.kept.fetch_add(call.kept(), Ordering::Relaxed);
        self.count.store(calls.len(), Ordering::Release);
        Ok(call)
    }

    fn over(&self, token: u64) {
        self.remove(&mut lock(&self.calls), token);
    }

    /// Removes a call from the list; returns whether it was there.
    fn remove(&self, calls: &mut HashMap<u64, Arc<Call>>, token: u64) -> bool {
        let Some(call) = calls.remove(&token) else { return false };
        self.awaited.fetch_sub(usize::from(call.awaits_job()), Ordering::AcqRel);
        self.kept.fetch_sub(call.kept(), Ordering::Relaxed);
        self.count.store(calls.len(), Ordering::Release);
        true
    }

    /// Handles the job's report of completion. Waits for nothing.
    pub(super) fn done(&self, mut body: &[u8]) -> Result<(), Code> {
        let token = u64::get(&mut body).map_err(short)?;
        let call = lock(&self.calls).get(&token).cloned().ok_or(code::ERROR_INVALID_VALUE)?;
        let Some(copy) = &call.copy else {
            call.say();
            return if body.is_empty() { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) };
        };
        // Held meanwhile: a context that is destroyed removes its calls from the list before its memory is freed.
        let mut calls = lock(&self.calls);
        if call.reached.get().is_none() || !call.awaits_job() || !self.remove(&mut calls, token) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        copy.put_bytes(body)
    }

    /// Abandons the copies of graphs before the context is destroyed, since the memory of their nodes is freed with it.
    pub(super) fn forget_copies(&self) {
        let mut calls = lock(&self.calls);
        let copies: Vec<Arc<Call>> = calls.values().filter(|call| call.copy.is_some()).cloned().collect();
        for call in copies {
            call.copy.iter().for_each(CopyCall::let_go);
            self.remove(&mut calls, call.token);
        }
    }
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
        self.check_rows(op.to.dst, op.to.pitch, op.to.width, op.to.rows)?;
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

    /// Describes what each stream with unfinished work is doing; empty if all are idle. Explains why a job cannot be quiesced.
    pub fn busy(&self) -> Result<String, Code> {
        self.make_current()?;
        let life = self.life();
        let name = |s: u64| if s == LEGACY { "the default stream".to_owned() } else { format!("stream {s:#x}") };
        let mut words = Vec::new();
        for (stream, live) in self.streams_now() {
            match self.gpu.query_stream(live) {
                Ok(()) => continue,
                Err(code::ERROR_NOT_READY) => {}
                Err(rc) => return Err(rc),
            }
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
                _ if copy == Some(true) => (1, format!("{} waits for the job to take bytes", name(stream))),
                _ if copy == Some(false) => (1, format!("{} waits for bytes that the job must read", name(stream))),
                (Some(_), _) => (0, format!("{} waits for a host function of the program that has not returned", name(stream))),
                (None, Some(at)) => (0, format!("{} waits for a value at {at:#x} that has not been written", name(stream))),
                (None, None) if held.is_some() => (1, format!("{} {}", name(stream), held.unwrap_or_default())),
                (None, None) => {
                    (2, format!("{} runs kernels or copies that have not ended, or waits for another stream", name(stream)))
                }
            });
        }
        if words.is_empty() && self.ended_streams_work() {
            words.push((2, "a stream that was destroyed has work that has not ended".to_owned()));
        }
        words.sort();
        Ok(words.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; "))
    }
}
