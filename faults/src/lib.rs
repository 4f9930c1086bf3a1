//! Fault injection: points at which a test can hold a process, and bytes that it can corrupt.
//!
//! | variable | what it does |
//! |---|---|
//! | `MRCUDA_FAULT=POINT@SOCKET` | at that point each process that inherits the variable asks on the Unix socket and waits for the answer |
//! | `MRCUDA_FAULT=POINT!` | at that point each process that inherits the variable panics, the first time |
//! | `MRCUDA_FAULT_CORRUPT_BYTE=N` | flips one byte of the N-th page sent in each verifying round of a move, where the source has the variable, and of the N-th page that the target copies by itself, where the target has it |
//! | `MRCUDA_FAULT_ROUND_LIMIT_MS=N` | instead of 30 s, a round of a job's moves may take N ms while the job works, besides the time for its bytes, and a move may hold up calls for twice as long |
//! | `MRCUDA_FAULT_REFUSE_THREAD=NAME` | the first thread with this name that a process would start cannot be started |
//! | `MRCUDA_FAULT_TCP_IS_FAR=1` | a job takes servers at TCP addresses for other machines, also those of its own: it reaches them over TCP, and all bytes of a move travel |
//! | `MRCUDA_FAULT_SMALL_COPIES=1` | copies of 4 KiB already pass through staging areas, which are small ones; both the job and the server must have the variable |
//! | `MRCUDA_FAULT_SHORT_SILENCE=1` | a server may take a job for stopped after 2 s already (`--evict-stopped`) |
//!
//! The process at the point writes one line, `POINT PID`, and continues when it receives a byte or the end of the
//! connection. Meanwhile the listener may kill, stop or disconnect any process, at exactly that point. `cargo xtask
//! kill-matrix` does so with every point and every process. The points are always compiled in and cost one relaxed
//! load; none is on the path of a launch.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// The process that passes a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The job's process.
    Job,
    /// The daemon of a server.
    Daemon,
    /// A worker before it has a client.
    Worker,
    /// The process that holds the GPU: a worker, or the job's process.
    Place,
}

macro_rules! points {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal, $who:ident;)*) => {
        /// A named point; in the order in which a job passes them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Point { $($(#[doc = $doc])* $variant,)* }

        impl Point {
            /// All of them.
            pub const ALL: &[Point] = &[$(Point::$variant),*];

            /// Its name in `MRCUDA_FAULT`.
            pub fn name(self) -> &'static str {
                match self { $(Point::$variant => $name,)* }
            }

            /// The process that passes it.
            pub fn who(self) -> Who {
                match self { $(Point::$variant => Who::$who,)* }
            }
        }
    };
}

points! {
    /// Before the job connects to a server.
    Connect = "connect", Job;
    /// A client has been accepted but not greeted.
    Welcome = "welcome", Daemon;
    /// Before a fresh worker opens its GPU.
    Open = "open", Worker;
    /// A worker is ready but has not received its client.
    Handover = "handover", Daemon;
    /// A worker has received its client but has not confirmed it.
    Serve = "serve", Worker;
    /// In the middle of a burst of launches. The program under test passes it.
    Launch = "launch", Job;
    /// A piece of a copy to the GPU is about to be sent.
    CopyIn = "copy-in", Job;
    /// A piece of a copy from the GPU has been requested.
    CopyOut = "copy-out", Job;
    /// A call with an answer has been sent, and the wait for the answer is about to begin.
    Wait = "wait", Job;
    /// An image is about to be given to the driver.
    Load = "load", Place;
    /// A move begins.
    Plan = "plan", Job;
    /// The target is open.
    Prepare = "prepare", Job;
    /// The target, on the source's GPU, has imported memory of the source, and has mapped none of it.
    Adopt = "adopt", Place;
    /// A record is about to be sent to the target.
    Replay = "replay", Job;
    /// Before source and target are connected to each other.
    Wires = "wires", Job;
    /// Before a round while the job runs.
    Precopy = "precopy", Job;
    /// A batch of such a round, or the hashes of chunks in view, are about to be sent.
    PrecopySend = "precopy-send", Place;
    /// A batch of such a round, or those hashes, have been received.
    PrecopyReceive = "precopy-receive", Place;
    /// Before the gate is closed.
    Quiesce = "quiesce", Job;
    /// The gate is closed and the GPU idle.
    Delta = "delta", Job;
    /// A batch of the last round is about to be sent.
    DeltaSend = "delta-send", Place;
    /// A batch of the last round has been received.
    DeltaReceive = "delta-receive", Place;
    /// Before the two places are compared.
    Verify = "verify", Job;
    /// Before the commit.
    Commit = "commit", Job;
    /// After it; the gate is still closed.
    Committed = "committed", Job;
    /// Before the source is released; the job runs.
    Release = "release", Job;
    /// The data connections are closed; memory that the target has adopted is about to become its own.
    Adopted = "adopted", Place;
    /// The source, whose memory the target has adopted, has answered the job that leaves it, and is about to release everything.
    Leaving = "leaving", Place;
}

const UNREAD: u8 = u8::MAX;
const NONE: u8 = u8::MAX - 1;

/// The armed point.
static ARMED: AtomicU8 = AtomicU8::new(UNREAD);

/// Passes a point; returns at once unless the environment names it.
#[inline]
pub fn at(point: Point) {
    let armed = ARMED.load(Ordering::Relaxed);
    if armed != NONE && (armed == UNREAD || armed == point as u8) {
        hold(point);
    }
}

/// The action at a point.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// Asks on this socket and waits.
    Ask(PathBuf),
    Panic,
}

/// What the environment asks for at which point.
fn armed() -> Option<&'static (Point, Action)> {
    static READ: OnceLock<Option<(Point, Action)>> = OnceLock::new();
    READ.get_or_init(|| parse(&std::env::var("MRCUDA_FAULT").ok()?)).as_ref()
}

/// Whether processes with this environment ask on a Unix socket at a point, so that they must be able to connect to it.
pub fn asks_on_socket() -> bool {
    matches!(armed(), Some((_, Action::Ask(_))))
}

#[cold]
fn hold(point: Point) {
    let armed = armed();
    ARMED.store(armed.map_or(NONE, |(p, _)| *p as u8), Ordering::Relaxed);
    match armed {
        Some((p, Action::Ask(socket))) if *p == point => {
            // Without a listener there is nothing to wait for.
            let _ = ask(point, socket);
        }
        Some((p, Action::Panic)) if *p == point && ARMED.swap(NONE, Ordering::Relaxed) == point as u8 => {
            panic!("as MRCUDA_FAULT asks for at {}", point.name());
        }
        _ => {}
    }
}

fn parse(text: &str) -> Option<(Point, Action)> {
    let (name, action) = match text.strip_suffix('!') {
        Some(name) => (name, Action::Panic),
        None => text.split_once('@').map(|(name, socket)| (name, Action::Ask(socket.into())))?,
    };
    let point = Point::ALL.iter().find(|p| p.name() == name)?;
    Some((*point, action))
}

fn ask(point: Point, socket: &Path) -> io::Result<()> {
    let mut s = UnixStream::connect(socket)?;
    s.write_all(format!("{} {}\n", point.name(), std::process::id()).as_bytes())?;
    s.read(&mut [0]).map(drop)
}

thread_local! {
    /// How many threads this thread can still start until one is refused.
    static UNTIL_REFUSED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Of the threads that the calling thread starts from now on, the one with this number, counted from 0, cannot be
/// started.
pub fn refuse_thread(number: Option<u32>) {
    UNTIL_REFUSED.set(number);
}

/// Called before a thread is started; an error if it is to be refused.
pub fn thread(name: &str) -> io::Result<()> {
    static NAMED: OnceLock<Option<String>> = OnceLock::new();
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let left = UNTIL_REFUSED.get();
    UNTIL_REFUSED.set(left.and_then(|left| left.checked_sub(1)));
    let named = NAMED.get_or_init(|| std::env::var("MRCUDA_FAULT_REFUSE_THREAD").ok());
    let refused = left == Some(0) || named.as_deref() == Some(name) && !REFUSED.swap(true, Ordering::Relaxed);
    if refused { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
}

/// Other faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Flip one byte of the page with this number (from 1) among those copied in a verifying round.
    pub corrupt_page: Option<u64>,
    /// Time limit of a round of a move while the job runs.
    pub round_limit: Option<Duration>,
    /// Treat places over TCP as other machines.
    pub tcp_is_other_machine: bool,
    /// Copy the memory of places of one GPU instead of handing it over.
    pub no_adoption: bool,
    /// Make small copies as large ones.
    pub small_copies: bool,
    /// Take jobs for stopped after a short time already.
    pub short_silence: bool,
    /// Put the first small blocks of pinned memory in a slab too.
    pub slabs: bool,
}

impl Faults {
    /// The faults that the environment requests, read once per process. Anything but a number above 0 means no corrupt
    /// byte.
    pub fn from_env() -> &'static Faults {
        static READ: OnceLock<Faults> = OnceLock::new();
        let word = |name| std::env::var(name).ok();
        READ.get_or_init(|| Faults {
            corrupt_page: page(word("MRCUDA_FAULT_CORRUPT_BYTE").as_deref()),
            round_limit: word("MRCUDA_FAULT_ROUND_LIMIT_MS").and_then(|ms| ms.parse().ok()).map(Duration::from_millis),
            tcp_is_other_machine: word("MRCUDA_FAULT_TCP_IS_FAR").is_some_and(|v| v == "1"),
            no_adoption: word("MRCUDA_FAULT_NO_ADOPTION").is_some_and(|v| v == "1"),
            small_copies: word("MRCUDA_FAULT_SMALL_COPIES").is_some_and(|v| v == "1"),
            short_silence: word("MRCUDA_FAULT_SHORT_SILENCE").is_some_and(|v| v == "1"),
            slabs: word("MRCUDA_FAULT_SLABS").is_some_and(|v| v == "1"),
        })
    }
}

fn page(value: Option<&str>) -> Option<u64> {
    value?.parse().ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_found_by_name() {
        for (i, p) in Point::ALL.iter().enumerate() {
            assert_eq!(*p as usize, i);
            assert_eq!(parse(&format!("{}@/tmp/x@y", p.name())), Some((*p, Action::Ask("/tmp/x@y".into()))));
            assert_eq!(parse(&format!("{}!", p.name())), Some((*p, Action::Panic)));
        }
        assert!(Point::ALL.len() < usize::from(NONE));
        for none in ["", "plan", "nowhere@/tmp/x", "nowhere!"] {
            assert_eq!(parse(none), None, "{none}");
        }
    }

    #[test]
    fn an_armed_point_asks_and_waits() {
        let path = std::env::temp_dir().join(format!("mrcuda-fault-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let asking = std::thread::spawn({
            let path = path.clone();
            move || ask(Point::Commit, &path)
        });
        let (mut s, _) = listener.accept().unwrap();
        let mut line = [0; 64];
        let n = s.read(&mut line).unwrap();
        assert_eq!(line[..n], *format!("commit {}\n", std::process::id()).as_bytes());
        assert!(!asking.is_finished());
        s.write_all(&[1]).unwrap();
        asking.join().unwrap().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_thread_is_refused() {
        let refused = |of: usize| (0..of).map(|_| thread("any").is_err()).collect::<Vec<_>>();
        assert_eq!(refused(2), [false; 2]);
        refuse_thread(Some(1));
        assert_eq!(refused(3), [false, true, false]);
        refuse_thread(Some(0));
        refuse_thread(None);
        assert_eq!(refused(2), [false; 2]);
    }

    #[test]
    fn only_numbers_above_zero_count() {
        assert_eq!(page(Some("3")), Some(3));
        for none in [None, Some(""), Some("0"), Some("x"), Some("-1")] {
            assert_eq!(page(none), None);
        }
    }
}
