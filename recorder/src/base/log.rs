//! The recorder's log: calls of the program, and what it requested and did not get. Everything else uses `tracing` directly, with the
//! targets that `diagnostics` lists.
//!
//! The program's output streams stay untouched: without `MRCUDA_LOG` only warnings are written, such as a lost place or a refused move.

use crate::base::config;
use cuda_api::cancellation::Uncancelled;
use cuda_api::code::{self, Code};
use diagnostics::{Enabled, Program};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

// The data behind the recorder's locks is consistent between statements. In tests a lock is a step of a model.
#[cfg(not(test))]
pub(crate) use cuda_api::lock::lock;
#[cfg(test)]
pub(crate) use interleave::lock;

/// What `MRCUDA_LOG` enables. Installs the subscriber the first time, so it comes before the first line.
pub(crate) fn enabled() -> Enabled {
    static ENABLED: OnceLock<Enabled> = OnceLock::new();
    *ENABLED.get_or_init(|| diagnostics::start(Program::Job))
}

/// Whether calls are logged or counted: one of the three below.
#[unsafe(link_section = "mrcuda_hot")]
static WATCHED: AtomicU8 = AtomicU8::new(UNREAD);
const UNREAD: u8 = 0;
const NOT_WATCHED: u8 = 1;
const IS_WATCHED: u8 = 2;

/// A call of the program that is logged or counted.
#[derive(Debug)]
pub(crate) struct Watched {
    symbol: &'static str,
    since: Instant,
}

/// Begins a call of the program; `how` is its row's. If calls are neither logged nor counted, this costs one load.
#[inline]
pub(crate) fn begin(symbol: &'static str, how: &str) -> Option<Watched> {
    if WATCHED.load(Ordering::Relaxed) == NOT_WATCHED { None } else { watch(symbol, how) }
}

#[cold]
fn watch(symbol: &'static str, how: &str) -> Option<Watched> {
    // The call itself begins later. Reading the settings may write a line, which is a cancellation point.
    let _uncancelled = Uncancelled::begin();
    let counts = config::get().is_ok_and(|c| c.coverage.is_some());
    let is_watched = enabled().any || counts;
    WATCHED.store(if is_watched { IS_WATCHED } else { NOT_WATCHED }, Ordering::Relaxed);
    if counts && how != "refused" {
        lock(&CALLED).entry(symbol).or_default();
        CALL.set(Some(symbol));
    }
    is_watched.then(|| Watched { symbol, since: Instant::now() })
}

/// The functions that were called, if `MRCUDA_COVERAGE` is set, without those that are refused; each with the calls that it has recorded
/// in a journal.
static CALLED: Mutex<BTreeMap<&'static str, BTreeSet<&'static str>>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The call under way on this thread, if calls are counted.
    static CALL: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Notes that the call under way on this thread has recorded something in a journal.
pub(crate) fn recorded(id: u16) {
    if WATCHED.load(Ordering::Relaxed) == IS_WATCHED
        // A thread that is ending may have no such variable any more.
        && let Ok(Some(symbol)) = CALL.try_with(Cell::get)
    {
        lock(&CALLED).entry(symbol).or_default().insert(cuda_api::calls::name(id).unwrap_or("?"));
    }
}

/// The functions that were called, one a line, each followed by the calls that it has recorded.
pub(crate) fn called() -> String {
    let line = |(name, records): (&&str, &BTreeSet<&str>)| {
        std::iter::once(*name).chain(records.iter().copied()).collect::<Vec<_>>().join(" ") + "\n"
    };
    lock(&CALLED).iter().map(line).collect()
}

impl Watched {
    /// Logs the end of the call: every call if calls are enabled, otherwise each failure once, since libraries repeat failing requests.
    pub(crate) fn end(&self, arguments: &[(&str, u64)], rc: Code) {
        let _ = CALL.try_with(|call| call.set(None));
        static LOGGED: Mutex<BTreeSet<(&str, Code)>> = Mutex::new(BTreeSet::new());
        let symbol = self.symbol;
        if enabled().calls {
            let took = self.since.elapsed();
            let arguments: Vec<String> = arguments.iter().map(|(name, value)| format!("{name}={value:#x}")).collect();
            tracing::trace!(target: "call", "{symbol}({}) returns {rc} after {took:?}", arguments.join(", "));
            return;
        }
        // Not ready and not found are answers, not errors.
        let failed = !matches!(rc, code::SUCCESS | code::ERROR_NOT_READY | code::ERROR_NOT_FOUND);
        if failed && enabled().any && lock(&LOGGED).insert((symbol, rc)) {
            tracing::debug!(target: "call", "{symbol} returns {rc}");
        }
    }
}

static MISSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes an unsupported feature that the program tried to use; logged the first time.
pub(crate) fn missed(what: String) {
    if lock(&MISSED).insert(what.clone()) {
        tracing::info!(target: "job", "not here: {what}");
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
        let text = names.join(", ");
        tracing::debug!(target: "job", "a CUDA runtime starts; it also knows {} functions that are not here: {text}", names.len());
    }
}
