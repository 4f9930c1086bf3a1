//! The history of moves: a file of each user, to which jobs append a line of JSON when a move has ended (docs/scheduler.md, "History").
//!
//! The file is bounded: when it is full, it takes the place of the older one, and a new one begins. Jobs that write at the same time take
//! turns by a lock. A job or machine that fails while it writes leaves a line without its end, which readers skip, and after which the next
//! writer begins a new line.

use crate::Move;
use crate::directory;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file to which jobs append, the older one, and the one that they lock.
const FILES: [&str; 3] = ["moves.jsonl", "moves.1.jsonl", "moves.lock"];
/// Maximum size of a file in bytes: that of some thousands of moves.
const LARGEST: u64 = 4 << 20;
/// Maximum length of a line. A report of 32 GPUs is shorter.
const LONGEST: usize = 256 << 10;
/// How long a process waits for the lock: another one may be stopped while it has it.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Poll interval while it waits.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A move that has ended, and the job that made it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Past {
    /// Process id of the job, which another process may have by now.
    pub pid: u32,
    /// Path of its program.
    pub program: String,
    /// Name of the job; lines of older builds have none.
    #[serde(default)]
    pub name: String,
    /// The report.
    #[serde(rename = "move")]
    pub it: Move,
}

/// The history as it was read.
#[derive(Debug, Default, PartialEq)]
pub struct History {
    /// The moves, in the order in which they ended.
    pub moves: Vec<Past>,
    /// Number of lines that are not understood: without their end, or written by another build.
    pub skipped: usize,
}

/// The directory of the history: `$XDG_STATE_HOME/mrcuda`, or `~/.local/state/mrcuda`; `None` without a home. A process reads its
/// environment at its start.
pub fn path() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("mrcuda"))
}

/// Appends a move to the history in a directory, which is made if it is not there.
///
/// # Errors
/// The directory is refused ([`directory::check`]), another process has the history locked for long, or the system's error.
pub fn append(directory: &Path, past: &Past) -> io::Result<()> {
    make(directory)?;
    let mut line = line_of(past)?;
    if line.len() > LONGEST {
        let it = Move { legs: Vec::new(), ..past.it.clone() };
        line = line_of(&Past { it, ..past.clone() })?;
    }
    if line.len() > LONGEST {
        return Err(io::Error::other("the report is too long"));
    }
    let _alone = lock(directory)?;
    let [newer, older, _] = FILES.map(|name| directory.join(name));
    let mut file = open(&newer, true)?;
    let mut bytes = file.metadata()?.len();
    if bytes > 0 && bytes + line.len() as u64 + 1 > LARGEST {
        std::fs::rename(&newer, older)?;
        file = open(&newer, true)?;
        bytes = 0;
    }
    let mut last = [b'\n'];
    if bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)?;
    }
    if last != [b'\n'] {
        line.insert(0, b'\n');
    }
    // One call, which the system carries out as a whole if there is room.
    file.write_all(&line)
}

fn line_of(past: &Past) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(past)?;
    line.push(b'\n');
    Ok(line)
}

/// Reads the history in a directory. Without a directory it is empty.
///
/// # Errors
/// The directory or a file in it is refused, or cannot be read.
pub fn read(directory: &Path) -> io::Result<History> {
    match directory::check(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(History::default()),
        other => other?,
    }
    // Without the lock a file may be replaced between reading the older and the newer one, which loses lines; better than no answer.
    let _alone = lock(directory).ok();
    let mut history = History::default();
    for name in [FILES[1], FILES[0]] {
        let mut text = Vec::new();
        match open(&directory.join(name), false) {
            Ok(file) => drop(file.take(LARGEST).read_to_end(&mut text)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        history.add(&text);
    }
    Ok(history)
}

impl History {
    /// Adds the lines of a file.
    pub(crate) fn add(&mut self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let past = (line.len() <= LONGEST).then(|| serde_json::from_slice::<Past>(line).ok()).flatten();
            match past.filter(|past| past.it.state.is_over()) {
                Some(past) => self.moves.push(past),
                None => self.skipped += 1,
            }
        }
    }
}

fn make(path: &Path) -> io::Result<()> {
    if let Err(e) = directory::check(path) {
        if e.kind() != io::ErrorKind::NotFound {
            return Err(e);
        }
        // With the environment of another user, root would leave directories there that this user cannot change.
        let above = path.ancestors().skip(1).find_map(|above| std::fs::metadata(above).ok());
        if nix::unistd::Uid::effective().is_root() && above.is_some_and(|above| above.uid() != 0) {
            return Err(io::Error::other(format!("{} would be in a directory of another user", path.display())));
        }
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(path)?;
        directory::check(path)?;
    }
    Ok(())
}

/// Opens a file of the directory, which only this user can change, for reading, or for appending as well.
fn open(path: &Path, append: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(append).create(append).mode(0o600).custom_flags(not_to_follow());
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a file", path.display())));
    }
    Ok(file)
}

/// Links are not followed, and other things than files do not make the process wait.
fn not_to_follow() -> i32 {
    (nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK).bits()
}

/// Waits until no other process reads or writes the history. A child that is forked meanwhile does not keep the lock: it is given up
/// explicitly.
fn lock(directory: &Path) -> io::Result<Flock<File>> {
    let mut file = open(&directory.join(FILES[2]), true)?;
    let since = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) if since.elapsed() >= LOCK_TIMEOUT => {
                return Err(io::Error::other("another process has locked the history of moves"));
            }
            Err((back, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR)) => file = back,
            Err((_, error)) => return Err(error.into()),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests;
