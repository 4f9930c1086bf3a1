//! A service at work for a while: clients at one server, each of which runs one job after the other; moves at random, and by an agent. In the
//! middle the agent is killed and started again, and the server replaced while it serves. Every output must be that of a native run, and
//! what the server's process takes must stay flat.

mod watch;

pub use watch::{Growth, MOST_GROWTH_KIB, MOST_LEFT, Sample};

use crate::agent::Agent;
use crate::job::{Job, JobError};
use crate::random::Random;
use crate::scene::{Hardware, Scene, wait_for};
use crate::server::Server;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// GPUs of the server.
const GPUS: u32 = 4;
/// How softgpu is told.
const SOFT: (&str, &str) = ("SOFTGPU_DEVICES", "4");
/// The machine that the server is.
const MACHINE: &str = "one";
/// A job that takes longer than this beside its own time is stuck.
const STUCK: Duration = Duration::from_secs(300);
/// How long the rest may take when no job is started any more.
const LIMIT: Duration = Duration::from_secs(180);
/// How often jobs are looked after.
const TICK: Duration = Duration::from_millis(50);
/// Of the moves that are asked for, so many must succeed: the others are reported.
const WANTED_SHARE: f64 = 0.9;
const HOUR: f64 = 3600.0;

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Clients that are connected at a time.
    pub clients: usize,
    /// Moves that are asked for in an hour; the agent makes others, as many at most.
    pub moves_per_hour: u32,
    /// For how long jobs are started.
    pub length: Duration,
    /// Steps of the longest jobs; others have half of them, or a quarter.
    pub steps: u32,
    /// Rest of a job after each step.
    pub pace: Duration,
    /// How often the server is measured.
    pub every: Duration,
    /// Seed of everything that is random.
    pub seed: u64,
}

/// How it went.
#[derive(Debug, Default)]
pub struct Summary {
    /// Jobs that have printed what they print natively.
    pub identical: usize,
    /// Moves that were asked for and have succeeded.
    pub moves: usize,
    /// Why others have not, and how often.
    pub refused: BTreeMap<String, usize>,
    /// Moves that were asked for of a job that was ending.
    pub ended_before: usize,
    /// Moves of the agent that have succeeded, before it was killed and after.
    pub of_agent: [usize; 2],
    /// Why others of its moves have not, and how often.
    pub refused_to_agent: BTreeMap<String, usize>,
    /// What the processes of the server have taken.
    pub growth: Vec<Growth>,
    /// Descriptors of the server before the first job, and of the one that has replaced it after the last.
    pub descriptors: [usize; 2],
    /// What must not have happened.
    pub problems: Vec<String>,
}

/// Why there was no service.
#[derive(Debug, thiserror::Error)]
#[error("orbit fails natively: {0}")]
pub struct NativeError(String);

/// A client's job.
struct Client<'a> {
    job: Job<'a>,
    steps: u32,
    name: String,
}

struct Service<'a> {
    scene: &'a Scene,
    plan: &'a Plan,
    random: Random,
    /// What the jobs print natively, by their steps.
    native: BTreeMap<u32, String>,
    clients: Vec<Option<Client<'a>>>,
    started: usize,
    summary: Summary,
}

/// Runs it in this directory, which stays if something is wrong. `tell` gets each sample.
///
/// # Errors
/// The program fails natively.
pub fn run(plan: &Plan, directory: &Path, mut tell: impl FnMut(&Sample)) -> Result<Summary, NativeError> {
    let mut scene = Scene::at(directory, Hardware::Soft);
    let summary = on(&scene, plan, &mut tell)?;
    if !summary.problems.is_empty() {
        scene.keep();
    }
    Ok(summary)
}

fn on(scene: &Scene, plan: &Plan, tell: &mut dyn FnMut(&Sample)) -> Result<Summary, NativeError> {
    let former = Server::start_with(scene, MACHINE, &[], &[SOFT]);
    let clients = (0..plan.clients).map(|_| None).collect();
    let (native, summary) = (native(scene, plan)?, Summary::default());
    let mut service = Service { scene, plan, random: Random::new(plan.seed), native, clients, started: 0, summary };
    service.summary.descriptors[0] = watch::descriptors(former.pid());
    let settings = settings(&former, plan);
    let mut agent = Agent::start(scene, "agent", &settings);
    let (mut new, mut is_again, mut samples) = (None, false, Vec::new());
    let gap = Duration::from_secs_f64(HOUR / f64::from(plan.moves_per_hour));
    let (begun, mut next_move, mut next_sample) = (Instant::now(), gap, plan.every);
    loop {
        let at = begun.elapsed();
        // What comes in the middle comes also where that is late, on a busy machine.
        let is_done = new.is_some() && is_again && agent.moves() > 0;
        if at > plan.length && is_done || at > plan.length + LIMIT {
            break;
        }
        let serving = new.as_ref().unwrap_or(&former);
        service.look_after(serving);
        if at >= next_move {
            service.move_one(serving);
            // A machine that is slow gets fewer of them.
            next_move = (next_move + gap).max(begun.elapsed());
        }
        if at >= next_sample {
            let sample = service.sample(at, serving, &agent);
            tell(&sample);
            samples.push(sample);
            next_sample += plan.every;
        }
        if !is_again && at > plan.length / 3 && agent.moves() > 0 {
            agent.kill();
            service.note_agent(&agent, 0);
            (agent, is_again) = (Agent::start(scene, "agent-again", &settings), true);
        }
        if new.is_none() && at > plan.length / 2 {
            new = Some(former.successor_with(scene, "new", MACHINE, &[SOFT]));
        }
        std::thread::sleep(TICK);
    }
    service.let_end();
    agent.kill();
    service.note_agent(&agent, usize::from(is_again));
    Ok(service.sum_up(former, new, &samples))
}

/// What the program prints natively, for each of its lengths.
fn native(scene: &Scene, plan: &Plan) -> Result<BTreeMap<u32, String>, NativeError> {
    let one = |steps: u32| {
        // Rests change no output.
        let args = ["--steps", &steps.to_string()];
        let outcome = Job::native(scene, "native", &scene.install.file("orbit"), &args).wait(STUCK);
        let is_right = outcome.ok() && outcome.stdout.ends_with("RESULT ok\n");
        is_right.then_some((steps, outcome.stdout)).ok_or(NativeError(outcome.stderr))
    };
    lengths(plan).into_iter().map(one).collect()
}

fn lengths(plan: &Plan) -> [u32; 3] {
    [plan.steps / 4, plan.steps / 2, plan.steps].map(|steps| steps.max(1))
}

/// Jobs start at the first GPU, and the agent spreads them.
fn settings(server: &Server, plan: &Plan) -> String {
    let a_minute = plan.moves_per_hour.div_ceil(60);
    format!(
        "servers = ['{}']\nevery = '500ms'\nsettle = '500ms'\nrest = '5s'\nreserve_mib = 0\nmoves_per_minute = {a_minute}\n[[policy]]\nkind = 'balance'\n",
        server.address
    )
}

impl<'a> Service<'a> {
    /// Takes the jobs that have ended, and starts one where there is none.
    fn look_after(&mut self, server: &Server) {
        self.take_ended();
        // One at a time: so many starts at once would tell of nothing else.
        let Some(free) = self.clients.iter().position(Option::is_none) else { return };
        let steps = *self.random.pick(&lengths(self.plan));
        let place = self.random.pick(&[server.place(0), server.unix_place(0), server.nearest(0)]).clone();
        self.started += 1;
        let name = format!("job-{}", self.started);
        let (steps_text, pace) = (steps.to_string(), self.plan.pace.as_micros().to_string());
        let (orbit, args) = (self.scene.install.file("orbit"), ["--steps", &steps_text, "--pace", &pace]);
        let job = Job::start(self.scene, &name, &["--server", &place, "--name", &name], &orbit, &args, &[]);
        self.clients[free] = Some(Client { job, steps, name });
    }

    fn take_ended(&mut self) {
        for client in &mut self.clients {
            let Some(Client { job, steps, .. }) = client else { continue };
            let is_stuck = job.age() > STUCK + self.plan.pace.saturating_mul(*steps).saturating_mul(4);
            if !is_stuck && job.runs() {
                continue;
            }
            let Some(Client { job, steps, name }) = client.take() else { continue };
            let outcome = job.wait(Duration::ZERO);
            match self.native.get(&steps) {
                _ if is_stuck => self.summary.problems.push(format!("{name} has not ended: {}", outcome.stderr)),
                Some(native) if outcome.ok() && *native == outcome.stdout => self.summary.identical += 1,
                _ => self.summary.problems.push(format!(
                    "{name} has ended with code {:?}, signal {:?}, and printed: {}{}",
                    outcome.code, outcome.signal, outcome.stdout, outcome.stderr
                )),
            }
        }
    }

    /// Asks one of the jobs to move to another GPU of the server, or into its process.
    fn move_one(&mut self, server: &Server) {
        let all: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].is_some()).collect();
        if all.is_empty() {
            return;
        }
        let at = *self.random.pick(&all);
        let (gpu, kind) = (self.random.below(GPUS.into()) as u32, self.random.below(8));
        let Some(client) = &self.clients[at] else { return };
        let Some(from) = client.job.status().and_then(|status| Some(status["devices"][0]["place"].as_str()?.to_owned())) else {
            self.summary.ended_before += 1;
            return;
        };
        // Another GPU than that where it is, of which the name ends with the number.
        let gpu = if from.ends_with(&format!("/{gpu}")) { (gpu + 1) % GPUS } else { gpu };
        let to = match kind {
            0 if from != "local" => "local".to_owned(),
            1..4 => server.unix_place(gpu),
            _ => server.place(gpu),
        };
        // The agent may be moving it.
        match client.job.migrate_with(&to, &["--queue"]) {
            Ok(report) if report.ok() => self.summary.moves += 1,
            Ok(report) => *self.summary.refused.entry(format!("{}: {}", report.code(), report.reason())).or_default() += 1,
            Err(JobError::Gone { .. }) => self.summary.ended_before += 1,
            Err(why) => *self.summary.refused.entry(why.to_string()).or_default() += 1,
        }
    }

    fn sample(&self, at: Duration, server: &Server, agent: &Agent) -> Sample {
        let (summary, running) = (&self.summary, self.clients.iter().flatten().count());
        let of_agent = agent.outcomes();
        let moved = of_agent.iter().filter(|line| line["ok"] == true).count();
        Sample {
            running,
            ended: self.started - running,
            failed: summary.problems.len(),
            moves: summary.moves + summary.of_agent[0] + moved,
            unmoved: summary.refused.values().chain(summary.refused_to_agent.values()).sum::<usize>() + of_agent.len() - moved,
            ..watch::sample(at, server)
        }
    }

    /// Notes what an agent has done that has ended.
    fn note_agent(&mut self, agent: &Agent, which: usize) {
        self.summary.of_agent[which] = agent.moves();
        for line in agent.outcomes().iter().filter(|line| line["ok"] != true) {
            *self.summary.refused_to_agent.entry(line["reason"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
    }

    /// Waits for the jobs; none is started any more.
    fn let_end(&mut self) {
        while self.clients.iter().any(Option::is_some) {
            self.take_ended();
            std::thread::sleep(TICK);
        }
    }

    /// Looks at what is left when all jobs have ended.
    fn sum_up(self, mut former: Server, new: Option<Server>, samples: &[Sample]) -> Summary {
        let mut summary = self.summary;
        let Some(mut new) = new else {
            summary.problems.push("the server was not replaced".to_owned());
            return summary;
        };
        match former.wait_ended(LIMIT) {
            Some(status) if status.success() => {}
            Some(status) => summary.problems.push(format!("the former server has ended with {status}")),
            None => summary.problems.push("the former server has not ended when its jobs had".to_owned()),
        }
        let [before, after] = &mut summary.descriptors;
        // Its last workers are ending.
        let is_empty = wait_for(LIMIT, || {
            *after = watch::descriptors(new.pid());
            (*after <= *before + MOST_LEFT).then_some(())
        });
        if is_empty.is_none() {
            summary.problems.push(format!("{after} descriptors are left where {before} were before the first job"));
        }
        if !new.runs() {
            summary.problems.push("the new server has ended".to_owned());
        }
        summary.growth = [former.pid(), new.pid()].into_iter().filter_map(|pid| Growth::of(pid, samples)).collect();
        summary.problems.extend(summary.growth.iter().filter_map(Growth::problem));
        let refused: usize = summary.refused.values().sum();
        if (summary.moves as f64) < WANTED_SHARE * (summary.moves + refused) as f64 {
            summary.problems.push(format!("{refused} moves were refused, and {} were made", summary.moves));
        }
        if summary.of_agent.contains(&0) {
            summary.problems.push(format!("the agents have made {:?} moves", summary.of_agent));
        }
        summary
    }
}
