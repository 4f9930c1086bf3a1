//! How often and how soon proposals are carried out.

use crate::policy::{Policy, Proposal};
use crate::settings::Settings;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A failed job is tried again after [`Settings::rest`], then after twice as long, and so on up to this.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// What happened so far. Times are since any one moment, such as the agent's start.
#[derive(Debug, Default)]
pub struct Pace {
    /// Since when each proposal is made each time: by job and policy.
    proposed: HashMap<(u32, &'static str), Duration>,
    /// Those of this round.
    seen: Vec<(u32, &'static str)>,
    /// When the moves of the last minute began.
    begun: VecDeque<Duration>,
    /// When the last move of each job ended, and how many have failed in a row.
    ended: HashMap<u32, (Duration, u32)>,
}

impl Pace {
    /// Notes that a proposal is made, and returns whether it may be carried out now.
    pub(crate) fn allows(&mut self, proposal: &Proposal, policy: &Policy, settings: &Settings, now: Duration) -> bool {
        let key = (proposal.pid, policy.name());
        self.seen.push(key);
        let since = *self.proposed.entry(key).or_insert(now);
        let (rest, failed) = match self.ended.get(&proposal.pid) {
            Some((at, failures)) => (now.saturating_sub(*at), *failures),
            None => (Duration::MAX, 0),
        };
        let back_off = match failed {
            0 => Duration::ZERO,
            n => settings.rest.max(settings.every).saturating_mul(1 << (n - 1).min(16)).min(LONGEST_BACK_OFF),
        };
        let is_due = policy.is_urgent() || (now.saturating_sub(since) >= settings.settle && rest >= settings.rest);
        is_due && rest >= back_off
    }

    /// Whether another move may begin now.
    pub(crate) fn has_room(&mut self, settings: &Settings, now: Duration) -> bool {
        while self.begun.front().is_some_and(|at| now.saturating_sub(*at) >= MINUTE) {
            self.begun.pop_front();
        }
        self.begun.len() < settings.moves_per_minute as usize
    }

    /// Notes that a move begins.
    pub(crate) fn begins(&mut self, now: Duration) {
        self.begun.push_back(now);
    }

    /// Ends a round: what was not proposed in it has to settle again. `jobs` are those that exist.
    pub(crate) fn end_round(&mut self, jobs: impl Fn(u32) -> bool) {
        let seen = std::mem::take(&mut self.seen);
        self.proposed.retain(|key, _| seen.contains(key));
        self.ended.retain(|pid, _| jobs(*pid));
    }

    /// Notes how a move ended, or that a job was seen to have arrived somewhere without the agent.
    pub fn ended(&mut self, pid: u32, ok: bool, now: Duration) {
        let failures = self.ended.get(&pid).map_or(0, |(_, failures)| *failures);
        self.ended.insert(pid, (now, if ok { 0 } else { failures.saturating_add(1) }));
    }
}
