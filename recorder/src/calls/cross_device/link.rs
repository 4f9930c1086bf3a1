//! Copies over connections between two places, where neither can map the other's memory: the stream is held as for a copy through the job,
//! but the bytes go from place to place.
//!
//! The connections are made at the first copy that could use them, by a thread of their own, and kept until one of the devices moves. Until
//! they are there, and after they have failed, copies go through the job. A copy that fails on the way is repeated through the job: its
//! stream is still held, so its source is as it was.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::base::spawn;
use crate::calls::copy::rect::{End, Rect};
use crate::connections;
use crate::device_memory::{imports, peer};
use crate::enter::CallContext;
use crate::job::Device;
use crate::move_error::MoveError;
use crate::place::Place;
use crate::random::random;
use cuda_api::code;
use cuda_api::ops::{LANE, id};
use memsync::Part;
use rcuda_forwarder::Control;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Minimum sizes of a copy, and of its rows, that goes over a link; shorter ones go through the job. With all places on one machine a copy of 8 MiB took 2.2 ms over a link and
/// 5.7 ms through the job, one of 256 KiB 1.0 and 1.2 ms (two H100s, 2026-11-26).
const MIN_BYTES: u64 = 256 << 10;
const MIN_ROW: u64 = 64 << 10;
/// How long after a failure another attempt is made.
const PAUSE: Duration = Duration::from_secs(10);

/// Two devices, the lower number first.
type Pair = (u32, u32);

enum State {
    /// Its thread connects the places.
    Connecting,
    Open(Sender<Job>),
    Failed(Instant),
}

struct Link {
    /// The epochs of the two devices' places.
    epochs: (u64, u64),
    state: State,
}

/// By their devices. Held for changes of the table alone.
static LINKS: Mutex<BTreeMap<Pair, Link>> = Mutex::new(BTreeMap::new());

/// The result of a copy.
type Progress = Arc<AtomicU8>;
const PENDING: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

/// A copy for the thread of a link.
struct Job {
    from: Place,
    to: Place,
    read: Vec<Part>,
    written: Vec<Part>,
    progress: Progress,
}

impl Drop for Job {
    /// If the thread has ended, the job makes the copy.
    fn drop(&mut self) {
        let _ = self.progress.compare_exchange(PENDING, FAILED, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A copy that a link may make.
pub(super) struct Shortcut {
    pair: Pair,
    epochs: (u64, u64),
    /// Until the copy begins.
    job: Option<Job>,
    progress: Progress,
}

impl Shortcut {
    /// Makes all possible progress; returns whether the copy has been made, once that is known. The first call begins it: its stream is
    /// held and has got there.
    pub(super) fn go_on(&mut self) -> Option<bool> {
        if let Some(job) = self.job.take() {
            let links = lock(&LINKS);
            let open = links.get(&self.pair).filter(|link| link.epochs == self.epochs).map(|link| &link.state);
            // Otherwise it is dropped, and has failed.
            if let Some(State::Open(thread)) = open {
                let _ = thread.send(job);
            }
        }
        match self.progress.load(Ordering::Acquire) {
            PENDING => None,
            done => Some(done == DONE),
        }
    }
}

fn epoch(device: &Device) -> u64 {
    device.epoch.load(Ordering::Relaxed)
}

/// The way of a copy past the job, if there is one. The first time, places are connected meanwhile.
pub(super) fn shortcut(cx: &CallContext, (from, to): (&'static Device, &'static Device), rect: Rect) -> Option<Shortcut> {
    let bytes = rect.width.saturating_mul(rect.rows);
    if from.index == to.index || bytes < MIN_BYTES || rect.rows > 1 && rect.width < MIN_ROW {
        return None;
    }
    let (first, second) = if from.index < to.index { (from, to) } else { (to, from) };
    let (pair, epochs) = ((first.index, second.index), (epoch(first), epoch(second)));
    if !is_open(cx, pair, epochs, [first, second]) {
        return None;
    }
    let (read, written) = parts((from, to), rect)?;
    let progress = Progress::default();
    let job = Job { from: cx.place(from).clone(), to: cx.place(to).clone(), read, written, progress: progress.clone() };
    Some(Shortcut { pair, epochs, job: Some(job), progress })
}

/// What each place reads or writes: parts of the same sizes, each in one chunk.
fn parts((from, to): (&'static Device, &'static Device), rect: Rect) -> Option<(Vec<Part>, Vec<Part>)> {
    let part = |address, end: End, width| Part { address, pitch: end.pitch, width, rows: rect.rows };
    if rect.rows > 1 {
        let whole = |home, end: End| {
            let bytes = end.span(rect.width, rect.rows).ok()?;
            let (address, there) = imports::chunk_address(home, end.address)?;
            (bytes <= there).then(|| vec![part(address, end, rect.width)])
        };
        return Some((whole(from, rect.src)?, whole(to, rect.dst)?));
    }
    let (mut read, mut written, mut at) = (Vec::new(), Vec::new(), 0);
    while at < rect.width {
        let (src, readable) = imports::chunk_address(from, rect.src.address + at)?;
        let (dst, writable) = imports::chunk_address(to, rect.dst.address + at)?;
        let width = (rect.width - at).min(readable).min(writable);
        read.push(part(src, rect.src, width));
        written.push(part(dst, rect.dst, width));
        at += width;
    }
    Some((read, written))
}

/// Returns whether the places are connected; begins to connect them if no thread does.
fn is_open(cx: &CallContext, pair: Pair, epochs: (u64, u64), devices: [&'static Device; 2]) -> bool {
    let mut links = lock(&LINKS);
    match links.get(&pair).filter(|link| link.epochs == epochs).map(|link| &link.state) {
        Some(State::Open(_)) => return true,
        Some(State::Connecting) => return false,
        Some(State::Failed(at)) if at.elapsed() < PAUSE => return false,
        Some(State::Failed(_)) | None => {}
    }
    // From now on no copies are at rest; those that are, the thread ends.
    peer::note_any();
    let places = devices.map(|d| cx.place(d).clone());
    links.insert(pair, Link { epochs, state: State::Connecting });
    if let Err(e) = spawn::spawn("mrcuda-peers", move || attend(pair, epochs, &places)) {
        tracing::debug!(target: "job", "cannot start a thread for copies between GPUs: {e}");
        links.insert(pair, Link { epochs, state: State::Failed(Instant::now()) });
    }
    false
}

/// Changes the state of a link, unless a device has moved.
fn set(pair: Pair, epochs: (u64, u64), state: State) {
    if let Some(link) = lock(&LINKS).get_mut(&pair).filter(|link| link.epochs == epochs) {
        link.state = state;
    }
}

/// The thread of a link.
fn attend(pair: Pair, epochs: (u64, u64), places: &[Place; 2]) {
    let between = format!("GPU {} and GPU {}", pair.0, pair.1);
    let (sender, jobs) = channel();
    let opened = random().and_then(|ticket| {
        let connected = connections::connect([&places[0], &places[1]], ticket).and_then(|by| finish_copies(places).map(|()| by));
        connected.map(|by| (ticket, by)).inspect_err(|_| end(places, ticket))
    });
    let (ticket, by) = match opened {
        Ok(opened) => opened,
        Err(why) => {
            tracing::debug!(target: "job", "no connection for copies between {between}: {why}");
            set(pair, epochs, State::Failed(Instant::now()));
            return;
        }
    };
    tracing::debug!(target: "job", "{between} are connected for copies by {by}");
    // If one of them has moved meanwhile, the sender is dropped, and nothing will come.
    set(pair, epochs, State::Open(sender));
    carry_all(&jobs, ticket, places, || set(pair, epochs, State::Failed(Instant::now())));
    end(places, ticket);
}

/// Waits for what was copied without a wait before [`peer::note_any`]: control requests do not.
fn finish_copies(places: &[Place; 2]) -> Result<(), MoveError> {
    let lost = |_| MoveError::PlaceLost(None);
    for place in places {
        let waiting = place.begin(id::STREAM_SYNC, &[&encode(&LANE)]).map_err(lost)?;
        if waiting.finish().0 != code::SUCCESS {
            return Err(MoveError::PlaceLost(None));
        }
    }
    Ok(())
}

fn end(places: &[Place; 2], ticket: [u8; 32]) {
    for place in places {
        // A lost place has closed them.
        let _ = place.control(&Control::EndLink { ticket });
    }
}

/// Makes copies until the table has no sender any more, or one has failed.
fn carry_all(jobs: &Receiver<Job>, ticket: [u8; 32], places: &[Place; 2], failed: impl FnOnce()) {
    for (number, job) in (0..).zip(jobs) {
        if let Err(why) = carry(&job, ticket, places, number) {
            tracing::debug!(target: "job", "a copy between places failed, and is made through the job: {why}");
            // First: no copy is sent to this thread any more. Those that were are dropped with the channel.
            failed();
            return;
        }
        let bytes: u64 = job.read.iter().map(|part| part.width * part.rows).sum();
        tracing::trace!(target: "job", "a copy of {bytes} bytes went from place to place");
        job.progress.store(DONE, Ordering::Release);
    }
}

/// Makes one copy: both ends at the same time. If one fails, the other is notified.
fn carry(job: &Job, ticket: [u8; 32], places: &[Place; 2], number: u64) -> Result<(), MoveError> {
    let ask = |place: &Place, part: &Control| {
        place.control(part).map(drop).map_err(MoveError::of_round).inspect_err(|_| end(places, ticket))
    };
    let (out, into) = (
        Control::PeerOut { ticket, number, parts: job.read.clone() },
        Control::PeerIn { ticket, number, parts: job.written.clone() },
    );
    std::thread::scope(|scope| {
        let other = spawn::scoped(scope, "mrcuda-peers", || ask(&job.from, &out)).map_err(MoveError::no_thread)?;
        let received = ask(&job.to, &into);
        let sent = other.join().unwrap_or_else(|_| Err(crate::internal_error::of_thread()));
        sent.and(received)
    })
}

/// Ends the links of devices that are about to move: no copy uses them. Their threads close the connections.
pub(crate) fn leave(moves: &[&'static Device]) {
    let moves = |index: u32| moves.iter().any(|d| d.index == index);
    lock(&LINKS).retain(|(first, second), _| !moves(*first) && !moves(*second));
}
