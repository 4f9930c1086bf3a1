//! A program under `mrcuda run` as a process under test.

use crate::report::Report;
use crate::scene::{Scene, wait_for};
use crate::server::signal;
use control::{Client, ReasonCode};
use serde_json::Value;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a move may take: a job that waits for itself refuses it much earlier.
const MOVE: Duration = Duration::from_secs(150);

/// How long a job may take to say what it does.
const ANSWER: Duration = Duration::from_secs(5);

/// Why a job, or `mrcuda` on its behalf, gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The program ended before it became a job.
    #[error("{name} ended before it made a CUDA call: {stderr}")]
    Ended {
        /// The process under test.
        name: String,
        /// What it wrote.
        stderr: String,
    },
    /// It runs but does not answer.
    #[error("{name} does not answer: {stderr}")]
    Silent {
        /// The process under test.
        name: String,
        /// What it wrote.
        stderr: String,
    },
    /// A move exceeded its time limit.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The job is ending or has ended: there is no report of a move.
    #[error("{reason}")]
    Gone {
        /// Which of these.
        code: ReasonCode,
        /// The same in words.
        reason: String,
    },
    /// `mrcuda` printed no JSON, or other JSON than it should.
    #[error("{0}")]
    Output(String),
    /// `mrcuda` could not be run.
    #[error("cannot run mrcuda: {0}")]
    Run(#[from] io::Error),
    /// The job did not move.
    #[error("no moves")]
    NoMoves,
}

/// How a process ended, and what it wrote.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
    /// How long it ran.
    pub wall: Duration,
    /// It did not end in time and was killed.
    pub hung: bool,
}

impl Outcome {
    /// Whether it ended with code 0.
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }
}

/// A running process whose output goes to files of the scene. Killed when it goes out of scope.
#[derive(Debug)]
pub struct Job<'a> {
    scene: &'a Scene,
    child: Child,
    start: Instant,
    name: String,
    /// Once this file is there, it may end early.
    end: Option<PathBuf>,
    over: bool,
}

impl<'a> Job<'a> {
    /// Starts a program under `mrcuda run` with these options; `name` is for the files.
    pub fn start(scene: &'a Scene, name: &str, options: &[&str], program: &Path, args: &[&str], env: &[(&str, &str)]) -> Job<'a> {
        let mut command = scene.mrcuda();
        command.arg("run").args(scene.hardware.option()).args(options).arg("--").arg(program).args(args);
        command.envs(env.iter().copied());
        Job::spawn(scene, name, command)
    }

    /// Starts `orbit` under `mrcuda run`; it may end early once this waits for its end.
    pub fn orbit(scene: &'a Scene, name: &str, options: &[&str], args: &[&str], env: &[(&str, &str)]) -> Job<'a> {
        let end = scene.path.join(format!("{name}.end"));
        // An earlier job of this name.
        let _ = std::fs::remove_file(&end);
        let file = end.display().to_string();
        let env = [env, &[("ORBIT_END", &file)]].concat();
        Job::start(scene, name, options, &scene.install.file("orbit"), args, &env).may_end(end)
    }

    /// Starts a program natively.
    pub fn native(scene: &'a Scene, name: &str, program: &Path, args: &[&str]) -> Job<'a> {
        let mut command = scene.native(program);
        command.args(args);
        Job::spawn(scene, name, command)
    }

    /// Starts a command that was prepared elsewhere.
    pub fn spawn(scene: &'a Scene, name: &str, mut command: Command) -> Job<'a> {
        let file = |kind: &str| {
            let path = scene.path.join(format!("{name}.{kind}"));
            std::fs::File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {name}: {e}"));
        Job { scene, child, start: Instant::now(), name: name.to_owned(), end: None, over: false }
    }

    /// The same for one that may end early once this file is there.
    #[must_use]
    pub fn may_end(mut self, end: PathBuf) -> Job<'a> {
        self.end = Some(end);
        self
    }

    /// Process id: `mrcuda run` executes the program in the same process, so it is the program's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How long it has been running.
    pub fn age(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        !self.over && matches!(self.child.try_wait(), Ok(None))
    }

    /// Lets one that may end early end, without waiting for it.
    pub fn let_end(&self) {
        if let Some(end) = &self.end {
            std::fs::write(end, "").unwrap_or_else(|e| panic!("{}: {e}", end.display()));
        }
    }

    /// Whether it ends by itself in this time.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        wait_for(limit, || (!self.runs()).then_some(())).is_some()
    }

    /// Waits until the job answers on its control socket, which it does after its first CUDA calls.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<Value, JobError> {
        let answer = wait_for(limit, || match self.status() {
            Some(status) => Some(Ok(status)),
            None if !self.runs() => Some(Err(JobError::Ended { name: self.name.clone(), stderr: self.stderr() })),
            None => None,
        });
        answer.unwrap_or_else(|| Err(JobError::Silent { name: self.name.clone(), stderr: self.stderr() }))
    }

    /// What it says of itself.
    pub fn status(&self) -> Option<Value> {
        let socket = self.scene.runtime().join("mrcuda").join(self.pid().to_string());
        let job = Client::connect_at(&socket).ok()?.list(Some(ANSWER)).ok()?;
        serde_json::to_value(job).ok()
    }

    /// Moves it and waits for the report; the error is the message of `mrcuda migrate` if there is none.
    pub fn migrate(&self, to: &str) -> Result<Report, JobError> {
        self.migrate_with(to, &[])
    }

    /// The same with more options.
    pub fn migrate_with(&self, to: &str, options: &[&str]) -> Result<Report, JobError> {
        self.ask("migrate", &[&["--to", to], options].concat())
    }

    /// Has `mrcuda` move it by this command, as [`Job::migrate`].
    pub fn ask(&self, name: &str, options: &[&str]) -> Result<Report, JobError> {
        let mut command = self.scene.mrcuda();
        command.arg(name).arg(self.pid().to_string()).arg("--json").args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut asker = command.spawn()?;
        if wait_for(MOVE, || asker.try_wait().transpose()).is_none() {
            // It may end at this moment.
            let _ = asker.kill();
            let _ = asker.wait();
            return Err(JobError::Timeout(MOVE));
        }
        let output = asker.wait_with_output()?;
        let report = Report(json_of(&output)?);
        match ReasonCode::from(report.code().to_owned()) {
            // The last one is what a job says that ends a moment later.
            code @ (ReasonCode::NoJob | ReasonCode::NoAnswer | ReasonCode::JobEnded) => {
                Err(JobError::Gone { code, reason: report.reason().to_owned() })
            }
            _ => Ok(report),
        }
    }

    /// The reports of all moves that are over.
    pub fn moves(&self) -> Result<Vec<Report>, JobError> {
        let over = |m: &Report| !["queued", "running", "stopping", "committed"].contains(&m.state());
        Ok(self.all_moves()?.into_iter().filter(over).collect())
    }

    /// All moves, also those that have not ended.
    pub fn all_moves(&self) -> Result<Vec<Report>, JobError> {
        let moves = json_of(&self.scene.mrcuda().args(["moves", &self.pid().to_string(), "--json"]).output()?)?;
        let all = moves.as_array().ok_or_else(|| JobError::Output(moves["reason"].to_string()))?.iter().cloned().map(Report);
        Ok(all.collect())
    }

    /// The last move as `mrcuda moves` shows it to people.
    pub fn describe_last_move(&self) -> Result<String, JobError> {
        let last = self.moves()?.pop().ok_or(JobError::NoMoves)?;
        let output = self.scene.mrcuda().args(["moves", &self.pid().to_string(), last.id()]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sends it a signal.
    pub fn signal(&self, number: i32) {
        signal(self.pid(), number);
    }

    /// What it has written to stderr so far.
    pub fn stderr(&self) -> String {
        self.read("err")
    }

    /// What it has written to stdout so far.
    pub fn stdout(&self) -> String {
        self.read("out")
    }

    /// The file with its stderr, for following it.
    pub fn stderr_file(&self) -> PathBuf {
        self.scene.path.join(format!("{}.err", self.name))
    }

    fn read(&self, kind: &str) -> String {
        let bytes = std::fs::read(self.scene.path.join(format!("{}.{kind}", self.name))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How much it has written.
    fn written(&self) -> u64 {
        let size = |kind: &str| std::fs::metadata(self.scene.path.join(format!("{}.{kind}", self.name))).map_or(0, |m| m.len());
        size("out") + size("err")
    }

    /// Waits for its end as long as it gets ahead; one that may end early is told to. One that does not end and writes nothing for so long is killed, and has no exit
    /// code; what its threads did goes to a file.
    pub fn wait(mut self, limit: Duration) -> Outcome {
        self.let_end();
        let status = loop {
            let written = self.written();
            let status = wait_for(limit, || self.child.try_wait().ok().flatten());
            if status.is_some() || self.written() == written {
                break status;
            }
        };
        let wall = self.start.elapsed();
        let hung = status.is_none();
        let status = status.or_else(|| {
            let path = self.scene.path.join(format!("{}.threads", self.name));
            std::fs::write(&path, threads(self.pid())).unwrap_or_else(|e| eprintln!("{}: {e}", path.display()));
            // It may end in this instant; then its status is as good.
            let _ = self.child.kill();
            self.child.wait().ok()
        });
        self.over = true;
        Outcome {
            code: status.and_then(|s| s.code()),
            signal: status.and_then(|s| s.signal()),
            stdout: self.stdout(),
            stderr: self.stderr(),
            wall,
            hung,
        }
    }
}

/// The JSON that a command has printed.
fn json_of(output: &Output) -> Result<Value, JobError> {
    serde_json::from_slice(&output.stdout)
        .map_err(|_| JobError::Output(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// What each thread of a process does: its name, state, where it sleeps in the kernel, its system call; its calls where there is gdb.
pub(crate) fn threads(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok);
    let part = |task: &Path, name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default().trim().to_owned();
    let line = |task: &Path| {
        let status = part(task, "status");
        let state = status.lines().find(|l| l.starts_with("State:")).unwrap_or_default().to_owned();
        format!("{:<20} {state} {} {}\n", part(task, "comm"), part(task, "wchan"), part(task, "syscall"))
    };
    let lines: String = tasks.map(|task| line(&task.path())).collect();
    let gdb = Command::new("gdb").args(["-batch", "-ex", "thread apply all backtrace", "-p", &pid.to_string()]).output();
    lines + &gdb.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if !self.over {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
