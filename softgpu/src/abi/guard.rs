//! The guard around every exported function, and around host functions of the program.

use crate::gpu::{context, process};
use crate::result::Res;
use cuda_api::cancellation::Uncancelled;
use cuda_api::code;
use cuda_api::precedence::Check;
use cuda_api::sys::CUresult;
use cuda_model::error_precedence;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of an exported function; a panic becomes `UNKNOWN`. The thread is not cancelled inside: that would unwind through
/// `catch_unwind`, which ends the process.
pub(super) fn guard(body: impl FnOnce() -> Res) -> CUresult {
    let _uncancelled = Uncancelled::begin();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// As [`guard`], for functions that need `cuInit`.
pub(super) fn enter(body: impl FnOnce() -> Res) -> CUresult {
    match process::ready() {
        Ok(()) if in_host_function() => CUresult::CUDA_ERROR_NOT_PERMITTED,
        Ok(()) => guard(body),
        Err(error) => error,
    }
}

/// The error that a call returns which has failed with `found`.
pub(super) fn preceding_error(steps: &[Check], args: &[u64], found: CUresult) -> CUresult {
    let error = |rc| match rc {
        code::SUCCESS => CUresult::CUDA_SUCCESS,
        code::ERROR_INVALID_HANDLE => CUresult::CUDA_ERROR_INVALID_HANDLE,
        code::ERROR_INVALID_CONTEXT => CUresult::CUDA_ERROR_INVALID_CONTEXT,
        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
    };
    error_precedence::choose(steps, args, found, error, process::ready, || context::current().map(drop))
}

thread_local!(static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) });

fn in_host_function() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}

/// Runs a host function or callback of the program, which may make no CUDA calls.
pub(super) fn host_function(body: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    body();
    IN_HOST_FUNCTION.set(false);
}
