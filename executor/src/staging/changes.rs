//! Changes of mirrored memory that is used exclusively, on their way over the connections of copies to the host, in both directions.
//!
//! **To the job.** The worker finds them before an answer ([`crate::Executor::collect_gpu_changes`]), and does not go on before the job has applied all of them. So
//! whatever it sends later on its own connection comes behind them, and the changes of two scans are never under way at one time.
//!
//! **From the job.** The job says in its calls that there are some, and the connections ask for them until it has no more ([`super::Staging::next_from_job`]). The
//! thread that applies messages writes them to the blocks and takes no later message before all have come. These connections are used because the
//! threads at their other ends wait for nothing but them; those for copies to the device may wait for calls.

use crate::host_mirror::{LINE, LinesOfRuns, RUNS_LINES, encode_runs};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Bytes of a part.
pub(super) const PART: usize = RUNS_LINES * LINE as usize;

/// Page-locked buffers for two copies of some memory: what is used, and what was agreed on. Threads of connections compare [parts](Changes) of them.
#[derive(Debug)]
pub struct Copies {
    now: usize,
    was: usize,
    /// Bytes of each.
    bytes: usize,
    /// Number of parts that were given to connections and not compared yet.
    pub(super) left: AtomicUsize,
}

impl Copies {
    /// Buffers at these addresses: of what is used, and of what was agreed on.
    ///
    /// # Safety
    /// They have so many bytes, and stay while parts of them [are compared](super::Staging::await_compared). Nothing else uses them meanwhile.
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
    pub(super) after: u64,
    /// The address of the memory.
    pub(super) at: u64,
    pub(super) copies: Arc<Copies>,
    pub(super) part: Range<usize>,
}

impl Changes {
    /// Compares the copies, which become equal, and writes what differs as runs. `masks` is a reused buffer.
    pub(super) fn encode(&self, masks: &mut Vec<u8>, to: &mut Vec<u8>) {
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

/// Changes under way.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// There are connections to the host.
    pub(super) has_connections: bool,
    pub(super) waiting: VecDeque<Changes>,
    /// Number of parts whose changes have not arrived.
    pub(super) left: usize,
}

/// Maximum number of messages with changes of the job that are asked for, or wait to be applied (16 MiB).
const MESSAGES: usize = 24;

/// Changes of the job that are asked for.
#[derive(Debug, Default)]
pub(super) struct FromJob {
    /// The number of times that the job has had changes.
    pub(super) round: u64,
    /// It may have more of them now.
    pub(super) has_more: bool,
    /// Questions that were not answered.
    pub(super) asked: usize,
    /// Messages that were not applied, and buffers for others.
    pub(super) came: VecDeque<LinesOfRuns>,
    pub(super) spare: Vec<LinesOfRuns>,
    /// Messages that are being applied.
    pub(super) applied: usize,
}

impl FromJob {
    /// Counts a question if there is room for the answer. Returns the round.
    pub(super) fn ask(&mut self) -> Option<u64> {
        let may_ask = self.has_more && self.asked + self.came.len() + self.applied < MESSAGES;
        self.asked += usize::from(may_ask);
        may_ask.then_some(self.round)
    }
}
