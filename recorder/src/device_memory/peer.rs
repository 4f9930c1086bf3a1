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
use crate::place::Place;
use cuda_api::code::{self, Code};
use cuda_api::ops::{Chunk, Offer, PeerMap, id};
use cuda_api::wire::Wire;
use faults::Faults;
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

/// Gives the devices of a move the same access at their targets. The gate is closed; the targets already have all memory.
pub(crate) fn rebuild(targets: &[(&'static Device, &Place)]) -> Result<(), MoveError> {
    let access = lock(&ACCESS);
    let Some(access) = access.as_ref() else { return Ok(()) };
    let target = |index: u32| targets.iter().find(|(d, _)| d.index == index).copied();
    let enabled: BTreeSet<(u32, u32)> = access.enabled.iter().map(|[u, o]| (u.0, o.0)).collect();
    for (user, owner) in enabled {
        let (Some((_, user)), Some((device, owner))) = (target(user), target(owner)) else { continue };
        chunks(device).into_iter().try_for_each(|chunk| connect_targets(user, owner, chunk, chunk))?;
    }
    for ((user, address), alias) in &access.aliases {
        let (Some((_, user)), Some((_, owner))) = (target(*user), target(alias.owner)) else { continue };
        connect_targets(user, owner, alias.chunk, Chunk { address: *address, bytes: alias.bytes })?;
    }
    Ok(())
}

/// Tries whether the targets of a plan, which have no memory, could be given the same access.
pub(crate) fn try_out(targets: &[(&'static Device, &Place)]) -> Result<(), MoveError> {
    let pairs = lock(&ACCESS).as_ref().map(Access::pairs).unwrap_or_default();
    let target = |index: u32| targets.iter().find(|(d, _)| d.index == index).map(|(_, place)| *place);
    // Without bytes both operations only test.
    let none = || Chunk { address: 0, bytes: 0 };
    let pairs = pairs.into_iter().filter_map(|(user, owner)| Some((target(user)?, target(owner)?)));
    pairs.into_iter().try_for_each(|(user, owner)| connect_targets(user, owner, none(), none()))
}

/// How long a target may take to give or map a chunk.
const CONNECTING: Duration = Duration::from_secs(60);

/// Maps memory of one target for another.
fn connect_targets(user: &Place, owner: &Place, chunk: Chunk, at: Chunk) -> Result<(), MoveError> {
    let ask = |place: &Place, op: u16, body: Vec<u8>| match place.begin(op, &[&body]).map(|asked| asked.finish_within(CONNECTING))
    {
        Ok(Some((code::SUCCESS, bytes))) => Ok(bytes),
        Ok(None) => Err(MoveError::PlaceSilent(CONNECTING)),
        Ok(Some((rc, _))) | Err(rc) => Err(MoveError::TargetPeerAccess(rc)),
    };
    let bytes = ask(owner, id::CHUNK_OFFER, encode(&chunk))?;
    let offer = Offer::get(&mut &bytes[..]).map_err(|e| MoveError::BadAnswer(e.to_string()))?;
    ask(user, id::PEER_MAP, encode(&PeerMap { address: at.address, bytes: at.bytes, offer })).map(drop)
}
