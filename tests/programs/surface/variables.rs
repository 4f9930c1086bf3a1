//! Managed variables of modules and libraries: where they are, what is said of them, how long they live.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::{CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule};
use std::ffi::CStr;

/// `counter` and `field` are managed, `plain` is not; `tick` changes all three.
const CODE: &CStr = c".version 7.0
.target sm_75
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 counter = 5;
.visible .global .attribute(.managed) .align 8 .b8 field[6000] = {1, 2, 3};
.visible .global .align 4 .u32 plain = 7;
.visible .global .align 8 .u64 into = generic(field)+8;
.visible .entry tick()
{
	.reg .b32 	%r<6>;
	.reg .b64 	%rd<6>;
	mov.u64 	%rd1, counter;
	cvta.global.u64 	%rd2, %rd1;
	atom.add.u32 	%r1, [%rd2], 1;
	ld.global.u32 	%r2, [plain];
	add.s32 	%r3, %r2, %r1;
	st.global.u32 	[plain], %r3;
	st.global.u32 	[field+4000], %r3;
	ld.global.u64 	%rd3, [into];
	st.u32 	[%rd3], %r1;
	ret;
}
";

/// What is alive.
pub struct Variables {
    module: CUmodule,
    library: CUlibrary,
    function: CUfunction,
    kernel: CUkernel,
    /// `counter` of the module and of the library, as they were told first.
    counters: [CUdeviceptr; 2],
}

fn word(at: CUdeviceptr) -> u32 {
    // SAFETY: a managed variable that is alive, or nothing is told.
    if at == 0 { 0 } else { unsafe { std::ptr::read_volatile(at as *const u32) } }
}

/// Loads the code twice, and asks for its variables before anything has run.
pub fn build(s: &Surface) -> Variables {
    let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut module, mut library) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut function, mut kernel): (CUfunction, CUkernel) = (std::ptr::null_mut(), std::ptr::null_mut());
    tell!(s, module.cuModuleLoadData(&raw mut module, CODE.as_ptr().cast()));
    tell!(
        s,
        module.cuLibraryLoadData(&raw mut library, CODE.as_ptr().cast(), none, nothing, 0, std::ptr::null_mut(), nothing, 0)
    );
    tell!(s, module.cuModuleGetFunction(&raw mut function, module, c"tick".as_ptr()));
    tell!(s, module.cuLibraryGetKernel(&raw mut kernel, library, c"tick".as_ptr()));
    let (mut one, mut other, mut bytes) = (0, 0, 0);
    show!(s, module.cuModuleGetGlobal_v2(&raw mut one, &raw mut bytes, module, c"counter".as_ptr()) => bytes, word(one));
    show!(s, module.cuLibraryGetManaged(&raw mut other, &raw mut bytes, library, c"counter".as_ptr()) => bytes, word(other), one != other);
    let mut field = 0;
    show!(s, module.cuLibraryGetManaged(&raw mut field, &raw mut bytes, library, c"field".as_ptr()) => bytes, word(field), word(field + 8));
    Variables { module, library, function, kernel, counters: [one, other] }
}

/// Asks about them, and lets kernels and host change them.
pub fn use_them(s: &Surface, v: &Variables) {
    let (mut at, mut bytes) = (0, 0);
    let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
    for name in [c"counter", c"field", c"plain", c"nothing", c""] {
        show!(s, module.cuModuleGetGlobal_v2(&raw mut at, &raw mut bytes, v.module, name.as_ptr()) => bytes);
        show!(s, module.cuLibraryGetGlobal(&raw mut at, &raw mut bytes, v.library, name.as_ptr()) => bytes);
        show!(s, module.cuLibraryGetManaged(&raw mut at, &raw mut bytes, v.library, name.as_ptr()) => bytes);
    }
    show!(s, module.cuModuleGetGlobal_v2(&raw mut at, std::ptr::null_mut(), v.module, c"counter".as_ptr()) => at == v.counters[0]);
    show!(s, module.cuLibraryGetGlobal(&raw mut at, std::ptr::null_mut(), v.library, c"counter".as_ptr()) => at == v.counters[1]);
    show!(s, module.cuLibraryGetManaged(&raw mut at, std::ptr::null_mut(), v.library, c"counter".as_ptr()) => at == v.counters[1]);
    show!(s, module.cuLibraryGetManaged(std::ptr::null_mut(), &raw mut bytes, v.library, c"field".as_ptr()) => bytes);
    tell!(s, module.cuLibraryGetManaged(std::ptr::null_mut(), std::ptr::null_mut(), v.library, c"field".as_ptr()));
    tell!(s, module.cuLibraryGetManaged(&raw mut at, &raw mut bytes, v.library, std::ptr::null()));
    tell!(s, module.cuLibraryGetManaged(&raw mut at, &raw mut bytes, bad_handle(), c"field".as_ptr()));
    let mut lent = std::ptr::null_mut();
    tell!(s, module.cuLibraryGetModule(&raw mut lent, v.library));
    show!(s, module.cuModuleGetGlobal_v2(&raw mut at, &raw mut bytes, lent, c"counter".as_ptr()) => at == v.counters[1], bytes);

    for (round, counter) in v.counters.into_iter().enumerate() {
        // Context, type, device's and host's pointer, waiting, managed, device, start, size, mapped.
        for attribute in [1, 2, 3, 4, 6, 8, 9, 11, 12, 13] {
            let mut value = 0u64;
            print!("{attribute:4} ");
            let relative = if matches!(attribute, 3 | 4 | 11) { counter + 2 } else { 0 };
            show!(s, memory.cuPointerGetAttribute((&raw mut value).cast(), attribute, counter + 2) => value.wrapping_sub(relative) as i64);
        }
        let (mut start, mut size) = (0, 0);
        show!(s, memory.cuMemGetAddressRange_v2(&raw mut start, &raw mut size, counter + 1) => start == counter, size);
        tell!(s, memory.cuMemFree_v2(counter));
        tell!(s, memory.cuMemFreeHost(counter as *mut _));
        let function = if round == 0 { v.function } else { v.kernel.cast() };
        for _ in 0..3 {
            tell!(s, launch.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, none, nothing, nothing));
        }
        tell!(s, context.cuCtxSynchronize());
        println!("  counted {}", word(counter));
        tell!(s, memory.cuMemsetD8_v2(counter, 0, 4));
        println!("  set to {}", word(counter));
    }
    let mut field = 0;
    tell!(s, module.cuLibraryGetManaged(&raw mut field, &raw mut bytes, v.library, c"field".as_ptr()));
    println!("  written {} {}", word(field + 8), word(field + 4000));
}

/// They end with their code.
pub fn end(s: &Surface, v: Variables) {
    let mut is = 9u32;
    tell!(s, module.cuModuleUnload(v.module));
    tell!(s, memory.cuPointerGetAttribute((&raw mut is).cast(), 8, v.counters[0]));
    show!(s, memory.cuPointerGetAttribute((&raw mut is).cast(), 8, v.counters[1]) => is);
    tell!(s, module.cuLibraryUnload(v.library));
    tell!(s, memory.cuPointerGetAttribute((&raw mut is).cast(), 8, v.counters[1]));
}
