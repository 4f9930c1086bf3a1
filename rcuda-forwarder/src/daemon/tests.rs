//! Tests of the daemon with real worker processes over a fake place, and links to them.

use super::*;
use crate::control::{Control, ControlReply};
use crate::daemon::greeters::{Pace, StartWith};
use crate::daemon::privileges::{Privileges, WorkerUser};
use crate::daemon::setup::GreeterSetup;
use crate::daemon::worker_command::Command;
use crate::endpoint::Endpoint;
use crate::frame::Head;
use crate::handshake::Trust;
use crate::limits::{ClientLimits, WorkerLimits};
use crate::link::{Credentials, Landing, Link, LinkError, TimeLimits, Transport, bulk_connect};
use crate::place::fake::{self, Fake};
use crate::sandbox::{GreeterConfinement, SandboxMode};
use cuda_api::code;
use cuda_api::ops::{CopyIn, CopyOut, id};
use cuda_api::wire::Wire;
use nix::sys::socket::{SockType, getsockopt, sockopt};
use nix::unistd::geteuid;
use std::ffi::OsString;
use std::io;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Instant;

mod bounds;
mod closing;
mod drain;
mod encryption;
mod greeters;
mod inspect;
mod large;
mod leaving;
mod limits;
mod local_socket;
mod metrics;
mod munge;
mod requests;
mod stopped;
mod take_over;
mod unix_users;
mod users;
mod worker_end;
mod worker_users;

/// Users that no machine has.
const ANN: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

/// Not a test by itself: the daemons of the tests start this program with only this test, as their worker.
#[test]
fn worker_process() {
    let stdin = io::stdin();
    if matches!(getsockopt(&stdin.as_fd(), sockopt::SockType), Ok(SockType::SeqPacket)) {
        std::process::exit(crate::worker::run(Fake::open, crate::worker::reach_of_daemon));
    }
}

/// As [`worker_process`], the process that greets.
#[test]
fn greeter_process() {
    let stdin = io::stdin();
    if matches!(getsockopt(&stdin.as_fd(), sockopt::SockType), Ok(SockType::SeqPacket)) {
        std::process::exit(crate::greeter::run(|_, _| Ok(()), crate::greeter::greet_client));
    }
}

/// The setup of such a process, or of another one of this test.
fn greeter_setup(program: &Path, test: &str, pace: Pace) -> GreeterSetup {
    let command = Command {
        program: program.to_owned(),
        arguments: ["--exact", test, "--nocapture"].map(OsString::from).to_vec(),
        ignores_sigterm: true,
        privileges: Privileges::default(),
        variables: Vec::new(),
    };
    let confinement = GreeterConfinement { landlock: false, seccomp: false, own_user: false };
    GreeterSetup { with: StartWith { command, confinement }, is_required: true, pace }
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log(line: &LogLine) {
    eprintln!("{}", line.words());
    lock(&LOG).push(line.words());
}

/// Waits until a line of the daemons' log satisfies `wanted`.
fn logged(wanted: impl Fn(&str) -> bool) -> bool {
    soon(|| lock(&LOG).iter().any(|l| wanted(l)))
}

/// Waits for a condition that is met at once on an idle machine. The limit is generous, because the machine may be
/// busy.
fn soon(met: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(120);
    while Instant::now() < until {
        if met() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    met()
}

/// Starts a daemon whose workers are processes of this test.
fn start_daemon(options: &ServeOptions, gpus: Vec<u32>, sockets: Sockets) -> Result<Daemon, ServeError> {
    let greeter = greeter_setup(&options.worker_exe, "daemon::tests::greeter_process", Pace::USUAL);
    start_greeted(options, gpus, sockets, Some(greeter))
}

/// The same with another process that greets, or without one.
fn start_greeted(
    options: &ServeOptions,
    gpus: Vec<u32>,
    sockets: Sockets,
    greeter: Option<GreeterSetup>,
) -> Result<Daemon, ServeError> {
    let arguments = ["--exact", "daemon::tests::worker_process", "--nocapture"].map(OsString::from).to_vec();
    let command = Command {
        program: options.worker_exe.clone(),
        arguments,
        ignores_sigterm: options.drain.is_some(),
        privileges: Privileges::default(),
        variables: Vec::new(),
    };
    let named = match &options.worker_user {
        Some(WorkerUserSpec::Named(name) | WorkerUserSpec::Client(Some(name))) => Some(WorkerUser::find(name)?),
        Some(WorkerUserSpec::Client(None)) | None => None,
    };
    let command = named.as_ref().map_or_else(|| command.clone(), |user| command.as_user(user));
    let separates = matches!(options.worker_user, Some(WorkerUserSpec::Client(_)));
    let client_users = separates.then(|| ClientUsers::new(named, None)).transpose()?;
    let setup = Setup { command, greeter, confinement: None, cgroups: None, client_users };
    Daemon::start(options, gpus, setup, sockets, log)
}

/// Options of a daemon with this directory.
fn options_in(directory: &Path) -> ServeOptions {
    ServeOptions {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        unix: Some(directory.join("socket")),
        unix_users: Vec::new(),
        driver: "driver".into(),
        gpus: SharedGpus::All,
        token: directory.join("token"),
        tokens: None,
        munge: None,
        certificate: None,
        client_ca: None,
        allow_plain: false,
        gpudirect: false,
        worker_exe: std::env::current_exe().unwrap(),
        max_workers: None,
        max_client_workers: None,
        clients: ClientLimits::default(),
        warm: 1,
        of_worker: WorkerLimits::of_machine(),
        host_memory: None,
        evict_stopped: None,
        targets: Vec::new(),
        // Not the program that confines itself.
        sandbox: SandboxMode::Off,
        worker_user: None,
        jit_cache: None,
        drain: None,
        accounting: None,
        metrics: None,
        take_over: false,
        log_format: Format::Text,
        announce: |_| {},
    }
}

/// A daemon with its own directory.
struct Scene {
    daemon: Daemon,
    directory: PathBuf,
    credentials: Credentials,
}

impl Scene {
    fn new() -> Scene {
        Scene::lending(vec![0, 1, 2])
    }

    fn lending(gpus: Vec<u32>) -> Scene {
        Scene::with(gpus, |_| {})
    }

    fn with(gpus: Vec<u32>, change: impl FnOnce(&mut ServeOptions)) -> Scene {
        Scene::greeted_by("daemon::tests::greeter_process", Pace::USUAL, gpus, change)
    }

    /// Its clients are greeted by a process with this test alone.
    fn greeted_by(test: &str, pace: Pace, gpus: Vec<u32>, change: impl FnOnce(&mut ServeOptions)) -> Scene {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("mrcuda-daemon-{}-{n}", std::process::id()));
        let mut options = options_in(&directory);
        change(&mut options);
        let token = Token::load_or_create(&options.token).unwrap();
        let greeter = greeter_setup(&options.worker_exe, test, pace);
        let daemon = start_greeted(&options, gpus, Sockets::default(), Some(greeter)).unwrap();
        let trust = Trust { authorities: None, known_servers: directory.join("known_servers"), certificate: None };
        Scene { daemon, directory, credentials: Credentials { token: Some(token), munge: None, trust } }
    }

    fn at(&self, gpu: u32) -> Endpoint {
        format!("tls://{}/{gpu}", self.daemon.address.unwrap()).parse().unwrap()
    }

    fn unix(&self, gpu: u32) -> Endpoint {
        format!("unix:{}/{gpu}", self.directory.join("socket").display()).parse().unwrap()
    }

    /// The server's own token.
    fn key(&self) -> [u8; 32] {
        self.credentials.token.as_ref().unwrap().0
    }

    fn link(&self, gpu: u32) -> Arc<Link> {
        Link::connect(&self.at(gpu), Some(&self.credentials), &hello(), None).unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.daemon.stop();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Has a thread act as another user, as far as the kernel tells others. `None`, and a line on stderr, if this process is not root's.
fn act_as<T: Send>(uid: u32, what: &str, body: impl FnOnce() -> T + Send) -> Option<T> {
    if !geteuid().is_root() {
        eprintln!("only root can act as other users: not tested: {what}");
        return None;
    }
    thread::scope(|scope| {
        let acting = scope.spawn(|| {
            // SAFETY: the system call, unlike libc's function, concerns this thread alone, which ends with it.
            let set = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
            assert_eq!(set, 0, "root may");
            body()
        });
        Some(acting.join().unwrap())
    })
}

fn hello() -> JobHello {
    JobHello { virtual_device: 0, pid: std::process::id(), env: Vec::new(), name: String::new() }
}

/// A word of the fake GPU's name.
fn about(link: &Link, key: &str) -> String {
    let name = link.device().name.clone();
    name.split(' ').find_map(|w| w.strip_prefix(key)?.strip_prefix('=')).unwrap().to_owned()
}

fn pid(link: &Link) -> i32 {
    about(link, "pid").parse().unwrap()
}

fn runs(pid: i32) -> bool {
    // A zombie counts as dead: its parent has not reaped it yet.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

fn bytes(v: &impl Wire) -> Vec<u8> {
    let mut out = Vec::new();
    v.put(&mut out);
    out
}

fn put(link: &Link, dst: u64, data: &[u8]) {
    let op = CopyIn { dst, pitch: 0, width: data.len() as u64, rows: 1, stream: 1 };
    link.send(id::COPY_IN, &[&bytes(&op), data]).unwrap();
}

fn get(link: &Link, src: u64, width: usize) -> Vec<u8> {
    let op = CopyOut { src, pitch: 0, width: width as u64, rows: 1, stream: 1 };
    let (rc, data) = link.request(id::COPY_OUT, &[&bytes(&op)]).unwrap().wait().unwrap();
    assert_eq!(rc, code::SUCCESS);
    data
}

fn kernel(link: &Link, stream: u64, us: u64) {
    link.send(fake::KERNEL, &[&bytes(&(stream, us))]).unwrap();
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn calls_are_carried_out_over_tcp_and_unix() {
    let s = Scene::new();
    for endpoint in [s.at(1), s.unix(1)] {
        let token = endpoint.unix_path().is_none().then_some(&s.credentials);
        let link = Link::connect(&endpoint, token, &hello(), None).unwrap();
        assert_eq!(about(&link, "gpu"), "1");
        let data = pattern(20 << 20);
        put(&link, 100, &data);
        put(&link, 3, b"abc");
        assert!(get(&link, 100, data.len()) == data);
        assert_eq!(get(&link, 3, 3), b"abc");
        assert_eq!(link.outstanding(), 0);
        let Ok(ControlReply::FreeBytes(free)) = link.control(&Control::FreeBytes { beside: 0 }) else { panic!() };
        assert_eq!(free, fake::MEMORY as u64 - 4);
        let Ok(ControlReply::Regions { globals, chunks, .. }) = link.control(&Control::Regions) else { panic!() };
        assert_eq!((globals[0].name.as_str(), chunks.len()), ("counter", 1));
        link.close();
        assert!(soon(|| link.send(fake::ECHO, &[]).is_err()), "a closed link takes no more calls");
        assert!(soon(|| !runs(pid(&link))), "the worker ends with its client");
    }
}

#[test]
fn answers_land_in_rows_and_before_what_waits_for_them() {
    let s = Scene::new();
    let link = s.link(0);
    let data = pattern(1 << 20);
    put(&link, 0, &data);
    for round in 0..200u64 {
        // The copy is the slow one: its stream is busy, then a synchronisation follows on the same stream.
        kernel(&link, 1, round % 40);
        let mut host = vec![0u8; 300 * 40];
        let landing = Landing { ptr: host.as_mut_ptr(), pitch: 300, width: 100, rows: 40, is_registered: false };
        let op = CopyOut { src: round, pitch: 100, width: 100, rows: 40, stream: 1 };
        // SAFETY: `host` is kept until the stream is waited for, whose answer comes later.
        drop(unsafe { link.request_into(id::COPY_OUT, &[&bytes(&op)], landing) }.unwrap());
        let (what, want) =
            if round % 2 == 0 { (id::STREAM_SYNC, code::SUCCESS) } else { (id::EVENT_QUERY, code::ERROR_NOT_READY) };
        let mut rc = want;
        while rc == want {
            rc = link.request(what, &[&1u64.to_le_bytes()]).unwrap().wait().unwrap().0;
            if rc == code::SUCCESS {
                break;
            }
        }
        for row in 0..40 {
            assert!(host[row * 300..row * 300 + 100] == data[round as usize + row * 100..][..100], "row {row} has landed");
            assert!(row == 39 || host[row * 300 + 100..row * 300 + 300].iter().all(|b| *b == 0), "between the rows nothing");
        }
    }
}

#[test]
fn the_end_of_a_host_call_is_read_while_a_call_waits_for_it() {
    let s = Scene::new();
    let link = s.link(0);
    for token in 0..20u64 {
        let (reached, there) = std::sync::mpsc::channel();
        link.request_then(id::HOST_CALL, &[&token.to_le_bytes()], move |answer| reached.send(answer).unwrap()).unwrap();
        assert_eq!(there.recv_timeout(Duration::from_secs(20)).unwrap().unwrap(), (code::SUCCESS, vec![]));
        link.send(fake::WAIT_FOR_HOST, &[]).unwrap();
        let after: Vec<_> = (0..50u64).map(|n| link.request(fake::ECHO, &[&n.to_le_bytes()]).unwrap()).collect();
        let ControlReply::Drained { idle: false, waits_for, .. } = link.control(&Control::Drain { limit_ms: 5 }).unwrap() else {
            panic!("calls are left")
        };
        assert_eq!(waits_for, "a stream is busy");
        link.send(id::HOST_DONE, &[&token.to_le_bytes()]).unwrap();
        let numbers: Vec<u64> = after
            .into_iter()
            .enumerate()
            .map(|(n, r)| {
                let (rc, echo) = r.wait_for(Duration::from_secs(20)).expect("the call waits for ever").unwrap();
                assert_eq!((rc, &echo[8..]), (code::SUCCESS, &(n as u64).to_le_bytes()[..]));
                u64::from_le_bytes(*echo.first_chunk().unwrap())
            })
            .collect();
        assert!(numbers.is_sorted(), "in the order of the calls: {numbers:?}");
    }
}

#[test]
fn who_is_to_be_called_hears_of_a_lost_worker() {
    let s = Scene::new();
    let link = s.link(0);
    kernel(&link, 3, 60_000_000);
    let (sender, receiver) = std::sync::mpsc::channel();
    link.request_then(id::STREAM_SYNC, &[&3u64.to_le_bytes()], move |answer| sender.send(answer).unwrap()).unwrap();
    link.send(fake::PANIC, &[]).unwrap();
    assert!(receiver.recv_timeout(Duration::from_secs(20)).unwrap().is_err());
    assert!(link.request_then(id::STREAM_SYNC, &[&3u64.to_le_bytes()], |_| panic!("not called")).is_err());
}

#[test]
fn a_failed_send_is_told_at_once() {
    let s = Scene::new();
    let link = s.link(0);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ours = heard.clone();
    link.send(fake::FAIL, &[&700i32.to_le_bytes()]).unwrap();
    assert!(soon(|| !link.is_lost() && link.take_fault().is_some_and(|f| f.code == 700 && f.id == fake::FAIL)));
    link.set_fault_hook(move |f| lock(&ours).push(f.code));
    // A sticky error is reported once; others each time.
    for rc in [700, 700, 1, 1, 719] {
        link.send(fake::FAIL, &[&i32::to_le_bytes(rc)]).unwrap();
    }
    let (rc, _) = link.request(fake::FAIL, &[&2i32.to_le_bytes()]).unwrap().wait().unwrap();
    assert_eq!(rc, 2);
    assert_eq!(*lock(&heard), [1, 1, 719], "told before the answer of a later call");
    assert_eq!(link.take_fault().map(|f| f.code), Some(1));
}

#[test]
fn waiting_for_the_gpu_ends_in_time() {
    let s = Scene::new();
    let link = s.link(0);
    let drain = |limit_ms| match link.control(&Control::Drain { limit_ms }).unwrap() {
        ControlReply::Drained { idle, was_busy, waits_for, .. } => (idle, was_busy, waits_for.is_empty()),
        other => panic!("{other:?}"),
    };
    assert_eq!(drain(1000), (true, false, true));
    kernel(&link, 5, 3_000_000);
    assert_eq!(drain(20), (false, true, false));
    assert_eq!(drain(60_000), (true, true, true));
}

#[test]
fn control_answers_while_calls_are_stuck() {
    let s = Scene::new();
    let link = s.link(0);
    let before = Instant::now();
    let busy = link.request(fake::STUCK, &[&2000u64.to_le_bytes()]).unwrap();
    // It is behind the blocked call, so its answer is late; but the connection stays alive.
    assert!(busy.wait_for(Duration::from_millis(50)).is_none());
    link.control(&Control::FreeBytes { beside: 0 }).unwrap();
    assert!(before.elapsed() >= Duration::from_millis(1900) && busy.is_here() && !link.is_lost());
}

#[test]
fn a_killed_worker_is_lost_and_others_are_not() {
    let s = Scene::new();
    let (dying, other) = (s.link(0), s.link(0));
    assert_ne!(pid(&dying), pid(&other));
    kernel(&dying, 1, 60_000_000);
    let waiting = dying.request(id::STREAM_SYNC, &[&1u64.to_le_bytes()]).unwrap();
    thread::sleep(Duration::from_millis(50));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid(&dying)), Signal::SIGKILL).unwrap();
    let lost = waiting.wait().unwrap_err();
    assert!(!lost.why.contains("no sign of life"), "it was noticed late: {lost}");
    assert!(dying.is_lost() && dying.request(fake::ECHO, &[]).is_err(), "{lost}");
    assert!(soon(|| dying.send(fake::ECHO, &[]).is_err()));
    assert!(dying.control(&Control::FreeBytes { beside: 0 }).is_err());
    let killed = format!("worker {} on GPU 0 ended: signal: 9", pid(&dying));
    assert!(logged(|l| l.starts_with(&killed)));
    put(&other, 0, b"fine");
    assert_eq!(get(&other, 0, 4), b"fine");
    assert_eq!(about(&s.link(0), "gpu"), "0", "the daemon goes on");
}

#[test]
fn what_is_printed_arrives_before_the_answer() {
    let s = Scene::new();
    let link = s.link(0);
    let heard = Arc::new(Mutex::new([Vec::new(), Vec::new()]));
    // More than a pipe holds, and less than C's stream flushes by itself.
    let texts = ["early".to_owned(), "long ".repeat(100_000), "short\n".to_owned()];
    assert_eq!(link.request(fake::PRINT, &[texts[0].as_bytes()]).unwrap().wait().unwrap().0, code::SUCCESS);
    let to = heard.clone();
    link.set_text_hook(move |stream, text| lock(&to)[stream as usize - 1].extend_from_slice(text));
    assert_eq!(*lock(&heard), ["early", "early"].map(|t| t.as_bytes().to_vec()), "kept until it is wanted");
    for n in 1..texts.len() {
        assert_eq!(link.request(fake::PRINT, &[texts[n].as_bytes()]).unwrap().wait().unwrap().0, code::SUCCESS);
        let all = texts[..=n].concat();
        assert!(*lock(&heard) == [&all, &all].map(|t| t.as_bytes().to_vec()), "text {n}");
    }
    link.send(fake::PRINT, &[b"the end"]).unwrap();
    link.close();
    assert!(lock(&heard).iter().all(|t| t.ends_with(b"the end")), "also before the worker ends");
    assert!(!lock(&LOG).iter().any(|l| l.contains("the end")), "it is the job's, not the daemon's");
}

#[test]
fn a_panic_in_a_call_ends_the_worker() {
    let s = Scene::new();
    let link = s.link(0);
    assert!(link.request(fake::PANIC, &[]).unwrap().wait().is_err());
    assert!(logged(|l| l.contains(&format!("worker {}", pid(&link))) && l.contains("as asked")));
}

#[test]
fn a_lost_client_frees_the_worker_whatever_it_does() {
    let s = Scene::new();
    let (idle, running, stuck) = (s.link(0), s.link(1), s.link(2));
    kernel(&running, 1, 60_000_000);
    drop(running.request(id::STREAM_SYNC, &[&1u64.to_le_bytes()]).unwrap());
    stuck.send(fake::STUCK, &[&60_000u64.to_le_bytes()]).unwrap();
    thread::sleep(Duration::from_millis(100));
    let pids = [pid(&idle), pid(&running), pid(&stuck)];
    assert!(pids.iter().all(|p| runs(*p)));
    drop((idle, running, stuck));
    assert!(soon(|| !pids.iter().any(|p| runs(*p))));
}

#[test]
fn a_silent_worker_is_lost() {
    let s = Scene::new();
    let limits = TimeLimits { silence: Duration::from_millis(2500), ..TimeLimits::default() };
    let link = Link::connect_with(&s.at(0), Some(&s.credentials), &hello(), None, limits).unwrap();
    let waiting = link.request(fake::STUCK, &[&3500u64.to_le_bytes()]).unwrap();
    assert_eq!(waiting.wait().unwrap().0, code::SUCCESS, "a busy worker is not silent");
    let worker = nix::unistd::Pid::from_raw(pid(&link));
    let began = Instant::now();
    nix::sys::signal::kill(worker, Signal::SIGSTOP).unwrap();
    // A running thread changes state a little later.
    let stat = format!("/proc/{worker}/stat");
    assert!(soon(|| std::fs::read_to_string(&stat).unwrap().contains(") T ")));
    let lost = link.request(fake::ECHO, &[]).unwrap().wait().unwrap_err();
    let took = began.elapsed();
    assert!(lost.why.contains("no sign of life"), "{lost}");
    assert!(took > Duration::from_millis(1400), "{took:?}");
    nix::sys::signal::kill(worker, Signal::SIGCONT).unwrap();
    assert!(soon(|| !runs(worker.as_raw())), "it never comes back");
}

#[test]
fn strangers_are_turned_away_in_words_and_the_daemon_goes_on() {
    let s = Scene::new();
    let wrong = Credentials { token: Some(Token([0x5a; 32])), ..s.credentials.clone() };
    let said = Link::connect(&s.at(0), Some(&wrong), &hello(), None).unwrap_err().to_string();
    assert!(said.contains("cannot be used: wrong token: copy"), "{said}");
    assert!(matches!(Link::connect(&s.at(0), None, &hello(), None), Err(LinkError::NoToken { .. })));
    let mut web = TcpStream::connect(s.daemon.address.unwrap()).unwrap();
    let from = web.local_addr().unwrap().to_string();
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    web.read_to_end(&mut answer).unwrap();
    let why = format!("a client at {from} was refused: the peer does not speak the mrcuda protocol");
    assert!(logged(|l| l == why));
    assert!(logged(|l| l.ends_with("was refused: wrong token")));
    let nobody = TcpStream::connect(s.daemon.address.unwrap()).unwrap();
    assert_eq!(about(&s.link(0), "gpu"), "0", "a stranger that says nothing holds nobody up");
    let slow = format!("a client at {} was refused: too slow", nobody.local_addr().unwrap());
    assert!(logged(|l| l == slow));
}

#[test]
fn another_user_is_refused_in_words() {
    // Only root can become another user.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let s = Scene::new();
    for (path, mode) in [(s.directory.clone(), 0o711), (s.directory.join("socket"), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let at = s.unix(0);
    let other = move || {
        // SAFETY: the system call itself changes the calling thread only, which ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        Link::connect(&at, None, &hello(), None).unwrap_err().to_string()
    };
    let said = thread::spawn(other).join().unwrap();
    assert!(said.contains("this socket serves uid 0 only; you are uid 65534"), "{said}");
}

#[test]
fn what_cannot_be_had_is_refused_in_words() {
    let s = Scene::lending(vec![0, 7]);
    let refused = |gpu, hello: &JobHello| Link::connect(&s.at(gpu), Some(&s.credentials), hello, None).unwrap_err().to_string();
    assert!(refused(2, &hello()).contains("lends 2 GPUs"));
    assert!(refused(1, &hello()).contains("fallen off the bus"));
    let bad = JobHello { env: vec![("LD_PRELOAD".into(), "x".into())], ..hello() };
    assert!(refused(0, &bad).contains("environment"));
    let gone: Endpoint = "127.0.0.1:1".parse().unwrap();
    assert!(matches!(Link::connect(&gone, Some(&s.credentials), &hello(), None), Err(LinkError::Connect { .. })));
}

#[test]
fn a_worker_waits_ready_and_has_the_jobs_environment() {
    let s = Scene::new();
    let named = JobHello {
        virtual_device: 3,
        env: vec![("CUDA_MODULE_LOADING".into(), "EAGER".into()), ("CUDA_VISIBLE_DEVICES".into(), "9".into())],
        ..hello()
    };
    let connect = || Link::connect(&s.at(0), Some(&s.credentials), &named, None).unwrap();
    let began = Instant::now();
    let first = connect();
    assert_eq!((about(&first, "device"), about(&first, "env")), ("3".into(), "CUDA_MODULE_LOADING=EAGER".into()));
    // The next worker with this profile is started some time after this one: it is older than the next connection.
    let ready = || {
        let profile =
            Profile { gpu: 0, virtual_device: 3, env: vec![("CUDA_MODULE_LOADING".into(), "EAGER".into())], user: None };
        s.daemon.state.pool.warm(&profile).first().map(|w| w.pid() as i32)
    };
    assert!(ready().is_none() || began.elapsed() >= Duration::from_millis(500), "it is made at once");
    assert!(soon(|| ready().is_some()));
    let warm = ready().unwrap();
    let second = connect();
    assert_eq!(pid(&second), warm);
    assert_eq!(about(&s.link(0), "env"), "", "and another kind gets a worker of its own");
}

#[test]
fn many_clients_at_once() {
    let s = Scene::new();
    thread::scope(|scope| {
        for client in 0..8u32 {
            let s = &s;
            scope.spawn(move || {
                let link = s.link(client % 3);
                thread::scope(|threads| {
                    for t in 0..3u64 {
                        let link = &link;
                        threads.spawn(move || {
                            for n in 0..500u64 {
                                let at = 1000 * (t + 1) + (n % 100) * 8;
                                put(link, at, &(n * 31 + t + u64::from(client)).to_le_bytes());
                                if n % 50 == 49 {
                                    assert_eq!(get(link, at, 8), (n * 31 + t + u64::from(client)).to_le_bytes());
                                }
                            }
                        });
                    }
                });
                let (_, reply) = link.request(fake::ECHO, &[]).unwrap().wait().unwrap();
                assert_eq!(reply, (3 * 510u64 + 1).to_le_bytes(), "every call has arrived, once");
                link.close();
            });
        }
    });
}

#[test]
fn memory_goes_from_worker_to_worker() {
    let (s, t) = (Scene::new(), Scene::new());
    let (source, target) = (s.link(0), t.link(1));
    let data = pattern(fake::MEMORY);
    for (i, piece) in data.chunks(1 << 20).enumerate() {
        put(&source, (i << 20) as u64, piece);
    }
    let ticket = [0xa5; 32];
    let to = t.at(1).to_string();
    let reason = |r: Result<ControlReply, LinkError>| r.unwrap_err().to_string();
    let connect = Control::Connect { to, ticket, stripes: 4 };
    assert!(reason(source.control(&connect)).contains("cannot be reached from this server"), "nobody expects it yet");
    assert!(logged(|l| l.contains(&format!("worker {}: cannot connect to", pid(&source))) && l.ends_with("unknown ticket")));
    assert!(matches!(target.control(&Control::Expect { ticket, stripes: 4 }), Ok(ControlReply::Ok)));
    assert!(bulk_connect(&t.at(1), &[0xa6; 32], 1).is_err(), "another ticket");
    assert!(matches!(source.control(&connect), Ok(ControlReply::Ok)));
    assert!(matches!(target.control(&Control::Accept { ticket }), Ok(ControlReply::Connected(_))));
    assert!(bulk_connect(&t.at(1), &ticket, 1).is_err(), "a ticket is good once");
    for _ in 0..2 {
        let (a, b) = thread::scope(|scope| {
            let a = scope.spawn(|| source.control(&Control::RoundSource { ticket, send_regions: false }));
            let b = target.control(&Control::RoundTarget { ticket, verify: memsync::Verify::Auto, by_descriptor: true });
            (a.join().unwrap().unwrap(), b.unwrap())
        });
        let (ControlReply::Round(a), ControlReply::Round(b)) = (a, b) else { panic!() };
        assert_eq!((a.digest, b.digest), (*blake3::hash(&data).as_bytes(), *blake3::hash(&data).as_bytes()));
    }
    assert!(get(&target, 0, fake::MEMORY / 2) == data[..fake::MEMORY / 2]);
    source.control(&Control::HangUp { ticket }).unwrap();
    assert!(reason(source.control(&Control::RoundSource { ticket, send_regions: false })).contains("not known"));
    assert!(
        target.control(&Control::RoundTarget { ticket, verify: memsync::Verify::Auto, by_descriptor: true }).is_err(),
        "the other end has hung up"
    );
    // A job's own process can be an end, too.
    target.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
    let mut streams = bulk_connect(&t.unix(1), &ticket, 2).unwrap();
    target.control(&Control::Accept { ticket }).unwrap();
    thread::scope(|scope| {
        let done =
            scope.spawn(|| target.control(&Control::RoundTarget { ticket, verify: memsync::Verify::Auto, by_descriptor: true }));
        for stream in &mut streams {
            stream.write_all(&vec![9; fake::MEMORY / 2]).unwrap();
        }
        done.join().unwrap().unwrap();
    });
    assert_eq!(get(&target, 5, 2), [9, 9]);
    target.control(&Control::HangUp { ticket }).unwrap();
    // Both ends number the connections equally, however busy the machine is.
    for _ in 0..20 {
        target.control(&Control::Expect { ticket, stripes: 4 }).unwrap();
        let mut streams = bulk_connect(&t.at(1), &ticket, 4).unwrap();
        target.control(&Control::Accept { ticket }).unwrap();
        thread::scope(|scope| {
            let done = scope
                .spawn(|| target.control(&Control::RoundTarget { ticket, verify: memsync::Verify::Auto, by_descriptor: true }));
            for (number, stream) in (0..).zip(&mut streams) {
                scope.spawn(move || stream.write_all(&vec![number; fake::MEMORY / 4]));
            }
            done.join().unwrap().unwrap();
        });
        let first = |part: usize| get(&target, (part * fake::MEMORY / 4) as u64, 1)[0];
        assert_eq!([first(0), first(1), first(2), first(3)], [0, 1, 2, 3]);
        target.control(&Control::HangUp { ticket }).unwrap();
    }
    // The daemon has forgotten a ticket whose connections were closed.
    target.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
    target.control(&Control::HangUp { ticket }).unwrap();
    assert!(soon(|| t.daemon.state.tickets.left().is_empty()));
    assert!(bulk_connect(&t.at(1), &ticket, 1).is_err());
}

/// A client that has greeted like any other, and the worker's pid.
fn raw(s: &Scene) -> (Conn, i32) {
    let conn = Conn::open(&s.at(0), Instant::now() + Duration::from_secs(5)).unwrap();
    let opening = Opening::Job { gpu: 0, rdma: false, waits: false, locality: greet::Locality::None, hello: hello() };
    let limits = greet::Limits { silence: Duration::from_secs(5), end: Instant::now() + Duration::from_secs(5) };
    let protection = greet::Protection::Server(&s.at(0), &s.credentials.trust);
    greet::greet(&conn, &opening, &s.key(), protection, limits).unwrap();
    let about = greet::read_answer(&conn, Instant::now() + Duration::from_secs(30)).unwrap();
    let device = executor::DeviceInfo::get(&mut &about[..]).unwrap();
    let pid = device.name.split(' ').next().unwrap()[4..].parse().unwrap();
    (conn, pid)
}

#[test]
fn frames_that_make_no_sense_end_their_worker_only() {
    let s = Scene::new();
    let head = Head { len: 24, id: fake::ECHO, flags: 0, seq: 0, ticket: 1 };
    let control = Head { len: 32, id: crate::frame::CONTROL, ..head };
    for bad in [
        Head { len: 23, ..head }.bytes().to_vec(),
        Head { len: u32::MAX, ..head }.bytes().to_vec(),
        Head { seq: 1, ..head }.bytes().to_vec(),
        Head { flags: 0x8000, ..head }.bytes().to_vec(),
        [&control.bytes()[..], &[0xff; 8]].concat(),
    ] {
        let (mut conn, worker) = raw(&s);
        conn.write_all(&bad).unwrap();
        assert!(soon(|| !runs(worker)));
        assert!(logged(|l| l.starts_with(&format!("worker {worker}: the job sent a malformed frame"))));
    }
    // A frame that never ends: the worker waits, with little memory, until the client disconnects.
    let (mut conn, worker) = raw(&s);
    conn.write_all(&Head { len: 24 + crate::frame::MAX_BODY as u32, ..head }.bytes()).unwrap();
    conn.write_all(&[0; 1000]).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(runs(worker));
    drop(conn);
    assert!(soon(|| !runs(worker)));
    assert_eq!(about(&s.link(0), "gpu"), "0");
}

#[test]
fn workers_end_with_their_daemon() {
    let s = Scene::new();
    let link = s.link(0);
    let worker = pid(&link);
    s.daemon.stop();
    assert!(soon(|| !runs(worker) && link.is_lost()));
    assert!(matches!(
        Link::connect(&s.at(0), Some(&s.credentials), &hello(), None),
        Err(LinkError::Connect { .. } | LinkError::Greeting { .. })
    ));
    assert!(!s.directory.join("socket").exists());
}

#[test]
fn a_socket_in_use_is_not_taken_and_a_dead_one_is_replaced() {
    let s = Scene::new();
    let path = s.directory.join("socket");
    assert!(bind(&path, false).unwrap_err().to_string().contains("another process listens"));
    let dead = s.directory.join("dead");
    drop(UnixListener::bind(&dead).unwrap());
    assert!(dead.exists());
    bind(&dead, false).unwrap();
}

#[test]
fn a_file_that_is_no_socket_of_ours_stays() {
    let s = Scene::new();
    let file = s.directory.join("file");
    std::fs::write(&file, "somebody's").unwrap();
    let link = s.directory.join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link, &s.directory] {
        assert!(bind(path, false).unwrap_err().to_string().contains("no socket"), "{}", path.display());
    }
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "somebody's");
    // Another daemon has replaced the socket since: ours must not remove it.
    let path = s.directory.join("socket");
    std::fs::remove_file(&path).unwrap();
    let (_theirs, _) = bind(&path, false).unwrap();
    s.daemon.stop();
    assert!(path.exists());
}
