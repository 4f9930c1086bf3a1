//! Pools shared by processes: each allocation of such a pool is a separate memory file, which other processes find by
//! process and descriptor.

use super::device::{self, Device};
use super::live::Live;
use super::memory::{self, Kind};
use super::os::{self, Protection};
use super::{lock, mempool};
use crate::config;
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
/// What files take is a multiple of this.
const BLOCK: u64 = 2 << 20;
/// First word of the data of a pointer.
const MAGIC: u64 = 0x5f67_7570_6f6f_6c31;

/// `CUmemPoolPtrExportData`: mark, process, pool, descriptor, bytes, where the pointer is in it.
pub(crate) type Data = [u64; 8];

/// A file that an allocation lies in.
struct Mapped {
    fd: OwnedFd,
    len: u64,
    size: u64,
    /// Whether this process has made it.
    own: bool,
}

static FILES: Mutex<Option<HashMap<u64, Mapped>>> = Mutex::new(None);

fn block_name(device: &Device) -> String {
    format!("softgpu-block:{}:{}", config::get().seed_id, device.physical)
}

fn map(fd: OwnedFd, len: u64, size: u64, own: bool) -> Res<u64> {
    let at = os::reserve(0, len, BLOCK)?;
    if let Err(rc) = os::map_file(at, len, &fd).and_then(|()| os::protect(at, len, Protection::ReadWrite)) {
        os::unmap(at, len);
        return Err(rc);
    }
    lock(&FILES).get_or_insert_default().insert(at, Mapped { fd, len, size, own });
    Ok(at)
}

/// An allocation of a pool that may be exported.
pub(crate) fn allocate(live: &Live, size: u64, ordinal: usize, pool: usize) -> Res<u64> {
    let device = device::all().get(ordinal).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    let len = size.checked_next_multiple_of(BLOCK).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    device.take(len)?;
    let made = os::memory_file(&block_name(device), len).and_then(|fd| map(fd, len, size, true));
    let at = made.inspect_err(|_| device.release(len))?;
    memory::write().add(at, size, Kind::Pooled(pool), ordinal, Some(live));
    Ok(at)
}

/// The allocation at an address goes: bytes to be unmapped, if it was one of these.
pub(crate) fn forget(device: &Device, address: u64) -> Option<u64> {
    let gone = lock(&FILES).as_mut()?.remove(&address)?;
    if gone.own {
        device.release(gone.len);
    }
    Some(gone.len)
}

/// `cuMemPoolExportToShareableHandle`: a descriptor whose name says whose pool it is.
pub(crate) fn export(handle: usize) -> Res<i32> {
    let pool = mempool::resolve(handle)?;
    if !pool.is_exportable {
        return Err(BAD);
    }
    let device = device::all().get(pool.device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    let (seed, pid) = (&config::get().seed_id, std::process::id());
    let fd = os::memory_file(&format!("softgpu-pool:{seed}:{}:{pid}:{handle}", device.physical), 1)?;
    Ok(fd.into_raw_fd())
}

/// `cuMemPoolImportFromShareableHandle`
pub(crate) fn import(descriptor: i32) -> Res<usize> {
    let fd = os::duplicate(descriptor)?;
    let name = os::memory_file_name(&fd).ok_or(BAD)?;
    let [device, pid, pool] = {
        let rest = name.strip_prefix(&format!("softgpu-pool:{}:", config::get().seed_id)).ok_or(BAD)?;
        let numbers: Vec<u64> = rest.split(':').map_while(|n| n.parse().ok()).collect();
        <[u64; 3]>::try_from(numbers).map_err(|_| BAD)?
    };
    let device = device::all().iter().find(|d| d.physical as u64 == device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    Ok(mempool::add(device.ordinal as usize, 0, false, Some([pid, pool])))
}

/// `cuMemPoolExportPointer`
pub(crate) fn export_pointer(address: u64) -> Res<Data> {
    let (start, pool) = match memory::read().find(address) {
        Some((start, alloc)) => match alloc.kind {
            Kind::Pooled(pool) => (start, pool),
            _ => return Err(BAD),
        },
        None => return Err(BAD),
    };
    if !mempool::resolve(pool)?.is_exportable {
        return Err(BAD);
    }
    let files = lock(&FILES);
    let file = files.as_ref().and_then(|all| all.get(&start)).ok_or(BAD)?;
    let pid = u64::from(std::process::id());
    Ok([MAGIC, pid, pool as u64, file.fd.as_raw_fd() as u64, file.size, address - start, 0, 0])
}

/// `cuMemPoolImportPointer`
pub(crate) fn import_pointer(live: &Live, handle: usize, data: &Data) -> Res<u64> {
    let pool = mempool::resolve(handle)?;
    let [magic, pid, number, fd, size, offset, ..] = *data;
    if magic != MAGIC || pool.lender != Some([pid, number]) || offset >= size {
        return Err(BAD);
    }
    let device = device::all().get(pool.device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")).map_err(|_| BAD)?;
    let fd = OwnedFd::from(file);
    let (len, _) = os::file_identity(&fd)?;
    if os::memory_file_name(&fd).as_deref() != Some(&block_name(device)) || size > len {
        return Err(BAD);
    }
    let at = map(fd, len, size, false)?;
    memory::write().add(at, size, Kind::Pooled(handle), pool.device, Some(live));
    pool.imported(size);
    Ok(at + offset)
}
