//! Several calls in one message, as a replay sends them over a connection, where separate answers would cost more than the calls.
//!
//! For each call the body contains its number (u16), the length of its body (u32) and the body. The answer contains for each call that
//! was carried out its result (i32), the length of its answer (u32) and the answer. The first call that fails ends the batch.

use cuda_api::code::Code;
use cuda_api::wire::{Short, Wire, take};

/// Adds a call to a body; its own body must be shorter than 4 GiB.
pub fn add(batch: &mut Vec<u8>, call: u16, body: &[u8]) {
    call.put(batch);
    part(batch, body);
}

fn part(to: &mut Vec<u8>, bytes: &[u8]) {
    (bytes.len() as u32).put(to);
    to.extend_from_slice(bytes);
}

fn next_part<'a>(from: &mut &'a [u8]) -> Result<&'a [u8], Short> {
    let n = u32::get(from)?;
    take(from, n as usize)
}

/// The next call of a body, and its own body.
pub(crate) fn next_call<'a>(body: &mut &'a [u8]) -> Result<(u16, &'a [u8]), Short> {
    Ok((u16::get(body)?, next_part(body)?))
}

/// Adds the result of a call to an answer, with the call's own answer.
pub(crate) fn add_result(reply: &mut Vec<u8>, rc: Code, answer: &[u8]) {
    rc.put(reply);
    part(reply, answer);
}

/// The results in an answer, in order.
///
/// # Errors
/// The answer is truncated.
pub fn results(mut answer: &[u8]) -> Result<Vec<(Code, Vec<u8>)>, Short> {
    let mut all = Vec::new();
    while !answer.is_empty() {
        let rc = Code::get(&mut answer)?;
        all.push((rc, next_part(&mut answer)?.to_vec()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_and_lengths_that_lie_are_errors() {
        let mut answer = Vec::new();
        for (rc, bytes) in [(0, &b"abc"[..]), (2, b"")] {
            rc.put(&mut answer);
            part(&mut answer, bytes);
        }
        assert_eq!(results(&answer), Ok(vec![(0, b"abc".to_vec()), (2, Vec::new())]));
        assert!((1..answer.len()).filter(|n| *n != 11).all(|n| results(&answer[..n]).is_err()));
        answer[4] = 200;
        assert!(results(&answer).is_err());
    }
}
