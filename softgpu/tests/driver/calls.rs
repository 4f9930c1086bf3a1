//! The driver's rules that need no kernel: errors, streams and events, copies, virtual memory.

use crate::support::*;
use cuda_api::sys::*;
use std::ffi::c_char;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_INITIALIZED: u32 = 3;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const NOT_READY: u32 = 600;
const CONTEXT_IS_DESTROYED: u32 = 709;
const NON_BLOCKING: u32 = 1;
const EQUAL: u32 = 1;

fn wait_value(stream: CUstream, at: u64, value: u32) {
    assert_eq!(call!(cuStreamWaitValue32_v2(stream, at, value, EQUAL): fn(CUstream, u64, u32, u32)), SUCCESS);
}

fn write_value(stream: CUstream, at: u64, value: u32) {
    assert_eq!(call!(cuStreamWriteValue32_v2(stream, at, value, 0): fn(CUstream, u64, u32, u32)), SUCCESS);
}

#[test]
fn bad_arguments_are_refused() {
    let _context = Context::new();
    let at = alloc(1000);
    assert_eq!(write(at + 600, &[0u8; 401]), INVALID_VALUE, "past the end");
    assert_eq!(write(at + 600, &[0u8; 400]), SUCCESS);
    assert_eq!(write(0x1234, &[0u8; 4]), INVALID_VALUE, "no allocation");
    assert_eq!(free(at + 512), INVALID_VALUE, "not the start");
    assert_eq!(free(at), SUCCESS);
    assert_eq!(free(at), INVALID_VALUE, "freed twice");
    assert_eq!(write(at, &[0u8; 4]), INVALID_VALUE, "freed");
    let mut address = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 0): fn(*mut u64, usize)), INVALID_VALUE);
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 1 << 50): fn(*mut u64, usize)), OUT_OF_MEMORY);
    assert_eq!(call!(cuMemAlloc_v2(std::ptr::null_mut(), 4): fn(*mut u64, usize)), INVALID_VALUE);
    let stream = stream(0);
    assert_eq!(call!(cuStreamDestroy_v2(stream): fn(CUstream)), SUCCESS);
    assert_eq!(synchronise(stream), INVALID_HANDLE);
    assert_eq!(call!(cuEventQuery(0x1000): fn(usize)), INVALID_HANDLE);
    let mut value = 0;
    assert_eq!(call!(cuDeviceGetAttribute(&mut value, 1, 77): fn(*mut i32, u32, i32)), INVALID_DEVICE);
    assert_eq!(call!(cuDeviceGetAttribute(&mut value, 9999, 0): fn(*mut i32, u32, i32)), INVALID_VALUE);
    assert_eq!(call!(cuMemsetD32_v2(alloc(8) + 2, 0, 1): fn(u64, u32, usize)), INVALID_VALUE, "misaligned");
}

#[test]
fn without_a_context_there_is_nothing() {
    std::thread::spawn(|| {
        assert_eq!(call!(cuInit(0): fn(u32)), SUCCESS);
        let mut address = 0;
        assert_eq!(call!(cuMemAlloc_v2(&mut address, 4): fn(*mut u64, usize)), INVALID_CONTEXT);
        let mut context = 1 as CUcontext;
        assert_eq!(call!(cuCtxGetCurrent(&mut context): fn(*mut CUcontext)), SUCCESS);
        assert!(context.is_null());
        assert_eq!(call!(cuCtxSetCurrent(0x5000): fn(usize)), INVALID_CONTEXT);
    })
    .join()
    .expect("thread");
}

#[test]
fn small_allocations_share_a_block() {
    // A device where no other test allocates.
    let _context = Context::on(2);
    let (a, b) = (alloc(100), alloc(100));
    assert_eq!(a.abs_diff(b), 512);
    assert_eq!(write(a, &[7u8; 100]), SUCCESS);
    assert_eq!(read::<u8>(a, 100), [7; 100]);
    let (mut base, mut size) = (0, 0);
    assert_eq!(call!(cuMemGetAddressRange_v2(&mut base, &mut size, a + 99): fn(*mut u64, *mut usize, u64)), SUCCESS);
    assert_eq!((base, size), (a, 100));
}

#[test]
fn a_stream_waits_for_memory_and_others_do_not() {
    let _context = Context::new();
    let flag = alloc(4);
    assert_eq!(write(flag, &[0u32]), SUCCESS);
    let (blocked, free) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    wait_value(blocked, flag, 5);
    let (late, early) = (event(), event());
    record(late, blocked);
    record(early, free);
    assert_eq!(call!(cuEventSynchronize(early): fn(CUevent)), SUCCESS);
    assert_eq!(event_state(late), NOT_READY);
    assert_eq!(call!(cuStreamQuery(blocked): fn(CUstream)), NOT_READY);
    let mut milliseconds = 0f32;
    assert_eq!(call!(cuEventElapsedTime_v2(&mut milliseconds, early, late): fn(*mut f32, CUevent, CUevent)), NOT_READY);
    write_value(free, flag, 5);
    assert_eq!(synchronise(blocked), SUCCESS);
    assert_eq!(call!(cuEventElapsedTime_v2(&mut milliseconds, early, late): fn(*mut f32, CUevent, CUevent)), SUCCESS);
    assert!(milliseconds > 0.0);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let _context = Context::new();
    let flag = alloc(4);
    assert_eq!(write(flag, &[0u32]), SUCCESS);
    let (blocking, other, free) = (stream(0), stream(0), stream(NON_BLOCKING));
    wait_value(blocking, flag, 1);
    let (legacy, after, apart) = (event(), event(), event());
    record(legacy, std::ptr::null_mut());
    record(after, other);
    record(apart, free);
    assert_eq!(call!(cuEventSynchronize(apart): fn(CUevent)), SUCCESS);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(event_state(legacy), NOT_READY, "the legacy stream waits for the blocking one");
    assert_eq!(event_state(after), NOT_READY, "the other blocking one waits for the legacy stream");
    write_value(free, flag, 1);
    assert_eq!(synchronise_all(), SUCCESS);
    assert_eq!((event_state(legacy), event_state(after)), (SUCCESS, SUCCESS));
}

#[test]
fn an_event_orders_two_streams() {
    let _context = Context::new();
    let (data, copy) = (alloc(4096), alloc(4096));
    let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    for round in 1..100u32 {
        let done = event();
        assert_eq!(call!(cuMemsetD32Async(data, round, 1024, first): fn(u64, u32, usize, CUstream)), SUCCESS);
        record(done, first);
        assert_eq!(call!(cuStreamWaitEvent(second, done, 0): fn(CUstream, CUevent, u32)), SUCCESS);
        assert_eq!(call!(cuMemcpyDtoDAsync_v2(copy, data, 4096, second): fn(u64, u64, usize, CUstream)), SUCCESS);
        assert_eq!(synchronise(second), SUCCESS);
        assert_eq!(read::<u32>(copy, 1024), [round; 1024]);
        assert_eq!(call!(cuEventDestroy_v2(done): fn(CUevent)), SUCCESS);
    }
}

#[test]
fn a_missing_wait_shows() {
    let _context = Context::new();
    let (data, copy) = (alloc(4096), alloc(4096));
    let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let wrong = (1..200u32)
        .filter(|round| {
            assert_eq!(call!(cuMemsetD32Async(data, *round, 1024, first): fn(u64, u32, usize, CUstream)), SUCCESS);
            assert_eq!(call!(cuMemcpyDtoDAsync_v2(copy, data, 4096, second): fn(u64, u64, usize, CUstream)), SUCCESS);
            assert_eq!(synchronise_all(), SUCCESS);
            read::<u32>(copy, 1024) != [*round; 1024]
        })
        .count();
    assert!(wrong > 0, "two streams without an event between them always came out in order");
}

#[test]
fn pageable_memory_is_read_at_the_call_and_pinned_memory_later() {
    let _context = Context::new();
    let (flag, from_pageable, from_pinned) = (alloc(4), alloc(4), alloc(4));
    assert_eq!(write(flag, &[0u32]), SUCCESS);
    let (work, release) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let (mut pageable, locked) = (vec![1u32], pinned::<u32>(2));
    locked[0] = 1;
    wait_value(work, flag, 1);
    let copy =
        |to: u64, from: *const u32| call!(cuMemcpyHtoDAsync_v2(to, from.cast(), 4, work): fn(u64, *const u8, usize, CUstream));
    assert_eq!(copy(from_pageable, pageable.as_ptr()), SUCCESS);
    assert_eq!(copy(from_pinned, locked.as_ptr()), SUCCESS);
    let back: *mut u32 = &raw mut locked[1];
    assert_eq!(call!(cuMemcpyDtoHAsync_v2(back.cast(), from_pinned, 4, work): fn(*mut u8, u64, usize, CUstream)), SUCCESS);
    pageable[0] = 2;
    locked[0] = 2;
    // SAFETY: reads one value of the allocation above, which the stream has not written yet.
    assert_eq!(unsafe { back.read_volatile() }, 0, "a copy to pinned memory does not wait");
    write_value(release, flag, 1);
    assert_eq!(synchronise(work), SUCCESS);
    assert_eq!(read::<u32>(from_pageable, 1), [1]);
    assert_eq!(read::<u32>(from_pinned, 1), [2]);
    assert_eq!(locked[1], 2);
}

#[test]
fn rows_are_copied_with_their_pitch() {
    let _context = Context::new();
    let at = alloc(64);
    assert_eq!(write(at, &[0u8; 64]), SUCCESS);
    let host: Vec<u8> = (0..64).collect();
    let mut copy = CUDA_MEMCPY2D {
        srcXInBytes: 1,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: host.as_ptr().cast(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: 16,
        dstXInBytes: 0,
        dstY: 1,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: at,
        dstArray: std::ptr::null_mut(),
        dstPitch: 8,
        WidthInBytes: 3,
        Height: 2,
    };
    assert_eq!(call!(cuMemcpy2D_v2(&copy): fn(*const CUDA_MEMCPY2D)), SUCCESS);
    let got = read::<u8>(at, 24);
    assert_eq!(got[8..16], [1, 2, 3, 0, 0, 0, 0, 0]);
    assert_eq!(got[16..24], [17, 18, 19, 0, 0, 0, 0, 0]);
    copy.Height = 100;
    assert_eq!(call!(cuMemcpy2D_v2(&copy): fn(*const CUDA_MEMCPY2D)), INVALID_VALUE, "past the end");
}

#[test]
fn the_newest_fitting_symbol_is_found() {
    let find = |name: &str, version: i32, flags: u64| {
        let name = std::ffi::CString::new(name).expect("name");
        let (mut function, mut status) = (std::ptr::null_mut::<u8>(), 9u32);
        let code = call!(cuGetProcAddress_v2(name.as_ptr(), &mut function, version, flags, &mut status):
            fn(*const c_char, *mut *mut u8, i32, u64, *mut u32));
        (code, function, status)
    };
    let symbol = |name: &[u8]| {
        // SAFETY: only the address is used.
        unsafe { *library().get::<*mut u8>(name).expect("symbol") }
    };
    assert_eq!(find("cuMemAlloc", 3020, 0), (0, symbol(b"cuMemAlloc_v2"), 0));
    assert_eq!(find("cuStreamSynchronize", 7000, 2), (0, symbol(b"cuStreamSynchronize_ptsz"), 0));
    assert_eq!(find("cuNoSuch", 13000, 0), (0, std::ptr::null_mut(), 1));
    assert_eq!(find("cuLibraryLoadData", 11000, 0), (0, std::ptr::null_mut(), 2));
    assert_eq!(find("cuInit", 99000, 0).0, INVALID_VALUE);
}

unsafe extern "C" {
    /// Part of POSIX; the crate `libc` lacks both for Linux.
    fn pthread_cancel(thread: libc::pthread_t) -> i32;
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// `cuModuleLoad` opens a file, which is where a thread that has been cancelled ends.
#[test]
fn a_thread_is_not_cancelled_inside_a_call() {
    const FILE_NOT_FOUND: u32 = 301;
    /// `PTHREAD_CANCEL_DISABLE`.
    const DISABLE: i32 = 1;
    std::thread::spawn(|| {
        let _context = Context::new();
        let mut module = std::ptr::null_mut();
        // SAFETY: the thread is the calling one, which goes on: its cancellation takes effect at a cancellation point only.
        assert_eq!(unsafe { pthread_cancel(libc::pthread_self()) }, 0);
        let code = call!(cuModuleLoad(&mut module, c"/no such file".as_ptr()): fn(*mut CUmodule, *const c_char));
        let mut before = -1;
        // SAFETY: `before` is writable.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        assert_eq!((code, before), (FILE_NOT_FOUND, 0), "the code, and that the thread can be cancelled again");
    })
    .join()
    .unwrap();
}

#[test]
fn a_forked_child_is_refused() {
    let _context = Context::new();
    // SAFETY: the child only calls the driver, which touches nothing, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut count = 0;
        let code = call!(cuDeviceGetCount(&mut count): fn(*mut i32));
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code as i32) };
    }
    let mut status = 0;
    // SAFETY: the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status) as u32, NOT_INITIALIZED);
}

#[test]
fn pointer_attributes_have_their_width() {
    let _context = Context::new();
    let (device, host) = (alloc(1000), pinned::<u8>(100).as_ptr() as u64);
    let get = |attribute: u32, at: u64| {
        let mut out = [0xccu8; 16];
        let code = call!(cuPointerGetAttribute(out.as_mut_ptr(), attribute, at): fn(*mut u8, u32, u64));
        (code, u64::from_le_bytes(out[..8].try_into().expect("8 bytes")))
    };
    let word = |n: u64| 0xcccc_cccc_0000_0000 | n;
    assert_eq!((get(2, device + 9), get(2, host)), ((0, word(2)), (0, word(1))));
    assert_eq!((get(8, device), get(13, device)), ((0, word(0)), (0, word(1))), "booleans have 4 bytes");
    assert_eq!((get(11, device + 9), get(12, device + 9)), ((0, device), (0, 1000)));
    assert_eq!(get(2, device + 1000).0, INVALID_VALUE);
    // Of several for a foreign pointer, the range is left alone and the device is none.
    let (mut ordinal, mut start) = (7i32, 7u64);
    let outputs: [*mut u8; 2] = [(&raw mut ordinal).cast(), (&raw mut start).cast()];
    let code = call!(cuPointerGetAttributes(2, [9u32, 11].as_ptr(), outputs.as_ptr(), 0x1234):
        fn(u32, *const u32, *const *mut u8, u64));
    assert_eq!((code, ordinal, start), (SUCCESS, -2, 7));
}

#[test]
fn a_primary_context_comes_back_after_a_reset() {
    // A device whose primary context no other test uses.
    const DEVICE: i32 = 3;
    assert_eq!(call!(cuInit(0): fn(u32)), SUCCESS);
    let mut context = std::ptr::null_mut();
    let mut again = std::ptr::null_mut();
    assert_eq!(call!(cuDevicePrimaryCtxRetain(&mut context, DEVICE): fn(*mut CUcontext, i32)), SUCCESS);
    assert_eq!(call!(cuCtxSetCurrent(context): fn(CUcontext)), SUCCESS);
    let old = alloc(4);
    assert_eq!(call!(cuDevicePrimaryCtxReset_v2(DEVICE): fn(i32)), SUCCESS);
    let (mut address, mut version) = (0, 0);
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 4): fn(*mut u64, usize)), CONTEXT_IS_DESTROYED);
    assert_eq!(call!(cuCtxGetApiVersion(context, &mut version): fn(CUcontext, *mut u32)), INVALID_CONTEXT);
    assert_eq!(call!(cuDevicePrimaryCtxRetain(&mut again, DEVICE): fn(*mut CUcontext, i32)), SUCCESS);
    assert_eq!(again, context);
    // Another test's thread may have got the address since, in a context of its own.
    let mut owner: CUcontext = std::ptr::null_mut();
    let code = call!(cuPointerGetAttribute(&mut owner, 1, old): fn(*mut CUcontext, u32, u64));
    assert!(code == INVALID_VALUE || owner != context, "gone with the reset");
    for code in [SUCCESS, SUCCESS, INVALID_CONTEXT] {
        assert_eq!(call!(cuDevicePrimaryCtxRelease_v2(DEVICE): fn(i32)), code);
    }
    assert_eq!(call!(cuCtxSetCurrent(std::ptr::null_mut()): fn(CUcontext)), SUCCESS);
}
