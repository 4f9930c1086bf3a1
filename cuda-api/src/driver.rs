//! Loads libcuda by its path, never by the name that the recorder has, too.

use crate::calls::Driver;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};

/// Why a driver could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The dynamic linker refused the file.
    #[error("cannot load the CUDA driver {path}: {why}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The linker's error.
        why: String,
    },
    /// The file is not a CUDA driver.
    #[error("{path} is not a CUDA driver: it has no {symbol}")]
    NotADriver {
        /// The file.
        path: PathBuf,
        /// The symbol that every driver has.
        symbol: &'static str,
    },
}

/// A driver library, loaded with local visibility and never unloaded (drivers start threads).
#[derive(Debug)]
pub struct Loaded {
    /// Its entry points.
    pub calls: Driver,
    /// The handle of `dlopen`, for other look-ups in the library.
    pub handle: *mut c_void,
    /// Its path.
    pub path: PathBuf,
}

// SAFETY: the handle is only passed to dlinfo and dlsym, which any thread may call.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// Loads the driver at `path`. Nothing of it is called, not even `cuInit`.
    pub fn open(path: &Path) -> Result<Loaded, LoadError> {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: loading runs the library's constructors; the caller names a CUDA driver.
        let lib = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
            // The linker's error is the source; the outer text only names the call.
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            LoadError::Open { path: path.into(), why }
        })?;
        let handle = lib.into_raw();
        let find = |name: &str| -> *const c_void {
            let Ok(name) = CString::new(name) else { return std::ptr::null() };
            // SAFETY: the handle came from dlopen and is never closed.
            unsafe { libc::dlsym(handle, name.as_ptr()) }
        };
        if find("cuInit").is_null() {
            return Err(LoadError::NotADriver { path: path.into(), symbol: "cuInit" });
        }
        // SAFETY: a library that exports cuInit exports CUDA's functions under CUDA's names.
        let calls = unsafe { Driver::from_symbols(&find) };
        Ok(Loaded { calls, handle, path: path.into() })
    }
}
