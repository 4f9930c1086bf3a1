//! Arrays without their own memory: their tiles, and the memory that is mapped to them.
//!
//! Tiles have 64 KiB and the standard block shapes of graphics APIs; within a tile the rows are contiguous. Unmapped
//! parts of a sparse array read as zeros and ignore writes; an array that is mapped as a whole must be mapped before it
//! is accessed.

use super::graph_table::error;
use super::physical::Physical;
use crate::ptx::{Spot, Tiled};
use crate::result::Res;
use cuda_api::array::{CUBEMAP, DEFERRED, LAYERED, Layout, OF_LEVEL, OF_TAIL, ONE_TAIL, SPARSE, SURFACE, Shape, Tiles};
use cuda_api::lock::{read_lock, write_lock};
use cuda_api::sys::CUresult;
use std::sync::{Arc, RwLock};

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
/// Bytes of a tile.
pub(crate) const TILE: u64 = 64 << 10;
/// Where levels begin in a tail.
const TAIL_STEP: u64 = 256;
/// Maximum number of tiles of an array.
const MAX_TILES: u64 = 1 << 26;

/// The memory of a tile: what keeps it, and where it is.
pub(crate) type Backing = Option<(Arc<Physical>, u64)>;

/// An array without its own memory.
#[derive(Debug)]
pub(crate) struct Tiling {
    pub layout: Layout,
    /// Those of all levels, layers and tails.
    tiles: RwLock<Vec<Backing>>,
    levels: Vec<Part>,
    /// First tile and number of tiles of the tail of each layer, or of the whole.
    tail: (u64, u64),
    /// Unmapped parts must not be accessed.
    strict: bool,
}

/// Where the tiles of a level are.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// In rows of tiles: bytes of a row, rows and slices of a tile; tiles of a row, rows of tiles; the first tile.
    Grid { tile: [u64; 3], count: [u64; 2], first: u64 },
    /// In a tail, from this byte on: bytes of a row and of a slice or layer.
    Tail { at: u64, row: u64, slice: u64, layered: bool },
}

impl Tiling {
    /// That of an array, or with several levels of a mipmapped one.
    pub fn new(levels: &[Shape]) -> Res<Arc<Tiling>> {
        let shape = levels.first().ok_or(BAD)?;
        let layered = shape.flags & (LAYERED | CUBEMAP) != 0;
        let element = shape.element().map_err(error)?;
        let deferred = shape.flags & DEFERRED != 0;
        // No lines, and nothing for surfaces (measured, 580 driver).
        if shape.flags & SPARSE != 0 && (deferred || shape.height == 0 || shape.flags & SURFACE != 0) {
            return Err(BAD);
        }
        let tile = tile_of(element, shape.depth > 0 && !layered);
        let (mut used, mut tail_bytes, mut tail_level) = (0, 0u64, None);
        let mut parts = Vec::new();
        for (n, level) in levels.iter().enumerate() {
            let [row, rows, slices] = level.rows().map_err(error)?;
            let sizes = [level.width, rows, if layered { 1 } else { slices }];
            // An array that is no mipmapped one can be a tail, too (measured, 580 driver).
            let small = (0..3).any(|d| sizes[d] < u64::from(tile[d]));
            if deferred || small || tail_level.is_some() {
                tail_level.get_or_insert(n as u32);
                let of_layer = if layered && !deferred { 1 } else { slices };
                parts.push(Part::Tail { at: tail_bytes, row, slice: row * rows, layered: layered && !deferred });
                tail_bytes = (tail_bytes + row * rows * of_layer).next_multiple_of(TAIL_STEP);
                continue;
            }
            let tiles = [0, 1, 2].map(|d| if d == 2 { slices } else { sizes[d] }.div_ceil(u64::from(tile[d])));
            let bytes = [u64::from(tile[0]) * element, tile[1].into(), tile[2].into()];
            parts.push(Part::Grid { tile: bytes, count: [tiles[0], tiles[1]], first: used });
            used += tiles.iter().product::<u64>();
        }
        let tail_bytes = tail_bytes.next_multiple_of(TILE);
        let tail = (used, tail_bytes / TILE);
        used += tail.1 * if layered && !deferred { shape.depth } else { 1 };
        if used > MAX_TILES {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let layout = if deferred {
            Layout { bytes: tail_bytes, alignment: TILE, ..Layout::default() }
        } else {
            let flags = if tail_bytes > 0 && !layered { ONE_TAIL } else { 0 };
            Layout { tile, tail_level: tail_level.unwrap_or(0), tail_bytes, flags, ..Layout::default() }
        };
        let tiles = RwLock::new(vec![None; used as usize]);
        Ok(Arc::new(Tiling { layout, tiles, levels: parts, tail, strict: deferred }))
    }

    /// Tile and byte of it where a byte of a level is, and bytes that follow there.
    fn find(&self, level: usize, x: u64, y: u64, z: u64) -> (u64, u64, u64) {
        match self.levels[level] {
            Part::Grid { tile: [width, height, depth], count: [across, down], first } => {
                let tile = first + (z / depth * down + y / height) * across + x / width;
                (tile, ((z % depth) * height + y % height) * width + x % width, width - x % width)
            }
            Part::Tail { at, row, slice, layered } => {
                let (layer, z) = if layered { (z, 0) } else { (0, z) };
                let at = at + z * slice + y * row + x;
                (self.tail.0 + layer * self.tail.1 + at / TILE, at % TILE, TILE - at % TILE)
            }
        }
    }

    /// Changes the memory of a tile.
    pub fn set(&self, tile: u64, backing: Backing) {
        write_lock(&self.tiles)[tile as usize] = backing;
    }

    /// The tiles of a request, in the order of their memory.
    pub fn named(&self, t: &Tiles, element: u64) -> Vec<u64> {
        match t.part {
            OF_LEVEL => {
                let x = u64::from(t.at[0]) * element;
                let z = if t.layer > 0 { t.layer } else { t.at[2] };
                let (first, ..) = self.find(t.level as usize, x, t.at[1].into(), z.into());
                (first..first + u64::from(t.size[0]).div_ceil(self.layout.tile[0].into())).collect()
            }
            OF_TAIL => {
                let first = self.tail.0 + u64::from(t.layer) * self.tail.1 + t.tail[0] / TILE;
                (first..first + t.tail[1] / TILE).collect()
            }
            _ => (self.tail.0..self.tail.0 + self.tail.1).collect(),
        }
    }
}

/// A level of an array without memory, as kernels and copies see it.
#[derive(Debug)]
pub(crate) struct LevelTiles {
    pub tiling: Arc<Tiling>,
    pub level: usize,
}

impl Tiled for LevelTiles {
    fn at(&self, x: u64, y: u64, z: u64) -> (Spot, u64) {
        let (tile, skip, run) = self.tiling.find(self.level, x, y, z);
        let tiles = read_lock(&self.tiling.tiles);
        let spot = match &tiles[tile as usize] {
            Some((_, at)) => Spot::At(at + skip),
            None if self.tiling.strict => Spot::Missing,
            None => Spot::Nothing,
        };
        (spot, run)
    }
}

/// Width, height and depth of a tile (the "standard block shapes" of graphics interfaces; those of an H200 are the same).
fn tile_of(element: u64, volume: bool) -> [u32; 3] {
    let bits = (TILE / element).ilog2();
    let (width, height) =
        if volume { (bits.div_ceil(3), (bits - bits.div_ceil(3)).div_ceil(2)) } else { (bits.div_ceil(2), bits / 2) };
    [1 << width, 1 << height, 1 << (bits - width - height)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Shape = Shape { width: 300, height: 200, depth: 0, format: 0x20, channels: 1, flags: SPARSE };

    /// Every byte of every level has a place of its own.
    fn places(levels: &[Shape]) -> usize {
        let tiling = Tiling::new(levels).unwrap();
        let mut seen = std::collections::HashSet::new();
        for (n, level) in levels.iter().enumerate() {
            let ([row, rows, slices], element) = (level.rows().unwrap(), level.element().unwrap());
            for (z, y) in (0..slices).flat_map(|z| (0..rows).map(move |y| (z, y))) {
                for x in (0..row).step_by(element as usize) {
                    let (tile, at, run) = tiling.find(n, x, y, z);
                    assert!(at + element <= TILE && run >= element && tile < tiling.tiles.read().unwrap().len() as u64);
                    assert!(seen.insert((tile, at)), "level {n}: {x} {y} {z}");
                }
            }
        }
        tiling.tiles.read().unwrap().len()
    }

    #[test]
    fn bytes_have_places_of_their_own() {
        assert_eq!(places(&[PLAIN]), 3 * 2);
        let volume = Shape { width: 70, height: 40, depth: 20, channels: 2, ..PLAIN };
        assert_eq!(places(&[volume]), 3 * 3 * 2);
        let layered = Shape { width: 300, height: 130, depth: 3, flags: SPARSE | LAYERED, ..PLAIN };
        let levels: Vec<Shape> = (0..4).map(|n| layered.level(n)).collect();
        // One level of tiles, and the rest in a tail for each layer.
        assert_eq!(places(&levels), 3 * 3 * 2 + 3);
        assert_eq!(places(&[Shape { flags: DEFERRED, ..volume }]), 7);
        assert_eq!(places(&[Shape { width: 20, height: 10, ..PLAIN }]), 1);
    }

    #[test]
    fn what_is_smaller_than_a_tile_is_a_tail() {
        let tail = |shape: Shape| Tiling::new(&[shape]).map(|t| (t.layout.tail_level, t.layout.tail_bytes, t.layout.flags));
        assert_eq!(tail(Shape { width: 20, height: 10, ..PLAIN }), Ok((0, TILE, ONE_TAIL)));
        assert_eq!(tail(PLAIN), Ok((0, 0, 0)));
        for bad in [Shape { flags: SPARSE | SURFACE, ..PLAIN }, Shape { height: 0, ..PLAIN }] {
            assert_eq!(tail(bad), Err(BAD));
        }
    }

    #[test]
    fn tiles_have_64_kib() {
        for element in [1, 2, 4, 8, 16] {
            for volume in [false, true] {
                assert_eq!(tile_of(element, volume).iter().map(|n| u64::from(*n)).product::<u64>() * element, TILE);
            }
        }
        // Those of an H200.
        let planes = [[256, 256, 1], [256, 128, 1], [128, 128, 1], [128, 64, 1], [64, 64, 1]];
        assert_eq!([1, 2, 4, 8, 16].map(|element| tile_of(element, false)), planes);
        let volumes = [[64, 32, 32], [32, 32, 16], [32, 16, 16], [16, 16, 16]];
        assert_eq!([1, 4, 8, 16].map(|element| tile_of(element, true)), volumes);
    }
}
