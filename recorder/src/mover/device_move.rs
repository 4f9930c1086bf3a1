//! One device's part of a move.

use super::compare::{Shape, compare, compare_with, shape};
use super::data_channels::{self, DataChannels};
use super::deferred::{DeferredRecords, Due};
use super::fit::{self, Different};
use super::protocol::{Report, Step};
use super::rehearsal::rehearse_in_time;
use super::residence::{KnownFunctions, known_functions, not_resident, weaker_function};
use super::standing;
use super::times::{keep_event_times, record_reference};
use super::to_place::replay_to;
use crate::base::log::lock;
use crate::calls::registry;
use crate::device_memory::chunks::drop_spare;
use crate::enter::CallContext;
use crate::gate::Closed;
use crate::host_memory;
use crate::job::{Device, Job, Moving};
use crate::ledger::tail::Weight;
use crate::move_error::{Failure, MoveError};
use crate::moves::{Task, Track};
use crate::objects::table::EVERY_DEVICE;
use crate::place::{OpenError, Place, Waiting};
use ::control::EventKind;
use cuda_api::board::Constants;
use cuda_api::code;
use cuda_api::ops::{self, Chunk};
use cuda_api::wire::Wire;
use faults::{Faults, Point};
use journal::{JournalError, OwnedRecord, Record};
use memsync::{Round, Verify};
use rcuda_forwarder::PlaceSpec;
use rcuda_forwarder::{Control, ControlReply};
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A pre-copy round that takes longer than this, and than its bytes need at the rate below, makes no progress: kernels that never end may
/// occupy every multiprocessor, so that the kernel that compares pages cannot start.
const ROUND_LIMIT: Duration = Duration::from_secs(30);
const SLOWEST_BYTES_A_SECOND: u64 = 16 << 20;
/// Memory of the target that is left free besides the job's.
const HEADROOM: u64 = 64 << 20;

/// The longest that a round may take while the job runs, for a job with this many live bytes.
fn round_limit(live_bytes: u64) -> Duration {
    let least = Faults::from_env().round_limit.unwrap_or(ROUND_LIMIT);
    least + Duration::from_secs(live_bytes / SLOWEST_BYTES_A_SECOND)
}

/// The longest that calls may be held up, unless the request says so: time for a round and as much for everything else. Without a limit a
/// target that sends heartbeats and nothing else would hold up the job forever.
pub(super) fn downtime_limit(live_bytes: u64) -> Duration {
    2 * round_limit(live_bytes)
}

/// Counts of a replay's records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) records: u64,
    pub(super) chunks: u64,
    pub(super) chunk_bytes: u64,
    pub(super) modules: u64,
}

impl Count {
    pub(super) fn of<'r>(live: impl Iterator<Item = Result<Record<'r>, JournalError>>) -> Result<Count, JournalError> {
        let mut count = Count::default();
        for r in live {
            let r = r?;
            count.records += 1;
            match r.id {
                ops::id::CHUNK_MAP => {
                    count.chunks += 1;
                    count.chunk_bytes += Chunk::get(&mut &r.body[..]).map_or(0, |c| c.bytes);
                }
                ops::id::IMAGE_LOAD => count.modules += 1,
                _ => {}
            }
        }
        Ok(count)
    }
}

/// One device of a move. What it still has open is closed when it is dropped.
#[derive(Debug)]
pub(super) struct DeviceMove<'a> {
    task: &'a Task,
    pub(super) device: &'static Device,
    to: PlaceSpec,
    pub(super) source: Place,
    pub(super) report: ::control::GpuMove,
    /// Why this process cannot be the requested target: a helper may be used instead.
    pub(super) unfit: Option<String>,
    data_channels: Option<DataChannels>,
    target: Option<Place>,
    /// Whether the target is a store that has failed, which is not to be kept.
    spoiled: bool,
    /// The source, after the commit.
    old: Option<Box<Place>>,
    /// Blocks of host memory that the target knows: address, number.
    host_blocks: BTreeMap<u64, u64>,
    deferred: DeferredRecords,
    /// Whether the target adopts the source's memory.
    adopts: bool,
    /// What lay where at the place at which a parked device last executed: known from the beginning if it is parked, from the comparison
    /// if it is about to be.
    pub(super) shape: Option<Shape>,
    /// In what the target differs from the place where the device executed last.
    different: Different,
    /// When the target's reference event occurred, on the job's clock.
    target_clock: f64,
    /// Whether the source was opened for this move, because the device's own place was lost.
    pub(super) owns_source: bool,
    /// Bytes that other devices need in the same store.
    pub(super) beside: u64,
    /// The target has replayed a reset since the mover has asked: what it had mapped of other targets is gone.
    pub(super) has_reset: bool,
}

impl<'a> DeviceMove<'a> {
    pub(super) fn new(
        device: &'static Device,
        source: Place,
        to: PlaceSpec,
        task: &'a Task,
        shape: Option<Shape>,
    ) -> DeviceMove<'a> {
        let report = ::control::GpuMove {
            gpu: device.index,
            from: source.spec().to_string(),
            to: to.to_string(),
            ..::control::GpuMove::default()
        };
        task.report_gpu(&report, None);
        DeviceMove {
            task,
            device,
            to,
            source,
            report,
            unfit: None,
            data_channels: None,
            target: None,
            spoiled: false,
            old: None,
            host_blocks: BTreeMap::new(),
            deferred: DeferredRecords::default(),
            adopts: false,
            shape,
            different: Different::default(),
            target_clock: 0.0,
            owns_source: false,
            beside: 0,
            has_reset: false,
        }
    }

    /// Creates the device_move anew; with `helper` its target is a helper instead of this process.
    pub(super) fn again(mut self, helper: bool) -> DeviceMove<'a> {
        let (device, task, source, shape) = (self.device, self.task, self.source.clone(), self.shape.take());
        let (to, instead) = match self.unfit.take().filter(|_| helper) {
            Some(why) => (PlaceSpec::Helper(self.to.local_number()), Some(format!("{}: {why}", self.to))),
            None => (self.to.clone(), None),
        };
        let (owns_source, beside) = (std::mem::take(&mut self.owns_source), self.beside);
        drop(self);
        let mut device_move = DeviceMove::new(device, source, to, task, shape);
        (device_move.owns_source, device_move.beside) = (owns_source, beside);
        device_move.report.instead = instead;
        device_move
    }

    /// Whether the target executes nothing: the device is to be parked.
    pub(super) fn parks(&self) -> bool {
        self.to.is_store()
    }

    /// Whether the source executes nothing: the device is parked.
    fn is_parked(&self) -> bool {
        self.source.spec().is_store()
    }

    /// Notes an error that makes this process unfit as the target.
    fn blame<T>(&mut self, r: Result<T, MoveError>) -> Result<T, MoveError> {
        if let (Err(why), PlaceSpec::Local(_)) = (&r, &self.to) {
            self.unfit = Some(why.to_string());
        }
        r
    }

    /// Adds to the duration of a phase, which may consist of several steps.
    pub(super) fn note(&mut self, name: &'static str, since: Instant) {
        *self.report.phases.entry(name.to_owned()).or_default() += since.elapsed().as_secs_f64() * 1e3;
        self.task.trace(self.track(), name, since, &[]);
        self.task.report_gpu(&self.report, None);
    }

    /// Where the trace of the move shows this GPU.
    fn track(&self) -> Track {
        Track::Gpu(self.device.index)
    }

    /// Takes a step.
    pub(super) fn take(&mut self, step: Step, job: &'static Job) -> Result<Report<Failure>, Failure> {
        match step {
            Step::Plan => self.check_source(job),
            Step::Prepare => self.prepare(job),
            Step::Replay => self.replay(job),
            Step::Connect => self.connect(),
            Step::Copy => return self.precopy(),
            Step::Delta => self.delta(job),
            Step::ReplayDeferred => self.replay_deferred(job),
            Step::Verify => self.verify(),
        }
        .map(|()| Report::Done)
    }

    fn phase<T>(&mut self, name: &'static str, run: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        self.task.phase(name)?;
        let _span = self.task.span(name, Some(self.device.index));
        let since = Instant::now();
        let r = run(self);
        self.note(name, since);
        r.map_err(|why| why.in_phase(name))
    }

    /// The target of the device move.
    pub(super) fn target(&self) -> Result<&Place, MoveError> {
        self.target.as_ref().ok_or_else(|| MoveError::missing("target"))
    }

    /// Checks for blockers that can be found before anything is opened.
    fn check_source(&mut self, job: &Job) -> Result<(), Failure> {
        faults::at(Point::Plan);
        self.phase("plan", |device_move| {
            let figures = registry::figures(job, device_move.device);
            device_move.report.live_objects = figures.live.values().sum();
            device_move.report.live_bytes = figures.used_bytes;
            data_channels::check_source(device_move.device)?;
            Failure::unless_empty(blockers_at_source(device_move.device))
        })
    }

    /// Opens the target and checks whether it can hold the device.
    fn prepare(&mut self, job: &'static Job) -> Result<(), Failure> {
        if !self.is_parked() {
            // The move need not transfer them. A parked device has none, and the gate is closed.
            drop_spare(&CallContext::inside(job), self.device, 0);
        }
        self.phase("prepare", |device_move| {
            let (to, index) = (device_move.to.clone(), device_move.device.index);
            let most = most_parked(device_move.device);
            let open = move || match standing::take(index, &to, most) {
                Some(copy) => Ok((copy, true)),
                None => Place::open(&to, index, most).map(|new| (new, false)).map_err(MoveError::from),
            };
            // A server may be slow, so opening it can be abandoned; opening the driver in this process must be completed.
            let opened = if let PlaceSpec::Local(_) = device_move.to { open() } else { device_move.task.apart(open) };
            let (target, is_copy) = device_move.blame(opened)?;
            device_move.report.transport = target.transport().to_owned();
            let theirs = target.clone();
            device_move.target = Some(target);
            if !device_move.task.copies() {
                // A copy is of use later: what interrupts its rounds is that their connections are closed.
                device_move.task.on_stop(index, move || theirs.abandon())?;
            }
            faults::at(Point::Prepare);
            if device_move.parks() {
                // NVML answers meanwhile.
                keep_board(device_move.device, &device_move.source)?;
                // A copy has most of it, and how much has changed since is not known.
                let adoptable = if is_copy { u64::MAX } else { 0 };
                return device_move.check_target(job, Ask { adoptable, beside: device_move.beside, ..Ask::default() });
            }
            let adoptable = adoptable(&device_move.source, device_move.target()?);
            device_move.adopts = adoptable.is_some();
            device_move.different = Different::since(device_move.device, device_move.target()?.device());
            let (room, allow_different) = (device_move.task.room(), device_move.task.allow_different());
            device_move.check_target(job, Ask { adoptable: adoptable.unwrap_or(0), room, beside: 0, allow_different })?;
            Ok(device_move.settle_host_memory()?)
        })
    }

    /// Checks whether the target can hold the device.
    fn check_target(&mut self, job: &Job, ask: Ask) -> Result<(), Failure> {
        let (blockers, room) = blockers_at_target(job, self.device, self.target()?, ask)?;
        (self.report.needed_bytes, self.report.free_bytes) = (room.needed, room.free);
        Failure::unless_empty(blockers)
    }

    /// Replays the live set at the target.
    fn replay(&mut self, job: &Job) -> Result<(), Failure> {
        self.phase("replay", |device_move| {
            // Before the copy, which then has the uses of all of them.
            let known =
                if device_move.different.any() { known_functions(job, device_move.device) } else { KnownFunctions::new() };
            let copy = lock(&device_move.device.ledger).begin_move()?;
            if device_move.parks() {
                // The journal stays in this process, but a place must be able to replay it later.
                return Failure::unless_empty(copy.iter().filter_map(|record| registry::record_blocker(&record)).collect());
            }
            let live = objects_by_number(copy.iter());
            Failure::unless_empty(live.iter().filter_map(registry::record_blocker).collect())?;
            let count = Count::of(live.iter().copied().map(Ok)).map_err(MoveError::from)?;
            device_move.report.records = count.records;
            (device_move.report.chunks, device_move.report.chunk_bytes, device_move.report.modules) =
                (count.chunks, count.chunk_bytes, count.modules);
            device_move.adopt(live.iter().copied())?;
            device_move.feed(live)?;
            device_move.check_made(job, &known)?;
            device_move.target_clock = record_reference(job, device_move.target()?)?;
            Ok(())
        })
    }

    /// Has the target adopt the memory of chunks that these records map, which are about to be replayed. The source's memory is the same or
    /// newer.
    fn adopt<'r>(&mut self, records: impl Iterator<Item = Record<'r>>) -> Result<(), MoveError> {
        if !self.adopts {
            return Ok(());
        }
        let maps = records.filter(|record| record.id == ops::id::CHUNK_MAP);
        let mapped: HashSet<u64> = maps.filter_map(|record| Some(Chunk::get(&mut &record.body[..]).ok()?.address)).collect();
        if mapped.is_empty() {
            return Ok(());
        }
        let adopted = shown_by(&self.source).and_then(|(offer, mut chunks)| {
            chunks.retain(|[address, ..]| mapped.contains(address));
            Ok(self.target()?.control(&Control::AdoptFrom { offer, chunks })?)
        });
        if let Err(why) = adopted {
            // It is copied instead.
            tracing::debug!(target: "migrate", "memory is not handed over: {why}");
        }
        Ok(())
    }

    /// Replays records except the deferred ones.
    fn feed<'r>(&mut self, records: impl IntoIterator<Item = Record<'r>>) -> Result<(), MoveError> {
        let now = self.deferred.keep_back(self.device, records);
        if let Some(why) = now.iter().find_map(|due| self.different.blocker(&due.record())) {
            return Err(why);
        }
        let replayed = replay_to(self.target()?, now.iter().map(Due::record), self.task);
        self.blame(replayed)
    }

    /// Checks what the job has made so far, if the target differs: tensor maps, the grids of cooperative launches, and functions.
    fn check_made(&self, job: &Job, known: &KnownFunctions) -> Result<(), MoveError> {
        if !self.different.any() {
            return Ok(());
        }
        let (device, target) = (self.device, self.target()?);
        fit::state_blockers(job, device, self.different).map_or(Ok(()), Err)?;
        not_resident(job, device, target)?.map_or(Ok(()), Err)?;
        weaker_function(job, device, target, known)?.map_or(Ok(()), Err)
    }

    /// Replays the deferred records: the job is quiesced, and all memory exists.
    fn replay_deferred(&mut self, job: &Job) -> Result<(), Failure> {
        if self.parks() {
            return Ok(());
        }
        let late = self.deferred.take(|record| registry::is_needed(job, record));
        let late = objects_by_number(late.iter().map(OwnedRecord::as_record));
        Failure::unless_empty(late.iter().filter_map(registry::record_blocker).collect())?;
        late.iter().find_map(|record| self.different.blocker(record)).map_or(Ok(()), Err)?;
        let replayed = replay_to(self.target()?, late.into_iter(), self.task);
        self.blame(replayed)?;
        // The job may have made more meanwhile.
        let known = if self.different.any() { known_functions(job, self.device) } else { KnownFunctions::new() };
        Ok(self.check_made(job, &known)?)
    }

    /// Opens the data connections.
    fn connect(&mut self) -> Result<(), Failure> {
        self.phase("connect", |device_move| {
            faults::at(Point::Wires);
            let data_channels = DataChannels::connect(device_move.device, &device_move.source, device_move.target()?)?;
            device_move.report.data = data_channels.carried().to_string();
            device_move.task.on_stop(device_move.device.index, data_channels.cutter())?;
            device_move.data_channels = Some(data_channels);
            Ok(())
        })
    }

    /// Brings the target up to date while the job runs.
    fn precopy(&mut self) -> Result<Report<Failure>, Failure> {
        self.phase("precopy", |device_move| {
            faults::at(Point::Precopy);
            let round = device_move.round(Verify::Skip)?;
            let took = Duration::try_from_secs_f64(round.copy_ms / 1e3).unwrap_or(Duration::MAX);
            Ok(Report::Copied { bytes: round.bytes_sent.saturating_add(round.bytes_fetched), took })
        })
    }

    /// What the records cost that the target has not replayed yet.
    pub(super) fn tail_weight(&self) -> Weight {
        if self.parks() { Weight::default() } else { lock(&self.device.ledger).tail_weight() }
    }

    /// Replays the journal's tail and carries out a round.
    fn round(&mut self, verify: Verify) -> Result<Round, MoveError> {
        // It must be complete also if nothing is replayed now.
        let tail = lock(&self.device.ledger).take_tail()?;
        if !self.parks() {
            let since = Instant::now();
            self.adopt(tail.iter())?;
            self.has_reset |= tail.iter().any(|record| record.id == ops::id::CONTEXT_RESET);
            self.feed(tail.iter())?;
            self.task.trace(self.track(), "replay of the journal's tail", since, &[("records", json!(tail.iter().count()))]);
        }
        self.task.check()?;
        let since = Instant::now();
        let data_channels = self.data_channels.as_ref().ok_or_else(|| MoveError::missing("connection between the places"))?;
        // A kernel that holds the whole GPU holds up a round too.
        let limit = || round_limit(self.report.live_bytes) + self.task.patience().unwrap_or_default();
        let (task, report) = (self.task, self.report.clone());
        // Copied so far by the rounds of this target; what the report has of them is as much or less.
        let progress = move |bytes| {
            task.report_gpu(&::control::GpuMove { bytes: report.bytes.max(bytes), ..report.clone() }, Some(EventKind::Progress))
        };
        let round = data_channels.round(verify, self.task, (verify == Verify::Skip).then(limit), progress);
        if verify != Verify::Skip && round.is_err() && !self.parks() && !self.is_parked() {
            // The cause may be that this process has placed something at another address. A lost target cannot be compared.
            let same = compare(&self.source, self.target()?);
            let differs = same.or_else(|why| if matches!(why, MoveError::LayoutDiffers(_)) { Err(why) } else { Ok(()) });
            self.blame(differs)?;
        }
        // It is asked: the data connections of a process that has ended may break before the loss of its place is noticed.
        if let Err(why) = &round
            && self.parks()
            && spoils(why)
            && self.task.check().is_ok()
        {
            self.spoiled |= self.target.as_ref().is_some_and(Place::answers);
        }
        let round = round?;
        let copied = round.bytes_sent + round.bytes_fetched;
        tracing::trace!(target: "migrate", "a round copied {copied} bytes in {:.3} ms", round.copy_ms);
        let details = [
            ("bytes sent", json!(round.bytes_sent)),
            ("bytes carried by connections", json!(round.bytes_carried)),
            ("bytes copied from GPU to GPU", json!(round.bytes_fetched)),
            ("bytes handed over", json!(round.bytes_adopted)),
            ("verified", json!(verify != Verify::Skip)),
            ("hashing at the target (ms)", json!(round.hash_ms)),
            ("copying (ms)", json!(round.copy_ms)),
        ];
        self.task.trace(self.track(), "round", since, &details);
        self.report.rounds += 1;
        self.report.bytes += copied;
        self.task.trace_figure(self.track(), &format!("bytes copied of GPU {}", self.device.index), self.report.bytes);
        self.report.bytes_by_descriptor += round.bytes_fetched;
        self.report.bytes_carried += round.bytes_carried;
        self.report.bytes_adopted = round.bytes_adopted;
        self.report.by_socket = Some(round.not_in_view.clone()).filter(|why| !why.is_empty());
        if verify != Verify::Skip {
            self.target()?.note_seal(round.seal);
            self.report.delta_bytes = copied;
            self.report.digest = cuda_api::hex::hex(&round.digest);
        }
        self.task.report_gpu(&self.report, Some(EventKind::Progress));
        Ok(round)
    }

    fn settle_host_memory(&mut self) -> Result<(), MoveError> {
        if self.parks() {
            // It stays in this process.
            return Ok(());
        }
        let mut known = std::mem::take(&mut self.host_blocks);
        host_memory::settle(self.target()?, &mut known)?;
        self.host_blocks = known;
        Ok(())
    }

    /// Copies the changes since the last round, from an idle source.
    fn delta(&mut self, job: &Job) -> Result<(), Failure> {
        self.phase("delta", |device_move| {
            faults::at(Point::Delta);
            keep_event_times(job, device_move.device, &device_move.source)?;
            catch_up(&device_move.source)?;
            device_move.settle_host_memory()?;
            device_move.round(device_move.task.verify())?;
            Ok(())
        })
    }

    /// Compares both places: the same memory must be at the same addresses.
    fn verify(&mut self) -> Result<(), Failure> {
        faults::at(Point::Verify);
        self.phase("verify", |device_move| {
            if device_move.parks() {
                let blockers = {
                    let ledger = lock(&device_move.device.ledger);
                    let live = ledger.live()?.collect::<Result<Vec<_>, _>>().map_err(MoveError::from)?;
                    live.iter().filter_map(registry::record_blocker).collect()
                };
                Failure::unless_empty(blockers)?;
                if device_move.shape.is_none() {
                    device_move.shape = Some(shape(&device_move.source)?);
                }
                // A store has nothing to compare, and nothing else asks it between its proof and the commit.
                let answers = device_move.target()?.answers();
                return Ok(device_move.blame(answers.then_some(()).ok_or(MoveError::PlaceLost(None)))?);
            }
            let same = match &device_move.shape {
                Some(known) => compare_with(known, device_move.target()?),
                None => compare(&device_move.source, device_move.target()?),
            };
            Ok(device_move.blame(same)?)
        })
    }

    /// Makes the target the device's place.
    pub(super) fn commit(&mut self, gate: &Closed, moving: &Moving) {
        let Some(place) = self.target.take() else { return };
        if !self.parks() {
            let differs = Different::of(place.device(), &self.device.info).any();
            self.device.differs.store(differs, Ordering::Relaxed);
        }
        self.old = Some(self.device.commit(place, gate, moving));
        lock(&self.device.clock).reference_ms = self.target_clock;
        if self.different.any()
            && let Some(job) = crate::job::opened()
        {
            // What is cached is of the other GPU.
            job.tables.functions.all(self.device.index).iter().for_each(|(_, f)| f.data.answers.forget());
            job.tables.kernels.all(EVERY_DEVICE).iter().for_each(|(_, k)| k.data.answers.forget());
            job.tensor_maps.forget();
        }
        // The surroundings of the other place may have set others.
        self.device.limit_answers.forget();
    }

    /// Releases the source, which the job has left.
    pub(super) fn release_source(&mut self, moving: &Moving) {
        host_memory::system_atomics::place_changed(self.device.place_for_mover(moving));
        let _span = self.task.span("release", Some(self.device.index));
        faults::at(Point::Release);
        let since = Instant::now();
        self.close();
        self.note("release", since);
    }

    /// Closes the data connections and the place that the job does not use: before the commit the target, after it the source.
    pub(super) fn close(&mut self) {
        lock(&self.device.ledger).end_move();
        let (target, old) = (self.target.take(), self.old.take());
        let of_source = target.is_none();
        let unused = target.into_iter().chain(old.map(|old| *old));
        let (device, spoiled) = (self.device.index, self.spoiled);
        let release = move || {
            for place in unused {
                // With a store that has failed the next copy would fail too: it begins with a new one.
                let unused = if spoiled { Some(place) } else { standing::keep(device, place) };
                unused.into_iter().for_each(Place::release);
            }
        };
        match self.data_channels.take() {
            Some(data_channels) if self.report.bytes_adopted == 0 => data_channels.close(of_source, release),
            // What the target has adopted is its own before the source ends.
            adopted_or_none => {
                drop(adopted_or_none);
                release();
            }
        }
    }
}

impl Drop for DeviceMove<'_> {
    fn drop(&mut self) {
        self.close();
        if self.owns_source {
            self.source.clone().release();
        }
    }
}

/// Whether a store that still answers is not to be used again after a round has failed with this error. A broken connection, a slow source or
/// a lost place is no fault of the store.
fn spoils(why: &MoveError) -> bool {
    !why.is_of_the_other_end() && !matches!(why, MoveError::CopyTooSlow(_) | MoveError::PlaceLost(_))
}

/// What a plan finds out about a move of one device.
#[derive(Debug, Default)]
pub(super) struct MoveEstimate {
    pub(super) blockers: Vec<MoveError>,
    /// Bytes that would not be copied.
    pub(super) adoptable: u64,
    /// Memory at the target, if it was opened.
    pub(super) room: Option<Room>,
    /// In what the target differs from what the job started with.
    pub(super) different: Different,
    /// The target, if it could be opened.
    pub(super) target: Option<Place>,
}

/// What other devices need in the store to which this one moves: room is checked before anything is copied.
pub(super) fn beside(job: &Job, all: &[(&'static Device, PlaceSpec)], number: usize) -> u64 {
    let to = &all[number].1;
    let others = all.iter().enumerate().filter(|(other, (_, there))| to.is_store() && *other != number && there == to);
    others.map(|(_, (device, _))| registry::needed_bytes(job, device)).fold(0, u64::saturating_add)
}

/// What a device needs at its target's GPU, and how much is free there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    gpu: [u8; 16],
    needed: u64,
    free: u64,
}

/// Estimates a move and finds its blockers, without beginning it: the target is opened, and connections between the places are opened and closed again; if
/// nothing is in the way so far, the target loads the job's code. The caller releases the target.
pub(super) fn estimate(
    job: &Job,
    device: &'static Device,
    source: &Place,
    to: &PlaceSpec,
    beside: u64,
    task: &Task,
) -> MoveEstimate {
    let mut estimate = MoveEstimate { blockers: blockers_at_source(device), ..MoveEstimate::default() };
    estimate.blockers.extend(device.is_copying().then_some(MoveError::CopyTooSlow(None)));
    match stand_in(to, device) {
        Ok(Some(target)) => {
            estimate.adoptable = adoptable(source, &target).unwrap_or(0);
            if !to.is_store() {
                estimate.different = Different::of(target.device(), &device.info);
            }
            let ask = Ask { adoptable: estimate.adoptable, beside, allow_different: task.allow_different(), room: 0 };
            match blockers_at_target(job, device, &target, ask) {
                Ok((found, room)) => {
                    // What several need in one store was subtracted from what is free there.
                    estimate.room = Some(room).filter(|_| !to.is_store());
                    estimate.blockers.extend(found);
                }
                Err(why) => estimate.blockers.push(why),
            }
            // Places that a move would not use need not reach each other.
            if estimate.blockers.is_empty() {
                estimate.blockers.extend(data_channels::try_to_connect(source, &target).err());
            }
            // A store loads no code, and a parked job's source has none to compare with.
            if estimate.blockers.is_empty() && !to.is_store() && !source.spec().is_store() {
                estimate.blockers.extend(rehearse_in_time(job, device, source, &target, task).err());
            }
            estimate.target = Some(target);
        }
        Ok(None) => {}
        Err(why) => estimate.blockers.push(why.into()),
    }
    estimate
}

/// More than a device can hold, whatever its place sends when it is parked.
pub(super) fn most_parked(device: &Device) -> u64 {
    device.info.total_bytes.saturating_mul(2).saturating_add(1 << 30)
}

/// Opens what a plan compares with the job. For this process, where opening the driver cannot be undone, that is a helper with the same GPU;
/// `None` if this installation has no helpers.
fn stand_in(to: &PlaceSpec, device: &Device) -> Result<Option<Place>, OpenError> {
    let PlaceSpec::Local(gpu) = to else { return Place::open(to, device.index, most_parked(device)).map(Some) };
    if crate::base::config::get()?.driver.is_none() {
        return Err(OpenError::NoDriver);
    }
    match Place::open(&PlaceSpec::Helper(*gpu), device.index, 0) {
        Err(OpenError::OwnFile(_) | OpenError::NoHelper(_)) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Why devices that move to one GPU do not fit there together, though each of them alone does.
pub(super) fn too_little_together(rooms: &[Room]) -> Option<MoveError> {
    rooms.iter().find_map(|room| {
        let there = rooms.iter().filter(|other| other.gpu == room.gpu);
        let (needed, free) = there.fold((0, u64::MAX), |(sum, free), other| (sum + other.needed, free.min(other.free)));
        (needed > free && rooms.iter().all(|room| room.needed <= room.free)).then_some(MoveError::NoMemory { needed, free })
    })
}

fn blockers_at_source(device: &Device) -> Vec<MoveError> {
    let sticky = Some(device.sticky()).filter(|rc| *rc != 0).map(MoveError::ContextFailed);
    sticky.into_iter().chain(registry::blockers(device)).collect()
}

/// Returns whether a device is in this process already, where no second place of this kind exists, or parked at this place.
pub(super) fn is_there(source: &Place, to: &PlaceSpec) -> bool {
    (matches!(source, Place::Local { .. }) || to.is_store()) && source.spec().is_same_as(to)
}

/// Brings the job's copy of mirrored host memory up to date: an idle place sends its changes before an answer that shows progress.
fn catch_up(source: &Place) -> Result<(), MoveError> {
    if !source.has_apart() {
        return Ok(());
    }
    match source.begin(ops::id::CONTEXT_SYNC, &[]).map(Waiting::finish) {
        Ok((code::SUCCESS, _)) => Ok(()),
        Ok((rc, _)) | Err(rc) => Err(MoveError::CallFailed { call: "bringing host memory up to date".to_owned(), error: rc }),
    }
}

/// Where a place offers its chunks, and which they are: address, bytes, number of the memory.
fn shown_by(source: &Place) -> Result<([u8; 32], Vec<[u64; 3]>), MoveError> {
    match source.control(&Control::ShowMemory)? {
        ControlReply::Shown { offer, chunks } => Ok((offer, chunks)),
        other => Err(MoveError::unexpected(&other)),
    }
}

/// How many bytes of a source on the same GPU the target could adopt; `None` if it cannot, so that memory is copied.
fn adoptable(source: &Place, target: &Place) -> Option<u64> {
    if source.device().uuid != target.device().uuid || Faults::from_env().no_adoption || data_channels::are_apart(source, target)
    {
        return None;
    }
    let asked = shown_by(source).and_then(|(offer, chunks)| Ok(target.control(&Control::CouldAdopt { offer, chunks })?));
    match asked {
        Ok(ControlReply::Adoptable(bytes)) => return Some(bytes),
        Ok(other) => tracing::debug!(target: "migrate", "memory is not handed over: {}", MoveError::unexpected(&other)),
        Err(why) => tracing::debug!(target: "migrate", "memory is not handed over: {why}"),
    }
    None
}

/// What a target is asked for.
#[derive(Debug, Clone, Copy, Default)]
struct Ask {
    /// Bytes of the device that it need not provide.
    adoptable: u64,
    /// Bytes that it must provide beside what the device has.
    room: u64,
    /// Bytes that other devices are about to take there.
    beside: u64,
    /// Whether its driver and GPU may differ.
    allow_different: bool,
}

/// Why the target cannot hold the device, with the figures.
fn blockers_at_target(job: &Job, device: &Device, target: &Place, ask: Ask) -> Result<(Vec<MoveError>, Room), MoveError> {
    let Ask { adoptable, room, beside, allow_different } = ask;
    let (have, want) = (target.device(), &device.info);
    let mut all = Vec::new();
    if !target.spec().is_store() {
        all.extend(fit::blockers(have, want, allow_different));
        all.extend(fit::state_blockers(job, device, Different::since(device, have)));
    }
    let held = registry::needed_bytes(job, device).saturating_sub(adoptable);
    let needed = held.saturating_add(room).saturating_add(HEADROOM);
    let free = match target.control(&Control::FreeBytes { beside })? {
        ControlReply::FreeBytes(n) => n,
        other => return Err(MoveError::unexpected(&other)),
    };
    if free < needed {
        all.push(MoveError::NoMemory { needed, free });
    }
    Ok((all, Room { gpu: have.uuid, needed, free }))
}

/// Asks a device's place for the constants of its board, unless that was done before.
fn keep_board(device: &Device, source: &Place) -> Result<(), MoveError> {
    if device.board.get().is_some() || source.spec().is_store() {
        return Ok(());
    }
    match source.begin(ops::id::BOARD, &[&[]]).map(Waiting::finish) {
        Ok((code::SUCCESS, bytes)) => {
            let constants = Constants::get(&mut &bytes[..]).map_err(|e| MoveError::BadAnswer(e.to_string()))?;
            // A thread of the program may have stored the same answer meanwhile.
            let _ = device.board.set(constants);
            Ok(())
        }
        // Then they are not known, as before.
        Ok(_) => Ok(()),
        Err(error) => Err(MoveError::CallFailed { call: "asking for the constants of the board".to_owned(), error }),
    }
}

/// Sorts texture and surface objects by their numbers, as far as none is destroyed between them: a driver that has assigned no numbers
/// yet assigns them in this order, and reuses a number only after a while (tests/gpu/driver/textures.c).
fn objects_by_number<'r>(records: impl Iterator<Item = Record<'r>>) -> Vec<Record<'r>> {
    let (mut all, mut objects) = (Vec::new(), BTreeMap::new());
    for record in records {
        // The answer begins with the number.
        match record.reply.first_chunk() {
            Some(number) if record.id == ops::id::OBJECT_MAKE => {
                objects.insert((u64::from_le_bytes(*number), record.seq), record);
            }
            _ => {
                if record.ends.is_some() {
                    all.extend(std::mem::take(&mut objects).into_values());
                }
                all.push(record);
            }
        }
    }
    all.extend(objects.into_values());
    all
}

#[cfg(test)]
mod tests;
