//! Asks a server to have a job move.

use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, GreetError, Opening};
use crate::link::{Credentials, LinkError, TimeLimits, greeted, refused};
use crate::move_request::{GPUS, LONGEST, MoveAnswer, MoveRequest};
use cuda_api::wire::Wire;
use std::time::{Duration, Instant};

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
    use crate::attendant::LONGEST_REASON;
    use crate::conn::pair;
    use crate::move_request::{LONGEST_PLACES, MoveOutcome, MovedGpu};

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
    fn the_longest_answer_fits() {
        let reason = Some("\u{10ffff}".repeat(LONGEST_REASON));
        let (outcome, to) = (MoveOutcome::Refused, "x".repeat(LONGEST_PLACES));
        let gpu = MovedGpu { worker: u32::MAX, gpu: Some(u32::MAX), to, outcome, reason: reason.clone() };
        let answer = MoveAnswer { outcome, reason, gpus: vec![gpu; GPUS], took_ms: u64::MAX };
        let length = encoded(&answer).len();
        assert!((greet::ANSWER / 2..=greet::ANSWER).contains(&length), "{length}");
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
