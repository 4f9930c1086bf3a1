//! Threads of this library, which must not affect the program.

use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread with all signals blocked, so that the program's handlers run on the program's threads, as
/// natively.
pub(crate) fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    faults::thread(name)?;
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.to_owned()).spawn(body);
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
        assert!(inside.contains(Signal::SIGUSR1) && inside.contains(Signal::SIGINT));
        assert_eq!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGUSR1), before.contains(Signal::SIGUSR1));
    }
}
