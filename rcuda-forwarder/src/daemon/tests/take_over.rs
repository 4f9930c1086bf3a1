//! A daemon that takes over from another one, whose jobs go on.

use super::*;
use crate::inspect;

/// Starts a daemon that takes over from that of a scene; it accepts nothing yet.
fn successor(s: &Scene, change: impl FnOnce(&mut ServeOptions)) -> Result<Daemon, ServeError> {
    let mut options = options_in(&s.directory);
    (options.listen, options.take_over) = (s.daemon.address, true);
    change(&mut options);
    let arguments = ["--exact", "daemon::tests::worker_process", "--nocapture"].map(OsString::from).to_vec();
    let command = Command {
        program: options.worker_exe.clone(),
        arguments,
        ignores_sigterm: false,
        privileges: Privileges::default(),
        variables: Vec::new(),
    };
    Daemon::start(&options, vec![0, 1, 2], command, None, Sockets::default(), log)
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
    let arguments = ["--exact", "daemon::tests::worker_process", "--nocapture"].map(OsString::from).to_vec();
    let command = Command {
        program: options.worker_exe.clone(),
        arguments,
        ignores_sigterm: false,
        privileges: Privileges::default(),
        variables: Vec::new(),
    };
    let daemon = Daemon::start(&options, vec![0], command, None, sockets, log).unwrap();
    assert_eq!(daemon.address, Some(listener.local_addr().unwrap()));
    let at: Endpoint = format!("tls://{}/0", daemon.address.unwrap()).parse().unwrap();
    put(&Link::connect(&at, Some(&s.credentials), &hello(), None).unwrap(), 0, b"text");
    drop(daemon);
    // Whoever connects now waits for the next server.
    let waits = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(listener.accept().unwrap().1, waits.local_addr().unwrap());
}
