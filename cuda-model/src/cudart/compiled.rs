//! A cache of code compiled at run time: for NVRTC since CUDA 12.9, nvJitLink, and through them cuDNN and cuFFT. They
//! create a key from the input, look it up, and store the result if nothing was found. Without this table they compile
//! the same code again in every process, and, unless the process caches it itself, at every use.
//!
//! The arguments of the slots were observed with NVRTC 12.9 and 13.0 and nvJitLink 13.0. Anything else is refused, and
//! the compiler then compiles.

mod store;
#[cfg(test)]
mod tests;

use super::host::{guard, write_out};
use cuda_api::code::{self, Code};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use store::{Key, MAX_BYTES, Store};

/// The store, if this process has a place for it. Threads that call this concurrently for the first time each look it
/// up: a process forked meanwhile has none of the threads that it would have to wait for.
fn store() -> Option<&'static Store> {
    static STORE: AtomicPtr<Option<Store>> = AtomicPtr::new(std::ptr::null_mut());
    once(&STORE, Store::of_environment).as_ref()
}

/// Initializes a value at its first use, without waiting for another thread that does the same.
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

/// Whether anything can be stored; otherwise the table is refused, as by a driver with its cache disabled.
pub(super) fn is_available() -> bool {
    store().is_some()
}

/// The kind of result of a key: machine code, and PTX.
const MACHINE_CODE: u32 = 1;
const PTX: u32 = 2;
/// Magic number of LLVM bitcode.
const BITCODE: &[u8] = b"BC\xC0\xDE";

thread_local! {
    /// The last key that this thread has created for PTX, and the hash of its code.
    static LAST_PTX: Cell<Option<(blake3::Hash, Key)>> = const { Cell::new(None) };
}

/// The key of a compilation. NVRTC passes the options of its first stage (`-ftz`, `-prec-div`, …) only when it requests
/// PTX. Right after that it requests machine code for the same bitcode with only the assembler's options (seen with
/// 12.9 and 13.0), so that key includes the first one. Bitcode without a preceding PTX key has no key.
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

/// Creates the key of a compilation: kind of the result, code, options, and compiler version.
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
            || bytes > MAX_BYTES
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
        unsafe { write_out(to, key) }
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

/// Returns what is stored under a key, in memory that [`free_data`] frees.
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
            write_out(to, memory)?;
            write_out(bytes, len)
        }
    })
}

/// Stores the result of a compilation.
///
/// # Safety
/// `key` as for [`end_key`]; `bytes` bytes must be readable at `data`.
pub(super) unsafe extern "C" fn keep(key: *const Key, other: u32, data: *const u8, bytes: usize) -> Code {
    guard(|_| {
        let sound = other == 0 && !data.is_null() && bytes > 0 && bytes <= MAX_BYTES;
        // SAFETY: the caller vouches for the key.
        let key = unsafe { key.as_ref() }.filter(|_| sound).ok_or(code::ERROR_INVALID_VALUE)?;
        // SAFETY: not null, and the caller vouches for the bytes.
        let data = unsafe { std::slice::from_raw_parts(data, bytes) };
        // What cannot be stored is compiled again next time.
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
