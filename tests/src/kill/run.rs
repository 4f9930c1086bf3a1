//! Runs one cell: processes, the point, the action, the outcome.

use super::cell::{Action, Cell, Spot, Way};
use super::injector::{Host, Injector, StrikeError};
use super::left::{self, LeftError};
use crate::job::{self, Job};
use crate::proxy::Lane;
use crate::random::Random;
use crate::report::Report;
use crate::scene::{Hardware, MACHINE, Scene, wait_for};
use crate::server::{Server, helpers};
use crate::transport::Transport;
use faults::Point;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// How long anything may take before it hangs: a stopped process alone takes 15 s.
const LIMIT: Duration = Duration::from_secs(75);
/// How long it may take until nothing is left.
const SOON: Duration = Duration::from_secs(20);
/// Rounds of the program before anything happens.
const WARM: usize = 2;
/// A cell is tried again if the point was not passed: a job may have nothing to do there.
const TRIES: u64 = 3;
/// What a worker without a client may hold of a GPU.
const WARM_BYTES: u64 = 1 << 20;

/// Why a cell failed.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// The program fails without mrcuda.
    #[error("mill fails natively: {0:?}")]
    Native(job::Outcome),
    /// The cell failed; its files stay.
    #[error("{error} (see {})", directory.display())]
    Kept {
        /// Why it failed.
        error: Box<CellError>,
        /// The scene's directory.
        directory: PathBuf,
    },
    /// A file, socket or process of the test itself failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// `mrcuda migrate` could not be run.
    #[error("cannot start mrcuda migrate: {0}")]
    Migrate(io::Error),
    /// The action was never applied.
    #[error("nobody passed the point, or no message came after it")]
    NotPassed,
    /// The action could not be applied.
    #[error("the blow missed: {0}")]
    Missed(#[from] StrikeError),
    /// Warm workers are missing.
    #[error("the servers do not open their GPUs")]
    NotOpened,
    /// The program makes no rounds.
    #[error("the job does not get going: {0}")]
    NoRounds(String),
    /// The job could not be parked where the cell begins.
    #[error("the job is not parked: {0}")]
    NotParked(String),
    /// The job could not be moved from where it was parked.
    #[error("the job stays parked: {0}")]
    StaysParked(String),
    /// SIGCONT did not come.
    #[error("the stopped process does not go on")]
    StaysStopped,
    /// The place that the job has left still serves it.
    #[error("{} workers serve the job after the move: {pids:?}", pids.len())]
    Workers {
        /// The workers.
        pids: Vec<u32>,
    },
    /// A job that has left its own process still has GPU memory there.
    #[error("the job keeps {0} bytes of the GPU that it left")]
    KeepsBytes(u64),
    /// The move exceeded its time limit.
    #[error("the move hangs:\n{threads}")]
    MoveHangs {
        /// The job's threads, and what they wait for.
        threads: String,
    },
    /// The job exceeded its time limit.
    #[error("the job hangs: {0}")]
    JobHangs(String),
    /// The job got a CUDA error though the victim was not where it ran.
    #[error("an error where there must be none: {0}")]
    UnexpectedError(String),
    /// The job ended neither with native's output nor with a CUDA error.
    #[error("code {:?}, signal {:?}, stdout {:?}: {words}", outcome.code, outcome.signal, outcome.stdout)]
    Outcome {
        /// How it ended.
        outcome: job::Outcome,
        /// What it wrote to stderr, without its rounds.
        words: String,
    },
    /// Something of the job is left.
    #[error("{0}")]
    Left(#[from] LeftError),
}

/// How a cell ended, if it ended as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With native's output.
    Native,
    /// With a CUDA error that the program saw.
    Error,
    /// The job was the victim of SIGKILL.
    Killed,
}

/// What the program prints natively.
///
/// # Errors
/// It fails natively.
pub(super) fn native(directory: &Path) -> Result<String, CellError> {
    let scene = Scene::at(&directory.join("native"), Hardware::Soft);
    let file = scene.path.join("end");
    std::fs::write(&file, "")?;
    let outcome = Job::native(&scene, "mill", &scene.install.file("mill"), &["--until", &file.display().to_string()]).wait(LIMIT);
    if outcome.ok() && outcome.stdout.ends_with("RESULT ok\n") { Ok(outcome.stdout) } else { Err(CellError::Native(outcome)) }
}

/// Tries a cell in a directory of its own, which stays if it fails. The error says what is wrong.
///
/// # Errors
/// The job or what is left of it is not as it must be.
pub(super) fn run(cell: Cell, seed: u64, by: Transport, native: &str, directory: &Path) -> Result<End, CellError> {
    for n in 0..TRIES {
        let mut scene = Scene::at(&directory.join(cell.to_string()), Hardware::Soft);
        match play(cell, seed.wrapping_add(2 * n), by, native, &scene) {
            Ok(Some(end)) => return Ok(end),
            Ok(None) => {}
            Err(error) => {
                scene.keep();
                return Err(CellError::Kept { error: Box::new(error), directory: scene.path.clone() });
            }
        }
    }
    Err(CellError::NotPassed)
}

/// Plays a cell; none if the point was not passed.
fn play(cell: Cell, seed: u64, by: Transport, native: &str, scene: &Scene) -> Result<Option<End>, CellError> {
    let injector = Injector::start(cell, seed, scene.runtime())?;
    let (fault, number, until) = (injector.variable(), seed.to_string(), scene.path.join("end").display().to_string());
    let mut env = vec![("MRCUDA_FAULT", fault.as_str()), ("SOFTGPU_SEED", number.as_str())];
    let (from, to) = (cell.way.from(), cell.way.to());
    let server = |spot: Option<Spot>, name: &str| {
        spot.filter(|spot| spot.has_server()).map(|spot| {
            // Where memory is shared it is the job's machine, with its GPUs; the others are machines of their own.
            let machine = if spot == Spot::Unix { MACHINE } else { name };
            let env: Vec<_> = env.iter().copied().chain([("SOFTGPU_SEED_ID", machine)]).collect();
            Server::start_for(by, scene, name, &[], &env)
        })
    };
    let mut servers = [server(Some(from), "source"), server(to, "target")];
    let aim = cell.aim(seed);
    if cell.way.to().is_some() && aim.is_some_and(|(_, aim)| aim.lane == Lane::Bulk) {
        // The proxy tells connections by their order: those of the move are the only ones after the first then.
        env.push(("MRCUDA_BULK_CONNECTIONS", "0"));
    }
    let harmed = aim.is_some();
    if cell.copies() {
        env.push(("MRCUDA_FAULT_NO_ADOPTION", "1"));
    }
    let host = |server: &Option<Server>| server.as_ref().map(|s| Host::new(s, by, harmed)).transpose();
    let hosts = injector.hosts([host(&servers[0])?, host(&servers[1])?]);
    if cell.point == Point::Open {
        // A warm worker would do: one with another environment will not. Those that are opened now do not count.
        env.push(("CUDA_DEVICE_MAX_CONNECTIONS", "8"));
        let opened = servers.iter().flatten().count() as u32;
        wait_for(LIMIT, || (injector.asked() >= opened).then_some(())).ok_or(CellError::NotOpened)?;
    }
    let mut draw = Random::new(seed);
    let skip = if cell.repeats() { draw.below(3) as u32 } else { 0 };

    let (start, copies) = (matches!(cell.way, Way::Start(_)), matches!(cell.way, Way::Copy(..)));
    if start {
        injector.arm(skip);
    }
    let directory = scene.path.join("park");
    let place = |spot: Spot, host: &Option<Host>| match (spot, host) {
        (Spot::File, _) => format!("file:{}", directory.display()),
        (spot, Some(host)) => host.place(spot),
        (spot, None) => spot.name().to_owned(),
    };
    let first = place(from, &hosts[0]);
    let options: &[&str] = if from == Spot::Local || from.is_store() { &[] } else { &["--server", &first] };
    let mut job = Job::start(scene, "job", options, &scene.install.file("mill"), &["--until", &until], &env);
    let pid = job.pid();
    injector.job(pid);
    let serving = || -> Vec<u32> {
        let workers = hosts.iter().flatten().flat_map(|h| h.workers_of(pid)).chain(helpers(pid));
        workers.filter(|w| left::lives(*w)).collect()
    };

    let mut moved = None;
    if !start {
        let warm = wait_for(LIMIT, || (rounds(&job) >= WARM || !job.runs()).then(|| job.runs()));
        if warm != Some(true) {
            return Err(CellError::NoRounds(job.stderr()));
        }
        if from.is_store() && !migrate(scene, pid, &first)?.is_some_and(|report| report.ok()) {
            return Err(CellError::NotParked(job.stderr()));
        }
        // What counts is a later round.
        if copies && let Some(to) = to {
            copy(scene, pid, &place(to, &hosts[1]))?.filter(Report::ok).ok_or_else(|| CellError::NotParked(job.stderr()))?;
        }
        // At the start the first place is opened, which does not count either.
        injector.arm(skip);
    }
    if let Some(to) = to {
        let to = place(to, &hosts[1]);
        moved = Some(if copies { copy(scene, pid, &to)? } else { migrate(scene, pid, &to)? });
    }
    let struck = wait_for(if to.is_some() { Duration::from_millis(1500) } else { SOON }, || injector.struck());
    match struck {
        Some(r) => r?,
        None => return Ok(None),
    }
    wait_for(LIMIT, || (!injector.has_stopped()).then_some(())).ok_or(CellError::StaysStopped)?;

    let committed = !copies && moved.flatten().is_some_and(|r| r.ok());
    if to.is_some() && job.runs() {
        // One place is the job's, the other one must be given back while it goes on.
        let now = to.filter(|_| committed).unwrap_or(from);
        let most = usize::from(now.has_worker()) + usize::from(copies);
        wait_for(SOON, || (serving().len() <= most || !job.runs()).then_some(()))
            .ok_or_else(|| CellError::Workers { pids: serving() })?;
        if from == Spot::Local && committed {
            wait_for(SOON, || (left::gpu_bytes(pid) == 0 || !job.runs()).then_some(()))
                .ok_or_else(|| CellError::KeepsBytes(left::gpu_bytes(pid)))?;
        }
    }
    if copies && let Some(to) = to {
        // The copy has its old state or its new one: the job can be parked there, if it is left.
        let report = migrate(scene, pid, &place(to, &hosts[1]))?;
        let ends = |job: &mut Job| wait_for(SOON, || (!job.runs()).then_some(())).is_some();
        if report.is_some_and(|report| !report.ok()) && !cell.may_fail() && !ends(&mut job) {
            return Err(CellError::NotParked(job.stderr()));
        }
    }
    let is_parked = job.status().is_some_and(|status| status["devices"][0]["state"] == "parked");
    if is_parked && let Some(report) = migrate(scene, pid, "local")? {
        // It must go on, or its memory is lost, and then it gets an error.
        let lost = matches!(report.code(), "place-lost" | "context-failed") && cell.may_fail();
        // The error may have ended the program meanwhile.
        let mut ends = || wait_for(SOON, || (!job.runs()).then_some(())).is_some();
        if !report.ok() && !lost && !ends() {
            return Err(CellError::StaysParked(report.reason().to_owned()));
        }
    }
    std::fs::write(&until, "")?;
    let end = judge(cell, job.wait(LIMIT), native)?;
    nothing_left(cell, scene, &serving, &mut servers, hosts)?;
    Ok(Some(end))
}

/// Rounds that the program has made.
fn rounds(job: &Job) -> usize {
    job.stderr().lines().filter(|l| l.starts_with("round ")).count()
}

/// Moves the job; none if it gave no report, as one that has ended.
fn migrate(scene: &Scene, pid: u32, to: &str) -> Result<Option<Report>, CellError> {
    ask(scene, pid, &["migrate", "--to", to])
}

/// Has a copy of the job made, and kept current so seldom that this is the only round.
fn copy(scene: &Scene, pid: u32, to: &str) -> Result<Option<Report>, CellError> {
    ask(scene, pid, &["suspend", "--to", to, "--every", "1h"])
}

fn ask(scene: &Scene, pid: u32, words: &[&str]) -> Result<Option<Report>, CellError> {
    let mut command = scene.mrcuda();
    command.args(words).arg(pid.to_string()).arg("--json").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(CellError::Migrate)?;
    if wait_for(LIMIT, || child.try_wait().ok().flatten()).is_none() {
        let threads = job::threads(pid);
        let _ = child.kill();
        let _ = child.wait();
        return Err(CellError::MoveHangs { threads });
    }
    let output = child.wait_with_output()?;
    let said = serde_json::from_slice::<serde_json::Value>(&output.stdout).ok();
    // A job that has ended meanwhile has no report of it.
    Ok(said.map(Report).filter(|report| !matches!(report.code(), "no-job" | "no-answer")))
}

/// Whether the job may end like this.
fn judge(cell: Cell, outcome: job::Outcome, native: &str) -> Result<End, CellError> {
    let words = outcome.stderr.trim().lines().filter(|l| !l.starts_with("round ")).collect::<Vec<_>>().join(" / ");
    if outcome.hung {
        return Err(CellError::JobHangs(words));
    }
    if cell.ends_the_job() && outcome.signal == Some(libc::SIGKILL) {
        return Ok(End::Killed);
    }
    if outcome.ok() && outcome.stdout == native {
        return Ok(End::Native);
    }
    let seen = outcome.code == Some(2) && outcome.stderr.contains("CUDA_ERROR_");
    match (seen, cell.may_fail()) {
        (true, true) => Ok(End::Error),
        (true, false) => Err(CellError::UnexpectedError(words)),
        _ => Err(CellError::Outcome { outcome, words }),
    }
}

/// Nothing of the job may be left, and after the servers' end nothing at all.
fn nothing_left(
    cell: Cell,
    scene: &Scene,
    serving: &dyn Fn() -> Vec<u32>,
    servers: &mut [Option<Server>; 2],
    hosts: &[Option<Host>; 2],
) -> Result<(), LeftError> {
    left::all_end(&serving(), "a worker of the job")?;
    for server in servers.iter_mut().flatten() {
        if !server.runs() {
            continue;
        }
        let spare = || server.workers().into_iter().map(left::gpu_bytes).sum::<u64>();
        wait_for(SOON, || (spare() <= WARM_BYTES).then_some(())).ok_or_else(|| LeftError::GpuBytes(spare()))?;
    }
    left::files(scene)?;
    left::parked(&scene.path.join("park"))?;
    for (server, host) in servers.iter_mut().flatten().zip(hosts.iter().flatten()) {
        let ran = server.runs();
        let status = server.stop();
        if ran && !status.is_some_and(|s| s.success()) && cell.action != Action::Kill {
            return Err(LeftError::Server(status));
        }
        if TcpStream::connect(host.address).is_ok() {
            return Err(LeftError::Listens(host.address));
        }
    }
    left::all_end(&left::processes(scene), "a process")?;
    left::shared_memory()
}
