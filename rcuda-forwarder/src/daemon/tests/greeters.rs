//! Tests of a daemon whose process that greets clients ends, hangs, or was taken over.

use super::*;
use crate::greet::{Limits, Protection, greet};
use crate::greeter::message::{FromGreeter, Terms};
use crate::greeter::{Greet, greet_client, run};
use crate::packet;
use crate::records::{Session, Traffic};
use nix::unistd::{Pid, getppid};
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};

/// A file by which the process that greets for a daemon, the parent, knows that it is to play its part with the next client.
fn cue(part: &str, parent: Pid) -> PathBuf {
    std::env::temp_dir().join(format!("mrcuda-greeter-{part}-{parent}"))
}

/// Whether it is to be played now. Only once.
fn is_cued(part: &str) -> bool {
    fs::remove_file(cue(part, getppid())).is_ok()
}

/// Not a test: what the daemons of the tests below start.
fn process(greet: Greet) {
    let stdin = io::stdin();
    if matches!(getsockopt(&stdin.as_fd(), sockopt::SockType), Ok(SockType::SeqPacket)) {
        std::process::exit(run(|_, _| Ok(()), greet));
    }
}

/// Not a test: a process that greets, but for one client, when its part is cued. Then it acts on that one's connection and on the socket for what it
/// says of it.
macro_rules! part {
    ($process:ident, $part:literal, $act:expr) => {
        #[test]
        fn $process() {
            process(|tls, terms, client, answers| {
                if !is_cued($part) {
                    return greet_client(tls, terms, client, answers);
                }
                let act: fn(OwnedFd, OwnedFd) = $act;
                act(client, answers);
            });
        }
    };
}

/// A test with a daemon whose process plays a part.
struct Play {
    scene: Scene,
    part: &'static str,
    /// A job from before.
    link: Arc<Link>,
}

impl Play {
    fn new(part: &'static str, pace: Pace) -> Play {
        Play::with(&format!("daemon::tests::greeters::{part}_process"), part, pace)
    }

    /// One whose process does nothing unusual.
    fn usual(pace: Pace) -> Play {
        Play::with("daemon::tests::greeter_process", "none", pace)
    }

    fn with(test: &str, part: &'static str, pace: Pace) -> Play {
        let scene = Scene::greeted_by(test, pace, vec![0], |options| options.allow_plain = true);
        let link = scene.link(0);
        put(&link, 0, b"before");
        Play { scene, part, link }
    }

    fn cue(&self) {
        fs::write(cue(self.part, Pid::this()), "").unwrap();
    }

    fn greeters(&self) -> &Greeters {
        self.scene.daemon.state.greeters.as_ref().unwrap()
    }

    /// What becomes of a client with the token.
    fn client(&self, at: &Endpoint) -> Result<(), GreetError> {
        let conn = Conn::open(at, Instant::now() + Duration::from_secs(60)).unwrap();
        let limits = Limits { silence: Duration::from_secs(60), end: Instant::now() + Duration::from_secs(60) };
        let (key, protection) = match at.unix_path() {
            Some(_) => ([0; 32], Protection::Plain),
            None => (self.scene.key(), Protection::AnyServer),
        };
        greet(&conn, &Opening::Inspect, &key, protection, limits).map(drop)
    }

    /// That of the next one, for which the process plays its part; then another process greets, and the job of before has gone on.
    fn ends_it(&self, why: &str) {
        let before = self.greeters().pid().unwrap();
        self.cue();
        let said = self.client(&self.scene.at(0)).unwrap_err();
        assert!(matches!(said, GreetError::HungUp(_)), "it is to try again: {said}");
        let line = format!("process {before}, which greets clients over TCP, {why}");
        assert!(logged(|l| l.contains(&line) && l.ends_with("; another one is started")), "{line}: {:?}", lock(&LOG));
        assert!(soon(|| !runs(before as i32) && self.greeters().pid().is_some_and(|now| now != before)));
        self.goes_on();
    }

    fn goes_on(&self) {
        for at in [self.scene.at(0), self.scene.unix(0)] {
            self.client(&at).unwrap();
        }
        assert_eq!(get(&self.link, 0, 6), b"before");
        put(&self.link, 0, b"before");
    }
}

part!(signs_twice_process, "signs_twice", |_client, answers| {
    // The answers are not read.
    for n in 0..100_000u32 {
        let asked = FromGreeter::Sign(0x0403, std::array::from_fn(|i| (n >> i.min(24)) as u8)).send(&answers);
        if asked.is_err() {
            break;
        }
    }
});

#[test]
fn one_signature_is_made_for_each_client() {
    Play::new("signs_twice", Pace::CONSTANT).ends_it("has asked for a signature too many and was ended");
}

/// Says what has no meaning.
fn babble(answers: &OwnedFd) {
    let _ = packet::send(answers, &[99, 0, 0], &[], nix::sys::socket::MsgFlags::empty());
    std::thread::sleep(Duration::from_secs(60));
}

part!(babbles_process, "babbles", |_client, answers| babble(&answers));

#[test]
fn a_process_that_says_what_has_no_meaning_is_ended() {
    Play::new("babbles", Pace::CONSTANT).ends_it("has said something unexpected and was ended");
}

part!(passes_process, "passes", |client, answers| {
    let not_heard = FromGreeter::NotHeard(crate::greeter::message::NotHeard::of(&GreetError::Garbage), None);
    let _ = packet::send(&answers, &not_heard.bytes(), &[client.as_fd()], nix::sys::socket::MsgFlags::empty());
    std::thread::sleep(Duration::from_secs(60));
});

#[test]
fn the_daemon_takes_no_descriptor_of_it() {
    Play::new("passes", Pace::CONSTANT).ends_it("has said something unexpected and was ended");
}

part!(calls_out_process, "calls_out", |_client, answers| {
    // The channel to the daemon is the first socket of this kind.
    let is_channel = |fd: &i32| {
        // SAFETY: only asks the kernel about a number.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        fd.as_raw_fd() != answers.as_raw_fd() && matches!(getsockopt(&fd, sockopt::SockType), Ok(SockType::SeqPacket))
    };
    let channel = (3..1000).find(is_channel).unwrap();
    // SAFETY: open as long as this process.
    let channel = unsafe { BorrowedFd::borrow_raw(channel) }.try_clone_to_owned().unwrap();
    FromGreeter::Ready.send(&channel).unwrap();
    std::thread::sleep(Duration::from_secs(60));
});

#[test]
fn a_process_that_says_something_about_no_client_is_ended() {
    Play::new("calls_out", Pace::CONSTANT).ends_it("has said something unexpected and was ended");
}

/// What was heard of a client.
fn hear_it(tls: Option<&ServerTls>, terms: &Terms, client: OwnedFd, answers: OwnedFd) -> FromGreeter {
    // A genuine greeting, whose last message comes here instead of to the daemon.
    let (ours, theirs) = packet::pair().unwrap();
    let (tls, terms) = (tls.unwrap(), terms.clone());
    let passed_on = Arc::new(answers);
    thread::scope(|scope| {
        let answers = passed_on.clone();
        let between = scope.spawn(move || {
            loop {
                match FromGreeter::receive(&ours).unwrap().unwrap() {
                    question @ FromGreeter::Sign(..) => {
                        question.send(&answers).unwrap();
                        let (answer, _) = packet::receive(&answers, 0).unwrap().unwrap();
                        packet::send(&ours, &answer, &[], nix::sys::socket::MsgFlags::empty()).unwrap();
                    }
                    last => return last,
                }
            }
        });
        greet_client(Some(tls), &terms, client, theirs);
        between.join().unwrap()
    })
}

fn lies(tls: Option<&ServerTls>, terms: &Terms, client: OwnedFd, answers: OwnedFd) {
    let lie = ["session", "none", "number"].into_iter().find(|lie| is_cued(&format!("lies-{lie}")));
    let Some(lie) = lie.filter(|_| tls.is_some()) else { return greet_client(tls, terms, client, answers) };
    let theirs = answers.try_clone().unwrap();
    let FromGreeter::Heard(heard, Some(session)) = hear_it(tls, terms, client, theirs) else { panic!("nothing was heard") };
    let last = match lie {
        "none" => FromGreeter::Heard(heard, None),
        // The next record would have the number 0 again.
        "number" => {
            let write = Traffic { number: u64::MAX, ..session.write };
            FromGreeter::Heard(heard, Some(Session { write, ..session }))
        }
        _ => {
            let read = Traffic { number: u64::MAX, ..session.read };
            FromGreeter::NotHeard(crate::greeter::message::NotHeard::of(&GreetError::Garbage), Some(Session { read, ..session }))
        }
    };
    let _ = last.send(&answers);
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn lies_process() {
    process(lies);
}

#[test]
fn a_session_that_cannot_be_is_not_used() {
    for part in ["lies-none", "lies-number", "lies-session"] {
        let mut play = Play::new("lies", Pace::CONSTANT);
        play.part = part;
        play.ends_it("has said something impossible and was ended");
    }
}

part!(ends_process, "ends", |_, _| std::process::exit(3));

#[test]
fn another_process_is_started_for_one_that_has_ended() {
    let play = Play::new("ends", Pace::CONSTANT);
    for _ in 0..3 {
        play.ends_it("has ended (exit status: 3)");
    }
}

part!(leaves_one_process, "leaves_one", |_, _| ());

/// As after a panic of its thread, or without one.
#[test]
fn a_client_that_is_not_greeted_tries_again_at_the_same_process() {
    let play = Play::new("leaves_one", Pace::CONSTANT);
    let before = play.greeters().pid();
    play.cue();
    let said = play.client(&play.scene.at(0)).unwrap_err();
    assert!(matches!(said, GreetError::HungUp(_)), "{said}");
    play.goes_on();
    assert_eq!(play.greeters().pid(), before);
}

part!(hangs_process, "hangs", |_client, _answers| std::thread::sleep(Duration::from_secs(600)));

#[test]
fn a_process_that_does_not_answer_is_ended() {
    Play::new("hangs", Pace::IMPATIENT).ends_it("does not answer and was ended");
}

#[test]
fn a_stopped_process_is_ended_by_the_first_client_that_waits_for_it() {
    let play = Play::new("hangs", Pace::IMPATIENT);
    let before = play.greeters().pid().unwrap();
    nix::sys::signal::kill(Pid::from_raw(before as i32), Signal::SIGSTOP).unwrap();
    let said = play.client(&play.scene.at(0)).unwrap_err();
    assert!(matches!(said, GreetError::HungUp(_)), "{said}");
    assert!(soon(|| play.greeters().pid().is_some_and(|now| now != before)));
    play.goes_on();
}

/// Whether the daemon still has threads that greet.
fn threads_that_greet() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten();
    names.filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim_end() == "greeting")).count()
}

#[test]
fn clients_that_were_dropped_hold_no_thread_although_the_process_is_stopped() {
    // In a process of its own: the threads of other tests have the same names.
    let own = std::env::current_exe().unwrap();
    let test = "daemon::tests::greeters::dropped_clients_process";
    let output = std::process::Command::new(own).args(["--exact", test, "--nocapture"]).env("MRCUDA_TEST_DROPPED", "1").output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("all were let go"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn dropped_clients_process() {
    if std::env::var_os("MRCUDA_TEST_DROPPED").is_none() {
        return;
    }
    // It would be ended only after minutes.
    let pace = Pace { slack: Duration::from_secs(600), ..Pace::IMPATIENT };
    let play = Play::new("hangs", pace);
    let stopped = play.greeters().pid().unwrap();
    nix::sys::signal::kill(Pid::from_raw(stopped as i32), Signal::SIGSTOP).unwrap();
    let address = play.scene.daemon.address.unwrap();
    // All of one address: as many as may greet, and then each drops one.
    let clients: Vec<TcpStream> = (0..2 * AT_TCP.of_one).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(soon(|| threads_that_greet() == AT_TCP.of_one), "{}", threads_that_greet());
    drop(clients);
    println!("all were let go");
    nix::sys::signal::kill(Pid::from_raw(stopped as i32), Signal::SIGKILL).unwrap();
}

static HEARD: Mutex<Option<crate::greet::Heard>> = Mutex::new(None);

/// Keeps what a client has said, and says it again of the next one.
fn replays(tls: Option<&ServerTls>, terms: &Terms, client: OwnedFd, answers: OwnedFd) {
    if is_cued("replays-keep") {
        let last = hear_it(tls, terms, client, answers.try_clone().unwrap());
        if let FromGreeter::Heard(heard, _) = &last {
            *lock(&HEARD) = Some(heard.clone());
        }
        let _ = last.send(&answers);
    } else if is_cued("replays-say") {
        let FromGreeter::Heard(_, session) = hear_it(tls, terms, client, answers.try_clone().unwrap()) else { panic!() };
        let _ = FromGreeter::Heard(lock(&HEARD).clone().unwrap(), session).send(&answers);
    } else {
        greet_client(tls, terms, client, answers);
    }
}

#[test]
fn replays_process() {
    process(replays);
}

/// The proof of one client lets nobody else in: it covers a nonce that the daemon has drawn for that client's connection.
#[test]
fn what_one_client_has_proved_is_no_proof_of_another() {
    let mut play = Play::new("replays", Pace::CONSTANT);
    play.part = "replays-keep";
    play.cue();
    play.client(&play.scene.at(0)).unwrap();
    play.part = "replays-say";
    play.cue();
    let said = play.client(&play.scene.at(0)).unwrap_err();
    assert!(matches!(said, GreetError::TokenRefused), "{said}");
    play.goes_on();
}

#[test]
fn while_there_is_no_process_clients_are_told_that_the_server_is_busy() {
    // No other one is started for a long time.
    let pause = Duration::from_secs(600);
    let pace = Pace { patience: Duration::from_millis(100), pause: (pause, pause), ..Pace::CONSTANT };
    let play = Play::usual(pace);
    let pid = play.greeters().pid().unwrap();
    nix::sys::signal::kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    assert!(soon(|| play.greeters().pid().is_none()));
    let said = play.client(&play.scene.at(0)).unwrap_err();
    assert!(matches!(said, GreetError::Busy), "{said}");
    // Those of this machine have another one.
    play.client(&play.scene.unix(0)).unwrap();
    let local = play.scene.daemon.state.local_greeters.as_ref().unwrap();
    let of_local = local.pid().unwrap();
    assert_ne!(of_local, pid);
    nix::sys::signal::kill(Pid::from_raw(of_local as i32), Signal::SIGKILL).unwrap();
    assert!(soon(|| local.pid().is_none()));
    let said = play.client(&play.scene.unix(0)).unwrap_err();
    assert!(matches!(said, GreetError::Busy), "{said}");
    put(&play.link, 0, b"goes on");
    assert_eq!(get(&play.link, 0, 7), b"goes on");
    // The daemon ends although that pause is not over.
    drop(play);
}

#[test]
fn a_process_that_cannot_start_is_an_error_or_a_warning() {
    let directory = std::env::temp_dir().join(format!("mrcuda-no-greeter-{}", std::process::id()));
    let options = ServeOptions { listen: None, ..options_in(&directory) };
    fs::create_dir_all(&directory).unwrap();
    let with = |is_required| {
        let setup = GreeterSetup { is_required, ..greeter_setup(Path::new("/bin/true"), "none", Pace::USUAL) };
        start_greeted(&options, vec![0], Sockets::default(), Some(setup))
    };
    let why = with(true).unwrap_err().to_string();
    assert!(why.starts_with("no process can be started that greets clients (--sandbox required)"), "{why}");
    let daemon = with(false).unwrap();
    assert!(daemon.state.greeters.is_none() && daemon.state.local_greeters.is_none());
    assert!(logged(|line| line.starts_with("clients at Unix sockets are greeted by this process itself")));
    let at: Endpoint = format!("unix:{}/0", directory.join("socket").display()).parse().unwrap();
    assert!(crate::inspect::inspect(&at, None).is_ok());
    drop(daemon);
    fs::remove_dir_all(&directory).unwrap();
}

/// Places in the memory of a process where these bytes are.
fn places(pid: u32, wanted: &[u8]) -> Vec<String> {
    use std::os::unix::fs::FileExt;
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        // Page by page, each with the beginning of the next one: what was reserved and is not there cannot be read.
        for at in (from..to).step_by(4096) {
            let mut page = vec![0; 4096 + wanted.len() - 1];
            let n = memory.read_at(&mut page, at).unwrap_or(0);
            found.extend(page[..n].windows(wanted.len()).filter(|some| *some == wanted).map(|_| line.to_owned()));
        }
    }
    found
}

/// Connections that go on, with the secrets by which their bytes are encrypted.
fn encrypted(play: &Play, n: usize) -> Vec<(Conn, [[u8; 32]; 2])> {
    let connect = |_| {
        let at = play.scene.at(0);
        let conn = Conn::open(&at, Instant::now() + Duration::from_secs(60)).unwrap();
        let limits = Limits { silence: Duration::from_secs(60), end: Instant::now() + Duration::from_secs(60) };
        greet(&conn, &Opening::Inspect, &play.scene.key(), Protection::AnyServer, limits).unwrap();
        let session = conn.session_to_part().unwrap();
        let secrets = [session.read.secret, session.write.secret];
        (conn, secrets)
    };
    (0..n).map(connect).collect()
}

#[test]
fn of_the_keys_of_former_clients_nothing_is_left_in_the_memory_of_the_process() {
    // It is not replaced.
    let play = Play::usual(Pace::CONSTANT);
    let clients = encrypted(&play, 8);
    let pid = play.greeters().pid().unwrap();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    // The main thread of the test's program, and that of the test.
    assert!(soon(|| threads() <= 2), "{}", threads());
    let own = places(std::process::id(), &clients[0].1[0]);
    assert!(!own.is_empty(), "this process has them");
    let found: Vec<Vec<String>> = clients.iter().flat_map(|(_, secrets)| secrets).map(|secret| places(pid, secret)).collect();
    assert!(found.iter().all(Vec::is_empty), "{found:?}");
}

#[test]
fn a_process_that_has_greeted_is_replaced_when_it_is_idle_and_after_so_many_clients() {
    let idle = Duration::from_millis(50);
    for turn in [(idle, u32::MAX), (Duration::from_secs(3600), 3)] {
        let play = Play::usual(Pace { turn, ..Pace::USUAL });
        let before = lock(&LOG).len();
        for _ in 0..2 {
            // Whoever has greeted the client is no more.
            let pid = play.greeters().pid().unwrap();
            let clients = encrypted(&play, 4);
            assert!(soon(|| !runs(pid as i32) && play.greeters().pid().is_some_and(|now| now != pid)), "{turn:?}");
            drop(clients);
        }
        play.goes_on();
        let said = lock(&LOG)[before..].iter().find(|line| line.contains("which greets clients over TCP, has ended")).cloned();
        drop(play);
        assert_eq!(said, None, "that is nothing to say");
    }
}

/// It is idle when nobody has come for some time: greetings under way are finished.
#[test]
fn a_process_whose_place_was_taken_finishes_its_greetings() {
    let play = Play::usual(Pace { turn: (Duration::from_millis(50), u32::MAX), ..Pace::USUAL });
    let pid = play.greeters().pid().unwrap();
    let conn = Conn::open(&play.scene.at(0), Instant::now() + Duration::from_secs(60)).unwrap();
    // The server's first words: the process has the client.
    let mut first = [0; 8];
    conn.read_exact_by(&mut first, Instant::now() + Duration::from_secs(60)).unwrap();
    assert!(soon(|| play.greeters().pid().is_some_and(|now| now != pid)));
    assert!(runs(pid as i32), "it waits for its client");
    drop(conn);
    assert!(soon(|| !runs(pid as i32)));
    play.goes_on();
}

part!(waits_process, "waits", |client, answers| {
    // It waits for a client that reads nothing, say, without regard to the time.
    let conn = Conn::new(client);
    while !matches!((&mut &conn).read(&mut [0; 64]), Ok(0) | Err(_)) {}
    let not_heard = crate::greeter::message::NotHeard::of(&GreetError::TooSlow);
    let _ = FromGreeter::NotHeard(not_heard, None).send(&answers);
});

#[test]
fn the_time_limit_of_one_client_does_not_end_the_process_of_all() {
    let play = Play::new("waits", Pace { dropped: Duration::from_secs(60), ..Pace::IMPATIENT });
    let before = play.greeters().pid();
    play.cue();
    let said = play.client(&play.scene.at(0)).unwrap_err();
    assert!(matches!(said, GreetError::HungUp(_)), "{said}");
    play.goes_on();
    assert_eq!(play.greeters().pid(), before);
}

// Before it says something for which it is ended, it writes more lines than are written to the log.
part!(shouts_process, "shouts", |_client, answers| {
    for n in 0..100 {
        eprintln!("line {n} of one that shouts");
    }
    babble(&answers);
});

#[test]
fn what_it_writes_hides_no_line_about_it() {
    let play = Play::new("shouts", Pace::CONSTANT);
    let pid = play.greeters().pid().unwrap();
    play.ends_it("has said something unexpected and was ended");
    assert!(logged(|line| line.starts_with(&format!("greeter {pid}: "))));
}

/// Its end of the channel, as whoever it has sent the descriptor to would have it.
fn channel_of(pid: u32) -> Option<OwnedFd> {
    // SAFETY: plain numbers; the descriptors that are returned have no other owner.
    let get = |fd: i32| unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            return None;
        }
        let process = OwnedFd::from_raw_fd(process as i32);
        let got = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        (got >= 0).then(|| OwnedFd::from_raw_fd(got as i32))
    };
    let is_channel = |fd: &OwnedFd| matches!(getsockopt(fd, sockopt::SockType), Ok(SockType::SeqPacket));
    (3..100).filter_map(get).find(is_channel)
}

/// One that has passed on its end of the channel, which therefore does not close when it ends.
#[test]
fn one_whose_channel_somebody_else_keeps_is_ended_and_replaced_at_once() {
    let play = Play::usual(Pace::CONSTANT);
    for is_distrusted in [false, true] {
        let pid = play.greeters().pid().unwrap();
        let Some(theirs) = channel_of(pid) else {
            eprintln!("descriptors of another process cannot be had here: this was not tested");
            return;
        };
        if is_distrusted {
            FromGreeter::Ready.send(&theirs).unwrap();
        } else {
            nix::sys::signal::kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
        }
        assert!(soon(|| play.greeters().pid().is_some_and(|now| now != pid)));
        play.goes_on();
        // It gets no client, and the daemon hears nothing of it.
        assert!(matches!(packet::receive(&theirs, 2), Ok(None)));
        assert!(FromGreeter::Ready.send(&theirs).is_err());
    }
}
