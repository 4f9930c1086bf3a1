//! Requests to a server that it take no new jobs and have those that it serves move away, and the answers (docs/formats.md, "Drains").

use crate::move_request::LONGEST_PLACES;
use cuda_api::wire::Wire;
use cuda_api::{wire_enum, wire_struct};
use std::time::Duration;

/// Maximum number of jobs that an answer names.
pub(crate) const NAMED: usize = 32;
/// Maximum time for which jobs are asked to move away.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

wire_enum! {
    /// What is to become of a drain.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DrainWish {
        /// Nothing: the client asks how far it is.
        Show = 0,
        /// It begins.
        Begin = 1,
        /// The server takes jobs again.
        Cancel = 2,
    }
}

wire_struct! {
    /// A request about a drain.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DrainRequest {
        /// What is to become of it.
        pub wish: DrainWish,
        /// Where jobs are to move, as with `mrcuda serve --drain`; `None`: the server only takes no new ones.
        pub to: Option<String>,
        /// For how long jobs are asked, in milliseconds.
        pub limit_ms: u64,
    }
}

impl DrainRequest {
    /// Whether it is within the limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.to.as_ref().is_none_or(|to| to.len() <= LONGEST_PLACES) && self.limit_ms <= LONGEST.as_millis() as u64
    }
}

wire_struct! {
    /// A worker whose job has not left.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct NotLeft {
        /// The worker's process.
        pub worker: u32,
        /// Number of its GPU; `None`: the job is parked in the server's memory.
        pub gpu: Option<u32>,
        /// The job's process.
        pub pid: u32,
        /// The reason for staying that the job has given last.
        pub reason: Option<String>,
    }
}

wire_struct! {
    /// How far a drain is.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DrainState {
        /// The server takes no new jobs.
        pub closed: bool,
        /// It is about to end.
        pub ending: bool,
        /// Where jobs are asked to move; `None`: they are not asked, or no longer.
        pub to: Option<String>,
        /// For how long they are still asked, in milliseconds.
        pub left_ms: u64,
        /// Number of workers that have a job.
        pub workers: u32,
        /// The first few of them.
        pub jobs: Vec<NotLeft>,
    }
}

impl DrainState {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }
}
