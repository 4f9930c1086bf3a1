//! The executor on a CUDA driver, as a place.

use super::{Outcome, Place};
use crate::control::{ControlReply, GlobalInfo, Refused};
use cuda_api::board::Readings;
use cuda_api::code::Code;
use cuda_api::ops::Offer;
use cuda_api::wire::Wire;
use executor::host_mirror::PlaceChanges;
use executor::staging::{Room, Staging};
use executor::{Applied, Budget, Busy, DeviceInfo, Evictable, Executor, NotEvicted, Pending, Shown};
use memsync::{Compression, Part, Stream, Verify};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl From<Applied> for Outcome<Pending> {
    fn from(a: Applied) -> Self {
        match a {
            Applied::Done(rc) => Outcome::Done(rc),
            Applied::Pending(p) => Outcome::Pending(p),
        }
    }
}

fn shown(chunks: &[[u64; 3]]) -> Vec<Shown> {
    chunks.iter().map(|[address, bytes, number]| Shown { address: *address, bytes: *bytes, number: *number }).collect()
}

impl Place for Executor {
    type Pending = Pending;

    fn device(&self) -> DeviceInfo {
        let info = Executor::device(self);
        let (free_bytes, total_bytes) = self.memory().within((info.free_bytes, info.total_bytes));
        DeviceInfo { free_bytes, total_bytes, ..info.clone() }
    }

    fn apply(&self, id: u16, body: &[u8], reply: &mut Vec<u8>) -> Outcome<Pending> {
        Executor::apply(self, id, body, reply).into()
    }

    fn has_copies_at_rest(&self) -> bool {
        Executor::has_copies_at_rest(self)
    }

    fn finish_copies(&self) -> Result<(), Code> {
        Executor::finish_copies(self)
    }

    fn poll(&self, pending: &mut Pending, reply: &mut Vec<u8>) -> Option<Code> {
        pending.poll(self, reply)
    }

    fn host_calls(&self) -> usize {
        Executor::host_calls(self)
    }

    fn awaits_job(&self) -> bool {
        Executor::awaits_job(self)
    }

    fn staging(&self) -> &Staging {
        Executor::staging(self)
    }

    fn provide_areas(&self, at_least: u32) -> Result<(), Code> {
        Executor::provide_areas(self, at_least)
    }

    fn provide_gpu_area(&self, reach: &mut dyn FnMut(&Arc<Room>) -> bool) -> Result<bool, Code> {
        Executor::provide_gpu_area(self, reach)
    }

    fn budget(&self) -> &Arc<Budget> {
        Executor::budget(self)
    }

    fn busy(&self) -> Result<Busy, Code> {
        Executor::busy(self)
    }

    fn is_idle(&self) -> Result<bool, Code> {
        Executor::is_idle(self)
    }

    fn set_pinned_file(&self, file: OwnedFd) -> io::Result<()> {
        Executor::set_pinned_file(self, file)
    }

    fn has_apart(&self) -> bool {
        Executor::has_apart(self)
    }

    fn has_gpu_blocks(&self) -> bool {
        Executor::has_gpu_blocks(self)
    }

    fn needs_driver(&self, body: &[u8]) -> bool {
        self.bytes_need_driver(body)
    }

    fn end_block(&self, mut body: &[u8]) -> bool {
        u64::get(&mut body).is_ok_and(|at| Executor::end_block(self, at))
    }

    fn has_collided(&self) -> bool {
        Executor::has_collided(self)
    }

    fn collect_changes(&self) -> PlaceChanges {
        Executor::collect_changes(self)
    }

    fn collect_gpu_changes(&self, sent: u64, send: &mut dyn FnMut(PlaceChanges)) -> Result<(), Code> {
        Executor::collect_gpu_changes(self, sent, send)
    }

    fn uses_peers(&self) -> bool {
        Executor::uses_peers(self)
    }

    fn prints(&self) -> bool {
        Executor::prints(self)
    }

    fn free_bytes(&self, beside: u64) -> Result<u64, Code> {
        Ok(Executor::free_bytes(self)?.saturating_sub(beside))
    }

    fn used_bytes(&self) -> u64 {
        self.memory().used()
    }

    fn whole_memory(&self) -> Result<(u64, u64), Code> {
        Executor::whole_memory(self)
    }

    fn set_account(&self, account: Arc<dyn executor::Account>) {
        self.memory().set_account(account);
    }

    fn readings(&self) -> Readings {
        Executor::readings(self)
    }

    fn regions(&self) -> Result<ControlReply, Code> {
        let globals = Executor::globals(self)?.into_iter();
        let globals =
            globals.map(|g| GlobalInfo { module: g.module, name: g.name, address: g.address, bytes: g.bytes }).collect();
        let chunks = self.chunks().into_iter().map(|c| (c.address, c.bytes)).collect();
        Ok(ControlReply::Regions { globals, heap: self.heap()?, chunks })
    }

    fn show_memory(self: &Arc<Self>) -> Result<ControlReply, Refused> {
        let (offer, chunks) = Executor::show(self).map_err(|e| Refused::Other(e.to_string()))?;
        Ok(ControlReply::Shown { offer, chunks: chunks.into_iter().map(|c| [c.address, c.bytes, c.number]).collect() })
    }

    fn could_adopt(&self, offer: &Offer, chunks: &[[u64; 3]]) -> Result<u64, Refused> {
        Executor::could_adopt(self, offer, &shown(chunks)).map_err(|e| Refused::Other(e.to_string()))
    }

    fn adopt_from(&self, offer: &Offer, chunks: &[[u64; 3]]) -> Result<(), Refused> {
        Executor::adopt_from(self, offer, &shown(chunks)).map_err(|e| Refused::Other(e.to_string()))
    }

    fn round_source(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        compression: &mut Vec<Compression>,
        send_regions: bool,
    ) -> Result<memsync::Round, Refused> {
        memsync::run_source(self, conns, compression, send_regions, memsync::Faults::from_env()).map_err(Refused::from)
    }

    fn round_target(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        verify: Verify,
        by_descriptor: bool,
    ) -> Result<memsync::Round, Refused> {
        memsync::run_target(self, conns, verify, by_descriptor, memsync::Faults::from_env()).map_err(Refused::from)
    }

    fn send_parts(self: &Arc<Self>, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), Refused> {
        memsync::send_parts(self, conns, number, parts).map_err(Refused::from)
    }

    fn receive_parts(self: &Arc<Self>, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), Refused> {
        memsync::receive_parts(self, conns, number, parts).map_err(Refused::from)
    }

    fn moved(&self) -> u64 {
        Executor::moved(self)
    }

    fn evictable(&self) -> Result<Evictable, NotEvicted> {
        Executor::evictable(self)
    }

    fn evict(self: &Arc<Self>, limit: u64, goes_on: &dyn Fn() -> bool) -> Result<Evictable, NotEvicted> {
        Executor::evict(self, limit, goes_on)
    }

    fn restore(self: &Arc<Self>) -> Result<(), Code> {
        Executor::restore(self).map(drop)
    }

    fn evicted_bytes(&self) -> u64 {
        Executor::evicted_bytes(self)
    }

    fn end_rounds(&self) {
        self.end_view();
    }

    fn close(self: Arc<Self>) {
        Executor::close(self);
    }
}
