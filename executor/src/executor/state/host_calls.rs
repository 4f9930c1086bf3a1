//! The calls that streams make to the job's process, until the job has reported completion.

use super::copy_nodes::CopyCall;
use crate::gpu::Gpu;
use crate::pools::Recorded;
use cuda_api::code::{self, Code};
use cuda_api::lock::{lock, wait_while};
use cuda_api::spin::spin_until;
use cuda_api::wire::Wire;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

/// Maximum number of bytes that are stored for copies of graphs until their nodes are reached: a job sends much less before it is told
/// that they were reached.
const MAX_STORED_BYTES: usize = 64 << 20;

/// Runs a host function of this process: its token, and the status for a callback.
pub type Runner = fn(token: u64, status: Code);

/// The outstanding host calls of an executor.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    pub(crate) runner: OnceLock<Runner>,
    pub(crate) calls: Mutex<FxHashMap<u64, Arc<Call>>>,
    /// Their number,
    pub(crate) count: AtomicUsize,
    /// the number of those that continue only when the job has confirmed it,
    pub(crate) awaited: AtomicUsize,
    /// and the bytes that they store.
    pub(crate) kept: AtomicUsize,
    pub(crate) waits: Mutex<Vec<Wait>>,
}

/// A call that a stream makes when it gets there.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) token: u64,
    /// The job's handle of the stream.
    pub(crate) stream: u64,
    pub(crate) callback: bool,
    /// For a graph: its copy.
    pub(crate) copy: Option<CopyCall>,
    /// For a graph: its launch, or why there is none.
    pub(crate) launch: Option<OnceLock<Result<Arc<Recorded>, Code>>>,
    /// Set when the stream has got there: the status for a callback.
    pub(crate) reached: OnceLock<Code>,
    /// Whether the job has reported completion.
    pub(crate) done: Mutex<bool>,
    said: Condvar,
    owner: Arc<Hosts>,
}

impl Call {
    /// The body of the function that the driver calls, on a thread of the driver.
    pub(crate) fn run(&self, status: Code) {
        // The first value counts; the driver calls once.
        let _ = self.reached.set(status);
        match self.owner.runner.get() {
            Some(run) => run(self.token, status),
            None => {
                // Most functions return soon.
                if !spin_until(|| *lock(&self.done)) {
                    drop(wait_while(&self.said, lock(&self.done), |done| !*done));
                }
            }
        }
        self.owner.over(self.token);
    }

    fn say(&self) {
        *lock(&self.done) = true;
        self.said.notify_all();
    }

    /// Its token.
    pub(crate) fn token(&self) -> u64 {
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
    pub(crate) fn launched(&self, launch: Result<Arc<Recorded>, Code>) {
        if let Some(cell) = &self.launch {
            // Each token is used by one launch; a second one changes nothing.
            let _ = cell.set(launch);
        }
    }

    /// Notes that the launch will not be made.
    pub(crate) fn give_up(&self) {
        self.owner.over(self.token);
    }

    /// Checks a call for which [`Call::reached`] has no result: returns `None` if it may still come, otherwise the error why it never
    /// will. `show` makes the driver show what device code has printed before an event.
    pub(crate) fn lost(&self, gpu: &Gpu, show: impl FnOnce(u64)) -> Option<Code> {
        let rc = match self.launch.as_ref()?.get()? {
            Err(rc) => *rc,
            Ok(launch) => match gpu.query_event(launch.event()) {
                Err(code::ERROR_NOT_READY) => return None,
                // The stream has got there meanwhile.
                Ok(()) if self.reached().is_some() => return None,
                Ok(()) => code::ERROR_UNKNOWN,
                Err(rc) => {
                    show(launch.event());
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

/// A stream that waits, or will wait, for words of memory.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) stream: u64,
    pub(crate) address: u64,
    /// Events around the wait: the stream has got there; it has continued.
    pub(crate) before: u64,
    pub(crate) after: u64,
}

impl Hosts {
    pub(crate) fn begin(self: &Arc<Self>, token: u64, stream: u64, callback: bool) -> Result<Arc<Call>, Code> {
        self.add(Call { callback, ..self.call(token, stream) })
    }

    /// Creates a call of a graph that will be launched.
    pub(crate) fn begin_in_graph(self: &Arc<Self>, token: u64, stream: u64, copy: Option<CopyCall>) -> Result<Arc<Call>, Code> {
        self.add(Call { copy, launch: Some(OnceLock::new()), ..self.call(token, stream) })
    }

    /// The call of a graph with this token that no launch has used yet.
    pub(crate) fn of_graph(&self, token: u64) -> Result<Arc<Call>, Code> {
        let new = |c: &&Arc<Call>| c.launch.as_ref().is_some_and(|l| l.get().is_none());
        lock(&self.calls).get(&token).filter(new).cloned().ok_or(code::ERROR_INVALID_VALUE)
    }

    /// Returns whether the program's functions are in this process.
    pub(crate) fn runs_here(&self) -> bool {
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
        if self.kept.load(Ordering::Relaxed) + call.kept() > MAX_STORED_BYTES {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        calls.insert(call.token, call.clone());
        self.awaited.fetch_add(usize::from(call.awaits_job()), Ordering::AcqRel);
        self.kept.fetch_add(call.kept(), Ordering::Relaxed);
        self.count.store(calls.len(), Ordering::Release);
        Ok(call)
    }

    pub(crate) fn over(&self, token: u64) {
        self.remove(&mut lock(&self.calls), token);
    }

    /// Removes a call from the list; returns whether it was there.
    fn remove(&self, calls: &mut FxHashMap<u64, Arc<Call>>, token: u64) -> bool {
        let Some(call) = calls.remove(&token) else { return false };
        self.awaited.fetch_sub(usize::from(call.awaits_job()), Ordering::AcqRel);
        self.kept.fetch_sub(call.kept(), Ordering::Relaxed);
        self.count.store(calls.len(), Ordering::Release);
        true
    }

    /// Handles the job's report of completion. Waits for nothing.
    pub(crate) fn done(&self, mut body: &[u8]) -> Result<(), Code> {
        let token = u64::get(&mut body).map_err(|_| code::ERROR_INVALID_VALUE)?;
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
    pub(crate) fn forget_copies(&self) {
        let mut calls = lock(&self.calls);
        let copies: Vec<Arc<Call>> = calls.values().filter(|call| call.copy.is_some()).cloned().collect();
        for call in copies {
            call.copy.iter().for_each(CopyCall::let_go);
            self.remove(&mut calls, call.token);
        }
    }
}
