use super::*;
use crate::Applied;
use crate::executor::checker::tests::{Job, body};
use cuda_api::ops::{CopyIn, LANE, id};
use std::time::{Duration, Instant};

#[test]
fn a_move_whose_kernels_do_not_start_holds_up_no_copy_of_the_job() {
    let job = Job::open();
    let gpu = &job.exec.gpu;
    let word = gpu.pin(PAGE).expect("a word");
    write(word, 0);
    let part = MemoryPart { operation: MEM_OP_WAIT_32, address: word as u64, value: GO.into(), flags: 0 };
    // What the connections of a move use, and more.
    for number in 0..64 {
        let stream = job.exec.life().lane(number);
        let wait = StreamMemory { stream, first_version: false, flags: 0, parts: vec![part] };
        gpu.stream_memory(stream, &wait).expect("a wait");
    }
    let copy = CopyIn { dst: job.memory, pitch: 8, width: 8, rows: 1, stream: LANE };
    assert!(matches!(job.exec.apply(id::COPY_IN, &body(&copy, &[7; 8]), &mut Vec::new()), Applied::Done(code::SUCCESS)));
    let Applied::Pending(mut copied) = job.exec.apply(id::STREAM_SYNC, &body(&LANE, &[]), &mut Vec::new()) else {
        panic!("answered at once")
    };
    let since = Instant::now();
    while copied.poll(&job.exec, &mut Vec::new()).is_none() {
        assert!(since.elapsed() < Duration::from_secs(20), "the copy waits for the streams of a move");
        std::thread::yield_now();
    }
    write(word, GO);
    job.exec.clone().close();
}
