//! Physical memory of a device: chunks of the arena, mapped and unmapped at its place.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::device_memory::peer;
use crate::enter::CallContext;
use crate::job::{Device, PutOff};
use crate::ledger::Keep;
use crate::objects::allocations::Memory;
use cuda_api::arg::Edges;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, Chunk};

impl Memory {
    /// Maps a chunk of `bytes` (a multiple of [`GRANULE`](crate::objects::allocations::GRANULE)), or slightly more unless it must be
    /// `exact`.
    pub(crate) fn chunk(&mut self, cx: &CallContext, device: &'static Device, bytes: u64, exact: bool) -> Result<u64, Code> {
        let most = if exact { bytes } else { bytes + bytes / 8 };
        let sizes = self.spare.keys().map(|at| (self.chunks[at], *at));
        if let Some((len, at)) = sizes.filter(|(len, _)| (bytes..=most).contains(len)).min() {
            self.spare.remove(&at);
            self.spare_bytes -= len;
            return Ok(at);
        }
        let address = self.bare.take(bytes).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let mut mapped = map(cx, device, address, bytes);
        if mapped == Err(code::ERROR_OUT_OF_MEMORY) && self.spare_bytes > 0 {
            self.drop_spare(cx, device, 0);
            mapped = map(cx, device, address, bytes);
        }
        if let Err(rc) = mapped {
            self.bare.put(address, bytes);
            return Err(rc);
        }
        self.chunks.insert(address, bytes);
        self.mapped += bytes;
        Ok(address)
    }

    /// Frees a chunk that is empty and that nothing uses any more.
    pub(crate) fn give_chunk(&mut self, cx: &CallContext, device: &'static Device, address: u64) {
        let Some(&bytes) = self.chunks.get(&address) else { return };
        self.moment += 1;
        self.spare.insert(address, self.moment);
        self.spare_bytes += bytes;
        self.drop_spare(cx, device, (device.info.total_bytes / SPARE_PART).max(LEAST_SPARE));
    }

    /// Unmaps spare chunks, the oldest first, until at most `keep` bytes are left.
    pub(crate) fn drop_spare(&mut self, cx: &CallContext, device: &'static Device, keep: u64) {
        while self.spare_bytes > keep {
            let Some((&address, _)) = self.spare.iter().min_by_key(|(_, moment)| **moment) else { return };
            self.spare.remove(&address);
            let bytes = self.chunks.remove(&address).unwrap_or(0);
            self.spare_bytes -= bytes;
            self.mapped -= bytes;
            // It fails only if the place is lost; then the device already has that error.
            if unmap(cx, device, address, bytes).is_ok() {
                self.bare.put(address, bytes);
            }
        }
    }
}

/// The fraction of a device's memory, but at least [`LEAST_SPARE`], that may stay mapped in spare chunks.
const SPARE_PART: u64 = 64;

const LEAST_SPARE: u64 = 64 << 20;

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

pub(crate) fn map(cx: &CallContext, device: &'static Device, address: u64, bytes: u64) -> Result<(), Code> {
    let edges = Edges { creates: [address].into(), ..Edges::default() };
    let chunk = Chunk { address, bytes };
    chunk_op(cx, device, ops::id::CHUNK_MAP, &chunk, &edges, true)?;
    peer::mapped(cx, device, chunk).inspect_err(|_| {
        // The first error is reported.
        let _later = PutOff::begin();
        let _ = unmap(cx, device, address, bytes);
    })
}

pub(crate) fn unmap(cx: &CallContext, device: &'static Device, address: u64, bytes: u64) -> Result<(), Code> {
    let edges = Edges { ends: Some(address), ..Edges::default() };
    peer::unmapped(cx, device, Chunk { address, bytes });
    chunk_op(cx, device, ops::id::CHUNK_UNMAP, &Chunk { address, bytes }, &edges, false)
}
