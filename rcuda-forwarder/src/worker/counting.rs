//! Counts what the job sends and receives, for a server's accounting.

use crate::account::Usage;
use crate::control::{Control, ControlReply, Refused};
use crate::frame::{ANSWER_HEAD, HEAD};
use cuda_api::ops::{self, BulkCopy};
use cuda_api::wire::Wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The job's account, if a server keeps one.
#[derive(Debug)]
pub(super) struct Counting {
    usage: Option<Arc<Usage>>,
    /// The job's memory has been copied to another place, and no call has come since.
    copied_out: AtomicBool,
    /// Likewise, and that place has adopted all allocations.
    handed_over: AtomicBool,
}

impl Counting {
    pub(super) fn new(usage: Option<Arc<Usage>>) -> Counting {
        Counting { usage, copied_out: AtomicBool::new(false), handed_over: AtomicBool::new(false) }
    }

    /// A call has come.
    pub(super) fn call(&self, id: u16, mut body: &[u8]) {
        let Some(usage) = &self.usage else { return };
        usage.count_in((HEAD + body.len()) as u64);
        // The bytes of large copies travel over connections of their own.
        if matches!(id, ops::id::BULK_IN | ops::id::BULK_OUT)
            && let Ok(copy) = BulkCopy::get(&mut body)
        {
            if id == ops::id::BULK_IN { usage.count_in(copy.bytes) } else { usage.count_out(copy.bytes) }
        }
    }

    /// A call other than the last one has come: the job has not left.
    pub(super) fn stays(&self) {
        for said in [&self.copied_out, &self.handed_over] {
            if said.load(Ordering::Relaxed) {
                said.store(false, Ordering::Relaxed);
            }
        }
    }

    /// So many bytes of changes have come over a connection for large copies.
    pub(super) fn changes(&self, bytes: usize) {
        if let Some(usage) = &self.usage {
            usage.count_in(bytes as u64);
        }
    }

    /// An answer with a body of so many bytes is sent.
    pub(super) fn answer(&self, body: usize) {
        if let Some(usage) = &self.usage {
            usage.count_out((ANSWER_HEAD + body) as u64);
        }
    }

    /// A request was carried out, with this result.
    pub(super) fn request(&self, to_here: bool, result: &Result<ControlReply, Refused>) {
        let Ok(ControlReply::Round(round)) = result else { return };
        if !to_here {
            self.copied_out.store(true, Ordering::Relaxed);
            // The last round counts: the one before may have been of a move that has failed.
            self.handed_over.store(round.handed_over, Ordering::Relaxed);
        }
        let Some(usage) = &self.usage else { return };
        if to_here {
            usage.count_in(round.bytes_carried);
            usage.note_moved_in();
        } else {
            usage.count_out(round.bytes_carried);
        }
    }

    /// Whether the job's allocations belong to another place, which it has moved to.
    pub(super) fn has_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// The job's memory is no longer on its client's account for this place: it is on that of the place that has adopted it.
    pub(super) fn leave_memory(&self) {
        self.usage.iter().for_each(|usage| usage.leave_memory());
    }

    /// The job leaves this place.
    pub(super) fn goodbye(&self) {
        if let Some(usage) = self.usage.as_ref().filter(|_| self.copied_out.load(Ordering::Relaxed)) {
            usage.note_moved_out();
        }
    }
}

/// Whether a request is a round of a copy to this place.
pub(super) fn is_to_here(request: &Control) -> bool {
    matches!(request, Control::RoundTarget { .. })
}
