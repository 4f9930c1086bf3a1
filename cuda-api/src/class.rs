//! The class of a call, and how it is executed.

/// What a call does to the state at the place. It determines journalling and forwarding (docs/execution.md, "Rows and
/// classes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Answered in the job's process.
    Local,
    /// Reads state of the place, changes nothing.
    Query,
    /// Builds state: journalled on success.
    State,
    /// Allocates or frees: journalled, and changes the regions of memsync.
    Memory,
    /// Launches, copies, memsets: sent without waiting, never journalled.
    Work,
    /// Waits for the GPU.
    Sync,
    /// Exported; returns `CUDA_ERROR_NOT_SUPPORTED`.
    Refused,
}

impl Class {
    /// Lower-case name as `mrcuda calls` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Local => "local",
            Class::Query => "query",
            Class::State => "state",
            Class::Memory => "memory",
            Class::Work => "work",
            Class::Sync => "sync",
            Class::Refused => "refused",
        }
    }

    /// Whether a successful call of this class is recorded in the journal.
    #[inline]
    pub const fn recorded(self) -> bool {
        matches!(self, Class::State | Class::Memory)
    }
}

/// How the recorder executes a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By its argument kinds: sent to the place without waiting.
    Send,
    /// By its argument kinds: sent, and the caller waits for the answer.
    Wait,
    /// By a function of the recorder that sees no pointer: the argument kinds read its inputs and write its results.
    Answer,
    /// By a function of the recorder with the parameters that C has; the row says why.
    Irregular,
    /// By a hand-written function that works before `cuInit` and uses no place.
    Bare,
    /// Not supported.
    Refused,
}

impl How {
    /// Lower-case name, as rows and `mrcuda calls` have it.
    pub fn name(self) -> &'static str {
        match self {
            How::Send => "send",
            How::Wait => "wait",
            How::Answer => "answer",
            How::Irregular => "irregular",
            How::Bare => "bare",
            How::Refused => "refused",
        }
    }
}
