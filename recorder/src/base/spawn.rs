//! Starts the recorder's own threads.

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::io;
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Stack size: drivers may compile code on the thread that carries out moves.
const STACK: usize = 8 << 20;

fn builder(name: &str) -> io::Result<Builder> {
    faults::thread(name)?;
    Ok(Builder::new().name(name.to_owned()).stack_size(STACK))
}

/// Starts a recorder thread with all signals blocked, so that it receives none that the program expects.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = builder(name)?;
    let mut old = SigSet::empty();
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut old));
    let started = builder.spawn(body);
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&old), None);
    started.map(drop)
}

/// As [`spawn`], from a recorder thread, which waits for the new one.
pub(crate) fn scoped<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 's,
) -> io::Result<ScopedJoinHandle<'s, T>> {
    builder(name)?.spawn_scoped(scope, body)
}
