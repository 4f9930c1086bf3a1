//! Arrays without their own memory: sparse arrays, to whose tiles the program maps memory, and arrays with deferred
//! mapping, which are mapped as a whole.
//!
//! A request for a box of many tiles is sent as rows of tiles, in the order of x, y and z, in which the memory is used.
//! Parts of it can thus be mapped again later, independently of the order that a driver uses inside a box.

use super::{CUBEMAP, DEFERRED, LAYERED, Shape};
use crate::code::{self, Code};
use crate::pointer::{InPtr, OutPtr, Plain};
use crate::{sys, wire_struct};

/// `CU_MEM_CREATE_USAGE_TILE_POOL`
pub const TILE_POOL: u16 = 1;
/// `CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL`
pub const ONE_TAIL: u32 = 1;
/// Used as device mask: each driver sees one of our devices.
const FIRST_DEVICE: u32 = 1;
/// `CU_RESOURCE_TYPE_ARRAY`, `CU_RESOURCE_TYPE_MIPMAPPED_ARRAY`
const RESOURCES: [u32; 2] = [super::OF_ARRAY, super::OF_MIPMAP];
/// `CU_MEM_OPERATION_TYPE_MAP`, `CU_MEM_OPERATION_TYPE_UNMAP`
const MAP: u32 = 1;
const UNMAP: u32 = 2;

/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL`
pub const OF_LEVEL: u32 = 0;
/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL`
pub const OF_TAIL: u32 = 1;
/// An array with deferred mapping, as a whole.
pub const OF_WHOLE: u32 = 2;

wire_struct! {
    /// Layout of an array without memory: `CUDA_ARRAY_SPARSE_PROPERTIES` or `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Layout {
        /// Width, height and depth of a tile, in elements.
        pub tile: [u32; 3],
        /// First level of the mip tail.
        pub tail_level: u32,
        /// Bytes of a mip tail.
        pub tail_bytes: u64,
        /// `CU_ARRAY_SPARSE_PROPERTIES_…`
        pub flags: u32,
        /// Total bytes of an array with deferred mapping.
        pub bytes: u64,
        /// Required alignment of its memory.
        pub alignment: u64,
    }
}

wire_struct! {
    /// A row of tiles, a piece of a mip tail, or a whole array, and the memory mapped to it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Tiles {
        /// Handle of the array or mipmapped array.
        pub array: u64,
        /// [`OF_LEVEL`], [`OF_TAIL`] or [`OF_WHOLE`].
        pub part: u32,
        /// The level.
        pub level: u32,
        /// The layer.
        pub layer: u32,
        /// First element of a level.
        pub at: [u32; 3],
        /// Elements of a level, as the program has given them at the edges.
        pub size: [u32; 3],
        /// Offset and bytes of a piece of a mip tail.
        pub tail: [u64; 2],
        /// Handle of the memory; 0: unmapped.
        pub pool: u64,
        /// Offset in the memory.
        pub offset: u64,
    }
}

wire_struct! {
    /// Maps or unmaps tiles.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TilesMap {
        /// Stream, encoded; none in a journal.
        pub stream: Option<u64>,
        /// The mappings.
        pub tiles: Vec<Tiles>,
    }
}

wire_struct! {
    /// Allocates memory that tiles can be mapped to.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TilePool {
        /// Its handle.
        pub handle: u64,
        /// First number of the window of its bytes.
        pub window: u64,
        /// Bytes.
        pub bytes: u64,
    }
}

/// Identifies a row of tiles: array, then part, level, layer, and the row in the level.
pub type Row = (u64, [u32; 5]);

impl Layout {
    /// Bytes of a tile with elements of this size.
    pub fn tile_bytes(&self, element: u64) -> u64 {
        self.tile.iter().fold(element, |bytes, n| bytes.saturating_mul(u64::from(*n)))
    }
}

impl Tiles {
    /// The row that it lies in, its first tile there, and its number of tiles. `tile` is the size of a tile in bytes.
    pub fn place(&self, layout: &Layout, tile: u64) -> (Row, u64, u64) {
        let row = |y, z| (self.array, [self.part, self.level, self.layer, z, y]);
        match self.part {
            OF_LEVEL => {
                let width = u64::from(layout.tile[0]);
                (row(self.at[1], self.at[2]), u64::from(self.at[0]) / width, u64::from(self.size[0]).div_ceil(width))
            }
            OF_TAIL => (row(0, 0), self.tail[0] / tile, self.tail[1] / tile),
            _ => (row(0, 0), 0, 1),
        }
    }

    /// The part of it with `count` tiles from tile `skip` on. A whole array is one tile.
    pub fn part(&self, layout: &Layout, tile: u64, skip: u64, count: u64) -> Tiles {
        let mut part = *self;
        match self.part {
            OF_LEVEL => {
                let width = u64::from(layout.tile[0]);
                let (from, end) = (skip * width, ((skip + count) * width).min(self.size[0].into()));
                (part.at[0], part.size[0]) = (self.at[0] + from as u32, (end - from) as u32);
            }
            OF_TAIL => part.tail = [self.tail[0] + skip * tile, count * tile],
            _ => return part,
        }
        part.offset += skip * tile;
        part
    }
}

/// `CUarrayMapInfo`, with enums as plain numbers and the union of what is mapped as words.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MapInfo {
    kind: u32,
    resource: u64,
    part: u32,
    unused: u32,
    what: [u32; 8],
    operation: u32,
    memory_kind: u32,
    memory: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}
const _: () = assert!(size_of::<MapInfo>() == size_of::<sys::CUarrayMapInfo>());
// SAFETY: numbers.
unsafe impl Plain for MapInfo {}

/// `CUDA_ARRAY_SPARSE_PROPERTIES`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawSparse {
    tile: [u32; 3],
    tail_level: u32,
    tail_bytes: u64,
    flags: u32,
    reserved: [u32; 4],
}
// SAFETY: numbers.
unsafe impl Plain for RawSparse {}
const _: () = assert!(size_of::<RawSparse>() == size_of::<sys::CUDA_ARRAY_SPARSE_PROPERTIES>());

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawNeed {
    bytes: u64,
    alignment: u64,
    reserved: [u32; 4],
}
// SAFETY: numbers.
unsafe impl Plain for RawNeed {}
const _: () = assert!(size_of::<RawNeed>() == size_of::<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>());

impl MapInfo {
    /// Reads a list.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null, an empty list, and entries that are invalid for any array.
    pub fn list(p: InPtr<sys::CUarrayMapInfo>, count: u32) -> Result<Vec<MapInfo>, Code> {
        if p.is_null() || count == 0 {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let one = |info: MapInfo| {
            let known = RESOURCES.contains(&info.kind) && matches!(info.operation, MAP | UNMAP) && info.memory_kind == 0;
            let memory = (info.operation == MAP) == (info.memory != 0);
            let plain = info.flags == 0 && info.reserved == [0; 2] && info.devices.is_power_of_two();
            if known && memory && plain { Ok(info) } else { Err(code::ERROR_INVALID_VALUE) }
        };
        p.cast::<MapInfo>().elements(count as usize)?.map(one).collect()
    }

    /// The array, and whether it is mipmapped.
    pub fn array(&self) -> (u64, bool) {
        (self.resource, self.kind == super::OF_MIPMAP)
    }

    /// The memory; none for an unmapping.
    pub fn memory(&self) -> Option<u64> {
        (self.operation == MAP).then_some(self.memory)
    }

    /// The one device.
    pub fn device(&self) -> u32 {
        self.devices.trailing_zeros()
    }

    /// The mapped or unmapped tiles of an array of this shape and number of levels, row by row, and the bytes of memory
    /// needed.
    ///
    /// # Errors
    /// `INVALID_VALUE` for tiles outside of the array or not aligned to tiles.
    pub fn tiles(&self, shape: &Shape, levels: u32, layout: &Layout) -> Result<(Vec<Tiles>, u64), Code> {
        let bad = Err(code::ERROR_INVALID_VALUE);
        let (pool, offset) = self.memory().map_or((0, 0), |memory| (memory, self.offset));
        let plain = Tiles { array: self.resource, part: self.part, pool, offset, ..Tiles::default() };
        if shape.flags & DEFERRED != 0 {
            let aligned = offset.is_multiple_of(layout.alignment.max(1));
            return if aligned { Ok((vec![Tiles { part: OF_WHOLE, ..plain }], layout.bytes)) } else { bad };
        }
        let tile = layout.tile_bytes(shape.element()?);
        let layered = shape.flags & (LAYERED | CUBEMAP) != 0;
        let layers = if layered { shape.depth.max(1) } else { 1 };
        if tile == 0 || !offset.is_multiple_of(tile) {
            return bad;
        }
        if self.part == OF_TAIL {
            let [layer, _, low, high, size_low, size_high, ..] = self.what;
            let long = |low, high| u64::from(low) | u64::from(high) << 32;
            let (from, bytes) = (long(low, high), long(size_low, size_high));
            let end = from.checked_add(bytes).filter(|_| bytes > 0 && from.is_multiple_of(tile) && bytes.is_multiple_of(tile));
            let layers = if layout.flags & ONE_TAIL != 0 { 1 } else { layers };
            if end.is_none_or(|end| end > layout.tail_bytes.next_multiple_of(tile)) || u64::from(layer) >= layers {
                return bad;
            }
            return Ok((vec![Tiles { layer, tail: [from, bytes], ..plain }], bytes));
        }
        let [level, layer, at_x, at_y, at_z, width, height, depth] = self.what;
        let levels = if layout.tail_bytes > 0 { levels.min(layout.tail_level) } else { levels };
        if self.part != OF_LEVEL || level >= levels || u64::from(layer) >= layers {
            return bad;
        }
        let (whole, at, size) = (shape.level(level), [at_x, at_y, at_z], [width, height, depth]);
        let whole = [whole.width, whole.height.max(1), if layered { 1 } else { whole.depth.max(1) }];
        for d in 0..3 {
            let (step, end) = (u64::from(layout.tile[d]), u64::from(at[d]) + u64::from(size[d]));
            let at_edge = end.is_multiple_of(step) && end <= whole[d].next_multiple_of(step) || end == whole[d];
            if size[d] == 0 || !u64::from(at[d]).is_multiple_of(step) || !at_edge {
                return bad;
            }
        }
        let row_bytes = u64::from(width.div_ceil(layout.tile[0])) * tile;
        let mut rows = Vec::new();
        for z in (0..depth).step_by(layout.tile[2] as usize) {
            for y in (0..height).step_by(layout.tile[1] as usize) {
                let size = [width, layout.tile[1].min(height - y), layout.tile[2].min(depth - z)];
                let used = rows.len() as u64 * row_bytes;
                let offset = if pool == 0 { 0 } else { offset.checked_add(used).ok_or(code::ERROR_INVALID_VALUE)? };
                rows.push(Tiles { level, layer, at: [at_x, at_y + y, at_z + z], size, offset, ..plain });
            }
        }
        let bytes = rows.len() as u64 * row_bytes;
        Ok((rows, bytes))
    }

    /// The request for a driver with one device, with its own handles of array and memory.
    pub fn of(tiles: &Tiles, array: u64, mipmapped: bool, memory: u64) -> MapInfo {
        let half = |n: u64| [n as u32, (n >> 32) as u32];
        let [[low, high], [size_low, size_high]] = tiles.tail.map(half);
        let ([x, y, z], [width, height, depth]) = (tiles.at, tiles.size);
        let what = match tiles.part {
            OF_LEVEL => [tiles.level, tiles.layer, x, y, z, width, height, depth],
            OF_TAIL => [tiles.layer, 0, low, high, size_low, size_high, 0, 0],
            _ => [0; 8],
        };
        MapInfo {
            kind: RESOURCES[usize::from(mipmapped)],
            resource: array,
            part: tiles.part % OF_WHOLE,
            unused: 0,
            what,
            operation: if tiles.pool == 0 { UNMAP } else { MAP },
            memory_kind: 0,
            memory,
            offset: tiles.offset,
            devices: FIRST_DEVICE,
            flags: 0,
            reserved: [0; 2],
        }
    }
}

/// Reads the tiling of a sparse array.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn sparse(p: InPtr<sys::CUDA_ARRAY_SPARSE_PROPERTIES>) -> Result<Layout, Code> {
    let r = p.cast::<RawSparse>().read()?;
    Ok(Layout { tile: r.tile, tail_level: r.tail_level, tail_bytes: r.tail_bytes, flags: r.flags, ..Layout::default() })
}

/// Writes the tiling of a sparse array.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn write_sparse(to: OutPtr<sys::CUDA_ARRAY_SPARSE_PROPERTIES>, l: &Layout) -> Result<(), Code> {
    let (tile, tail_level, tail_bytes, flags) = (l.tile, l.tail_level, l.tail_bytes, l.flags);
    to.cast().write(RawSparse { tile, tail_level, tail_bytes, flags, reserved: [0; 4] })
}

/// Reads the memory requirements of an array.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn need(p: InPtr<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>) -> Result<Layout, Code> {
    let r = p.cast::<RawNeed>().read()?;
    Ok(Layout { bytes: r.bytes, alignment: r.alignment, ..Layout::default() })
}

/// Writes the memory requirements of an array.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn write_requirements(to: OutPtr<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>, l: &Layout) -> Result<(), Code> {
    to.cast().write(RawNeed { bytes: l.bytes, alignment: l.alignment, reserved: [0; 4] })
}

#[cfg(test)]
mod tests {
    use super::super::SPARSE;
    use super::*;

    const SHAPE: Shape = Shape { width: 300, height: 256, depth: 0, format: 0x20, channels: 1, flags: SPARSE };
    const LAYOUT: Layout = Layout { tile: [128, 128, 1], tail_level: 1, tail_bytes: 0, flags: 0, bytes: 0, alignment: 0 };
    const TILE: u64 = 64 << 10;

    fn level(at: [u32; 3], size: [u32; 3]) -> MapInfo {
        let tiles = Tiles { part: OF_LEVEL, at, size, pool: 7, offset: TILE, ..Tiles::default() };
        MapInfo::of(&tiles, 5, false, 7)
    }

    #[test]
    fn fields_are_where_the_header_says() {
        let tail = Tiles { part: OF_TAIL, layer: 3, tail: [1 << 33, 1 << 34], pool: 1, offset: 8, ..Tiles::default() };
        let raw = MapInfo::of(&tail, 5, true, 9);
        // SAFETY: of the same size, and the enums have these values.
        let c: sys::CUarrayMapInfo = unsafe { std::mem::transmute(raw) };
        assert_eq!(c.resourceType, sys::CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
        // SAFETY: the fields that were written.
        let (resource, tail, memory) = unsafe { (c.resource.mipmap as u64, c.subresource.miptail, c.memHandle.memHandle) };
        assert_eq!((resource, tail.layer, tail.offset, tail.size, memory), (5, 3, 1 << 33, 1 << 34, 9));
        assert_eq!((c.offset, c.deviceBitMask, c.flags), (8, 1, 0));
        // SAFETY: as above.
        let c: sys::CUarrayMapInfo = unsafe { std::mem::transmute(level([128, 0, 0], [172, 256, 1])) };
        // SAFETY: the field that was written.
        let l = unsafe { c.subresource.sparseLevel };
        assert_eq!((l.level, l.offsetX, l.offsetY, l.extentWidth, l.extentHeight, l.extentDepth), (0, 128, 0, 172, 256, 1));
        assert_eq!(c.memOperationType, sys::CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP);
    }

    #[test]
    fn boxes_become_rows_that_use_memory_in_order() {
        let (rows, bytes) = level([128, 0, 0], [172, 256, 1]).tiles(&SHAPE, 1, &LAYOUT).unwrap();
        let seen: Vec<_> = rows.iter().map(|r| (r.place(&LAYOUT, TILE), r.size, r.offset)).collect();
        let row = |y| (5, [OF_LEVEL, 0, 0, 0, y]);
        assert_eq!(seen, [((row(0), 1, 2), [172, 128, 1], TILE), ((row(128), 1, 2), [172, 128, 1], 3 * TILE)]);
        assert_eq!(bytes, 4 * TILE);
        let right = rows[0].part(&LAYOUT, TILE, 1, 1);
        assert_eq!((right.at, right.size, right.offset), ([256, 0, 0], [44, 128, 1], 2 * TILE));
        let left = rows[0].part(&LAYOUT, TILE, 0, 1);
        assert_eq!((left.at, left.size, left.offset), ([128, 0, 0], [128, 128, 1], TILE));
    }

    #[test]
    fn boxes_begin_and_end_at_edges() {
        let tiles = |at, size| level(at, size).tiles(&SHAPE, 1, &LAYOUT).map(|(rows, _)| rows.len());
        assert_eq!(tiles([0, 0, 0], [300, 256, 1]), Ok(2));
        assert_eq!(tiles([256, 128, 0], [128, 128, 1]), Ok(1));
        let bad =
            [([1, 0, 0], [128, 128, 1]), ([0, 0, 0], [100, 128, 1]), ([256, 0, 0], [256, 128, 1]), ([0, 0, 0], [128, 0, 1])];
        for (at, size) in
            bad.into_iter().chain([([0, 256, 0], [128, 128, 1]), ([0, 0, 1], [128, 128, 1]), ([0, 0, 0], [128, 128, 2])])
        {
            assert_eq!(tiles(at, size), Err(code::ERROR_INVALID_VALUE), "{at:?} {size:?}");
        }
        let info = MapInfo { offset: 4096, ..level([0, 0, 0], [128, 128, 1]) };
        assert!(info.tiles(&SHAPE, 1, &LAYOUT).is_err());
    }
}
