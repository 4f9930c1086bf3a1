//! The job's end of host memory that is mirrored at the worker ([`executor::host_mirror`]).
//!
//! The job's changes are sent before each call whose work may read them, in the ring before that call, and
//! periodically, since a kernel may be polling the memory. The worker's changes are applied by the thread that receives
//! answers, so they are visible to every thread that has seen a later answer. Many changes of exclusive memory travel over the connections for large
//! copies to the host ([`super::bulk`]), in both directions. The worker sends no later answer before the threads of these have applied its changes. The
//! job's are found by these threads when the worker asks for them, and the thread that makes a call waits until they are found ([`outgoing`]).

use crate::frame::NO_TICKET;
use crate::host_mirror::{Pace, Scan};
use crate::ring::{PushError, Ring};
use crate::sync::lock;
use cuda_api::lock::{read_lock, write_lock};
use cuda_api::ops::id;
use executor::host_mirror::{Line, MESSAGE_LINES, MORE, MirroredMemory, Touched, bytes_of, joined};
use outgoing::Outgoing;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

mod outgoing;

/// Maximum number of lines tracked; beyond it, only a byte that is changed at both ends at the same time is affected.
const MAX_LINES_IN_FLIGHT: usize = 1 << 16;

/// In place of a message's number: found, and not sent yet.
const NOT_YET: u64 = u64::MAX;

/// Sees the job's changes before they are sent ([`Alike::set_watch`]).
pub(super) struct Watch {
    /// Whether words, as bytes, may name memory; cheap.
    pub(super) may_name: Box<dyn Fn(&[u8]) -> bool + Send + Sync>,
    /// Gives the worker the memory that lines name; returns true if it has more now.
    pub(super) name: Box<dyn Fn(&[Line]) -> bool + Send + Sync>,
}

/// What was sent of exclusive memory.
struct Exclusive {
    /// Whether there was anything.
    found: bool,
    /// Whether more memory is mirrored since, because it was named.
    more: bool,
}

/// The mirrored memory of a link.
#[derive(Default)]
pub(super) struct Alike {
    /// Whether there is any mirrored memory.
    used: AtomicBool,
    /// Held while changes are found and sent, so that they are sent in the order in which they are found.
    order: Mutex<()>,
    /// Threads that apply changes of exclusive memory share it.
    state: RwLock<State>,
    /// Held while blocks are requested, so that they are sent in the order of their numbers. Taken before `state`, and also by who holds
    /// `order`.
    requesting: Mutex<()>,
    /// Number of calls whose work may read or change the memory.
    calls: AtomicU64,
    running: AtomicBool,
    watch: RwLock<Option<Watch>>,
    outgoing: Outgoing,
}

impl std::fmt::Debug for Alike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alike").field("used", &self.used).field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    mirrored: MirroredMemory,
    /// Number of messages sent.
    messages: u64,
    /// Changes that the worker may not have applied: number of the message, then lines and masks of their bytes in
    /// order.
    on_their_way: VecDeque<(u64, Vec<(u64, u64)>)>,
    /// Number of blocks requested.
    blocks: u64,
    /// Blocks that the worker may not have added: the end of each and its number, by address. Until then the worker's changes there are
    /// those of a block that was at the address before.
    requested: BTreeMap<u64, (u64, u64)>,
}

impl Default for State {
    fn default() -> State {
        let (on_their_way, requested) = (VecDeque::new(), BTreeMap::new());
        State { mirrored: MirroredMemory::of_job(), messages: 0, on_their_way, blocks: 0, requested }
    }
}

/// Whether the work of a call, or work that it lets continue, may access host memory.
fn may_look(call: u16) -> bool {
    matches!(
        call,
        id::LAUNCH
            | id::GRAPH_LAUNCH
            | id::COPY_IN
            | id::COPY_IN_AT_REST
            | id::BULK_IN
            | id::COPY_DEVICE
            | id::COPY_BOX
            | id::COPY_BOX_IN
            | id::FILL
            | id::STREAM_MEMORY
            | id::HOST_DONE
            | id::STREAM_SYNC
            | id::CONTEXT_SYNC
            | id::EVENT_SYNC
    )
}

/// Whether a call only waits. No kernel uses exclusive memory whose changes were not sent before its launch.
fn waits(call: u16) -> bool {
    matches!(call, id::STREAM_SYNC | id::CONTEXT_SYNC | id::EVENT_SYNC)
}

impl Alike {
    /// Mirrors memory of this process at the worker, as memory that the job uses exclusively or not. Returns whether the caller must start a
    /// thread that [keeps](Alike::keep) it equal; [`Alike::not_started`] reports that it could not.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until [`Alike::forget`] or [`Alike::forget_all`].
    pub(super) unsafe fn add(&self, at: u64, bytes: u64, exclusive: bool) -> io::Result<bool> {
        let mirrored = &mut write_lock(&self.state).mirrored;
        // SAFETY: as the caller says.
        unsafe { if exclusive { mirrored.add_exclusive(at, bytes) } else { mirrored.add(at, bytes) } }?;
        Ok(self.begin())
    }

    /// As [`Alike::add`], for a block that the worker adds when it receives what `send` sends.
    ///
    /// # Safety
    /// As for [`Alike::add`].
    ///
    /// # Errors
    /// That of `send`, or there is not enough memory for the shadow copy.
    pub(super) unsafe fn add_block<T, E>(
        &self,
        at: u64,
        bytes: u64,
        send: impl FnOnce() -> Result<T, E>,
    ) -> io::Result<Result<(T, bool), E>> {
        let _in_order = lock(&self.requesting);
        let sent = match send() {
            Ok(sent) => sent,
            Err(why) => return Ok(Err(why)),
        };
        let mut state = write_lock(&self.state);
        state.blocks += 1;
        let number = state.blocks;
        // SAFETY: as the caller says.
        unsafe { state.mirrored.add(at, bytes) }?;
        state.requested.insert(at, (at + bytes, number));
        Ok(Ok((sent, self.begin())))
    }

    fn begin(&self) -> bool {
        self.used.store(true, Ordering::Release);
        !self.running.swap(true, Ordering::AcqRel)
    }

    /// The thread could not be started: the next [`Alike::add`] requests it again.
    pub(super) fn not_started(&self) {
        self.running.store(false, Ordering::Release);
    }

    /// Stops mirroring, so the memory may be freed.
    pub(super) fn forget(&self, at: u64) {
        let mut state = write_lock(&self.state);
        state.mirrored.remove(at);
        state.requested.remove(&at);
        self.used.store(!state.mirrored.is_empty(), Ordering::Release);
    }

    /// As [`Alike::forget`]; also waits until no change found in it is being sent.
    pub(super) fn give_up(&self, at: u64) {
        let _nobody_tells = lock(&self.order);
        self.forget(at);
    }

    /// Sets callbacks that see the job's changes before they are sent. If more memory is mirrored then, its contents are sent first.
    pub(super) fn set_watch(&self, watch: Watch) {
        *write_lock(&self.watch) = Some(watch);
    }

    /// Applies the worker's changes; false if the message is malformed.
    pub(super) fn take_over(&self, message: &[u8]) -> bool {
        let Some((taken, rest)) = message.split_first_chunk() else { return false };
        let Some((blocks, lines)) = rest.split_first_chunk() else { return false };
        let mut state = write_lock(&self.state);
        let State { mirrored, on_their_way, requested, .. } = &mut *state;
        let (taken, blocks) = (u64::from_le_bytes(*taken), u64::from_le_bytes(*blocks));
        while on_their_way.front().is_some_and(|(number, _)| *number <= taken) {
            on_their_way.pop_front();
        }
        requested.retain(|_, (_, number)| *number > blocks);
        let own = |at: u64| {
            if requested.range(..=at).next_back().is_some_and(|(_, (end, _))| at < *end) {
                return u64::MAX;
            }
            let bits = |lines: &Vec<(u64, u64)>| lines.binary_search_by_key(&at, |l| l.0).map_or(0, |i| lines[i].1);
            on_their_way.iter().fold(0, |all, (_, lines)| all | bits(lines))
        };
        // Memory that the program has just freed is no longer registered here.
        mirrored.take_over(lines, own);
        lines.len() % executor::host_mirror::LINE_BYTES == 0
    }

    /// Applies the worker's changes of exclusive memory; false if the message is malformed. Other threads may do the same with changes of other lines.
    pub(super) fn take_over_runs(&self, message: &[u8]) -> bool {
        // Memory that the program has just freed is no longer registered here.
        read_lock(&self.state).mirrored.take_over_runs(message)
    }

    pub(super) fn forget_all(&self) {
        let mut state = write_lock(&self.state);
        state.mirrored = MirroredMemory::of_job();
        state.requested.clear();
        self.used.store(false, Ordering::Release);
    }

    /// Sends changes before a call whose work may read them.
    pub(super) fn before(&self, ring: &Ring, call: u16) -> Result<(), PushError> {
        if !self.used.load(Ordering::Acquire) || !may_look(call) {
            return Ok(());
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.send_changes(ring, !waits(call)).map(drop)
    }

    /// Sends the job's changes to the worker; those of exclusive memory only before `work` that may use it, or with others, which may announce them.
    pub(super) fn send_changes(&self, ring: &Ring, work: bool) -> Result<Scan, PushError> {
        let asked = Instant::now();
        let _in_order = lock(&self.order);
        let mut waited = asked.elapsed();
        let (mut scans, mut found) = (Vec::new(), false);
        let mut at_once;
        let added = write_lock(&self.state).mirrored.added();
        loop {
            loop {
                let (lines, whole) = write_lock(&self.state).collect_changes();
                at_once = whole;
                if lines.is_empty() {
                    break;
                }
                // The changes may refer to memory that the worker did not need before. Its contents are sent with them;
                // registering it takes a while, during which the changed bytes may have changed again.
                let more = self.name_more(&lines, &mut waited);
                scans.push(lines);
                if !more {
                    break;
                }
            }
            if !work && scans.is_empty() {
                break;
            }
            // Found after what may announce it, and sent before.
            let exclusive = self.send_exclusive(ring, &mut waited)?;
            found |= exclusive.found;
            if !exclusive.more {
                break;
            }
        }
        let mut state = write_lock(&self.state);
        let lines = joined(scans, at_once, |at| state.mirrored.is_new(at, added));
        state.note(&lines);
        drop(state);
        for some in lines.chunks(MESSAGE_LINES) {
            ring.push(id::HOST_BYTES, NO_TICKET, &[bytes_of(some)])?;
        }
        Ok(Scan { found: found || !lines.is_empty(), waited })
    }

    /// Has changes looked at before they are sent. Returns whether more memory is mirrored now; that may have taken time.
    fn name_more(&self, lines: &[Line], waited: &mut Duration) -> bool {
        let asked = Instant::now();
        let more = read_lock(&self.watch).as_ref().is_some_and(|watch| (watch.name)(lines));
        *waited += if more { asked.elapsed() } else { Duration::ZERO };
        more
    }

    /// Sends the job's changes of exclusive memory, part by part, or has connections carry them if they may be many.
    fn send_exclusive(&self, ring: &Ring, waited: &mut Duration) -> Result<Exclusive, PushError> {
        let mut exclusive = Exclusive { found: false, more: false };
        let mut touched = write_lock(&self.state).mirrored.touched();
        if touched.bytes() >= outgoing::MANY && self.outgoing.has_connections() {
            return self.send_by_connections(ring, touched, waited);
        }
        // Nothing is sent while the state is locked: the worker may have to be listened to before it takes more.
        while let Some(lists) = self.next_lines(&mut touched) {
            for lines in lists.iter().filter(|lines| !lines.is_empty()) {
                exclusive.found = true;
                exclusive.more |= self.name_more(lines, waited);
            }
            let mut messages = lists.iter().flat_map(|lines| lines.chunks(MESSAGE_LINES)).peekable();
            while let Some(some) = messages.next() {
                let mark: &[u8] = if messages.peek().is_some() { &[MORE] } else { &[] };
                ring.push(id::HOST_BYTES, NO_TICKET, &[bytes_of(some), mark])?;
            }
        }
        Ok(exclusive)
    }

    /// Has the connections carry what has changed of exclusive memory. The caller holds `order`.
    fn send_by_connections(&self, ring: &Ring, touched: Touched, waited: &mut Duration) -> Result<Exclusive, PushError> {
        let mut exclusive = Exclusive { found: false, more: false };
        let mut parts = touched.into_parts();
        while let Some(round) = outgoing::take_round(&mut parts) {
            let began = Instant::now();
            self.outgoing.begin(round);
            let sent = ring.push(id::HOST_RUNS, NO_TICKET, &[]);
            let found = self.outgoing.finish(sent.is_ok());
            *waited += began.elapsed();
            sent?;
            let found = found.ok_or(PushError::Gone)?;
            exclusive.found |= found.any;
            for part in found.naming {
                let lines = read_lock(&self.state).mirrored.lines_of_part(&part);
                exclusive.more |= self.name_more(&lines, waited);
            }
        }
        Ok(exclusive)
    }

    /// Writes what has changed of the next part of a round in which anything has; nothing if there is none. `masks` is a reused buffer.
    pub(super) fn next_runs(&self, round: u64, masks: &mut Vec<u8>, to: &mut Vec<u8>) {
        to.clear();
        while to.is_empty() {
            let Some(part) = self.outgoing.next(round) else { return };
            let mut names = false;
            let watch = read_lock(&self.watch);
            let may_name = |page: &[u8]| watch.as_ref().is_some_and(|watch| (watch.may_name)(page));
            read_lock(&self.state).mirrored.encode_part(&part, masks, to, |page| names = names || may_name(page));
            drop(watch);
            self.outgoing.found(part, !to.is_empty(), names);
        }
    }

    /// From now on connections to the host carry changes.
    pub(super) fn begin_to_use_connections(&self) {
        self.outgoing.begin_to_use_connections();
    }

    /// The link is lost: nothing waits for its connections any more.
    pub(super) fn shut(&self) {
        self.outgoing.shut();
    }

    /// The changes in the next part of what was touched, counted as messages.
    fn next_lines(&self, touched: &mut Touched) -> Option<Vec<Vec<Line>>> {
        let mut state = write_lock(&self.state);
        let lists = state.mirrored.next_lines(touched)?;
        state.messages += lists.iter().map(|lines| lines.len().div_ceil(MESSAGE_LINES) as u64).sum::<u64>();
        Some(lists)
    }

    /// Sends changes periodically, until the link is lost.
    pub(super) fn keep(&self, ring: &Ring, is_lost: impl Fn() -> bool) {
        let mut pace = Pace::default();
        while !is_lost() {
            let calls = self.calls.load(Ordering::Relaxed);
            let used = self.used.load(Ordering::Acquire);
            pace.scan(calls, || if used { self.send_changes(ring, false).unwrap_or_default() } else { Scan::default() });
        }
    }
}

impl State {
    /// Finds changes. From now on the worker's changes of these bytes are ignored.
    fn collect_changes(&mut self) -> (Vec<Line>, bool) {
        let (lines, whole) = self.mirrored.collect();
        if lines.len() <= MAX_LINES_IN_FLIGHT {
            self.expect(NOT_YET, &lines);
        }
        (lines, whole)
    }

    /// Records that lines, which are all that have been found, are about to be sent, in messages of [`MESSAGE_LINES`].
    fn note(&mut self, lines: &[Line]) {
        self.on_their_way.retain(|(number, _)| *number != NOT_YET);
        let few = lines.len() <= MAX_LINES_IN_FLIGHT;
        for some in lines.chunks(MESSAGE_LINES) {
            self.messages += 1;
            if few {
                self.expect(self.messages, some);
            }
        }
    }

    fn expect(&mut self, number: u64, lines: &[Line]) {
        let mut list: Vec<(u64, u64)> = lines.iter().map(|l| (l[0], l[1])).collect();
        list.sort_unstable();
        list.dedup_by(|b, a| {
            let same = a.0 == b.0;
            a.1 |= if same { b.1 } else { 0 };
            same
        });
        self.on_their_way.push_back((number, list));
    }
}
