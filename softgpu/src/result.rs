//! Results of driver operations.

use cuda_api::sys::CUresult;

/// Result of a driver operation: the error is the code returned to the caller.
pub(crate) type Res<T = ()> = Result<T, CUresult>;
