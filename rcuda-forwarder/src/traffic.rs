//! What travels to places, counted by call where somebody wants to know: how many calls and bytes a program sends, and for how many
//! answers it waits.

use crate::lock::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of one kind of call.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// How many were handed over.
    pub calls: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Answers that a thread has waited for: each is a round trip.
    pub waits: u64,
}

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static COUNTED: Mutex<BTreeMap<u16, Traffic>> = Mutex::new(BTreeMap::new());

/// From now on all links of this process are counted.
pub fn count_traffic() {
    IS_COUNTED.store(true, Ordering::Relaxed);
}

/// What was counted, by row or operation.
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
