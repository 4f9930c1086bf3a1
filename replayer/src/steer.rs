//! Addresses: which ranges are ours, and how a loaded libcuda is made to use them.
//!
//! Kernels keep raw pointers, so after a move every address must be what it was (docs/design.md, "Addresses never change").
//! libcuda takes the addresses of what it places itself from `mmap`: this module answers that call (and `munmap`, and
//! `getenv`) in its place, by replacing the entries of the loaded library's global offset table. Nothing else of the process
//! is affected.
//!
//! For each virtual device there are three ranges:
//!
//! | range | from | what the hook does |
//! |---|---|---|
//! | own allocations | 0x2000_0000_0000 | lets the driver's reservation take the place of our placeholder |
//! | placed by the driver | 0x3000_0000_0000 | serves requests without an address made while [`Placing`], one after the other |
//! | scratch | 0x4800_0000_0000 | serves the driver's other large requests; never compared |
//!
//! Placeholders ([`hold_ranges`]) keep everybody else out of the first two. What the driver gives back of them becomes
//! placeholder again at once, so there is never a hole that others could fall into.

mod got;
mod hook;

pub(crate) use got::{Slots, patch};
pub(crate) use hook::{set_visible, use_device};

use std::cell::Cell;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of virtual devices.
pub const DEVICES: u32 = 32;
/// Bytes of a device's range of own allocations, and of its range for what the driver places.
pub const ARENA: u64 = 512 << 30;
const OWN: u64 = 0x2000_0000_0000;
const PLACED: u64 = 0x3000_0000_0000;
const SCRATCH: u64 = 0x4800_0000_0000;
const SCRATCH_BYTES: u64 = 64 << 30;

/// First address of a device's own allocations.
pub fn own_base(virtual_device: u32) -> u64 {
    OWN + u64::from(virtual_device) * ARENA
}

/// First address of what the driver places itself on a device.
pub fn placed_base(virtual_device: u32) -> u64 {
    PLACED + u64::from(virtual_device) * ARENA
}

/// State of one device's ranges. Only atomics: the hook runs inside libcuda, which may hold any lock.
#[derive(Debug)]
struct Ranges {
    /// Placeholders lie over the own and the placed range.
    held: AtomicBool,
    /// The driver's reservation is where the placeholder of the own range was.
    own_taken: AtomicBool,
    /// Bytes of the placed range that were ever given out.
    placed_next: AtomicU64,
    /// Bytes of the placed range that the driver has now.
    placed_out: AtomicU64,
    /// Bytes of the scratch range that were ever given out.
    scratch_next: AtomicU64,
}

static RANGES: [Ranges; DEVICES as usize] = [const {
    Ranges {
        held: AtomicBool::new(false),
        own_taken: AtomicBool::new(false),
        placed_next: AtomicU64::new(0),
        placed_out: AtomicU64::new(0),
        scratch_next: AtomicU64::new(0),
    }
}; DEVICES as usize];

fn ranges(virtual_device: u32) -> &'static Ranges {
    &RANGES[virtual_device as usize % DEVICES as usize]
}

const PLACEHOLDER: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Covers a range with a placeholder, if nothing lies in it.
fn hold(base: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: MAP_FIXED_NOREPLACE leaves alone whatever is mapped already.
    let at = unsafe {
        libc::mmap(base as *mut _, bytes as usize, libc::PROT_NONE, PLACEHOLDER | libc::MAP_FIXED_NOREPLACE, -1, 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if at as u64 != base {
        // An old kernel takes the flag for a hint.
        release(at as u64, bytes);
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(())
}

fn release(base: u64, bytes: u64) {
    // SAFETY: only for a mapping that was made just before and that nobody else knows.
    unsafe { libc::munmap(base as *mut _, bytes as usize) };
}

/// Puts placeholders over the ranges of a device whose addresses are compared, so that nothing else of this process can lie
/// there. Done once in a process for each device; later calls do nothing.
///
/// # Errors
/// `InvalidInput` for a device that does not exist; what the system says when a range is not free or there is no address
/// space for it (`ulimit -v`).
pub fn hold_ranges(virtual_device: u32) -> io::Result<()> {
    static HOLDING: Mutex<()> = Mutex::new(());
    if virtual_device >= DEVICES {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let _one = HOLDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let state = ranges(virtual_device);
    if state.held.load(Ordering::Acquire) {
        return Ok(());
    }
    hold(own_base(virtual_device), ARENA)?;
    if let Err(e) = hold(placed_base(virtual_device), ARENA) {
        release(own_base(virtual_device), ARENA);
        return Err(e);
    }
    state.held.store(true, Ordering::Release);
    Ok(())
}

/// Begins the placed range anew, for a context without history. False if the driver still has parts of it: what it places
/// next would then not lie where it lies in a fresh process.
pub(crate) fn begin_anew(virtual_device: u32) -> bool {
    let state = ranges(virtual_device);
    if state.placed_out.load(Ordering::Acquire) != 0 {
        return false;
    }
    state.placed_next.store(0, Ordering::Release);
    true
}

/// Whether both compared ranges are placeholders through and through.
pub fn is_free(virtual_device: u32) -> bool {
    let state = ranges(virtual_device);
    !state.own_taken.load(Ordering::Acquire) && state.placed_out.load(Ordering::Acquire) == 0
}

thread_local! {
    /// 1 + the virtual device for which this thread is inside a call that places memory; 0 outside.
    static PLACING: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, what the driver asks for on this thread goes to the placed range of a device.
#[derive(Debug)]
pub(crate) struct Placing(u32);

impl Placing {
    /// Enters a placing call on this thread.
    pub(crate) fn enter(virtual_device: u32) -> Placing {
        Placing(PLACING.replace(virtual_device + 1))
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        PLACING.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_held_once_and_keep_others_out() {
        assert!(hold_ranges(DEVICES).is_err());
        hold_ranges(29).expect("address space");
        hold_ranges(29).expect("again");
        assert_eq!(hold(own_base(29) + (1 << 30), 4096).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert!(is_free(29));
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
