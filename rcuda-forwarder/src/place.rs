//! The operations of an executor that a worker needs.

use crate::control::{ControlReply, Refused};
use crate::sandbox::SandboxError;
use ::executor::host_mirror::PlaceChanges;
use ::executor::staging::{Room, Staging};
use ::executor::{Budget, Busy, DeviceInfo, Evictable, NotEvicted};
use cuda_api::board::Readings;
use cuda_api::code::Code;
use cuda_api::ops::Offer;
use memsync::{Compression, Part, Stream, SyncError, Verify};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

mod executor;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod store;

/// Why a worker cannot open its place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The helper's program does not fit the job's library.
    #[error("mhelper is of another build than the job's libcuda.so.1 (they must be installed together)")]
    OtherBuild,
    /// The addresses of the virtual device are taken.
    #[error("cannot hold the addresses of virtual device {device}: {error}")]
    Addresses {
        /// The virtual device.
        device: u32,
        /// The system's error.
        error: io::Error,
    },
    /// The driver or its GPU cannot be used.
    #[error(transparent)]
    Executor(#[from] ::executor::OpenError),
    /// The process cannot confine itself.
    #[error("it cannot enter its sandbox: {0} (mrcuda serve --sandbox off does without)")]
    Sandbox(SandboxError),
    /// The start message describes a GPU.
    #[error("no store is named")]
    NoStore,
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] SyncError),
    /// The fake place has no such GPU.
    #[cfg(test)]
    #[error("GPU {0} has fallen off the bus")]
    NoGpu(u32),
}

/// Result of applying a call.
#[derive(Debug)]
pub(crate) enum Outcome<P> {
    /// The call has completed, and the reply is complete.
    Done(Code),
    /// The call completes when the GPU reaches it.
    Pending(P),
}

/// Executes calls.
pub(crate) trait Place: Send + Sync + Sized + 'static {
    /// A call that the GPU has not reached yet.
    type Pending: Send + 'static;
    /// Properties of its GPU.
    fn device(&self) -> DeviceInfo;
    /// Executes a call, without waiting for the GPU.
    fn apply(&self, id: u16, body: &[u8], reply: &mut Vec<u8>) -> Outcome<Self::Pending>;
    /// Whether copies to idle streams may not be complete: see [`Place::finish_copies`].
    fn has_copies_at_rest(&self) -> bool;
    /// Waits until such copies are complete. They are before any other call is executed.
    fn finish_copies(&self) -> Result<(), Code>;
    /// Polls whether the GPU has reached a call.
    fn poll(&self, pending: &mut Self::Pending, reply: &mut Vec<u8>) -> Option<Code>;
    /// Number of host calls that have not completed.
    fn host_calls(&self) -> usize;
    /// Whether one of them needs a message from the client, which must then be read whatever a call waits for.
    fn awaits_job(&self) -> bool;
    /// The staging areas, through which the bytes of large copies pass.
    fn staging(&self) -> &Staging;
    /// Makes sure that there are at least so many.
    fn provide_areas(&self, at_least: u32) -> Result<(), Code>;
    /// [`::executor::Executor::provide_gpu_area`].
    fn provide_gpu_area(&self, reach: &mut dyn FnMut(&Arc<Room>) -> bool) -> Result<bool, Code>;
    /// What the job may use of this machine's pinned memory.
    fn budget(&self) -> &Arc<Budget>;
    /// What each busy stream is doing.
    fn busy(&self) -> Result<Busy, Code>;
    /// Whether no stream of the job has work; adds none.
    fn is_idle(&self) -> Result<bool, Code>;
    /// Takes the file of the job's pinned memory, which must be sealed against shrinking.
    fn set_pinned_file(&self, file: OwnedFd) -> io::Result<()>;
    /// Whether there is mirrored host memory.
    fn has_apart(&self) -> bool;
    /// Whether some of it is in the GPU's memory.
    fn has_gpu_blocks(&self) -> bool {
        false
    }
    /// Whether [`cuda_api::ops::id::HOST_BYTES`] with this body needs the driver.
    fn needs_driver(&self, _: &[u8]) -> bool {
        false
    }
    /// Carries out [`cuda_api::ops::id::HOST_UNPIN`] if that needs no driver; otherwise returns false.
    fn end_block(&self, body: &[u8]) -> bool;
    /// Whether the job has named an address for mirrored memory that this process uses itself: then the process must
    /// end.
    fn has_collided(&self) -> bool;
    /// The changes of mirrored memory since the last call.
    fn collect_changes(&self) -> PlaceChanges;
    /// [`::executor::Executor::collect_gpu_changes`].
    fn collect_gpu_changes(&self, _: u64, _: &mut dyn FnMut(PlaceChanges)) -> Result<(), Code> {
        Ok(())
    }
    /// Whether it has mapped memory of places of other GPUs.
    fn uses_peers(&self) -> bool {
        false
    }
    /// Whether the job's code may print, so that text may have to be sent before an answer.
    fn prints(&self) -> bool;
    /// Free bytes of the GPU, or for a store, if others take `beside` bytes there.
    fn free_bytes(&self, beside: u64) -> Result<u64, Code>;
    /// Free and total bytes of the GPU, or of a store, whatever the job may use.
    fn whole_memory(&self) -> Result<(u64, u64), Code> {
        Ok((self.free_bytes(0)?, self.device().total_bytes))
    }
    /// What the GPU measures; nothing where there is none.
    fn readings(&self) -> Readings {
        Readings::new()
    }
    /// Puts the job's GPU memory on the account of a server's client, before it uses any.
    fn set_account(&self, account: Arc<dyn ::executor::Account>);
    /// Bytes of the job's memory here.
    fn used_bytes(&self) -> u64;
    /// [`ControlReply::Regions`].
    fn regions(&self) -> Result<ControlReply, Code>;
    /// [`ControlReply::Shown`].
    fn show_memory(self: &Arc<Self>) -> Result<ControlReply, Refused>;
    /// How many bytes could be adopted that a place of the same GPU offers: address, bytes, number of each chunk.
    fn could_adopt(&self, offer: &Offer, chunks: &[[u64; 3]]) -> Result<u64, Refused>;
    /// Adopts them.
    fn adopt_from(&self, offer: &Offer, chunks: &[[u64; 3]]) -> Result<(), Refused>;
    /// Runs the source's part of a round over these connections; `compression`: what earlier rounds have measured of them; `send_regions`:
    /// sends all regions, which a store does not have.
    fn round_source(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        compression: &mut Vec<Compression>,
        send_regions: bool,
    ) -> Result<memsync::Round, Refused>;
    /// Runs the target's part of a round over these connections.
    fn round_target(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        verify: Verify,
        by_descriptor: bool,
    ) -> Result<memsync::Round, Refused>;
    /// Sends what a copy between GPUs of the job reads over these connections.
    fn send_parts(self: &Arc<Self>, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), Refused>;
    /// Receives what such a copy writes.
    fn receive_parts(self: &Arc<Self>, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), Refused>;
    /// How many bytes rounds have copied to this place so far.
    fn moved(&self) -> u64;
    /// [`::executor::Executor::evictable`]; nothing where there is no GPU.
    fn evictable(&self) -> Result<Evictable, NotEvicted> {
        Err(NotEvicted::Nothing)
    }
    /// [`::executor::Executor::evict`].
    fn evict(self: &Arc<Self>, _limit: u64, _goes_on: &dyn Fn() -> bool) -> Result<Evictable, NotEvicted> {
        Err(NotEvicted::Nothing)
    }
    /// [`::executor::Executor::restore`].
    fn restore(self: &Arc<Self>) -> Result<(), Code> {
        Ok(())
    }
    /// [`::executor::Executor::evicted_bytes`].
    fn evicted_bytes(&self) -> u64 {
        0
    }
    /// Discards what rounds have kept for the next one.
    fn end_rounds(&self);
    /// Frees everything on the GPU.
    fn close(self: Arc<Self>);
}
