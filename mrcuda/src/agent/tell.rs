//! What an agent prints: a line for each decision, each outcome, each server that begins or ceases to answer, and when it is not known who
//! uses the GPUs of this machine, or which nodes Slurm drains.

use super::carry::{Outcome, target, word};
use crate::table::{duration, one_line, write};
use agent::Decision;
use serde::Serialize;
use std::time::SystemTime;

/// Writes lines as text or as JSON.
#[derive(Debug)]
pub(crate) struct Tell {
    json: bool,
}

/// A line of `mrcuda agent --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Line<'a> {
    /// RFC 3339, in UTC, with milliseconds.
    time: String,
    #[serde(flatten)]
    event: Event<'a>,
}

/// What has happened.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    /// A policy wants a job to move, and its move begins.
    Decision {
        /// The policy.
        policy: &'a str,
        /// Process id of the job.
        pid: u32,
        /// Name of the job.
        name: &'a str,
        /// `move`, `park` or `resume`.
        action: &'a str,
        /// The target; none for `park`.
        to: Option<&'a str>,
        /// Why, for people.
        why: &'a str,
        /// Whether nothing is done (`--dry-run`).
        dry_run: bool,
    },
    /// A move has ended.
    Outcome {
        /// Process id of the job.
        pid: u32,
        /// Name of the job.
        name: &'a str,
        /// Whether the job is where it was to go.
        ok: bool,
        /// Why it is not.
        reason: Option<&'a str>,
        /// Id of the move, as in `mrcuda moves`; none if the job was not asked to move.
        id: Option<&'a str>,
        /// Time from the start to the end.
        total_ms: Option<f64>,
        /// How long calls were blocked.
        downtime_ms: Option<f64>,
        /// What the models predicted for that.
        predicted_downtime_ms: Option<f64>,
    },
    /// It becomes known who uses the GPUs of this machine, mrcuda or not, or ceases to be.
    LocalGpus {
        /// Whether it is known.
        ok: bool,
        /// Why it is not.
        reason: Option<&'a str>,
    },
    /// It becomes known which nodes Slurm drains, or ceases to be.
    Slurm {
        /// Whether it is known.
        ok: bool,
        /// Why it is not, or what is not known of some servers.
        reason: Option<&'a str>,
    },
    /// A server begins or ceases to answer.
    Server {
        /// Its address, as in the settings.
        server: &'a str,
        /// Whether it answers.
        ok: bool,
        /// Why it does not.
        reason: Option<&'a str>,
    },
}

impl Tell {
    pub(crate) fn new(json: bool) -> Tell {
        Tell { json }
    }

    fn line(&self, event: Event<'_>, text: impl FnOnce() -> String) {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let line = if self.json {
            serde_json::to_string(&Line { time, event }).unwrap_or_default()
        } else {
            format!("{time} {}", one_line(&text()))
        };
        write((line + "\n").as_bytes());
    }

    /// A move begins, or would.
    pub(super) fn decision(&self, d: &Decision, dry_run: bool) {
        let (action, to) = (word(&d.action), target(d));
        let event = Event::Decision { policy: d.policy, pid: d.pid, name: &d.name, action, to, why: &d.why, dry_run };
        self.line(event, || {
            let verb = match (action, dry_run) {
                ("move", false) => "moves to",
                ("move", true) => "would move to",
                ("park", false) => "is parked",
                ("park", true) => "would be parked",
                (_, false) => "goes on at",
                (_, true) => "would go on at",
            };
            let to = to.map_or_else(String::new, |to| format!(" {to}"));
            format!("{}: job {} ({}) {verb}{to}: {}", d.policy, d.pid, d.name, d.why)
        });
    }

    /// A move has ended.
    pub(super) fn outcome(&self, o: &Outcome) {
        let event = Event::Outcome {
            pid: o.pid,
            name: &o.name,
            ok: o.ok,
            reason: o.reason.as_deref(),
            id: o.id.as_deref(),
            total_ms: o.total_ms,
            downtime_ms: o.downtime_ms,
            predicted_downtime_ms: o.predicted_ms,
        };
        self.line(event, || {
            let job = format!("job {} ({})", o.pid, o.name);
            let predicted = o.predicted_ms.map_or_else(String::new, |ms| format!(" (predicted: {})", duration(ms)));
            match (o.ok, o.total_ms, o.downtime_ms) {
                (true, Some(total), Some(downtime)) => {
                    format!("{job}: done in {}, downtime {}{predicted}", duration(total), duration(downtime))
                }
                _ => format!("{job}: failed: {}", o.reason.as_deref().unwrap_or("no reason is known")),
            }
        });
    }

    /// A server begins or ceases to answer.
    pub(super) fn server(&self, server: &str, reason: Option<&str>) {
        self.line(Event::Server { server, ok: reason.is_none(), reason }, || match reason {
            None => format!("server {server} answers"),
            Some(why) => format!("server {server} does not answer: {why}"),
        });
    }

    /// It becomes known who uses the GPUs of this machine, or ceases to be.
    pub(super) fn local_gpus(&self, reason: Option<&str>) {
        self.line(Event::LocalGpus { ok: reason.is_none(), reason }, || match reason {
            None => "NVML says which programs use the GPUs of this machine".to_owned(),
            Some(why) => {
                format!("unknown which programs use this machine's GPUs and how much memory is free there: {why}")
            }
        });
    }
    /// It becomes known which nodes Slurm drains, or ceases to be.
    pub(super) fn slurm(&self, ok: bool, reason: Option<&str>) {
        self.line(Event::Slurm { ok, reason }, || match reason {
            None => "Slurm says which nodes it drains".to_owned(),
            Some(what) if ok => format!("Slurm says which nodes it drains, but {what}"),
            Some(why) => format!("unknown which nodes Slurm drains now: {why}"),
        });
    }
}
