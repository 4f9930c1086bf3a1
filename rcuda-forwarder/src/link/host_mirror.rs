//! Host memory of the job that the worker has its own of: the job's end of keeping the two alike ([`executor::host_mirror`]).
//!
//! What the job has changed is told before each call whose work may see it, in the ring before that call, and from time to time, since a
//! kernel may be looking at it. What the worker tells is taken over by the thread that receives answers: whoever sees an answer finds it.

use super::{Link, Lost, Shared};
use crate::frame::NO_TICKET;
use crate::host_mirror::{Look, Pace};
use crate::lock::lock;
use crate::ring::PushError;
use crate::threads;
use cuda_api::ops::id;
use executor::host_mirror::{Line, Twins, bytes_of, joined};
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Lines of one call: what goes through the ring.
const LINES: usize = 1600;
/// Of more lines than this nobody keeps account: only who changes a byte on both sides at the same time would be concerned.
const MOST_ON_THEIR_WAY: usize = 1 << 16;

/// In the place of a message's number: found, and not handed over yet.
const NOT_YET: u64 = u64::MAX;

type Watch = Box<dyn Fn(&[Line]) -> bool + Send + Sync>;

/// The memory of a link.
#[derive(Default)]
pub(super) struct Alike {
    /// Whether there is any.
    used: AtomicBool,
    /// Held while changes are looked for and handed over: what is found later is handed over later.
    order: Mutex<()>,
    state: Mutex<State>,
    /// Calls whose work may see it, or change it.
    calls: AtomicU64,
    running: AtomicBool,
    watch: Mutex<Option<Watch>>,
}

impl std::fmt::Debug for Alike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alike").field("used", &self.used).field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    twins: Twins,
    /// Messages handed over so far.
    told: u64,
    /// What the worker may not have taken over: number of the message, lines and their bytes in order.
    on_their_way: VecDeque<(u64, Vec<(u64, u64)>)>,
}

impl Default for State {
    fn default() -> State {
        State { twins: Twins::of_job(), told: 0, on_their_way: VecDeque::new() }
    }
}

/// Whether the work of a call, or what it lets go on, may look at host memory.
fn may_look(call: u16) -> bool {
    matches!(
        call,
        id::LAUNCH
            | id::GRAPH_LAUNCH
            | id::COPY_IN
            | id::COPY_IN_AT_REST
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

impl Alike {
    /// Takes over what the worker says; false if that makes no sense.
    pub(super) fn take_over(&self, message: &[u8]) -> bool {
        let Some((taken, lines)) = message.split_first_chunk() else { return false };
        let mut state = lock(&self.state);
        let State { twins, on_their_way, .. } = &mut *state;
        let taken = u64::from_le_bytes(*taken);
        while on_their_way.front().is_some_and(|(number, _)| *number <= taken) {
            on_their_way.pop_front();
        }
        let own = |at: u64| {
            let bits = |lines: &Vec<(u64, u64)>| lines.binary_search_by_key(&at, |l| l.0).map_or(0, |i| lines[i].1);
            on_their_way.iter().fold(0, |all, (_, lines)| all | bits(lines))
        };
        // Memory that the program has just freed is not known here any more.
        twins.take_over(lines, own);
        lines.len() % executor::host_mirror::LINE_BYTES == 0
    }

    pub(super) fn forget_all(&self) {
        let mut state = lock(&self.state);
        state.twins = Twins::of_job();
        self.used.store(false, Ordering::Release);
    }
}

impl State {
    /// Looks for changes. What the worker says of their bytes from now on does not count.
    fn look(&mut self) -> (Vec<Line>, bool) {
        let (lines, whole) = self.twins.collect();
        if lines.len() <= MOST_ON_THEIR_WAY {
            self.expect(NOT_YET, &lines);
        }
        (lines, whole)
    }

    /// Notes that lines, which are all that has been found, are about to be handed over, in messages of [`LINES`].
    fn note(&mut self, lines: &[Line]) {
        self.on_their_way.retain(|(number, _)| *number != NOT_YET);
        let few = lines.len() <= MOST_ON_THEIR_WAY;
        for some in lines.chunks(LINES) {
            self.told += 1;
            if few {
                self.expect(self.told, some);
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

impl Shared {
    /// Before a call is handed over: what its work may look at is told.
    pub(super) fn before(&self, call: u16) -> Result<(), PushError> {
        if !self.alike.used.load(Ordering::Acquire) || !may_look(call) {
            return Ok(());
        }
        self.alike.calls.fetch_add(1, Ordering::Relaxed);
        self.tell_changes().map(drop)
    }

    /// Tells the worker what the job has changed.
    fn tell_changes(&self) -> Result<Look, PushError> {
        let asked = Instant::now();
        let _in_order = lock(&self.alike.order);
        let (mut looks, mut waited) = (Vec::new(), asked.elapsed());
        let mut at_once;
        loop {
            let (lines, whole) = lock(&self.alike.state).look();
            at_once = whole;
            if lines.is_empty() {
                break;
            }
            // The changes may name memory that the worker did not need so far. What that holds is told with them; it takes a while to
            // have it, and meanwhile what was found may have changed again.
            let asked = Instant::now();
            let more = lock(&self.alike.watch).as_ref().is_some_and(|watch| watch(&lines));
            looks.push(lines);
            if !more {
                break;
            }
            waited += asked.elapsed();
        }
        let lines = joined(looks, at_once);
        lock(&self.alike.state).note(&lines);
        for some in lines.chunks(LINES) {
            self.ring.push(id::HOST_BYTES, NO_TICKET, &[bytes_of(some)])?;
        }
        Ok(Look { found: !lines.is_empty(), waited })
    }

    fn keep_alike(&self) {
        let mut pace = Pace::default();
        while !self.replies.is_lost() {
            let calls = self.alike.calls.load(Ordering::Relaxed);
            let used = self.alike.used.load(Ordering::Acquire);
            pace.look(calls, || if used { self.tell_changes().unwrap_or_default() } else { Look::default() });
        }
    }
}

impl Link {
    /// Keeps memory of this process and the worker's at the same address alike, by whole pages. The worker's holds zeros.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until [`Link::forget_memory`] or the link's end.
    ///
    /// # Errors
    /// There is no memory or no thread for that.
    pub unsafe fn keep_alike(&self, at: u64, bytes: u64) -> io::Result<()> {
        let alike = &self.shared.alike;
        // SAFETY: as the caller says; the link's end forgets all memory.
        unsafe { lock(&alike.state).twins.add(at, bytes) }?;
        alike.used.store(true, Ordering::Release);
        if !alike.running.swap(true, Ordering::AcqRel) {
            let shared = self.shared.clone();
            threads::spawn("mrcuda-alike", move || shared.keep_alike())
                .inspect_err(|_| alike.running.store(false, Ordering::Release))?;
        }
        Ok(())
    }

    /// As [`Link::forget_memory`]; also nothing that was found in it is on its way to the ring.
    pub fn give_up_memory(&self, at: u64) {
        let _nobody_tells = lock(&self.shared.alike.order);
        self.forget_memory(at);
    }

    /// The memory may go: it is not looked at any more. What the worker does to it is of no consequence.
    pub fn forget_memory(&self, at: u64) {
        let mut state = lock(&self.shared.alike.state);
        state.twins.remove(at);
        self.shared.alike.used.store(!state.twins.is_empty(), Ordering::Release);
    }

    /// Tells the worker now what the job has changed.
    pub fn tell_changes(&self) -> Result<(), Lost> {
        self.shared.tell_changes().map(drop).map_err(|e| self.not_sent(e))
    }

    /// Shows `watch` what the job has changed before the worker is told; true: it has made the link keep more memory alike, which is
    /// told first. It may wait for answers, and must not hand over work.
    pub fn set_watch(&self, watch: impl Fn(&[Line]) -> bool + Send + Sync + 'static) {
        *lock(&self.shared.alike.watch) = Some(Box::new(watch));
    }
}
