//! The process that greets clients for a server: what it is allowed, what it knows, and what happens when it is lost.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};
use tests::scene::wait_for;
use tests::server::signal;
use tests::{Scene, Server};

/// Generous, because the machine may be busy.
const SOON: Duration = Duration::from_secs(60);
/// What a client says first: magic, protocol, digest of its build.
const PREAMBLE: usize = 8 + 4 + 32;

fn is_root() -> bool {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() == 0 }
}

/// A line of a process' status.
fn status(pid: u32, name: &str) -> String {
    let all = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect(name).trim().to_owned()
}

/// Whether the memory of a process contains these bytes.
fn knows(pid: u32, bytes: &[u8]) -> bool {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        let (mut at, mut block) = (from, vec![0; 1 << 20]);
        while at < to {
            let n = block.len().min((to - at) as usize);
            // What was reserved and is not there cannot be read.
            if memory.read_exact_at(&mut block[..n], at).is_ok() && block[..n].windows(bytes.len()).any(|some| some == bytes) {
                return true;
            }
            // The next block begins with the end of this one, across which the bytes may lie.
            at += if at + n as u64 >= to { n } else { n - bytes.len() } as u64;
        }
        false
    })
}

/// The bytes that a text of hexadecimal digits stands for.
fn bytes(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// The secret number of a private key of an elliptic curve, which is what a signature needs.
fn private_number(pem: &str) -> Vec<u8> {
    let inside = pem.split("-----BEGIN PRIVATE KEY-----").nth(1).unwrap().split("-----END").next().unwrap();
    let digit = |c: u8| b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".iter().position(|d| *d == c);
    let (mut bits, mut n, mut der) = (0u32, 0, Vec::new());
    for value in inside.bytes().filter_map(digit) {
        (bits, n) = ((bits << 6) | value as u32, n + 6);
        if n >= 8 {
            n -= 8;
            der.push((bits >> n) as u8);
        }
    }
    // In it is a string of 32 bytes, after the version 1 (RFC 5915).
    let at = der.windows(5).position(|some| some == [2, 1, 1, 4, 32]).expect("a key of P-256");
    der[at + 5..at + 37].to_vec()
}

#[test]
fn it_has_no_privileges_and_no_secret_while_it_greets_jobs() {
    let scene = Scene::new("greeter");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "job", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 20);
    // One that has just been passed a client is not replaced so soon.
    let client = begin(&server, 1);
    let greeters = greeters(&server);
    for pid in &greeters {
        has_nothing(&scene, &server, *pid);
    }
    drop(client);
    drop(begin(&server, 1));
    // Whoever has greeted the job is replaced, and ends, while the job goes on.
    let is_replaced = || {
        let now = server.greeters();
        (now.len() == 2 && now != greeters).then_some(now)
    };
    let now = wait_for(SOON, is_replaced).expect("another process");
    assert_eq!(now.iter().filter(|pid| greeters.contains(pid)).count(), 1, "nobody came to the one for Unix sockets");
    now.iter().for_each(|pid| has_nothing(&scene, &server, *pid));
    assert!(!server.errors().contains("which greets clients"), "{}", server.errors());
    job.let_end();
    assert_identical(&job.wait(LIMIT), &native);
}

/// A process that greets has no privileges, and none of the server's secrets.
fn has_nothing(scene: &Scene, server: &Server, pid: u32) {
    // Of the kernel, and of what it was started with.
    assert_eq!((status(pid, "NoNewPrivs").as_str(), status(pid, "Seccomp").as_str()), ("1", "2"));
    assert_eq!(std::fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((limit("Max core file size"), limit("Max file size")), (vec!["0".to_owned(); 2], vec!["0".to_owned(); 2]));
    let files: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|file| Some(std::fs::read_link(file.path()).ok()?.display().to_string()))
        .collect();
    assert!(
        files.iter().all(|file| file == "/dev/null" || file.starts_with("pipe:") || file.starts_with("socket:")),
        "{files:?}"
    );
    if is_root() {
        for name in ["Uid", "Gid"] {
            let ids: Vec<String> = status(pid, name).split_whitespace().map(str::to_owned).collect();
            assert!(ids.len() == 4 && ids.iter().all(|id| *id == ids[0] && id != "0"), "{name}: {ids:?}");
        }
        assert_eq!(status(pid, "Groups"), "");
        for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status(pid, name), "0000000000000000", "{name}");
        }
        // Neither its user nor others of that user may look at it.
        assert_eq!(std::fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid(), 0);
        // Files that its user cannot read, whatever the sandbox says.
        for file in [scene.token(), scene.token().with_file_name("server.pem")] {
            let meta = std::fs::metadata(&file).unwrap();
            assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (0, 0o600), "{}", file.display());
        }
        let token = bytes(std::fs::read_to_string(scene.token()).unwrap().trim());
        let key = private_number(&std::fs::read_to_string(scene.token().with_file_name("server.pem")).unwrap());
        // That a secret would be found. Of the private key the server need not keep the number itself: ring signs with another form of it.
        assert!(knows(server.pid(), &token), "the server has its token");
        for (secret, what) in [(token, "token"), (key, "private key")] {
            assert!(!knows(pid, &secret), "the process that greets has the server's {what}");
        }
        assert!(
            server.errors().contains("clients over TCP are greeted by another process: as user nobody"),
            "{}",
            server.errors()
        );
    } else {
        eprintln!("only root can start processes of another user: this was not tested");
    }
}

/// Its processes that greet: both, when there are.
fn greeters(server: &Server) -> Vec<u32> {
    wait_for(SOON, || Some(server.greeters()).filter(|all| all.len() == 2)).expect("two processes that greet")
}

/// Connections that have begun a greeting and go no further. They have all been taken when the server has answered each.
fn begin(server: &Server, n: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut said = [0; PREAMBLE + 1 + 32];
        stream.read_exact(&mut said).unwrap();
        // The same build, encrypted, and no ticket; then half of the head of a record.
        stream.write_all(&[&said[..PREAMBLE], &[1], &[0; 8], &[22, 3]].concat()).unwrap();
        stream
    };
    (0..n).map(connect).collect()
}

#[test]
fn when_it_is_killed_greetings_are_lost_and_nothing_else() {
    let scene = Scene::new("greeter-killed");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "job", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 20);
    for _ in 0..3 {
        let greeting = begin(&server, 20);
        // None that has just greeted is replaced.
        let before = greeters(&server);
        let began = Instant::now();
        before.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
        for mut stream in greeting {
            // An end or a reset, without a word that would mean something else where the handshake was.
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest);
            assert!(rest.is_empty(), "{rest:?}");
            assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        }
        // Not after the time that a greeting may take.
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        // Clients that come at once wait for the next process.
        let asked = scene.mrcuda().args(["gpus", &server.place(0)]).output().unwrap();
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        assert!(greeters(&server).iter().all(|now| !before.contains(now)));
        let said = |pid: &u32, clients| {
            let line =
                format!("process {pid}, which greets clients {clients}, has ended (signal: 9 (SIGKILL)); another one is started");
            server.errors().contains(&line)
        };
        let of = |clients| before.iter().filter(|pid| said(pid, clients)).count();
        assert_eq!(["over TCP", "at Unix sockets"].map(of), [1, 1], "{}", server.errors());
    }
    // The job has not noticed, and moves away and back: each move has connections that are greeted.
    let other = Server::start(&scene, "two");
    for to in [other.place(0), server.place(0)] {
        let report = job.migrate(&to).unwrap();
        assert!(report.ok(), "{report:?}");
    }
    job.let_end();
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn when_it_is_stopped_it_is_replaced() {
    let scene = Scene::new("greeter-stopped");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "job", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 20);
    let before = greeters(&server);
    before.iter().for_each(|pid| signal(*pid, libc::SIGSTOP));
    for place in [server.place(0), server.unix_place(0)] {
        let answered = wait_for(2 * SOON, || {
            let asked = scene.mrcuda().args(["gpus", &place]).output().unwrap();
            asked.status.success().then_some(())
        });
        assert!(answered.is_some(), "{}", server.errors());
    }
    assert!(greeters(&server).iter().all(|now| !before.contains(now)));
    for clients in ["over TCP", "at Unix sockets"] {
        // It is replaced after the same time as a client waits; then it does not end.
        let said = |pid: &u32| {
            let line = format!("process {pid}, which greets clients {clients}, does not ");
            let all = server.errors();
            ["answer", "end"].iter().any(|what| all.contains(&format!("{line}{what} and was ended")))
        };
        assert!(wait_for(SOON, || before.iter().any(said).then_some(())).is_some(), "{clients}: {}", server.errors());
    }
    job.let_end();
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn it_ends_with_its_server() {
    let scene = Scene::new("greeter-ends");
    for is_killed in [false, true] {
        let mut server = Server::start(&scene, "one");
        let pids = greeters(&server);
        if is_killed {
            // The server alone.
            signal(server.pid(), libc::SIGKILL);
        } else {
            assert!(server.stop().is_some_and(|status| status.success()));
        }
        let runs = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "mrcuda-greeter")
        };
        assert!(wait_for(SOON, || (!pids.iter().any(runs)).then_some(())).is_some());
    }
}
