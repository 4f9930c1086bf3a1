//! Start and end of the library, and the facts that it tells.

use crate::code::{self, Code};
use cuda_api::calls::Driver;
use cuda_api::facts::{self, Facts};
use rcuda_forwarder::orphan;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How old figures that change may be when another process must be started for them.
const FRESH: Duration = Duration::from_secs(2);

static STARTED: AtomicU32 = AtomicU32::new(0);
static KNOWN: Mutex<Option<(Instant, Arc<Facts>)>> = Mutex::new(None);

/// `nvmlInit`: starts are counted.
pub(crate) fn start() {
    STARTED.fetch_add(1, Ordering::Relaxed);
}

/// `nvmlShutdown`
pub(crate) fn end() -> Result<(), Code> {
    let less = |n: u32| n.checked_sub(1);
    STARTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(drop).map_err(|_| code::UNINITIALIZED)
}

/// An error outside a session.
pub(crate) fn check() -> Result<(), Code> {
    if STARTED.load(Ordering::Relaxed) == 0 { Err(code::UNINITIALIZED) } else { Ok(()) }
}

/// What is known of the GPUs; with `fresh` also what changes.
pub(crate) fn facts(fresh: bool) -> Result<Arc<Facts>, Code> {
    check()?;
    if let Some(shim) = shim() {
        return shim.facts().map(Arc::new);
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((at, facts)) if !fresh || at.elapsed() < FRESH => Ok(facts.clone()),
        _ => {
            let facts = Arc::new(ask_elsewhere().ok_or(code::DRIVER_NOT_LOADED)?);
            *known = Some((Instant::now(), facts.clone()));
            Ok(facts)
        }
    }
}

/// Whether this process uses the GPUs itself.
pub(crate) fn is_user() -> bool {
    shim().is_some()
}

/// The shim of this process.
struct Shim {
    calls: Driver,
    started: unsafe extern "C" fn() -> c_int,
    driver: unsafe extern "C" fn(*mut c_char, usize) -> usize,
}

impl Shim {
    fn facts(&self) -> Result<Facts, Code> {
        let driver = || {
            let mut text = [0u8; 256];
            // SAFETY: the buffer has this room.
            let n = unsafe { (self.driver)(text.as_mut_ptr().cast(), text.len()) }.min(text.len());
            String::from_utf8_lossy(&text[..n]).into_owned()
        };
        facts::ask(&self.calls, driver).map_err(|_| code::GPU_IS_LOST)
    }
}

/// The shim, if it is loaded and its job has started. A program that chooses among the job's GPUs (`CUDA_VISIBLE_DEVICES`) has a shim
/// that knows its choice only, whereas NVML always tells of all.
fn shim() -> Option<&'static Shim> {
    static SHIM: OnceLock<Option<Shim>> = OnceLock::new();
    if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() {
        return None;
    }
    if SHIM.get().is_none() {
        // SAFETY: nothing is loaded: only a library that is there already gets another reference, which it keeps.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // It may be loaded later.
            return None;
        }
        SHIM.get_or_init(|| find(handle));
    }
    // SAFETY: a function of the shim without arguments.
    SHIM.get()?.as_ref().filter(|s| unsafe { (s.started)() } != 0)
}

fn find(handle: *mut c_void) -> Option<Shim> {
    let symbol = |name: &CStr| -> *const c_void {
        // SAFETY: the handle is open, and is never closed.
        unsafe { libc::dlsym(handle, name.as_ptr()) }
    };
    let (started, driver) = (symbol(c"mrcuda_shim_started"), symbol(c"mrcuda_shim_driver"));
    if started.is_null() || driver.is_null() {
        return None;
    }
    let by_name = |name: &str| CString::new(name).map_or(std::ptr::null(), |n| symbol(&n));
    // SAFETY: only the shim has these names; it exports CUDA's functions under CUDA's names, and these two with these types.
    unsafe {
        Some(Shim {
            calls: Driver::from_symbols(&by_name),
            started: std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> c_int>(started),
            driver: std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_char, usize) -> usize>(driver),
        })
    }
}

/// Asks through a process of ours that starts a job of its own with the same places.
fn ask_elsewhere() -> Option<Facts> {
    orphan::facts(&beside("mrcuda")?).ok()
}

/// A file of the installation to which this library belongs.
fn beside(name: &str) -> Option<PathBuf> {
    // SAFETY: all-zero is a valid `Dl_info`, which the call fills.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function of this library; `about` is writable.
    let known = unsafe { libc::dladdr(beside as *const c_void, &raw mut about) } != 0 && !about.dli_fname.is_null();
    // SAFETY: the linker's string lives as long as the library.
    let file = known.then(|| unsafe { CStr::from_ptr(about.dli_fname) })?;
    let file = std::fs::canonicalize(OsStr::from_bytes(file.to_bytes())).ok()?;
    Some(file.with_file_name(name)).filter(|p| p.is_file())
}
