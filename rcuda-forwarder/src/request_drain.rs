//! Asks a server about a drain, or for one.

use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, GreetError, Opening};
use crate::link::{Credentials, LinkError, TimeLimits, greeted, refused};
use crate::server_drain::{DrainRequest, DrainState, NAMED};
use cuda_api::wire::Wire;
use std::time::Instant;

/// Has a server begin or end a drain, or asks how far it is; the GPU in the endpoint does not matter. `credentials` as for
/// [`crate::Link::connect`].
pub fn drain(to: &Endpoint, credentials: Option<&Credentials>, request: &DrainRequest) -> Result<DrainState, LinkError> {
    let limits = TimeLimits::default();
    let (conn, _) = greeted(to, credentials, &|_| Opening::Drain(request.clone()), &limits)?;
    receive(&conn, Instant::now() + limits.greeting).map_err(|why| refused(to, &why))
}

fn receive(conn: &Conn, until: Instant) -> Result<DrainState, GreetError> {
    let body = greet::read_answer(conn, until)?;
    let mut rest = &body[..];
    let state = DrainState::get(&mut rest).ok().filter(|state| rest.is_empty() && state.jobs.len() <= NAMED);
    state.ok_or(GreetError::Garbage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attendant::LONGEST_REASON;
    use crate::conn::pair;
    use crate::move_request::LONGEST_PLACES;
    use crate::server_drain::NotLeft;
    use std::time::Duration;

    #[test]
    fn states_are_read_as_written_and_malformed_ones_refused() {
        let job = NotLeft { worker: 9, gpu: Some(1), pid: 7, reason: Some("no".into()) };
        let state = |n| DrainState {
            closed: true,
            ending: false,
            to: Some("local".into()),
            left_ms: 5,
            workers: n as u32,
            jobs: vec![job.clone(); n],
        };
        let received = |body: &[u8]| {
            let (here, there) = pair();
            greet::answer(&there, Ok(body)).unwrap();
            receive(&here, Instant::now() + Duration::from_secs(60))
        };
        let mut whole = Vec::new();
        state(NAMED).put(&mut whole);
        assert_eq!(received(&whole).unwrap(), state(NAMED));
        let mut many = Vec::new();
        state(NAMED + 1).put(&mut many);
        for bad in [&many[..], &whole[..whole.len() - 1], &[&whole[..], &[0]].concat(), &[]] {
            assert!(matches!(received(bad), Err(GreetError::Garbage)), "{bad:?}");
        }
    }
    #[test]
    fn the_longest_state_fits_into_an_answer() {
        let reason = "\u{10ffff}".repeat(LONGEST_REASON);
        let job = NotLeft { worker: u32::MAX, gpu: Some(u32::MAX), pid: u32::MAX, reason: Some(reason) };
        let state = DrainState {
            closed: true,
            ending: true,
            to: Some("x".repeat(LONGEST_PLACES)),
            left_ms: u64::MAX,
            workers: u32::MAX,
            jobs: vec![job; NAMED],
        };
        let (here, there) = pair();
        let sent = state.clone();
        // More than a socket takes before somebody reads it.
        let sender = std::thread::spawn(move || greet::answer(&there, Ok(&sent.encoded())).unwrap());
        assert_eq!(receive(&here, Instant::now() + Duration::from_secs(60)).unwrap(), state);
        sender.join().unwrap();
    }
}
