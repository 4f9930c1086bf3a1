//! Determines an image's kind from its first bytes, and its length from its headers.

use super::kind::{ImageError, Kind, MAX_IMAGE, Result};
use super::source::{Source, u16_at, u32_at, u64_at};
use std::ops::Range;

const FATBIN_MAGIC: u32 = 0xBA55_ED50;
/// Bytes before a fat binary's first entry.
const FATBIN_HEADER: u64 = 16;
const ELF_MAGIC: &[u8] = b"\x7fELF";
const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";
const MEMBER_HEADER: u64 = 60;
/// Maximum size of an ELF header or section table; a larger one is damaged.
const MAX_TABLE: u64 = 64 << 20;

/// Kind (never a wrapper) and length of what starts at `s`.
pub(super) fn of<S: Source + ?Sized>(s: &S) -> Result<(Kind, u64)> {
    let mut head = [0; 8];
    // A text may be shorter than eight bytes: unreadable bytes stay zero and match nothing.
    if s.read(0, &mut head).is_err() {
        head = [0; 8];
    }
    let (kind, len) = if u32_at(&head, 0) == FATBIN_MAGIC {
        (Kind::Fatbin, of_fatbin(s)?)
    } else if head.starts_with(ELF_MAGIC) {
        (Kind::Cubin, of_elf(s)?)
    } else if head == ARCHIVE_MAGIC {
        (Kind::Archive, of_archive(s)?)
    } else {
        match s.text_len()? {
            0 | 1 => {
                return Err(ImageError::Damaged { what: "empty text", at: 0 });
            }
            len => (Kind::Ptx, len),
        }
    };
    if len > MAX_IMAGE { Err(ImageError::TooLarge { size: len }) } else { Ok((kind, len)) }
}

fn of_fatbin<S: Source + ?Sized>(s: &S) -> Result<u64> {
    let mut header = [0; FATBIN_HEADER as usize];
    s.read(0, &mut header)?;
    let own = u64::from(u16_at(&header, 6));
    if own < FATBIN_HEADER {
        return Err(ImageError::Damaged { what: "header size of a fat binary", at: 6 });
    }
    own.checked_add(u64_at(&header, 8)).ok_or(ImageError::TooLarge { size: u64::MAX })
}

/// The section types that occupy no bytes in the file: none, ordinary zero-initialised memory, and the vendor's own types
/// for global, local and shared memory, which relocatable cubins use.
pub(super) fn no_bytes(section_type: u32) -> bool {
    matches!(section_type, 0 | 8 | 0x7000_0007 | 0x7000_0009 | 0x7000_000A | 0x7000_0015)
}

/// The location of an ELF file's tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct ElfTables {
    /// Offset of the section table and number of its 64-byte rows.
    pub(super) sections: (u64, u64),
    /// Number of the section that holds the names of the sections.
    pub(super) names: u64,
    /// Offset of the program header table and number of its 56-byte rows.
    programs: (u64, u64),
}

/// Bytes of a row of the section table.
pub(super) const SECTION_ROW: u64 = 64;
const PROGRAM_ROW: u64 = 56;

/// Reads an ELF header; counts that do not fit it are in the first row of the section table.
pub(super) fn elf_tables<S: Source + ?Sized>(s: &S) -> Result<ElfTables> {
    let mut h = [0; 64];
    s.read(0, &mut h)?;
    let damaged = |what, at| Err(ImageError::Damaged { what, at });
    if h[4] != 2 || h[5] != 1 {
        return damaged("ELF class or byte order", 4);
    }
    let (phoff, shoff) = (u64_at(&h, 0x20), u64_at(&h, 0x28));
    let (mut phnum, mut shnum, mut names) =
        (u64::from(u16_at(&h, 0x38)), u64::from(u16_at(&h, 0x3C)), u64::from(u16_at(&h, 0x3E)));
    if shoff != 0 && (shnum == 0 || phnum == 0xFFFF || names == 0xFFFF) {
        let mut first = [0; SECTION_ROW as usize];
        s.read(shoff, &mut first)?;
        if shnum == 0 {
            shnum = u64_at(&first, 0x20);
        }
        if phnum == 0xFFFF {
            phnum = u64::from(u32_at(&first, 0x2C));
        }
        if names == 0xFFFF {
            names = u64::from(u32_at(&first, 0x28));
        }
    }
    if phnum != 0 && u64::from(u16_at(&h, 0x36)) != PROGRAM_ROW {
        return damaged("size of a program header", 0x36);
    }
    if shnum != 0 && u64::from(u16_at(&h, 0x3A)) != SECTION_ROW {
        return damaged("size of a section header", 0x3A);
    }
    if phnum > MAX_TABLE / PROGRAM_ROW || shnum > MAX_TABLE / SECTION_ROW {
        return damaged("number of headers", 0x38);
    }
    Ok(ElfTables { sections: (shoff, shnum), names, programs: (phoff, phnum) })
}

fn of_elf<S: Source + ?Sized>(s: &S) -> Result<u64> {
    let t = elf_tables(s)?;
    let mut end = 64;
    let mut reach = |from: u64, len: u64| match from.checked_add(len) {
        Some(to) if to <= MAX_IMAGE => {
            end = end.max(to);
            Ok(())
        }
        to => Err(ImageError::TooLarge { size: to.unwrap_or(u64::MAX) }),
    };
    if t.programs.1 != 0 {
        reach(t.programs.0, t.programs.1 * PROGRAM_ROW)?;
        for row in s.copy_from(t.programs.0, t.programs.1 * PROGRAM_ROW)?.chunks_exact(PROGRAM_ROW as usize) {
            reach(u64_at(row, 0x08), u64_at(row, 0x20))?;
        }
    }
    if t.sections.1 != 0 {
        reach(t.sections.0, t.sections.1 * SECTION_ROW)?;
        for row in s.copy_from(t.sections.0, t.sections.1 * SECTION_ROW)?.chunks_exact(SECTION_ROW as usize) {
            if !no_bytes(u32_at(row, 0x04)) {
                reach(u64_at(row, 0x18), u64_at(row, 0x20))?;
            }
        }
    }
    Ok(end)
}

/// An archive does not contain its number of members: it ends where no member header follows.
fn of_archive<S: Source + ?Sized>(s: &S) -> Result<u64> {
    let mut end = ARCHIVE_MAGIC.len() as u64;
    while let Some(size) = member_size(s, end) {
        // A member that starts on an odd byte is preceded by a newline; the last member may lack it.
        let body_end = end.checked_add(MEMBER_HEADER + size).ok_or(ImageError::TooLarge { size: u64::MAX })?;
        if body_end > MAX_IMAGE {
            return Err(ImageError::TooLarge { size: body_end });
        }
        let mut pad = [0];
        let padded = body_end % 2 == 1 && s.read(body_end, &mut pad).is_ok() && pad == *b"\n";
        end = body_end + u64::from(padded);
    }
    Ok(end)
}

/// Length of the archive member whose header is at `at`; `None` if there is no header.
fn member_size<S: Source + ?Sized>(s: &S, at: u64) -> Option<u64> {
    let mut h = [0; MEMBER_HEADER as usize];
    s.read(at, &mut h).ok()?;
    if h[58..] != *b"`\n" {
        return None;
    }
    std::str::from_utf8(&h[48..58]).ok()?.trim_end().parse().ok()
}

/// The ranges of an archive's members, without its tables of symbols and names.
pub(super) fn members(bytes: &[u8]) -> Result<Vec<Range<usize>>> {
    let mut all = Vec::new();
    let mut at = ARCHIVE_MAGIC.len();
    while let Some(size) = member_size(bytes, at as u64) {
        let from = at + MEMBER_HEADER as usize;
        let to = usize::try_from(size).ok().and_then(|size| from.checked_add(size)).filter(|to| *to <= bytes.len());
        let Some(to) = to else {
            return Err(ImageError::Damaged { what: "size of an archive member", at: at as u64 });
        };
        // Ordinary members are named "name/" or "/number"; the tables are "/", "//" and "/SYM64/".
        let name = bytes[at..at + 16].trim_ascii_end();
        if !matches!(name, b"/" | b"//" | b"/SYM64/") {
            all.push(from..to);
        }
        at = to + usize::from(to % 2 == 1 && bytes.get(to) == Some(&b'\n'));
    }
    Ok(all)
}
