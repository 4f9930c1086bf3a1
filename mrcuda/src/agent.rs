//! `mrcuda agent`: looks at GPUs and jobs again and again, and moves jobs by the operator's policies. What is to move where, crate `agent`
//! decides; here is what it needs to know, and what is done about it.

mod carry;
mod local;
mod look;
mod metrics;
mod slurm;
pub(crate) mod tell;

use crate::failure::Failure;
use crate::table::note;
use agent::{Decision, Pace, Settings, decide};
use carry::{Outcome, target};
use look::Look;
use metrics::Metrics;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tell::Tell;

/// Arguments of `mrcuda agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// The settings, in TOML (docs/agent.md); read again when they change [default: ~/.config/mrcuda/agent.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Move also jobs with another XDG_RUNTIME_DIR and, for root, those of all users
    #[arg(long)]
    all: bool,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Look once, do what is to be done now, and end
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each decision and outcome
    #[arg(long)]
    json: bool,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics to anyone who can connect; a port alone means 127.0.0.1 [default: nowhere]
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    metrics: Option<String>,
}

/// Times of an agent count from so long before its start: jobs have moved before.
const EARLIER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The file of settings, as it was read last.
struct File {
    path: PathBuf,
    /// What was read last, or why nothing was.
    seen: Result<String, String>,
    settings: Settings,
}

impl File {
    fn read(path: &Path) -> Result<File, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|why| failed(&why))?;
        let settings = Settings::read(&text).map_err(|why| failed(&why))?;
        let settings = look::with_known_names(settings).map_err(|why| failed(&why))?;
        Ok(File { path: path.to_owned(), seen: Ok(text), settings })
    }

    /// Takes new settings if the file has changed. What cannot be used is reported once, and the former settings hold.
    fn renew(&mut self) {
        let seen = std::fs::read_to_string(&self.path).map_err(|why| why.to_string());
        if seen != self.seen {
            match File::read(&self.path) {
                Ok(file) => *self = file,
                Err(why) => (self.seen, ()) = (seen, why.warn(())),
            }
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
    let metrics = Metrics::new();
    let at = args.metrics.as_deref().map(crate::serve::metrics_address).transpose()?;
    let served = at.map(|at| metrics.serve(at)).transpose()?;
    if let Some(at) = served.as_ref().map(|served| served.at) {
        let open = if at.ip().is_loopback() { "" } else { ", for anyone who can connect to it" };
        note(&format!("metrics are at http://{at}/metrics{open}"));
    }
    let (began, mut pace, mut look) = (Instant::now(), Pace::default(), Look::new(args.all, metrics.clone()));
    let (sender, outcomes) = channel();
    let mut shown: Vec<Decision> = Vec::new();
    let patience = patience();
    for round in 0u64.. {
        let now = EARLIER + began.elapsed();
        outcomes.try_iter().for_each(|outcome| settle(&mut pace, &mut look, &outcome, now, (&tell, &metrics)));
        let mut settings = file.settings.clone();
        settings.settle = if args.once { Duration::ZERO } else { settings.settle.mul_f64(patience) };
        let decisions = match look.look(&settings, &mut pace, now, &tell) {
            Ok(world) => decide(&world, &settings, &mut pace, now),
            // What fails later may work the next time.
            Err(why) if round > 0 => why.warn(Vec::new()),
            Err(why) => return Err(why),
        };
        if args.dry_run {
            // What is not done is decided again each time.
            decisions.iter().filter(|d| !shown.contains(d)).for_each(|d| tell.decision(d, true));
            shown = decisions;
        } else {
            for decision in decisions {
                pace.begins(now);
                look.begins(decision.pid, target(&decision));
                metrics.begins(&decision);
                begin(decision, &settings, &sender, &tell);
            }
        }
        if args.once {
            break;
        }
        std::thread::sleep(settings.every);
        file.renew();
    }
    finish(sender, &outcomes, &tell)
}

/// A factor for the time that proposals settle, from 1 to 2, another one for each agent: of several that see the same GPUs one moves first,
/// and the others see that.
fn patience() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    1.0 + f64::from((now.subsec_nanos() ^ std::process::id().wrapping_mul(0x9E37_79B9)) % 1000) / 1000.0
}

/// Carries out a decision in a thread of its own.
fn begin(decision: Decision, settings: &Settings, outcomes: &Sender<Outcome>, tell: &Tell) {
    tell.decision(&decision, false);
    let (of_thread, settings, decided) = (outcomes.clone(), settings.clone(), decision.clone());
    let carry = move || {
        // Nobody takes it if the agent is ending.
        let _ = of_thread.send(carry::out(&decided, &settings));
    };
    if let Err(why) = std::thread::Builder::new().name("mrcuda-move".to_owned()).spawn(carry) {
        let _ = outcomes.send(Outcome::failed(&decision, format!("no thread for its move: {why}")));
    }
}

fn settle(pace: &mut Pace, look: &mut Look, outcome: &Outcome, now: Duration, (tell, metrics): (&Tell, &Metrics)) {
    pace.ended(outcome.pid, outcome.to.as_deref(), outcome.ok, now);
    look.ended(outcome.pid);
    metrics.ended(outcome);
    tell.outcome(outcome);
}

/// Waits for all moves; fails if one has failed.
fn finish(sender: Sender<Outcome>, outcomes: &Receiver<Outcome>, tell: &Tell) -> Result<(), Failure> {
    drop(sender);
    let failed = outcomes.iter().inspect(|outcome| tell.outcome(outcome)).filter(|outcome| !outcome.ok).count();
    if failed == 0 { Ok(()) } else { Err(Failure::silent(1)) }
}
