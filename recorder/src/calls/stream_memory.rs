//! Memory operations of streams: waits for words of memory, and writes to them.

use crate::device_memory::regions::is_device;
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::{Device, attributes};
use crate::order::{captures, landing};
use crate::pinned::blocks;
use crate::place::{Place, lost};
use cuda_api::arg::Capture;
use cuda_api::code::{self, Code};
use cuda_api::flags::{MEM_OP_WAIT_32, MEM_OP_WRITE_32};
use cuda_api::ops::{MemoryPart, StreamMemory, id};
use cuda_api::pointer::InPtr;
use cuda_api::sys;
use cuda_api::wire::Wire;
use cuda_api::work::Work;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sys::CUdevice_attribute_enum as A;

// `CUstreamBatchMemOpType`
const FLUSH: u32 = 3;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;
/// `CU_STREAM_WAIT_VALUE_NOR`, the last of the four conditions.
const NOR: u32 = 3;
/// `CU_STREAM_WAIT_VALUE_FLUSH`
const WAIT_FLUSH: u32 = 1 << 30;
/// A batch has fewer operations than this (CUDA driver API reference).
const MAX_BATCH: u32 = 256;

/// Number of waits of workers' streams that have not ended.
static WAITS: AtomicUsize = AtomicUsize::new(0);

/// Whether streams of this process's driver, or graphs, have been made to wait: the end of such a wait is not reported.
#[expect(unsafe_code, reason = "where a static variable lies")]
#[unsafe(link_section = "mrcuda_hot")]
static WAITED_HERE: AtomicBool = AtomicBool::new(false);

/// Returns whether a stream of a worker may still wait for a word of memory.
pub(crate) fn any_waiting() -> bool {
    WAITS.load(Ordering::Acquire) > 0 || waited_here()
}

/// Returns whether a stream of this process's driver, or a graph, has ever been made to wait.
pub(crate) fn waited_here() -> bool {
    WAITED_HERE.load(Ordering::Acquire)
}

/// Checks that the device has this capability.
fn able(device: &Device, attribute: A) -> Result<(), Code> {
    match attributes::attribute(device, attribute as u32) {
        Some(n) if n != 0 => Ok(()),
        _ => Err(code::ERROR_NOT_SUPPORTED),
    }
}

/// The errors that the driver returns from the call itself.
fn check(cx: &CallContext, device: &Device, part: &MemoryPart, first: bool) -> Result<(), Code> {
    let wrong = |bad: bool| if bad { Err(code::ERROR_INVALID_VALUE) } else { Ok(()) };
    match part.operation {
        MEM_OP_WAIT_32 | WAIT_64 => {
            wrong(part.flags & !(NOR | WAIT_FLUSH) != 0)?;
            if part.flags & NOR == NOR {
                let nor = A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1;
                able(device, if first { nor } else { A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR })?;
            }
            if part.flags & WAIT_FLUSH != 0 {
                able(device, A::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)?;
            }
        }
        // Writes without a barrier belong to the first version.
        MEM_OP_WRITE_32 | WRITE_64 => wrong(part.flags > u32::from(first))?,
        FLUSH => {
            wrong(part.flags != 0)?;
            able(device, A::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)?;
        }
        BARRIER => wrong(first || part.flags > 1)?,
        _ => return Err(code::ERROR_INVALID_VALUE),
    }
    let Some(bytes) = part.bytes() else { return Ok(()) };
    if bytes == 8 {
        let wide = A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1;
        able(device, if first { wide } else { A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS })?;
    }
    wrong(!part.address.is_multiple_of(bytes))?;
    // Neither memory of pools nor managed memory is accepted (measured).
    if is_device(part.address) {
        wrong(device.memory().find(part.address).is_some_and(|f| f.pool != 0))?;
        return device.check_range(part.address, bytes).map(drop);
    }
    wrong(!blocks::is_pinned(part.address, bytes) || blocks::find(part.address).is_some_and(|f| f.managed))?;
    host_memory::note_mapped(cx, part.address)
}

fn submit(
    cx: &mut CallContext,
    stream: sys::CUstream,
    first_version: bool,
    parts: Vec<MemoryPart>,
    flags: u32,
) -> Result<(), Code> {
    let stream = cx.use_stream(stream as u64)?;
    let device = cx.device()?;
    device.check()?;
    if first_version {
        able(device, A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1)?;
    }
    let place = cx.place(device);
    parts.iter().try_for_each(|p| check(cx, device, p, first_version))?;
    if parts.is_empty() {
        return Ok(());
    }
    if cx.job.graphs.capturing() {
        let node = || Ok(Work::MemOps(parts.iter().map(words_of).collect()));
        if captures::take(cx, device, stream, false, node)? {
            return Ok(());
        }
    }
    landing::before_work(cx, device, stream)?;
    let waits = parts.iter().any(MemoryPart::waits);
    let mut body = Vec::with_capacity(64);
    StreamMemory { stream, first_version, flags, parts }.put(&mut body);
    let link = match place {
        Place::Remote { link, .. } if waits => link,
        _ => {
            WAITED_HERE.fetch_or(waits, Ordering::AcqRel);
            return cx.work(device, id::STREAM_MEMORY, &[&body]);
        }
    };
    WAITS.fetch_add(1, Ordering::AcqRel);
    let past = move |answer: Result<(Code, Vec<u8>), _>| {
        WAITS.fetch_sub(1, Ordering::AcqRel);
        device.failed_late(id::STREAM_MEMORY, answer.map_or_else(lost, |(rc, _)| rc));
    };
    device.record_error(link.request_then(id::STREAM_MEMORY, &[&body], past).map_err(|why| {
        WAITS.fetch_sub(1, Ordering::AcqRel);
        lost(why)
    }))
}

/// An operation in the form of a graph's node.
fn words_of(p: &MemoryPart) -> [u64; 6] {
    match p.bytes() {
        Some(_) => [p.operation.into(), p.address, p.value, p.flags.into(), 0, 0],
        None => [u64::from(p.operation) | u64::from(p.flags) << 32, 0, 0, 0, 0, 0],
    }
}

/// An operation from the header's union, which always has six words.
fn part_of(w: &[u64; 6]) -> MemoryPart {
    let operation = w[0] as u32;
    let bare = MemoryPart { operation, address: 0, value: 0, flags: (w[0] >> 32) as u32 };
    match bare.bytes() {
        // The upper half of a short value's word is padding.
        Some(4) => MemoryPart { operation, address: w[1], value: w[2] & 0xffff_ffff, flags: w[3] as u32 },
        Some(_) => MemoryPart { operation, address: w[1], value: w[2], flags: w[3] as u32 },
        None => bare,
    }
}

/// Checks the operations of a graph's node.
pub(crate) fn check_node(cx: &CallContext, device: &'static Device, parts: &[[u64; 6]]) -> Result<(), Code> {
    if parts.is_empty() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    parts.iter().try_for_each(|w| check(cx, device, &part_of(w), false))
}

/// The addresses of the words that a node's operations wait for or write.
pub(crate) fn addresses(parts: &[[u64; 6]]) -> impl Iterator<Item = u64> {
    parts.iter().map(|w| part_of(w).address)
}

/// Notes an instance with such operations: the end of its waits is not reported.
pub(crate) fn note_node(parts: &[[u64; 6]]) {
    WAITED_HERE.fetch_or(parts.iter().any(|w| part_of(w).waits()), Ordering::AcqRel);
}

fn batch(
    cx: &mut CallContext,
    stream: sys::CUstream,
    count: u32,
    array: InPtr<sys::CUstreamBatchMemOpParams>,
    flags: u32,
    first_version: bool,
) -> Result<(), Code> {
    if count == 0 && flags == 0 {
        return submit(cx, stream, first_version, Vec::new(), flags);
    }
    if array.is_null() || count >= MAX_BATCH || flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let words = array.cast::<[u64; 6]>().elements(count as usize)?;
    submit(cx, stream, first_version, words.map(|words| part_of(&words)).collect(), flags)
}

macro_rules! words {
    ($($name:ident $operation:ident $t:ty, $first:literal;)*) => {$(
        pub(crate) fn $name(cx: &mut CallContext, stream: sys::CUstream, addr: sys::CUdeviceptr, value: $t, flags: c_uint) -> Result<(), Code> {
            let part = MemoryPart { operation: $operation, address: addr, value: value.into(), flags };
            submit(cx, stream, $first, vec![part], 0)
        }
    )*};
}
words! {
    cuStreamWaitValue32 MEM_OP_WAIT_32 sys::cuuint32_t, true;
    cuStreamWaitValue64 WAIT_64 sys::cuuint64_t, true;
    cuStreamWriteValue32 MEM_OP_WRITE_32 sys::cuuint32_t, true;
    cuStreamWriteValue64 WRITE_64 sys::cuuint64_t, true;
    cuStreamWaitValue32_v2 MEM_OP_WAIT_32 sys::cuuint32_t, false;
    cuStreamWaitValue64_v2 WAIT_64 sys::cuuint64_t, false;
    cuStreamWriteValue32_v2 MEM_OP_WRITE_32 sys::cuuint32_t, false;
    cuStreamWriteValue64_v2 WRITE_64 sys::cuuint64_t, false;
}

pub(crate) fn cuStreamBatchMemOp(
    cx: &mut CallContext,
    stream: sys::CUstream,
    count: c_uint,
    array: InPtr<sys::CUstreamBatchMemOpParams>,
    flags: c_uint,
) -> Result<(), Code> {
    batch(cx, stream, count, array, flags, true)
}

pub(crate) fn cuStreamBatchMemOp_v2(
    cx: &mut CallContext,
    stream: sys::CUstream,
    count: c_uint,
    array: InPtr<sys::CUstreamBatchMemOpParams>,
    flags: c_uint,
) -> Result<(), Code> {
    batch(cx, stream, count, array, flags, false)
}

#[cfg(test)]
mod tests;
