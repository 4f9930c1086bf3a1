//! Sends changes of host memory to the job.

use super::ending::leave;
use super::text::complain;
use super::{Worker, WorkerError, host_mirror};
use crate::frame::{AnswerHead, CHANGES};
use crate::place::Place;
use crate::sync::lock;
use cuda_api::code;

impl<P: Place> Worker<P> {
    /// Sends a message with changes of host memory, in pieces.
    fn send_message(&self, pieces: &[&[u8]]) {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let Some(head) = AnswerHead::new(code::SUCCESS, CHANGES, bytes) else { return };
        self.counting.answer(bytes);
        self.write(&mut **lock(&self.out), &[&[&head.bytes()[..]], pieces].concat());
    }

    /// Sends changes of host memory to the job; returns whether there were any.
    pub(super) fn send_changes(&self, complete: bool) -> bool {
        let mut sent = lock(&self.sending_changes);
        host_mirror::send_changes(&*self.place, complete, &mut sent, |pieces| self.send_message(pieces)).unwrap_or_else(|rc| {
            // Without them an answer would let the job read outdated bytes.
            complain(&self.send_reason(WorkerError::Changes(rc)));
            leave(1, &self.conn)
        })
    }
}
