//! Managed memory: it is host memory, so advice and prefetches are checked and recorded, and have no effect.

use super::memcpy::not_legacy;
use super::{Out, Res, abi};
use crate::gpu::graph_table::error;
use crate::gpu::lock;
use crate::gpu::stream::{Default, resolve};
use crate::gpu::{capture, context, device, host, memory};
use cuda_api::code::Code;
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUresult, CUstream};
use cuda_model::advice::{self, Advice};
use cuda_model::batch;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Mutex;

/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`, `CU_MEM_ATTACH_SINGLE`
const GLOBAL: c_uint = 1;
const HOST: c_uint = 2;
const SINGLE: c_uint = 4;

/// `CUmemLocation`, with its enum as a number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_uint,
    ordinal: c_int,
}

const _: () = assert!(size_of::<Location>() == size_of::<CUmemLocation>());

/// The recorded advice.
static ADVICE: Mutex<Advice> = Mutex::new(Advice::new());

abi! {
    call fn cuMemAllocManaged(out: Out<CUdeviceptr> as *mut CUdeviceptr, size: usize, flags: c_uint) {
        out.check()?;
        if !matches!(flags, GLOBAL | HOST) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        capture::forbid_unsafe()?;
        let at = host::allocate_managed(&*context::current()?, size as u64)?;
        lock(&ADVICE).forget(at, size as u64);
        out.set(at)
    }

    call fn cuMemAdvise_v2(at: CUdeviceptr, size: usize, advice: c_uint as CUmem_advise, location: Location as CUmemLocation) {
        context::current()?;
        let (range, location) = (check_range(at, size).map_err(|e| e as Code), (location.kind, location.ordinal));
        let exists = |(kind, ordinal)| check_location(Location { kind, ordinal }).is_ok();
        if advice::check(advice, range, location, exists).map_err(error)? {
            lock(&ADVICE).advise(at, size as u64, advice, location);
        }
        Ok(())
    }

    call fn cuMemRangeGetAttribute(
        to: OutPtr<c_void> as *mut c_void, room: usize, attribute: c_uint as CUmem_range_attribute, at: CUdeviceptr, size: usize,
    ) {
        context::current()?;
        check_range(at, size)?;
        lock(&ADVICE).write_attribute(to, attribute, room, at, size as u64).map_err(error)
    }

    call fn cuMemRangeGetAttributes(
        to: InPtr<*mut c_void> as *mut *mut c_void, rooms: InPtr<usize> as *mut usize,
        attributes: InPtr<CUmem_range_attribute> as *mut CUmem_range_attribute, n: usize, at: CUdeviceptr, size: usize,
    ) {
        context::current()?;
        check_range(at, size)?;
        lock(&ADVICE).write_attributes((to, rooms, attributes.cast(), n), at, size as u64).map_err(error)
    }

    stream fn cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz(
        at: CUdeviceptr, size: usize, location: Location as CUmemLocation, flags: c_uint, stream: CUstream,
    ) |default| {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let target = resolve(stream, default)?;
        check_range(at, size)?;
        check_location(location)?;
        capture::forbid_on(&target)?;
        capture::forbid_unsafe()?;
        lock(&ADVICE).prefetch(at, size as u64, (location.kind, location.ordinal));
        Ok(())
    }

    stream fn cuMemPrefetchBatchAsync / cuMemPrefetchBatchAsync_ptsz(
        at: InPtr<CUdeviceptr> as *mut CUdeviceptr, sizes: InPtr<usize> as *mut usize, count: usize,
        to: InPtr<CUmemLocation> as *mut CUmemLocation, from: InPtr<usize> as *mut usize, n: usize, flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        prefetch_all(stream, default, || batch::ranges((at, sizes, count), Some((to, from, n)), flags))
    }

    stream fn cuMemDiscardBatchAsync / cuMemDiscardBatchAsync_ptsz(
        at: InPtr<CUdeviceptr> as *mut CUdeviceptr, sizes: InPtr<usize> as *mut usize, count: usize, flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        prefetch_all(stream, default, || batch::ranges((at, sizes, count), None, flags))
    }

    stream fn cuMemDiscardAndPrefetchBatchAsync / cuMemDiscardAndPrefetchBatchAsync_ptsz(
        at: InPtr<CUdeviceptr> as *mut CUdeviceptr, sizes: InPtr<usize> as *mut usize, count: usize,
        to: InPtr<CUmemLocation> as *mut CUmemLocation, from: InPtr<usize> as *mut usize, n: usize, flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        prefetch_all(stream, default, || batch::ranges((at, sizes, count), Some((to, from, n)), flags))
    }

    stream fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz(
        stream: CUstream, at: CUdeviceptr, size: usize, flags: c_uint,
    ) |default| {
        let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
        if !matches!(flags, GLOBAL | HOST | SINGLE) || flags == SINGLE && stream.is_null() {
            return Err(bad);
        }
        resolve(stream, default)?;
        let memory = memory::read();
        let whole = memory.allocs.get(&at).filter(|a| a.is_managed());
        if whole.is_some_and(|a| size == 0 || size as u64 == a.size) { Ok(()) } else { Err(bad) }
    }
}

type Ranges = Vec<(u64, usize, Option<batch::Location>)>;

fn prefetch_all(stream: CUstream, default: Default, ranges: impl FnOnce() -> Result<Ranges, Code>) -> Res {
    let target = not_legacy(stream, default)?;
    let ranges = ranges().map_err(error)?;
    for (at, size, to) in &ranges {
        check_range(*at, *size)?;
        to.map_or(Ok(()), |(kind, ordinal)| check_location(Location { kind, ordinal }))?;
    }
    capture::forbid_on(&target)?;
    capture::forbid_unsafe()?;
    for (at, size, to) in ranges {
        if let Some(to) = to {
            lock(&ADVICE).prefetch(at, size as u64, to);
        }
    }
    Ok(())
}

/// Whether a whole range is managed memory of one allocation.
fn check_range(at: u64, size: usize) -> Res {
    let memory = memory::read();
    let found = memory.find(at).filter(|(_, alloc)| alloc.is_managed());
    let inside = found.is_some_and(|(base, alloc)| size > 0 && size as u64 <= alloc.size - (at - base));
    if inside { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

fn check_location(location: Location) -> Res {
    match location.kind {
        1 if usize::try_from(location.ordinal).is_ok_and(|i| i < device::all().len()) => Ok(()),
        1 => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
        2..=4 => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
