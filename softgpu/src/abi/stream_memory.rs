//! Values written to memory and waited for in stream order.

use super::{In, Res, abi};
use crate::gpu::copy::{check_word, load_word, store_word};
use crate::gpu::sched::Work;
use crate::gpu::stream::{Default, resolve};
use cuda_api::sys::{CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams};
use std::ffi::c_uint;

/// `CU_STREAM_WAIT_VALUE_*`: how the word is compared.
const COMPARISON: c_uint = 3;
const FLUSH: c_uint = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which the second version no longer takes. There always is a barrier here.
const NO_BARRIER: c_uint = 1;

abi! {
    stream fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz(
        stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint,
    ) |default| {
        write(stream, default, at, 4, value.into(), flags, 0)
    }

    stream fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz(
        stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint,
    ) |default| {
        write(stream, default, at, 8, value, flags, 0)
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
        batch_of(stream, default, count, parts, flags, 0)
    }

    stream fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz [cuStreamBatchMemOp_v2] (
        stream: CUstream, count: c_uint, parts: In<Part> as *mut CUstreamBatchMemOpParams, flags: c_uint,
    ) |default| {
        batch_of(stream, default, count, parts, flags, NO_BARRIER)
    }

    stream fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz [cuStreamWriteValue32_v2] (
        stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint,
    ) |default| {
        write(stream, default, at, 4, value.into(), flags, NO_BARRIER)
    }

    stream fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz [cuStreamWriteValue64_v2] (
        stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint,
    ) |default| {
        write(stream, default, at, 8, value, flags, NO_BARRIER)
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

/// One operation of a batch; see the header's union of the same name.
#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    operation: u32,
    /// Flags of those without an address.
    short_flags: u32,
    address: u64,
    value: u64,
    flags: u32,
    padding: u32,
    alias: [u64; 2],
}

const _: () = assert!(size_of::<Part>() == size_of::<CUstreamBatchMemOpParams>());

fn write(stream: CUstream, default: Default, at: u64, size: u64, value: u64, flags: c_uint, allowed: c_uint) -> Res {
    let part = Part { operation: if size == 4 { 2 } else { 5 }, flags, ..Part::at(at, value) };
    batch(stream, default, &[part], allowed)
}

fn wait(stream: CUstream, default: Default, at: u64, size: u64, value: u64, flags: c_uint) -> Res {
    let part = Part { operation: if size == 4 { 1 } else { 4 }, flags, ..Part::at(at, value) };
    batch(stream, default, &[part], 0)
}

fn batch_of(stream: CUstream, default: Default, count: c_uint, parts: In<Part>, flags: c_uint, allowed: c_uint) -> Res {
    if parts.is_null() || count == 0 || count > 255 || flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let parts: Vec<Part> = (0..count as usize).map(|i| parts.at(i)).collect::<Res<_>>()?;
    batch(stream, default, &parts, allowed)
}

impl Part {
    fn at(address: u64, value: u64) -> Part {
        Part { operation: 0, short_flags: 0, address, value, flags: 0, padding: 0, alias: [0; 2] }
    }

    /// Bytes of its word: 0 for barriers.
    fn size(&self) -> u64 {
        match self.operation {
            1 | 2 => 4,
            4 | 5 => 8,
            _ => 0,
        }
    }

    fn check(&self, write_flags: c_uint) -> Res {
        let allowed = match self.operation {
            1 | 4 => self.flags & !COMPARISON == 0,
            2 | 5 => self.flags & !write_flags == 0,
            // Barriers came with the second version.
            6 => write_flags == 0 && self.short_flags <= 1,
            _ => false,
        };
        // Remote writes need no flush here, and none is offered.
        if (matches!(self.operation, 1 | 4) && self.flags & FLUSH != 0) || self.operation == 3 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if !allowed {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if self.size() == 0 { Ok(()) } else { check_word(self.address, self.size()) }
    }
}

/// All of them or, if one is wrong, none.
fn batch(stream: CUstream, default: Default, parts: &[Part], write_flags: c_uint) -> Res {
    let target = resolve(stream, default)?;
    parts.iter().try_for_each(|p| p.check(write_flags))?;
    for part in parts {
        let (at, size) = (part.address, part.size());
        let value = if size == 4 { part.value & u64::from(u32::MAX) } else { part.value };
        match part.operation {
            1 | 4 => {
                let comparison = part.flags & COMPARISON;
                let condition = move || Ok(holds(comparison, load_word(at, size)?, value, size));
                target.submit(Work::Until(Box::new(move |_| condition())), Vec::new());
            }
            2 | 5 => drop(target.submit(Work::Run(Box::new(move |_| store_word(at, size, value))), Vec::new())),
            _ => {}
        }
    }
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
