//! Stream capture: calls on a stream being captured become nodes. All of CUDA's rules about captures are implemented
//! here, because they depend on the program's threads, which a driver in another process does not see.

use super::model::{Owner, Store};
use super::tables::{Capture, Captures, Graphs, Mode, Part, Point, Stream};
use cuda_api::code::{self, Code};
use cuda_api::work::{After, Edge, PROGRAMMATIC, Work};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

const INVALID: Code = code::ERROR_INVALID_VALUE;

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Changes the calling thread's mode; returns the previous one.
pub fn exchange_mode(mode: Mode) -> Mode {
    // A thread that is ending no longer has a mode.
    MODE.try_with(|m| m.replace(mode)).unwrap_or(Mode::Global)
}

/// A number that identifies the calling thread.
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.try_with(|n| *n).unwrap_or(0)
}

/// State of a stream, as `cuStreamGetCaptureInfo` gives it.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) id: u64,
    pub(super) graph: u64,
    pub(super) after: After<u64>,
}

/// `CUstreamCaptureStatus`
#[derive(Debug)]
pub(super) enum Status {
    None,
    Active(Info),
    Invalidated,
}

impl Captures {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn invalidate(&mut self, which: impl Fn(&Capture) -> bool) {
        self.open.values_mut().filter(|c| which(c)).for_each(|c| c.invalid = true);
    }

    /// The legacy stream waits for the blocking streams of its context, so it cannot be used while one of them is being
    /// captured.
    fn check_legacy(&mut self, stream: &Stream) -> Result<(), Code> {
        if !stream.legacy {
            return Ok(());
        }
        let hit: Vec<u64> =
            self.parts.values().filter(|p| p.blocking && p.context == stream.context).map(|p| p.capture).collect();
        if hit.is_empty() {
            return Ok(());
        }
        self.open.iter_mut().filter(|(id, _)| hit.contains(id)).for_each(|(_, c)| c.invalid = true);
        Err(code::ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// The capture of a stream, if it is valid.
    fn of(&mut self, stream: &Stream) -> Result<Option<u64>, Code> {
        self.check_legacy(stream)?;
        let Some(part) = self.parts.get(&stream.key) else { return Ok(None) };
        match self.open.get(&part.capture) {
            Some(c) if !c.invalid => Ok(Some(part.capture)),
            _ => Err(code::ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }
}

impl Graphs {
    /// Begins a capture, into `graph` after some of its nodes, or into a new graph.
    pub(super) fn begin(&mut self, stream: &Stream, mode: Mode, into: Option<(u64, After<u64>)>) -> Result<(), Code> {
        if stream.legacy {
            return Err(code::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.captures.parts.contains_key(&stream.key) {
            return Err(code::ERROR_ILLEGAL_STATE);
        }
        let own_graph = into.is_none();
        let (graph, after) = match into {
            Some((graph, after)) => {
                self.store.graph(graph)?;
                for (node, _) in &after {
                    if self.store.node(*node)?.graph != graph {
                        return Err(INVALID);
                    }
                }
                (graph, after)
            }
            None => (self.store.create(Owner::Program), After::new()),
        };
        self.store.graph_mut(graph)?.captures += 1;
        self.captures.next += 1;
        let id = self.captures.next;
        let capture = Capture { graph, own_graph, origin: stream.key, thread: thread(), mode, invalid: false };
        self.captures.open.insert(id, capture);
        self.captures.parts.insert(stream.key, Part::new(stream, id, after));
        Ok(())
    }

    /// Whether the capture of a stream creates a graph.
    pub(super) fn makes_a_graph(&self, stream: &Stream) -> bool {
        let part = self.captures.parts.get(&stream.key);
        part.and_then(|p| self.captures.open.get(&p.capture)).is_some_and(|c| c.own_graph)
    }

    /// Ends a capture and returns the graph, which the program now owns.
    pub(super) fn end(&mut self, stream: &Stream) -> Result<u64, Code> {
        if stream.legacy {
            self.captures.check_legacy(stream)?;
        }
        let id = self.captures.parts.get(&stream.key).map(|p| p.capture).ok_or(code::ERROR_ILLEGAL_STATE)?;
        let c = self.captures.open.get(&id).ok_or(code::ERROR_ILLEGAL_STATE)?;
        if c.origin != stream.key {
            return Err(code::ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        if c.mode != Mode::Relaxed && c.thread != thread() {
            return Err(code::ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let ends = self.captures.parts.get(&stream.key).into_iter().flat_map(|p| &p.after).map(|(n, _)| *n);
        let forks = self.captures.parts.iter().filter(|(key, p)| p.capture == id && **key != stream.key);
        let joined = self.store.all_before(forks.flat_map(|(_, p)| &p.after).map(|(n, _)| *n), ends);
        let result = match c {
            c if c.invalid => Err(code::ERROR_STREAM_CAPTURE_INVALIDATED),
            _ if !joined => Err(code::ERROR_STREAM_CAPTURE_UNJOINED),
            c => Ok(c.graph),
        };
        self.forget(id, result.is_err());
        result
    }

    /// Removes a capture, with the graph that it created unless the program owns it.
    fn forget(&mut self, id: u64, failed: bool) {
        let Some(c) = self.captures.open.remove(&id) else { return };
        self.captures.parts.retain(|_, p| p.capture != id);
        if let Ok(g) = self.store.graph_mut(c.graph) {
            g.captures -= 1;
        }
        if failed && c.own_graph {
            self.drop_graph(c.graph);
        }
    }

    /// Adds a call on a stream to its capture. False: the stream is not being captured, so the call must be executed.
    pub(super) fn add_captured(&mut self, stream: &Stream, work: Work<u64>) -> Result<bool, Code> {
        let Some(id) = self.captures.of(stream)? else { return Ok(false) };
        self.append(id, stream, work)?;
        Ok(true)
    }

    fn append(&mut self, id: u64, stream: &Stream, mut work: Work<u64>) -> Result<(), Code> {
        let graph = self.captures.open.get(&id).map(|c| c.graph).ok_or(code::ERROR_ILLEGAL_STATE)?;
        let part = self.captures.parts.get(&stream.key).ok_or(code::ERROR_ILLEGAL_STATE)?;
        let overlaps = take_overlap(&mut work);
        let store = &self.store;
        let mut after: After<u64> = part.after.iter().filter(|(n, _)| store.nodes.get(*n).is_some()).copied().collect();
        if overlaps {
            for (node, edge) in &mut after {
                if matches!(store.node(*node)?.work, Work::Kernel(_)) && *edge == Edge::default() {
                    *edge = PROGRAMMATIC;
                }
            }
        }
        let node = self.store.add(graph, after, work, stream.context);
        match node {
            Ok(node) => {
                if let Some(part) = self.captures.parts.get_mut(&stream.key) {
                    part.after = [(node, Edge::default())].into_iter().collect();
                }
                Ok(())
            }
            Err(rc) => {
                self.captures.invalidate_id(id);
                Err(rc)
            }
        }
    }

    /// The graph that a stream captures into.
    pub(super) fn capture_graph(&mut self, stream: &Stream) -> Result<Option<u64>, Code> {
        let Some(id) = self.captures.of(stream)? else { return Ok(None) };
        Ok(self.captures.open.get(&id).map(|c| c.graph))
    }

    /// Whether a stream is being captured.
    pub(super) fn takes_part(&mut self, stream: &Stream) -> Result<bool, Code> {
        self.captures.of(stream).map(|c| c.is_some())
    }

    /// Handles a call that cannot be captured: if the stream is being captured, the capture is invalidated.
    pub(super) fn forbid_on(&mut self, stream: &Stream) -> Result<(), Code> {
        match self.captures.of(stream)? {
            Some(id) => {
                self.captures.invalidate_id(id);
                Err(code::ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Handles a call that affects the whole context, or that captures do not see: invalidates the captures whose mode
    /// forbids it in this thread.
    pub(super) fn forbid_unsafe(&mut self) -> Result<(), Code> {
        let mode = MODE.try_with(Cell::get).unwrap_or(Mode::Global);
        if mode == Mode::Relaxed {
            return Ok(());
        }
        let me = thread();
        let forbids = |c: &Capture| match c.mode {
            Mode::Relaxed => false,
            Mode::ThreadLocal => c.thread == me,
            Mode::Global => c.thread == me || mode == Mode::Global,
        };
        if !self.captures.open.values().any(forbids) {
            return Ok(());
        }
        self.captures.invalidate(forbids);
        Err(code::ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Handles a wait for all work of a context, which invalidates all its captures, whatever their mode.
    pub(super) fn forbid_in(&mut self, context: u64) -> Result<(), Code> {
        let hit: Vec<u64> = self.captures.parts.values().filter(|p| p.context == context).map(|p| p.capture).collect();
        if hit.is_empty() {
            return self.forbid_unsafe();
        }
        hit.into_iter().for_each(|id| self.captures.invalidate_id(id));
        Err(code::ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Records an event in a stream. True: the capture has recorded it, or a node was added for it.
    pub(super) fn record_event(&mut self, event: u64, stream: &Stream, external: bool) -> Result<bool, Code> {
        let Some(id) = self.captures.of(stream)? else {
            self.captures.events.remove(&event);
            return Ok(false);
        };
        if external {
            self.append(id, stream, Work::EventRecord(event))?;
            return Ok(true);
        }
        let after = self.captures.parts.get(&stream.key).map(|p| p.after.clone()).unwrap_or_default();
        self.captures.events.insert(event, Point { capture: id, after });
        Ok(true)
    }

    /// Makes a stream wait for an event; `recorded` says whether the event was ever recorded. True: this was handled by
    /// captures.
    pub(super) fn wait_event(&mut self, event: u64, stream: &Stream, external: bool, recorded: bool) -> Result<bool, Code> {
        let of_stream = self.captures.of(stream)?;
        if external && let Some(id) = of_stream {
            self.append(id, stream, Work::EventWait(event))?;
            return Ok(true);
        }
        let point = self.captures.events.get(&event).map(|p| (p.capture, p.after.clone()));
        match (of_stream, point) {
            (None, None) => Ok(false),
            (Some(_), None) if !recorded => Ok(true),
            (Some(id), None) => {
                self.captures.invalidate_id(id);
                Err(code::ERROR_STREAM_CAPTURE_ISOLATION)
            }
            (of_stream, Some((id, after))) => {
                match self.captures.open.get(&id) {
                    None => return Err(code::ERROR_CAPTURED_EVENT),
                    Some(c) if c.invalid => return Err(code::ERROR_STREAM_CAPTURE_INVALIDATED),
                    Some(_) => {}
                }
                if stream.legacy {
                    self.captures.invalidate_id(id);
                    return Err(code::ERROR_STREAM_CAPTURE_IMPLICIT);
                }
                if let Some(other) = of_stream.filter(|o| *o != id) {
                    self.captures.invalidate_id(id);
                    self.captures.invalidate_id(other);
                    return Err(code::ERROR_STREAM_CAPTURE_MERGE);
                }
                let part = self.captures.parts.entry(stream.key).or_insert_with(|| Part::new(stream, id, After::new()));
                for one in after {
                    if !part.after.iter().any(|(n, _)| *n == one.0) {
                        part.after.push(one);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Checks whether an event was last recorded in a capture: the host must not query it. The attempt invalidates the
    /// capture.
    pub(super) fn check_event(&mut self, event: u64) -> Result<(), Code> {
        match self.captures.events.get(&event) {
            Some(point) => {
                let id = point.capture;
                self.captures.invalidate_id(id);
                Err(code::ERROR_CAPTURED_EVENT)
            }
            None => Ok(()),
        }
    }

    /// Removes an event that was destroyed.
    pub(super) fn forget_event(&mut self, event: u64) {
        self.captures.events.remove(&event);
    }

    /// Removes a stream that was destroyed; a capture that began in it can never end and is removed, too.
    pub(super) fn forget_stream(&mut self, key: u64) {
        let Some(part) = self.captures.parts.remove(&key) else { return };
        if self.captures.open.get(&part.capture).is_some_and(|c| c.origin == key) {
            self.forget(part.capture, true);
        }
    }

    /// State of a stream.
    pub(super) fn status(&mut self, stream: &Stream) -> Result<Status, Code> {
        if stream.legacy && self.captures.parts.values().any(|p| p.blocking && p.context == stream.context) {
            return Err(code::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let Some(part) = self.captures.parts.get(&stream.key) else { return Ok(Status::None) };
        match self.captures.open.get(&part.capture) {
            Some(c) if !c.invalid => Ok(Status::Active(Info { id: part.capture, graph: c.graph, after: part.after.clone() })),
            _ => Ok(Status::Invalidated),
        }
    }

    /// Keeps the targets of returned pointers until the next such call on the stream.
    pub(super) fn keep_returned(&mut self, stream: &Stream, words: Vec<Box<[u64]>>) {
        if let Some(part) = self.captures.parts.get_mut(&stream.key) {
            part.returned = words;
        }
    }

    /// Changes the predecessors of the next node of a stream.
    pub(super) fn set_after(&mut self, stream: &Stream, nodes: After<u64>, replace: bool) -> Result<(), Code> {
        let id = self.captures.of(stream)?.ok_or(code::ERROR_ILLEGAL_STATE)?;
        let graph = self.captures.open.get(&id).map(|c| c.graph).ok_or(code::ERROR_ILLEGAL_STATE)?;
        for (node, _) in &nodes {
            if self.store.node(*node)?.graph != graph {
                return Err(INVALID);
            }
        }
        let part = self.captures.parts.get_mut(&stream.key).ok_or(code::ERROR_ILLEGAL_STATE)?;
        if replace {
            part.after.clear();
        }
        for one in nodes {
            part.after.retain(|(n, _)| *n != one.0);
            part.after.push(one);
        }
        Ok(())
    }
}

impl Captures {
    fn invalidate_id(&mut self, id: u64) {
        if let Some(c) = self.open.get_mut(&id) {
            c.invalid = true;
        }
    }
}

impl Part {
    fn new(stream: &Stream, capture: u64, after: After<u64>) -> Part {
        Part { capture, after, context: stream.context, blocking: stream.blocking, returned: Vec::new() }
    }
}

/// Removes the attribute that lets a kernel overlap its predecessor from a launch: in a graph this is expressed by
/// edges.
fn take_overlap(work: &mut Work<u64>) -> bool {
    const OVERLAP: u32 = 6;
    let Work::Kernel(k) = work else { return false };
    let wanted = k.attributes.iter().any(|a| cuda_api::work::attribute_id(a) == OVERLAP && a[8..12] != [0; 4]);
    k.attributes.retain(|a| cuda_api::work::attribute_id(a) != OVERLAP);
    wanted
}

impl Store {
    /// Whether a graph is being captured into.
    pub(super) fn is_captured_into(&self, graph: u64) -> bool {
        self.graphs.get(graph).is_some_and(|g| g.captures > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Stream = Stream { key: 10, context: 1, legacy: false, blocking: false };
    const FORK: Stream = Stream { key: 11, ..PLAIN };
    const BLOCKING: Stream = Stream { key: 12, blocking: true, ..PLAIN };
    const LEGACY: Stream = Stream { key: 1, legacy: true, ..BLOCKING };
    const EVENT: u64 = 77;

    fn graphs() -> Graphs {
        Graphs::new(0)
    }

    /// A capture of one node, forked by an event that was recorded after it.
    fn forked(g: &mut Graphs, mode: Mode) {
        g.begin(&PLAIN, mode, None).unwrap();
        assert_eq!(g.add_captured(&PLAIN, Work::Empty), Ok(true));
        assert_eq!(g.record_event(EVENT, &PLAIN, false), Ok(true));
        assert_eq!(g.wait_event(EVENT, &FORK, false, false), Ok(true));
    }

    #[test]
    fn forks_must_be_joined() {
        let mut g = graphs();
        forked(&mut g, Mode::Global);
        assert_eq!(g.end(&FORK), Err(code::ERROR_STREAM_CAPTURE_UNMATCHED));
        g.add_captured(&FORK, Work::Empty).unwrap();
        assert_eq!(g.end(&PLAIN), Err(code::ERROR_STREAM_CAPTURE_UNJOINED));
        assert!(matches!(g.status(&FORK), Ok(Status::None)) && g.captures.is_empty());

        forked(&mut g, Mode::Global);
        g.add_captured(&FORK, Work::Empty).unwrap();
        g.record_event(EVENT, &FORK, false).unwrap();
        g.wait_event(EVENT, &PLAIN, false, false).unwrap();
        g.add_captured(&PLAIN, Work::Empty).unwrap();
        let graph = g.end(&PLAIN).unwrap();
        let edges = g.store.edges(graph).unwrap();
        let nodes = g.store.graph(graph).unwrap().nodes.clone();
        let plain = Edge::default();
        let (a, b, c) = (nodes[0], nodes[1], nodes[2]);
        assert_eq!(edges, [(a, b, plain), (a, c, plain), (b, c, plain)]);
        // A fork without work needs no join.
        forked(&mut g, Mode::Global);
        assert!(g.end(&PLAIN).is_ok());
    }

    #[test]
    fn modes_say_whom_an_unsafe_call_hurts() {
        let hurts = |capture: Mode, other_thread: bool, mode: Mode| {
            let mut g = graphs();
            g.begin(&PLAIN, capture, None).unwrap();
            let ask = |g: &mut Graphs| {
                let before = exchange_mode(mode);
                let answer = g.forbid_unsafe();
                exchange_mode(before);
                answer
            };
            let answer = if other_thread { std::thread::scope(|s| s.spawn(|| ask(&mut g)).join().unwrap()) } else { ask(&mut g) };
            let end = g.end(&PLAIN);
            assert_eq!(answer.is_err(), end.is_err(), "what is refused voids the capture");
            answer.is_err()
        };
        use Mode::{Global, Relaxed, ThreadLocal};
        assert!(hurts(Global, false, Global) && hurts(Global, false, ThreadLocal) && !hurts(Global, false, Relaxed));
        assert!(hurts(Global, true, Global) && !hurts(Global, true, ThreadLocal) && !hurts(Global, true, Relaxed));
        assert!(hurts(ThreadLocal, false, Global) && !hurts(ThreadLocal, true, Global));
        assert!(!hurts(Relaxed, false, Global) && !hurts(Relaxed, true, Global));
    }

    #[test]
    fn only_the_thread_that_began_may_end_unless_the_mode_is_relaxed() {
        let mut g = graphs();
        for (mode, expected) in [(Mode::Global, Some(code::ERROR_STREAM_CAPTURE_WRONG_THREAD)), (Mode::Relaxed, None)] {
            g.begin(&PLAIN, mode, None).unwrap();
            let end = std::thread::scope(|s| s.spawn(|| g.end(&PLAIN)).join().unwrap());
            assert_eq!(end.err(), expected);
            if expected.is_some() {
                assert!(g.end(&PLAIN).is_ok(), "the capture goes on");
            }
        }
    }

    #[test]
    fn what_is_outside_stays_outside() {
        let mut g = graphs();
        g.begin(&PLAIN, Mode::Relaxed, None).unwrap();
        assert_eq!(g.wait_event(EVENT, &PLAIN, false, true), Err(code::ERROR_STREAM_CAPTURE_ISOLATION));
        assert_eq!(g.add_captured(&PLAIN, Work::Empty), Err(code::ERROR_STREAM_CAPTURE_INVALIDATED));
        assert!(matches!(g.status(&PLAIN), Ok(Status::Invalidated)));
        assert_eq!(g.end(&PLAIN), Err(code::ERROR_STREAM_CAPTURE_INVALIDATED));
        // An external wait is a node.
        g.begin(&PLAIN, Mode::Relaxed, None).unwrap();
        assert_eq!(g.wait_event(EVENT, &PLAIN, true, true), Ok(true));
        assert!(g.end(&PLAIN).is_ok());

        g.begin(&PLAIN, Mode::Relaxed, None).unwrap();
        g.begin(&FORK, Mode::Relaxed, None).unwrap();
        g.record_event(EVENT, &PLAIN, false).unwrap();
        assert_eq!(g.wait_event(EVENT, &FORK, false, false), Err(code::ERROR_STREAM_CAPTURE_MERGE));
        assert!(g.end(&PLAIN).is_err() && g.end(&FORK).is_err());

        forked(&mut g, Mode::Relaxed);
        assert_eq!(g.check_event(EVENT), Err(code::ERROR_CAPTURED_EVENT));
        assert!(g.end(&PLAIN).is_err());
        assert_eq!(g.wait_event(EVENT, &FORK, false, true), Err(code::ERROR_CAPTURED_EVENT), "of a capture that is over");
        assert_eq!(g.record_event(EVENT, &FORK, false), Ok(false));
        assert_eq!((g.check_event(EVENT), g.wait_event(EVENT, &PLAIN, false, true)), (Ok(()), Ok(false)));
    }

    #[test]
    fn the_legacy_stream_and_blocking_captures_exclude_each_other() {
        let mut g = graphs();
        assert_eq!(g.begin(&LEGACY, Mode::Relaxed, None), Err(code::ERROR_STREAM_CAPTURE_UNSUPPORTED));
        g.begin(&PLAIN, Mode::Relaxed, None).unwrap();
        assert_eq!(g.add_captured(&LEGACY, Work::Empty), Ok(false));
        g.begin(&BLOCKING, Mode::Relaxed, None).unwrap();
        assert_eq!(g.status(&LEGACY).err(), Some(code::ERROR_STREAM_CAPTURE_IMPLICIT));
        let elsewhere = Stream { context: 2, ..LEGACY };
        assert_eq!(g.add_captured(&elsewhere, Work::Empty), Ok(false));
        assert_eq!(g.add_captured(&LEGACY, Work::Empty), Err(code::ERROR_STREAM_CAPTURE_IMPLICIT));
        assert!(g.end(&BLOCKING).is_err());
        assert!(g.end(&PLAIN).is_ok());
        g.begin(&PLAIN, Mode::Relaxed, None).unwrap();
        assert_eq!(g.forbid_in(1), Err(code::ERROR_STREAM_CAPTURE_UNSUPPORTED));
        assert!(g.end(&PLAIN).is_err());
    }

    #[test]
    fn what_goes_takes_its_capture_along() {
        let mut g = graphs();
        forked(&mut g, Mode::Relaxed);
        g.forget_stream(FORK.key);
        assert!(matches!(g.status(&PLAIN), Ok(Status::Active(_))));
        g.forget_stream(PLAIN.key);
        assert!(g.captures.is_empty());
        assert_eq!(g.end(&PLAIN), Err(code::ERROR_ILLEGAL_STATE));
    }

    #[test]
    fn a_kernel_that_may_overlap_has_an_edge_of_its_own() {
        use cuda_api::ops::ATTRIBUTE_BYTES;
        use cuda_api::work::{Kernel, Params};
        let kernel = |overlap: u8| {
            let mut attribute = [0; ATTRIBUTE_BYTES];
            (attribute[0], attribute[8]) = (6, overlap);
            let (attributes, params) = (vec![attribute], Params::new());
            Work::Kernel(Kernel { function: 1, grid: [1; 3], block: [1; 3], shared: 0, attributes, params })
        };
        let mut g = graphs();
        g.begin(&PLAIN, Mode::Relaxed, None).unwrap();
        for work in [kernel(0), kernel(1), Work::Empty, kernel(1)] {
            g.add_captured(&PLAIN, work).unwrap();
        }
        let graph = g.end(&PLAIN).unwrap();
        let edges: Vec<Edge> = g.store.edges(graph).unwrap().into_iter().map(|(_, _, e)| e).collect();
        assert_eq!(edges, [PROGRAMMATIC, Edge::default(), Edge::default()]);
    }
}
