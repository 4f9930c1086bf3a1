//! Address control: which ranges belong to the job, and how a loaded libcuda is made to use them.
//!
//! Kernels hold raw pointers, so after a move every address must be the same as before (docs/memory.md, "Addresses"). libcuda obtains the
//! addresses of its own placements from `mmap`. This module intercepts that call (and `munmap`, `getenv` and `__cxa_atexit`) by replacing
//! the entries of the loaded library's global offset table. The rest of the process is not affected.
//!
//! Each virtual device has three ranges:
//!
//! | range | from | what the hook does |
//! |---|---|---|
//! | own allocations | [`OWN`](cuda_api::address_map::OWN) | lets the driver's reservation replace our placeholder |
//! | placed by the driver | [`PLACED`](cuda_api::address_map::PLACED) | serves, in increasing order, requests without an address made while [`Placing`] |
//! | scratch | [`SCRATCH`](cuda_api::address_map::SCRATCH) | serves the driver's other large requests; never compared |
//!
//! During a move the memory of another place is mapped at [`VIEW`](cuda_api::address_map::VIEW), if that range is free; for copies between the GPUs of a job, at
//! [`IMPORTS`](cuda_api::address_map::IMPORTS).
//!
//! Placeholders ([`hold_ranges`]) keep the first two ranges free of other mappings. What the driver unmaps there becomes placeholder
//! again at once, so that no other mapping can be placed there.

mod exits;
mod got;
mod hook;
mod text;

pub use exits::{keep_exit_handlers, run_exit_handlers};
pub(crate) use got::patch;
pub(crate) use hook::{set_visible, use_device};
pub use text::{TextSink, catch_text};

use cuda_api::address_map::{ARENA, DEVICES, own_base, placed_base};
use cuda_api::lock::lock;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Smaller requests are for the driver's own bookkeeping: device addresses are multiples of this size.
const SMALLEST: u64 = 2 << 20;

// Values of `Ranges::held`.
/// No placeholders are held.
const NOT: u8 = 0;
/// The placeholders are held but temporarily removed.
const LIFTED: u8 = 1;
/// Placeholders cover everything that the driver does not use.
const HELD: u8 = 2;

/// State of one device's ranges. It consists of atomics because the hook runs inside libcuda, which may hold any lock.
#[derive(Debug)]
struct Ranges {
    /// One of [`NOT`], [`LIFTED`], [`HELD`].
    held: AtomicU8,
    /// Whether the driver's reservation has replaced the placeholder of the own range.
    own_taken: AtomicBool,
    /// Bytes of the placed range that were ever assigned, and that the driver uses now.
    placed_next: AtomicU64,
    placed_out: AtomicU64,
    /// The values of these two when the driver had been started and no context existed yet.
    started_next: AtomicU64,
    started_out: AtomicU64,
    /// Bytes of the scratch range that were ever assigned.
    scratch_next: AtomicU64,
}

static RANGES: [Ranges; DEVICES as usize] = [const {
    Ranges {
        held: AtomicU8::new(NOT),
        own_taken: AtomicBool::new(false),
        placed_next: AtomicU64::new(0),
        placed_out: AtomicU64::new(0),
        started_next: AtomicU64::new(0),
        started_out: AtomicU64::new(0),
        scratch_next: AtomicU64::new(0),
    }
}; DEVICES as usize];

fn ranges(virtual_device: u32) -> &'static Ranges {
    &RANGES[virtual_device as usize % DEVICES as usize]
}

const PLACEHOLDER: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Covers a range with a placeholder, if nothing is mapped in it.
fn hold(base: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: MAP_FIXED_NOREPLACE does not replace existing mappings.
    let at =
        unsafe { libc::mmap(base as *mut _, bytes as usize, libc::PROT_NONE, PLACEHOLDER | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if at as u64 != base {
        // An old kernel treats the flag as a hint.
        release(at as u64, bytes);
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(())
}

fn release(base: u64, bytes: u64) {
    // SAFETY: called only for placeholders that `hold` mapped.
    unsafe { libc::munmap(base as *mut _, bytes as usize) };
}

/// Locks the right to change placeholders.
fn changing() -> MutexGuard<'static, ()> {
    static CHANGING: Mutex<()> = Mutex::new(());
    lock(&CHANGING)
}

/// Maps the placeholders of a device wherever the driver has nothing.
fn hold_device(virtual_device: u32) -> io::Result<()> {
    let state = ranges(virtual_device);
    hold(own_base(virtual_device), ARENA)?;
    // The driver's part of the placed range is at its start.
    let used = state.placed_next.load(Ordering::Acquire).next_multiple_of(SMALLEST);
    if let Err(e) = hold(placed_base(virtual_device) + used, ARENA - used) {
        release(own_base(virtual_device), ARENA);
        return Err(e);
    }
    state.held.store(HELD, Ordering::Release);
    Ok(())
}

/// Covers the ranges of a device whose addresses are compared with placeholders, so that nothing else of this process is mapped there.
/// Done once in a process for each device; later calls have no effect.
///
/// # Errors
/// `InvalidInput` for a device that does not exist; the system's error if a range is not free or there is no address space for it
/// (`ulimit -v`).
pub fn hold_ranges(virtual_device: u32) -> io::Result<()> {
    if virtual_device >= DEVICES {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let _one = changing();
    if ranges(virtual_device).held.load(Ordering::Acquire) != NOT {
        return Ok(());
    }
    hold_device(virtual_device)
}

/// Runs `f` with all placeholders removed, except those of ranges in use. There must be none while a driver starts: it records existing
/// mappings and permanently avoids them (docs/migration.md, "Preparing a place").
///
/// # Errors
/// The system's error if a placeholder cannot be restored.
pub(crate) fn without_placeholders<T>(f: impl FnOnce() -> T) -> io::Result<T> {
    let _one = changing();
    let mut lifted = Vec::new();
    for device in 0..DEVICES {
        let state = ranges(device);
        if state.held.load(Ordering::Acquire) == HELD && is_untouched(state) {
            state.held.store(LIFTED, Ordering::Release);
            release(own_base(device), ARENA);
            release(placed_base(device), ARENA);
            lifted.push(device);
        }
    }
    let result = f();
    lifted.into_iter().try_for_each(hold_device)?;
    Ok(result)
}

fn is_untouched(state: &Ranges) -> bool {
    !state.own_taken.load(Ordering::Acquire) && state.placed_next.load(Ordering::Acquire) == 0
}

/// Notes that the driver has been started for this device: what it has mapped by now it never unmaps.
pub(crate) fn started(virtual_device: u32) {
    let state = ranges(virtual_device);
    state.started_next.store(state.placed_next.load(Ordering::Acquire), Ordering::Release);
    state.started_out.store(state.placed_out.load(Ordering::Acquire), Ordering::Release);
}

/// Resets the placed range to its state after the driver's start, for a context without history. Returns false if the driver still uses
/// parts of it from a context: its next placements would then differ from those in a fresh process.
pub(crate) fn begin_anew(virtual_device: u32) -> bool {
    let state = ranges(virtual_device);
    if state.placed_out.load(Ordering::Acquire) != state.started_out.load(Ordering::Acquire) {
        return false;
    }
    state.placed_next.store(state.started_next.load(Ordering::Acquire), Ordering::Release);
    true
}

/// Restores the placeholder of own allocations if the driver has unmapped the range unnoticed.
pub(crate) fn hold_own_again(virtual_device: u32) {
    let state = ranges(virtual_device);
    if state.own_taken.load(Ordering::Acquire) && hold(own_base(virtual_device), ARENA).is_ok() {
        state.own_taken.store(false, Ordering::Release);
    }
}

/// Returns whether no context has anything in the compared ranges of a device.
pub fn is_free(virtual_device: u32) -> bool {
    let state = ranges(virtual_device);
    !state.own_taken.load(Ordering::Acquire)
        && state.placed_out.load(Ordering::Acquire) == state.started_out.load(Ordering::Acquire)
}

thread_local! {
    /// 1 + the virtual device for which this thread is inside a call that places memory; 0 otherwise.
    static PLACING: Cell<u32> = const { Cell::new(0) };
}

/// While this guard lives, the driver's mappings on this thread are placed in the placed range of a device.
#[derive(Debug)]
pub(crate) struct Placing(u32);

impl Placing {
    /// Begins a placing call on this thread.
    pub(crate) fn enter(virtual_device: u32) -> Placing {
        Placing(PLACING.replace(virtual_device + 1))
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        PLACING.set(self.0);
    }
}

/// Serializes tests that use the ranges: removing placeholders affects the whole process.
#[cfg(test)]
static TURN: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_held_once_and_keep_others_out() {
        let _turn = TURN.lock();
        assert!(hold_ranges(DEVICES).is_err());
        hold_ranges(29).expect("address space");
        hold_ranges(29).expect("again");
        assert_eq!(hold(own_base(29) + (1 << 30), 4096).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert!(is_free(29));
    }

    #[test]
    fn placeholders_are_lifted_and_put_back() {
        let _turn = TURN.lock();
        hold_ranges(24).expect("address space");
        let probe = own_base(24) + (5 << 30);
        without_placeholders(|| {
            hold(probe, 4096).expect("nothing lies there");
            release(probe, 4096);
        })
        .expect("put back");
        assert!(hold(probe, 4096).is_err());
    }

    #[test]
    fn placing_nests() {
        assert_eq!(PLACING.get(), 0);
        let outer = Placing::enter(3);
        {
            let _inner = Placing::enter(5);
            assert_eq!(PLACING.get(), 6);
        }
        assert_eq!(PLACING.get(), 4);
        drop(outer);
        assert_eq!(PLACING.get(), 0);
    }
}
