//! The fields of a record and their encoding.
//!
//! ```text
//!  0 u32 length of the record, a multiple of 8 (0: no record here yet)
//!  4 u32 checksum ([`Sum`]) of the length and of everything from byte 8 on
//!  8 u64 sequence number        16 u16 call id          18 u16 role (bits 0 to 2) and flags (8 ends a handle, 16 is a setting)
//! 20 u32 device                 24 u32 bytes of body    28 u32 bytes of reply
//! 32 u32 handles created        36 u32 handles used
//! 40 u64 × created, the ended handle if any, u64 × used, u64 × 2 of the setting if it is one; body; reply; zeros up to the length
//! ```
//! All numbers are little endian. A record is a sequence of words of 64 bits, so that its lists can be viewed where they
//! are; a view borrows from the storage and copies nothing.

use crate::{JournalError, words};

/// The longest body or reply, in bytes (a module image may be that long).
pub const MAX_PAYLOAD: usize = 1 << 30;
/// Maximum number of handles in each list of a record.
const MAX_HANDLES: usize = 1 << 20;
/// Bytes before the handles.
pub(crate) const FIXED: usize = 40;
/// Maximum length of a record: both payloads, both lists, one destroyed handle, one setting.
const MAX_RECORD: usize = FIXED + 2 * MAX_PAYLOAD + 16 * MAX_HANDLES + 32;

const ROLE: u16 = 7;
const ENDS: u16 = 8;
const SETTING: u16 = 16;

/// What decides, beside the record's handles, whether it must be replayed. The rules are in [`crate::live_of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Role {
    /// Only its handles decide.
    #[default]
    Plain = 0,
    /// It is always kept, because later records depend on its effect.
    Stays = 1,
    /// It loads code, which affects the addresses of code that is loaded later.
    Load = 2,
    /// As [`Role::Load`], for code without variables.
    LightLoad = 3,
    /// What it creates is destroyed with the first handle that it uses.
    Child = 4,
}

impl Role {
    fn from_bits(bits: u16) -> Option<Role> {
        [Role::Plain, Role::Stays, Role::Load, Role::LightLoad, Role::Child].get(usize::from(bits)).copied()
    }
}

/// A call to be journalled, or a view of one that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Number of the call in the job's order.
    pub seq: u64,
    /// Id of the call.
    pub id: u16,
    /// What decides, beside its handles, whether it must be replayed.
    pub role: Role,
    /// The setting that it changes, if the next record with the same pair replaces it: the object, and the kind of
    /// setting.
    pub setting: Option<[u64; 2]>,
    /// Virtual device index.
    pub device: u32,
    /// Handles that the call created.
    pub creates: &'a [u64],
    /// The handle that the call destroyed.
    pub ends: Option<u64>,
    /// Handles that the call affects or needs.
    pub uses: &'a [u64],
    /// Encoded arguments.
    pub body: &'a [u8],
    /// Encoded answer.
    pub reply: &'a [u8],
}

/// A [`Record`] that owns its memory, for those that outlive the storage from which they were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedRecord {
    /// See [`Record::seq`].
    pub seq: u64,
    /// See [`Record::id`].
    pub id: u16,
    /// See [`Record::role`].
    pub role: Role,
    /// See [`Record::setting`].
    pub setting: Option<[u64; 2]>,
    /// See [`Record::device`].
    pub device: u32,
    /// See [`Record::creates`].
    pub creates: Vec<u64>,
    /// See [`Record::ends`].
    pub ends: Option<u64>,
    /// See [`Record::uses`].
    pub uses: Vec<u64>,
    /// See [`Record::body`].
    pub body: Vec<u8>,
    /// See [`Record::reply`].
    pub reply: Vec<u8>,
}

impl OwnedRecord {
    /// The same record, borrowed.
    pub fn as_record(&self) -> Record<'_> {
        Record {
            seq: self.seq,
            id: self.id,
            role: self.role,
            setting: self.setting,
            device: self.device,
            creates: &self.creates,
            ends: self.ends,
            uses: &self.uses,
            body: &self.body,
            reply: &self.reply,
        }
    }
}

impl From<Record<'_>> for OwnedRecord {
    fn from(r: Record<'_>) -> OwnedRecord {
        OwnedRecord {
            seq: r.seq,
            id: r.id,
            role: r.role,
            setting: r.setting,
            device: r.device,
            creates: r.creates.to_vec(),
            ends: r.ends,
            uses: r.uses.to_vec(),
            body: r.body.to_vec(),
            reply: r.reply.to_vec(),
        }
    }
}

fn limited(what: &'static str, len: usize, limit: usize) -> Result<u32, JournalError> {
    if len > limit {
        return Err(JournalError::TooLarge { what, len, limit });
    }
    // Both limits are below 2^32.
    Ok(len as u32)
}

/// The length of `r` in the file, in bytes; an error if a part of it is too long.
pub(crate) fn encoded_len(r: &Record) -> Result<u32, JournalError> {
    limited("body", r.body.len(), MAX_PAYLOAD)?;
    limited("reply", r.reply.len(), MAX_PAYLOAD)?;
    limited("list of created handles", r.creates.len(), MAX_HANDLES)?;
    limited("list of used handles", r.uses.len(), MAX_HANDLES)?;
    let handles = r.creates.len() + r.uses.len() + usize::from(r.ends.is_some()) + 2 * usize::from(r.setting.is_some());
    let len = (FIXED + 8 * handles + r.body.len() + r.reply.len()).next_multiple_of(8);
    limited("bytes", len, MAX_RECORD)
}

/// Writes `r` into `out`, whose length is that of [`encoded_len`], except for the first word, which it returns: writing
/// that publishes the record.
pub(crate) fn encode(r: &Record, out: &mut [u64]) -> u64 {
    let len = size_of_val(out);
    let pair = |low: usize, high: usize| low as u64 | (high as u64) << 32;
    let flags = r.role as u16 | if r.ends.is_some() { ENDS } else { 0 } | if r.setting.is_some() { SETTING } else { 0 };
    let fixed = [
        r.seq,
        u64::from(r.id) | u64::from(flags) << 16 | u64::from(r.device) << 32,
        pair(r.body.len(), r.reply.len()),
        pair(r.creates.len(), r.uses.len()),
    ];
    let mut sum = Sum::of(len);
    let mut rest = &mut out[1..];
    for words in [&fixed[..], r.creates, r.ends.as_slice(), r.uses, r.setting.as_slice().as_flattened()] {
        let (to, after) = rest.split_at_mut(words.len());
        for (to, word) in to.iter_mut().zip(words) {
            *to = *word;
            sum.add(*word);
        }
        rest = after;
    }
    // The last word may be padded with zeros.
    if let Some(last) = rest.last_mut() {
        *last = 0;
    }
    let (body, reply) = words::bytes_mut(rest).split_at_mut(r.body.len());
    body.copy_from_slice(r.body);
    if !r.reply.is_empty() {
        reply[..r.reply.len()].copy_from_slice(r.reply);
    }
    sum.add_all(rest);
    pair(len, sum.value() as usize)
}

/// A checksum over 64-bit words. It need only detect damage, and computing it is most of the cost of a short record.
/// Each word is mixed into the older of two halves, so that no step depends on the multiplication just before it.
pub(crate) struct Sum {
    older: u64,
    newer: u64,
}

impl Sum {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Starts the checksum of a record of this many bytes.
    pub(crate) fn of(len: usize) -> Sum {
        let mut sum = Sum { older: 0, newer: 0 };
        sum.add(len as u64);
        sum
    }

    #[inline]
    fn add(&mut self, word: u64) {
        let mixed = (self.older.rotate_left(5) ^ word).wrapping_mul(Sum::FACTOR);
        (self.older, self.newer) = (self.newer, mixed);
    }

    pub(crate) fn add_all(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.add(*word));
    }

    pub(crate) fn value(mut self) -> u32 {
        self.add(self.newer);
        let all = self.newer;
        ((all ^ all >> 32).wrapping_mul(Sum::FACTOR) >> 32) as u32
    }
}

/// Checks a record's length word.
pub(crate) fn check_len(len: u32) -> Result<usize, &'static str> {
    let len = len as usize;
    if !len.is_multiple_of(8) {
        return Err("its length is not a multiple of 8");
    }
    if len < FIXED {
        return Err("its length is less than that of its fixed fields");
    }
    if len > MAX_RECORD {
        return Err("its length is beyond the format's limit");
    }
    Ok(len)
}

/// Views the record in `words`, from its first word to its last, after verifying its checksum. The error names what is
/// wrong with it.
pub(crate) fn checked(words: &[u64]) -> Result<Record<'_>, &'static str> {
    let Some((first, rest)) = words.split_first() else { return Err(SHORT) };
    if check_len(*first as u32)? != size_of_val(words) {
        return Err("its length word does not fit");
    }
    let mut sum = Sum::of(size_of_val(words));
    sum.add_all(rest);
    if (*first >> 32) as u32 != sum.value() {
        return Err("its checksum is wrong");
    }
    view(words)
}

const SHORT: &str = "its fields are longer than the record";

/// As [`checked`], for a record whose checksum has been verified.
pub(crate) fn view(words: &[u64]) -> Result<Record<'_>, &'static str> {
    let &[_, seq, call, payloads, lists, ref rest @ ..] = words else { return Err(SHORT) };
    let flags = (call >> 16) as u16;
    let role = Role::from_bits(flags & ROLE).filter(|_| flags & !(ROLE | ENDS | SETTING) == 0);
    let role = role.ok_or("it has flags that this version does not know")?;
    let halves = |word: u64| (word as u32 as usize, (word >> 32) as usize);
    let ((body, reply), (creates, uses)) = (halves(payloads), halves(lists));
    if body > MAX_PAYLOAD || reply > MAX_PAYLOAD || creates > MAX_HANDLES || uses > MAX_HANDLES {
        return Err("a length in it is beyond the format's limit");
    }
    let (creates, rest) = rest.split_at_checked(creates).ok_or(SHORT)?;
    let (ends, rest) = rest.split_at_checked(usize::from(flags & ENDS != 0)).ok_or(SHORT)?;
    let (uses, rest) = rest.split_at_checked(uses).ok_or(SHORT)?;
    let (setting, rest) = rest.split_at_checked(if flags & SETTING != 0 { 2 } else { 0 }).ok_or(SHORT)?;
    let (body, rest) = words::bytes(rest).split_at_checked(body).ok_or(SHORT)?;
    let (reply, rest) = rest.split_at_checked(reply).ok_or(SHORT)?;
    if rest.len() >= 8 || rest.iter().any(|b| *b != 0) {
        return Err("its fields are shorter than the record");
    }
    let (ends, setting) = (ends.first().copied(), setting.first_chunk().copied());
    Ok(Record { seq, id: call as u16, role, setting, device: (call >> 32) as u32, creates, ends, uses, body, reply })
}

#[cfg(test)]
mod tests;
