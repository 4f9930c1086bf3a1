//! Changes of mirrored memory that is used exclusively, on their way to the job over the connections of copies to the host.
//!
//! The worker finds them before an answer ([`crate::Executor::collect_gpu_changes`]), and does not go on before the job has applied all of them. So
//! whatever it sends later on its own connection comes behind them, and the changes of two scans are never under way at one time.

use super::{Segment, Sizes, Staging, State};
use crate::host_mirror::{LINE, RUNS_LINES, encode_runs};
use cuda_api::lock::{lock, wait_while};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a part.
const PART: usize = RUNS_LINES * LINE as usize;

/// Page-locked buffers for two copies of some memory: what is used, and what was agreed on. Threads of connections compare [parts](Changes) of them.
#[derive(Debug)]
pub struct Copies {
    now: usize,
    was: usize,
    /// Bytes of each.
    bytes: usize,
    /// Number of parts that were given to connections and not compared yet.
    left: AtomicUsize,
}

impl Copies {
    /// Buffers at these addresses: of what is used, and of what was agreed on.
    ///
    /// # Safety
    /// They have so many bytes, and stay while parts of them [are compared](Staging::await_compared). Nothing else uses them meanwhile.
    pub unsafe fn new([now, was]: [usize; 2], bytes: usize) -> Copies {
        Copies { now, was, bytes, left: AtomicUsize::new(0) }
    }

    /// Where a part of both lies: what is used, and what was agreed on.
    pub(crate) fn part(&self, part: Range<usize>) -> [*mut u8; 2] {
        assert!(part.start <= part.end && part.end <= self.bytes);
        [self.now, self.was].map(|at| (at + part.start) as *mut u8)
    }
}

/// A part of memory whose changes one connection finds and carries. Its bytes of the buffers are its holder's.
#[derive(Debug)]
pub struct Changes {
    /// Number of messages with changes that the worker has sent before on its own connection: the job must have applied them.
    after: u64,
    /// The address of the memory.
    at: u64,
    copies: Arc<Copies>,
    part: Range<usize>,
}

impl Changes {
    /// Compares the copies, which become equal, and writes what differs as runs. `masks` is a reused buffer.
    fn encode(&self, masks: &mut Vec<u8>, to: &mut Vec<u8>) {
        let [now, was] = self.copies.part(self.part.clone());
        // SAFETY: until `left` says that all parts were compared, only the holder of this part uses its bytes.
        let (now, was) = unsafe {
            let bytes = self.part.len();
            (std::slice::from_raw_parts(now, bytes), std::slice::from_raw_parts_mut(was, bytes))
        };
        to.clear();
        encode_runs(self.at, now, was, masks, to);
    }
}

/// What a connection carries to the host.
#[derive(Debug)]
pub enum ToHost {
    /// A part of a copy.
    Segment(Segment),
    /// Changes, for [`Staging::encode`].
    Changes(Changes),
}

/// Changes under way.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// There are connections to the host.
    has_connections: bool,
    waiting: VecDeque<Changes>,
    /// Number of parts whose changes have not arrived.
    left: usize,
}

fn find(s: &mut State, to_device: bool, sizes: &Sizes) -> Result<ToHost, bool> {
    let changes = s.changes.waiting.pop_front();
    changes.map_or_else(|| Staging::find_segment(s, to_device, sizes).map(ToHost::Segment), |some| Ok(ToHost::Changes(some)))
}

impl Staging {
    /// From now on there are connections to the host that carry changes.
    pub fn begin_to_carry_changes(&self) {
        lock(&self.state).changes.has_connections = true;
    }

    /// Returns whether there are such connections.
    pub(crate) fn carries_changes(&self) -> bool {
        lock(&self.state).changes.has_connections
    }

    /// Gives the memory at an address to the connections. Its copies are in these buffers, which nothing else uses before [`Staging::await_compared`]
    /// returns. There are few buffers, so the parts that wait are few.
    pub fn send_changes(&self, after: u64, at: u64, bytes: usize, copies: &Arc<Copies>) {
        let of = |start: usize| {
            let part = start..bytes.min(start + PART);
            Changes { after, at: at + start as u64, copies: copies.clone(), part }
        };
        let parts = (0..bytes).step_by(PART).map(of);
        copies.left.store(parts.len(), Ordering::Release);
        let mut s = lock(&self.state);
        s.changes.left += parts.len();
        s.changes.waiting.extend(parts);
        let wake = s.waiting[0].min(s.changes.waiting.len());
        self.wake(wake, 0);
    }

    /// Waits until all parts of these buffers were compared.
    pub fn await_compared(&self, copies: &Copies) {
        drop(wait_while(&self.changes_carried, lock(&self.state), |_| copies.left.load(Ordering::Acquire) > 0));
    }

    /// Waits until the job has applied all changes.
    pub fn await_changes(&self) {
        drop(wait_while(&self.changes_carried, lock(&self.state), |s| s.changes.left > 0));
    }

    /// Finds the changes of a part, and writes them as runs of lines; returns how many messages with changes come before, or `None` if nothing has
    /// changed. `masks` is a reused buffer.
    pub fn encode(&self, changes: Changes, masks: &mut Vec<u8>, to: &mut Vec<u8>) -> Option<u64> {
        changes.encode(masks, to);
        if changes.copies.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Who waits has looked before, or waits.
            drop(lock(&self.state));
            self.changes_carried.notify_all();
        }
        if to.is_empty() {
            self.changes_arrived();
        }
        (!to.is_empty()).then_some(changes.after)
    }

    /// The job has applied the changes of a part.
    pub fn changes_arrived(&self) {
        let mut s = lock(&self.state);
        s.changes.left -= 1;
        if s.changes.left == 0 {
            self.changes_carried.notify_all();
        }
    }

    /// As [`Staging::next`] to the host; changes come first, since a thread waits for them.
    pub fn next_to_host(&self) -> ToHost {
        self.next_of(false, find)
    }

    /// As [`Staging::try_next`] to the host, and as [`Staging::next_to_host`].
    pub fn try_next_to_host(&self) -> Option<ToHost> {
        self.try_next_of(false, find)
    }
}
