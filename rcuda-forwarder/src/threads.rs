//! Threads of this library, which must not affect the program.

use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread with all signals blocked, so that the program's handlers run on the program's threads, as
/// natively.
pub(crate) fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    start(name, |builder| builder.spawn(body))
}

/// As [`spawn`], for a thread that ends before its scope does and may borrow what outlives that.
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    start(name, |builder| builder.spawn_scoped(scope, body))
}

fn start<T>(name: &str, spawn: impl FnOnce(Builder) -> io::Result<T>) -> io::Result<T> {
    faults::thread(name)?;
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = spawn(Builder::new().name(name.to_owned()));
    before.thread_set_mask()?;
    thread
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    #[test]
    fn signals_are_blocked_there_and_here_as_before() {
        let before = SigSet::thread_get_mask().unwrap();
        let inside = spawn("test", || SigSet::thread_get_mask().unwrap()).unwrap().join().unwrap();
        let scoped =
            std::thread::scope(|scope| spawn_scoped(scope, "test", || SigSet::thread_get_mask().unwrap()).unwrap().join());
        for inside in [inside, scoped.unwrap()] {
            assert!(inside.contains(Signal::SIGUSR1) && inside.contains(Signal::SIGINT));
        }
        assert_eq!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGUSR1), before.contains(Signal::SIGUSR1));
    }
}
