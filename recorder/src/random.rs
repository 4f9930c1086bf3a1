//! Random bytes.

use crate::move_error::MoveError;

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], MoveError> {
    let mut bytes = [0u8; N];
    // SAFETY: the buffer has N bytes.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(n) == Ok(N) {
        return Ok(bytes);
    }
    Err(MoveError::SystemError { what: "get random numbers", error: std::io::Error::last_os_error() })
}
