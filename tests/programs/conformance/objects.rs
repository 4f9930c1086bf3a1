//! Streams, events, pools, physical memory and graphs at their edges.

use crate::tell::Tell;
use cuda_api::sys::{CUevent, CUmemAllocationProp, CUstream};

/// Streams and events.
pub fn streams(t: &Tell) {
    t.start();
    let mut stream: CUstream = std::ptr::null_mut();
    let mut event: CUevent = std::ptr::null_mut();
    for (flags, priority) in [(0, 0), (1, 0), (1, -1), (1, -99), (1, 99), (2, 0), (u32::MAX, 0)] {
        t.about(format!("flags {flags}, priority {priority}"));
        if say!(t, stream.cuStreamCreateWithPriority(&raw mut stream, flags, priority)) == 0 {
            let (mut got, mut level, mut device) = (99, 99, 99);
            say!(t, stream.cuStreamGetFlags(stream, &raw mut got) => got);
            say!(t, stream.cuStreamGetPriority(stream, &raw mut level) => level);
            say!(t, stream.cuStreamGetDevice(stream, &raw mut device) => device);
            say!(t, stream.cuStreamGetFlags(stream, std::ptr::null_mut()));
            say!(t, stream.cuStreamDestroy_v2(stream));
        }
    }
    for (what, stream) in [("legacy", 1usize), ("per thread", 2), ("3", 3)] {
        let stream = std::ptr::without_provenance_mut(stream);
        let (mut got, mut level) = (99, 99);
        if stream as usize == 3 {
            // No stream, and no address either.
            continue;
        }
        t.about(what);
        say!(t, stream.cuStreamGetFlags(stream, &raw mut got) => got);
        say!(t, stream.cuStreamGetPriority(stream, &raw mut level) => level);
        say!(t, stream.cuStreamSynchronize(stream));
        say!(t, stream.cuStreamQuery(stream));
        say!(t, stream.cuStreamDestroy_v2(stream));
    }
    for flags in [0, 1, 2, 3, 4, 6, 8, u32::MAX] {
        t.about(format!("event flags {flags}"));
        if say!(t, stream.cuEventCreate(&raw mut event, flags)) == 0 {
            let mut ms = 0.0;
            say!(t, stream.cuEventQuery(event));
            say!(t, stream.cuEventSynchronize(event));
            say!(t, stream.cuEventElapsedTime(&raw mut ms, event, event));
            say!(t, stream.cuEventRecord(event, std::ptr::null_mut()));
            say!(t, stream.cuEventSynchronize(event));
            say!(t, stream.cuEventElapsedTime(&raw mut ms, event, event) => ms);
            say!(t, stream.cuEventRecordWithFlags(event, std::ptr::null_mut(), 1));
            say!(t, stream.cuEventRecordWithFlags(event, std::ptr::null_mut(), 2));
            say!(t, stream.cuStreamWaitEvent(std::ptr::null_mut(), event, 0));
            say!(t, stream.cuStreamWaitEvent(std::ptr::null_mut(), event, 1));
            say!(t, stream.cuStreamWaitEvent(std::ptr::null_mut(), event, 2));
            say!(t, stream.cuEventElapsedTime(std::ptr::null_mut(), event, event));
            say!(t, stream.cuEventDestroy_v2(event));
        }
    }
    t.about("a stream and an event, before and after a move");
    call!(t, stream.cuStreamCreate(&raw mut stream, 1));
    call!(t, stream.cuEventCreate(&raw mut event, 0));
    say!(t, stream.cuEventRecord(event, stream));
    // What is asked at once depends on time.
    say!(t, stream.cuStreamSynchronize(stream));
    t.move_here();
    say!(t, stream.cuEventQuery(event));
    say!(t, stream.cuStreamQuery(stream));
    say!(t, stream.cuStreamWaitEvent(stream, event, 0));
    let mut id = 0;
    say!(t, stream.cuStreamGetId(stream, &raw mut id));
    say!(t, stream.cuStreamSynchronize(stream));
    t.about("capture");
    let (mut graph, mut exec, mut status, mut n) = (std::ptr::null_mut(), std::ptr::null_mut(), 9u32, 0usize);
    say!(t, graph.cuStreamEndCapture(stream, &raw mut graph));
    say!(t, graph.cuStreamBeginCapture_v2(stream, 7));
    say!(t, graph.cuStreamBeginCapture_v2(stream, 0));
    say!(t, graph.cuStreamBeginCapture_v2(stream, 0));
    say!(t, graph.cuStreamIsCapturing(stream, (&raw mut status).cast()) => status);
    say!(t, stream.cuStreamQuery(stream));
    say!(t, graph.cuStreamIsCapturing(stream, (&raw mut status).cast()) => status);
    say!(t, graph.cuStreamEndCapture(stream, &raw mut graph) => graph.is_null());
    say!(t, graph.cuStreamBeginCapture_v2(stream, 2));
    say!(t, stream.cuEventRecord(event, stream));
    say!(t, stream.cuEventQuery(event));
    say!(t, graph.cuStreamEndCapture(stream, &raw mut graph));
    say!(t, graph.cuStreamIsCapturing(stream, (&raw mut status).cast()) => status);
    t.about("an empty graph");
    say!(t, graph.cuGraphCreate(&raw mut graph, 0));
    say!(t, graph.cuGraphCreate(&raw mut graph, 1));
    say!(t, graph.cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut n) => n);
    say!(t, graph.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
    say!(t, graph.cuGraphLaunch(exec, stream));
    say!(t, stream.cuStreamSynchronize(stream));
    say!(t, graph.cuGraphExecDestroy(exec));
    say!(t, graph.cuGraphDestroy(graph));
    t.about("the end");
    say!(t, stream.cuEventDestroy_v2(event));
    say!(t, stream.cuStreamDestroy_v2(stream));
}

/// Attributes of pools and physical memory.
pub fn settings(t: &Tell) {
    t.start();
    let mut pool = std::ptr::null_mut();
    say!(t, device.cuDeviceGetDefaultMemPool(&raw mut pool, 0) => pool.is_null());
    t.move_here();
    for attribute in 0..14 {
        let mut value = 0u64;
        t.about(format!("attribute {attribute}"));
        say!(t, memory.cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) => value);
    }
    for (attribute, value) in
        [(1, 0u64), (1, 1), (2, 0), (3, 1), (4, 1 << 20), (4, u64::MAX), (5, 0), (6, 0), (6, 5), (7, 0), (8, 0), (99, 0)]
    {
        let (mut set, mut got) = (value, 0u64);
        t.about(format!("attribute {attribute}, value {value}"));
        say!(t, memory.cuMemPoolSetAttribute(pool, attribute, (&raw mut set).cast()));
        say!(t, memory.cuMemPoolGetAttribute(pool, attribute, (&raw mut got).cast()) => got);
    }
    t.about("");
    say!(t, memory.cuMemPoolTrimTo(pool, 0));
    say!(t, memory.cuMemPoolDestroy(pool));
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    let mut granularity = 0;
    let words: *mut u32 = (&raw mut prop).cast();
    // Type, handle types, kind of location, its id: the first four words.
    for (kind, handles, place, id) in
        [(1, 0, 1, 0), (1, 1, 1, 0), (0, 0, 1, 0), (2, 0, 1, 0), (1, 0, 0, 0), (1, 0, 1, 99), (1, 0, 2, 0), (1, 0x80, 1, 0)]
    {
        for (at, value) in [kind, handles, place, id].into_iter().enumerate() {
            // SAFETY: four words inside the struct; it is only read by the driver, as C.
            unsafe { words.add(at).write(value) };
        }
        for option in [0, 1, 2] {
            t.about(format!("type {kind}, handles {handles:#x}, location {place} {id}, option {option}"));
            say!(t, vmm.cuMemGetAllocationGranularity(&raw mut granularity, &raw const prop, option) => granularity);
        }
    }
}
