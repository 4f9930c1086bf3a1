//! The job leaves its worker.

use super::Worker;
use super::ending::{self, leave};
use crate::place::Place;
use crate::sync::lock;
use cuda_api::code;
use faults::Point;
use std::sync::atomic::Ordering;

/// The part of a GPU's memory, one in so many, that must be free for a worker to leave its job before it has released what it holds.
const ROOM_FOR_CONTEXTS: u64 = 16;

impl<P: Place> Worker<P> {
    /// Frees everything and exits; the client gets an answer when that is done, or before if it need not wait for it.
    pub(super) fn goodbye(&self, ticket: u64) -> ! {
        ending::note_goodbye();
        self.counting.goodbye();
        // Until the process has ended: nothing is restored for a job that leaves.
        let _stays = self.eviction.stay();
        let _no_questions = lock(&self.eviction.asking);
        // If a round is still using the place, or a stream waits for the job, the end of the process frees the memory.
        let requests = [false, true].map(|kind| self.counter(kind).load(Ordering::Acquire));
        let can_close = requests == [0, 0] && self.place.host_calls() == 0;
        if can_close && self.may_answer_first() {
            // The thread for completions is stopped first: it must not hold a lock of the place when the job closes the connection.
            self.completion.stop_while(|| {
                ending::begin_to_release();
                self.counting.leave_memory();
                // The daemon knows before the job does, whose next move may need the room of this worker.
                self.channel.close();
                self.send(code::SUCCESS, ticket, &[]);
                faults::at(Point::Leaving);
                self.place.clone().close();
            });
            leave(0, &self.conn);
        }
        if can_close {
            self.completion.stop_while(|| self.place.clone().close());
        }
        self.pass_text_on();
        self.send(code::SUCCESS, ticket, &[]);
        leave(0, &self.conn);
    }

    /// Whether the job need not wait until everything is released: another place has adopted its allocations, so that they stay in use; no memory
    /// of another GPU is held here, which may have been reported as free; and there is room for the contexts of its next places beside this
    /// one. Nor is anything left that this process would send to the job: printed text, or changes of host memory.
    fn may_answer_first(&self) -> bool {
        let has_room = || self.place.whole_memory().is_ok_and(|(free, total)| free >= total / ROOM_FOR_CONTEXTS);
        let place = &self.place;
        self.counting.has_handed_over() && !place.prints() && !place.has_apart() && !place.uses_peers() && has_room()
    }
}
