//! The entries of a fat binary.

use super::cubin::Cubin;
use super::kind::{Entry, EntryKind, ImageError, Result, Room, trim_zeros};
use super::source::{u16_at, u32_at, u64_at};
use std::borrow::Cow;
use std::io::Read;

/// Bytes of the fixed part of an entry's header.
const ENTRY_HEADER: usize = 64;
const PTX: u16 = 1;
const CUBIN: u16 = 2;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// Code for one architecture (`sm_90a`), or for one family of them (`sm_100f`).
const SPECIFIC: u64 = 0x0010_0000 | 0x0020_0000;
/// Maximum decompressed size of an entry; a larger one is treated as a decompression bomb.
const MAX_ENTRY: u64 = 1 << 30;
/// One byte of an LZ4 block decompresses to at most 255 bytes.
const LZ4_RATIO: u64 = 255;
/// Typical compression ratio of compilers' code.
const LIKELY: u64 = 16;
/// Minimum size of the first output buffer.
const FIRST: u64 = 1024;

/// An entry as it is stored.
struct Stored<'a> {
    header: &'a [u8],
    payload: &'a [u8],
}

/// Calls `f` with each stored entry, or with the error in it.
fn walk<'a>(bytes: &'a [u8], f: &mut dyn FnMut(usize, Stored<'a>) -> Result<()>) -> Result<()> {
    let mut at = usize::from(u16_at(bytes, 6));
    let mut number = 0;
    while at < bytes.len() {
        let damaged = |what| ImageError::Damaged { what, at: at as u64 };
        let rest = &bytes[at..];
        if rest.len() < ENTRY_HEADER {
            // Padding after the last entry.
            return if rest.iter().all(|b| *b == 0) { Ok(()) } else { Err(damaged("header of an entry")) };
        }
        let header = u32_at(rest, 0x04) as usize;
        let end = usize::try_from(u64_at(rest, 0x08)).ok().and_then(|size| size.checked_add(header));
        let Some(end) = end.filter(|end| header >= ENTRY_HEADER && *end <= rest.len()) else {
            return Err(damaged("size of an entry"));
        };
        f(number, Stored { header: &rest[..header], payload: &rest[header..end] })?;
        at += end;
        number += 1;
    }
    Ok(())
}

impl Stored<'_> {
    fn kind(&self) -> EntryKind {
        match u16_at(self.header, 0x00) {
            PTX => EntryKind::Ptx,
            CUBIN => EntryKind::Cubin,
            _ => EntryKind::Other,
        }
    }

    /// Its compute capability; 0 if unspecified.
    fn sm(&self) -> u32 {
        u32_at(self.header, 0x1C)
    }

    /// Whether a driver may use it for a GPU of this capability. A cubin is for GPUs of one generation, PTX for its
    /// target and later ones; in doubt the answer is yes.
    fn may_run_on(&self, capability: u32) -> bool {
        let (sm, same_generation) = (self.sm(), generation(self.sm()) == generation(capability));
        sm == 0
            || match self.kind() {
                EntryKind::Cubin => same_generation,
                EntryKind::Ptx => same_generation || sm <= capability,
                EntryKind::Other => true,
            }
    }
}

/// GPUs that run each other's code have the same generation. A GPU of 10.1 was later renamed to 11.0.
fn generation(capability: u32) -> u32 {
    match capability / 10 {
        11 => 10,
        major => major,
    }
}

/// Calls `f` with each entry of the fat binary that a GPU of this capability may use (or any GPU, without one), or with
/// the error in it.
pub(super) fn visit<'a>(
    bytes: &'a [u8],
    room: &mut Room,
    capability: Option<u32>,
    f: &mut dyn FnMut(Result<Entry<'a>>) -> Result<()>,
) -> Result<()> {
    let Some(capability) = capability else { return visit_some(bytes, room, &mut |_| true, f) };
    let mut finished = false;
    visit_some(bytes, room, &mut |stored| stored.kind() != EntryKind::Ptx && stored.may_run_on(capability), &mut |entry| {
        let exact = |e: &Entry<'_>| e.kind == EntryKind::Cubin && e.sm == capability && Cubin::parse(&e.bytes).is_ok();
        finished |= entry.as_ref().is_ok_and(exact);
        f(entry)
    })?;
    // A driver takes one entry, and prefers finished code for its GPU to PTX of the same source.
    visit_some(bytes, room, &mut |stored| !finished && stored.kind() == EntryKind::Ptx && stored.may_run_on(capability), f)
}

/// Calls `f` with each entry that is `wanted`, or with the error in it.
fn visit_some<'a>(
    bytes: &'a [u8],
    room: &mut Room,
    wanted: &mut dyn FnMut(&Stored<'_>) -> bool,
    f: &mut dyn FnMut(Result<Entry<'a>>) -> Result<()>,
) -> Result<()> {
    walk(bytes, &mut |number, stored| {
        if !wanted(&stored) {
            return Ok(());
        }
        match decode(&stored, number, room) {
            // Entries after it would be too much as well.
            Err(e @ ImageError::TooLarge { .. }) => Err(e),
            entry => f(entry),
        }
    })
}

/// Rebuilds the fat binary with each decompressed entry replaced by the result of `change`, or removed if there is
/// none.
pub(super) fn rebuild(bytes: &[u8], room: &mut Room, change: &mut dyn FnMut(Entry<'_>) -> Option<Vec<u8>>) -> Result<Vec<u8>> {
    let own = usize::from(u16_at(bytes, 6));
    let mut made = bytes.get(..own).unwrap_or_default().to_vec();
    walk(bytes, &mut |number, stored| {
        let entry = decode(&stored, number, room)?;
        let is_text = entry.kind == EntryKind::Ptx;
        let Some(mut body) = change(entry) else { return Ok(()) };
        body.resize(body.len() + usize::from(is_text), 0);
        body.resize(body.len().next_multiple_of(8), 0);
        let mut header = stored.header.to_vec();
        header[0x08..0x10].copy_from_slice(&(body.len() as u64).to_le_bytes());
        // Nothing is compressed, so the sizes for that are zero.
        header[0x10..0x14].fill(0);
        header[0x38..0x40].fill(0);
        let flags = u64_at(&header, 0x28) & !(LZ4 | ZSTD);
        header[0x28..0x30].copy_from_slice(&flags.to_le_bytes());
        made.extend_from_slice(&header);
        made.extend_from_slice(&body);
        Ok(())
    })?;
    let size = (made.len() - own.min(made.len())) as u64;
    let room = made.get_mut(0x08..0x10).ok_or(ImageError::Damaged { what: "header of a fat binary", at: 0 })?;
    room.copy_from_slice(&size.to_le_bytes());
    Ok(made)
}

fn decode<'a>(stored: &Stored<'a>, number: usize, room: &mut Room) -> Result<Entry<'a>> {
    let Stored { header, payload } = *stored;
    let kind = stored.kind();
    let flags = u64_at(header, 0x28);
    let (packed, expected) = (u32_at(header, 0x10) as usize, u64_at(header, 0x38));
    let failed = || ImageError::Compression { entry: number };
    let mut bytes = if kind == EntryKind::Other || flags & (LZ4 | ZSTD) == 0 {
        Cow::Borrowed(payload)
    } else {
        let packed = if packed == 0 { payload } else { payload.get(..packed).ok_or_else(failed)? };
        let most = room.0.min(MAX_ENTRY);
        let unpacked = if flags & ZSTD != 0 { unpack_zstd(packed, most) } else { unpack_lz4(packed, expected, most) };
        match unpacked {
            Unpacked::All(bytes) => Cow::Owned(bytes),
            Unpacked::TooMuch => return Err(ImageError::TooLarge { size: most + 1 }),
            Unpacked::Damaged => return Err(failed()),
        }
    };
    room.take(bytes.len() as u64)?;
    if kind == EntryKind::Ptx {
        let text = trim_zeros(&bytes).len();
        match &mut bytes {
            Cow::Borrowed(bytes) => *bytes = &bytes[..text],
            Cow::Owned(bytes) => bytes.truncate(text),
        }
    }
    Ok(Entry { kind, sm: stored.sm(), arch_specific: flags & SPECIFIC != 0, bytes })
}

/// Result of decompression.
enum Unpacked {
    All(Vec<u8>),
    /// More than the limit.
    TooMuch,
    Damaged,
}

/// Memory grows with the output, up to `most`.
fn unpack_zstd(packed: &[u8], most: u64) -> Unpacked {
    let mut bytes = Vec::new();
    // One frame only: what follows it is padding.
    let Ok(decoder) = zstd::stream::read::Decoder::with_buffer(packed) else { return Unpacked::Damaged };
    match decoder.single_frame().take(most.saturating_add(1)).read_to_end(&mut bytes) {
        Err(_) => Unpacked::Damaged,
        Ok(n) if n as u64 > most => Unpacked::TooMuch,
        Ok(_) => Unpacked::All(bytes),
    }
}

/// The expected size is a hint: old tools omitted it or wrote too small a value. The output cannot exceed [`LZ4_RATIO`]
/// times the input, and the buffer doubles only while it proves too small.
fn unpack_lz4(packed: &[u8], expected: u64, most: u64) -> Unpacked {
    let possible = (packed.len() as u64).saturating_mul(LZ4_RATIO).max(FIRST);
    let most = possible.min(most);
    // The buffer is allocated and zeroed before there is any output, so a first size that is merely claimed must be
    // bounded.
    let mut size = expected.min((packed.len() as u64).saturating_mul(LIKELY)).max(FIRST).min(most);
    loop {
        match lz4_flex::block::decompress(packed, size as usize) {
            Ok(bytes) => return Unpacked::All(bytes),
            Err(lz4_flex::block::DecompressError::OutputTooSmall { .. }) if size < most => size = (size * 2).min(most),
            Err(lz4_flex::block::DecompressError::OutputTooSmall { .. }) if most < possible => return Unpacked::TooMuch,
            Err(_) => return Unpacked::Damaged,
        }
    }
}
