//! Drains that an administrator asks for: the daemon takes no new jobs and asks those that it serves to move away, but does not end.

use super::State;
use super::asker::Asker;
use super::closed::Closed;
use super::drain::Drain;
use super::error::{AssignError, ServeError};
use super::log::LogLine;
use super::pool::{Occupant, Profile};
use crate::endpoint::Endpoint;
use crate::place_spec::{PlaceSpec, PlaceSpecError};
use crate::server_drain::{DrainRequest, DrainState, DrainWish, NAMED, NotLeft};
use crate::sync::lock;
use crate::threads;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between two checks whether jobs have left, or have to be asked again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a request about a drain is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDrainedNow {
    #[error(
        "only this server's administrator may have it drained: whoever has its own token, and its user and root on its machine"
    )]
    NotPermitted,
    #[error("the server is ending")]
    Ending,
    #[error(transparent)]
    Place(#[from] PlaceSpecError),
    #[error("{0}")]
    Places(ServeError),
    #[error("no thread for it: {0}")]
    Thread(io::Error),
}

impl State {
    /// Whether it takes no new jobs.
    pub(super) fn takes_no_jobs(&self) -> bool {
        self.is_ending() || self.closing.is_closed()
    }

    /// An error for a job that comes when it takes none.
    pub(super) fn check_open(&self) -> Result<(), AssignError> {
        if self.is_ending() {
            Err(AssignError::Stopping)
        } else if self.closing.is_closed() {
            Err(AssignError::Closed)
        } else {
            Ok(())
        }
    }

    /// Does what a client wants of a drain, and says how far it is.
    pub(super) fn change_drain(
        self: &Arc<Self>,
        asker: &Asker,
        peer: &str,
        request: &DrainRequest,
    ) -> Result<DrainState, NotDrainedNow> {
        if *asker != Asker::Administrator {
            return Err(NotDrainedNow::NotPermitted);
        }
        if request.wish != DrainWish::Show && self.is_ending() {
            return Err(NotDrainedNow::Ending);
        }
        match request.wish {
            DrainWish::Show => {}
            DrainWish::Begin => self.close(peer, request)?,
            DrainWish::Cancel => self.reopen(peer),
        }
        Ok(self.drain_state())
    }

    fn close(self: &Arc<Self>, peer: &str, request: &DrainRequest) -> Result<(), NotDrainedNow> {
        let timeout = Duration::from_millis(request.limit_ms);
        let drain = match &request.to {
            None => None,
            Some(to) => {
                let to = to.split(',').map(str::parse).collect::<Result<Vec<PlaceSpec>, _>>()?;
                let drain = Drain { to, timeout };
                drain.check(self.pool.gpus() as usize).map_err(NotDrainedNow::Places)?;
                Some(drain)
            }
        };
        let closed = Arc::new(Closed { drain, until: Instant::now() + timeout, is_over: AtomicBool::new(false) });
        if let Some(before) = lock(&self.closing.current).replace(closed.clone()) {
            self.end_drain(&before);
        }
        self.pool.end_warm();
        let workers = self.with_jobs().len();
        let to = if closed.drain.is_some() { format!(", which are asked to move to {}", closed.words()) } else { String::new() };
        let text = format!("an administrator at {peer} closes this server for new jobs; workers with jobs{to}: {workers}");
        self.requests.log.say(&LogLine::info(text).at_peer(peer));
        self.pool.events().drain(true, &closed.words(), workers);
        if closed.drain.is_none() {
            return Ok(());
        }
        self.forget_leaves();
        let state = Arc::downgrade(self);
        let ask = move || {
            while let Some(state) = state.upgrade().filter(|state| !state.ask_all(&closed)) {
                drop(state);
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        threads::spawn("drain", ask).map(drop).map_err(NotDrainedNow::Thread)
    }

    /// Asks the jobs to move away that are to be asked. Returns whether the drain is over.
    fn ask_all(&self, closed: &Closed) -> bool {
        let _alone = lock(&self.closing.asking);
        let now = Instant::now();
        if closed.is_over.load(Ordering::SeqCst) || self.is_ending() {
            return true;
        }
        if !self.pool.has_clients() || now >= closed.until {
            self.end_drain(closed);
            return true;
        }
        for (worker, ..) in self.with_jobs() {
            if let Some(to) = closed.drain.as_ref().and_then(|drain| drain.target(worker.gpu())) {
                worker.ask_to_leave(&to, closed.until - now);
            }
        }
        false
    }

    /// Jobs that were asked to move are asked again, whatever they have answered. Who asked them before no longer does.
    pub(super) fn forget_leaves(&self) {
        let _alone = lock(&self.closing.asking);
        self.with_jobs().iter().for_each(|(worker, ..)| worker.forget_leave());
    }

    fn end_drain(&self, closed: &Closed) {
        if closed.end() {
            let workers = self.with_jobs().len();
            self.requests.log.say(&LogLine::info(format!("jobs are no longer asked to move away; workers with jobs: {workers}")));
            self.pool.events().drain(false, &closed.words(), workers);
        }
    }

    fn reopen(self: &Arc<Self>, peer: &str) {
        let Some(closed) = lock(&self.closing.current).take() else { return };
        self.end_drain(&closed);
        self.requests.log.say(&LogLine::info(format!("an administrator at {peer} opens this server for new jobs")).at_peer(peer));
        for gpu in 0..self.pool.gpus() {
            super::warm_later(self, Profile { gpu, virtual_device: 0, env: Vec::new(), user: None });
        }
    }

    /// The workers that have jobs, and the processes of these.
    fn with_jobs(&self) -> Vec<(Arc<super::pool::Worker>, u32)> {
        let job = |(worker, occupant)| match occupant {
            Occupant::Job(client) => Some((worker, client.pid())),
            Occupant::Nobody => None,
        };
        self.pool.occupants().into_iter().filter_map(job).collect()
    }

    fn drain_state(&self) -> DrainState {
        let closed = lock(&self.closing.current).clone();
        let asking = closed.filter(|closed| closed.drain.is_some() && !closed.is_over.load(Ordering::SeqCst));
        let jobs = self.with_jobs();
        let left = asking.as_ref().map_or(Duration::ZERO, |closed| closed.until.saturating_duration_since(Instant::now()));
        DrainState {
            closed: self.takes_no_jobs(),
            ending: self.is_ending(),
            to: asking.map(|closed| closed.words()),
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            workers: jobs.len() as u32,
            jobs: jobs
                .iter()
                .take(NAMED)
                .map(|(worker, pid)| NotLeft {
                    worker: worker.pid(),
                    gpu: Some(worker.gpu()).filter(|gpu| *gpu != Endpoint::MEMORY),
                    pid: *pid,
                    reason: worker.last_stay(),
                })
                .collect(),
        }
    }
}
