//! Allocations, copies and fills at their edges, and what can be asked about addresses.

use crate::code;
use crate::tell::Tell;
use std::ffi::c_void;

/// Copies and fills with good and bad ends.
pub fn all(t: &Tell) {
    t.start();
    let (mut a, mut b, mut pitch, mut address) = (0, 0, 0, 0);
    let none: *mut c_void = std::ptr::null_mut();
    for bytes in [0, 1, 511, 512, 1 << 20, 1 << 44, usize::MAX] {
        t.about(format!("{bytes} bytes"));
        if say!(t, memory.cuMemAlloc_v2(&raw mut address, bytes) => address % 256) == 0 {
            let (mut base, mut size) = (0, 0);
            say!(t, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address) => base == address, size);
            say!(t, memory.cuMemGetAddressRange_v2(none.cast(), none.cast(), address));
            say!(t, memory.cuMemFree_v2(address + 1));
            say!(t, memory.cuMemFree_v2(address));
            say!(t, memory.cuMemFree_v2(address));
            say!(t, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address));
        }
    }
    for (width, height, element) in
        [(100, 4, 4), (100, 4, 8), (100, 4, 16), (100, 4, 5), (0, 4, 4), (100, 0, 4), (513, 3, 16), (1 << 40, 1 << 20, 4)]
    {
        t.about(format!("{width} x {height} of {element}"));
        if say!(t, memory.cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, width, height, element) => pitch) == 0 {
            say!(t, memory.cuMemFree_v2(address));
        }
    }
    t.about("two buffers");
    say!(t, memory.cuMemAlloc_v2(&raw mut a, 4096) => t.name(a));
    say!(t, memory.cuMemAlloc_v2(&raw mut b, 4096) => t.name(b));
    t.move_here();
    let mut host = vec![7u8; 8192];
    let h: *mut c_void = host.as_mut_ptr().cast();
    for bytes in [0, 1, 4096, 4097] {
        t.about(format!("{bytes} bytes of 4096"));
        say!(t, memory.cuMemcpyHtoD_v2(a, h, bytes));
        say!(t, memory.cuMemcpyDtoH_v2(h, a, bytes));
        say!(t, memory.cuMemcpyDtoD_v2(b, a, bytes));
        say!(t, memory.cuMemcpyHtoDAsync_v2(a, h, bytes, none.cast()));
        say!(t, memory.cuMemcpyDtoHAsync_v2(h, a, bytes, none.cast()));
        say!(t, memory.cuMemcpyDtoDAsync_v2(b, a, bytes, none.cast()));
        say!(t, memory.cuMemsetD8_v2(a, 1, bytes));
        say!(t, memory.cuMemsetD8Async(a, 1, bytes, none.cast()));
        say!(t, context.cuCtxSynchronize());
    }
    t.about("addresses that are none");
    say!(t, memory.cuMemcpyHtoD_v2(0, h, 16));
    say!(t, memory.cuMemcpyDtoH_v2(h, 0, 16));
    say!(t, memory.cuMemcpyDtoH_v2(h, 0x1234, 16));
    say!(t, memory.cuMemcpyDtoD_v2(a, 0x1234, 16));
    say!(t, memory.cuMemcpyHtoD_v2(a, std::ptr::null(), 16));
    say!(t, memory.cuMemsetD8_v2(0x1234, 1, 16));
    say!(t, memory.cuMemsetD16_v2(a + 1, 1, 4));
    say!(t, memory.cuMemsetD32_v2(a + 2, 1, 4));
    say!(t, memory.cuMemsetD16_v2(a, 1, 2049));
    say!(t, memory.cuMemsetD32_v2(a, 1, 1025));
    say!(t, memory.cuMemsetD2D8_v2(a, 64, 1, 65, 4));
    say!(t, memory.cuMemsetD2D8_v2(a, 64, 1, 64, 65));
    say!(t, memory.cuMemsetD2D8_v2(a, 64, 1, 0, 0));
    say!(t, memory.cuMemFree_v2(0));
    say!(t, memory.cuMemFree_v2(h as u64));
    t.about("the context");
    say!(t, context.cuCtxSynchronize());
    t.about("overlap");
    say!(t, memory.cuMemcpyDtoD_v2(a + 16, a, 64));
    t.about("the end");
    say!(t, memory.cuMemFree_v2(a));
    say!(t, memory.cuMemFree_v2(b));
    say!(t, memory.cuMemcpyDtoH_v2(h, a, 16));
}

/// Every attribute of addresses of every kind.
pub fn pointers(t: &Tell) {
    t.start();
    let mut device = 0;
    let (mut pinned, mut portable) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut own = vec![0u8; 3 << 12];
    let page: *mut c_void = own.as_mut_ptr().map_addr(|a| a.next_multiple_of(4096)).cast();
    call!(t, memory.cuMemAlloc_v2(&raw mut device, 8192));
    let (module, mut variable) = (code::load(t), 0);
    call!(t, module.cuModuleGetGlobal_v2(&raw mut variable, std::ptr::null_mut(), module, c"table".as_ptr()));
    say!(t, memory.cuMemAllocHost_v2(&raw mut pinned, 8192));
    for flags in [0x8, 0x10, u32::MAX] {
        t.about(format!("flags {flags:#x}"));
        say!(t, memory.cuMemHostAlloc(&raw mut portable, 16, flags));
        say!(t, memory.cuMemHostRegister_v2(page, 16, flags));
    }
    t.about("");
    say!(t, memory.cuMemHostAlloc(&raw mut portable, 8192, 1));
    say!(t, memory.cuMemHostRegister_v2(page, 4096, 1));
    say!(t, memory.cuMemHostRegister_v2(page.wrapping_byte_add(16), 16, 0));
    say!(t, memory.cuMemHostRegister_v2(std::ptr::null_mut(), 16, 0));
    say!(t, memory.cuMemHostRegister_v2(page, 0, 0));
    t.move_here();
    let places = [
        ("device", device),
        ("device + 100", device + 100),
        ("variable", variable),
        ("variable + 4", variable + 4),
        ("pinned", pinned as u64),
        ("portable", portable as u64),
        ("registered", page as u64),
        ("host", (&raw const device) as u64),
        ("null", 0),
    ];
    for (what, at) in places {
        for attribute in 0..24 {
            let mut value = [0u64; 16];
            if attribute == 5 || !t.begin(&format!("cuPointerGetAttribute {attribute} of {what}")) {
                continue;
            }
            let code = call!(t, memory.cuPointerGetAttribute(value.as_mut_ptr().cast(), attribute, at));
            // Large values are addresses and handles, or numbers of this process.
            // Of what the driver has made for itself, sizes and numbers are its own.
            let shown = if matches!(attribute, 7 | 18 | 20) {
                String::new()
            } else if value[0] < 1 << 20 {
                value[0].to_string()
            } else {
                t.name(value[0])
            };
            t.end(&if code == 0 { format!("0 {shown}") } else { code.to_string() });
        }
    }
    let mut flags = 99;
    for (what, at) in [("pinned", pinned), ("portable", portable), ("registered", page), ("host", (&raw mut flags).cast())] {
        t.about(what);
        say!(t, memory.cuMemHostGetFlags(&raw mut flags, at) => flags);
        let mut there = 0;
        say!(t, memory.cuMemHostGetDevicePointer_v2(&raw mut there, at, 0) => there == at as u64);
        say!(t, memory.cuMemHostGetDevicePointer_v2(&raw mut there, at, 1));
    }
    t.about("variable + 4");
    let (mut base, mut size) = (0, 0);
    say!(t, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, variable + 4) => base == variable, size);
    say!(t, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, variable + 64));
    t.about("the end");
    say!(t, module.cuModuleUnload(module));
    say!(t, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, variable));
    say!(t, memory.cuMemHostUnregister(pinned));
    say!(t, memory.cuMemFreeHost(page));
    say!(t, memory.cuMemFreeHost(pinned));
    say!(t, memory.cuMemFreeHost(pinned));
    say!(t, memory.cuMemFreeHost(portable));
    say!(t, memory.cuMemHostUnregister(page));
    say!(t, memory.cuMemHostUnregister(page));
    say!(t, memory.cuMemFreeHost(std::ptr::null_mut()));
}
