//! Why a text is not a module, and how a launch fails.

/// Why a text is not a PTX module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// Line of the text, from 1.
    pub line: usize,
    /// The expected and the found text.
    pub message: String,
}

impl PtxError {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> PtxError {
        PtxError { line, message: message.into() }
    }
}

impl std::fmt::Display for PtxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ptx line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for PtxError {}

/// How a launch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access outside the memory the kernel may touch.
    IllegalAddress(u64),
    /// An access to an address that is not a multiple of its size.
    MisalignedAddress(u64),
    /// An instruction that the interpreter does not support, named by the text.
    IllegalInstruction(String),
    /// A failed device `assert`, with the text as CUDA prints it.
    Assert(String),
    /// `trap`
    Trap,
    /// A call or branch to an address where no function begins.
    InvalidPc(u64),
    /// All threads of a CTA wait for each other (deadlock).
    Timeout,
    /// `Env::cancel` was set.
    Cancelled,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::IllegalAddress(address) => write!(f, "illegal address {address:#x}"),
            Fault::MisalignedAddress(address) => write!(f, "misaligned address {address:#x}"),
            Fault::IllegalInstruction(what) => write!(f, "illegal instruction: {what}"),
            Fault::Assert(text) => write!(f, "device assertion: {text}"),
            Fault::Trap => write!(f, "trap"),
            Fault::InvalidPc(address) => write!(f, "no function to execute at {address:#x}"),
            Fault::Timeout => write!(f, "all threads of a block wait for each other"),
            Fault::Cancelled => write!(f, "cancelled"),
        }
    }
}

impl std::error::Error for Fault {}
