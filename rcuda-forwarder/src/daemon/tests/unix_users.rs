//! Tests of users of the server's machine who may use its Unix socket.

use super::*;
use crate::control::Control;
use crate::inspect::inspect;
use crate::server_state::ServedJob;
use crate::user::Account;
use crate::user_by::UserBy;

/// A daemon whose Unix socket these users may use.
fn open_to(users: &[&str], change: impl FnOnce(&mut ServeOptions)) -> Scene {
    let s = Scene::with(vec![0], |options| {
        options.unix_users = users.iter().map(|user| user.parse().unwrap()).collect();
        change(options);
    });
    std::fs::set_permissions(&s.directory, std::fs::Permissions::from_mode(0o711)).unwrap();
    s
}

fn connect(s: &Scene) -> Result<Arc<Link>, LinkError> {
    Link::connect(&s.unix(0), None, &hello(), None)
}

fn refusal(s: &Scene) -> String {
    connect(s).map(drop).unwrap_err().to_string()
}

fn mode(s: &Scene) -> u32 {
    std::fs::metadata(s.directory.join("socket")).unwrap().permissions().mode() & 0o777
}

/// The job of a worker, as the server reports it.
fn reported(s: &Scene, link: &Link) -> ServedJob {
    let state = inspect(&s.unix(0), None).unwrap();
    state.gpus[0].jobs.iter().find(|job| job.worker as i32 == pid(link)).cloned().unwrap()
}

#[test]
fn users_who_are_named_use_the_socket_and_the_server_knows_whose_a_job_is() {
    let file = std::env::temp_dir().join(format!("mrcuda-daemon-unix-users-{}", std::process::id()));
    let accounting = Some(file.clone());
    let s = open_to(&[&ANN.to_string()], |options| options.accounting = accounting);
    let own = connect(&s).expect("the server's own user");
    assert_eq!(reported(&s, &own).uid, Some(geteuid().as_raw()));
    own.close();
    let Some(link) = act_as(ANN, "jobs of other users at the Unix socket", || connect(&s).unwrap()) else { return };
    assert_eq!(link.transport(), Transport::Shm);
    put(&link, 3, b"text");
    assert_eq!(get(&link, 3, 4), b"text");
    let job = reported(&s, &link);
    assert_eq!((job.user.as_deref(), job.user_by, job.uid), (Some("uid 4000001"), Some(UserBy::System), Some(ANN)), "{job:?}");
    assert_eq!((job.host, job.pid), (None, std::process::id()), "by the kernel's word");
    let line = format!("worker {} serves job {} of uid 4000001 at a Unix socket (user 4000001", pid(&link), std::process::id());
    assert!(logged(|l| l.starts_with(&line)), "{line}");
    // Data connections of a move, and questions.
    let ticket = [0x41; 32];
    link.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    let by_ann = act_as(ANN, "", || (bulk_connect(&s.unix(0), &ticket, 1).map(|all| all.len()), inspect(&s.unix(0), None)));
    let (connections, state) = by_ann.unwrap();
    assert_eq!((connections.unwrap(), state.unwrap().gpus.len()), (1, 1));
    let worker = pid(&link);
    link.close();
    let of_ann = || std::fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended = |all: Vec<serde_json::Value>| all.into_iter().find(|line| line["worker"] == worker);
    assert!(soon(|| ended(of_ann()).is_some()));
    let line = ended(of_ann()).unwrap();
    assert_eq!((&line["uid"], &line["user_by"]), (&ANN.into(), &"system".into()), "{line}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn users_who_are_not_named_are_refused_by_name_and_number() {
    let s = open_to(&[&ANN.to_string()], |_| {});
    assert_eq!(mode(&s), 0o666, "who is served is decided by what the kernel says of the process");
    let Some(refused) = act_as(BOB, "users who may not use the Unix socket", || refusal(&s)) else { return };
    assert!(refused.ends_with("uid 4000002 may not use this server (mrcuda serve --unix-users)"), "{refused}");
    assert!(logged(|l| l.ends_with("was refused: uid 4000002 may not use this server (mrcuda serve --unix-users)")));
    // Nor do they learn who uses it, or get at a job by a data connection.
    let link = act_as(ANN, "", || connect(&s).unwrap()).unwrap();
    let ticket = [0x42; 32];
    link.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    let (asked, taken) =
        act_as(BOB, "", || (inspect(&s.unix(0), None).map(drop), bulk_connect(&s.unix(0), &ticket, 1).map(drop))).unwrap();
    for why in [asked.unwrap_err().to_string(), taken.unwrap_err().to_string()] {
        assert!(why.contains("uid 4000002 may not use this server"), "{why}");
    }
    // A user of a container that the kernel cannot name here, and one who was shut out while a job waited.
    let unknown = act_as(65534, "", || refusal(&s)).unwrap();
    assert!(unknown.ends_with("(uid 65534) may not use this server (mrcuda serve --unix-users)"), "{unknown}");
    let by = |uid| Secret { key: [0; 32], user: Some(User::System(Arc::new(Account { uid, name: String::new() }))) };
    assert!(s.daemon.state.still_accepts(&by(ANN)) && !s.daemon.state.still_accepts(&by(BOB)));
}

#[test]
fn without_the_option_the_socket_is_the_servers_users_alone() {
    let s = open_to(&[], |_| {});
    assert_eq!(mode(&s), 0o600);
    // As if the file could be opened by all.
    std::fs::set_permissions(s.directory.join("socket"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let Some(refused) = act_as(ANN, "other users at the Unix socket", || refusal(&s)) else { return };
    assert!(refused.ends_with("this socket serves uid 0 only; you are uid 4000001"), "{refused}");
}

#[test]
fn members_of_a_named_group_use_the_socket() {
    // A user whom every Linux system has, with a group of its own.
    let Ok(Some(daemon)) = nix::unistd::User::from_name("daemon") else {
        eprintln!("this machine has no user `daemon`: not tested: members of a group at the Unix socket");
        return;
    };
    let s = open_to(&[&format!("@{}", daemon.gid)], |_| {});
    let uid = daemon.uid.as_raw();
    let Some(job) = act_as(uid, "members of a group at the Unix socket", || connect(&s).map(|link| reported(&s, &link))) else {
        return;
    };
    assert_eq!((job.as_ref().unwrap().user.as_deref(), job.as_ref().unwrap().uid), (Some("daemon"), Some(uid)));
    let refused = act_as(ANN, "", || refusal(&s)).unwrap();
    assert!(refused.ends_with("uid 4000001 may not use this server (mrcuda serve --unix-users)"), "{refused}");
}

#[test]
fn limits_count_users_at_the_socket_and_their_workers_go_no_farther_than_they_could() {
    let s = open_to(&["any"], |options| options.max_client_workers = Some(1));
    let Some(link) = act_as(ANN, "limits of users at the Unix socket", || connect(&s).unwrap()) else { return };
    let why = act_as(ANN, "", || refusal(&s)).unwrap();
    assert!(why.contains("uid 4000001 has 1 workers here"), "{why}");
    act_as(BOB, "", || connect(&s).unwrap().close()).unwrap();
    // The server's user may send its worker to sockets that other users cannot reach.
    let connect = Control::Connect { to: "unix:/run/docker.sock/0".into(), ticket: [3; 32], stripes: 1 };
    let why = link.control(&connect).unwrap_err().to_string();
    assert!(why.starts_with("this server does not connect to unix:/run/docker.sock/0"), "{why}");
}

#[test]
fn a_daemon_that_takes_over_opens_the_socket_to_those_whom_its_own_options_name() {
    let s = open_to(&[], |_| {});
    let mut options = options_in(&s.directory);
    (options.listen, options.take_over) = (s.daemon.address, true);
    options.unix_users = vec![ANN.to_string().parse().unwrap()];
    let daemon = start_daemon(&options, vec![0], Sockets::default()).unwrap();
    daemon.state.earlier.as_ref().unwrap().retire().unwrap();
    daemon.state.open(&daemon.listeners).unwrap();
    assert_eq!(mode(&s), 0o666);
    if let Some(link) = act_as(ANN, "users of a server that takes over", || connect(&s).unwrap()) {
        put(&link, 3, b"text");
    }
    assert!(daemon.describe(&options).ends_with(&format!(
        " and unix:{} (also for 4000001), after process {}",
        s.directory.join("socket").display(),
        std::process::id()
    )));
}

#[test]
fn users_who_do_not_exist_are_named() {
    let s = Scene::lending(vec![0]);
    let mut options = ServeOptions { listen: None, ..options_in(&s.directory.join("other")) };
    options.unix_users = vec!["@no-such-group".parse().unwrap()];
    let failed = start_daemon(&options, vec![0], Sockets::default()).unwrap_err().to_string();
    assert_eq!(failed, "this machine has no group `no-such-group` (mrcuda serve --unix-users)");
}

#[test]
fn only_the_servers_user_and_root_share_memory_by_an_invitation() {
    use crate::greet::{Limits, Protection, greet};
    let s = open_to(&["any"], |_| {});
    let greeted = || {
        let invitation = s.daemon.state.local_socket.as_ref().unwrap().invite(&[9; 32], None).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let locality = Locality::Invited(invitation.name());
        let opening = Opening::Job { gpu: 0, rdma: false, waits: false, locality, hello: hello() };
        let limits = Limits { silence: Duration::from_secs(30), end: until };
        let conn = invitation.connect(until).unwrap();
        greet(&conn, &opening, &invitation.key(&[9; 32]), Protection::Plain, limits).map(drop).map_err(|why| why.to_string())
    };
    assert_eq!(greeted(), Ok(()));
    // Not one byte of it is read by the process that greets root: that one is stopped, and the refusal comes all the same.
    let greeter = s.daemon.state.local_greeters.as_ref().unwrap().pid().unwrap();
    let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(greeter as i32), signal);
    signal(nix::sys::signal::Signal::SIGSTOP).unwrap();
    let refused = act_as(ANN, "users who share memory by an invitation", greeted);
    // On a slow machine another one may have taken its place.
    let _ = signal(nix::sys::signal::Signal::SIGCONT);
    let Some(refused) = refused else { return };
    assert!(refused.unwrap_err().contains("this socket serves uid 0 only; you are uid 4000001"));
}

#[test]
fn one_user_keeps_no_other_out_of_the_socket() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let name = SocketAddr::from_abstract_name(crate::token::random().unwrap()).unwrap();
    let listener = UnixListener::bind_addr(&name).unwrap();
    let at = listener.local_addr().unwrap();
    let door = Door::new(Budget { all: 8, of_one: 8 });
    let mut kept = Vec::new();
    let mut enter = |uid| {
        let client = act_as(uid, "connections of several users that say nothing", || UnixStream::connect_addr(&at).unwrap())?;
        let conn = Arc::new(Conn::new(listener.accept().unwrap().0.into()));
        let greeting = door.admit(&conn);
        kept.push((client, conn, greeting));
        Some(kept.iter().map(|(.., greeting)| greeting.was_dropped()).collect::<Vec<bool>>())
    };
    for _ in 0..8 {
        if enter(ANN).is_none() {
            return;
        }
    }
    let others: Vec<usize> = [BOB, 0].into_iter().map(|uid| enter(uid).unwrap().len() - 1).collect();
    for _ in 0..50 {
        let dropped = enter(ANN).unwrap();
        assert!(others.iter().all(|at| !dropped[*at]), "{dropped:?}");
    }
}
