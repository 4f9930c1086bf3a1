//! Collects what an agent has to know.

use super::carry::ID;
use super::tell::Tell;
use crate::ask::ANSWER_TIMEOUT;
use crate::failure::Failure;
use crate::gpus::ask;
use crate::jobs::{self, Listed};
use agent::{Gpu, Job, JobState, Pace, Settings, World};
use control::{Client, DeviceState};
use nix::unistd::Uid;
use rcuda_forwarder::{Endpoint, EndpointError, ServerState};
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A server in the settings is none.
#[derive(Debug, thiserror::Error)]
#[error("server `{server}`: {source}")]
pub(super) struct NoServer {
    server: String,
    source: EndpointError,
}

/// The servers that settings name.
pub(super) fn servers(settings: &Settings) -> Result<Vec<Endpoint>, NoServer> {
    let read = |server: &String| server.parse().map_err(|source| NoServer { server: server.clone(), source });
    settings.servers.iter().map(read).collect()
}

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Why each server did not answer last time.
    silent: HashMap<String, Option<String>>,
    /// Since when each job is at its place.
    since: HashMap<u32, u64>,
}

/// What two spellings of one GPU have in common.
fn same(place: &str) -> String {
    match place.parse::<Endpoint>() {
        Ok(at) => format!("{}/{}", at.server(), at.gpu),
        Err(_) if place == "local" => "local:0".to_owned(),
        Err(_) => place.to_owned(),
    }
}

impl Look {
    /// Asks all servers and jobs.
    pub(super) fn look(&mut self, settings: &Settings, pace: &mut Pace, now: Duration, tell: &Tell) -> Result<World, Failure> {
        let servers = servers(settings).map_err(Failure::new)?;
        let (states, listed) = std::thread::scope(|threads| {
            let asking: Vec<_> = servers.iter().map(|at| threads.spawn(move || ask(at).map_err(|why| why.to_string()))).collect();
            let listed = jobs::all(Uid::effective().is_root());
            let panicked = || Err("it could not be asked".to_owned());
            (asking.into_iter().map(|asked| asked.join().unwrap_or_else(|_| panicked())).collect::<Vec<_>>(), listed)
        });
        let mut world = World::default();
        for ((at, name), state) in servers.iter().zip(&settings.servers).zip(states) {
            self.note_server(name, state.as_ref().err(), tell);
            if let Ok(state) = state {
                world.gpus.extend(gpus_of(at, name, state));
            }
        }
        let local = |gpu| Gpu { place: format!("local:{gpu}"), server: "local".into(), free_bytes: None, takes_jobs: true, others: 0 };
        world.gpus.extend((0..settings.local_gpus).map(local));
        let listed = listed?;
        listed.iter().for_each(|job| add_job(&mut world, settings, job));
        // A server counts all its jobs; those that have become the agent's own are no others.
        for gpu in 0..world.gpus.len() {
            let own = world.jobs_on(gpu).count() as u32;
            world.gpus[gpu].others = world.gpus[gpu].others.saturating_sub(own);
        }
        self.note_arrivals(&listed, pace, now);
        Ok(world)
    }

    /// Says when a server begins or ceases to answer.
    fn note_server(&mut self, name: &str, reason: Option<&String>, tell: &Tell) {
        let before = self.silent.insert(name.to_owned(), reason.cloned());
        if before.map_or(reason.is_some(), |before| before.is_some() != reason.is_some()) {
            tell.server(name, reason.map(String::as_str));
        }
    }

    /// A job that somebody else has moved rests as if the agent had.
    fn note_arrivals(&mut self, listed: &[Listed], pace: &mut Pace, now: Duration) {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let since: HashMap<u32, u64> =
            listed.iter().filter_map(|it| Some((it.job.pid, it.job.devices.first()?.since_unix_ms))).collect();
        for (pid, at) in &since {
            if self.since.get(pid).is_some_and(|before| before != at) {
                pace.ended(*pid, true, now.saturating_sub(Duration::from_millis(unix_ms.saturating_sub(*at))));
            }
        }
        self.since = since;
    }
}

/// The GPUs of a server.
fn gpus_of(at: &Endpoint, name: &str, state: ServerState) -> Vec<Gpu> {
    let takes_jobs = !state.ending;
    let gpu = |(gpu, it): (usize, rcuda_forwarder::GpuState)| Gpu {
        place: Endpoint { gpu: gpu as u32, ..at.clone() }.to_string(),
        server: name.to_owned(),
        free_bytes: it.free_bytes,
        takes_jobs,
        others: it.jobs.len() as u32,
    };
    state.gpus.into_iter().enumerate().map(gpu).collect()
}

/// Adds a job, if the agent may move it: it has one GPU, and no rule leaves it alone.
fn add_job(world: &mut World, settings: &Settings, listed: &Listed) {
    let [device] = &listed.job.devices[..] else { return };
    let gpu = world.gpus.iter().position(|gpu| same(&gpu.place) == same(&device.place));
    let rule = settings.rule(&listed.job.name);
    if rule.is_some_and(|rule| rule.leave) {
        // The count of a server has it already.
        if let Some(gpu) = gpu.filter(|gpu| world.gpus[*gpu].server == "local") {
            world.gpus[gpu].others += 1;
        }
        return;
    }
    let pid = listed.job.pid;
    let state = match device.state {
        _ if !listed.answers() || !listed.job.queued.is_empty() => JobState::Busy,
        DeviceState::Running => JobState::Running,
        DeviceState::Parked => JobState::Parked { by_agent: was_parked_by_agent(pid) },
        DeviceState::Moving | DeviceState::Failed => JobState::Busy,
    };
    // A home may be spelled in another way than the GPU that it names.
    let home = rule.and_then(|rule| rule.home.as_deref()).map(|home| {
        let there = world.gpus.iter().find(|gpu| same(&gpu.place) == same(home));
        there.map_or_else(|| home.to_owned(), |gpu| gpu.place.clone())
    });
    let priority = rule.map_or(0, |rule| rule.priority);
    // No server has counted it.
    if let Some(gpu) = gpu.filter(|gpu| world.gpus[*gpu].server == "local") {
        world.gpus[gpu].others += 1;
    }
    world.jobs.push(Job { pid, name: listed.job.name.clone(), gpu, used_bytes: device.used_bytes, state, priority, home });
}

/// Whether the move that has parked a job was an agent's, this one's or one's before it.
fn was_parked_by_agent(pid: u32) -> bool {
    let moves = Client::connect(pid).and_then(|mut client| client.report(None, Some(ANSWER_TIMEOUT)));
    let last = moves.unwrap_or_default().into_iter().filter(|it| it.ok).max_by_key(|it| it.at_unix_ms);
    last.is_some_and(|it| it.id.starts_with(ID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_gpu_are_the_same() {
        for (one, other) in [("gpubox:7878", "tls://gpubox:7878/0"), ("local", "local:0"), ("unix:/a/b", "unix:/a/b/0")] {
            assert_eq!(same(one), same(other));
        }
        for (one, other) in [("gpubox:7878/1", "gpubox:7878/0"), ("local:1", "local"), ("a:7878", "b:7878"), ("helper:0", "local")] {
            assert_ne!(same(one), same(other));
        }
    }
}
