//! The private tables that NVIDIA's runtime libraries request from a libcuda through `cuGetExportTable`.
//!
//! cudart, cuBLAS and cuDNN refuse to work without them. What is known of them is public (the sources are named in the
//! project's documentation), and none of it needs a GPU: the slots answer in this process, from data of the [`Host`].
//! The recorder and softgpu have separate tables, because the addresses of the tables are part of an answer.
//!
//! * `compiled`: the cache of run-time compilers.
//! * `integrity`: the runtime's check that it calls the driver that was loaded.
//! * `storage`: values that runtime libraries attach to contexts.

mod compiled;
mod host;
mod integrity;
mod storage;
#[cfg(test)]
mod tests;

pub use host::{DeviceIdentity, Host, install};
pub use storage::context_destroyed;

use cuda_api::code::{self, Code};
use cuda_api::pointer::InPtr;
use host::{HOST, guard, write_out};
use std::ffi::{c_char, c_void};
use std::ptr::without_provenance;

/// The table with this id, as `cuGetExportTable` returns it; `None`: refuse with "invalid value".
pub fn table(uuid: &[u8; 16]) -> Option<*const c_void> {
    let found = match *uuid {
        CUDART_INTERFACE => address(&INTERFACE),
        TOOLS_RUNTIME_CALLBACK_HOOKS => address(&HOOKS),
        TOOLS_TLS => address(&TLS),
        CONTEXT_LOCAL_STORAGE => address(&STORAGE),
        CONTEXT_CHECKS => address(&CHECKS),
        INTEGRITY_CHECK => address(&INTEGRITY),
        LIBRARIES => address(&LIBRARY_SERVICES),
        FUNCTIONS => address(&FUNCTION_SERVICES),
        TILE_ORDER => address(&TILE_SERVICES),
        COMPILED if compiled::is_available() => address(&COMPILED_SERVICES),
        _ => {
            if !REFUSED.contains(uuid)
                && *uuid != COMPILED
                && let Some(host) = HOST.get()
            {
                host.unknown_table(uuid);
            }
            return None;
        }
    };
    Some(found)
}

const CUDART_INTERFACE: [u8; 16] = 0x6BD5FB6C_5BF4_E74A_8987_D93912FD9DF9_u128.to_be_bytes();
const TOOLS_RUNTIME_CALLBACK_HOOKS: [u8; 16] = 0xA094798C_2E74_2E74_93F2_0800200C0A66_u128.to_be_bytes();
const TOOLS_TLS: [u8; 16] = 0x42D85A81_23F6_CB47_8298_F6E78A3AECDC_u128.to_be_bytes();
const CONTEXT_LOCAL_STORAGE: [u8; 16] = 0xC693336E_1121_DF11_A8C3_68F355D89593_u128.to_be_bytes();
const CONTEXT_CHECKS: [u8; 16] = 0x263E8860_7CD2_6143_92F6_BBD5006DFA7E_u128.to_be_bytes();
const INTEGRITY_CHECK: [u8; 16] = 0xD4082055_BDE6_704B_8D34_BA123C66E1F2_u128.to_be_bytes();
/// Unnamed: required by cuBLASLt and cuDNN.
const LIBRARIES: [u8; 16] = 0x21318C60_9714_3248_8CA6_41FF7324C8F2_u128.to_be_bytes();
/// Unnamed: cuFFT uses it to find the kernel of a module that it has linked.
const FUNCTIONS: [u8; 16] = 0x6E163FBE_B958_444D_835C_E182AFF1991E_u128.to_be_bytes();
/// Unnamed: cuBLASLt requests an order of tiles before half-precision products. It does not check whether it got the
/// table, but accepts a failing slot as "no order".
const TILE_ORDER: [u8; 16] = 0x1734DC26_800D_4745_8726_C0F1E7DD8BCA_u128.to_be_bytes();
/// Unnamed: the cache of compiled code, for NVRTC and nvJitLink.
const COMPILED: [u8; 16] = 0xDA9151D3_3AE6_CC41_A5C0_4F26D533E328_u128.to_be_bytes();
/// Refused: PyTorch with cuBLAS, cuDNN and cuSOLVER gave the same results without them (measured on an H200 machine).
const REFUSED: [[u8; 16]; 2] =
    [0xF8CFF951_2146_8B4E_B9E2_FB469E7C0DD9_u128.to_be_bytes(), 0x69A28E9F_2449_8B47_B030_C5DA330EA4E9_u128.to_be_bytes()];

/// One word of a table: its size, a function, or null.
#[repr(transparent)]
struct Word(*const ());

// SAFETY: a word is a number or the address of a function; neither is ever written.
unsafe impl Sync for Word {}

type Table<const N: usize> = [Word; N];

/// The first word of most tables: their size in bytes.
const fn size<const N: usize>() -> Word {
    Word(without_provenance(N * 8))
}

fn address<const N: usize>(table: &'static Table<N>) -> *const c_void {
    std::ptr::from_ref(table).cast()
}

/// An unknown slot: `T` is the table's id as a number.
extern "C" fn unknown<const T: u128, const SLOT: usize>() -> Code {
    guard(|host| {
        host.unknown_slot(&T.to_be_bytes(), SLOT);
        Err(code::ERROR_NOT_SUPPORTED)
    })
}

/// A table of `$len` words: its size, the known slots, and [`unknown`] in all others.
macro_rules! table {
    ($id:expr, $len:literal, { $($slot:literal => $f:expr),* $(,)? }, unknown: $($other:literal)*) => {{
        let mut t: Table<$len> = [const { Word(std::ptr::null()) }; $len];
        t[0] = size::<$len>();
        $(t[$slot] = Word($f as *const ());)*
        $(t[$other] = Word(unknown::<{ u128::from_be_bytes($id) }, $other> as *const ());)*
        let mut slot = 0;
        while slot < $len {
            assert!(!t[slot].0.is_null(), "every slot is filled");
            slot += 1;
        }
        t
    }};
}

// The sizes are those of the 580 driver.

static INTERFACE: Table<13> = table!(CUDART_INTERFACE, 13, {
    1 => load_wrapped, 2 => primary_context, 6 => load_wrapped_with_tables, 7 => wrapper_gone, 8 => load_fatbin, 12 => load_compilers,
}, unknown: 3 4 5 9 10 11);

static HOOKS: Table<7> =
    table!(TOOLS_RUNTIME_CALLBACK_HOOKS, 7, { 2 => runtime_callbacks, 6 => other_callbacks }, unknown: 1 3 4 5);

static TLS: Table<3> = table!(TOOLS_TLS, 3, { 2 => thread_state }, unknown: 1);

/// No size word: three functions and a null.
static STORAGE: Table<4> = [
    Word(storage::put as *const ()),
    Word(storage::delete as *const ()),
    Word(storage::get as *const ()),
    Word(std::ptr::null()),
];

static CHECKS: Table<15> =
    table!(CONTEXT_CHECKS, 15, { 2 => check_context, 3 => check_process }, unknown: 1 4 5 6 7 8 9 10 11 12 13 14);

static INTEGRITY: Table<3> = table!(INTEGRITY_CHECK, 3, { 1 => check_integrity }, unknown: 2);

static LIBRARY_SERVICES: Table<93> = table!(LIBRARIES, 93, { 4 => library_flag, 39 => library_number, 51 => library_object }, unknown:
    1 2 3 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
    40 41 42 43 44 45 46 47 48 49 50 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70
    71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92);

static FUNCTION_SERVICES: Table<99> = table!(FUNCTIONS, 99, { 7 => each_function }, unknown:
    1 2 3 4 5 6 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40
    41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80
    81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98);

static TILE_SERVICES: Table<17> = table!(TILE_ORDER, 17, { 4 => no_order }, unknown: 1 2 3 5 6 7 8 9 10 11 12 13 14 15 16);

/// This many words are required: with fewer, NVRTC looks for a way to free data in another table, and without one
/// caches nothing.
static COMPILED_SERVICES: Table<7> = table!(COMPILED, 7, {
    1 => compiled::make_key, 2 => compiled::end_key, 3 => compiled::find, 4 => compiled::keep, 6 => compiled::free_data,
}, unknown: 5);

/// Loads the module behind a wrapper.
///
/// # Safety
/// `to` must be null or valid for a write; `image` must be what the driver takes as an image.
unsafe extern "C" fn load_wrapped(to: *mut usize, image: *const c_void) -> Code {
    // SAFETY: our caller's promises are those of `load`.
    guard(|host| unsafe { load(host, to, image) })
}

/// As [`load_wrapped`]; the runtime of CUDA 11 loads all modules with it. The tables describe host variables, and are
/// not used.
///
/// # Safety
/// As for [`load_wrapped`].
unsafe extern "C" fn load_wrapped_with_tables(to: *mut usize, image: *const c_void, a: usize, b: usize, count: u32) -> Code {
    // SAFETY: our caller's promises are those of `load`.
    guard(|host| unsafe { if (a, b, count) == (0, 0, 0) { load(host, to, image) } else { Err(code::ERROR_NOT_SUPPORTED) } })
}

/// As [`load_wrapped_with_tables`], with the fat binary's header first.
///
/// # Safety
/// As for [`load_wrapped`].
unsafe extern "C" fn load_fatbin(image: *const c_void, to: *mut usize, a: usize, b: usize, count: u32) -> Code {
    // SAFETY: the promises are the same.
    unsafe { load_wrapped_with_tables(to, image, a, b, count) }
}

/// # Safety
/// As for [`load_wrapped`].
unsafe fn load(host: &dyn Host, to: *mut usize, image: *const c_void) -> Result<(), Code> {
    if to.is_null() || image.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller vouches for `image` and `to`.
    unsafe { write_out(to, host.load_fatbin(InPtr::new(image))?) }
}

/// Returns the handle of a device's primary context, whether it is active or not.
///
/// # Safety
/// `to` must be null or valid for a write.
unsafe extern "C" fn primary_context(to: *mut usize, device: i32) -> Code {
    // SAFETY: the caller vouches for `to`.
    guard(|host| unsafe { write_out(to, host.primary_context(device)?) })
}

/// Reports that the module of a wrapper has been unloaded; no state is kept for that address.
extern "C" fn wrapper_gone(_wrapper: usize) {}

/// Compilers are loaded on demand, so this does nothing.
extern "C" fn load_compilers() -> Code {
    code::SUCCESS
}

/// Flags of the functions that a profiler watches: none. Runtimes read these arrays, by the number of the function,
/// until the process ends, and require at least this many entries.
static WATCHED: ([u32; 1024], [u32; 14]) = ([0; 1024], [0; 14]);

/// # Safety
/// Both pointers must be null or valid for a write.
unsafe extern "C" fn runtime_callbacks(flags: *mut *const u32, count: *mut usize) {
    // SAFETY: the caller vouches for the pointers.
    guard(|_| unsafe { write_out(flags, WATCHED.0.as_ptr()).and(write_out(count, WATCHED.0.len())) });
}

/// # Safety
/// As for [`runtime_callbacks`].
unsafe extern "C" fn other_callbacks(flags: *mut *const u32, count: *mut usize) {
    // SAFETY: the caller vouches for the pointers.
    guard(|_| unsafe { write_out(flags, WATCHED.1.as_ptr()).and(write_out(count, WATCHED.1.len())) });
}

/// cuBLASLt calls it around look-ups with an output pointer: nothing watches this thread, so the answer is null.
///
/// # Safety
/// `to` must be null or valid for a write.
unsafe extern "C" fn thread_state(to: *mut *const c_void) -> Code {
    guard(|_| {
        // A caller may pass null.
        // SAFETY: the caller vouches for `to`.
        let _ = unsafe { write_out(to, std::ptr::null()) };
        Ok(())
    })
}

/// Reports that no context has an error.
///
/// # Safety
/// The pointers must be null or valid for a write.
unsafe extern "C" fn check_context(_context: usize, bits: *mut u32, detail: *mut *const c_void) -> Code {
    guard(|_| {
        // Either may be null.
        // SAFETY: the caller vouches for the pointers.
        let _ = unsafe { write_out(bits, 0) };
        // SAFETY: as above.
        let _ = unsafe { write_out(detail, std::ptr::null()) };
        Ok(())
    })
}

/// Reports that the process has no error.
extern "C" fn check_process() -> u32 {
    0
}

/// Answers the check that the responding driver is the one that was loaded.
///
/// # Safety
/// `to` must be null or valid for a write of two numbers.
unsafe extern "C" fn check_integrity(version: u32, unix_seconds: u64, to: *mut [u64; 2]) -> Code {
    guard(|host| {
        // SAFETY: no preconditions.
        let thread = unsafe { libc::pthread_self() };
        let known = integrity::Known {
            driver_version: host.driver_version().cast_unsigned(),
            version,
            pid: std::process::id(),
            // Only the low half is hashed.
            thread: thread as u32,
            interface: address(&INTERFACE).addr() as u64,
            integrity: address(&INTEGRITY).addr() as u64,
            function: INTEGRITY[1].0.addr() as u64,
            unix_seconds,
        };
        let result = integrity::answer(&known, &host.devices()).ok_or(code::ERROR_UNKNOWN)?;
        // SAFETY: the caller vouches for `to`.
        unsafe { write_out(to, result) }
    })
}

/// Called by cuBLASLt with each look-up; it accepts either answer, but not a failure.
///
/// # Safety
/// `to` must be null or valid for a write.
unsafe extern "C" fn library_flag(what: usize, to: *mut u64) -> Code {
    // SAFETY: the caller vouches for `to`.
    guard(|_| unsafe { write_out(to, u64::from(what != 0)) })
}

/// # Safety
/// As for [`library_flag`]. The width of the answer is not known; four bytes overwrite nothing.
unsafe extern "C" fn library_number(_context: usize, _what: usize, to: *mut u32) -> Code {
    // SAFETY: the caller vouches for `to`.
    guard(|_| unsafe { write_out(to, 0) })
}

/// An object without contents.
static EMPTY: [u64; 64] = [0; 64];

/// cuBLAS 13 calls it for each stream: context (null: the current one), stream, output (seen on an H200).
///
/// # Safety
/// As for [`library_flag`].
unsafe extern "C" fn library_object(_context: usize, stream: usize, to: *mut *const c_void) -> Code {
    guard(|_| {
        if stream == usize::MAX {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        // SAFETY: the caller vouches for `to`.
        unsafe { write_out(to, EMPTY.as_ptr().cast()) }
    })
}

/// Calls `visit` with `opaque`, the function and its name for each function of a module (seen on an H200: cuFFT keeps
/// the function and launches it). Returns their number.
///
/// # Safety
/// `visit` must be null or a function of this type.
unsafe extern "C" fn each_function(
    _context: usize,
    module: usize,
    visit: Option<unsafe extern "C" fn(usize, usize, *const c_char, usize)>,
    opaque: usize,
) -> usize {
    let mut count = 0;
    guard(|host| {
        let visit = visit.ok_or(code::ERROR_INVALID_VALUE)?;
        for (function, name) in host.functions(module)? {
            // SAFETY: the caller vouches for its function.
            unsafe { visit(opaque, function, name.as_ptr(), 0) };
            count += 1;
        }
        Ok(())
    });
    count
}

/// There is no order of tiles; cuBLASLt continues without one.
extern "C" fn no_order() -> Code {
    code::ERROR_NOT_SUPPORTED
}
