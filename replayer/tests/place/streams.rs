//! Streams: what waits for them, what they wait for, and their end.

use super::*;
use executor::Busy;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn pending_answers_do_not_hold_up_other_calls() {
    let p = place();
    let a = p.map(0, 2 << 20);
    let stream = p.stream(1, 1);
    let mut waits = Vec::new();
    for i in 0..50u64 {
        p.write(a + i * 4, &(i as u32).to_le_bytes(), stream);
        let copy = CopyOut { src: a + i * 4, pitch: 4, width: 4, rows: 1, stream };
        waits.push(p.later(id::COPY_OUT, &body(&copy, &[])));
    }
    drop(waits.pop());
    for (i, w) in waits.into_iter().enumerate() {
        let mut reply = Vec::new();
        assert_eq!(w.wait(&p.exec, &mut reply), code::SUCCESS);
        assert_eq!(reply, (i as u32).to_le_bytes());
    }
    let Applied::Pending(late) = p.exec.apply(id::CONTEXT_SYNC, &[], &mut Vec::new()) else { panic!("answered at once") };
    p.apply(id::CONTEXT_RESET, &[]);
    assert_eq!(late.wait(&p.exec, &mut Vec::new()), code::ERROR_CONTEXT_IS_DESTROYED);
    assert_eq!(p.exec.busy().expect("streams").what, "");
    assert_eq!(ops::name(id::CONTEXT_RESET), Some("ContextReset"));
    p.leave();
}

#[test]
fn streams_wait_for_the_job_and_say_for_what() {
    let p = place();
    let a = p.map(0, 2 << 20);
    let (work, other) = (p.stream(1, 1), p.stream(2, 1));
    let named = |s: u64, what: &str| format!("stream {s:#x} {what}");
    let later = |id: u16, body: &[u8]| p.later(id, body);
    let polled = |w: &mut executor::Pending| {
        let mut reply = Vec::new();
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_secs(20) {
            match w.poll(&p.exec, &mut reply) {
                Some(rc) => return (rc, reply),
                None => std::thread::yield_now(),
            }
        }
        panic!("no answer")
    };
    let done = |token: u64, bytes: &[u8]| p.try_apply(id::HOST_DONE, &body(&token, bytes)).0;
    let success = code::SUCCESS.to_le_bytes().to_vec();

    // A host function: the stream says that it is there, and goes on when told.
    p.write(a, &1u64.to_le_bytes(), work);
    let mut there = later(id::HOST_CALL, &body(&ops::HostCall { token: 7, stream: work, callback: false }, &[]));
    assert_eq!(
        p.try_apply(id::HOST_CALL, &body(&ops::HostCall { token: 7, stream: work, callback: false }, &[])).0,
        code::ERROR_INVALID_VALUE
    );
    let mut behind = later(id::STREAM_SYNC, &body(&work, &[]));
    assert_eq!(polled(&mut there), (code::SUCCESS, success.clone()));
    assert_eq!((behind.poll(&p.exec, &mut Vec::new()), p.exec.host_calls()), (None, 1));
    assert_eq!(p.exec.busy().unwrap().what, named(work, "waits for a host function of the program that has not returned"));
    assert_eq!(done(8, &[]), code::ERROR_INVALID_VALUE, "nobody asked");
    assert_eq!(done(7, &[]), code::SUCCESS);
    assert_eq!(polled(&mut behind).0, code::SUCCESS);
    assert_eq!((p.exec.host_calls(), p.exec.busy().unwrap().what.as_str()), (0, ""));

    // A callback is told how the context is. The word that it is done may come before the stream is there.
    let mut there = later(id::HOST_CALL, &body(&ops::HostCall { token: 9, stream: work, callback: true }, &[]));
    done(9, &[]);
    assert_eq!(polled(&mut there), (code::SUCCESS, success.clone()));

    // A late copy takes the bytes that come when the stream is there; as a rectangle here.
    let to = CopyIn { dst: a + 64, pitch: 32, width: 8, rows: 2, stream: work };
    let mut there = later(id::COPY_IN_LATE, &body(&ops::CopyInLate { token: ops::HOLD | 10, to }, &[]));
    assert_eq!(polled(&mut there).0, code::SUCCESS);
    assert!(p.exec.busy().unwrap().what.contains("bytes that the job must read"));
    assert_eq!(done(ops::HOLD | 10, &[[5u8; 8], [6; 8]].concat()), code::SUCCESS);
    assert_eq!((p.read(a + 64, 8, work), p.read(a + 96, 8, work)), (vec![5; 8], vec![6; 8]));
    // One that cannot be made is refused, and its stream does not wait.
    let to = CopyIn { dst: 0x1000, pitch: 8, width: 8, rows: 1, stream: work };
    assert_eq!(
        p.try_apply(id::COPY_IN_LATE, &body(&ops::CopyInLate { token: ops::HOLD | 11, to }, &[])).0,
        code::ERROR_INVALID_VALUE
    );
    p.apply(id::STREAM_SYNC, &body(&work, &[]));

    // A value that another stream writes.
    let part = |operation| ops::MemoryPart { operation, address: a + 128, value: 3, flags: 0 };
    let words = |stream, operation| ops::StreamMemory { stream, first_version: false, flags: 0, parts: vec![part(operation)] };
    p.write(a + 128, &[0; 8], work);
    p.apply(id::STREAM_SYNC, &body(&work, &[]));
    let mut past = later(id::STREAM_MEMORY, &body(&words(work, 1), &[]));
    let what = format!("waits for a value at {:#x} that has not been written", a + 128);
    let start = std::time::Instant::now();
    while p.exec.busy().unwrap().what != named(work, &what) && start.elapsed() < std::time::Duration::from_secs(20) {
        std::thread::yield_now();
    }
    assert_eq!(p.exec.busy().unwrap().what, named(work, &what));
    assert!(past.poll(&p.exec, &mut Vec::new()).is_none());
    p.apply(id::STREAM_MEMORY, &body(&words(other, 2), &[]));
    assert_eq!(polled(&mut past).0, code::SUCCESS);
    p.apply(id::CONTEXT_SYNC, &[]);
    assert_eq!(p.exec.busy().unwrap().what, "");
    drop((there, behind, past));
    p.leave();
}

#[test]
fn what_waits_for_an_ended_stream_waits_for_no_later_work() {
    let p = place();
    let hold = |stream: u64, token: u64| p.later(id::HOST_CALL, &body(&ops::HostCall { token, stream, callback: false }, &[]));
    let release = |token: u64| assert_eq!(p.try_apply(id::HOST_DONE, &body(&token, &[])).0, code::SUCCESS);
    let (ended, held) = (p.stream(1, 1), p.stream(2, 1));
    let _there = hold(ended, 1);
    p.apply(0x0403, &body(&stream::cuStreamDestroy_v2::Sent { hStream: ended }, &[]));
    let mut all = p.later(id::CONTEXT_SYNC, &[]);
    assert!(all.poll(&p.exec, &mut Vec::new()).is_none());
    let _there = hold(held, 2);
    release(1);
    // One of these finds that the ended stream is done. Its event must not be recorded anew behind other work.
    let mut behind = Vec::new();
    let start = std::time::Instant::now();
    let mut answer = None;
    while answer.is_none() && start.elapsed() < std::time::Duration::from_secs(60) {
        behind.push(p.later(id::CONTEXT_SYNC, &[]));
        std::thread::sleep(std::time::Duration::from_millis(5));
        behind.push(p.later(id::CONTEXT_SYNC, &[]));
        answer = all.poll(&p.exec, &mut Vec::new());
    }
    assert_eq!(answer, Some(code::SUCCESS), "it waits for work that came later");
    release(2);
    for waits in behind {
        assert_eq!(waits.wait(&p.exec, &mut Vec::new()), code::SUCCESS);
    }
    p.leave();
}

/// A wait for all streams, such as that of a free, must use none that another thread has destroyed in the meantime.
#[test]
fn streams_end_while_others_wait_for_all() {
    let p = place();
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for thread in 0..2 {
            let (exec, over) = (&p.exec, &over);
            threads.spawn(move || {
                for round in 0..3000 {
                    let stream = handle(Kind::Stream, 100 + thread);
                    let made = stream::cuStreamCreate::Sent { phStream: stream, Flags: round & 1 };
                    let ended = stream::cuStreamDestroy_v2::Sent { hStream: stream };
                    for (id, body) in [(0x0401, body(&made, &[])), (0x0403, body(&ended, &[]))] {
                        assert!(
                            matches!(exec.apply(id, &body, &mut Vec::new()), Applied::Done(code::SUCCESS)),
                            "{id:#x} in round {round}"
                        );
                    }
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        while !over.load(Ordering::Relaxed) {
            let (rc, _) = p.try_apply(id::CONTEXT_SYNC, &[]);
            assert_eq!(rc, code::SUCCESS);
            assert_eq!(p.exec.busy(), Ok(Busy::default()));
        }
    });
    p.leave();
}
