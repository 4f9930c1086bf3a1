//! Every function that copies, fills, waits for or writes memory, and every question about it, with memory of every kind: what is
//! answered, and what lies in the memory then. Nothing of this is written down: the driver itself is what it is compared with.

mod about;
mod arrays;
mod copies;
mod graphs;
mod writes;

pub use about::{advice, attributes};
pub use arrays::arrays;
pub use copies::{batches, copies, copies_of_used};
pub use graphs::{captures, copying_nodes, nodes_of_used, updates, writing_nodes};
pub use writes::{fills, words, writes_of_used};

use crate::code;
use crate::tell::Tell;
use cuda_api::copy::write_copy_3d;
use cuda_api::pointer::OutPtr;
use cuda_api::sys::{CUDA_ARRAY_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUarray_format, CUcontext, CUstream};
use cuda_api::work::{Copy3, CopyEnd};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Bytes that most calls concern, in rows of [`ROW`].
const BYTES: usize = 64;
const ROW: usize = 16;
/// Bytes that a call with much concerns.
const MUCH: usize = 300_001;
/// Bytes of most allocations.
const BLOCK: usize = 1 << 19;
/// Where parts of allocations begin: far in, and at no border of anything.
const INSIDE: u64 = (1 << 16) + 8;
const GRANULE: usize = 2 << 20;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`
const WRITE_COMBINED: u32 = 4;

/// Some memory.
struct Memory {
    name: &'static str,
    at: u64,
    bytes: usize,
    /// The program can use it by its address.
    host: bool,
}

/// What the functions are called with beside the memory.
struct World {
    memory: Vec<Memory>,
    stream: CUstream,
    context: CUcontext,
    array: CUarray,
    other: CUarray,
}

/// Whole pages of the program's own.
fn pages() -> *mut c_void {
    let pages: &'static mut [u8] = Box::leak(vec![0; BLOCK + 4096].into_boxed_slice());
    pages.as_mut_ptr().map_addr(|a| a.next_multiple_of(4096)).cast()
}

/// Makes memory of each kind.
fn world(t: &Tell) -> World {
    t.start();
    let (mut stream, mut context, mut array, mut other) = (null_mut(), null_mut(), null_mut(), null_mut());
    let (mut device, mut pooled, mut managed, mut mapped, mut handle, mut variable) = (0, 0, 0, 0, 0, 0);
    let (mut pinned, mut combined, mut used, mut there) = (null_mut(), null_mut(), null_mut(), 0);
    let own = pages();
    say!(t, stream.cuStreamCreate(&raw mut stream, 1));
    say!(t, context.cuCtxGetCurrent(&raw mut context));
    say!(t, memory.cuMemAlloc_v2(&raw mut device, BLOCK));
    say!(t, memory.cuMemAllocAsync(&raw mut pooled, BLOCK, stream));
    say!(t, memory.cuMemAllocHost_v2(&raw mut pinned, BLOCK));
    say!(t, memory.cuMemHostAlloc(&raw mut combined, BLOCK, WRITE_COMBINED));
    say!(t, memory.cuMemAllocHost_v2(&raw mut used, BLOCK));
    say!(t, memory.cuMemHostGetDevicePointer_v2(&raw mut there, used, 0));
    say!(t, memory.cuMemHostRegister_v2(own, BLOCK, 0));
    say!(t, memory.cuMemAllocManaged(&raw mut managed, BLOCK, 1));
    // `CUmemAllocationProp`: pinned, no descriptors, on device 0; `CUmemAccessDesc`: device 0 reads and writes.
    let (prop, access) = ([1u32, 0, 1, 0, 0, 0, 0, 0], [1u32, 0, 3]);
    say!(t, vmm.cuMemAddressReserve(&raw mut mapped, GRANULE, 0, 0, 0));
    say!(t, vmm.cuMemCreate(&raw mut handle, GRANULE, (&raw const prop).cast(), 0));
    say!(t, vmm.cuMemMap(mapped, GRANULE, 0, handle, 0));
    say!(t, vmm.cuMemSetAccess(mapped, GRANULE, (&raw const access).cast(), 1));
    let module = code::load(t);
    say!(t, module.cuModuleGetGlobal_v2(&raw mut variable, null_mut(), module, c"table".as_ptr()));
    let shape = CUDA_ARRAY_DESCRIPTOR {
        Width: ROW,
        Height: BYTES / ROW,
        Format: CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8,
        NumChannels: 1,
    };
    say!(t, array.cuArrayCreate_v2(&raw mut array, &raw const shape));
    say!(t, array.cuArrayCreate_v2(&raw mut other, &raw const shape));
    say!(t, stream.cuStreamSynchronize(stream));
    t.move_here();
    let rest = BLOCK - INSIDE as usize;
    let memory = |name, at, bytes, host| Memory { name, at, bytes, host };
    let memory = vec![
        memory("device", device, BLOCK, false),
        memory("inside device", device + INSIDE, rest, false),
        memory("pooled", pooled, BLOCK, false),
        memory("mapped", mapped, BLOCK, false),
        memory("variable", variable, BYTES, false),
        memory("managed", managed, BLOCK, true),
        memory("pinned", pinned as u64, BLOCK, true),
        memory("pinned write-combined", combined as u64, BLOCK, true),
        memory("pinned that a GPU uses", used as u64, BLOCK, true),
        memory("inside pinned that a GPU uses", used as u64 + INSIDE, rest, true),
        memory("registered", own as u64, BLOCK, true),
        memory("pageable", pages() as u64, BLOCK, true),
    ];
    World { memory, stream, context, array, other }
}

/// The same, and a GPU uses the registered memory, too: then places of this machine keep copies of what they shared.
fn world_of_used(t: &Tell) -> World {
    let mut w = world(t);
    let mut there = 0;
    if let Some(registered) = w.memory.iter_mut().find(|m| m.name == "registered") {
        say!(t, memory.cuMemHostGetDevicePointer_v2(&raw mut there, registered.at as *mut c_void, 0));
        registered.name = "registered that a GPU uses";
    }
    w
}

/// Whether a GPU was told to use this memory of the host's by its address.
fn is_used(m: &Memory) -> bool {
    m.name.ends_with("that a GPU uses")
}

/// A value of which all bytes are zero, which is one.
fn zeroed<T>() -> MaybeUninit<T> {
    MaybeUninit::zeroed()
}

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(7) ^ (i >> 8) as u8 ^ seed).collect()
}

fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// A digest of what is in some memory, as a copy finds it, and the program itself where it can; waits for everything before.
fn contents(t: &Tell, m: &Memory, bytes: usize) -> String {
    let mut copy = vec![0u8; bytes];
    let waited = call!(t, context.cuCtxSynchronize());
    let read = call!(t, memory.cuMemcpy(copy.as_mut_ptr() as u64, m.at, bytes));
    if m.host {
        let mut seen = vec![0u8; bytes];
        // SAFETY: memory of the host's with as many bytes; nothing writes to it while this waits.
        unsafe { std::ptr::copy_nonoverlapping(m.at as *const u8, seen.as_mut_ptr(), bytes) };
        return format!("{waited} {read} {:016x} {:016x}", digest(&copy), digest(&seen));
    }
    format!("{waited} {read} {:016x}", digest(&copy))
}

/// Fills memory: by the program itself where it can.
fn put(t: &Tell, m: &Memory, seed: u8, bytes: usize) {
    let source = pattern(seed, bytes);
    if m.host {
        // SAFETY: memory of the host's with as many bytes; whatever was asked of the GPU with it has been waited for.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), m.at as *mut u8, bytes) };
    } else {
        call!(t, memory.cuMemcpy(m.at, source.as_ptr() as u64, bytes));
        // A copy from pageable memory returns when its bytes are taken, and work of a stream that does not wait for the default one may overtake it.
        call!(t, context.cuCtxSynchronize());
    }
}

/// Tells what a call answers and leaves in some memory.
fn case_of(t: &Tell, name: &str, to: &Memory, bytes: usize, run: impl FnOnce() -> i32) {
    if t.begin(name) {
        put(t, to, 0xa5, bytes);
        let code = run();
        t.end(&format!("{code} {}", contents(t, to, bytes)));
    }
}

fn case(t: &Tell, name: &str, to: &Memory, run: impl FnOnce() -> i32) {
    case_of(t, name, to, BYTES, run);
}

/// An end of a copy in rows, in memory of a type by name.
fn end(memory: u32, at: u64) -> CopyEnd {
    CopyEnd { memory, host: at, device: at, pitch: ROW as u64, height: 2, ..CopyEnd::default() }
}

fn rows(src: CopyEnd, dst: CopyEnd) -> Copy3 {
    let all = (BYTES / ROW) as u64;
    let end = |e: CopyEnd| CopyEnd { height: if e.height == 0 { 0 } else { all }, ..e };
    Copy3 { src: end(src), dst: end(dst), width: ROW as u64, rows: all, depth: 1 }
}

/// The same bytes in two slices.
fn slices(src: CopyEnd, dst: CopyEnd) -> Copy3 {
    Copy3 { src, dst, width: ROW as u64, rows: (BYTES / ROW / 2) as u64, depth: 2 }
}

/// So many bytes in one row.
fn line(src: CopyEnd, dst: CopyEnd, bytes: u64) -> Copy3 {
    let end = |e: CopyEnd| CopyEnd { pitch: 0, height: 0, ..e };
    Copy3 { src: end(src), dst: end(dst), width: bytes, rows: 1, depth: 1 }
}

/// As C has it.
fn raw_3d(c: &Copy3) -> MaybeUninit<CUDA_MEMCPY3D> {
    let mut raw = zeroed();
    // It is no null pointer.
    let _ = write_copy_3d(OutPtr::of_room(&mut raw), c);
    raw
}

fn raw_2d(c: &Copy3) -> MaybeUninit<CUDA_MEMCPY2D> {
    let mut raw: MaybeUninit<CUDA_MEMCPY2D> = zeroed();
    let p = raw.as_mut_ptr();
    // SAFETY: fields of a struct of ours; the memory types are values of the header's enum.
    unsafe {
        (&raw mut (*p).srcMemoryType).cast::<u32>().write(c.src.memory);
        (&raw mut (*p).dstMemoryType).cast::<u32>().write(c.dst.memory);
        (&raw mut (*p).srcHost).write(c.src.host as *const c_void);
        (&raw mut (*p).dstHost).write(c.dst.host as *mut c_void);
        (&raw mut (*p).srcDevice).write(c.src.device);
        (&raw mut (*p).dstDevice).write(c.dst.device);
        (&raw mut (*p).srcArray).write(c.src.array as CUarray);
        (&raw mut (*p).dstArray).write(c.dst.array as CUarray);
        (&raw mut (*p).srcPitch).write(c.src.pitch as usize);
        (&raw mut (*p).dstPitch).write(c.dst.pitch as usize);
        (&raw mut (*p).WidthInBytes).write(c.width as usize);
        (&raw mut (*p).Height).write(c.rows as usize);
    }
    raw
}

/// Each pair of different memory that is wanted, the source filled.
fn pairs(t: &Tell, w: &World, wanted: impl Fn(&Memory, &Memory) -> bool, each: impl Fn(&Memory, &Memory)) {
    for (from, seed) in w.memory.iter().zip(1..) {
        for to in w.memory.iter().filter(|to| to.at != from.at && wanted(from, to)) {
            t.about(format!("{} to {}", from.name, to.name));
            put(t, from, seed, from.bytes.min(MUCH));
            each(from, to);
        }
    }
}

fn all(_: &Memory, _: &Memory) -> bool {
    true
}

fn one_is_used(from: &Memory, to: &Memory) -> bool {
    is_used(from) || is_used(to)
}
