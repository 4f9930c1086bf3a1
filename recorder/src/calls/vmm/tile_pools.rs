//! Physical memory for tiles of arrays: it has no addresses, and the place identifies it by its handle ([`crate::calls::tiles`]).

use crate::base::encoding::encode;
use crate::device_memory::mappings::{Physical, Vmm, read, write};
use crate::device_memory::{chunks, shared_memory};
use crate::enter::CallContext;
use crate::job::{Device, array_lookup};
use crate::ledger::Keep;
use crate::objects::ticket;
use crate::order::concerned::WaitingCall;
use cuda_api::arg::Edges;
use cuda_api::array::TilePool;
use cuda_api::code::{self, Code};
use cuda_api::ops;

/// Memory for tiles: its device and its handle.
pub(super) type Pool = (&'static Device, u64);

/// Frees memory for tiles to which nothing is mapped any more. The driver then waits for its device, as for destroying an array.
pub(super) fn end_pools(cx: &CallContext, pools: Vec<Pool>) -> Result<(), Code> {
    for (device, handle) in pools {
        cx.settle(device)?;
        let edges = Edges { ends: Some(handle), ..Edges::default() };
        let _waits = WaitingCall::begin(device);
        cx.build(device, ops::id::TILE_POOL_END, &handle.to_le_bytes(), &edges, Keep::PLAIN)?;
    }
    Ok(())
}

/// Frees physical memory that is no longer accessible.
pub(crate) fn collect(cx: &CallContext) -> Result<(), Code> {
    let pools = write().collect();
    cx.job.devices.iter().for_each(|device| chunks::drop_surplus(cx, device));
    end_pools(cx, pools)
}

/// Creates memory for tiles at the place.
pub(super) fn make_pool(cx: &CallContext, device: &'static Device, handle: u64, bytes: u64) -> Result<(), Code> {
    let body = encode(&TilePool { handle, window: array_lookup::window(bytes), bytes });
    let edges = Edges { creates: [handle].into(), ..Edges::default() };
    cx.build(device, ops::id::TILE_POOL_MAKE, &body, &edges, Keep::PLAIN).map(drop)
}

/// Checks that tiles of a device can be mapped to these bytes.
pub(crate) fn check(handle: u64, device: &Device, offset: u64, bytes: u64) -> Result<(), Code> {
    let mut v = write();
    let p = v.known(handle)?;
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= p.bytes);
    if p.prop.is_for_tiles() && p.device.index == device.index && inside { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
}

/// Counts one mapping more for each of these.
pub(crate) fn mapped(pools: &[u64]) {
    let mut v = write();
    for pool in pools {
        v.physical.entry(*pool).and_modify(|p| p.mappings += 1);
    }
}

/// Counts one mapping less for each of these.
pub(crate) fn unmapped(pools: &[u64]) {
    let mut v = write();
    for pool in pools {
        v.physical.entry(*pool).and_modify(|p| p.mappings -= 1);
    }
}

/// Size of a device's memory for tiles.
pub(crate) fn bytes(device: &Device) -> u64 {
    let v = read();
    v.physical.values().filter(|p| p.device.index == device.index && p.prop.is_for_tiles()).map(|p| p.bytes).sum()
}

impl Vmm {
    /// Frees physical memory that is no longer accessible. Returns memory for tiles, which the place has to free.
    #[must_use]
    fn collect(&mut self) -> Vec<Pool> {
        let unreachable = |p: &mut Physical| {
            if p.handles > 0 || p.mappings > 0 {
                return false;
            }
            p.exported.retain(ticket::is_open);
            p.exported.is_empty() && (p.loan.is_some() || !shared_memory::is_lent(p.device, p.chunk))
        };
        let mut pools = Vec::new();
        for (handle, p) in self.physical.extract_if(|_, p| unreachable(p)).filter(|(_, p)| p.loan.is_none()) {
            if p.prop.is_for_tiles() {
                pools.push((p.device, handle));
            } else {
                p.device.memory_mut().make_spare(p.chunk);
            }
        }
        pools
    }
}
