//! The graphs of the process and the captures that make them.

use cuda_api::code::{self, Code};
use cuda_api::sys::CUresult;
use cuda_model::graph::Shared;
use std::sync::LazyLock;

/// Handles of graphs start with 0x4c here, so that they cannot be mistaken for the recorder's.
pub(crate) static GRAPHS: LazyLock<Shared> = LazyLock::new(|| Shared::new(1 << 60));
/// Adds the result codes of captures to those of ordinary calls.
pub(crate) fn error(rc: Code) -> CUresult {
    use CUresult as E;
    match rc {
        code::ERROR_INVALID_VALUE => E::CUDA_ERROR_INVALID_VALUE,
        code::ERROR_ILLEGAL_STATE => E::CUDA_ERROR_ILLEGAL_STATE,
        code::ERROR_NOT_SUPPORTED => E::CUDA_ERROR_NOT_SUPPORTED,
        code::ERROR_STREAM_CAPTURE_UNSUPPORTED => E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        code::ERROR_STREAM_CAPTURE_INVALIDATED => E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        code::ERROR_STREAM_CAPTURE_MERGE => E::CUDA_ERROR_STREAM_CAPTURE_MERGE,
        code::ERROR_STREAM_CAPTURE_ISOLATION => E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        code::ERROR_STREAM_CAPTURE_IMPLICIT => E::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        code::ERROR_CAPTURED_EVENT => E::CUDA_ERROR_CAPTURED_EVENT,
        _ => E::CUDA_ERROR_UNKNOWN,
    }
}
