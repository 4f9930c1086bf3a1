//! Optional statistics of the calls and bytes sent to places, and of the answers that the program waits for, by call.

use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Statistics of one kind of call.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Number of calls sent.
    pub calls: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Answers that a thread waited for; each is a round trip.
    pub waits: u64,
    /// Bytes of large copies that connections of their own have carried.
    pub carried: u64,
    /// Bytes of large copies that passed through memory which the worker maps too.
    pub mapped: u64,
}

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static COUNTED: Mutex<BTreeMap<u16, Traffic>> = Mutex::new(BTreeMap::new());

/// Starts counting for all links of this process.
pub fn count_traffic() {
    IS_COUNTED.store(true, Ordering::Relaxed);
}

/// The statistics, by row or operation.
pub fn traffic() -> BTreeMap<u16, Traffic> {
    lock(&COUNTED).clone()
}

#[inline]
fn count(id: u16, change: impl FnOnce(&mut Traffic)) {
    if IS_COUNTED.load(Ordering::Relaxed) {
        change(lock(&COUNTED).entry(id).or_default());
    }
}

#[inline]
pub(crate) fn sent(id: u16, parts: &[&[u8]]) {
    count(id, |t| {
        t.calls += 1;
        t.bytes += parts.iter().map(|p| p.len() as u64).sum::<u64>();
    });
}

#[inline]
pub(crate) fn waited(id: u16) {
    count(id, |t| t.waits += 1);
}

#[inline]
pub(crate) fn carried(id: u16, bytes: u64, mapped: bool) {
    count(id, |t| *(if mapped { &mut t.mapped } else { &mut t.carried }) += bytes);
}
