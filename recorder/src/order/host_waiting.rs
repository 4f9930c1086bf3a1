//! Tracks kernels that may wait for the host, launched directly or by a graph: they received the address of host memory, in which the
//! program may set a flag.
//!
//! The source of a host-to-device copy behind such a kernel must be read when the stream reaches the copy, since the program may write it
//! after the call (docs/consistency.md). A kernel that finds the address elsewhere than in its parameters is not recognized.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::job::Device;
use crate::order::delay;
use crate::pinned::naming;
use crate::place::Place;
use cuda_api::ops::id;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The last such kernel of a stream.
struct Kernel {
    device: u32,
    /// The epoch in which it was launched.
    epoch: u64,
    stream: u64,
    /// Its end position in the order of that epoch's place.
    position: u64,
    /// Streams that have since waited for an event.
    followers: Vec<u64>,
}

static KERNELS: Mutex<Vec<Kernel>> = Mutex::new(Vec::new());
/// Length of the list at its last update.
#[unsafe(link_section = "mrcuda_hot")]
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// From this length on, completed kernels are removed before another one is added.
const MANY: usize = 64;

fn drop_past(all: &mut Vec<Kernel>, device: &Device) {
    let now = device.epoch.load(Ordering::Relaxed);
    all.retain(|k| k.device != device.index || k.epoch == now && !device.is_past(k.stream, k.position));
    COUNT.store(all.len(), Ordering::Release);
}

/// Returns whether a kernel with these parameters may wait for the host.
pub(crate) fn may_wait(params: &[u8]) -> bool {
    naming::any_mapped() && naming::may_be_named(params)
}

/// Records that such a kernel, or a graph with one, was sent to a worker, and its end position in the order.
pub(crate) fn note(device: &Device, stream: u64, position: Option<u64>) {
    let Some(position) = position else { return };
    let epoch = device.epoch.load(Ordering::Relaxed);
    let mut all = lock(&KERNELS);
    if all.len() >= MANY {
        drop_past(&mut all, device);
    }
    match all.iter_mut().find(|k| (k.device, k.epoch, k.stream) == (device.index, epoch, stream)) {
        // Threads that share a stream may arrive here in another order than they submitted their work.
        Some(k) => k.position = k.position.max(position),
        None => all.push(Kernel { device: device.index, epoch, stream, position, followers: Vec::new() }),
    }
    COUNT.store(all.len(), Ordering::Release);
}

/// A stream is about to be destroyed and will not be queried again, so its kernel is forgotten when it is complete.
pub(crate) fn stream_ends(cx: &CallContext, device: &'static Device, stream: u64) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let epoch = device.epoch.load(Ordering::Relaxed);
    let is_its = move |k: &Kernel| (k.device, k.epoch, k.stream) == (device.index, epoch, stream);
    let Place::Remote { link, .. } = cx.place(device) else { return };
    // The stream stays in the list of followers: its work continues, and the default stream's work follows it.
    let Some(position) = lock(&KERNELS).iter().find(|k| is_its(k)).map(|k| k.position) else { return };
    let forget = move || {
        let mut all = lock(&KERNELS);
        // Keep a later kernel than the one that was waited for: the stream may not have been destroyed after all.
        all.retain(|k| !is_its(k) || k.position != position);
        COUNT.store(all.len(), Ordering::Release);
    };
    let done = move |_| forget();
    if link.request_then(id::STREAM_SYNC, &[&stream.to_le_bytes()], done).is_err() {
        // A lost place does no work.
        forget();
    }
}

/// Records that a stream waits for an event: its next work may follow kernels of other streams.
pub(crate) fn follows_event(device: &Device, stream: u64) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut all = lock(&KERNELS);
    drop_past(&mut all, device);
    for k in all.iter_mut().filter(|k| k.device == device.index && !k.followers.contains(&stream)) {
        k.followers.push(stream);
    }
}

/// Returns whether the next work of a stream may have to wait for such a kernel. In-process, copies are up to the driver.
pub(crate) fn holds(cx: &CallContext, device: &'static Device, stream: u64) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 || matches!(cx.place(device), Place::Local { .. }) {
        return false;
    }
    let mut all = lock(&KERNELS);
    drop_past(&mut all, device);
    // Work of the default stream may stand between that of two streams that wait for it.
    let by_default = delay::follows_default(cx, stream);
    let behind =
        |k: &Kernel| [k.stream].iter().chain(&k.followers).any(|s| *s == stream || by_default && delay::follows_default(cx, *s));
    all.iter().any(|k| k.device == device.index && behind(k))
}
