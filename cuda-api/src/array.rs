//! Arrays, textures and surfaces as plain values: shapes, what objects refer to, and the linear order of an array's
//! bytes.
//!
//! An array is opaque: the driver tiles it as it likes, and only copies see rows. Here its bytes nevertheless have an
//! order, the *packed* order: level by level, slice by slice, row by row, without gaps. Moves read and write arrays in
//! that order.

use crate::code::{self, Code};
use crate::wire_struct;
use crate::work::{Copy3, CopyEnd};

mod raw;
mod tiles;

pub use crate::work::HOST;
pub use raw::{resource, sampling, shape, shape_2d, view, write_resource, write_sampling, write_shape, write_view};
pub use tiles::{
    Layout, MapInfo, OF_LEVEL, OF_TAIL, OF_WHOLE, ONE_TAIL, Row, TILE_POOL, TilePool, Tiles, TilesMap, need, sparse,
    write_requirements, write_sparse,
};

pub use crate::work::DEVICE;
/// `CU_MEMORYTYPE_ARRAY`
pub const ARRAY: u32 = 3;
/// `CU_MEMORYTYPE_UNIFIED`: the address decides
pub const UNIFIED: u32 = 4;

/// `CUDA_ARRAY3D_LAYERED`
pub const LAYERED: u32 = 1;
/// `CUDA_ARRAY3D_SURFACE_LDST`
pub const SURFACE: u32 = 2;
/// `CUDA_ARRAY3D_CUBEMAP`
pub const CUBEMAP: u32 = 4;
/// `CUDA_ARRAY3D_TEXTURE_GATHER`
pub const GATHER: u32 = 8;
/// `CUDA_ARRAY3D_SPARSE`
pub const SPARSE: u32 = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`
pub const DEFERRED: u32 = 0x80;
/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: arrays without their own memory.
pub const WITHOUT_MEMORY: u32 = SPARSE | DEFERRED;

/// Start of the windows: each array has a range of numbers from here on that identify the bytes of its contents. They
/// are not addresses, which are always smaller.
pub const WINDOWS: u64 = 1 << 60;
/// Windows begin at multiples of this.
pub const WINDOW_STEP: u64 = 1 << 20;

wire_struct! {
    /// `CUDA_ARRAY3D_DESCRIPTOR`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Shape {
        /// Elements of a row.
        pub width: u64,
        /// Rows; 0 for one dimension.
        pub height: u64,
        /// Slices or layers; 0 for neither.
        pub depth: u64,
        /// `CUarray_format`
        pub format: u32,
        /// Channels of an element.
        pub channels: u32,
        /// `CUDA_ARRAY3D_…`
        pub flags: u32,
    }
}

/// Bytes of a channel of a format, with the number of channels if the format fixes it (0: it does not); `None` for
/// formats whose elements are not simply a sequence of channels.
pub fn channel(format: u32) -> Option<(u64, u32)> {
    Some(match format {
        0x01 | 0x08 => (1, 0),
        0x02 | 0x09 | 0x10 => (2, 0),
        0x03 | 0x0a | 0x20 => (4, 0),
        0xc0 | 0xc6 => (1, 1),
        0xc1 | 0xc7 => (1, 2),
        0xc2 | 0xc8 => (1, 4),
        0xc3 | 0xc9 => (2, 1),
        0xc4 | 0xca => (2, 2),
        0xc5 | 0xcb => (2, 4),
        _ => return None,
    })
}

impl Shape {
    /// Bytes of an element.
    ///
    /// # Errors
    /// `INVALID_VALUE` for formats and numbers of channels that do not exist, `NOT_SUPPORTED` for compressed and planar formats.
    pub fn element(&self) -> Result<u64, Code> {
        let Some((bytes, fixed)) = channel(self.format) else {
            let known = matches!(self.format, 0x91..=0xb3);
            return Err(if known { code::ERROR_NOT_SUPPORTED } else { code::ERROR_INVALID_VALUE });
        };
        if !matches!(self.channels, 1 | 2 | 4) || (fixed != 0 && fixed != self.channels) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        Ok(bytes * u64::from(self.channels))
    }

    /// The shape of a level of a mipmapped array of this shape. The number of layers is the same at each level.
    pub fn level(&self, n: u32) -> Shape {
        let half = |size: u64| if size == 0 { 0 } else { size.checked_shr(n).unwrap_or(0).max(1) };
        let depth = if self.flags & (LAYERED | CUBEMAP) != 0 { self.depth } else { half(self.depth) };
        Shape { width: half(self.width), height: half(self.height), depth, ..*self }
    }

    /// Maximum number of levels of a mipmapped array of this shape.
    pub fn most_levels(&self) -> u32 {
        let depth = if self.flags & (LAYERED | CUBEMAP) != 0 { 0 } else { self.depth };
        let longest = self.width.max(self.height).max(depth).max(1);
        64 - longest.leading_zeros()
    }

    /// Bytes of a row, rows, slices.
    ///
    /// # Errors
    /// As [`Shape::element`].
    pub fn rows(&self) -> Result<[u64; 3], Code> {
        let row = self.width.checked_mul(self.element()?).ok_or(code::ERROR_INVALID_VALUE)?;
        Ok([row, self.height.max(1), self.depth.max(1)])
    }

    /// Bytes in packed order.
    ///
    /// # Errors
    /// As [`Shape::element`]; `INVALID_VALUE` if the array would be too large.
    pub fn bytes(&self) -> Result<u64, Code> {
        let [row, rows, slices] = self.rows()?;
        let all = row.checked_mul(rows).and_then(|n| n.checked_mul(slices)).filter(|n| *n < 1 << 50);
        all.ok_or(code::ERROR_INVALID_VALUE)
    }

    /// Checks that a copy of `width` bytes, `rows` and `depth` fits into the array at one end. It may begin and end
    /// within an element.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it does not.
    pub fn check(&self, e: &CopyEnd, c: &Copy3) -> Result<(), Code> {
        let [row, rows, slices] = self.rows()?;
        let fits = |from: u64, n: u64, size: u64| from.checked_add(n).is_some_and(|end| end <= size);
        if e.lod == 0 && fits(e.x, c.width, row) && fits(e.y, c.rows, rows) && fits(e.z, c.depth, slices) {
            Ok(())
        } else {
            Err(code::ERROR_INVALID_VALUE)
        }
    }
}

/// A box within one level that is contiguous in packed order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The level.
    pub level: usize,
    /// First byte in a row, first row, first slice.
    pub from: [u64; 3],
    /// Bytes of a row, rows, slices.
    pub size: [u64; 3],
    /// Its offset from the start of the whole range.
    pub at: u64,
}

impl Part {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.size.iter().product()
    }
}

/// Splits the packed bytes `start..start + bytes` of levels of these shapes (bytes of a row, rows, slices) into boxes.
pub fn parts(levels: &[[u64; 3]], start: u64, bytes: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut base, end) = (0, start + bytes);
    for (level, [row, rows, slices]) in levels.iter().copied().enumerate() {
        let slice = row * rows;
        let (mut at, stop) = (start.max(base), end.min(base + slice * slices));
        while at < stop {
            let (inside, left) = (at - base, stop - at);
            let (z, y, x) = (inside / slice, inside % slice / row, inside % row);
            let size = if x > 0 || left < row {
                [left.min(row - x), 1, 1]
            } else if y > 0 || left < slice {
                [row, (left / row).min(rows - y), 1]
            } else {
                [row, rows, left / slice]
            };
            let part = Part { level, from: [x, y, z], size, at: at - start };
            parts.push(part);
            at += part.bytes();
        }
        base += slice * slices;
    }
    parts
}

wire_struct! {
    /// Creates an array, or a mipmapped one.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ArrayMake {
        /// Handle of the array or mipmapped array.
        pub handle: u64,
        /// First number of its window; an array without memory has none.
        pub window: u64,
        /// Its shape.
        pub shape: Shape,
        /// Handles of the levels of a mipmapped array; none for an array.
        pub levels: Vec<u64>,
    }
}

wire_struct! {
    /// A copy with an array at one or both ends. An end in host memory means packed bytes, of which only the memory
    /// type matters.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyBox {
        /// The copy.
        pub copy: Copy3,
        /// Stream, encoded.
        pub stream: u64,
    }
}

wire_struct! {
    /// A copy to an array of bytes that the job reads when the stream reaches it; they are sent with the token.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyBoxLate {
        /// Identifies it between job and place, with the bit [`crate::ops::HOLD`]; never reused.
        pub token: u64,
        /// The copy's destination.
        pub to: CopyBox,
    }
}

wire_struct! {
    /// `CUDA_RESOURCE_DESC`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Resource {
        /// `CUresourcetype`: array, mipmapped array, linear memory, pitched memory.
        pub kind: u32,
        /// Handle of the array or mipmapped array.
        pub array: u64,
        /// Address of the memory.
        pub address: u64,
        /// `CUarray_format` of the memory.
        pub format: u32,
        /// Channels of the memory.
        pub channels: u32,
        /// Bytes of linear memory, or elements of a row.
        pub width: u64,
        /// Rows.
        pub height: u64,
        /// Bytes from row to row.
        pub pitch: u64,
        /// Flags; must be 0.
        pub flags: u32,
    }
}

/// `CU_RESOURCE_TYPE_ARRAY`
pub const OF_ARRAY: u32 = 0;
/// `CU_RESOURCE_TYPE_MIPMAPPED_ARRAY`
pub const OF_MIPMAP: u32 = 1;
/// `CU_RESOURCE_TYPE_LINEAR`
pub const OF_MEMORY: u32 = 2;
/// `CU_RESOURCE_TYPE_PITCH2D`
pub const OF_ROWS: u32 = 3;

impl Resource {
    /// Address and size in bytes of the memory.
    pub fn memory(&self) -> Option<(u64, u64)> {
        match self.kind {
            OF_MEMORY => Some((self.address, self.width)),
            OF_ROWS => Some((self.address, self.pitch.saturating_mul(self.height))),
            _ => None,
        }
    }
}

wire_struct! {
    /// `CUDA_TEXTURE_DESC`; floating-point values as their bits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Sampling {
        /// `CUaddress_mode` of each dimension.
        pub address: [u32; 3],
        /// `CUfilter_mode`
        pub filter: u32,
        /// `CU_TRSF_…`
        pub flags: u32,
        /// Maximum anisotropy.
        pub anisotropy: u32,
        /// `CUfilter_mode` between levels.
        pub mip_filter: u32,
        /// Bias of the level.
        pub mip_bias: u32,
        /// Lowest and highest level.
        pub mip_clamp: [u32; 2],
        /// Border colour.
        pub border: [u32; 4],
    }
}

wire_struct! {
    /// `CUDA_RESOURCE_VIEW_DESC`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct View {
        /// `CUresourceViewFormat`
        pub format: u32,
        /// Width, height, depth.
        pub size: [u64; 3],
        /// First and last level.
        pub levels: [u32; 2],
        /// First and last layer.
        pub layers: [u32; 2],
    }
}

wire_struct! {
    /// Creates a texture object, or a surface object if it has no sampling.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ObjectMake {
        /// Its name in the journal.
        pub handle: u64,
        /// The number that it must have, since the program has passed it to kernels; 0 on the first creation.
        pub number: u64,
        /// The resource.
        pub resource: Resource,
        /// The sampling parameters.
        pub sampling: Option<Sampling>,
        /// The resource view.
        pub view: Option<View>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_packed_bytes_in_order() {
        let levels = [[12, 5, 3], [4, 2, 1], [4, 1, 1]];
        let total = 12 * 5 * 3 + 8 + 4;
        let bases = [0, 180, 188];
        for start in 0..total {
            for bytes in 1..=total - start {
                let mut next = 0;
                for p in parts(&levels, start, bytes) {
                    let [row, rows, slices] = levels[p.level];
                    let [x, y, z] = p.from;
                    assert!(x + p.size[0] <= row && y + p.size[1] <= rows && z + p.size[2] <= slices, "{start} {bytes} {p:?}");
                    // A box is contiguous only if its inner dimensions are complete.
                    assert!(p.size[1] * p.size[2] == 1 || p.size[0] == row && (p.size[2] == 1 || p.size[1] == rows));
                    assert_eq!((p.at, bases[p.level] + (z * rows + y) * row + x), (next, start + next), "{start} {bytes}");
                    next += p.bytes();
                }
                assert_eq!(next, bytes);
            }
        }
    }

    #[test]
    fn copies_stay_inside() {
        let shape = Shape { width: 8, height: 4, depth: 0, format: 0x20, channels: 2, flags: 0 };
        let copy = Copy3 { width: 16, rows: 2, depth: 1, ..Copy3::default() };
        let at = |x, y, z| CopyEnd { x, y, z, ..CopyEnd::default() };
        assert_eq!(shape.check(&at(48, 2, 0), &copy), Ok(()));
        assert_eq!(shape.check(&at(3, 0, 0), &copy), Ok(()));
        for bad in [at(49, 0, 0), at(0, 3, 0), at(0, 0, 1), at(u64::MAX - 7, 0, 0)] {
            assert_eq!(shape.check(&bad, &copy), Err(code::ERROR_INVALID_VALUE));
        }
        assert_eq!(shape.bytes(), Ok(256));
        assert_eq!(Shape { channels: 3, ..shape }.bytes(), Err(code::ERROR_INVALID_VALUE));
        assert_eq!(Shape { format: 0x77, ..shape }.bytes(), Err(code::ERROR_INVALID_VALUE));
        assert_eq!(Shape { format: 0x91, ..shape }.bytes(), Err(code::ERROR_NOT_SUPPORTED));
        assert_eq!(Shape { width: 1 << 40, height: 1 << 40, ..shape }.bytes(), Err(code::ERROR_INVALID_VALUE));
    }

    #[test]
    fn levels_halve_and_layers_stay() {
        let volume = Shape { width: 20, height: 5, depth: 9, format: 1, channels: 1, flags: 0 };
        assert_eq!((volume.level(2).width, volume.level(2).height, volume.level(2).depth), (5, 1, 2));
        assert_eq!(volume.most_levels(), 5);
        let layered = Shape { flags: LAYERED, ..volume };
        assert_eq!((layered.level(1).depth, layered.level(90).width), (9, 1));
        let line = Shape { height: 0, depth: 0, ..volume };
        assert_eq!(line.level(1).height, 0);
    }
}
