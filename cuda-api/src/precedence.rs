//! The driver's order of checks, which determines which of several errors a call returns.
//!
//! A call without a context and with bad arguments has more than one error, and programs see which one is returned.
//! Functions differ: some check a pointer before they know whether CUDA was initialized, others require a context
//! before they check anything. A row lists the first checks of the driver where they matter, as observed on an H200 with
//! driver 580 (`tests/programs/conformance`): `[null(device, VALUE), start, context]`. Without a list the first error found is the
//! right one.

use crate::code::{self, Code};

/// One check of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The parameter with this number must not be zero; otherwise this error is returned.
    Null(usize, Code),
    /// The parameter with this number must not be greater; otherwise `INVALID_VALUE` is returned.
    Above(usize, u64),
    /// If both parameters are zero nothing is requested, which is a success.
    Nothing(usize, usize),
    /// CUDA must be initialized.
    Start,
    /// The thread must have a current context.
    Context,
}

/// `CUDA_ERROR_INVALID_VALUE`
pub const VALUE: Code = code::ERROR_INVALID_VALUE;
/// `CUDA_ERROR_INVALID_HANDLE`
pub const HANDLE: Code = code::ERROR_INVALID_HANDLE;
/// `CUDA_ERROR_INVALID_CONTEXT`
pub const CONTEXT: Code = code::ERROR_INVALID_CONTEXT;

/// The number of the parameter with this name; a name that no parameter has does not compile.
pub const fn position(name: &str, params: &[&str]) -> usize {
    let mut i = 0;
    while i < params.len() {
        if is_same(params[i], name) {
            return i;
        }
        i += 1;
    }
    panic!("a check names a parameter that the function does not have")
}

/// Whether two names are the same.
pub const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = a.len();
    // From the end, because many names have a common beginning.
    while i > 0 {
        i -= 1;
        if a[i] != b[i] {
            return false;
        }
    }
    true
}

/// A check as a row writes it; `$params` are the row's parameters.
macro_rules! first_check {
    ($params:tt start) => {
        Check::Start
    };
    ($params:tt context) => {
        Check::Context
    };
    ($params:tt null ($p:ident, $error:ident)) => {
        Check::Null(position(stringify!($p), param_names!($params)), precedence::$error)
    };
    ($params:tt above ($p:ident, $most:literal)) => {
        Check::Above(position(stringify!($p), param_names!($params)), $most)
    };
    ($params:tt nothing ($p:ident, $q:ident)) => {
        Check::Nothing(position(stringify!($p), param_names!($params)), position(stringify!($q), param_names!($params)))
    };
}

/// The names of a row's parameters.
macro_rules! param_names {
    (($($p:ident : $kind:ty),* $(,)?)) => {
        &[$(stringify!($p)),*]
    };
}
