//! Values written to memory and waited for in stream order.

use super::{Res, abi};
use crate::gpu::copy::{check_word, load_word, store_word};
use crate::gpu::sched::Work;
use crate::gpu::stream::{Default, resolve};
use cuda_api::sys::{CUdeviceptr, CUresult, CUstream};
use std::ffi::c_uint;

/// `CU_STREAM_WAIT_VALUE_*`: how the word is compared; the flush bit changes nothing here.
const COMPARISON: c_uint = 3;
const FLUSH: c_uint = 1 << 30;

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

    stream fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz [cuStreamWriteValue32_v2] (
        stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint,
    ) |default| {
        write(stream, default, at, 4, value.into(), flags)
    }

    stream fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz [cuStreamWriteValue64_v2] (
        stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint,
    ) |default| {
        write(stream, default, at, 8, value, flags)
    }

    stream fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz [cuStreamWaitValue32_v2] (
        stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint,
    ) |default| {
        wait(stream, default, at, 4, value.into(), flags)
    }

    stream fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz [cuStreamWaitValue64_v2] (
        stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint,
    ) |default| {
        wait(stream, default, at, 8, value, flags)
    }
}

fn write(stream: CUstream, default: Default, at: u64, size: u64, value: u64, flags: c_uint) -> Res {
    let target = resolve(stream, default)?;
    // 1 asks for no barrier; there always is one here.
    if flags > 1 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    check_word(at, size)?;
    target.submit(Work::Run(Box::new(move |_| store_word(at, size, value))), Vec::new());
    Ok(())
}

fn wait(stream: CUstream, default: Default, at: u64, size: u64, value: u64, flags: c_uint) -> Res {
    let target = resolve(stream, default)?;
    if flags & !(COMPARISON | FLUSH) != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    check_word(at, size)?;
    let comparison = flags & COMPARISON;
    let condition = move || Ok(holds(comparison, load_word(at, size)?, value, size));
    target.submit(Work::Until(Box::new(move |_| condition())), Vec::new());
    Ok(())
}

/// Whether a word satisfies a comparison: 0 greater or equal (cyclically), 1 equal, 2 common bits, 3 a zero bit in both.
fn holds(comparison: c_uint, word: u64, value: u64, size: u64) -> bool {
    match comparison {
        0 if size == 4 => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => word.wrapping_sub(value) as i64 >= 0,
        1 => word == value,
        2 => word & value != 0,
        _ => !(word | value) & (if size == 4 { u64::from(u32::MAX) } else { u64::MAX }) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn comparisons() {
        assert!(holds(0, 5, 5, 4) && holds(0, 2, u64::from(u32::MAX), 4) && !holds(0, 4, 5, 8));
        assert!(holds(1, 7, 7, 8) && !holds(1, 7, 8, 8));
        assert!(holds(2, 6, 2, 4) && !holds(2, 4, 2, 4));
        assert!(!holds(3, 0xffff_0000, 0xffff, 4) && holds(3, 0xffff_0000, 0xfffe, 4));
    }
}
