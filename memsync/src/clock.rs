//! The clock by which connections and compression are measured.
//!
//! In this crate's unit tests it is virtual, one for each thread: only what a test says takes time, so no result depends on how busy the
//! machine is.

#[cfg(not(test))]
pub(crate) use std::time::Instant as Moment;

#[cfg(test)]
pub(crate) use of_tests::{Moment, advance};

#[cfg(test)]
mod of_tests {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// A moment on the clock of this thread.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Moment(Duration);

    impl Moment {
        pub(crate) fn now() -> Moment {
            Moment(NOW.get())
        }

        pub(crate) fn elapsed(&self) -> Duration {
            NOW.get().saturating_sub(self.0)
        }
    }

    /// Lets time pass on this thread.
    pub(crate) fn advance(by: Duration) {
        NOW.set(NOW.get() + by);
    }
}
