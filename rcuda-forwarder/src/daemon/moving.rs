//! Requests to move jobs: the daemon checks whether who asks may do so, and asks the job through its worker.

use super::State;
use super::accounting::End;
use super::asker::Asker;
use super::client::Client;
use super::log::LogLine;
use super::pool::{Occupant, Worker};
use super::requested::{GRACE, Outcome};
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet;
use crate::move_request::{MoveAnswer, MoveOutcome, MoveRequest, MovedGpu};
use crate::place_spec::{PlaceSpec, PlaceSpecError};
use cuda_api::wire::Wire;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two messages to who waits for the outcome.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of jobs that a refusal names.
const NAMED: usize = 8;

/// Why no job was asked.
#[derive(Debug, thiserror::Error)]
enum NotAsked {
    #[error("this server has no job with process id {0} (mrcuda gpus lists its jobs)")]
    NoSuchJob(u32),
    #[error("worker {worker} of this server has no job with process id {pid} (mrcuda gpus lists its jobs)")]
    NoSuchWorker { pid: u32, worker: u32 },
    #[error("job {0} is of another user: the job's own user and the server's administrator may have it moved")]
    NotPermitted(u32),
    #[error("several jobs have the process id {pid}: name a worker ({which})")]
    Ambiguous { pid: u32, which: String },
    #[error(transparent)]
    Place(#[from] PlaceSpecError),
    #[error("a server names no files of its jobs: ask the job itself, on its machine, to move to `{0}`")]
    File(PlaceSpec),
    #[error("the job has {gpus} of this server's GPUs, but {places} places are named: name one, or one for each")]
    Places { places: usize, gpus: usize },
}

impl NotAsked {
    fn outcome(&self) -> MoveOutcome {
        match self {
            NotAsked::NoSuchJob(_) | NotAsked::NoSuchWorker { .. } => MoveOutcome::NoSuchJob,
            NotAsked::NotPermitted(_) => MoveOutcome::NotPermitted,
            NotAsked::Ambiguous { .. } => MoveOutcome::Ambiguous,
            NotAsked::Place(_) | NotAsked::File(_) | NotAsked::Places { .. } => MoveOutcome::Invalid,
        }
    }
}

/// A worker whose job is asked.
struct Asked {
    worker: Arc<Worker>,
    to: PlaceSpec,
    /// The number of the request; `None`: it could not be made.
    number: Option<u64>,
}

impl Asked {
    /// What has become of it.
    fn result(&self, until: Instant) -> (MoveOutcome, Option<String>) {
        let why = |text: &str| Some(text.to_owned());
        let Some(number) = self.number else {
            return (MoveOutcome::Busy, why("it is still being started, or has not answered an earlier request"));
        };
        match self.worker.requested().outcome(number, until) {
            Some(Outcome::Stays(reason)) => (MoveOutcome::Refused, Some(reason)),
            Some(Outcome::Over(End::Left, true)) => (MoveOutcome::Moved, None),
            Some(Outcome::Over(End::Left, false)) => (MoveOutcome::Ended, why("the job has ended, or left without its memory")),
            Some(Outcome::Over(End::Failed | End::ServerEnded, _)) => (MoveOutcome::Failed, why("the job's worker has failed")),
            None => (MoveOutcome::NoAnswer, why("the job has neither moved nor answered in time")),
        }
    }

    fn is_known(&self, until: Instant) -> bool {
        self.number.is_none_or(|number| self.worker.requested().outcome(number, until).is_some())
    }
}

/// The places for so many GPUs.
fn places(text: &str, gpus: usize) -> Result<Vec<PlaceSpec>, NotAsked> {
    let mut to = text.split(',').map(str::parse).collect::<Result<Vec<PlaceSpec>, _>>()?;
    if let Some(file) = to.iter().find(|to| matches!(to, PlaceSpec::File(_))) {
        return Err(NotAsked::File(file.clone()));
    }
    match to.len() {
        1 => to.resize(gpus, to[0].clone()),
        n if n != gpus => return Err(NotAsked::Places { places: n, gpus }),
        _ => {}
    }
    Ok(to)
}

impl State {
    /// Has a job move, if who asks may do that, and tells the client what has become of it.
    pub(super) fn move_job(&self, conn: &Conn, asker: &Asker, request: &MoveRequest) -> io::Result<()> {
        let began = Instant::now();
        let (outcome, reason, gpus) = match self.find_job(asker, request) {
            Err(why) => (why.outcome(), Some(why.to_string()), Vec::new()),
            Ok(job) => {
                let until = began + Duration::from_millis(request.limit_ms);
                let asked = self.ask(conn, asker, job, until);
                self.await_outcomes(conn, &asked, until + GRACE)?;
                let gpus: Vec<MovedGpu> = asked.iter().map(moved_gpu).collect();
                let stays = gpus.iter().find(|gpu| gpu.outcome != MoveOutcome::Moved);
                let whole = stays.map_or((MoveOutcome::Moved, None), |gpu| (gpu.outcome, gpu.reason.clone()));
                (whole.0, whole.1, gpus)
            }
        };
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut body = Vec::new();
        MoveAnswer { outcome, reason, gpus, took_ms }.put(&mut body);
        greet::answer(conn, Ok(&body))
    }

    /// The workers of the job, in the order of its devices, and where each is to move.
    fn find_job(&self, asker: &Asker, request: &MoveRequest) -> Result<Vec<(Arc<Worker>, Client, PlaceSpec)>, NotAsked> {
        let MoveRequest { pid, worker: named, .. } = *request;
        let of_job = |(worker, occupant): (Arc<Worker>, Occupant)| match occupant {
            Occupant::Job(client) if client.pid() == pid => Some((worker, client)),
            _ => None,
        };
        let mut found: Vec<(Arc<Worker>, Client)> = self.pool.occupants().into_iter().filter_map(of_job).collect();
        if let Some(named) = named {
            found.retain(|(worker, _)| worker.pid() == named);
        }
        if found.is_empty() {
            return Err(named.map_or(NotAsked::NoSuchJob(pid), |worker| NotAsked::NoSuchWorker { pid, worker }));
        }
        found.retain(|(_, client)| asker.may_move(client));
        let Some((_, first)) = found.first() else { return Err(NotAsked::NotPermitted(pid)) };
        if found.iter().any(|(_, client)| !client.is_same_job(first)) {
            let named = found.iter().take(NAMED).map(|(worker, client)| format!("{} of {}", worker.pid(), client.words()));
            return Err(NotAsked::Ambiguous { pid, which: named.collect::<Vec<_>>().join("; ") });
        }
        // What is in the server's memory beside a job that runs is a copy of it.
        if named.is_none() && found.iter().any(|(worker, _)| worker.gpu() != Endpoint::MEMORY) {
            found.retain(|(worker, _)| worker.gpu() != Endpoint::MEMORY);
        }
        found.sort_by_key(|(worker, _)| worker.virtual_device());
        let places = places(&request.to, found.len())?;
        Ok(found.into_iter().zip(places).map(|((worker, client), to)| (worker, client, to)).collect())
    }

    /// Asks a job to move by then.
    fn ask(&self, conn: &Conn, asker: &Asker, job: Vec<(Arc<Worker>, Client, PlaceSpec)>, until: Instant) -> Vec<Asked> {
        let ask = |(worker, client, to): (Arc<Worker>, Client, PlaceSpec)| {
            let number = worker.request_move(&to, until);
            if number.is_some() {
                let (pid, gpu) = (worker.pid(), worker.gpu());
                let text = format!("{} at {} asks {} to move to {to} (worker {pid})", asker.words(), conn.peer(), client.words());
                self.requests.log.say(&client.on(LogLine::info(text)).of_worker(pid, gpu));
                self.pool.events().asked(pid, gpu, &client, &to.to_string());
            }
            Asked { worker, to, number }
        };
        job.into_iter().map(ask).collect()
    }

    /// Waits until the outcomes are known, and tells the client meanwhile that it has to wait. An error if the client has disconnected: the
    /// job may move all the same.
    fn await_outcomes(&self, conn: &Conn, asked: &[Asked], until: Instant) -> io::Result<()> {
        loop {
            let next = until.min(Instant::now() + MESSAGE_INTERVAL);
            if asked.iter().all(|asked| asked.is_known(next)) || Instant::now() >= until {
                return Ok(());
            }
            greet::keep_waiting(conn, "the job has not answered")?;
            if conn.wait_gone(Duration::ZERO) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// A job stays, because of what it was asked by this request, or because the daemon ends.
    pub(super) fn note_stay(&self, worker: &Worker, request: Option<u64>, why: &str) {
        let why = super::events::cut(why);
        let is_news = match request {
            None => worker.note_stay(&why),
            Some(number) => worker.requested().stays(number, &why),
        };
        if !is_news {
            return;
        }
        let text = format!("worker {}: its job does not move away: {why}", worker.pid());
        self.refusals.say(&LogLine::warning(text).of_worker(worker.pid(), worker.gpu()));
        if let Some(client) = worker.client() {
            self.pool.events().stays(worker.pid(), worker.gpu(), &client, &why);
        }
    }
}

fn moved_gpu(asked: &Asked) -> MovedGpu {
    let (outcome, reason) = asked.result(Instant::now());
    MovedGpu {
        worker: asked.worker.pid(),
        gpu: Some(asked.worker.gpu()).filter(|gpu| *gpu != Endpoint::MEMORY),
        to: asked.to.to_string(),
        outcome,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_is_for_all_gpus_or_each_has_its_own() {
        let words = |text, gpus| places(text, gpus).map(|to| to.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        assert_eq!(words("b:1/3", 2).unwrap(), "b:1/3 b:1/3");
        assert_eq!(words("b:1/0,local", 2).unwrap(), "b:1/0 local");
        for (text, gpus) in [("b:1,c:1", 1), ("b:1,c:1", 3), ("", 1), ("b:1,", 2), ("nowhere", 1), ("file:/scratch", 1)] {
            assert_eq!(words(text, gpus).unwrap_err().outcome(), MoveOutcome::Invalid, "{text}");
        }
    }
}
