//! The end of a daemon whose jobs move away.

use super::*;
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
        link.control(&Control::Stay { why: "there is\x1b[31m no GPU\nhere".into() }).unwrap();
        let why = drained.join().unwrap().unwrap_err();
        assert!(matches!(why, ServeError::NotDrained { workers: 1 }), "{why}");
    });
    assert!(logged(|line| line.contains("its job does not move away: there is [31m no GPU here")));
    assert!(logged(|line| line.contains("1 worker has a job, whose GPU ends with this server: job ")));
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
        assert!(matches!(drained.join().unwrap(), Err(ServeError::NotDrained { workers: 1 })));
    });
}

#[test]
fn a_request_that_comes_before_the_job_listens_is_kept() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    let now = AtomicBool::new(true);
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
