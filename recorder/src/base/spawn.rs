//! Starts the recorder's own threads.

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::io;

/// Stack size: drivers may compile code on the thread that carries out moves.
const STACK: usize = 8 << 20;

/// Starts a recorder thread with all signals blocked, so that it receives none that the program expects.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut old = SigSet::empty();
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut old));
    let started = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body);
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&old), None);
    started.map(drop)
}
