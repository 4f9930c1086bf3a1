//! Modules and launches: results, faults, placement, the device heap.

use crate::support::*;
use cuda_api::sys::*;
use std::ffi::c_char;

const INVALID_VALUE: u32 = 1;
const NO_BINARY: u32 = 209;
const INVALID_PTX: u32 = 218;
const INVALID_HANDLE: u32 = 400;
const LAUNCH_OUT_OF_RESOURCES: u32 = 701;
const NOT_FOUND: u32 = 500;
const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

const ADD: &str = "
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n) {
    .reg .b64 %rd<12>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [n];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd5, %r4;
    setp.ge.u64 %p1, %rd5, %rd4;
    @%p1 bra DONE;
    shl.b64 %rd6, %rd5, 2;
    add.s64 %rd7, %rd1, %rd6; add.s64 %rd8, %rd2, %rd6; add.s64 %rd9, %rd3, %rd6;
    ld.global.f32 %f1, [%rd7]; ld.global.f32 %f2, [%rd8];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd9], %f3;
DONE:
    ret;
}
";

/// `store(address, value)` writes 8 bytes; `counter` is a variable that `bump` adds 1 to.
const STORE: &str = "
.visible .global .align 8 .u64 counter = 40;
.visible .entry store(.param .u64 at, .param .u64 value) {
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [at]; ld.param.u64 %rd2, [value];
    st.global.u64 [%rd1], %rd2;
    ret;
}
.visible .entry bump() {
    .reg .b64 %rd<4>;
    mov.u64 %rd1, counter;
    ld.global.u64 %rd2, [%rd1];
    add.s64 %rd2, %rd2, 1;
    st.global.u64 [%rd1], %rd2;
    ret;
}
.visible .entry stop() { trap; }
";

/// `take(out)` stores the address of 100 bytes of the device heap.
const HEAP: &str = "
.extern .func (.param .b64 result) malloc(.param .b64 size);
.visible .entry take(.param .u64 out) {
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    { .param .b64 p; .param .b64 r; mov.u64 %rd2, 100; st.param.b64 [p], %rd2; call.uni (r), malloc, (p); ld.param.b64 %rd3, [r]; }
    st.global.u64 [%rd1], %rd3;
    st.u64 [%rd3], %rd1;
    ret;
}
";

/// Spins until the word is 1, then stores 2 in it.
const SPIN: &str = "
.visible .entry spin(.param .u64 flag) {
    .reg .b64 %rd<2>; .reg .b32 %r<3>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 1;
    @%p1 bra AGAIN;
    mov.u32 %r2, 2;
    st.volatile.global.u32 [%rd1], %r2;
    ret;
}
";

/// Spins until the word at `flag` is 1, then reads the one at `at`.
const TOUCH: &str = "
.visible .entry touch(.param .u64 flag, .param .u64 at) {
    .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [at];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 1;
    @%p1 bra AGAIN;
    ld.global.u32 %r2, [%rd2];
    ret;
}
";

fn module(body: &str) -> CUmodule {
    let (code, module) = load(&format!("{HEAD}{body}"));
    assert_eq!(code, SUCCESS);
    module
}

const LEGACY: CUstream = std::ptr::null_mut();

#[test]
fn vectors_are_added() {
    let _context = Context::new();
    let add = function(module(ADD), "add");
    let n = 1000usize;
    let (a, b, c) = (alloc(4 * n), alloc(4 * n), alloc(4 * n));
    let (x, y): (Vec<f32>, Vec<f32>) = ((0..n).map(|i| i as f32).collect(), (0..n).map(|i| 2.0 * i as f32).collect());
    assert_eq!((write(a, &x), write(b, &y)), (SUCCESS, SUCCESS));
    assert_eq!(launch(add, 8, 128, LEGACY, &[a, b, c, n as u64]), SUCCESS);
    let sum = read::<f32>(c, n);
    assert!(sum.iter().enumerate().all(|(i, s)| *s == 3.0 * i as f32));
}

#[test]
fn launches_are_checked_at_the_call() {
    let _context = Context::new();
    let module = module(ADD);
    let add = function(module, "add");
    assert_eq!(launch(add, 0, 32, LEGACY, &[0; 4]), INVALID_VALUE);
    assert_eq!(launch(add, 1, 1025, LEGACY, &[0; 4]), INVALID_VALUE);
    assert_eq!(launch(0x4000 as CUfunction, 1, 1, LEGACY, &[]), INVALID_HANDLE);
    let mut found = std::ptr::null_mut();
    let name = c"nothing".as_ptr();
    assert_eq!(call!(cuModuleGetFunction(&mut found, module, name): fn(*mut CUfunction, CUmodule, *const c_char)), NOT_FOUND);
    let (mut offset, mut size) = (0, 0);
    let info = |i: usize, o: &mut usize, s: &mut usize| call!(cuFuncGetParamInfo(add, i, o, s): fn(CUfunction, usize, *mut usize, *mut usize));
    assert_eq!((info(3, &mut offset, &mut size), offset, size), (SUCCESS, 24, 8));
    assert_eq!(info(4, &mut offset, &mut size), INVALID_VALUE);
    assert_eq!(call!(cuModuleUnload(module): fn(CUmodule)), SUCCESS);
    assert_eq!(launch(add, 1, 1, LEGACY, &[0; 4]), INVALID_HANDLE);
}

#[test]
fn bad_code_is_refused() {
    let _context = Context::new();
    assert_eq!(load(&format!("{HEAD}.visible .entry broken( {{")).0, INVALID_PTX);
    assert_eq!(load(".version 8.0\n.target sm_120\n.address_size 64\n").0, NO_BINARY, "newer than the device");
}

#[test]
fn parameters_can_come_in_one_buffer() {
    let _context = Context::new();
    let store = function(module(STORE), "store");
    let at = alloc(8);
    let buffer = [at, 77u64];
    let mut size = 16usize;
    let extra: [usize; 5] = [1, buffer.as_ptr() as usize, 2, &raw mut size as usize, 0];
    let start = || {
        call!(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, LEGACY, std::ptr::null(), extra.as_ptr()):
            fn(CUfunction, u32, u32, u32, u32, u32, u32, u32, CUstream, *const u8, *const usize))
    };
    assert_eq!(start(), SUCCESS);
    assert_eq!(read::<u64>(at, 1), [77]);
    // As an H200 answers: a short buffer is filled up, a long one is too much.
    for (bytes, answer) in [(8, SUCCESS), (24, LAUNCH_OUT_OF_RESOURCES)] {
        size = bytes;
        assert_eq!((start(), size), (answer, bytes));
    }
}

#[test]
fn variables_have_their_values_and_places() {
    let _context = Context::new();
    let first = module(STORE);
    let (at, size) = variable(first, "counter");
    assert_eq!((size, read::<u64>(at, 1)), (8, vec![40]));
    assert_eq!(launch(function(first, "bump"), 1, 1, LEGACY, &[]), SUCCESS);
    assert_eq!(read::<u64>(at, 1), [41]);
    assert_eq!(free(at), INVALID_VALUE, "not the program's");
    assert_eq!(call!(cuModuleUnload(first): fn(CUmodule)), SUCCESS);
    assert_eq!(write(at, &[0u64]), INVALID_VALUE, "gone");
    let second = module(STORE);
    assert_eq!(variable(second, "counter").0, at, "variables lie where there is room first");
}

#[test]
fn a_fault_stays() {
    let _context = Context::new();
    let store = function(module(STORE), "store");
    assert_eq!(launch(store, 1, 1, LEGACY, &[0x2300_0000_0000, 1]), SUCCESS, "faults come later");
    assert_eq!(synchronise_all(), ILLEGAL_ADDRESS);
    let mut again = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut again, 4): fn(*mut u64, usize)), ILLEGAL_ADDRESS);
    let _other = Context::new();
    assert_eq!(launch(function(module(STORE), "stop"), 1, 1, LEGACY, &[]), SUCCESS, "another context is well");
    assert_eq!(synchronise_all(), LAUNCH_FAILED);
}

#[test]
fn use_after_unmapping_is_a_fault_and_no_crash() {
    // A device where no other kernel runs that could be suspected.
    let _context = Context::on(3);
    let touch = function(module(TOUCH), "touch");
    let flag = alloc(4);
    assert_eq!(write(flag, &[0u32]), SUCCESS);
    let at = mapped(3, 2 << 20);
    let (work, release) = (stream(1), stream(1));
    assert_eq!(launch(touch, 1, 1, work, &[flag, at]), SUCCESS);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(call!(cuMemUnmap(at, 2 << 20): fn(u64, usize)), SUCCESS, "does not wait for the kernel");
    assert_eq!(call!(cuStreamWriteValue32_v2(release, flag, 1, 0): fn(CUstream, u64, u32, u32)), SUCCESS);
    assert_eq!(synchronise(work), ILLEGAL_ADDRESS);
}

#[test]
fn destroying_a_context_ends_its_kernels() {
    let context = Context::new();
    let spin = function(module(SPIN), "spin");
    let at = alloc(4);
    assert_eq!(write(at, &[0u32]), SUCCESS);
    assert_eq!(launch(spin, 1, 1, LEGACY, &[at]), SUCCESS);
    std::thread::sleep(std::time::Duration::from_millis(5));
    drop(context);
}

#[test]
fn kernels_and_other_streams_run_side_by_side() {
    let _context = Context::new();
    let spin = function(module(SPIN), "spin");
    let at = alloc(4);
    assert_eq!(write(at, &[0u32]), SUCCESS);
    let (one, two) = (stream(1), stream(1));
    assert_eq!(launch(spin, 1, 1, one, &[at]), SUCCESS);
    assert_eq!(call!(cuStreamWriteValue32_v2(two, at, 1, 0): fn(CUstream, u64, u32, u32)), SUCCESS);
    assert_eq!(synchronise(one), SUCCESS);
    assert_eq!(read::<u32>(at, 1), [2]);
}

#[test]
fn the_device_heap_is_for_kernels_only() {
    let _context = Context::new();
    let take = function(module(HEAP), "take");
    let out = alloc(8);
    assert_eq!(launch(take, 1, 1, LEGACY, &[out]), SUCCESS);
    let block = read::<u64>(out, 1)[0];
    assert_eq!(block & 0xffff_ffff & 0xf, 0);
    assert!((0x2_0540_0000..0x42_0000_0000).contains(&block), "{block:#x}");
    assert_eq!(write(block, &[0u8]), INVALID_VALUE);
    let set = call!(cuCtxSetLimit(2, 1 << 20): fn(u32, usize));
    assert_eq!(set, INVALID_VALUE, "too late");
}

#[test]
fn a_kernel_of_a_library_is_accepted_for_a_function() {
    let context = Context::new();
    let text = std::ffi::CString::new(format!("{HEAD}{STORE}")).expect("PTX");
    let mut library = std::ptr::null_mut();
    let null = std::ptr::null::<u8>();
    let code = call!(cuLibraryLoadData(&mut library, text.as_ptr(), null, null, 0, null, null, 0):
        fn(*mut CUlibrary, *const c_char, *const u8, *const u8, u32, *const u8, *const u8, u32));
    assert_eq!(code, SUCCESS);
    let mut kernel = std::ptr::null_mut();
    assert_eq!(
        call!(cuLibraryGetKernel(&mut kernel, library, c"store".as_ptr()): fn(*mut CUkernel, CUlibrary, *const c_char)),
        SUCCESS
    );
    let at = alloc(8);
    assert_eq!(launch(kernel as CUfunction, 1, 1, LEGACY, &[at, 5]), SUCCESS);
    assert_eq!(read::<u64>(at, 1), [5]);
    let mut count = 0;
    assert_eq!(call!(cuLibraryGetKernelCount(&mut count, library): fn(*mut u32, CUlibrary)), SUCCESS);
    assert_eq!(count, 3);
    // It outlives a context.
    drop(context);
    let _next = Context::new();
    let at = alloc(8);
    assert_eq!(launch(kernel as CUfunction, 1, 1, LEGACY, &[at, 6]), SUCCESS);
    assert_eq!(read::<u64>(at, 1), [6]);
    assert_eq!(call!(cuLibraryUnload(library): fn(CUlibrary)), SUCCESS);
    assert_eq!(launch(kernel as CUfunction, 1, 1, LEGACY, &[at, 6]), INVALID_HANDLE);
}
