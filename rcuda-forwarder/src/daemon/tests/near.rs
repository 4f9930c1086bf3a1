//! Tests of jobs that are on the server's machine and name a TCP port.

use super::*;
use crate::greet::{Limits, Protection, greet};
use crate::near;

fn named(s: &Scene) -> Endpoint {
    format!("{}/0", s.daemon.address.unwrap()).parse().unwrap()
}

fn connect(s: &Scene) -> Arc<Link> {
    Link::connect(&named(s), Some(&s.credentials), &hello(), None).unwrap()
}

fn secret(s: &Scene) -> [u8; 32] {
    s.daemon.state.near.as_ref().unwrap().secret
}

/// Greets at the socket of this machine.
fn greet_near(s: &Scene, opening: &Opening, key: &[u8; 32]) -> Result<(), GreetError> {
    let until = Instant::now() + Duration::from_secs(30);
    let conn = Conn::open_if(&near::endpoint(&secret(s), 0), until, &|_| true).unwrap();
    greet(&conn, opening, key, Protection::Plain, Limits { silence: Duration::from_secs(30), end: until })
}

#[test]
fn a_job_on_the_servers_machine_shares_memory_with_its_worker() {
    let s = Scene::lending(vec![0]);
    let link = connect(&s);
    assert_eq!((link.transport(), link.server()), (Transport::Shm, Some(&near::endpoint(&secret(&s), 0))));
    let data = pattern(3 << 20);
    put(&link, 5, &data);
    assert!(get(&link, 5, data.len()) == data);
    let ticket = [0x77; 32];
    link.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
    for to in [named(&s), link.server().unwrap().clone()] {
        assert_eq!(bulk_connect(&to, &ticket, 1).unwrap()[0].is_tcp(), to.unix_path().is_none());
    }
    let known = std::fs::read_to_string(&s.credentials.trust.known_servers).unwrap();
    assert!(known.starts_with(&named(&s).server()), "its certificate is recorded: {known}");
    // Other servers have other sockets.
    let other = Scene::lending(vec![0]);
    assert_ne!(connect(&other).server(), link.server());
}

#[test]
fn without_that_socket_a_job_uses_tcp() {
    let s = Scene::lending(vec![0]);
    // The one for TCP is the first.
    // SAFETY: the descriptor is open as long as the daemon is; a shutdown makes connections to it fail.
    unsafe { libc::shutdown(s.daemon.listeners[1].as_raw_fd(), libc::SHUT_RDWR) };
    let link = connect(&s);
    assert_eq!((link.transport(), link.server()), (Transport::Tls, Some(&named(&s))));
    put(&link, 0, b"text");
    assert_eq!(get(&link, 0, 4), b"text");
}

#[test]
fn the_socket_is_for_those_who_have_met_the_server() {
    let s = Scene::lending(vec![0]);
    let job = Opening::Job { gpu: 0, rdma: false, waits: false, machine: None, hello: hello() };
    for opening in [&job, &Opening::Inspect] {
        for wrong in [[0; 32], s.credentials.token.0] {
            assert!(matches!(greet_near(&s, opening, &wrong), Err(GreetError::TokenRefused)));
        }
        greet_near(&s, opening, &secret(&s)).unwrap();
    }
}

#[test]
fn jobs_that_do_not_ask_and_those_of_other_machines_are_served_where_they_are() {
    let s = Scene::with(vec![0], |o| o.allow_plain = true);
    let (to, until) = (named(&s), Instant::now() + Duration::from_secs(30));
    let here = near::machine(&s.credentials.token.0);
    assert!(here.is_some());
    let plain = Protection::Plain;
    let tls = Protection::Server(&to, &s.credentials.trust);
    // A secret does not pass in plain text.
    for (machine, protection, is_shown) in
        [(None, tls, false), (Some([7; 32]), tls, false), (here, plain, false), (here, tls, true)]
    {
        let conn = Conn::open_if(&to, until, &|_| true).unwrap();
        let opening = Opening::Job { gpu: 0, rdma: false, waits: false, machine, hello: hello() };
        let limits = Limits { silence: Duration::from_secs(30), end: until };
        greet(&conn, &opening, &s.credentials.token.0, protection, limits).unwrap();
        let answer = greet::read_answer(&conn, until);
        match answer {
            Err(GreetError::Near(shown)) => assert!(is_shown && shown == secret(&s)),
            answer => assert!(answer.is_ok() && !is_shown, "{answer:?}"),
        }
    }
}
