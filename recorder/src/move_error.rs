//! Why a move was refused, was abandoned or failed (docs/scheduler.md, "Codes").

use crate::ledger::NoJournal;
use crate::place::OpenError;
use ::control::{ReasonCode, Refusal};
use cuda_api::code::Code;
use journal::JournalError;
use rcuda_forwarder::PlaceSpecError;
use rcuda_forwarder::{ControlReply, LinkError, Refused};
use replayer::{Divergence, ReplayError};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Why a move, or a request that concerns one, is refused or fails. Each variant has its own code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    #[error("the job has no GPU")]
    NoGpu,
    #[error(transparent)]
    BadPlace(#[from] PlaceSpecError),
    #[error(
        "{places} places were named, and {gpus} of this job's GPUs would move: name one place for all of them, or one for each"
    )]
    PlaceCount { places: usize, gpus: usize },
    #[error("there is no GPU {gpu}: the last one of this job is GPU {last}")]
    NoSuchGpu { gpu: u32, last: usize },
    #[error("{} is under way: wait for it, cancel it, or ask to be queued behind it", named(.id.as_deref()))]
    Busy { id: Option<String> },
    #[error("another plan of this job is being made: ask again when it is ready")]
    Planning,
    #[error("{waiting} moves are waiting already")]
    QueueFull { waiting: usize, ahead: String },
    #[error("this job has a move {id} already (mrcuda moves shows what became of it)")]
    DuplicateId { id: String },
    #[error("{}", unknown(.id.as_deref()))]
    NoSuchMove { id: Option<String> },
    #[error("too late: move {id} {how}")]
    TooLate { id: String, how: MoveEnd },
    #[error("{}", ended(.at.as_ref()))]
    JobEnded { at: Option<Moment> },

    #[error("cancelled {at}")]
    Cancelled { at: Moment },
    #[error("abandoned {at}: not committed within {limit_ms} ms of the request (the deadline)")]
    DeadlineExceeded { at: Moment, limit_ms: u64 },
    #[error("abandoned {at}: calls waited for {limit_ms} ms (the longest downtime allowed)")]
    DowntimeExceeded { at: Moment, limit_ms: u64 },

    #[error("cannot move: the job is already at this place")]
    AlreadyThere,
    #[error("the job is not parked")]
    NotParked,
    #[error("a job is parked, and goes on, with all its GPUs: name a place for each of them, where all execute or none does")]
    ParkedTogether,
    #[error("cannot move: the context has failed with error {0}")]
    ContextFailed(Code),
    #[error("cannot move: {0}")]
    SharedWithProcesses(Shared),
    #[error("cannot move: GPU {user} uses the memory of GPU {owner} (peer access), so they move only together (--gpu all)")]
    PeerAccess { user: u32, owner: u32 },
    #[error("cannot move now: a texture object shows memory at {address:#x} that has been freed")]
    TextureMemoryFreed { address: u64 },
    #[error("cannot move now: the GPU did not become idle: {0}")]
    NotIdle(Busyness),
    #[error(
        "cannot move: the system refuses membarrier now (a seccomp filter?), so it cannot be shown that no thread is inside a CUDA \
         call"
    )]
    NoMembarrier,
    #[error("cannot move: there is no journal: {0}")]
    NoJournal(Arc<NoJournal>),
    #[error("cannot move: {0}")]
    JournalIncomplete(#[from] JournalError),
    #[error("cannot move: {0}")]
    InternalError(String),

    #[error(transparent)]
    TargetUnreachable(LinkError),
    #[error(transparent)]
    TargetRefused(LinkError),
    #[error(transparent)]
    NoToken(OpenError),
    #[error(transparent)]
    PlaceUnusable(OpenError),
    #[error("cannot move: the target's driver speaks CUDA {}, this job started with {}", version(*.target), version(*.job))]
    DriverVersion { target: i32, job: i32 },
    #[error("cannot move: the target's driver is version {target}, this job started with version {job}")]
    DriverBuild { target: String, job: String },
    #[error(
        "cannot move: the target is a {name} of compute capability {}.{}, the job's code was chosen for {}.{}",
        .target[0], .target[1], .job[0], .job[1]
    )]
    ComputeCapability { name: String, target: [i32; 2], job: [i32; 2] },
    #[error("cannot move: {what}: {} at the target, {} where this job started", value(*.target), value(*.job))]
    GpuAttribute { what: String, target: Option<i32>, job: Option<i32> },
    #[error("cannot move: the target is a {target}, this job started on a {job}")]
    GpuModel { target: String, job: String },
    #[error(
        "cannot move: code that the job has loaded has neither machine code nor PTX for a GPU of compute capability {}.{}",
        .capability / 10, .capability % 10
    )]
    NoCode { capability: u32 },
    #[error(
        "cannot move: the job has launched a cooperative kernel with {blocks} blocks, of which the target's GPU can hold {resident}"
    )]
    NotResident { blocks: u64, resident: u64 },
    /// Why it cannot be shown that a driver or GPU that differs does the same.
    #[error("cannot move to a driver or GPU that differs: {0}")]
    NotShown(&'static str),
    #[error("cannot move: the job needs {} MiB, the target has {} MiB free", .needed >> 20, .free >> 20)]
    NoMemory { needed: u64, free: u64 },
    #[error("cannot move: error {error} on pinning {bytes} bytes of the job's memory there")]
    HostMemory { error: Code, bytes: u64 },
    #[error("cannot move: the targets' GPUs cannot use each other's memory (error {0})")]
    TargetPeerAccess(Code),
    #[error("cannot move: {0}")]
    LayoutDiffers(Layout),
    #[error(transparent)]
    ReplayDiverged(Divergence),

    #[error("source and target cannot connect to each other: {0}")]
    NotConnected(String),
    #[error("{}", lost(.0.as_ref()))]
    PlaceLost(Option<LinkError>),
    #[error(transparent)]
    PlaceRefused(Refused),
    #[error("an answer of the wrong kind: {0}")]
    BadAnswer(String),
    #[error("the target has not answered for {} s", .0.as_secs())]
    PlaceSilent(Duration),
    #[error("{call} failed with error {error}")]
    CallFailed { call: String, error: Code },
    #[error(transparent)]
    CopyFailed(Refused),
    /// After this time, or an earlier move's has not ended.
    #[error("{}; kernels that never end may hold the whole GPU", too_slow(*.0))]
    CopyTooSlow(Option<Duration>),
    #[error("{0}")]
    ParkedFile(String),
    #[error("{0}")]
    NotIdentical(String),
    #[error("cannot {what}: {error}")]
    SystemError { what: &'static str, error: io::Error },
}

/// When a move was abandoned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Moment {
    BeforeStart,
    Phase(String),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::BeforeStart => f.write_str("before it began"),
            Moment::Phase(name) => write!(f, "in the phase {name}"),
        }
    }
}

/// Why a move cannot be abandoned any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveEnd {
    #[error("has been committed, the job is at {to}")]
    Committed { to: String },
    #[error("has succeeded already")]
    Done,
    #[error("was cancelled already")]
    Cancelled,
    #[error("has failed already")]
    Failed,
}

/// What a GPU shares with other processes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Shared {
    #[error("events are shared with other processes (cuIpcGetEventHandle)")]
    Events,
    #[error("{0} allocations of other processes are open (cuIpcOpenMemHandle)")]
    OpenAllocations(usize),
    #[error("{0} allocations are shared with other processes (cuIpcGetMemHandle)")]
    Allocations(usize),
    #[error("{0} pieces of memory of other processes are mapped (imported handles and pointers)")]
    MappedPieces(usize),
    #[error("{0} pieces of memory are shared with other processes (imported handles and pointers)")]
    Pieces(usize),
}

/// Why a job cannot be quiesced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Busyness {
    #[error("a thread stays inside a CUDA call (a module is being loaded, or a copy waits)")]
    ThreadInCall,
    #[error("a thread stays inside a CUDA call, and a host function does not return")]
    ThreadAndFunction,
    #[error("a copy to or from another GPU, or a stream that waits for one, has not ended")]
    CrossDevice,
    #[error("a thread waits for an answer that does not come")]
    Answer,
    /// As described by the place; and what was launched last in a stream that may run a kernel.
    #[error("{what}{}", last.as_deref().unwrap_or_default())]
    Gpu { what: String, last: Option<String> },
}

/// In which layout source and target differ.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Layout {
    #[error("{} lies at {:#x} here and {} at {:#x} in the target", .here.0, .here.1, .there.0, .there.1)]
    Address { here: (String, u64), there: (String, u64) },
    #[error("{here} ranges of memory here, {there} in the target")]
    Count { here: usize, there: usize },
    /// As described by the place that compared them.
    #[error("{0}")]
    Regions(String),
}

fn named(id: Option<&str>) -> String {
    id.map_or_else(|| "a move".to_owned(), |id| format!("move {id}"))
}

fn unknown(id: Option<&str>) -> String {
    id.map_or_else(|| "no move is under way".to_owned(), |id| format!("this job knows no move {id} (mrcuda moves lists them)"))
}

fn ended(at: Option<&Moment>) -> String {
    at.map_or_else(|| "too late: the program ends".to_owned(), |at| format!("cancelled {at}: the program ends"))
}

fn version(v: i32) -> String {
    format!("{}.{}", v / 1000, v % 1000 / 10)
}

fn value(value: Option<i32>) -> String {
    value.map_or_else(|| "nothing known".to_owned(), |v| v.to_string())
}

fn too_slow(limit: Option<Duration>) -> String {
    limit.map_or_else(
        || "cannot move now: the source has not ended its part of an earlier move's copy".to_owned(),
        |limit| format!("cannot move: the job's memory could not be looked through and copied within {} s", limit.as_secs()),
    )
}

fn lost(why: Option<&LinkError>) -> String {
    why.map_or_else(|| "the target is gone".to_owned(), LinkError::to_string)
}

impl MoveError {
    /// The protocol's code of the error.
    pub(crate) fn code(&self) -> ReasonCode {
        match self {
            MoveError::NoGpu => ReasonCode::NoGpu,
            MoveError::BadPlace(_) => ReasonCode::BadPlace,
            MoveError::PlaceCount { .. } => ReasonCode::PlaceCount,
            MoveError::NoSuchGpu { .. } => ReasonCode::NoSuchGpu,
            MoveError::Busy { .. } | MoveError::Planning => ReasonCode::Busy,
            MoveError::QueueFull { .. } => ReasonCode::QueueFull,
            MoveError::DuplicateId { .. } => ReasonCode::DuplicateId,
            MoveError::NoSuchMove { .. } => ReasonCode::NoSuchMove,
            MoveError::TooLate { .. } => ReasonCode::TooLate,
            MoveError::JobEnded { .. } => ReasonCode::JobEnded,
            MoveError::Cancelled { .. } => ReasonCode::Cancelled,
            MoveError::DeadlineExceeded { .. } => ReasonCode::DeadlineExceeded,
            MoveError::DowntimeExceeded { .. } => ReasonCode::DowntimeExceeded,
            MoveError::AlreadyThere => ReasonCode::AlreadyThere,
            MoveError::NotParked => ReasonCode::NotParked,
            MoveError::ParkedTogether => ReasonCode::ParkedTogether,
            MoveError::ParkedFile(_) => ReasonCode::ParkedFile,
            MoveError::ContextFailed(_) => ReasonCode::ContextFailed,
            MoveError::SharedWithProcesses(_) => ReasonCode::SharedWithProcesses,
            MoveError::PeerAccess { .. } => ReasonCode::PeerAccess,
            MoveError::TextureMemoryFreed { .. } => ReasonCode::TextureMemoryFreed,
            MoveError::NotIdle(_) => ReasonCode::NotIdle,
            MoveError::NoMembarrier => ReasonCode::NoMembarrier,
            MoveError::NoJournal(_) => ReasonCode::NoJournal,
            MoveError::JournalIncomplete(_) => ReasonCode::JournalIncomplete,
            MoveError::InternalError(_) => ReasonCode::InternalError,
            MoveError::TargetUnreachable(_) => ReasonCode::TargetUnreachable,
            MoveError::TargetRefused(_) => ReasonCode::TargetRefused,
            MoveError::NoToken(_) => ReasonCode::NoToken,
            MoveError::PlaceUnusable(_) => ReasonCode::PlaceUnusable,
            MoveError::DriverVersion { .. } => ReasonCode::DriverVersion,
            MoveError::DriverBuild { .. } => ReasonCode::DriverBuild,
            MoveError::ComputeCapability { .. } => ReasonCode::ComputeCapability,
            MoveError::GpuAttribute { .. } => ReasonCode::GpuAttribute,
            MoveError::GpuModel { .. } => ReasonCode::GpuModel,
            MoveError::NoCode { .. } => ReasonCode::NoCode,
            MoveError::NotResident { .. } => ReasonCode::NotResident,
            MoveError::NotShown(_) => ReasonCode::NotShown,
            MoveError::NoMemory { .. } => ReasonCode::NoMemory,
            MoveError::HostMemory { .. } => ReasonCode::HostMemory,
            MoveError::TargetPeerAccess(_) => ReasonCode::TargetPeerAccess,
            MoveError::LayoutDiffers(_) => ReasonCode::LayoutDiffers,
            MoveError::ReplayDiverged(_) => ReasonCode::ReplayDiverged,
            MoveError::NotConnected(_) => ReasonCode::NotConnected,
            MoveError::PlaceLost(_) => ReasonCode::PlaceLost,
            MoveError::PlaceRefused(_) => ReasonCode::PlaceRefused,
            MoveError::BadAnswer(_) => ReasonCode::BadAnswer,
            MoveError::PlaceSilent(_) => ReasonCode::PlaceSilent,
            MoveError::CallFailed { .. } => ReasonCode::CallFailed,
            MoveError::CopyFailed(_) => ReasonCode::CopyFailed,
            MoveError::CopyTooSlow(_) => ReasonCode::CopyTooSlow,
            MoveError::NotIdentical(_) => ReasonCode::NotIdentical,
            MoveError::SystemError { .. } => ReasonCode::SystemError,
        }
    }

    /// Whether the text is understandable only together with the phase.
    fn needs_phase(&self) -> bool {
        matches!(
            self,
            MoveError::ReplayDiverged(_)
                | MoveError::NotConnected(_)
                | MoveError::PlaceLost(_)
                | MoveError::PlaceRefused(_)
                | MoveError::BadAnswer(_)
                | MoveError::PlaceSilent(_)
                | MoveError::CallFailed { .. }
                | MoveError::CopyFailed(_)
                | MoveError::NotIdentical(_)
        )
    }

    /// The system starts no thread now.
    pub(crate) fn no_thread(error: io::Error) -> MoveError {
        MoveError::SystemError { what: "start a thread", error }
    }

    pub(crate) fn unexpected(reply: &ControlReply) -> MoveError {
        MoveError::BadAnswer(format!("{reply:?}"))
    }

    /// A resource that must exist at this point of a move does not.
    pub(crate) fn missing(what: &str) -> MoveError {
        MoveError::InternalError(format!("the {what} is not open"))
    }

    /// An error of one end of a round.
    pub(crate) fn of_round(e: LinkError) -> MoveError {
        match MoveError::from(e) {
            MoveError::PlaceRefused(why) => MoveError::CopyFailed(why),
            other => other,
        }
    }

    /// Returns whether this may be merely a consequence of a failure of the other end of a round.
    pub(crate) fn is_of_the_other_end(&self) -> bool {
        matches!(self, MoveError::CopyFailed(why) if why.is_of_the_other_end())
    }

    /// The id of the move that the error refers to.
    fn id(&self) -> Option<&str> {
        match self {
            MoveError::Busy { id } | MoveError::NoSuchMove { id } => id.as_deref(),
            MoveError::QueueFull { ahead: id, .. } | MoveError::DuplicateId { id } | MoveError::TooLate { id, .. } => Some(id),
            _ => None,
        }
    }
}

impl From<MoveError> for Refusal {
    fn from(e: MoveError) -> Refusal {
        Refusal { id: e.id().map(str::to_owned), ..Refusal::new(e.code(), e.to_string()) }
    }
}

impl From<LinkError> for MoveError {
    fn from(e: LinkError) -> MoveError {
        match e {
            LinkError::Refused(Refused::NotIdentical(why)) => MoveError::NotIdentical(why),
            LinkError::Refused(Refused::Damaged(why)) => MoveError::ParkedFile(why),
            LinkError::Refused(Refused::OtherMemory(why)) => MoveError::LayoutDiffers(Layout::Regions(why)),
            LinkError::Refused(Refused::Unreachable(why)) => MoveError::NotConnected(why),
            LinkError::Refused(why) => MoveError::PlaceRefused(why),
            LinkError::Answer => MoveError::BadAnswer(e.to_string()),
            LinkError::Connect { .. } | LinkError::Setup { .. } | LinkError::Helper(_) => MoveError::TargetUnreachable(e),
            LinkError::Greeting { .. } | LinkError::NoToken { .. } => MoveError::TargetRefused(e),
            LinkError::Unanswered(_) | LinkError::Lost(_) => MoveError::PlaceLost(Some(e)),
        }
    }
}

impl From<OpenError> for MoveError {
    fn from(e: OpenError) -> MoveError {
        match e {
            OpenError::Server(e) => e.into(),
            OpenError::NoToken { .. } | OpenError::Token(_) => MoveError::NoToken(e),
            e => MoveError::PlaceUnusable(e),
        }
    }
}

impl From<ReplayError<MoveError>> for MoveError {
    fn from(e: ReplayError<MoveError>) -> MoveError {
        match e {
            ReplayError::Diverged(divergence) => MoveError::ReplayDiverged(divergence),
            ReplayError::Sink(e) => e,
        }
    }
}

/// Why a move did not happen: all reasons that were found, of which the first one counts, and the phase in which they were found.
#[derive(Debug)]
pub(crate) struct Failure {
    first: Box<MoveError>,
    more: Vec<MoveError>,
    phase: Option<&'static str>,
    /// The GPU, if there are several.
    gpu: Option<u32>,
}

impl Failure {
    /// Returns an error with all reasons, if there are any.
    pub(crate) fn unless_empty(reasons: Vec<MoveError>) -> Result<(), Failure> {
        let mut reasons = reasons.into_iter();
        match reasons.next() {
            Some(first) => Err(Failure { more: reasons.collect(), ..first.into() }),
            None => Ok(()),
        }
    }

    /// Adds the phase.
    pub(crate) fn in_phase(self, name: &'static str) -> Failure {
        Failure { phase: self.phase.or(Some(name)), ..self }
    }

    /// Adds the GPU, one of several.
    pub(crate) fn of_gpu(self, index: u32) -> Failure {
        Failure { gpu: Some(index), ..self }
    }

    /// The code of the first reason.
    pub(crate) fn code(&self) -> ReasonCode {
        self.first.code()
    }
}

impl From<MoveError> for Failure {
    fn from(first: MoveError) -> Failure {
        Failure { first: Box::new(first), more: Vec::new(), phase: None, gpu: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gpu) = self.gpu {
            write!(f, "GPU {gpu}: ")?;
        }
        if let Some(phase) = self.phase.filter(|_| self.first.needs_phase()) {
            write!(f, "{phase}: ")?;
        }
        write!(f, "{}", self.first)?;
        self.more.iter().try_for_each(|e| write!(f, "; {e}"))
    }
}

#[cfg(test)]
mod tests;
