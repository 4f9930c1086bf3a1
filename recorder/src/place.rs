//! Places: where the calls of one device execute.

mod choice;
mod error;
mod kept_file;
mod large_copies;
mod notice;

pub(crate) use choice::choose;
pub(crate) use error::OpenError;
use executor::host_rows::HostRows;
use kept_file::KeptFile;
pub(crate) use large_copies::bulk_connections;
use notice::Notice;

use crate::base::log::lock;
use crate::pinned::blocks;
use crate::pinned::blocks::Block;
use crate::pinned::naming::{self, Holder};
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, HostPin, Slab};
use cuda_api::wire::Wire;
use cuda_image::Image;
use executor::host_mirror::UnseenWriter;
use executor::{Applied, DeviceInfo, Executor, Options, Pending};
use rcuda_forwarder::{
    Control, ControlReply, Credentials, Endpoint, HelperOptions, InProcess, JobHello, Landing, LeaveRequest, Link, LinkError,
    Lost, Opens, PlaceSpec, Reply, StoreAt, TimeLimits, Transport,
};
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// The GPU and device to which this process is bound, see [`choose`].
pub(crate) fn bound() -> Option<(u32, u32)> {
    executor::bound(crate::base::config::get().ok()?.driver.as_deref()?)
}

/// Host memory of the job that a place's driver knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin {
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// Whether the place has a copy that mirrors the job's memory.
    pub(crate) apart: bool,
    /// Number of its slab; 0 without one.
    slab: u64,
    /// Whether the place has it in its GPU's memory.
    on_gpu: bool,
    /// Whether the job has freed the memory without informing the place: the job may have allocated other memory there since.
    gone: bool,
}

/// All host memory of the job that a worker has, by address.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    all: Mutex<BTreeMap<u64, Pin>>,
    /// Whether the worker has the file of pinned memory and maps blocks of it.
    file: AtomicBool,
    /// Held while the worker acquires or releases memory, which takes a round trip.
    changing: Mutex<()>,
    /// Whether a device of the job executes there. Otherwise it is only the target of a move, which may still fail.
    executes: AtomicBool,
    /// Held while the worker gets memory that is named by bytes which travel beside the calls.
    pinning: Mutex<()>,
    /// Number of blocks that were requested without waiting, and how many of these requests the worker has read for certain.
    requested: AtomicU64,
    confirmed: AtomicU64,
}

/// How long a target may take for one answer: it may have to compile code. A target that keeps its connection alive but never
/// answers must not hold up a move forever.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(900);

/// A worker that has as many blocks answers each further request: it may refuse it.
const MAX_UNANSWERED_BLOCKS: usize = 1 << 15;

/// Whether the job uses several devices. Then a GPU of another place may be given the address of a block before that place has read the
/// request for it.
static SEVERAL_DEVICES: AtomicBool = AtomicBool::new(false);

/// Workers that may have host memory, whether or not a device is there.
static WORKERS: Mutex<Vec<(Weak<Link>, Arc<Pins>)>> = Mutex::new(Vec::new());

/// Calls `of` for each worker that still exists, without holding the list's lock.
fn each_worker(of: impl Fn(&Link, &Pins)) {
    let workers: Vec<(Weak<Link>, Arc<Pins>)> = lock(&WORKERS).clone();
    workers.iter().filter_map(|(link, pins)| Some((link.upgrade()?, pins))).for_each(|(link, pins)| of(&link, pins));
}

/// Host memory that contains this page is about to be freed: changes found in it are not reported from now on.
pub(crate) fn give_up_memory(page: u64) {
    each_worker(|link, _| link.give_up_memory(page));
}

/// Marks the memory that begins at `at` as freed.
pub(crate) fn forget_memory(page: u64, at: u64) {
    each_worker(|link, pins| {
        link.forget_memory(page);
        if let Some(pin) = lock(&pins.all).get_mut(&at) {
            pin.gone |= pin.apart;
        }
    });
}

/// An open place. Clones refer to the same place.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A worker process behind a connection: a server's, or a helper.
    Remote {
        /// The connection.
        link: Arc<Link>,
        /// Its place specification.
        spec: PlaceSpec,
        /// The host memory of the job that it has, by address.
        pins: Arc<Pins>,
        /// Notes that the place writes to the file of pinned memory.
        _writes: Option<Arc<UnseenWriter>>,
        /// The file of a store.
        kept: Option<Arc<KeptFile>>,
    },
    /// The executor in this process.
    Local {
        /// The executor.
        exec: Arc<Executor>,
        /// Answers its control requests.
        attendant: InProcess,
        /// Physical ordinal of its GPU.
        gpu: u32,
        /// Notes that the driver writes to the job's memory.
        _writes: Arc<UnseenWriter>,
    },
}

/// The helper's program, which is in this library's directory, and the directory in which the dynamic linker found this library:
/// a helper must not load its driver from there.
fn helper_program() -> Result<(PathBuf, Vec<PathBuf>), OpenError> {
    // SAFETY: all-zero is a valid `Dl_info`, which the call fills.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function of this library; `about` is writable.
    let known = unsafe { libc::dladdr(helper_program as *const libc::c_void, &raw mut about) } != 0 && !about.dli_fname.is_null();
    if !known {
        return Err(OpenError::OwnFile(None));
    }
    // SAFETY: the linker's string lives as long as the library.
    let name = unsafe { CStr::from_ptr(about.dli_fname) };
    let found = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    let file = std::fs::canonicalize(&found).map_err(|e| OpenError::OwnFile(Some((found.clone(), e))))?;
    let program = file.with_file_name("mhelper");
    if !program.is_file() {
        return Err(OpenError::NoHelper(program));
    }
    let directories = [&found, &file].into_iter().filter_map(|f| f.parent()).map(PathBuf::from).collect();
    Ok((program, directories))
}

/// Runs a host function for the driver of this process.
static RUN_HOST_FUNCTION: OnceLock<fn(u64, Code)> = OnceLock::new();

/// Sets what runs host functions for the driver of this process, before a place is opened.
pub(crate) fn run_host_functions_by(run: fn(u64, Code)) {
    let _ = RUN_HOST_FUNCTION.set(run);
}

/// Takes the request of a place's server that the job move away.
pub(crate) type FollowServer = fn(&PlaceSpec, &Weak<Link>, LeaveRequest);

static FOLLOW_SERVER: OnceLock<FollowServer> = OnceLock::new();

/// Sets what takes the requests of servers that are ending, before a place is opened.
pub(crate) fn follow_servers_by(follow: FollowServer) {
    let _ = FOLLOW_SERVER.set(follow);
}

static LOST: Mutex<Option<String>> = Mutex::new(None);

/// Why a worker was lost; the latest reason.
pub(crate) fn why_lost() -> Option<String> {
    lock(&LOST).clone()
}

/// Records the loss of a worker and returns it as a driver code.
pub(crate) fn lost(why: Lost) -> Code {
    // The latest reason counts: the target of a failed move may have been lost earlier.
    *lock(&LOST) = Some(why.why.to_string());
    code::ERROR_DEVICE_UNAVAILABLE
}

/// An answer that is under way.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// From a worker.
    Reply(Reply),
    /// From the executor in this process, when its GPU has got there.
    Pending(Arc<Executor>, Pending, Vec<u8>),
    /// Already available.
    Done(Code, Vec<u8>),
}

impl Waiting {
    /// Returns whether [`Waiting::finish`] would return at once.
    pub(crate) fn is_done(&mut self) -> bool {
        match self {
            Waiting::Reply(r) => r.is_here(),
            Waiting::Pending(exec, pending, bytes) => match pending.poll(exec, bytes) {
                Some(rc) => {
                    *self = Waiting::Done(rc, std::mem::take(bytes));
                    true
                }
                None => false,
            },
            Waiting::Done(..) => true,
        }
    }

    /// Start and end position of the call in the place's order, if it has one ([`Place::position`]).
    pub(crate) fn span(&self) -> Option<Range<u64>> {
        if let Waiting::Reply(r) = self { Some(r.span()) } else { None }
    }

    /// Waits for the answer. The bytes are the answer or, with an error, the place's description of it.
    pub(crate) fn finish(self) -> (Code, Vec<u8>) {
        match self {
            Waiting::Reply(r) => r.wait().unwrap_or_else(|why| (lost(why), Vec::new())),
            Waiting::Pending(exec, pending, mut bytes) => {
                let rc = pending.wait(&exec, &mut bytes);
                (rc, bytes)
            }
            Waiting::Done(rc, bytes) => (rc, bytes),
        }
    }

    /// As [`Waiting::finish`], for an answer that comes before another one that was waited for.
    pub(crate) fn finish_along(self) -> (Code, Vec<u8>) {
        match self {
            Waiting::Reply(r) => r.wait_along().unwrap_or_else(|why| (lost(why), Vec::new())),
            here => here.finish(),
        }
    }

    /// As [`Waiting::finish`], if a worker answers within `limit`.
    pub(crate) fn finish_within(self, limit: Duration) -> Option<(Code, Vec<u8>)> {
        match self {
            Waiting::Reply(r) => r.wait_for(limit).map(|a| a.unwrap_or_else(|why| (lost(why), Vec::new()))),
            here => Some(here.finish()),
        }
    }
}

/// A control request that was begun.
#[derive(Debug)]
pub(crate) enum ControlUnderWay<'p> {
    /// At a worker.
    Worker(rcuda_forwarder::ControlUnderWay),
    /// For the executor in this process.
    Here(&'p InProcess, Control),
}

impl ControlUnderWay<'_> {
    /// Waits for the answer; a refusal is an error.
    pub(crate) fn finish(self) -> Result<ControlReply, LinkError> {
        match self {
            ControlUnderWay::Worker(asked) => asked.finish(),
            ControlUnderWay::Here(attendant, request) => Ok(attendant.control(&request)?),
        }
    }
}

/// A worker, with its host memory.
pub(crate) struct Worker<'a> {
    link: &'a Arc<Link>,
    pins: &'a Pins,
}

impl Holder for Worker<'_> {
    fn has(&self, at: u64) -> bool {
        Worker::has(self, at)
    }

    fn executes(&self) -> bool {
        self.pins.executes.load(Ordering::Acquire)
    }

    unsafe fn pin(&self, at: u64, block: &Block) -> Result<Option<Range<u64>>, Code> {
        // SAFETY: guaranteed by the caller.
        unsafe { Worker::pin(self, at, block) }
    }
}

/// Opens connections for changes of blocks that a place has put into its GPU's memory, unless there are some. On a thread of its own: it may take long, and
/// the caller holds locks. Until they are there, and if there are none, changes travel over the connection of the calls. If they cannot be opened, the next such
/// block tries again after a while.
fn open_for_changes(link: &Arc<Link>) {
    let link = link.clone();
    let open = move || _ = link.has_bulk(false, || bulk_connections(&link));
    let _ = crate::base::spawn::spawn("mrcuda-open", open);
}

impl Worker<'_> {
    /// See [`Place::is_apart`].
    pub(crate) fn is_apart(&self, filed: bool) -> bool {
        !(filed && self.pins.file.load(Ordering::Acquire))
    }

    /// Returns whether the worker has the memory that begins at an address.
    pub(crate) fn has(&self, at: u64) -> bool {
        lock(&self.pins.all).get(&at).is_some_and(|p| !p.gone)
    }

    /// # Safety
    /// As for [`Place::pin`].
    pub(crate) unsafe fn pin(&self, at: u64, block: &Block) -> Result<Option<Range<u64>>, Code> {
        let &Block { bytes, flags, filed, slab, exclusive, .. } = block;
        let _changing = lock(&self.pins.changing);
        if self.has(at) {
            // Another thread has pinned it already: pinning it again would start a new copy with zeros.
            return Ok(None);
        }
        let apart = self.is_apart(filed);
        let mut body = Vec::with_capacity(64);
        HostPin { address: at, bytes, flags, apart, exclusive, slab }.put(&mut body);
        let pinned = Pin { bytes, apart, slab: slab.number, on_gpu: false, gone: false };
        if apart && self.executes() && self.mirrors_slab(&slab) && !SEVERAL_DEVICES.load(Ordering::Acquire) {
            // SAFETY: guaranteed by the caller.
            let sent = unsafe { self.link.keep_block_alike(&body, at, bytes) };
            let span = sent.map_err(|_| code::ERROR_OUT_OF_MEMORY)?.map_err(lost)?;
            // Before the block is known.
            self.pins.requested.fetch_add(1, Ordering::AcqRel);
            lock(&self.pins.all).insert(at, pinned);
            return Ok(Some(span));
        }
        let asked = self.link.request(ops::id::HOST_PIN, &[&body]).map_err(lost)?;
        let span = asked.span();
        let answer =
            if self.executes() { asked.wait() } else { asked.wait_for(ANSWER_TIMEOUT).ok_or(code::ERROR_DEVICE_UNAVAILABLE)? };
        let mut is_on_gpu = false;
        match answer.map_err(lost)? {
            (code::SUCCESS, reply) if apart && exclusive => {
                let on_gpu = reply.first() == Some(&1);
                tracing::debug!(target: "memory", "managed memory of {bytes} bytes is in the GPU's memory there: {on_gpu}");
                is_on_gpu = on_gpu;
            }
            (code::SUCCESS, _) => {}
            (rc, _) => return Err(rc),
        }
        if apart {
            let start = blocks::page(at);
            // SAFETY: guaranteed by the caller.
            unsafe { self.link.keep_alike(start, at + bytes - start, exclusive) }.map_err(|_| code::ERROR_OUT_OF_MEMORY)?;
        }
        lock(&self.pins.all).insert(at, Pin { on_gpu: is_on_gpu, ..pinned });
        // A target may never be used. One that comes to be is looked at again (`Place::begin_to_execute`), behind this block.
        if is_on_gpu && self.executes() {
            open_for_changes(self.link);
        }
        Ok(Some(span))
    }

    /// Returns whether the worker has a mirrored block of this slab, and so the slab, and room for more blocks.
    fn mirrors_slab(&self, slab: &Slab) -> bool {
        let range = slab.address..slab.address + slab.bytes;
        let all = lock(&self.pins.all);
        all.len() < MAX_UNANSWERED_BLOCKS && all.range(range).any(|(_, pin)| pin.apart && pin.slab == slab.number)
    }
}

impl Place {
    /// Opens a place for virtual device `device`, for a job that starts: if the place is at a server without room, the job may wait.
    pub(crate) fn open_first(spec: &PlaceSpec, device: u32) -> Result<Place, OpenError> {
        let wait = crate::base::config::get()?.wait;
        let _notice = Notice::of(spec);
        Place::open_with(spec, device, 0, TimeLimits { queue: wait, ..TimeLimits::default() })
    }

    /// Opens a place for virtual device `device`. `most`: for how many bytes it must have room, if that is a store of this machine.
    pub(crate) fn open(spec: &PlaceSpec, device: u32, most: u64) -> Result<Place, OpenError> {
        Place::open_with(spec, device, most, TimeLimits::default())
    }

    fn open_with(spec: &PlaceSpec, device: u32, most: u64, limits: TimeLimits) -> Result<Place, OpenError> {
        SEVERAL_DEVICES.fetch_or(device > 0, Ordering::AcqRel);
        let config = crate::base::config::get()?;
        let driver = || config.driver.clone().ok_or(OpenError::NoDriver);
        let hello = || {
            let text = |(k, v): (std::ffi::OsString, std::ffi::OsString)| Some((k.into_string().ok()?, v.into_string().ok()?));
            let env = std::env::vars_os().filter_map(text).filter(|(k, _)| k.starts_with("CUDA_")).collect();
            JobHello { virtual_device: device, pid: std::process::id(), env, name: crate::base::job_name().to_owned() }
        };
        match spec {
            PlaceSpec::Local(gpu) => {
                let gpu = gpu.unwrap_or(0);
                let options = Options { driver: driver()?, gpu, virtual_device: device };
                let exec = Executor::open(&options).map_err(|source| OpenError::Local { spec: spec.clone(), source })?;
                if let Some(run) = RUN_HOST_FUNCTION.get() {
                    exec.run_host_functions_here(*run);
                }
                Ok(Place::Local { attendant: InProcess::new(exec.clone()), exec, gpu, _writes: Arc::new(UnseenWriter::here()) })
            }
            PlaceSpec::Helper(gpu) => {
                let (program, hidden) = helper_program()?;
                let opens = Opens::Gpu { driver: driver()?, gpu: gpu.unwrap_or(0) };
                let options = HelperOptions { program, opens, hidden };
                let file = blocks::file();
                let link = Link::to_helper(&options, &hello(), file);
                let link = link.map_err(|source| OpenError::Helper { spec: spec.clone(), source })?;
                Ok(Place::remote(link, spec, file.is_some(), None))
            }
            PlaceSpec::Remote(endpoint) => {
                let credentials = match endpoint.unix_path() {
                    // The kernel gives the server the client's credentials.
                    Some(_) => None,
                    None => {
                        let file = &config.token_file;
                        let found =
                            Credentials::load(file, config.munge.clone(), config.trust.clone()).map_err(OpenError::Token)?;
                        Some(found.ok_or_else(|| OpenError::NoToken { spec: spec.clone(), file: file.clone() })?)
                    }
                };
                let file = blocks::file().filter(|_| !endpoint.is_store());
                let link =
                    Link::connect_with(endpoint, credentials.as_ref(), &hello(), file, limits).map_err(OpenError::Server)?;
                let shares = file.is_some() && !link.transport().is_network();
                Ok(Place::remote(link, spec, shares, None))
            }
            PlaceSpec::Memory => Place::open_store(spec, Opens::Store(StoreAt::Memory, most), None, &hello()),
            PlaceSpec::File(directory) => {
                let file = KeptFile::new(directory, device)?;
                Place::open_store(spec, Opens::Store(StoreAt::NewFile(file.text()?), most), Some(file), &hello())
            }
        }
    }

    /// Starts a helper that holds memory.
    fn open_store(spec: &PlaceSpec, opens: Opens, kept: Option<Arc<KeptFile>>, hello: &JobHello) -> Result<Place, OpenError> {
        let (program, hidden) = helper_program()?;
        let options = HelperOptions { program, opens, hidden };
        let link = Link::to_helper(&options, hello, None);
        let link = link.map_err(|source| OpenError::Helper { spec: spec.clone(), source })?;
        Ok(Place::remote(link, spec, false, kept))
    }

    /// Opens the file of a store again, whose helper was lost; `None` if there is no complete file. With `most` it can be a target again,
    /// for so many bytes.
    pub(crate) fn file_again(&self, device: u32, most: u64) -> Option<Result<Place, OpenError>> {
        let Place::Remote { spec, kept: Some(kept), .. } = self else { return None };
        let seal = (*lock(&kept.seal))?;
        let hello = JobHello { virtual_device: device, pid: std::process::id(), env: Vec::new(), name: String::new() };
        let opens = || Ok(Opens::Store(StoreAt::File(kept.text()?, seal), most));
        Some(opens().and_then(|opens| Place::open_store(spec, opens, Some(kept.clone()), &hello)))
    }

    /// Removes the file of a store.
    pub(crate) fn remove_file(&self) {
        if let Place::Remote { kept: Some(kept), .. } = self {
            kept.remove();
        }
    }

    /// Notes what identifies the contents of the file of a store, which is complete.
    pub(crate) fn note_seal(&self, seal: [u8; 32]) {
        if let Place::Remote { kept: Some(kept), .. } = self {
            *lock(&kept.seal) = Some(seal);
        }
    }

    fn remote(link: Arc<Link>, spec: &PlaceSpec, shares: bool, kept: Option<Arc<KeptFile>>) -> Place {
        link.set_text_hook(crate::base::output::arrived);
        if let (Some(follow), PlaceSpec::Remote(_)) = (FOLLOW_SERVER.get(), spec) {
            let (at, asking) = (spec.clone(), Arc::downgrade(&link));
            link.set_leave_hook(move |request| follow(&at, &asking, request));
        }
        let pins = Arc::new(Pins { file: AtomicBool::new(shares && !blocks::is_needed()), ..Pins::default() });
        let mut workers = lock(&WORKERS);
        workers.retain(|(link, _)| link.strong_count() > 0);
        workers.push((Arc::downgrade(&link), pins.clone()));
        drop(workers);
        let (known, to) = (pins.clone(), Arc::downgrade(&link));
        link.set_watch(naming::may_be_named, move |lines| {
            to.upgrade().is_some_and(|link| naming::named_by(lines, &Worker { link: &link, pins: &known }))
        });
        Place::Remote { link, spec: spec.clone(), pins, _writes: shares.then(|| Arc::new(UnseenWriter::sharing())), kept }
    }

    /// The current position in the place's order, which advances with each call that is sent. A place in this process has none:
    /// queries are cheap there.
    pub(crate) fn position(&self) -> Option<u64> {
        if let Place::Remote { link, .. } = self { Some(link.position()) } else { None }
    }

    /// Notes that a device of the job executes at the place from now on: host memory that it was given as a target, because its
    /// address was found in other memory, may be used by GPUs.
    pub(crate) fn begin_to_execute(&self) {
        let Place::Remote { link, pins, .. } = self else { return };
        pins.executes.store(true, Ordering::Release);
        let all = lock(&pins.all);
        let there = || all.iter().filter(|(_, pin)| !pin.gone);
        let mirrored: Vec<u64> = there().filter(|(_, pin)| pin.apart).map(|(at, _)| *at).collect();
        let any_on_gpu = there().any(|(_, pin)| pin.on_gpu);
        drop(all);
        naming::note_found(&mirrored);
        if any_on_gpu {
            open_for_changes(link);
        }
    }

    /// Describes the place's GPU.
    pub(crate) fn device(&self) -> &DeviceInfo {
        match self {
            Place::Remote { link, .. } => link.device(),
            Place::Local { exec, .. } => exec.device(),
        }
    }

    /// The place specification with which it was opened.
    pub(crate) fn spec(&self) -> PlaceSpec {
        match self {
            Place::Remote { spec, .. } => spec.clone(),
            Place::Local { gpu, .. } => PlaceSpec::Local(Some(*gpu)),
        }
    }

    /// Carries out a request that concerns the place as a whole. A refusal is returned as an error.
    pub(crate) fn control(&self, request: &Control) -> Result<ControlReply, LinkError> {
        match self {
            Place::Remote { link, .. } => link.control(request),
            Place::Local { attendant, .. } => Ok(attendant.control(request)?),
        }
    }

    /// Begins to carry out a request, at the same time as others at other places: a worker at once, this process when it is waited for.
    pub(crate) fn begin_control(&self, request: Control) -> Result<ControlUnderWay<'_>, LinkError> {
        Ok(match self {
            Place::Remote { link, .. } => ControlUnderWay::Worker(link.begin_control(&request)?),
            Place::Local { attendant, .. } => ControlUnderWay::Here(attendant, request),
        })
    }

    /// The executor of a place in this process, where calls need no encoding.
    pub(crate) fn in_process(&self) -> Option<&Arc<Executor>> {
        match self {
            Place::Local { exec, .. } => Some(exec),
            Place::Remote { .. } => None,
        }
    }

    /// The address at which other places can connect to it.
    pub(crate) fn address(&self) -> Option<&Endpoint> {
        match self {
            Place::Remote { spec: PlaceSpec::Remote(endpoint), .. } => Some(endpoint),
            _ => None,
        }
    }

    /// The address by which another place reaches it, if it has one: for places that find the same sockets as the job, that by
    /// which the job does.
    pub(crate) fn address_for(&self, other: &Place) -> Option<Endpoint> {
        match self {
            Place::Remote { link, spec: PlaceSpec::Remote(_), .. } if other.is_in_network_of_job() => link.server().cloned(),
            _ => self.address().cloned(),
        }
    }

    /// Whether the place is known to find the sockets without a file that the job finds: this process, a child of it, or a
    /// worker that was reached by such a socket. A worker that was reached by the file of a socket may be in a container with a
    /// network of its own.
    fn is_in_network_of_job(&self) -> bool {
        match self {
            Place::Local { .. } => true,
            Place::Remote { link, .. } => link.server().is_none_or(Endpoint::is_local_socket),
        }
    }

    /// Passes one end of a connection, whose ticket the place expects, to a place that has no address.
    pub(crate) fn hand_over(&self, ticket: &[u8; 32], socket: UnixStream) -> Result<(), LinkError> {
        match self {
            Place::Remote { link, .. } => link.hand_over(ticket, socket),
            Place::Local { attendant, .. } => {
                attendant.hand_over(ticket, socket);
                Ok(())
            }
        }
    }

    /// The link to a worker, if the place is one.
    pub(crate) fn link(&self) -> Option<&Arc<Link>> {
        match self {
            Place::Remote { link, .. } => Some(link),
            Place::Local { .. } => None,
        }
    }

    /// The worker with its host memory, if the place is a worker.
    fn worker(&self) -> Option<Worker<'_>> {
        match self {
            Place::Remote { link, pins, .. } => Some(Worker { link, pins }),
            Place::Local { .. } => None,
        }
    }

    /// Returns whether host memory (`filed`: in the arena's file) must be mirrored for this place; mirroring begins when a GPU is
    /// known to use the memory.
    pub(crate) fn is_apart(&self, filed: bool) -> bool {
        self.worker().is_some_and(|w| w.is_apart(filed))
    }

    /// Returns whether the place is a worker that maps the file of pinned memory, so that its GPU and this process share that
    /// memory.
    pub(crate) fn maps_file(&self) -> bool {
        self.worker().is_some_and(|w| w.pins.file.load(Ordering::Acquire))
    }

    /// Returns whether the place uses the job's pinned memory itself, or did once.
    pub(crate) fn shares_memory(&self) -> bool {
        match self {
            Place::Local { .. } => true,
            Place::Remote { link, spec, .. } => !link.transport().is_network() && !spec.is_store(),
        }
    }

    /// Stops the worker from mapping more of the file.
    pub(crate) fn leave_file(&self) {
        self.worker().into_iter().for_each(|w| w.pins.file.store(false, Ordering::Release));
    }

    /// Pins host memory for the place's driver. Returns the position of that call in the place's order, if there was one.
    ///
    /// # Safety
    /// The memory stays mapped until [`Place::unpin`], or until [`give_up_memory`] was called before it is freed.
    pub(crate) unsafe fn pin(&self, at: u64, block: &Block) -> Result<Option<Range<u64>>, Code> {
        match self {
            // SAFETY: guaranteed by the caller.
            Place::Remote { link, pins, .. } => unsafe { Worker { link, pins }.pin(at, block) },
            Place::Local { exec, .. } => exec.pin_host(at, block.bytes, block.flags, block.slab).map(|()| None),
        }
    }

    /// Undoes [`Place::pin`] for memory that is no longer used. Does not wait for a worker: it unpins the memory before it
    /// processes later calls, including those about other memory at the same address, and it has its own mappings, so the job's
    /// may be unmapped at once. Returns the position of the call in the place's order, if there was one.
    pub(crate) fn unpin(&self, at: u64) -> Option<Range<u64>> {
        match self {
            Place::Remote { link, pins, .. } => {
                // Changes that were found in it are sent first: they must not reach other memory at its address.
                link.give_up_memory(blocks::page(at));
                let _changing = lock(&pins.changing);
                // Another thread may have pinned it meanwhile.
                link.forget_memory(blocks::page(at));
                lock(&pins.all).remove(&at)?;
                // A lost worker has nothing mapped.
                link.send(ops::id::HOST_UNPIN, &[&at.to_le_bytes()]).ok()
            }
            Place::Local { exec, .. } => {
                exec.unpin_host(at);
                None
            }
        }
    }

    /// Returns whether the place's driver knows the host memory that begins at an address.
    pub(crate) fn has_pinned(&self, at: u64) -> bool {
        self.worker().is_none_or(|w| w.has(at))
    }

    /// Pins the host memory whose addresses appear in `bytes`, which are about to be sent to the GPU, as far as the place does
    /// not have it yet.
    pub(crate) fn pin_named(&self, bytes: &[u8]) {
        if let Some(worker) = self.worker() {
            naming::named_in(bytes, &worker);
        }
    }

    /// Returns whether bytes that are sent beside the calls must be searched: the place may lack memory that they name.
    pub(crate) fn may_lack_memory(&self) -> bool {
        let Place::Remote { pins, .. } = self else { return false };
        naming::any_unmapped() || pins.confirmed.load(Ordering::Acquire) < pins.requested.load(Ordering::Acquire)
    }

    /// As [`Place::pin_named`], for bytes that are sent beside the calls and may overtake these: also waits until the place has
    /// the contents of that memory, whatever call its driver is in, and all blocks that were requested before.
    pub(crate) fn pin_named_and_wait(&self, bytes: &[u8]) {
        let Place::Remote { link, pins, .. } = self else { return };
        let requested = pins.requested.load(Ordering::Acquire);
        if pins.confirmed.load(Ordering::Acquire) < requested {
            let _pinning = lock(&pins.pinning);
            if link.send_changes().is_ok() && link.control(&Control::Areas { at_least: 0 }).is_ok() {
                pins.confirmed.fetch_max(requested, Ordering::AcqRel);
            }
        }
        if !naming::any_unmapped() || !naming::may_be_named(bytes) {
            return;
        }
        // Another thread may find the same memory.
        let _pinning = lock(&pins.pinning);
        if naming::named_in(bytes, &Worker { link, pins }) && link.send_changes().is_ok() {
            // It is answered when the changes before it have been applied, and no call lies between. A lost worker needs no
            // memory.
            let _ = link.control(&Control::Areas { at_least: 0 });
        }
    }

    /// Sends the job's changes of mirrored memory to a worker.
    pub(crate) fn send_changes(&self) -> Result<(), Code> {
        self.worker().map_or(Ok(()), |w| w.link.send_changes().map_err(lost))
    }

    /// Returns whether the place mirrors any memory.
    pub(crate) fn has_apart(&self) -> bool {
        self.worker().is_some_and(|w| lock(&w.pins.all).values().any(|p| p.apart && !p.gone))
    }

    /// Addresses and sizes of the pinned memory, including memory that the job has freed but not unpinned.
    pub(crate) fn pinned(&self) -> Vec<(u64, u64)> {
        match self {
            Place::Remote { pins, .. } => lock(&pins.all).iter().map(|(at, pin)| (*at, pin.bytes)).collect(),
            Place::Local { exec, .. } => exec.pinned_host(),
        }
    }

    /// Returns whether the place is a lost worker.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Place::Remote { link, .. } if link.is_lost())
    }

    /// Asks the place something small: only then is it known whether a worker that did nothing for a while is still there.
    pub(crate) fn answers(&self) -> bool {
        self.control(&Control::Moved).is_ok() && !self.is_lost()
    }

    /// Returns whether the place is a lost worker, and nothing is left of what it held for a parked device.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_lost() && !matches!(self, Place::Remote { kept: Some(kept), .. } if lock(&kept.seal).is_some())
    }

    /// Number of answers under way: mainly copies to pinned memory.
    pub(crate) fn outstanding(&self) -> usize {
        match self {
            Place::Remote { link, .. } => link.outstanding(),
            Place::Local { .. } => 0,
        }
    }

    /// Releases the place: everything there is freed.
    pub(crate) fn release(self) {
        match self {
            Place::Remote { link, .. } => link.close(),
            Place::Local { exec, .. } => exec.close(),
        }
    }

    /// Abandons a place without waiting: every thread that waits for it gets an error at once, and its resources are freed later.
    pub(crate) fn abandon(&self) {
        match self {
            Place::Remote { link, .. } => link.abandon(),
            // Nothing waits for the in-process executor.
            Place::Local { .. } => {}
        }
    }

    /// The transport by which calls reach the place.
    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Place::Remote { link, .. } => match link.transport() {
                Transport::Tls => "tls",
                Transport::Tcp => "tcp",
                Transport::Rdma => "rdma",
                Transport::Shm => "shm",
            },
            Place::Local { .. } => "in-process",
        }
    }

    /// Returns whether the place is reached over a network: a round trip takes so long that answers are read ahead.
    pub(crate) fn is_over_network(&self) -> bool {
        matches!(self, Place::Remote { link, .. } if link.transport().is_network())
    }

    /// Sends a call without waiting for it.
    pub(crate) fn send(&self, id: u16, parts: &[&[u8]]) -> Result<Option<Range<u64>>, Code> {
        match self {
            Place::Remote { link, .. } => link.send(id, parts).map(Some).map_err(lost),
            Place::Local { .. } => match self.begin(id, parts)?.finish().0 {
                code::SUCCESS => Ok(None),
                rc => Err(rc),
            },
        }
    }

    /// Sends a call; the caller waits for the answer with [`Waiting::finish`], outside the gate if it depends on the GPU's
    /// progress.
    pub(crate) fn begin(&self, id: u16, parts: &[&[u8]]) -> Result<Waiting, Code> {
        match self {
            Place::Remote { link, .. } => link.request(id, parts).map(Waiting::Reply).map_err(lost),
            Place::Local { exec, .. } => {
                let mut bytes = Vec::new();
                let joined;
                let body = match parts {
                    [one] => *one,
                    more => {
                        joined = more.concat();
                        &joined
                    }
                };
                Ok(match exec.apply(id, body, &mut bytes) {
                    Applied::Done(rc) => Waiting::Done(rc, bytes),
                    Applied::Pending(p) => Waiting::Pending(exec.clone(), p, bytes),
                })
            }
        }
    }

    /// Gives the place an image, which it keeps for later loads.
    pub(crate) fn begin_put_image(&self, head: &[u8], image: &Image) -> Result<Waiting, Code> {
        match self {
            Place::Remote { .. } => self.begin(ops::id::IMAGE_PUT, &[head, &image.bytes]),
            Place::Local { exec, .. } => Ok(Waiting::Done(exec.keep_image(image).err().unwrap_or(code::SUCCESS), Vec::new())),
        }
    }

    /// Sends a copy to host memory. Its bytes are received directly into that memory; the answer only reports that they have
    /// arrived. A failure of the copy is reported by a fault report.
    ///
    /// The program may unmap registered memory meanwhile.
    pub(crate) fn send_into(
        link: &Arc<Link>,
        id: u16,
        parts: &[&[u8]],
        to: HostRows,
        is_registered: bool,
    ) -> Result<Reply, Code> {
        // SAFETY: the rows stay valid until the copy is complete.
        unsafe { link.send_into(id, parts, landing(to, is_registered)) }.map_err(lost)
    }

    /// As [`Place::begin`], for a worker; the answer's bytes are received directly into host memory.
    pub(crate) fn begin_into(
        link: &Arc<Link>,
        id: u16,
        parts: &[&[u8]],
        to: HostRows,
        is_registered: bool,
    ) -> Result<Waiting, Code> {
        // SAFETY: the rows stay valid until the copy is complete.
        unsafe { link.request_into(id, parts, landing(to, is_registered)) }.map(Waiting::Reply).map_err(lost)
    }
}

/// Where the bytes of an answer land.
fn landing(to: HostRows, is_registered: bool) -> Landing {
    let (pitch, width, rows) = (to.pitch() as usize, to.width() as usize, to.rows() as usize);
    Landing { ptr: to.address() as *mut u8, pitch, width, rows, is_registered }
}
