//! How often and how soon proposals are carried out.

use crate::proposal::{Action, Proposal};
use crate::settings::Settings;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A failed job is tried again after [`Settings::rest`], then after twice as long, and so on up to this.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// When something failed last, and how often in a row.
#[derive(Debug, Clone, Copy)]
struct Failures {
    at: Duration,
    count: u32,
}

impl Failures {
    /// Whether it is too early to try again.
    fn hold(self, settings: &Settings, now: Duration) -> bool {
        let first = settings.rest.max(settings.every);
        let back_off = first.saturating_mul(1 << self.count.saturating_sub(1).min(16)).min(LONGEST_BACK_OFF);
        now.saturating_sub(self.at) < back_off
    }
}

/// What happened so far. Times are since any one moment, such as the agent's start.
#[derive(Debug, Default)]
pub struct Pace {
    /// Since when each proposal is made each time: by job and policy.
    proposed: HashMap<(u32, &'static str), Duration>,
    /// Those of this round.
    seen: Vec<(u32, &'static str)>,
    /// When the moves of the last minute began.
    begun: VecDeque<Duration>,
    /// When each job has arrived where it is.
    arrived: HashMap<u32, Duration>,
    /// The jobs whose last move has failed.
    failed: HashMap<u32, Failures>,
    /// The places at which a job has failed to arrive since it last succeeded.
    failed_at: HashMap<(u32, String), Failures>,
}

impl Pace {
    /// Notes that a proposal of a policy is made, and returns whether it may be carried out now. What is urgent need not settle, and the job need
    /// not have rested; but to park a job is never so urgent that it need not settle.
    pub(crate) fn allows(
        &mut self,
        proposal: &Proposal,
        (policy, is_urgent): (&'static str, bool),
        settings: &Settings,
        now: Duration,
    ) -> bool {
        let key = (proposal.pid, policy);
        self.seen.push(key);
        let since = *self.proposed.entry(key).or_insert(now);
        let is_settled = now.saturating_sub(since) >= settings.settle;
        let is_rested = self.arrived.get(&proposal.pid).is_none_or(|at| now.saturating_sub(*at) >= settings.rest);
        let is_due = match proposal.action {
            Action::Park => is_settled,
            Action::Move(_) | Action::Resume(_) => is_urgent || is_settled && is_rested,
        };
        is_due && !self.failed.get(&proposal.pid).is_some_and(|failures| failures.hold(settings, now))
    }

    /// Whether a job has lately failed to arrive at a place.
    pub(crate) fn avoids(&self, pid: u32, place: &str, settings: &Settings, now: Duration) -> bool {
        // Twice as long: the job is tried at another place first.
        let later = |failures: &Failures| Failures { count: failures.count + 1, ..*failures };
        self.failed_at.get(&(pid, place.to_owned())).is_some_and(|failures| later(failures).hold(settings, now))
    }

    /// Whether another move may begin now, beside so many that have just been decided.
    pub(crate) fn has_room(&mut self, decided: usize, settings: &Settings, now: Duration) -> bool {
        while self.begun.front().is_some_and(|at| now.saturating_sub(*at) >= MINUTE) {
            self.begun.pop_front();
        }
        self.begun.len() + decided < settings.moves_per_minute as usize
    }

    /// Ends a round: what was not proposed in it has to settle again. `jobs` are those that exist.
    pub(crate) fn end_round(&mut self, jobs: impl Fn(u32) -> bool) {
        let seen = std::mem::take(&mut self.seen);
        self.proposed.retain(|key, _| seen.contains(key));
        self.arrived.retain(|pid, _| jobs(*pid));
        self.failed.retain(|pid, _| jobs(*pid));
        self.failed_at.retain(|(pid, _), _| jobs(*pid));
    }

    /// Notes that a decision is being carried out.
    pub fn begins(&mut self, now: Duration) {
        self.begun.push_back(now);
    }

    /// Notes how a move ended, and to which place it was to go if it was not one into host memory.
    pub fn ended(&mut self, pid: u32, to: Option<&str>, ok: bool, now: Duration) {
        if ok {
            self.arrived.insert(pid, now);
            self.failed.remove(&pid);
            self.failed_at.retain(|(other, _), _| *other != pid);
            return;
        }
        let fails = |failures: &mut Failures| *failures = Failures { at: now, count: failures.count.saturating_add(1) };
        let never = Failures { at: now, count: 0 };
        fails(self.failed.entry(pid).or_insert(never));
        if let Some(place) = to {
            fails(self.failed_at.entry((pid, place.to_owned())).or_insert(never));
        }
    }

    /// Notes that a job has arrived where it is without the agent.
    pub fn arrived(&mut self, pid: u32, at: Duration) {
        self.arrived.insert(pid, at);
    }
}
