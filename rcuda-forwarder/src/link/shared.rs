//! The state of a link, with what carries its calls and answers.

use super::common::Common;
use super::replies::Waiter;
use super::transport::CallTransport;

/// State shared by the program's threads and ours.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) common: Common,
    pub(super) transport: Box<dyn CallTransport>,
}

impl Shared {
    /// Polls for the answer that `waiter` waits for, for a short time.
    pub(super) fn poll(&self, waiter: &Waiter) {
        self.transport.poll(&self.common, waiter);
    }
}
