//! The driver, and how a call is printed.

use cuda_api::driver::Loaded;
use std::ffi::{CStr, c_char};
use std::path::Path;

/// Whatever `libcuda.so.1` the dynamic linker finds.
pub struct Surface {
    /// Its entry points.
    pub loaded: Loaded,
}

impl Surface {
    /// Loads the driver; nothing of it is called.
    pub fn open() -> Result<Surface, String> {
        Ok(Surface { loaded: Loaded::open(Path::new("libcuda.so.1")).map_err(|e| e.to_string())? })
    }
}

/// Makes a call and answers its result code; a function that is missing answers -1.
macro_rules! code {
    ($s:expr, $family:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        match $s.loaded.calls.$family.$name {
            // SAFETY: pointers among the arguments point to live values of the types in the table, or are null on purpose.
            Some(f) => unsafe { f($($arg),*) },
            None => -1,
        }
    }};
}

/// Makes a call and prints its name and result code.
macro_rules! tell {
    ($s:expr, $family:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let code = code!($s, $family.$name($($arg),*));
        println!("{:<56}{code}", stringify!($name));
        code
    }};
}

/// Makes a call and prints its name, result code and an output, which is named last and made before the call.
macro_rules! show {
    ($s:expr, $family:ident.$name:ident($($arg:expr),* $(,)?) => $($out:expr),+) => {{
        let code = code!($s, $family.$name($($arg),*));
        print!("{:<56}{code}", stringify!($name));
        if code == 0 {
            $(print!(" {:?}", $out);)+
        }
        println!();
        code
    }};
}

/// A text that the driver has written into a buffer.
pub fn text(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// A text of the driver's own.
pub fn static_text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "null".to_owned();
    }
    // SAFETY: not null, so the driver answered with a C string that lives as long as the driver.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A handle that never was one.
pub fn bad_handle<T>() -> *mut T {
    std::ptr::without_provenance_mut(0x7777_0000)
}
