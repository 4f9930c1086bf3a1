//! Export of physical memory as descriptors, which other processes import, and import of others' descriptors.

use crate::device_memory::mappings::{Physical, write};
use crate::enter::CallContext;
use crate::objects::ticket::{self, Ticket};
use cuda_api::code::{self, Code};
use cuda_api::flags::{ALLOCATION_PINNED, HANDLE_FILE_DESCRIPTOR, LOCATION_DEVICE};
use cuda_api::memory::AllocationProp;
use std::ffi::{c_int, c_ulonglong};
use std::os::fd::IntoRawFd;

/// Of the kinds of handles only descriptors are supported.
fn check_shared_kind(kind: u32) -> Result<(), Code> {
    match kind {
        HANDLE_FILE_DESCRIPTOR => Ok(()),
        2 | 4 | 8 => Err(code::ERROR_NOT_SUPPORTED),
        _ => Err(code::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemExportToShareableHandle(
    _cx: &mut CallContext,
    handle: u64,
    kind: u32,
    flags: c_ulonglong,
) -> Result<c_int, Code> {
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    check_shared_kind(kind)?;
    let mut v = write();
    let p = v.known(handle)?;
    if p.prop.handle_types & HANDLE_FILE_DESCRIPTOR == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // A process that imports borrowed memory connects to its owner.
    let ticket = match &p.loan {
        Some((ticket, _)) => *ticket,
        None => Ticket::new(ticket::MEMORY, handle, p.bytes, p.device)?,
    };
    let (theirs, ours) = ticket.descriptor()?;
    p.exported.push(ours);
    Ok(theirs.into_raw_fd())
}

pub(crate) fn cuMemImportFromShareableHandle(cx: &mut CallContext, descriptor: u64, kind: u32) -> Result<u64, Code> {
    check_shared_kind(kind)?;
    let fd = c_int::try_from(descriptor).map_err(|_| code::ERROR_INVALID_VALUE)?;
    import(cx, fd)
}

/// Imports the memory of a descriptor, which the caller still owns; returns a handle.
pub(crate) fn import(cx: &CallContext, fd: c_int) -> Result<u64, Code> {
    let ticket = Ticket::of_descriptor(fd, ticket::MEMORY)?;
    let own = ticket.is_own();
    // Without the lock: the owner may be importing from this process at the same time.
    let loan = if own { None } else { Some(ticket.borrow()?) };
    let mut v = write();
    let Some(loan) = loan else {
        let p = v.physical.get_mut(&ticket.what).ok_or(code::ERROR_INVALID_VALUE)?;
        p.handles += 1;
        return Ok(ticket.what);
    };
    let device = ticket.device(cx, cx.job)?;
    let prop = AllocationProp {
        kind: ALLOCATION_PINNED,
        handle_types: HANDLE_FILE_DESCRIPTOR,
        location: LOCATION_DEVICE,
        ordinal: device.index as i32,
        win32: 0,
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let bytes = loan.bytes;
    let number = v.number();
    let loan = Some((ticket, loan));
    v.physical.insert(number, Physical { device, bytes, chunk: 0, loan, handles: 1, mappings: 0, exported: Vec::new(), prop });
    Ok(number)
}

#[cfg(test)]
mod tests;
