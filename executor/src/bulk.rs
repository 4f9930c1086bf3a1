//! Large copies between pageable host memory and the device, in the process that has the memory: several threads copy between it and
//! page-locked buffers, and the driver copies between those and the device meanwhile. A driver's own copy of such memory uses one thread: on
//! an H200 it reaches 7 GB/s in and 14 GB/s out, eight threads reach 39 and 34 (docs/measurements.md).
//!
//! Only the calling thread calls the driver; the others ([`Copiers`]) move bytes.

use crate::gpu::Gpu;
use crate::host_rows::HostRows;
use crate::pools::{Buffer, Pools};
use crate::share;
use cuda_api::code::{self, Code};
use cuda_api::lock::{lock, wait};
use cuda_api::spin::{Pause, Spinning, WAKE_UP};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Bytes from which on a copy is made in this way: on an H200 four threads need 0.9 of the driver's time for 4 MiB and 0.7 for 8 MiB.
pub const SMALLEST: usize = 4 << 20;
/// Bytes that one thread copies at a time. Smaller ones reach less (256 KiB: 16 GB/s), larger ones hardly more.
const PIECE: usize = 1 << 20;
/// Bytes that are copied before they are looked at: they are in the processor's cache then.
const CHUNK: usize = 256 << 10;
/// Buffers of a copy for each thread: while one is filled, another is copied to the device.
const EACH: usize = 2;
/// The most threads that are used unless it is said: twice as many are no faster.
const THREADS: usize = 8;
/// Fewer processors than these leave nothing to be gained.
const PROCESSORS: usize = 4;
/// One more buffer is made for so many pieces of a copy, beside the first two: making one takes as long as the driver needs for 5 MiB.
const PIECES_FOR_A_BUFFER: usize = 8;
/// Maximum time between two of these polls.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// One large copy.
#[derive(Debug, Clone, Copy)]
pub struct Bulk {
    /// The device's end.
    pub device: u64,
    /// The host's end: one row of pageable memory of this process.
    pub host: HostRows,
    /// The direction.
    pub to_device: bool,
    /// The driver's stream.
    pub stream: u64,
    /// A copy to the device returns when the device has the bytes, not as soon as they have been read. One to the host always does.
    pub wait: bool,
}

/// Looks at bytes; [`copy_memory`] and [`search_memory`] say whether it has found anything.
pub type Look<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// Bytes that a helping thread copies and checks, and which piece of the copy they are.
struct Task {
    from: u64,
    /// None: they are only looked at.
    to: Option<u64>,
    bytes: usize,
    look: Look<'static>,
    number: usize,
    done: Sender<(usize, bool)>,
}

impl Task {
    /// Whether the look at the bytes has found anything.
    ///
    /// # Safety
    /// Both ends have the bytes and do not overlap, and nobody else writes to them meanwhile.
    unsafe fn carry_out(&self) -> bool {
        // SAFETY: as the caller says.
        unsafe {
            let mut found = false;
            for at in (0..self.bytes).step_by(CHUNK) {
                let n = CHUNK.min(self.bytes - at);
                let (from, to) = (self.from + at as u64, self.to.map(|to| to + at as u64));
                if let Some(to) = to {
                    std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, n);
                }
                found |= (self.look)(std::slice::from_raw_parts(to.unwrap_or(from) as *const u8, n));
            }
            found
        }
    }
}

/// Threads that copy bytes inside the process's memory, for all of its executors. They start with the first large copy and end with the
/// process. A forked child does not have them: neither has it a driver.
struct Copiers {
    threads: usize,
    tasks: Mutex<VecDeque<Task>>,
    more: Condvar,
}

impl Copiers {
    /// None where large copies are left to the driver.
    fn get(threads: Option<usize>) -> Option<&'static Copiers> {
        static COPIERS: OnceLock<Option<&'static Copiers>> = OnceLock::new();
        *COPIERS.get_or_init(|| {
            let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let threads = threads.unwrap_or(if processors < PROCESSORS { 0 } else { THREADS.min(processors / 2) });
            if threads == 0 {
                return None;
            }
            // Never freed: the threads end with the process.
            let copiers: &Copiers = Box::leak(Box::new(Copiers { threads, tasks: Mutex::default(), more: Condvar::new() }));
            let start = |_: &usize| share::spawn_with_signals_blocked("copy", || copiers.work()).is_ok();
            ((0..threads).take_while(start).count() > 0).then_some(copiers)
        })
    }

    fn hand_over(&self, task: Task) {
        lock(&self.tasks).push_back(task);
        self.more.notify_one();
    }

    fn work(&self) {
        share::take_faults();
        loop {
            let mut tasks = lock(&self.tasks);
            let task = loop {
                if let Some(task) = tasks.pop_front() {
                    break task;
                }
                tasks = wait(&self.more, tasks);
            };
            drop(tasks);
            // SAFETY: one end is memory that the copy owns, the other the program's, which it says has these bytes; the copy does not end
            // before it has heard of this (`Run`'s drop, `copy_memory`).
            let found = unsafe { task.carry_out() };
            // The copy waits for it.
            let _ = task.done.send((task.number, found));
        }
    }
}

/// A copy under way.
struct Run<'a> {
    copy: &'a Bulk,
    gpu: &'a Gpu,
    pools: &'a Pools,
    copiers: &'static Copiers,
    done: Receiver<(usize, bool)>,
    tell: Sender<(usize, bool)>,
    free: Vec<Buffer>,
    /// Buffers that it has, and how many of them were made for it.
    buffers: usize,
    made: usize,
    /// The next piece to begin.
    next: usize,
    /// Pieces that the other threads have: the piece and its buffer.
    handed: Vec<(usize, Buffer)>,
    /// Pieces that the driver has: the event behind the copy, the piece, its buffer. In the order of the stream.
    flying: VecDeque<(u64, usize, Buffer)>,
}

impl Run<'_> {
    fn bytes(&self) -> usize {
        self.copy.host.width() as usize
    }

    fn pieces(&self) -> usize {
        self.bytes().div_ceil(PIECE)
    }

    /// Where a piece begins, and its bytes.
    fn piece(&self, number: usize) -> (u64, usize) {
        let at = number * PIECE;
        (at as u64, PIECE.min(self.bytes() - at))
    }

    /// Makes the copy. What is under way when it returns is left to its drop.
    fn all(&mut self) -> Result<(), Code> {
        let mut spinning = Spinning::begin();
        loop {
            let before = (self.next, self.handed.len(), self.flying.len());
            self.see_what_the_driver_has_done()?;
            while let Ok((number, _)) = self.done.try_recv() {
                self.copied_by_thread(number)?;
            }
            while self.next < self.pieces() && self.begin_one()? {}
            let submitted = self.next == self.pieces() && self.handed.is_empty();
            if submitted && (self.flying.is_empty() || self.copy.to_device && !self.copy.wait) {
                return Ok(());
            }
            if before != (self.next, self.handed.len(), self.flying.len()) {
                spinning = Spinning::begin();
                continue;
            }
            if !self.handed.is_empty() {
                if let Ok((number, _)) = self.done.recv_timeout(POLL_INTERVAL) {
                    self.copied_by_thread(number)?;
                }
                spinning = Spinning::begin();
            } else if !spinning.goes_on(Pause::Yield, WAKE_UP) {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Begins the next piece: false if no buffer is free.
    fn begin_one(&mut self) -> Result<bool, Code> {
        let Some(buffer) = self.buffer()? else { return Ok(false) };
        let number = self.next;
        self.next += 1;
        if self.copy.to_device {
            self.hand_over(number, buffer);
            return Ok(true);
        }
        self.submit(number, buffer).map(|()| true)
    }

    /// A free buffer, if there is one, or one may be made.
    fn buffer(&mut self) -> Result<Option<Buffer>, Code> {
        if let Some(buffer) = self.free.pop() {
            return Ok(Some(buffer));
        }
        if self.buffers == EACH * self.copiers.threads {
            return Ok(None);
        }
        let mut buffer = self.pools.spare(PIECE)?;
        if buffer.is_none() && self.made <= self.next / PIECES_FOR_A_BUFFER + 1 {
            self.made += 1;
            buffer = match self.pools.buffer(PIECE, !self.copy.to_device) {
                Ok(buffer) => Some(buffer),
                // Page-locked memory is short: the copy goes on with what it has.
                Err(_) if self.buffers > 0 => None,
                Err(rc) => return Err(rc),
            };
        }
        self.buffers += usize::from(buffer.is_some());
        Ok(buffer)
    }

    fn hand_over(&mut self, number: usize, buffer: Buffer) {
        let ((skip, bytes), inside) = (self.piece(number), buffer.as_ptr() as u64);
        let host = self.copy.host.address() + skip;
        let (from, to) = if self.copy.to_device { (host, inside) } else { (inside, host) };
        self.handed.push((number, buffer));
        self.copiers.hand_over(Task { from, to: Some(to), bytes, look: &|_| false, number, done: self.tell.clone() });
    }

    /// Gives a piece to the driver.
    fn submit(&mut self, number: usize, buffer: Buffer) -> Result<(), Code> {
        let (skip, bytes) = self.piece(number);
        let (device, stream) = (self.copy.device + skip, self.copy.stream);
        let inside = buffer.as_ptr();
        // SAFETY: the buffer is this copy's until the event behind it has happened, and has as many bytes as a piece.
        let submitted = unsafe {
            if self.copy.to_device {
                self.gpu.copy_in(device, inside, bytes as u64, stream)
            } else {
                self.gpu.copy_out(inside, device, bytes as u64, stream)
            }
        };
        if let Err(rc) = submitted {
            self.free.push(buffer);
            return Err(rc);
        }
        // Without an event nothing shows when the driver has done with the buffer: nobody gets it any more then.
        let event = self.pools.mark(stream)?;
        self.flying.push_back((event, number, buffer));
        Ok(())
    }

    fn see_what_the_driver_has_done(&mut self) -> Result<(), Code> {
        while let Some((event, ..)) = self.flying.front() {
            let known = self.gpu.query_event(*event);
            if known == Err(code::ERROR_NOT_READY) {
                return Ok(());
            }
            let Some((event, number, buffer)) = self.flying.pop_front() else { return Ok(()) };
            self.pools.recycle(event);
            if known.is_err() || self.copy.to_device {
                self.free.push(buffer);
            } else {
                self.hand_over(number, buffer);
            }
            known?;
        }
        Ok(())
    }

    /// The buffer of a piece that another thread had.
    fn take_handed(&mut self, number: usize) -> Option<Buffer> {
        let at = self.handed.iter().position(|(n, _)| *n == number)?;
        Some(self.handed.swap_remove(at).1)
    }

    /// A thread has copied its piece.
    fn copied_by_thread(&mut self, number: usize) -> Result<(), Code> {
        let Some(buffer) = self.take_handed(number) else { return Ok(()) };
        if self.copy.to_device {
            return self.submit(number, buffer);
        }
        self.free.push(buffer);
        Ok(())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // After an error: the threads still use the program's memory.
        while !self.handed.is_empty() {
            let Ok((number, _)) = self.done.recv() else { break };
            let buffer = self.take_handed(number);
            self.free.extend(buffer);
        }
        for (event, _, buffer) in self.flying.drain(..) {
            self.pools.fly(event, vec![buffer]);
        }
        self.pools.give_back(self.free.drain(..));
    }
}

/// Copies bytes inside the process's memory, with several threads where there are any, and checks them in parts that begin at multiples of
/// 8: whether anything was found.
///
/// # Safety
/// Both ends have so many bytes and do not overlap; nobody else writes to them meanwhile. The program's end has been [touched](HostRows::touch).
pub unsafe fn copy_memory(from: u64, to: u64, bytes: usize, look: Look<'_>, threads: Option<usize>) -> bool {
    // SAFETY: as the caller says.
    unsafe { share_out(from, Some(to), bytes, look, threads) }
}

/// Looks at bytes of the process's memory as [`copy_memory`] does.
///
/// # Safety
/// No other thread writes to the bytes during the call. They have been [touched](HostRows::touch).
pub unsafe fn search_memory(from: u64, bytes: usize, look: Look<'_>, threads: Option<usize>) -> bool {
    // SAFETY: as the caller says.
    unsafe { share_out(from, None, bytes, look, threads) }
}

/// Shares the work out among the threads, and does a part of it.
///
/// # Safety
/// As for [`copy_memory`] or, without a destination, [`search_memory`].
unsafe fn share_out(from: u64, to: Option<u64>, bytes: usize, look: Look<'_>, threads: Option<usize>) -> bool {
    let (tell, done) = channel();
    // SAFETY: the same reference, which all tasks have done with before this function returns.
    let look = unsafe { std::mem::transmute::<Look<'_>, Look<'static>>(look) };
    let task = |at: usize, bytes| {
        let to = to.map(|to| to + at as u64);
        Task { from: from + at as u64, to, bytes, look, number: at, done: tell.clone() }
    };
    let copiers = Copiers::get(threads).filter(|_| bytes > PIECE);
    // A few MiB are divided among all threads as well.
    let piece = copiers.map_or(bytes, |all| bytes.div_ceil(all.threads).next_multiple_of(CHUNK).min(PIECE));
    let others = (piece..bytes).step_by(piece.max(1));
    if let Some(copiers) = copiers {
        others.clone().for_each(|at| copiers.hand_over(task(at, piece.min(bytes - at))));
    }
    // SAFETY: as the caller says.
    let mut found = unsafe { task(0, piece).carry_out() };
    // The other threads are never gone: they end with the process.
    others.for_each(|_| found |= done.recv().is_ok_and(|(_, found)| found));
    found
}

/// Makes a copy with several threads, or does nothing and says so (false): then the driver is to make it. `threads` is what the job's
/// settings say of their number; 0 leaves all copies to the driver.
pub(crate) fn copy(gpu: &Gpu, pools: &Pools, copy: &Bulk, threads: Option<usize>) -> Result<bool, Code> {
    let Some(copiers) = Copiers::get(threads) else { return Ok(false) };
    copy.host.touch(!copy.to_device);
    let (tell, done) = channel();
    let (free, handed, flying) = (Vec::new(), Vec::new(), VecDeque::new());
    let mut run = Run { copy, gpu, pools, copiers, done, tell, free, buffers: 0, made: 0, next: 0, handed, flying };
    // The driver may have memory where page-locked memory is short.
    let Ok(Some(first)) = run.buffer() else { return Ok(false) };
    run.free.push(first);
    run.all().map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Each byte is examined exactly once, by any of the threads, and the result says whether one was found.
    #[test]
    fn several_threads_search_all_bytes() {
        let mut bytes = vec![0u8; 5 * PIECE + 24];
        let ends = [0, PIECE - 1, PIECE, 3 * PIECE + 7, bytes.len() - 1];
        for at in ends.map(Some).into_iter().chain([None]) {
            at.into_iter().for_each(|at| bytes[at] = 1);
            let (looked, from) = (AtomicUsize::new(0), bytes.as_ptr() as u64);
            let look = |part: &[u8]| {
                assert!((part.as_ptr() as u64 - from).is_multiple_of(8));
                looked.fetch_add(part.len(), Ordering::Relaxed);
                part.contains(&1)
            };
            // SAFETY: no other thread has the bytes.
            assert_eq!(unsafe { search_memory(from, bytes.len(), &look, Some(3)) }, at.is_some(), "{at:?}");
            assert_eq!(looked.load(Ordering::Relaxed), bytes.len());
            at.into_iter().for_each(|at| bytes[at] = 0);
        }
    }
}
