//! Fuzz target for what a worker may send to its client.

use super::Landing;
use super::common::Common;
use super::tests::linked;
use crate::frame::{ANSWER_HEAD, AnswerHead, CHANGES, HEARTBEAT, LEAVE, NO_TICKET, TEXT};
use crate::inbox::Inbox;
use crate::leave_request::LeaveRequest;
use fuzz::Limit;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An inbox has a buffer of 256 KiB, and reads a long body in pieces of 4 MiB.
const LIMIT: Limit = Limit { bytes: 6 << 20, each: 64 };
/// Value of the bytes around memory that an answer may change.
const GUARD: u8 = 0xa7;

/// Messages with tickets 1 and 2, as answers to requests whose tickets begin at `first`.
fn addressed(input: &[u8], first: u64) -> Vec<u8> {
    let (mut bytes, mut at) = (input.to_vec(), 0);
    while let Some(head) = bytes.get(at..).and_then(|rest| rest.first_chunk::<ANSWER_HEAD>()) {
        let head = AnswerHead::read(head);
        let Some(body) = head.body() else { break };
        if (1..=2).contains(&head.ticket) {
            bytes[at + 8..at + ANSWER_HEAD].copy_from_slice(&(first + head.ticket - 1).to_le_bytes());
        }
        at += ANSWER_HEAD + body;
    }
    bytes
}

#[test]
fn messages_of_workers() {
    let message = |code, ticket, body: &[u8]| {
        let head = AnswerHead::new(code, ticket, body.len()).expect("short");
        [&head.bytes()[..], body].concat()
    };
    let seeds = [
        [message(0, 2, b"an answer"), message(0, 1, &[3; 8])].concat(),
        [message(700, 1, b"why"), message(0, HEARTBEAT, &[])].concat(),
        message(1, TEXT, b"text of the job\n"),
        message(0, LEAVE, &LeaveRequest { to: "b:1/0".into(), limit: Duration::from_secs(30), request: Some(1) }.body()),
        [message(700, NO_TICKET, &0x0601u16.to_le_bytes()), message(0, 2, &[])].concat(),
        message(0, CHANGES, &[&9u64.to_le_bytes()[..], &0x7000_0000u64.to_le_bytes(), &1u64.to_le_bytes(), &[5; 64]].concat()),
    ];
    let (link, peer) = linked(Duration::from_secs(1 << 20));
    link.set_text_hook(|_, _| ());
    link.set_leave_hook(drop);
    // The data that the link sends must be drained.
    let taken = std::thread::spawn(move || std::io::copy(&mut &peer, &mut std::io::sink()));
    fuzz::run("messages-of-workers", seeds, LIMIT, |input| {
        let ticket = link.tickets.load(Ordering::Relaxed);
        let mut host = [GUARD; 32];
        let landing = Landing { ptr: host[8..].as_mut_ptr(), pitch: 8, width: 4, rows: 2, is_registered: false };
        // SAFETY: `host` outlives the link's use of it: only this thread reads messages, and it forgets the request below.
        let first = unsafe { link.request_into(7, &[], landing) }.expect("a link that is there");
        let second = link.request(7, &[]).expect("likewise");
        let input = addressed(input, ticket);
        let (shared, mut inbox): (&Common, _) = (&link.shared.common, Inbox::new(&input[..]));
        while let Ok(true) = shared.receive(&mut inbox) {}
        (ticket..ticket + 2).for_each(|ticket| _ = shared.replies.forget(ticket));
        drop((first, second));
        let touched = |at: usize| (8..12).contains(&at) || (16..20).contains(&at);
        assert!(host.iter().enumerate().all(|(at, byte)| *byte == GUARD || touched(at)), "bytes beside the landing");
    });
    link.shared.common.conn.shutdown();
    taken.join().expect("it only reads").expect("to the end");
}
