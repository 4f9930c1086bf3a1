use crate::Applied;
use crate::executor::Executor;
use crate::executor::checker::tests::{Job, body};
use crate::pending::Pending;
use cuda_api::arg::LEGACY;
use cuda_api::calls::{Call, stream};
use cuda_api::code;
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{CopyOut, Fill, HOLD, StreamHold, id};
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
        let [held, other] = [20, 21].map(|slot| {
            let stream = compose(Kind::Stream, 1, slot);
            now(&job.exec, stream::cuStreamCreate::Fn::ID, &stream::cuStreamCreate::Sent { phStream: stream, Flags: 0 });
            stream
        });
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
