//! Large copies whose bytes travel over connections of their own: the job's end. Threads of these connections read the program's memory,
//! or write to it, when the worker asks for bytes or sends some.
//!
//! Those of the direction from the device also carry changes of mirrored memory that the program uses exclusively, in both directions.
//!
//! The worker is not trusted: of the program's memory it reaches that of copies which were not over, each byte at most once, and it can
//! not make a thread use memory that the program has got back ([`Bulk::wait_unused`]).

use super::host_mirror::Alike;
use crate::bulk::{CHANGES, HEAD, Head, MAX_CHANGES, Via, WANTED, fill};
use crate::carried::Carried;
use crate::conn::Conn;
use crate::rdma::queue::Memory;
use crate::rdma::stream::Stream;
use crate::sync::lock;
use crate::traffic;
use cuda_api::lock::{wait_timeout_while, wait_while};
use cuda_api::ops::id;
use executor::staging::{AREAS, Mapped, Sizes};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

mod own;

/// Maximum number of commands of one stream that belong to such copies. A driver takes a thousand, and then waits.
const COMMANDS: usize = 512;

/// How long a copy waits for room in its stream while no bytes of the copies there are carried: the stream may wait for a later call.
const ROOM_TIMEOUT: Duration = Duration::from_millis(2);

/// Called for bytes of a copy to the device before they are sent: their range in the copy.
pub type BeforeSent = Arc<dyn Fn(Range<u64>) + Send + Sync>;

/// A copy whose bytes travel over connections of their own.
#[derive(Clone)]
pub struct BulkMemory {
    /// The program's memory.
    pub host: *mut u8,
    /// The device's memory.
    pub device: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// The stream, encoded.
    pub stream: u64,
    /// The direction.
    pub to_device: bool,
    /// The program's memory is read when the stream has reached the copy.
    pub late: bool,
    /// The program has registered the memory. It may unmap it before the copy is over, as natively, so only the kernel uses it.
    pub is_registered: bool,
    /// For a copy to the device: called before bytes are sent.
    pub before_sent: Option<BeforeSent>,
}

/// A copy that is not over.
struct Entry {
    host: usize,
    bytes: u64,
    stream: u64,
    commands: usize,
    to_device: bool,
    is_registered: bool,
    before_sent: Option<BeforeSent>,
    /// What was given to connections.
    lent: Ranges,
    /// Number of bytes that have been carried.
    carried: u64,
    /// Connections that use the memory now.
    users: usize,
    /// The memory is given to no connection any more.
    is_closed: bool,
    end: End,
}

/// Disjoint ranges of a copy, by their beginnings.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range. False if some of it has been added before.
    fn add(&mut self, range: Range<u64>) -> bool {
        let before = self.0.range(..range.end).next_back().map(|(start, end)| *start..*end);
        if before.as_ref().is_some_and(|b| b.end > range.start) {
            return false;
        }
        // Adjoining ranges become one: there are few at any time.
        let start = before.filter(|b| b.end == range.start).map_or(range.start, |b| b.start);
        let end = self.0.remove(&range.end).unwrap_or(range.end);
        self.0.insert(start, end);
        true
    }
}

/// What becomes of a copy.
#[derive(Debug, Clone, Default)]
pub(super) struct End {
    /// Its memory is not used any more.
    pub(super) over: Arc<AtomicBool>,
    /// Some of the program's memory could not be accessed.
    is_bad: Arc<AtomicBool>,
}

impl End {
    pub(super) fn is_bad(&self) -> bool {
        self.is_bad.load(Ordering::Acquire)
    }
}

/// Memory that a connection uses.
struct Lent {
    host: usize,
    is_registered: bool,
    end: End,
    before_sent: Option<BeforeSent>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    next: u64,
    connections: Vec<Arc<Conn>>,
    /// Staging areas of the worker: so many streams can have copies. It has refused to make more.
    areas: usize,
    has_all_areas: bool,
    /// Streams in which a copy has waited for room in vain, and what they had under way then.
    stuck: HashMap<u64, (usize, u64)>,
    /// Connections that write to the program's memory now.
    writers: usize,
    /// Number of messages with changes on the connection of the calls that have been applied.
    changes: u64,
    /// Bytes of all copies from the device, and to it.
    bytes: [u64; 2],
    is_shut: bool,
}

impl Table {
    /// Removes a copy whose memory is no longer used. What it returns must be dropped without the lock: it may hold the link.
    #[must_use]
    fn settle(&mut self, token: u64) -> Option<Entry> {
        self.entries.get(&token).filter(|e| e.is_closed && e.users == 0)?;
        let entry = self.entries.remove(&token)?;
        self.stuck.remove(&entry.stream);
        entry.end.over.store(true, Ordering::Release);
        Some(entry)
    }

    /// Number of commands of a stream that belong to its copies.
    fn commands(&self, stream: u64) -> usize {
        self.entries.values().filter(|e| e.stream == stream).map(|e| e.commands).sum()
    }

    /// Number of copies of a stream that are not over, and of their bytes that have been carried.
    fn under_way(&self, stream: u64) -> (usize, u64) {
        let those = self.entries.values().filter(|e| e.stream == stream);
        those.fold((0, 0), |(copies, bytes), e| (copies + 1, bytes + e.carried))
    }

    /// Number of streams with copies, if this one has one too.
    fn streams(&self, one: u64) -> usize {
        self.entries.values().map(|e| e.stream).chain([one]).collect::<BTreeSet<u64>>().len()
    }
}

/// The large copies of a link.
pub(super) struct Bulk {
    table: Mutex<Table>,
    changed: Condvar,
    /// See [`ROOM_TIMEOUT`].
    room_timeout: Duration,
    /// The file for the regions of the worker's staging areas, where the worker maps it too.
    regions: OnceLock<Mapped>,
}

impl Default for Bulk {
    fn default() -> Bulk {
        Bulk { table: Mutex::default(), changed: Condvar::new(), room_timeout: ROOM_TIMEOUT, regions: OnceLock::new() }
    }
}

impl std::fmt::Debug for Bulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bulk").field("copies", &lock(&self.table).entries.len()).finish_non_exhaustive()
    }
}

impl Bulk {
    /// Begins a copy: its memory may be used from now on. Returns its token. `None` if too many streams have such copies, or if its stream
    /// has too many of them and they do not get on.
    pub(super) fn begin(&self, memory: &BulkMemory) -> Option<(u64, End)> {
        let mut t = lock(&self.table);
        let commands = Sizes::of_process().commands(memory.bytes);
        while !t.is_shut && t.commands(memory.stream) + commands > COMMANDS {
            let before = t.under_way(memory.stream);
            if t.stuck.get(&memory.stream) == Some(&before) {
                return None;
            }
            let stands = |t: &mut Table| !t.is_shut && t.under_way(memory.stream) == before;
            let (after, limit) = wait_timeout_while(&self.changed, t, self.room_timeout, stands);
            t = after;
            if limit.timed_out() {
                t.stuck.insert(memory.stream, before);
                return None;
            }
        }
        if t.is_shut || t.streams(memory.stream) > t.areas {
            return None;
        }
        t.next += 1;
        let counted = &mut t.bytes[usize::from(memory.to_device)];
        *counted = counted.saturating_add(memory.bytes);
        let (token, end) = (t.next, End::default());
        let entry = Entry {
            host: memory.host as usize,
            bytes: memory.bytes,
            stream: memory.stream,
            commands,
            to_device: memory.to_device,
            is_registered: memory.is_registered,
            before_sent: memory.before_sent.clone(),
            lent: Ranges::default(),
            carried: 0,
            users: 0,
            is_closed: false,
            end: end.clone(),
        };
        t.entries.insert(token, entry);
        Some((token, end))
    }

    /// Bytes of the copies from the device, and to it, that have begun.
    pub(super) fn bytes(&self) -> [u64; 2] {
        lock(&self.table).bytes
    }

    /// The number of staging areas that the worker should have for another copy of a stream, if it has fewer and might make more.
    pub(super) fn wanted_areas(&self, stream: u64) -> Option<usize> {
        let t = lock(&self.table);
        let wanted = t.streams(stream);
        (wanted > t.areas && wanted <= AREAS && !t.has_all_areas).then_some(wanted)
    }

    /// The worker has so many areas, or cannot make any more.
    pub(super) fn note_areas(&self, areas: Option<usize>) {
        let mut t = lock(&self.table);
        match areas {
            Some(areas) => t.areas = t.areas.max(areas),
            None => t.has_all_areas = true,
        }
    }

    /// The memory of a copy is given to no connection any more.
    pub(super) fn close(&self, token: u64) {
        let mut t = lock(&self.table);
        if let Some(entry) = t.entries.get_mut(&token) {
            entry.is_closed = true;
        }
        let over = t.settle(token);
        drop(t);
        drop(over);
        self.changed.notify_all();
    }

    /// As [`Bulk::close`]; also waits until no connection uses the memory.
    pub(super) fn finish(&self, token: u64) {
        self.close(token);
        self.wait_while(|t| t.entries.contains_key(&token));
    }

    /// Waits until all bytes of a copy to the device have been sent, or it has ended and no connection uses its memory.
    pub(super) fn wait_sent(&self, token: u64) {
        self.wait_while(|t| t.entries.get(&token).is_some_and(|e| e.carried < e.bytes));
    }

    /// Waits until the copies of some of the program's memory that were begun before are over, whatever the worker says of them.
    pub(super) fn wait_unused(&self, memory: &Range<u64>) {
        let uses = |e: &Entry| (e.host as u64) < memory.end && memory.start < e.host as u64 + e.bytes;
        let those: Vec<u64> = lock(&self.table).entries.iter().filter(|(_, e)| uses(e)).map(|(token, _)| *token).collect();
        if !those.is_empty() {
            self.wait_while(|t| those.iter().any(|token| t.entries.contains_key(token)));
        }
    }

    /// Waits until no connection writes to the program's memory. The connections have been shut down.
    pub(super) fn wait_unwritten(&self) {
        self.wait_while(|t| t.writers > 0);
    }

    /// A message with changes on the connection of the calls has been applied.
    pub(super) fn note_changes(&self) {
        lock(&self.table).changes += 1;
        self.changed.notify_all();
    }

    /// Receives changes of exclusive memory from a connection, and applies them behind those that the worker has sent before.
    fn take_changes(&self, conn: &Conn, head: &Head, alike: &Alike, scratch: &mut Vec<u8>) -> io::Result<()> {
        let nonsense = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if head.via != Via::Connection || !(1..=MAX_CHANGES).contains(&head.bytes) {
            return Err(nonsense("an impossible number of bytes of changes"));
        }
        scratch.resize(head.bytes as usize, 0);
        fill(conn, scratch)?;
        self.wait_while(|t| !t.is_shut && t.changes < head.offset);
        let mut t = lock(&self.table);
        if t.is_shut {
            return Err(io::ErrorKind::NotConnected.into());
        }
        t.bytes[0] = t.bytes[0].saturating_add(head.bytes);
        t.writers += 1;
        drop(t);
        let applied = alike.take_over_runs(scratch);
        traffic::carried(id::HOST_BYTES, head.bytes, false);
        lock(&self.table).writers -= 1;
        self.changed.notify_all();
        if applied { Ok(()) } else { Err(nonsense("malformed changes")) }
    }

    /// Sends changes of exclusive memory, if there are more in this round. `masks` and `scratch` are reused buffers.
    fn give_changes(&self, conn: &Conn, head: &Head, alike: &Alike, [masks, scratch]: [&mut Vec<u8>; 2]) -> io::Result<()> {
        if head.via != Via::Connection || head.bytes != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a strange question for changes"));
        }
        alike.next_runs(head.offset, masks, scratch);
        let bytes = scratch.len() as u64;
        conn.write_pieces(&[&bytes.to_le_bytes(), scratch])?;
        let mut t = lock(&self.table);
        t.bytes[1] = t.bytes[1].saturating_add(bytes);
        drop(t);
        traffic::carried(id::HOST_RUNS, bytes, false);
        Ok(())
    }

    fn wait_while(&self, waits: impl Fn(&Table) -> bool) {
        drop(wait_while(&self.changed, lock(&self.table), |t| waits(t)));
    }

    /// Makes the file for the regions. Returns its descriptor for the worker, once; `None` also if there can be none.
    pub(super) fn share(&self) -> Option<OwnedFd> {
        if self.regions.get().is_some() || !own::are_possible() {
            return None;
        }
        let made = Mapped::create(&Sizes::of_process());
        let (mapped, file) =
            made.inspect_err(|why| tracing::info!(target: "place", "large copies share no memory: {why}")).ok()?;
        self.regions.set(mapped).ok().map(|()| file)
    }

    /// The memory in which bytes lie, or are to lie, if they do not travel over the connection.
    fn region(&self, head: &Head) -> io::Result<Option<*mut u8>> {
        let Via::File(at) = head.via else { return Ok(None) };
        let found = self.regions.get().and_then(|regions| regions.at(at, head.bytes));
        found.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "bytes outside of the shared memory"))
    }

    /// Adds connections, unless the link is lost.
    pub(super) fn add(&self, connections: &[Arc<Conn>]) {
        let mut t = lock(&self.table);
        t.connections.extend_from_slice(connections);
        if t.is_shut {
            t.connections.iter().for_each(|c| c.shutdown());
        }
    }

    /// Ends all connections.
    pub(super) fn shut(&self) {
        let mut t = lock(&self.table);
        t.is_shut = true;
        t.connections.iter().for_each(|c| c.shutdown());
        drop(t);
        // Some wait for changes that do not come any more.
        self.changed.notify_all();
    }

    /// Gives memory of a copy to a connection, until [`Bulk::release`]. `None` if there is no such copy any more.
    fn acquire(&self, head: &Head, to_device: bool) -> io::Result<Option<Lent>> {
        let mut t = lock(&self.table);
        if t.is_shut {
            // Bytes that had arrived before can still be read.
            return Err(io::ErrorKind::NotConnected.into());
        }
        let Some(e) = t.entries.get_mut(&head.token).filter(|e| !e.is_closed) else { return Ok(None) };
        let fits = head.offset.checked_add(head.bytes).is_some_and(|end| end <= e.bytes);
        let is_right = fits && head.bytes != 0 && e.to_device == to_device;
        if !is_right || !e.lent.add(head.offset..head.offset + head.bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes outside of the copy"));
        }
        e.users += 1;
        let (host, is_registered) = (e.host + head.offset as usize, e.is_registered);
        let lent = Lent { host, is_registered, end: e.end.clone(), before_sent: e.before_sent.clone() };
        t.writers += usize::from(!to_device);
        Ok(Some(lent))
    }

    fn release(&self, head: &Head, to_device: bool) {
        let mut t = lock(&self.table);
        t.writers -= usize::from(!to_device);
        if let Some(e) = t.entries.get_mut(&head.token) {
            e.users -= 1;
            e.carried += head.bytes;
        }
        let over = t.settle(head.token);
        drop(t);
        drop(over);
        self.changed.notify_all();
    }

    /// Serves a connection until it ends.
    pub(super) fn serve(&self, conn: &Conn, to_device: bool, alike: &Alike) -> io::Result<()> {
        let (mut scratch, mut masks) = (Vec::new(), Vec::new());
        // The kernel takes bytes from memory and puts them there only if they travel as they are.
        let by_kernel = matches!(conn.carried(), Carried::TCP | Carried::UNIX);
        loop {
            let mut bytes = [0; HEAD];
            fill(conn, &mut bytes)?;
            let head = Head::read(&bytes)?;
            if head.token == CHANGES && !to_device {
                self.take_changes(conn, &head, alike, &mut scratch)?;
                (&mut &*conn).write_all(&head.bytes.to_le_bytes())?;
                continue;
            }
            if head.token == WANTED && !to_device {
                self.give_changes(conn, &head, alike, [&mut masks, &mut scratch])?;
                continue;
            }
            let region = self.region(&head)?;
            let Some(lent) = self.acquire(&head, to_device)? else {
                if !to_device && region.is_none() {
                    discard(conn, head.bytes, &mut scratch)?;
                }
                let answer = if to_device { 0 } else { head.bytes };
                (&mut &*conn).write_all(&answer.to_le_bytes())?;
                continue;
            };
            if let Some(before_sent) = &lent.before_sent {
                before_sent(head.offset..head.offset + head.bytes);
            }
            // SAFETY: the memory of a copy that waits until this connection has given it back; each byte is lent once. A region is inside the
            // mapping, to which there are no references.
            let carried = unsafe {
                match (region, head.via) {
                    (Some(region), _) => {
                        exchange(region, lent.host as *mut u8, head.bytes as usize, to_device, &lent.end);
                        Ok(())
                    }
                    (None, via) if lent.is_registered && !by_kernel => {
                        carry_registered(conn, &lent, head.bytes as usize, (to_device, via), &mut scratch)
                    }
                    (None, Via::Rdma(slot)) if to_device => send_to(conn, lent.host as *const u8, head.bytes, slot),
                    (None, _) if to_device => send(conn, lent.host as *const u8, head.bytes, &lent.end),
                    (None, _) => receive(conn, lent.host as *mut u8, head.bytes, &lent.end, &mut scratch),
                }
            };
            if carried.is_ok() {
                // Before anybody who waits for the copy goes on.
                traffic::carried(operation(to_device), head.bytes, region.is_some());
            }
            self.release(&head, to_device);
            carried?;
            if !to_device || region.is_some() {
                (&mut &*conn).write_all(&head.bytes.to_le_bytes())?;
            }
        }
    }
}

/// The operation of a large copy in this direction.
pub(super) fn operation(to_device: bool) -> u16 {
    if to_device { id::BULK_IN } else { id::BULK_OUT }
}

/// Whether the kernel could not access the program's memory.
fn is_fault(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EFAULT)
}

/// Bytes at a time that are sent or received instead of memory that cannot be accessed.
const SCRATCH: usize = 64 << 10;

fn discard(conn: &Conn, mut bytes: u64, scratch: &mut Vec<u8>) -> io::Result<()> {
    scratch.resize(SCRATCH, 0);
    while bytes > 0 {
        let n = bytes.min(SCRATCH as u64);
        fill(conn, &mut scratch[..n as usize])?;
        bytes -= n;
    }
    Ok(())
}

/// Copies between a region and the program's memory; zeros instead of bytes that cannot be read.
///
/// # Safety
/// Nothing but the program refers to its memory. The region has so many bytes; there are no references to them.
unsafe fn exchange(region: *mut u8, host: *mut u8, bytes: usize, to_device: bool, end: &End) {
    // SAFETY: as the caller says.
    let copied = unsafe { if to_device { own::read(host, region, bytes) } else { own::write(region, host, bytes) } };
    let done = copied.unwrap_or_else(|_| {
        // The program has forbidden itself such copies since the first one. Without them bad memory is noticed by a fault, as it is over an
        // encrypted connection.
        let (from, to) = if to_device { (host, region) } else { (region, host) };
        // SAFETY: as the caller says; the program keeps its memory until the copy is over.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        bytes
    });
    if done < bytes {
        end.is_bad.store(true, Ordering::Release);
        if to_device {
            // SAFETY: the rest of the region.
            unsafe { region.add(done).write_bytes(0, bytes - done) };
        }
    }
}

/// Bytes of memory that the program has registered, with zeros where it cannot be read any more, and whether all of it could be read.
pub fn read_registered(at: u64, bytes: usize) -> (Vec<u8>, bool) {
    let (mut read, end) = (vec![0; bytes], End::default());
    // SAFETY: the vector is ours, and no reference to its bytes is used meanwhile. Of the program's memory only the bytes are used.
    unsafe { exchange(read.as_mut_ptr(), at as *mut u8, bytes, true, &end) };
    (read, !end.is_bad())
}

/// Writes bytes to memory that the program has registered, as far as it can be written. Natively the GPU would write the others to pages
/// that are mapped nowhere any more.
///
/// # Safety
/// Nothing but the program refers to its memory.
pub(super) unsafe fn write_registered(bytes: &[u8], to: *mut u8) {
    // SAFETY: as the caller says; the bytes are only read.
    unsafe { exchange(bytes.as_ptr().cast_mut(), to, bytes.len(), false, &End::default()) };
}

/// As [`send`], [`send_to`] and [`receive`] of memory that the program has registered.
///
/// # Safety
/// Nothing but the program refers to its memory.
unsafe fn carry_registered(
    conn: &Conn,
    lent: &Lent,
    bytes: usize,
    (to_device, via): (bool, Via),
    scratch: &mut Vec<u8>,
) -> io::Result<()> {
    if to_device {
        (&mut &*conn).write_all(&(bytes as u64).to_le_bytes())?;
    }
    scratch.resize(SCRATCH, 0);
    for at in (0..bytes).step_by(SCRATCH) {
        let piece = &mut scratch[..SCRATCH.min(bytes - at)];
        if !to_device {
            fill(conn, piece)?;
        }
        // SAFETY: as the caller says; the piece is ours, and no reference to it is used meanwhile.
        unsafe { exchange(piece.as_mut_ptr(), (lent.host + at) as *mut u8, piece.len(), to_device, &lent.end) };
        match via {
            _ if !to_device => {}
            Via::Rdma(slot) => rdma(conn)?.write_to(conn.socket()?, piece, slot.at(at as u64))?,
            _ => (&mut &*conn).write_all(piece)?,
        }
    }
    Ok(())
}

/// Sends an answer with bytes of the program; zeros instead of those that cannot be read.
///
/// # Safety
/// Nothing but the program refers to the bytes. Over an encrypted connection this thread itself reads them, so they can be
/// accessed; over a plain one only the kernel does, and reports bad addresses.
unsafe fn send(conn: &Conn, from: *const u8, bytes: u64, end: &End) -> io::Result<()> {
    (&mut &*conn).write_all(&bytes.to_le_bytes())?;
    // SAFETY: as the caller says.
    let mut rest = unsafe { std::slice::from_raw_parts(from, bytes as usize) };
    while !rest.is_empty() {
        match (&mut &*conn).write(rest) {
            Ok(n) => rest = &rest[n..],
            Err(e) if is_fault(&e) => {
                end.is_bad.store(true, Ordering::Release);
                let zeros = [0; 4096];
                let mut left = rest.len();
                while left > 0 {
                    left -= (&mut &*conn).write(&zeros[..left.min(zeros.len())])?;
                }
                return Ok(());
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What carries the connection, if the worker may name memory.
fn rdma(conn: &Conn) -> io::Result<&Stream> {
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "a place for bytes outside of the copy's connection");
    conn.rdma().ok_or_else(nonsense)
}

/// As [`send`], over RDMA to the memory that the worker has named.
///
/// # Safety
/// As for [`send`]. This thread itself reads the bytes.
unsafe fn send_to(conn: &Conn, from: *const u8, bytes: u64, slot: Memory) -> io::Result<()> {
    let rdma = rdma(conn)?;
    (&mut &*conn).write_all(&bytes.to_le_bytes())?;
    // SAFETY: as the caller says.
    rdma.write_to(conn.socket()?, unsafe { std::slice::from_raw_parts(from, bytes as usize) }, slot)
}

/// Receives bytes into the program's memory, as far as they can be written.
///
/// # Safety
/// As for [`send`].
unsafe fn receive(conn: &Conn, to: *mut u8, bytes: u64, end: &End, scratch: &mut Vec<u8>) -> io::Result<()> {
    // SAFETY: as the caller says.
    let mut rest = unsafe { std::slice::from_raw_parts_mut(to, bytes as usize) };
    while !rest.is_empty() {
        match (&mut &*conn).read(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => rest = &mut rest[n..],
            Err(e) if is_fault(&e) => {
                end.is_bad.store(true, Ordering::Release);
                return discard(conn, rest.len() as u64, scratch);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
