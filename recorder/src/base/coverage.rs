//! Which functions the program has called, for `MRCUDA_COVERAGE`.

use crate::base::log::lock;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Mutex;

static CALLED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Notes that a function was called, if `MRCUDA_COVERAGE` is set.
pub(crate) fn count(symbol: &'static str) {
    if crate::base::config::get().is_ok_and(|c| c.coverage.is_some()) {
        lock(&CALLED).insert(symbol);
    }
}

/// Appends the list of called functions to the file that `MRCUDA_COVERAGE` names.
pub(crate) fn write_report() {
    let Some(path) = crate::base::config::get().ok().and_then(|c| c.coverage.as_ref()) else { return };
    let called: String = lock(&CALLED).iter().map(|n| format!("{n}\n")).collect();
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut f| f.write_all(called.as_bytes()));
}
