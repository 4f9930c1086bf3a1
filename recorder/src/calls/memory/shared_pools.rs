//! Pools shared between processes: descriptors of pools, and pointers into them ([`crate::device_memory::shared_memory`]).

use crate::base::pointer::write_out;
use crate::calls::memory::pools::DESCRIPTOR;
use crate::device_memory::shared_memory;
use crate::device_memory::stream_ordered::{add, known, with_pool};
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::allocations::Home;
use crate::objects::pool::Pool;
use crate::objects::ticket::{self, TICKET, Ticket};
use cuda_api::code::{self, Code};
use cuda_api::sys;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;

/// Checks the kind of handle by which processes share pools.
fn shareable(kind: u32, flags: c_ulonglong) -> Result<(), Code> {
    match kind {
        _ if flags != 0 => Err(code::ERROR_INVALID_VALUE),
        DESCRIPTOR => Ok(()),
        // Handles of Windows and of fabrics.
        2 | 4 | 8 => Err(code::ERROR_NOT_SUPPORTED),
        _ => Err(code::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemPoolExportToShareableHandle(
    cx: &mut CallContext,
    to: *mut c_void,
    pool: sys::CUmemoryPool,
    kind: u32,
    flags: c_ulonglong,
) -> Result<(), Code> {
    let (device, number) = known(cx, pool)?;
    if to.is_null() || !with_pool(cx, pool, |p| Ok(p.is_exportable))? {
        return Err(code::ERROR_INVALID_VALUE);
    }
    shareable(kind, flags)?;
    let (theirs, _) = Ticket::new(ticket::POOL, number, 0, device)?.descriptor()?;
    write_out(to.cast::<c_int>(), theirs.into_raw_fd())
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    cx: &mut CallContext,
    to: *mut sys::CUmemoryPool,
    handle: *mut c_void,
    kind: u32,
    flags: c_ulonglong,
) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    shareable(kind, flags)?;
    let fd = c_int::try_from(handle as usize).map_err(|_| code::ERROR_INVALID_VALUE)?;
    let ticket = Ticket::of_descriptor(fd, ticket::POOL)?;
    let device = ticket.device(cx, cx.job)?;
    let mut pool = Pool::new(0);
    pool.lender = Some(ticket);
    write_out(to, add(device, pool) as sys::CUmemoryPool)
}

pub(crate) fn cuMemPoolExportPointer(
    cx: &mut CallContext,
    to: *mut sys::CUmemPoolPtrExportData,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    const { assert!(size_of::<sys::CUmemPoolPtrExportData>() == TICKET) };
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let exportable = |d: &&'static Device| {
        let m = d.memory();
        let found = m.find(ptr)?;
        m.pools.get(&found.pool).filter(|p| p.is_exportable).map(|_| found.pool)
    };
    let found = cx.job.devices.iter().find_map(|d| Some((d, exportable(&d)?)));
    let (device, pool) = found.ok_or(code::ERROR_INVALID_VALUE)?;
    let ticket = Ticket::new(ticket::POINTER, ptr, pool, device)?.bytes()?;
    // SAFETY: the program's output, which is not null and has this size.
    unsafe { to.cast::<[u8; TICKET]>().write(ticket) };
    Ok(())
}

pub(crate) fn cuMemPoolImportPointer(
    cx: &mut CallContext,
    to: *mut sys::CUdeviceptr,
    pool: sys::CUmemoryPool,
    data: *mut sys::CUmemPoolPtrExportData,
) -> Result<(), Code> {
    if to.is_null() || data.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (device, number) = known(cx, pool)?;
    device.check()?;
    // SAFETY: not null, so by CUDA's contract such data.
    let ticket = Ticket::read(&unsafe { data.cast::<[u8; TICKET]>().read() }, ticket::POINTER)?;
    let lender = with_pool(cx, pool, |p| p.lender.ok_or(code::ERROR_INVALID_VALUE))?;
    if !lender.same_lender(&ticket) || lender.what != ticket.more {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let loan = ticket.borrow()?;
    let bytes = loan.bytes;
    let address = shared_memory::open(cx, device, loan)?;
    write_out(to, device.memory_mut().note(address, bytes, Home::Borrowed(number)))
}

#[cfg(test)]
mod tests;
