//! What the driver says of itself and of its devices.

use crate::tell::{Tell, static_text, text};
use cuda_api::sys::CUuuid;
use cuda_api::versions;
use std::ffi::CString;

/// Names and descriptions of all result codes.
pub fn errors(t: &Tell) {
    for code in (0..1000).chain([1000, 9999, u32::MAX]) {
        let mut name = std::ptr::null();
        // Most numbers are no codes: only what is not refused in the usual way is told.
        let known = call!(t, device.cuGetErrorName(code, &raw mut name)) == 0;
        let described = call!(t, device.cuGetErrorString(code, &raw mut name)) == 0;
        if known || described || code >= 999 {
            t.about(code.to_string());
            say!(t, device.cuGetErrorName(code, &raw mut name) => static_text(name));
            say!(t, device.cuGetErrorString(code, &raw mut name) => static_text(name));
        }
    }
    t.about("");
    say!(t, device.cuGetErrorName(0, std::ptr::null_mut()));
    say!(t, device.cuGetErrorString(0, std::ptr::null_mut()));
}

/// What `cuGetProcAddress` answers for each base name: a digit for each version (0 found, 1 unknown, 2 too old), `!` for a refusal.
pub fn symbols(t: &Tell) {
    call!(t, device.cuInit(0));
    for base in versions::bases().into_iter().chain(["", "cuNoSuchThing", "cuMemAlloc_v2"]) {
        let name = CString::new(base).unwrap_or_default();
        for flags in [0, 1, 2] {
            t.about(format!("{base} with flags {flags}"));
            if !t.begin("cuGetProcAddress") {
                continue;
            }
            let digit = |version: i32| {
                let (mut function, mut status) = (std::ptr::null_mut(), 9u32);
                let place = (&raw mut status).cast();
                match call!(t, device.cuGetProcAddress_v2(name.as_ptr(), &raw mut function, version, flags, place)) {
                    0 if status == 0 && !function.is_null() => "0".to_owned(),
                    0 if function.is_null() => status.to_string(),
                    0 => "?".to_owned(),
                    code => format!("!{code}"),
                }
            };
            let digits: Vec<String> = [2000, 3020, 4000, 6050, 7000, 10000, 11000, 12000, 12030, 13000].map(digit).to_vec();
            t.end(&digits.join(" "));
        }
    }
    t.about("");
    let mut function = std::ptr::null_mut();
    let mut status = 9u32;
    let place = (&raw mut status).cast();
    say!(t, device.cuGetProcAddress_v2(c"cuInit".as_ptr(), &raw mut function, 13000, 3, place));
    say!(t, device.cuGetProcAddress_v2(c"cuInit".as_ptr(), &raw mut function, 99000, 0, place));
    say!(t, device.cuGetProcAddress_v2(c"cuInit".as_ptr(), &raw mut function, -1, 0, place));
    say!(t, device.cuGetProcAddress_v2(c"cuInit".as_ptr(), &raw mut function, 13000, 0, std::ptr::null_mut()) => function.is_null());
    say!(t, device.cuGetProcAddress(c"cuNoSuchThing".as_ptr(), &raw mut function, 11030, 0));
}

/// Devices and their attributes.
pub fn devices(t: &Tell) {
    let mut count = -1;
    say!(t, device.cuDeviceGetCount(&raw mut count));
    say!(t, device.cuInit(1));
    say!(t, device.cuInit(0));
    say!(t, device.cuInit(0));
    say!(t, device.cuDeviceGetCount(&raw mut count) => count > 0);
    for ordinal in [0, count, -1, i32::MAX] {
        t.about(format!("device {}", if ordinal == count { "past the last".to_owned() } else { ordinal.to_string() }));
        one(t, ordinal);
    }
    t.about("");
    let mut bytes = 0;
    say!(t, device.cuDeviceGetName(std::ptr::null_mut(), 10, 0));
    say!(t, device.cuDeviceTotalMem_v2(std::ptr::null_mut(), 0));
    say!(t, device.cuDeviceGetUuid_v2(std::ptr::null_mut(), 0));
    say!(t, device.cuDeviceTotalMem_v2(&raw mut bytes, 0) => bytes >> 20);
    let mut device = -1;
    for id in [c"", c"0", c"zz:00.0", c"0000:ff:1f.7", c"ff:1f.0", c"0000:00:00.0:5"] {
        t.about(format!("{id:?}"));
        say!(t, device.cuDeviceGetByPCIBusId(&raw mut device, id.as_ptr()) => device);
    }
    t.about("");
    let mut name = [0u8; 64];
    for length in [-1, 0, 1, 8, 12, 13, 16, 64] {
        t.about(format!("{length} bytes"));
        // The PCI address is the machine's, its length is not.
        say!(t, device.cuDeviceGetPCIBusId(name.as_mut_ptr().cast(), length, 0) => text(&name).len());
    }
    t.about("");
    for attribute in 0..6 {
        let mut value = -1;
        t.about(format!("attribute {attribute}"));
        say!(t, device.cuDeviceGetP2PAttribute(&raw mut value, attribute, 0, 0) => value);
        say!(t, device.cuDeviceGetP2PAttribute(&raw mut value, attribute, 0, 99) => value);
    }
    t.about("");
    let mut can = -1;
    say!(t, device.cuDeviceCanAccessPeer(&raw mut can, 0, 0) => can);
    say!(t, device.cuDeviceCanAccessPeer(&raw mut can, 0, 99) => can);
    say!(t, device.cuDeviceCanAccessPeer(std::ptr::null_mut(), 0, 0));
    for (format, channels) in [(1, 1), (8, 4), (0x10, 2), (0x20, 1), (0x20, 3), (0x20, 4), (0x20, 8), (0x77, 1), (0xff, 0)] {
        let mut width = 0;
        t.about(format!("format {format:#x}, {channels} channels"));
        say!(t, device.cuDeviceGetTexture1DLinearMaxWidth(&raw mut width, format, channels, 0) => width);
    }
    for kind in 0..3 {
        let mut support = -1;
        t.about(format!("kind {kind}"));
        say!(t, device.cuDeviceGetExecAffinitySupport(&raw mut support, kind, 0) => support);
    }
    t.about("");
    let mut table = std::ptr::null();
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut uuid: CUuuid = unsafe { std::mem::zeroed() };
    say!(t, device.cuGetExportTable(&raw mut table, &raw const uuid) => table.is_null());
    say!(t, device.cuGetExportTable(&raw mut table, std::ptr::null()));
    say!(t, device.cuDeviceGetUuid_v2(&raw mut uuid, 0) => uuid.bytes.iter().any(|b| *b != 0));
    say!(t, device.cuProfilerStart());
    say!(t, device.cuProfilerStop());
}

/// Attributes that are measured or belong to the machine: only that they are there is told.
const VARYING: [u32; 5] = [33, 34, 50, 110, 145];

fn one(t: &Tell, ordinal: i32) {
    let (mut device, mut major, mut minor, mut bytes, mut name) = (-1, -1, -1, 0, [0u8; 128]);
    say!(t, device.cuDeviceGet(&raw mut device, ordinal) => device);
    say!(t, device.cuDeviceGet(std::ptr::null_mut(), ordinal));
    say!(t, device.cuDeviceGetName(name.as_mut_ptr().cast(), 128, ordinal) => text(&name));
    // The driver crashes when it is told that there is no room at all.
    for length in [1, 5] {
        if !t.begin(&format!("cuDeviceGetName of {length} bytes")) {
            continue;
        }
        let code = call!(t, device.cuDeviceGetName(name.as_mut_ptr().cast(), length, ordinal));
        t.end(&format!("{code} {}", text(&name)));
    }
    say!(t, device.cuDeviceTotalMem_v2(&raw mut bytes, ordinal) => bytes >> 30);
    say!(t, device.cuDeviceComputeCapability(&raw mut major, &raw mut minor, ordinal) => major, minor);
    for attribute in 0..160 {
        let mut value = -1;
        if !t.begin(&format!("cuDeviceGetAttribute {attribute}")) {
            continue;
        }
        let code = call!(t, device.cuDeviceGetAttribute(&raw mut value, attribute, ordinal));
        t.end(&if code == 0 && !VARYING.contains(&attribute) { format!("0 {value}") } else { code.to_string() });
    }
    let (mut flags, mut active) = (99, 99);
    say!(t, context.cuDevicePrimaryCtxGetState(ordinal, &raw mut flags, &raw mut active) => flags, active);
    say!(t, context.cuDevicePrimaryCtxSetFlags_v2(ordinal, 0));
    say!(t, context.cuDevicePrimaryCtxRelease_v2(ordinal));
}
