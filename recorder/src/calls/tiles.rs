//! Tiles of sparse arrays, and arrays that are mapped as a whole: the memory of the program to which they are mapped.
//!
//! The place's driver maps them in stream order. The journal keeps the present mappings, each row of tiles separately: a new mapping ends
//! the records that it covers, and their remaining parts get new records. The contents of tiles are memory of
//! [`crate::calls::vmm::tile_pools`], which moves separately.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::calls::vmm::tile_pools as pools;
use crate::enter::CallContext;
use crate::job::{Device, array_lookup};
use crate::ledger::{self, Keep, Ledger};
use crate::order::captures;
use cuda_api::arg::{Capture, Edges};
use cuda_api::array::{Layout, MapInfo, Row, Tiles, TilesMap};
use cuda_api::code::{self, Code};
use cuda_api::pointer::InPtr;
use cuda_api::{ops, sys};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::Mutex;

/// Adjacent tiles of one row that are mapped to adjacent memory.
#[derive(Debug)]
struct Mapped {
    tiles: Tiles,
    count: u64,
    /// The name of their record.
    change: u64,
}

/// By row and first tile. Locked before memory and journals.
static MAPPED: Mutex<BTreeMap<(Row, u64), Mapped>> = Mutex::new(BTreeMap::new());

/// The units of an array's tiles: its layout, and bytes of a tile.
type Measure = (Layout, u64);

/// A change of the mappings, while it is journalled.
struct Change<'a> {
    mapped: &'a mut BTreeMap<(Row, u64), Mapped>,
    ledger: &'a mut Ledger,
    /// Pools that have one mapping more, and one less.
    more: Vec<u64>,
    less: Vec<u64>,
}

impl Change<'_> {
    fn append(&mut self, tiles: Tiles, edges: &Edges) -> Result<(), Code> {
        let body = encode(&TilesMap { stream: None, tiles: vec![tiles] });
        self.ledger.append(ops::id::TILES_MAP, &body, &[], edges, Keep::PLAIN)
    }

    fn add(&mut self, tiles: Tiles, (layout, tile): &Measure) -> Result<(), Code> {
        let (row, start, count) = tiles.place(layout, *tile);
        let change = ledger::change();
        self.append(
            tiles,
            &Edges { creates: [change].into(), ends: None, uses: [tiles.array, tiles.pool].into_iter().collect() },
        )?;
        self.mapped.insert((row, start), Mapped { tiles, count, change });
        Ok(())
    }

    fn remove(&mut self, at: (Row, u64)) -> Result<Option<Mapped>, Code> {
        let Some(old) = self.mapped.remove(&at) else { return Ok(None) };
        self.less.push(old.tiles.pool);
        // A target that already has it must remove it.
        let (nothing, edges) = (Tiles { pool: 0, offset: 0, ..old.tiles }, Edges { ends: Some(old.change), ..Edges::default() });
        self.append(nothing, &edges).map(|()| Some(old))
    }

    /// Removes the mappings under tiles, and adds the tiles if they are mapped.
    fn replace(&mut self, new: Tiles, measure: &Measure) -> Result<(), Code> {
        let (layout, tile) = measure;
        let (row, start, count) = new.place(layout, *tile);
        let end = start + count;
        let under = self.mapped.range((row, 0)..(row, end)).rev().take_while(|((_, at), m)| at + m.count > start);
        for at in under.map(|(at, _)| *at).collect::<Vec<_>>() {
            let Some(old) = self.remove(at)? else { continue };
            let before = start.saturating_sub(at.1);
            let behind = (at.1 + old.count).saturating_sub(end);
            for (skip, left) in [(0, before), (old.count - behind, behind)].into_iter().filter(|(_, left)| *left > 0) {
                self.more.push(old.tiles.pool);
                self.add(old.tiles.part(layout, *tile, skip, left), measure)?;
            }
        }
        if new.pool == 0 { Ok(()) } else { self.add(new, measure) }
    }
}

/// Changes the mappings of arrays of a device as determined by `make`.
fn change(
    mapped: &mut BTreeMap<(Row, u64), Mapped>,
    ledger: &mut Ledger,
    make: impl FnOnce(&mut Change<'_>) -> Result<(), Code>,
) -> Result<[Vec<u64>; 2], Code> {
    let mut change = Change { mapped, ledger, more: Vec::new(), less: Vec::new() };
    make(&mut change)?;
    Ok([change.more, change.less])
}

/// Removes all mappings of an array that is about to be destroyed.
pub(crate) fn array_ends(cx: &CallContext, device: &'static Device, array: u64) -> Result<(), Code> {
    let mut mapped = lock(&MAPPED);
    let all: Vec<_> = mapped.range(((array, [0; 5]), 0)..=((array, [u32::MAX; 5]), u64::MAX)).map(|(at, _)| *at).collect();
    if all.is_empty() {
        return Ok(());
    }
    let mut ledger = lock(&device.ledger);
    let [_, less] = change(&mut mapped, &mut ledger, |c| all.into_iter().try_for_each(|at| c.remove(at).map(drop)))?;
    drop(ledger);
    drop(mapped);
    pools::unmapped(&less);
    pools::collect(cx)
}

pub(crate) fn cuMemMapArrayAsync(
    cx: &mut CallContext,
    list: InPtr<sys::CUarrayMapInfo>,
    count: c_uint,
    stream: sys::CUstream,
) -> Result<(), Code> {
    let stream = cx.use_stream(stream as u64)?;
    let device = cx.device()?;
    captures::forbid_on(cx, device, stream)?;
    let infos = MapInfo::list(list, count)?;
    let mut mapped = lock(&MAPPED);
    let (mut all, mut held) = (Vec::new(), Vec::new());
    for info in infos {
        let (handle, mipmapped) = info.array();
        let what = array_lookup::without_memory(cx.job, handle, mipmapped)?;
        let (tiles, bytes) = info.tiles(&what.shape, what.levels, &what.layout)?;
        if what.device != device.index || info.device() != device.index {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if let (Some(pool), Some(first)) = (info.memory(), tiles.first()) {
            pools::check(pool, device, first.offset, bytes)?;
            held.extend(tiles.iter().map(|_| pool));
        }
        let measure = (what.layout, what.layout.tile_bytes(what.shape.element()?));
        all.extend(tiles.into_iter().map(|tiles| (tiles, measure)));
    }
    device.check()?;
    // The new mappings keep them alive before another thread can release the last handle.
    pools::mapped(&held);
    let body = encode(&TilesMap { stream: Some(stream), tiles: all.iter().map(|(tiles, _)| *tiles).collect() });
    let mut ledger = lock(&device.ledger);
    let done = cx.ask(device, ops::id::TILES_MAP, &[&body]).and_then(|_| {
        change(&mut mapped, &mut ledger, |c| all.iter().try_for_each(|(tiles, measure)| c.replace(*tiles, measure)))
    });
    drop(ledger);
    drop(mapped);
    match done {
        Ok([more, less]) => {
            pools::mapped(&more);
            pools::unmapped(&less);
            // Memory to which nothing is mapped any more is freed by the next call that may wait.
            Ok(())
        }
        Err(rc) => {
            pools::unmapped(&held);
            Err(rc)
        }
    }
}
