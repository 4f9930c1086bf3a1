use super::MAX_SPARES;
use crate::Applied;
use crate::executor::Executor;
use crate::executor::checker::tests::{Job, body};
use cuda_api::array::DEVICE;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, compose};
use cuda_api::lock::lock;
use cuda_api::ops::{CopyOut, Fill, GraphChange, GraphMake, GraphSwitch, HOLD, StreamHold, id};
use cuda_api::work::{self, At, Copy3, CopyEnd, Edge, Spec, SpecNode, Work};

const BYTES: u64 = 64;
/// The stream that each [`Job`] has.
fn stream() -> u64 {
    compose(Kind::Stream, 1, 7)
}

fn apply(e: &Executor, call: u16, body: &[u8]) -> (Code, Vec<u8>) {
    let mut reply = Vec::new();
    let rc = match e.apply(call, body, &mut reply) {
        Applied::Done(rc) => rc,
        Applied::Pending(pending) => pending.wait(e, &mut reply),
    };
    (rc, reply)
}

fn apply_well(e: &Executor, call: u16, body: &[u8]) -> Vec<u8> {
    let (rc, reply) = apply(e, call, body);
    assert_eq!(rc, code::SUCCESS, "{call:#x}");
    reply
}

struct Graphs<'j> {
    job: &'j Job,
    made: u64,
}

impl Graphs<'_> {
    fn at(&self, n: u64) -> u64 {
        self.job.memory + n * 4096
    }

    fn fill(&self, n: u64, value: u32) -> Work<u32> {
        Work::Fill(work::Fill { dst: self.at(n), pitch: 0, value, element: 1, width: BYTES, rows: 1 })
    }

    fn copy(&self, from: u64, to: u64) -> Work<u32> {
        let end = |n| CopyEnd { memory: DEVICE, device: self.at(n), ..CopyEnd::default() };
        Work::Copy(Copy3 { src: end(from), dst: end(to), width: BYTES, rows: 1, depth: 1 })
    }

    /// Instantiates a chain of nodes; returns the job's handle.
    fn make(&mut self, works: Vec<Work<u32>>) -> u64 {
        let after = |n: u32| n.checked_sub(1).map(|before| (before, Edge::default())).into_iter().collect();
        let nodes = works.into_iter().zip(0..).map(|(work, n)| SpecNode { work, after: after(n) }).collect();
        self.made += 1;
        let instance = compose(Kind::GraphExec, 1, self.made as u32);
        let make = GraphMake { instance, flags: 0, home: 0, direct: false, spec: Spec { graphs: vec![nodes] } };
        apply_well(&self.job.exec, id::GRAPH_MAKE, &body(&make, &[]));
        instance
    }

    fn live(&self, instance: u64) -> u64 {
        self.job.exec.bindings.live(Kind::GraphExec, instance).unwrap()
    }

    fn launch(&self, instance: u64) {
        apply_well(&self.job.exec, id::GRAPH_LAUNCH, &body(&(instance, stream()), &[]));
    }

    fn wait(&self) {
        apply_well(&self.job.exec, id::STREAM_SYNC, &body(&stream(), &[]));
    }

    fn end(&self, instance: u64) {
        apply_well(&self.job.exec, id::GRAPH_END, &body(&instance, &[]));
    }

    /// Ends an instance; the event behind its last launch is over.
    fn end_and_wait(&self, instance: u64) {
        self.end(instance);
        self.wait();
    }

    fn spares(&self) -> usize {
        lock(&self.job.exec.graphs).spares.len()
    }

    fn byte(&self, n: u64) -> u8 {
        let op = CopyOut { src: self.at(n), pitch: BYTES, width: BYTES, rows: 1, stream: stream() };
        let bytes = apply_well(&self.job.exec, id::COPY_OUT, &body(&op, &[]));
        assert!(bytes.iter().all(|b| *b == bytes[0]), "memory {n}");
        bytes[0]
    }

    fn clear(&self) {
        for n in 0..4 {
            let op = Fill { dst: self.at(n), pitch: 0, value: 0, element: 1, width: BYTES, rows: 1, stream: stream() };
            apply_well(&self.job.exec, id::FILL, &body(&op, &[]));
        }
    }
}

#[test]
fn an_instance_becomes_another_of_its_shape() {
    let job = Job::open();
    let mut g = Graphs { job: &job, made: 0 };
    g.clear();
    let first = g.make(vec![g.fill(0, 5), g.copy(0, 1)]);
    g.launch(first);
    let live = g.live(first);
    g.end_and_wait(first);
    assert_eq!(g.spares(), 1);
    assert_eq!(apply(&job.exec, id::GRAPH_LAUNCH, &body(&(first, stream()), &[])).0, code::ERROR_INVALID_HANDLE, "it has ended");

    // Other kinds, another number, another order: not of its shape.
    for works in [vec![g.copy(0, 1), g.fill(0, 5)], vec![g.fill(0, 5)], vec![g.fill(0, 5), g.copy(0, 1), g.fill(2, 1)]] {
        let other = g.make(works);
        assert_ne!(g.live(other), live);
    }
    let second = g.make(vec![g.fill(2, 7), g.copy(2, 3)]);
    assert_eq!((g.live(second), g.spares()), (live, 0));
    g.clear();
    g.launch(second);
    assert_eq!([0, 1, 2, 3].map(|n| g.byte(n)), [0, 0, 7, 7]);
    // It is an instance like any other: it can be changed, and kept again.
    let change = GraphChange { instance: second, at: At { graph: 0, node: 0 }, work: g.fill(2, 9) };
    apply_well(&job.exec, id::GRAPH_CHANGE, &body(&change, &[]));
    g.launch(second);
    assert_eq!([2, 3].map(|n| g.byte(n)), [9, 9]);
    g.end_and_wait(second);
    let third = g.make(vec![g.fill(0, 1), g.copy(0, 3)]);
    assert_eq!(g.live(third), live);
    g.clear();
    g.launch(third);
    assert_eq!([0, 1, 2, 3].map(|n| g.byte(n)), [1, 0, 0, 1]);
}

#[test]
fn an_instance_with_a_launch_under_way_stays_as_it_is() {
    let job = Job::open();
    let mut g = Graphs { job: &job, made: 0 };
    g.clear();
    g.wait();
    let first = g.make(vec![g.fill(0, 5)]);
    let live = g.live(first);
    let token = HOLD | 77;
    apply_well(&job.exec, id::STREAM_HOLD, &body(&StreamHold { token, stream: stream() }, &[]));
    g.launch(first);
    g.end(first);
    let second = g.make(vec![g.fill(1, 6)]);
    assert_ne!(g.live(second), live);
    apply_well(&job.exec, id::HOST_DONE, &body(&token, &[]));
    g.wait();
    assert_eq!([g.byte(0), g.byte(1)], [5, 0]);
    let third = g.make(vec![g.fill(1, 6)]);
    assert_eq!(g.live(third), live);
}

#[test]
fn nodes_of_a_new_instance_are_on() {
    let job = Job::open();
    let mut g = Graphs { job: &job, made: 0 };
    g.clear();
    let first = g.make(vec![g.fill(0, 5)]);
    let switch = GraphSwitch { instance: first, at: At { graph: 0, node: 0 }, on: false };
    apply_well(&job.exec, id::GRAPH_SWITCH, &body(&switch, &[]));
    g.launch(first);
    g.end_and_wait(first);
    let second = g.make(vec![g.fill(0, 5)]);
    g.launch(second);
    assert_eq!(g.byte(0), 5);
}

#[test]
fn only_a_few_are_kept() {
    let job = Job::open();
    let mut g = Graphs { job: &job, made: 0 };
    let made: Vec<u64> = (0..2 * MAX_SPARES).map(|_| g.make(vec![g.fill(0, 5)])).collect();
    made.iter().for_each(|instance| g.end(*instance));
    assert_eq!(g.spares(), MAX_SPARES);
}
