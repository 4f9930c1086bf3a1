//! What can be asked about memory, and what can be advised.

use super::{BYTES, Memory, World, contents, put, world};
use crate::tell::Tell;
use cuda_api::sys::CUdeviceptr;
use std::ffi::c_void;

/// Attributes of addresses.
pub fn attributes(t: &Tell) {
    let w = world(t);
    for m in &w.memory {
        let at = m.at;
        t.about(m.name);
        for attribute in 1..24u32 {
            let mut value = [0u64; 16];
            // Peer-to-peer tokens are refused; sizes and numbers of the driver's own mappings are no part of the transcript.
            if matches!(attribute, 5 | 7 | 18 | 20) || !t.begin(&format!("cuPointerGetAttribute {attribute}")) {
                continue;
            }
            let code = call!(t, memory.cuPointerGetAttribute(value.as_mut_ptr().cast(), attribute, at));
            let shown = if value[0] < 1 << 20 { value[0].to_string() } else { t.name(value[0]) };
            t.end(&if code == 0 { format!("0 {shown}") } else { code.to_string() });
        }
        let (mut memory_type, mut managed, mut ordinal) = (77u32, 77u32, 77i32);
        let mut kinds = [2u32, 8, 9];
        let mut to: [*mut c_void; 3] = [(&raw mut memory_type).cast(), (&raw mut managed).cast(), (&raw mut ordinal).cast()];
        let kinds = kinds.as_mut_ptr().cast();
        say!(t, memory.cuPointerGetAttributes(3, kinds, to.as_mut_ptr(), at) => memory_type, managed, ordinal);
        let (mut base, mut size, mut flags, mut there) = (0, 0, 9, 0);
        say!(t, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at + 8) => at - base, size);
        say!(t, memory.cuMemHostGetFlags(&raw mut flags, at as *mut c_void) => flags);
        say!(t, memory.cuMemHostGetDevicePointer_v2(&raw mut there, at as *mut c_void, 0) => there == at);
        say!(t, memory.cuMemHostGetDevicePointer_v2(&raw mut there, (at + 8) as *mut c_void, 0) => there == at + 8);
        for on in [1u32, 0] {
            t.about(format!("{}, {on}", m.name));
            // `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`
            say!(t, memory.cuPointerSetAttribute((&raw const on).cast(), 6, at));
        }
        ranges(t, m);
    }
}

/// Every attribute of a range.
fn ranges(t: &Tell, m: &Memory) {
    for attribute in 1..9u32 {
        t.about(format!("{}, attribute {attribute}", m.name));
        let mut value = 77i32;
        say!(t, memory.cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, m.at, BYTES) => value);
    }
    t.about(m.name);
    let (mut mostly, mut preferred) = (77i32, 77i32);
    let mut to: [*mut c_void; 2] = [(&raw mut mostly).cast(), (&raw mut preferred).cast()];
    let (mut sizes, mut kinds) = ([4usize; 2], [1u32, 2]);
    let (to, sizes, kinds) = (to.as_mut_ptr(), sizes.as_mut_ptr(), kinds.as_mut_ptr().cast());
    say!(t, memory.cuMemRangeGetAttributes(to, sizes, kinds, 2, m.at, BYTES) => mostly, preferred);
}

/// A `CUmemLocation` as it is passed by value.
fn location(kind: u32, number: u32) -> u64 {
    u64::from(kind) | u64::from(number) << 32
}

/// Advice, prefetches, discards, attachments.
pub fn advice(t: &Tell) {
    let w = world(t);
    for (m, seed) in w.memory.iter().zip(1..) {
        t.about(m.name);
        put(t, m, seed, BYTES);
        advise(t, &w, m);
        t.about(m.name);
        if t.begin("contents") {
            t.end(&contents(t, m, BYTES));
        }
        // What is discarded has no contents.
        let (mut at, mut bytes, mut to, mut first): ([CUdeviceptr; 1], _, _, _) = ([m.at], [BYTES], [location(1, 0)], [0usize]);
        let (at, bytes, to, first) = (at.as_mut_ptr(), bytes.as_mut_ptr(), to.as_mut_ptr().cast(), first.as_mut_ptr());
        let s = w.stream;
        say!(t, memory.cuMemDiscardBatchAsync(at, bytes, 1, 0, s));
        say!(t, memory.cuMemDiscardAndPrefetchBatchAsync(at, bytes, 1, to, first, 1, 0, s));
        say!(t, context.cuCtxSynchronize());
    }
}

fn advise(t: &Tell, w: &World, m: &Memory) {
    let (at, s) = (m.at, w.stream);
    for advice in 1..7 {
        t.about(format!("{}, advice {advice}", m.name));
        say!(t, memory.cuMemAdvise(at, BYTES, advice, 0));
        say!(t, memory.cuMemAdvise(at, BYTES, advice, -1));
        say!(t, memory.cuMemAdvise_v2(at, BYTES, advice, location(1, 0)));
        say!(t, memory.cuMemAdvise_v2(at, BYTES, advice, location(2, 0)));
        say!(t, memory.cuMemAdvise_v2(at, BYTES, advice, location(3, 0)));
    }
    t.about(m.name);
    for (device, name) in [(0, "device"), (-1, "host")] {
        t.about(format!("{}, to the {name}", m.name));
        say!(t, memory.cuMemPrefetchAsync(at, BYTES, device, s));
    }
    for (kind, name) in [(1, "device"), (2, "host"), (3, "node 0")] {
        t.about(format!("{}, to {name}", m.name));
        say!(t, memory.cuMemPrefetchAsync_v2(at, BYTES, location(kind, 0), 0, s));
        ranges(t, m);
        t.about(format!("{}, to {name}", m.name));
        let (mut at, mut bytes, mut to, mut first): ([CUdeviceptr; 1], _, _, _) = ([at], [BYTES], [location(kind, 0)], [0usize]);
        let (at, bytes, to, first) = (at.as_mut_ptr(), bytes.as_mut_ptr(), to.as_mut_ptr().cast(), first.as_mut_ptr());
        say!(t, memory.cuMemPrefetchBatchAsync(at, bytes, 1, to, first, 1, 0, s));
    }
    for (flags, length) in [(1, 0), (2, 0), (4, 0), (1, m.bytes), (1, BYTES), (3, 0)] {
        t.about(format!("{}, {length} bytes, flags {flags}", m.name));
        say!(t, memory.cuStreamAttachMemAsync(s, at, length, flags));
        say!(t, stream.cuStreamSynchronize(s));
    }
    // For all again: the program may use it.
    call!(t, memory.cuStreamAttachMemAsync(s, at, 0, 1));
    call!(t, stream.cuStreamSynchronize(s));
}
