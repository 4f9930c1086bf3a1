//! Fuzz targets for what schedulers send to jobs and jobs to schedulers.

use crate::history::{History, Past};
use crate::request::tests::every_request;
use crate::{
    Answer, Device, Event, EventKind, GpuMove, Job, LONGEST_REQUEST, Move, MoveState, Plan, ReasonCode, Refusal, Request, Trace,
    TraceEvent,
};
use fuzz::Limit;
use std::collections::BTreeMap;

#[test]
fn histories() {
    let it = Move { id: "m1".into(), state: MoveState::Done, legs: vec![GpuMove::default()], ..Move::default() };
    let line = serde_json::to_vec(&Past { pid: 7, program: "/bin/train".into(), name: "train.py".into(), it }).unwrap();
    let seeds = [line.clone(), [&line[..], b"\n", &line, b"\n"].concat(), [&line[..9], b"\n", &line].concat()];
    fuzz::run("histories", seeds, LIMIT, |input| {
        let mut history = History::default();
        history.add(input);
        for past in history.moves {
            let again = serde_json::to_vec(&past).unwrap();
            assert_eq!(serde_json::from_slice::<Past>(&again).ok(), Some(past));
        }
    });
}

/// A JSON value takes about ten times the memory of its text.
const LIMIT: Limit = Limit { bytes: 64 << 10, each: 256 };

#[test]
fn requests() {
    fuzz::run("requests", every_request().map(|request| request.line().into_bytes()), LIMIT, |input| {
        // Longer lines are not read.
        let input = &input[..input.len().min(LONGEST_REQUEST)];
        if let Ok(request) = Request::read(input) {
            assert_eq!(Request::read(request.line().as_bytes()), Ok(request));
        }
    });
}

#[test]
fn answers() {
    let gpu = GpuMove {
        gpu: 1,
        phases: BTreeMap::from([("delta".to_owned(), 0.5)]),
        instead: Some("why".into()),
        ..GpuMove::default()
    };
    let event = TraceEvent {
        name: "delta".into(),
        dur: Some(2.5),
        args: BTreeMap::from([("bytes".into(), 7.into())]),
        ..TraceEvent::default()
    };
    let trace = Trace { trace_events: vec![event], ..Trace::default() };
    let it =
        Move { id: "m1".into(), reason: Some("no".into()), legs: vec![gpu], trace: Some(Box::new(trace)), ..Move::default() };
    let device = Device { live: BTreeMap::from([("streams".to_owned(), 3)]), ..Device::default() };
    let job = Job { pid: 7, queued: vec!["m2".into()], devices: vec![device], ..Job::default() };
    let seeds = [
        Answer::Job(job).line(),
        Answer::Plan(Plan { blockers: vec!["x".into()], gpus: vec![0, 1], ..Plan::default() }).line(),
        Answer::Move(it.clone()).line(),
        Answer::Moves(vec![it.clone(), Move::default()]).line(),
        Answer::Subscribed(9).line(),
        Refusal::about(ReasonCode::Busy, "m1", "later").line(),
        Event { seq: 3, event: EventKind::Phase, it }.line(),
    ];
    fuzz::run("answers", seeds.map(String::into_bytes), LIMIT, |input| {
        match Answer::read(input) {
            Ok(Ok(answer)) => assert_eq!(Answer::read(answer.line().as_bytes()).ok(), Some(Ok(answer))),
            Ok(Err(refusal)) => assert_eq!(Answer::read(refusal.line().as_bytes()).ok(), Some(Err(refusal))),
            Err(_) => {}
        }
        if let Ok(event) = Event::read(input) {
            assert_eq!(Event::read(event.line().as_bytes()).ok(), Some(event));
        }
    });
}
