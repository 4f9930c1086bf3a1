//! Copies as data: ends, rectangles, and their bytes in host memory.

use crate::device_memory::regions::is_device;
use crate::enter::CallContext;
use crate::host_memory::{self, places};
use crate::pinned::{blocks, naming};
use crate::place::Place;
use cuda_api::array::ARRAY;
use cuda_api::code::{self, Code};
use cuda_api::ops::{CopyDevice, Fill};
use cuda_api::sys;
use cuda_api::work::{Copy3, CopyEnd};
use executor::host_rows::HostRows;
use std::ffi::c_void;
use std::ops::Range;

/// Maximum size of one operation in bytes: larger copies are split into several, which a stream keeps in order.
pub(crate) const PIECE: u64 = 4 << 20;

/// Copies to the device up to this size are searched for addresses of pinned memory at any place; for a place that does not share such
/// memory, all copies are.
pub(crate) const TABLE: u64 = 16 << 10;

/// Above all addresses of host and device.
const END_OF_ADDRESSES: u64 = 1 << 57;

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) device: bool,
}

impl End {
    pub(crate) fn at(address: u64, pitch: u64) -> End {
        End { address, pitch, device: is_device(address) }
    }

    pub(crate) fn host(p: *const c_void, pitch: u64) -> End {
        End { address: p as u64, pitch, device: false }
    }

    /// A device address; an address of pinned host memory is recognized.
    pub(crate) fn device(address: u64, pitch: u64) -> End {
        End { address, pitch, device: is_device(address) || blocks::find(address).is_none() }
    }

    pub(crate) fn is_pinned(&self, r: &Rect) -> Result<bool, Code> {
        Ok(blocks::is_pinned(self.address, self.span(r.width, r.rows)?))
    }

    /// Number of bytes from the first to the last; an error if the addresses would overflow.
    pub(crate) fn span(&self, width: u64, rows: u64) -> Result<u64, Code> {
        let bytes = (rows - 1).checked_mul(self.pitch).and_then(|b| b.checked_add(width));
        let inside = |bytes: &u64| self.address.checked_add(*bytes).is_some_and(|end| end <= END_OF_ADDRESSES);
        bytes.filter(inside).ok_or(code::ERROR_INVALID_VALUE)
    }
}

/// A copy of `rows` rows of `width` bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rect {
    pub(crate) dst: End,
    pub(crate) src: End,
    pub(crate) width: u64,
    pub(crate) rows: u64,
}

impl Rect {
    /// Its parts of at most [`PIECE`] bytes, in order.
    pub(crate) fn pieces(&self) -> Vec<Rect> {
        let mut all = Vec::new();
        // Collecting the pieces cannot fail.
        let _ = pieces(*self, |piece| {
            all.push(piece);
            Ok(())
        });
        all
    }

    /// The rows of the source, which is host memory.
    pub(crate) fn source(&self) -> HostRows {
        host_rows(self.src, self.width, self.rows)
    }

    /// The rows of the destination, which is host memory.
    pub(crate) fn destination(&self) -> HostRows {
        host_rows(self.dst, self.width, self.rows)
    }

    /// The rows of the one end that is host memory.
    pub(crate) fn host(&self) -> HostRows {
        if self.dst.device { self.source() } else { self.destination() }
    }

    /// Returns whether a worker has the host end, so that its driver makes the copy by itself, in stream order.
    pub(crate) fn is_mapped_at_worker(&self, place: &Place) -> Result<bool, Code> {
        if let Place::Local { .. } = place {
            return Ok(false);
        }
        let host = if self.src.device { self.dst } else { self.src };
        Ok(places::is_reached(place, host.address, host.span(self.width, self.rows)?))
    }

    /// The copy between addresses that the place can access.
    pub(crate) fn within_reach(&self, stream: u64) -> CopyDevice {
        CopyDevice {
            dst: self.dst.address,
            dst_pitch: self.dst.pitch,
            src: self.src.address,
            src_pitch: self.src.pitch,
            width: self.width,
            rows: self.rows,
            stream,
        }
    }
}

/// The rows of an end of a copy that is host memory.
#[expect(unsafe_code, reason = "where the ends of a copy become rows of the program's memory")]
fn host_rows(e: End, width: u64, rows: u64) -> HostRows {
    debug_assert!(!e.device, "{e:x?} is device memory");
    // SAFETY: the program has passed them for the copy, or the recorder keeps them for it.
    unsafe { HostRows::new(e.address, e.pitch, width, rows) }
}

/// When the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// When the bytes are where the caller may use them.
    Done,
    /// When the source may be changed, if it is pageable; at once if it is pinned.
    Submitted,
}

pub(crate) const HOST: u32 = sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32;

/// `CU_MEMORYTYPE_DEVICE`
pub(crate) const DEVICE: u32 = sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32;

/// Both ends of a described copy from their first byte on, with the number of bytes that they span; destination first. `None` for arrays.
pub(crate) fn ends(c: &Copy3) -> Result<[Option<(End, u64)>; 2], Code> {
    let bad = code::ERROR_INVALID_VALUE;
    let one = |e: &CopyEnd| {
        if e.memory == ARRAY {
            return Ok(None);
        }
        let pitch = if e.pitch == 0 { c.width } else { e.pitch };
        let height = if e.height == 0 { c.rows } else { e.height };
        let at = |x: u64, y: u64, z: u64| {
            let row = z.checked_mul(height).and_then(|rows| rows.checked_add(y))?;
            row.checked_mul(pitch)?.checked_add(x)
        };
        if e.lod != 0 || e.x.checked_add(c.width).is_none_or(|end| c.rows.saturating_mul(c.depth) > 1 && end > pitch) {
            return Err(bad);
        }
        let end = described(e.memory, e.host as *const c_void, e.device, pitch as usize, at(e.x, e.y, e.z).ok_or(bad)?)?;
        let last = at(c.width, c.rows.saturating_sub(1), c.depth.saturating_sub(1)).ok_or(bad)?;
        if end.address.checked_add(last).is_none_or(|end| end > END_OF_ADDRESSES) {
            return Err(bad);
        }
        Ok(Some((end, last)))
    };
    Ok([one(&c.dst)?, one(&c.src)?])
}

/// One end of a 2-D or 3-D copy, from the fields that its memory type selects.
pub(crate) fn described(kind: u32, host: *const c_void, device: u64, pitch: usize, offset: u64) -> Result<End, Code> {
    use sys::CUmemorytype_enum as M;
    let pitch = pitch as u64;
    let end = if kind == M::CU_MEMORYTYPE_HOST as u32 {
        End::host(host, pitch)
    } else if kind == M::CU_MEMORYTYPE_DEVICE as u32 {
        End::device(device, pitch)
    } else if kind == M::CU_MEMORYTYPE_UNIFIED as u32 {
        End::at(device, pitch)
    } else {
        return Err(code::ERROR_NOT_SUPPORTED);
    };
    Ok(End { address: end.address.checked_add(offset).ok_or(code::ERROR_INVALID_VALUE)?, ..end })
}

/// A described copy with explicit memory kinds and with both ends at their first byte; for arrays with the fields that count.
pub(crate) fn plain(c: &Copy3) -> Copy3 {
    let Ok([dst, src]) = ends(c) else { return *c };
    let one = |memory: Option<(End, u64)>, was: &CopyEnd| {
        let Some((e, _)) = memory else {
            return CopyEnd { memory: ARRAY, array: was.array, x: was.x, y: was.y, z: was.z, ..CopyEnd::default() };
        };
        let height = if was.height == 0 { c.rows } else { was.height };
        let (host, device) = if e.device { (0, e.address) } else { (e.address, 0) };
        let pitch = if e.pitch == 0 { c.width } else { e.pitch };
        CopyEnd { memory: if e.device { DEVICE } else { HOST }, host, device, pitch, height, ..CopyEnd::default() }
    };
    Copy3 { dst: one(dst, &c.dst), src: one(src, &c.src), ..*c }
}

/// The rows of a host end of a [`plain`] copy, slice by slice.
#[expect(unsafe_code, reason = "where the ends of a graph's copy become rows of the program's memory")]
fn slices(c: &Copy3, e: &CopyEnd) -> impl Iterator<Item = HostRows> + use<> {
    let (c, e) = (*c, *e);
    // SAFETY: the program has passed them for the copy; those of a graph's copy it keeps valid as long as it launches the graph.
    (0..c.depth).map(move |z| unsafe { HostRows::new(e.host + z * e.height * e.pitch, e.pitch, c.width, c.rows) })
}

/// The rows of one slice that a [`plain`] copy reads from the host.
pub(crate) fn source_rows(c: &Copy3) -> HostRows {
    host_rows(End { address: c.src.host, pitch: c.src.pitch, device: c.src.memory != HOST }, c.width, c.rows)
}

/// The rows of one slice that a [`plain`] copy writes to the host.
pub(crate) fn destination_rows(c: &Copy3) -> HostRows {
    host_rows(End { address: c.dst.host, pitch: c.dst.pitch, device: c.dst.memory != HOST }, c.width, c.rows)
}

/// Returns whether a [`plain`] copy takes pageable memory to the device: it is read when the graph is launched (docs/measurements.md).
pub(crate) fn pageable(c: &Copy3) -> bool {
    let from = source(c);
    c.src.memory == HOST && c.dst.memory != HOST && !blocks::is_pinned(from.start, from.end - from.start)
}

/// The range from the first to the last byte of the host memory that a [`plain`] copy reads.
pub(crate) fn source(c: &Copy3) -> Range<u64> {
    let span = ((c.depth - 1) * c.src.height + c.rows - 1) * c.src.pitch + c.width;
    c.src.host..c.src.host + span
}

/// The range from the first to the last byte of the host memory that a [`plain`] copy writes.
pub(crate) fn destination(c: &Copy3) -> Range<u64> {
    let span = ((c.depth - 1) * c.dst.height + c.rows - 1) * c.dst.pitch + c.width;
    c.dst.host..c.dst.host + span
}

/// Notes the addresses of pinned memory among the bytes that a [`plain`] copy from the host is about to read, if they are few. The bytes
/// of a graph's copy are searched again when its node is reached, but then a stream waits for the round trip.
pub(crate) fn note_node(cx: &CallContext, c: &Copy3) -> Result<(), Code> {
    if c.dst.memory == HOST || !naming::any_unmapped() || c.bytes().is_none_or(|n| n > TABLE) {
        return Ok(());
    }
    host_memory::note_copied(cx, 0, &read_plain(c))
}

/// Returns whether a [`plain`] copy from the device goes to host memory that the place has.
pub(crate) fn is_written_there(place: &Place, c: &Copy3) -> bool {
    let bytes = || destination(c).end - c.dst.host;
    c.src.memory != HOST && c.dst.memory == HOST && places::is_reached(place, c.dst.host, bytes())
}

/// Returns whether a [`plain`] copy to the device comes from host memory that the place has.
pub(crate) fn is_read_there(place: &Place, c: &Copy3) -> bool {
    if c.src.memory != HOST || c.dst.memory == HOST {
        return false;
    }
    let from = source(c);
    places::is_reached(place, from.start, from.end - from.start)
}

/// The bytes that a [`plain`] copy reads from the host.
pub(crate) fn read_plain(c: &Copy3) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((c.width * c.rows * c.depth) as usize);
    slices(c, &c.src).for_each(|slice| slice.read_to(&mut bytes));
    bytes
}

/// Writes the bytes of a [`plain`] copy to the host; returns false if there are not as many as the copy needs.
pub(crate) fn write_plain(c: &Copy3, bytes: &[u8]) -> bool {
    if c.bytes() != Some(bytes.len() as u64) {
        return false;
    }
    let slice = (c.width * c.rows).max(1) as usize;
    slices(c, &c.dst).zip(bytes.chunks_exact(slice)).for_each(|(rows, bytes)| rows.write(bytes));
    true
}

/// A copy inside host memory.
#[derive(Debug)]
pub(crate) struct HostCopy {
    pub(crate) rect: Rect,
    /// The source's bytes at the time of the call, if they count: the rectangle's source then refers to them.
    _taken: Vec<u8>,
}

impl HostCopy {
    pub(crate) fn new(r: &Rect) -> HostCopy {
        HostCopy { rect: *r, _taken: Vec::new() }
    }

    /// A copy that is carried out in stream order: pageable memory is read now, since the program may change it when the call returns.
    pub(crate) fn later(r: &Rect) -> Result<HostCopy, Code> {
        if r.src.is_pinned(r)? {
            return Ok(HostCopy::new(r));
        }
        let taken = r.source().read();
        let src = End { address: taken.as_ptr() as u64, pitch: r.width, device: false };
        Ok(HostCopy { rect: Rect { src, ..*r }, _taken: taken })
    }

    pub(crate) fn carry_out(&self) {
        self.rect.source().copy_to(&self.rect.destination());
    }
}

/// A fill of host memory.
#[derive(Debug)]
pub(crate) struct HostFill(pub(crate) Fill);

impl HostFill {
    #[expect(unsafe_code, reason = "where a fill becomes rows of the program's memory")]
    pub(crate) fn carry_out(&self) {
        let Fill { dst, pitch, value, element, width, rows, .. } = self.0;
        let value = value.to_le_bytes();
        let pattern = &value[..usize::from(element).min(value.len())];
        // SAFETY: the program has passed them for the fill.
        unsafe { HostRows::new(dst, pitch, width * pattern.len() as u64, rows) }.fill(pattern);
    }
}

/// Splits a rectangle into pieces of at most [`PIECE`] bytes, in order.
pub(crate) fn pieces(r: Rect, mut each: impl FnMut(Rect) -> Result<(), Code>) -> Result<(), Code> {
    let step = |e: End, bytes: u64| End { address: e.address + bytes, ..e };
    if r.width > PIECE {
        for row in 0..r.rows {
            let mut at = 0;
            while at < r.width {
                let width = PIECE.min(r.width - at);
                let (dst, src) = (step(r.dst, row * r.dst.pitch + at), step(r.src, row * r.src.pitch + at));
                each(Rect { dst, src, width, rows: 1 })?;
                at += width;
            }
        }
        return Ok(());
    }
    let at_once = (PIECE / r.width).max(1);
    let mut row = 0;
    while row < r.rows {
        let rows = at_once.min(r.rows - row);
        each(Rect { dst: step(r.dst, row * r.dst.pitch), src: step(r.src, row * r.src.pitch), rows, ..r })?;
        row += rows;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
