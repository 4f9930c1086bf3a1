//! Memory and events shared with other processes: `cuIpc…`.
//!
//! Each process has its own places. A handle contains the place's offer of the chunk around an allocation for other places of its
//! machine; a process that opens it has the chunk mapped at its own place, in the range of the program's reservations. As long as this
//! lasts neither device moves: the other process would keep using memory that is no longer the job's. Events are shared by the driver's
//! own handles, between places of one machine.

use crate::base::encoding::encode;
use crate::base::log::{self, lock};
use crate::device_memory::shared_handles::{Export, Handle, IPC, Import, SHARED, WAITS, note_shared};
use crate::device_memory::{mappings, peer};
use crate::enter::CallContext;
use crate::job::Device;
use crate::ledger::Keep;
use crate::order::landing;
use cuda_api::address_map::{ARENA, GRANULE};
use cuda_api::arg::{Capture, Edges};
use cuda_api::code::{self, Code};
use cuda_api::flags::{EVENT_DISABLE_TIMING, EVENT_INTERPROCESS};
use cuda_api::handle::Kind;
use cuda_api::ops::{Chunk, EventOffer, EventOpen, PeerMap, StreamWaitEvent, id};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::ffi::{c_char, c_uint};
use std::sync::atomic::Ordering;

const MAGIC: [u8; 8] = *b"mrcudaIM";
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
const LAZY: u32 = 1;

/// Makes a stream wait for the current record of a shared event. What another process has written to host memory by then is sent to the
/// place before the stream continues.
pub(crate) fn wait_event(cx: &CallContext, device: &'static Device, wait: &StreamWaitEvent) -> Result<(), Code> {
    WAITS.fetch_add(1, Ordering::AcqRel);
    let over = || {
        WAITS.fetch_sub(1, Ordering::AcqRel);
    };
    // The wait is at the place before the program can tell the other process to continue.
    let asked = cx.ask(device, id::STREAM_WAIT_EVENT, &[&encode(wait)]);
    asked.and_then(|_| landing::fence(cx, device, wait.stream, over)).inspect_err(|_| over())
}

pub(crate) fn cuIpcGetMemHandle(cx: &mut CallContext, dptr: u64) -> Result<sys::CUipcMemHandle, Code> {
    let found = cx.job.devices.iter().find_map(|d| Some((d, d.memory().find(dptr).filter(|f| f.pool == 0)?)));
    let (device, allocation) = found.ok_or(code::ERROR_INVALID_VALUE)?;
    device.check()?;
    let chunk = device.memory().chunk_around(allocation.start).ok_or(code::ERROR_INVALID_VALUE)?;
    let offer = peer::offer(cx, device, chunk)?;
    note_shared();
    lock(&IPC).exports.insert(allocation.start, Export { device: device.index, chunk: chunk.address, offer });
    let offset = allocation.start - chunk.address;
    let handle = encode(&Handle { magic: MAGIC, offer, bytes: chunk.bytes, offset, rest: 0 });
    let bytes: [u8; size_of::<sys::CUipcMemHandle>()] = handle.try_into().map_err(|_| code::ERROR_UNKNOWN)?;
    Ok(sys::CUipcMemHandle { reserved: bytes.map(|b| b as c_char) })
}

pub(crate) fn cuIpcOpenMemHandle_v2(
    cx: &mut CallContext,
    handle: sys::CUipcMemHandle,
    flags: c_uint,
) -> Result<sys::CUdeviceptr, Code> {
    if flags != LAZY {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let device = cx.device()?;
    device.check()?;
    let bytes: Vec<u8> = handle.reserved.iter().map(|b| *b as u8).collect();
    let bad = code::ERROR_INVALID_VALUE;
    let handle = Handle::get(&mut &bytes[..]).map_err(|_| bad)?;
    let whole = handle.bytes != 0 && handle.bytes % GRANULE == 0 && handle.bytes <= ARENA && handle.offset < handle.bytes;
    if handle.magic != MAGIC || handle.rest != 0 || !whole {
        return Err(bad);
    }
    let mut ipc = lock(&IPC);
    if ipc.exports.values().any(|e| e.offer == handle.offer) {
        // As natively in the process that owns the memory.
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    if let Some((address, import)) = ipc.imports.iter_mut().find(|(_, i)| i.handle == handle && i.device == device.index) {
        import.opened += 1;
        return Ok(*address);
    }
    let at = mappings::reserve_addresses(handle.bytes).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let map = PeerMap { address: at, bytes: handle.bytes, offer: handle.offer };
    if let Err(rc) = cx.ask(device, id::PEER_MAP, &[&encode(&map)]) {
        mappings::release_addresses(at, handle.bytes);
        if rc == code::ERROR_PEER_ACCESS_UNSUPPORTED {
            log::missed("memory of another process whose GPU is not on the same machine, or that is gone".to_owned());
            return Err(code::ERROR_MAP_FAILED);
        }
        return Err(rc);
    }
    note_shared();
    mappings::note_foreign(at, handle.bytes, device);
    let address = at + handle.offset;
    ipc.imports.insert(address, Import { handle, device: device.index, at, opened: 1 });
    Ok(address)
}

pub(crate) fn cuIpcGetEventHandle(cx: &mut CallContext, event: u64) -> Result<sys::CUipcEventHandle, Code> {
    let device = cx.device()?;
    device.check()?;
    let bytes = cx.ask(device, id::EVENT_SHARE, &[&event.to_le_bytes()])?;
    let offer = EventOffer::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN)?;
    shared(cx, event, device)?;
    Ok(sys::CUipcEventHandle { reserved: offer.map(|b| b as c_char) })
}

pub(crate) fn cuIpcOpenEventHandle(cx: &mut CallContext, handle: sys::CUipcEventHandle) -> Result<u64, Code> {
    let device = cx.device()?;
    let event = cx.new_handle(Kind::Event)?;
    let body = encode(&EventOpen { event, offer: handle.reserved.map(|b| b as u8) });
    cx.build(device, id::EVENT_OPEN, &body, &Edges { creates: [event].into(), ..Edges::default() }, Keep::PLAIN)?;
    shared(cx, event, device)?;
    Ok(event)
}

/// Marks an event as shared: only the place can tell whether it has occurred.
fn shared(cx: &CallContext, event: u64, device: &Device) -> Result<(), Code> {
    note_shared();
    let data = &cx.job.tables.events.get(event)?.data;
    data.flags.fetch_or(EVENT_INTERPROCESS | EVENT_DISABLE_TIMING | SHARED, Ordering::Relaxed);
    data.recorded_somewhere(device.epoch.load(Ordering::Relaxed));
    Ok(())
}

pub(crate) fn cuIpcCloseMemHandle(cx: &mut CallContext, dptr: u64) -> Result<(), Code> {
    let known = lock(&IPC).imports.get(&dptr).map(|i| i.device).ok_or(code::ERROR_INVALID_VALUE)?;
    let device = cx.job.devices.get(known as usize).ok_or(code::ERROR_INVALID_VALUE)?;
    // Submitted work may still use it.
    cx.settle(device)?;
    let mut ipc = lock(&IPC);
    let import = ipc.imports.get_mut(&dptr).ok_or(code::ERROR_INVALID_VALUE)?;
    import.opened -= 1;
    if import.opened > 0 {
        return Ok(());
    }
    let (at, bytes) = (import.at, import.handle.bytes);
    ipc.imports.remove(&dptr);
    mappings::forget_foreign(at);
    let unmapped = cx.ask(device, id::PEER_UNMAP, &[&encode(&Chunk { address: at, bytes })]);
    mappings::release_addresses(at, bytes);
    unmapped.map(drop)
}

pub(crate) use cuIpcOpenMemHandle_v2 as cuIpcOpenMemHandle;
