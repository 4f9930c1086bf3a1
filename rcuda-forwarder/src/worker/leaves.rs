//! Requests of the daemon that the job is to move away, until they are passed on.

use crate::leave_request::LeaveRequest;
use crate::sync::lock;
use std::sync::Mutex;

/// Requests that wait for the thread that passes them on. A job that does not read holds up one thread, however often it is asked.
#[derive(Debug, Default)]
pub(super) struct Leaves(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The last one of each kind: because the server is ending, and because somebody has asked it.
    waiting: [Option<LeaveRequest>; 2],
    /// Whether a thread passes them on.
    passed_on: bool,
}

impl Leaves {
    /// Adds a request, in place of an earlier one of its kind. Returns whether the caller must start the thread.
    pub(super) fn add(&self, request: LeaveRequest) -> bool {
        let mut state = lock(&self.0);
        let kind = usize::from(request.request.is_some());
        state.waiting[kind] = Some(request);
        !std::mem::replace(&mut state.passed_on, true)
    }

    /// The thread could not be started: the next request needs one.
    pub(super) fn not_started(&self) {
        lock(&self.0).passed_on = false;
    }

    /// The next request to pass on; after `None` the thread must end.
    pub(super) fn next(&self) -> Option<LeaveRequest> {
        let mut state = lock(&self.0);
        let next = state.waiting.iter_mut().find_map(Option::take);
        state.passed_on = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_job_that_does_not_read_holds_up_one_thread() {
        let leaves = Leaves::default();
        let asked = |to: &str, request| LeaveRequest { to: to.into(), limit: Duration::from_secs(1), request };
        assert!(leaves.add(asked("a:1", None)));
        for number in 0..1000 {
            assert!(!leaves.add(asked("b:1", Some(number))) && !leaves.add(asked("c:1", None)));
        }
        let next = || leaves.next().map(|it| (it.to, it.request));
        assert_eq!((next(), next(), next()), (Some(("c:1".into(), None)), Some(("b:1".into(), Some(999))), None));
        assert!(leaves.add(asked("d:1", None)), "that thread has ended");
        leaves.not_started();
        assert!(leaves.add(asked("e:1", None)));
    }
}
