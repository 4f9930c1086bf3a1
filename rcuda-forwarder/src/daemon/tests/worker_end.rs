//! Tests of what a job hears of the end of its worker.

use super::*;
use crate::greet::{self, Opening};
use crate::link::{Lost, greeted};
use crate::user_tokens::TokensFile;

/// What the server says of a worker's end to who has these credentials.
fn said(s: &Scene, by: &Credentials, worker: u32) -> String {
    let (conn, _) = greeted(&s.at(0), Some(by), &|_| Opening::WorkerEnd(worker), &TimeLimits::default()).unwrap();
    let said = greet::read_answer(&conn, Instant::now() + Duration::from_secs(60)).unwrap();
    String::from_utf8(said).unwrap()
}

/// Why a link is lost, as a call hears it.
fn loss(link: &Link) -> Lost {
    let call = || link.request(fake::ECHO, &[&[0; 8]]).and_then(|reply| reply.wait().map(drop)).err();
    assert!(soon(|| call().is_some()));
    call().unwrap()
}

fn kill(worker: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker), Signal::SIGKILL).unwrap();
}

#[test]
fn a_job_whose_worker_fails_hears_from_the_server_how() {
    let s = Scene::lending(vec![0]);
    let near: Endpoint = s.at(0).to_string().replace("tls://", "").parse().unwrap();
    for at in [s.at(0), s.unix(0), near] {
        let link = Link::connect(&at, at.unix_path().is_none().then_some(&s.credentials), &hello(), None).unwrap();
        kill(pid(&link));
        // The first one that hears of it, and all later ones.
        for _ in 0..2 {
            let why = loss(&link).to_string();
            assert!(why.starts_with("the worker is lost: "), "{at}: {why}");
            assert!(why.ends_with("; its server says: signal: 9 (SIGKILL)"), "{at}: {why}");
        }
        assert!(said(&s, &s.credentials, pid(&link) as u32) == "signal: 9 (SIGKILL)");
    }
}

#[test]
fn a_thread_that_waits_hears_it_too() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    kernel(&link, 3, 600_000_000);
    let (sender, receiver) = std::sync::mpsc::channel();
    link.request_then(id::STREAM_SYNC, &[&3u64.to_le_bytes()], move |answer| sender.send(answer).unwrap()).unwrap();
    kill(pid(&link));
    let why = receiver.recv_timeout(Duration::from_secs(120)).unwrap().unwrap_err().to_string();
    assert!(why.ends_with("; its server says: signal: 9 (SIGKILL)"), "{why}");
}

#[test]
fn a_server_that_is_gone_too_is_not_waited_for() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    // Nothing listens any more when its workers end.
    s.daemon.stop();
    let why = loss(&link).to_string();
    assert!(why.starts_with("the worker is lost: ") && !why.contains("says"), "{why}");
}

#[test]
fn others_hear_nothing_and_ends_as_they_should_be_are_no_failures() {
    let s = Scene::lending(vec![0]);
    let [ann, bob] = ["ann", "bob"].map(|name| {
        let tokens = TokensFile::beside(&s.directory.join("token"));
        Credentials { token: Some(tokens.add(name).unwrap().token), ..s.credentials.clone() }
    });
    let link = Link::connect(&s.at(0), Some(&ann), &hello(), None).unwrap();
    let worker = pid(&link) as u32;
    kill(pid(&link));
    loss(&link);
    let heard = [&ann, &bob, &s.credentials].map(|by| said(&s, by, worker));
    assert_eq!(heard, ["signal: 9 (SIGKILL)", "", "signal: 9 (SIGKILL)"]);
    let link = s.link(0);
    link.close();
    assert_eq!(said(&s, &s.credentials, pid(&link) as u32), "");
    // One that runs, and one that there never was.
    let link = s.link(0);
    assert_eq!([pid(&link) as u32, u32::MAX].map(|worker| said(&s, &s.credentials, worker)), ["", ""]);
}
