//! Tests that must come to an end.

use std::any::Any;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Longer than the test of a seed takes on any busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the test of a seed on a thread of its own.
///
/// # Panics
/// The test panics, or it does not end, since a thread of it waits for ever.
pub fn to_its_end(seed: u64, test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        // The receiver may have given up waiting.
        let _ = sender.send(());
    });
    match receiver.recv_timeout(LIMIT) {
        Ok(()) => {}
        Err(RecvTimeoutError::Timeout) => panic!("seed {seed} hangs"),
        Err(RecvTimeoutError::Disconnected) => {
            panic!("seed {seed} fails: {}", thread.join().map_or_else(said, |()| String::new()))
        }
    }
}

/// What a panic said.
fn said(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}
