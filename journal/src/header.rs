//! The header of a journal file: which build wrote it, for which job.
//!
//! ```text
//!  0 [u8; 8] "MRCUDAJ\0"        8 u32 format version    12 u32 length of the header, a multiple of 4096
//! 16 [u8; 32] build digest     48 u32 process id       52 i32 driver version
//! 56 u64 creation time         64 u32 bytes of text    68 u32 CRC-32 of the header with these four bytes zero
//! 72 text; zeros up to the length
//! ```
//! All numbers are little endian.

use crate::JournalError;

pub(crate) const MAGIC: [u8; 8] = *b"MRCUDAJ\0";
/// Format version that this build writes and reads. docs/journal-format.md lists what each version changed.
pub(crate) const VERSION: u32 = 5;
/// Bytes after the last record: zeros while the file is being written, [`end_mark`] once it has been closed.
pub(crate) const END: usize = 16;
/// Follows a zero word where the job has closed the file.
const CLOSED: [u8; 4] = *b"END\n";

/// The end mark of a journal that was closed with `at` bytes before it.
pub(crate) fn end_mark(at: u64) -> [u8; END] {
    let mut mark = [0; END];
    mark[4..8].copy_from_slice(&CLOSED);
    mark[8..].copy_from_slice(&at.to_le_bytes());
    mark
}

/// Number of bytes before the text.
pub(crate) const FIXED: usize = 72;
const PAGE: usize = 4096;
/// Maximum header length; a longer one is invalid.
const MAX_HEADER: usize = 1 << 20;
const CRC: std::ops::Range<usize> = 68..72;

/// The metadata of a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Digest of the build that wrote the journal; only the same build can replay it.
    pub build: [u8; 32],
    /// The job's process id.
    pub pid: u32,
    /// Creation time, in seconds since 1970.
    pub created_unix: u64,
    /// The driver's version, as returned by `cuDriverGetVersion`.
    pub driver_version: i32,
    /// Text of the writer's choice, by convention JSON: the identity of the device.
    pub about: String,
}

/// The bytes of a header. Fails if the text is too long for it.
pub(crate) fn encode(meta: &Meta) -> Result<Vec<u8>, JournalError> {
    let limit = MAX_HEADER - FIXED;
    if meta.about.len() > limit {
        return Err(JournalError::TooLarge { what: "text in the header", len: meta.about.len(), limit });
    }
    let len = (FIXED + meta.about.len()).next_multiple_of(PAGE);
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.extend_from_slice(&meta.build);
    out.extend_from_slice(&meta.pid.to_le_bytes());
    out.extend_from_slice(&meta.driver_version.to_le_bytes());
    out.extend_from_slice(&meta.created_unix.to_le_bytes());
    out.extend_from_slice(&(meta.about.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(meta.about.as_bytes());
    out.resize(len, 0);
    seal(&mut out);
    Ok(out)
}

/// Writes the checksum into a header.
pub(crate) fn seal(header: &mut [u8]) {
    header[CRC].fill(0);
    let crc = crc32fast::hash(header);
    header[CRC].copy_from_slice(&crc.to_le_bytes());
}

fn bad(what: &'static str) -> JournalError {
    JournalError::Header { what }
}

fn word(fixed: &[u8; FIXED], at: usize) -> u32 {
    u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
}

/// Returns the length of the whole header, from its fixed part.
pub(crate) fn len(fixed: &[u8; FIXED]) -> Result<usize, JournalError> {
    if fixed[..8] != MAGIC {
        return Err(JournalError::NotAJournal);
    }
    let found = word(fixed, 8);
    if found != VERSION {
        return Err(JournalError::Version { found, known: VERSION });
    }
    let len = word(fixed, 12) as usize;
    if len == 0 || !len.is_multiple_of(PAGE) || len > MAX_HEADER {
        return Err(bad("its length is impossible"));
    }
    Ok(len)
}

/// Decodes a whole header; `bytes` has the length that [`len`] returned.
pub(crate) fn decode(bytes: &[u8]) -> Result<Meta, JournalError> {
    let fixed = bytes.first_chunk::<FIXED>().ok_or(bad("it is cut short"))?;
    if len(fixed)? != bytes.len() {
        return Err(bad("it is cut short"));
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..CRC.start]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[CRC.end..]);
    if word(fixed, CRC.start) != hasher.finalize() {
        return Err(bad("its checksum is wrong"));
    }
    let text = bytes[FIXED..].get(..word(fixed, 64) as usize).ok_or(bad("its text is longer than itself"))?;
    let mut build = [0; 32];
    build.copy_from_slice(&fixed[16..48]);
    let mut created = [0; 8];
    created.copy_from_slice(&fixed[56..64]);
    Ok(Meta {
        build,
        pid: word(fixed, 48),
        created_unix: u64::from_le_bytes(created),
        driver_version: word(fixed, 52) as i32,
        about: std::str::from_utf8(text).map_err(|_| bad("its text is not UTF-8"))?.to_owned(),
    })
}
