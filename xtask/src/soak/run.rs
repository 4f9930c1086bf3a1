//! One run of the soak, and the native runs that it is compared with.

use crate::error::Error;
use ::tests::scene::{Hardware, MACHINE, Scene};
use ::tests::{Job, Outcome, Random, Report, Server, Transport};
use cuda_api::lock::lock;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Moves that count, for a run to be a good one.
pub(crate) const WANTED_MOVES: usize = 3;

/// Between what kinds of places a move goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// Whatever comes
    Any,
    /// From a server into the job's process
    RemoteLocal,
    /// From the job's process to a server
    LocalRemote,
    /// From server to server
    RemoteRemote,
}

/// How long a run may take beyond four times its seconds before it counts as stuck.
const LIMIT: Duration = Duration::from_secs(180);
/// How long a program may take to its first CUDA call.
const START: Duration = Duration::from_secs(60);
/// Moves that are tried in a run: more than must count, since some may meet an idle GPU.
const MOVES: usize = WANTED_MOVES + 3;
/// Microseconds between the rounds of a program, where its time is filled.
const PACE_US: u32 = 1000;
/// How long the GPU works in them: programs that run side by side share it.
const BUSY_US: u32 = 300;
/// The rests on a CPU driver, which sixteen threads without a pause keep behind by seconds on a busy machine: moves wait for it
/// then.
const SOFT_PACE_US: u32 = 20_000;
/// Moves that are not planned come after at most so many milliseconds.
const GAP_MS: u64 = 60;
/// A run with more moves shows only how many.
const SHOWN: usize = 20;
/// How long a program may take to its end, once it does not answer requests any more.
const ENDING: Duration = Duration::from_secs(1);

/// A program to run.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Steps of the run that measures how long a step takes.
    pub(crate) probe_steps: u32,
    /// What a random program makes its steps from.
    pub(crate) seed: Option<u64>,
}

impl Subject {
    /// Its name without how it is linked.
    pub(crate) fn program(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        self.seed.map_or(Ok(()), |seed| write!(f, " {seed}"))
    }
}

/// Steps of a program that take some tenths of a second on a CPU driver.
pub(crate) fn probe_steps(name: &str) -> u32 {
    match name {
        "matmul" | "threads8" | "sgemm" => 60,
        "vecadd" | "printf" => 120,
        "reduce" | "polls" => 60,
        "sparse" => 20,
        "pageable" => 4,
        "events" => 1200,
        _ => 300,
    }
}

/// Milliseconds that a round of a program takes on a GPU at another place, where it is more than its pace: rounds of many calls
/// that wait.
fn round_ms(name: &str) -> u32 {
    match name {
        "pageable" => 80,
        "crowd" => 16,
        "alike" => 12,
        "batches" => 10,
        "mapped" | "rest" | "writers" | "external" | "letters" | "sparse" => 8,
        "vmm" | "instances" => 6,
        "graphhost" => 5,
        "managed" | "shared_variables" | "arrays" => 4,
        "printf" | "storm" => 3,
        "mix" | "polls" | "pinned" | "threads8" | "textures" | "references" | "graphmem" | "differences" | "simulations" => 2,
        _ => 1,
    }
}

/// Whether a program can work until it is told that it is enough (tests/programs/cuda/until.cuh).
fn can_be_stopped(name: &str) -> bool {
    ["crowd", "storm", "differences", "simulations"].contains(&name)
}

/// A native run.
#[derive(Debug, Clone)]
pub(crate) struct Reference {
    /// Arguments of the program.
    args: Vec<String>,
    /// It works until it is told that it is enough, and prints the same whenever that is.
    stoppable: bool,
    stdout: String,
    /// How long any run may take.
    limit: Duration,
    /// How long it took.
    pub(crate) native: Duration,
    /// How long a run under mrcuda is expected to take: at first, what one without a move took.
    pub(crate) expected: Duration,
}

/// Native runs, and remote ones without a move, each made when it is first needed: by one thread, and only those that need the
/// same one wait for it.
#[derive(Debug)]
pub(crate) struct References {
    directory: PathBuf,
    hardware: Hardware,
    seconds: u32,
    still: bool,
    stoppable: bool,
    transport: Option<Transport>,
    known: Mutex<HashMap<String, Arc<Mutex<Option<Reference>>>>>,
}

impl References {
    /// `still`: whether the remote runs are made; without them a run is expected to take what the native one did, or its seconds
    /// where programs rest. `stoppable`: whether programs that can be told when it is enough work until then.
    /// `transport`: how the server of the remote runs is reached.
    pub(crate) fn new(
        directory: PathBuf,
        hardware: Hardware,
        seconds: u32,
        still: bool,
        stoppable: bool,
        transport: Option<Transport>,
    ) -> References {
        References { directory, hardware, seconds, still, stoppable, transport, known: Mutex::default() }
    }

    fn cell(&self, subject: &Subject) -> Arc<Mutex<Option<Reference>>> {
        lock(&self.known).entry(subject.to_string()).or_default().clone()
    }

    pub(crate) fn get(&self, subject: &Subject) -> Result<Reference, Error> {
        let cell = self.cell(subject);
        let mut known = lock(&cell);
        if let Some(known) = &*known {
            return Ok(known.clone());
        }
        let directory = self.directory.join(subject.to_string().replace(['/', ' '], "-"));
        let mut scene = Scene::at(&directory, self.hardware);
        let limit = LIMIT + Duration::from_secs(4 * u64::from(self.seconds));
        let seed: Vec<String> = subject.seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]).collect();
        let native = |args: &[String]| -> Result<Outcome, Error> {
            let args: Vec<&str> = args.iter().chain(&seed).map(String::as_str).collect();
            let outcome = Job::native(&scene, "native", &subject.path, &args).wait(limit);
            let right = outcome.ok() && outcome.stdout.ends_with("RESULT ok\n");
            match right {
                true => Ok(outcome),
                false if outcome.hung => Err(Error::Found(format!("{subject}, natively: {}", cut_off(limit)))),
                false => Err(Error::Found(format!("{subject} fails natively: {}{}", outcome.stdout, outcome.stderr))),
            }
        };
        let stoppable = self.stoppable && can_be_stopped(subject.program());
        let (work, rests) = match self.hardware {
            Hardware::Soft if stoppable => (vec![], pace(SOFT_PACE_US, 0)),
            Hardware::Soft => (steps(fill(subject.probe_steps, self.seconds, &native)?), vec![]),
            Hardware::Real if stoppable => (vec![], pace(PACE_US, BUSY_US)),
            // A GPU is faster than the host that checks its work, so the time is filled by waiting between the rounds.
            Hardware::Real => paced(self.seconds, subject),
        };
        let args = [work.clone(), rests].concat();
        let (outcome, expected) = match self.hardware {
            // One that is told has no rounds here: the directory is there already.
            _ if stoppable => (native(&with_end(&args, &directory))?, None),
            Hardware::Soft => (native(&args)?, None),
            // Rests change no output, and a native run need not take long.
            Hardware::Real => (native(&work)?, Some(Duration::from_secs(self.seconds.into()))),
        };
        let native = outcome.wall;
        let expected = expected.unwrap_or(native);
        let args = [args, seed].concat();
        let mut reference = Reference { args, stoppable, stdout: outcome.stdout, limit, native, expected };
        if self.still && !stoppable {
            // A remote run takes another time than a native one: its kernels and the host share less.
            let still = run(&directory.join("still"), self.hardware, subject, &reference, &Plan::still(self.transport));
            reference.expected = still.wall;
            if let Some(why) = still.verdict.why() {
                scene.keep();
                return Err(Error::Found(format!("{subject} fails remotely, without a move: {why}")));
            }
        }
        *known = Some(reference.clone());
        Ok(reference)
    }

    /// Takes the time that a moved run took as what the next one will take.
    pub(crate) fn learn(&self, subject: &Subject, wall: Duration) {
        if let Some(known) = &mut *lock(&self.cell(subject)) {
            known.expected = (known.expected + wall) / 2;
        }
    }
}

/// Arguments with which threads rest between their rounds, and a GPU works then for so many microseconds.
fn pace(us: u32, busy_us: u32) -> Vec<String> {
    let mut args = vec!["--pace".to_owned(), us.to_string()];
    if busy_us > 0 {
        args.extend(["--busy".to_owned(), busy_us.to_string()]);
    }
    args
}

/// The arguments, and the file that tells the program that it is enough.
fn with_end(args: &[String], file: &Path) -> Vec<String> {
    args.iter().cloned().chain(["--until".to_owned(), file.display().to_string()]).collect()
}

fn steps(many: u32) -> Vec<String> {
    vec!["--steps".to_owned(), many.to_string()]
}

/// Arguments with which a program takes about this long, whatever it computes, and keeps the GPU busy: its work, and its rests.
fn paced(seconds: u32, subject: &Subject) -> (Vec<String>, Vec<String>) {
    let many = seconds * (1_000_000 / PACE_US) / round_ms(subject.program());
    // The one on the driver API has no kernel that does nothing but last. A forked child of a process whose main thread has used
    // its own default stream does not survive its exit natively (580 driver), before any handler of the program runs.
    let busy_us = match subject.program() {
        "orbit" | "forks" => 0,
        // Their rounds are long and mostly of the host.
        "graphmem" | "arrays" | "vmm" | "sparse" => 3 * BUSY_US,
        "managed" | "shared_variables" | "textures" | "references" | "external" | "events" | "parts" => 8 * BUSY_US,
        _ => BUSY_US,
    };
    (steps(many), pace(PACE_US, busy_us))
}

/// How many steps fill the time: from two runs, so that the time that a program takes to start does not count.
fn fill(probe: u32, seconds: u32, native: &dyn Fn(&[String]) -> Result<Outcome, Error>) -> Result<u32, Error> {
    /// Minimum difference, in seconds, that means something on a busy machine.
    const SIGNIFICANT: f64 = 0.25;
    let wall = |many: u32| native(&steps(many)).map(|o| o.wall.as_secs_f64());
    let mut probe = probe;
    loop {
        let (short, long) = (wall(probe)?, wall(3 * probe)?);
        if long - short >= SIGNIFICANT {
            let each = (long - short) / f64::from(2 * probe);
            return Ok(((f64::from(seconds) / each) as u32).clamp(probe, 50 * probe));
        }
        probe *= 3;
    }
}

/// How many places execute; the others follow them.
const EXECUTE: usize = 7;

/// Where a job may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the job's process.
    Local,
    /// In a helper process; two names, so that a job can go from one to the next.
    Helper,
    OtherHelper,
    /// At a server, over TCP, or as a run says.
    First,
    Second,
    /// At the same servers, over shared memory.
    UnixFirst,
    UnixSecond,
    /// Parked: nothing is executed until the next move.
    Memory,
    File,
}

impl Place {
    /// Servers only.
    const SERVERS: [Place; 2] = [Place::First, Place::Second];
    const ALL: [Place; 9] = [
        Place::Local,
        Place::Helper,
        Place::OtherHelper,
        Place::First,
        Place::Second,
        Place::UnixFirst,
        Place::UnixSecond,
        Place::Memory,
        Place::File,
    ];

    /// All that a run has whose servers are reached in one way only, or in any.
    fn all(transport: Option<Transport>) -> &'static [Place] {
        if transport.is_some() { &Place::SERVERS } else { &Place::ALL }
    }

    fn other(self, transport: Option<Transport>, random: &mut Random) -> Place {
        let others: Vec<Place> = Place::all(transport).iter().copied().filter(|p| *p != self).collect();
        *random.pick(&others)
    }

    /// How `mrcuda` calls it on a machine with so many GPUs: the second of each kind is on the last of them.
    fn name(self, servers: &[Server; 2], plan: &Plan, directory: &Path) -> String {
        let (last, by) = (plan.gpus - 1, plan.transport.unwrap_or(Transport::Tls));
        match self {
            Place::Local => "local".to_owned(),
            Place::Helper => "helper:0".to_owned(),
            Place::OtherHelper => format!("helper:{last}"),
            Place::First => servers[0].by(by, 0),
            Place::Second => servers[1].by(by, last),
            Place::UnixFirst => servers[0].unix_place(0),
            Place::UnixSecond => servers[1].unix_place(last),
            Place::Memory => "memory".to_owned(),
            Place::File => format!("file:{}", directory.join("park").display()),
        }
    }
}

/// What a run does.
#[derive(Debug)]
pub(crate) struct Plan {
    start: Place,
    /// How servers are reached, if it is at these only.
    transport: Option<Transport>,
    /// When, as a part of the expected time, and where to.
    moves: Vec<(f64, Place)>,
    /// So many moves must succeed: others follow those above until they have.
    at_least: usize,
    /// GPUs that the machine has for it.
    gpus: u32,
    /// Seed of the CPU drivers' delays.
    seed: u64,
    /// No move is begun after this.
    end: Option<Instant>,
}

impl Plan {
    /// A random plan whose first move has the given direction, with as many moves as must succeed.
    pub(crate) fn new(
        random: &mut Random,
        (direction, transport): (Direction, Option<Transport>),
        at_least: Option<usize>,
        gpus: u32,
    ) -> Plan {
        let all = Place::all(transport);
        let (start, first) = match direction {
            Direction::RemoteLocal => (Place::First, Some(Place::Local)),
            Direction::LocalRemote => (Place::Local, Some(Place::First)),
            Direction::RemoteRemote => (Place::First, Some(Place::Second)),
            Direction::Any => (*random.pick(&all[..all.len().min(EXECUTE)]), None),
        };
        let mut moments: Vec<f64> = (0..at_least.unwrap_or(MOVES)).map(|_| 0.03 + 0.72 * random.unit()).collect();
        moments.sort_by(f64::total_cmp);
        let mut at = start;
        let mut moves = Vec::new();
        for (number, moment) in moments.into_iter().enumerate() {
            at = first.filter(|_| number == 0).unwrap_or_else(|| at.other(transport, random));
            moves.push((moment, at));
        }
        Plan { start, transport, moves, at_least: at_least.unwrap_or(0), gpus, seed: 1 + random.below(1 << 40), end: None }
    }

    /// The same, with no move begun after this.
    pub(crate) fn until(self, end: Option<Instant>) -> Plan {
        Plan { end, ..self }
    }

    /// Remote, without a move.
    pub(crate) fn still(transport: Option<Transport>) -> Plan {
        Plan { start: Place::First, transport, moves: Vec::new(), at_least: 0, gpus: 1, seed: 1, end: None }
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// How many moves it has.
    pub(crate) fn moves(&self) -> usize {
        self.moves.len()
    }

    /// Remote, into the process, to the second server, and back; early, since programs side by side take different times.
    pub(crate) fn tour() -> Plan {
        let moves = vec![(0.1, Place::Local), (0.25, Place::Second), (0.4, Place::First)];
        Plan { start: Place::First, transport: None, moves, at_least: 0, gpus: 1, seed: 1, end: None }
    }
}

/// How a run went.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    pub(crate) verdict: Verdict,
    pub(crate) wall: Duration,
    /// The moves with the part of the run at which they were asked for.
    pub(crate) moves: Vec<(f64, Report)>,
    /// The time was over before its last move.
    pub(crate) cut: bool,
}

/// Whether a run was right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Identical,
    /// It had not ended after so long, and was ended.
    CutOff(Duration),
    Failed(String),
}

impl Verdict {
    /// What was wrong.
    pub(crate) fn why(&self) -> Option<String> {
        match self {
            Verdict::Identical => None,
            Verdict::CutOff(limit) => Some(cut_off(*limit)),
            Verdict::Failed(why) => Some(why.clone()),
        }
    }
}

fn cut_off(limit: Duration) -> String {
    format!("cut off: it had not ended after {} s", limit.as_secs())
}

impl std::fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = match self.verdict {
            Verdict::Identical => "identical",
            Verdict::CutOff(_) => "CUT OFF",
            Verdict::Failed(_) => "FAILED",
        };
        write!(f, "{word:<10}{:5.1} s ", self.wall.as_secs_f64())?;
        if self.moves.len() > SHOWN {
            let succeeded = self.moves.iter().filter(|(_, report)| report.ok()).count();
            return write!(f, " {} moves, {succeeded} of them succeeded", self.moves.len());
        }
        for (moment, report) in &self.moves {
            let mark = match (report.ok(), report.counts()) {
                (_, true) => "",
                (true, false) => " (idle)",
                (false, _) => " (refused)",
            };
            write!(
                f,
                " {:.0}%:{}{mark}",
                moment * 100.0,
                report.direction().split(" -> ").map(|kind| &kind[..1]).collect::<Vec<_>>().join("->")
            )?;
        }
        Ok(())
    }
}

/// Makes one run in a directory of its own; the directory is removed unless the run fails.
pub(crate) fn run(directory: &Path, hardware: Hardware, subject: &Subject, reference: &Reference, plan: &Plan) -> RunOutcome {
    let mut scene = Scene::at(directory, hardware);
    let (seed, devices) = (plan.seed.to_string(), plan.gpus.to_string());
    let soft = [("SOFTGPU_SEED", seed.as_str()), ("SOFTGPU_DEVICES", devices.as_str())];
    // On the CPU driver one server has the job's own GPUs in half of the runs.
    let beside = [soft[0], soft[1], ("SOFTGPU_SEED_ID", if plan.seed % 4 < 2 { MACHINE } else { "one" })];
    let server = |name, env: &[(&str, &str)]| Server::start_for(plan.transport.unwrap_or(Transport::Tls), &scene, name, &[], env);
    let servers = [server("one", &beside), server("two", &soft)];
    let start = plan.start.name(&servers, plan, &scene.path);
    let options = ["--server", &start];
    let journal = scene.path.join("journal");
    // Where it cannot be made the recorder says so in its log.
    let _ = std::fs::create_dir_all(&journal);
    let (log, journal) = (scene.path.join("job.log"), journal.display().to_string());
    let log = log.display().to_string();
    // Between places of one GPU half of the jobs copy what the others hand over.
    let copies = if plan.seed.is_multiple_of(2) { "1" } else { "0" };
    let env = [soft[0], soft[1], ("MRCUDA_LOG", &log), ("MRCUDA_KEEP_JOURNAL", &journal), ("MRCUDA_FAULT_NO_ADOPTION", copies)];
    let enough = scene.path.join("enough");
    let args = if reference.stoppable { with_end(&reference.args, &enough) } else { reference.args.clone() };
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut job = Job::start(&scene, "job", &options, &subject.path, &args, &env);

    let mut moves: Vec<(Duration, Report)> = Vec::new();
    let mut trouble = job.wait_ready(START).err().map(|e| e.to_string());
    let (mut random, mut at) = (Random::new(plan.seed), plan.start);
    let succeeded = |moves: &[(Duration, Report)]| moves.iter().filter(|(_, report)| report.ok()).count();
    let mut planned = plan.moves.iter().filter(|_| !reference.stoppable);
    let mut cut = false;
    loop {
        let (due, place) = match planned.next() {
            Some((moment, place)) => (reference.expected.mul_f64(*moment), *place),
            None if succeeded(&moves) < plan.at_least => {
                (job.age() + Duration::from_millis(random.below(GAP_MS)), at.other(plan.transport, &mut random))
            }
            None => break,
        };
        at = place;
        while job.runs() && job.age() < due && !plan.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
        cut = plan.is_over();
        if cut || trouble.is_some() || !job.runs() {
            break;
        }
        let asked = job.age();
        match job.migrate(&place.name(&servers, plan, &scene.path)) {
            Ok(report) => {
                if report.code() == "not-identical" {
                    trouble.get_or_insert(format!("a move found a difference: {}", report.reason()));
                }
                moves.push((asked, report));
            }
            // The job may be ending by itself just now, which can take long on a busy machine; anything else shows in how it
            // ended.
            Err(_) if job.ends_within(ENDING) || job.status().is_none() => break,
            Err(why) => trouble = Some(format!("mrcuda migrate: {why}")),
        }
    }
    let is_parked = |job: &Job| job.status().is_some_and(|status| status["devices"][0]["state"] == "parked");
    if job.runs() && is_parked(&job) {
        // In the end it must go on.
        match job.migrate("local") {
            Ok(report) if report.ok() => moves.push((job.age(), report)),
            Ok(report) => trouble = trouble.or(Some(format!("it stays parked: {}", report.reason()))),
            Err(why) => trouble = trouble.or(Some(format!("mrcuda migrate: {why}"))),
        }
    }
    if let Err(e) = std::fs::write(&enough, "") {
        trouble.get_or_insert(format!("{}: {e}", enough.display()));
    }
    let outcome = job.wait(reference.limit);
    let too_few = || {
        let (succeeded, tried) = (succeeded(&moves), moves.len());
        let why = if cut { "the time was over" } else { "they need more seconds" };
        (succeeded < plan.at_least)
            .then(|| format!("only {succeeded} of {} moves succeeded, of {tried} tried: {why}", plan.at_least))
    };
    let verdict = match trouble {
        None if outcome.hung => Verdict::CutOff(reference.limit),
        trouble => {
            trouble.or_else(|| difference(&outcome, reference)).or_else(too_few).map_or(Verdict::Identical, Verdict::Failed)
        }
    };
    if let Some(why) = verdict.why() {
        scene.keep();
        let reports: Vec<String> = moves.iter().map(|(at, r)| format!("{:.3} s {}\n", at.as_secs_f64(), r.0)).collect();
        let trace = format!("{subject} {}\n{why}\n{plan:?}\n{}", args.join(" "), reports.concat());
        for (name, text) in [("trace.txt", &trace), ("native.out", &reference.stdout)] {
            let path = scene.path.join(name);
            std::fs::write(&path, text).unwrap_or_else(|e| eprintln!("{}: {e}", path.display()));
        }
    }
    let wall = outcome.wall;
    let part = |at: Duration| (at.as_secs_f64() / wall.as_secs_f64().max(1e-9)).clamp(0.0, 1.0);
    RunOutcome { verdict, wall, moves: moves.into_iter().map(|(at, report)| (part(at), report)).collect(), cut }
}

/// What is wrong with the end of a run that came in time.
fn difference(outcome: &Outcome, reference: &Reference) -> Option<String> {
    if !outcome.ok() {
        let words = outcome.stderr.lines().last().unwrap_or("no word");
        return Some(match outcome.signal {
            Some(signal) => format!("signal {signal} ended it: {words}"),
            None => format!("exit code {:?}: {words}", outcome.code),
        });
    }
    let mut lines = outcome.stdout.lines();
    for want in reference.stdout.lines() {
        let got = lines.next().unwrap_or("nothing");
        if got != want {
            return Some(format!("it printed `{got}`, natively `{want}`"));
        }
    }
    lines.next().map(|more| format!("it printed more than natively: `{more}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_repeat_and_every_move_goes_somewhere_else() {
        for seed in 0..200 {
            for direction in [Direction::Any, Direction::LocalRemote, Direction::RemoteLocal, Direction::RemoteRemote] {
                let plan = Plan::new(&mut Random::new(seed), (direction, None), None, 1);
                let again = Plan::new(&mut Random::new(seed), (direction, None), None, 1);
                assert_eq!((plan.start, &plan.moves, plan.seed), (again.start, &again.moves, again.seed));
                let mut at = plan.start;
                for (moment, to) in &plan.moves {
                    assert!(*to != at && (0.0..1.0).contains(moment));
                    at = *to;
                }
                assert!(plan.moves.is_sorted_by(|a, b| a.0 <= b.0));
                match direction {
                    Direction::LocalRemote => assert_eq!(plan.start, Place::Local),
                    Direction::RemoteLocal => assert_eq!(plan.moves[0].1, Place::Local),
                    Direction::RemoteRemote => assert_eq!(plan.moves[0].1, Place::Second),
                    Direction::Any => {}
                }
            }
        }
    }

    #[test]
    fn with_a_transport_plans_are_at_servers() {
        for (seed, transport) in (0..50).flat_map(|seed| [(seed, Transport::Plain), (seed, Transport::Shm)]) {
            let plan = Plan::new(&mut Random::new(seed), (Direction::Any, Some(transport)), Some(5), 1);
            let places: Vec<Place> = std::iter::once(plan.start).chain(plan.moves.iter().map(|(_, to)| *to)).collect();
            assert!(places.iter().all(|place| Place::SERVERS.contains(place)), "{places:?}");
            assert!(places.windows(2).all(|pair| pair[0] != pair[1]), "{places:?}");
        }
    }

    #[test]
    fn differences_are_named() {
        let (limit, zero) = (LIMIT, Duration::ZERO);
        let stdout = "a 1\nRESULT ok\n".into();
        let reference = Reference { args: vec![], stoppable: false, stdout, limit, native: zero, expected: zero };
        let end = |code, stdout: &str| Outcome {
            code,
            signal: code.is_none().then_some(9),
            stdout: stdout.into(),
            stderr: "why\n".into(),
            wall: Duration::from_secs(1),
            hung: false,
        };
        assert_eq!(difference(&end(Some(0), "a 1\nRESULT ok\n"), &reference), None);
        assert!(difference(&end(Some(0), "a 2\nRESULT ok\n"), &reference).unwrap().contains("a 2"));
        assert!(difference(&end(Some(0), "a 1\n"), &reference).unwrap().contains("nothing"));
        assert!(difference(&end(Some(0), "a 1\nRESULT ok\nx\n"), &reference).unwrap().contains("more"));
        assert!(difference(&end(Some(2), "a 1\nRESULT ok\n"), &reference).unwrap().contains("code Some(2): why"));
        assert!(difference(&end(None, ""), &reference).unwrap().contains("signal 9"));
    }

    #[test]
    fn a_run_that_was_cut_off_says_so() {
        let verdict = Verdict::CutOff(Duration::from_secs(196));
        assert_eq!(verdict.why().unwrap(), "cut off: it had not ended after 196 s");
        let outcome = RunOutcome { verdict, wall: Duration::from_secs(197), moves: vec![], cut: false };
        assert!(outcome.to_string().starts_with("CUT OFF "), "{outcome}");
        let mut summary = super::super::Summary::default();
        summary.add(&outcome);
        assert!(summary.to_string().contains("1 runs were cut off"), "{summary}");
    }
}
