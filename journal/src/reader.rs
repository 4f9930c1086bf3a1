//! Reads journals of unknown origin.

use crate::{JournalError, Meta, OwnedRecord, header, record, words};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
enum Source {
    /// Read, not mapped: if another process truncates the file meanwhile, that must be an error, not a SIGBUS.
    File(BufReader<File>, PathBuf),
    Bytes(Cursor<Vec<u8>>),
}

impl Source {
    fn len(&self) -> Result<u64, JournalError> {
        match self {
            Source::File(f, path) => f.get_ref().metadata().map(|m| m.len()).map_err(|e| failed(path, e)),
            Source::Bytes(b) => Ok(b.get_ref().len() as u64),
        }
    }

    /// Fills `out` with the available bytes; returns their number.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize, JournalError> {
        let mut got = 0;
        while got < out.len() {
            let read = match self {
                Source::File(f, _) => f.read(&mut out[got..]),
                Source::Bytes(b) => b.read(&mut out[got..]),
            };
            match (read, &self) {
                (Ok(0), _) => break,
                (Ok(n), _) => got += n,
                (Err(e), _) if e.kind() == io::ErrorKind::Interrupted => {}
                (Err(e), Source::File(_, path)) => return Err(failed(path, e)),
                (Err(e), Source::Bytes(_)) => return Err(failed(Path::new("memory"), e)),
            }
        }
        Ok(got)
    }

    /// Seeks to `offset` and discards what was read ahead; returns false if the bytes cannot have changed.
    fn seek(&mut self, offset: u64) -> Result<bool, JournalError> {
        match self {
            Source::File(f, path) => f.seek(SeekFrom::Start(offset)).map(|_| true).map_err(|e| failed(path, e)),
            Source::Bytes(_) => Ok(false),
        }
    }
}

fn failed(path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { doing: "read", path: path.to_owned(), source }
}

/// A journal being read, record by record. The file may still be growing; each read sees the records published by then.
#[derive(Debug)]
pub struct Reader {
    source: Source,
    meta: Meta,
    /// Offset of the next record.
    offset: u64,
    /// Number of the next record.
    number: u64,
    /// The end or a damaged record was reached.
    ended: bool,
    /// The end was that of a closed journal.
    closed: bool,
}

impl Reader {
    /// Opens a journal and reads its header.
    ///
    /// # Errors
    /// The file cannot be read, is not a journal, or has another version or a damaged header.
    pub fn open(path: &Path) -> Result<Reader, JournalError> {
        let cannot = |source| JournalError::Io { doing: "open", path: path.to_owned(), source };
        // Opening a pipe would block until another process writes.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(cannot)?;
        if !file.metadata().map_err(cannot)?.is_file() {
            return Err(cannot(io::Error::other("it is not a regular file")));
        }
        Reader::begin(Source::File(BufReader::with_capacity(1 << 16, file), path.to_owned()))
    }

    /// Reads a journal that is in memory.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Reader, JournalError> {
        Reader::begin(Source::Bytes(Cursor::new(bytes.into())))
    }

    fn begin(mut source: Source) -> Result<Reader, JournalError> {
        let mut bytes = vec![0; header::FIXED];
        let got = source.fill(&mut bytes)?;
        let cut_short = JournalError::Header { what: "it is cut short" };
        let Some(fixed) = bytes[..got].first_chunk() else {
            let begun = header::MAGIC.starts_with(&bytes[..got.min(header::MAGIC.len())]);
            return Err(if begun { cut_short } else { JournalError::NotAJournal });
        };
        let len = header::len(fixed)?;
        bytes.resize(len, 0);
        if source.fill(&mut bytes[header::FIXED..])? != len - header::FIXED {
            return Err(cut_short);
        }
        let meta = header::decode(&bytes)?;
        Ok(Reader { source, meta, offset: len as u64, number: 0, ended: false, closed: false })
    }

    /// The metadata of the journal.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Whether the job has closed the journal, as its end mark shows. Otherwise the job is still writing it, or ended
    /// abnormally.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The remaining records, in order. An error is the last item, because the offset of the next record is then
    /// unknown.
    pub fn records(&mut self) -> Records<'_> {
        Records { reader: self }
    }

    fn damaged(&self, what: &'static str) -> JournalError {
        JournalError::Record { number: self.number, offset: self.offset, what }
    }

    /// Reads the rest of the record whose length has been read.
    fn rest_of_record(&mut self, record: &mut [u64]) -> Result<OwnedRecord, JournalError> {
        let rest = &mut words::bytes_mut(record)[4..];
        if self.source.fill(rest)? != rest.len() {
            return Err(self.damaged("it is cut short"));
        }
        record::checked(record).map(OwnedRecord::from).map_err(|what| self.damaged(what))
    }

    fn next(&mut self) -> Result<Option<OwnedRecord>, JournalError> {
        let mut word = [0; 4];
        if self.source.fill(&mut word)? < word.len() {
            return Err(self.damaged("it is cut short"));
        }
        if word == [0; 4] {
            let mut mark = [0; header::END];
            if self.source.fill(&mut mark[word.len()..])? < mark.len() - word.len() {
                return Err(self.damaged("it is cut short"));
            }
            // In a file that is being written it may be the beginning of a record that is not yet published.
            self.closed = mark == header::end_mark(self.offset);
            return Ok(None);
        }
        let len = record::check_len(u32::from_le_bytes(word)).map_err(|what| self.damaged(what))?;
        // Compared with the available bytes before memory is allocated.
        if self.offset + len as u64 > self.source.len()? {
            return Err(self.damaged("it is cut short"));
        }
        let mut record = vec![0; len / size_of::<u64>()];
        record[0] = u64::from(u32::from_le_bytes(word));
        let decoded = self.rest_of_record(&mut record).or_else(|why| {
            // The kernel copies file contents in no defined order: while another process writes, the length may be
            // newer than the bytes after it. Having seen the length, a second read returns the whole record.
            if self.source.seek(self.offset + 4)? { self.rest_of_record(&mut record) } else { Err(why) }
        });
        let record = decoded?;
        self.offset += len as u64;
        self.number += 1;
        Ok(Some(record))
    }
}

/// The records of a [`Reader`].
#[derive(Debug)]
pub struct Records<'a> {
    reader: &'a mut Reader,
}

impl Iterator for Records<'_> {
    type Item = Result<OwnedRecord, JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.ended {
            return None;
        }
        let next = self.reader.next().transpose();
        self.reader.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

impl std::iter::FusedIterator for Records<'_> {}
