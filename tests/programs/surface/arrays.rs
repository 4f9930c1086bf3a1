//! Arrays and mipmapped arrays, and copies of them.

use crate::driver::Surface;
use crate::memory::Buffers;
use cuda_api::sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUarray_format, CUmemorytype,
    CUmipmappedArray, CUstream,
};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// What is made before the program may be moved.
pub struct Arrays {
    plane: CUarray,
    volume: CUarray,
    mipmap: CUmipmappedArray,
}

const FLOAT: CUarray_format = CUarray_format::CU_AD_FORMAT_FLOAT;
const WIDTH: usize = 40;
const ROWS: usize = 12;
const SLICES: usize = 3;

fn shape(width: usize, height: usize, depth: usize, channels: u32, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR { Width: width, Height: height, Depth: depth, Format: FLOAT, NumChannels: channels, Flags: flags }
}

fn content(n: usize, seed: u32) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(seed) >> 3) as u8).collect()
}

/// Makes arrays and fills them.
pub fn build(s: &Surface) -> Arrays {
    let (mut plane, mut volume, mut mipmap) = (null_mut(), null_mut(), null_mut());
    let flat = CUDA_ARRAY_DESCRIPTOR { Width: WIDTH, Height: ROWS, Format: FLOAT, NumChannels: 1 };
    tell!(s, array.cuArrayCreate_v2(&raw mut plane, &raw const flat));
    let deep = shape(WIDTH, ROWS, SLICES, 1, 0);
    tell!(s, array.cuArray3DCreate_v2(&raw mut volume, &raw const deep));
    let levels = shape(16, 8, 0, 4, 0);
    tell!(s, array.cuMipmappedArrayCreate(&raw mut mipmap, &raw const levels, 3));
    let bytes = content(WIDTH * 4, 77);
    tell!(s, array.cuMemcpyHtoA_v2(plane, 0, bytes.as_ptr().cast(), WIDTH * 4));
    Arrays { plane, volume, mipmap }
}

/// Shapes as the driver tells them, and calls that are wrong.
pub fn use_them(s: &Surface, a: &Arrays, b: &Buffers, stream: CUstream) {
    shapes(s, a);
    lines(s, a, b, stream);
    rectangles(s, a, stream);
    boxes(s, a, b, stream);
    wrong(s, a);
}

fn shapes(s: &Surface, a: &Arrays) {
    let mut flat = CUDA_ARRAY_DESCRIPTOR { Width: 0, Height: 0, Format: FLOAT, NumChannels: 0 };
    show!(s, array.cuArrayGetDescriptor_v2(&raw mut flat, a.volume) => (flat.Width, flat.Height, flat.NumChannels));
    let mut whole = shape(0, 0, 0, 0, 0);
    show!(s, array.cuArray3DGetDescriptor_v2(&raw mut whole, a.volume) => (whole.Width, whole.Height, whole.Depth, whole.Flags));
    for level in 0..4 {
        let mut array = null_mut();
        tell!(s, array.cuMipmappedArrayGetLevel(&raw mut array, a.mipmap, level));
        if !array.is_null() {
            show!(s, array.cuArray3DGetDescriptor_v2(&raw mut whole, array) => (whole.Width, whole.Height, whole.NumChannels));
        }
    }
    tell!(s, array.cuArrayGetDescriptor_v2(null_mut(), a.plane));
    tell!(s, array.cuArray3DGetDescriptor_v2(null_mut(), a.plane));
    tell!(s, array.cuMipmappedArrayGetLevel(null_mut(), a.mipmap, 0));
}

fn lines(s: &Surface, a: &Arrays, b: &Buffers, stream: CUstream) {
    let (row, bytes) = (WIDTH * 4, content(WIDTH * 4, 77));
    let mut back = vec![0u8; row];
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 0, row) => back == bytes);
    tell!(s, array.cuMemcpyAtoD_v2(b.device, a.plane, 0, row));
    tell!(s, array.cuMemcpyDtoA_v2(a.plane, 8, b.device, row - 8));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 0, row) => back[8..] == bytes[..row - 8]);
    tell!(s, array.cuMemcpyHtoAAsync_v2(a.plane, 4, bytes.as_ptr().cast(), 16, stream));
    tell!(s, array.cuMemcpyAtoHAsync_v2(back.as_mut_ptr().cast(), a.plane, 0, row, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    println!("  line: {}", back[4..20] == bytes[..16] && back[20..] == bytes[12..row - 8]);
    tell!(s, array.cuMemcpyAtoA_v2(a.plane, 80, a.plane, 0, 40));
    show!(s, array.cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), a.plane, 80, 40) => back[4..20] == bytes[..16]);
}

fn rectangles(s: &Surface, a: &Arrays, stream: CUstream) {
    let bytes = content(64 * 8, 991);
    let mut back = vec![0u8; 64 * 8];
    let mut c = MaybeUninit::<CUDA_MEMCPY2D>::zeroed();
    // SAFETY: zero is a valid value of every field but the two memory types, which are written first.
    let mut c = unsafe {
        (&raw mut (*c.as_mut_ptr()).srcMemoryType).write(CUmemorytype::CU_MEMORYTYPE_HOST);
        (&raw mut (*c.as_mut_ptr()).dstMemoryType).write(CUmemorytype::CU_MEMORYTYPE_ARRAY);
        c.assume_init()
    };
    (c.srcHost, c.srcPitch) = (bytes.as_ptr().cast(), 64);
    (c.dstArray, c.dstXInBytes, c.dstY) = (a.plane, 12, 4);
    (c.WidthInBytes, c.Height) = (64, 8);
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    (c.srcMemoryType, c.dstMemoryType) = (CUmemorytype::CU_MEMORYTYPE_ARRAY, CUmemorytype::CU_MEMORYTYPE_HOST);
    (c.srcArray, c.srcXInBytes, c.srcY) = (a.plane, 12, 4);
    (c.dstHost, c.dstPitch, c.dstXInBytes, c.dstY) = (back.as_mut_ptr().cast(), 64, 0, 0);
    tell!(s, memory.cuMemcpy2DAsync_v2(&raw const c, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    println!("  rectangle: {}", back == bytes);
    // Over the edges, between elements, to an array that is none.
    c.srcY = 5;
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    (c.srcY, c.srcXInBytes) = (4, 100);
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    (c.srcXInBytes, c.Height) = (12, 0);
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    (c.Height, c.srcArray) = (8, null_mut());
    println!("  no array: {}", call!(s, memory.cuMemcpy2D_v2(&raw const c)) != 0);
}

fn boxes(s: &Surface, a: &Arrays, b: &Buffers, stream: CUstream) {
    let bytes = content(WIDTH * 4 * ROWS * SLICES, 31);
    let mut back = vec![0u8; bytes.len()];
    let mut c = MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
    // SAFETY: as for the rectangle.
    let mut c = unsafe {
        (&raw mut (*c.as_mut_ptr()).srcMemoryType).write(CUmemorytype::CU_MEMORYTYPE_HOST);
        (&raw mut (*c.as_mut_ptr()).dstMemoryType).write(CUmemorytype::CU_MEMORYTYPE_ARRAY);
        c.assume_init()
    };
    (c.srcHost, c.srcPitch, c.srcHeight, c.dstArray) = (bytes.as_ptr().cast(), WIDTH * 4, ROWS, a.volume);
    (c.WidthInBytes, c.Height, c.Depth) = (WIDTH * 4, ROWS, SLICES);
    tell!(s, memory.cuMemcpy3D_v2(&raw const c));
    (c.srcMemoryType, c.srcArray) = (CUmemorytype::CU_MEMORYTYPE_ARRAY, a.volume);
    (c.dstMemoryType, c.dstDevice, c.dstPitch, c.dstHeight) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, b.device, WIDTH * 4, ROWS);
    tell!(s, memory.cuMemcpy3DAsync_v2(&raw const c, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    show!(s, memory.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), b.device, back.len()) => back == bytes);
    c.srcZ = 1;
    tell!(s, memory.cuMemcpy3D_v2(&raw const c));
}

fn wrong(s: &Surface, a: &Arrays) {
    let mut array = null_mut();
    let mut mipmap = null_mut();
    let good = shape(8, 8, 0, 1, 0);
    tell!(s, array.cuArray3DCreate_v2(null_mut(), &raw const good));
    tell!(s, array.cuArray3DCreate_v2(&raw mut array, null()));
    for bad in
        [shape(0, 8, 0, 1, 0), shape(8, 8, 0, 3, 0), shape(200_000, 8, 0, 1, 0), shape(8, 8, 0, 1, 1), shape(8, 4, 6, 1, 4)]
    {
        tell!(s, array.cuArray3DCreate_v2(&raw mut array, &raw const bad));
    }
    // No level is one level.
    tell!(s, array.cuMipmappedArrayCreate(&raw mut mipmap, &raw const good, 0));
    tell!(s, array.cuMipmappedArrayDestroy(mipmap));
    let flags = CUDA_ARRAY3D_DESCRIPTOR { Flags: 0x200, ..good };
    tell!(s, array.cuArray3DCreate_v2(&raw mut array, &raw const flags));
    let bytes = [0u8; 64];
    // Over the end of the row.
    tell!(s, array.cuMemcpyHtoA_v2(a.plane, WIDTH * 4 - 4, bytes.as_ptr().cast(), 8));
    tell!(s, array.cuMemcpyHtoA_v2(a.plane, 0, bytes.as_ptr().cast(), 0));
}

/// Ends what was made.
pub fn end(s: &Surface, a: Arrays) {
    tell!(s, array.cuArrayDestroy(a.plane));
    tell!(s, array.cuArrayDestroy(a.volume));
    tell!(s, array.cuMipmappedArrayDestroy(a.mipmap));
}
