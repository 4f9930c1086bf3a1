//! The driver, and how a call is printed.

pub use tests::driver::{static_text, text};

use cuda_api::driver::{LoadError, Loaded};
use std::path::Path;

/// Whatever `libcuda.so.1` the dynamic linker finds.
pub struct Surface {
    /// Its entry points.
    pub loaded: Loaded,
}

impl Surface {
    /// Loads the driver; nothing of it is called.
    pub fn open() -> Result<Surface, LoadError> {
        Ok(Surface { loaded: Loaded::open(Path::new("libcuda.so.1"))? })
    }
}

/// Makes a call and prints its name and result code.
macro_rules! tell {
    ($s:expr, $family:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let code = call!($s, $family.$name($($arg),*));
        println!("{:<56}{code}", stringify!($name));
        code
    }};
}

/// Makes a call and prints its name, result code and an output, which is named last and made before the call.
macro_rules! show {
    ($s:expr, $family:ident.$name:ident($($arg:expr),* $(,)?) => $($out:expr),+) => {{
        let code = call!($s, $family.$name($($arg),*));
        print!("{:<56}{code}", stringify!($name));
        if code == 0 {
            $(print!(" {:?}", $out);)+
        }
        println!();
        code
    }};
}

/// A handle that never was one.
pub fn bad_handle<T>() -> *mut T {
    std::ptr::without_provenance_mut(0x7777_0000)
}
