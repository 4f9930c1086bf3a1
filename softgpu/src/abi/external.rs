//! External memory: descriptors of physical memory that are mapped as buffers. Only such descriptors can be imported
//! here.

use super::{In, Out, Res, abi, res};
use crate::gpu::live::Live;
use crate::gpu::{context, lock, physical, vmm, wait};
use cuda_api::sys::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUdeviceptr, CUexternalMemory, CUresult,
};
use cuda_model::external::Asked;
use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Mutex;

/// Imported memory: the handle of the memory, and the size given by the program.
static IMPORTED: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);
/// Buffers: the mapping around each, and its size.
static BUFFERS: Mutex<Option<HashMap<u64, (u64, u64)>>> = Mutex::new(None);

abi! {
    call fn cuImportExternalMemory(
        out: Out<u64> as *mut CUexternalMemory, asked: In<Asked> as *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    ) {
        context::current()?;
        out.check()?;
        let asked = asked.get()?;
        res(asked.check())?;
        let handle = physical::import(asked.fd).map_err(|_| CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        if physical::resolve(handle)?.size < asked.bytes {
            physical::release(handle)?;
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        lock(&IMPORTED).get_or_insert_default().insert(handle, asked.bytes);
        // SAFETY: the descriptor is the driver's once the import has succeeded, as the header says.
        drop(unsafe { OwnedFd::from_raw_fd(asked.fd) });
        out.set(handle)
    }

    call fn cuExternalMemoryGetMappedBuffer(
        out: Out<CUdeviceptr> as *mut CUdeviceptr, memory: CUexternalMemory, asked: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
    ) {
        let handle = memory as u64;
        let bytes = imported(handle)?;
        let live = context::current()?;
        out.check()?;
        if asked.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so by the ABI such a structure of numbers.
        let asked = unsafe { asked.read_unaligned() };
        let end = asked.offset.checked_add(asked.size).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if asked.flags != 0 || asked.size == 0 || end > bytes {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let size = physical::resolve(handle)?.size;
        let start = vmm::reserve(size, 0, 0)?;
        vmm::map(start, size, 0, handle)?;
        vmm::set_access(start, size, live.device.ordinal as usize, true)?;
        lock(&BUFFERS).get_or_insert_default().insert(start + asked.offset, (start, size));
        out.set(start + asked.offset)
    }

    call fn cuDestroyExternalMemory(memory: CUexternalMemory) {
        imported(memory as u64)?;
        lock(&IMPORTED).get_or_insert_default().remove(&(memory as u64));
        physical::release(memory as u64)
    }
}

fn imported(handle: u64) -> Res<u64> {
    lock(&IMPORTED).as_ref().and_then(|all| all.get(&handle)).copied().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Destroys a buffer; true if there is one at this address.
pub(super) fn free(live: &Live, address: u64) -> Res<bool> {
    let Some((start, size)) = lock(&BUFFERS).as_mut().and_then(|all| all.remove(&address)) else { return Ok(false) };
    wait::for_device(live.device.ordinal as usize);
    vmm::unmap(start, size)?;
    vmm::unreserve(start, size)?;
    Ok(true)
}
