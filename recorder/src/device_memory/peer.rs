//! Peer access: access of one device to the memory of another.
//!
//! The places of two GPUs of one machine are separate processes. The contents of one's arena are mapped in the other too, at the same
//! addresses, as long as the program has peer access enabled: then kernels and copies there are the driver's own peer accesses. Only
//! devices that move together can keep such mappings, so a move of one of them alone is refused.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::enter::CallContext;
use crate::job::{Device, Job, contexts};
use crate::move_error::MoveError;
use crate::place::{Place, Waiting};
use cuda_api::code::{self, Code};
use cuda_api::ops::{Chunk, Offer, PeerMap, id};
use cuda_api::wire::Wire;
use faults::Faults;
use rcuda_forwarder::{Control, ControlReply};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A mapping of the program that a device other than the memory's owner may use.
#[derive(Debug, Clone, Copy)]
struct Alias {
    owner: u32,
    chunk: Chunk,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Access {
    /// Contexts that may use the memory of others: device and context, then those of the memory.
    enabled: BTreeSet<[(u32, u64); 2]>,
    /// By user and address.
    aliases: BTreeMap<(u32, u64), Alias>,
    /// Whether one device can use the other's memory, as tested in these epochs.
    tried: HashMap<(u32, u32), (u64, u64, bool)>,
}

/// Taken after [`Device::mapping`] and before a device's ledger. Held while places map memory, so that memory is mapped for exactly the devices
/// that may use it (docs/execution.md, "Locks that are held over a round trip").
static ACCESS: Mutex<Option<Access>> = Mutex::new(None);

impl Access {
    fn reaches(&self, user: u32, owner: u32) -> bool {
        self.enabled.range([(user, 0), (0, 0)]..).take_while(|[u, _]| u.0 == user).any(|[_, o]| o.0 == owner)
    }

    /// Devices that may use the memory of this one.
    fn users(&self, owner: u32) -> BTreeSet<u32> {
        self.enabled.iter().filter(|[_, o]| o.0 == owner).map(|[u, _]| u.0).collect()
    }

    /// Pairs of user and owner.
    fn pairs(&self) -> BTreeSet<(u32, u32)> {
        let of_aliases = self.aliases.iter().map(|((user, _), a)| (*user, a.owner));
        self.enabled.iter().map(|[u, o]| (u.0, o.0)).chain(of_aliases).collect()
    }

    /// Returns whether the place of `user` can use memory of `owner`: tested with memory allocated for it.
    fn can(&mut self, cx: &CallContext, user: &'static Device, owner: &'static Device) -> bool {
        let epochs = (user.epoch.load(Ordering::Relaxed), owner.epoch.load(Ordering::Relaxed));
        let key = (user.index, owner.index);
        if let Some((u, o, can)) = self.tried.get(&key)
            && (*u, *o) == epochs
        {
            return *can;
        }
        // As a place on another machine, which has no such socket.
        let unreachable =
            Faults::from_env().tcp_is_other_machine && (cx.place(user).is_over_network() || cx.place(owner).is_over_network());
        let tried =
            if unreachable { Err(code::ERROR_PEER_ACCESS_UNSUPPORTED) } else { offer(cx, owner, Chunk { address: 0, bytes: 0 }) };
        let tried = tried.and_then(|offer| {
            let tried = cx.ask(user, id::PEER_MAP, &[&encode(&PeerMap { address: 0, bytes: 0, offer })]);
            // It fails only if the place is lost. This must not return a pending error of the program.
            let _ = cx.place(owner).send(id::CHUNK_WITHDRAW, &[&0u64.to_le_bytes()]);
            tried
        });
        // Any other error may be temporary: for example, out of memory or descriptors.
        if matches!(tried, Ok(_) | Err(code::ERROR_PEER_ACCESS_UNSUPPORTED)) {
            self.tried.insert(key, (epochs.0, epochs.1, tried.is_ok()));
        }
        tried.is_ok()
    }
}

/// Returns whether the place of `user` can map memory of `owner`.
pub(crate) fn can_map(cx: &CallContext, user: &'static Device, owner: &'static Device) -> bool {
    lock(&ACCESS).get_or_insert_default().can(cx, user, owner)
}

/// Returns whether the place of `user` could map memory of `owner` when that was last tested.
pub(crate) fn could_map(user: &Device, owner: &Device) -> bool {
    let access = lock(&ACCESS);
    access.as_ref().is_some_and(|access| access.tried.get(&(user.index, owner.index)).is_some_and(|(.., can)| *can))
}

/// Whether memory of a device was ever offered to another, or its place connected to another; what is offered for a mere test counts not.
static ANY: AtomicBool = AtomicBool::new(false);

/// Returns whether other devices of the job may use a device's memory by its addresses.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// Notes that another place may read or write a device's memory from now on.
pub(crate) fn note_any() {
    ANY.store(true, Ordering::Release);
}

/// The offer by which other places get the memory of a chunk.
pub(crate) fn offer(cx: &CallContext, owner: &'static Device, chunk: Chunk) -> Result<Offer, Code> {
    if chunk.bytes != 0 {
        // Before the request: copies that are sent to the owner without a wait until then are complete before it is carried out.
        note_any();
    }
    let bytes = cx.ask(owner, id::CHUNK_OFFER, &[&encode(&chunk)])?;
    Offer::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN)
}

/// Maps the memory of a chunk at the place of another device, at its own address or another.
fn connect(cx: &CallContext, user: &'static Device, owner: &'static Device, chunk: Chunk, at: Chunk) -> Result<(), Code> {
    let offer = offer(cx, owner, chunk)?;
    let map = PeerMap { address: at.address, bytes: at.bytes, offer };
    cx.ask(user, id::PEER_MAP, &[&encode(&map)]).map(drop)
}

fn disconnect(cx: &CallContext, user: &'static Device, at: Chunk) {
    // It fails only if the place is lost, and then the device has that error. This must not return a pending error of the program.
    let _ = cx.place(user).send(id::PEER_UNMAP, &[&encode(&at)]);
}

fn named(job: &'static Job, index: u32) -> Result<&'static Device, Code> {
    job.devices.get(index as usize).ok_or(code::ERROR_INVALID_DEVICE)
}

/// Returns whether kernels and copies of one device may use the memory of another.
pub(crate) fn reaches(user: &Device, owner: &Device) -> bool {
    user.index == owner.index || lock(&ACCESS).as_ref().is_some_and(|a| a.reaches(user.index, owner.index))
}

/// The physical memory of a device. The list is complete while the caller holds [`Device::mapping`], or at rest.
fn chunks(device: &Device) -> Vec<Chunk> {
    device.memory().chunks().collect()
}

/// Maps new memory of a device for all devices that may use it. The caller holds [`Device::mapping`].
pub(crate) fn mapped(cx: &CallContext, owner: &'static Device, chunk: Chunk) -> Result<(), Code> {
    let access = lock(&ACCESS);
    let Some(access) = access.as_ref() else { return Ok(()) };
    let users: Vec<&'static Device> =
        access.users(owner.index).into_iter().map(|u| named(cx.job, u)).collect::<Result<_, _>>()?;
    for (number, user) in users.iter().enumerate() {
        if let Err(rc) = connect(cx, user, owner, chunk, chunk) {
            users[..number].iter().for_each(|u| disconnect(cx, u, chunk));
            return Err(rc);
        }
    }
    Ok(())
}

/// Unmaps memory of a device that is about to be freed.
pub(crate) fn unmapped(cx: &CallContext, owner: &'static Device, chunk: Chunk) {
    let access = lock(&ACCESS);
    let users = access.as_ref().map(|a| a.users(owner.index)).unwrap_or_default();
    users.into_iter().filter_map(|u| named(cx.job, u).ok()).for_each(|user| disconnect(cx, user, chunk));
}

/// Makes a mapping of the program accessible to another device than the memory's own.
pub(crate) fn share_alias(
    cx: &CallContext,
    user: &'static Device,
    owner: &'static Device,
    chunk: Chunk,
    at: Chunk,
) -> Result<(), Code> {
    let mut access = lock(&ACCESS);
    let access = access.get_or_insert_default();
    if access.aliases.contains_key(&(user.index, at.address)) {
        return Ok(());
    }
    if !access.can(cx, user, owner) {
        return Err(code::ERROR_INVALID_DEVICE);
    }
    connect(cx, user, owner, chunk, at)?;
    access.aliases.insert((user.index, at.address), Alias { owner: owner.index, chunk, bytes: at.bytes });
    Ok(())
}

/// Ends this access for a device, or without one for all.
pub(crate) fn unshare_alias(cx: &CallContext, user: Option<u32>, at: u64) {
    let mut access = lock(&ACCESS);
    let Some(access) = access.as_mut() else { return };
    let gone = access.aliases.extract_if(.., |(u, address), _| *address == at && user.is_none_or(|only| only == *u));
    for ((user, address), alias) in gone {
        if let Ok(user) = named(cx.job, user) {
            disconnect(cx, user, Chunk { address, bytes: alias.bytes });
        }
    }
}

/// Returns whether a device may use a mapping of the program of another device's memory.
pub(crate) fn shares_alias(user: u32, at: u64) -> bool {
    lock(&ACCESS).as_ref().is_some_and(|a| a.aliases.contains_key(&(user, at)))
}

/// Ends all accesses by and to a context that is destroyed.
pub(crate) fn forget(cx: &CallContext, device: &'static Device, context: u64) {
    let torn: BTreeSet<(u32, u32)> = {
        let mut access = lock(&ACCESS);
        let Some(access) = access.as_mut() else { return };
        let gone: Vec<_> = access.enabled.extract_if(.., |pair| pair.contains(&(device.index, context))).collect();
        gone.into_iter().map(|[u, o]| (u.0, o.0)).filter(|(u, o)| !access.reaches(*u, *o)).collect()
    };
    for (user, owner) in torn {
        let (Ok(user), Ok(owner)) = (named(cx.job, user), named(cx.job, owner)) else { continue };
        // A thread that maps memory locks this and then queries the access: never the other way round.
        let _mapping = lock(&owner.mapping);
        let access = lock(&ACCESS);
        // Access may have been enabled again meanwhile, with everything mapped anew.
        if access.as_ref().is_none_or(|a| !a.reaches(user.index, owner.index)) {
            chunks(owner).into_iter().for_each(|chunk| disconnect(cx, user, chunk));
        }
    }
}

pub(crate) fn cuDeviceCanAccessPeer(cx: &mut CallContext, device: &Device, peer: &Device) -> Result<c_int, Code> {
    let (user, owner) = (named(cx.job, device.index)?, named(cx.job, peer.index)?);
    let possible = user.index != owner.index && lock(&ACCESS).get_or_insert_default().can(cx, user, owner);
    Ok(c_int::from(possible))
}

pub(crate) fn cuDeviceGetP2PAttribute(cx: &mut CallContext, attribute: u32, src: &Device, dst: &Device) -> Result<c_int, Code> {
    /// `CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED`
    const ACCESS_SUPPORTED: u32 = 2;
    if src.index == dst.index {
        return Err(code::ERROR_INVALID_DEVICE);
    }
    if attribute == ACCESS_SUPPORTED { cuDeviceCanAccessPeer(cx, src, dst) } else { Ok(0) }
}

/// The devices of the current context and of another one.
fn both(cx: &CallContext, peer: u64) -> Result<(&'static Device, &'static Device), Code> {
    let (user, owner) = (cx.device()?, contexts::device_of(cx.job, peer)?);
    if user.index == owner.index { Err(code::ERROR_INVALID_CONTEXT) } else { Ok((user, owner)) }
}

pub(crate) fn cuCtxEnablePeerAccess(cx: &mut CallContext, peer: u64, flags: c_uint) -> Result<(), Code> {
    let (user, owner) = both(cx, peer)?;
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let pair = [(user.index, contexts::current()), (owner.index, peer)];
    // No memory is mapped or unmapped meanwhile.
    let _mapping = lock(&owner.mapping);
    let mut access = lock(&ACCESS);
    let access = access.get_or_insert_default();
    if access.enabled.contains(&pair) {
        return Err(code::ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    if !access.reaches(user.index, owner.index) {
        if !access.can(cx, user, owner) {
            return Err(code::ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let chunks = chunks(owner);
        for (number, chunk) in chunks.iter().enumerate() {
            if let Err(rc) = connect(cx, user, owner, *chunk, *chunk) {
                tracing::debug!(target: "memory", "memory of GPU {} cannot be mapped for GPU {}: {rc}", owner.index, user.index);
                chunks[..number].iter().for_each(|c| disconnect(cx, user, *c));
                return Err(rc);
            }
        }
    }
    access.enabled.insert(pair);
    Ok(())
}

pub(crate) fn cuCtxDisablePeerAccess(cx: &mut CallContext, peer: u64) -> Result<(), Code> {
    let (user, owner) = both(cx, peer)?;
    let pair = [(user.index, contexts::current()), (owner.index, peer)];
    if !lock(&ACCESS).as_ref().is_some_and(|a| a.enabled.contains(&pair)) {
        return Err(code::ERROR_PEER_ACCESS_NOT_ENABLED);
    }
    cx.settle(user)?;
    let _mapping = lock(&owner.mapping);
    let mut access = lock(&ACCESS);
    let access = access.get_or_insert_default();
    if !access.enabled.remove(&pair) {
        return Err(code::ERROR_PEER_ACCESS_NOT_ENABLED);
    }
    if !access.reaches(user.index, owner.index) {
        chunks(owner).into_iter().for_each(|chunk| disconnect(cx, user, chunk));
    }
    Ok(())
}

/// Why these devices cannot move without others.
pub(crate) fn blockers(devices: &[&'static Device]) -> Vec<MoveError> {
    let moves = |index: u32| devices.iter().any(|d| d.index == index);
    let pairs = lock(&ACCESS).as_ref().map(Access::pairs).unwrap_or_default();
    let torn = pairs.into_iter().filter(|(user, owner)| moves(*user) != moves(*owner));
    torn.map(|(user, owner)| MoveError::PeerAccess { user, owner }).collect()
}

/// Devices of a move with their targets.
type Targets<'t> = [(&'static Device, &'t Place)];

fn target<'t>(targets: &Targets<'t>, index: u32) -> Option<(&'static Device, &'t Place)> {
    targets.iter().find(|(device, _)| device.index == index).copied()
}

/// A chunk of another target that a target has mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MappedChunk {
    owner: u32,
    bytes: u64,
    /// The number of its memory at the owner's target: other memory there has another one.
    number: u64,
}

/// The chunks that the targets of a move have mapped of each other, by user and address. Most are mapped while the job runs, so that less is
/// left to do while its calls wait.
#[derive(Debug, Default)]
pub(crate) struct TargetMappings(BTreeMap<(u32, u64), MappedChunk>);

impl TargetMappings {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The target of a device has replayed a reset, with which everything that it had mapped is gone.
    pub(crate) fn forget(&mut self, user: u32) {
        self.0.retain(|(of, _), _| *of != user);
    }

    /// Has targets unmap what the journal's tails end: the owner's target gives the memory back only with the last mapping of it, and may need
    /// its room for what the same tail makes.
    pub(crate) fn give_up(&mut self, targets: &Targets<'_>, ends: impl Fn(u32, u64) -> bool) -> Result<(), MoveError> {
        let ended: Vec<_> = self.0.iter().filter(|((_, at), chunk)| ends(chunk.owner, *at)).map(|(key, _)| *key).collect();
        self.unmap(targets, ended)
    }

    fn unmap(&mut self, targets: &Targets<'_>, keys: Vec<(u32, u64)>) -> Result<(), MoveError> {
        let mut asked = Vec::new();
        for key in keys {
            if let (Some(chunk), Some((_, user))) = (self.0.remove(&key), target(targets, key.0)) {
                let at = Chunk { address: key.1, bytes: chunk.bytes };
                asked.push(user.begin(id::PEER_UNMAP, &[&encode(&at)]).map_err(MoveError::TargetPeerAccess)?);
            }
        }
        asked.into_iter().try_for_each(|asked| answer(asked).map(drop))
    }

    /// What is to be unmapped and what is to be mapped, so that this is mapped: what is at other memory now, or at none, is unmapped.
    fn changes(&self, wanted: &BTreeMap<(u32, u64), MappedChunk>) -> [Vec<(u32, u64)>; 2] {
        let missing = |a: &BTreeMap<(u32, u64), MappedChunk>, b: &BTreeMap<(u32, u64), MappedChunk>| {
            a.iter().filter(|(at, chunk)| b.get(at) != Some(*chunk)).map(|(at, _)| *at).collect()
        };
        [missing(&self.0, wanted), missing(wanted, &self.0)]
    }

    /// Has the targets map each other's chunks as these pairs of user and owner may use them. `at_rest`: the owners' targets have all chunks;
    /// otherwise those that they have are mapped.
    fn update(&mut self, targets: &Targets<'_>, pairs: &BTreeSet<(u32, u32)>, at_rest: bool) -> Result<(), MoveError> {
        let mut numbers: BTreeMap<u32, HashMap<u64, (u64, u64)>> = BTreeMap::new();
        let mut wanted = BTreeMap::new();
        for (user, owner) in pairs {
            let (Some(_), Some((device, place))) = (target(targets, *user), target(targets, *owner)) else { continue };
            if !numbers.contains_key(owner) {
                numbers.insert(*owner, memory_of(place)?);
            }
            let there = &numbers[owner];
            let mapped = |chunk: Chunk| {
                let (_, number) = there.get(&chunk.address).filter(|(bytes, _)| *bytes == chunk.bytes)?;
                Some(((*user, chunk.address), MappedChunk { owner: *owner, bytes: chunk.bytes, number: *number }))
            };
            for chunk in chunks(device) {
                match mapped(chunk) {
                    Some((key, chunk)) => drop(wanted.insert(key, chunk)),
                    None if at_rest => return Err(MoveError::TargetPeerAccess(code::ERROR_NOT_MAPPED)),
                    None => {}
                }
            }
        }
        let [gone, fresh] = self.changes(&wanted);
        self.unmap(targets, gone)?;
        let mapping = |key: &(u32, u64)| {
            let chunk = wanted.get(key)?;
            let ((_, user), (_, owner)) = target(targets, key.0).zip(target(targets, chunk.owner))?;
            let chunk = Chunk { address: key.1, bytes: chunk.bytes };
            Some(TargetMapping { user, owner, chunk, at: chunk })
        };
        map_all(&fresh.iter().filter_map(mapping).collect::<Vec<_>>())?;
        self.0 = wanted;
        Ok(())
    }
}

/// The chunks of a target: bytes and number of the memory, by address.
fn memory_of(place: &Place) -> Result<HashMap<u64, (u64, u64)>, MoveError> {
    match place.control(&Control::ShowMemory)? {
        ControlReply::Shown { chunks, .. } => Ok(chunks.into_iter().map(|[at, bytes, number]| (at, (bytes, number))).collect()),
        other => Err(MoveError::unexpected(&other)),
    }
}

/// Pairs of user and owner whose contexts have peer access.
fn enabled() -> BTreeSet<(u32, u32)> {
    lock(&ACCESS).as_ref().map(|access| access.enabled.iter().map(|[u, o]| (u.0, o.0)).collect()).unwrap_or_default()
}

/// Gives the devices of a move the same access at their targets, as far as that is possible while the job runs.
pub(crate) fn rebuild_ahead(targets: &Targets<'_>, mapped: &mut TargetMappings) -> Result<(), MoveError> {
    // Not of the program's own mappings: a target may have to map something else there before the end of the move.
    mapped.update(targets, &enabled(), false)
}

/// Gives the devices of a move the same access at their targets. The gate is closed; the targets already have all memory.
pub(crate) fn rebuild(targets: &Targets<'_>, mapped: &mut TargetMappings) -> Result<(), MoveError> {
    mapped.update(targets, &enabled(), true)?;
    let access = lock(&ACCESS);
    let Some(access) = access.as_ref() else { return Ok(()) };
    let mut aliases = Vec::new();
    for ((user, address), alias) in &access.aliases {
        let (Some((_, user)), Some((_, owner))) = (target(targets, *user), target(targets, alias.owner)) else { continue };
        let at = Chunk { address: *address, bytes: alias.bytes };
        aliases.push(TargetMapping { user, owner, chunk: alias.chunk, at });
    }
    map_all(&aliases)
}

/// Tries whether the targets of a plan, which have no memory, could be given the same access.
pub(crate) fn try_out(targets: &Targets<'_>) -> Result<(), MoveError> {
    let pairs = lock(&ACCESS).as_ref().map(Access::pairs).unwrap_or_default();
    let target = |index: u32| target(targets, index).map(|(_, place)| place);
    // Without bytes both operations only test.
    let none = || Chunk { address: 0, bytes: 0 };
    let pairs = pairs.into_iter().filter_map(|(user, owner)| Some((target(user)?, target(owner)?)));
    let all: Vec<TargetMapping<'_>> =
        pairs.map(|(user, owner)| TargetMapping { user, owner, chunk: none(), at: none() }).collect();
    map_all(&all)
}

/// How long a target may take to give or map a chunk.
const CONNECTING: Duration = Duration::from_secs(60);

/// Requests that are under way at a time: the answers of a target are kept until they are waited for.
const UNDER_WAY: usize = 512;

/// Memory of one target that another one is to map.
#[derive(Debug, Clone, Copy)]
struct TargetMapping<'p> {
    user: &'p Place,
    owner: &'p Place,
    chunk: Chunk,
    at: Chunk,
}

impl TargetMapping<'_> {
    fn offer(&self) -> Result<Waiting, MoveError> {
        self.owner.begin(id::CHUNK_OFFER, &[&encode(&self.chunk)]).map_err(MoveError::TargetPeerAccess)
    }

    fn map(&self, offer: &[u8]) -> Result<Waiting, MoveError> {
        let offer = Offer::get(&mut &*offer).map_err(|e| MoveError::BadAnswer(e.to_string()))?;
        let map = PeerMap { address: self.at.address, bytes: self.at.bytes, offer };
        self.user.begin(id::PEER_MAP, &[&encode(&map)]).map_err(MoveError::TargetPeerAccess)
    }
}

/// The answer of a target.
fn answer(asked: Waiting) -> Result<Vec<u8>, MoveError> {
    match asked.finish_within(CONNECTING) {
        Some((code::SUCCESS, bytes)) => Ok(bytes),
        Some((rc, _)) => Err(MoveError::TargetPeerAccess(rc)),
        None => Err(MoveError::PlaceSilent(CONNECTING)),
    }
}

/// Maps memory of targets for others. Calls of the job wait for this, so it takes no round trip for each: owners are asked for the offers of
/// many chunks before the first one is waited for, and users map what is offered meanwhile.
fn map_all(all: &[TargetMapping<'_>]) -> Result<(), MoveError> {
    for some in all.chunks(UNDER_WAY) {
        let offers = some.iter().map(TargetMapping::offer).collect::<Result<Vec<_>, _>>()?;
        let maps = some.iter().zip(offers).map(|(mapping, offer)| mapping.map(&answer(offer)?));
        maps.collect::<Result<Vec<_>, _>>()?.into_iter().try_for_each(|map| answer(map).map(drop))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_map_anew_what_is_other_memory_by_now_and_keep_the_rest() {
        let chunk = |owner, bytes, number| MappedChunk { owner, bytes, number };
        let all = [((0, 0x1000), chunk(1, 64, 5)), ((0, 0x2000), chunk(1, 64, 6)), ((1, 0x9000), chunk(0, 64, 5))];
        let mut mapped = TargetMappings(BTreeMap::from(all));
        let changes =
            |mapped: &TargetMappings, wanted: &[((u32, u64), MappedChunk)]| mapped.changes(&wanted.iter().copied().collect());
        assert_eq!(changes(&mapped, &all), [vec![], vec![]]);
        // The same address with other memory, another size, and one more.
        let other = [all[0], ((0, 0x2000), chunk(1, 64, 7)), ((0, 0x3000), chunk(1, 64, 8)), ((1, 0x9000), chunk(0, 32, 5))];
        let both = [(0, 0x2000), (1, 0x9000)];
        assert_eq!(changes(&mapped, &other), [both.to_vec(), vec![(0, 0x2000), (0, 0x3000), (1, 0x9000)]]);
        // Memory that is gone, or no longer to be used.
        assert_eq!(changes(&mapped, &all[2..]), [vec![(0, 0x1000), (0, 0x2000)], vec![]]);
        // What an owner is about to end, at this address and of this owner.
        let mut some = TargetMappings(mapped.0.clone());
        some.give_up(&[], |owner, at| [(1, 0x2000), (1, 0x9000)].contains(&(owner, at))).unwrap();
        assert_eq!(changes(&some, &all), [vec![], vec![(0, 0x2000)]]);
        // A target that was reset has nothing mapped.
        mapped.forget(0);
        assert_eq!(changes(&mapped, &all), [vec![], vec![(0, 0x1000), (0, 0x2000)]]);
    }
}
