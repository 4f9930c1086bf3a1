//! Arrays and mipmapped arrays. They are not in the table of addresses: nothing reaches them but copies, and kernels through
//! texture and surface objects. Their bytes lie in packed order.

use super::device::Device;
use super::live::Live;
use super::table::Table;
use super::tiles::{LevelTiles, Tiling};
use super::{os, pool};
use crate::result::Res;
use cuda_api::array::{CUBEMAP, GATHER, LAYERED, SURFACE, Shape, WITHOUT_MEMORY};
use cuda_api::code;
use cuda_api::sys::CUresult;
use std::any::Any;
use std::sync::{Arc, LazyLock};

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Arrays by handle, levels of mipmapped ones among them.
pub(crate) static ARRAYS: LazyLock<Table<Array>> = LazyLock::new(|| Table::new(13));
/// Mipmapped arrays by handle.
pub(crate) static MIPMAPS: LazyLock<Table<Mipmap>> = LazyLock::new(|| Table::new(14));

/// Memory of an array.
struct Storage {
    base: u64,
    bytes: u64,
    device: Arc<Device>,
}

impl Storage {
    fn new(device: &Arc<Device>, bytes: u64) -> Res<Arc<Storage>> {
        let bytes = bytes.next_multiple_of(64 << 10);
        let base = pool::block(device, bytes)?;
        // What was never written is no promise of zeros.
        pool::poison(base, bytes);
        Ok(Arc::new(Storage { base, bytes, device: device.clone() }))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        os::unmap(self.base, self.bytes);
        self.device.release(self.bytes);
    }
}

/// An array, or a level of a mipmapped array.
pub(crate) struct Array {
    pub handle: usize,
    /// Number of its context.
    pub owner: u64,
    pub shape: Shape,
    /// Handle of the mipmapped array that it is a level of, or 0.
    pub mipmap: usize,
    /// Ordinal of its device.
    pub device: usize,
    /// Keeps its memory allocated.
    pub storage: Keeper,
    /// Address of its first byte, if it has memory.
    pub base: u64,
    /// Its tiles, if it has no memory.
    pub tiles: Option<Arc<LevelTiles>>,
}

/// Keeps the memory of an array allocated.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

/// A mipmapped array.
pub(crate) struct Mipmap {
    pub handle: usize,
    pub owner: u64,
    pub levels: Vec<Arc<Array>>,
}

/// The array of a handle.
pub(crate) fn resolve(handle: usize) -> Res<Arc<Array>> {
    ARRAYS.get(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// The mipmapped array of a handle.
pub(crate) fn resolve_mipmap(handle: usize) -> Res<Arc<Mipmap>> {
    MIPMAPS.get(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

fn error(rc: code::Code) -> CUresult {
    if rc == code::ERROR_NOT_SUPPORTED { CUresult::CUDA_ERROR_NOT_SUPPORTED } else { BAD }
}

/// Bytes of a shape that can be made. The limits are those of compute capability 9.0 (CUDA C++ Programming Guide, "Features and
/// Technical Specifications").
fn check(shape: &Shape) -> Res<u64> {
    let Shape { width, height, depth, flags, .. } = *shape;
    if width == 0 || flags & !(LAYERED | CUBEMAP | SURFACE | GATHER | WITHOUT_MEMORY) != 0 {
        return Err(BAD);
    }
    let (layered, cube) = (flags & LAYERED != 0, flags & CUBEMAP != 0);
    let fits = match (height, depth) {
        (0, 0) => width <= 131_072 && !layered && !cube,
        (_, 0) => width <= 131_072 && height <= 65_536 && !layered && !cube,
        (_, _) if cube => {
            width == height && width <= 32_768 && depth.is_multiple_of(6) && (layered || depth == 6) && depth <= 2046
        }
        (_, _) if layered => width <= 32_768 && height <= 32_768 && depth <= 2048,
        (0, _) => false,
        (_, _) => width <= 16_384 && height <= 16_384 && depth <= 16_384,
    };
    if !fits || flags & GATHER != 0 && (height == 0 || depth != 0) {
        return Err(BAD);
    }
    shape.bytes().map_err(error)
}

/// Allocates the memory of levels of these shapes: the owner, the address, and the tiles if they have no memory.
fn store(live: &Live, shapes: &[Shape], bytes: u64) -> Res<(Keeper, u64, Option<Arc<Tiling>>)> {
    if shapes.iter().any(|shape| shape.flags & WITHOUT_MEMORY != 0) {
        let tiling = Tiling::new(shapes)?;
        return Ok((tiling.clone(), 0, Some(tiling)));
    }
    let storage = Storage::new(&live.device, bytes)?;
    let base = storage.base;
    Ok((storage, base, None))
}

/// Creates an array.
pub(crate) fn create(live: &Live, shape: Shape) -> Res<Arc<Array>> {
    let bytes = check(&shape)?;
    let (storage, base, tiling) = store(live, &[shape], bytes)?;
    let (owner, device) = (live.number, live.device.ordinal as usize);
    let tiles = tiling.map(|tiling| Arc::new(LevelTiles { tiling, level: 0 }));
    Ok(ARRAYS.insert_with(|handle| Array { handle, owner, shape, mipmap: 0, device, storage, base, tiles }))
}

/// Creates a mipmapped array with at most this many levels, at least one; with fewer, if the smallest level comes
/// earlier.
pub(crate) fn create_mipmap(live: &Live, shape: Shape, levels: u32) -> Res<Arc<Mipmap>> {
    check(&shape)?;
    let shapes: Vec<Shape> = (0..levels.clamp(1, shape.most_levels())).map(|n| shape.level(n)).collect();
    let sizes = shapes.iter().map(|s| s.bytes().map_err(error)).collect::<Res<Vec<u64>>>()?;
    let (storage, mut base, tiling) = store(live, &shapes, sizes.iter().sum())?;
    let (owner, device) = (live.number, live.device.ordinal as usize);
    Ok(MIPMAPS.insert_with(|mipmap| {
        let mut made = Vec::with_capacity(shapes.len());
        for (level, (shape, bytes)) in shapes.into_iter().zip(sizes).enumerate() {
            let storage = storage.clone();
            let tiles = tiling.clone().map(|tiling| Arc::new(LevelTiles { tiling, level }));
            made.push(ARRAYS.insert_with(|handle| Array { handle, owner, shape, mipmap, device, storage, base, tiles }));
            base += bytes;
        }
        Mipmap { handle: mipmap, owner, levels: made }
    }))
}

/// Destroys an array. A level exists as long as its mipmapped array, as on hardware. Calls `ended` with the handle, if it is gone.
pub(crate) fn destroy(handle: usize, ended: impl Fn(usize)) -> Res {
    if resolve(handle)?.mipmap != 0 {
        return Ok(());
    }
    ARRAYS.remove(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    ended(handle);
    Ok(())
}

/// Destroys a mipmapped array and its levels. Calls `ended` with the handle of each.
pub(crate) fn destroy_mipmap(handle: usize, ended: impl Fn(usize)) -> Res {
    let mipmap = MIPMAPS.remove(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    for level in &mipmap.levels {
        ARRAYS.remove(level.handle);
        ended(level.handle);
    }
    ended(handle);
    Ok(())
}

/// Removes the arrays of a context that was destroyed.
pub(crate) fn end_context(live: &Live) {
    ARRAYS.remove_if(|a| a.owner == live.number);
    MIPMAPS.remove_if(|m| m.owner == live.number);
}
