//! The end of a daemon whose jobs move away.

use super::*;
use crate::daemon::pool::Occupant;
use crate::inspect::inspect;
use crate::leave_request::LeaveRequest;
use std::sync::mpsc::{Receiver, channel};

const LONG: Duration = Duration::from_secs(120);

fn drain(to: &str, timeout: Duration) -> Drain {
    Drain { to: to.split(',').map(|to| to.parse().unwrap()).collect(), timeout }
}

/// What a job is asked.
fn asked(link: &Link) -> Receiver<LeaveRequest> {
    let (sender, receiver) = channel();
    link.set_leave_hook(move |request| drop(sender.send(request)));
    receiver
}

#[test]
fn jobs_are_asked_to_leave_and_the_daemon_waits_for_them() {
    let s = Scene::lending(vec![0, 1]);
    let (over_tcp, here) = (s.link(0), Link::connect(&s.unix(1), None, &hello(), None).unwrap());
    let requests = [asked(&over_tcp), asked(&here)];
    let not_now = AtomicBool::new(false);
    thread::scope(|scope| {
        let drained = scope.spawn(|| s.daemon.drain(&drain("b:1/3,local", LONG), &not_now));
        for (requests, to) in requests.iter().zip(["b:1/3", "local"]) {
            let request = requests.recv_timeout(LONG).unwrap();
            assert!(request.to == to && request.limit <= LONG && request.limit > LONG / 2, "{request:?}");
        }
        // It still answers those whom it serves, and those who ask.
        put(&over_tcp, 3, b"abc");
        assert_eq!(get(&over_tcp, 3, 3), b"abc");
        let state = inspect(&s.at(0), Some(&s.credentials)).unwrap();
        assert!(state.ending && state.gpus.iter().all(|gpu| gpu.jobs.len() == 1 && gpu.idle_workers == 0), "{state:?}");
        let why = Link::connect(&s.at(0), Some(&s.credentials), &hello(), None).unwrap_err().to_string();
        assert!(why.contains("the server is ending and takes no new jobs"), "{why}");
        over_tcp.close();
        assert!(!drained.is_finished(), "a job is left");
        here.close();
        drained.join().unwrap().unwrap();
    });
    assert!(requests.iter().all(|requests| requests.try_recv().is_err()), "each job is asked once");
}

#[test]
fn a_job_that_stays_says_why_and_is_ended_after_the_time_limit() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    let requests = asked(&link);
    let not_now = AtomicBool::new(false);
    thread::scope(|scope| {
        let drained = scope.spawn(|| s.daemon.drain(&drain("local", Duration::from_secs(2)), &not_now));
        requests.recv_timeout(LONG).unwrap();
        link.control(&Control::Stay { request: None, why: "there is\x1b[31m no GPU\nhere".into() }).unwrap();
        let why = drained.join().unwrap().unwrap_err();
        assert!(matches!(why, ServeError::NotDrained { ended: 1, failed: 0 }), "{why}");
    });
    assert!(logged(|line| line.contains("its job does not move away: there is [31m no GPU here")));
    assert!(logged(|line| line.contains("1 worker has a job, whose GPU ends with this server: job ")));
}

#[test]
fn a_job_that_refuses_is_asked_again() {
    let s = Scene::lending(vec![0]);
    let state = s.daemon.state.clone();
    let link = s.link(0);
    let requests = asked(&link);
    thread::scope(|scope| {
        let not_now = AtomicBool::new(false);
        let drained = scope.spawn(move || s.daemon.drain(&drain("local", LONG), &not_now));
        for _ in 0..3 {
            requests.recv_timeout(LONG).unwrap();
            link.control(&Control::Stay { request: None, why: "its target is full at the moment".into() }).unwrap();
        }
        requests.recv_timeout(LONG).unwrap();
        link.close();
        drained.join().unwrap().unwrap();
    });
    let lines = lock(&LOG).iter().filter(|line| line.contains("its target is full at the moment")).count();
    assert_eq!(lines, 1, "the same reason is logged once");
    let counted = &state.pool.counters().drain;
    assert_eq!((counted.asked.get(), counted.refused.get(), counted.left.get()), (4, 3, 1));
}

#[test]
fn a_worker_that_fails_has_not_left() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    let requests = asked(&link);
    thread::scope(|scope| {
        let not_now = AtomicBool::new(false);
        let daemon = &s.daemon;
        let drained = scope.spawn(move || daemon.drain(&drain("local", LONG), &not_now));
        requests.recv_timeout(LONG).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid(&link)), Signal::SIGKILL).unwrap();
        let why = drained.join().unwrap().unwrap_err();
        assert!(matches!(why, ServeError::NotDrained { ended: 0, failed: 1 }), "{why}");
    });
    assert!(logged(|line| line == "while jobs were to move away, workers have failed that had one: 1"));
}

#[test]
fn a_worker_that_reads_nothing_holds_up_nobody() {
    let s = Scene::lending(vec![0, 1]);
    let (stuck, other) = (s.link(0), s.link(1));
    let requests = asked(&other);
    let worker = nix::unistd::Pid::from_raw(pid(&stuck));
    nix::sys::signal::kill(worker, Signal::SIGSTOP).unwrap();
    // As if it had been sent much and read nothing.
    let all = s.daemon.state.pool.occupants();
    let (of_stuck, _) = all.iter().find(|(w, _)| i64::from(w.pid()) == i64::from(worker.as_raw())).unwrap();
    while of_stuck.fills_up() {}
    let state = inspect(&s.at(0), Some(&s.credentials)).unwrap();
    assert_eq!((state.gpus[0].jobs[0].used_bytes, state.gpus[1].jobs.len()), (None, 1));
    let now = AtomicBool::new(false);
    thread::scope(|scope| {
        let drained = scope.spawn(|| s.daemon.drain(&drain("local", 10 * LONG), &now));
        requests.recv_timeout(LONG).unwrap();
        other.close();
        now.store(true, Ordering::SeqCst);
        assert!(matches!(drained.join().unwrap(), Err(ServeError::NotDrained { .. })));
    });
    nix::sys::signal::kill(worker, Signal::SIGKILL).unwrap();
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    let requests = asked(&link);
    let now = AtomicBool::new(false);
    thread::scope(|scope| {
        let drained = scope.spawn(|| s.daemon.drain(&drain("local", 10 * LONG), &now));
        requests.recv_timeout(LONG).unwrap();
        now.store(true, Ordering::SeqCst);
        assert!(matches!(drained.join().unwrap(), Err(ServeError::NotDrained { ended: 1, failed: 0 })));
    });
}

#[test]
fn a_request_that_comes_before_the_job_listens_is_kept() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    let now = AtomicBool::new(true);
    let jobs = || s.daemon.state.pool.occupants().into_iter().filter(|(_, occupant)| matches!(occupant, Occupant::Job(_)));
    assert_eq!(jobs().count(), 1, "it counts before its worker says that it has it");
    assert!(soon(|| jobs().all(|(worker, _)| worker.has_taken())));
    assert!(s.daemon.drain(&drain("memory", LONG), &now).is_err());
    // The message lies before the answer.
    link.request(fake::ECHO, &[]).unwrap().wait().unwrap();
    assert!(soon(|| asked(&link).recv_timeout(Duration::from_millis(20)).is_ok_and(|request| request.to == "memory")));
}

#[test]
fn a_daemon_without_jobs_ends_without_a_wait() {
    let s = Scene::lending(vec![0]);
    let began = Instant::now();
    s.daemon.drain(&drain("local", LONG), &AtomicBool::new(false)).unwrap();
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn workers_of_a_daemon_that_drains_outlive_sigterm() {
    let s = Scene::with(vec![0], |options| options.drain = Some(drain("local", LONG)));
    let link = s.link(0);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid(&link)), Signal::SIGTERM).unwrap();
    put(&link, 3, b"abc");
    assert_eq!(get(&link, 3, 3), b"abc");
    link.close();
}
