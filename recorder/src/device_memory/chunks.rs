//! Physical memory of a device: maps and unmaps chunks at its place, as the core decides ([`crate::objects::chunks`]).

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::device_memory::{imports, peer};
use crate::enter::CallContext;
use crate::job::{Device, PutOff};
use crate::ledger::Keep;
use crate::objects::chunks::{Growth, Request, Step};
use crate::objects::pool::Found;
use cuda_api::arg::Edges;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, Chunk};

/// The fraction of a device's memory, but at least [`MIN_SPARE`], that may stay mapped in spare chunks.
const SPARE_PART: u64 = 64;

const MIN_SPARE: u64 = 64 << 20;

/// Serves a request; maps memory for it if necessary.
pub(crate) fn take(cx: &CallContext, device: &'static Device, request: Request) -> Result<Found, Code> {
    if let Some(found) = device.memory_mut().take(request)? {
        return Ok(found);
    }
    grow(cx, device, request)
}

/// Serves a request for which no mapped memory was found.
pub(crate) fn grow(cx: &CallContext, device: &'static Device, request: Request) -> Result<Found, Code> {
    let _mapping = lock(&device.mapping);
    let (mut growth, mut step) = Growth::begin(&mut device.memory_mut(), request)?;
    loop {
        step = match step {
            Step::Done(found) => return Ok(found),
            Step::Map(chunk) => {
                let mut result = map(cx, device, chunk);
                if result == Err(code::ERROR_OUT_OF_MEMORY) && imports::finish_unmapping() {
                    result = map(cx, device, chunk);
                }
                let step = growth.mapped(&mut device.memory_mut(), result);
                if step == Err(code::ERROR_OUT_OF_MEMORY) {
                    cx.note_shortage(device, chunk.bytes);
                }
                step?
            }
            Step::Unmap(chunk) => {
                let unmapped = unmap(cx, device, chunk).is_ok();
                growth.unmapped(&mut device.memory_mut(), chunk, unmapped)
            }
        };
    }
}

/// Unmaps spare chunks of which there are too many.
pub(crate) fn drop_surplus(cx: &CallContext, device: &'static Device) {
    drop_spare(cx, device, (device.info.total_bytes / SPARE_PART).max(MIN_SPARE));
}

/// Unmaps spare chunks, the oldest first, until at most `keep` bytes are left.
pub(crate) fn drop_spare(cx: &CallContext, device: &'static Device, keep: u64) {
    if device.memory().spare_or_unmapping() <= keep {
        return;
    }
    let _mapping = lock(&device.mapping);
    loop {
        let Some(chunk) = device.memory_mut().surplus(keep) else { return };
        // It fails only if the place is lost; then the device already has that error.
        let unmapped = unmap(cx, device, chunk).is_ok();
        device.memory_mut().unmapped(chunk, unmapped);
    }
}

/// Frees everything that a device has allocated.
pub(crate) fn free_all(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
    let _mapping = lock(&device.mapping);
    let chunks = device.memory_mut().reset();
    let mut all = Ok(());
    for chunk in chunks {
        let unmapped = unmap(cx, device, chunk);
        device.memory_mut().unmapped(chunk, unmapped.is_ok());
        all = all.and(unmapped);
    }
    all
}

/// Carries out an operation on physical memory and journals it. With `wait`, waits for its answer.
fn chunk_op(cx: &CallContext, device: &'static Device, op: u16, chunk: &Chunk, edges: &Edges, wait: bool) -> Result<(), Code> {
    device.check()?;
    let body = encode(chunk);
    let mut ledger = lock(&device.ledger);
    let waiting = device.record_error(cx.place(device).begin(op, &[&body]))?;
    // No work can use memory that is not yet, or no longer, known to the program.
    device.still_quiet(waiting.span());
    if wait {
        let (rc, _) = waiting.finish();
        if rc != code::SUCCESS {
            device.note(rc);
            return Err(rc);
        }
    }
    ledger.append(op, &body, &[], edges, Keep::PLAIN)
}

fn map(cx: &CallContext, device: &'static Device, chunk: Chunk) -> Result<(), Code> {
    let edges = Edges { creates: [chunk.address].into(), ..Edges::default() };
    // An error of the program's work that has not been returned yet says nothing about the memory.
    let _later = PutOff::begin();
    chunk_op(cx, device, ops::id::CHUNK_MAP, &chunk, &edges, true)?;
    peer::mapped(cx, device, chunk).inspect_err(|_| {
        // The first error is reported.
        let _ = unmap(cx, device, chunk);
    })
}

fn unmap(cx: &CallContext, device: &'static Device, chunk: Chunk) -> Result<(), Code> {
    let edges = Edges { ends: Some(chunk.address), ..Edges::default() };
    // An error of the program's work that has not been returned yet neither keeps the chunk nor is lost.
    let _later = PutOff::begin();
    peer::unmapped(cx, device, chunk);
    imports::unmapped(cx, device, chunk);
    chunk_op(cx, device, ops::id::CHUNK_UNMAP, &chunk, &edges, false)
}
