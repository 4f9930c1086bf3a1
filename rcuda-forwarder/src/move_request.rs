//! Requests to a server that it have a job move, and the answers (docs/formats.md, "Requests to move a job").

use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, GreetError, Opening};
use crate::link::{Credentials, LinkError, TimeLimits, greeted, refused};
use cuda_api::wire::{Short, Wire};
use cuda_api::wire_struct;
use std::time::{Duration, Instant};

/// Maximum length of the text of the places in a request.
pub(crate) const LONGEST_PLACES: usize = 3 << 10;
/// Maximum time that a request may take.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);
/// Maximum number of GPUs in an answer: as many as a job has.
const GPUS: usize = crate::endpoint::GPUS as usize;

wire_struct! {
    /// A request that a server have a job move.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MoveRequest {
        /// The job's process, as the server lists it.
        pub pid: u32,
        /// One of the job's workers, which alone is to move; `None`: all that the job has at the server.
        pub worker: Option<u32>,
        /// Where the job is to move: a place for all of its GPUs at the server, or one for each, as the job reads them.
        pub to: String,
        /// How long the job has, in milliseconds.
        pub limit_ms: u64,
    }
}

impl MoveRequest {
    /// Whether it is within the limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.to.len() <= LONGEST_PLACES && self.limit_ms <= LONGEST.as_millis() as u64
    }
}

/// What has become of a request to move a job, or of the part of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MoveOutcome {
    /// The job has moved away.
    Moved = 0,
    /// The job stays, for the reason that it gives.
    Refused = 1,
    /// The job has ended, or left without taking anything along.
    Ended = 2,
    /// The job's worker has failed.
    Failed = 3,
    /// The job has done neither in time.
    NoAnswer = 4,
    /// The server has no such job.
    NoSuchJob = 5,
    /// Who asks may not have this job moved.
    NotPermitted = 6,
    /// Several jobs have this process id.
    Ambiguous = 7,
    /// The job is still being started, or was asked before and has not answered.
    Busy = 8,
    /// The request cannot be made of any job: a place is invalid, or their number is wrong.
    Invalid = 9,
}

impl MoveOutcome {
    const ALL: [MoveOutcome; 10] = [
        MoveOutcome::Moved,
        MoveOutcome::Refused,
        MoveOutcome::Ended,
        MoveOutcome::Failed,
        MoveOutcome::NoAnswer,
        MoveOutcome::NoSuchJob,
        MoveOutcome::NotPermitted,
        MoveOutcome::Ambiguous,
        MoveOutcome::Busy,
        MoveOutcome::Invalid,
    ];
}

impl Wire for MoveOutcome {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }

    fn get(src: &mut &[u8]) -> Result<MoveOutcome, Short> {
        let number = u8::get(src)?;
        MoveOutcome::ALL.into_iter().find(|outcome| *outcome as u8 == number).ok_or(Short)
    }
}

wire_struct! {
    /// What has become of one GPU of the job.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MovedGpu {
        /// The worker that had it.
        pub worker: u32,
        /// Number of the GPU at the server; `None`: the job was parked in the server's memory.
        pub gpu: Option<u32>,
        /// Where it was to move.
        pub to: String,
        /// What has become of it.
        pub outcome: MoveOutcome,
        /// The job's own reason for staying.
        pub reason: Option<String>,
    }
}

wire_struct! {
    /// The answer to a request to move a job.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MoveAnswer {
        /// What has become of it: that of the first GPU which has not moved, if there is one.
        pub outcome: MoveOutcome,
        /// Why the job has not moved; `None` if it has.
        pub reason: Option<String>,
        /// The GPUs of the job at the server, if it was asked.
        pub gpus: Vec<MovedGpu>,
        /// Time from the request until the server saw the outcome, in milliseconds.
        pub took_ms: u64,
    }
}

/// Has a server ask a job to move, and waits until the job has left or stays; the GPU in the endpoint does not matter. `credentials` as for
/// [`crate::Link::connect`].
pub fn request_move(to: &Endpoint, credentials: Option<&Credentials>, request: &MoveRequest) -> Result<MoveAnswer, LinkError> {
    let limits = TimeLimits::default();
    let (conn, _) = greeted(to, credentials, &|_| Opening::Move(request.clone()), &limits)?;
    let until = Instant::now() + Duration::from_millis(request.limit_ms).min(LONGEST) + 2 * limits.greeting;
    receive(&conn, until, limits.greeting).map_err(|why| refused(to, &why))
}

/// Waits for the answer of a server, which says meanwhile that the job has not answered.
fn receive(conn: &Conn, until: Instant, silence: Duration) -> Result<MoveAnswer, GreetError> {
    let body = loop {
        match greet::read_answer(conn, until.min(Instant::now() + silence)) {
            Err(GreetError::Waiting(_)) if Instant::now() < until => {}
            answer => break answer?,
        }
    };
    let mut rest = &body[..];
    let answer = MoveAnswer::get(&mut rest).ok().filter(|answer| rest.is_empty() && answer.gpus.len() <= GPUS);
    answer.ok_or(GreetError::Garbage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::pair;

    fn answer() -> MoveAnswer {
        let gpu = MovedGpu {
            worker: 7,
            gpu: Some(1),
            to: "b:1/0".into(),
            outcome: MoveOutcome::Refused,
            reason: Some("there is no GPU".into()),
        };
        MoveAnswer { outcome: MoveOutcome::Refused, reason: Some("there is no GPU".into()), gpus: vec![gpu], took_ms: 5 }
    }

    fn encoded(answer: &MoveAnswer) -> Vec<u8> {
        let mut out = Vec::new();
        answer.put(&mut out);
        out
    }

    fn received(said: impl FnOnce(&Conn)) -> Result<MoveAnswer, GreetError> {
        let (here, there) = pair();
        said(&there);
        receive(&here, Instant::now() + Duration::from_secs(60), Duration::from_secs(60))
    }

    #[test]
    fn an_answer_is_read_as_written_after_signs_of_life() {
        let got = received(|there| {
            (0..3).for_each(|_| greet::keep_waiting(there, "the job has not answered").unwrap());
            greet::answer(there, Ok(&encoded(&answer()))).unwrap();
        });
        assert_eq!(got.unwrap(), answer());
        for outcome in MoveOutcome::ALL {
            let it = MoveAnswer { outcome, reason: None, gpus: Vec::new(), ..answer() };
            assert_eq!(received(|there| greet::answer(there, Ok(&encoded(&it))).unwrap()).unwrap(), it);
        }
    }

    #[test]
    fn malformed_answers_are_refused() {
        let whole = encoded(&answer());
        let many = encoded(&MoveAnswer { gpus: vec![answer().gpus[0].clone(); GPUS + 1], ..answer() });
        let unknown = [&[MoveOutcome::ALL.len() as u8], &whole[1..]].concat();
        for body in [Vec::new(), whole[..whole.len() - 1].to_vec(), [&whole[..], &[0]].concat(), many, unknown] {
            let got = received(|there| greet::answer(there, Ok(&body)).unwrap());
            assert!(matches!(got, Err(GreetError::Garbage)), "{body:?}");
        }
    }

    #[test]
    fn a_server_that_only_says_that_it_lives_is_not_waited_for_without_end() {
        let (here, there) = pair();
        (0..100).for_each(|_| greet::keep_waiting(&there, "later").unwrap());
        assert!(matches!(
            receive(&here, Instant::now(), Duration::from_secs(60)),
            Err(GreetError::Waiting(_) | GreetError::TooSlow)
        ));
    }
}
