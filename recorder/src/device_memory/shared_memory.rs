//! Memory shared between processes by descriptors: the program's own physical memory, and allocations of pools.
//!
//! A descriptor, and the data of an exported pointer, is a *ticket*: it contains the name of a socket of the process that owns the
//! memory. The importing process connects to it and gets what the place of the owner offers at that time ([`peer::offer`]); the
//! connection stays open as long as the memory is imported. By it the owner knows whether any process has its memory: until all
//! connections are closed its device does not move, and the exported memory is not reused. A ticket that was not used yet blocks nothing.

use crate::base::encoding::encode;
use crate::base::log::{self, lock};
use crate::device_memory::mappings::{self, Lendable};
use crate::device_memory::{peer, shared_handles};
use crate::enter::CallContext;
use crate::job::{self, Device, Job, PutOff};
use crate::move_error::{MoveError, Shared};
use crate::objects::ticket::{Line, Loan, MAGIC, MEMORY, POINTER, POOL, TICKET, Ticket, is_open};
use cuda_api::address_map::GRANULE;
use cuda_api::code::{self, Code};
use cuda_api::ops::{Chunk, Offer, PeerMap, id};
use cuda_api::wire::Wire;
use cuda_api::wire_struct;
use executor::share::{self, Name};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Longer than any pause of a move: the owner answers inside its gate.
const OWNER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of chunks of an exported allocation of a pool, which bounds the size of an answer.
const MAX_CHUNKS: usize = 4096;

wire_struct! {
    /// The answer to a ticket.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Answer {
        code: i32,
        /// Offers of the adjacent chunks that contain the memory, with their sizes.
        pieces: Vec<(Offer, u64)>,
        /// Offset of the memory in the first chunk.
        offset: u64,
        bytes: u64,
    }
}

/// Memory that another process has imported.
#[derive(Debug)]
struct Lent {
    device: u32,
    chunks: Vec<u64>,
    /// The importing process's connection.
    stream: UnixStream,
}

static LENT: Mutex<Vec<Lent>> = Mutex::new(Vec::new());

/// Returns whether another process has imported memory of this chunk.
pub(crate) fn is_lent(device: &Device, chunk: u64) -> bool {
    let mut lent = lock(&LENT);
    lent.retain(|l| is_open(&l.stream));
    lent.iter().any(|l| l.device == device.index && l.chunks.contains(&chunk))
}

/// Why a device cannot move.
pub(crate) fn blocker(device: &Device) -> Option<MoveError> {
    let lent = {
        let mut lent = lock(&LENT);
        lent.retain(|l| is_open(&l.stream));
        lent.iter().filter(|l| l.device == device.index).count()
    };
    let pointers = lock(&BORROWED).values().filter(|b| b.device == device.index).count();
    let borrowed = pointers + mappings::borrowed(device);
    let what = match (lent, borrowed) {
        (0, 0) => return None,
        (0, n) => Shared::MappedPieces(n),
        (n, _) => Shared::Pieces(n),
    };
    Some(MoveError::SharedWithProcesses(what))
}

/// Ends all exports and imports of a device whose context is destroyed.
pub(crate) fn forget(device: &Device) {
    lock(&LENT).retain(|l| l.device != device.index);
    lock(&BORROWED).retain(|_, b| b.device != device.index);
}

/// The name of this process's socket, which is created with the first ticket.
static DOOR: OnceLock<Option<Name>> = OnceLock::new();

fn door() -> Result<Name, Code> {
    let made = DOOR.get_or_init(|| share::serve("mrcuda-lend", OWNER_TIMEOUT, answer).ok());
    made.ok_or(code::ERROR_OPERATING_SYSTEM)
}

/// Serves a client with a ticket of this process.
fn answer(mut visitor: UnixStream) -> io::Result<()> {
    let mut bytes = [0; TICKET];
    visitor.read_exact(&mut bytes)?;
    let lent = Ticket::get(&mut &bytes[..]).map_err(|_| code::ERROR_INVALID_VALUE).and_then(|ticket| export(&ticket, &visitor));
    let answer = lent.unwrap_or_else(|code| Answer { code, pieces: Vec::new(), offset: 0, bytes: 0 });
    let bytes = encode(&answer);
    visitor.write_all(&(bytes.len() as u32).to_le_bytes())?;
    visitor.write_all(&bytes)
}

/// Offers the memory that a ticket stands for to the process at the other end.
fn export(ticket: &Ticket, visitor: &UnixStream) -> Result<Answer, Code> {
    let cx = CallContext::inside(job::get()?);
    let found = match ticket.kind {
        MEMORY => mappings::lendable(ticket.what),
        POINTER => lendable(&cx, ticket.what, ticket.more),
        _ => Err(code::ERROR_INVALID_VALUE),
    }?;
    found.device.check()?;
    let offers = found.chunks.iter().map(|chunk| Ok((peer::offer(&cx, found.device, *chunk)?, chunk.bytes)));
    let pieces = offers.collect::<Result<Vec<_>, Code>>()?;
    let stream = visitor.try_clone().map_err(|_| code::ERROR_OPERATING_SYSTEM)?;
    let chunks = found.chunks.iter().map(|c| c.address).collect();
    shared_handles::note_shared();
    // Inside the gate: either a move sees the export, or the client gets the answer of the new place.
    lock(&LENT).push(Lent { device: found.device.index, chunks, stream });
    Ok(Answer { code: code::SUCCESS, pieces, offset: found.offset, bytes: found.bytes })
}

/// Returns whether a descriptor is a ticket of any kind.
pub(crate) fn is_ticket(fd: RawFd) -> bool {
    [MEMORY, POOL, POINTER].into_iter().any(|kind| Ticket::of_descriptor(fd, kind).is_ok())
}

impl Ticket {
    /// Creates a ticket for something that this process owns.
    pub(crate) fn new(kind: u32, what: u64, more: u64, device: &Device) -> Result<Ticket, Code> {
        Ok(Ticket { magic: MAGIC, door: door()?, kind, zero: 0, what, more, uuid: device.info.uuid })
    }

    /// Returns whether this process is the owner.
    pub(crate) fn is_own(&self) -> bool {
        DOOR.get().is_some_and(|own| *own == Some(self.door))
    }

    /// This job's device for the memory: the same GPU if the program sees it, otherwise that of the current context or the first.
    pub(crate) fn device(&self, cx: &CallContext, job: &'static Job) -> Result<&'static Device, Code> {
        let same = job.devices.iter().find(|d| d.info.uuid == self.uuid);
        same.or_else(|| cx.device().ok()).or_else(|| job.devices.first()).ok_or(code::ERROR_NO_DEVICE)
    }

    /// Imports the memory from the owner.
    pub(crate) fn borrow(&self) -> Result<Loan, Code> {
        let asked = || -> io::Result<(Vec<u8>, Line)> {
            let line = Line::new(share::visit(&self.door, OWNER_TIMEOUT)?);
            let mut stream = &line.stream;
            stream.write_all(&encode(self))?;
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            if length > MAX_CHUNKS * 48 {
                return Err(io::Error::other("an answer of the wrong kind"));
            }
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes)?;
            Ok((bytes, line))
        };
        let (bytes, line) = asked().map_err(|e| {
            log::missed(format!("memory of another process that cannot be asked for it ({e})"));
            code::ERROR_INVALID_VALUE
        })?;
        let answer = Answer::get(&mut &bytes[..]).map_err(|_| code::ERROR_INVALID_VALUE)?;
        if answer.code != code::SUCCESS {
            return Err(answer.code);
        }
        let total = answer.pieces.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let whole = answer.pieces.iter().all(|(_, bytes)| *bytes != 0 && bytes % GRANULE == 0);
        let inside = answer.offset.checked_add(answer.bytes).zip(total).is_some_and(|(end, total)| end <= total);
        if !whole || !inside {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let Answer { pieces, offset, bytes, .. } = answer;
        Ok(Loan { pieces, offset, bytes, _line: line })
    }
}

/// Maps a piece of imported memory at the place of a device.
pub(crate) fn map(cx: &CallContext, device: &'static Device, at: Chunk, offer: Offer) -> Result<(), Code> {
    device.check()?;
    shared_handles::note_shared();
    let map = PeerMap { address: at.address, bytes: at.bytes, offer };
    cx.ask(device, id::PEER_MAP, &[&encode(&map)]).map(drop).map_err(|rc| {
        if rc != code::ERROR_PEER_ACCESS_UNSUPPORTED {
            return rc;
        }
        log::missed("memory of another process whose GPU is not on the same machine, or that is gone".to_owned());
        code::ERROR_MAP_FAILED
    })
}

/// Unmaps it, ordered behind the submitted work.
pub(crate) fn unmap(cx: &CallContext, device: &'static Device, at: Chunk) -> Result<(), Code> {
    cx.work(device, id::PEER_UNMAP, &[&encode(&at)])
}

/// An imported allocation of a pool.
#[derive(Debug)]
struct Borrowed {
    device: u32,
    /// Where its chunks are mapped.
    chunks: Vec<Chunk>,
    _loan: Loan,
}

static BORROWED: Mutex<BTreeMap<u64, Borrowed>> = Mutex::new(BTreeMap::new());

/// Maps an imported allocation for a device; returns its address.
pub(crate) fn open(cx: &CallContext, device: &'static Device, loan: Loan) -> Result<u64, Code> {
    let total = loan.pieces.iter().map(|(_, bytes)| bytes).sum();
    let room = mappings::reserve_addresses(total).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let mut chunks: Vec<Chunk> = Vec::with_capacity(loan.pieces.len());
    let mut at = room;
    for (offer, bytes) in &loan.pieces {
        let chunk = Chunk { address: at, bytes: *bytes };
        if let Err(rc) = map(cx, device, chunk, *offer) {
            let _later = PutOff::begin();
            for done in chunks {
                // The first error is reported.
                let _ = unmap(cx, device, done);
            }
            mappings::release_addresses(room, total);
            return Err(rc);
        }
        chunks.push(chunk);
        at += bytes;
    }
    chunks.iter().for_each(|c| mappings::note_foreign(c.address, c.bytes, device));
    let address = room + loan.offset;
    lock(&BORROWED).insert(address, Borrowed { device: device.index, chunks, _loan: loan });
    Ok(address)
}

/// Returns an imported allocation that nothing uses any more.
pub(crate) fn close(cx: &CallContext, device: &'static Device, address: u64) {
    let Some(gone) = lock(&BORROWED).remove(&address) else { return };
    let _later = PutOff::begin();
    for chunk in gone.chunks {
        mappings::forget_foreign(chunk.address);
        // It fails only if the place is lost, and then nothing is mapped.
        let _ = unmap(cx, device, chunk);
        mappings::release_addresses(chunk.address, chunk.bytes);
    }
}

/// What another process may import: an allocation of a pool that was exported.
pub(crate) fn lendable(cx: &CallContext, address: u64, pool: u64) -> Result<Lendable, Code> {
    let found = cx.job.devices.iter().find_map(|d| {
        let m = d.memory();
        let f = m.find(address).filter(|f| f.pool == pool && m.pools.get(&pool).is_some_and(|p| p.is_exportable))?;
        let (mut chunks, end) = (Vec::new(), f.start + f.bytes);
        let mut at = address;
        while at < end {
            let chunk = m.chunk_around(at)?;
            at = chunk.address + chunk.bytes;
            chunks.push(chunk);
        }
        let offset = address - chunks.first()?.address;
        Some(Lendable { device: d, chunks, offset, bytes: end - address })
    });
    found.ok_or(code::ERROR_INVALID_VALUE)
}
