//! Model check of the gate in all orders of its steps (`interleave`): while it is closed no thread is inside, and waiting threads enter
//! later.

use super::tests::ONE_AT_A_TIME;
use super::*;
use crate::base::sync::AtomicU32;
use crate::thread::{here, pretend};
use interleave::{Barrier, Body, bound, explore};
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
    /// A call that uses the side door.
    Beside,
}

/// Counts of threads inside: by the gate, and by the side door.
type Counts = [AtomicU32; 2];

fn call(caller: Caller, inside: &Counts) {
    pretend(caller != Caller::Plain);
    let pass = match caller {
        Caller::AtEndUnmarked => None,
        Caller::Beside => Some(enter_beside(here(), "call")),
        Caller::Plain | Caller::AtEnd => Some(enter(here(), "call")),
    };
    let inside = &inside[usize::from(caller == Caller::Beside)];
    inside.fetch_add(1, Ordering::Relaxed);
    inside.fetch_sub(1, Ordering::Relaxed);
    drop(pass);
}

/// Runs callers concurrently with a thread that closes the gate. `state` is the gate's initial state: whether callers fence.
fn run(callers: &'static [Caller], state: i32, barrier: Barrier, most_preemptions: usize) -> Result<usize, String> {
    run_parking(callers, state, barrier, most_preemptions, |_, _| ())
}

/// As [`run`]; while the gate is closed, `parked` happens.
fn run_parking(
    callers: &'static [Caller],
    state: i32,
    barrier: Barrier,
    most_preemptions: usize,
    parked: fn(&Closed, &Counts),
) -> Result<usize, String> {
    let _one = cuda_api::lock::lock(&ONE_AT_A_TIME);
    let before = STATE.load(Ordering::SeqCst);
    let found = explore(most_preemptions, barrier, || {
        STATE.store(state, Ordering::SeqCst);
        // Left over from other orders: slots are never freed.
        lock(&SLOTS).clear();
        let inside: Arc<Counts> = Arc::default();
        let bodies = callers.iter().map(|caller| {
            let inside = inside.clone();
            Box::new(move || call(*caller, &inside)) as Body
        });
        let mut bodies: Vec<Body> = bodies.collect();
        bodies.push(Box::new(move || match close(Duration::from_secs(3600), || true) {
            Ok(closed) => {
                let look = || inside.each_ref().map(|count| count.load(Ordering::SeqCst));
                for _ in 0..2 {
                    assert_eq!(look(), [0, 0], "somebody is inside a closed gate");
                }
                parked(&closed, &inside);
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

/// The job is parked, and then leaves.
fn parks(closed: &Closed, inside: &Counts) {
    closed.open_side_door();
    assert_eq!(inside[0].load(Ordering::SeqCst), 0, "a call that needs a place is inside");
    assert!(closed.shut_side_door(|| true));
    assert_eq!(inside.each_ref().map(|count| count.load(Ordering::SeqCst)), [0, 0], "somebody is inside at the commit");
}

/// The job leaves though somebody may be inside.
fn leaves_at_once(closed: &Closed, inside: &Counts) {
    closed.open_side_door();
    assert_eq!(inside[1].load(Ordering::SeqCst), 0, "somebody is inside at the commit");
}

#[test]
fn only_queries_pass_the_side_door_and_none_is_inside_when_the_job_leaves() {
    for callers in [&[Caller::Beside][..], &[Caller::Plain], &[Caller::Beside, Caller::Plain]] {
        let preemptions = 3 - callers.len();
        assert!(run_parking(callers, 0, Barrier::Works, preemptions, parks).unwrap() > 50);
        // Two callers that fence have ten times as many orders.
        let (preemptions, at_least) = if callers.len() == 1 { (preemptions, 50) } else { bound((0, 5), (preemptions, 50)) };
        assert!(run_parking(callers, FENCE, Barrier::Lies, preemptions, parks).unwrap() > at_least);
    }
    let found = run_parking(&[Caller::Beside], 0, Barrier::Works, 2, leaves_at_once).unwrap_err();
    assert!(found.contains("somebody is inside at the commit"), "{found}");
}

#[test]
fn the_model_of_the_gate_finds_what_was_wrong() {
    for (callers, barrier) in [(&[Caller::AtEndUnmarked], Barrier::Works), (&[Caller::Plain], Barrier::Lies)] {
        let found = run(callers, 0, barrier, 3).unwrap_err();
        assert!(found.contains("somebody is inside a closed gate"), "{found}");
    }
}
