//! Requests to a server that it have a job move, and the answers (docs/formats.md, "Requests to move a job").

use cuda_api::{wire_enum, wire_struct};
use std::time::Duration;

/// Maximum length of the text of the places in a request.
pub(crate) const LONGEST_PLACES: usize = 3 << 10;
/// Maximum time that a request may take.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);
/// Maximum number of GPUs in an answer: as many as a job has.
pub(crate) const GPUS: usize = crate::endpoint::GPUS as usize;

wire_struct! {
    /// A request that a server have a job move.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MoveRequest {
        /// The job's process, as the server lists it.
        pub pid: u32,
        /// One of the job's workers, which alone is to move; `None`: all that the job has at the server.
        pub worker: Option<u32>,
        /// Where the job is to move: a place for all of its GPUs at the server, or one for each, as the job reads them.
        pub to: String,
        /// How long the job has, in milliseconds.
        pub limit_ms: u64,
    }
}

impl MoveRequest {
    /// Whether it is within the limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.to.len() <= LONGEST_PLACES && self.limit_ms <= LONGEST.as_millis() as u64
    }
}

wire_enum! {
    /// What has become of a request to move a job, or of the part of one GPU.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MoveOutcome {
        /// The job has moved away.
        Moved = 0,
        /// The job stays, for the reason that it gives.
        Refused = 1,
        /// The job has ended, or left without taking anything along.
        Ended = 2,
        /// The job's worker has failed.
        Failed = 3,
        /// The job has done neither in time.
        NoAnswer = 4,
        /// The server has no such job.
        NoSuchJob = 5,
        /// Who asks may not have this job moved.
        NotPermitted = 6,
        /// Several jobs have this process id.
        Ambiguous = 7,
        /// The job is still being started, or was asked before and has not answered.
        Busy = 8,
        /// The request cannot be made of any job: a place is invalid, or their number is wrong.
        Invalid = 9,
    }
}

wire_struct! {
    /// What has become of one GPU of the job.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MovedGpu {
        /// The worker that had it.
        pub worker: u32,
        /// Number of the GPU at the server; `None`: the job was parked in the server's memory.
        pub gpu: Option<u32>,
        /// Where it was to move.
        pub to: String,
        /// What has become of it.
        pub outcome: MoveOutcome,
        /// The job's own reason for staying.
        pub reason: Option<String>,
    }
}

wire_struct! {
    /// The answer to a request to move a job.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MoveAnswer {
        /// What has become of it: that of the first GPU which has not moved, if there is one.
        pub outcome: MoveOutcome,
        /// Why the job has not moved; `None` if it has.
        pub reason: Option<String>,
        /// The GPUs of the job at the server, if it was asked.
        pub gpus: Vec<MovedGpu>,
        /// Time from the request until the server saw the outcome, in milliseconds.
        pub took_ms: u64,
    }
}
