//! Which places have which blocks of pinned memory.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::pinned::blocks::{BLOCKS, Block, Known, around};
use crate::place::Place;
use cuda_api::code::{self, Code};
use std::ops::Range;

impl Block {
    /// Returns whether a place's driver must know the block.
    pub(crate) fn belongs_to(&self, place: &Place) -> bool {
        match self.known {
            Known::Hidden => false,
            Known::Unused => !place.is_apart(self.filed),
            _ => true,
        }
    }

    /// Registers the block, which begins at `at`, with a place's driver. Returns the position of that call in the place's order.
    pub(crate) fn pin(&self, place: &Place, at: u64) -> Result<Option<Range<u64>>, Code> {
        // SAFETY: the block is in the table or about to be added; before a block is freed, all places are notified.
        unsafe { place.pin(at, self) }
    }
}

/// Returns whether, for a device at `place`, there is memory on which atomic operations of device and processor are not atomic with
/// respect to each other: managed memory, which lies in host memory, and mirrored copies.
pub(crate) fn splits_atomics(place: &Place) -> bool {
    let used = |b: &Block| matches!(b.known, Known::Found | Known::Everywhere);
    lock(&BLOCKS).values().any(|b| b.is_managed() || used(b) && place.is_apart(b.filed))
}

/// Returns whether the driver of the device's place knows all of these bytes, so that its copies can use them.
pub(crate) fn is_reached(place: &Place, address: u64, bytes: u64) -> bool {
    let blocks = lock(&BLOCKS);
    let whole = around(&blocks, address).filter(|(start, b)| bytes <= b.bytes && address - start <= b.bytes - bytes);
    whole.is_some_and(|(start, _)| place.has_pinned(start))
}

/// Registers a block as pinned with all places that need it; on failure unregisters it from those that did not have it before. Lost
/// places are skipped.
pub(crate) fn pin_everywhere(cx: &CallContext, at: u64, block: &Block, fresh: bool) -> Result<(), Code> {
    let mut pinned: Vec<&Place> = Vec::new();
    for device in &cx.job.devices {
        let place = cx.place(device);
        if device.sticky() != 0 || !block.belongs_to(place) || !fresh && place.has_pinned(at) {
            continue;
        }
        match device.record_error(block.pin(place, at)) {
            Ok(span) => {
                // The call gave the GPU no work.
                device.still_quiet(span);
                pinned.push(place);
            }
            Err(rc) if rc == code::ERROR_DEVICE_UNAVAILABLE && device.index != block.device => {}
            Err(rc) => {
                for place in pinned {
                    place.unpin(at);
                }
                return Err(rc);
            }
        }
    }
    Ok(())
}
