//! Copies whose bytes are sent to host memory as answers, and the fences that hold other work behind them.
//!
//! A place that does not share the destination of a copy sends the bytes, and the GPU continues meanwhile. The effects of its next work
//! may be visible before they have landed: a flag in memory that the place shares, or whose changes it sends in other messages. So work
//! that follows such a copy in its stream, or may follow it, is held by a *fence*: the place answers it, after the bytes, when the stream
//! has got there, and the stream continues when this process has confirmed that they have arrived (docs/consistency.md). A fence is
//! requested only where the program could observe the difference ([`is_seen`]), and only while bytes are under way.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::base::spawn;
use crate::device_memory::shared_handles;
use crate::enter::CallContext;
use crate::job::Device;
use crate::pinned::{blocks, naming};
use crate::place::{Place, lost};
use cuda_api::arg::LEGACY;
use cuda_api::code::{self, Code};
use cuda_api::ops::{FENCE, HOLD, StreamHold, id};
use rcuda_forwarder::{Link, Reply};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Poll interval for copies that have not landed.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Number of copies from which on those that have landed are removed.
const MANY: usize = 16;

/// How the arrival of the bytes is detected.
pub(crate) enum Arrival {
    /// By the answer that contains them.
    Reply(Reply),
    /// By a flag that the writer sets.
    Flag(Arc<AtomicBool>),
}

impl Arrival {
    fn has_come(&self) -> bool {
        match self {
            Arrival::Reply(r) => r.is_here(),
            Arrival::Flag(f) => f.load(Ordering::Acquire),
        }
    }
}

/// A copy whose bytes may not have landed.
struct Landing {
    device: u32,
    stream: u64,
    to: Range<u64>,
    arrival: Arrival,
    /// Other streams whose next work may follow it, because they have since waited for an event.
    followers: Vec<u64>,
    /// Streams whose next work is already held behind it.
    fenced: Vec<u64>,
    /// Whether the place itself holds the stream until the bytes have landed.
    held: bool,
}

impl Landing {
    /// Returns whether the next work of a stream may follow the copy and is not held yet. A place that `mirrors` host memory must get the
    /// bytes back once they have landed, before work that may use them there.
    fn concerns(&self, device: u32, stream: u64, any_stream: bool, mirrors: bool) -> bool {
        // The default stream follows most others, and they follow it.
        let follows = any_stream || self.stream == stream || self.stream == LEGACY || stream == LEGACY;
        (mirrors || !self.held)
            && self.device == device
            && (follows || self.followers.contains(&stream))
            && !self.fenced.contains(&stream)
    }
}

static LANDINGS: Mutex<Vec<Landing>> = Mutex::new(Vec::new());
/// Length of the list at its last update.
#[unsafe(link_section = "mrcuda_hot")]
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs `update` on the copies that have not landed.
fn with_landings<T>(update: impl FnOnce(&mut Vec<Landing>) -> T) -> T {
    let mut all = lock(&LANDINGS);
    all.retain(|l| !l.arrival.has_come());
    let result = update(&mut all);
    COUNT.store(all.len(), Ordering::Release);
    result
}

/// Notes a copy of a stream whose bytes will land in this memory.
pub(crate) fn note(device: &Device, stream: u64, to: Range<u64>, arrival: Arrival) {
    add(Landing { device: device.index, stream, to, arrival, followers: Vec::new(), fenced: Vec::new(), held: false });
}

/// As [`note`], for a copy behind which the place holds the stream until its bytes have landed. When it was submitted the place did not
/// mirror its destination.
pub(crate) fn note_held(device: &Device, stream: u64, to: Range<u64>, arrival: Arrival) {
    add(Landing { device: device.index, stream, to, arrival, followers: Vec::new(), fenced: Vec::new(), held: true });
}

fn add(landing: Landing) {
    let mut all = lock(&LANDINGS);
    if all.len() >= MANY {
        all.retain(|l| !l.arrival.has_come());
    }
    all.push(landing);
    COUNT.store(all.len(), Ordering::Release);
}

/// Returns whether a copy to this host memory is under way.
pub(crate) fn any_to(address: u64, bytes: u64) -> bool {
    COUNT.load(Ordering::Acquire) != 0
        && with_landings(|all| all.iter().any(|l| l.to.start < address + bytes && address < l.to.end))
}

/// Waits until no copy to this host memory is under way.
pub(crate) fn wait_for(address: u64, bytes: u64) {
    while any_to(address, bytes) {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A stream waits for an event: its next work may follow copies of other streams.
pub(crate) fn follows_event(device: &Device, stream: u64) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    with_landings(|all| {
        for l in all.iter_mut().filter(|l| l.device == device.index) {
            // The wait may be for work that was held on behalf of this stream: another fence does no harm.
            l.fenced.retain(|s| *s != stream);
            if !l.followers.contains(&stream) {
                l.followers.push(stream);
            }
        }
    });
}

/// Returns whether an observer could see the effects of the GPU's next work before the bytes of a copy have landed: by flags in host
/// memory that GPUs use by its address or that the place shares, or in another process by shared events and memory.
pub(crate) fn is_seen(place: &Place) -> bool {
    place.maps_file() && blocks::any_in_arena() || naming::any_mapped() || shared_handles::any()
}

/// Must be called before work is sent: holds the stream until the copies that the work follows have landed.
pub(crate) fn before_work(cx: &CallContext, device: &'static Device, stream: u64) -> Result<(), Code> {
    if COUNT.load(Ordering::Acquire) == 0 { Ok(()) } else { hold_back(cx, device, stream, false) }
}

/// As [`before_work`], for a copy whose bytes travel another way than those of the copies that it follows. They could overtake these: its
/// destination would show it, or its source would be read before it is written.
pub(crate) fn before_other_copy(cx: &CallContext, device: &'static Device, stream: u64) -> Result<(), Code> {
    if COUNT.load(Ordering::Acquire) == 0 { Ok(()) } else { hold_behind(cx, device, stream, false) }
}

/// As [`before_work`], for work that may follow any stream: a graph can wait for events.
pub(crate) fn before_graph(cx: &CallContext, device: &'static Device, stream: u64) -> Result<(), Code> {
    if COUNT.load(Ordering::Acquire) == 0 { Ok(()) } else { hold_back(cx, device, stream, true) }
}

/// Must be called before an event for which other processes wait is recorded: they may also read host memory that they share.
pub(crate) fn before_shared_event(cx: &CallContext, device: &'static Device, stream: u64) -> Result<(), Code> {
    if cx.place(device).has_apart() { fence(cx, device, stream, || ()) } else { before_work(cx, device, stream) }
}

#[cold]
fn hold_back(cx: &CallContext, device: &'static Device, stream: u64, any_stream: bool) -> Result<(), Code> {
    if is_seen(cx.place(device)) { hold_behind(cx, device, stream, any_stream) } else { Ok(()) }
}

#[cold]
fn hold_behind(cx: &CallContext, device: &'static Device, stream: u64, any_stream: bool) -> Result<(), Code> {
    let mirrors = cx.place(device).has_apart();
    let any = with_landings(|all| {
        let concerned = all.iter_mut().filter(|l| l.concerns(device.index, stream, any_stream, mirrors));
        concerned.map(|l| l.fenced.push(stream)).count() > 0
    });
    if any { fence(cx, device, stream, || ()) } else { Ok(()) }
}

/// A fence that the place has answered: the effects of everything before it are in this process's memory.
struct Passed {
    link: Arc<Link>,
    token: u64,
    /// Whether the stream waits there for this process; it does not if the place has refused the fence.
    held: bool,
    then: Box<dyn FnOnce() + Send>,
}

/// The thread that releases held streams. Threads that receive answers must not wait for space in the ring.
fn thread() -> Result<&'static Sender<Passed>, Code> {
    static THREAD: OnceLock<Option<Sender<Passed>>> = OnceLock::new();
    let start = || {
        let (sender, arrivals) = channel::<Passed>();
        let attend = move || {
            for passed in arrivals {
                (passed.then)();
                if passed.held {
                    // Changes of this process are sent before. A lost worker holds nothing.
                    let _ = passed.link.send(id::HOST_DONE, &[&passed.token.to_le_bytes()]);
                }
            }
        };
        let started = spawn::spawn("mrcuda-fence", attend);
        started.inspect_err(|e| tracing::warn!(target: "job", "cannot start a thread for fences: {e}")).ok().map(|()| sender)
    };
    THREAD.get_or_init(start).as_ref().ok_or(code::ERROR_OPERATING_SYSTEM)
}

/// Releases what a place holds for a token, from a recorder thread.
pub(crate) fn let_go(link: Arc<Link>, token: u64) {
    if let Ok(thread) = thread() {
        // The thread lives as long as the process.
        let _ = thread.send(Passed { link, token, held: true, then: Box::new(|| ()) });
    }
}

/// Holds a stream until the effects of its earlier work are in this process's memory, and this process's changes up to then are at the
/// place. `then` is called at that moment. Does nothing for a place in this process, which shares its memory.
pub(crate) fn fence(
    cx: &CallContext,
    device: &'static Device,
    stream: u64,
    then: impl FnOnce() + Send + 'static,
) -> Result<(), Code> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let Place::Remote { link, .. } = cx.place(device) else {
        then();
        return Ok(());
    };
    let thread = thread()?;
    let token = HOLD | FENCE | NEXT.fetch_add(1, Ordering::Relaxed);
    let to = link.clone();
    let answered = move |answer: Result<(Code, Vec<u8>), _>| {
        let rc = answer.map_or_else(lost, |(rc, _)| rc);
        device.failed_late(id::STREAM_FENCE, rc);
        // The thread lives as long as the process.
        let _ = thread.send(Passed { link: to, token, held: rc == code::SUCCESS, then: Box::new(then) });
    };
    device.record_error(link.request_then(id::STREAM_FENCE, &[&encode(&StreamHold { token, stream })], answered).map_err(lost))
}

#[cfg(test)]
mod tests;
