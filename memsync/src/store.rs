//! A store: holds the memory of a device that is parked, and executes nothing. To a round it is a place like any other, with pages in host
//! memory or in a file instead of on a GPU.
//!
//! As a target it takes the regions of the source for its own, without contents, which are zeros: so pages of zeros neither travel nor take
//! room. As a source it does not compare its pages, since the other end is a fresh place: it reports every page that it
//! holds as different.
//!
//! Pages are hashed where their bytes are at hand anyway: for the proof, those that are read or written in the round are not read again.

use crate::diff::differing_hashes;
use crate::error::SyncError;
use crate::frames::{BATCH, Show};
use crate::memory::{Memory, Which};
use crate::region::{PAGE, Page, Pages, Region, check_regions, leave_out, page_at};
use crate::{Compression, Faults, Round, Stream, Verify, source, target, threads};
use cuda_api::lock::{lock, read_lock, write_lock};
use executor::{NO_HASH, PageHash, PageKey, Shown};
use file::{Entry, PageFile};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

mod extents;
mod file;
#[cfg(test)]
mod fuzz;
mod room;

pub use room::free_host_memory;

/// What a source sends instead of the hash of a page that it has not hashed; no page has this hash.
const UNKNOWN: PageHash = [0xff; 32];
/// A thread that hashes has at least so many pages.
const PAGES_OF_A_THREAD: usize = 64;
/// Maximum number of threads that hash.
const THREADS: usize = 8;
/// Bytes of memory after which it is looked how much is left.
const CHECK_ROOM_EVERY: u64 = 16 << 20;
/// What a store notes of a region or a page may take so many bytes, besides its contents.
const NOTES: u64 = 128;

/// Where the bytes of a page are.
#[derive(Debug, Clone)]
enum Slot {
    Memory(Arc<[u8]>),
    File(Entry),
}

/// The memory of a device, in host memory or in a file.
#[derive(Debug)]
pub struct Store {
    file: Option<PageFile>,
    /// How many bytes of memory it may hold, and how many it does.
    limit: u64,
    held: AtomicU64,
    regions: RwLock<Vec<Region>>,
    /// The pages that are not all zeros, by address.
    slots: RwLock<HashMap<u64, Slot>>,
    /// The key of the proof of this round.
    proof: RwLock<Option<Arc<PageKey>>>,
    /// Hashes under this key of pages that are not all zeros.
    proved: Mutex<HashMap<u64, PageHash>>,
}

/// The hash of a page, as an executor computes it.
fn hash_of(key: &PageKey, page: &Page, bytes: &[u8]) -> PageHash {
    if page.by_host { *blake3::hash(bytes).as_bytes() } else { key.hash(bytes) }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|w| *w == [0; 16]) && rest.iter().all(|b| *b == 0)
}

/// The bytes of a page of zeros.
fn zeros(page: &Page) -> &'static [u8] {
    static ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    &ZEROS[..page.bytes as usize]
}

impl Store {
    fn new(file: Option<PageFile>, regions: Vec<Region>, slots: HashMap<u64, Slot>) -> Store {
        let (proof, proved) = Default::default();
        Store {
            file,
            limit: u64::MAX,
            held: AtomicU64::new(0),
            regions: RwLock::new(regions),
            slots: RwLock::new(slots),
            proof,
            proved,
        }
    }

    /// An empty store in the memory of this process, for so many bytes; pages of zeros do not count.
    pub fn in_memory(limit: u64) -> Store {
        Store { limit, ..Store::new(None, Vec::new(), HashMap::new()) }
    }

    /// An empty store in a new file, whose directory is made if it is missing. The file gets no longer than twice the limit: pages that are
    /// replaced leave holes.
    ///
    /// # Errors
    /// The file exists, or cannot be created.
    pub fn create(path: &Path, limit: u64) -> Result<Store, SyncError> {
        let file = PageFile::create(path, limit.saturating_mul(2))?;
        Ok(Store { limit, ..Store::new(Some(file), Vec::new(), HashMap::new()) })
    }

    /// A store in a file that was completed before; `seal` identifies its contents. With a limit it can be a target again.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is another one.
    pub fn open(path: &Path, seal: &[u8; 32], limit: u64) -> Result<Store, SyncError> {
        let (file, regions, entries) = PageFile::open(path, seal, limit.saturating_mul(2))?;
        let slots = entries.into_iter().map(|(address, entry)| (address, Slot::File(entry))).collect();
        Ok(Store { limit, ..Store::new(Some(file), regions, slots) })
    }

    /// The regions that it holds.
    pub fn regions(&self) -> Vec<Region> {
        read_lock(&self.regions).clone()
    }

    /// How many bytes it could still take, as far as the system says, if other stores take `beside` bytes there.
    ///
    /// # Errors
    /// The system does not say.
    pub fn free_bytes(&self, beside: u64) -> Result<u64, SyncError> {
        match &self.file {
            Some(file) => Ok(file.free_bytes()?.saturating_sub(beside)),
            None => {
                let free = free_host_memory().ok_or(SyncError::Protocol("the system does not say how much memory is free"))?;
                Ok(free.saturating_sub(beside).min(self.limit.saturating_sub(self.held.load(Ordering::Relaxed))))
            }
        }
    }

    /// Runs the source's part of a round, see [`crate::run_source`].
    ///
    /// # Errors
    /// See [`SyncError`]. A damaged page is named.
    pub fn run_source(
        &self,
        conns: &mut [Box<dyn Stream>],
        compression: &mut Vec<Compression>,
        send_regions: bool,
        fault: &Faults,
    ) -> Result<Round, SyncError> {
        self.round(|| source::run(self, conns, compression, send_regions, fault))
    }

    /// Runs the target's part of a round, see [`crate::run_target`]. The source must have been asked to send its regions. After a round with
    /// verification a file is complete and durable.
    ///
    /// # Errors
    /// See [`SyncError`].
    pub fn run_target(&self, conns: &mut [Box<dyn Stream>], verify: Verify, fault: &Faults) -> Result<Round, SyncError> {
        self.round(|| target::run(self, conns, verify, false, fault))
    }

    /// Runs a round, and gives up what was noted for its proof.
    fn round(&self, run: impl FnOnce() -> Result<Round, SyncError>) -> Result<Round, SyncError> {
        let round = run();
        *write_lock(&self.proof) = None;
        *lock(&self.proved) = HashMap::new();
        round
    }

    /// Reads a page.
    fn load(&self, page: &Page, slot: Option<&Slot>, to: &mut [u8]) -> Result<(), SyncError> {
        match (slot, &self.file) {
            (None, _) => to.fill(0),
            (Some(Slot::Memory(bytes)), _) if bytes.len() == to.len() => to.copy_from_slice(bytes),
            (Some(Slot::Memory(_)), _) => return Err(SyncError::Protocol("a page of another size")),
            (Some(Slot::File(entry)), Some(file)) => file.read(page.address, entry, to)?,
            (Some(Slot::File(_)), None) => return Err(SyncError::Protocol("a page of no file")),
        }
        Ok(())
    }

    /// Hashes pages with these numbers, also for the proof if its key is given.
    fn hash_some(&self, key: &PageKey, pages: &Pages, numbers: Range<usize>) -> Result<Vec<PageHash>, SyncError> {
        let proof = read_lock(&self.proof).clone();
        let whole = [Some(key), proof.as_deref()].map(|key| key.map(|key| key.hash(&[0; PAGE as usize])));
        let (mut hashes, mut proved) = (Vec::with_capacity(numbers.len()), Vec::new());
        let mut buffer = vec![0; PAGE as usize];
        for page in numbers.filter_map(|n| pages.get(n)) {
            let slot = read_lock(&self.slots).get(&page.address).cloned();
            let both = [Some(key), proof.as_deref()];
            let [hash, proof] = match &slot {
                None if page.bytes == PAGE && !page.by_host => whole,
                None => both.map(|key| key.map(|key| hash_of(key, &page, zeros(&page)))),
                Some(_) => {
                    let bytes = &mut buffer[..page.bytes as usize];
                    self.load(&page, slot.as_ref(), bytes)?;
                    both.map(|key| key.map(|key| hash_of(key, &page, bytes)))
                }
            };
            hashes.extend(hash);
            proved.extend(proof.filter(|_| slot.is_some()).map(|hash| (page.address, hash)));
        }
        lock(&self.proved).extend(proved);
        Ok(hashes)
    }

    /// Hashes pages by several threads, also for the proof of this round.
    fn hash_all(&self, key: &PageKey, pages: &Pages) -> Result<Vec<PageHash>, SyncError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let each = pages.len().div_ceil(threads).max(PAGES_OF_A_THREAD);
        let starts: Vec<usize> = (0..pages.len()).step_by(each).collect();
        if starts.len() <= 1 {
            return self.hash_some(key, pages, 0..pages.len());
        }
        std::thread::scope(|scope| {
            let part = |start: usize| start..pages.len().min(start + each);
            let parts: Vec<_> = starts
                .iter()
                .map(|start| {
                    let numbers = part(*start);
                    threads::spawn(scope, move || self.hash_some(key, pages, numbers))
                })
                .collect();
            let mut all = Ok(Vec::with_capacity(pages.len()));
            for hashes in parts {
                let hashes = threads::join(hashes);
                all = all.and_then(|mut all: Vec<PageHash>| {
                    all.extend(hashes?);
                    Ok(all)
                });
            }
            all
        })
    }

    /// Notes the hash of a page for the proof, if this round has one.
    fn note(&self, page: &Page, bytes: &[u8]) {
        let Some(key) = read_lock(&self.proof).clone() else { return };
        let hash = hash_of(&key, page, bytes);
        lock(&self.proved).insert(page.address, hash);
    }

    fn keep(&self, address: u64, slot: Option<Slot>) {
        let mut slots = write_lock(&self.slots);
        let old = match slot {
            Some(slot) => slots.insert(address, slot),
            None => slots.remove(&address),
        };
        drop(slots);
        match (old, &self.file) {
            (Some(Slot::Memory(old)), _) => drop(self.held.fetch_sub(old.len() as u64, Ordering::Relaxed)),
            (Some(Slot::File(old)), Some(file)) => file.forget(&old),
            _ => {}
        }
    }

    /// Keeps a page in memory, unless there are too many.
    fn keep_in_memory(&self, address: u64, bytes: &[u8]) -> Result<(), SyncError> {
        let held = self.held.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let after = held.saturating_add(bytes.len() as u64);
        let why = if after > self.limit {
            Some(SyncError::Full { limit: self.limit })
        } else if held / CHECK_ROOM_EVERY != after / CHECK_ROOM_EVERY && free_host_memory() == Some(0) {
            Some(SyncError::Scarce)
        } else {
            None
        };
        if let Some(why) = why {
            self.held.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
            return Err(why);
        }
        self.keep(address, Some(Slot::Memory(bytes.into())));
        Ok(())
    }
}

impl Memory for Store {
    type Buffer = Vec<u8>;
    type Flight = Vec<u8>;
    type Hashes = Vec<PageHash>;

    fn regions(&self) -> Result<Vec<Region>, SyncError> {
        Ok(Store::regions(self))
    }

    fn has_regions(&self) -> bool {
        false
    }

    fn take_regions(&self, regions: &[Region]) -> Result<(), SyncError> {
        check_regions(regions).map_err(SyncError::Protocol)?;
        let notes = regions.iter().map(Region::pages).fold(regions.len() as u64, u64::saturating_add).saturating_mul(NOTES);
        if notes > self.limit {
            return Err(SyncError::Full { limit: self.limit });
        }
        let gone: Vec<u64> = {
            let before = read_lock(&self.regions);
            let is_kept = |address: &u64| {
                let page = page_at(regions, *address);
                page.is_some() && page == page_at(&before, *address)
            };
            read_lock(&self.slots).keys().copied().filter(|address| !is_kept(address)).collect()
        };
        gone.into_iter().for_each(|address| self.keep(address, None));
        *write_lock(&self.regions) = regions.to_vec();
        Ok(())
    }

    fn begin(&self, proof: Option<&PageKey>) {
        *write_lock(&self.proof) = proof.map(|key| Arc::new(key.clone()));
        lock(&self.proved).clear();
        self.file.iter().for_each(PageFile::forget_old_state);
    }

    fn hashes(&self, pages: usize) -> Result<Vec<PageHash>, SyncError> {
        Ok(vec![NO_HASH; pages])
    }

    fn hash(&self, key: &PageKey, pages: &Pages, which: Which<'_>) -> Result<(Vec<PageHash>, usize), SyncError> {
        let mut hashes = self.hash_all(key, pages)?;
        leave_out(&mut hashes, pages, which);
        Ok((hashes, 0))
    }

    fn hash_to_send(&self, key: &PageKey, pages: &Pages, which: Which<'_>) -> Result<Vec<PageHash>, SyncError> {
        let slots = read_lock(&self.slots);
        let whole = key.hash(&[0; PAGE as usize]);
        let hash = |page: Page| match slots.contains_key(&page.address) {
            true => UNKNOWN,
            false if page.bytes == PAGE && !page.by_host => whole,
            false => hash_of(key, &page, zeros(&page)),
        };
        let mut hashes: Vec<PageHash> = pages.iter().map(hash).collect();
        leave_out(&mut hashes, pages, which);
        Ok(hashes)
    }

    fn hash_shown(&self, _: &PageKey, pages: &Pages) -> Result<(), SyncError> {
        if pages.len() == 0 { Ok(()) } else { Err(SyncError::Protocol("a store has nothing in view")) }
    }

    fn differing(&self, target: &Vec<PageHash>, from: usize, source: Option<&Vec<PageHash>>) -> Result<Vec<u64>, SyncError> {
        // Without `source` there is nothing in view.
        Ok(source.map_or(Vec::new(), |source| differing_hashes(&target[from..], source)))
    }

    fn hash_to_prove(&self, key: &PageKey, pages: &Pages) -> Result<(Vec<PageHash>, usize), SyncError> {
        let known: Vec<Option<PageHash>> = {
            let (slots, proved) = (read_lock(&self.slots), lock(&self.proved));
            let whole = key.hash(&[0; PAGE as usize]);
            let hash = |page: Page| match slots.contains_key(&page.address) {
                true => proved.get(&page.address).copied(),
                false if page.bytes == PAGE && !page.by_host => Some(whole),
                false => Some(hash_of(key, &page, zeros(&page))),
            };
            pages.iter().map(hash).collect()
        };
        let missing: Vec<Region> = pages
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none())
            .map(|(page, _)| Region { address: page.address, bytes: page.bytes, kind: page.kind })
            .collect();
        let mut missing = self.hash_all(key, &Pages::of(missing))?.into_iter();
        let all: Vec<PageHash> = known.into_iter().filter_map(|hash| hash.or_else(|| missing.next())).collect();
        if all.len() == pages.len() { Ok((all, 0)) } else { Err(SyncError::Protocol("not a hash for each page")) }
    }

    fn buffer(&self) -> Result<Vec<u8>, SyncError> {
        Ok(vec![0; BATCH])
    }

    fn bytes<'a>(&self, buffer: &'a mut Vec<u8>) -> &'a mut [u8] {
        buffer
    }

    fn read(&self, _: usize, mut to: Vec<u8>, pages: &[Page], _: bool) -> Result<Vec<u8>, SyncError> {
        let mut rest = &mut to[..];
        for page in pages {
            let (bytes, after) = rest.split_at_mut(page.bytes as usize);
            let slot = read_lock(&self.slots).get(&page.address).cloned();
            self.load(page, slot.as_ref(), bytes)?;
            if slot.is_some() {
                self.note(page, bytes);
            }
            rest = after;
        }
        Ok(to)
    }

    fn write(&self, _: usize, from: Vec<u8>, pages: &[Page], _: bool) -> Result<Vec<u8>, SyncError> {
        let (mut rest, mut written) = (&from[..], Vec::with_capacity(pages.len()));
        for page in pages {
            let (bytes, after) = rest.split_at(page.bytes as usize);
            if is_zero(bytes) {
                self.keep(page.address, None);
            } else {
                self.note(page, bytes);
                written.push((page.address, bytes));
            }
            rest = after;
        }
        match &self.file {
            None => written.into_iter().try_for_each(|(address, bytes)| self.keep_in_memory(address, bytes))?,
            Some(file) => {
                let entries = file.write(written.iter().map(|(_, bytes)| *bytes))?;
                let kept = written.into_iter().zip(entries);
                kept.for_each(|((address, _), entry)| self.keep(address, Some(Slot::File(entry))));
            }
        }
        Ok(from)
    }

    fn land(&self, flight: Vec<u8>) -> Result<(Vec<u8>, usize), SyncError> {
        Ok((flight, 0))
    }

    fn gpu(&self) -> [u8; 16] {
        // No GPU has this number, so memory is never taken for that of the same GPU.
        [0xff; 16]
    }

    fn show(&self) -> Show {
        Show { gpu: Memory::gpu(self), ..Show::default() }
    }

    fn view(&self, _: &Show) -> (Vec<u64>, Option<String>) {
        (Vec::new(), None)
    }

    fn adopted(&self) -> Vec<Shown> {
        Vec::new()
    }

    fn fetch(&self, _: &[(u64, u64)]) -> Result<(), SyncError> {
        Err(SyncError::Protocol("a store has nothing in view"))
    }

    fn compare(&self, pages: &Pages) -> Result<Vec<u64>, SyncError> {
        if pages.len() == 0 { Ok(Vec::new()) } else { Err(SyncError::Protocol("a store has nothing in view")) }
    }

    fn seal(&self) -> Result<[u8; 32], SyncError> {
        let Some(file) = &self.file else { return Ok([0; 32]) };
        let slots = read_lock(&self.slots);
        let mut entries: Vec<(u64, Entry)> = slots
            .iter()
            .filter_map(|(address, slot)| if let Slot::File(entry) = slot { Some((*address, *entry)) } else { None })
            .collect();
        entries.sort_unstable_by_key(|(address, _)| *address);
        file.seal(&read_lock(&self.regions), &entries)
    }
}
