//! What a worker needs of an executor.

use crate::control::{ControlReply, Refused};
use ::executor::DeviceInfo;
use ::executor::host_mirror::Line;
use cuda_api::code::Code;
use memsync::{Stream, Verify};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

mod executor;
#[cfg(test)]
pub(crate) mod fake;

/// Result of applying a call.
#[derive(Debug)]
pub(crate) enum Outcome<P> {
    /// Done, and the reply is complete.
    Done(Code),
    /// The GPU must get there first.
    Pending(P),
}

/// An executor of calls.
pub(crate) trait Place: Send + Sync + Sized + 'static {
    /// A call that the GPU has not reached yet.
    type Pending: Send + 'static;
    /// What its GPU is.
    fn device(&self) -> DeviceInfo;
    /// Carries a call out, without waiting for the GPU.
    fn apply(&self, id: u16, body: &[u8], reply: &mut Vec<u8>) -> Outcome<Self::Pending>;
    /// Looks whether the GPU has got there.
    fn poll(&self, pending: &mut Self::Pending, reply: &mut Vec<u8>) -> Option<Code>;
    /// Host calls that are not over.
    fn host_calls(&self) -> usize;
    /// Whether one of them has to hear from the client: that must be read whatever a call waits for.
    fn awaits_job(&self) -> bool;
    /// What each busy stream is doing, in words.
    fn busy(&self) -> Result<String, Code>;
    /// Starts waiting for everything that the GPU was given.
    fn drain(&self) -> Outcome<Self::Pending>;
    /// Takes the file of the job's pinned memory, which nobody must be able to make smaller.
    fn set_pinned_file(&self, file: OwnedFd) -> io::Result<()>;
    /// Whether there is host memory of the place's own that is kept as the job's.
    fn has_apart(&self) -> bool;
    /// Whether the job has named an address for such memory that this process uses itself: then the process must end.
    fn has_collided(&self) -> bool;
    /// What has changed in it since the last time, and how many messages of the job were taken over before.
    fn look_apart(&self) -> (u64, Vec<Line>);
    /// Whether the code of the job may print, so that text may have to go before an answer.
    fn prints(&self) -> bool;
    /// Free bytes of the GPU.
    fn free_bytes(&self) -> Result<u64, Code>;
    /// [`ControlReply::Regions`].
    fn regions(&self) -> Result<ControlReply, Code>;
    /// Is the source of a round over these connections.
    fn round_source(self: &Arc<Self>, conns: &mut [Box<dyn Stream>]) -> Result<memsync::Round, Refused>;
    /// Is the target of a round over these connections.
    fn round_target(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        verify: Verify,
        near: bool,
    ) -> Result<memsync::Round, Refused>;
    /// There is no other round: what rounds have kept for the next one goes.
    fn end_rounds(&self);
    /// Frees everything on the GPU.
    fn close(self: Arc<Self>);
}
