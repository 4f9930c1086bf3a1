//! What the shim says. The program's streams stay untouched: without `MRCUDA_LOG` only a lost place or a refused move is told.

use crate::config;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Locks even if a holder panicked: the data behind our locks is consistent between statements.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One line on stderr that the user must see.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().write_all(format!("mrcuda: {text}\n").as_bytes());
    trace(|| text.to_owned());
}

/// A line for `MRCUDA_LOG`; `text` runs only if someone listens.
pub(crate) fn trace(text: impl FnOnce() -> String) {
    let Ok(config) = config::get() else { return };
    let Some(to) = &config.log else { return };
    let line = format!("mrcuda[{}]: {}\n", std::process::id(), text());
    if to == "1" {
        let _ = std::io::stderr().write_all(line.as_bytes());
    } else if let Ok(mut f) = std::fs::OpenOptions::new().append(true).create(true).open(to) {
        let _ = f.write_all(line.as_bytes());
    }
}

/// Whether every call is to be logged.
pub(crate) fn every_call() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| config::get().is_ok_and(|c| c.log_calls))
}

static MISSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Remembers something the program asked for and did not get; logged the first time.
pub(crate) fn missed(what: String) {
    if lock(&MISSED).insert(what.clone()) {
        trace(|| format!("not found: {what}"));
    }
}

/// What was asked for and not found, for the exit report.
pub(crate) fn missed_list() -> Vec<String> {
    lock(&MISSED).iter().cloned().collect()
}
