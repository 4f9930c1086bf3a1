//! Managed variables.

use crate::kind::trim_zeros;
use std::collections::BTreeMap;

/// Maximum size of a variable; a larger one is damaged.
const MAX_BYTES: u64 = 1 << 40;
/// Maximum size of a variable's nonzero initial values.
pub(super) const MAX_INITIAL: u64 = 1 << 30;

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
pub type Places = BTreeMap<String, u64>;

impl Managed {
    /// Trailing zeros are not stored, so equal values have equal representations.
    pub(super) fn new(bytes: u64, mut initial: Vec<u8>) -> Result<Managed, String> {
        if bytes == 0 || bytes > MAX_BYTES || initial.len() as u64 > bytes {
            return Err(format!("a managed variable of {bytes} bytes"));
        }
        initial.truncate(trim_zeros(&initial).len());
        Ok(Managed { bytes, initial })
    }
}
