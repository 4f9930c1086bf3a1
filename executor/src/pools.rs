//! Pools of reusable resources: events, and page-locked buffers for copies.

use crate::gpu::Gpu;
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Sizes of buffers: 64 KiB, doubled up to 4 MiB.
const SMALLEST: usize = 64 << 10;
const CLASSES: usize = 7;
/// The largest piece of a copy, in bytes.
pub(crate) const PIECE: usize = SMALLEST << (CLASSES - 1);
/// Limit of the buffers of copies to the device, in bytes; above it, copies wait for earlier ones, see [`STEP`].
const COPY_IN_LIMIT: usize = 256 << 20;
/// The same limit for copies to the host, which need all their buffers when they are submitted.
const COPY_OUT_LIMIT: usize = 1 << 30;

/// If no buffer is returned within this time, another one is allocated in spite of the limit: the earlier copies may wait for a call that
/// comes after the present one. The time grows by one step for each piece above the limit.
const STEP: Duration = Duration::from_millis(5);
/// Maximum of this time.
const LONGEST: Duration = Duration::from_millis(250);

/// A page-locked buffer. Its holder owns its bytes.
#[derive(Debug)]
pub(crate) struct Buffer {
    at: usize,
    class: u8,
    /// The stream whose late copies all use it, see [`Pools::late_buffer`].
    stream: Option<u64>,
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
        // SAFETY: the driver's allocation of `len` bytes, owned by `self`; the copies into it are complete (contract).
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
    /// Buffers whose copies are under way, in the order of submission: they are free when the event has occurred.
    flying: VecDeque<(u64, Vec<Buffer>)>,
    /// The buffer for the late copies of each stream that has some, and its number of users.
    late: FxHashMap<u64, (Buffer, usize)>,
    /// Total size of all buffers in bytes.
    bytes: usize,
    /// Number of buffers returned so far.
    returned: u64,
}

impl Staging {
    /// Returns a buffer that is no longer used to the pool.
    fn take_back(&mut self, buffer: Buffer) {
        self.returned += 1;
        let Some(stream) = buffer.stream else {
            self.free[usize::from(buffer.class)].push(buffer);
            return;
        };
        let Some((_, users)) = self.late.get_mut(&stream) else { return };
        *users -= 1;
        if *users == 0
            && let Some((own, _)) = self.late.remove(&stream)
        {
            self.free[usize::from(own.class)].push(own);
        }
    }
}

/// The size class of buffers that hold so many bytes.
fn class(bytes: usize) -> Result<usize, Code> {
    let class = bytes.div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize;
    if class < CLASSES { Ok(class) } else { Err(code::ERROR_INVALID_VALUE) }
}

/// How long to wait for a buffer when `above` bytes above the limit are in use and none is returned.
fn longest_wait(above: usize) -> Duration {
    let steps = u32::try_from(above.div_ceil(PIECE)).unwrap_or(u32::MAX);
    STEP.saturating_mul(steps.max(1)).min(LONGEST)
}

/// Events and buffers of one context.
#[derive(Debug)]
pub(crate) struct Pools {
    gpu: Gpu,
    events: Mutex<Vec<u64>>,
    staging: Mutex<Staging>,
}

/// A shared recorded event, returned to its pool when its last user drops it.
#[derive(Debug)]
pub(crate) struct Recorded {
    event: u64,
    pools: Arc<Pools>,
}

impl Recorded {
    /// Wraps an event from this pool.
    pub(crate) fn new(event: u64, pools: Arc<Pools>) -> Recorded {
        Recorded { event, pools }
    }

    pub(crate) fn event(&self) -> u64 {
        self.event
    }

    /// Returns whether the event has not occurred yet.
    pub(crate) fn is_ahead(&self, gpu: &Gpu) -> bool {
        gpu.query_event(self.event) == Err(code::ERROR_NOT_READY)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.pools.recycle(self.event);
    }
}

impl Pools {
    pub(crate) fn new(gpu: Gpu) -> Pools {
        Pools { gpu, events: Mutex::default(), staging: Mutex::default() }
    }

    /// Records an event from the pool in a stream.
    pub(crate) fn mark(&self, stream: u64) -> Result<u64, Code> {
        let spare = lock(&self.events).pop();
        let event = match spare {
            Some(e) => e,
            None => self.gpu.new_event(false)?,
        };
        self.gpu.record(event, stream).inspect_err(|_| self.recycle(event))?;
        Ok(event)
    }

    /// Returns an event to the pool. It may be pending: its next use records it again.
    pub(crate) fn recycle(&self, event: u64) {
        lock(&self.events).push(event);
    }

    /// A free buffer of at least `bytes` (at most [`PIECE`]), if there is one.
    pub(crate) fn spare(&self, bytes: usize) -> Result<Option<Buffer>, Code> {
        let class = class(bytes)?;
        let mut s = lock(&self.staging);
        if s.free[class].is_empty() {
            self.land(&mut s)?;
        }
        Ok(s.free[class].pop())
    }

    /// A buffer of at least `bytes` (at most [`PIECE`]); when too many are in use, waits for copies under way, as long as copies
    /// complete.
    pub(crate) fn buffer(&self, bytes: usize, out: bool) -> Result<Buffer, Code> {
        let class = class(bytes)?;
        let limit = if out { COPY_OUT_LIMIT } else { COPY_IN_LIMIT };
        let mut pause = 0;
        let (mut returned, mut since) = (u64::MAX, Instant::now());
        loop {
            let mut s = lock(&self.staging);
            if s.free[class].is_empty() {
                self.land(&mut s)?;
            }
            if let Some(b) = s.free[class].pop() {
                return Ok(b);
            }
            let above = (s.bytes + (SMALLEST << class)).saturating_sub(limit);
            if returned != s.returned {
                (returned, since) = (s.returned, Instant::now());
            }
            let bigger = if above > 0 { (class + 1..CLASSES).find_map(|c| s.free[c].pop()) } else { None };
            if let Some(bigger) = bigger {
                return Ok(bigger);
            }
            if above == 0 || since.elapsed() >= longest_wait(above) {
                let at = self.gpu.pin(SMALLEST << class)?;
                s.bytes += SMALLEST << class;
                return Ok(Buffer { at, class: class as u8, stream: None });
            }
            drop(s);
            pause = (pause + 5).min(200);
            std::thread::sleep(Duration::from_micros(pause));
        }
    }

    /// Frees the buffers whose copies are complete.
    fn land(&self, s: &mut Staging) -> Result<(), Code> {
        for _ in 0..s.flying.len() {
            let Some((event, buffers)) = s.flying.pop_front() else { break };
            match self.gpu.query_event(event) {
                Err(code::ERROR_NOT_READY) => s.flying.push_back((event, buffers)),
                other => {
                    // After an execution error no copies are under way.
                    self.recycle(event);
                    buffers.into_iter().for_each(|b| s.take_back(b));
                    other?;
                }
            }
        }
        Ok(())
    }

    /// Returns buffers to the pool that are in use until `event` occurs.
    pub(crate) fn fly(&self, event: u64, buffers: Vec<Buffer>) {
        lock(&self.staging).flying.push_back((event, buffers));
    }

    /// Returns buffers to the pool that are no longer used.
    pub(crate) fn give_back(&self, buffers: impl IntoIterator<Item = Buffer>) {
        let mut s = lock(&self.staging);
        buffers.into_iter().for_each(|b| s.take_back(b));
    }

    /// A buffer for a late copy of a stream, whose bytes arrive when the stream reaches it. All late copies of a stream share one buffer,
    /// since each is complete before the bytes of the next are requested; so the number of waiting copies does not matter.
    pub(crate) fn late_buffer(&self, stream: u64, bytes: usize) -> Result<Buffer, Code> {
        if bytes > PIECE {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let share = |s: &mut Staging| {
            let (own, users) = s.late.get_mut(&stream)?;
            *users += 1;
            Some(Buffer { at: own.at, class: own.class, stream: Some(stream) })
        };
        {
            let mut s = lock(&self.staging);
            if s.late.contains_key(&stream) {
                // Completed late copies release the buffer.
                self.land(&mut s)?;
            }
            if let Some(shared) = share(&mut s) {
                return Ok(shared);
            }
        }
        // Large enough for all later copies.
        let own = self.buffer(PIECE, false)?;
        let mut s = lock(&self.staging);
        let others = s.late.contains_key(&stream);
        if others {
            // Another thread has added one first.
            s.take_back(own);
        } else {
            s.late.insert(stream, (own, 0));
        }
        share(&mut s).ok_or(code::ERROR_UNKNOWN)
    }

    /// Frees everything, for a context that is about to be destroyed and in which no work is running.
    pub(crate) fn clear(&self) {
        let mut s = lock(&self.staging);
        let mut all = std::mem::take(&mut *s);
        let mut events = std::mem::take(&mut *lock(&self.events));
        // Errors here mean that the context, with what it owned, is already destroyed.
        for (event, buffers) in std::mem::take(&mut all.flying) {
            events.push(event);
            buffers.into_iter().for_each(|b| all.take_back(b));
        }
        for b in all.free.into_iter().flatten() {
            self.gpu.unpin(b.at, b.len());
        }
        for e in events {
            let _ = self.gpu.destroy_event(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(at: usize, class: u8, stream: Option<u64>) -> Buffer {
        Buffer { at, class, stream }
    }

    #[test]
    fn a_shared_buffer_is_free_when_its_last_user_gives_it_back() {
        let mut s = Staging::default();
        s.late.insert(7, (held(1 << 20, 6, None), 2));
        s.take_back(held(1 << 20, 6, Some(7)));
        assert!(s.free[6].is_empty() && s.late.contains_key(&7));
        s.take_back(held(1 << 20, 6, Some(7)));
        assert!(s.late.is_empty());
        assert_eq!(s.free[6].iter().map(|b| (b.at, b.stream)).collect::<Vec<_>>(), [(1 << 20, None)]);
        s.take_back(held(4096, 0, None));
        assert_eq!((s.free[0].len(), s.returned), (1, 3));
    }

    #[test]
    fn longest_wait_grows_with_what_is_above_the_limit_but_not_for_ever() {
        assert_eq!(longest_wait(1), STEP);
        assert_eq!(longest_wait(PIECE), STEP);
        assert_eq!(longest_wait(10 * PIECE), 10 * STEP);
        assert_eq!(longest_wait(usize::MAX), LONGEST);
    }
}
