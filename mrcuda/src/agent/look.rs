//! Collects what an agent has to know.

use super::carry::ID;
use super::local::LocalGpus;
use super::metrics::Metrics;
use super::slurm::Slurm;
use super::tell::Tell;
use crate::ask::ANSWER_TIMEOUT;
use crate::failure::Failure;
use crate::gpus::ask;
use crate::jobs::{self, Listed};
use agent::{Choice, Gpu, Job, JobRule, JobState, LOCAL, Pace, Policy, Settings, World};
use control::{Client, DeviceState};
use cuda_api::clock::unix_ms;
use rcuda_forwarder::{Endpoint, EndpointError, GpuState, ServerState};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// What is wrong with a name in the settings.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameError {
    #[error("server `{server}`: {source}")]
    Server { server: String, source: EndpointError },
    #[error("server `{0}`: a server is named without a GPU")]
    Gpu(String),
    #[error("server `{0}` is named twice")]
    Twice(String),
    #[error("`drain`: `{0}` is none of the servers")]
    Drain(String),
    #[error("`slurm_nodes`: `{0}` is none of the servers")]
    Node(String),
    #[error("job `{name}`: home `{home}` is no GPU of these servers or of `local_gpus`")]
    Home { name: String, home: String },
}

/// The settings with one spelling for each server; refuses what could only be meant otherwise.
pub(super) fn with_known_names(mut settings: Settings) -> Result<Settings, NameError> {
    let mut known: Vec<String> = Vec::new();
    for server in &settings.servers {
        let at: Endpoint = server.parse().map_err(|source| NameError::Server { server: server.clone(), source })?;
        if at.gpu != 0 || server.ends_with("/0") {
            return Err(NameError::Gpu(server.clone()));
        }
        if known.contains(&at.server()) {
            return Err(NameError::Twice(server.clone()));
        }
        known.push(at.server());
    }
    let known_name = |server: &str| server.parse::<Endpoint>().map(|at| at.server()).ok().filter(|at| known.contains(at));
    for policy in &mut settings.policies {
        let Policy::Drain { servers, .. } = policy else { continue };
        for server in servers {
            *server = known_name(server).ok_or_else(|| NameError::Drain(server.clone()))?;
        }
    }
    let nodes = std::mem::take(&mut settings.slurm_nodes).into_iter();
    settings.slurm_nodes =
        nodes.map(|(server, node)| Ok((known_name(&server).ok_or(NameError::Node(server))?, node))).collect::<Result<_, _>>()?;
    for JobRule { name, home, .. } in &settings.jobs {
        let Some(home) = home else { continue };
        let is_local = (0..settings.local_gpus).any(|gpu| same(home) == format!("{LOCAL}:{gpu}"));
        if !is_local && !home.parse::<Endpoint>().is_ok_and(|at| known.contains(&at.server())) {
            return Err(NameError::Home { name: name.clone(), home: home.clone() });
        }
    }
    Ok(settings)
}

/// What is remembered from one look to the next.
#[derive(Debug)]
pub(super) struct Look {
    /// Whether it looks for the jobs of all users.
    all: bool,
    /// The GPUs of each server as it answered last, and the processes there; whether it answered this time.
    servers: HashMap<String, (Vec<Served>, bool)>,
    /// Since when each job is at its place.
    since: HashMap<u32, u64>,
    /// The places and memory of each job as it answered last.
    devices: HashMap<u32, Vec<(String, u64)>>,
    /// The jobs whose moves are under way, and the places where they are to arrive.
    pending: HashMap<u32, Option<String>>,
    local: LocalGpus,
    slurm: Slurm,
    metrics: Metrics,
}

/// A GPU of a server or of this machine, with the processes that use it.
#[derive(Debug, Clone)]
struct Served {
    gpu: Gpu,
    pids: Vec<u32>,
}

/// What two spellings of one GPU have in common. A helper uses a GPU of this machine, as a job's own process does.
fn same(place: &str) -> String {
    let number = |rest: &str| if rest.is_empty() { Some("0".to_owned()) } else { rest.strip_prefix(':').map(str::to_owned) };
    let local = ["local", "helper"].iter().find_map(|kind| number(place.strip_prefix(kind)?));
    match (place.parse::<Endpoint>(), local) {
        (_, Some(number)) => format!("{LOCAL}:{number}"),
        (Ok(at), None) => format!("{}/{}", at.server(), at.gpu),
        (Err(_), None) => place.to_owned(),
    }
}

impl Look {
    pub(super) fn new(all: bool, metrics: Metrics) -> Look {
        let (since, devices, pending) = (HashMap::new(), HashMap::new(), HashMap::new());
        Look {
            all,
            servers: HashMap::new(),
            since,
            devices,
            pending,
            local: LocalGpus::default(),
            slurm: Slurm::default(),
            metrics,
        }
    }

    /// Notes that a move begins.
    pub(super) fn begins(&mut self, pid: u32, to: Option<&str>) {
        self.pending.insert(pid, to.map(str::to_owned));
    }

    /// Notes that a move has ended.
    pub(super) fn ended(&mut self, pid: u32) {
        self.pending.remove(&pid);
    }

    /// Asks all servers and jobs.
    pub(super) fn look(&mut self, settings: &Settings, pace: &mut Pace, now: Duration, tell: &Tell) -> Result<World, Failure> {
        let servers: Vec<Endpoint> = settings.servers.iter().filter_map(|server| server.parse().ok()).collect();
        let (states, listed, local) = std::thread::scope(|threads| {
            let asking: Vec<_> = servers.iter().map(|at| threads.spawn(move || ask(at).map_err(|why| why.to_string()))).collect();
            let listed = jobs::all(self.all);
            let local = self.local.look(settings.local_gpus, tell);
            self.slurm.look(&servers, settings, tell);
            let panicked = || Err("it could not be asked".to_owned());
            (asking.into_iter().map(|asked| asked.join().unwrap_or_else(|_| panicked())).collect::<Vec<_>>(), listed, local)
        });
        let listed = listed?;
        let mut served: Vec<Served> = Vec::new();
        let mut is_incomplete = false;
        for (at, state) in servers.iter().zip(states) {
            let (name, answers) = (at.server(), state.is_ok());
            let node = self.slurm.drained(at, settings.slurm_nodes.get(&name));
            // There may be room at a server that does not answer, unless no job may go there.
            is_incomplete |=
                !answers && settings.policies.iter().all(|policy| policy.why_drained(&name, node.as_ref()).is_none());
            for mut of_server in self.take(at, state, tell) {
                of_server.gpu.draining_node = node.clone();
                of_server.gpu.takes_jobs &= !self.slurm.is_unknown();
                served.push(of_server);
            }
        }
        served.extend(local.into_iter().map(|(gpu, pids)| Served { gpu, pids }));
        let mut world = World { gpus: served.iter().map(|it| it.gpu.clone()).collect(), jobs: Vec::new(), is_incomplete };
        let parked: Vec<u32> = listed.iter().filter(|it| is_parked(it)).map(|it| it.job.pid).collect();
        let by_agent = parked_by_agent(&parked);
        for job in &listed {
            self.add(&mut world, settings, job, &by_agent);
        }
        self.apply_pending(&mut world);
        // A job counts once, where it is or is to arrive, though a server may still have a worker for it, or one already.
        let is_known = |pid: &&u32| world.jobs.iter().any(|job| job.pid == **pid);
        let others: Vec<u32> = served.iter().map(|it| it.pids.iter().filter(|pid| !is_known(pid)).count() as u32).collect();
        world.gpus.iter_mut().zip(others).for_each(|(gpu, others)| gpu.others = others);
        self.note_arrivals(&listed, pace, now);
        let answers = servers.iter().map(|at| (at.server(), self.servers.get(&at.server()).is_some_and(|(_, answers)| *answers)));
        self.metrics.looked(answers, listed.iter().map(Listed::state));
        let runs = |pid: &u32| listed.iter().any(|it| it.job.pid == *pid);
        self.devices.retain(|pid, _| runs(pid));
        self.pending.retain(|pid, _| runs(pid));
        Ok(world)
    }

    /// Takes a server's answer. One that does not answer keeps the GPUs that it had, but takes no jobs.
    fn take(&mut self, at: &Endpoint, state: Result<ServerState, String>, tell: &Tell) -> Vec<Served> {
        let name = at.server();
        let before = self.servers.remove(&name);
        let answered = before.as_ref().is_none_or(|(_, answered)| *answered);
        if answered != state.is_ok() {
            tell.server(&name, state.as_ref().err().map(String::as_str));
        }
        let served = match &state {
            Ok(state) => gpus_of(at, state),
            Err(_) => {
                let mut served = before.map(|(served, _)| served).unwrap_or_default();
                served.iter_mut().for_each(|it| it.gpu.takes_jobs = false);
                served
            }
        };
        self.servers.insert(name, (served.clone(), state.is_ok()));
        served
    }

    /// Adds a job: an entry for each of its GPUs.
    fn add(&mut self, world: &mut World, settings: &Settings, listed: &Listed, by_agent: &HashSet<u32>) {
        let pid = listed.job.pid;
        if listed.answers() {
            let devices = listed.job.devices.iter().map(|device| (device.place.clone(), device.used_bytes)).collect();
            self.devices.insert(pid, devices);
        }
        let rule = settings.rule(&listed.job.name, listed.user());
        let only = if let [device] = &listed.job.devices[..] { Some(device.state) } else { None };
        let state = match only {
            _ if !listed.answers() || !listed.job.queued.is_empty() || rule.is_some_and(|rule| rule.leave) => JobState::Busy,
            Some(DeviceState::Running) => JobState::Running,
            Some(DeviceState::Parked) => JobState::Parked { by_agent: by_agent.contains(&pid) },
            Some(DeviceState::Moving | DeviceState::Failed) | None => JobState::Busy,
        };
        let (home, choice) = wishes(&listed.job, rule);
        // A home may be spelled in another way than the GPU that it names.
        let home = home.map(|home| {
            let there = world.gpus.iter().find(|gpu| same(&gpu.place) == same(home));
            there.map_or_else(|| home.to_owned(), |gpu| gpu.place.clone())
        });
        let priority = rule.map_or(0, |rule| rule.priority);
        for (place, used_bytes) in self.devices.get(&pid).into_iter().flatten() {
            let gpu = world.gpus.iter().position(|gpu| same(&gpu.place) == same(place));
            let (name, home, choice, avoid) = (listed.job.name.clone(), home.clone(), choice.clone(), Vec::new());
            world.jobs.push(Job { pid, name, gpu, used_bytes: *used_bytes, state, priority, home, choice, avoid });
        }
    }

    /// Jobs whose moves are under way count where they are to arrive, with all their memory.
    fn apply_pending(&self, world: &mut World) {
        for (pid, to) in &self.pending {
            let to = to.as_ref().and_then(|to| world.gpu_at(to));
            let Some(job) = world.jobs.iter_mut().find(|job| job.pid == *pid) else { continue };
            job.state = JobState::Busy;
            let Some(to) = to.filter(|to| job.gpu != Some(*to)) else { continue };
            (job.gpu, world.gpus[to].free_bytes) =
                (Some(to), world.gpus[to].free_bytes.map(|free| free.saturating_sub(job.used_bytes)));
        }
    }

    /// A job that somebody else has moved rests as if the agent had, also if that was before the agent began.
    fn note_arrivals(&mut self, listed: &[Listed], pace: &mut Pace, now: Duration) {
        let today = unix_ms();
        for it in listed {
            let Some(device) = it.job.devices.first() else { continue };
            let before = self.since.insert(it.job.pid, device.since_unix_ms);
            let has_moved = before.map_or(device.moves > 0, |before| before != device.since_unix_ms);
            if has_moved {
                let ago = Duration::from_millis(today.saturating_sub(device.since_unix_ms));
                pace.arrived(it.job.pid, now.saturating_sub(ago));
            }
        }
        self.since.retain(|pid, _| listed.iter().any(|it| it.job.pid == *pid));
    }
}

/// Where a job belongs and which policies may move it: what it says itself, otherwise what the operator's rule says. What it says is a wish among
/// what the operator offers: a home that is none of the GPUs is never free, and names of other policies are as if it had said nothing.
fn wishes<'a>(job: &'a control::Job, rule: Option<&'a JobRule>) -> (Option<&'a str>, Option<Choice>) {
    let home = Some(&*job.home).filter(|home| !home.is_empty()).or(rule.and_then(|rule| rule.home.as_deref()));
    (home, job.policy.parse().ok().or(rule.and_then(|rule| rule.policy.clone())))
}

/// The GPUs of a server.
fn gpus_of(at: &Endpoint, state: &ServerState) -> Vec<Served> {
    let takes_jobs = !state.ending;
    let served = |(gpu, it): (usize, &GpuState)| Served {
        gpu: Gpu {
            place: Endpoint { gpu: gpu as u32, ..at.clone() }.to_string(),
            server: at.server(),
            free_bytes: it.free_bytes,
            takes_jobs,
            others: 0,
            sees_programs: false,
            draining_node: None,
        },
        pids: it.jobs.iter().map(|job| job.pid).collect(),
    };
    state.gpus.iter().enumerate().map(served).collect()
}

fn is_parked(listed: &Listed) -> bool {
    listed.job.devices.first().is_some_and(|device| device.state == DeviceState::Parked)
}

/// Which of these jobs an agent has parked, this one or one before it. They are asked at the same time.
fn parked_by_agent(pids: &[u32]) -> HashSet<u32> {
    let by_agent = |pid: u32| {
        let moves = Client::connect(pid).and_then(|mut client| client.report(None, Some(ANSWER_TIMEOUT)));
        let last = moves.unwrap_or_default().into_iter().filter(|it| it.ok).max_by_key(|it| it.at_unix_ms);
        last.is_some_and(|it| it.id.starts_with(ID))
    };
    std::thread::scope(|threads| {
        let asking: Vec<_> = pids.iter().map(|pid| (*pid, threads.spawn(move || by_agent(*pid)))).collect();
        asking.into_iter().filter_map(|(pid, asked)| asked.join().unwrap_or(false).then_some(pid)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_meant_are_refused() {
        let home = |home: &str| {
            format!("local_gpus = 1\nservers = ['a:1']\n[[job]]\nname = '*'\nhome = '{home}'\n[[policy]]\nkind = 'home'")
        };
        let read = |text: &str| with_known_names(Settings::read(text).expect(text)).map_err(|why| why.to_string());
        let drain = "servers = ['tls://a:1', 'unix:/b']\n[[policy]]\nkind = 'drain'\nservers = ['a:1']";
        let Policy::Drain { servers, .. } = &read(drain).expect("settings").policies[0] else { panic!("another policy") };
        assert_eq!(servers[..], ["a:1"]);
        for (text, why) in [
            (drain.replace("['a:1']", "['a:2']"), "`a:2` is none of the servers"),
            (drain.replace("unix:/b", "a:1"), "`a:1` is named twice"),
            (format!("slurm_nodes = {{ 'a:2' = 'n2' }}\n{drain}"), "`slurm_nodes`: `a:2` is none of the servers"),
            (drain.replace("unix:/b", "b:1/0"), "without a GPU"),
            (drain.replace("unix:/b", "b"), "server `b`: a server is"),
            (home("local:1"), "home `local:1` is no GPU"),
            (home("b:1/0"), "home `b:1/0` is no GPU"),
        ] {
            assert!(read(&text).expect_err(&text).contains(why), "{text}: {:?}", read(&text));
        }
        assert!(read(&home("local")).is_ok() && read(&home("tls://a:1/3")).is_ok());
    }

    #[test]
    fn what_a_job_says_comes_before_the_rule() {
        let text = "servers = ['a:1']\n[[job]]\nname = '*'\nhome = 'a:1/3'\npolicy = 'home'\n[[policy]]\nkind = 'home'";
        let settings = Settings::read(text).expect("settings");
        let of = |home: &str, policy: &str, rule| {
            let job = control::Job { home: home.into(), policy: policy.into(), ..control::Job::default() };
            let (home, choice) = wishes(&job, rule);
            (home.map(str::to_owned), choice)
        };
        let (rule, chosen) = (settings.rule("x", "ann"), |text: &str| text.parse::<Choice>().ok());
        assert_eq!(of("", "", rule), (Some("a:1/3".into()), chosen("home")));
        assert_eq!(of("local", "none", rule), (Some("local".into()), chosen("none")));
        assert_eq!(of("", "whatever", rule), (Some("a:1/3".into()), chosen("home")));
        assert_eq!(of("", "", None), (None, None));
    }

    #[test]
    fn spellings_of_one_gpu_are_the_same() {
        for (one, other) in
            [("gpubox:7878", "tls://gpubox:7878/0"), ("local", "local:0"), ("unix:/a/b", "unix:/a/b/0"), ("helper:1", "local:1")]
        {
            assert_eq!(same(one), same(other));
        }
        for (one, other) in
            [("gpubox:7878/1", "gpubox:7878/0"), ("local:1", "local"), ("a:7878", "b:7878"), ("helper:1", "local")]
        {
            assert_ne!(same(one), same(other));
        }
    }
}
