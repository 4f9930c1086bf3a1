//! Tells the user of a terminal that a program does not start yet, because its place is not open.

use crate::base::spawn;
use rcuda_forwarder::PlaceSpec;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// What takes no longer is not said.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tells it once, unless this value has gone before.
#[derive(Debug)]
pub(super) struct Notice(#[expect(dead_code, reason = "its end is what counts")] Option<SyncSender<()>>);

impl Notice {
    /// Only on a terminal: elsewhere the error output is the program's alone.
    pub(super) fn of(place: &PlaceSpec) -> Notice {
        if !std::io::stderr().is_terminal() {
            return Notice(None);
        }
        let (end, ended) = sync_channel::<()>(0);
        let place = place.to_string();
        let tell = move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(target: "connect", "waiting for {place}: it is not open yet");
            }
        };
        // Without the thread nothing is said.
        let _ = spawn::spawn("mrcuda-notice", tell);
        Notice(Some(end))
    }
}
