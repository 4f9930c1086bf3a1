//! Runs one program natively, in each place, and with moves.

use crate::Mode;
use crate::list::Program;
use crate::mover::{Moves, Pause, move_all};
use crate::output::{Ending, Expected, Verdict};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Poll interval for a running program.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Settings shared by all runs.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The `mrcuda` under test.
    pub mrcuda: PathBuf,
    /// The driver that is used instead of this machine's: softgpu.
    pub driver: Option<PathBuf>,
    /// Number of GPUs that a program sees.
    pub gpus: u32,
    /// A scratch directory with a short path, because that of a Unix socket is limited to 107 bytes.
    pub directory: PathBuf,
    /// The token of the servers.
    pub token: PathBuf,
    /// Pause between the end of a move and the next one.
    pub every: Duration,
}

/// Two servers on this machine.
#[derive(Debug, Clone)]
pub struct Places {
    /// Over TCP, without the numbers of GPUs: `tls://HOST:PORT`. Without the prefix they would be over shared memory.
    pub tcp: [String; 2],
    /// Over shared memory, likewise: `unix:PATH`.
    pub unix: [String; 2],
}

impl Places {
    /// Of two servers' places, as programs name them: the numbers of their GPUs are left out.
    pub fn of_servers(tcp: [&str; 2], unix: [&str; 2]) -> Places {
        let without_gpu = |place: &str| place.trim_end_matches("/0").to_owned();
        Places { tcp: tcp.map(without_gpu), unix: unix.map(without_gpu) }
    }
}

/// Why a program cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A directory, a file or the program cannot be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The directory, file or program.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The link to the driver cannot be created.
    #[error("cannot make {}", .0.display())]
    Link(PathBuf),
    /// The program cannot be waited for.
    #[error(transparent)]
    Wait(#[from] io::Error),
    /// The thread that moves jobs panicked.
    #[error("the thread that moves jobs panicked")]
    Mover,
}

impl RunError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> RunError {
        |error| RunError::File { path: path.to_owned(), error }
    }
}

/// One run.
#[derive(Debug)]
struct Run {
    ending: Ending,
    out: String,
    err: String,
    seconds: f64,
}

/// What a program waited for and sent at a place over TCP, from the log of its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Round trips: answers that a thread of the program waited for.
    pub waits: u64,
    /// Bytes of calls and, in both directions, of large copies. Answers, among them copies to the host of less than 1 MiB, are not counted.
    pub bytes: u64,
}

impl Traffic {
    /// The sum of the lines `exit: sent NAME: N calls, N bytes, N answers waited for, N bytes over …, N bytes through …`.
    fn read(log: &str) -> Traffic {
        let mut sum = Traffic::default();
        for (_, figures) in log.lines().filter_map(|line| line.split_once("exit: sent ")?.1.split_once(": ")) {
            let numbers: Vec<u64> = figures.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
            if let [_, bytes, waits, carried, _] = numbers[..] {
                sum.waits += waits;
                sum.bytes += bytes + carried;
            }
        }
        sum
    }
}

/// A run under mrcuda, compared.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Whether it was as native.
    pub verdict: Verdict,
    /// Duration from start to end.
    pub seconds: f64,
    /// The same as a multiple of native.
    pub ratio: f64,
    /// Pauses of the moves that succeeded.
    pub pauses: Vec<Pause>,
    /// Moves that were running at its end.
    pub unfinished: usize,
    /// Why moves were refused, and how often.
    pub refusals: BTreeMap<String, usize>,
    /// mrcuda's messages on stderr, each line once.
    pub words: Vec<String>,
    /// What it waited for and sent, if it was at a place over TCP from start to end.
    pub traffic: Option<Traffic>,
    /// The ends of its stdout and stderr, if it was not as native.
    pub ends: Option<[String; 2]>,
}

/// All runs of one program.
#[derive(Debug)]
pub struct Comparison {
    /// Its name.
    pub name: String,
    /// What both native runs have in common.
    pub expected: Expected,
    /// Seconds of both native runs.
    pub native: [f64; 2],
    /// Its native stdout.
    pub out: String,
    /// The last line of its native stderr.
    pub last_stderr_line: String,
    /// By mode.
    pub cells: BTreeMap<Mode, Cell>,
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: natively {:.2} s", self.name, self.native[0].min(self.native[1]))?;
        for (mode, cell) in &self.cells {
            write!(f, ", {} {} {:.2} s", mode.name(), cell.verdict.word(), cell.seconds)?;
        }
        Ok(())
    }
}

/// Runs a program twice natively and once in each of the modes.
///
/// # Errors
/// It cannot be started, or directories for it cannot be created.
pub fn compare(setup: &Setup, places: &Places, program: &Program, modes: &[Mode]) -> Result<Comparison, RunError> {
    let mut comparison = Comparison::natively(setup, program)?;
    for mode in modes.iter().filter(|_| comparison.expected.ending != Ending::Hung) {
        let cell = comparison.run(setup, places, program, *mode)?;
        comparison.cells.insert(*mode, cell);
    }
    Ok(comparison)
}

impl Comparison {
    /// Two native runs, and none under mrcuda yet.
    ///
    /// # Errors
    /// See [`compare`].
    pub fn natively(setup: &Setup, program: &Program) -> Result<Comparison, RunError> {
        let (first, second) = (native(setup, program)?, native(setup, program)?);
        Ok(Comparison {
            name: program.name.clone(),
            expected: Expected::new(first.ending, &first.out, &second.out),
            native: [first.seconds, second.seconds],
            last_stderr_line: first.err.trim().lines().next_back().unwrap_or_default().to_owned(),
            out: first.out,
            cells: BTreeMap::new(),
        })
    }

    /// Runs the program under mrcuda; its arguments may differ if that should not change its output.
    ///
    /// # Errors
    /// See [`compare`].
    pub fn run(&self, setup: &Setup, places: &Places, program: &Program, mode: Mode) -> Result<Cell, RunError> {
        let (run, moves, traffic) = under_mrcuda(setup, places, program, mode)?;
        let mut words: Vec<String> = Vec::new();
        for line in run.err.lines().filter(|line| line.starts_with("mrcuda")) {
            if !words.iter().any(|w| w == line) {
                words.push(line.to_owned());
            }
        }
        let verdict = self.expected.compare(run.ending, &run.out, &run.err);
        Ok(Cell {
            ends: (!verdict.as_native()).then(|| [&run.out, &run.err].map(|text| end_of(text))),
            verdict,
            seconds: run.seconds,
            ratio: run.seconds / self.native[0].min(self.native[1]).max(1e-3),
            pauses: moves.pauses,
            unfinished: moves.unfinished,
            refusals: moves.refusals,
            words,
            traffic,
        })
    }
}

fn native(setup: &Setup, program: &Program) -> Result<Run, RunError> {
    let mut command = Command::new(&program.path);
    dress(setup, &mut command, &setup.directory);
    if let Some(driver) = &setup.driver {
        let directory = setup.directory.join("native");
        let link = directory.join("libcuda.so.1");
        // Another run may have created it already; whether it exists is checked below.
        let _ = std::fs::create_dir_all(&directory);
        let _ = std::os::unix::fs::symlink(driver, &link);
        if !link.exists() {
            return Err(RunError::Link(link));
        }
        let before = std::env::var("LD_LIBRARY_PATH").map(|path| format!(":{path}")).unwrap_or_default();
        command.env("LD_LIBRARY_PATH", format!("{}{before}", directory.display()));
        command.env("SOFTGPU_DEVICES", setup.gpus.to_string());
    } else if std::env::var_os("CUDA_VISIBLE_DEVICES").is_none() {
        let list: Vec<String> = (0..setup.gpus).map(|n| n.to_string()).collect();
        command.env("CUDA_VISIBLE_DEVICES", list.join(","));
    }
    execute(setup, program, command)
}

fn under_mrcuda(
    setup: &Setup,
    places: &Places,
    program: &Program,
    mode: Mode,
) -> Result<(Run, Moves, Option<Traffic>), RunError> {
    let runtime = own_directory(&setup.directory, "r")?;
    let all = |place: &str| (0..setup.gpus).map(|n| format!("{place}/{n}")).collect::<Vec<_>>().join(",");
    let each = |place: &str| vec![place; setup.gpus as usize].join(",");
    let start = match mode {
        Mode::Tcp | Mode::Moved => all(&places.tcp[0]),
        Mode::Unix => all(&places.unix[0]),
        // The first in the process, the others in helpers.
        Mode::Local => [vec!["local"], vec!["helper"; setup.gpus as usize - 1]].concat().join(","),
        Mode::Helper => each("helper"),
    };
    let mut command = Command::new(&setup.mrcuda);
    command.arg("run");
    if let Some(driver) = &setup.driver {
        command.arg("--driver").arg(driver);
    }
    command.args(["--server", &start, "--"]).arg(&program.path);
    dress(setup, &mut command, &runtime);
    if mode == Mode::Moved {
        // What became of each move, should its output differ.
        command.env("MRCUDA_LOG", "migrate=info");
    }
    let log = runtime.join("job.log");
    if mode == Mode::Tcp {
        command.env("MRCUDA_LOG", &log);
    }
    let over = AtomicBool::new(mode != Mode::Moved);
    let targets = [
        "local".to_owned(),
        all(&places.tcp[1]),
        each("helper"),
        all(&places.unix[0]),
        all(&places.unix[1]),
        all(&places.tcp[0]),
    ];
    let done = std::thread::scope(|s| {
        let mover = s.spawn(|| move_all(&runtime, &targets, setup.every, &over));
        let run = execute(setup, program, command);
        over.store(true, Ordering::Relaxed);
        let moves = mover.join().map_err(|_| RunError::Mover);
        // A program that was killed leaves no such lines.
        let traffic = (mode == Mode::Tcp).then(|| Traffic::read(&std::fs::read_to_string(&log).unwrap_or_default()));
        Ok((run?, moves?, traffic))
    });
    // Anything left there only takes space.
    let _ = std::fs::remove_dir_all(&runtime);
    done
}

/// Sets separate directories and the token; the softgpu name of this machine.
fn dress(setup: &Setup, command: &mut Command, runtime: &Path) {
    command.env("XDG_RUNTIME_DIR", runtime).env("XDG_CONFIG_HOME", &setup.directory).env("MRCUDA_TOKEN_FILE", &setup.token);
    // The options of this machine's configuration file are not those that are compared.
    command.env("XDG_STATE_HOME", setup.directory.join("state")).env("MRCUDA_CONFIG", "");
    for name in ["MRCUDA_DRIVER", "MRCUDA_SERVERS", "MRCUDA_LOG"] {
        command.env_remove(name);
    }
    if setup.driver.is_some() {
        command.env("SOFTGPU_SEED_ID", "local").env_remove("CUDA_VISIBLE_DEVICES");
    }
}

/// Runs a command to its end or time limit; then kills all its processes.
fn execute(setup: &Setup, program: &Program, mut command: Command) -> Result<Run, RunError> {
    let own = own_directory(&setup.directory, "w")?;
    let work = match &program.directory {
        Some(directory) => directory.clone(),
        None => {
            let work = own.join("work");
            std::fs::create_dir(&work).map_err(RunError::file(&work))?;
            // Programs write files to their directory, and read data from it.
            let beside = program.path.parent().unwrap_or(Path::new("/"));
            for entry in std::fs::read_dir(beside).map_err(RunError::file(beside))?.filter_map(Result::ok) {
                std::os::unix::fs::symlink(entry.path(), work.join(entry.file_name())).map_err(RunError::file(&work))?;
            }
            work
        }
    };
    let [out, err] = ["out", "err"].map(|name| own.join(name));
    let file = |path: &Path| File::create(path).map_err(RunError::file(path));
    command.args(&program.args).current_dir(&work).stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&err)?).process_group(0);
    let begin = Instant::now();
    let mut child = command.spawn().map_err(RunError::file(&program.path))?;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begin.elapsed() > program.limit => break None,
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    let seconds = begin.elapsed().as_secs_f64();
    // Including processes that it has left behind; an empty group is not an error.
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    if status.is_none() {
        child.wait()?;
    }
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let ending = match status {
        None => Ending::Hung,
        Some(status) => status.code().map_or(Ending::Signal(status.signal().unwrap_or(0)), Ending::Code),
    };
    let run = Run { ending, out: read(&out), err: read(&err), seconds };
    // Anything left there only takes space.
    let _ = std::fs::remove_dir_all(&own);
    Ok(run)
}

/// The last lines of a text.
fn end_of(text: &str) -> String {
    const LINES: usize = 100;
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn own_directory(parent: &Path, prefix: &str) -> Result<PathBuf, RunError> {
    use std::os::unix::fs::DirBuilderExt;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = parent.join(format!("{prefix}{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(RunError::file(&path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_the_sum_of_the_calls() {
        let line = |name: &str, n: u64| {
            format!(
                "2026-11-28T10:00:00.000Z python3[7] DEBUG job: exit: sent {name}: 3 calls, {n} bytes, 2 answers waited for, 1000 bytes over \
                 connections of their own, 5 bytes through shared memory\n"
            )
        };
        let log = format!("{}something else: 7 calls\n{}", line("Launch", 10), line("CopyOut", 20));
        assert_eq!(Traffic::read(&log), Traffic { waits: 4, bytes: 2030 });
        assert_eq!(Traffic::read("exit: sent Launch: cut off"), Traffic::default());
    }
}
