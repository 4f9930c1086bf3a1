//! What a daemon reports of itself.

use super::*;
use crate::daemon::request_seats::QUESTIONS;
use crate::inspect::inspect;
use crate::server_state::{GpuFacts, ServerState};

fn ask(s: &Scene) -> ServerState {
    inspect(&s.at(0), Some(&s.credentials)).unwrap()
}

#[test]
fn a_server_reports_its_gpus_and_the_jobs_that_it_serves() {
    let s = Scene::lending(vec![0, 1]);
    // Both are opened at the start.
    assert!(soon(|| ask(&s).gpus.iter().all(|gpu| gpu.idle_workers == 1)));
    let (over_tcp, here) = (s.link(1), Link::connect(&s.unix(1), None, &hello(), None).unwrap());
    let parked = {
        let memory = Endpoint { gpu: Endpoint::MEMORY, ..s.at(0) };
        Link::connect(&memory, Some(&s.credentials), &hello(), None).unwrap()
    };
    over_tcp.send(fake::ECHO, &[]).unwrap();
    over_tcp.request(fake::ECHO, &[]).unwrap().wait().unwrap();
    let state = ask(&s);
    assert_eq!((state.pid, state.ending, state.gpus.len()), (std::process::id(), false, 2));
    assert_eq!(state.parked.iter().map(|job| i64::from(job.worker)).collect::<Vec<_>>(), [i64::from(pid(&parked))]);
    let [idle, busy] = &state.gpus[..] else { panic!() };
    assert!(idle.jobs.is_empty() && idle.free_bytes == Some(fake::MEMORY as u64), "{idle:?}");
    let GpuFacts { name, uuid, total_bytes, .. } = busy.facts.clone().unwrap();
    assert!(name.contains(" gpu=1 ") && uuid == [7; 16] && total_bytes == fake::MEMORY as u64, "{name}");
    let [first, second] = &busy.jobs[..] else { panic!("{busy:?}") };
    assert_eq!((first.host.as_deref(), first.pid, first.uid, &first.user), (Some("127.0.0.1"), std::process::id(), None, &None));
    assert_eq!((i64::from(first.worker), first.used_bytes), (i64::from(pid(&over_tcp)), Some(2)));
    let me = nix::unistd::getuid();
    assert_eq!((second.host.as_deref(), second.pid, second.uid), (None, std::process::id(), Some(me.as_raw())));
    assert_eq!(second.user, nix::unistd::User::from_uid(me).unwrap().map(|user| user.name));
    assert!(first.since_unix_ms <= second.since_unix_ms && state.since_unix_ms <= first.since_unix_ms);
    // The same to a client on this machine, without a token.
    let here_too = inspect(&s.unix(0), None).unwrap();
    assert_eq!(here_too.gpus[1].jobs.len(), 2);
    over_tcp.close();
    here.close();
    assert!(soon(|| ask(&s).gpus[1].jobs.is_empty()), "jobs that have left are not reported");
}

#[test]
fn a_worker_that_does_not_answer_is_reported_without_its_memory() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    let worker = nix::unistd::Pid::from_raw(pid(&link));
    nix::sys::signal::kill(worker, Signal::SIGSTOP).unwrap();
    let job = ask(&s).gpus[0].jobs[0].clone();
    nix::sys::signal::kill(worker, Signal::SIGCONT).unwrap();
    assert_eq!((i64::from(job.worker), job.used_bytes), (i64::from(worker.as_raw()), None));
    assert!(soon(|| ask(&s).gpus[0].jobs[0].used_bytes.is_some()), "it answers again");
}

#[test]
fn few_questions_are_answered_at_a_time() {
    let s = Scene::lending(vec![0]);
    let link = s.link(0);
    let worker = nix::unistd::Pid::from_raw(pid(&link));
    // Each question waits for it.
    nix::sys::signal::kill(worker, Signal::SIGSTOP).unwrap();
    thread::scope(|scope| {
        let asked: Vec<_> = (0..3 * QUESTIONS.of_one).map(|_| scope.spawn(|| inspect(&s.at(0), Some(&s.credentials)))).collect();
        let answers: Vec<_> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
        let refused: Vec<String> = answers.iter().filter_map(|a| a.as_ref().err()).map(ToString::to_string).collect();
        assert!(answers.len() > refused.len(), "{refused:?}");
        assert!(refused.iter().all(|why| why.contains("ask again in a moment")), "{refused:?}");
    });
    // The seats themselves, whatever the speed of the machine.
    let seats: Vec<_> = std::iter::from_fn(|| s.daemon.state.requests.questions.take(Source::Here, QUESTIONS).ok()).collect();
    assert_eq!(seats.len(), QUESTIONS.of_one);
    let why = inspect(&s.unix(0), None).unwrap_err().to_string();
    assert!(why.contains("too many clients ask this server about its state"), "{why}");
    drop(seats);
    nix::sys::signal::kill(worker, Signal::SIGCONT).unwrap();
    inspect(&s.unix(0), None).unwrap();
}

#[test]
fn who_does_not_know_the_token_learns_nothing() {
    let s = Scene::lending(vec![0]);
    let wrong = Credentials { token: Some(Token([9; 32])), ..s.credentials.clone() };
    let why = inspect(&s.at(0), Some(&wrong)).unwrap_err().to_string();
    assert!(why.contains("wrong token"), "{why}");
    assert!(matches!(inspect(&s.at(0), None), Err(LinkError::NoToken { .. })));
    // Another service, and a server of another build.
    for (says, wanted) in [
        (&b"220 smtp.example.org ESMTP Postfix, much more of it to follow\r\n"[..], "does not speak"),
        (
            &{
                let mut other = greet::preamble();
                other[20] ^= 1;
                other
            },
            "another build",
        ),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let says = says.to_vec();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&says).unwrap();
            // Until the client has gone.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let why = inspect(&at, Some(&s.credentials)).unwrap_err().to_string();
        assert!(why.contains(wanted), "{why}");
        server.join().unwrap();
    }
}
