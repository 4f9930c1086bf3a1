//! A worker: the process that executes the calls of one job on one GPU.
//!
//! Threads: the main thread reads calls and applies them in order, or leaves them to the second one, and messages that need the driver to a third one
//! (late_calls.rs), and polls for completions while it has nothing to read; one polls for completions and writes those answers; one scans
//! for changes of host memory (host_mirror.rs); one sends heartbeats and detects a closed client connection; one
//! receives messages of the daemon; each control request has a temporary one. Any failure of the connection or the
//! daemon ends the process, which frees the GPU.

use crate::account::Usage;
use crate::address_space;
use crate::attendant::{Attendant, Daemon, Reach};
use crate::channel::{Channel, Destination, Message, Start, StoreAt};
use crate::conn::{Ahead, Conn};
use crate::control::{Control, ControlReply, Refused};
use crate::dialer::Dialer;
use crate::frame::{
    ALIVE, ANSWER_HEAD, ANSWER_WANTED, AnswerHead, CONTROL, GOODBYE, HEAD, HEARTBEAT, Head, LEAVE, MAX_BODY, NO_TICKET, TEXT,
    filled,
};
use crate::greet::{self, GreetError};
use crate::helper;
use crate::inbox::Inbox;
use crate::leave_request::LeaveRequest;
use crate::nvml_reader;
use crate::orphan;
use crate::place::store::Parked;
use crate::place::{OpenError, Outcome, Place};
use crate::rdma::CALL_RING;
use crate::rdma::setup::{self, Rings};
use crate::rlimit::raise_descriptors;
use crate::sandbox::Confinement;
use crate::server_state::{GpuFacts, MemoryUse};
use crate::sync::lock;
use crate::targets::Sender;
use crate::threads;
use completion::{Completion, Item};
use counting::Counting;
use cuda_api::code::{self, Code};
use cuda_api::driver::{LoadError, Loaded};
use cuda_api::facts::uuid_text;
use cuda_api::ops;
use cuda_api::sys::CUuuid;
use cuda_api::wire::Wire;
use ending::{abandon, leave};
use eviction::{Eviction, Heard, InUse};
use executor::host_mirror::{LINE_BYTES, MESSAGE_LINES};
use faults::Point;
use late_calls::{LateCalls, POLL_INTERVAL, may_wait_for_gpu};
use leaves::Leaves;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use text::Text;
pub(crate) use text::complain;
use transport::Answers;

mod bulk;
mod bulk_threads;
mod completion;
mod counting;
mod data;
mod ending;
mod evicting;
mod eviction;
mod goodbye;
mod host_mirror;
mod late_calls;
mod leaves;
mod sending_changes;
mod text;
mod transport;

/// Argument that makes a worker print the UUIDs of a driver's GPUs, one in each line, and end.
pub(crate) const PROBE: &str = "--probe";
/// Heartbeat interval.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// Time limit for a client to send the memory of the connection, or to set up RDMA.
const SETUP: Duration = Duration::from_secs(10);
/// Time limit for the daemon to connect to another place of this machine.
const SHARE: Duration = Duration::from_secs(2);
/// Larger buffers for long bodies are not kept.
const KEEP: usize = 64 << 20;
/// How long after a connection for large copies that of the calls may end, so that the job has closed both.
const BULK_END: Duration = Duration::from_millis(200);
/// How long a full queue may make no progress while the job has to answer something.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Text for the job's standard error.
const STDERR: i32 = 2;
/// Maximum number of concurrent control requests, besides as many that end others.
const REQUESTS: usize = 16;
/// Maximum number of concurrent copies to and from other places: a job has at most 32 GPUs, with a link in each direction.
const PEER_COPIES: usize = 64;
/// How long a call for which the driver waits for the GPU is held up while the GPU waits for the job: what the job sends may come with
/// changes of memory that need the driver.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of messages that wait for the driver before the reader does.
const MESSAGES: u64 = 16 << 20;
/// Bytes of calls that wait in a helper before the job is slowed down: a helper has no limit of its own.
const HELPER_QUEUE: u64 = 512 << 20;
/// How long a call is held up for that if none is applied: the bytes that the others wait for may depend on what comes behind it.
const HELPER_QUEUE_TIMEOUT: Duration = Duration::from_millis(50);

/// Why a worker ends prematurely.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    /// There is no channel to a daemon.
    #[error("cannot talk to the server: {0}")]
    Channel(io::Error),
    /// The daemon sent an unexpected message.
    #[error("the server said something unexpected")]
    Order,
    /// The connection to the client failed.
    #[error("the connection to the job failed: {0}")]
    Client(io::Error),
    /// The client's frames are malformed.
    #[error("the job sent a malformed frame: {0}")]
    Frame(&'static str),
    /// The job needs an address that this process uses, and must not learn what lies there.
    #[error("the job has host memory at an address that this worker uses itself (the next worker lies elsewhere)")]
    Collision,
    /// More calls are queued than the server allows.
    #[error(
        "more than {} MiB of calls wait for the job, which a stream waits for: a host function, bytes that it reads or takes, or another \
         GPU (mrcuda serve --max-queue)", .0 >> 20
    )]
    Queue(u64),
    /// The driver fails to read or to write managed memory that lies in the GPU's memory.
    #[error("the driver cannot copy managed memory any more (CUDA error {0}), so the job's bytes would be outdated")]
    Changes(Code),
    /// The driver's output could not be captured.
    #[error("cannot catch what the driver prints: {0}")]
    Text(io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Why the GPUs of a driver cannot be listed.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    /// The driver cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver lacks a function.
    #[error("{} has no cuInit, cuDeviceGetCount or cuDeviceGetUuid", .0.display())]
    Incomplete(PathBuf),
    /// The driver reports an error.
    #[error("{}: no GPU can be used (CUDA error {code})", driver.display())]
    Call {
        /// The driver's path.
        driver: PathBuf,
        /// The result code.
        code: Code,
    },
}

/// Entry point of the hidden subcommand that [`crate::serve`] starts. Returns the exit status.
pub fn worker_main(args: Vec<OsString>) -> i32 {
    address_space::after_exec();
    match args.as_slice() {
        [flag, driver] if flag == PROBE => match gpus_of(Path::new(driver)) {
            Ok(gpus) => {
                gpus.iter().for_each(|gpu| println!("{gpu}"));
                0
            }
            Err(why) => {
                eprintln!("{why}");
                1
            }
        },
        [] => {
            // The process was started through a descriptor, whose name process lists would show otherwise.
            // SAFETY: a text that ends with a zero; names the first thread.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"mrcuda-worker".as_ptr()) };
            run_any(|| Ok(()), reach_of_daemon)
        }
        _ => {
            eprintln!("mrcuda worker: it takes no arguments, it is started by mrcuda serve");
            2
        }
    }
}

/// Main function of the program that [`crate::Link::to_helper`] starts: a worker without a daemon, on the machine of
/// its job. Returns the exit status.
pub fn helper_main() -> i32 {
    // The GPU's output goes to the job.
    orphan::shed(&[]);
    address_space::after_exec();
    raise_descriptors();
    // The arguments: the job's process id, and its build.
    if let Some(job) = std::env::args().nth(1).and_then(|job| job.parse().ok()) {
        ending::note_job(job);
    }
    let same = std::env::args().nth(2).is_some_and(|build| build == helper::build());
    run_any(|| if same { Ok(()) } else { Err(OpenError::OtherBuild) }, |_, _, _| Reach::Job)
}

/// Runs a worker on a GPU or a store, as it is told, if `check` finds nothing wrong.
fn run_any(check: impl FnOnce() -> Result<(), OpenError>, reach: ReachOf) -> i32 {
    hear(|channel, start| {
        // Before anything of the driver runs, and while there is one thread.
        let confined = start.confinement.as_ref().map_or(Ok(()), Confinement::enter).map_err(OpenError::Sandbox);
        let check = || confined.and_then(|()| check());
        match start.store {
            None => serve(channel, start, |start| check().and_then(|()| open(start)), reach),
            Some(_) => serve(channel, start, |start| check().and_then(|()| Parked::open(start)), reach),
        }
    })
}

fn open(start: &Start) -> Result<Arc<executor::Executor>, OpenError> {
    let d = start.virtual_device;
    executor::steer::hold_ranges(d).map_err(|error| OpenError::Addresses { device: d, error })?;
    let options = executor::Options { driver: PathBuf::from(&start.driver), gpu: start.gpu, virtual_device: d };
    let executor = executor::Executor::open(&options)?;
    executor.limit(executor::Limits { images: start.limits.images, pinned: start.limits.pinned, memory: start.limits.memory });
    Ok(executor)
}

/// The UUIDs of a driver's GPUs, as `CUDA_VISIBLE_DEVICES` takes them.
fn gpus_of(driver: &Path) -> Result<Vec<String>, ProbeError> {
    let d = Loaded::open(driver)?.calls.device;
    let incomplete = || ProbeError::Incomplete(driver.to_owned());
    let (init, count) = d.cuInit.zip(d.cuDeviceGetCount).ok_or_else(incomplete)?;
    let uuid = d.cuDeviceGetUuid.or(d.cuDeviceGetUuid_v2).ok_or_else(incomplete)?;
    let done = |code| if code == code::SUCCESS { Ok(()) } else { Err(ProbeError::Call { driver: driver.to_owned(), code }) };
    let mut n = 0;
    // SAFETY: an entry point of the loaded driver with its prototype.
    done(unsafe { init(0) })?;
    // SAFETY: as before; `n` is writable.
    done(unsafe { count(&raw mut n) })?;
    let name = |ordinal| {
        let (mut of_gpu, mut own) = (CUuuid { bytes: [0; 16] }, CUuuid { bytes: [0; 16] });
        // SAFETY: as before; the outputs are writable.
        done(unsafe { uuid(&raw mut of_gpu, ordinal) })?;
        match d.cuDeviceGetUuid_v2 {
            // SAFETY: as before.
            Some(uuid_v2) => done(unsafe { uuid_v2(&raw mut own, ordinal) })?,
            None => own = of_gpu,
        }
        // They differ for an instance of a partitioned GPU only (docs/driver-facts.md 2.9).
        let text = uuid_text(&own.bytes.map(|b| b as u8));
        Ok(if own.bytes == of_gpu.bytes { text } else { text.replacen("GPU-", "MIG-", 1) })
    };
    (0..n).map(name).collect()
}

/// Runs a worker on any place until it ends. Returns only if it never had a client.
#[cfg(test)]
pub(crate) fn run<P: Place>(open: impl FnOnce(&Start) -> Result<Arc<P>, OpenError>, reach: ReachOf) -> i32 {
    hear(|channel, start| serve(channel, start, open, reach))
}

/// Receives what the worker is to open. The daemon starts the process that reads NVML in the same way.
fn hear(then: impl FnOnce(Arc<Channel>, &Start) -> i32) -> i32 {
    let heard = Channel::from_stdin().and_then(|channel| Ok((channel.receive()?, channel))).map_err(WorkerError::Channel);
    match heard {
        Ok((Some((Message::Start(start), None)), channel)) => then(Arc::new(channel), &start),
        Ok((Some((Message::StartReader(start), None)), channel)) => {
            let Err(why) = nvml_reader::run(channel, start);
            complain(&why);
            1
        }
        // The daemon no longer needs the worker.
        Ok((None, _)) => 0,
        other => {
            complain(&other.err().unwrap_or(WorkerError::Order));
            1
        }
    }
}

fn serve<P: Place>(
    channel: Arc<Channel>,
    start: &Start,
    open: impl FnOnce(&Start) -> Result<Arc<P>, OpenError>,
    reach: ReachOf,
) -> i32 {
    match prepare(channel, start, open, reach) {
        Ok(None) => {
            ending::remove_useless();
            0
        }
        Ok(Some((worker, calls))) => {
            let r = worker.serve(calls);
            if let Err(why) = &r {
                complain(why);
            }
            leave(i32::from(r.is_err()), &worker.conn)
        }
        Err(why) => {
            complain(&why);
            ending::remove_useless();
            1
        }
    }
}

/// The memory of a place and its GPU.
fn measure(place: &impl Place) -> MemoryUse {
    MemoryUse {
        free_bytes: place.whole_memory().ok().map(|(free, _)| free),
        used_bytes: place.used_bytes(),
        evicted_bytes: place.evicted_bytes(),
    }
}

/// How a place is reached, given a channel, the daemon's start message and a client.
pub(crate) type ReachOf = fn(Arc<Channel>, &Start, &Conn) -> Reach;

/// For a worker of a daemon, which connects for it.
pub(crate) fn reach_of_daemon(channel: Arc<Channel>, start: &Start, conn: &Conn) -> Reach {
    let dialer = Arc::new(Dialer::new(channel.clone()));
    let for_shared_memory = dialer.clone();
    executor::share::connect_through(move |name| {
        let fd = for_shared_memory.connect(Destination::Share(*name), Instant::now() + SHARE)?;
        Ok(UnixStream::from(fd))
    });
    let sender = Sender::of(conn.ip_peer(), conn.unix_peer(), nix::unistd::geteuid().as_raw(), start.user);
    Reach::Daemon(Daemon { channel, dialer, sender, plain: start.plain })
}

/// A worker with its client, and the source of the calls.
type Prepared<P> = (Arc<Worker<P>>, Box<dyn Ahead>);

/// Opens the place and waits for a client. `None`: the daemon no longer needs the worker.
fn prepare<P: Place>(
    channel: Arc<Channel>,
    start: &Start,
    open: impl FnOnce(&Start) -> Result<Arc<P>, OpenError>,
    reach: ReachOf,
) -> Result<Option<Prepared<P>>, WorkerError> {
    let next = || channel.receive().map_err(WorkerError::Channel);
    faults::at(Point::Open);
    let opened = open(start);
    if let (Some(StoreAt::NewFile(file) | StoreAt::File(file, _)), Ok(_)) = (&start.store, &opened) {
        ending::remove_with_job(file.into());
    }
    let facts = |place: &Arc<P>| {
        let facts = GpuFacts::from(&place.device());
        GpuFacts { total_bytes: place.whole_memory().map_or(facts.total_bytes, |(_, total)| total), ..facts }
    };
    let said = opened.as_ref().map(facts).map_err(ToString::to_string);
    let heard = channel.send(&Message::Ready(said), None);
    // A daemon that has ended needs no worker either.
    let (Ok(place), Ok(())) = (opened, heard) else { return Ok(None) };
    let mut usage = None;
    let (conn, rdma) = loop {
        match next()? {
            Some((Message::Job(_, session, rdma), Some(fd))) => {
                break (Conn::handed_over(fd, session).map_err(WorkerError::Client)?, rdma);
            }
            Some((Message::Account(slot, limit), Some(fd))) => {
                let on = Arc::new(Usage::received(fd.as_fd(), slot, limit).map_err(WorkerError::Channel)?);
                place.set_account(on.clone());
                usage = Some(on);
            }
            Some((Message::Measure, None)) if channel.send(&Message::Measured(measure(&*place)), None).is_ok() => {}
            Some((Message::Measure, None)) | None => return Ok(None),
            Some(_) => return Err(WorkerError::Order),
        }
    };
    // From here on this worker serves the job. A daemon that does not hear this may have given the job to another worker, and two
    // of them would use the same keys.
    if channel.send(&Message::Taken, None).is_err() {
        return Ok(None);
    }
    let text = Text::capture().map_err(WorkerError::Text)?;
    faults::at(Point::Serve);
    let mut about = Vec::new();
    (place.device(), std::process::id()).put(&mut about);
    greet::answer(&conn, Ok(&about)).map_err(WorkerError::Client)?;
    if rdma {
        let set_up = setup::accept(&conn, Rings { bytes: CALL_RING, budget: place.budget(), others: 0 }, Instant::now() + SETUP);
        set_up.map_err(|why| WorkerError::Client(io::Error::other(GreetError::from(why).to_string())))?;
    }
    let conn = Arc::new(conn);
    let (calls, out) = transport::open(&conn, &*place, Instant::now() + SETUP).map_err(WorkerError::Client)?;
    let worker = Arc::new(Worker {
        attendant: Attendant::new(place.clone(), reach(channel.clone(), start, &conn)),
        place,
        conn,
        out: Mutex::new(out),
        completion: Completion::default(),
        late_calls: LateCalls::new(start.limits.queue),
        messages: LateCalls::new(u64::MAX),
        text,
        sending_changes: Mutex::default(),
        channel,
        sticky: AtomicI32::new(code::SUCCESS),
        requests: AtomicUsize::new(0),
        peer_copies: AtomicUsize::new(0),
        bulk: Default::default(),
        gpu_areas: Mutex::new(bulk::GpuAreas::new(start.gpudirect)),
        counting: Counting::new(usage),
        leaves: Leaves::default(),
        eviction: Arc::new(Eviction::new(start.evict_after)),
    });
    Ok(Some((worker, calls)))
}

/// A worker with its client.
#[derive(Debug)]
struct Worker<P: Place> {
    place: Arc<P>,
    conn: Arc<Conn>,
    /// Held while a message is sent to the client.
    out: Mutex<Box<dyn Answers>>,
    completion: Completion<P::Pending>,
    late_calls: LateCalls,
    /// Messages that streams may wait for and that need the driver, and those behind them.
    messages: LateCalls,
    attendant: Attendant<P>,
    text: Text,
    /// Number of messages with changes of host memory. Held while changes are collected and sent.
    sending_changes: Mutex<u64>,
    channel: Arc<Channel>,
    /// The last sticky error, which is reported once, not for every call that fails because of it.
    sticky: AtomicI32,
    /// Number of control requests in progress.
    requests: AtomicUsize,
    /// Number of copies to and from other places in progress.
    peer_copies: AtomicUsize,
    /// Whether large copies in each direction have connections.
    bulk: [AtomicBool; 2],
    gpu_areas: Mutex<bulk::GpuAreas>,
    counting: Counting,
    leaves: Leaves,
    eviction: Arc<Eviction>,
}

impl<P: Place> Worker<P> {
    /// Serves until the client has disconnected.
    fn serve(self: &Arc<Self>, calls: Box<dyn Ahead>) -> Result<(), WorkerError> {
        // After a panic the process must not continue: the client detects the end of the connection.
        let conn = self.conn.clone();
        std::panic::set_hook(Box::new(move |info| {
            complain(info);
            leave(101, &conn);
        }));
        let start = |name, body: fn(&Arc<Worker<P>>)| {
            let worker = self.clone();
            threads::spawn(name, move || body(&worker)).map(drop).map_err(WorkerError::Thread)
        };
        start("completion", |w| w.completion.run(&*w.place, |item, rc| w.answer(item.ticket, item.id, rc, &item.reply)))?;
        start("late", |w| {
            let mut reply = Vec::new();
            let apply = |head: Head, body: &[u8], after| {
                w.messages.wait_for(after);
                if may_wait_for_gpu(head.id) {
                    w.hold_up_for_job();
                }
                let applied = w.apply(head, body, &mut reply);
                if w.late_calls.left() == 1 {
                    w.finish_copies();
                }
                applied
            };
            let why = w.late_calls.run(apply, |idle| w.poll_while(idle));
            complain(&why);
            leave(1, &w.conn);
        })?;
        start("messages", |w| {
            let mut reply = Vec::new();
            let apply = |head, body: &[u8], _| {
                let applied = w.apply(head, body, &mut reply);
                // Its answer may have been left to a thread that sleeps.
                w.completion.wake();
                applied
            };
            let why = w.messages.run(apply, |_| ());
            complain(&why);
            leave(1, &w.conn);
        })?;
        start("heartbeat", |w| w.beat())?;
        start("text", |w| w.text.run(&|to, text| w.send(to, TEXT, text)))?;
        start("alike", |w| host_mirror::keep_alike(&*w.place, || w.late_calls.count(), || w.send_changes(false)))?;
        start("daemon", |w| w.listen())?;
        if self.eviction.is_on() {
            start("stops", |w| w.watch_for_stops())?;
        }
        self.read(Inbox::new(Heard { from: calls, eviction: self.eviction.clone() }))
    }

    /// Reads calls and applies them in order.
    fn read(self: &Arc<Self>, mut inbox: Inbox<Heard<Box<dyn Ahead>>>) -> Result<(), WorkerError> {
        let (mut long, mut reply) = (Vec::new(), Vec::new());
        let mut next = 0;
        loop {
            let idle = || inbox.is_empty() && !inbox.source().is_ready();
            // Those of late calls are finished by the thread of these: the reader must not wait for what waits for the client.
            if self.place.has_copies_at_rest() && self.late_calls.is_empty() && idle() {
                self.finish_copies();
            }
            self.poll_while(idle);
            self.eviction.listen();
            let head = match inbox.head::<HEAD>() {
                // The job has ended without reading all answers.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset && inbox.is_empty() => None,
                head => head.map_err(WorkerError::Client)?,
            };
            let Some(head) = head else { return Ok(()) };
            let head = Head::read(&head);
            let bytes = head.body().ok_or(WorkerError::Frame("its length"))?;
            if head.seq != next || head.flags != 0 {
                return Err(WorkerError::Frame("its number or flags"));
            }
            next += 1;
            let taken = inbox.with(filled(bytes), &mut long, |body| {
                self.eviction.does_not_listen();
                self.call(head, &body[..bytes], &mut reply)
            });
            taken.map_err(WorkerError::Client)??;
            for buffer in [&mut long, &mut reply] {
                if buffer.capacity() > KEEP {
                    *buffer = Vec::new();
                }
            }
        }
    }

    /// Answers completed calls while `idle` returns true, for a short time; then the thread for completions does.
    fn poll_while(&self, idle: impl Fn() -> bool) {
        self.completion.poll_while(&*self.place, |item, rc| self.answer(item.ticket, item.id, rc, &item.reply), idle);
    }

    fn call(self: &Arc<Self>, head: Head, body: &[u8], reply: &mut Vec<u8>) -> Result<(), WorkerError> {
        if head.id == ALIVE {
            return Ok(());
        }
        self.counting.call(head.id, body);
        if head.id == CONTROL {
            // Requests are carried out on threads of their own.
            if self.late_calls.is_empty() {
                self.finish_copies();
            }
            return self.request(head.ticket, body);
        }
        // Now rather than when a late call is applied, and not for the call with which the job leaves: only the calls that come after a copy
        // say that the job has stayed.
        if head.id != GOODBYE {
            self.counting.stays();
        }
        // The job has waited for the streams. Another block may come to its address at once, so messages before it are applied first.
        if head.id == ops::id::HOST_UNPIN {
            self.messages.wait_for(self.messages.count());
            if self.place.end_block(body) {
                self.answer(head.ticket, head.id, code::SUCCESS, &[]);
                return Ok(());
            }
        }
        // A stream may wait for them, whatever a call waits for: memory that the job's bytes name is needed before these bytes.
        let is_message = match head.id {
            ops::id::HOST_DONE | ops::id::HOST_BYTES | ops::id::HOST_RUNS | ops::id::HOST_BLOCK => true,
            ops::id::HOST_PIN => !self.late_calls.ends_memory(),
            _ => false,
        };
        if head.id == ops::id::HOST_BYTES && body.len() > MESSAGE_LINES * LINE_BYTES + 1 {
            return Err(WorkerError::Frame("its number of lines"));
        }
        let needs_driver = match head.id {
            ops::id::HOST_BYTES => self.place.needs_driver(body),
            // It also waits for the job, and this thread must not.
            ops::id::HOST_RUNS => true,
            _ => false,
        };
        if is_message && (needs_driver || !self.messages.is_empty()) {
            while self.messages.bytes() > MESSAGES {
                std::thread::sleep(POLL_INTERVAL);
            }
            self.messages.push(head, body, 0);
            return Ok(());
        }
        let wait = !self.late_calls.is_empty() || !self.messages.is_empty() || self.may_wait_for_job();
        if !is_message && wait {
            return self.leave_for_later(head, body);
        }
        // While calls wait for evicted memory, requests are still answered, so the reader does not wait.
        match self.enter_now(head.id) {
            Some(in_use) => self.apply_in(in_use, head, body, reply),
            None => self.leave_for_later(head, body),
        }
    }

    /// Holds a call up, for which the driver may wait for the GPU, while the GPU waits for the job: meanwhile the driver would not take the job's
    /// changes, nor look for the GPU's, which are sent before the job is asked.
    fn hold_up_for_job(&self) {
        let began = Instant::now();
        let waits = || self.place.awaits_job() || self.place.staging().awaits_bytes();
        while self.place.has_gpu_blocks() && waits() && began.elapsed() < JOB_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether a call that waits for the GPU may wait for a message of the client. Mirrored memory is mirrored whatever a call
    /// waits for.
    fn may_wait_for_job(&self) -> bool {
        self.place.awaits_job() || self.place.staging().awaits_bytes() || self.place.has_apart()
    }

    /// Waits for the copies that no thread waits for; if they have failed, the client gets a message.
    fn finish_copies(&self) {
        if let Err(rc) = self.place.finish_copies() {
            self.answer(NO_TICKET, ops::id::COPY_IN_AT_REST, rc, &[]);
        }
    }

    /// Queues a call. If the queue is full, it waits as long as other calls are applied, for example behind a long
    /// kernel. If none is applied while the job has to answer something, the answer lies behind this call.
    fn leave_for_later(&self, head: Head, body: &[u8]) -> Result<(), WorkerError> {
        let (mut left, mut since) = (self.late_calls.left(), Instant::now());
        while self.late_calls.limit() == u64::MAX && self.late_calls.bytes() > HELPER_QUEUE && !self.place.awaits_job() {
            if self.late_calls.left() != left {
                (left, since) = (self.late_calls.left(), Instant::now());
            } else if since.elapsed() >= HELPER_QUEUE_TIMEOUT {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        while !self.late_calls.push(head, body, self.messages.count()) {
            std::thread::sleep(Duration::from_millis(1));
            if self.late_calls.left() != left || !self.place.awaits_job() {
                (left, since) = (self.late_calls.left(), Instant::now());
            }
            if since.elapsed() > QUEUE_TIMEOUT {
                return Err(self.queue_is_full());
            }
        }
        Ok(())
    }

    /// Ends the job with an error, because its queued calls would take more memory than the server allows.
    fn queue_is_full(&self) -> WorkerError {
        self.send_reason(WorkerError::Queue(self.late_calls.limit()))
    }

    /// Tells the job why its worker ends.
    fn send_reason(&self, why: WorkerError) -> WorkerError {
        self.send(STDERR, TEXT, format!("mrcuda: {why}\n").as_bytes());
        why
    }

    /// Applies a call on the thread of late calls or of messages, when the job's memory is there.
    fn apply(&self, head: Head, body: &[u8], reply: &mut Vec<u8>) -> Result<(), WorkerError> {
        self.apply_in(self.enter(head.id), head, body, reply)
    }

    /// Applies a call: on the reading thread or, while there are late calls, on their thread. The job's memory stays where it is meanwhile.
    fn apply_in(&self, in_use: InUse<'_>, head: Head, body: &[u8], reply: &mut Vec<u8>) -> Result<(), WorkerError> {
        if head.id == GOODBYE {
            self.goodbye(head.ticket);
        }
        if head.id == ops::id::CONTEXT_RESET {
            // A later error with the same code is a new one.
            self.sticky.store(code::SUCCESS, Ordering::Relaxed);
        }
        reply.clear();
        let outcome = self.place.apply(head.id, body, reply);
        // An answer would disclose the worker's addresses to a client, and the job may not be able to go on without this memory.
        if matches!(head.id, ops::id::HOST_PIN | ops::id::BATCH) && self.place.has_collided() {
            return Err(self.send_reason(WorkerError::Collision));
        }
        match outcome {
            // Memory that has ended is no error, nor is a place that ends; what was not written would be missing in what kernels read.
            Outcome::Done(rc)
                if matches!(head.id, ops::id::HOST_BYTES | ops::id::HOST_RUNS)
                    && !code::is_sticky(rc)
                    && !matches!(rc, code::SUCCESS | code::ERROR_INVALID_VALUE | code::ERROR_DEINITIALIZED) =>
            {
                return Err(self.send_reason(WorkerError::Changes(rc)));
            }
            Outcome::Done(rc) if head.ticket == NO_TICKET || self.completion.is_empty() => {
                self.answer(head.ticket, head.id, rc, reply)
            }
            // The answer must not overtake the bytes of a copy that the GPU completed before.
            outcome => {
                if !self.completion.wait_for_room(self.late_calls.limit(), QUEUE_TIMEOUT, || self.place.awaits_job()) {
                    return Err(self.queue_is_full());
                }
                self.completion.add(Item::new(head.ticket, head.id, std::mem::take(reply), outcome));
            }
        }
        drop(in_use);
        Ok(())
    }

    /// Sends the result of a call to the client, if it expects one or the call failed; printed text is sent first.
    fn answer(&self, ticket: u64, id: u16, rc: Code, body: &[u8]) {
        // The text of a failed assertion belongs to the error.
        if self.place.prints() && ticket != NO_TICKET || code::is_sticky(rc) {
            self.pass_text_on();
        }
        if ticket != NO_TICKET && self.place.has_apart() && host_mirror::shows_progress(id) {
            self.send_changes(true);
        }
        if ticket != NO_TICKET {
            let fits = body.len() <= MAX_BODY;
            let (rc, body) = if fits { (rc, body) } else { (code::ERROR_INVALID_VALUE, &[][..]) };
            self.send(rc, ticket, body);
        } else if rc != code::SUCCESS && !(code::is_sticky(rc) && self.sticky.swap(rc, Ordering::Relaxed) == rc) {
            self.send(rc, NO_TICKET, &id.to_le_bytes());
        }
    }

    /// Sends an answer, or a message of another kind, to the job.
    fn send(&self, rc: Code, ticket: u64, body: &[u8]) {
        let Some(head) = AnswerHead::new(rc, ticket, body.len()) else { return };
        self.counting.answer(body.len());
        self.write(&mut **lock(&self.out), &[&head.bytes(), body]);
    }

    fn write(&self, out: &mut dyn Answers, pieces: &[&[u8]]) {
        if out.write_pieces(pieces).is_err() {
            abandon(0);
        }
    }

    fn pass_text_on(&self) {
        self.text.pass_on(&|to, text| self.send(to, TEXT, text));
    }

    /// Sends heartbeats; ends the process when the client has disconnected, whatever the other threads wait for.
    fn beat(&self) {
        loop {
            if self.conn.wait_gone(HEARTBEAT_EVERY) {
                abandon(0);
            }
            // A client that does not read must not block this thread; while another message is being written, that
            // serves as the heartbeat.
            let Ok(mut out) = self.out.try_lock() else { continue };
            self.eviction.beats(out.progress().map(|progress| progress.read));
            // Also if the job is silent: it may be taken for stopped wrongly, and must not take this worker for lost.
            if out.has_room() {
                let code = if self.eviction.is_on() { ANSWER_WANTED } else { code::SUCCESS };
                let head = AnswerHead { len: ANSWER_HEAD as u32, code, ticket: HEARTBEAT };
                self.write(&mut **out, &[&head.bytes()]);
                self.eviction.has_beaten(out.progress().map(|progress| progress.written));
            }
        }
    }

    /// Receives messages of the daemon; without a daemon the worker ends.
    fn listen(self: &Arc<Self>) {
        loop {
            match self.channel.receive() {
                Ok(Some((Message::Expecting(ticket), None))) => self.attendant.stripes().known(&ticket),
                Ok(Some((Message::Bulk(ticket, session, rdma), Some(fd)))) => {
                    self.welcome(ticket, Conn::handed_over(fd, session), rdma)
                }
                Ok(Some((Message::Connected(number, error), fd))) => self.attendant.connected(number, error, fd),
                Ok(Some((Message::Leave(to, ms, request), None))) => {
                    self.clone().pass_on_leave(LeaveRequest { to, limit: Duration::from_millis(ms), request });
                }
                Ok(Some((Message::MayEvict(number, why_not), None))) => self.eviction.take_answer(number, why_not),
                Ok(Some((Message::Measure, None))) => self.clone().report_memory(),
                Ok(Some((Message::Joined(ticket), Some(fd)))) => {
                    drop(self.attendant.stripes().arrived(&ticket, Conn::new(fd)));
                }
                Ok(None) => leave(0, &self.conn),
                _ => {
                    complain(&WorkerError::Order);
                    leave(1, &self.conn);
                }
            }
        }
    }

    /// Reports the use of memory to the daemon, on a thread of its own: the driver may be busy, and the daemon's next message must
    /// not wait for it. The daemon asks again only when it has the answer, so there is one such thread at a time.
    fn report_memory(self: Arc<Self>) {
        // A daemon that has ended needs no answer.
        let report = move || drop(self.channel.send(&Message::Measured(measure(&*self.place)), None));
        threads::spawn("memory", report).map_or_else(|e| complain(&WorkerError::Thread(e)), drop);
    }

    /// Passes on to the job that it is to move away, on a thread of its own: a job that is stopped does not read, and the daemon's
    /// next message must not wait for it.
    fn pass_on_leave(self: Arc<Self>, request: LeaveRequest) {
        if !self.leaves.add(request) {
            return;
        }
        let worker = self.clone();
        let pass_on = move || {
            while let Some(request) = worker.leaves.next() {
                worker.send(code::SUCCESS, LEAVE, &request.body());
            }
        };
        if let Err(e) = threads::spawn("leave", pass_on) {
            self.leaves.not_started();
            complain(&WorkerError::Thread(e));
        }
    }

    /// Adds a data connection, and answers its peer.
    fn welcome(self: &Arc<Self>, ticket: [u8; 32], conn: io::Result<Conn>, rdma: bool) {
        // Without an answer, the peer learns that the connection has ended.
        let Ok(conn) = conn else { return };
        if !rdma {
            return self.admit(&ticket, conn);
        }
        // Apart: the peer may be slow, and the daemon's next message must not wait for it.
        let worker = self.clone();
        let set_up = move || {
            if data::carry_by_rdma(&conn, worker.attendant.may_be_plain(), &*worker.place) {
                worker.admit(&ticket, conn);
            }
        };
        threads::spawn("rdma", set_up).map_or_else(|e| complain(&WorkerError::Thread(e)), drop);
    }

    fn admit(&self, ticket: &[u8; 32], conn: Conn) {
        // The peer opens them concurrently. The answer says the number, so that both ends use them in the same order.
        let Some((number, conn)) = self.attendant.stripes().arrived(ticket, conn) else { return };
        if greet::answer(&conn, Ok(&number.to_le_bytes())).is_err() {
            conn.shutdown();
        }
    }

    /// What counts the requests of one kind in progress.
    fn counter(&self, peer_copies: bool) -> &AtomicUsize {
        if peer_copies { &self.peer_copies } else { &self.requests }
    }

    /// Executes a control request, concurrently with the calls.
    fn request(self: &Arc<Self>, ticket: u64, body: &[u8]) -> Result<(), WorkerError> {
        let request = Control::decode(body).map_err(|_| WorkerError::Frame("a control request"))?;
        // One for each link: they must not crowd out the requests of a move.
        let is_peer_copy = matches!(request, Control::PeerOut { .. } | Control::PeerIn { .. });
        let refuse = |why: String| {
            self.counter(is_peer_copy).fetch_sub(1, Ordering::AcqRel);
            self.reply(ticket, &ControlReply::Refused(Refused::Other(why)));
        };
        let most = match request {
            Control::PeerOut { .. } | Control::PeerIn { .. } => PEER_COPIES,
            Control::HangUp { .. } | Control::EndLink { .. } => 2 * REQUESTS,
            _ => REQUESTS,
        };
        if self.counter(is_peer_copy).fetch_add(1, Ordering::AcqRel) >= most {
            refuse("too many requests at one time".into());
            return Ok(());
        }
        let (worker, after) = (self.clone(), self.messages.count());
        let body = move || {
            worker.messages.wait_for(after);
            let in_use = worker.enter_for(&request);
            let reply = in_use.and_then(|_stays| worker.carry_out(request)).unwrap_or_else(ControlReply::Refused);
            worker.counter(is_peer_copy).fetch_sub(1, Ordering::AcqRel);
            worker.reply(ticket, &reply);
        };
        // The job's calls need no such thread.
        if let Err(e) = threads::spawn("control", body) {
            refuse(format!("cannot start a thread: {e}"));
        }
        Ok(())
    }

    /// Executes a request; the GPU has received all work only when no call is late.
    fn carry_out(self: &Arc<Self>, request: Control) -> Result<ControlReply, Refused> {
        let limit_ms = match request {
            Control::Drain { limit_ms } => limit_ms,
            Control::Bulk { ticket, to_device, shared } => return self.open_bulk(&ticket, to_device, shared),
            Control::Areas { at_least } => return self.provide_areas(at_least),
            other => {
                let to_here = counting::is_to_here(&other);
                let done = self.attendant.carry_out(other);
                self.counting.request(to_here, &done);
                return done;
            }
        };
        let (began, limit) = (Instant::now(), Duration::from_millis(limit_ms.into()));
        while !self.late_calls.is_empty() {
            if began.elapsed() >= limit {
                return self.attendant.busy();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let left = limit.saturating_sub(began.elapsed()).as_millis();
        self.attendant.carry_out(Control::Drain { limit_ms: u32::try_from(left).unwrap_or(limit_ms) })
    }

    fn reply(&self, ticket: u64, reply: &ControlReply) {
        match reply.encode() {
            Ok(bytes) => self.answer(ticket, CONTROL, code::SUCCESS, &bytes),
            Err(_) => self.answer(ticket, CONTROL, code::ERROR_OUT_OF_MEMORY, &[]),
        }
    }
}
