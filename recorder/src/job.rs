//! The job: its devices and the state that they share.

use crate::base::answers::Answers;
use crate::base::completion_cache::CompletionCache;
use crate::base::log::lock;
use crate::gate;
use crate::ledger::{self, Ledger};
use crate::objects::allocations::Memory;
use crate::objects::limits::Limits;
use crate::objects::memory_lock::{Fence, MemoryLock, MemoryMut};
use crate::objects::resident::Resident;
use crate::objects::spare_events::SpareEvents;
use crate::objects::streams::LaunchedInLegacy;
use crate::objects::tables::Tables;
use crate::place::Place;
use crate::thread::{Here, here};
use cuda_api::board::{Constants, Readings};
use cuda_api::calls::Call;
use cuda_api::calls::stream::cuEventCreate;
use cuda_api::code::{self, Code};
use cuda_api::ops::id;
use executor::DeviceInfo;
use rcuda_forwarder::{Link, LinkCounts};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLockReadGuard, TryLockError, Weak};
use std::time::Instant;

pub(crate) mod array_lookup;
pub(crate) mod attributes;
pub(crate) mod contexts;

/// The job, once `cuInit` has succeeded.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) devices: Vec<Device>,
    pub(crate) tables: Tables,
    /// Graphs and captures.
    pub(crate) graphs: cuda_model::graph::Shared,
    /// Zero of the job's clock, on which event times of different places are compared.
    started: Instant,
    /// Whether the program has got tensor maps, which every device can use, whichever made them.
    pub(crate) made_tensor_maps: AtomicBool,
    /// Descriptors of tensors that places have made.
    pub(crate) tensor_maps: Answers,
}

/// One GPU as the program sees it. The fields that most calls read come first, together in two cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Device {
    /// Its ordinal.
    pub(crate) index: u32,
    failure: Failure,
    place: AtomicPtr<Place>,
    /// Number of the current place, from 1; each event stores the epoch in which it was recorded.
    pub(crate) epoch: AtomicU64,
    /// Whether it has been at a place that shares the job's pinned memory: large copies to such a place are not searched for addresses.
    unsearched: AtomicBool,
    /// Snapshot of the primary context that calls read without its lock: its flags, and [`ACTIVE`].
    primary_now: AtomicU64,
    /// Number of threads that wait for an answer outside the gate.
    pub(crate) waiters: AtomicU32,
    /// Limits against which launches are checked.
    pub(crate) limits: Limits,
    /// Allocations and the arena. A thread that has this lock takes no other, and sends nothing.
    pub(crate) memory: MemoryLock,
    /// Held while the place maps or unmaps memory, so that the order of these operations is that of the changes of [`Device::memory`], and
    /// that memory is mapped for exactly the devices that may use it. Only threads that map or unmap memory, ask how much there is, or
    /// change peer access, wait for it. Its holder takes the table of peer access and the ledger, whose holders never take this, and otherwise waits for the place alone
    /// (docs/execution.md, "Locks that are held over a round trip").
    pub(crate) mapping: Mutex<()>,
    /// Held while completed frees in streams are released, between the tables of [`Device::memory`]. A thread that finds no memory waits for that.
    /// Its holder takes the tables of shared memory and of mappings, [`Device::fence`] and [`Device::memory`], whose holders never take this.
    pub(crate) releasing: Mutex<()>,
    /// The fence under way, of which frees in streams are known to be complete. Locked while it is begun, which does not wait for an
    /// answer. Taken after no other lock of memory, and before [`Device::memory`] only.
    pub(crate) fence: Mutex<Option<Fence>>,
    /// The journal, held over a state-building call and its record, also while the place answers: the journal must have the order in
    /// which the calls took effect. Only state-building calls of this device, and the mover for a moment, wait for it. It is taken last, and
    /// the place needs nothing of this process to answer, so no cycle of waits contains it; a lost place answers with an error, so each wait
    /// ends (docs/execution.md, "Locks that are held over a round trip").
    pub(crate) ledger: Mutex<Ledger>,
    /// The identity that the program sees: that of the first place, whatever the current place is.
    pub(crate) info: DeviceInfo,
    /// The constants that the place's NVML reported when first queried.
    pub(crate) board: OnceLock<Constants>,
    /// What it has measured, and when it was asked.
    pub(crate) readings: Mutex<Option<(Instant, Readings)>>,
    /// The completion cache.
    quiet: Mutex<CompletionCache>,
    /// Limits of the context that the place has told.
    pub(crate) limit_answers: Answers,
    /// See [`Device::has_independent_streams`].
    independent_streams: AtomicBool,
    /// References to the primary context.
    primary: Mutex<Primary>,
    /// Events that the program has destroyed, for reuse.
    pub(crate) spare_events: SpareEvents,
    /// Relates this place's event times to the job's clock.
    pub(crate) clock: Mutex<Clock>,
    /// The grids of its cooperative launches.
    pub(crate) resident: Resident,
    /// What was launched last in its legacy stream.
    pub(crate) launched_in_legacy: LaunchedInLegacy,
    /// Whether its place has another driver or GPU than the first one, in any way that counts: what the program was told need not be true of
    /// launches there.
    pub(crate) differs: AtomicBool,
    /// The place where it executed last, which is not where it is while it is parked: what a driver or an architecture decides for itself
    /// may be in its memory as that place decided.
    executed_at: Mutex<DeviceInfo>,
    /// Whether the place takes part in a round of a move as its source, perhaps of an earlier move that was abandoned.
    copying: AtomicBool,
    /// The reported place, for readers that must not wait at the gate.
    whereabouts: Mutex<Whereabouts>,
    /// The figures as last read.
    pub(crate) figures: Mutex<Figures>,
}

/// Where a device is, as reported.
#[derive(Debug, Clone)]
pub(crate) struct Whereabouts {
    /// The place specification.
    pub(crate) place: String,
    /// The transport by which calls reach the place.
    pub(crate) transport: &'static str,
    /// Start of the device's time there, in milliseconds since 1970.
    pub(crate) since_unix_ms: u64,
    /// The link to the place.
    link: Weak<Link>,
}

impl Whereabouts {
    fn of(place: &Place) -> Whereabouts {
        Whereabouts {
            place: place.spec().to_string(),
            transport: place.transport(),
            since_unix_ms: cuda_api::clock::unix_ms(),
            link: place.link().map(Arc::downgrade).unwrap_or_default(),
        }
    }

    /// What the link has carried since the device arrived there; `None` in this process.
    pub(crate) fn counts(&self) -> Option<LinkCounts> {
        self.link.upgrade().map(|link| link.counts())
    }

    /// How the bytes of large copies travel, see [`Link::bulk_carried`].
    pub(crate) fn large_copies(&self) -> String {
        self.link.upgrade().map(|link| link.bulk_carried().to_string()).unwrap_or_default()
    }
}

/// The figures that a list of jobs reports for a device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// Bytes that the program has allocated.
    pub(crate) used_bytes: u64,
    /// Number of records in the live set.
    pub(crate) records: u64,
    /// Size of the journal in bytes.
    pub(crate) journal_bytes: u64,
    /// Live objects by kind.
    pub(crate) live: BTreeMap<&'static str, u64>,
}

/// State of a primary context.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    pub(crate) references: u32,
    pub(crate) flags: u32,
    /// Reset since it was last retained: the reference count is kept, but the context is destroyed (measured, 580 driver).
    pub(crate) reset: bool,
}

impl Primary {
    /// Returns whether calls can use the context.
    pub(crate) fn is_active(&self) -> bool {
        self.references > 0 && !self.reset
    }
}

/// Set if the primary context can be used.
const ACTIVE: u64 = 1 << 32;

/// Proof that this thread is the one that carries out moves.
#[derive(Debug)]
pub(crate) struct Moving(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Moving {
    /// Waits until no other thread carries out moves.
    pub(crate) fn begin() -> Moving {
        Moving(lock(&ONE_AT_A_TIME))
    }

    /// Returns `None` if another thread carries out moves.
    pub(crate) fn try_begin() -> Option<Moving> {
        match ONE_AT_A_TIME.try_lock() {
            Ok(alone) => Some(Moving(alone)),
            // A mover has panicked, which was noted.
            Err(TryLockError::Poisoned(alone)) => Some(Moving(alone.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// When the reference event of the current place occurred on the job's clock.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    pub(crate) reference_ms: f64,
}

/// A device whose place takes part in a round of a move as its source.
#[derive(Debug)]
pub(crate) struct Copying(&'static Device);

impl Drop for Copying {
    fn drop(&mut self) {
        self.0.copying.store(false, Ordering::Release);
    }
}

/// The epoch of a device's first place.
const FIRST_EPOCH: u64 = 1;

impl Device {
    /// A device whose first place is this one.
    pub(crate) fn new(index: u32, place: Place) -> Device {
        place.begin_to_execute();
        let info = place.device().clone();
        let mut quiet = CompletionCache::default();
        if let Some(position) = place.position() {
            // A fresh place has no work.
            quiet.learn(FIRST_EPOCH, position..position, None);
        }
        let unsearched = AtomicBool::new(place.shares_memory());
        Device {
            index,
            unsearched,
            ledger: Mutex::new(Ledger::new(index, ledger::open::open(index, &info))),
            memory: MemoryLock::new(Memory::new(index)),
            mapping: Mutex::default(),
            releasing: Mutex::default(),
            fence: Mutex::default(),
            limits: Limits::of(&info),
            executed_at: Mutex::new(info.clone()),
            info,
            board: OnceLock::new(),
            readings: Mutex::default(),
            whereabouts: Mutex::new(Whereabouts::of(&place)),
            figures: Mutex::default(),
            place: AtomicPtr::new(Box::into_raw(Box::new(place))),
            epoch: AtomicU64::new(FIRST_EPOCH),
            failure: Failure::default(),
            waiters: AtomicU32::new(0),
            quiet: Mutex::new(quiet),
            limit_answers: Answers::default(),
            independent_streams: AtomicBool::new(false),
            primary: Mutex::default(),
            primary_now: AtomicU64::new(0),
            spare_events: SpareEvents::default(),
            clock: Mutex::default(),
            resident: Resident::default(),
            launched_in_legacy: LaunchedInLegacy::default(),
            differs: AtomicBool::new(false),
            copying: AtomicBool::new(false),
        }
    }

    /// The place. Used only inside the gate or by the mover: a move replaces it while no thread is inside.
    pub(crate) fn place(&self, _inside: &gate::Pass) -> &Place {
        // SAFETY: created by Box::into_raw; replaced only by `commit`, whose caller has closed the gate.
        unsafe { &*self.place.load(Ordering::Acquire) }
    }

    /// The place, for the mover, the only thread that may change it.
    pub(crate) fn place_for_mover(&self, _moving: &Moving) -> &Place {
        // SAFETY: as in `place`; only one move runs at a time, and only moves commit.
        unsafe { &*self.place.load(Ordering::Acquire) }
    }

    /// Returns whether all bytes that were ever copied to this device were searched for addresses of pinned memory: it has been at no
    /// place that shares such memory.
    pub(crate) fn bytes_are_searched(&self) -> bool {
        !self.unsearched.load(Ordering::Acquire)
    }

    /// Returns whether the place still takes part in a round of a move as its source.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.load(Ordering::Acquire)
    }

    /// Notes that the place takes part in a round as its source, until the result is dropped.
    pub(crate) fn begin_copy(&'static self) -> Copying {
        self.copying.store(true, Ordering::Release);
        Copying(self)
    }

    /// The commit of a move: one atomic store. Returns the old place.
    pub(crate) fn commit(&self, place: Place, _gate: &gate::Closed, _moving: &Moving) -> Box<Place> {
        if place.shares_memory() {
            self.unsearched.store(true, Ordering::Release);
        }
        place.begin_to_execute();
        if !place.spec().is_store() {
            let (mut now, mut at) = (place.device().clone(), lock(&self.executed_at));
            if now.driver_build.is_empty() && now.driver_version == at.driver_version {
                // It is taken for the same one, so the next place is compared with that.
                now.driver_build = std::mem::take(&mut at.driver_build);
            }
            *at = now;
        }
        *lock(&self.whereabouts) = Whereabouts::of(&place);
        let old = self.place.swap(Box::into_raw(Box::new(place)), Ordering::AcqRel);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        // SAFETY: created by Box::into_raw; the gate is closed and no waiter is left, so nothing borrows it.
        unsafe { Box::from_raw(old) }
    }

    /// The place where it executed last.
    pub(crate) fn executed_at(&self) -> DeviceInfo {
        lock(&self.executed_at).clone()
    }

    /// Changes the state of the primary context.
    pub(crate) fn change_primary<T>(&self, change: impl FnOnce(&mut Primary) -> T) -> T {
        let mut primary = lock(&self.primary);
        let result = change(&mut primary);
        self.primary_now.store(u64::from(primary.flags) | if primary.is_active() { ACTIVE } else { 0 }, Ordering::Release);
        result
    }

    /// Flags of the primary context, and whether calls can use it.
    pub(crate) fn primary_now(&self) -> (u32, bool) {
        let now = self.primary_now.load(Ordering::Acquire);
        (now as u32, now & ACTIVE != 0)
    }

    /// Where the device is now.
    pub(crate) fn whereabouts(&self) -> Whereabouts {
        lock(&self.whereabouts).clone()
    }

    /// Returns whether a stream, or with `None` every stream, is known to be complete, with nothing submitted since.
    pub(crate) fn is_quiet(&self, place: &Place, stream: Option<u64>) -> bool {
        self.quiet_at(place, stream).is_some()
    }

    /// As [`Device::is_quiet`]; returns the position up to which it is complete.
    pub(crate) fn quiet_at(&self, place: &Place, stream: Option<u64>) -> Option<u64> {
        let position = place.position()?;
        lock(&self.quiet).holds(self.epoch.load(Ordering::Relaxed), position, stream).then_some(position)
    }

    /// Returns whether streams have been created that the default stream does not follow. Their work may go on when they are destroyed.
    pub(crate) fn has_independent_streams(&self) -> bool {
        self.independent_streams.load(Ordering::Acquire)
    }

    /// Notes that such a stream has been created, before it can have work.
    pub(crate) fn note_independent_stream(&self) {
        self.independent_streams.store(true, Ordering::Release);
    }

    /// Notes that a call of an epoch has shown that a stream, or with `None` every stream, is complete up to the call's end.
    pub(crate) fn quiet_until(&self, epoch: u64, call: Range<u64>, stream: Option<u64>) {
        lock(&self.quiet).learn(epoch, call, stream);
    }

    /// As [`Device::quiet_until`], for a query of a stream.
    pub(crate) fn quiet_by_answer(&self, epoch: u64, call: Range<u64>, stream: u64) {
        lock(&self.quiet).learn_answer(epoch, call, stream);
    }

    /// Returns whether a stream is known to have completed everything submitted to it before this position of the current place.
    pub(crate) fn is_past(&self, stream: u64, position: u64) -> bool {
        lock(&self.quiet).is_past(self.epoch.load(Ordering::Relaxed), stream, position)
    }

    /// Notes that a stream has completed everything submitted before a position in the place of an epoch.
    pub(crate) fn past(&self, epoch: u64, stream: u64, position: u64) {
        lock(&self.quiet).learn_past(epoch, position, Some(stream));
    }

    /// Notes a call that leaves no work to wait for, so that the completion cache stays valid.
    pub(crate) fn still_quiet(&self, call: Option<Range<u64>>) {
        if let Some(call) = call {
            lock(&self.quiet).extend(self.epoch.load(Ordering::Relaxed), call);
        }
    }

    /// Returns the error that every call must return now, if any.
    pub(crate) fn check(&self) -> Result<(), Code> {
        self.failure.check()
    }

    /// Records the result of a call.
    pub(crate) fn note(&self, rc: Code) {
        if code::is_sticky(rc) && self.failure.stays(rc) {
            tracing::debug!(target: "place", "device {}: error {rc} stays", self.index);
            if rc == code::ERROR_DEVICE_UNAVAILABLE {
                let why = crate::place::why_lost().unwrap_or_else(|| "no reason is known".into());
                tracing::error!(target: "place", "the place of GPU {} is lost ({why}); its calls return CUDA_ERROR_DEVICE_UNAVAILABLE",
                    self.index);
            }
        }
    }

    /// Records the error of a result.
    pub(crate) fn record_error<T>(&self, r: Result<T, Code>) -> Result<T, Code> {
        if let Err(rc) = &r {
            self.note(*rc);
        }
        r
    }

    /// Registers for errors of asynchronous work at the current place. A place that the device has left is not heard any more: the errors
    /// of the work there came before the quiesce ended.
    pub(crate) fn watch(&self, place: &Place) {
        if let Place::Remote { link, .. } = place {
            let (index, epoch) = (self.index as usize, self.epoch.load(Ordering::Acquire));
            link.set_fault_hook(move |fault| {
                tracing::debug!(target: "place", "device {index}: {:#06x} failed with {}", fault.id, fault.code);
                let device = opened().map(|job| &job.devices[index]);
                if let Some(device) = device.filter(|device| device.epoch.load(Ordering::Acquire) == epoch) {
                    device.failed_late(fault.id, fault.code);
                }
            });
        }
    }

    /// Records a failure of work whose call had already returned: an execution error is sticky, any other error is returned by the next
    /// call.
    pub(crate) fn failed_late(&self, call: u16, rc: Code) {
        self.note(rc);
        if call == <cuEventCreate::Fn as Call>::ID {
            self.spare_events.close();
        }
        // These calls clean up or end something: that it no longer exists is not an error of the program. A failure of calls in a graph
        // is reported by the graph's launch.
        let reported_otherwise =
            matches!(call, id::HOST_BYTES | id::HOST_RUNS | id::PEER_UNMAP | id::CHUNK_WITHDRAW | id::GRAPH_CALL | id::GRAPH_END);
        if !code::is_sticky(rc) && !reported_otherwise && self.failure.waits(rc) {
            let name = replayer::call_name(call);
            tracing::warn!(target: "place", "{name} on GPU {} failed with error {rc} after its call had returned", self.index);
        }
    }

    /// Returns the pending error, to be returned by one call; not a sticky one.
    pub(crate) fn check_late(&self) -> Result<(), Code> {
        match self.failure.now.load(Ordering::Relaxed) {
            rc if rc < 0 => self.failure.take(rc),
            _ => Ok(()),
        }
    }

    /// The sticky execution error, or 0.
    pub(crate) fn sticky(&self) -> Code {
        self.failure.sticky()
    }
}

/// The error that calls must return instead of executing: the code of a sticky error; negative: the code of a pending error, which one
/// call returns; 0: none.
#[derive(Debug, Default)]
struct Failure {
    now: AtomicI32,
}

/// While this guard lives, the calling thread leaves pending errors of all devices to a later call: an operation that takes several steps
/// is completed, and the recorder's own calls do not consume errors of the program. Calls of other threads still return them.
#[derive(Debug)]
#[must_use]
pub(crate) struct PutOff(&'static Here);

impl PutOff {
    pub(crate) fn begin() -> PutOff {
        let here = here();
        here.puts_off.set(here.puts_off.get() + 1);
        PutOff(here)
    }
}

impl Drop for PutOff {
    fn drop(&mut self) {
        self.0.puts_off.set(self.0.puts_off.get() - 1);
    }
}

impl Failure {
    #[inline]
    fn check(&self) -> Result<(), Code> {
        match self.now.load(Ordering::Relaxed) {
            0 => Ok(()),
            rc => self.take(rc),
        }
    }

    #[cold]
    fn take(&self, mut rc: Code) -> Result<(), Code> {
        while rc < 0 {
            if here().puts_off.get() != 0 {
                return Ok(());
            }
            match self.now.compare_exchange(rc, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Err(-rc),
                // Another thread has taken the error, and another failure may have been recorded since.
                Err(now) => rc = now,
            }
        }
        if rc == 0 { Ok(()) } else { Err(rc) }
    }

    /// Records a sticky error; returns false if there already is one.
    fn stays(&self, rc: Code) -> bool {
        self.now.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| (now <= 0).then_some(rc)).is_ok()
    }

    /// Records a pending error; returns false if there already is one.
    fn waits(&self, rc: Code) -> bool {
        rc > 0 && self.now.compare_exchange(0, -rc, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn sticky(&self) -> Code {
        self.now.load(Ordering::Relaxed).max(0)
    }
}

/// The job, or why there is none, once the program has asked for it.
static JOB: OnceLock<Result<Job, Code>> = OnceLock::new();
/// The job while calls can be made, from `cuInit` to the end of the process; read by every call.
#[unsafe(link_section = "mrcuda_hot")]
static HERE: AtomicPtr<Job> = AtomicPtr::new(std::ptr::null_mut());
static ENDED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

/// The job, or the error that every call returns without one.
#[inline]
pub(crate) fn get() -> Result<&'static Job, Code> {
    // SAFETY: null, or the job in `JOB`, which is never dropped.
    unsafe { HERE.load(Ordering::Acquire).as_ref() }.ok_or_else(why_none)
}

#[cold]
fn why_none() -> Code {
    if ENDED.load(Ordering::Relaxed) { code::ERROR_DEINITIALIZED } else { code::ERROR_NOT_INITIALIZED }
}

/// The job, also before `cuInit`, since some queries open it before (`abi::start`), and at process exit.
pub(crate) fn opened() -> Option<&'static Job> {
    JOB.get()?.as_ref().ok()
}

/// Returns whether this process is a forked child of a job: it owns nothing of the job.
pub(crate) fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Ends the job at process exit: exit handlers that were registered before CUDA was started run after this and find no driver, as
/// natively.
pub(crate) fn end() {
    ENDED.store(true, Ordering::SeqCst);
    HERE.store(std::ptr::null_mut(), Ordering::SeqCst);
    if let Some(Ok(job)) = JOB.get() {
        // A thread that never leaves its call keeps its journal, which stays open.
        job.devices.iter().filter_map(|d| d.ledger.try_lock().ok()).for_each(|mut ledger| ledger.end());
    }
}

impl Job {
    /// The device with this ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device, Code> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(code::ERROR_INVALID_DEVICE)
    }

    /// Milliseconds since the job's start: the clock of event times across places.
    pub(crate) fn now_ms(&self) -> f64 {
        self.started.elapsed().as_secs_f64() * 1e3
    }
}

/// The job, made by the first caller. A forked child has none.
pub(crate) fn get_or_make(make: impl FnOnce() -> Result<Job, Code>) -> Result<&'static Job, Code> {
    if is_forked_child() {
        // If the parent found no place, the child finds none either.
        let failed = JOB.get().and_then(|job| job.as_ref().err().copied());
        return Err(failed.unwrap_or(code::ERROR_NOT_INITIALIZED));
    }
    JOB.get_or_init(make).as_ref().map_err(|rc| *rc)
}

/// Makes the job available to calls.
pub(crate) fn publish(job: &'static Job) -> Result<(), Code> {
    if ENDED.load(Ordering::SeqCst) {
        return Err(code::ERROR_DEINITIALIZED);
    }
    HERE.store(std::ptr::from_ref(job).cast_mut(), Ordering::Release);
    Ok(())
}

/// Notes that this process is a forked child.
pub(crate) fn note_fork() {
    FORKED.store(true, Ordering::SeqCst);
    HERE.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// Makes all calls fail from now on.
pub(crate) fn fail_calls() {
    if let Some(job) = opened() {
        job.devices.iter().for_each(|device| device.note(code::ERROR_UNKNOWN));
    }
}

impl Job {
    /// A job with these devices.
    pub(crate) fn new(devices: Vec<Device>) -> Job {
        Job {
            devices,
            tables: Tables::new(),
            graphs: cuda_model::graph::Shared::new(0),
            started: Instant::now(),
            made_tensor_maps: AtomicBool::new(false),
            tensor_maps: Answers::default(),
        }
    }
}

impl Device {
    /// Locks the allocations for reading.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read()
    }

    /// Locks the allocations for writing.
    pub(crate) fn memory_mut(&self) -> MemoryMut<'_> {
        self.memory.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_returns_an_error_that_does_not_stay() {
        let f = Failure::default();
        assert_eq!(f.check(), Ok(()));
        assert!(f.waits(400) && !f.waits(1), "the first one counts");
        {
            let _ending = PutOff::begin();
            assert_eq!(f.check(), Ok(()), "who ends something leaves it to a later call");
        }
        assert_eq!((f.sticky(), f.check(), f.check()), (0, Err(400), Ok(())));
        assert!(f.waits(400));
        assert_eq!((f.take(-1), f.check()), (Err(400), Ok(())), "an error that came in the meantime is returned once");
        assert!(f.waits(1) && f.stays(700) && !f.stays(719) && !f.waits(1));
        assert_eq!((f.sticky(), f.check(), f.check()), (700, Err(700), Err(700)));
    }

    #[test]
    fn only_the_thread_that_ends_something_leaves_an_error_to_a_later_call() {
        let f = Failure::default();
        assert!(f.waits(400));
        let ending = PutOff::begin();
        let others = || std::thread::scope(|s| s.spawn(|| [f.check(), f.check()]).join().unwrap());
        assert_eq!(f.check(), Ok(()), "this thread ends something");
        assert_eq!(others(), [Err(400), Ok(())], "another thread's call returns it, once");
        assert!(f.waits(1));
        {
            let _inner = PutOff::begin();
        }
        assert_eq!(f.check(), Ok(()), "the outer one still ends something");
        drop(ending);
        assert_eq!((f.check(), f.check()), (Err(1), Ok(())));
    }

    #[test]
    fn an_error_is_returned_once_whatever_was_returned_meanwhile() {
        let f = Failure::default();
        assert!(f.waits(400));
        let seen = f.now.load(Ordering::Relaxed);
        assert_eq!(f.check(), Err(400), "another thread gets the error");
        assert!(f.waits(1), "and something else fails");
        assert_eq!(f.take(seen), Err(1), "a thread that has seen the first gets the second");
        assert_eq!(f.check(), Ok(()), "and no other thread gets it");
    }
}
