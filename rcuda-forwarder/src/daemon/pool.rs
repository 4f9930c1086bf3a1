//! Worker processes: starts them, keeps some warm for each GPU, and detects their end.

use super::accounting::{Accounting, End};
use super::admission::{Budget, Source};
use super::cgroups::{Cgroups, WorkerCgroup};
use super::client::Client;
use super::counters::{Counters, Settled};
use super::earlier::Earlier;
use super::error::AssignError;
use super::events::Events;
use super::evicted::Evicted;
use super::leavers::Leavers;
use super::leaving::Leaving;
use super::log::{Log, LogLine, RateLimitedLog};
use super::privileges::WorkerUser;
use super::process::{Process, pass_on};
use super::rate::Rates;
use super::requested::Requested;
use super::seats::{Full, Seat, Seats};
use super::stays::{Stay, Stays};
use super::worker_command::Command;
use crate::account::{ClientAccount, Entry, Used};
use crate::channel::{Channel, Message, OPENING, Start, StoreAt};
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::limits::{ClientLimits, Limits};
use crate::place_spec::PlaceSpec;
use crate::sandbox::Confinement;
use crate::server_state::{GpuFacts, MemoryUse};
use crate::sync::lock;
use crate::targets::{Sender, Targets};
use crate::threads;
use cuda_api::clock::unix_ms;
use cuda_api::lock::wait_timeout;
use executor::Budget as HostMemory;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak, mpsc};
use std::time::{Duration, Instant};

/// Time limit for a worker to end once its channel is closed;
const ENDING: Duration = Duration::from_secs(2);
/// and for one that has served a job, unless the daemon ends: destroying a context with much memory takes time on a
/// busy machine, and a worker that is killed looks like one that has failed.
pub(super) const LEAVING: Duration = Duration::from_secs(30);
/// Maximum number of connections that are being made for one worker: it carries out up to 16 requests to connect at a time, each with up to
/// eight connections at a time, and fetches memory of other places.
const OUTGOING: usize = 160;

/// The properties of a worker that matter to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    /// Number among the offered GPUs, or [`Endpoint::MEMORY`].
    pub(super) gpu: u32,
    pub(super) virtual_device: u32,
    pub(super) env: Vec<(String, String)>,
    /// The user whose job's it is, if it runs as this user.
    pub(super) user: Option<Arc<WorkerUser>>,
}

impl Profile {
    /// Where the worker keeps what is its client's.
    pub(super) fn place(&self) -> String {
        if self.gpu == Endpoint::MEMORY { "in memory".to_owned() } else { format!("on GPU {}", self.gpu) }
    }
}

#[derive(Debug)]
enum Phase {
    Opening,
    Ready,
    /// It has its client's connection.
    Serving,
    Refused(String),
    /// Its channel is closed.
    Ended,
    /// Its process has ended too.
    Gone,
}

/// The answers of a worker about its use of memory.
#[derive(Debug, Default)]
struct Measured {
    /// It has been asked and has not answered.
    asked: bool,
    /// Number of answers so far.
    answers: u64,
    last: Option<MemoryUse>,
}

/// Who uses a worker.
#[derive(Debug, Clone)]
pub(super) enum Occupant {
    /// It waits for a client.
    Nobody,
    /// Its client.
    Job(Client),
}

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    pid: u32,
    profile: Profile,
    channel: Channel,
    /// Its job, once it has one, and what that was granted.
    client: Mutex<Option<(Client, Admitted)>>,
    /// Whose job it is, also when it has left.
    source: OnceLock<Source>,
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Whether it has opened its GPU, even if it has ended since.
    opened: AtomicBool,
    /// Whether it has received its client's connection, even if it has ended since.
    taken: AtomicBool,
    memory: Mutex<Measured>,
    measured: Condvar,
    /// What its job was asked when the daemon began to end,
    leaving: Mutex<Leaving>,
    /// and what those asked who may have it moved.
    requested: Requested,
    counters: Arc<Counters>,
    /// What of its use is in the counters.
    settled: Settled,
    /// Number of connections that are being made for it.
    outgoing: AtomicUsize,
    evicted: Evicted,
}

/// A connection that is being made for a worker.
#[derive(Debug)]
pub(super) struct OutgoingCount(Arc<Worker>);

impl Drop for OutgoingCount {
    fn drop(&mut self) {
        self.0.outgoing.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Worker {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Number of its GPU among the offered ones, or [`Endpoint::MEMORY`].
    pub(super) fn gpu(&self) -> u32 {
        self.profile.gpu
    }

    /// Whether it is a process of a job's user, who can make it say anything.
    pub(super) fn is_of_client(&self) -> bool {
        self.profile.user.is_some()
    }

    /// Number of the device in its job.
    pub(super) fn virtual_device(&self) -> u32 {
        self.profile.virtual_device
    }

    /// Who uses it; `None` while it opens its GPU, and once it has ended.
    fn occupant(&self) -> Option<Occupant> {
        match *lock(&self.phase) {
            // A client that is being handed to it counts already.
            Phase::Ready => {
                Some(lock(&self.client).as_ref().map_or(Occupant::Nobody, |(client, _)| Occupant::Job(client.clone())))
            }
            // Not any more described: it is about to change its phase.
            Phase::Serving => lock(&self.client).as_ref().map(|(client, _)| Occupant::Job(client.clone())),
            Phase::Opening | Phase::Refused(_) | Phase::Ended | Phase::Gone => None,
        }
    }

    /// What it has used for its job, if it has one.
    pub(super) fn used(&self) -> Option<Used> {
        lock(&self.client).as_ref().map(|(_, admitted)| admitted.entry.used())
    }

    /// Who sends it to other places, if it has a job.
    pub(super) fn sender(&self) -> Option<Sender> {
        lock(&self.client).as_ref().map(|(client, _)| client.sender())
    }

    /// Counts a connection that is to be made for it; `None` if there are too many.
    pub(super) fn note_outgoing(self: &Arc<Self>) -> Option<OutgoingCount> {
        let counted = OutgoingCount(self.clone());
        (self.outgoing.fetch_add(1, Ordering::AcqRel) < OUTGOING).then_some(counted)
    }

    /// Brings the counters up to date with its use.
    pub(super) fn settle(&self) {
        self.used().iter().for_each(|used| self.settled.settle(used, self.counters.place(self.gpu())));
    }

    /// Asks it for its use of memory, unless it owes an answer already. Returns the number of its answers before.
    pub(super) fn ask_memory(&self) -> u64 {
        let mut memory = lock(&self.memory);
        // If it has ended, or reads nothing, there is no answer.
        memory.asked = memory.asked || self.channel.send_now(&Message::Measure).is_ok();
        memory.answers
    }

    /// Whether it has received its client's connection.
    pub(super) fn has_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// Asks its job to move to a place within a time, unless it has been asked already and has not refused, or only just, or the worker has
    /// not received it yet.
    pub(super) fn ask_to_leave(&self, to: &PlaceSpec, left: Duration) {
        if !self.has_taken() {
            return;
        }
        let mut leaving = lock(&self.leaving);
        let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        // A worker that has ended has no job any more, and one that reads nothing is asked again.
        if leaving.is_due(Instant::now()) && self.channel.send_now(&Message::Leave(to.to_string(), ms, None)).is_ok() {
            leaving.asked();
            self.counters.drain.asked.add(1);
        }
    }

    /// Asks its job to move to a place by then, for somebody who may. Returns the number of the request; `None` if another one is open, or the
    /// worker has no job, has not received it yet, or reads nothing.
    pub(super) fn request_move(&self, to: &PlaceSpec, until: Instant) -> Option<u64> {
        if !self.has_taken() {
            return None;
        }
        let left = until.saturating_duration_since(Instant::now());
        let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let to = to.to_string();
        self.requested.open(&to, until, |number| self.channel.send_now(&Message::Leave(to.clone(), ms, Some(number))).is_ok())
    }

    /// The requests to move its job.
    pub(super) fn requested(&self) -> &Requested {
        &self.requested
    }

    /// What it has of its job in host memory.
    pub(super) fn evicted(&self) -> &Evicted {
        &self.evicted
    }

    /// Its client, if it has one.
    pub(super) fn client(&self) -> Option<Client> {
        lock(&self.client).as_ref().map(|(client, _)| client.clone())
    }

    /// Has its job be asked to leave at once by the next drain, whatever it has said before.
    pub(super) fn forget_leave(&self) {
        *lock(&self.leaving) = Leaving::default();
    }

    /// The reason for staying that its job has given last.
    pub(super) fn last_stay(&self) -> Option<String> {
        lock(&self.leaving).reason().map(str::to_owned)
    }

    /// Sends it a message; false once it reads so little that there is no room for one.
    #[cfg(test)]
    pub(super) fn fills_up(&self) -> bool {
        self.channel.send_now(&Message::Measure).is_ok()
    }

    /// Notes that its job stays. Returns whether the reason is another one than before.
    pub(super) fn note_stay(&self, why: &str) -> bool {
        let mut leaving = lock(&self.leaving);
        if leaving.is_asked() {
            self.counters.drain.refused.add(1);
        }
        leaving.refused(why, Instant::now())
    }

    /// Its first answer after so many, if it comes in time.
    pub(super) fn memory_after(&self, answers: u64, until: Instant) -> Option<MemoryUse> {
        let mut memory = lock(&self.memory);
        while memory.asked && memory.answers == answers {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            memory = wait_timeout(&self.measured, memory, left).0;
        }
        memory.last.filter(|_| memory.answers > answers)
    }

    fn take_memory(&self, answer: Option<MemoryUse>) {
        let mut memory = lock(&self.memory);
        memory.asked = false;
        if answer.is_some() {
            (memory.answers, memory.last) = (memory.answers + 1, answer);
        }
        drop(memory);
        self.measured.notify_all();
    }

    fn set(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.changed.notify_all();
    }

    fn is_opening(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Opening)
    }

    pub(super) fn has_opened(&self) -> bool {
        self.opened.load(Ordering::SeqCst)
    }

    /// Waits until the worker has opened its GPU; at `until` it is ended.
    pub(super) fn wait_ready(&self, until: Instant) -> Result<(), AssignError> {
        let mut phase = lock(&self.phase);
        loop {
            match &*phase {
                Phase::Ready | Phase::Serving => return Ok(()),
                Phase::Refused(why) => return Err(AssignError::Opening(why.clone())),
                Phase::Ended | Phase::Gone => return Err(AssignError::OpeningEnded),
                Phase::Opening => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.end();
                return Err(AssignError::OpeningTimeout(OPENING));
            }
            phase = wait_timeout(&self.changed, phase, left).0;
        }
    }

    /// Hands the worker its client with the message `job`, and waits until it has received it, or `until`. If it has not received it, its
    /// process has ended when this returns, so that another worker can serve the client; the error then holds what the client was granted.
    /// An error without that leaves open whether the worker received the client.
    pub(super) fn serve(
        &self,
        job: &Message,
        conn: &Conn,
        client: &Client,
        admitted: Admitted,
        until: Instant,
    ) -> Result<(), (AssignError, Option<Admitted>)> {
        let account = Message::Account(admitted.entry.slot(), admitted.memory);
        let on_account = self.channel.send(&account, Some(admitted.entry.file()));
        // Recorded first, because the worker may end at once. One that does not receive the client gets no other one.
        let _ = self.source.set(admitted.client.owner().clone());
        *lock(&self.client) = Some((client.clone(), admitted));
        let sent = on_account.and_then(|()| self.channel.send(job, Some(conn.socket()?)));
        // A short job may have ended already.
        let has_it = |_: &Phase| self.has_taken();
        if sent.is_ok() && self.wait_while(until, |phase| matches!(phase, Phase::Ready), has_it) {
            return Ok(());
        }
        let admitted = lock(&self.client).take().map(|(_, admitted)| admitted);
        self.end();
        let gone = self.wait_while(Instant::now() + 5 * ENDING, |phase| !matches!(phase, Phase::Gone), |_| true);
        // It may have taken the client at the last moment.
        Err((AssignError::WorkerEnded, admitted.filter(|_| gone && !self.has_taken())))
    }

    /// Waits while the phase satisfies `so`, until the deadline; returns whether it is `wanted` afterwards. False on
    /// timeout.
    fn wait_while(&self, until: Instant, so: impl Fn(&Phase) -> bool, wanted: impl Fn(&Phase) -> bool) -> bool {
        let mut phase = lock(&self.phase);
        while so(&phase) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            phase = wait_timeout(&self.changed, phase, left).0;
        }
        wanted(&phase)
    }

    pub(super) fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.channel.send(message, fd)
    }

    /// Counts how it has ended: with `served`, a job's.
    fn count_end(&self, served: bool, is_success: bool, daemon_ends: bool) {
        let place = self.counters.place(self.gpu());
        // One that was ended meanwhile, because it is not needed, has not failed.
        let has_failed = !is_success || matches!(*lock(&self.phase), Phase::Refused(_));
        if !self.has_opened() && has_failed && !daemon_ends {
            place.not_started.add(1);
        }
        if !served {
            return;
        }
        self.settle();
        if !is_success && !daemon_ends {
            place.failed.add(1);
        }
        if is_success && !daemon_ends && lock(&self.leaving).was_asked() {
            self.counters.drain.left.add(1);
        }
    }

    /// Ends the worker by closing its channel.
    fn end(&self) {
        self.channel.close();
    }
}

#[derive(Debug, Default)]
struct Workers {
    /// All workers that have not ended.
    all: Vec<Arc<Worker>>,
    /// Warm workers without a client, oldest first; at most `Limits::warm` for each GPU.
    warm: Vec<Arc<Worker>>,
}

/// What a job was granted for one worker; given back on drop.
#[derive(Debug)]
pub(super) struct Admitted {
    entry: Entry,
    /// Bytes of GPU memory that the client may use in all.
    memory: u64,
    client: Seat<Source>,
    _gpu: Seat<u32>,
}

/// The workers of a daemon.
#[derive(Debug)]
pub(super) struct Pool {
    command: Command,
    driver: PathBuf,
    /// Number, among those that workers see, of each offered GPU.
    gpus: Vec<u32>,
    /// What each of them is, once a worker has opened it.
    facts: Arc<Vec<OnceLock<GpuFacts>>>,
    workers: Arc<Mutex<Workers>>,
    /// A seat for each worker with a client, by client and by GPU.
    clients: Seats<Source>,
    gpu_seats: Seats<u32>,
    rates: Option<Rates>,
    /// What each client uses.
    accounts: Mutex<HashMap<Source, Weak<ClientAccount>>>,
    /// Number of workers that have failed with a client so far.
    failed: Arc<AtomicUsize>,
    /// All workers are ending.
    ending: Arc<AtomicBool>,
    limits: Limits,
    /// For the memory of stopped jobs.
    host_memory: Arc<HostMemory>,
    permissions: Permissions,
    accounting: Option<Arc<Accounting>>,
    counters: Arc<Counters>,
    /// The jobs that were served of late.
    stays: Arc<Stays>,
    events: Arc<Events>,
    /// The daemon before this one, whose jobs use the same GPUs.
    earlier: Option<Arc<Earlier>>,
    log: Log,
}

/// What workers may do.
#[derive(Debug)]
pub(super) struct Permissions {
    /// Where they may be sent.
    pub(super) targets: Targets,
    /// Connections need not be encrypted.
    pub(super) plain: bool,
    /// Network cards may write to and read from the GPU's memory.
    pub(super) gpudirect: bool,
    /// What they confine themselves to.
    pub(super) confinement: Option<Confinement>,
    /// Where their host memory is limited, if it is.
    pub(super) cgroups: Option<Arc<Cgroups>>,
}

impl Pool {
    pub(super) fn new(
        command: Command,
        driver: PathBuf,
        gpus: Vec<u32>,
        limits: Limits,
        permissions: Permissions,
        accounting: Option<Arc<Accounting>>,
        log: Log,
    ) -> Pool {
        Pool {
            counters: Arc::new(Counters::new(gpus.len())),
            stays: Arc::default(),
            events: Arc::default(),
            command,
            driver,
            facts: Arc::new(gpus.iter().map(|_| OnceLock::new()).collect()),
            gpus,
            workers: Arc::default(),
            clients: Seats::default(),
            gpu_seats: Seats::default(),
            rates: limits.clients.rate.map(Rates::new),
            accounts: Mutex::default(),
            failed: Arc::default(),
            ending: Arc::default(),
            host_memory: HostMemory::new(limits.evict_stopped.map_or(0, |evict| evict.memory)),
            limits,
            permissions,
            accounting,
            earlier: None,
            log,
        }
    }

    /// The pool of a daemon that takes over from this one.
    pub(super) fn after(self, earlier: Option<Arc<Earlier>>) -> Pool {
        Pool { earlier, ..self }
    }

    /// The workers whose jobs have left them and that end: each gives back what it was granted within [`LEAVING`]. A worker has closed its
    /// channel before its job goes on.
    pub(super) fn leaving(&self) -> Leavers {
        let all = lock(&self.workers).all.clone();
        let leaves = |worker: &&Arc<Worker>| worker.has_taken() && worker.channel.has_hung_up();
        let whose = |worker: &Arc<Worker>| Some((worker.gpu(), worker.source.get()?.clone()));
        Leavers::new(all.iter().filter(leaves).filter_map(whose).collect())
    }

    /// Number of workers that have a client on a GPU, or are about to get one.
    pub(super) fn clients_on(&self, gpu: u32) -> usize {
        self.gpu_seats.of(&gpu)
    }

    /// Grants one more worker to a client, on this GPU. The error is for the client.
    pub(super) fn admit(&self, source: &Source, gpu: u32) -> Result<Admitted, AssignError> {
        let ClientLimits { memory, gpu_jobs, .. } = self.limits.clients;
        let any = usize::MAX;
        let of_gpu = gpu_jobs.filter(|_| gpu != Endpoint::MEMORY).map_or(any, |n| n as usize);
        let earlier = self.earlier.as_ref().map(|earlier| earlier.jobs()).unwrap_or_default();
        let gpu_seat = self
            .gpu_seats
            .take(gpu, Budget { all: any, of_one: of_gpu.saturating_sub(earlier.on(gpu)) })
            .map_err(|_| AssignError::GpuFull { gpu, jobs: of_gpu })?;
        // A process on this machine with the server's user could start as many by itself.
        let is_here = *source == Source::Here;
        let of_one = if is_here { any } else { self.limits.client_workers as usize };
        let all = (self.limits.workers as usize).saturating_sub(earlier.all());
        let client = self.clients.take(source.clone(), Budget { all, of_one }).map_err(|full| match full {
            Full::OfOne(workers) => AssignError::ClientWorkers { client: source.clone(), workers },
            Full::All(workers) => AssignError::Workers(workers),
        })?;
        // The last check, because it counts what is granted.
        if let Some(per_minute) = self.limits.clients.rate.filter(|_| !is_here)
            && self.rates.as_ref().is_some_and(|rates| !rates.start(source.clone(), Instant::now()))
        {
            return Err(AssignError::Rate { client: source.clone(), per_minute });
        }
        // After all checks: a new account takes system calls, and jobs that wait are checked often.
        let entry = self
            .account(source)
            .map_err(AssignError::Start)?
            .enter()
            .ok_or(AssignError::Workers(self.limits.workers as usize))?;
        Ok(Admitted { entry, memory: memory.unwrap_or(u64::MAX), client, _gpu: gpu_seat })
    }

    /// The account of a client, which exists as long as it has workers.
    fn account(&self, source: &Source) -> io::Result<Arc<ClientAccount>> {
        let mut accounts = lock(&self.accounts);
        if let Some(account) = accounts.get(source).and_then(Weak::upgrade) {
            return Ok(account);
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let account = ClientAccount::create()?;
        accounts.insert(source.clone(), Arc::downgrade(&account));
        Ok(account)
    }

    /// Where workers may be sent.
    pub(super) fn targets(&self) -> &Targets {
        &self.permissions.targets
    }

    /// What clients get.
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of offered GPUs.
    pub(super) fn gpus(&self) -> u32 {
        self.gpus.len() as u32
    }

    /// The host memory for the memory of stopped jobs.
    pub(super) fn host_memory(&self) -> &Arc<HostMemory> {
        &self.host_memory
    }

    /// What has happened so far.
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What happens to jobs.
    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    /// The services of jobs that are over, of late.
    pub(super) fn stays(&self, now_unix_ms: u64) -> Vec<Stay> {
        self.stays.recent(now_unix_ms)
    }

    /// The latest of them by a worker's process.
    pub(super) fn latest_stay_of(&self, worker: u32) -> Option<Stay> {
        self.stays.latest_of(worker)
    }

    /// Whether a worker with this process has not ended.
    pub(super) fn runs(&self, worker: u32) -> bool {
        lock(&self.workers).all.iter().any(|other| other.pid == worker)
    }

    /// How many lines of accounting were written, and how many are lost.
    pub(super) fn accounting_lines(&self) -> (u64, u64) {
        self.accounting.as_ref().map_or((0, 0), |accounting| accounting.counts())
    }

    /// What an offered GPU is, if a worker has opened it.
    pub(super) fn facts(&self, gpu: u32) -> Option<GpuFacts> {
        self.facts.get(gpu as usize)?.get().cloned()
    }

    /// The workers that are ready or serve a client.
    pub(super) fn occupants(&self) -> Vec<(Arc<Worker>, Occupant)> {
        let all = lock(&self.workers).all.clone();
        all.into_iter().filter_map(|worker| worker.occupant().map(|occupant| (worker, occupant))).collect()
    }

    /// Starts a worker. `heard` receives its later messages; it ends when the worker does.
    pub(super) fn start(
        &self,
        profile: Profile,
        heard: impl Fn(&Arc<Worker>, Message) + Send + 'static,
    ) -> Result<Arc<Worker>, AssignError> {
        let place = self.counters.place(profile.gpu);
        place.started.add(1);
        // What fails later is counted at its end.
        let (worker, start) = self.start_process(profile, heard).inspect_err(|_| place.not_started.add(1))?;
        match worker.send(&Message::Start(start), None).map_err(AssignError::Start) {
            Ok(()) => Ok(worker),
            Err(why) => {
                worker.end();
                Err(why)
            }
        }
    }

    /// Starts the process; it is then to be sent what this returns.
    fn start_process(
        &self,
        profile: Profile,
        heard: impl Fn(&Arc<Worker>, Message) + Send + 'static,
    ) -> Result<(Arc<Worker>, Start), AssignError> {
        let failed = AssignError::Start;
        let store = (profile.gpu == Endpoint::MEMORY).then_some(StoreAt::Memory);
        let gpu = match &store {
            Some(_) => 0,
            None => *self.gpus.get(profile.gpu as usize).ok_or(AssignError::NoSuchGpu)?,
        };
        let driver = self.driver.to_str().ok_or(AssignError::DriverPath)?.to_owned();
        let (channel, theirs) = Channel::pair().map_err(failed)?;
        let (output, input) = io::pipe().map_err(failed)?;
        let cgroup = self.permissions.cgroups.as_ref().map(Cgroups::make).transpose().map_err(failed)?;
        let entrance = cgroup.as_ref().map(WorkerCgroup::entrance).transpose().map_err(failed)?;
        let as_user = profile.user.as_ref().map(|user| self.command.as_user(user));
        let mut command = as_user.as_ref().unwrap_or(&self.command).prepare(entrance);
        command.stdin(theirs).stdout(input.try_clone().map_err(failed)?).stderr(input);
        command.envs(profile.env.iter().map(|(n, v)| (n, v)));
        // Before there is a child: without the thread its end would not be waited for.
        let (log, workers, ending, facts) = (self.log, self.workers.clone(), self.ending.clone(), self.facts.clone());
        let failed_ones = self.failed.clone();
        let (accounting, described, stays) = (self.accounting.clone(), self.facts.clone(), self.stays.clone());
        let events = self.events.clone();
        let account_for = move |worker: &Worker, client: &Client, used: &Used, end: End| {
            let to = worker.requested.over(end, used.moved_out);
            events.left((worker.pid, worker.gpu()), client, used, end, to);
            if let Some(accounting) = &accounting {
                let facts = described.get(worker.gpu() as usize).and_then(OnceLock::get);
                accounting.record((worker.pid, worker.gpu()), facts, client, used, end);
            }
        };
        let (child_sender, child_receiver) = mpsc::channel::<(Arc<Worker>, Process)>();
        let watched = move || {
            if let Ok((worker, process)) = child_receiver.recv() {
                watch(&worker, process, (&workers, &ending, &facts, &failed_ones, &stays), log, heard, account_for);
            }
        };
        threads::spawn("worker", watched).map_err(failed)?;
        let (pid_sender, pid_receiver) = mpsc::channel::<u32>();
        let passed = move || {
            if let Ok(pid) = pid_receiver.recv() {
                let limited = RateLimitedLog::new(log, "lines of a worker");
                pass_on(output, &|line| limited.say(&LogLine::output(pid, line)));
            }
        };
        threads::spawn("output", passed).map_err(failed)?;
        let child = command.spawn().map_err(failed)?;
        // The command holds our copies of the worker's ends: while they are open, its end cannot be detected.
        drop(command);
        let worker = Arc::new(Worker {
            pid: child.id(),
            profile,
            channel,
            client: Mutex::default(),
            source: OnceLock::new(),
            phase: Mutex::new(Phase::Opening),
            changed: Condvar::new(),
            opened: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            memory: Mutex::default(),
            measured: Condvar::new(),
            leaving: Mutex::default(),
            requested: Requested::default(),
            counters: self.counters.clone(),
            settled: Settled::default(),
            outgoing: AtomicUsize::new(0),
            evicted: Evicted::default(),
        });
        lock(&self.workers).all.push(worker.clone());
        // Both threads are waiting for this, so they cannot have ended.
        let _ = (pid_sender.send(worker.pid), child_sender.send((worker.clone(), Process { child, cgroup })));
        let start = Start {
            driver,
            user: nix::unistd::geteuid().as_raw(),
            gpu,
            virtual_device: worker.profile.virtual_device,
            limits: self.limits.of_worker,
            plain: self.permissions.plain,
            gpudirect: self.permissions.gpudirect,
            evict_after: self.limits.evict_stopped.map(|evict| evict.after),
            store,
            confinement: self.permissions.confinement.clone().map(|confinement| {
                let user = worker.profile.user.as_deref().or(self.command.privileges.user.as_ref());
                confinement.with_writable(user.and_then(|user| user.jit_cache.as_ref()?.to_str().map(ToOwned::to_owned)))
            }),
        };
        Ok((worker, start))
    }

    /// The user that a worker with this profile runs as.
    pub(super) fn worker_uid(&self, profile: &Profile) -> u32 {
        let user = profile.user.as_deref().or(self.command.privileges.user.as_ref());
        user.map_or_else(|| nix::unistd::geteuid().as_raw(), WorkerUser::uid)
    }

    /// Ends the workers that are kept for clients.
    pub(super) fn end_warm(&self) {
        lock(&self.workers).warm.drain(..).for_each(|worker| worker.end());
    }

    /// Whether a worker has a client, or is about to get one. That of a client that has left counts until it has ended.
    pub(super) fn has_clients(&self) -> bool {
        self.clients.any()
    }

    /// Number of workers that have failed with a client so far: their jobs have lost their GPUs.
    pub(super) fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }

    /// Takes the warm worker with this profile, if there is one.
    pub(super) fn take_warm(&self, profile: &Profile) -> Option<Arc<Worker>> {
        let mut w = lock(&self.workers);
        let i = w.warm.iter().position(|w| w.profile == *profile)?;
        Some(w.warm.remove(i))
    }

    /// The workers kept for clients with this profile, even if they are not ready yet.
    pub(super) fn warm(&self, profile: &Profile) -> Vec<Arc<Worker>> {
        lock(&self.workers).warm.iter().filter(|w| w.profile == *profile).cloned().collect()
    }

    /// Number of workers that are still to be kept warm for clients with this profile. One of a user's own is enough: with more, a single
    /// user would displace those of all others.
    pub(super) fn lacks(&self, profile: &Profile) -> usize {
        let wanted = if profile.user.is_some() { self.limits.warm.min(1) } else { self.limits.warm };
        (wanted as usize).saturating_sub(self.warm(profile).len())
    }

    /// Keeps a worker warm; if too many are kept for this GPU, ends one: of another profile if there is one, otherwise the
    /// oldest. Of a user whose workers are its own, one is kept on each GPU.
    pub(super) fn keep_warm(&self, worker: Arc<Worker>) {
        let mut w = lock(&self.workers);
        if matches!(*lock(&worker.phase), Phase::Ended | Phase::Gone) {
            return;
        }
        let profile = worker.profile.clone();
        let is_same_users = |other: &Profile| {
            let users = profile.user.as_ref().zip(other.user.as_ref());
            other.gpu == profile.gpu && users.is_some_and(|(user, other)| user.uid() == other.uid())
        };
        w.warm.extract_if(.., |other| is_same_users(&other.profile)).for_each(|earlier| earlier.end());
        w.warm.push(worker);
        while w.warm.iter().filter(|o| o.profile.gpu == profile.gpu).count() > self.limits.warm as usize {
            let other = w.warm.iter().position(|o| o.profile.gpu == profile.gpu && o.profile != profile);
            let Some(i) = other.or_else(|| w.warm.iter().position(|o| o.profile == profile)) else { return };
            w.warm.remove(i).end();
        }
    }

    /// Ends all workers and waits for that for a limited time.
    pub(super) fn end_all(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let until = Instant::now() + 2 * ENDING;
        lock(&self.workers).all.iter().for_each(|w| w.end());
        while !lock(&self.workers).all.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(accounting) = &self.accounting {
            accounting.flush(ENDING);
        }
    }
}

/// Receives a worker's messages until it ends.
fn watch(
    worker: &Arc<Worker>,
    process: Process,
    (workers, ending, facts, failed, stays): (&Mutex<Workers>, &AtomicBool, &[OnceLock<GpuFacts>], &AtomicUsize, &Stays),
    log: Log,
    heard: impl Fn(&Arc<Worker>, Message),
    account_for: impl Fn(&Worker, &Client, &Used, End),
) {
    loop {
        match worker.channel.receive() {
            // A worker that has its client would no longer be found as one that serves: not asked to move it, and without accounting.
            Ok(Some((Message::Ready(_), None))) if !worker.is_opening() => {
                log(&LogLine::warning(format!("worker {} said twice whether it is ready", worker.pid))
                    .of_worker(worker.pid, worker.gpu()));
                break;
            }
            Ok(Some((Message::Ready(Ok(about)), None))) => {
                // A store is none of the GPUs.
                if !worker.is_of_client() {
                    facts.get(worker.profile.gpu as usize).map(|facts| facts.set(about));
                }
                worker.opened.store(true, Ordering::SeqCst);
                worker.set(Phase::Ready);
            }
            Ok(Some((Message::Ready(Err(why)), None))) => worker.set(Phase::Refused(why)),
            Ok(Some((Message::Measured(memory), None))) => worker.take_memory(Some(memory)),
            Ok(Some((Message::Taken, None))) => {
                worker.taken.store(true, Ordering::SeqCst);
                worker.set(Phase::Serving);
            }
            Ok(Some((message, None))) => heard(worker, message),
            Ok(None) => break,
            Ok(Some((_, Some(_)))) | Err(_) => {
                log(&LogLine::warning(format!("worker {} sent a malformed message", worker.pid))
                    .of_worker(worker.pid, worker.gpu()));
                break;
            }
        }
    }
    let served = matches!(*lock(&worker.phase), Phase::Serving);
    worker.end();
    worker.take_memory(None);
    if served {
        // Before the worker is no longer found: else its GPU would count as unused since its last job but one.
        worker.counters.note_left(worker.gpu());
        // Likewise: else its job would be told neither among those of now nor among those that have left.
        if let Some((client, admitted)) = lock(&worker.client).as_ref() {
            let Used { moved_in, moved_out, .. } = admitted.entry.used();
            let (client, until_unix_ms) = (client.clone(), unix_ms());
            let (gpu, worker) = (worker.gpu(), worker.pid);
            stays.add(Stay { gpu, worker, client, until_unix_ms, moved_in, moved_out, end: None, failure: None });
        }
    }
    let no_longer_found = || {
        if !matches!(*lock(&worker.phase), Phase::Refused(_)) {
            worker.set(Phase::Ended);
        }
        lock(workers).warm.retain(|o| !Arc::ptr_eq(o, worker));
    };
    let ended = if worker.is_opening() && process.cgroup.is_some() {
        // Whoever waits until it has opened its GPU is to hear why it cannot.
        let ended = process.reap(|| ENDING);
        ended
            .for_memory
            .iter()
            .for_each(|why| worker.set(Phase::Refused(format!("its worker was ended while it opened: {why}"))));
        no_longer_found();
        ended
    } else {
        // Before the process has ended.
        no_longer_found();
        process.reap(|| if served && !ending.load(Ordering::SeqCst) { LEAVING } else { ENDING })
    };
    // With the process its memory has ended.
    worker.evicted.end();
    if !matches!(*lock(&worker.phase), Phase::Refused(_)) {
        worker.set(Phase::Gone);
    }
    // Before the seat is released, so that whoever waits for that sees it.
    if served && !ended.is_success() {
        failed.fetch_add(1, Ordering::SeqCst);
    }
    worker.count_end(served, ended.is_success(), ending.load(Ordering::SeqCst));
    // A client that it has not received is handed to another worker.
    let client = served.then(|| lock(&worker.client).take()).flatten();
    if let Some((client, admitted)) = &client {
        let end = match ending.load(Ordering::SeqCst) {
            true => End::ServerEnded,
            false if ended.is_success() => End::Left,
            false => End::Failed,
        };
        let used = admitted.entry.used();
        stays.ended(worker.pid, client, &used, end, ended.failure());
        account_for(worker, client, &used, end);
    }
    // With this its seat is released, before it is no longer found: who waits for that goes by this list.
    let client = client.map(|(client, _)| client);
    // Then all that is to be written of it is on its way.
    lock(workers).all.retain(|o| !Arc::ptr_eq(o, worker));
    let about = |line: LogLine| {
        let line = line.of_worker(worker.pid, worker.gpu());
        client.iter().fold(line, |line, client| client.on(line))
    };
    let Some(how) = ended.failure() else {
        if let Some(job) = client.as_ref().map(Client::words) {
            let text = format!("worker {}: {job} has left; it was {}", worker.pid, worker.profile.place());
            log(&about(LogLine::info(text)));
        }
        return;
    };
    // A signal of a terminal or launcher is sent to the daemon, too; if the worker serves no client, nothing is lost.
    let signal = ended.status.as_ref().ok().and_then(ExitStatus::signal);
    if client.is_none() && matches!(signal, Some(libc::SIGINT | libc::SIGTERM)) {
        return;
    }
    let whose = client.as_ref().map(|client| format!(" (it served {})", client.words())).unwrap_or_default();
    log(&about(LogLine::warning(format!("worker {} {} ended: {how}{whose}", worker.pid, worker.profile.place()))));
}
