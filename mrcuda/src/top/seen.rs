//! What jobs and servers have answered so far, and the rates between two answers.

use super::query::Answer;
use crate::follow;
use crate::gpus::Server;
use crate::jobs::{Listed, State, without_gpu};
use control::{Carried, Device, Move};
use std::collections::BTreeMap;
use std::time::Instant;

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) jobs: BTreeMap<u32, Known>,
    /// What keeps jobs from being found.
    pub(super) problems: Vec<String>,
    pub(super) servers: Vec<Asked>,
    /// Whether jobs of all users are shown.
    pub(super) all: bool,
    /// Whether it is known which jobs there are.
    pub(super) has_found: bool,
    changes: u64,
}

/// A server, and its last answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) server: String,
    pub(super) answer: Option<Server>,
}

/// A job, and what its answers have shown.
#[derive(Debug)]
pub(super) struct Known {
    at: Instant,
    pub(super) listed: Listed,
    /// What it did between its last two answers; `None` if that is not known.
    pub(super) rates: Option<Rates>,
    copying: follow::Rate,
    /// Bytes a second that the move under way copies.
    pub(super) copied: Option<f64>,
    /// Its moves, the last one last.
    pub(super) moves: Vec<Move>,
}

/// What passed a job's links in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) calls: f64,
    /// In both directions.
    pub(super) bytes: f64,
}

impl Seen {
    pub(super) fn new(servers: Vec<String>, all: bool) -> Seen {
        let servers = servers.into_iter().map(|server| Asked { server, answer: None }).collect();
        Seen { jobs: BTreeMap::new(), problems: Vec::new(), servers, all, has_found: false, changes: 0 }
    }

    /// Increases with everything that becomes known.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// These processes may be jobs. Others have ended.
    pub(super) fn found(&mut self, pids: &[u32], problems: Vec<String>) {
        self.jobs.retain(|pid, _| pids.contains(pid));
        self.problems = problems;
        self.has_found = true;
        self.changes += 1;
    }

    /// Why it is not known which jobs there are now.
    pub(super) fn not_found(&mut self, why: String) {
        self.problems = vec![why];
        self.changes += 1;
    }

    /// A job has answered; `None`: it has ended.
    pub(super) fn answered(&mut self, pid: u32, answer: Option<Answer>) {
        self.changes += 1;
        let before = self.jobs.remove(&pid);
        let Some(Answer { at, listed, moves }) = answer else { return };
        let rates = before.as_ref().and_then(|before| {
            rates(&before.listed.job.devices, &listed.job.devices, at.saturating_duration_since(before.at).as_secs_f64())
        });
        let is_same_move = before.as_ref().is_some_and(|before| before.listed.job.moving == listed.job.moving);
        let (copying, known) = before.map(|before| (before.copying, before.moves)).unwrap_or_default();
        let mut copying = if is_same_move { copying } else { follow::Rate::default() };
        let copied = listed.moving().and_then(|it| copying.at(at, it.bytes));
        self.jobs.insert(pid, Known { at, listed, rates, copying, copied, moves: moves.unwrap_or(known) });
    }

    /// The server with this number has answered.
    pub(super) fn server(&mut self, number: usize, answer: Server) {
        self.changes += 1;
        if let Some(asked) = self.servers.get_mut(number) {
            asked.answer = Some(answer);
        }
    }
}

/// The rates between two answers. A GPU that has moved meanwhile has another link, and counts again from the next answer on; so does one
/// whose counters have become smaller, which only something that is no job of ours would say.
fn rates(before: &[Device], now: &[Device], seconds: f64) -> Option<Rates> {
    let difference = |now: &Device| {
        let before =
            before.iter().find(|it| (it.device, it.since_unix_ms, &it.place) == (now.device, now.since_unix_ms, &now.place));
        let (before, now): (Carried, Carried) = (before?.link?, now.link?);
        let received = now.bytes_received.checked_sub(before.bytes_received)?;
        let bytes = now.bytes_sent.checked_sub(before.bytes_sent)?.saturating_add(received);
        Some((now.calls.checked_sub(before.calls)?, bytes))
    };
    let differences: Vec<(u64, u64)> = now.iter().filter_map(difference).collect();
    if differences.is_empty() || seconds <= 0.0 {
        return None;
    }
    let sum = |part: fn(&(u64, u64)) -> u64| differences.iter().map(|it| part(it) as f64).sum::<f64>() / seconds;
    Some(Rates { calls: sum(|it| it.0), bytes: sum(|it| it.1) })
}

impl Known {
    /// What the job does, in a word.
    pub(super) fn state(&self) -> &'static str {
        match (self.listed.state(), self.rates) {
            (state, _) if self.listed.job.devices.is_empty() => without_gpu(state),
            (State::Running, Some(rates)) if rates.calls > 0.0 => "working",
            (State::Running, Some(_)) => "waiting",
            (State::Running, None) => "running",
            (State::Moving, _) => "moving",
            (State::Parked, _) => "parked",
            (State::Failed, _) => "failed",
            (state @ (State::Stopped | State::NotAnswering), _) => without_gpu(state),
        }
    }

    /// Its places, the one of the first GPU first.
    pub(super) fn places(&self) -> String {
        let places: Vec<&str> = self.listed.job.devices.iter().map(|device| device.place.as_str()).collect();
        if places.is_empty() { "-".to_owned() } else { places.join(",") }
    }

    /// Bytes that the program has allocated.
    pub(super) fn memory(&self) -> u64 {
        self.listed.job.devices.iter().fold(0, |sum, device| sum.saturating_add(device.used_bytes))
    }

    /// Its last move that has ended. The rounds of a copy that is kept current are none.
    pub(super) fn last_move(&self) -> Option<&Move> {
        self.moves.iter().rev().find(|it| it.state.is_over() && it.by != "every")
    }
}
