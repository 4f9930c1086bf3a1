//! Results of driver operations.

use cuda_api::sys::CUresult;

/// Result of a driver operation: the error is the code that the caller gets.
pub(crate) type Res<T = ()> = Result<T, CUresult>;
