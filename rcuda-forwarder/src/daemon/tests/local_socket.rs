//! Tests of jobs that are on the server's machine and name a TCP port.

use super::*;
use crate::certificate::Certificate;
use crate::greet::{Limits, Protection, greet};
use crate::local_socket::{self, Invitation};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

const BINDING: [u8; 32] = [9; 32];

fn named(s: &Scene) -> Endpoint {
    format!("{}/0", s.daemon.address.unwrap()).parse().unwrap()
}

fn connect(s: &Scene) -> Arc<Link> {
    Link::connect(&named(s), Some(&s.credentials), &hello(), None).unwrap()
}

/// An invitation, as a job gets it over a TLS connection with that binding.
fn invite(s: &Scene) -> Invitation {
    s.daemon.state.local_socket.as_ref().unwrap().invite(&BINDING, None).unwrap()
}

fn job(locality: Locality) -> Opening {
    Opening::Job { gpu: 0, rdma: false, waits: false, locality, hello: hello() }
}

fn limits() -> Limits {
    Limits { silence: Duration::from_secs(30), end: Instant::now() + Duration::from_secs(30) }
}

/// Greets at the socket of this machine.
fn greet_there(invitation: &Invitation, opening: &Opening, key: &[u8; 32]) -> Result<(), GreetError> {
    let conn = invitation.connect(limits().end).unwrap();
    greet(&conn, opening, key, Protection::Plain, limits()).map(drop)
}

#[test]
fn a_job_on_the_servers_machine_shares_memory_with_its_worker() {
    let s = Scene::lending(vec![0]);
    let link = connect(&s);
    assert_eq!((link.transport(), link.server()), (Transport::Shm, Some(&invite(&s).endpoint(0))));
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
    s.daemon.listeners.close(&[Kind::Local]);
    let link = connect(&s);
    assert_eq!((link.transport(), link.server()), (Transport::Tls, Some(&named(&s))));
    put(&link, 0, b"text");
    assert_eq!(get(&link, 0, 4), b"text");
}

#[test]
fn a_worker_that_cannot_map_the_jobs_memory_is_reached_over_tcp() {
    let s = Scene::lending(vec![0]);
    let unusable = std::fs::File::open("/dev/null").unwrap();
    let connect = |to: &Endpoint| Link::connect(to, Some(&s.credentials), &hello(), Some(unusable.as_fd()));
    let link = connect(&named(&s)).unwrap();
    assert_eq!(link.transport(), Transport::Tls);
    put(&link, 0, b"text");
    assert_eq!(get(&link, 0, 4), b"text");
    let why = connect(&s.unix(0)).unwrap_err().to_string();
    assert!(why.contains("the file is empty"), "a named Unix socket is the only way: {why}");
}

#[test]
fn the_socket_is_for_those_who_have_met_the_server() {
    let s = Scene::lending(vec![0]);
    let wrong = |error| matches!(error, Err(GreetError::TokenRefused));
    let unknown =
        |error: Result<(), GreetError>| matches!(error, Err(GreetError::Refused(why)) if why.contains("unknown ticket"));
    for key in [[0; 32], s.key(), invite(&s).key(&BINDING)] {
        let invitation = invite(&s);
        assert!(wrong(greet_there(&invitation, &job(Locality::Invited(invitation.name())), &key)));
        for opening in [job(Locality::None), job(Locality::Invited([1; 32])), Opening::Inspect, Opening::Trial] {
            assert!(unknown(greet_there(&invitation, &opening, &key)), "{opening:?}");
        }
    }
    let invitation = invite(&s);
    let opening = job(Locality::Invited(invitation.name()));
    greet_there(&invitation, &opening, &invitation.key(&BINDING)).unwrap();
    assert!(unknown(greet_there(&invitation, &opening, &invitation.key(&BINDING))), "it is used up");
    // One of another TLS connection.
    let invitation = invite(&s);
    assert!(wrong(greet_there(&invitation, &job(Locality::Invited(invitation.name())), &invitation.key(&[1; 32]))));
}

#[test]
fn jobs_that_do_not_ask_and_those_of_other_machines_are_served_where_they_are() {
    let s = Scene::with(vec![0], |o| o.allow_plain = true);
    let (to, until) = (named(&s), limits().end);
    let here = local_socket::machine(&s.key()).map(Locality::Machine).unwrap();
    let plain = Protection::Plain;
    let tls = Protection::Server(&to, &s.credentials.trust);
    // A secret does not pass in plain text.
    for (locality, protection, is_invited) in
        [(Locality::None, tls, false), (Locality::Machine([7; 32]), tls, false), (here, plain, false), (here, tls, true)]
    {
        let conn = Conn::open(&to, until).unwrap();
        greet(&conn, &job(locality), &s.key(), protection, limits()).unwrap();
        let answer = greet::read_answer(&conn, until);
        match answer {
            Err(GreetError::Invited(invitation)) => assert!(is_invited && invitation.socket == invite(&s).socket),
            answer => assert!(answer.is_ok() && !is_invited, "{answer:?}"),
        }
    }
}

/// A server with the right token that invites jobs to a socket of another user. Returns its address, and what it hears of the next
/// connections: what the job says about its machine.
fn hostile_server(s: &Scene, invitation: Invitation) -> (Endpoint, thread::JoinHandle<Vec<Locality>>) {
    let certificate = Certificate::load_or_create(&s.directory.join("server.pem")).unwrap();
    let tls = ServerTls::new(&certificate, None).unwrap();
    let (listener, token) = (TcpListener::bind("127.0.0.1:0").unwrap(), s.key());
    let to = listener.local_addr().unwrap().to_string().parse().unwrap();
    let server = thread::spawn(move || {
        let serve = |_| {
            let conn = Conn::new(listener.accept().unwrap().0.into());
            let offer = Offer { tls: Some(&tls), plain: false, munge: false };
            let secrets = |_: &Opening, _| Ok([Secret::of_nobody(token)].into());
            let Opening::Job { locality, .. } = greet::receive(&conn, GREETING, offer, secrets).unwrap().opening else {
                panic!("no job")
            };
            match locality {
                Locality::Machine(_) => greet::invite(&conn, &invitation).unwrap(),
                _ => greet::refuse(&conn, &GreetError::Refused("enough is known".into())),
            }
            locality
        };
        (0..2).map(serve).collect()
    });
    (to, server)
}

/// The process that listens at the socket receives the file of the job's pinned memory.
#[test]
fn a_job_tells_a_listener_of_another_user_nothing() {
    // Only root can become another user.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let s = Scene::lending(vec![0]);
    let invitation = Invitation { socket: crate::token::random().unwrap(), secret: [5; 32] };
    let name = invitation.endpoint(0).name_without_file().unwrap().to_owned();
    let other = move || {
        // SAFETY: the system call itself changes the calling thread only, which ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 4242, 4242, 4242) }, 0);
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    };
    let listener = thread::spawn(other).join().unwrap();
    let (to, server) = hostile_server(&s, invitation);
    let said = Link::connect(&to, Some(&s.credentials), &hello(), None).unwrap_err().to_string();
    assert!(said.contains("enough is known"), "{said}");
    let heard = server.join().unwrap();
    assert!(matches!(heard[..], [Locality::Machine(_), Locality::None]), "{heard:?}");
    let mut bytes = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
    assert!(bytes.is_empty(), "{} bytes", bytes.len());
}

/// A listener of the own user that says nothing costs the job two seconds, not the time that servers have.
#[test]
fn a_stranger_who_names_this_machine_gets_no_secret() {
    let s = Scene::lending(vec![0]);
    let (to, until) = (named(&s), limits().end);
    let token = [0x77; 32];
    let here = local_socket::machine(&token).map(Locality::Machine).unwrap();
    let conn = Conn::open(&to, until).unwrap();
    let refused = greet(&conn, &job(here), &token, Protection::Server(&to, &s.credentials.trust), limits());
    assert!(matches!(refused, Err(GreetError::TokenRefused)), "{refused:?}");
    // Nothing follows.
    assert!(!matches!(greet::read_answer(&conn, until), Err(GreetError::Invited(_)) | Ok(_)));
}

#[test]
fn a_silent_listener_is_given_up_soon() {
    let s = Scene::lending(vec![0]);
    let invitation = Invitation { socket: crate::token::random().unwrap(), secret: [5; 32] };
    let name = invitation.endpoint(0).name_without_file().unwrap().to_owned();
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let (to, server) = hostile_server(&s, invitation);
    let began = Instant::now();
    let said = Link::connect(&to, Some(&s.credentials), &hello(), None).unwrap_err().to_string();
    assert!(said.contains("enough is known"), "{said}");
    assert!((2..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    server.join().unwrap();
}
