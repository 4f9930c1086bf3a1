//! Tests of users with tokens of their own.

use super::encryption::{OFFER, between, endpoint};
use super::*;
use crate::greet::{Limits, Protection, greet};
use crate::inspect::inspect;
use crate::server_state::ServedJob;
use crate::trial::trial;
use crate::user_by::UserBy;
use crate::user_tokens::TokensFile;

fn tokens(s: &Scene) -> TokensFile {
    TokensFile::beside(&s.directory.join("token"))
}

/// Adds a user, and returns what they show to the server.
fn add(s: &Scene, name: &str) -> Credentials {
    Credentials { token: Some(tokens(s).add(name).unwrap().token), ..s.credentials.clone() }
}

fn connect(s: &Scene, by: &Credentials) -> Result<Arc<Link>, LinkError> {
    Link::connect(&s.at(0), Some(by), &hello(), None)
}

fn refusal(s: &Scene, by: &Credentials) -> String {
    connect(s, by).map(drop).unwrap_err().to_string()
}

/// The job of a worker, as the server reports it.
fn reported(s: &Scene, link: &Link) -> ServedJob {
    let state = inspect(&s.at(0), Some(&s.credentials)).unwrap();
    state.gpus[0].jobs.iter().find(|job| job.worker as i32 == pid(link)).cloned().unwrap()
}

#[test]
fn the_server_knows_whose_a_job_is() {
    let file = std::env::temp_dir().join(format!("mrcuda-daemon-users-{}", std::process::id()));
    let s = Scene::with(vec![0], |options| options.accounting = Some(file.clone()));
    // The file is made while the server runs.
    let [ann, bob] = ["ann", "bob"].map(|name| add(&s, name));
    let links = [&ann, &bob, &s.credentials].map(|by| connect(&s, by).unwrap());
    for (link, user) in links.iter().zip([Some("ann"), Some("bob"), None]) {
        let job = reported(&s, link);
        assert_eq!((job.user.as_deref(), job.user_by), (user, user.map(|_| UserBy::Token)), "{job:?}");
        assert_eq!((job.host.as_deref(), job.uid), (Some("127.0.0.1"), None));
        let whose = user.map(|user| format!(" of {user}")).unwrap_or_default();
        let line = format!("worker {} serves job {} (its own word){whose} at 127.0.0.1:", pid(link), std::process::id());
        assert!(logged(|l| l.starts_with(&line)), "{line}");
    }
    let workers = links.each_ref().map(|link| pid(link));
    links.iter().for_each(|link| link.close());
    assert!(soon(|| std::fs::read_to_string(&file).unwrap().lines().count() == 3));
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let at = workers.iter().position(|worker| line["worker"] == *worker).unwrap();
        assert_eq!(line["user"].as_str(), [Some("ann"), Some("bob"), None][at], "{line}");
        assert_eq!(line["user_by"].as_str(), [Some("token"), Some("token"), None][at], "{line}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_revoked_user_can_do_nothing_new_and_what_runs_goes_on() {
    let s = Scene::lending(vec![0]);
    let [ann, bob] = ["ann", "bob"].map(|name| add(&s, name));
    let running = connect(&s, &ann).unwrap();
    put(&running, 3, b"before");
    inspect(&s.at(0), Some(&ann)).unwrap();
    trial(&s.at(0), Some(&ann)).unwrap();
    tokens(&s).revoke("ann").unwrap();
    let refused = [
        refusal(&s, &ann),
        inspect(&s.at(0), Some(&ann)).unwrap_err().to_string(),
        trial(&s.at(0), Some(&ann)).unwrap_err().to_string(),
    ];
    assert!(refused.iter().all(|why| why.contains("wrong token") && why.contains("may have been revoked")), "{refused:?}");
    // The running job goes on, also with new data connections and as the one of that user.
    assert_eq!(get(&running, 3, 6), b"before");
    let ticket = [0x78; 32];
    running.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    bulk_connect(&s.at(0), &ticket, 1).unwrap();
    assert_eq!(reported(&s, &running).user.as_deref(), Some("ann"));
    // Others are not concerned. A user of the same name with a new token is let in, and not with the old one.
    connect(&s, &bob).unwrap();
    connect(&s, &s.credentials).unwrap();
    let again = add(&s, "ann");
    connect(&s, &again).unwrap();
    assert!(refusal(&s, &ann).contains("wrong token"));
    let file = s.directory.join("tokens").display().to_string();
    assert!(logged(|l| l.contains(&file) && l.contains("ann was revoked")));
}

#[test]
fn a_broken_file_neither_lets_anybody_in_nor_shuts_anybody_out() {
    let s = Scene::lending(vec![0]);
    let ann = add(&s, "ann");
    connect(&s, &ann).unwrap();
    let file = s.directory.join("tokens");
    std::fs::write(&file, format!("ann {}\n", "0".repeat(64))).unwrap();
    let zero = Credentials { token: Some(Token([0; 32])), ..s.credentials.clone() };
    assert!(refusal(&s, &zero).contains("wrong token"));
    connect(&s, &ann).unwrap();
    let line = format!("the tokens file {} has an error in line 1", file.display());
    assert!(logged(|l| l.starts_with(&line)));
    assert_eq!(lock(&LOG).iter().filter(|l| l.starts_with(&line)).count(), 1, "once");
}

#[test]
fn limits_count_users_by_their_names_and_others_by_their_addresses() {
    let s = Scene::with(vec![0], |options| options.max_client_workers = Some(1));
    let [ann, bob] = ["ann", "bob"].map(|name| add(&s, name));
    // All are of one address.
    let links = [&ann, &bob, &s.credentials].map(|by| connect(&s, by).unwrap());
    for (by, who) in [(&ann, "ann"), (&bob, "bob"), (&s.credentials, "127.0.0.1")] {
        let why = refusal(&s, by);
        assert!(why.contains(&format!("{who} has 1 workers here, and one client gets no more")), "{why}");
    }
    assert!(logged(|l| l.starts_with("a job of ann at 127.0.0.1:") && l.contains("was refused: ann has 1 workers here")));
    links[0].close();
    assert!(soon(|| connect(&s, &ann).is_ok()), "the worker has left");
}

#[test]
fn a_job_whose_user_is_revoked_while_it_waits_is_refused() {
    let s = Scene::with(vec![0], |options| options.clients.gpu_jobs = Some(1));
    let ann = add(&s, "ann");
    let first = s.link(0);
    let limits = TimeLimits { queue: Duration::from_secs(120), ..TimeLimits::default() };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Link::connect_with(&s.at(0), Some(&ann), &hello(), None, limits).map(drop));
        assert!(soon(|| s.daemon.state.lines.waiting(0) == 1));
        tokens(&s).revoke("ann").unwrap();
        let why = waiting.join().unwrap().unwrap_err().to_string();
        assert!(why.contains("the token of ann was revoked"), "{why}");
    });
    assert_eq!(s.daemon.state.lines.waiting(0), 0);
    first.close();
}

#[test]
fn users_on_the_servers_machine_share_memory_with_it() {
    let s = Scene::lending(vec![0]);
    let user = tokens(&s).add("ann").unwrap();
    let ann = Credentials { token: Some(user.token.clone()), ..s.credentials.clone() };
    let named: Endpoint = format!("{}/0", s.daemon.address.unwrap()).parse().unwrap();
    let link = Link::connect(&named, Some(&ann), &hello(), None).unwrap();
    assert_eq!(link.transport(), Transport::Shm);
    let job = reported(&s, &link);
    let own = nix::unistd::geteuid().as_raw();
    assert_eq!((job.user.as_deref(), job.user_by, job.uid, job.host), (Some("ann"), Some(UserBy::Token), Some(own), None));
    // An invitation ends with the token.
    let invitation = s.daemon.state.local_socket.as_ref().unwrap().invite(&[9; 32], Some(User::Token(Arc::new(user)))).unwrap();
    tokens(&s).revoke("ann").unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let conn = invitation.connect(until).unwrap();
    let locality = Locality::Invited(invitation.name());
    let opening = Opening::Job { gpu: 0, rdma: false, waits: false, locality, hello: hello() };
    let limits = Limits { silence: Duration::from_secs(30), end: until };
    let refused = greet(&conn, &opening, &invitation.key(&[9; 32]), Protection::Plain, limits);
    assert!(matches!(refused, Err(GreetError::TokenRefused)), "{refused:?}");
}

#[test]
fn a_server_does_not_start_with_a_broken_file_and_says_how_many_users_it_has() {
    let s = Scene::lending(vec![0]);
    let options = options_in(&s.directory);
    assert!(!s.daemon.describe(&options).contains("tokens file"));
    add(&s, "ann");
    let words = s.daemon.describe(&options);
    assert!(
        words.contains(&format!(", tokens file {} with 1 user, certificate", s.directory.join("tokens").display())),
        "{words}"
    );
    std::fs::write(s.directory.join("tokens"), "ann\n").unwrap();
    let failed = accepted_tokens(&options, log);
    assert!(matches!(&failed, Err(ServeError::Tokens(_))), "{failed:?}");
}

#[test]
fn who_listens_without_encryption_hears_no_token_and_not_whose_a_connection_is() {
    let s = Scene::with(vec![0], |options| options.allow_plain = true);
    let ann = add(&s, "annabella");
    let mut heard = Vec::new();
    for _ in 0..2 {
        let said: Arc<Mutex<[Vec<u8>; 2]>> = Arc::default();
        let to = said.clone();
        let at = between(s.daemon.address.unwrap(), move |up, _, bytes| lock(&to)[usize::from(up)].extend_from_slice(bytes));
        let link = Link::connect(&endpoint("plain://", at), Some(&ann), &hello(), None).unwrap();
        assert_eq!(reported(&s, &link).user.as_deref(), Some("annabella"));
        link.close();
        heard.push(lock(&said).clone());
    }
    let token = ann.token.as_ref().unwrap().0;
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    for said in heard.iter().flatten() {
        for part in [&token[..], digits.as_bytes(), b"annabella"] {
            assert!(!said.windows(part.len()).any(|bytes| bytes == part), "it is heard");
        }
    }
    // What the two have in common is the same for every user: role, body and the empty credential lie between nonce and proof.
    let [first, second] = [&heard[0][1], &heard[1][1]];
    let (nonce, role) = (OFFER + 9, 1);
    let body = u32::from_le_bytes(first[nonce + role + 32..][..4].try_into().unwrap()) as usize;
    let proof = nonce + role + 32 + 4 + body + 4;
    for (what, at) in [("nonces", nonce + role), ("proofs", proof)] {
        assert_ne!(first[at..at + 32], second[at..at + 32], "{what}");
    }
}
