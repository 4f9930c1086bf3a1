//! One outstanding answer.

use super::replies::{Lost, Waiter};
use super::shared::Shared;
use crate::traffic;
use cuda_api::code::Code;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// An outstanding answer. Dropping it does not cancel the call.
#[derive(Debug)]
pub struct Reply {
    /// Row or operation.
    id: u16,
    waiter: Arc<Waiter>,
    shared: Arc<Shared>,
    span: Range<u64>,
}

impl Reply {
    pub(super) fn new(id: u16, waiter: Arc<Waiter>, shared: Arc<Shared>, span: Range<u64>) -> Reply {
        Reply { id, waiter, shared, span }
    }

    /// The call's range of positions ([`super::Link::position`]).
    pub fn span(&self) -> Range<u64> {
        self.span.clone()
    }

    /// Whether [`Reply::wait`] would return at once.
    pub fn is_here(&self) -> bool {
        self.waiter.is_here()
    }

    /// Waits for the answer: the call's result, and its bytes unless they had a landing.
    pub fn wait(self) -> Result<(Code, Vec<u8>), Lost> {
        traffic::waited(self.id);
        self.shared.poll(&self.waiter);
        self.waiter.wait()
    }

    /// As [`Reply::wait`], for an answer that comes before another one that was waited for: it costs no round trip, and counts as
    /// none.
    pub fn wait_along(self) -> Result<(Code, Vec<u8>), Lost> {
        self.waiter.wait()
    }

    /// Waits for at most `limit`; `None` if the answer has not arrived.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<(Code, Vec<u8>), Lost>> {
        traffic::waited(self.id);
        self.waiter.wait_for(limit)
    }
}
