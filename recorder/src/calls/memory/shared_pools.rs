//! Pools shared between processes: descriptors of pools, and pointers into them ([`crate::device_memory::shared_memory`]).

use crate::device_memory::shared_memory;
use crate::device_memory::stream_ordered::{add, known, with_pool};
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::allocations::Home;
use crate::objects::pool::Pool;
use crate::objects::ticket::{self, TICKET, Ticket};
use cuda_api::code::{self, Code};
use cuda_api::flags::HANDLE_FILE_DESCRIPTOR;
use cuda_api::sys;
use std::ffi::{c_int, c_ulonglong};
use std::os::fd::IntoRawFd;

/// Checks the kind of handle by which processes share pools.
fn shareable(kind: u32, flags: c_ulonglong) -> Result<(), Code> {
    match kind {
        _ if flags != 0 => Err(code::ERROR_INVALID_VALUE),
        HANDLE_FILE_DESCRIPTOR => Ok(()),
        // Handles of Windows and of fabrics.
        2 | 4 | 8 => Err(code::ERROR_NOT_SUPPORTED),
        _ => Err(code::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemPoolExportToShareableHandle(
    cx: &mut CallContext,
    pool: u64,
    kind: u32,
    flags: c_ulonglong,
) -> Result<c_int, Code> {
    let (device, number) = known(cx, pool)?;
    if !with_pool(cx, pool, |p| Ok(p.is_exportable))? {
        return Err(code::ERROR_INVALID_VALUE);
    }
    shareable(kind, flags)?;
    let (theirs, _) = Ticket::new(ticket::POOL, number, 0, device)?.descriptor()?;
    Ok(theirs.into_raw_fd())
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    cx: &mut CallContext,
    handle: u64,
    kind: u32,
    flags: c_ulonglong,
) -> Result<u64, Code> {
    shareable(kind, flags)?;
    let fd = c_int::try_from(handle).map_err(|_| code::ERROR_INVALID_VALUE)?;
    let ticket = Ticket::of_descriptor(fd, ticket::POOL)?;
    let device = ticket.device(cx, cx.job)?;
    let mut pool = Pool::new(0);
    pool.lender = Some(ticket);
    Ok(add(device, pool))
}

pub(crate) fn cuMemPoolExportPointer(cx: &mut CallContext, ptr: u64) -> Result<[u8; TICKET], Code> {
    let exportable = |d: &&'static Device| {
        let m = d.memory();
        let found = m.find(ptr)?;
        m.pools.get(&found.pool).filter(|p| p.is_exportable).map(|_| found.pool)
    };
    let found = cx.job.devices.iter().find_map(|d| Some((d, exportable(&d)?)));
    let (device, pool) = found.ok_or(code::ERROR_INVALID_VALUE)?;
    Ticket::new(ticket::POINTER, ptr, pool, device)?.bytes()
}

pub(crate) fn cuMemPoolImportPointer(cx: &mut CallContext, pool: u64, data: [u8; TICKET]) -> Result<sys::CUdeviceptr, Code> {
    let (device, number) = known(cx, pool)?;
    device.check()?;
    let ticket = Ticket::read(&data, ticket::POINTER)?;
    let lender = with_pool(cx, pool, |p| p.lender.ok_or(code::ERROR_INVALID_VALUE))?;
    if !lender.same_lender(&ticket) || lender.what != ticket.more {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let loan = ticket.borrow()?;
    let bytes = loan.bytes;
    let address = shared_memory::open(cx, device, loan)?;
    Ok(device.memory_mut().note(address, bytes, Home::Borrowed(number)))
}

#[cfg(test)]
mod tests;
