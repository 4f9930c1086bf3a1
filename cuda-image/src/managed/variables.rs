//! Managed variables.

use crate::kind::{ImageError, trim_zeros};
use std::collections::BTreeMap;

/// Maximum size of a variable; a larger one is damaged.
const MAX_BYTES: u64 = 1 << 40;
/// Maximum size of a variable's nonzero initial values.
pub(super) const MAX_INITIAL: u64 = 1 << 30;

/// Why managed variables could not be found or placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagedError {
    /// The image could not be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Code for one architecture could not be changed.
    #[error("code for sm_{sm}: {error}")]
    Code {
        /// The architecture: 10 × major + minor.
        sm: u32,
        /// Why.
        error: Box<ManagedError>,
    },
    /// Entries disagree about a variable.
    #[error("its variable {0} is not the same for every kind of GPU")]
    Different(String),
    /// Archives are not changed.
    #[error("it is an archive")]
    Archive,
    /// The image has no entries.
    #[error("there is no code in it")]
    NoCode,
    /// The entry is neither a cubin nor PTX.
    #[error("it is code of a form that only the compiler reads")]
    Intermediate,
    /// Code is cut off or inconsistent.
    #[error("{0}")]
    Damaged(&'static str),
    /// The size of a variable is out of range.
    #[error("a managed variable of {0} bytes")]
    Size(u64),
    /// A variable was not given an address.
    #[error("{0} has no address")]
    NoAddress(String),
    /// An initial value that is known only after the code has been loaded.
    #[error("the first value of a managed variable is an address")]
    InitialAddress,
    /// A cubin uses a variable by a relocation that is not supported.
    #[error("a relocation of the unknown kind {kind:#x} for {name}")]
    Relocation {
        /// The relocation's type.
        kind: u32,
        /// The variable.
        name: String,
    },
    /// An instruction contains half of an addend, without the other half.
    #[error("half an addend to the address of {0}")]
    HalfAddend(String),
    /// PTX declares a variable by directives that are not supported.
    #[error("a managed variable is declared in a way that is not known")]
    Declaration,
    /// PTX declares an array without its size.
    #[error("it is not said how large {0} is")]
    NoSize(String),
    /// The initial value of a variable is larger than any that compilers make.
    #[error("the first value of {0} is too large")]
    InitialTooLarge(String),
    /// The initial value of a variable could not be parsed.
    #[error("the first value of {0} is not known")]
    InitialUnknown(String),
    /// PTX uses a variable where its address cannot be put in.
    #[error("{name} is named {how}")]
    Use {
        /// The variable.
        name: String,
        /// Where it is used.
        how: &'static str,
    },
}

/// A managed variable of some code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Managed {
    /// Size in bytes.
    pub bytes: u64,
    /// The initial value of its first bytes; the others are zero.
    pub initial: Vec<u8>,
}

/// Managed variables by name.
pub type Variables = BTreeMap<String, Managed>;

/// Addresses of managed variables by name.
pub type Addresses = BTreeMap<String, u64>;

impl Managed {
    /// Trailing zeros are not stored, so equal values have equal representations.
    pub(super) fn new(bytes: u64, mut initial: Vec<u8>) -> Result<Managed, ManagedError> {
        if bytes == 0 || bytes > MAX_BYTES || initial.len() as u64 > bytes {
            return Err(ManagedError::Size(bytes));
        }
        initial.truncate(trim_zeros(&initial).len());
        Ok(Managed { bytes, initial })
    }
}
