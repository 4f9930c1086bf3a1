//! The replacements for `mmap`, `munmap` and `getenv` in libcuda.
//!
//! They run inside the driver, on any thread and with any lock held, so they do not allocate, lock or panic.

use super::{HELD, NOT, PLACEHOLDER, PLACING, Ranges, SMALLEST, ranges};
use cuda_api::address_map::{ARENA, DEVICES, OWN, PLACED, SCRATCH, SCRATCH_BYTES};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Requests of at least this size are aligned to it, smaller ones to [`SMALLEST`]: the driver then need not request more to get an
/// aligned range.
const COARSE: u64 = 1 << 30;
/// How many scratch addresses are tried if they turn out to be in use.
const TRIES: u32 = 64;

/// Virtual device of the executor opened last; its scratch range serves the driver's threads.
static DEVICE: AtomicU32 = AtomicU32::new(0);
/// The value that libcuda gets for `CUDA_VISIBLE_DEVICES`; null: that of the environment.
static VISIBLE: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Selects the device whose scratch range serves requests from the driver's threads.
pub(crate) fn use_device(virtual_device: u32) {
    DEVICE.store(virtual_device, Ordering::Relaxed);
}

/// Sets the value that libcuda reads for `CUDA_VISIBLE_DEVICES`. The text is static because the driver may keep the pointer.
pub(crate) fn set_visible(text: &'static CStr) {
    VISIBLE.store(text.as_ptr().cast_mut(), Ordering::Release);
}

/// Assigns `len` bytes of a range; returns their offset, if there is room.
fn take(next: &std::sync::atomic::AtomicU64, len: u64, limit: u64) -> Option<u64> {
    let align = if len >= COARSE { COARSE } else { SMALLEST };
    let mut at = 0;
    next.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
        at = used.checked_next_multiple_of(align)?;
        at.checked_add(len).filter(|end| *end <= limit)
    })
    .ok()
    .map(|_| at)
}

/// The device whose range at `base` contains all of the bytes.
fn inside(base: u64, address: u64, len: u64) -> Option<(u32, &'static Ranges)> {
    let offset = address.checked_sub(base)?;
    let device = u32::try_from(offset / ARENA).ok().filter(|d| *d < DEVICES)?;
    let end = (offset % ARENA).checked_add(len)?;
    let state = ranges(device);
    (end <= ARENA && state.held.load(Ordering::Acquire) != NOT).then_some((device, state))
}

/// Replaces `mmap` and `mmap64`.
///
/// # Safety
/// As `mmap`.
pub(super) unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let bytes = len as u64;
    if !fixed && address.is_null() && bytes >= SMALLEST {
        // SAFETY: the caller's own contract.
        if let Some(at) = unsafe { choose(bytes, protection, flags, fd, offset) } {
            return at;
        }
    }
    let mut flags = flags;
    if !fixed
        && let Some((_, state)) = inside(OWN, address as u64, bytes)
        && state.held.load(Ordering::Acquire) == HELD
        && !state.own_taken.swap(true, Ordering::AcqRel)
    {
        // Only our placeholder is mapped there: the driver's mapping replaces it atomically.
        flags |= libc::MAP_FIXED;
    }
    // SAFETY: the caller's own contract; MAP_FIXED was added only over our placeholder.
    unsafe { libc::mmap(address, len, protection, flags, fd, offset) }
}

/// Serves a request without an address from the placed range or the scratch range.
///
/// # Safety
/// As `mmap`.
unsafe fn choose(bytes: u64, protection: c_int, flags: c_int, fd: c_int, offset: libc::off_t) -> Option<*mut c_void> {
    // A thread that is ending may have no thread-locals any more: it is not in a placing call.
    let placing = PLACING.try_with(std::cell::Cell::get).unwrap_or(0);
    if let Some(device) = placing.checked_sub(1) {
        let state = ranges(device);
        let held = state.held.load(Ordering::Acquire);
        if held != NOT
            && let Some(at) = take(&state.placed_next, bytes, ARENA)
        {
            let want = (PLACED + u64::from(device) * ARENA + at) as *mut c_void;
            let exactly = if held == HELD { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
            // SAFETY: where the range is held, these bytes are placeholder: they were not assigned since the range was last reset, and
            // the reset freed everything after the driver's start.
            let got = unsafe { libc::mmap(want, bytes as usize, protection, flags | exactly, fd, offset) };
            if got != libc::MAP_FAILED {
                state.placed_out.fetch_add(bytes, Ordering::AcqRel);
                return Some(got);
            }
        }
        return None;
    }
    let device = DEVICE.load(Ordering::Relaxed);
    let base = SCRATCH + u64::from(device) * SCRATCH_BYTES;
    for _ in 0..TRIES {
        let want = (base + take(&ranges(device).scratch_next, bytes, SCRATCH_BYTES)?) as *mut c_void;
        // SAFETY: the caller's own contract; no existing mapping is replaced.
        let got = unsafe { libc::mmap(want, bytes as usize, protection, flags | libc::MAP_FIXED_NOREPLACE, fd, offset) };
        if got != libc::MAP_FAILED {
            return Some(got);
        }
    }
    None
}

/// Replaces `munmap`: what was mapped in a held range becomes placeholder again.
///
/// # Safety
/// As `munmap`.
pub(super) unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    let bytes = len as u64;
    let own = inside(OWN, address as u64, bytes);
    let placed = inside(PLACED, address as u64, bytes);
    if own.is_none() && placed.is_none() {
        // SAFETY: the caller's own contract.
        return unsafe { libc::munmap(address, len) };
    }
    if own.or(placed).is_some_and(|(_, state)| state.held.load(Ordering::Acquire) == HELD) {
        // SAFETY: the caller releases these pages, so nothing uses them.
        let at = unsafe { libc::mmap(address, len, libc::PROT_NONE, PLACEHOLDER | libc::MAP_FIXED, -1, 0) };
        if at == libc::MAP_FAILED {
            return -1;
        }
    } else {
        // SAFETY: the caller's own contract.
        let rc = unsafe { libc::munmap(address, len) };
        if rc != 0 {
            return rc;
        }
    }
    if let Some((device, state)) = own
        && address as u64 == super::own_base(device)
        && bytes == ARENA
    {
        state.own_taken.store(false, Ordering::Release);
    }
    if let Some((_, state)) = placed {
        let left = |out: u64| Some(out.saturating_sub(bytes));
        // The closure never returns `None`, so the update succeeds.
        let _ = state.placed_out.fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
    }
    0
}

/// Replaces `getenv` and `secure_getenv`.
///
/// # Safety
/// As `getenv`.
pub(super) unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    if !name.is_null() {
        let visible = VISIBLE.load(Ordering::Acquire);
        // SAFETY: the caller passes a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(name) };
        if !visible.is_null() && name == c"CUDA_VISIBLE_DEVICES" {
            return visible;
        }
        // The placement of code depends on it, so it is the same in every place.
        if name == c"CUDA_MODULE_LOADING" {
            return c"LAZY".as_ptr().cast_mut();
        }
    }
    // SAFETY: the caller's own contract.
    unsafe { libc::getenv(name) }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    const READ: c_int = libc::PROT_READ;
    const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

    fn ask(address: u64, len: u64) -> u64 {
        // SAFETY: an anonymous mapping at an address that the hook chooses.
        unsafe { mmap(address as *mut c_void, len as usize, READ, ANONYMOUS, -1, 0) as u64 }
    }

    fn give_back(address: u64, len: u64) {
        // SAFETY: mapped by `ask` in the same test.
        assert_eq!(unsafe { munmap(address as *mut c_void, len as usize) }, 0);
    }

    #[test]
    fn placed_requests_follow_each_other_and_begin_anew_only_when_all_is_back() {
        let _turn = TURN.lock();
        hold_ranges(28).expect("address space");
        let base = placed_base(28);
        let placing = Placing::enter(28);
        let (a, b) = (ask(0, 2 << 20), ask(0, 3 << 20));
        assert_eq!((a, b), (base, base + (2 << 20)));
        assert_eq!(ask(0, 1 << 30), base + (1 << 30), "coarsely aligned");
        give_back(a, 2 << 20);
        assert_eq!(ask(0, 2 << 20), base + (2 << 30), "what was given back does not come again");
        assert!(!begin_anew(28));
        for (at, len) in [(b, 3 << 20), (base + (1 << 30), 1 << 30), (base + (2 << 30), 2 << 20)] {
            give_back(at, len);
        }
        assert!(begin_anew(28));
        assert_eq!(ask(0, 2 << 20), base);
        give_back(base, 2 << 20);
        drop(placing);
        let elsewhere = ask(0, 2 << 20);
        assert!((SCRATCH..SCRATCH + u64::from(DEVICES) * SCRATCH_BYTES).contains(&elsewhere), "{elsewhere:x}");
        give_back(elsewhere, 2 << 20);
    }

    #[test]
    fn a_reservation_takes_the_placeholder_once() {
        let _turn = TURN.lock();
        hold_ranges(27).expect("address space");
        let base = own_base(27);
        assert_eq!(ask(base, ARENA), base);
        assert!(!is_free(27));
        assert_ne!(ask(base, ARENA), base, "the range is taken");
        give_back(base, ARENA);
        assert!(is_free(27));
        assert_eq!(ask(base, ARENA), base);
        give_back(base, ARENA);
    }

    #[test]
    fn the_environment_is_answered_for_one_name() {
        // SAFETY: NUL-terminated names; the answer is compared at once.
        let read = |name: &CStr| unsafe {
            let p = getenv(name.as_ptr());
            (!p.is_null()).then(|| CStr::from_ptr(p).to_owned())
        };
        set_visible(c"3");
        assert_eq!(read(c"CUDA_VISIBLE_DEVICES").as_deref(), Some(c"3"));
        assert_eq!(read(c"CUDA_MODULE_LOADING").as_deref(), Some(c"LAZY"));
        assert_eq!(read(c"PATH"), std::env::var("PATH").ok().map(|p| std::ffi::CString::new(p).expect("no NUL")));
    }
}
