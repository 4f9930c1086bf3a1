//! `mrcuda agent`: looks at GPUs and jobs again and again, and moves jobs by the operator's policies. What is to move where, crate `agent`
//! decides; here is what it needs to know, and what is done about it.

mod carry;
mod look;
pub(crate) mod tell;

use crate::failure::Failure;
use crate::table::note;
use agent::{Decision, Pace, Settings, decide};
use carry::Outcome;
use look::Look;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tell::Tell;

/// Arguments of `mrcuda agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// The settings, in TOML (docs/agent.md); read again when they change [default: ~/.config/mrcuda/agent.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Look once, do what is to be done now, and end
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each decision and outcome
    #[arg(long)]
    json: bool,
}

/// The file of settings, as it was read last.
struct File {
    path: PathBuf,
    text: String,
    settings: Settings,
}

impl File {
    fn read(path: &Path) -> Result<File, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|why| failed(&why))?;
        let settings = Settings::read(&text).map_err(|why| failed(&why))?;
        look::servers(&settings).map_err(|why| failed(&why))?;
        Ok(File { path: path.to_owned(), text, settings })
    }

    /// Takes new settings if the file has changed. What cannot be used is reported once, and the former settings hold.
    fn renew(&mut self) {
        match std::fs::read_to_string(&self.path) {
            Ok(text) if text == self.text => {}
            text => match File::read(&self.path) {
                Ok(file) => *self = file,
                Err(why) => {
                    why.warn(());
                    self.text = text.unwrap_or_default();
                }
            },
        }
    }
}

/// The usual file.
fn usual_file() -> Result<PathBuf, Failure> {
    let beside = crate::predict::default_file().and_then(|models| Some(models.parent()?.join("agent.toml")));
    beside.ok_or_else(|| Failure::new("there is no home directory: name the settings with --config"))
}

/// Looks and moves jobs, until it is ended.
pub(crate) fn agent(args: &AgentArgs) -> Result<(), Failure> {
    let path = args.config.clone().map_or_else(usual_file, Ok)?;
    let mut file = File::read(&path)?;
    let tell = Tell::new(args.json);
    let (began, mut pace, mut look) = (Instant::now(), Pace::default(), Look::default());
    let (sender, outcomes) = channel();
    let mut shown: Vec<Decision> = Vec::new();
    loop {
        let now = began.elapsed();
        outcomes.try_iter().for_each(|outcome| settle(&mut pace, &outcome, now, &tell));
        let mut settings = file.settings.clone();
        if args.once {
            settings.settle = Duration::ZERO;
        }
        let world = look.look(&settings, &mut pace, now, &tell)?;
        let decisions = decide(&world, &settings, &mut pace, now);
        if args.dry_run {
            // What is not done is decided again each time.
            decisions.iter().filter(|d| !shown.contains(d)).for_each(|d| tell.decision(d, true));
            shown = decisions;
        } else {
            decisions.into_iter().for_each(|decision| begin(decision, &settings, &sender, &tell));
        }
        if args.once {
            return finish(sender, &outcomes, &tell);
        }
        std::thread::sleep(settings.every);
        file.renew();
    }
}

/// Carries out a decision in a thread of its own.
fn begin(decision: Decision, settings: &Settings, outcomes: &Sender<Outcome>, tell: &Tell) {
    tell.decision(&decision, false);
    let (outcomes, settings) = (outcomes.clone(), settings.clone());
    let carry = move || {
        // Nobody takes it if the agent is ending.
        let _ = outcomes.send(carry::out(&decision, &settings));
    };
    if let Err(why) = std::thread::Builder::new().name("mrcuda-move".to_owned()).spawn(carry) {
        note(&format!("no thread for a move: {why}"));
    }
}

fn settle(pace: &mut Pace, outcome: &Outcome, now: Duration, tell: &Tell) {
    pace.ended(outcome.pid, outcome.ok, now);
    tell.outcome(outcome);
}

/// Waits for all moves; fails if one has failed.
fn finish(sender: Sender<Outcome>, outcomes: &Receiver<Outcome>, tell: &Tell) -> Result<(), Failure> {
    drop(sender);
    let failed = outcomes.iter().inspect(|outcome| tell.outcome(outcome)).filter(|outcome| !outcome.ok).count();
    if failed == 0 { Ok(()) } else { Err(Failure::silent(1)) }
}
