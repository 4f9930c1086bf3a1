//! Arrays without memory of their own: tiles that are mapped rightly and wrongly.

use crate::driver::{Surface, bad_handle};
use cuda_api::array::{DEFERRED, MapInfo, OF_LEVEL, OF_TAIL, OF_WHOLE, SPARSE, SURFACE, Tiles};
use cuda_api::sys::{CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUarray_format, CUmipmappedArray, CUstream};
use std::mem::{MaybeUninit, transmute};
use std::ptr::null_mut;

/// What is made and mapped before the program may be moved.
pub struct Sparse {
    plane: CUarray,
    mipmap: CUmipmappedArray,
    later: CUarray,
    plain: CUarray,
    pool: u64,
    /// Memory for anything but tiles.
    other: u64,
}

/// `CUarrayMapInfo` as words: kind, resource, part, four of what, operation and kind of memory, memory, offset, devices and flags,
/// nothing.
type Words = [u64; 12];
const _: () = assert!(size_of::<Words>() == size_of::<MapInfo>());
const TILE: u64 = 64 << 10;
const WIDTH: usize = 300;
const ROWS: usize = 200;

fn shape(width: usize, height: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let format = CUarray_format::CU_AD_FORMAT_FLOAT;
    CUDA_ARRAY3D_DESCRIPTOR { Width: width, Height: height, Depth: 0, Format: format, NumChannels: 1, Flags: flags }
}

fn content(n: usize, seed: u32) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(seed) >> 5) as u8).collect()
}

fn words(tiles: Tiles, array: u64, mipmapped: bool) -> Words {
    // SAFETY: both are plain numbers; what is between fields is made of zeros by nobody, and read by nobody.
    unsafe { transmute(MapInfo::of(&tiles, array, mipmapped, tiles.pool)) }
}

fn level(at: [u32; 2], size: [u32; 2], pool: u64, offset: u64) -> Tiles {
    Tiles { part: OF_LEVEL, at: [at[0], at[1], 0], size: [size[0], size[1], 1], pool, offset, ..Tiles::default() }
}

/// Memory of two granules for a usage.
fn memory(s: &Surface, usage: u32) -> u64 {
    let (mut handle, prop) = (0, [1u32, 0, 1, 0, 0, 0, usage << 16, 0]);
    tell!(s, vmm.cuMemCreate(&raw mut handle, 4 << 20, (&raw const prop).cast(), 0));
    handle
}

fn map(s: &Surface, mut list: Vec<Words>, stream: CUstream) {
    tell!(s, vmm.cuMemMapArrayAsync(list.as_mut_ptr().cast(), list.len() as u32, stream));
}

/// Makes arrays and memory, and maps some of it.
pub fn build(s: &Surface) -> Sparse {
    let (mut plane, mut mipmap, mut later, mut plain) = (null_mut(), null_mut(), null_mut(), null_mut());
    let of_plane = shape(WIDTH, ROWS, SPARSE);
    tell!(s, array.cuArray3DCreate_v2(&raw mut plane, &raw const of_plane));
    let of_mipmap = shape(256, 256, SPARSE);
    tell!(s, array.cuMipmappedArrayCreate(&raw mut mipmap, &raw const of_mipmap, 4));
    let of_later = shape(100, 50, DEFERRED);
    tell!(s, array.cuArray3DCreate_v2(&raw mut later, &raw const of_later));
    let of_plain = shape(100, 50, 0);
    tell!(s, array.cuArray3DCreate_v2(&raw mut plain, &raw const of_plain));
    let (pool, other) = (memory(s, 1), memory(s, 0));
    let tail = Tiles { part: OF_TAIL, tail: [0, TILE], pool, offset: 12 * TILE, ..Tiles::default() };
    let whole = Tiles { part: OF_WHOLE, pool, offset: 20 * TILE, ..Tiles::default() };
    let list = vec![
        words(level([0, 0], [256, 128], pool, 3 * TILE), plane as u64, false),
        words(tail, mipmap as u64, true),
        words(whole, later as u64, false),
    ];
    map(s, list, null_mut());
    let bytes = content(WIDTH * 4, 77);
    tell!(s, array.cuMemcpyHtoA_v2(plane, 0, bytes.as_ptr().cast(), 1024));
    tell!(s, array.cuMemcpyHtoA_v2(later, 0, bytes.as_ptr().cast(), 400));
    let mut last = null_mut();
    tell!(s, array.cuMipmappedArrayGetLevel(&raw mut last, mipmap, 3));
    tell!(s, array.cuMemcpyHtoA_v2(last, 0, bytes.as_ptr().cast(), 128));
    Sparse { plane, mipmap, later, plain, pool, other }
}

/// What is known of them and what they hold, and calls that are wrong.
pub fn use_them(s: &Surface, a: &Sparse, stream: CUstream) {
    known(s, a);
    held(s, a, stream);
    wrong(s, a, stream);
}

fn known(s: &Surface, a: &Sparse) {
    let mut p = MaybeUninit::<[u32; 12]>::zeroed();
    let out = p.as_mut_ptr();
    let mut level = null_mut();
    tell!(s, array.cuMipmappedArrayGetLevel(&raw mut level, a.mipmap, 0));
    // SAFETY: eleven numbers, which were zeros.
    let answer = || unsafe { out.read()[..7].to_vec() };
    show!(s, array.cuArrayGetSparseProperties(out.cast(), a.plane) => answer());
    show!(s, array.cuMipmappedArrayGetSparseProperties(out.cast(), a.mipmap) => answer());
    for array in [level, a.later, a.plain, null_mut(), bad_handle()] {
        tell!(s, array.cuArrayGetSparseProperties(out.cast(), array));
    }
    tell!(s, array.cuArrayGetSparseProperties(null_mut(), a.plane));
    tell!(s, array.cuMipmappedArrayGetSparseProperties(null_mut(), a.mipmap));
    // SAFETY: as above.
    let answer = || unsafe { out.read()[..4].to_vec() };
    show!(s, array.cuArrayGetMemoryRequirements(out.cast(), a.later, 0) => answer());
    for (array, device) in [(a.later, 99), (a.plane, 0), (a.plain, 0), (bad_handle(), 0)] {
        tell!(s, array.cuArrayGetMemoryRequirements(out.cast(), array, device));
    }
    tell!(s, array.cuMipmappedArrayGetMemoryRequirements(out.cast(), a.mipmap, 0));
}

fn held(s: &Surface, a: &Sparse, stream: CUstream) {
    let (bytes, mut back) = (content(WIDTH * 4, 77), vec![7u8; WIDTH * 4]);
    let is_zero = |b: &[u8]| b.iter().all(|b| *b == 0);
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 0, WIDTH * 4) => back[..1024] == bytes[..1024], is_zero(&back[1024..]));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.later, 0, 400) => back[..400] == bytes[..400]);
    let mut last = null_mut();
    tell!(s, array.cuMipmappedArrayGetLevel(&raw mut last, a.mipmap, 3));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), last, 0, 128) => back[..128] == bytes[..128]);
    // The first tile goes, and a copy over both tiles loses half of it; then it comes back.
    map(s, vec![words(level([0, 0], [128, 128], 0, 0), a.plane as u64, false)], stream);
    tell!(s, stream.cuStreamSynchronize(stream));
    let other = content(WIDTH * 4, 991);
    tell!(s, array.cuMemcpyHtoA_v2(a.plane, 0, other.as_ptr().cast(), 1024));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 0, 1024) => is_zero(&back[..512]), back[512..1024] == other[512..1024]);
    map(s, vec![words(level([0, 0], [128, 128], a.pool, 3 * TILE), a.plane as u64, false)], stream);
    tell!(s, stream.cuStreamSynchronize(stream));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 0, 1024) => back[..512] == bytes[..512], back[512..1024] == other[512..1024]);
    // In another order: the second tile's memory under the first.
    map(s, vec![words(level([0, 0], [128, 128], a.pool, 4 * TILE), a.plane as u64, false)], stream);
    tell!(s, stream.cuStreamSynchronize(stream));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 0, 1024) => back[..512] == other[512..1024]);
    // To the edge, counted as the array's or as the tile's.
    for width in [44, 128] {
        map(s, vec![words(level([256, 128], [width, 72], a.pool, 0), a.plane as u64, false)], stream);
        map(s, vec![words(level([256, 128], [width, 128], a.pool, 0), a.plane as u64, false)], stream);
    }
}

fn wrong(s: &Surface, a: &Sparse, stream: CUstream) {
    let good = words(level([0, 0], [128, 128], a.pool, 3 * TILE), a.plane as u64, false);
    tell!(s, vmm.cuMemMapArrayAsync(null_mut(), 1, stream));
    map(s, vec![], stream);
    let set = |at: usize, value: u64| {
        let mut changed = good;
        changed[at] = value;
        changed
    };
    // Kinds of resource, operations, memory for an unmapping, kinds of memory, devices, flags, what is to be zero.
    for (at, value) in [
        (0, 2),
        (0, 9),
        (2, 5),
        (7, 0),
        (7, 3),
        (7, 2),
        (7, 1 | 1 << 32),
        (8, 0),
        (8, 0x1234),
        (8, a.other),
        (9, 4096),
        (9, 64 * TILE),
        (9, u64::MAX - TILE + 1),
        (10, 0),
        (10, 3),
        (10, 2),
        (10, 1 | 1 << 32),
        (11, 1),
        (1, a.plain as u64),
    ] {
        map(s, vec![set(at, value)], stream);
    }
    // Level, layer, edges of tiles, edges of the array, too much for the memory.
    let at = |tiles: Tiles| words(tiles, a.plane as u64, false);
    map(s, vec![at(Tiles { level: 1, ..level([0, 0], [128, 128], a.pool, 0) })], stream);
    map(s, vec![at(Tiles { layer: 1, ..level([0, 0], [128, 128], a.pool, 0) })], stream);
    for (from, size) in
        [([4, 0], [128, 128]), ([0, 0], [100, 128]), ([0, 0], [0, 128]), ([384, 0], [128, 128]), ([0, 0], [512, 128])]
    {
        map(s, vec![at(level(from, size, a.pool, 0))], stream);
    }
    map(s, vec![at(level([0, 0], [300, 200], a.pool, 60 * TILE))], stream);
    map(s, vec![at(Tiles { part: OF_TAIL, tail: [0, TILE], pool: a.pool, ..Tiles::default() })], stream);
    let of_mipmap = |tiles: Tiles| words(tiles, a.mipmap as u64, true);
    map(s, vec![of_mipmap(Tiles { level: 2, ..level([0, 0], [64, 64], a.pool, 0) })], stream);
    map(s, vec![of_mipmap(Tiles { level: 1, ..level([0, 0], [128, 128], a.pool, 0) })], stream);
    for (tail, layer) in [([0, 2 * TILE], 0), ([1024, TILE], 0), ([0, 0], 0), ([0, TILE], 1)] {
        map(s, vec![of_mipmap(Tiles { part: OF_TAIL, layer, tail, pool: a.pool, ..Tiles::default() })], stream);
    }
    // Of a list with something wrong nothing is done.
    map(s, vec![set(7, 2), set(10, 0)], stream);
    let mut back = [0u8; 512];
    tell!(s, stream.cuStreamSynchronize(stream));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 0, 512) => back.iter().any(|b| *b != 0));
    // A line has no tiles, nothing is both, and nothing is for surfaces or depths.
    let mut array = null_mut();
    for bad in [
        shape(1000, 0, SPARSE),
        shape(640, 640, SPARSE | DEFERRED),
        shape(640, 640, SPARSE | SURFACE),
        shape(640, 640, SPARSE | 16),
    ] {
        tell!(s, array.cuArray3DCreate_v2(&raw mut array, &raw const bad));
    }
    small(s, a, stream);
    pool_elsewhere(s, a);
}

/// A plane that is smaller than a tile is mapped as a tail.
fn small(s: &Surface, a: &Sparse, stream: CUstream) {
    let (mut plane, of_plane, mut p) = (null_mut(), shape(20, 10, SPARSE), MaybeUninit::<[u32; 12]>::zeroed());
    tell!(s, array.cuArray3DCreate_v2(&raw mut plane, &raw const of_plane));
    let out = p.as_mut_ptr();
    // SAFETY: eleven numbers, which were zeros.
    let answer = || unsafe { out.read()[..7].to_vec() };
    show!(s, array.cuArrayGetSparseProperties(out.cast(), plane) => answer());
    map(s, vec![words(level([0, 0], [20, 10], a.pool, 30 * TILE), plane as u64, false)], stream);
    let tail = Tiles { part: OF_TAIL, tail: [0, TILE], pool: a.pool, offset: 30 * TILE, ..Tiles::default() };
    map(s, vec![words(tail, plane as u64, false)], stream);
    tell!(s, stream.cuStreamSynchronize(stream));
    let (bytes, mut back) = (content(80, 55), vec![7u8; 80]);
    tell!(s, array.cuMemcpyHtoA_v2(plane, 0, bytes.as_ptr().cast(), 80));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), plane, 0, 80) => back == bytes);
    tell!(s, array.cuArrayDestroy(plane));
}

/// Memory for tiles is for tiles alone.
fn pool_elsewhere(s: &Surface, a: &Sparse) {
    let (mut handle, mut at, mut fd) = (0, 0, -1i32);
    for prop in [[1u32, 1, 1, 0, 0, 0, 1 << 16, 0], [1, 0, 1, 0, 0, 0, 1 << 16 | 1 << 8, 0]] {
        tell!(s, vmm.cuMemCreate(&raw mut handle, 4 << 20, (&raw const prop).cast(), 0));
    }
    let prop = [1u32, 0, 1, 0, 0, 0, 1 << 16, 0];
    tell!(s, vmm.cuMemCreate(&raw mut handle, 64 << 10, (&raw const prop).cast(), 0));
    let mut back = [9u32; 8];
    show!(s, vmm.cuMemGetAllocationPropertiesFromHandle(back.as_mut_ptr().cast(), a.pool) => back);
    tell!(s, vmm.cuMemAddressReserve(&raw mut at, 4 << 20, 0, 0, 0));
    tell!(s, vmm.cuMemMap(at, 4 << 20, 0, a.pool, 0));
    tell!(s, vmm.cuMemAddressFree(at, 4 << 20));
    tell!(s, vmm.cuMemExportToShareableHandle((&raw mut fd).cast(), a.pool, 1, 0));
}

/// Ends what was made: memory first, which its tiles keep.
pub fn end(s: &Surface, a: Sparse) {
    tell!(s, vmm.cuMemRelease(a.pool));
    tell!(s, vmm.cuMemRelease(a.other));
    let mut back = [0u8; 400];
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.later, 0, 400) => back[..] == content(WIDTH * 4, 77)[..400]);
    for array in [a.plane, a.later, a.plain] {
        tell!(s, array.cuArrayDestroy(array));
    }
    tell!(s, array.cuMipmappedArrayDestroy(a.mipmap));
}
