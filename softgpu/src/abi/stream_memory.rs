//! Values written to memory and waited for in stream order.

use super::{In, Res, abi};
use crate::gpu::capture;
use crate::gpu::memory_op::Part;
use crate::gpu::stream::{Default, resolve};
use cuda_api::sys::{CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams};
use cuda_api::work::Work as NodeWork;
use std::ffi::c_uint;

abi! {
    stream fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz(
        stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint,
    ) |default| {
        write(stream, default, at, 4, value.into(), flags)
    }

    stream fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz(
        stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint,
    ) |default| {
        write(stream, default, at, 8, value, flags)
    }

    stream fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz(
        stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint,
    ) |default| {
        wait(stream, default, at, 4, value.into(), flags)
    }

    stream fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz(
        stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint,
    ) |default| {
        wait(stream, default, at, 8, value, flags)
    }

    stream fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz(
        stream: CUstream, count: c_uint, parts: In<Part> as *mut CUstreamBatchMemOpParams, flags: c_uint,
    ) |default| {
        batch_of(stream, default, count, parts, flags)
    }

    stream fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz [cuStreamBatchMemOp_v2] (
        stream: CUstream, _count: c_uint, _parts: In<Part> as *mut CUstreamBatchMemOpParams, flags: c_uint,
    ) |default| {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        first_version(stream, default)
    }

    stream fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz [cuStreamWriteValue32_v2] (
        stream: CUstream, _at: CUdeviceptr, _value: u32, _flags: c_uint,
    ) |default| {
        first_version(stream, default)
    }

    stream fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz [cuStreamWriteValue64_v2] (
        stream: CUstream, _at: CUdeviceptr, _value: u64, _flags: c_uint,
    ) |default| {
        first_version(stream, default)
    }

    stream fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz [cuStreamWaitValue32_v2] (
        stream: CUstream, _at: CUdeviceptr, _value: u32, _flags: c_uint,
    ) |default| {
        first_version(stream, default)
    }

    stream fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz [cuStreamWaitValue64_v2] (
        stream: CUstream, _at: CUdeviceptr, _value: u64, _flags: c_uint,
    ) |default| {
        first_version(stream, default)
    }
}

/// Drivers of CUDA 12 and later no longer support the first version (device attributes 92 to 94).
fn first_version(stream: CUstream, default: Default) -> Res {
    resolve(stream, default)?;
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

fn write(stream: CUstream, default: Default, at: u64, size: u64, value: u64, flags: c_uint) -> Res {
    batch(stream, default, &[Part::write(at, size, value, flags)])
}

fn wait(stream: CUstream, default: Default, at: u64, size: u64, value: u64, flags: c_uint) -> Res {
    batch(stream, default, &[Part::wait(at, size, value, flags)])
}

fn batch_of(stream: CUstream, default: Default, count: c_uint, parts: In<Part>, flags: c_uint) -> Res {
    if count == 0 && flags == 0 {
        return batch(stream, default, &[]);
    }
    if parts.is_null() || count > 255 || flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let parts: Vec<Part> = (0..count as usize).map(|i| parts.at(i)).collect::<Res<_>>()?;
    batch(stream, default, &parts)
}

/// Submits all of them or, if one is invalid, none.
fn batch(stream: CUstream, default: Default, parts: &[Part]) -> Res {
    let target = resolve(stream, default)?;
    parts.iter().try_for_each(|p| p.check())?;
    if capture::take(&target, false, || Ok(NodeWork::MemOps(parts.iter().map(Part::words).collect())))? {
        return Ok(());
    }
    for part in parts {
        target.submit(part.work(), Vec::new());
    }
    Ok(())
}
