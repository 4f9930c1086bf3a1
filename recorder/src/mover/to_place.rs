//! Replays records at a target.

use crate::move_error::MoveError;
use crate::moves::Task;
use crate::place::{ANSWER_TIMEOUT, Place, Waiting};
use cuda_api::code::{self, Code};
use cuda_api::ops;
use executor::batch;
use faults::Point;
use journal::Record;
use replayer::{Sink, replay};
use std::collections::VecDeque;

/// Maximum number of records under way to the target.
const WINDOW: usize = 256;
/// Maximum number of records in a batch over a connection.
const TOGETHER: usize = 64;
/// Maximum bytes of records in a batch; a longer body is sent alone.
const BYTES_TOGETHER: usize = 32 << 10;

/// Sends the journal's records to a place; over a connection, several records in one batch.
struct ToPlace<'a> {
    place: &'a Place,
    task: &'a Task,
    /// Records that wait to be sent in a batch, and their number.
    batch: Vec<u8>,
    together: usize,
    waiting: VecDeque<Answer>,
    /// Results of a batch that were not taken yet.
    results: VecDeque<(Code, Vec<u8>)>,
}

/// An answer to a record, or to a batch of records.
enum Answer {
    One(Waiting),
    Many(Waiting),
}

impl ToPlace<'_> {
    fn send(&mut self, id: u16, body: &[u8], how: fn(Waiting) -> Answer) -> Result<(), MoveError> {
        let answer = self.place.begin(id, &[body]).map_err(|_| MoveError::PlaceLost(None))?;
        self.waiting.push_back(how(answer));
        Ok(())
    }

    fn send_batch(&mut self) -> Result<(), MoveError> {
        if self.together == 0 {
            return Ok(());
        }
        let mut body = std::mem::take(&mut self.batch);
        let sent = self.send(ops::id::BATCH, &body, Answer::Many);
        body.clear();
        (self.batch, self.together) = (body, 0);
        sent
    }
}

impl Sink for ToPlace<'_> {
    type Error = MoveError;

    fn submit(&mut self, id: u16, body: &[u8]) -> Result<(), MoveError> {
        self.task.check()?;
        faults::at(Point::Replay);
        if self.place.in_process().is_some() || body.len() > BYTES_TOGETHER {
            self.send_batch()?;
            return self.send(id, body, Answer::One);
        }
        batch::add(&mut self.batch, id, body);
        self.together += 1;
        if self.together >= TOGETHER || self.batch.len() >= BYTES_TOGETHER { self.send_batch() } else { Ok(()) }
    }

    fn next_result(&mut self) -> Result<(Code, Vec<u8>), MoveError> {
        loop {
            if let Some(result) = self.results.pop_front() {
                return Ok(result);
            }
            match self.waiting.pop_front() {
                Some(Answer::One(answer)) => return answered(self.place, answer),
                Some(Answer::Many(answer)) => match answered(self.place, answer)? {
                    (code::SUCCESS, bytes) => {
                        self.results.extend(batch::results(&bytes).map_err(|e| MoveError::BadAnswer(e.to_string()))?)
                    }
                    failed => return Ok(failed),
                },
                None if self.together > 0 => self.send_batch()?,
                None => return Err(MoveError::InternalError("no record is on its way".to_owned())),
            }
        }
    }
}

/// Waits for the answer of a target.
pub(super) fn answered(place: &Place, answer: Waiting) -> Result<(Code, Vec<u8>), MoveError> {
    match answer.finish_within(ANSWER_TIMEOUT).ok_or(MoveError::PlaceSilent(ANSWER_TIMEOUT))? {
        (code::ERROR_DEVICE_UNAVAILABLE, _) if place.is_lost() => Err(MoveError::PlaceLost(None)),
        answer => Ok(answer),
    }
}

/// Replays records in order, and compares the answers.
pub(super) fn replay_to<'r>(place: &Place, records: impl Iterator<Item = Record<'r>>, task: &Task) -> Result<(), MoveError> {
    let (batch, waiting, results) = (Vec::new(), VecDeque::new(), VecDeque::new());
    let mut sink = ToPlace { place, task, batch, together: 0, waiting, results };
    let all = records.map(|r| replayer::Record { seq: r.seq, id: r.id, body: r.body, reply: r.reply });
    replay(all, &mut sink, WINDOW)?;
    Ok(())
}
