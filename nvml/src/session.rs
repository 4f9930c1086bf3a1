//! Start and end of the library, and the facts that it reports.

use crate::code::{self, Code};
use cuda_api::board::Reading;
use cuda_api::facts::{Facts, Recorder};
use cuda_api::lock::lock;
use rcuda_forwarder::orphan;
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Maximum age of variable figures if refreshing them requires another process.
const FRESH: Duration = Duration::from_secs(2);

static STARTED: AtomicU32 = AtomicU32::new(0);
static KNOWN: Mutex<Option<(Instant, Arc<Facts>)>> = Mutex::new(None);

/// `nvmlInit`: calls are counted.
pub(crate) fn start() {
    STARTED.fetch_add(1, Ordering::Relaxed);
}

/// `nvmlShutdown`
pub(crate) fn end() -> Result<(), Code> {
    let less = |n: u32| n.checked_sub(1);
    STARTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(drop).map_err(|_| code::UNINITIALIZED)
}

/// Returns an error outside a session.
pub(crate) fn check() -> Result<(), Code> {
    if STARTED.load(Ordering::Relaxed) == 0 { Err(code::UNINITIALIZED) } else { Ok(()) }
}

/// The facts about the GPUs; with `fresh`, variable figures are current.
pub(crate) fn facts(fresh: bool) -> Result<Arc<Facts>, Code> {
    check()?;
    if let Some(recorder) = recorder() {
        return recorder.ask().map(Arc::new).map_err(|_| code::GPU_IS_LOST);
    }
    let mut known = lock(&KNOWN);
    match &*known {
        Some((at, facts)) if !fresh || at.elapsed() < FRESH => Ok(facts.clone()),
        _ => {
            let facts = Arc::new(ask_elsewhere().ok_or(code::DRIVER_NOT_LOADED)?);
            *known = Some((Instant::now(), facts.clone()));
            Ok(facts)
        }
    }
}

/// What a GPU measures; not supported if its place does not know.
pub(crate) fn reading(ordinal: usize, which: Reading) -> Result<u32, Code> {
    check()?;
    if let Some(recorder) = recorder() {
        if let Some(value) = recorder.reading(ordinal as u32, which) {
            return Ok(value);
        }
        facts(false)?.gpus.get(ordinal).ok_or(code::INVALID_ARGUMENT)?;
        return Err(code::NOT_SUPPORTED);
    }
    let facts = facts(true)?;
    which.of(&facts.gpus.get(ordinal).ok_or(code::INVALID_ARGUMENT)?.readings).ok_or(code::NOT_SUPPORTED)
}

/// Whether this process uses the GPUs itself.
pub(crate) fn is_user() -> bool {
    recorder().is_some()
}

/// The recorder, if it is loaded and its job has started. If a program selects among the job's GPUs
/// (`CUDA_VISIBLE_DEVICES`), the recorder knows only the selected ones, whereas NVML always reports all.
fn recorder() -> Option<&'static Recorder> {
    static RECORDER: OnceLock<Option<Recorder>> = OnceLock::new();
    if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() {
        return None;
    }
    if RECORDER.get().is_none() {
        // SAFETY: nothing is loaded: only a library that is there already gets another reference, which it keeps.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // It may be loaded later.
            return None;
        }
        // SAFETY: the handle is never closed.
        RECORDER.get_or_init(|| unsafe { Recorder::find(handle) });
    }
    RECORDER.get()?.as_ref().filter(|s| s.is_started())
}

/// Queries through a separate process, which is a job with the same places.
fn ask_elsewhere() -> Option<Facts> {
    orphan::facts(&beside("mrcuda")?).ok()
}

/// A file of the installation of this library.
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
