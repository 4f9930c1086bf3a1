//! Which jobs the daemon has served of late, for those who watch it (docs/servers.md, "The page of a server").

use super::accounting::End;
use super::client::Client;
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

/// How many are kept.
const KEPT: usize = 200;

/// The service of a job by a worker, which is over.
#[derive(Debug, Clone)]
pub(super) struct Stay {
    /// Number of the GPU, or [`crate::endpoint::Endpoint::MEMORY`].
    pub(super) gpu: u32,
    pub(super) worker: u32,
    pub(super) client: Client,
    pub(super) until_unix_ms: u64,
    /// Whether the job came by a move, and left by one.
    pub(super) moved_in: bool,
    pub(super) moved_out: bool,
    pub(super) end: End,
}

/// Those that ended last, the latest one last.
#[derive(Debug, Default)]
pub(super) struct Stays(Mutex<VecDeque<Stay>>);

impl Stays {
    pub(super) fn add(&self, stay: Stay) {
        let mut stays = lock(&self.0);
        if stays.len() == KEPT {
            stays.pop_front();
        }
        stays.push_back(stay);
    }

    pub(super) fn all(&self) -> Vec<Stay> {
        lock(&self.0).iter().cloned().collect()
    }
}
