//! Tests of the whole system: real programs, real servers, real moves, on CPU drivers.
//!
//! | file | what must hold |
//! |---|---|
//! | `programs` | every program prints what it prints natively: remote, and moved in the middle |
//! | `moves` | moves in every direction, by signal and by request; a corrupted byte is found |
//! | `descriptors` | between places of one machine the GPU copies by itself |
//! | `apps` | programs in the patterns of real ones compute the same in every place, and moved again and again |
//! | `repeated` | programs moved again and again: threads that disturb each other, writers that a weak page hash does not see |
//! | `mix` | random programs, moved at random moments |
//! | `nvml` | the NVML library says what CUDA says; servers show what their GPUs measure |
//! | `code` | code as compilers write it, with its managed variables in the job's memory |
//! | `differing` | moves between places whose drivers and GPUs differ |
//! | `endings` | calls at the end of threads and processes, internal errors, buffers that run out |
//! | `exclusive` | managed memory that the host does not touch while kernels run |
//! | `host_memory` | host memory that kernels use by its address |
//! | `order` | host and GPU see each other's writes in order at every place |
//! | `conformance` | every function answers as natively, whatever its arguments |
//! | `process` | ends, exec, libraries closed and opened, resets: as natively |
//! | `output` | what device code prints is the job's own output |
//! | `parking` | jobs that are parked, in memory and in files, go on or stay parked |
//! | `places` | helper processes, jobs with several GPUs |
//! | `large_copies` | large copies have connections of their own at servers and helpers, in small pieces too |
//! | `crossings` | copies between the GPUs of a job |
//! | `peers` | GPUs that use each other's memory, processes that share it |
//! | `cancel` | moves that are given up, in each phase |
//! | `refusals` | moves that cannot work are refused with the figures, and the job goes on |
//! | `plans` | a plan says yes only to what a move does |
//! | `reloads` | state of code that comes and goes, journals that stay small |
//! | `trips` | patterns of calls that wait for a remote place no oftener than they must |
//! | `surface` | less used calls, rightly and wrongly, answer as natively |
//! | `shortcuts` | what is answered, kept or shared without a question to the place is what natively happens |
//! | `scopes` | atomic operations with system scope are reported once |
//! | `shown` | the history of moves, traces, progress on a terminal |
//! | `stopped` | the memory of a stopped job leaves the GPU, comes back before the job goes on, and is lost with nothing |
//! | `stuck` | jobs that a move cannot quiesce continue where they were |
//! | `kill` | a part of the kill matrix |
//! | `network` | a bad network between job and servers changes no output, and one that breaks is the loss of a server |
//! | `lost` | lost workers, killed jobs, forks |
//! | `shortage` | no disk, no descriptors |
//! | `when_full` | jobs that find no memory move to a place that has it |
//! | `trust` | tokens, strangers |
//! | `greeter` | the process that greets clients for a server knows and may nothing, and its end costs greetings alone |
//! | `hostile_client` | a client with the token reaches no memory of its worker |
//! | `hostile_target` | a job stays where it was, whatever the target of a move answers |
//! | `sandbox` | code that runs in a worker reaches nothing outside, and jobs work as without a sandbox |
//! | `worker_memory` | the kernel limits the host memory of each worker, and what exceeds it is named |
//! | `munge` | jobs of a cluster need no token |
//! | `other_users` | a Unix socket serves the users who are named, and root lists and moves the jobs of all |
//! | `servers` | servers say who uses them, tell users apart, and have their jobs moved away before they end |
//! | `slurm` | tasks of a real Slurm run at their places, move by its signals, are counted and parked |
//! | `service` | clients come and go and move at a server that is replaced, with an agent that is killed: nothing is lost, nothing grows |
//! | `by_server` | jobs are moved by way of their server, by those who may, and servers are followed |
//! | `take_over` | a server is replaced, and the jobs of the former one go on and move |
//! | `metrics` | metrics and log lines of a server follow its jobs |
//! | `scheduler` | the job's socket, by scripts that know only its documentation |
//! | `commands` | what the commands print |
//! | `top` | `mrcuda top` shows jobs, their rates and GPUs, and leaves the terminal as it was |
//! | `config` | settings come from files, variables and options, in this order |
//! | `tutorials` | the commands of the tutorials run, and print what the pages show |
//! | `schemas` | what is printed for programs is as its schema says |
//! | `bench` | the benchmark, models made of it, predictions; experiments of papers |
//! | `journals` | journal files, whole and damaged |
//! | `coverage` | which calls the tests have exercised |

mod adoption;
mod agent;
mod apps;
mod bench;
mod by_server;
mod cancel;
mod code;
mod commands;
mod config;
mod conformance;
mod coverage;
mod crossings;
mod descriptors;
mod differing;
mod endings;
mod exclusive;
mod greeter;
mod host_memory;
mod hostile_client;
mod hostile_target;
mod journals;
mod kill;
mod large_copies;
mod listing;
mod lost;
mod metrics;
mod mix;
mod moves;
mod munge;
mod network;
mod nvml;
mod order;
mod other_users;
mod output;
mod parking;
mod peers;
mod places;
mod plans;
mod process;
mod programs;
mod refusals;
mod reloads;
mod repeated;
mod sandbox;
mod scheduler;
mod schemas;
mod scopes;
mod selection;
mod servers;
mod service;
mod shortage;
mod shortcuts;
mod shown;
mod slurm;
mod stopped;
mod stuck;
mod surface;
mod take_over;
mod top;
mod trips;
mod trust;
mod tutorials;
mod when_full;
mod worker_memory;

use cuda_api::lock::lock;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;
use tests::{Job, Outcome, Scene, Server};

/// How long anything may take before it counts as stuck.
const LIMIT: Duration = Duration::from_secs(120);

/// Arguments that let orbit work for some seconds on a slow machine.
const LONG: [&str; 3] = ["--steps", "8000", "--progress"];

/// Runs orbit natively with these arguments, with a report after each number of steps after which it may end early; what it prints is the
/// same every time, so each is run once.
fn native_orbit(scene: &Scene, args: &[&str]) -> Outcome {
    static KNOWN: Mutex<BTreeMap<String, Outcome>> = Mutex::new(BTreeMap::new());
    let mut known = lock(&KNOWN);
    let run = || {
        let args = [args, &["--reports"]].concat();
        let outcome = Job::native(scene, "native", &scene.install.file("orbit"), &args).wait(LIMIT);
        assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "the native run failed: {outcome:?}");
        outcome
    };
    known.entry(args.join(" ")).or_insert_with(run).clone()
}

/// Every way between places of one machine, for a job that starts at the Unix socket of `one`.
fn every_way(one: &Server, two: &Server) -> [String; 8] {
    [
        two.unix_place(0),
        "local".into(),
        "helper".into(),
        one.place(0),
        two.place(0),
        "helper".into(),
        "local".into(),
        one.unix_place(0),
    ]
}

/// Starts orbit on a server and waits until it works.
fn remote_orbit<'a>(scene: &'a Scene, name: &str, place: &str, args: &[&str], env: &[(&str, &str)]) -> Job<'a> {
    let mut job = Job::orbit(scene, name, &["--server", place], args, env);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    wait_for_step(&mut job, 10);
    job
}

/// Waits until orbit has queued this many steps.
fn wait_for_step(job: &mut Job, step: u32) {
    let there = tests::scene::wait_for(LIMIT, || {
        let steps = |line: &str| line.strip_prefix("step ")?.split(' ').next()?.parse::<u32>().ok();
        let reached = job.stderr().lines().filter_map(steps).any(|s| s >= step);
        (reached || !job.runs()).then_some(reached)
    });
    assert_eq!(there, Some(true), "orbit did not get to step {step}: {}", job.stderr());
}

/// Pauses between the steps of programs for two GPUs, in microseconds, for [`with_time`].
const TWO_GPUS: [u32; 3] = [20_000, 60_000, 180_000];

/// Moves a program whose steps are so many microseconds apart. On a busy machine it can end before the last of its moves, which is an
/// error of `moves`; then it is started again with the next pause.
fn with_time(pauses_us: [u32; 3], moves: impl FnMut(u32) -> Result<(), Box<dyn Error>>) {
    let late: Vec<Box<dyn Error>> = pauses_us.into_iter().map(moves).map_while(Result::err).collect();
    assert!(late.len() < pauses_us.len(), "{late:?}");
}

/// The run ended well and printed the same; or, where native has several reports, one of them.
fn assert_identical(moved: &Outcome, native: &Outcome) {
    assert!(moved.ok(), "code {:?}, signal {:?}, stderr: {}", moved.code, moved.signal, moved.stderr);
    let mut reports = native.stdout.split_inclusive("RESULT ok\n");
    if !reports.any(|report| report == moved.stdout) {
        assert_eq!(moved.stdout, native.stdout, "stderr: {}", moved.stderr);
    }
}

/// Lines of the job's stderr that come from mrcuda.
fn words_of_mrcuda(outcome: &Outcome) -> Vec<&str> {
    outcome.stderr.lines().filter(|l| l.starts_with("mrcuda")).collect()
}
