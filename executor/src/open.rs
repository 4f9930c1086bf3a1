//! Opens a driver for one GPU.
//!
//! In each process a driver library is loaded, patched and started only once, and is bound to one GPU from then on. A place that was
//! closed can be opened again with the same library.

use crate::gpu::Gpu;
use crate::steer;
use cuda_api::code::{self, Code};
use cuda_api::driver::{LoadError, Loaded};
use cuda_api::lock::lock;
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// File of the CUDA driver (libcuda.so.1 or softgpu), opened by this path.
    pub driver: PathBuf,
    /// The GPU's ordinal among those that the process may see (`CUDA_VISIBLE_DEVICES`, otherwise all).
    pub gpu: u32,
    /// The job's virtual device, which determines the addresses. Below [`DEVICES`](cuda_api::address_map::DEVICES).
    pub virtual_device: u32,
}

/// Why a place cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The library cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The address ranges of the virtual device are not available.
    #[error("cannot hold the addresses of virtual device {device}: {why}")]
    Hold {
        /// The virtual device.
        device: u32,
        /// The system's error.
        why: io::Error,
    },
    /// The library cannot be made to use the job's addresses.
    #[error("cannot steer {path}: {why}")]
    Steer {
        /// The library.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// There is no such GPU.
    #[error("there is no GPU {gpu} that the driver shows{}", shown(visible.as_deref()))]
    NoSuchGpu {
        /// The ordinal.
        gpu: u32,
        /// The value of `CUDA_VISIBLE_DEVICES`, if it is set.
        visible: Option<String>,
    },
    /// A driver call failed.
    #[error("{what} failed: {} ({code})", name(*code))]
    Call {
        /// The operation that failed.
        what: &'static str,
        /// The driver's code.
        code: Code,
    },
    /// The driver library is already in use by an open place of this process.
    #[error("{path} is in use by another place of this process")]
    Busy {
        /// The library.
        path: PathBuf,
    },
    /// The driver library was started for another GPU.
    #[error("{path} was started for GPU {had} of this machine and cannot show GPU {want} to the same process")]
    OtherGpu {
        /// The library.
        path: PathBuf,
        /// The GPU for which it was started.
        had: u32,
        /// The requested GPU.
        want: u32,
    },
    /// The driver library was started for another virtual device.
    #[error("{path} was started for virtual device {had} and cannot serve virtual device {want} in the same process")]
    OtherDevice {
        /// The library.
        path: PathBuf,
        /// The virtual device for which it was started.
        had: u32,
        /// The requested virtual device.
        want: u32,
    },
    /// The driver did not provide the addresses that the job's memory must have.
    #[error("the driver reserved {got:#x} instead of {want:#x} for the job's memory")]
    Address {
        /// The start of the arena.
        want: u64,
        /// The address that the driver returned.
        got: u64,
    },
    /// An earlier place in this process left something in the ranges, so addresses would differ.
    #[error("the driver still holds addresses of an earlier visit; this process cannot go back to {path}")]
    Leftover {
        /// The library.
        path: PathBuf,
    },
}

fn shown(visible: Option<&str>) -> String {
    visible.map_or_else(String::new, |v| format!(": CUDA_VISIBLE_DEVICES is \"{v}\""))
}

fn name(code: Code) -> &'static str {
    code::describe(code).map_or("CUDA_ERROR_UNKNOWN", |(name, _)| name.trim_end_matches('\0'))
}

/// A driver library of this process.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    gpu: Gpu,
    /// The GPU and virtual device to which it was bound when it was started.
    serves: Option<(u32, u32)>,
    in_use: bool,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// The exclusive right to use a driver library; released when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) path: PathBuf,
    pub(crate) gpu: Gpu,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut all = lock(&OPENED);
        if let Some(o) = all.iter_mut().find(|o| o.path == self.path) {
            o.in_use = false;
        }
    }
}

/// The GPU and virtual device to which a driver library of this process is bound, if an executor has been opened on it.
pub fn bound(driver: &Path) -> Option<(u32, u32)> {
    let path = std::fs::canonicalize(driver).unwrap_or_else(|_| driver.into());
    lock(&OPENED).iter().find(|o| o.path == path)?.serves
}

/// The value of `CUDA_VISIBLE_DEVICES` that makes exactly the requested GPU visible.
fn visible(gpu: u32, environment: Option<&str>) -> Option<String> {
    match environment {
        None => Some(gpu.to_string()),
        Some(list) => list.split(',').map(str::trim).nth(gpu as usize).filter(|e| !e.is_empty()).map(str::to_owned),
    }
}

/// The driver library of this file, loaded and patched if it is not yet.
fn find<'a>(all: &'a mut Vec<Opened>, path: &Path) -> Result<&'a mut Opened, OpenError> {
    let at = match all.iter().position(|d| d.path == path) {
        Some(at) => at,
        None => {
            all.push(Opened { path: path.to_owned(), gpu: load(path)?, serves: None, in_use: false });
            all.len() - 1
        }
    };
    Ok(&mut all[at])
}

/// Loads a driver library without starting it, so that exit handlers that it registers while it is loaded are registered before later
/// ones of the caller.
///
/// # Errors
/// The library cannot be loaded, or cannot be made to use the job's addresses.
pub fn preload(driver: &Path) -> Result<(), OpenError> {
    let path = std::fs::canonicalize(driver).unwrap_or_else(|_| driver.into());
    find(&mut lock(&OPENED), &path).map(drop)
}

/// Loads, patches and starts a driver if it is not yet, with one visible GPU.
pub(crate) fn lease(o: &Options) -> Result<Lease, OpenError> {
    let hold = |why| OpenError::Hold { device: o.virtual_device, why };
    steer::hold_ranges(o.virtual_device).map_err(hold)?;
    let path = std::fs::canonicalize(&o.driver).unwrap_or_else(|_| o.driver.clone());
    let mut all = lock(&OPENED);
    let opened = find(&mut all, &path)?;
    if opened.in_use {
        return Err(OpenError::Busy { path });
    }
    match opened.serves {
        Some((had, _)) if had != o.gpu => return Err(OpenError::OtherGpu { path, had, want: o.gpu }),
        Some((_, had)) if had != o.virtual_device => {
            return Err(OpenError::OtherDevice { path, had, want: o.virtual_device });
        }
        _ => {}
    }
    if !steer::is_free(o.virtual_device) || !steer::begin_anew(o.virtual_device) {
        return Err(OpenError::Leftover { path });
    }
    steer::use_device(o.virtual_device);
    if opened.serves.is_none() {
        let started = steer::without_placeholders(|| {
            let _placing = steer::Placing::enter(o.virtual_device);
            start(&opened.gpu, o.gpu)
        });
        started.map_err(hold)??;
        steer::started(o.virtual_device);
        opened.serves = Some((o.gpu, o.virtual_device));
    }
    opened.in_use = true;
    Ok(Lease { path, gpu: opened.gpu.clone() })
}

fn load(path: &Path) -> Result<Gpu, OpenError> {
    let loaded = Loaded::open(path)?;
    let cannot = |why: String| OpenError::Steer { path: path.into(), why };
    // SAFETY: `Loaded` never closes the handle.
    let slots = unsafe { steer::patch(loaded.handle) }.map_err(|e| cannot(e.to_string()))?;
    for (what, n) in [("mmap", slots.mmap), ("getenv", slots.getenv)] {
        if n == 0 {
            return Err(cannot(format!("it does not call {what} through its offset table")));
        }
    }
    Ok(Gpu(Arc::new(loaded.calls)))
}

fn start(driver: &Gpu, gpu: u32) -> Result<(), OpenError> {
    // In a job the variable may have been changed to choose among its places; the GPU numbers refer to the value at the job's start.
    let environment = std::env::var("MRCUDA_VISIBLE").or_else(|_| std::env::var("CUDA_VISIBLE_DEVICES"));
    let environment = environment.ok().filter(|v| v != "all");
    let none = || OpenError::NoSuchGpu { gpu, visible: environment.clone() };
    let text = visible(gpu, environment.as_deref()).ok_or_else(none)?;
    let text = CString::new(text).map_err(|_| none())?;
    // Leaked because the driver may keep the pointer; once for each driver library.
    steer::set_visible(Box::leak(text.into_boxed_c_str()));
    let failed = |what| move |code| OpenError::Call { what, code };
    match driver.init() {
        Err(code::ERROR_NO_DEVICE) => return Err(none()),
        other => other.map_err(failed("cuInit"))?,
    }
    if driver.device_count().map_err(failed("cuDeviceGetCount"))? == 0 {
        return Err(none());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gpu_is_shown() {
        assert_eq!(visible(3, None).as_deref(), Some("3"));
        assert_eq!(visible(1, Some("5, GPU-abc ,7")).as_deref(), Some("GPU-abc"));
        assert_eq!(visible(3, Some("5,6,7")), None);
        assert_eq!(visible(0, Some("")), None);
    }

    #[test]
    fn what_is_no_driver_is_refused() {
        let options = |driver: &str| Options { driver: driver.into(), gpu: 0, virtual_device: 25 };
        assert!(matches!(lease(&options("/nonexistent/libcuda.so.1")), Err(OpenError::Load(LoadError::Open { .. }))));
        assert!(matches!(lease(&options("libm.so.6")), Err(OpenError::Load(LoadError::NotADriver { .. }))));
        assert!(matches!(lease(&Options { virtual_device: 99, ..options("x") }), Err(OpenError::Hold { .. })));
    }
}
