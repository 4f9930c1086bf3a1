//! What a call does, and how it is carried out.

/// What a call does to the state of the GPU side. It decides journalling and forwarding (docs/execution.md, "Rows and classes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Answered in the job's process.
    Local,
    /// Asks the place, changes nothing.
    Query,
    /// Builds state: journalled on success.
    State,
    /// Allocates or frees: journalled, and memsync's regions.
    Memory,
    /// Launches, copies, memsets: sent without waiting, never journalled.
    Work,
    /// Waits for the GPU.
    Sync,
    /// Exported, answers `CUDA_ERROR_NOT_SUPPORTED`.
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

    /// Whether a successful call of this class is a journal record.
    #[inline]
    pub const fn recorded(self) -> bool {
        matches!(self, Class::State | Class::Memory)
    }
}

/// How the recorder carries a row out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// From its kinds: sent to the place without waiting.
    Send,
    /// From its kinds: sent, and the caller waits for the answer.
    Wait,
    /// By a hand-written function of the recorder.
    Custom,
    /// By a hand-written function that works before `cuInit` and touches no place.
    Bare,
    /// Not carried out.
    Refused,
}
