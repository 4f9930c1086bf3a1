//! Answers that depend on the GPU's progress.

use crate::executor::{Call, ContextState, Executor};
use crate::pools::{Buffer, Pools, Recorded};
use cuda_api::code::{self, Code};
use cuda_api::wire::Wire;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The outcome of a call.
#[derive(Debug)]
pub enum Applied {
    /// It is complete, with this result; the reply contains its answer.
    Done(Code),
    /// The answer becomes available when the GPU has got there.
    Pending(Pending),
}

/// An event to wait for.
#[derive(Debug, Clone)]
pub(crate) enum Mark {
    /// From the pool, recorded for this wait only.
    Own(u64),
    /// Not from the pool: the reference event for event times.
    Other(u64),
    /// From the pool, shared by several waits, and not recorded again meanwhile.
    Shared(Arc<Recorded>),
}

impl Mark {
    fn event(&self) -> u64 {
        match self {
            Mark::Own(event) | Mark::Other(event) => *event,
            Mark::Shared(recorded) => recorded.event(),
        }
    }
}

/// An answer that is under way. Dropping it abandons the answer, not the work.
#[derive(Debug)]
pub struct Pending {
    /// Number of the context in which it was submitted.
    pub(crate) life: u64,
    pub(crate) pools: Arc<Pools>,
    pub(crate) marks: Vec<Mark>,
    /// Buffers that hold the answer, with the bytes used in each.
    pub(crate) bytes: Vec<(Buffer, usize)>,
    /// For a call to the job: the answer becomes available when the stream has reached it.
    pub(crate) call: Option<Arc<Call>>,
}

impl Executor {
    /// An answer that is available when the GPU has passed the marks.
    pub(crate) fn pending(&self, life: &ContextState, marks: Vec<Mark>) -> Pending {
        Pending { life: life.number, pools: life.pools.clone(), marks, bytes: Vec::new(), call: None }
    }
}

/// How long [`Pending::wait`] spins: synchronising shortly after a short launch is the common case.
const SPIN: Duration = Duration::from_micros(20);
/// Poll interval for what the driver cannot wait for.
const NAP: Duration = Duration::from_micros(50);

impl Pending {
    /// Checks whether the answer is available: returns its code, with the bytes appended to `reply`. Must not be called again after that.
    pub fn poll(&mut self, e: &Executor, reply: &mut Vec<u8>) -> Option<Code> {
        let life = e.life();
        if life.number != self.life {
            // The context was reset: its events, and the work that they marked, are gone.
            self.marks.clear();
            self.bytes.clear();
            return Some(code::ERROR_CONTEXT_IS_DESTROYED);
        }
        if let Err(rc) = e.make_current() {
            return Some(rc);
        }
        while let Some(mark) = self.marks.last() {
            let event = mark.event();
            match e.gpu().query_event(event) {
                Err(code::ERROR_NOT_READY) => return None,
                Err(rc) => {
                    e.show_failure(event);
                    if self.call.as_ref().is_some_and(|c| !c.fail()) {
                        break;
                    }
                    self.release();
                    return Some(rc);
                }
                Ok(()) => {
                    if self.marks.len() == 1 {
                        e.show_text(event);
                    }
                    if let Some(Mark::Own(event)) = self.marks.pop() {
                        self.pools.recycle(event);
                    }
                }
            }
        }
        if let Some(call) = self.call.clone() {
            match call.reached() {
                Some(status) => status.put(reply),
                None => {
                    let rc = call.lost(e.gpu(), |event| e.show_text(event))?;
                    self.release();
                    return Some(rc);
                }
            }
            if let Err(rc) = call.is_there(reply) {
                self.release();
                return Some(rc);
            }
        }
        reply.reserve(self.bytes.iter().map(|(_, n)| n).sum());
        for (buffer, n) in &self.bytes {
            reply.extend_from_slice(buffer.bytes(*n));
        }
        self.release();
        Some(code::SUCCESS)
    }

    /// Waits for the answer: spins for a short time, then waits in the driver.
    pub fn wait(mut self, e: &Executor, reply: &mut Vec<u8>) -> Code {
        let start = Instant::now();
        loop {
            if let Some(rc) = self.poll(e, reply) {
                return rc;
            }
            if start.elapsed() < SPIN {
                std::hint::spin_loop();
            } else if let Some(mark) = self.marks.last() {
                // The result is found by polling.
                let _ = e.gpu().synchronize_event(mark.event());
            } else {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Releases its events and buffers; copies are no longer under way.
    fn release(&mut self) {
        for mark in self.marks.drain(..) {
            if let Mark::Own(event) = mark {
                self.pools.recycle(event);
            }
        }
        self.pools.give_back(self.bytes.drain(..).map(|(b, _)| b));
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let buffers: Vec<Buffer> = self.bytes.drain(..).map(|(b, _)| b).collect();
        let mut own = self.marks.drain(..).filter_map(|m| if let Mark::Own(e) = m { Some(e) } else { None });
        if !buffers.is_empty() {
            match own.next() {
                // The copy may still be under way.
                Some(event) => self.pools.fly(event, buffers),
                None => self.pools.give_back(buffers),
            }
        }
        own.for_each(|event| self.pools.recycle(event));
    }
}
