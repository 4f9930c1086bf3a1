//! A store as a place: it answers what moves ask, and executes no calls.

use super::{OpenError, Outcome, Place};
use crate::channel::{Start, StoreAt};
use crate::control::{ControlReply, Refused};
use cuda_api::code::{self, Code};
use cuda_api::ops::Offer;
use executor::host_mirror::PlaceChanges;
use executor::staging::{Room, Sizes, Staging};
use executor::{Budget, Busy, DeviceInfo, processors};
use memsync::{Compression, Faults, Kind, Part, Store, Stream, Verify};
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// A store, with what a worker expects of any place.
#[derive(Debug)]
pub(crate) struct Parked {
    store: Store,
    staging: Staging,
    budget: Arc<Budget>,
}

fn refused<T>() -> Result<T, Refused> {
    Err(Refused::Other("a parked device executes nothing".to_owned()))
}

impl Parked {
    /// Opens the store that the start message describes.
    pub(crate) fn open(start: &Start) -> Result<Arc<Parked>, OpenError> {
        let store = match &start.store {
            None => return Err(OpenError::NoStore),
            Some(StoreAt::Memory) => Store::in_memory(start.limits.parked),
            Some(StoreAt::NewFile(path)) => Store::create(Path::new(path), start.limits.parked)?,
            Some(StoreAt::File(path, seal)) => Store::open(Path::new(path), seal, start.limits.parked)?,
        };
        Ok(Arc::new(Parked { store, staging: Staging::new(Sizes::of_process()), budget: Budget::new(start.limits.pinned) }))
    }
}

impl Place for Parked {
    type Pending = Infallible;

    fn device(&self) -> DeviceInfo {
        // No GPU: nothing of this is shown to the program, and nothing is compared with it.
        DeviceInfo { name: "parked".to_owned(), processors: processors(), ..DeviceInfo::default() }
    }

    fn apply(&self, _: u16, _: &[u8], _: &mut Vec<u8>) -> Outcome<Infallible> {
        Outcome::Done(code::ERROR_NOT_SUPPORTED)
    }

    fn has_copies_at_rest(&self) -> bool {
        false
    }

    fn finish_copies(&self) -> Result<(), Code> {
        Ok(())
    }

    fn poll(&self, pending: &mut Infallible, _: &mut Vec<u8>) -> Option<Code> {
        match *pending {}
    }

    fn host_calls(&self) -> usize {
        0
    }

    fn awaits_job(&self) -> bool {
        false
    }

    fn staging(&self) -> &Staging {
        &self.staging
    }

    fn provide_areas(&self, _: u32) -> Result<(), Code> {
        Err(code::ERROR_NOT_SUPPORTED)
    }

    fn provide_gpu_area(&self, _: &mut dyn FnMut(&Arc<Room>) -> bool) -> Result<bool, Code> {
        Ok(false)
    }

    fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    fn busy(&self) -> Result<Busy, Code> {
        Ok(Busy::default())
    }

    fn is_idle(&self) -> Result<bool, Code> {
        Ok(true)
    }

    fn set_pinned_file(&self, _: OwnedFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn has_apart(&self) -> bool {
        false
    }

    fn end_block(&self, _: &[u8]) -> bool {
        false
    }

    fn has_collided(&self) -> bool {
        false
    }

    fn collect_changes(&self) -> PlaceChanges {
        PlaceChanges::default()
    }

    fn prints(&self) -> bool {
        false
    }

    fn free_bytes(&self, beside: u64) -> Result<u64, Code> {
        self.store.free_bytes(beside).map_err(|_| code::ERROR_OPERATING_SYSTEM)
    }

    /// It has no memory of a GPU.
    fn set_account(&self, _: Arc<dyn executor::Account>) {}

    fn used_bytes(&self) -> u64 {
        self.store.regions().into_iter().filter(|r| r.kind == Kind::Chunk).map(|r| r.bytes).sum()
    }

    fn regions(&self) -> Result<ControlReply, Code> {
        // It knows no names of variables.
        let chunks = self.store.regions().into_iter().filter(|r| r.kind == Kind::Chunk);
        Ok(ControlReply::Regions { globals: Vec::new(), heap: None, chunks: chunks.map(|r| (r.address, r.bytes)).collect() })
    }

    fn show_memory(self: &Arc<Self>) -> Result<ControlReply, Refused> {
        refused()
    }

    fn could_adopt(&self, _: &Offer, _: &[[u64; 3]]) -> Result<u64, Refused> {
        refused()
    }

    fn adopt_from(&self, _: &Offer, _: &[[u64; 3]]) -> Result<(), Refused> {
        refused()
    }

    fn round_source(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        compression: &mut Vec<Compression>,
        send_regions: bool,
    ) -> Result<memsync::Round, Refused> {
        self.store.run_source(conns, compression, send_regions, Faults::from_env()).map_err(Refused::from)
    }

    fn round_target(self: &Arc<Self>, conns: &mut [Box<dyn Stream>], verify: Verify, _: bool) -> Result<memsync::Round, Refused> {
        self.store.run_target(conns, verify, Faults::from_env()).map_err(Refused::from)
    }

    fn send_parts(self: &Arc<Self>, _: &mut [Box<dyn Stream>], _: u64, _: &[Part]) -> Result<(), Refused> {
        refused()
    }

    fn receive_parts(self: &Arc<Self>, _: &mut [Box<dyn Stream>], _: u64, _: &[Part]) -> Result<(), Refused> {
        refused()
    }

    // What a round has copied is reported at its end.
    fn moved(&self) -> u64 {
        0
    }

    fn end_rounds(&self) {}

    fn close(self: Arc<Self>) {}
}
