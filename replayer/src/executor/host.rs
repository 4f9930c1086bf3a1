//! What a stream asks of the job's process: its functions, and bytes that must be read when the stream gets there.
//!
//! The driver calls a function of ours in stream order. In the job's process that runs the program's function. Elsewhere it says
//! that the stream is there ([`Pending`] answers then) and waits until the job has said that it is done.

use super::{Executor, Life, short};
use crate::gpu::Gpu;
use crate::pending::{Mark, Pending};
use crate::pools::{Pools, lock};
use cuda_api::arg::{LEGACY, stage_stream};
use cuda_api::code::{self, Code};
use cuda_api::graph::work::Copy3;
use cuda_api::ops::{CopyInLate, GraphCall, HOLD, HostCall, StreamMemory};
use cuda_api::wire::Wire;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Runs a host function of this process: its token, and what a callback is told.
pub type Runner = fn(token: u64, status: Code);

/// The host calls of an executor that are not over.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    runner: OnceLock<Runner>,
    calls: Mutex<HashMap<u64, Arc<Call>>>,
    count: AtomicUsize,
    waits: Mutex<Vec<Wait>>,
}

/// A call that a stream makes when it gets there.
#[derive(Debug)]
pub(crate) struct Call {
    token: u64,
    /// As it travels.
    stream: u64,
    callback: bool,
    /// Page-locked memory for the bytes of a late copy: address and size.
    room: Option<(usize, usize)>,
    /// The bytes go to the job, with the answer.
    to_host: bool,
    /// The stream goes on when the job has said that they are in its memory, else when they have been sent.
    acknowledged: bool,
    /// Where they go in host memory that this place has, too: what follows in the graph may read it there.
    lands: Option<Copy3>,
    /// Of a graph: its launch, or why there is none.
    launch: Option<OnceLock<Result<Arc<Launched>, Code>>>,
    /// The stream has got there, and what a callback is told.
    reached: OnceLock<Code>,
    /// The job's word that it is done.
    done: Mutex<Option<Vec<u8>>>,
    said: Condvar,
    owner: Arc<Hosts>,
}

/// A launch of a graph that makes calls.
#[derive(Debug)]
pub(crate) struct Launched {
    /// The event behind it.
    after: u64,
    pools: Arc<Pools>,
}

impl Launched {
    pub(super) fn new(after: u64, pools: Arc<Pools>) -> Launched {
        Launched { after, pools }
    }

    /// Whether it has not ended.
    pub(super) fn runs(&self, gpu: &Gpu) -> bool {
        gpu.query_event(self.after) == Err(code::ERROR_NOT_READY)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.pools.recycle(self.after);
    }
}

/// Writes packed rows to where a copy to the host takes them.
///
/// # Safety
/// All its rows are mapped and writable.
unsafe fn land(c: &Copy3, bytes: &[u8]) {
    let rows = (0..c.depth).flat_map(|z| (0..c.rows).map(move |y| (z * c.dst.height + y) * c.dst.pitch));
    for (row, bytes) in rows.zip(bytes.chunks_exact(c.width as usize)) {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (c.dst.host + row) as *mut u8, bytes.len()) };
    }
}

impl Call {
    /// The body of what the driver calls, on a thread of the driver.
    pub(super) fn run(&self, status: Code) {
        if let (Some(copy), Some((from, len)), true) = (&self.lands, self.room, self.to_host) {
            // SAFETY: the copy before this call has filled the buffer, which is this call's until the answer; where it lands was found to
            // be host memory that this place has, and stays while the device works.
            unsafe { land(copy, std::slice::from_raw_parts(from as *const u8, len)) };
        }
        // The first word is the one that counts; the driver calls once.
        let _ = self.reached.set(status);
        match self.owner.runner.get() {
            Some(run) => run(self.token, status),
            None => {
                let done = lock(&self.done);
                let mut done = self.said.wait_while(done, |d| d.is_none()).unwrap_or_else(PoisonError::into_inner);
                let room = self.room.filter(|_| !self.to_host);
                if let (Some((at, len)), Some(bytes)) = (room, done.take()) {
                    let n = len.min(bytes.len());
                    // SAFETY: the buffer belongs to this call until the copy behind it, which the driver starts when this returns.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, n) };
                }
            }
        }
        self.owner.over(self.token);
    }

    fn say(&self, bytes: Vec<u8>) {
        lock(&self.done).get_or_insert(bytes);
        self.said.notify_all();
    }

    /// Whether the stream has got there: what the job is to be told.
    pub(crate) fn reached(&self) -> Option<Code> {
        self.reached.get().copied()
    }

    /// Of a graph: its launch has been made, or has failed.
    pub(super) fn launched(&self, launch: Result<Arc<Launched>, Code>) {
        if let Some(cell) = &self.launch {
            // A token is named by one launch; a second one changes nothing.
            let _ = cell.set(launch);
        }
    }

    /// It will not be made.
    pub(super) fn give_up(&self) {
        self.owner.over(self.token);
    }

    /// Looks for a call that [`Call::reached`] does not know of yet: none if it may still come, else why it never will.
    pub(crate) fn lost(&self, e: &Executor) -> Option<Code> {
        let rc = match self.launch.as_ref()?.get()? {
            Err(rc) => *rc,
            Ok(launch) => match e.gpu().query_event(launch.after) {
                Err(code::ERROR_NOT_READY) => return None,
                // It was there meanwhile.
                Ok(()) if self.reached().is_some() => return None,
                Ok(()) => code::ERROR_UNKNOWN,
                Err(rc) => {
                    e.show_text(launch.after);
                    rc
                }
            },
        };
        // Should the driver come all the same, nobody is waited for.
        self.say(Vec::new());
        self.give_up();
        Some(rc)
    }

    /// Gives the job the bytes that the call has for it; the stream goes on then, unless the job is to say so.
    pub(crate) fn take_bytes(&self, reply: &mut Vec<u8>) {
        if let Some((at, len)) = self.room.filter(|_| self.to_host) {
            // SAFETY: the buffer belongs to this call from the copy before it until it has said that it is done.
            reply.extend_from_slice(unsafe { std::slice::from_raw_parts(at as *const u8, len) });
        }
        if self.to_host && !self.acknowledged {
            self.say(Vec::new());
        }
    }

    /// The context has failed before the stream got there. False if the driver will call all the same.
    pub(crate) fn fail(&self) -> bool {
        if !self.callback {
            self.owner.over(self.token);
        }
        !self.callback
    }
}

/// Entry of a host function: `data` is an `Arc<Call>`.
unsafe extern "C" fn function(data: *mut c_void) {
    // SAFETY: made by `Arc::into_raw` when it was enqueued; the driver calls once.
    let call = unsafe { Arc::from_raw(data.cast_const().cast::<Call>()) };
    call.run(code::SUCCESS);
}

/// Entry of a callback. The code is taken as a number: a driver may know more of them than we do.
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
    /// Events around it: the stream has got there; it has gone on.
    before: u64,
    after: u64,
}

impl Hosts {
    fn begin(self: &Arc<Self>, token: u64, stream: u64, callback: bool, room: Option<(usize, usize)>) -> Result<Arc<Call>, Code> {
        self.add(Call { callback, room, ..self.call(token, stream) })
    }

    /// A call of a graph that will be launched.
    pub(super) fn begin_in_graph(
        self: &Arc<Self>,
        op: &GraphCall,
        room: Option<(usize, usize)>,
        lands: Option<Copy3>,
        to_host: bool,
    ) -> Result<Arc<Call>, Code> {
        let call = self.call(op.token, op.stream);
        self.add(Call { room, to_host, acknowledged: op.acknowledged, lands, launch: Some(OnceLock::new()), ..call })
    }

    /// The call of a graph with this token that no launch has named yet.
    pub(super) fn of_graph(&self, token: u64) -> Result<Arc<Call>, Code> {
        let new = |c: &&Arc<Call>| c.launch.as_ref().is_some_and(|l| l.get().is_none());
        lock(&self.calls).get(&token).filter(new).cloned().ok_or(code::ERROR_INVALID_VALUE)
    }

    /// Whether the program's functions are of this process.
    pub(super) fn runs_here(&self) -> bool {
        self.runner.get().is_some()
    }

    fn call(self: &Arc<Self>, token: u64, stream: u64) -> Call {
        Call {
            token,
            stream,
            callback: false,
            room: None,
            to_host: false,
            acknowledged: false,
            lands: None,
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
        calls.insert(call.token, call.clone());
        self.count.store(calls.len(), Ordering::Release);
        Ok(call)
    }

    fn over(&self, token: u64) {
        let mut calls = lock(&self.calls);
        calls.remove(&token);
        self.count.store(calls.len(), Ordering::Release);
    }

    /// The job's word. Waits for nothing.
    pub(super) fn done(&self, mut body: &[u8]) -> Result<(), Code> {
        let token = u64::get(&mut body).map_err(short)?;
        let call = lock(&self.calls).get(&token).cloned().ok_or(code::ERROR_INVALID_VALUE)?;
        call.say(body.to_vec());
        let wanted = call.room.filter(|_| !call.to_host).map_or(0, |(_, len)| len);
        if body.len() == wanted { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }
}

impl Executor {
    /// This process is the job's: `run` carries out its host functions.
    pub fn run_host_functions_here(&self, run: Runner) {
        // Set once, right after opening.
        let _ = self.hosts.runner.set(run);
    }

    /// Host calls that are not over: their end may have to be read from the job while another call waits for the GPU.
    pub fn host_calls(&self) -> usize {
        self.hosts.count.load(Ordering::Acquire) + self.holds.count()
    }

    /// The job's word that a host call is done, or that a stream may go on. Waits for nothing.
    pub(super) fn job_says_done(&self, body: &[u8]) -> Result<(), Code> {
        let token = super::handle(body)?;
        if token & HOLD != 0 { self.holds.go(token) } else { self.hosts.done(body) }
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
            // SAFETY: the driver has refused it and will not call.
            drop(unsafe { Arc::from_raw(data) });
            self.hosts.over(call.token);
        })
    }

    fn reached_by(&self, life: &Life, call: Arc<Call>, mark: u64) -> Pending {
        let mut pending = self.pending(life, vec![Mark::Own(mark)]);
        pending.call = Some(call);
        pending
    }

    pub(super) fn host_call(&self, life: &Life, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = HostCall::get(&mut body).map_err(short)?;
        let live = stage_stream(op.stream, &self.bindings)?;
        // Where the function runs in this process nobody waits for an answer.
        let mark = if self.hosts.runner.get().is_none() { Some(life.pools.mark(live)?) } else { None };
        let call = self.hosts.begin(op.token, op.stream, op.callback, None)?;
        self.enqueue(&call, live)?;
        Ok(mark.map(|m| self.reached_by(life, call, m)))
    }

    pub(super) fn copy_in_late(&self, life: &Life, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = CopyInLate::get(&mut body).map_err(short)?;
        let bytes = super::copies::size(op.to.dst, op.to.pitch, op.to.width, op.to.rows)?;
        let bytes = usize::try_from(bytes).map_err(|_| code::ERROR_INVALID_VALUE)?;
        let live = stage_stream(op.to.stream, &self.bindings)?;
        let buffer = life.pools.late_buffer(op.to.stream, bytes)?;
        let room = Some((buffer.as_ptr() as usize, bytes));
        let begun = life.pools.mark(live).and_then(|mark| {
            let call = self.hosts.begin(op.token, op.to.stream, false, room)?;
            self.enqueue(&call, live).map(|()| (call, mark))
        });
        let (call, mark) = match begun {
            Ok(begun) => begun,
            Err(rc) => {
                life.pools.give_back([buffer]);
                return Err(rc);
            }
        };
        if let Err(rc) = self.copy_from(life, &op.to, (0, op.to.width, op.to.rows), buffer, live) {
            // The stream must not wait for bytes that nobody will send.
            call.say(Vec::new());
            return Err(rc);
        }
        Ok(Some(self.reached_by(life, call, mark)))
    }

    pub(super) fn stream_memory(&self, life: &Life, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = StreamMemory::get(&mut body).map_err(short)?;
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

    fn forget_waits(&self, life: &Life, waits: &mut Vec<Wait>) {
        waits.retain(|w| {
            let waiting = self.gpu.query_event(w.after) == Err(code::ERROR_NOT_READY);
            if !waiting {
                life.pools.recycle(w.before);
                life.pools.recycle(w.after);
            }
            waiting
        });
    }

    /// The context is about to end, and its events with it.
    pub(super) fn forget_all_waits(&self) {
        lock(&self.hosts.waits).clear();
    }

    /// What each stream with unfinished work is doing, in words; empty when there is none. What a job that does not come to rest is
    /// waiting for.
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
            let call = calls.iter().find(|c| c.reached().is_some());
            words.push(match (call, waits) {
                (Some(c), _) if c.to_host => (1, format!("{} waits for the job to take bytes", name(stream))),
                (Some(c), _) if c.room.is_some() => (1, format!("{} waits for bytes that the job must read", name(stream))),
                (Some(_), _) => (0, format!("{} waits for a host function of the program that has not returned", name(stream))),
                (None, Some(at)) => (0, format!("{} waits for a value at {at:#x} that nobody has written", name(stream))),
                (None, None) if self.holds.fences(stream) => (1, format!("{} waits for the job to take bytes", name(stream))),
                (None, None) if self.holds.holds(stream) => (1, format!("{} waits for another GPU of the job", name(stream))),
                (None, None) => {
                    (2, format!("{} runs kernels or copies that have not ended, or waits for another stream", name(stream)))
                }
            });
        }
        if words.is_empty() && self.ended_streams_work(&life) {
            words.push((2, "a stream that was destroyed has work that has not ended".to_owned()));
        }
        words.sort();
        Ok(words.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; "))
    }
}
