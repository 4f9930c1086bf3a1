//! Tests of clients that show a credential of munge.

use super::encryption::{changed, endpoint, impostor, known_servers};
use super::*;
use crate::daemon::cluster_users::CHECKED_AT_ONCE;
use crate::greet::{Limits, Proof, Protection, greet};
use crate::inspect::inspect;
use crate::munge::Munge;
use crate::server_state::ServedJob;
use crate::trial::trial;
use crate::user::Account;
use crate::user_by::UserBy;
use munged::Munged;

/// A cluster of two machines, on one of which a server runs, and clients without a token on the other.
struct Cluster {
    s: Scene,
    of_server: Munged,
    of_clients: Munged,
    /// What clients show.
    credentials: Credentials,
}

impl Cluster {
    /// `None` without munge.
    fn with(what: &str, users: &[&str], change: impl FnOnce(&mut ServeOptions)) -> Option<Cluster> {
        let of_server = Munged::start(what)?;
        let of_clients = of_server.elsewhere();
        let users = users.iter().map(|user| user.parse().unwrap()).collect();
        let munge = MungeOptions { users, socket: Some(of_server.socket()) };
        let s = Scene::with(vec![0], |options| {
            options.munge = Some(munge);
            change(options);
        });
        let munge = Munge { server: geteuid().to_string(), socket: Some(of_clients.socket()) };
        // All users of the test can write there.
        let known = s.directory.join("known");
        std::fs::create_dir(&known).unwrap();
        for directory in [&s.directory, &known] {
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let trust = Trust { known_servers: known.join("servers"), ..s.credentials.trust.clone() };
        let credentials = Credentials { token: None, munge: Some(munge), trust };
        Some(Cluster { s, of_server, of_clients, credentials })
    }

    fn connect(&self) -> Result<Arc<Link>, LinkError> {
        // A file that another user of this test has made cannot be read.
        let known_servers = self.credentials.trust.known_servers.with_file_name(geteuid().to_string());
        let trust = Trust { known_servers, ..self.credentials.trust.clone() };
        Link::connect(&self.s.at(0), Some(&Credentials { trust, ..self.credentials.clone() }), &hello(), None)
    }

    fn refusal(&self) -> String {
        self.connect().map(drop).unwrap_err().to_string()
    }

    /// The job of a worker, as the server reports it.
    fn reported(&self, link: &Link) -> ServedJob {
        let state = inspect(&self.s.at(0), Some(&self.s.credentials)).unwrap();
        state.gpus[0].jobs.iter().find(|job| job.worker as i32 == pid(link)).cloned().unwrap()
    }
}

#[test]
fn a_job_of_the_cluster_needs_no_token_and_the_server_knows_whose_it_is() {
    let file = std::env::temp_dir().join(format!("mrcuda-daemon-munge-{}", std::process::id()));
    let accounting = Some(file.clone());
    let Some(c) = Cluster::with("jobs by munge", &["any"], |options| options.accounting = accounting) else { return };
    assert!(c.s.daemon.describe(&options_in(&c.s.directory)).contains("/token, munge, certificate "));
    let own = geteuid().as_raw();
    let mut links = vec![(own, c.connect().unwrap())];
    links.extend(act_as(ANN, "a job of another user", || c.connect().unwrap()).map(|link| (ANN, link)));
    for (uid, link) in &links {
        put(link, 3, b"text");
        assert_eq!(get(link, 3, 4), b"text");
        let name = crate::daemon::users::name(*uid).unwrap_or_else(|| format!("uid {uid}"));
        let job = c.reported(link);
        assert_eq!((job.user.as_deref(), job.user_by, job.uid), (Some(&*name), Some(UserBy::Munge), Some(*uid)), "{job:?}");
        assert_eq!(job.host.as_deref(), Some("127.0.0.1"));
        let line = format!("worker {} serves job {} (its own word) of {name} at 127.0.0.1:", pid(link), std::process::id());
        assert!(logged(|l| l.starts_with(&line)), "{line}");
    }
    inspect(&c.s.at(0), Some(&c.credentials)).unwrap();
    trial(&c.s.at(0), Some(&c.credentials)).unwrap();
    let workers: Vec<(u32, i32)> = links.iter().map(|(uid, link)| (*uid, pid(link))).collect();
    links.iter().for_each(|(_, link)| link.close());
    assert!(soon(|| std::fs::read_to_string(&file).unwrap().lines().count() == links.len()));
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let (uid, _) = workers.iter().find(|(_, worker)| line["worker"] == *worker).unwrap();
        assert_eq!((&line["uid"], &line["user_by"]), (&(*uid).into(), &"munge".into()), "{line}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_job_on_the_servers_machine_shares_memory_with_it_by_munge_too() {
    let Some(c) = Cluster::with("shared memory by munge", &["any"], |_| {}) else { return };
    let named: Endpoint = format!("{}/0", c.s.daemon.address.unwrap()).parse().unwrap();
    let link = Link::connect(&named, Some(&c.credentials), &hello(), None).unwrap();
    assert_eq!(link.transport(), Transport::Shm);
    let job = c.reported(&link);
    assert_eq!((job.user_by, job.uid, job.host), (Some(UserBy::Munge), Some(geteuid().as_raw()), None));
    // An invitation ends when its user is shut out.
    let account = |uid| User::Munge(Arc::new(Account { uid, name: "ann".into() }));
    let invite = |user| c.s.daemon.state.local_socket.as_ref().unwrap().invite(&[9; 32], Some(user)).unwrap();
    for (user, is_let_in) in [(account(ANN), true), (account(65534), false)] {
        let invitation = invite(user);
        let until = Instant::now() + Duration::from_secs(30);
        let conn = invitation.connect(until).unwrap();
        let locality = Locality::Invited(invitation.name());
        let opening = Opening::Job { gpu: 0, rdma: false, waits: false, locality, hello: hello() };
        let limits = Limits { silence: Duration::from_secs(30), end: until };
        let answer = greet(&conn, &opening, &invitation.key(&[9; 32]), Protection::Plain, limits);
        assert_eq!(answer.is_ok(), is_let_in, "{answer:?}");
    }
}

#[test]
fn only_users_who_are_permitted_are_let_in() {
    let Some(c) = Cluster::with("who is permitted", &[&ANN.to_string()], |_| {}) else { return };
    c.connect().expect("the server's own user");
    let Some(link) = act_as(ANN, "who is permitted", || c.connect().map(drop)) else { return };
    link.expect("she is named");
    let refused = [BOB, 65534].map(|uid| act_as(uid, "", || c.refusal()).unwrap());
    assert!(refused[0].ends_with("uid 4000002 may not use this server (mrcuda serve --munge)"), "{refused:?}");
    assert!(refused[1].ends_with("(uid 65534) may not use this server (mrcuda serve --munge)"), "{refused:?}");
    assert!(logged(|l| l.ends_with("was refused: uid 4000002 may not use this server (mrcuda serve --munge)")));
    let by = |uid| Secret { key: [0; 32], user: Some(User::Munge(Arc::new(Account { uid, name: String::new() }))) };
    assert!(c.s.daemon.state.still_accepts(&by(ANN)) && !c.s.daemon.state.still_accepts(&by(BOB)));
}

#[test]
fn limits_count_users_of_the_cluster_and_not_their_addresses() {
    let change = |options: &mut ServeOptions| options.max_client_workers = Some(1);
    let Some(c) = Cluster::with("limits of users by munge", &["any"], change) else { return };
    let own = c.connect().unwrap();
    assert!(c.refusal().contains(&format!("uid {} has 1 workers here, and one client gets no more", geteuid())));
    // The same address, and a user of this name with a token.
    c.s.link(0);
    let file = crate::user_tokens::TokensFile::beside(&c.s.directory.join("token"));
    let namesake = Credentials { token: Some(file.add("root").unwrap().token), ..c.s.credentials.clone() };
    let _namesake = Link::connect(&c.s.at(0), Some(&namesake), &hello(), None).unwrap();
    if let Some((link, why)) = act_as(ANN, "limits of several users", || (c.connect().unwrap(), c.refusal())) {
        assert!(why.contains("uid 4000001 has 1 workers here"), "{why}");
        link.close();
    }
    own.close();
}

#[test]
fn a_credential_that_is_passed_on_is_refused() {
    let Some(c) = Cluster::with("credentials that are passed on", &["any"], |_| {}) else { return };
    let said = Link::connect(&endpoint("tls://", impostor(&c.s)), Some(&c.credentials), &hello(), None).unwrap_err().to_string();
    assert!(said.ends_with("the munge credential is for another connection"), "{said}");
    assert!(logged(|l| l.ends_with("was refused: the munge credential is for another connection")));
    assert!(!c.credentials.trust.known_servers.exists(), "and its certificate is not recorded");
}

/// Everything that a client has sent without encryption, credential and all.
fn recorded(c: &Cluster) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let recording = scope.spawn(|| {
            let mut client = listener.accept().unwrap().0;
            // A server with munge, without encryption.
            client.write_all(&[&greet::preamble()[..], &[2 | 4], &[9; 32]].concat()).unwrap();
            let mut said = vec![0; 53 + 33];
            client.read_exact(&mut said).unwrap();
            for _ in 0..2 {
                let mut length = [0; 4];
                client.read_exact(&mut length).unwrap();
                let mut part = vec![0; u32::from_le_bytes(length) as usize];
                client.read_exact(&mut part).unwrap();
                said.extend(length);
                said.extend(part);
            }
            let mut proof = [0; 32];
            client.read_exact(&mut proof).unwrap();
            // It lets everybody in.
            client.write_all(&[&[0][..], &32u32.to_le_bytes(), &[7; 32]].concat()).unwrap();
            [said, proof.to_vec()].concat()
        });
        let said = Link::connect(&endpoint("plain://", at), Some(&c.credentials), &hello(), None).unwrap_err().to_string();
        assert!(said.ends_with("the server cannot read the munge credential: it is not the expected server"), "{said}");
        recording.join().unwrap()
    })
}

#[test]
fn without_encryption_a_recorded_credential_is_refused_too() {
    let change = |options: &mut ServeOptions| options.allow_plain = true;
    let Some(c) = Cluster::with("credentials without encryption", &["any"], change) else { return };
    let to = endpoint("plain://", c.s.daemon.address.unwrap());
    Link::connect(&to, Some(&c.credentials), &hello(), None).unwrap();
    let said = recorded(&c);
    let replay = || {
        let mut stream = TcpStream::connect(c.s.daemon.address.unwrap()).unwrap();
        stream.write_all(&said).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    // The server's nonce is another one; then munged knows it, too.
    for wanted in ["the munge credential is for another connection", "the munge credential was used before"] {
        let answer = replay();
        assert!(answer.ends_with(wanted), "{answer}");
    }
}

#[test]
fn a_server_of_another_user_is_refused_and_learns_nothing() {
    let Some(mut c) = Cluster::with("servers of other users", &["any"], |_| {}) else { return };
    c.credentials.munge.as_mut().unwrap().server = ANN.to_string();
    let said = c.refusal();
    let wanted = "the munge credential is for a server of another user: MRCUDA_MUNGE must name the user that this server runs as";
    assert!(said.ends_with(wanted), "{said}");
    let known = c.credentials.trust.known_servers.parent().unwrap();
    assert_eq!(std::fs::read_dir(known).unwrap().count(), 0, "its certificate is not recorded");
    c.credentials.munge.as_mut().unwrap().server = "no-such-user".into();
    assert!(c.refusal().contains("there is no user `no-such-user` here"));
}

#[test]
fn a_client_with_munge_uses_its_token_where_munge_is_not_accepted() {
    let Some(c) = Cluster::with("servers without munge", &["any"], |_| {}) else { return };
    let without = Scene::lending(vec![0]);
    let refused = Link::connect(&without.at(0), Some(&c.credentials), &hello(), None).unwrap_err();
    assert!(matches!(&refused, LinkError::Greeting { why: crate::greet::NotGreeted::NoMunge, .. }), "{refused}");
    let both = Credentials { token: without.credentials.token.clone(), ..c.credentials.clone() };
    let at_first = Link::connect(&without.at(0), Some(&both), &hello(), None).unwrap_err().to_string();
    assert!(at_first.contains("set MRCUDA_MUNGE to nothing"), "{at_first}");
    Link::connect(&without.at(0), Some(&Credentials { munge: None, ..both.clone() }), &hello(), None).unwrap();
    Link::connect(&without.at(0), Some(&both), &hello(), None).unwrap();
    // A token that a server does not know does not matter where munge is accepted.
    let link = Link::connect(&c.s.at(0), Some(&both), &hello(), None).unwrap();
    assert_eq!(c.reported(&link).user_by, Some(UserBy::Munge));
    // The server's own token, and those of its users, are accepted as before.
    c.s.link(0);
}

#[test]
fn an_offer_of_munge_that_was_changed_on_the_way_lets_nobody_in() {
    let Some(c) = Cluster::with("offers of munge", &["any"], |_| {}) else { return };
    let at = changed(&c.s, false, 1);
    // With munge alone there is nothing left to show; with a token the proofs differ.
    let said = Link::connect(&endpoint("tls://", at), Some(&c.credentials), &hello(), None).unwrap_err().to_string();
    assert!(said.contains("does not accept munge"), "{said}");
    // A server that is not known is shown no token either, since the next connection might not be changed.
    let both = Credentials { token: c.s.credentials.token.clone(), ..c.credentials.clone() };
    let connect = || Link::connect(&endpoint("tls://", at), Some(&both), &hello(), None).unwrap_err().to_string();
    let said = connect();
    assert!(said.contains("does not accept munge"), "{said}");
    assert_eq!(known_servers(&c.s), "");
    // The token is for a server that is; then the proofs differ.
    let direct = endpoint("tls://", c.s.daemon.address.unwrap());
    Link::connect(&direct, Some(&c.s.credentials), &hello(), None).unwrap().close();
    let recorded = known_servers(&c.s).replace(&direct.server(), &endpoint("tls://", at).server());
    std::fs::write(&both.trust.known_servers, recorded).unwrap();
    let said = connect();
    assert!(said.contains("wrong token"), "{said}");
}

#[test]
fn a_server_does_not_start_without_munged_or_with_unknown_users() {
    let Some(mut munged) = Munged::start("servers without munged") else { return };
    let directory = std::env::temp_dir().join(format!("mrcuda-no-munged-{}", std::process::id()));
    let start = |users: &str, munged: &Munged| {
        let munge = MungeOptions { users: vec![users.parse().unwrap()], socket: Some(munged.socket()) };
        let options = ServeOptions { munge: Some(munge), unix: None, ..options_in(&directory) };
        start_daemon(&options, vec![0], Sockets::default()).map(|daemon| daemon.stop()).map_err(|why| why.to_string())
    };
    start("any", &munged).unwrap();
    assert_eq!(start("@no-such-group", &munged).unwrap_err(), "this machine has no group `no-such-group` (mrcuda serve --munge)");
    munged.end();
    let why = start("any", &munged).unwrap_err();
    assert!(
        why.starts_with("munge: munged does not answer on this machine: ") && why.ends_with(" (mrcuda serve --munge)"),
        "{why}"
    );
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_munged_that_ends_or_stops_is_named_and_holds_up_nobody_else() {
    let Some(mut c) = Cluster::with("a munged that ends", &["any"], |_| {}) else { return };
    let running = c.connect().unwrap();
    // Jobs with a token, and those that run, need no munged.
    let others = |c: &Cluster| {
        put(&running, 3, b"text");
        assert_eq!(get(&running, 3, 4), b"text");
        c.s.link(0).close();
    };
    let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(c.of_server.pid() as i32), signal).unwrap();
    signal(Signal::SIGSTOP);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| c.connect().map(drop));
        others(&c);
        // libmunge gives up after some seconds.
        let why = waiting.join().unwrap().unwrap_err().to_string();
        assert!(why.contains("munge at the server: "), "{why}");
    });
    signal(Signal::SIGCONT);
    assert!(soon(|| c.connect().is_ok()), "it goes on");
    c.of_server.end();
    others(&c);
    let why = c.refusal();
    assert!(why.contains("cannot be used: munge at the server: Failed to connect"), "{why}");
    assert!(logged(|l| l.contains("was refused: munge at the server: Failed to connect")));
    c.of_clients.end();
    let why = c.refusal();
    assert!(why.contains("cannot be used: munge: munged does not answer on this machine: "), "{why}");
}

#[test]
fn a_client_that_sends_many_credentials_is_told_to_try_again() {
    let Some(c) = Cluster::with("many credentials", &["any"], |_| {}) else { return };
    let checked = &c.s.daemon.state.cluster.as_ref().unwrap().checked;
    let ask = || {
        let limit = Duration::from_secs(60);
        let conn = Conn::open(&c.s.at(0), Instant::now() + limit).unwrap();
        let proof = Proof { key: &[5; 32], munge: c.credentials.munge.as_ref() };
        let limits = Limits { silence: limit, end: Instant::now() + limit };
        greet(&conn, &Opening::Inspect, proof, Protection::AnyServer, limits)
    };
    let address = || Source::Address("127.0.0.1".parse().unwrap());
    let mut all = Vec::new();
    all.extend(std::iter::from_fn(|| checked.take(address(), CHECKED_AT_ONCE).ok()));
    assert_eq!(all.len(), CHECKED_AT_ONCE.of_one);
    assert!(matches!(ask(), Err(GreetError::Busy)));
    all.pop();
    ask().unwrap();
    assert_eq!(checked.of(&address()), CHECKED_AT_ONCE.of_one - 1);
    // The usual client tries again by itself.
    thread::scope(|scope| {
        all.extend(checked.take(address(), CHECKED_AT_ONCE));
        let asking = scope.spawn(|| inspect(&c.s.at(0), Some(&c.credentials)).map(drop));
        assert!(logged(|l| l.contains("was refused: the server is busy")));
        all.clear();
        asking.join().unwrap().unwrap();
    });
}

#[test]
fn a_server_that_requires_certificates_requires_them_of_clients_with_munge_too() {
    let directory = std::env::temp_dir().join(format!("mrcuda-munge-mutual-{}", std::process::id()));
    let (client_ca, of_client) = crate::handshake::tests::signed(&directory, "client");
    let change = |options: &mut ServeOptions| options.client_ca = Some(client_ca);
    if let Some(mut c) = Cluster::with("certificates beside munge", &["any"], change) {
        assert!(c.refusal().contains("requires a certificate from its clients"));
        c.credentials.trust.certificate = Some(of_client);
        c.connect().unwrap();
    }
    std::fs::remove_dir_all(directory).unwrap();
}
