//! Maps memory to the tiles of arrays, in stream order.

use super::array::{self, Array};
use super::graph_table::error;
use super::sched::Work;
use super::stream::Target;
use super::tiles::{Backing, LevelTiles, TILE, Tiling};
use super::{capture, physical};
use crate::result::Res;
use cuda_api::array::{Layout, MapInfo, Shape};
use cuda_api::sys::CUresult;
use std::sync::Arc;

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The tiles of an array; a level of a mipmapped one has none of its own.
fn tiles_of(array: &Array) -> Res<&LevelTiles> {
    array.tiles.as_deref().filter(|_| array.mipmap == 0).ok_or(BAD)
}

/// How an array, or a mipmapped one, is laid out that was made with a flag.
pub(crate) fn layout(handle: usize, mipmapped: bool, flag: u32) -> Res<Layout> {
    let made_so = |shape: &Shape, layout: Layout| if shape.flags & flag != 0 { Ok(layout) } else { Err(BAD) };
    if mipmapped {
        let mipmap = array::resolve_mipmap(handle).map_err(|_| BAD)?;
        let first = &mipmap.levels[0];
        return made_so(&first.shape, first.tiles.as_ref().ok_or(BAD)?.tiling.layout);
    }
    let array = array::resolve(handle).map_err(|_| BAD)?;
    made_so(&array.shape, tiles_of(&array)?.tiling.layout)
}

/// `cuMemMapArrayAsync`: nothing of the list is done if anything of it is wrong.
pub(crate) fn map(target: &Target, list: &[MapInfo]) -> Res {
    capture::forbid_on(target)?;
    capture::forbid_unsafe()?;
    let ordinal = target.live.device.ordinal;
    let mut changes: Vec<(Arc<Tiling>, u64, Backing)> = Vec::new();
    for info in list {
        let (handle, mipmapped) = info.array();
        let (first, levels) = if mipmapped {
            let mipmap = array::resolve_mipmap(handle as usize)?;
            (mipmap.levels[0].clone(), mipmap.levels.len())
        } else {
            let array = array::resolve(handle as usize)?;
            tiles_of(&array)?;
            (array, 1)
        };
        let tiling = &first.tiles.as_ref().ok_or(BAD)?.tiling;
        let (tiles, bytes) = info.tiles(&first.shape, levels as u32, &tiling.layout).map_err(error)?;
        if info.device() != ordinal as u32 || first.device != ordinal as usize {
            return Err(BAD);
        }
        let memory = match info.memory() {
            None => None,
            Some(handle) => {
                let physical = physical::resolve(handle)?;
                let end = tiles.first().and_then(|t| t.offset.checked_add(bytes)).ok_or(BAD)?;
                if !physical.is_for_tiles || physical.device.ordinal != ordinal || end > physical.size {
                    return Err(BAD);
                }
                Some((physical.view()?, physical))
            }
        };
        let element = first.shape.element().map_err(error)?;
        for t in &tiles {
            let backing = |n: u64| memory.as_ref().map(|(view, physical)| (physical.clone(), view + t.offset + n * TILE));
            changes.extend((0..).zip(tiling.named(t, element)).map(|(n, tile)| (tiling.clone(), tile, backing(n))));
        }
    }
    target.submit(
        Work::Run(Box::new(move |_| {
            for (tiling, tile, backing) in changes {
                tiling.set(tile, backing);
            }
            Ok(())
        })),
        Vec::new(),
    );
    Ok(())
}
