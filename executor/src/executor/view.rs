//! The memory of another place of this machine, mapped here during a move, so that the GPU itself copies the differences.
//!
//! The source offers its chunks ([`Executor::show`]): a process that knows the name and the ticket can request a chunk by its number and
//! gets a descriptor, created for that one answer. The target maps the chunks that it has itself ([`Executor::view`]), all at the same
//! distance from its own memory, in an otherwise unused range. Mappings stay between rounds until [`Executor::end_view`]. They keep the
//! physical memory alive: what the source unmaps meanwhile can still be read, so neither side waits for the other, and a round that has
//! read such memory is followed by one without that chunk.

use super::state::mappings::{Basis, HashFile, Shown, View};
use super::transfer::{PAIR, PairTable, TABLE};
use super::{ContextState, Executor};
use crate::page_hash::PAGE_BYTES;
use crate::share::{self, Name, TIMEOUT};
use cuda_api::address_map::{ARENA, VIEW};
use cuda_api::code::{self, Code};
use cuda_api::lock::{lock, read_lock};
use cuda_api::ops::Offer;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// Number of chunks that are requested ahead: descriptors in transit count against a limit of the user.
const AHEAD: usize = 16;
/// Ranges of at least this size are copied by the driver, others by a kernel, which copies many at once.
const LONG: u64 = 1 << 20;
/// Bytes that one block of the kernel copies.
const BLOCK: u64 = 64 << 10;
/// Maximum number of pages that are compared at once: the second half of their table has a result for each.
const COMPARED: usize = TABLE / 2 / PAIR;

/// Why the memory of another place of this machine cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum SourceMemoryError {
    /// The source does not answer requests for its memory.
    #[error("the source's memory cannot be had: {0}")]
    Request(io::Error),
    /// The source does not offer the memory any more.
    #[error("the source's memory cannot be had: it is not offered any more")]
    Withdrawn,
    /// The source offers no table of hashes.
    #[error("the source has no memory for hashes")]
    NoHashes,
    /// The source does not answer the request for its table of hashes.
    #[error("the source's hashes cannot be had: {0}")]
    Hashes(io::Error),
    /// The source's table of hashes is too small, or its size can change.
    #[error("the memory for the source's hashes is not what it should be")]
    HashTable,
    /// A call of the driver failed.
    #[error("{what} failed with error {code}")]
    Driver {
        /// What failed.
        what: &'static str,
        /// The driver's result.
        code: Code,
    },
}

type Tickets = HashMap<[u8; 16], Weak<Executor>>;

/// Executors of this process that offer their memory.
static SHOWING: Mutex<Option<Tickets>> = Mutex::new(None);

/// The socket for requests of chunks. It is separate from that of other offers, so that a place that maps much does not delay others.
fn door() -> io::Result<Name> {
    static NAME: OnceLock<Option<Name>> = OnceLock::new();
    let name = NAME.get_or_init(|| share::serve("mrcuda-memory", TIMEOUT, answer).ok());
    name.ok_or_else(|| io::Error::other("no socket for sharing memory can be made"))
}

/// Serves one client: reads its ticket, then its requests for chunks one after the other.
fn answer(mut visitor: UnixStream) -> io::Result<()> {
    let mut ticket = [0; 16];
    visitor.read_exact(&mut ticket)?;
    let exec = lock(&SHOWING).as_ref().and_then(|all| all.get(&ticket)?.upgrade());
    let (mut chunk, began) = ([0; 16], Instant::now());
    while let Ok(()) = visitor.read_exact(&mut chunk) {
        let wanted = u128::from_le_bytes(chunk);
        match exec.as_ref().ok_or(code::ERROR_NOT_FOUND).and_then(|e| e.export_chunk(wanted as u64, (wanted >> 64) as u64)) {
            Ok(fd) => share::send(&visitor, fd.as_raw_fd())?,
            Err(_) => visitor.write_all(&[0])?,
        }
        // Who does not know a ticket must not keep others waiting for long.
        if exec.is_none() && began.elapsed() >= TIMEOUT {
            break;
        }
    }
    Ok(())
}

/// Requests the descriptors of chunks (address, number), in order; `None` for those that are not there any more.
pub(super) fn request(
    offer: &Offer,
    chunks: &[(u64, u64)],
    mut take: impl FnMut(Option<OwnedFd>) -> Result<(), SourceMemoryError>,
) -> Result<(), SourceMemoryError> {
    let failed = SourceMemoryError::Request;
    let (mut name, ticket) = ([0; 16], &offer[16..]);
    name.copy_from_slice(&offer[..16]);
    let mut source = share::visit(&name, TIMEOUT).map_err(failed)?;
    let words_of = |(at, number): &(u64, u64)| [at.to_le_bytes(), number.to_le_bytes()].concat();
    let ahead: Vec<u8> = chunks.iter().take(AHEAD).flat_map(words_of).collect();
    source.write_all(ticket).and_then(|()| source.write_all(&ahead)).map_err(failed)?;
    for i in 0..chunks.len() {
        match share::receive(&source) {
            Ok(fd) => take(Some(fd))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => take(None)?,
            Err(e) => return Err(failed(e)),
        }
        if let Some(next) = chunks.get(i + AHEAD) {
            source.write_all(&words_of(next)).map_err(failed)?;
        }
    }
    Ok(())
}

/// A driver's error while it did `what`.
pub(super) fn failed(what: &'static str) -> impl Fn(Code) -> SourceMemoryError {
    move |code| SourceMemoryError::Driver { what, code }
}

/// Merges adjacent ranges (address, bytes).
pub fn joined(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (at, bytes) in ranges {
        match all.last_mut() {
            Some((start, len)) if *start + *len == at => *len += bytes,
            _ => all.push((at, bytes)),
        }
    }
    all
}

/// The mapped chunks (address, bytes) that are among those offered now. After a failure there may be mappings of earlier rounds, of memory
/// that the source has replaced since: what is read through them are not its bytes.
fn offered(view: &View, offer: &Offer, shown: &[Shown]) -> BTreeMap<u64, u64> {
    if view.offer.as_ref() != Some(offer) {
        return BTreeMap::new();
    }
    let is_mapped = |s: &&Shown| view.chunks.get(&s.address) == Some(&(s.bytes, s.number));
    shown.iter().filter(is_mapped).map(|s| (s.address, s.bytes)).collect()
}

impl Executor {
    /// Offers the memory of chunks to other places of this machine until [`Executor::end_view`].
    ///
    /// # Errors
    /// No socket can be created.
    pub fn show(self: &Arc<Self>) -> io::Result<(Offer, Vec<Shown>)> {
        let mut shown = lock(&self.views.shown);
        let offer = match *shown {
            Some(offer) => offer,
            None => {
                let (name, ticket) = (door()?, share::random()?);
                lock(&SHOWING).get_or_insert_default().insert(ticket, Arc::downgrade(self));
                let mut offer = [0; 32];
                offer[..16].copy_from_slice(&name);
                offer[16..].copy_from_slice(&ticket);
                *shown.insert(offer)
            }
        };
        let chunks = lock(&self.chunks);
        Ok((offer, chunks.iter().map(|(at, c)| Shown { address: *at, bytes: c.bytes, number: c.number }).collect()))
    }

    /// Exports the memory with this number as a descriptor, while it is mapped there.
    fn export_chunk(&self, address: u64, number: u64) -> Result<OwnedFd, Code> {
        self.make_current()?;
        let chunks = lock(&self.chunks);
        let chunk = chunks.get(&address).filter(|c| c.number == number).ok_or(code::ERROR_NOT_MAPPED)?;
        self.export(chunk)
    }

    /// Maps the chunks that the source offers, as far as this place has a chunk there and they are available, and its table of hashes.
    /// Returns the chunks that can be [fetched](Executor::fetch) from now on, and why others cannot.
    pub fn view(&self, offer: &Offer, hashes: Option<&Offer>, shown: &[Shown]) -> (Vec<u64>, Option<SourceMemoryError>) {
        let version = lock(&self.chunks).version();
        let kept = lock(&self.views.view).kept(offer, shown, version);
        let (chunks, pages, trouble) = match kept {
            Some((chunks, pages)) => (chunks, pages, None),
            None => {
                let mapped = self.map_offered(offer, shown);
                let mut view = lock(&self.views.view);
                let in_view = offered(&view, offer, shown);
                let pages = in_view.values().map(|bytes| bytes.div_ceil(PAGE_BYTES as u64)).sum();
                let chunks: Vec<u64> = in_view.into_keys().collect();
                // With another version this place has changed meanwhile.
                view.basis = mapped.is_ok().then(|| Basis { shown: shown.to_vec(), version, chunks: chunks.clone(), pages });
                (chunks, pages, mapped.err())
            }
        };
        if chunks.is_empty() {
            return (chunks, trouble);
        }
        let hashes = hashes.ok_or(SourceMemoryError::NoHashes);
        match hashes.and_then(|hashes| self.take_hashes(hashes, pages)) {
            Ok(()) => (chunks, trouble),
            Err(why) => (Vec::new(), Some(why)),
        }
    }

    fn map_offered(&self, offer: &Offer, shown: &[Shown]) -> Result<(), SourceMemoryError> {
        self.make_current().map_err(failed("using the GPU"))?;
        let life = self.life();
        let wanted: BTreeMap<u64, (u64, u64)> = {
            let mine = lock(&self.chunks);
            let fits = shown.iter().filter(|s| mine.get(&s.address).is_some_and(|c| c.bytes == s.bytes && c.at_source.is_none()));
            fits.map(|s| (s.address, (s.bytes, s.number))).collect()
        };
        self.forget_all_but(&life, offer, &wanted).map_err(failed("unmapping memory of the source"))?;
        let mut view = lock(&self.views.view);
        view.offer = Some(*offer);
        let fresh: Vec<(u64, (u64, u64))> = wanted.into_iter().filter(|(at, _)| !view.chunks.contains_key(at)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        if view.base.is_none() {
            // The driver may choose any address: nothing else depends on it.
            view.base = Some(self.gpu.reserve(ARENA, VIEW).map_err(failed("reserving addresses"))?);
        }
        let names: Vec<(u64, u64)> = fresh.iter().map(|(at, (_, number))| (*at, *number)).collect();
        let mut mapped = fresh.iter().copied();
        let had = request(offer, &names, |fd| {
            let Some((at, (bytes, number))) = mapped.next() else { return Ok(()) };
            let fd = fd.ok_or(SourceMemoryError::Withdrawn)?;
            let memory = self.gpu.import(fd.as_raw_fd()).map_err(failed("importing memory of the source"))?;
            let placed = self.gpu.map(view.of(self.virtual_device, at), bytes, memory);
            // The mapping keeps the memory alive.
            let released = self.gpu.release_memory(memory);
            placed.and(released).map_err(failed("mapping memory of the source"))?;
            view.chunks.insert(at, (bytes, number));
            Ok(())
        });
        let there = fresh.iter().filter(|(at, _)| view.chunks.contains_key(at)).map(|(at, (bytes, _))| (*at, *bytes));
        let mut allowed = Ok(());
        for (at, bytes) in joined(there) {
            allowed = allowed.and_then(|()| self.gpu.allow(view.of(self.virtual_device, at), bytes));
            if allowed.is_err() {
                let gone: Vec<u64> = view.chunks.range(at..at + bytes).map(|(at, _)| *at).collect();
                gone.into_iter().for_each(|at| self.unmap_viewed(&mut view, at));
            }
        }
        allowed.map_err(failed("using memory of the source"))?;
        had
    }

    fn unmap_viewed(&self, view: &mut View, at: u64) {
        let there = view.of(self.virtual_device, at);
        view.basis = None;
        if let Some((bytes, _)) = view.chunks.remove(&at) {
            // Fails only if the driver has already removed the mapping.
            let _ = self.gpu.unmap(there, bytes);
        }
    }

    /// Unmaps what the source no longer offers, or everything if the source has changed.
    fn forget_all_but(&self, life: &ContextState, offer: &Offer, wanted: &BTreeMap<u64, (u64, u64)>) -> Result<(), Code> {
        let stale = |view: &View| -> Vec<u64> {
            let same = view.offer.as_ref() == Some(offer);
            view.chunks.iter().filter(|(at, chunk)| !same || wanted.get(at) != Some(chunk)).map(|(at, _)| *at).collect()
        };
        if stale(&lock(&self.views.view)).is_empty() {
            return Ok(());
        }
        let _going = self.no_transfers(life)?;
        let mut view = lock(&self.views.view);
        stale(&view).into_iter().for_each(|at| self.unmap_viewed(&mut view, at));
        Ok(())
    }

    /// Notes that a round has copied so many bytes to this place.
    pub fn note_moved(&self, bytes: u64) {
        self.views.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many bytes rounds have copied to this place so far.
    pub fn moved(&self) -> u64 {
        self.views.moved.load(Ordering::Relaxed)
    }

    /// Ends the offer, and unmaps the memory of another place, except what was adopted.
    pub fn end_view(&self) {
        self.end_adoption();
        lock(&self.views.hashes).iter_mut().for_each(HashFile::withdraw);
        if let Some(offer) = lock(&self.views.shown).take()
            && let (Some(all), Some(ticket)) = (lock(&SHOWING).as_mut(), offer.last_chunk::<16>())
        {
            all.remove(ticket);
        }
        if lock(&self.views.view).base.is_none() || self.make_current().is_err() {
            return;
        }
        let life = self.life();
        let view = {
            // After an execution error no copies are under way.
            let _going = self.no_transfers(&life);
            self.take_view()
        };
        // The job runs here by now, and may want to unmap memory of its own.
        self.unmap_view(view);
    }

    /// Takes the view, so that no transfer can begin to use it. No transfer may be under way.
    pub(super) fn take_view(&self) -> View {
        std::mem::take(&mut *lock(&self.views.view))
    }

    /// Unmaps the memory of another place.
    pub(super) fn unmap_view(&self, mut view: View) {
        while let Some(at) = view.chunks.keys().next().copied() {
            self.unmap_viewed(&mut view, at);
        }
        if let Some(base) = view.base {
            // Fails only if the driver has already released the addresses.
            let _ = self.gpu.unreserve(base, ARENA);
        }
    }

    /// Copies ranges (address, bytes) of chunks that are [viewed](Executor::view) from the source to the same addresses here, on a
    /// transfer stream. Waits for the copy, but not for the job's streams.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a range that is not viewed, or whose size is not a multiple of 16 bytes; an execution error.
    pub fn fetch(self: &Arc<Self>, lane: usize, ranges: &[(u64, u64)]) -> Result<(), Code> {
        let mut left = ranges.to_vec();
        left.reverse();
        while !left.is_empty() {
            self.fetch_some(lane, &mut left)?;
        }
        Ok(())
    }

    /// Compares pages (address, bytes) of chunks that are [viewed](Executor::view) with those of the source byte by byte, on a transfer
    /// stream. Returns the addresses of those that differ. Waits for the result, but not for the job's streams.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a page that is not completely viewed, or whose address or length is not a multiple of 16; an execution error.
    pub fn compare(self: &Arc<Self>, lane: usize, pages: impl Iterator<Item = (u64, u64)>) -> Result<Vec<u64>, Code> {
        let mut differing = Vec::new();
        let mut pages = pages.peekable();
        while pages.peek().is_some() {
            let some: Vec<(u64, u64)> = pages.by_ref().take(COMPARED).collect();
            let differs = self.compare_some(lane, &some)?;
            differing.extend(some.iter().zip(differs).filter(|(_, differs)| *differs).map(|((at, _), _)| *at));
        }
        Ok(differing)
    }

    /// Compares as many pages as fit in a table; returns for each whether it differs.
    fn compare_some(self: &Arc<Self>, lane: usize, pages: &[(u64, u64)]) -> Result<Vec<bool>, Code> {
        let mut buffer = self.pinned(TABLE)?;
        let results = TABLE / 2..TABLE / 2 + 4 * pages.len();
        buffer.bytes_mut()[results.clone()].fill(0);
        let life = self.life();
        let mut table = PairTable::new(buffer, &life)?;
        let stream = life.lane(lane);
        let staying = read_lock(&self.mapping);
        {
            let view = lock(&self.views.view);
            let mut is_there = self.presence();
            for (at, bytes) in pages {
                let viewed = view.end_of(*at).is_some_and(|end| *bytes <= end - at);
                if !viewed || at % 16 != 0 || bytes % 16 != 0 || !is_there(*at, *bytes) {
                    return Err(code::ERROR_INVALID_VALUE);
                }
                table.add(*at, view.of(self.virtual_device, *at), *bytes);
            }
        }
        let differs = table.at() + (TABLE / 2) as u64;
        let submitted = life.own.compare(&self.gpu, table.at(), differs, table.rows(), stream);
        let flight = self.take_off(&life, table.into_buffer(), stream);
        drop((staying, life));
        submitted?;
        let table = flight?.wait()?;
        Ok(table.bytes()[results].as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word) != 0).collect())
    }

    /// Copies as much as fits in a table of pairs, from the end of the list.
    fn fetch_some(self: &Arc<Self>, lane: usize, left: &mut Vec<(u64, u64)>) -> Result<(), Code> {
        let buffer = self.pinned(TABLE)?;
        let life = self.life();
        let mut table = PairTable::new(buffer, &life)?;
        let stream = life.lane(lane);
        let staying = read_lock(&self.mapping);
        let mut submit = || {
            let view = lock(&self.views.view);
            let distance = view.distance(self.virtual_device);
            let mut is_there = self.presence();
            while table.has_room(LONG.div_ceil(BLOCK) as u32)
                && let Some((at, bytes)) = left.pop()
            {
                // A copy stays inside one mapping.
                let here = view.end_of(at).map_or(0, |end| bytes.min(end - at));
                if here == 0 || !at.is_multiple_of(16) || !here.is_multiple_of(16) || !is_there(at, here) {
                    return Err(code::ERROR_INVALID_VALUE);
                }
                if here < bytes {
                    left.push((at + here, bytes - here));
                }
                if here >= LONG {
                    self.gpu.copy_device(at, at.wrapping_add(distance), here, stream)?;
                } else {
                    let there = at.wrapping_add(distance);
                    let blocks = (0..here).step_by(BLOCK as usize);
                    blocks.for_each(|from| table.add(at + from, there + from, BLOCK.min(here - from)));
                }
            }
            if table.rows() == 0 { Ok(()) } else { life.own.copy_pieces(&self.gpu, table.at(), table.rows(), false, stream) }
        };
        let submitted = submit();
        let flight = self.take_off(&life, table.into_buffer(), stream);
        drop((staying, life));
        // Parts that were submitted before the failed one are waited for, too.
        flight?.wait()?;
        submitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::address_map::own_base;

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(joined([(0, 4), (4, 4), (16, 2), (18, 1)].into_iter()), [(0, 8), (16, 3)]);
        assert_eq!(joined(std::iter::empty()), []);
    }

    #[test]
    fn a_view_knows_what_it_has() {
        let own = own_base(2);
        let view = View { base: Some(VIEW), chunks: BTreeMap::from([(own + 0x1000, (0x1000, 7))]), ..View::default() };
        assert_eq!(view.of(2, own + 0x1000), VIEW + 0x1000);
        assert_eq!(view.end_of(own + 0x1fff), Some(own + 0x2000));
        assert_eq!((view.end_of(own), view.end_of(own + 0x2000)), (None, None));
    }

    #[test]
    fn a_view_is_kept_as_long_as_nothing_has_changed_at_either_place() {
        let shown = |number| Shown { address: 0x1000, bytes: 0x1000, number };
        let (first, second) =
            ([shown(7), Shown { address: 0x3000, ..shown(8) }], [shown(7), Shown { address: 0x3000, ..shown(9) }]);
        let basis = Basis { shown: first.to_vec(), version: 5, chunks: vec![0x1000, 0x3000], pages: 2 };
        let view = View { offer: Some([1; 32]), basis: Some(basis), ..View::default() };
        assert_eq!(view.kept(&[1; 32], &first, 5), Some((vec![0x1000, 0x3000], 2)));
        // Other memory of the source, fewer chunks, another table here, another source.
        assert_eq!(view.kept(&[1; 32], &second, 5), None);
        assert_eq!(view.kept(&[1; 32], &first[..1], 5), None);
        assert_eq!(view.kept(&[1; 32], &first, 6), None);
        assert_eq!(view.kept(&[2; 32], &first, 5), None);
        assert_eq!(View { basis: None, ..view }.kept(&[1; 32], &first, 5), None, "something could not be mapped");
    }

    #[test]
    fn only_what_is_offered_now_is_in_view() {
        let chunks = BTreeMap::from([(0x1000, (0x1000, 7)), (0x2000, (0x1000, 8)), (0x4000, (0x1000, 9))]);
        let view = View { offer: Some([1; 32]), base: Some(VIEW), chunks, basis: None };
        let shown = |address, bytes, number| Shown { address, bytes, number };
        // The second chunk has other memory now, the third is not offered any more, and the last one is not mapped.
        let all = [shown(0x1000, 0x1000, 7), shown(0x2000, 0x1000, 10), shown(0x5000, 0x1000, 11)];
        assert_eq!(offered(&view, &[1; 32], &all), BTreeMap::from([(0x1000, 0x1000)]));
        assert_eq!(offered(&view, &[1; 32], &[shown(0x1000, 0x2000, 7)]), BTreeMap::new());
        assert_eq!(offered(&view, &[2; 32], &all), BTreeMap::new(), "another place has offered it");
    }

    #[test]
    fn a_wrong_ticket_gets_nothing() {
        let mut offer = [0; 32];
        offer[..16].copy_from_slice(&door().unwrap());
        let mut got = Vec::new();
        request(&offer, &[(1, 2), (3, 4)], |fd| {
            got.push(fd.is_some());
            Ok(())
        })
        .unwrap();
        assert_eq!(got, [false, false]);
        offer[3] ^= 1;
        assert!(request(&offer, &[(1, 2)], |_| Ok(())).is_err(), "no process has this socket");
    }
}
