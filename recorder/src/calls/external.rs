//! External memory: the physical memory of a descriptor, mapped as one buffer.
//!
//! Both ends are jobs: the descriptor is a ticket ([`crate::device_memory::shared_memory`]), and a buffer is an ordinary mapping of the
//! program's physical memory ([`crate::calls::vmm`]), so it moves like that. Memory of graphics or of other drivers belongs to the machine
//! of the program, and a place may be on another machine: it is refused.

use crate::base::log::{self, lock};
use crate::calls::{cross_device, vmm};
use crate::device_memory::{mappings, shared_memory};
use crate::enter::CallContext;
use crate::job::Device;
use cuda_api::code::{self, Code};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys;
use cuda_model::external::Asked;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The first handle of external memory.
const FIRST: u64 = 0x5e00_0000_0040;

/// Imported memory.
#[derive(Debug, Clone, Copy)]
struct Imported {
    /// The recorder's handle of the physical memory.
    physical: u64,
    bytes: u64,
}

/// A mapped buffer.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    device: &'static Device,
    /// The mapping that contains it.
    start: u64,
    bytes: u64,
}

#[derive(Debug)]
struct State {
    next: u64,
    imported: BTreeMap<u64, Imported>,
    buffers: BTreeMap<u64, Buffer>,
}

static STATE: Mutex<State> = Mutex::new(State { next: FIRST, imported: BTreeMap::new(), buffers: BTreeMap::new() });

pub(crate) fn cuImportExternalMemory(
    cx: &mut CallContext,
    to: OutPtr<sys::CUexternalMemory>,
    asked: InPtr<sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC>,
) -> Result<(), Code> {
    cx.device()?.check()?;
    let (to, asked) = (to.not_null()?, asked.cast::<Asked>().read()?);
    asked.check()?;
    let physical = match vmm::share::import(cx, asked.fd) {
        Err(code::ERROR_INVALID_VALUE) if !shared_memory::is_ticket(asked.fd) => {
            log::missed("external memory that no job has exported (not supported)".to_owned());
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        other => other?,
    };
    if mappings::bytes_of(physical)? < asked.bytes {
        vmm::cuMemRelease(cx, physical)?;
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut state = lock(&STATE);
    let number = state.next;
    state.next += 0x40;
    state.imported.insert(number, Imported { physical, bytes: asked.bytes });
    // The driver owns the descriptor once the import has succeeded, as CUDA documents. Linux closes it in any case.
    let _ = nix::unistd::close(asked.fd);
    to.write(number as sys::CUexternalMemory)
}

/// The imported memory of a handle.
fn find(memory: sys::CUexternalMemory) -> Result<Imported, Code> {
    lock(&STATE).imported.get(&(memory as u64)).copied().ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuExternalMemoryGetMappedBuffer(
    cx: &mut CallContext,
    to: OutPtr<sys::CUdeviceptr>,
    memory: sys::CUexternalMemory,
    asked: InPtr<sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC>,
) -> Result<(), Code> {
    let imported = find(memory)?;
    let device = cx.device()?;
    let (to, asked) = (to.not_null()?, asked.read()?);
    let end = asked.offset.checked_add(asked.size).ok_or(code::ERROR_INVALID_VALUE)?;
    if asked.flags != 0 || asked.size == 0 || end > imported.bytes {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let bytes = mappings::bytes_of(imported.physical)?;
    let start = vmm::map_anywhere(cx, imported.physical, bytes, device)?;
    lock(&STATE).buffers.insert(start + asked.offset, Buffer { device, start, bytes });
    to.write(start + asked.offset)
}

/// Frees a buffer, if there is one at this address; waits, as all frees do.
pub(crate) fn free(cx: &mut CallContext, address: u64) -> Option<Result<(), Code>> {
    if !mappings::is_reserved(address) {
        return None;
    }
    let buffer = *lock(&STATE).buffers.get(&address)?;
    let mut end = || {
        cx.settle(buffer.device)?;
        cross_device::settle(cx, buffer.device);
        lock(&STATE).buffers.remove(&address);
        vmm::cuMemUnmap(cx, buffer.start, buffer.bytes as usize)?;
        vmm::unreserve(buffer.start, buffer.bytes)
    };
    Some(end())
}

pub(crate) fn cuDestroyExternalMemory(cx: &mut CallContext, memory: u64) -> Result<(), Code> {
    let gone = lock(&STATE).imported.remove(&memory).ok_or(code::ERROR_INVALID_VALUE)?;
    // Buffers keep the memory alive.
    vmm::cuMemRelease(cx, gone.physical)
}

/// Removes all mappings in the context of a device that is destroyed.
pub(crate) fn forget(device: &Device) {
    let mut state = lock(&STATE);
    for (_, gone) in state.buffers.extract_if(.., |_, buffer| buffer.device.index == device.index) {
        // It fails only if another device still has a mapping there.
        let _ = vmm::unreserve(gone.start, gone.bytes);
    }
}
