//! Compiled code that NVIDIA's run-time compilers have the driver keep: NVRTC since CUDA 12.9, nvJitLink, and through them cuDNN and
//! cuFFT. They make a key of what they compile, ask for it, and hand over what they have made where nothing was found. Without this
//! table they compile the same code again in every process, and where nothing in the process remembers it, at every use.
//!
//! What the slots take was seen from outside, with NVRTC 12.9 and 13.0 and nvJitLink 13.0. Whatever does not look like that is
//! refused, and the compiler compiles.

mod store;
#[cfg(test)]
mod tests;

use super::host::{give, guard};
use cuda_api::code::{self, Code};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use store::{Key, MOST, Store};

/// Where everything lies, if this process has a place for it. Threads that ask for the first time at once look for it each for itself:
/// a process that is forked meanwhile has none of the threads that it would have to wait for.
fn store() -> Option<&'static Store> {
    static STORE: AtomicPtr<Option<Store>> = AtomicPtr::new(std::ptr::null_mut());
    once(&STORE, Store::of_environment).as_ref()
}

/// A value that is made at the first use, without waiting for another thread that makes it.
fn once<T>(value: &'static AtomicPtr<T>, make: impl FnOnce() -> T) -> &'static T {
    let made = value.load(Ordering::Acquire);
    // SAFETY: null, or from `into_raw` below, and never dropped.
    if let Some(made) = unsafe { made.as_ref() } {
        return made;
    }
    let own = Box::into_raw(Box::new(make()));
    match value.compare_exchange(std::ptr::null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: created above; it is the value now, and never dropped.
        Ok(_) => unsafe { &*own },
        Err(other) => {
            // SAFETY: created above, and not shared with any other thread.
            drop(unsafe { Box::from_raw(own) });
            // SAFETY: not null, so another thread's, from here.
            unsafe { &*other }
        }
    }
}

/// Whether anything can be kept: else the table is refused, as by a driver whose cache is switched off.
pub(super) fn is_available() -> bool {
    store().is_some()
}

/// What kind of result a key is of: machine code, and PTX.
const MACHINE_CODE: u32 = 1;
const PTX: u32 = 2;
/// How LLVM bitcode begins.
const BITCODE: &[u8] = b"BC\xC0\xDE";

thread_local! {
    /// The last key that this thread has made of PTX, and the hash of the code that it is of.
    static LAST_PTX: Cell<Option<(blake3::Hash, Key)>> = const { Cell::new(None) };
}

/// The key of a compilation. NVRTC names the options of its first half (`-ftz`, `-prec-div`, …) only where it asks for PTX. Right after that it
/// asks for machine code of the same bitcode with the options of the assembler alone (seen with 12.9 and 13.0): that key has the first one in
/// it. Bitcode without one has no key.
fn key_of(numbers: [u32; 3], code: &[u8], texts: [&[u8]; 3]) -> Option<Key> {
    let [kind, ..] = numbers;
    let hash = blake3::hash(code);
    let before = match LAST_PTX.get() {
        Some((of, key)) if kind == MACHINE_CODE && of == hash => Some(key),
        _ => None,
    };
    if kind == MACHINE_CODE && code.starts_with(BITCODE) && before.is_none() {
        return None;
    }
    let key = Key::of(numbers, hash, texts, before);
    if kind == PTX {
        LAST_PTX.set(Some((hash, key)));
    }
    Some(key)
}

/// Makes the key of a compilation: of what kind the result is, the code, the options, and what compiles it.
///
/// # Safety
/// `to` must be null or valid for a write, `bytes` bytes at `data` readable, and the texts null or NUL-terminated.
pub(super) unsafe extern "C" fn make_key(
    to: *mut *mut Key,
    kind: u32,
    data: *const u8,
    bytes: usize,
    options: *const c_char,
    machine: *const c_char,
    compiler: *const c_char,
    capability: u32,
    debug: u32,
) -> Code {
    guard(|_| {
        if to.is_null()
            || data.is_null()
            || bytes == 0
            || bytes > MOST
            || [options, machine, compiler].contains(&std::ptr::null())
        {
            return Err(code::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and the caller vouches for the bytes.
        let data = unsafe { std::slice::from_raw_parts(data, bytes) };
        // SAFETY: not null, and the caller vouches for the texts.
        let texts = [options, machine, compiler].map(|text| unsafe { CStr::from_ptr(text) }.to_bytes());
        let key = key_of([kind, capability, debug], data, texts).ok_or(code::ERROR_NOT_SUPPORTED)?;
        let key = Box::into_raw(Box::new(key));
        // SAFETY: the caller vouches for `to`.
        unsafe { give(to, key) }
    })
}

/// # Safety
/// `key` must be null or one that [`make_key`] has given and that has not ended.
pub(super) unsafe extern "C" fn end_key(key: *mut Key) -> Code {
    guard(|_| {
        if key.is_null() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        // SAFETY: it came from `into_raw`, and the caller ends it once.
        drop(unsafe { Box::from_raw(key) });
        Ok(())
    })
}

/// Gives what is kept under a key, in memory that [`free_data`] gives back.
///
/// # Safety
/// `key` as for [`end_key`]; the other pointers must be null or valid for a write.
pub(super) unsafe extern "C" fn find(key: *const Key, other: u32, to: *mut *mut c_void, bytes: *mut u32) -> Code {
    guard(|_| {
        // SAFETY: the caller vouches for the key.
        let key = unsafe { key.as_ref() }
            .filter(|_| other == 0 && !to.is_null() && !bytes.is_null())
            .ok_or(code::ERROR_INVALID_VALUE)?;
        let found = store().and_then(|store| store.find(key)).ok_or(code::ERROR_NOT_FOUND)?;
        let len = u32::try_from(found.len()).map_err(|_| code::ERROR_NOT_FOUND)?;
        // SAFETY: no preconditions; it is looked at.
        let memory = unsafe { libc::malloc(found.len()) };
        if memory.is_null() {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        // SAFETY: fresh memory of this size; the caller vouches for the pointers, which are not null.
        unsafe {
            std::ptr::copy_nonoverlapping(found.as_ptr(), memory.cast(), found.len());
            give(to, memory)?;
            give(bytes, len)
        }
    })
}

/// Keeps what was compiled.
///
/// # Safety
/// `key` as for [`end_key`]; `bytes` bytes must be readable at `data`.
pub(super) unsafe extern "C" fn keep(key: *const Key, other: u32, data: *const u8, bytes: usize) -> Code {
    guard(|_| {
        let sound = other == 0 && !data.is_null() && bytes > 0 && bytes <= MOST;
        // SAFETY: the caller vouches for the key.
        let key = unsafe { key.as_ref() }.filter(|_| sound).ok_or(code::ERROR_INVALID_VALUE)?;
        // SAFETY: not null, and the caller vouches for the bytes.
        let data = unsafe { std::slice::from_raw_parts(data, bytes) };
        // What cannot be kept is compiled again.
        store().and_then(|store| store.keep(key, data).ok()).ok_or(code::ERROR_OPERATING_SYSTEM)
    })
}

/// # Safety
/// `data` must be null or what [`find`] has given, once.
pub(super) unsafe extern "C" fn free_data(data: *mut c_void) -> Code {
    // SAFETY: null, or memory of `malloc` that the caller gives back.
    unsafe { libc::free(data) };
    code::SUCCESS
}
