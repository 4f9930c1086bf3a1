//! Copies and fills: every form, checked by what memory holds afterwards.

use crate::driver::Surface;
use crate::memory::{Buffers, ROWS, WIDTH};
use cuda_api::sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype, CUstream};
use std::mem::MaybeUninit;

/// Prints a digest of device memory.
fn digest(s: &Surface, what: &str, address: u64, bytes: usize) {
    let mut host = vec![0u8; bytes];
    let code = call!(s, memory.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, bytes));
    let hash = host.iter().fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3));
    println!("  {what}: {code} {hash:016x}");
}

/// All forms.
pub fn all(s: &Surface, b: &Buffers, stream: CUstream) {
    fills(s, b, stream);
    linear(s, b, stream);
    rectangles(s, b, stream);
    boxes(s, b, stream);
    wrong(s, b, stream);
}

fn fills(s: &Surface, b: &Buffers, stream: CUstream) {
    let d = b.device;
    tell!(s, memory.cuMemsetD8_v2(d, 0x11, 1000));
    tell!(s, memory.cuMemsetD16_v2(d + 1000, 0x2233, 500));
    tell!(s, memory.cuMemsetD32_v2(d + 2000, 0x4455_6677, 250));
    tell!(s, memory.cuMemsetD8Async(d + 3000, 0x88, 1000, stream));
    tell!(s, memory.cuMemsetD16Async(d + 4000, 0x99aa, 500, stream));
    tell!(s, memory.cuMemsetD32Async(d + 5000, 0xbbcc_ddee, 250, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    digest(s, "filled", d, 6000);
    let (p, pitch) = (b.pitched, b.pitch);
    tell!(s, memory.cuMemsetD2D8_v2(p, pitch, 1, WIDTH, ROWS));
    tell!(s, memory.cuMemsetD2D16_v2(p, pitch, 0x0203, 20, 3));
    tell!(s, memory.cuMemsetD2D32_v2(p + 64, pitch, 0x0405_0607, 20, 4));
    // The stream does not wait for the default stream.
    tell!(s, context.cuCtxSynchronize());
    tell!(s, memory.cuMemsetD2D8Async(p + 150, pitch, 8, 10, ROWS, stream));
    tell!(s, memory.cuMemsetD2D16Async(p + 160, pitch, 0x090a, 10, ROWS, stream));
    tell!(s, memory.cuMemsetD2D32Async(p + 200, pitch, 0x0b0c_0d0e, 10, ROWS, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    for row in 0..ROWS {
        digest(s, "row", p + (row * pitch) as u64, WIDTH);
    }
}

fn linear(s: &Surface, b: &Buffers, stream: CUstream) {
    let d = b.device;
    let host: Vec<u8> = (0..8192u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut back = vec![0u8; 4096];
    tell!(s, memory.cuMemcpyHtoD_v2(d, host.as_ptr().cast(), 8192));
    tell!(s, memory.cuMemcpyDtoD_v2(d + 8192, d + 1, 4096));
    tell!(s, context.cuCtxSynchronize());
    tell!(s, memory.cuMemcpyDtoDAsync_v2(d + 16384, d + 8200, 4000, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    // The kind of these two follows from the addresses.
    tell!(s, memory.cuMemcpy(d + 20480, d, 1024));
    tell!(s, memory.cuMemcpy(d + 21504, host.as_ptr() as u64, 1024));
    show!(s, memory.cuMemcpy(back.as_mut_ptr() as u64, d + 8192, 4096) => back[..] == host[1..4097]);
    tell!(s, context.cuCtxSynchronize());
    tell!(s, memory.cuMemcpyAsync(d + 24576, d + 3, 4096, stream));
    tell!(s, memory.cuMemcpyHtoDAsync_v2(d + 28672, host.as_ptr().cast(), 4096, stream));
    tell!(s, memory.cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), d + 28672, 4096, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    println!("  arrived: {}", back[..] == host[..4096]);
    tell!(s, memory.cuMemcpyDtoD_v2(d, d + 64, 0));
    digest(s, "copied", d, 32768);
}

fn rectangles(s: &Surface, b: &Buffers, stream: CUstream) {
    let host: Vec<u8> = (0..4096u32).map(|i| (i ^ i >> 5) as u8).collect();
    let mut back = vec![0u8; 4096];
    let mut c = MaybeUninit::<CUDA_MEMCPY2D>::zeroed();
    // SAFETY: zero is a valid value of every field but the two memory types, which are written first.
    let mut c = unsafe {
        (&raw mut (*c.as_mut_ptr()).srcMemoryType).write(CUmemorytype::CU_MEMORYTYPE_HOST);
        (&raw mut (*c.as_mut_ptr()).dstMemoryType).write(CUmemorytype::CU_MEMORYTYPE_DEVICE);
        c.assume_init()
    };
    (c.srcHost, c.srcPitch, c.srcXInBytes, c.srcY) = (host.as_ptr().cast(), 256, 5, 1);
    (c.dstDevice, c.dstPitch, c.dstXInBytes, c.dstY) = (b.pitched, b.pitch, 3, 2);
    (c.WidthInBytes, c.Height) = (100, 5);
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    digest(s, "rectangle in", b.pitched, b.pitch * (ROWS - 1) + WIDTH);
    c.dstXInBytes = 120;
    tell!(s, memory.cuMemcpy2DUnaligned_v2(&raw const c));
    c.dstXInBytes = 190;
    tell!(s, context.cuCtxSynchronize());
    tell!(s, memory.cuMemcpy2DAsync_v2(&raw const c, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    digest(s, "rectangles in", b.pitched, b.pitch * (ROWS - 1) + WIDTH);
    (c.srcMemoryType, c.dstMemoryType) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, CUmemorytype::CU_MEMORYTYPE_HOST);
    (c.srcDevice, c.srcPitch, c.srcXInBytes, c.srcY) = (b.pitched, b.pitch, 3, 2);
    (c.dstHost, c.dstPitch, c.dstXInBytes, c.dstY) = (back.as_mut_ptr().cast(), 256, 5, 1);
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    let same = (1..6).all(|row| back[row * 256 + 5..row * 256 + 105] == host[row * 256 + 5..row * 256 + 105]);
    println!("  rectangle out: {same}");
    c.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    (c.dstDevice, c.dstPitch) = (b.device, 512);
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    digest(s, "rectangle inside", b.device, 4096);
    // Wider than its pitch.
    c.WidthInBytes = 600;
    tell!(s, memory.cuMemcpy2D_v2(&raw const c));
    tell!(s, memory.cuMemcpy2D_v2(std::ptr::null()));
}

fn boxes(s: &Surface, b: &Buffers, stream: CUstream) {
    let host: Vec<u8> = (0..4096u32).map(|i| ((i * 7) ^ (i >> 4)) as u8).collect();
    let mut c = MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
    // SAFETY: as for the rectangle.
    let mut c = unsafe {
        (&raw mut (*c.as_mut_ptr()).srcMemoryType).write(CUmemorytype::CU_MEMORYTYPE_HOST);
        (&raw mut (*c.as_mut_ptr()).dstMemoryType).write(CUmemorytype::CU_MEMORYTYPE_DEVICE);
        c.assume_init()
    };
    (c.srcHost, c.srcPitch, c.srcHeight) = (host.as_ptr().cast(), 64, 8);
    (c.dstDevice, c.dstPitch, c.dstHeight) = (b.device + 32768, 128, 10);
    (c.srcXInBytes, c.srcY, c.srcZ, c.dstXInBytes, c.dstY, c.dstZ) = (1, 2, 1, 9, 1, 2);
    (c.WidthInBytes, c.Height, c.Depth) = (40, 5, 4);
    tell!(s, memory.cuMemcpy3D_v2(&raw const c));
    c.dstXInBytes = 60;
    tell!(s, context.cuCtxSynchronize());
    tell!(s, memory.cuMemcpy3DAsync_v2(&raw const c, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    digest(s, "boxes", b.device + 32768, 128 * 10 * 7);
    c.Depth = 0;
    tell!(s, memory.cuMemcpy3D_v2(&raw const c));
}

/// Addresses and sizes that cannot be.
fn wrong(s: &Surface, b: &Buffers, stream: CUstream) {
    let mut host = [0u8; 64];
    tell!(s, memory.cuMemcpyHtoD_v2(0x1234, host.as_ptr().cast(), 64));
    tell!(s, memory.cuMemcpyHtoD_v2(b.device + (1 << 16) - 10, host.as_ptr().cast(), 64));
    tell!(s, memory.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), 0, 64));
    tell!(s, memory.cuMemcpyDtoD_v2(b.device, 0x1234, 64));
    tell!(s, memory.cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), b.device, 64, crate::driver::bad_handle()));
    tell!(s, memory.cuMemsetD8_v2(0x1234, 0, 64));
    tell!(s, memory.cuMemsetD16_v2(b.device + 1, 0, 64));
    tell!(s, memory.cuMemsetD32_v2(b.device + 2, 0, 64));
    tell!(s, memory.cuMemsetD2D8_v2(b.device, 10, 0, 20, 4));
    tell!(s, stream.cuStreamSynchronize(stream));
}
