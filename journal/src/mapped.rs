//! A private file that is written through a mapping and grows.
//!
//! The blocks under the mapping are always allocated first, so that a full disk causes an error here and never a SIGBUS
//! in the job.

use crate::JournalError;
use crate::memory::MAX_AHEAD;
use memmap2::{Advice, MmapMut, MmapOptions, RemapOptions};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Growth happens in multiples of this many bytes, and blocks are asked for in pieces of it: a memory file system gives up an
/// allocation at every signal, and a long one might never end in a job that is being profiled.
const PIECE: usize = 1 << 20;
/// How often the allocation of a piece is retried after a signal.
const RETRIES: usize = 1000;

/// The file and its mapping, which always has the file's length. The mapping is not inherited by forked children, the
/// descriptor not by other programs.
#[derive(Debug)]
pub(crate) struct Mapped {
    file: File,
    /// `None` only once the file has been truncated at its end.
    map: Option<MmapMut>,
    pid: u32,
    /// Maximum length of the file, in bytes.
    limit: u64,
}

fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> JournalError + 'a {
    move |source| JournalError::Io { doing, path: path.to_owned(), source }
}

impl Mapped {
    /// Creates a file of `len` zeros, under a temporary name until [`Mapped::name`] gives it the name `path`.
    pub(crate) fn create(path: &Path, len: usize, limit: u64) -> Result<Mapped, JournalError> {
        let draft = draft(path);
        let open = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft);
        let file = match open() {
            // Left by a process that died while writing it: no other process uses this name.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => std::fs::remove_file(&draft).and_then(|()| open()),
            other => other,
        };
        let file = file.map_err(io_error("create", &draft))?;
        let len = len.next_multiple_of(PIECE);
        let mapped = allocate(&file, 0, len, limit).and_then(|()| {
            // SAFETY: the file is ours alone: just made, readable and writable for this user only, and never shortened while mapped.
            let map = unsafe { MmapOptions::new().len(len).map_mut(&file) }?;
            map.advise(Advice::DontFork)?;
            Ok(map)
        });
        match mapped {
            Ok(map) => Ok(Mapped { file, map: Some(map), pid: std::process::id(), limit }),
            Err(e) => {
                // The first error is the one to report.
                let _ = std::fs::remove_file(&draft);
                Err(io_error("allocate", path)(e))
            }
        }
    }

    /// Renames the file to `path`, replacing an existing file.
    pub(crate) fn name(&self, path: &Path) -> Result<(), JournalError> {
        let draft = draft(path);
        std::fs::rename(&draft, path).map_err(|e| {
            // The first error is the one to report.
            let _ = std::fs::remove_file(&draft);
            io_error("name", path)(e)
        })
    }

    /// The contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// The contents, mutable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }

    /// Grows the file to at least `len` bytes; on failure the contents are unchanged.
    pub(crate) fn grow(&mut self, len: usize, path: &Path) -> Result<(), JournalError> {
        let have = self.bytes().len();
        let want = len.max(have + have.min(MAX_AHEAD)).next_multiple_of(PIECE);
        // Close to a limit there may be room for what is needed, but not for more.
        let need = len.next_multiple_of(PIECE);
        let grown = allocate(&self.file, have, want, self.limit)
            .map(|()| want)
            .or_else(|e| if need < want { allocate(&self.file, have, need, self.limit).map(|()| need) } else { Err(e) })
            .map_err(io_error("grow", path))?;
        let Some(map) = &mut self.map else { return Ok(()) };
        // SAFETY: the file has `grown` bytes now, and `&mut self` says that no reference into the old mapping is left.
        unsafe { map.remap(grown, RemapOptions::new().may_move(true)) }.map_err(io_error("map", path))?;
        // The new pages are populated at once: page faults, one for every few records, would be the largest part of the
        // cost. Older kernels do not support this.
        let _ = map.advise_range(Advice::PopulateWrite, have, grown - have);
        // The kernel keeps the advice when it extends a mapping; repeating it costs little compared with the growth.
        map.advise(Advice::DontFork).map_err(io_error("map", path))
    }

    /// Writes `mark` after the first `len` bytes, unmaps the file and truncates it there.
    pub(crate) fn close(&mut self, len: usize, mark: &[u8]) {
        if std::process::id() == self.pid {
            let end = len + mark.len();
            if let Some(room) = self.bytes_mut().get_mut(len..end) {
                room.copy_from_slice(mark);
            }
            drop(self.map.take());
            // A tail of zeros is just as readable, so a failure does not matter.
            let _ = self.file.set_len(end as u64);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            // A forked child does not inherit the mapping: unmapping there would hit whatever the child has mapped at
            // these addresses.
            std::mem::forget(self.map.take());
        }
    }
}

/// Writes a record's first word, with its length, after all others, so that concurrent readers of the file see whole
/// records.
pub(crate) fn publish(place: &mut u64, word: u64) {
    // SAFETY: the word is ours (exclusively borrowed), mapped, and aligned.
    unsafe { AtomicU64::from_ptr(place) }.store(word, Ordering::Release);
}

/// The temporary name of a file.
fn draft(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Allocates the blocks of bytes `from..to`.
fn allocate(file: &File, from: usize, to: usize, limit: u64) -> io::Result<()> {
    // Allocating more than RLIMIT_FSIZE would not only fail: it would kill the job with SIGXFSZ.
    if to as u64 > limit.min(file_size_limit()) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let offset = |n: usize| libc::off_t::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG));
    let mut at = from;
    while at < to {
        let piece = PIECE.min(to - at);
        let (start, len) = (offset(at)?, offset(piece)?);
        let mut tries = 0;
        loop {
            // SAFETY: takes plain numbers; the descriptor is open as long as `file` is borrowed.
            match unsafe { libc::posix_fallocate(file.as_raw_fd(), start, len) } {
                0 => break,
                libc::EINTR if tries < RETRIES => tries += 1,
                code => {
                    // Release what this attempt allocated; if that fails, it is released with the file.
                    let _ = file.set_len(from as u64);
                    return Err(io::Error::from_raw_os_error(code));
                }
            }
        }
        at += piece;
    }
    Ok(())
}

fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one `rlimit`, to memory that is one.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    if rc == 0 { limit.rlim_cur } else { u64::MAX }
}
