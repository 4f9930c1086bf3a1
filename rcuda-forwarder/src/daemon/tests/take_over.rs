//! A daemon that takes over from another one, whose jobs go on.

use super::earlier::{ASK, Earlier, REFUSED, SOCKETS, name};
use super::encryption::{OFFER, between, endpoint};
use super::packets::{self, Packets};
use super::*;
use crate::greet::{Protection, preamble};
use crate::inspect;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;

/// Starts a daemon that takes over from that of a scene; it accepts nothing yet.
fn successor(s: &Scene, change: impl FnOnce(&mut ServeOptions)) -> Result<Daemon, ServeError> {
    let mut options = options_in(&s.directory);
    (options.listen, options.take_over) = (s.daemon.address, true);
    change(&mut options);
    start_daemon(&options, vec![0, 1, 2], Sockets::default())
}

/// Has it take over.
fn take_over(s: &Scene, change: impl FnOnce(&mut ServeOptions)) -> Daemon {
    let daemon = successor(s, change).unwrap();
    daemon.state.earlier.as_ref().unwrap().retire().unwrap();
    daemon.state.open(&daemon.listeners).unwrap();
    daemon
}

fn is_over(daemon: &Daemon) -> bool {
    daemon.state.retirement.wait_over(Duration::ZERO)
}

fn serves(daemon: &Daemon) -> usize {
    daemon.state.pool.clients_on(0)
}

#[test]
fn jobs_go_on_with_new_data_connections_and_new_jobs_get_the_new_daemon() {
    let s = Scene::lending(vec![0, 1, 2]);
    for old in [s.link(0), Link::connect(&s.unix(0), None, &hello(), None).unwrap()] {
        put(&old, 0, b"text");
    }
    let (old, local) = (s.link(0), Link::connect(&s.unix(0), None, &hello(), None).unwrap());
    put(&old, 0, b"text");
    assert!(soon(|| serves(&s.daemon) == 2));
    let daemon = take_over(&s, |_| {});
    assert_eq!(daemon.address, s.daemon.address);
    // Connections that are there, and new ones by tickets that only the former daemon knows, over TCP and at the Unix socket.
    assert_eq!(get(&old, 0, 4), b"text");
    for (link, to, ticket) in [(&old, s.at(0), [0x71; 32]), (&local, s.unix(0), [0x72; 32])] {
        link.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
        assert_eq!(bulk_connect(&to, &ticket, 2).unwrap().len(), 2);
        assert!(bulk_connect(&to, &ticket, 1).unwrap_err().to_string().contains("unknown ticket"), "it is used up");
    }
    // New jobs, and new tickets of theirs.
    let new = s.link(0);
    let ticket = [0x73; 32];
    new.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    assert_eq!(bulk_connect(&s.at(0), &ticket, 1).unwrap().len(), 1);
    assert_eq!((serves(&s.daemon), serves(&daemon)), (2, 1));
    let told = inspect(&s.at(0), Some(&s.credentials)).unwrap();
    assert_eq!((told.gpus[0].jobs.len(), told.earlier.map(|earlier| earlier.jobs)), (1, Some(vec![2, 0, 0])));
    // The former one ends by itself.
    drop(local);
    assert!(soon(|| serves(&s.daemon) == 1) && !is_over(&s.daemon));
    drop(old);
    assert!(soon(|| is_over(&s.daemon)));
    s.daemon.stop();
    assert!(soon(|| inspect(&s.at(0), Some(&s.credentials)).unwrap().earlier.is_none()));
    put(&new, 0, b"more");
    assert_eq!(get(&new, 0, 4), b"more");
    assert!(s.directory.join("socket").exists(), "the socket is the new daemon's");
    drop(daemon);
    assert!(!s.directory.join("socket").exists());
}

#[test]
fn a_daemon_that_ends_before_it_serves_takes_nothing() {
    let s = Scene::lending(vec![0, 1, 2]);
    let first = successor(&s, |_| {}).unwrap();
    let why = successor(&s, |_| {}).unwrap_err().to_string();
    assert!(why.contains("another process takes over"), "{why}");
    // Meanwhile and afterwards all is as before.
    put(&s.link(0), 0, b"text");
    drop(first);
    assert!(logged(|line| line.starts_with("a process that wanted to take over has not")));
    put(&s.link(0), 0, b"text");
    put(&Link::connect(&s.unix(0), None, &hello(), None).unwrap(), 0, b"text");
    assert!(soon(|| successor(&s, |_| {}).is_ok()), "another one may try");
}

#[test]
fn a_daemon_goes_on_if_the_former_one_ends_before_it_serves() {
    let s = Scene::lending(vec![0, 1, 2]);
    let daemon = successor(&s, |_| {}).unwrap();
    s.daemon.stop();
    assert!(s.directory.join("socket").exists(), "the other one needs it");
    let earlier = daemon.state.earlier.as_ref().unwrap();
    earlier.retire().unwrap();
    daemon.state.open(&daemon.listeners).unwrap();
    put(&s.link(0), 0, b"text");
    put(&Link::connect(&s.unix(0), None, &hello(), None).unwrap(), 0, b"text");
    // Its data connections are told that nobody knows them.
    assert!(soon(|| earlier.has_ended()));
    let why = bulk_connect(&s.at(0), &[0x75; 32], 1).unwrap_err().to_string();
    assert!(why.contains("unknown ticket"), "{why}");
    drop(daemon);
    assert!(!s.directory.join("socket").exists());
}

#[test]
fn a_daemon_that_gives_up_says_so_and_keeps_the_file_of_its_socket() {
    let s = Scene::lending(vec![0]);
    let asks = Packets::connect(&name(&s.daemon.address.unwrap().to_string())).unwrap();
    asks.send(ASK, &[]).unwrap();
    assert!(asks.receive(OPENING).unwrap().0.starts_with(SOCKETS));
    assert!(asks.receive(OPENING).unwrap().0.starts_with("jobs "));
    asks.send(&"x".repeat(5000), &[]).unwrap();
    let said = asks.receive(OPENING).unwrap().0;
    assert!(said.starts_with(REFUSED), "{said}");
    put(&Link::connect(&s.unix(0), None, &hello(), None).unwrap(), 0, b"text");
    s.daemon.stop();
    assert!(!s.directory.join("socket").exists());
}

#[test]
fn every_place_where_clients_connect_has_to_be_named_again() {
    let s = Scene::lending(vec![0, 1, 2]);
    let (path, at) = (s.directory.join("socket"), s.daemon.address.unwrap());
    let why = successor(&s, |o| o.unix = None).unwrap_err().to_string();
    assert!(why.ends_with(&format!("add --unix {}", path.display())), "{why}");
    let why = soon_refused(&s, |o| o.listen = None);
    assert!(why.ends_with(&format!("add --listen {at}")), "{why}");
    // Nothing has happened.
    put(&s.link(0), 0, b"text");
}

/// Why a daemon cannot take over, once the former one has noticed the end of the one before.
fn soon_refused(s: &Scene, change: impl Fn(&mut ServeOptions)) -> String {
    let why = Mutex::new(String::new());
    assert!(soon(|| {
        *lock(&why) = successor(s, &change).unwrap_err().to_string();
        !lock(&why).contains("another process takes over")
    }));
    why.into_inner().unwrap()
}

/// Time limits of a client.
fn limits() -> greet::Limits {
    greet::Limits { silence: OPENING, end: Instant::now() + OPENING }
}

#[test]
fn what_is_passed_on_is_for_data_connections_only() {
    let s = Scene::lending(vec![0]);
    let door = Door::new(AT_TCP);
    let role = |opening: Opening| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        welcome_in_thread(&s.daemon.state, &door, Arc::new(Conn::new(theirs.into())), Entrance::PassedUnix);
        let key = [0; 32];
        greet::greet(&Conn::new(ours.into()), &opening, &key, Protection::Plain, limits()).unwrap_err().to_string()
    };
    let job = Opening::Job { gpu: 0, rdma: false, waits: false, locality: Locality::None, hello: hello() };
    for opening in [job, Opening::Inspect, Opening::Trial, Opening::Bulk { name: [1; 32], rdma: false }] {
        assert_eq!(role(opening), "unknown ticket");
    }
}

#[test]
fn a_job_with_a_route_is_refused_by_both() {
    let s = Scene::lending(vec![0, 1, 2]);
    let _old = s.link(0);
    let daemon = take_over(&s, |_| {});
    for route in [[0; 8], [9; 8]] {
        let mut client = UnixStream::connect(s.directory.join("socket")).unwrap();
        client.write_all(&[&preamble()[..], &[2], &route].concat()).unwrap();
        client.read_exact(&mut vec![0; preamble().len() + 33]).unwrap();
        // A question, with a proof of nothing.
        client.write_all(&[&[3][..], &[0; 32], &[0; 4], &[0; 4], &[0; 32]].concat()).unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).unwrap();
        let wanted = if route == [0; 8] { "wrong token" } else { "unknown ticket" };
        assert_eq!(String::from_utf8_lossy(&said[5..]), wanted);
    }
    assert_eq!((serves(&s.daemon), serves(&daemon)), (1, 0));
}

#[test]
fn a_client_that_cannot_be_passed_on_now_is_told_to_try_again() {
    let directory = std::env::temp_dir().join(format!("mrcuda-not-passed-{}", std::process::id()));
    let clients = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = clients.local_addr().unwrap();
    let listener = packets::listen(&name(&at.to_string())).unwrap();
    let mut options = options_in(&directory);
    (options.listen, options.unix, options.take_over) = (Some(at), None, true);
    let (daemon, former) = thread::scope(|s| {
        let former = s.spawn(|| {
            // SAFETY: just made by accept; nothing else owns it.
            let fd = unsafe { OwnedFd::from_raw_fd(nix::sys::socket::accept(listener.as_raw_fd()).unwrap()) };
            let packets = Packets::over(fd);
            packets.receive(OPENING).unwrap();
            packets.send(&format!("{SOCKETS}clients 1"), &[clients.as_fd()]).unwrap();
            packets.send("jobs 0 0", &[]).unwrap();
            packets
        });
        let daemon = start_daemon(&options, vec![0], Sockets::default()).unwrap();
        (daemon, former.join().unwrap())
    });
    daemon.state.open(&daemon.listeners).unwrap();
    // Nobody reads there.
    let any = Conn::new(TcpStream::connect(at).unwrap().into());
    while daemon.state.earlier.as_ref().unwrap().pass(&any).is_ok() {}
    let client = Conn::new(TcpStream::connect(at).unwrap().into());
    let opening = Opening::Bulk { name: [1; 32], rdma: false };
    let why = greet::greet(&client, &opening, &[0; 32], Protection::AnyServer, limits()).unwrap_err();
    assert!(matches!(why, GreetError::Busy), "{why}");
    drop((daemon, former));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn jobs_of_the_former_daemon_count_for_the_limits() {
    let s = Scene::with(vec![0, 1, 2], |o| o.clients.gpu_jobs = Some(1));
    let old = s.link(0);
    let _daemon = take_over(&s, |o| o.clients.gpu_jobs = Some(1));
    let why = Link::connect(&s.at(0), Some(&s.credentials), &hello(), None).unwrap_err().to_string();
    assert!(why.contains("--max-gpu-jobs"), "{why}");
    put(&s.link(1), 0, b"text");
    drop(old);
    assert!(soon(|| Link::connect(&s.at(0), Some(&s.credentials), &hello(), None).is_ok()));
}

#[test]
fn a_chain_of_daemons_ends_one_after_the_other() {
    let s = Scene::lending(vec![0, 1, 2]);
    let oldest = s.link(0);
    let second = take_over(&s, |_| {});
    let third = take_over(&s, |_| {});
    let ticket = [0x74; 32];
    oldest.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    assert_eq!(bulk_connect(&s.at(0), &ticket, 1).unwrap().len(), 1);
    assert!(!is_over(&second), "it passes connections on to the first");
    drop(oldest);
    assert!(soon(|| is_over(&s.daemon)) && soon(|| is_over(&second)));
    s.daemon.stop();
    second.stop();
    put(&s.link(0), 0, b"text");
    drop(third);
}

#[test]
fn without_a_server_there_is_nothing_to_take_over() {
    let s = Scene::lending(vec![0]);
    let why = successor(&s, |o| o.listen = Some("127.0.0.1:1".parse().unwrap())).unwrap_err().to_string();
    assert_eq!(why, "cannot take over: no server of this user can be taken over there");
}

#[test]
fn sockets_of_a_service_manager_are_listened_at_and_stay_open() {
    let s = Scene::lending(vec![0]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options_in(&s.directory);
    options.unix = None;
    let mut sockets = Sockets::named([].into_iter(), vec![listener.try_clone().unwrap().into()]).unwrap();
    use_sockets(&mut options, &mut sockets).unwrap();
    let daemon = start_daemon(&options, vec![0], sockets).unwrap();
    assert_eq!(daemon.address, Some(listener.local_addr().unwrap()));
    let at: Endpoint = format!("tls://{}/0", daemon.address.unwrap()).parse().unwrap();
    put(&Link::connect(&at, Some(&s.credentials), &hello(), None).unwrap(), 0, b"text");
    drop(daemon);
    // Whoever connects now waits for the next server.
    let waits = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(listener.accept().unwrap().1, waits.local_addr().unwrap());
}

#[test]
fn a_process_of_another_user_in_the_place_of_a_server_gives_no_sockets_and_is_named() {
    let directory = std::env::temp_dir().join(format!("mrcuda-other-in-its-place-{}", std::process::id()));
    let path = directory.join("socket");
    let at = earlier::of_path(&path);
    // The server's user is in it.
    let own = name(&at);
    let Some(listener) = act_as(ANN, "a take-over from another user", || packets::listen(&own).unwrap()) else { return };
    let why = Earlier::ask(&at).map(drop).unwrap_err().to_string();
    assert_eq!(why, "a process of another user listens in its place");
    // It has been told nothing.
    // SAFETY: just made by accept; nothing else owns it.
    let asked = Packets::over(unsafe { OwnedFd::from_raw_fd(nix::sys::socket::accept(listener.as_raw_fd()).unwrap()) });
    assert_eq!(asked.receive(OPENING).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    // The server serves, and says that it cannot be taken over.
    let options = ServeOptions { listen: None, unix: Some(path.clone()), ..options_in(&directory) };
    std::fs::create_dir(&directory).unwrap();
    let daemon = start_daemon(&options, vec![0], Sockets::default()).unwrap();
    assert!(logged(|line| line.starts_with("no other process can take over from this one (mrcuda serve --take-over): ")));
    let to = format!("unix:{}/0", path.display()).parse().unwrap();
    put(&Link::connect(&to, None, &hello(), None).unwrap(), 0, b"text");
    drop(daemon);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_process_of_another_user_gets_no_sockets_of_a_server() {
    let s = Scene::lending(vec![0]);
    let at = s.daemon.address.unwrap().to_string();
    let own = name(&at);
    let Some(said) = act_as(ANN, "a take-over by another user", || {
        let asks = Packets::connect(&own).unwrap();
        // Whether it is hung up on before or after it has asked.
        let _ = asks.send(ASK, &[]);
        asks.receive(OPENING).map(|(text, sockets)| (text, sockets.len())).map_err(|e| e.kind())
    }) else {
        return;
    };
    assert!(matches!(said, Err(io::ErrorKind::UnexpectedEof)), "{said:?}");
    assert!(logged(|line| line.starts_with("a process of another user wants to take over")));
    put(&s.link(0), 0, b"text");
}

#[test]
fn a_client_that_sends_nothing_holds_up_nobody_at_a_server_with_a_former_one() {
    let s = Scene::lending(vec![0, 1, 2]);
    let old = s.link(0);
    let daemon = take_over(&s, |_| {});
    let silent: Vec<TcpStream> = (0..AT_TCP.of_one / 2).map(|_| TcpStream::connect(s.daemon.address.unwrap()).unwrap()).collect();
    // Jobs, and connections for the former server's job.
    for n in 0..3 {
        put(&s.link(0), 0, b"text");
        let ticket = [0x78 + n; 32];
        old.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
        assert_eq!(bulk_connect(&s.at(0), &ticket, 1).unwrap().len(), 1);
    }
    // None of them is kept for longer than a greeting may take.
    for mut stream in silent {
        let mut said = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut said);
        assert!(String::from_utf8_lossy(&said).ends_with("too slow"), "{said:?}");
    }
    drop(daemon);
}

#[test]
fn a_route_that_was_changed_on_the_way_opens_no_connection() {
    let s = Scene::lending(vec![0, 1, 2]);
    let old = s.link(0);
    let daemon = take_over(&s, |_| {});
    let new = s.link(0);
    for (link, n) in [(&old, 0u8), (&new, 1)] {
        let at = between(s.daemon.address.unwrap(), |up, before, bytes| {
            if up && (before..before + bytes.len()).contains(&(OFFER + 1)) {
                bytes[OFFER + 1 - before] ^= 1;
            }
        });
        let ticket = [0x7c + n; 32];
        link.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
        let why = bulk_connect(&endpoint("tls://", at), &ticket, 1).map(drop).unwrap_err().to_string();
        assert!(why.contains("unknown ticket") || why.contains("wrong token"), "{why}");
        // The ticket is not used up by that.
        assert_eq!(bulk_connect(&s.at(0), &ticket, 1).unwrap().len(), 1);
    }
    drop(daemon);
}
