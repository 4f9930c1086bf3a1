//! Model check of the gate in all orders of its steps (`interleave`): while it is closed no thread is inside, and waiting threads enter
//! later.

use super::tests::ONE_AT_A_TIME;
use super::*;
use crate::thread::{here, pretend_ended};
use interleave::{Barrier, Body, explore};
use std::sync::Arc;

/// A thread of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// A call.
    Plain,
    /// A call after the thread has released its resources.
    AtEnd,
    /// The former, wrong behaviour: the thread is no longer marked.
    AtEndUnmarked,
}

fn call(caller: Caller, inside: &AtomicU32) {
    if caller != Caller::Plain {
        pretend_ended();
    }
    let pass = (caller != Caller::AtEndUnmarked).then(|| enter(here(), "call"));
    inside.fetch_add(1, Ordering::Relaxed);
    inside.fetch_sub(1, Ordering::Relaxed);
    drop(pass);
}

/// Runs callers concurrently with a thread that closes the gate. `state` is the gate's initial state: whether callers fence.
fn run(callers: &'static [Caller], state: i32, barrier: Barrier, most_preemptions: usize) -> Result<usize, String> {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = STATE.load(Ordering::SeqCst);
    let found = explore(most_preemptions, barrier, || {
        STATE.store(state, Ordering::SeqCst);
        // Left over from other orders: slots are never freed.
        lock(&SLOTS).clear();
        let inside = Arc::new(AtomicU32::new(0));
        let bodies = callers.iter().map(|caller| {
            let inside = inside.clone();
            Box::new(move || call(*caller, &inside)) as Body
        });
        let mut bodies: Vec<Body> = bodies.collect();
        bodies.push(Box::new(move || match close(Duration::from_secs(3600), || true) {
            Ok(closed) => {
                for _ in 0..2 {
                    assert_eq!(inside.load(Ordering::SeqCst), 0, "somebody is inside a closed gate");
                }
                drop(closed);
            }
            Err(why) => assert_eq!((why, barrier), (NotClosed::NoBarrier, Barrier::Refused)),
        }));
        bodies
    });
    STATE.store(before, Ordering::SeqCst);
    found
}

#[test]
fn no_order_lets_a_call_pass_a_closed_gate() {
    for callers in [&[Caller::Plain][..], &[Caller::AtEnd]] {
        assert!(run(callers, 0, Barrier::Works, 3).unwrap() > 500);
        assert!(run(callers, FENCE, Barrier::Lies, 2).unwrap() > 200, "who fences needs no barrier");
        assert!(run(callers, 0, Barrier::Refused, 3).unwrap() > 100, "then it is not closed");
        assert!(run(callers, TRACED, Barrier::Works, 2).unwrap() > 200, "traced calls wait like others");
    }
    // The slot of a call at a thread's end is reused by the next one.
    for callers in [&[Caller::AtEnd, Caller::AtEnd][..], &[Caller::AtEnd, Caller::Plain]] {
        assert!(run(callers, 0, Barrier::Works, 1).unwrap() > 500);
    }
}

#[test]
fn the_model_of_the_gate_finds_what_was_wrong() {
    for (callers, barrier) in [(&[Caller::AtEndUnmarked], Barrier::Works), (&[Caller::Plain], Barrier::Lies)] {
        let found = run(callers, 0, barrier, 3).unwrap_err();
        assert!(found.contains("somebody is inside a closed gate"), "{found}");
    }
}
