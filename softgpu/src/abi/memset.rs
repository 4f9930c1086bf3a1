//! Fills.

use super::abi;
use crate::gpu::copy::{Fill, fill};
use crate::gpu::stream::resolve;
use cuda_api::sys::{CUdeviceptr, CUstream};
use std::ffi::{c_uchar, c_uint, c_ushort};

/// The default stream, for functions without a stream parameter.
const DEFAULT: CUstream = std::ptr::null_mut();

abi! {
    stream fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds(at: CUdeviceptr, value: c_uchar, count: usize) |default| {
        let what = Fill { address: at, pitch: 0, value: value.into(), size: 1, width: count as u64, height: 1 };
        fill(&resolve(DEFAULT, default)?, what, true)
    }

    stream fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds(at: CUdeviceptr, value: c_ushort, count: usize) |default| {
        let what = Fill { address: at, pitch: 0, value: value.into(), size: 2, width: count as u64, height: 1 };
        fill(&resolve(DEFAULT, default)?, what, true)
    }

    stream fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds(at: CUdeviceptr, value: c_uint, count: usize) |default| {
        let what = Fill { address: at, pitch: 0, value, size: 4, width: count as u64, height: 1 };
        fill(&resolve(DEFAULT, default)?, what, true)
    }

    stream fn cuMemsetD8Async / cuMemsetD8Async_ptsz(
        at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream,
    ) |default| {
        let what = Fill { address: at, pitch: 0, value: value.into(), size: 1, width: count as u64, height: 1 };
        fill(&resolve(stream, default)?, what, false)
    }

    stream fn cuMemsetD16Async / cuMemsetD16Async_ptsz(
        at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream,
    ) |default| {
        let what = Fill { address: at, pitch: 0, value: value.into(), size: 2, width: count as u64, height: 1 };
        fill(&resolve(stream, default)?, what, false)
    }

    stream fn cuMemsetD32Async / cuMemsetD32Async_ptsz(
        at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream,
    ) |default| {
        let what = Fill { address: at, pitch: 0, value, size: 4, width: count as u64, height: 1 };
        fill(&resolve(stream, default)?, what, false)
    }

    stream fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds(
        at: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize,
    ) |default| {
        let what = Fill { address: at, pitch: pitch as u64, value: value.into(), size: 1, width: width as u64, height: height as u64 };
        fill(&resolve(DEFAULT, default)?, what, true)
    }

    stream fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds(
        at: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize,
    ) |default| {
        let what = Fill { address: at, pitch: pitch as u64, value: value.into(), size: 2, width: width as u64, height: height as u64 };
        fill(&resolve(DEFAULT, default)?, what, true)
    }

    stream fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds(
        at: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize,
    ) |default| {
        let what = Fill { address: at, pitch: pitch as u64, value, size: 4, width: width as u64, height: height as u64 };
        fill(&resolve(DEFAULT, default)?, what, true)
    }

    stream fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz(
        at: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream,
    ) |default| {
        let what = Fill { address: at, pitch: pitch as u64, value: value.into(), size: 1, width: width as u64, height: height as u64 };
        fill(&resolve(stream, default)?, what, false)
    }

    stream fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz(
        at: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream,
    ) |default| {
        let what = Fill { address: at, pitch: pitch as u64, value: value.into(), size: 2, width: width as u64, height: height as u64 };
        fill(&resolve(stream, default)?, what, false)
    }

    stream fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz(
        at: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream,
    ) |default| {
        let what = Fill { address: at, pitch: pitch as u64, value, size: 4, width: width as u64, height: height as u64 };
        fill(&resolve(stream, default)?, what, false)
    }
}
