//! Copies that the stream's device makes by itself, because its place can map the memory of the other device: they are in the order of the
//! stream as any copy of it, and no byte passes through the job.

use crate::calls::copy::rect::{End, Rect};
use crate::calls::copy::sending::copy_device;
use crate::device_memory::imports::{self, Uses};
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::{Device, PutOff};
use crate::order::concerned::Concern;
use cuda_api::code::Code;

/// Minimum size of a copy that maps the memory it needs; shorter ones use what is mapped.
const MIN_BYTES_TO_MAP: u64 = 256 << 10;

/// Such a copy under way. When dropped, it is complete.
pub(super) struct Crossing {
    // Dropped first: a device may move when nothing concerns it any more.
    _uses: Uses,
    _concern: Concern,
}

impl Crossing {
    fn begin(uses: Uses, devices: [&'static Device; 3]) -> Crossing {
        Crossing { _uses: uses, _concern: Concern::begin(devices.map(|d| d.index), false) }
    }
}

/// Submits a copy to the stream; on an error parts of it may be under way. Returns `None`, without having submitted anything, if the device
/// cannot make it.
pub(super) fn submit(
    cx: &CallContext,
    (device, stream): (&'static Device, u64),
    (from, to): (&'static Device, &'static Device),
    rect: Rect,
) -> Result<Option<(Crossing, Result<(), Code>)>, Code> {
    if !host_memory::may_pass(cx, from, to) {
        return Ok(None);
    }
    let mut uses = Uses::new(cx, device);
    let Some(parts) = parts(cx, device, (from, to), rect, &mut uses) else { return Ok(None) };
    // Of what the job has found in the first place's memory.
    host_memory::note_found(cx)?;
    let crossing = Crossing::begin(uses, [device, from, to]);
    // An error of earlier work that has not been returned yet is no reason for half a copy.
    let _later = PutOff::begin();
    let submitted = parts.into_iter().try_for_each(|part| copy_device(cx, device, true, part, stream));
    Ok(Some((crossing, submitted)))
}

/// The copy between addresses that the device's place can access.
fn parts(
    cx: &CallContext,
    device: &'static Device,
    (from, to): (&'static Device, &'static Device),
    rect: Rect,
    uses: &mut Uses,
) -> Option<Vec<Rect>> {
    let make = rect.width.saturating_mul(rect.rows) >= MIN_BYTES_TO_MAP;
    let mut here = |home: &'static Device, end: End| {
        if home.index == device.index {
            return Some((end, u64::MAX));
        }
        let (address, bytes) = imports::reach(cx, (device, home), end.address, make, uses)?;
        Some((End { address, ..end }, bytes))
    };
    if rect.rows > 1 {
        // All rows of each end lie in one chunk.
        let mut whole = |home, end: End| {
            let bytes = end.span(rect.width, rect.rows).ok()?;
            here(home, end).filter(|(_, there)| bytes <= *there).map(|(end, _)| end)
        };
        return Some(vec![Rect { src: whole(from, rect.src)?, dst: whole(to, rect.dst)?, ..rect }]);
    }
    let (mut rest, mut parts) = (rect, Vec::new());
    while rest.width > 0 {
        let ((src, readable), (dst, writable)) = (here(from, rest.src)?, here(to, rest.dst)?);
        let width = rest.width.min(readable).min(writable);
        parts.push(Rect { src, dst, width, rows: 1 });
        rest.src.address += width;
        rest.dst.address += width;
        rest.width -= width;
    }
    Some(parts)
}
