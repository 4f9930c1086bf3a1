//! Adds the moves of this job to the user's history, which remains after its end ([`::control::history`]).

use crate::base::{self, config, spawn};
use ::control::Move;
use ::control::history::{self, Past};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a move waits for the history: its file may be on a network that does not answer.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a move has waited in vain. Then no other one waits: many of them may end at once, when the program ends.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Adds a move that is about to end. A failure is logged, and the job goes on.
pub(super) fn keep(it: &Move) {
    let Some(directory) = config::get().ok().and_then(|config| config.history.as_ref()) else { return };
    let program = base::program().display().to_string();
    let past = Past { pid: std::process::id(), program, name: base::job_name().to_owned(), it: it.clone() };
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let append = move || {
        if let Err(why) = history::append(directory, &past) {
            tracing::debug!(target: "migrate", "the move is not in the history: {}: {why}", directory.display());
        }
        // There may be no waiter any more.
        let _ = sender.send(());
    };
    let waits = spawn::spawn("mrcuda-history", append).is_ok() && !IS_SILENT.load(Ordering::Acquire);
    if waits && receiver.recv_timeout(HISTORY_TIMEOUT).is_err() {
        IS_SILENT.store(true, Ordering::Release);
    }
}
