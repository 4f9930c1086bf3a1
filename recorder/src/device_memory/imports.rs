//! Memory of other devices that a place maps to copy from and to it ([`crate::objects::imports`]): so that a copy between two GPUs of one
//! machine is one of the driver's, whether or not the program has enabled peer access.
//!
//! Imports are made by the first copy that needs them, and end before the owner unmaps the memory, before either device moves, and with
//! the user's context. The program cannot observe them.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::device_memory::{mappings, peer};
use crate::enter::CallContext;
use crate::job::{Device, Moving, PutOff};
use crate::objects::imports::{Imports, Source};
use crate::place::{Place, Waiting};
use cuda_api::code::{self, Code};
use cuda_api::ops::{Chunk, PeerMap, id};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// By the device at whose place they are. Held for changes of the tables alone, never over a round trip.
static IMPORTS: Mutex<BTreeMap<u32, Imports>> = Mutex::new(BTreeMap::new());

fn epoch(device: &Device) -> u64 {
    device.epoch.load(Ordering::Relaxed)
}

/// Changes the imports of a device in this epoch.
fn with<T>(user: u32, epoch: u64, change: impl FnOnce(&mut Imports) -> T) -> T {
    let mut all = lock(&IMPORTS);
    let imports = all.entry(user).or_insert_with(|| Imports::new(epoch));
    if imports.epoch() != epoch {
        // They were at the device's former place.
        *imports = Imports::new(epoch);
    }
    change(imports)
}

/// Answers to come from places that unmap imports, and some that have come.
static UNMAPPING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());
/// How long an allocation waits for such answers altogether: a place may be in a call that takes long.
const UNMAP_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until places have unmapped what they were asked to: the memory is the owner's only then. Returns false if there was nothing.
pub(crate) fn finish_unmapping() -> bool {
    let (all, since) = (std::mem::take(&mut *lock(&UNMAPPING)), Instant::now());
    let any = !all.is_empty();
    for waiting in all {
        // One that fails is of a lost place.
        let _ = waiting.finish_within(UNMAP_TIMEOUT.saturating_sub(since.elapsed()));
    }
    any
}

/// Unmaps imports at a place, whose addresses may then be used again.
fn unmap(place: &Place, (user, epoch): (u32, u64), gone: Vec<Chunk>) {
    for mapping in gone {
        // It fails only if the place is lost. This must not return a pending error of the program.
        if let Ok(waiting) = place.begin(id::PEER_UNMAP, &[&encode(&mapping)]) {
            let mut all = lock(&UNMAPPING);
            all.retain_mut(|w| !w.is_done());
            all.push(waiting);
        }
        with(user, epoch, |imports| imports.unmapped(mapping));
    }
}

/// The imports that one copy uses. When dropped, the copy is complete.
#[derive(Debug)]
pub(crate) struct Uses {
    user: u32,
    epoch: u64,
    place: Place,
    mappings: Vec<u64>,
}

impl Uses {
    /// None yet, for a copy that a device makes.
    pub(crate) fn new(cx: &CallContext, user: &'static Device) -> Uses {
        Uses { user: user.index, epoch: epoch(user), place: cx.place(user).clone(), mappings: Vec::new() }
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        let whose = (self.user, self.epoch);
        for at in std::mem::take(&mut self.mappings) {
            let gone = with(self.user, self.epoch, |imports| imports.done(at));
            unmap(&self.place, whose, gone.into_iter().collect());
        }
    }
}

/// A chunk of a device, and the number of an address's byte in it.
fn locate(owner: &'static Device, address: u64) -> Option<(Source, u64, u64)> {
    let (at, most) = if mappings::is_reserved(address) { mappings::chunk_behind(address)? } else { (address, u64::MAX) };
    let chunk = owner.memory().chunk_around(at)?;
    let offset = at - chunk.address;
    Some((Source { owner: owner.index, epoch: epoch(owner), chunk }, offset, most.min(chunk.bytes - offset)))
}

/// The address in a device's own chunk of a byte of its memory, and how many bytes of the chunk follow from there on.
pub(crate) fn chunk_address(owner: &'static Device, address: u64) -> Option<(u64, u64)> {
    locate(owner, address).map(|(of, offset, bytes)| (of.chunk.address + offset, bytes))
}

/// The address at which the place of `user` reaches a byte of another device, and how many bytes from there on. With `make`, maps the
/// memory if it is not yet. `None` if it cannot be reached.
pub(crate) fn reach(
    cx: &CallContext,
    (user, owner): (&'static Device, &'static Device),
    address: u64,
    make: bool,
    uses: &mut Uses,
) -> Option<(u64, u64)> {
    let (of, offset, bytes) = locate(owner, address)?;
    let known = with(user.index, uses.epoch, |imports| imports.take(&of));
    let at = known.or_else(|| if make { import(cx, (user, owner), of) } else { None })?;
    uses.mappings.push(at);
    Some((at + offset, bytes))
}

/// Maps a chunk for a copy, which begins to use it.
fn import(cx: &CallContext, (user, owner): (&'static Device, &'static Device), of: Source) -> Option<u64> {
    let user_epoch = epoch(user);
    let with = |change: &mut dyn FnMut(&mut Imports) -> Option<u64>| with(user.index, user_epoch, change);
    with(&mut |imports| imports.may_try(&of).then_some(0))?;
    // An error of the program's work that has not been returned yet says nothing about the memory.
    let _later = PutOff::begin();
    if !peer::can_map(cx, user, owner) {
        return None;
    }
    // The owner unmaps no memory meanwhile.
    let _mapping = lock(&owner.mapping);
    if owner.memory().chunk_around(of.chunk.address) != Some(of.chunk) {
        return None;
    }
    // Another thread may have mapped it.
    if let Some(at) = with(&mut |imports| imports.take(&of)) {
        return Some(at);
    }
    let at = with(&mut |imports| imports.reserve(&of)).or_else(|| {
        let mut gone = Vec::new();
        with(&mut |imports| {
            gone = imports.end_unused();
            None
        });
        unmap(cx.place(user), (user.index, user_epoch), gone);
        with(&mut |imports| imports.reserve(&of))
    })?;
    let made = peer::offer(cx, owner, of.chunk).and_then(|offer| {
        let map = PeerMap { address: at, bytes: of.chunk.bytes, offer };
        cx.ask(user, id::PEER_MAP, &[&encode(&map)])
    });
    let rc = made.err();
    match rc {
        None => {
            tracing::debug!(target: "memory", "{} bytes of GPU {} are mapped at GPU {} for copies", of.chunk.bytes, owner.index, user.index)
        }
        Some(rc) => {
            tracing::debug!(target: "memory", "memory of GPU {} cannot be mapped at GPU {} for copies: {rc}", owner.index, user.index)
        }
    }
    with(&mut |imports| match rc {
        None => {
            imports.made(at, of);
            imports.take(&of)
        }
        Some(rc) => {
            imports.failed(at, &of, rc != code::ERROR_OUT_OF_MEMORY);
            None
        }
    })
}

/// Ends imports at the places that `place_of` knows.
fn end<'p>(place_of: impl Fn(u32) -> Option<&'p Place>, which: impl Fn(u32, &Source) -> bool) {
    let gone: Vec<(u32, u64, Vec<Chunk>)> = lock(&IMPORTS)
        .iter_mut()
        .map(|(user, imports)| (*user, imports.epoch(), imports.end(|of| which(*user, of))))
        .filter(|(.., gone)| !gone.is_empty())
        .collect();
    for (user, epoch, gone) in gone {
        if let Some(place) = place_of(user) {
            unmap(place, (user, epoch), gone);
        }
    }
}

/// Ends the imports of memory that its owner is about to unmap. The caller holds [`Device::mapping`].
pub(crate) fn unmapped(cx: &CallContext, owner: &'static Device, chunk: Chunk) {
    end(
        |user| Some(cx.place(cx.job.devices.get(user as usize)?)),
        |_, of| of.owner == owner.index && of.chunk.address == chunk.address,
    );
}

/// Ends all imports at the place of a device whose context is destroyed. No copy uses them any more.
pub(crate) fn forget(cx: &CallContext, device: &'static Device) -> Result<(), Code> {
    end(|user| Some(cx.place(cx.job.devices.get(user as usize)?)), |user, _| user == device.index);
    Ok(())
}

/// Ends all imports of and at devices that are about to move. The gate is closed, and no copy concerns them.
pub(crate) fn leave(all: &'static [Device], moves: &[&'static Device], moving: &Moving) {
    let moves = |index: u32| moves.iter().any(|d| d.index == index);
    end(|user| Some(all.get(user as usize)?.place_for_mover(moving)), |user, of| moves(user) || moves(of.owner));
}
