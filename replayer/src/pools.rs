//! What is used for a moment and used again: events, and page-locked buffers for copies.

use crate::gpu::Gpu;
use cuda_api::code::{self, Code};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Sizes of buffers: 64 KiB, doubled up to 4 MiB.
const SMALLEST: usize = 64 << 10;
const CLASSES: usize = 7;
/// The largest piece of a copy.
pub(crate) const PIECE: usize = SMALLEST << (CLASSES - 1);
/// Bytes of buffers that copies to the device may occupy; then they wait for earlier ones.
const COPY_IN_LIMIT: usize = 256 << 20;
/// As above, for copies to the host, which must have all their buffers when they are submitted.
const COPY_OUT_LIMIT: usize = 1 << 30;

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A page-locked buffer. Whoever has it owns its bytes.
#[derive(Debug)]
pub(crate) struct Buffer {
    at: usize,
    class: u8,
}

impl Buffer {
    pub(crate) fn len(&self) -> usize {
        SMALLEST << self.class
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// The first `n` bytes. They must not be the target of a copy under way.
    pub(crate) fn bytes(&self, n: usize) -> &[u8] {
        // SAFETY: the driver's allocation of `len` bytes, owned by `self`; the copies into it have ended (contract).
        unsafe { std::slice::from_raw_parts(self.as_ptr(), n.min(self.len())) }
    }

    /// All bytes, for writing. They must not be part of a copy under way.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

#[derive(Debug, Default)]
struct Staging {
    free: [Vec<Buffer>; CLASSES],
    /// Buffers whose copy is under way: they are free when the event has happened. In the order of submission.
    flying: VecDeque<(u64, Vec<Buffer>)>,
    /// Bytes of all buffers.
    bytes: usize,
}

/// Events and buffers of one context.
#[derive(Debug)]
pub(crate) struct Pools {
    gpu: Gpu,
    events: Mutex<Vec<u64>>,
    staging: Mutex<Staging>,
}

impl Pools {
    pub(crate) fn new(gpu: Gpu) -> Pools {
        Pools { gpu, events: Mutex::default(), staging: Mutex::default() }
    }

    /// An event recorded in a stream.
    pub(crate) fn mark(&self, stream: u64) -> Result<u64, Code> {
        let spare = lock(&self.events).pop();
        let event = match spare {
            Some(e) => e,
            None => self.gpu.new_event(false)?,
        };
        self.gpu.record(event, stream).inspect_err(|_| self.recycle(event))?;
        Ok(event)
    }

    /// Takes an event back. It may be pending: the next use records it anew.
    pub(crate) fn recycle(&self, event: u64) {
        lock(&self.events).push(event);
    }

    /// A buffer of at least `bytes` (at most [`PIECE`]); waits for copies under way when there are too many.
    pub(crate) fn buffer(&self, bytes: usize, out: bool) -> Result<Buffer, Code> {
        let class = bytes.div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize;
        if class >= CLASSES {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let limit = if out { COPY_OUT_LIMIT } else { COPY_IN_LIMIT };
        let mut pause = 0;
        loop {
            let mut s = lock(&self.staging);
            if s.free[class].is_empty() {
                self.land(&mut s)?;
            }
            if let Some(b) = s.free[class].pop() {
                return Ok(b);
            }
            if s.bytes + (SMALLEST << class) <= limit {
                let at = self.gpu.pin(SMALLEST << class)?;
                s.bytes += SMALLEST << class;
                return Ok(Buffer { at, class: class as u8 });
            }
            if let Some(bigger) = (class + 1..CLASSES).find_map(|c| s.free[c].pop()) {
                return Ok(bigger);
            }
            drop(s);
            // Buffers come back when the GPU gets there; how long that takes is the program's affair.
            pause = (pause + 5).min(200);
            std::thread::sleep(Duration::from_micros(pause));
        }
    }

    /// Frees the buffers whose copies have been made.
    fn land(&self, s: &mut Staging) -> Result<(), Code> {
        for _ in 0..s.flying.len() {
            let Some((event, buffers)) = s.flying.pop_front() else { break };
            match self.gpu.query_event(event) {
                Err(code::ERROR_NOT_READY) => s.flying.push_back((event, buffers)),
                other => {
                    // After an error of execution nothing is copied any more.
                    self.recycle(event);
                    for b in buffers {
                        s.free[usize::from(b.class)].push(b);
                    }
                    other?;
                }
            }
        }
        Ok(())
    }

    /// Takes buffers back that are in use until `event` happens.
    pub(crate) fn fly(&self, event: u64, buffers: Vec<Buffer>) {
        lock(&self.staging).flying.push_back((event, buffers));
    }

    /// Takes back buffers that nothing uses.
    pub(crate) fn give_back(&self, buffers: impl IntoIterator<Item = Buffer>) {
        let mut s = lock(&self.staging);
        for b in buffers {
            s.free[usize::from(b.class)].push(b);
        }
    }

    /// Releases everything, for a context that is about to end and in which nothing runs.
    pub(crate) fn clear(&self) {
        let mut s = lock(&self.staging);
        let Staging { free, flying, .. } = std::mem::take(&mut *s);
        let mut events = std::mem::take(&mut *lock(&self.events));
        // Errors here mean that the context is gone already, and with it what it owned.
        for (event, buffers) in flying {
            events.push(event);
            for b in buffers {
                self.gpu.unpin(b.at, b.len());
            }
        }
        for b in free.into_iter().flatten() {
            self.gpu.unpin(b.at, b.len());
        }
        for e in events {
            let _ = self.gpu.destroy_event(e);
        }
    }
}
