//! Memory to which tiles of arrays are mapped.
//!
//! The layout inside a tile is internal to the driver, and the memory may be mapped in several arrays at once, or temporarily in none. So
//! each pool has *viewers*: sparse planes of words in which all of the memory is permanently mapped. They show each byte once, in an
//! order that is the same for all equal drivers and architectures, and moves read and write them like arrays.

use super::state::arrays::{Pool, Window};
use super::{ContextState, Executor, handle, short};
use crate::gpu::Gpu;
use cuda_api::address_map::GRANULE;
use cuda_api::arg::stage_stream;
use cuda_api::array::{MapInfo, OF_LEVEL, SPARSE, Shape, TilePool, Tiles, TilesMap};
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_api::lock::lock;
use cuda_api::wire::Wire;

/// `CU_AD_FORMAT_UNSIGNED_INT32`
const WORDS: u32 = 3;
/// Bytes of a word.
const WORD: u64 = 4;
/// The expected shape of their tiles.
const TILE: [u32; 3] = [128, 128, 1];
/// Maximum memory of a viewer: its number of rows is that of the tallest plane.
const VIEW: u64 = 1 << 30;

/// Creates a plane of words in which each row of tiles is one granule, and so is contiguous in packed order; returns it with its size.
fn plane(gpu: &Gpu, tile: [u32; 3], bytes: u64) -> Result<(u64, [u64; 2]), Code> {
    let [width, height, depth] = tile.map(u64::from);
    let tile_bytes = width.saturating_mul(height).saturating_mul(WORD);
    if depth != 1 || tile_bytes == 0 || !GRANULE.is_multiple_of(tile_bytes) {
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    let (width, height) = (GRANULE / tile_bytes * width, bytes / GRANULE * height);
    let shape = Shape { width, height, depth: 0, format: WORDS, channels: 1, flags: SPARSE };
    gpu.make_array(&shape, None).map(|plane| (plane, [width, height]))
}

/// Creates a viewer of a range of a pool; returns it with the bytes of a row and the number of rows.
fn view(gpu: &Gpu, pool: &mut Pool, offset: u64, bytes: u64, stream: u64) -> Result<[u64; 3], Code> {
    let (mut viewer, mut size) = plane(gpu, TILE, bytes)?;
    let tile = gpu.layout(viewer, false, SPARSE).map(|layout| layout.tile);
    if tile != Ok(TILE) {
        // Not done otherwise, because the driver waits for running kernels here.
        gpu.destroy_array(viewer, false)?;
        (viewer, size) = plane(gpu, tile?, bytes)?;
    }
    pool.viewers.push(viewer);
    let [width, height] = size;
    let all = Tiles { part: OF_LEVEL, size: [width as u32, height as u32, 1], offset, pool: pool.memory, ..Tiles::default() };
    gpu.map_tiles(&mut [MapInfo::of(&all, viewer, false, pool.memory)], stream)?;
    Ok([width * WORD, height, 1])
}

impl Executor {
    pub(super) fn make_tile_pool(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let op = TilePool::get(&mut body).map_err(short)?;
        let mut arrays = lock(&self.arrays);
        if kind(op.handle) != Some(Kind::Physical) || op.bytes % GRANULE != 0 || arrays.pools.contains_key(&op.handle) {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        if !arrays.has_room(op.window, op.bytes) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let held = self.memory.hold(op.bytes)?;
        let memory = self.gpu.create_tile_pool(op.bytes)?;
        let mut pool = Pool { memory, window: op.window, viewers: Vec::new(), _held: held };
        let views = (0..op.bytes).step_by(VIEW as usize);
        let shapes: Result<Vec<[u64; 3]>, Code> =
            views.map(|at| view(&self.gpu, &mut pool, at, VIEW.min(op.bytes - at), life.lanes[0])).collect();
        match shapes.and_then(|shapes| self.show_to_lanes(life).map(|()| shapes)) {
            Ok(shapes) => {
                let window = Window { bytes: op.bytes, arrays: pool.viewers.clone(), shapes };
                arrays.windows.insert(op.window, window);
                arrays.pools.insert(op.handle, pool);
                Ok(())
            }
            Err(rc) => {
                // The first error is reported.
                let _ = pool.end(&self.gpu);
                Err(rc)
            }
        }
    }

    /// Orders later transfers on all transfer streams behind the mappings in the first one. Does not wait: the driver may carry them out
    /// behind the job's work.
    fn show_to_lanes(&self, life: &ContextState) -> Result<(), Code> {
        let event = self.gpu.new_event(false)?;
        let others = || life.lanes[1..].iter().try_for_each(|lane| self.gpu.wait_event(*lane, event));
        let shown = self.gpu.record(event, life.lanes[0]).and_then(|()| others());
        shown.and(self.gpu.destroy_event(event))
    }

    pub(super) fn end_tile_pool(&self, life: &ContextState, body: &[u8]) -> Result<(), Code> {
        let number = handle(body)?;
        let _going = self.no_transfers(life)?;
        let mut arrays = lock(&self.arrays);
        let pool = arrays.pools.remove(&number).ok_or(code::ERROR_INVALID_HANDLE)?;
        arrays.windows.remove(&pool.window);
        pool.end(&self.gpu)
    }

    pub(super) fn map_tiles(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let op = TilesMap::get(&mut body).map_err(short)?;
        let arrays = lock(&self.arrays);
        let one = |tiles: &Tiles| {
            let memory = match tiles.pool {
                0 => 0,
                pool => arrays.pools.get(&pool).ok_or(code::ERROR_INVALID_HANDLE)?.memory,
            };
            let mipmapped = kind(tiles.array) == Some(Kind::Mipmap);
            let array = self.bindings.live(if mipmapped { Kind::Mipmap } else { Kind::Array }, tiles.array)?;
            Ok(MapInfo::of(tiles, array, mipmapped, memory))
        };
        let mut list = op.tiles.iter().map(one).collect::<Result<Vec<_>, Code>>()?;
        drop(arrays);
        match op.stream {
            Some(stream) => self.gpu.map_tiles(&mut list, stage_stream(stream, &self.bindings)?),
            // During a replay nothing else runs here, and later work finds the tiles.
            None => self.gpu.map_tiles(&mut list, life.lanes[0]).and_then(|()| self.gpu.synchronize_stream(life.lanes[0])),
        }
    }
}
