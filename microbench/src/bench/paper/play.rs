//! Jobs that work in steps ([`crate::work`]), at the same time, and moves of them when one of them is so far: the engine of the
//! experiments with whole runs.

use super::lab::{At, Lab};
use crate::bench::stage::{Process, Stage};
use crate::error::Error;
use serde_json::Value;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// What a job does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) mib: u64,
    pub(super) steps: u64,
    pub(super) launches: u32,
    /// Launches of a step that change memory, and one word of how many.
    pub(super) sweeps: u32,
    pub(super) stride: u64,
    /// Bytes copied in and out in each step.
    pub(super) bytes: u64,
    /// Rest between two steps, in microseconds.
    pub(super) rest: u64,
}

/// Percent of a job between two of its words.
const EVERY: u64 = 5;
/// Steps of a run that only shows how long a step takes.
const TRIAL: u64 = 30;
/// Bounds of the steps of a run.
const STEPS: (u64, u64) = (40, 200_000);

impl Load {
    /// A simulation in which little time passes between calls that wait, as in LAMMPS.
    pub(super) fn simulation(lab: &Lab<'_>) -> Load {
        let (mib, stride) = lab.scale((2, 1024), (256, 1));
        Load { mib, steps: TRIAL, launches: 40, sweeps: 2, stride, bytes: 16 << 10, rest: 0 }
    }

    /// Work that keeps a GPU busy.
    pub(super) fn heavy(lab: &Lab<'_>) -> Load {
        let (mib, sweeps) = lab.scale((1, 1), (1024, 20));
        Load { mib, steps: TRIAL, launches: 0, sweeps, stride: 1, bytes: 4096, rest: 0 }
    }

    /// The same work with so many steps that a run takes about this long there.
    pub(super) fn lasting(self, lab: &Lab<'_>, at: &At, seconds: f64) -> Result<Load, Error> {
        let trial = play(lab, &[Job::new("trial", at, Load { steps: TRIAL, ..self })], &[])?;
        let step = trial.jobs[0].number("step_seconds") + self.rest as f64 / 1e6;
        let steps = (seconds / step.max(1e-6)) as u64;
        Ok(Load { steps: steps.clamp(STEPS.0, STEPS.1), ..self })
    }

    fn args(&self) -> Vec<String> {
        let numbers = [
            ("--mib", self.mib),
            ("--steps", self.steps),
            ("--launches", self.launches.into()),
            ("--sweeps", self.sweeps.into()),
            ("--stride", self.stride),
            ("--bytes", self.bytes),
            ("--rest", self.rest),
            ("--every", EVERY),
        ];
        let args = numbers.iter().flat_map(|(name, n)| [(*name).to_owned(), n.to_string()]);
        std::iter::once("work".to_owned()).chain(args).collect()
    }
}

/// When a job has done so many percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct When {
    pub(super) job: usize,
    pub(super) percent: u64,
}

/// A job of an experiment.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) at: At,
    pub(super) load: Load,
    /// When it begins, if not at once.
    pub(super) begins: Option<When>,
    /// Further arguments.
    pub(super) more: Vec<String>,
}

impl Job {
    /// One that begins at once.
    pub(super) fn new(name: &str, at: &At, load: Load) -> Job {
        Job { name: name.to_owned(), at: at.clone(), load, begins: None, more: Vec::new() }
    }
}

/// What is done to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Move(String),
    /// Into this machine's memory.
    Park,
    Resume(String),
}

/// Something that is done to a job at some time.
#[derive(Debug, Clone)]
pub(super) struct Action {
    pub(super) job: usize,
    pub(super) when: When,
    pub(super) step: Step,
}

/// What became of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct Ran {
    /// Seconds since the beginning of all, and how much was done then, in percent.
    pub(super) marks: Vec<(f64, f64)>,
    /// When it ended, in seconds since the beginning of all.
    pub(super) ended: f64,
    /// What it says at its end.
    said: Value,
}

impl Ran {
    /// A number of what it says at its end.
    pub(super) fn number(&self, key: &str) -> f64 {
        self.said[key].as_f64().unwrap_or(0.0)
    }

    /// Seconds of its steps.
    pub(super) fn seconds(&self) -> f64 {
        self.number("seconds")
    }
}

/// What became of an action.
#[derive(Debug)]
pub(super) struct Acted {
    pub(super) report: Result<Value, Error>,
    /// When it was over, in seconds since the beginning of all.
    pub(super) over: f64,
}

/// What became of all.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) jobs: Vec<Ran>,
    /// In the order of the actions; `None` for one whose time did not come.
    pub(super) actions: Vec<Option<Acted>>,
    pub(super) began: Instant,
}

impl Outcome {
    /// When the last job ended.
    pub(super) fn makespan(&self) -> f64 {
        self.jobs.iter().map(|job| job.ended).fold(0.0, f64::max)
    }

    /// The report of an action that was over before its job ended.
    pub(super) fn report(&self, number: usize, action: &Action) -> Result<&Value, String> {
        let acted = self.actions[number].as_ref().ok_or("its time did not come")?;
        let report = acted.report.as_ref().map_err(ToString::to_string)?;
        if acted.over > self.jobs[action.job].ended {
            return Err("the job ended before its move did".to_owned());
        }
        Ok(report)
    }
}

/// What a job says while it works.
enum Word {
    Percent(f64),
    Done(Value),
    Failed(Error),
}

/// A word of a job, and when it came.
struct Event {
    job: usize,
    at: Instant,
    word: Word,
}

/// Lets a job begin when it may, and passes on what it says. Returns the process, which ends with its input.
fn follow(job: usize, mut process: Process, begin: &Receiver<()>, say: &Sender<Event>) -> Option<Process> {
    // Nobody listens any more only if the experiment has failed.
    let tell = |word| drop(say.send(Event { job, at: Instant::now(), word }));
    begin.recv().ok()?;
    if let Err(why) = process.send_line("go") {
        tell(Word::Failed(why));
        return None;
    }
    loop {
        match process.answer() {
            Ok(answer) if answer["done"] == true => {
                tell(Word::Done(answer));
                return Some(process);
            }
            Ok(answer) => tell(Word::Percent(answer["percent"].as_f64().unwrap_or(0.0))),
            Err(why) => {
                tell(Word::Failed(why));
                return None;
            }
        }
    }
}

fn act(stage: &Stage, pid: u32, step: &Step) -> Result<Value, Error> {
    match step {
        Step::Move(to) => stage.migrate(pid, to),
        Step::Park => stage.suspend(pid),
        Step::Resume(to) => stage.resume(pid, to),
    }
}

/// Runs jobs to their ends.
pub(super) fn play(lab: &Lab<'_>, jobs: &[Job], actions: &[Action]) -> Result<Outcome, Error> {
    let stage = lab.bench.stage;
    let start = |job: &Job| {
        let args = job.load.args();
        let args: Vec<&str> = args.iter().chain(&job.more).map(String::as_str).collect();
        // Places of one GPU represent those of several machines: memory is copied, not handed over.
        lab.start(&job.at, &args, &[("MRCUDA_FAULT_NO_ADOPTION", "1")])
    };
    let mut processes = jobs.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    processes.iter_mut().try_for_each(|process| process.answer().map(drop))?;
    let pids: Vec<u32> = processes.iter().map(Process::pid).collect();
    let (say, events) = channel();
    let began = Instant::now();
    let since = |at: Instant| at.saturating_duration_since(began).as_secs_f64();
    let mut ran = vec![Ran::default(); jobs.len()];
    let mut failed = None;
    let (acted, processes) = std::thread::scope(|scope| {
        let mut begins = Vec::new();
        let mut followers = Vec::new();
        for (number, process) in processes.into_iter().enumerate() {
            let (begin, told) = channel();
            begins.push(Some(begin));
            let say = say.clone();
            followers.push(scope.spawn(move || follow(number, process, &told, &say)));
        }
        drop(say);
        let mut acting: Vec<Option<std::thread::ScopedJoinHandle<'_, Acted>>> = actions.iter().map(|_| None).collect();
        // Of each job: closed when what was last begun with it is over.
        let mut last: Vec<Option<Receiver<()>>> = jobs.iter().map(|_| None).collect();
        let mut begin = |number: usize| {
            if let Some(begin) = begins[number].take() {
                // One that has ended already says so itself.
                let _ = begin.send(());
            }
        };
        jobs.iter().enumerate().filter(|(_, job)| job.begins.is_none()).for_each(|(number, _)| begin(number));
        for Event { job, at, word } in events {
            let percent = match word {
                Word::Percent(percent) => percent,
                Word::Done(said) => {
                    ran[job].said = said;
                    ran[job].ended = since(at);
                    100.0
                }
                Word::Failed(why) => {
                    failed.get_or_insert_with(|| Error::Found(format!("{}: {why}", jobs[job].name)));
                    // Jobs that wait for others to be so far would wait for ever.
                    (0..jobs.len()).for_each(&mut begin);
                    continue;
                }
            };
            ran[job].marks.push((since(at), percent));
            let due = |when: &When| when.job == job && percent >= when.percent as f64;
            (0..jobs.len()).filter(|n| jobs[*n].begins.as_ref().is_some_and(due)).for_each(&mut begin);
            for (number, action) in actions.iter().enumerate() {
                if acting[number].is_none() && due(&action.when) {
                    let pid = pids[action.job];
                    let (over, next) = channel::<()>();
                    let before = last[action.job].replace(next);
                    acting[number] = Some(scope.spawn(move || {
                        // A job that is still being parked cannot be resumed: nothing is ever sent, so this waits for the end of the other.
                        let _ = before.map(|before| before.recv());
                        let report = act(stage, pid, &action.step);
                        drop(over);
                        Acted { report, over: since(Instant::now()) }
                    }));
                }
            }
        }
        let acted: Vec<Option<Acted>> = acting.into_iter().map(|a| a.and_then(|thread| thread.join().ok())).collect();
        let processes: Vec<Process> = followers.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect();
        (acted, processes)
    });
    if let Some(why) = failed {
        return Err(why);
    }
    processes.into_iter().try_for_each(Process::finish)?;
    Ok(Outcome { jobs: ran, actions: acted, began })
}
