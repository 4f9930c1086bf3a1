use crate::Applied;
use crate::executor::Executor;
use crate::executor::checker::tests::{Job, body};
use crate::pending::Pending;
use cuda_api::arg::LEGACY;
use cuda_api::calls::{Call, stream};
use cuda_api::code;
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{CopyOut, Fill, HOLD, STREAM_ATTRIBUTE_BYTES, StreamAttribute, StreamHold, id};
use cuda_api::sys::CUlaunchAttributeID_enum;
use cuda_api::wire::Wire;
use std::time::{Duration, Instant};

const BYTES: u64 = 64;
const SOON: Duration = Duration::from_secs(20);

/// A place whose job has two blocking streams, the first of which waits for something.
struct Held {
    job: Job,
    held: u64,
    other: u64,
}

const TOKEN: u64 = HOLD | 5;

impl Held {
    fn new() -> Held {
        let job = Job::open();
        let [held, other] = [20, 21].map(|slot| create(&job.exec, slot, 0, 0).0);
        now(&job.exec, id::STREAM_HOLD, &StreamHold { token: TOKEN, stream: held });
        Held { job, held, other }
    }

    fn fill(&self, stream: u64, value: u32) {
        let op = Fill { dst: self.job.memory, pitch: 0, value, element: 1, width: BYTES, rows: 1, stream };
        now(&self.job.exec, id::FILL, &op);
    }

    /// Waits for what was submitted to the stream that is not held, and returns the bytes that it has written.
    fn read(&self) -> Vec<u8> {
        let op = CopyOut { src: self.job.memory, pitch: BYTES, width: BYTES, rows: 1, stream: self.other };
        let mut reply = Vec::new();
        let mut pending = later(&self.job.exec, id::COPY_OUT, &op);
        assert!(comes(&self.job.exec, &mut pending, &mut reply), "another stream is held up");
        reply
    }

    fn let_go(&self) {
        now(&self.job.exec, id::HOST_DONE, &TOKEN);
    }
}

fn now(e: &Executor, call: u16, op: &impl Wire) {
    let Applied::Done(rc) = e.apply(call, &body(op, &[]), &mut Vec::new()) else { panic!("{call:#x} is pending") };
    assert_eq!(rc, code::SUCCESS, "{call:#x}");
}

fn later(e: &Executor, call: u16, op: &impl Wire) -> Pending {
    match e.apply(call, &body(op, &[]), &mut Vec::new()) {
        Applied::Pending(pending) => pending,
        Applied::Done(rc) => panic!("{call:#x} returns {rc}"),
    }
}

/// Whether an answer comes in time.
fn comes(e: &Executor, pending: &mut Pending, reply: &mut Vec<u8>) -> bool {
    let since = Instant::now();
    while since.elapsed() < SOON {
        if let Some(rc) = pending.poll(e, reply) {
            assert_eq!(rc, code::SUCCESS);
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

/// Kernels of two streams may wait for each other, so a wait of one thread must not order what another one submits.
#[test]
fn a_wait_for_all_streams_holds_up_none() {
    for wait in [id::CONTEXT_SYNC, id::STREAM_SYNC] {
        let place = Held::new();
        let e = &place.job.exec;
        let mut all = match wait {
            id::CONTEXT_SYNC => later(e, wait, &()),
            _ => later(e, wait, &LEGACY),
        };
        place.fill(place.other, 7);
        assert_eq!(place.read(), [7; BYTES as usize]);
        assert_eq!(all.poll(e, &mut Vec::new()), None, "a stream is held");
        place.let_go();
        assert!(comes(e, &mut all, &mut Vec::new()));
    }
}

#[test]
fn a_wait_covers_the_default_stream() {
    for wait in [id::CONTEXT_SYNC, id::STREAM_SYNC] {
        let place = Held::new();
        let e = &place.job.exec;
        // It waits for the held stream.
        place.fill(LEGACY, 9);
        let mut all = match wait {
            id::CONTEXT_SYNC => later(e, wait, &()),
            _ => later(e, wait, &LEGACY),
        };
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(all.poll(e, &mut Vec::new()), None);
        place.let_go();
        assert!(comes(e, &mut all, &mut Vec::new()));
        assert_eq!(place.read(), [9; BYTES as usize]);
    }
}

#[test]
fn asking_whether_a_place_is_idle_adds_no_work() {
    let place = Held::new();
    let e = &place.job.exec;
    for _ in 0..20 {
        assert_eq!(e.is_idle(), Ok(false));
        assert_eq!(e.is_done(id::STREAM_QUERY, place.other), Ok(()));
        assert_eq!(e.is_done(id::STREAM_QUERY, place.held), Err(code::ERROR_NOT_READY));
    }
    place.fill(place.other, 3);
    assert_eq!(place.read(), [3; BYTES as usize]);
    place.let_go();
    let since = Instant::now();
    while e.is_idle() != Ok(true) {
        assert!(since.elapsed() < SOON);
    }
}

/// The driver's stream of a new stream of the job.
fn create(e: &Executor, slot: u32, flags: u32, priority: i32) -> (u64, u64) {
    let stream = compose(Kind::Stream, 1, slot);
    let sent = stream::cuStreamCreateWithPriority::Sent { phStream: stream, flags, priority };
    now(e, stream::cuStreamCreateWithPriority::Fn::ID, &sent);
    (stream, e.bindings.live(Kind::Stream, stream).unwrap())
}

fn destroy(e: &Executor, stream: u64) {
    now(e, stream::cuStreamDestroy_v2::Fn::ID, &stream::cuStreamDestroy_v2::Sent { hStream: stream });
    assert_eq!(e.is_done(id::STREAM_QUERY, stream), Err(code::ERROR_INVALID_HANDLE));
}

#[test]
fn a_destroyed_stream_becomes_one_of_the_same_kind_and_only_that() {
    let place = Held::new();
    let e = &place.job.exec;
    let (first, live) = create(e, 30, 1, 0);
    destroy(e, first);
    let others = [(31, 0, 0), (32, 1, -1)].map(|(slot, flags, priority)| create(e, slot, flags, priority).1);
    assert!(!others.contains(&live), "blocking, or of another priority");
    let second = compose(Kind::Stream, 1, 33);
    now(e, stream::cuStreamCreate::Fn::ID, &stream::cuStreamCreate::Sent { phStream: second, Flags: 1 });
    assert_eq!(e.bindings.live(Kind::Stream, second), Ok(live), "of the default priority");
    assert!(create(e, 34, 1, 0).1 != live, "it is in use");
    assert_eq!(e.busy_streams(), Ok(vec![place.held, LEGACY]), "the held one, and the default stream because of that");
    // With a setting that others must not have.
    let mut value = [0; STREAM_ATTRIBUTE_BYTES];
    value[0] = 2;
    let attribute = CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as u32;
    let op = StreamAttribute { stream: second, attribute, value };
    now(e, id::STREAM_ATTRIBUTE, &op);
    destroy(e, second);
    assert!(create(e, 35, 1, 0).1 != live);
    place.let_go();
}

#[test]
fn a_destroyed_stream_with_work_is_used_again_only_after_it() {
    let place = Held::new();
    let e = &place.job.exec;
    let live = e.bindings.live(Kind::Stream, place.held).unwrap();
    destroy(e, place.held);
    for slot in 30..40 {
        assert!(create(e, slot, 0, 0).1 != live, "it has work");
    }
    place.let_go();
    let since = Instant::now();
    while e.is_idle() != Ok(true) {
        assert!(since.elapsed() < SOON);
    }
}
