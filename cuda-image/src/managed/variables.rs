//! Managed variables.

use crate::kind::trim_zeros;
use std::collections::BTreeMap;

/// A variable that is larger is taken for damage.
const MAX_BYTES: u64 = 1 << 40;
/// Values that are not zero of one variable.
pub(super) const MAX_INITIAL: u64 = 1 << 30;

/// A managed variable of some code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Managed {
    /// Its bytes.
    pub bytes: u64,
    /// What its first bytes are before anybody has written to it; the others are zero.
    pub initial: Vec<u8>,
}

/// Managed variables by name.
pub type Variables = BTreeMap<String, Managed>;

/// Addresses of managed variables by name.
pub type Places = BTreeMap<String, u64>;

impl Managed {
    /// Zeros at the end need no bytes: so equal values are equal.
    pub(super) fn new(bytes: u64, mut initial: Vec<u8>) -> Result<Managed, String> {
        if bytes == 0 || bytes > MAX_BYTES || initial.len() as u64 > bytes {
            return Err(format!("a managed variable of {bytes} bytes"));
        }
        initial.truncate(trim_zeros(&initial).len());
        Ok(Managed { bytes, initial })
    }
}
