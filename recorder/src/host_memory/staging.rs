//! Page-locked memory of the recorder's own that a place of this machine shares: large copies of pageable memory go through it.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::job::Device;
use crate::pinned::blocks::{BLOCKS, Block, CHANGING, Kind, Known, map, number};
use crate::pinned::naming;
use cuda_api::lock::wait_timeout_while;
use cuda_api::ops::Slab;
use executor::bulk::{Look, copy_memory};
use executor::host_rows::HostRows;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Bytes of one half: one is filled or emptied while the GPU has the other.
pub(crate) const HALF: u64 = 8 << 20;
/// Copies that can go through such memory at a time: as many as threads copy at most.
const SETS: usize = 8;
/// How long a copy waits for slots if no other copy gives any back: those may wait for what the program does next.
const PATIENCE: Duration = Duration::from_millis(20);

/// Two halves, of [`HALF`] bytes each, that one copy has at a time.
#[derive(Debug)]
pub(crate) struct Slots {
    at: u64,
    block: Block,
}

/// Those that no copy has, and how many there are.
static FREE: Mutex<(Vec<Slots>, usize)> = Mutex::new((Vec::new(), 0));
/// Signals that a copy has given some back.
static RELEASED: Condvar = Condvar::new();

impl Slots {
    /// The address of a half.
    pub(crate) fn half(&self, second: bool) -> u64 {
        self.at + if second { HALF } else { 0 }
    }

    /// Copies one row of the program's memory, which has been touched, to a half that no GPU uses now, and looks at the bytes: whether
    /// anything was found.
    pub(crate) fn take_in(&self, second: bool, from: HostRows, look: Look<'_>, threads: Option<usize>) -> bool {
        let bytes = in_a_half(&from);
        // SAFETY: the row is valid; one copy has the half at a time.
        unsafe { copy_memory(from.address(), self.half(second), bytes, look, threads) }
    }

    /// Copies what a GPU has written to a half to one row of the program's memory, which has been touched.
    pub(crate) fn put_out(&self, second: bool, to: HostRows, threads: Option<usize>) {
        let bytes = in_a_half(&to);
        // SAFETY: as above.
        unsafe { copy_memory(self.half(second), to.address(), bytes, &|_| false, threads) };
    }

    /// The first bytes of a half that no GPU writes now.
    pub(crate) fn bytes(&self, second: bool, bytes: u64) -> &[u8] {
        // SAFETY: a half has as many, and one copy has it at a time.
        unsafe { std::slice::from_raw_parts(self.half(second) as *const u8, bytes.min(HALF) as usize) }
    }

    /// Lets the device's place use it. False where that has no such memory in common with this process, or no room for it.
    pub(crate) fn reach(&self, cx: &CallContext, device: &'static Device) -> bool {
        let place = cx.place(device);
        if !place.maps_file() {
            return false;
        }
        if place.has_pinned(self.at) {
            return true;
        }
        // SAFETY: this memory never goes.
        let Ok(span) = (unsafe { place.pin(self.at, &self.block) }) else { return false };
        // The GPU has nothing more to do.
        device.still_quiet(span);
        true
    }
}

/// Bytes of the row of a part.
///
/// # Panics
/// If it is more than a half, or several rows.
fn in_a_half(row: &HostRows) -> usize {
    assert!(row.is_one() && row.width() <= HALF, "{row:?} for a half");
    row.width() as usize
}

/// Slots for one copy, if there are any.
pub(crate) fn take_slots() -> Option<Slots> {
    let mut free = lock(&FREE);
    if let Some(slots) = free.0.pop() {
        return Some(slots);
    }
    if free.1 == SETS {
        return None;
    }
    // While places map other memory, which takes long, no copy waits for this: there are other ways.
    let _changing = CHANGING.try_lock().ok()?;
    let (at, filed) = map(&lock(&BLOCKS), 2 * HALF).ok()?;
    // Of no device: it stays when a context ends.
    let slab = Slab::default();
    let block = Block {
        bytes: 2 * HALF,
        flags: 0,
        kind: Kind::Staging,
        filed,
        slab,
        exclusive: false,
        device: u32::MAX,
        id: number(),
        known: Known::Hidden,
    };
    naming::add(at, block);
    // Where the memory file cannot grow no place shares it, and no further attempt is made.
    free.1 = if filed { free.1 + 1 } else { SETS };
    filed.then_some(Slots { at, block })
}

/// Waits for slots that other copies have. False if there are none before long.
pub(crate) fn await_slots() -> bool {
    let (free, _) = wait_timeout_while(&RELEASED, lock(&FREE), PATIENCE, |free| free.0.is_empty() && free.1 == SETS);
    !free.0.is_empty()
}

/// Takes slots back, which no place uses any more.
pub(crate) fn release_slots(slots: Slots) {
    lock(&FREE).0.push(slots);
    RELEASED.notify_one();
}
