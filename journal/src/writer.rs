//! Writes a journal while the job runs.

use crate::live::{Edges, Live};
use crate::mapped::{Mapped, publish};
use crate::memory::Memory;
use crate::{JournalError, Meta, Record, RecordBuffer, header, record, words};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Dead bytes of a file are tolerated up to this number, however few live ones there are, because a rewrite creates a
/// new file.
const DEAD_BYTES: usize = 16 << 20;
/// The same for a journal in memory, which is compacted in place: memory that is reused stays in the processor's
/// caches.
const DEAD_BYTES_IN_MEMORY: usize = 1 << 20;
/// Dead bytes are tolerated up to this many times the live ones.
const DEAD_RATIO: usize = 4;

/// Position of a record in the file, in units of 8 bytes to save memory, since there are many of them.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: u32,
    units: u32,
}

impl Place {
    const UNIT: usize = 8;
    /// Maximum length of the file, in bytes.
    const LONGEST: usize = Place::UNIT << 32;

    fn new(offset: usize, len: usize) -> Place {
        // Both values fit, because the file is no longer than [`Place::LONGEST`].
        Place { at: (offset / Place::UNIT) as u32, units: (len / Place::UNIT) as u32 }
    }

    fn offset(self) -> usize {
        self.at as usize * Place::UNIT
    }

    fn len(self) -> usize {
        self.units as usize * Place::UNIT
    }

    /// Where it is among the words of the storage.
    fn words(self) -> Range<usize> {
        self.at as usize..self.at as usize + self.units as usize
    }
}

/// Storage of the records.
#[derive(Debug)]
enum Store {
    /// In a file with this path.
    File(Mapped, PathBuf),
    Memory(Memory),
}

impl Store {
    #[inline]
    fn words(&self) -> &[u64] {
        match self {
            Store::File(file, _) => words::of_mapping(file.bytes()),
            Store::Memory(memory) => memory.words(),
        }
    }

    #[inline]
    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Store::File(file, _) => words::of_mapping_mut(file.bytes_mut()),
            Store::Memory(memory) => memory.words_mut(),
        }
    }

    /// Grows the storage to at least `len` bytes; on failure the contents are unchanged.
    #[cold]
    fn grow(&mut self, len: usize) -> Result<(), JournalError> {
        match self {
            Store::File(file, path) => file.grow(len, path),
            Store::Memory(memory) => memory.grow(len).map_err(JournalError::Memory),
        }
    }

    /// Space after the last record: zeros there show that a file is still being written.
    #[inline]
    fn tail(&self) -> usize {
        match self {
            Store::File(..) => header::END,
            Store::Memory(_) => 0,
        }
    }

    /// Number of dead bytes that are tolerated, however few live ones there are.
    fn dead_bytes(&self) -> usize {
        match self {
            Store::File(..) => DEAD_BYTES,
            Store::Memory(_) => DEAD_BYTES_IN_MEMORY,
        }
    }
}

/// A journal being written. One thread at a time appends, under the caller's lock.
///
/// Besides the records it keeps 12 bytes for each live record and the open handles. The records are in a mapped file,
/// or in private memory if no other process needs to read them. A forked child must not use it, except to drop it.
#[derive(Debug)]
pub struct Writer {
    store: Store,
    header: usize,
    /// Bytes in use; in a file, the rest is zero.
    used: usize,
    records: u64,
    live: Live<Place>,
    /// Value of `used` at which the dead bytes are next counted.
    count_at: usize,
    complete: bool,
    /// A record in the file was found damaged.
    damaged: AtomicBool,
    limit: u64,
}

impl Writer {
    /// Creates a journal at `path`, replacing an existing file. Only this user can read and write the file.
    ///
    /// # Errors
    /// The file cannot be created, or `meta.about` is longer than a header can be (about 1 MiB).
    pub fn create(path: &Path, meta: &Meta) -> Result<Writer, JournalError> {
        Writer::with_limit(path, meta, u64::MAX)
    }

    /// As [`Writer::create`], with a file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Writer::create`], and if even an empty journal exceeds the limit.
    pub fn with_limit(path: &Path, meta: &Meta, limit: u64) -> Result<Writer, JournalError> {
        let bytes = header::encode(meta)?;
        let mut file = Mapped::create(path, bytes.len() + header::END, limit)?;
        file.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        file.name(path)?;
        Ok(Writer::begin(Store::File(file, path.to_owned()), bytes.len(), limit))
    }

    /// Creates a journal in memory of this process, whose growth costs less than that of a file.
    ///
    /// # Errors
    /// No memory is left.
    pub fn in_memory() -> Result<Writer, JournalError> {
        Writer::in_memory_up_to(Place::LONGEST)
    }

    /// As [`Writer::in_memory`], with at most this many bytes, rounded up to 2 MiB. A small journal takes less time to create, which counts
    /// where there are thousands of them.
    ///
    /// # Errors
    /// No memory is left.
    pub fn in_memory_up_to(bytes: usize) -> Result<Writer, JournalError> {
        let memory = Memory::new(bytes).map_err(JournalError::Memory)?;
        Ok(Writer::begin(Store::Memory(memory), 0, u64::MAX))
    }

    fn begin(store: Store, header: usize, limit: u64) -> Writer {
        let count_at = header + store.dead_bytes();
        Writer {
            store,
            header,
            used: header,
            records: 0,
            live: Live::new(),
            count_at,
            complete: true,
            damaged: AtomicBool::new(false),
            limit,
        }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// The file cannot grow, or a part of the record is longer than the format allows. The record is then lost, so the
    /// journal is incomplete and every later record is refused ([`JournalError::Incomplete`]).
    pub fn append(&mut self, r: &Record) -> Result<(), JournalError> {
        if !self.complete {
            return Err(JournalError::Incomplete);
        }
        self.put(r).inspect_err(|_| self.complete = false)?;
        if self.live.due() || self.used >= self.count_at {
            self.tidy();
        }
        Ok(())
    }

    fn put(&mut self, r: &Record) -> Result<(), JournalError> {
        let len = record::encoded_len(r)?;
        let end = self.used + len as usize;
        if end > Place::LONGEST {
            return Err(JournalError::TooLarge { what: "file", len: end, limit: Place::LONGEST });
        }
        if end + self.store.tail() > size_of_val(self.store.words()) {
            self.store.grow(end + self.store.tail())?;
        }
        let place = Place::new(self.used, len as usize);
        let out = &mut self.store.words_mut()[place.words()];
        let first = record::encode(r, out);
        publish(&mut out[0], first);
        self.live.feed(Edges::from(r), place);
        self.used = end;
        self.records += 1;
        Ok(())
    }

    /// Drops dead records, and rewrites the file if they are most of it.
    fn tidy(&mut self) {
        self.live.sweep();
        let live: usize = self.live.kept().map(|p| p.len()).sum();
        let dead = self.used - self.header - live;
        if dead > self.store.dead_bytes() && dead > DEAD_RATIO * live {
            match &self.store {
                // If there is no room for a second file, writing continues in the first one.
                Store::File(old, path) => {
                    if let Ok(fresh) = self.rewritten(old, path, live) {
                        // The old file is not truncated: a process that reads it can read it to its end.
                        let path = path.clone();
                        self.store = Store::File(fresh, path);
                        self.used = self.keep_together(|_, _| {});
                    }
                }
                Store::Memory(_) => self.used = self.keep_together(|store, (from, to)| store.words_mut().copy_within(from, to)),
            }
        }
        self.count_at = self.used + live.max(self.store.dead_bytes());
    }

    /// Creates a new file with the records that [`Live`] keeps, under the old one's name.
    fn rewritten(&self, old: &Mapped, path: &Path, live: usize) -> Result<Mapped, JournalError> {
        let mut fresh = Mapped::create(path, self.header + live + header::END, self.limit)?;
        let (old, new) = (old.bytes(), fresh.bytes_mut());
        new[..self.header].copy_from_slice(&old[..self.header]);
        let mut at = self.header;
        for p in self.live.kept() {
            new[at..at + p.len()].copy_from_slice(&old[p.offset()..p.offset() + p.len()]);
            at += p.len();
        }
        fresh.name(path)?;
        Ok(fresh)
    }

    /// Updates the positions of the records that [`Live`] keeps to contiguous ones, and calls `bring` to move them;
    /// returns the end.
    fn keep_together(&mut self, bring: impl Fn(&mut Store, (Range<usize>, usize))) -> usize {
        let mut at = self.header;
        for p in self.live.kept_mut() {
            bring(&mut self.store, (p.words(), at / Place::UNIT));
            *p = Place::new(at, p.len());
            at += p.len();
        }
        at
    }

    /// Writes the end mark: the job ends in an orderly way. A record that is appended nevertheless overwrites the mark.
    pub fn mark_end(&mut self) {
        let used = self.used;
        if let Store::File(file, _) = &mut self.store
            && let Some(room) = file.bytes_mut().get_mut(used..used + header::END)
        {
            room.copy_from_slice(&header::end_mark(used as u64));
        }
    }

    /// Whether every record is present: false once one could not be written, or was found damaged. The job may
    /// continue, but cannot move.
    pub fn is_complete(&self) -> bool {
        self.complete && !self.damaged.load(Ordering::Relaxed)
    }

    /// The records that a fresh place must replay, in order and where they are; the rules are in [`crate::live_of`].
    ///
    /// Each record's checksum is verified. The only item is an error if the journal is not complete; the last one is, if
    /// a live record has been damaged (by a stray write of the program), and then the journal is no longer complete.
    pub fn live(&self) -> impl Iterator<Item = Result<Record<'_>, JournalError>> {
        self.live_words().map(|found| found.map(|(record, _)| record))
    }

    /// A copy of the records of [`Writer::live`], which remains as it is while records are appended.
    ///
    /// # Errors
    /// The journal is not complete, or a live record has been damaged.
    pub fn copy_live(&self) -> Result<RecordBuffer, JournalError> {
        let mut copy = RecordBuffer::default();
        copy.reserve(self.live.iter().map(|p| p.units as usize).sum());
        for found in self.live_words() {
            copy.push_words(found?.1);
        }
        Ok(copy)
    }

    fn live_words(&self) -> impl Iterator<Item = Result<(Record<'_>, &[u64]), JournalError>> {
        let complete = self.is_complete();
        let all = complete.then(|| self.live.iter().zip(0..)).into_iter().flatten();
        let all = all.map(|(p, number)| {
            let words = &self.store.words()[p.words()];
            record::checked(words).map(|record| (record, words)).map_err(|what| {
                self.damaged.store(true, Ordering::Relaxed);
                JournalError::Record { number, offset: p.offset() as u64, what }
            })
        });
        (!complete).then_some(Err(JournalError::Incomplete)).into_iter().chain(all)
    }

    /// Number of records that a fresh place must replay.
    pub fn live_count(&self) -> usize {
        self.live.iter().count()
    }

    /// Number of records appended in all.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Length in bytes, without space that is allocated in advance.
    pub fn bytes(&self) -> u64 {
        self.used as u64
    }

    /// Path of the file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.store {
            Store::File(_, path) => Some(path),
            Store::Memory(_) => None,
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Store::File(file, _) = &mut self.store {
            file.close(self.used, &header::end_mark(self.used as u64));
        }
    }
}
