//! The file of a store (docs/formats.md, "Files of parked jobs").
//!
//! Pages are compressed if that saves room. A list says where each page is and which hash it has; a head, which is written last, says where
//! the list is and which hash that has. So each byte that is used is covered by the head's hash, which the job keeps: a file that was
//! damaged, cut or exchanged is refused, at the page where that is found.
//!
//! A file can be completed again and again. There are two heads, which are written by turns, and nothing that the last one covers is
//! overwritten before the next one is on the disk: a file that was ever complete has its old state or its new one, whatever ends when.

use super::extents::Extents;
use crate::error::SyncError;
use crate::frames::BATCH;
use crate::region::{REGION_BYTES, Region, check_regions, page_at};
use cuda_api::lock::lock;
use cuda_api::wire::Wire;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;
use nix::sys::statvfs::statvfs;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"MRPARKD1";
/// Bytes of a head: one block of a disk.
const HEAD: usize = 4096;
/// Bytes of both.
const HEADS: usize = 2 * HEAD;
/// Bytes of the head that are used: magic, version, page size, where the list is, its length and hash, and the hash of all that.
const USED: usize = 96;
const VERSION: u32 = 2;
/// An entry of the list: address, offset, bytes in the file, whether they are compressed, hash.
pub(super) const ENTRY: usize = 8 + 8 + 4 + 1 + 32;
/// The list is read and written in steps of about this many bytes.
const STEP: usize = 1 << 20;
/// Written bytes after which they are forced to the disk, so that the last step need not wait for all of them.
const FORCED: u64 = 256 << 20;
/// After so many pages of a batch that compression did not make smaller, the rest is not tried.
const ATTEMPTS: usize = 3;
/// Smaller pieces of files need not be given back to the system: they have no whole block.
const MIN_HOLE: u64 = 8192;
/// How long to wait for another process that writes to a file: one that was abandoned lives on for some seconds.
const WRITER_TIMEOUT: Duration = Duration::from_secs(8);
/// Poll interval for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Where a page is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    offset: u64,
    /// Bytes in the file.
    stored: u32,
    packed: bool,
    /// BLAKE3 of the page.
    hash: [u8; 32],
}

/// A file of pages.
#[derive(Debug)]
pub(super) struct PageFile {
    file: File,
    path: PathBuf,
    /// Where pages must not reach: replaced ones may leave holes, which count.
    most: u64,
    room: Mutex<Room>,
    /// Bytes written since they were last forced to the disk.
    unforced: AtomicU64,
}

/// What of a file is used.
#[derive(Debug)]
struct Room {
    extents: Extents,
    /// The last list: offset, bytes.
    list: Option<(u64, u64)>,
    /// Where the next head goes.
    head_at: u64,
}

/// What a complete file holds.
type Contents = (PageFile, Vec<Region>, HashMap<u64, Entry>);

fn trouble<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> SyncError + 'a {
    move |why| SyncError::File { what, path: path.to_owned(), why }
}

/// Makes sure that no other process writes to a file: each would take what is free in the last complete state for its own pages. The lock
/// goes with the descriptor.
fn lock_for_writing(file: &File, path: &Path, timeout: Duration) -> Result<(), SyncError> {
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if since.elapsed() >= timeout => {
                let why = io::Error::new(io::ErrorKind::WouldBlock, "the file is being written by another process");
                return Err(trouble("open", path)(why));
            }
            Err(TryLockError::Error(why)) => match why.raw_os_error() {
                // Not all file systems have locks, and a job can be parked there nevertheless.
                Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK) => return Ok(()),
                Some(libc::EINTR) => {}
                _ => return Err(trouble("lock", path)(why)),
            },
            Err(TryLockError::WouldBlock) => {}
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Takes the next `N` bytes.
fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*first)
}

fn number(from: &mut &[u8]) -> Option<u64> {
    take(from).map(u64::from_le_bytes)
}

impl Entry {
    fn put(&self, address: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&address.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.stored.to_le_bytes());
        out.push(self.packed.into());
        out.extend_from_slice(&self.hash);
    }

    fn get(from: &mut &[u8]) -> Option<(u64, Entry)> {
        let (address, offset) = (number(from)?, number(from)?);
        let stored = u32::from_le_bytes(take(from)?);
        let packed = match take::<1>(from)? {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some((address, Entry { offset, stored, packed, hash: take(from)? }))
    }
}

/// The head of a file.
pub(super) struct Head {
    list_at: u64,
    list_bytes: u64,
    list_hash: [u8; 32],
}

impl Head {
    /// The head's bytes and its hash, which identifies all contents.
    pub(super) fn write(&self) -> ([u8; HEAD], [u8; 32]) {
        let mut used = Vec::with_capacity(USED);
        used.extend_from_slice(MAGIC);
        used.extend_from_slice(&VERSION.to_le_bytes());
        used.extend_from_slice(&(crate::PAGE as u32).to_le_bytes());
        used.extend_from_slice(&self.list_at.to_le_bytes());
        used.extend_from_slice(&self.list_bytes.to_le_bytes());
        used.extend_from_slice(&self.list_hash);
        let seal = *blake3::hash(&used).as_bytes();
        used.extend_from_slice(&seal);
        let mut head = [0; HEAD];
        head[..used.len()].copy_from_slice(&used);
        (head, seal)
    }

    pub(super) fn read(bytes: &[u8; HEAD]) -> Result<(Head, [u8; 32]), &'static str> {
        const SHORT: &str = "its head is too short";
        let mut from = &bytes[..];
        match take::<8>(&mut from).ok_or(SHORT)? {
            magic if magic == *MAGIC => {}
            magic if magic == [0; 8] => return Err("it was never completed"),
            _ => return Err("it is not the file of a parked job"),
        }
        if take(&mut from).map(u32::from_le_bytes).ok_or(SHORT)? != VERSION {
            return Err("its format has another version");
        }
        if take(&mut from).map(u32::from_le_bytes).ok_or(SHORT)? != crate::PAGE as u32 {
            return Err("its pages have another size");
        }
        let head = Head {
            list_at: number(&mut from).ok_or(SHORT)?,
            list_bytes: number(&mut from).ok_or(SHORT)?,
            list_hash: take(&mut from).ok_or(SHORT)?,
        };
        let (again, seal) = head.write();
        if again == *bytes { Ok((head, seal)) } else { Err("its head is damaged") }
    }
}

impl PageFile {
    /// Creates a file that only this user can read; its directory too, if it is missing. It gets no longer than `most`.
    pub(super) fn create(path: &Path, most: u64) -> Result<PageFile, SyncError> {
        if let Some(directory) = path.parent() {
            match DirBuilder::new().mode(0o700).create(directory) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(trouble("make the directory of", path)(e)),
                _ => {}
            }
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path).map_err(trouble("create", path))?;
        lock_for_writing(&file, path, WRITER_TIMEOUT).inspect_err(|_| drop(fs::remove_file(path)))?;
        let room = Mutex::new(Room { extents: Extents::new(HEADS as u64), list: None, head_at: 0 });
        let new = PageFile { file, path: path.to_owned(), most, room, unforced: AtomicU64::new(0) };
        new.begin().inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(new)
    }

    /// Makes sure of what the end and the next opening demand, before anything is copied.
    fn begin(&self) -> Result<(), SyncError> {
        let failed = trouble("write", &self.path);
        // Without a head, which is written last, the file is incomplete.
        self.file.set_len(HEADS as u64).map_err(&failed)?;
        self.check(&self.file.metadata().map_err(&failed)?)?;
        self.force_name().map_err(&failed)
    }

    /// Not all file systems keep the owner and the permissions of a new file.
    fn check(&self, about: &Metadata) -> Result<(), SyncError> {
        if !about.is_file() {
            return Err(self.damaged("it is not a file"));
        }
        if about.uid() != nix::unistd::geteuid().as_raw() || about.mode() & 0o077 != 0 {
            return Err(self.damaged("other users could have changed it"));
        }
        Ok(())
    }

    /// Makes the file's name durable.
    fn force_name(&self) -> io::Result<()> {
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    fn damaged(&self, why: impl Into<String>) -> SyncError {
        SyncError::Damaged { path: self.path.clone(), why: why.into() }
    }

    /// Opens a file and reads the list of its last complete state. `seal`: what [`PageFile::seal`] has returned. With `most` it is written to
    /// again, and gets no longer than that.
    pub(super) fn open(path: &Path, seal: &[u8; 32], most: u64) -> Result<Contents, SyncError> {
        let mut options = OpenOptions::new();
        // Not to wait for the other end of a pipe.
        options.read(true).write(most > 0).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).map_err(trouble("open", path))?;
        if most > 0 {
            // Before the heads are read: the last writer may still complete the file.
            lock_for_writing(&file, path, WRITER_TIMEOUT)?;
        }
        let about = file.metadata().map_err(trouble("open", path))?;
        let room = Mutex::new(Room { extents: Extents::new(about.len()), list: None, head_at: 0 });
        let mut open = PageFile { file, path: path.to_owned(), most, room, unforced: AtomicU64::new(0) };
        open.check(&about)?;
        let (head, number) = open.find_head(seal)?;
        let end = head.list_at.checked_add(head.list_bytes);
        if head.list_at < HEADS as u64 || end.is_none_or(|end| end > about.len()) {
            return Err(open.damaged("its list of pages lies outside it"));
        }
        let (regions, entries) = open.read_list(&head, about.len())?;
        let list = (head.list_at, head.list_bytes);
        let used = entries.values().map(|entry| (entry.offset, entry.stored.into())).chain([list]);
        let extents = Extents::of(HEADS as u64, used.collect());
        open.room = Mutex::new(Room { extents, list: Some(list), head_at: (1 - number) * HEAD as u64 });
        Ok((open, regions, entries))
    }

    /// The head with this seal, and its number. The other one is older, or newer and the job has not learnt of it.
    fn find_head(&self, seal: &[u8; 32]) -> Result<(Head, u64), SyncError> {
        let mut refusal = None;
        for number in [0, 1] {
            let mut head = [0; HEAD];
            self.read_exact(&mut head, number * HEAD as u64, "its head")?;
            match Head::read(&head) {
                Ok((head, found)) if found == *seal => return Ok((head, number)),
                Ok(_) => refusal = Some("it is not what was written for this job"),
                Err(why) => {
                    refusal.get_or_insert(why);
                }
            }
        }
        Err(self.damaged(refusal.unwrap_or_default()))
    }

    fn read_exact(&self, to: &mut [u8], at: u64, what: &str) -> Result<(), SyncError> {
        self.file.read_exact_at(to, at).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(format!("it ends before {what}")),
            _ => trouble("read", &self.path)(e),
        })
    }

    fn read_list(&self, head: &Head, length: u64) -> Result<(Vec<Region>, HashMap<u64, Entry>), SyncError> {
        // The list is in the file, so that its memory is bounded by that.
        let mut list = Vec::new();
        let mut at = head.list_at;
        let end = head.list_at + head.list_bytes;
        while at < end {
            let (some, here) = ((end - at).min(STEP as u64), list.len());
            list.resize(here + some as usize, 0);
            self.read_exact(&mut list[here..], at, "the end of its list of pages")?;
            at += some;
        }
        if *blake3::hash(&list).as_bytes() != head.list_hash {
            return Err(self.damaged("its list of pages is damaged"));
        }
        let (regions, entries) = read_list(&list, length).ok_or_else(|| self.damaged("its list of pages is malformed"))?;
        check_regions(&regions).map_err(|why| self.damaged(why))?;
        Ok((regions, entries))
    }

    /// Writes pages, behind each other if there is room.
    pub(super) fn write<'p>(&self, pages: impl Iterator<Item = &'p [u8]>) -> Result<Vec<Entry>, SyncError> {
        let (mut out, mut entries) = (Vec::with_capacity(BATCH), Vec::new());
        let mut failed = 0;
        for page in pages {
            let packed = if failed < ATTEMPTS { packed(page) } else { None };
            failed = if packed.is_some() { 0 } else { failed + 1 };
            let stored = packed.as_deref().unwrap_or(page);
            let hash = *blake3::hash(page).as_bytes();
            entries.push(Entry { offset: 0, stored: stored.len() as u32, packed: packed.is_some(), hash });
            out.extend_from_slice(stored);
        }
        {
            let mut room = lock(&self.room);
            entries.iter_mut().for_each(|entry| entry.offset = room.extents.take(entry.stored.into()));
            if room.extents.end() > self.most {
                give_back(&mut room.extents, &entries);
                return Err(SyncError::Full { limit: self.most });
            }
        }
        // Otherwise the file would grow with every round that fails.
        self.write_out(&out, &entries).inspect_err(|_| give_back(&mut lock(&self.room).extents, &entries))?;
        Ok(entries)
    }

    /// Writes the bytes of pages to where their entries say.
    fn write_out(&self, out: &[u8], entries: &[Entry]) -> Result<(), SyncError> {
        let mut rest = out;
        for together in entries.chunk_by(|one, next| one.offset + u64::from(one.stored) == next.offset) {
            let (piece, after) = rest.split_at(together.iter().map(|entry| entry.stored as usize).sum());
            self.file.write_all_at(piece, together[0].offset).map_err(trouble("write", &self.path))?;
            rest = after;
        }
        if self.unforced.fetch_add(out.len() as u64, Ordering::Relaxed) >= FORCED {
            // One of the threads waits for the disk, and the others go on.
            self.unforced.store(0, Ordering::Relaxed);
            self.file.sync_data().map_err(trouble("write", &self.path))?;
        }
        Ok(())
    }

    /// Reads a page, and checks it.
    pub(super) fn read(&self, address: u64, entry: &Entry, to: &mut [u8]) -> Result<(), SyncError> {
        let damaged = || self.damaged(format!("its page of address {address:#x}, at offset {}, is damaged", entry.offset));
        let mut stored = Vec::new();
        let raw: &mut [u8] = if entry.packed {
            stored.resize(entry.stored as usize, 0);
            &mut stored
        } else {
            to
        };
        if raw.len() != entry.stored as usize {
            return Err(damaged());
        }
        self.file.read_exact_at(raw, entry.offset).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => damaged(),
            _ => trouble("read", &self.path)(e),
        })?;
        if entry.packed && lz4_flex::block::decompress_into(&stored, to).ok() != Some(to.len()) {
            return Err(damaged());
        }
        if *blake3::hash(to).as_bytes() == entry.hash { Ok(()) } else { Err(damaged()) }
    }

    /// Gives the room of a page back that was replaced.
    pub(super) fn forget(&self, entry: &Entry) {
        let (offset, bytes) = (entry.offset, u64::from(entry.stored));
        let mut room = lock(&self.room);
        // Before another thread takes it.
        if room.extents.give_back(offset, bytes) {
            self.punch(offset, bytes);
        }
    }

    /// Gives a part of the file back to the system.
    fn punch(&self, offset: u64, bytes: u64) {
        if bytes >= MIN_HOLE {
            let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // Not all file systems can; the file is then larger than it need be.
            let _ = fallocate(&self.file, how, offset as i64, bytes as i64);
        }
    }

    /// Completes the file, which is durable then. Returns what identifies its contents.
    pub(super) fn seal(&self, regions: &[Region], entries: &[(u64, Entry)]) -> Result<[u8; 32], SyncError> {
        let failed = trouble("write", &self.path);
        let mut list = Vec::with_capacity(16 + regions.len() * REGION_BYTES + entries.len() * ENTRY);
        list.extend_from_slice(&(regions.len() as u64).to_le_bytes());
        regions.iter().for_each(|region| region.put(&mut list));
        list.extend_from_slice(&(entries.len() as u64).to_le_bytes());
        entries.iter().for_each(|(address, entry)| entry.put(*address, &mut list));
        let list_bytes = list.len() as u64;
        let (list_at, head_at) = {
            let mut room = lock(&self.room);
            (room.extents.take(list_bytes), room.head_at)
        };
        let (head, seal) = Head { list_at, list_bytes, list_hash: *blake3::hash(&list).as_bytes() }.write();
        let written = self.file.write_all_at(&list, list_at);
        // The head must not be on the disk before what it describes.
        let written = written.and_then(|()| self.file.sync_data()).and_then(|()| self.file.write_all_at(&head, head_at));
        let written = written.and_then(|()| self.file.sync_all()).and_then(|()| self.force_name());
        let mut room = lock(&self.room);
        if let Err(why) = written {
            room.extents.give_back(list_at, list_bytes);
            return Err(failed(why));
        }
        if let Some((offset, bytes)) = room.list.replace((list_at, list_bytes)) {
            room.extents.give_back(offset, bytes);
        }
        room.head_at = HEAD as u64 - head_at;
        room.extents.complete();
        Ok(seal)
    }

    /// Gives up the state before the last complete one. Not when that was completed: until the job asks for more it may not have learnt of it.
    pub(super) fn forget_old_state(&self) {
        let mut room = lock(&self.room);
        room.extents.forget_older().into_iter().for_each(|(offset, bytes)| self.punch(offset, bytes));
    }

    /// How many bytes the file system has left for this user.
    pub(super) fn free_bytes(&self) -> Result<u64, SyncError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let about = statvfs(directory).map_err(|e| trouble("ask about the file system of", &self.path)(e.into()))?;
        Ok(about.blocks_available().saturating_mul(about.fragment_size()))
    }
}

/// Gives the room of pages back that are not kept.
fn give_back(extents: &mut Extents, entries: &[Entry]) {
    for entry in entries {
        extents.give_back(entry.offset, entry.stored.into());
    }
}

/// A page compressed, if that saves an eighth of it.
fn packed(page: &[u8]) -> Option<Vec<u8>> {
    let packed = lz4_flex::block::compress(page);
    (packed.len() <= page.len() / 8 * 7).then_some(packed)
}

/// Reads a list of pages in a file of this length.
pub(super) fn read_list(mut list: &[u8], length: u64) -> Option<(Vec<Region>, HashMap<u64, Entry>)> {
    let from = &mut list;
    let count = number(from)?;
    let mut regions: Vec<Region> = Vec::new();
    for _ in 0..count {
        let mut bytes: &[u8] = &take::<REGION_BYTES>(from)?;
        let region = Region::get(&mut bytes).ok()?;
        let end = regions.last().map_or(0, Region::end);
        region.address.checked_add(region.bytes).filter(|_| region.bytes > 0 && region.address >= end)?;
        regions.push(region);
    }
    let count = number(from)?;
    let mut entries = HashMap::new();
    for _ in 0..count {
        let (address, entry) = Entry::get(from)?;
        let page = page_at(&regions, address)?;
        let whole = u64::from(entry.stored) == page.bytes;
        let fits = if entry.packed { u64::from(entry.stored) < page.bytes } else { whole };
        let end = entry.offset.checked_add(entry.stored.into())?;
        if !fits || entry.offset < HEADS as u64 || end > length || entries.insert(address, entry).is_some() {
            return None;
        }
    }
    from.is_empty().then_some((regions, entries))
}

#[cfg(test)]
mod tests;
