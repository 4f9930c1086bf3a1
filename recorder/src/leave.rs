//! Follows a server that asks this job to move away because it is about to end (docs/servers.md).
//!
//! The request comes over the connection to one place. It becomes a move like any other, requested by the server: it is queued, reported
//! and can be cancelled. The job refuses what a server must not decide.

use crate::base::log::lock;
use crate::base::spawn::spawn;
use crate::job::{self, Device, Job};
use crate::move_error::MoveError;
use crate::mover;
use crate::moves;
use ::control::{Migrate, Move, ReasonCode};
use rcuda_forwarder::{Control, Endpoint, LeaveRequest, Link, PlaceSpec, PlaceSpecError};
use std::sync::{Mutex, Weak};
use std::time::{Duration, Instant};

/// How long the job waits for the requests of its other GPUs at the same server: those that use each other's memory move only together.
const COLLECTING: Duration = Duration::from_millis(200);
/// Interval between two checks whether the job has started, and whether an earlier move is over.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of requests that wait: one for each GPU, and for each target of a move that is under way.
const WAITING: usize = 64;

/// Why a job does not do what a server asks.
#[derive(Debug, thiserror::Error)]
enum StayError {
    /// A server must not decide that.
    #[error(
        "a server may not ask a job to move to `{0}`: a job follows servers to encrypted places, and to GPUs and memory of its own machine"
    )]
    NotForServers(PlaceSpec),
    /// The text names no place.
    #[error(transparent)]
    Place(#[from] PlaceSpecError),
    /// The move was refused.
    #[error(transparent)]
    Move(#[from] MoveError),
}

/// A request of the server of one place.
#[derive(Debug)]
struct Asked {
    /// The place whose server asks.
    at: PlaceSpec,
    /// The connection to it, for the reason why the job stays.
    link: Weak<Link>,
    to: String,
    until: Instant,
}

/// Requests that have not been followed, and whether a thread does that.
static ASKED: Mutex<(Vec<Asked>, bool)> = Mutex::new((Vec::new(), false));

/// Takes a request; a thread of its own follows it.
pub(crate) fn asked(at: &PlaceSpec, link: &Weak<Link>, request: LeaveRequest) {
    // A limit that no clock can express is as good as none.
    let now = Instant::now();
    let until = now.checked_add(request.limit).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)));
    let mut asked = lock(&ASKED);
    let (waiting, followed) = &mut *asked;
    if note(waiting, Asked { at: at.clone(), link: link.clone(), to: request.to, until }) && !*followed {
        match spawn("mrcuda-leave", follow_all) {
            Ok(()) => *followed = true,
            Err(why) => tracing::warn!(target: "job", "cannot follow a server that is ending: {why}"),
        }
    }
}

/// Adds a request, unless there is one over the same connection, or too many.
fn note(waiting: &mut Vec<Asked>, request: Asked) -> bool {
    let is_new =
        waiting.len() < WAITING && waiting.iter().all(|other| other.at != request.at || !other.link.ptr_eq(&request.link));
    if is_new {
        waiting.push(request);
    }
    is_new
}

fn follow_all() {
    loop {
        std::thread::sleep(COLLECTING);
        let asked = {
            let mut asked = lock(&ASKED);
            if asked.0.is_empty() {
                asked.1 = false;
                return;
            }
            std::mem::take(&mut asked.0)
        };
        follow(&asked);
    }
}

/// Moves the GPUs that are still at the places whose servers have asked.
fn follow(asked: &[Asked]) {
    let Some(until) = asked.iter().map(|asked| asked.until).max() else { return };
    let servers = asked.iter().map(|asked| asked.at.to_string()).collect::<Vec<_>>().join(", ");
    let (concerned, moved) = loop {
        // A move that is under way, or was asked for by somebody else before the next attempt, may bring a GPU to such a place, or away from it.
        let job = loop {
            match job::opened() {
                Some(job) if moves::now() == (None, Vec::new()) => break job,
                _ if Instant::now() >= until => return,
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        };
        let concerned = concerned(job, asked);
        if concerned.is_empty() {
            return;
        }
        match move_away(job, &concerned, until) {
            // Long kernels: the server waits for them, too.
            Ok(report) if report.code == Some(ReasonCode::NotIdle) && Instant::now() < until => {}
            // Another move came first, and may have taken the GPU elsewhere.
            Err(StayError::Move(MoveError::Busy { .. } | MoveError::AlreadyThere)) if Instant::now() < until => {
                std::thread::sleep(POLL_INTERVAL);
            }
            moved => break (concerned, moved),
        }
    };
    let why = match &moved {
        Ok(report) if report.ok => return,
        // The move has written why.
        Ok(report) => report.reason.clone().unwrap_or_default(),
        Err(why) => {
            tracing::warn!(target: "job", "the server of {servers} is ending, and this job does not move away: {why}");
            why.to_string()
        }
    };
    for link in concerned.iter().filter_map(|(_, asked)| asked.link.upgrade()) {
        // A server that has ended meanwhile needs no reason.
        let _ = link.control(&Control::Stay { why: why.clone() });
    }
}

/// The GPUs that are at places whose servers have asked.
fn concerned<'a>(job: &'static Job, asked: &'a [Asked]) -> Vec<(&'static Device, &'a Asked)> {
    let at = |place: &str| asked.iter().find(|asked| asked.at.to_string() == place);
    job.devices.iter().filter_map(|device| Some((device, at(&device.whereabouts().place)?))).collect()
}

/// Carries out the move, and waits for its end.
fn move_away(job: &'static Job, concerned: &[(&'static Device, &Asked)], until: Instant) -> Result<Move, StayError> {
    let mut targets = Vec::new();
    for (device, asked) in concerned {
        let to: PlaceSpec = asked.to.parse()?;
        allowed(&asked.at, &to)?;
        // What is parked stays parked: only its user lets it go on.
        if asked.at.is_store() && !to.is_store() {
            return Err(StayError::NotForServers(to));
        }
        targets.push((*device, to));
    }
    // A job that is parked moves with all its GPUs, also those that stay.
    if mover::parked::home().is_some() {
        for device in job.devices.iter().filter(|device| concerned.iter().all(|(other, _)| other.index != device.index)) {
            targets.push((device, device.whereabouts().place.parse()?));
        }
        targets.sort_by_key(|(device, _)| device.index);
    }
    let left = u64::try_from(until.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX);
    let to = targets.iter().map(|(_, to)| to.to_string()).collect::<Vec<_>>().join(",");
    let wanted = Migrate { deadline_ms: Some(left), ..Migrate::to(&to) };
    tracing::info!(target: "job", "a server is ending and asks this job to move to {to}");
    let from = concerned.iter().map(|(device, asked)| (device.index, asked.at.to_string())).collect();
    let id = moves::request_by_server(job, wanted, targets, from, mover::run)?;
    Ok(moves::wait_for(&id)?)
}

/// Whether a server, whose place is `at`, may ask the job to move to `to`. It must not make the job write files, give up encryption, or use
/// the sockets of its own machine.
fn allowed(at: &PlaceSpec, to: &PlaceSpec) -> Result<(), StayError> {
    // Calls over RDMA are not encrypted, but its greeting is, and checks the certificate; without encryption nothing is checked.
    let protection = |server: &Endpoint| match server.unix_path() {
        None if server.plain => 0,
        None if server.rdma => 1,
        _ => 2,
    };
    let is_allowed = match (at, to) {
        (_, PlaceSpec::File(_)) => false,
        (_, PlaceSpec::Local(_) | PlaceSpec::Helper(_) | PlaceSpec::Memory) => true,
        (PlaceSpec::Remote(at), PlaceSpec::Remote(to)) if to.unix_path().is_some() => at.unix_path().is_some(),
        (PlaceSpec::Remote(at), PlaceSpec::Remote(to)) => protection(to) >= protection(at),
        // Places without a server.
        (_, PlaceSpec::Remote(_)) => false,
    };
    if is_allowed { Ok(()) } else { Err(StayError::NotForServers(to.clone())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(at: &str, to: &str) -> bool {
        allowed(&at.parse().unwrap(), &to.parse().unwrap()).is_ok()
    }

    #[test]
    fn a_server_may_name_other_servers_and_the_gpus_and_memory_of_the_job() {
        for at in ["a:1/0", "unix:/run/a/0", "plain://a:1/0", "a:1/memory"] {
            for to in ["b:1/3", "tls://b:1", "local", "local:1", "helper", "memory", "b:1/memory"] {
                assert!(may(at, to), "{at} {to}");
            }
        }
        assert!(may("unix:/run/a/0", "unix:/run/b/1"));
    }

    #[test]
    fn a_server_decides_neither_files_nor_encryption_nor_local_sockets() {
        for (at, to) in [
            ("a:1/0", "file:/home/you/.ssh"),
            ("unix:/run/a/0", "file:/scratch"),
            ("a:1/0", "plain://b:1/0"),
            ("a:1/0", "rdma://b:1/0"),
            ("a:1/0", "unix:/run/docker.sock"),
            ("plain://a:1/0", "unix:/run/docker.sock"),
            ("unix:/run/a/0", "plain://b:1/0"),
            ("helper", "b:1/0"),
        ] {
            assert!(!may(at, to), "{at} {to}");
        }
        // What is not encrypted now need not be encrypted then.
        for (at, to) in [("plain://a:1/0", "plain://b:1/0"), ("rdma://a:1/0", "rdma://b:1/0")] {
            assert!(may(at, to), "{at} {to}");
        }
    }

    #[test]
    fn a_server_that_asks_again_and_again_fills_no_memory() {
        let asked = |at: &str| Asked { at: at.parse().unwrap(), link: Weak::new(), to: "local".into(), until: Instant::now() };
        let mut waiting = Vec::new();
        assert!(note(&mut waiting, asked("a:1/0")) && !note(&mut waiting, asked("a:1/0")) && note(&mut waiting, asked("a:1/1")));
        for port in 1..=1000 {
            note(&mut waiting, asked(&format!("b:{port}/0")));
        }
        assert_eq!(waiting.len(), WAITING);
    }

    #[test]
    fn refusals_name_the_place() {
        let why = allowed(&"a:1/0".parse().unwrap(), &"file:/x".parse().unwrap()).unwrap_err();
        assert!(why.to_string().contains("to move to `file:/x`: "), "{why}");
    }
}
