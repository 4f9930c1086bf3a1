//! Shows on a terminal that a command waits, and for what.

use crate::table::printable;
use crate::terminal;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What takes no longer is not shown; and the interval at which it is shown again.
const INTERVAL: Duration = Duration::from_secs(1);

/// A line that says what the command waits for, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting(Option<(SyncSender<()>, JoinHandle<()>)>);

/// Begins to wait. After a second it is shown, if the error output is a terminal.
pub(crate) fn waiting(what: &'static str) -> Waiting {
    if !std::io::stderr().is_terminal() {
        return Waiting(None);
    }
    let since = Instant::now();
    let (end, ended) = sync_channel(1);
    let thread = std::thread::spawn(move || {
        let mut is_shown = false;
        while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let seconds = since.elapsed().as_secs();
            draw(&format!("{what}: {seconds} s"));
            is_shown = true;
        }
        if is_shown {
            draw("");
        }
    });
    Waiting(Some((end, thread)))
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // What is printed next must not follow the line. A panic of the thread has no other consequence.
            let _ = thread.join();
        }
    }
}

/// Replaces the line of progress, if this process has the terminal: one in the background leaves it to others.
pub(crate) fn draw(text: &str) {
    let mut err = std::io::stderr().lock();
    if nix::unistd::tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == nix::unistd::getpgrp()) {
        let columns = terminal::size(&err).map_or(80, |(columns, _)| columns).saturating_sub(1);
        let text: String = printable(text).replace('\n', " ").chars().take(columns).collect();
        // Progress that cannot be shown is no failure.
        let _ = write!(err, "\r\x1b[K{text}").and_then(|()| err.flush());
    }
}
