//! Writing a journal while the job runs.

use crate::live::{Edges, Live};
use crate::mapped::Mapped;
use crate::{JournalError, Meta, OwnedRecord, Record, header, record};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Dead bytes are tolerated up to this many, however few live ones there are.
const DEAD_BYTES: usize = 16 << 20;
/// Dead bytes are tolerated up to this many times the live ones.
const DEAD_RATIO: usize = 4;

/// Where a record lies in the file, in units of 8 bytes: there are many of them.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: u32,
    units: u32,
}

impl Place {
    const UNIT: usize = 8;
    /// The longest file, in bytes.
    const LONGEST: usize = Place::UNIT << 32;

    fn new(offset: usize, len: usize) -> Place {
        // Both fit: the file is no longer than [`Place::LONGEST`].
        Place { at: (offset / Place::UNIT) as u32, units: (len / Place::UNIT) as u32 }
    }

    fn offset(self) -> usize {
        self.at as usize * Place::UNIT
    }

    fn len(self) -> usize {
        self.units as usize * Place::UNIT
    }
}

/// A journal being written. One thread at a time appends, under the caller's lock.
///
/// In memory it keeps 12 bytes a live record and the open handles; the records themselves lie in the mapped file. A forked child
/// must not touch it, except to drop it.
#[derive(Debug)]
pub struct Writer {
    file: Mapped,
    path: PathBuf,
    header: usize,
    /// Bytes of the file in use; what follows is zero.
    used: usize,
    records: u64,
    live: Live<Place>,
    /// Value of `used` at which the dead bytes are counted next.
    count_at: usize,
    complete: bool,
    /// A record in the file was found damaged.
    damaged: AtomicBool,
    limit: u64,
}

impl Writer {
    /// Begins a journal at `path`, in the place of what may be there. The file is readable and writable for this user only.
    ///
    /// # Errors
    /// The file cannot be made, or `meta.about` is longer than a header can be (about 1 MiB).
    pub fn create(path: &Path, meta: &Meta) -> Result<Writer, JournalError> {
        Writer::with_limit(path, meta, u64::MAX)
    }

    /// As [`Writer::create`]; the file never gets longer than `limit` bytes.
    ///
    /// # Errors
    /// As [`Writer::create`], and if even an empty journal is too long.
    pub fn with_limit(path: &Path, meta: &Meta, limit: u64) -> Result<Writer, JournalError> {
        let bytes = header::encode(meta)?;
        let mut file = Mapped::create(path, bytes.len(), limit)?;
        file.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        file.publish(path)?;
        Ok(Writer {
            file,
            path: path.to_owned(),
            header: bytes.len(),
            used: bytes.len(),
            records: 0,
            live: Live::new(),
            count_at: bytes.len() + DEAD_BYTES,
            complete: true,
            damaged: AtomicBool::new(false),
            limit,
        })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// The file cannot grow, or a part of the record is longer than the format allows. The record is lost then, so the journal
    /// is not complete any more and every later record is refused ([`JournalError::Incomplete`]).
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
        self.file.reserve(end, &self.path)?;
        record::encode(r, &mut self.file.bytes_mut()[self.used..end]);
        self.file.publish_word(self.used, len);
        self.live.feed(Edges::from(r), Place::new(self.used, len as usize));
        self.used = end;
        self.records += 1;
        Ok(())
    }

    /// Forgets dead records, and rewrites the file if they are most of it.
    fn tidy(&mut self) {
        self.live.sweep();
        let live: usize = self.live.kept().map(|p| p.len()).sum();
        let dead = self.used - self.header - live;
        if dead > DEAD_BYTES && dead > DEAD_RATIO * live {
            // If there is no room for a second file the first one goes on.
            let _ = self.rewrite(live);
        }
        self.count_at = self.used + live.max(DEAD_BYTES);
    }

    /// Writes a fresh file with what [`Live`] keeps and gives it the name.
    fn rewrite(&mut self, live: usize) -> Result<(), JournalError> {
        let mut fresh = Mapped::create(&self.path, self.header + live, self.limit)?;
        let (old, new) = (self.file.bytes(), fresh.bytes_mut());
        new[..self.header].copy_from_slice(&old[..self.header]);
        let mut at = self.header;
        for p in self.live.kept() {
            new[at..at + p.len()].copy_from_slice(&old[p.offset()..p.offset() + p.len()]);
            at += p.len();
        }
        fresh.publish(&self.path)?;
        let mut at = self.header;
        for p in self.live.kept_mut() {
            *p = Place::new(at, p.len());
            at += p.len();
        }
        self.used = at;
        // The old file is not cut: whoever is reading it reads it to its end.
        self.file = fresh;
        Ok(())
    }

    /// Whether every record is there: false once one could not be written, or was found damaged in the file. The job may go on,
    /// but cannot be moved.
    pub fn is_complete(&self) -> bool {
        self.complete && !self.damaged.load(Ordering::Relaxed)
    }

    /// What a fresh place must replay, in order; the rules are those of [`crate::live_of`].
    ///
    /// Each record's checksum is compared. If the mapped file has been damaged (by a stray write of the program) the records
    /// end there and [`Writer::is_complete`] becomes false; [`Writer::checked_live`] says it as an error.
    pub fn live(&self) -> impl Iterator<Item = OwnedRecord> {
        self.decoded().map_while(|r| r.inspect_err(|_| self.damaged.store(true, Ordering::Relaxed)).ok())
    }

    /// As [`Writer::live`], all at once.
    ///
    /// # Errors
    /// The journal is not complete, or a live record has been damaged in the file.
    pub fn checked_live(&self) -> Result<Vec<OwnedRecord>, JournalError> {
        if !self.is_complete() {
            return Err(JournalError::Incomplete);
        }
        self.decoded().collect::<Result<_, _>>().inspect_err(|_| self.damaged.store(true, Ordering::Relaxed))
    }

    fn decoded(&self) -> impl Iterator<Item = Result<OwnedRecord, JournalError>> {
        self.live.iter().zip(0..).map(|(p, number)| {
            record::decode(&self.file.bytes()[p.offset()..p.offset() + p.len()]).map_err(|what| JournalError::Record {
                number,
                offset: p.offset() as u64,
                what,
            })
        })
    }

    /// Number of records that a fresh place must replay.
    pub fn live_count(&self) -> usize {
        self.live.iter().count()
    }

    /// Number of records appended in all.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Length of the file in bytes, without what is allocated ahead.
    pub fn bytes(&self) -> u64 {
        self.used as u64
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.file.cut(self.used as u64);
    }
}
