//! What the programs share that call the driver's functions one by one.

use std::ffi::{CStr, c_char};

/// Makes a call of a [`cuda_api::driver::Loaded`] (field `loaded` of the first argument) and answers its result code; a function
/// that is missing answers -1.
#[macro_export]
macro_rules! call {
    ($t:expr, $family:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        match $t.loaded.calls.$family.$name {
            // SAFETY: pointers among the arguments point to live values of the types in the table, or are null on purpose.
            Some(f) => unsafe { f($($arg),*) },
            None => -1,
        }
    }};
}

/// A text that the driver has written into a buffer.
pub fn text(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// A text of the driver's own.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "tests pass what the driver answered, within macros that name many calls")]
pub fn static_text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "null".to_owned();
    }
    // SAFETY: not null, so the driver answered with a C string that lives as long as the driver.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
