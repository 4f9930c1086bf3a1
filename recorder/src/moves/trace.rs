//! Collects what happened when during a move, for a request that asks for it.

use crate::base::log::lock;
use crate::base::traced_calls::Call;
use crate::gate::{Held, Traced};
use ::control::{Trace, TraceEvent};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Maximum number of events besides the program's calls.
const MAX_EVENTS: usize = 10_000;
/// Maximum number of the program's calls, of all threads.
const MAX_CALLS: usize = 10_000;
/// The group of tracks of the move, and that of the program.
const MOVE: u32 = 1;
const PROGRAM: u32 = 2;
/// The name of waits at the gate.
const HELD_UP: &str = "held up by the move";

/// Where an event is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Track {
    /// The whole move.
    Whole,
    /// The gate: attempts to quiesce, and when calls wait.
    Gate,
    /// A GPU's part of the move.
    Gpu(u32),
}

impl Track {
    fn number(self) -> u32 {
        match self {
            Track::Whole => 0,
            Track::Gate => 1,
            Track::Gpu(gpu) => 2 + gpu,
        }
    }
}

/// Details of an event.
pub(crate) type Details<'a> = &'a [(&'a str, Value)];

/// The events of a move under way.
#[derive(Debug)]
pub(crate) struct Tracer {
    /// Zero of the trace's clock.
    since: Instant,
    events: Mutex<(Vec<TraceEvent>, u64)>,
}

impl Tracer {
    pub(super) fn new(since: Instant) -> Tracer {
        Tracer { since, events: Mutex::default() }
    }

    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.since).as_secs_f64() * 1e6
    }

    fn add(&self, track: Track, kind: &str, name: &str, at: Instant, details: Details<'_>) {
        let mut events = lock(&self.events);
        if events.0.len() >= MAX_EVENTS {
            events.1 += 1;
            return;
        }
        let args = details.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let dur = (kind == "X").then(|| at.elapsed().as_secs_f64() * 1e6);
        let (ph, name) = (kind.to_owned(), name.to_owned());
        events.0.push(TraceEvent { name, ph, pid: MOVE, tid: track.number(), ts: self.micros(at), dur, args });
    }

    /// Notes something that has taken from `since` until now.
    pub(crate) fn span(&self, track: Track, name: &str, since: Instant, details: Details<'_>) {
        self.add(track, "X", name, since, details);
    }

    /// Notes something that happens now.
    pub(crate) fn moment(&self, track: Track, name: &str) {
        self.add(track, "i", name, Instant::now(), &[]);
    }

    /// Notes the value of a figure.
    pub(crate) fn figure(&self, track: Track, name: &str, value: u64) {
        self.add(track, "C", name, Instant::now(), &[("value", json!(value))]);
    }

    /// The whole trace: `traced` are the program's calls, `gpus` the names of the GPUs' tracks.
    pub(super) fn end(&self, traced: Traced, gpus: &[(u32, String)]) -> Trace {
        let Traced { held: (held, more), calls: (mut calls, mut other_calls) } = traced;
        other_calls += calls.len().saturating_sub(MAX_CALLS) as u64;
        calls.truncate(MAX_CALLS);
        let (mut events, dropped) = std::mem::take(&mut *lock(&self.events));
        let name = |kind: &str, pid, tid, name: String| TraceEvent {
            name: kind.to_owned(),
            ph: "M".to_owned(),
            pid,
            tid,
            args: BTreeMap::from([("name".to_owned(), Value::from(name))]),
            ..TraceEvent::default()
        };
        let program = crate::base::program();
        let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let left_out =
            |what: &str, n: u64| if n > 0 { format!(", without {n} {what} that were too many") } else { String::new() };
        events.push(name("process_name", MOVE, 0, format!("move{}", left_out("events", dropped))));
        let (pid, calls_left_out) = (std::process::id(), left_out("calls", other_calls));
        let group = format!("calls of {program} ({pid}){calls_left_out}{}", left_out("waits", more));
        events.push(name("process_name", PROGRAM, 0, group));
        events.push(name("thread_name", MOVE, Track::Whole.number(), "the move".to_owned()));
        events.push(name("thread_name", MOVE, Track::Gate.number(), "calls are blocked".to_owned()));
        events.extend(
            gpus.iter().map(|(gpu, way)| name("thread_name", MOVE, Track::Gpu(*gpu).number(), format!("GPU {gpu}: {way}"))),
        );
        let tid = |thread: i32| u32::try_from(thread).unwrap_or_default();
        let threads = held.iter().map(|held| held.thread).chain(calls.iter().map(|call| call.thread));
        for thread in threads.collect::<BTreeSet<i32>>() {
            let comm = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
            events.push(name("thread_name", PROGRAM, tid(thread), comm.trim().to_owned()));
        }
        let span = |name: &str, thread, since, took: Duration, args| TraceEvent {
            name: name.to_owned(),
            ph: "X".to_owned(),
            pid: PROGRAM,
            tid: tid(thread),
            ts: self.micros(since),
            dur: Some(took.as_secs_f64() * 1e6),
            args,
        };
        events.extend(calls.iter().map(|Call { thread, name, since, took }| span(name, *thread, *since, *took, BTreeMap::new())));
        // Inside their calls, as far as these are there.
        events.extend(held.iter().map(|Held { thread, call, since, took }| {
            let call = call.unwrap_or("return from a wait for the GPU");
            span(HELD_UP, *thread, *since, *took, BTreeMap::from([("call".to_owned(), Value::from(call))]))
        }));
        Trace { trace_events: events, display_time_unit: "ms".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_says_what_is_left_out() {
        let tracer = Tracer::new(Instant::now());
        for _ in 0..MAX_EVENTS + 3 {
            tracer.moment(Track::Gpu(1), "round");
        }
        let (since, took) = (Instant::now(), Duration::from_millis(2));
        let held = Held { thread: 7, call: Some("cuMemAlloc_v2"), since, took };
        let call = Call { thread: 8, name: "cuMemFree_v2", since, took };
        let traced = Traced { held: (vec![held; 2], 5), calls: (vec![call; MAX_CALLS + 4], 2) };
        let trace = tracer.end(traced, &[(1, "a -> b".to_owned())]);
        assert_eq!(trace.trace_events.iter().filter(|event| event.ph == "i").count(), MAX_EVENTS);
        let names: Vec<&str> = trace.trace_events.iter().filter_map(|event| event.args.get("name")?.as_str()).collect();
        assert!(names.iter().any(|name| name.contains("without 3 events")), "{names:?}");
        assert!(names.iter().any(|name| name.contains("without 5 waits")), "{names:?}");
        assert!(names.contains(&"GPU 1: a -> b"), "{names:?}");
        assert!(names.iter().any(|name| name.contains("without 6 calls")), "{names:?}");
        let waits: Vec<_> = trace.trace_events.iter().filter(|event| event.name == HELD_UP).collect();
        let is_wait = |event: &&TraceEvent| event.tid == 7 && event.dur == Some(2000.0) && event.args["call"] == "cuMemAlloc_v2";
        assert!(waits.len() == 2 && waits.iter().all(is_wait), "{waits:?}");
        let calls: Vec<_> = trace.trace_events.iter().filter(|event| event.name == "cuMemFree_v2").collect();
        assert!(calls.len() == MAX_CALLS && calls.iter().all(|call| call.tid == 8 && call.pid == PROGRAM), "{}", calls.len());
    }
}
