//! Who may use a server.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, words_of_mrcuda};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests::{Job, Scene, Server};

const SHORT: [&str; 2] = ["--steps", "100"];

fn orbit<'a>(scene: &'a Scene, name: &str, server: &Server, env: &[(&str, &str)]) -> Job<'a> {
    Job::start(scene, name, &["--server", &server.place(0)], &scene.install.file("orbit"), &SHORT, env)
}

#[test]
fn the_token_opens_the_server_and_nothing_else_does() {
    let scene = Scene::new("token");
    let native = native_orbit(&scene, &SHORT);
    let server = Server::start(&scene, "one");
    assert_eq!(std::fs::metadata(scene.token()).unwrap().mode() & 0o777, 0o600);
    let wrong = scene.path.join("wrong");
    std::fs::write(&wrong, "00".repeat(32)).unwrap();
    std::fs::set_permissions(&wrong, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let missing = scene.path.join("missing");
    for (name, file) in [("wrong", &wrong), ("missing", &missing)] {
        let outcome = orbit(&scene, name, &server, &[("MRCUDA_TOKEN_FILE", &file.display().to_string())]).wait(LIMIT);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        let words = words_of_mrcuda(&outcome);
        assert!(words.len() == 1 && words[0].contains("token") && words[0].contains("copy"), "{}", outcome.stderr);
        assert!(words[0].contains(&server.place(0)), "{}", words[0]);
    }
    assert!(server.errors().contains("token"), "the server says nothing: {}", server.errors());
    assert_identical(&orbit(&scene, "right", &server, &[]).wait(LIMIT), &native);
}

#[test]
fn strangers_are_sent_away_and_the_server_goes_on() {
    let scene = Scene::new("garbage");
    let native = native_orbit(&scene, &SHORT);
    let server = Server::start(&scene, "one");
    // Held open without a word all the time.
    let silent = TcpStream::connect(server.address).unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 64], b"\0"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may close before all is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // It says who it is and ends the connection; a reset is an end as well.
        let mut answer = Vec::new();
        if let Err(e) = stream.read_to_end(&mut answer) {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}");
        }
    }
    assert_identical(&orbit(&scene, "right", &server, &[]).wait(LIMIT), &native);
    drop(silent);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let scene = Scene::new("absent");
    let gone = Server::start(&scene, "gone");
    let (place, address) = (gone.place(0), gone.address.to_string());
    drop(gone);
    let outcome = Job::start(&scene, "job", &["--server", &place], &scene.install.file("orbit"), &SHORT, &[]).wait(LIMIT);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(words_of_mrcuda(&outcome).iter().any(|line| line.contains(&address)), "{}", outcome.stderr);
}

/// What a server says first: magic, protocol, digest of its build, what it offers, its nonce (docs/formats.md).
const OPENING: usize = 8 + 4 + 32 + 1 + 32;
/// Where the digest is.
const DIGEST: std::ops::Range<usize> = 12..44;
/// What a client chooses: no encryption.
const PLAIN: u8 = 2;
/// The option of a server that accepts that.
const ALLOW: [&str; 1] = ["--allow-plain"];

fn opening(server: &Server) -> Vec<u8> {
    let mut said = vec![0; OPENING];
    TcpStream::connect(server.address).unwrap().read_exact(&mut said).unwrap();
    said
}

/// Something that listens where a server should: it says this to one client, then keeps silent until that has gone.
fn impostor(says: Vec<u8>, waits: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The client may have heard enough before all is said.
        let _ = stream.write_all(&says);
        if waits {
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    address
}

#[test]
fn a_client_names_what_is_wrong_with_its_server() {
    let scene = Scene::new("impostor");
    let server = Server::start_with(&scene, "one", &ALLOW, &[]);
    let real = opening(&server);
    let mut other_build = real.clone();
    other_build[DIGEST.start] ^= 1;
    let answers = |status: u8, length: u32, text: &[u8]| [&real[..], &[status], &length.to_le_bytes(), text].concat();
    let rude = b"bad\nmrcuda: \x1b[31mformat your disk\r\n";
    let cases: [(&str, Vec<u8>, bool, &str); 8] = [
        (
            "web",
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n  ".repeat(2),
            true,
            "does not speak the mrcuda protocol",
        ),
        ("build", other_build, true, "another build"),
        ("thief", answers(0, 32, &[0; 32]), true, "does not know this token"),
        ("giant", answers(1, u32::MAX, b""), true, "does not speak the mrcuda protocol"),
        ("odd", answers(7, 0, b""), true, "does not speak the mrcuda protocol"),
        ("rude", answers(1, rude.len() as u32, rude), true, "format your disk"),
        ("silent", Vec::new(), true, "does not answer"),
        ("brief", real[..20].to_vec(), false, "closed the connection during the greeting"),
    ];
    // An impostor cannot answer an encrypted greeting at all.
    let encrypted = ("thief-tls", cases[2].1.clone(), true, "does not speak the mrcuda protocol", "");
    let plain = cases.map(|(name, says, waits, wanted)| (name, says, waits, wanted, "plain://"));
    for (name, says, waits, wanted, scheme) in plain.into_iter().chain([encrypted]) {
        let place = format!("{scheme}{}/0", impostor(says, waits));
        let program = scene.install.file("orbit");
        let env = [("MRCUDA_TOKEN_FILE", scene.token().display().to_string())];
        let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let outcome = Job::start(&scene, name, &["--server", &place], &program, &SHORT, &env).wait(LIMIT);
        assert_eq!(outcome.code, Some(2), "{name}: {outcome:?}");
        let words = words_of_mrcuda(&outcome);
        assert_eq!(words.len(), 1, "{name}: {}", outcome.stderr);
        assert!(words[0].contains(&place) && words[0].contains(wanted), "{name}: {}", words[0]);
        assert!(!outcome.stderr.contains('\x1b'), "{name}: {}", outcome.stderr);
    }
}

#[test]
fn a_server_names_what_is_wrong_with_its_client() {
    let scene = Scene::new("visitors");
    let native = native_orbit(&scene, &SHORT);
    let server = Server::start_with(&scene, "one", &ALLOW, &[]);
    let real = opening(&server);
    let mut other_build = real.clone();
    other_build[DIGEST.start] ^= 1;
    // Choice, route, role, nonce, length of the body; then the body, no credential, and a proof.
    let greeting = |role: u8, length: u32, rest: usize| {
        [&real[..44], &[PLAIN], &[0; 8], &[role], &[0; 32], &length.to_le_bytes(), &vec![0; rest]].concat()
    };
    for (says, wanted) in [
        (other_build[..44].to_vec(), "another build"),
        (b"mrcuda\n\n".to_vec(), "does not speak the mrcuda protocol"),
        (greeting(1, u32::MAX, 0), "does not speak the mrcuda protocol"),
        (greeting(9, 4, 4 + 4 + 32), "does not speak the mrcuda protocol"),
        // The body of a data connection: its ticket, no RDMA.
        (greeting(2, 33, 33 + 4 + 32), "unknown ticket"),
        // A job's body: GPU, virtual device, process, no RDMA, no machine, no variables. The proof is wrong.
        (greeting(1, 31, 31 + 4 + 32), "wrong token"),
        (real[..30].to_vec(), "too slow"),
    ] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&says).unwrap();
        let mut heard = Vec::new();
        // A reset after the answer is an end as well.
        let _ = stream.read_to_end(&mut heard);
        let answer = heard.get(OPENING..).unwrap_or_default();
        let refused = if wanted == "wrong token" { 3 } else { 1 };
        assert_eq!(answer.first(), Some(&refused), "{wanted}: it is not refused");
        let text = String::from_utf8_lossy(answer.get(5..).unwrap_or_default()).into_owned();
        assert!(text.contains(wanted) && !text.contains('\n'), "{wanted}: {text}");
        let from = stream.local_addr().unwrap().to_string();
        let line = |text: &str| text.lines().any(|l| l.contains(&from) && l.contains(wanted));
        let logged = tests::scene::wait_for(LIMIT, || line(&server.errors()).then_some(()));
        assert!(logged.is_some(), "{wanted}: the server says nothing: {}", server.errors());
    }
    let panics = server.errors().matches("panicked").count();
    assert_eq!(panics, 0, "{}", server.errors());
    assert_identical(&orbit(&scene, "right", &server, &[]).wait(LIMIT), &native);
}

#[test]
fn encryption_is_given_up_only_if_both_ends_say_so() {
    let scene = Scene::new("plain");
    let native = native_orbit(&scene, &LONG);
    let [strict, free] = [("strict", &[][..]), ("free", &ALLOW[..])].map(|(name, o)| Server::start_with(&scene, name, o, &[]));
    let program = scene.install.file("orbit");
    let refused = Job::start(&scene, "refused", &["--server", &strict.plain(0)], &program, &SHORT, &[]).wait(LIMIT);
    let words = words_of_mrcuda(&refused);
    assert!(refused.code == Some(2) && words[0].contains("encrypted connections only"), "{}", refused.stderr);
    let logged = || strict.errors().contains("encrypted connections only").then_some(());
    assert!(tests::scene::wait_for(LIMIT, logged).is_some(), "{}", strict.errors());

    let job = remote_orbit(&scene, "job", &free.plain(0), &LONG, &[]);
    let transport = |job: &Job| job.status().and_then(|s| Some(s["devices"][0]["transport"].as_str()?.to_owned()));
    assert_eq!(transport(&job).as_deref(), Some("tcp"));
    let denied = job.migrate(&strict.plain(0)).unwrap();
    assert!(denied.reason().contains("encrypted connections only"), "{}", denied.reason());
    // From plain to encrypted, to encrypted, and back.
    for (to, via) in [(strict.place(0), "tls"), (free.place(0), "tls"), (free.plain(0), "tcp")] {
        let moved = job.migrate(&to).unwrap();
        assert!(moved.ok(), "{to}: {}", moved.reason());
        assert_eq!((moved.transport(), transport(&job).as_deref()), (via, Some(via)), "{to}");
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_server_with_another_certificate_is_not_the_same_server() {
    let scene = Scene::new("pinned");
    let native = native_orbit(&scene, &SHORT);
    let server = Server::start(&scene, "one");
    assert!(server.announcement.contains("certificate sha256:"), "{}", server.announcement);
    assert_identical(&orbit(&scene, "first", &server, &[]).wait(LIMIT), &native);
    let known = scene.path.join("mrcuda").join("known_servers");
    let line = std::fs::read_to_string(&known).unwrap();
    let [name, fingerprint] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert!(name == server.address.to_string() && server.announcement.contains(fingerprint), "{line}");
    std::fs::write(&known, line.replace(fingerprint, &format!("sha256:{}", "0".repeat(64)))).unwrap();
    let refused = orbit(&scene, "second", &server, &[]).wait(LIMIT);
    let words = words_of_mrcuda(&refused);
    assert_eq!((refused.code, words.len()), (Some(2), 1), "{}", refused.stderr);
    assert!(words[0].contains("its certificate has changed") && words[0].contains(&known.display().to_string()), "{}", words[0]);
    std::fs::remove_file(&known).unwrap();
    assert_identical(&orbit(&scene, "third", &server, &[]).wait(LIMIT), &native);
}

/// Ends those who look at it, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn strangers_without_a_token_lock_no_job_out_and_fill_no_log() {
    let scene = Scene::new("flood");
    let native = native_orbit(&scene, &SHORT);
    let server = Server::start(&scene, "one");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            let mut silent = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                // More at one time than may greet; the oldest ends and another one comes.
                silent.extend(TcpStream::connect(server.address));
                if silent.len() > 200 {
                    silent.pop_front();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        std::thread::sleep(Duration::from_secs(1));
        for n in 0..3 {
            assert_identical(&orbit(&scene, &format!("job{n}"), &server, &[]).wait(LIMIT), &native);
        }
    });
    let counted = |log: &str| log.lines().any(|l| l.contains("more refusals of clients were not written here"));
    let log = tests::scene::wait_for(LIMIT, || Some(server.errors()).filter(|log| counted(log))).expect("a count of them");
    assert!(log.lines().count() < 400, "{} lines", log.lines().count());
}

#[test]
fn the_log_has_times_and_peers_and_calls_a_claim_a_claim() {
    let scene = Scene::new("audit");
    let server = Server::start(&scene, "one");
    let job = orbit(&scene, "job", &server, &[]);
    let pid = job.pid();
    assert!(job.wait(LIMIT).ok());
    // Both lines, in whichever order they are written.
    let both = |log: &str| ["serves", "has left; it was on GPU 0"].iter().all(|what| log.lines().any(|l| l.contains(what)));
    let log = tests::scene::wait_for(LIMIT, || Some(server.errors()).filter(|log| both(log))).expect("its end");
    for what in ["serves", "has left"] {
        let who = format!("job {pid} (its own word) at 127.0.0.1:");
        let line = log.lines().find(|l| l.contains(what) && l.contains(&who)).expect(&log);
        let time = line.strip_prefix("mrcuda serve: ").and_then(|l| l.split(' ').next()).unwrap_or_default();
        assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{line}");
    }
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        assert!(log.contains("serving as root"), "{log}");
    }
}

#[test]
fn a_program_that_is_replaced_serves_on() {
    let scene = Scene::new("replaced");
    let native = native_orbit(&scene, &SHORT);
    let directory = scene.path.join("bin");
    std::fs::create_dir_all(&directory).unwrap();
    for name in ["mrcuda", "libsoftgpu.so"] {
        std::fs::copy(scene.install.file(name), directory.join(name)).unwrap();
    }
    let server = Server::start_as(&scene, "one", &directory.join("mrcuda"), &[], &[]);
    assert_identical(&orbit(&scene, "before", &server, &[]).wait(LIMIT), &native);
    std::fs::remove_file(directory.join("mrcuda")).unwrap();
    std::fs::write(directory.join("mrcuda"), "another program").unwrap();
    // More than are kept ready.
    for n in 0..3 {
        assert_identical(&orbit(&scene, &format!("after{n}"), &server, &[]).wait(LIMIT), &native);
    }
}

#[test]
fn settings_of_a_server_that_mean_nothing_are_refused() {
    let scene = Scene::new("settings");
    for (option, value) in [
        ("--max-workers", "0"),
        ("--max-client-workers", "-1"),
        ("--max-images", "0"),
        ("--max-queue", "1.5G"),
        ("--max-pinned", "much"),
        ("--allow-target", "everywhere"),
        ("--allow-target", "10.0.0.0/33"),
    ] {
        let output = scene
            .mrcuda()
            .args(["serve", "--listen", "127.0.0.1:0", "--driver", "soft"])
            .arg(format!("{option}={value}"))
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(option), "{option} {value}: {err}");
    }
}

#[test]
fn moves_go_where_the_server_allows() {
    let scene = Scene::new("targets");
    let native = native_orbit(&scene, &LONG);
    let free = Server::start(&scene, "free");
    let bound = Server::start_with(&scene, "bound", &["--allow-target", "10.0.0.0/8"], &[]);
    let mut job = Job::orbit(&scene, "job", &["--server", &bound.place(0)], &LONG, &[]);
    job.wait_ready(LIMIT).unwrap();
    let move_to = |to: &str| job.migrate(to).unwrap();
    let refused = move_to(&free.place(0));
    let why = refused.reason();
    assert_eq!(refused.code(), "not-connected", "{why}");
    assert!(why.contains("this server does not connect to") && why.contains("--allow-target"), "{why}");
    // There the job's own processes connect: to a place of this server, and away from it.
    for to in ["helper", &free.place(0)] {
        let moved = move_to(to);
        assert!(moved.ok(), "{to}: {}", moved.reason());
    }
    assert_identical(&job.wait(LIMIT), &native);
}
