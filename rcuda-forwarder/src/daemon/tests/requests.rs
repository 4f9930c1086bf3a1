//! Requests to move jobs, and events.

use super::*;
use crate::daemon::request_seats::{FOLLOWERS, MOVES};
use crate::leave_request::LeaveRequest;
use crate::move_request::{LONGEST_PLACES, MoveAnswer, MoveOutcome, MoveRequest};
use crate::request_move::request_move;
use crate::server_event::{ServerEvent, ServerEventKind, ServerEvents};
use crate::user_tokens::TokensFile;
use std::sync::mpsc::{Receiver, channel};

const LONG_MS: u64 = 120_000;
const LONG: Duration = Duration::from_millis(LONG_MS);

fn tokens(s: &Scene) -> TokensFile {
    TokensFile::beside(&s.directory.join("token"))
}

fn add(s: &Scene, name: &str) -> Credentials {
    Credentials { token: Some(tokens(s).add(name).unwrap().token), ..s.credentials.clone() }
}

/// A job with this process id, by its own word.
fn job(s: &Scene, gpu: u32, by: &Credentials, pid: u32) -> Arc<Link> {
    let link = Link::connect(&s.at(gpu), Some(by), &JobHello { pid, virtual_device: gpu, ..hello() }, None).unwrap();
    let worker = self::pid(&link) as u32;
    let taken = || s.daemon.state.pool.occupants().iter().any(|(other, _)| other.pid() == worker && other.has_taken());
    assert!(soon(taken));
    link
}

fn asked(link: &Link) -> Receiver<LeaveRequest> {
    let (sender, receiver) = channel();
    link.set_leave_hook(move |request| drop(sender.send(request)));
    receiver
}

fn request(pid: u32, to: &str) -> MoveRequest {
    MoveRequest { pid, worker: None, to: to.to_owned(), limit_ms: LONG_MS }
}

fn outcome(s: &Scene, by: &Credentials, request: &MoveRequest) -> MoveAnswer {
    request_move(&s.at(0), Some(by), request).unwrap()
}

#[test]
fn a_user_asks_for_a_move_and_gets_the_jobs_own_reason() {
    let s = Scene::lending(vec![0]);
    let ann = add(&s, "ann");
    let link = job(&s, 0, &ann, 7);
    let requests = asked(&link);
    thread::scope(|scope| {
        let answer = scope.spawn(|| outcome(&s, &ann, &request(7, "b:1/3")));
        let request = requests.recv_timeout(LONG).unwrap();
        assert!(request.to == "b:1/3" && request.limit <= LONG && request.limit > LONG / 2, "{request:?}");
        // An answer to another request is none to this one.
        link.control(&Control::Stay { request: Some(99), why: "nobody has asked".into() }).unwrap();
        link.control(&Control::Stay { request: request.request, why: "there is\x1b[31m no GPU".into() }).unwrap();
        let answer = answer.join().unwrap();
        assert_eq!((answer.outcome, answer.reason.as_deref()), (MoveOutcome::Refused, Some("there is [31m no GPU")));
        let [gpu] = &answer.gpus[..] else { panic!("{answer:?}") };
        assert_eq!((gpu.worker as i32, gpu.gpu, &*gpu.to), (pid(&link), Some(0), "b:1/3"));
        // It can be asked again, and leaves.
        let answer = scope.spawn(|| outcome(&s, &ann, &self::request(7, "local")));
        assert_eq!(requests.recv_timeout(LONG).unwrap().to, "local");
        link.close();
        assert_eq!(answer.join().unwrap().outcome, MoveOutcome::Ended, "it has taken nothing along");
    });
    assert!(logged(|line| line.starts_with("ann at 127.0.0.1:") && line.contains(" asks job 7 (its own word) of ann at ")));
}

#[test]
fn users_move_their_own_jobs_only_and_the_administrator_all() {
    let s = Scene::lending(vec![0, 1]);
    let [ann, bob] = ["ann", "bob"].map(|name| add(&s, name));
    let (of_ann, of_bob) = (job(&s, 0, &ann, 7), job(&s, 1, &bob, 8));
    let requests = [asked(&of_ann), asked(&of_bob)];
    for (by, pid, wanted) in [
        (&ann, 8, MoveOutcome::NotPermitted),
        (&bob, 7, MoveOutcome::NotPermitted),
        (&ann, 9, MoveOutcome::NoSuchJob),
        (&s.credentials, 9, MoveOutcome::NoSuchJob),
    ] {
        let answer = outcome(&s, by, &request(pid, "local"));
        assert!(answer.outcome == wanted && answer.gpus.is_empty() && answer.reason.is_some(), "{answer:?}");
    }
    assert!(requests.iter().all(|requests| requests.try_recv().is_err()), "no job was asked");
    // The server's own token, and its user on its machine.
    for at in [s.at(0), s.unix(0)] {
        for (link, requests, pid) in [(&of_ann, &requests[0], 7), (&of_bob, &requests[1], 8)] {
            thread::scope(|scope| {
                let answer = scope.spawn(|| request_move(&at, Some(&s.credentials), &request(pid, "local")).unwrap());
                let request = requests.recv_timeout(LONG).unwrap().request;
                link.control(&Control::Stay { request, why: "no".into() }).unwrap();
                assert_eq!(answer.join().unwrap().outcome, MoveOutcome::Refused);
            });
        }
    }
}

#[test]
fn jobs_with_one_process_id_are_told_apart_by_user_and_by_worker() {
    let s = Scene::lending(vec![0, 1]);
    let [ann, bob] = ["ann", "bob"].map(|name| add(&s, name));
    let (of_ann, of_bob) = (job(&s, 0, &ann, 7), job(&s, 1, &bob, 7));
    let requests = [asked(&of_ann), asked(&of_bob)];
    let answer = outcome(&s, &s.credentials, &request(7, "local"));
    let why = answer.reason.unwrap();
    assert!(answer.outcome == MoveOutcome::Ambiguous && why.contains(&format!("{} of job 7", pid(&of_bob))), "{why}");
    let by_worker = |link: &Link| MoveRequest { worker: Some(pid(link) as u32), ..request(7, "local") };
    for (by, request) in [(&bob, request(7, "local")), (&s.credentials, by_worker(&of_bob))] {
        thread::scope(|scope| {
            let answer = scope.spawn(|| outcome(&s, by, &request));
            let request = requests[1].recv_timeout(LONG).unwrap().request;
            of_bob.control(&Control::Stay { request, why: "no".into() }).unwrap();
            assert_eq!(answer.join().unwrap().gpus.len(), 1);
        });
    }
    assert_eq!(outcome(&s, &bob, &by_worker(&of_ann)).outcome, MoveOutcome::NotPermitted);
    assert_eq!(outcome(&s, &bob, &MoveRequest { pid: 8, ..by_worker(&of_bob) }).outcome, MoveOutcome::NoSuchJob);
    assert!(requests[0].try_recv().is_err(), "the other job was not asked");
}

#[test]
fn each_gpu_of_a_job_has_its_own_place() {
    let s = Scene::lending(vec![0, 1]);
    let links = [0, 1].map(|gpu| job(&s, gpu, &s.credentials, 7));
    let requests = links.each_ref().map(|link| asked(link));
    for (to, wanted) in
        [("b:1,c:1,d:1", MoveOutcome::Invalid), ("nowhere", MoveOutcome::Invalid), ("file:/x", MoveOutcome::Invalid)]
    {
        assert_eq!(outcome(&s, &s.credentials, &request(7, to)).outcome, wanted, "{to}");
    }
    // A copy that is kept in the server's memory is no GPU of it.
    let memory = Endpoint { gpu: Endpoint::MEMORY, ..s.at(0) };
    let copy = Link::connect(&memory, Some(&s.credentials), &JobHello { pid: 7, ..hello() }, None).unwrap();
    thread::scope(|scope| {
        let answer = scope.spawn(|| outcome(&s, &s.credentials, &request(7, "b:1/0,local")));
        for ((link, requests), to) in links.iter().zip(&requests).zip(["b:1/0", "local"]) {
            let request = requests.recv_timeout(LONG).unwrap();
            assert_eq!(request.to, to);
            link.control(&Control::Stay { request: request.request, why: to.into() }).unwrap();
        }
        let answer = answer.join().unwrap();
        let reasons: Vec<_> = answer.gpus.iter().map(|gpu| gpu.reason.as_deref()).collect();
        assert_eq!((answer.reason.as_deref(), &reasons[..]), (Some("b:1/0"), &[Some("b:1/0"), Some("local")][..]));
    });
    copy.close();
}

#[test]
fn a_job_that_does_not_answer_is_not_waited_for_without_end() {
    let s = Scene::lending(vec![0]);
    let link = job(&s, 0, &s.credentials, 7);
    let requests = asked(&link);
    thread::scope(|scope| {
        let first = scope.spawn(|| outcome(&s, &s.credentials, &MoveRequest { limit_ms: 3000, ..request(7, "local") }));
        requests.recv_timeout(LONG).unwrap();
        // One request is open at a time.
        assert_eq!(outcome(&s, &s.credentials, &request(7, "memory")).outcome, MoveOutcome::Busy);
        assert_eq!(first.join().unwrap().outcome, MoveOutcome::NoAnswer);
    });
    // The worker still serves its job, which can be asked again.
    put(&link, 3, b"abc");
    assert_eq!(get(&link, 3, 3), b"abc");
    thread::scope(|scope| {
        let again = scope.spawn(|| outcome(&s, &s.credentials, &request(7, "helper")));
        assert_eq!(requests.recv_timeout(LONG).unwrap().to, "helper");
        link.close();
        assert_eq!(again.join().unwrap().outcome, MoveOutcome::Ended);
    });
}

#[test]
fn those_without_a_token_and_malformed_requests_reach_no_job() {
    let s = Scene::lending(vec![0]);
    let link = job(&s, 0, &s.credentials, 7);
    let requests = asked(&link);
    let stranger = Credentials { token: Some(Token([9; 32])), ..s.credentials.clone() };
    let refused = |by: &Credentials, request: &MoveRequest| request_move(&s.at(0), Some(by), request).unwrap_err().to_string();
    assert!(refused(&stranger, &request(7, "local")).contains("wrong token"));
    let why = ServerEvents::follow(&s.at(0), Some(&stranger)).unwrap_err().to_string();
    assert!(why.contains("wrong token"), "{why}");
    let long = request(7, &"x".repeat(LONGEST_PLACES + 1));
    let slow = MoveRequest { limit_ms: u64::MAX, ..request(7, "local") };
    for bad in [long, slow] {
        assert!(!refused(&s.credentials, &bad).is_empty());
    }
    assert!(requests.recv_timeout(Duration::from_millis(100)).is_err());
}

#[test]
fn few_requests_of_one_client_wait_at_a_time() {
    let s = Scene::lending(vec![0]);
    let ann = add(&s, "ann");
    let link = job(&s, 0, &ann, 7);
    let requests = asked(&link);
    let seats: Vec<_> =
        (0..MOVES.of_one).map(|_| s.daemon.state.requests.moves.take(Source::TokenUser("ann".into()), MOVES).unwrap()).collect();
    let why = request_move(&s.at(0), Some(&ann), &request(7, "local")).unwrap_err().to_string();
    assert!(why.contains("too many requests to move jobs"), "{why}");
    assert!(requests.try_recv().is_err());
    drop(seats);
    assert_eq!(outcome(&s, &ann, &request(8, "local")).outcome, MoveOutcome::NoSuchJob);
}

/// The next event of this kind.
fn next(events: &ServerEvents, kind: ServerEventKind) -> ServerEvent {
    loop {
        let event = events.next_event().unwrap();
        if event.kind == kind {
            return event;
        }
    }
}

#[test]
fn those_who_follow_see_all_jobs_and_the_details_of_their_own() {
    let s = Scene::with(vec![0], |options| options.clients.gpu_jobs = Some(1));
    let [ann, bob] = ["ann", "bob"].map(|name| add(&s, name));
    let follow = |by| ServerEvents::follow(&s.at(0), Some(by)).unwrap();
    let all = [follow(&s.credentials), follow(&ann), follow(&bob)];
    let each = |kind| all.each_ref().map(|events| next(events, kind));
    let link = job(&s, 0, &ann, 7);
    let worker = Some(pid(&link) as u32);
    for came in each(ServerEventKind::JobCame) {
        assert_eq!((came.worker, came.gpu, came.pid, came.user.as_deref()), (worker, Some(0), Some(7), Some("ann")));
    }
    assert!(Link::connect(&s.at(0), Some(&bob), &hello(), None).is_err(), "there is no room");
    let told = each(ServerEventKind::JobRefused).map(|refused| (refused.user, refused.reason.is_some()));
    assert_eq!(told, [true, false, true].map(|told| (Some("bob".to_owned()), told)));
    let requests = asked(&link);
    thread::scope(|scope| {
        let answer = scope.spawn(|| outcome(&s, &ann, &request(7, "b:1/3")));
        let request = requests.recv_timeout(LONG).unwrap().request;
        link.control(&Control::Stay { request, why: "no room".into() }).unwrap();
        assert_eq!(answer.join().unwrap().outcome, MoveOutcome::Refused);
    });
    let to = Some("b:1/3".to_owned());
    assert_eq!(each(ServerEventKind::MoveAsked).map(|asked| asked.to), [to.clone(), to, None]);
    let why = Some("no room".to_owned());
    assert_eq!(each(ServerEventKind::JobStays).map(|stays| stays.reason), [why.clone(), why, None]);
    link.close();
    for left in each(ServerEventKind::JobLeft) {
        assert_eq!((left.worker, left.pid, left.reason, left.to), (worker, Some(7), None, None));
    }
}

#[test]
fn a_follower_that_never_reads_holds_up_nobody_and_is_dropped() {
    let s = Scene::lending(vec![0]);
    let other = ServerEvents::follow(&s.at(0), Some(&s.credentials)).unwrap();
    let silent = ServerEvents::follow(&s.unix(0), None).unwrap();
    let events = s.daemon.state.pool.events();
    let followers = || s.daemon.state.requests.followers.count();
    assert_eq!(followers(), 2);
    let places = "x".repeat(1000);
    // More than its socket holds; it is dropped when it has read nothing for some seconds.
    let dropped = soon(|| {
        (0..200).for_each(|n| events.drain(true, &places, n));
        while other.next_event().unwrap().count != Some(199) {}
        followers() == 1
    });
    assert!(dropped);
    drop(silent);
}

#[test]
fn a_follower_that_is_revoked_hears_no_more() {
    let s = Scene::lending(vec![0]);
    let ann = add(&s, "ann");
    let events = ServerEvents::follow(&s.at(0), Some(&ann)).unwrap();
    tokens(&s).revoke("ann").unwrap();
    // One that was under way may still come.
    assert!(soon(|| {
        s.daemon.state.pool.events().drain(true, "local", 1);
        events.next_event().is_err()
    }));
    assert!(ServerEvents::follow(&s.at(0), Some(&ann)).is_err());
}

#[test]
fn few_followers_of_one_client_are_served() {
    let s = Scene::lending(vec![0]);
    let ann = add(&s, "ann");
    let follow = |by| ServerEvents::follow(&s.at(0), Some(by));
    let all: Vec<_> = (0..FOLLOWERS.of_one).map(|_| follow(&ann).unwrap()).collect();
    let why = follow(&ann).unwrap_err().to_string();
    assert!(why.contains("too many clients follow"), "{why}");
    assert!(follow(&s.credentials).is_ok(), "others are served");
    drop(all);
}
