//! The recorder's log. The program's output streams stay untouched: without `MRCUDA_LOG` only a lost place or a refused move is reported.

use crate::base::config;
use cuda_api::code::{self, Code};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Locks a mutex even if a holder panicked: the data behind the recorder's locks is consistent between statements.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    let m = interleave::when_free(m);
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes one line that the user must see to stderr.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().write_all(format!("mrcuda: {text}\n").as_bytes());
    trace(|| text.to_owned());
}

/// Writes a line to `MRCUDA_LOG`; `text` runs only if the log is enabled.
pub(crate) fn trace(text: impl FnOnce() -> String) {
    let Ok(config) = config::get() else { return };
    let Some(to) = &config.log else { return };
    let line = format!("mrcuda[{}]: {}\n", std::process::id(), text());
    if to == "1" {
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    }
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(to);
    if let Err(e) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            let _ = std::io::stderr().write_all(format!("mrcuda: MRCUDA_LOG: cannot write to {to}: {e}\n").as_bytes());
        });
    }
}

/// Returns whether called functions or their results are logged; costs one load.
#[inline]
pub(crate) fn is_watched() -> bool {
    match WATCHED.load(Ordering::Relaxed) {
        UNREAD => ask_whether_watched(),
        answer => answer == WATCHED_BY_SOMEBODY,
    }
}

static WATCHED: AtomicU8 = AtomicU8::new(UNREAD);
const UNREAD: u8 = 0;
const WATCHED_BY_NOBODY: u8 = 1;
const WATCHED_BY_SOMEBODY: u8 = 2;

#[cold]
fn ask_whether_watched() -> bool {
    let is_watched = config::get().is_ok_and(|c| c.log.is_some() || c.coverage.is_some());
    WATCHED.store(if is_watched { WATCHED_BY_SOMEBODY } else { WATCHED_BY_NOBODY }, Ordering::Relaxed);
    is_watched
}

/// Logs a call's result to `MRCUDA_LOG`: either every call, or each failure once, since libraries repeat failing requests.
pub(crate) fn result(symbol: &'static str, rc: Code) {
    static TOLD: Mutex<BTreeSet<(&str, Code)>> = Mutex::new(BTreeSet::new());
    let (listens, every) = config::get().map_or((false, false), |c| (c.log.is_some(), c.log_calls));
    // Not ready and not found are answers, not errors.
    let failed = !matches!(rc, code::SUCCESS | code::ERROR_NOT_READY | code::ERROR_NOT_FOUND);
    if listens && (every || failed && lock(&TOLD).insert((symbol, rc))) {
        trace(|| format!("{symbol} returns {rc}"));
    }
}

static MISSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes an unsupported feature that the program tried to use; logged the first time.
pub(crate) fn missed(what: String) {
    if lock(&MISSED).insert(what.clone()) {
        trace(|| format!("not here: {what}"));
    }
}

/// The unsupported features that the program tried to use, for the exit report.
pub(crate) fn missed_list() -> Vec<String> {
    lock(&MISSED).iter().cloned().collect()
}

thread_local! {
    /// Unknown names that a CUDA runtime which is starting on this thread has looked up; `None` while none is starting.
    static STARTING: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Notes that a CUDA runtime starts on this thread: it looks up every function that it knows, whether the program will use it or not.
pub(crate) fn runtime_starts() {
    // A thread that is ending may have no such list any more.
    let _ = STARTING.try_with(|names| names.borrow_mut().get_or_insert_default().len());
}

/// Notes a lookup of an unknown name. Lookups by a starting runtime do not count as use.
pub(crate) fn absent(name: &str) {
    let is_starting = STARTING.try_with(|names| match &mut *names.borrow_mut() {
        Some(names) => {
            names.push(name.to_owned());
            true
        }
        None => false,
    });
    if is_starting != Ok(true) {
        missed(name.to_owned());
    }
}

/// Notes the first real call: a runtime that was starting has looked up all its functions.
pub(crate) fn runtime_has_started() {
    // The list may already be destroyed at thread exit.
    let names = STARTING.try_with(|names| names.try_borrow_mut().ok()?.take());
    if let Ok(Some(names)) = names
        && !names.is_empty()
    {
        trace(|| {
            format!("a CUDA runtime starts; it also knows {} functions that are not here: {}", names.len(), names.join(", "))
        });
    }
}
