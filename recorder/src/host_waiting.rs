//! Kernels that may wait for the program: they were given the address of host memory, in which the program may set a flag.
//!
//! What is copied from the host's memory behind such a kernel must be read when the stream gets there, since the program may write it after
//! the call (docs/consistency.md). A kernel that finds the address elsewhere than among its parameters is not known to wait.

use crate::enter::Entered;
use crate::host_memory;
use crate::job::Device;
use crate::log::lock;
use crate::place::Place;
use cuda_api::arg::LEGACY;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The last such kernel of a stream.
struct Kernel {
    device: u32,
    /// The place that it was given to.
    epoch: u64,
    stream: u64,
    /// Where it ends in the order of that place.
    position: u64,
    /// Streams that have waited for an event since.
    followers: Vec<u64>,
}

static KERNELS: Mutex<Vec<Kernel>> = Mutex::new(Vec::new());
/// How many there are, as of the last look at the list.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// From so many on those that are done are dropped before another one is added.
const MANY: usize = 64;

fn drop_past(all: &mut Vec<Kernel>, device: &Device) {
    let now = device.epoch.load(Ordering::Relaxed);
    all.retain(|k| k.device != device.index || k.epoch == now && !device.is_past(k.stream, k.position));
    COUNT.store(all.len(), Ordering::Release);
}

/// Takes note of a kernel with these parameters that was handed over to a worker, up to a position in its order.
pub(crate) fn note(device: &Device, stream: u64, position: Option<u64>, params: &[u8]) {
    let Some(position) = position else { return };
    if !host_memory::any_mapped() || !host_memory::may_be_named(params) {
        return;
    }
    let epoch = device.epoch.load(Ordering::Relaxed);
    let mut all = lock(&KERNELS);
    if all.len() >= MANY {
        drop_past(&mut all, device);
    }
    match all.iter_mut().find(|k| (k.device, k.epoch, k.stream) == (device.index, epoch, stream)) {
        Some(k) => k.position = position,
        None => all.push(Kernel { device: device.index, epoch, stream, position, followers: Vec::new() }),
    }
    COUNT.store(all.len(), Ordering::Release);
}

/// A stream waits for an event: its next work may follow kernels of other streams.
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

/// Whether the next work of a stream may have to wait for such a kernel. In a place of this process copies are the driver's.
pub(crate) fn holds(cx: &Entered, device: &'static Device, stream: u64) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 || matches!(cx.place(device), Place::Local { .. }) {
        return false;
    }
    let mut all = lock(&KERNELS);
    drop_past(&mut all, device);
    let behind = |k: &Kernel| k.stream == stream || k.stream == LEGACY || stream == LEGACY || k.followers.contains(&stream);
    all.iter().any(|k| k.device == device.index && behind(k))
}
