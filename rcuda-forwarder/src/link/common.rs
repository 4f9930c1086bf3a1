//! What calls and answers of a link have in common: the ring, outstanding answers, faults, text and mirrored memory.

use super::bulk::Bulk;
use super::host_mirror::Alike;
use super::inquiry::Inquiry;
use super::replies::Replies;
use super::time_limits::TimeLimits;
use crate::conn::Conn;
use crate::leave_request::LeaveRequest;
use crate::ring::{PushError, Ring};
use crate::sync::lock;
use cuda_api::code::Code;
use std::sync::{Arc, Mutex};

/// A call that was sent without waiting for its result has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The call's result.
    pub code: Code,
    /// Row or operation.
    pub id: u16,
}

pub(super) type Hook = Box<dyn Fn(Fault) + Send + Sync>;
type TextHook = Arc<dyn Fn(i32, &[u8]) + Send + Sync>;

/// Text for the job's output that arrived before a hook was set, and the hook.
#[derive(Default)]
pub(super) struct Texts {
    pub(super) before: Vec<(i32, Vec<u8>)>,
    pub(super) hook: Option<TextHook>,
}

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Texts").field("before", &self.before.len()).field("hook", &self.hook.is_some()).finish()
    }
}

type LeaveHook = Arc<dyn Fn(LeaveRequest) + Send + Sync>;

/// The server's requests that the job move away, one of each kind, if they arrived before a hook was set, and the hook.
#[derive(Default)]
pub(super) struct Leaves {
    pub(super) before: Vec<LeaveRequest>,
    pub(super) hook: Option<LeaveHook>,
}

impl std::fmt::Debug for Leaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaves").field("before", &self.before).field("hook", &self.hook.is_some()).finish()
    }
}

/// The first fault that has not been taken, and the hook for faults.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) first: Option<Fault>,
    pub(super) hook: Option<Arc<Hook>>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").field("first", &self.first).field("hook", &self.hook.is_some()).finish()
    }
}

/// State shared by the program's threads and ours, except the source of answers.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) ring: Ring,
    /// Carries everything over TCP; with shared memory it only shows that both ends exist.
    pub(super) conn: Arc<Conn>,
    pub(super) replies: Replies,
    pub(super) faults: Mutex<Faults>,
    pub(super) texts: Mutex<Texts>,
    pub(super) leaves: Mutex<Leaves>,
    pub(super) alike: Alike,
    pub(super) bulk: Bulk,
    pub(super) inquiry: Inquiry,
    pub(super) limits: TimeLimits,
    /// Whether heartbeats that ask for it are answered.
    pub(super) answers_heartbeats: bool,
}

impl Common {
    /// The worker has hung up: marks the connection as lost, with what the worker's server says of its end.
    pub(super) fn hung_up(&self, why: &str) {
        // A link that is closed has no use for a reason.
        let why = if self.replies.is_lost() { why.to_owned() } else { self.inquiry.explain(why) };
        self.lose(&why);
    }

    /// Marks the connection as lost. The receiver detects this and fails all waiting threads.
    pub(super) fn lose(&self, why: &str) {
        self.replies.lose(why);
        self.conn.shutdown();
        self.bulk.shut();
        self.alike.shut();
    }

    /// Sends changes of mirrored memory before a call whose work may read them.
    pub(super) fn before(&self, call: u16) -> Result<(), PushError> {
        self.alike.before(&self.ring, call)
    }

    pub(super) fn fault(&self, fault: Fault) {
        let hook = {
            let mut f = lock(&self.faults);
            f.first.get_or_insert(fault);
            f.hook.clone()
        };
        if let Some(hook) = hook {
            hook(fault);
        }
    }
}
