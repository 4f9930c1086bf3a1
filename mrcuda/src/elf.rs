//! A minimal ELF reader for untrusted files, to determine how a program or library is linked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a 64-bit x86 program or library is linked.
#[derive(Debug, Default)]
pub(crate) struct Elf {
    /// The dynamic linker that it requests; none in static programs and in libraries.
    pub(crate) interpreter: Option<String>,
    /// Whether it is dynamically linked at all.
    pub(crate) dynamic: bool,
    /// Libraries that it needs (`DT_NEEDED`).
    pub(crate) needed: Vec<String>,
    /// Search path with precedence over `LD_LIBRARY_PATH` (`DT_RPATH`, unless there is a `DT_RUNPATH`).
    pub(crate) rpath: Option<String>,
    /// The names of its symbols, concatenated.
    strings: Vec<u8>,
}

/// Maximum number of bytes read of one part; dynamic sections and string tables of the largest libraries are far
/// smaller.
const LARGEST_PART: u64 = 64 << 20;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// A program header: a part of the file that is loaded or described.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// What is wrong with a file; the message follows its name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    /// It cannot be opened.
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    /// It has another format.
    #[error("is not an ELF file")]
    Format,
    /// It is for other processors.
    #[error("is not for 64-bit x86")]
    Machine,
    /// Its program header contradicts itself.
    #[error("has a damaged program header")]
    ProgramHeader,
    /// Its dynamic section contradicts itself.
    #[error("has a damaged dynamic section")]
    Dynamic,
    /// A part is larger than any that is of use.
    #[error("has a part that is too large")]
    TooLarge,
    /// It ends before a part that it names.
    #[error("is cut off")]
    CutOff,
}

impl Elf {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Elf, ElfError> {
        let file = File::open(path).map_err(ElfError::Open)?;
        let head = part(&file, 0, 64)?;
        if head[..4] != *b"\x7fELF" {
            return Err(ElfError::Format);
        }
        // Class 2: 64 bits; data 1: little endian; machine 62: x86-64.
        if head[4] != 2 || head[5] != 1 || half(&head, 18) != 62 {
            return Err(ElfError::Machine);
        }
        let (table, size, count) = (long(&head, 32), u64::from(half(&head, 54)), u64::from(half(&head, 56)));
        if size < 56 {
            return Err(ElfError::ProgramHeader);
        }
        let mut segments = Vec::new();
        for i in 0..count {
            let at = table.checked_add(i * size).ok_or(ElfError::ProgramHeader)?;
            let h = part(&file, at, 56)?;
            segments.push(Segment { kind: word(&h, 0), offset: long(&h, 8), address: long(&h, 16), bytes: long(&h, 32) });
        }
        let mut elf = Elf::default();
        if let Some(s) = segments.iter().find(|s| s.kind == PT_INTERP) {
            elf.interpreter = Some(text(&part(&file, s.offset, s.bytes)?, 0));
        }
        if let Some(s) = segments.iter().find(|s| s.kind == PT_DYNAMIC) {
            elf.dynamic = true;
            elf.read_dynamic(&file, &part(&file, s.offset, s.bytes)?, &segments)?;
        }
        Ok(elf)
    }

    fn read_dynamic(&mut self, file: &File, dynamic: &[u8], segments: &[Segment]) -> Result<(), ElfError> {
        let entries: Vec<(u64, u64)> =
            dynamic.chunks_exact(16).map(|e| (long(e, 0), long(e, 8))).take_while(|(tag, _)| *tag != 0).collect();
        let value = |tag| entries.iter().find(|(t, _)| *t == tag).map(|(_, v)| *v);
        let (Some(address), Some(bytes)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return Ok(()) };
        let home = segments
            .iter()
            .find(|s| s.kind == PT_LOAD && address >= s.address && address - s.address < s.bytes)
            .ok_or(ElfError::Dynamic)?;
        let offset = home.offset.checked_add(address - home.address).ok_or(ElfError::Dynamic)?;
        self.strings = part(file, offset, bytes)?;
        let name = |at: u64| text(&self.strings, usize::try_from(at).unwrap_or(usize::MAX));
        self.needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, at)| name(*at)).collect();
        self.rpath = if value(DT_RUNPATH).is_some() { None } else { value(DT_RPATH).map(name) };
        Ok(())
    }

    /// Whether the symbol table contains this name, defined or not.
    pub(crate) fn mentions(&self, symbol: &str) -> bool {
        self.strings.split(|b| *b == 0).any(|s| s == symbol.as_bytes())
    }
}

/// Reads a part of the file completely, or returns an error.
fn part(file: &File, offset: u64, bytes: u64) -> Result<Vec<u8>, ElfError> {
    if bytes > LARGEST_PART {
        return Err(ElfError::TooLarge);
    }
    let mut buffer = vec![0; bytes as usize];
    file.read_exact_at(&mut buffer, offset).map_err(|_| ElfError::CutOff)?;
    Ok(buffer)
}

/// The C string at an offset; empty if the offset is out of bounds.
fn text(bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or_default();
    String::from_utf8_lossy(rest.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

// The three readers below are only called on buffers whose length the caller has fixed.
fn half(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from(half(b, at)) | u32::from(half(b, at + 2)) << 16
}

fn long(b: &[u8], at: usize) -> u64 {
    u64::from(word(b, at)) | u64::from(word(b, at + 4)) << 32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A minimal library with one needed library, an optional search path and one symbol name.
    pub(crate) fn library(rpath: Option<&str>, symbol: &str) -> Vec<u8> {
        let strings = format!("\0libc.so.6\0{}\0{symbol}\0", rpath.unwrap_or(""));
        let mut dynamic = vec![(DT_NEEDED, 1), (DT_STRTAB, 0x400), (DT_STRSZ, strings.len() as u64)];
        if rpath.is_some() {
            dynamic.push((DT_RPATH, 11));
        }
        dynamic.push((0, 0));
        let mut file = vec![0u8; 0x400];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = 62;
        file[32] = 64;
        file[54] = 56;
        file[56] = 2;
        let header = |kind: u32, offset: u64, bytes: u64| {
            let mut h = vec![0u8; 56];
            h[..4].copy_from_slice(&kind.to_le_bytes());
            for (at, value) in [(8, offset), (16, offset), (32, bytes)] {
                h[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            h
        };
        file[64..120].copy_from_slice(&header(PT_LOAD, 0, 0x400 + strings.len() as u64));
        file[120..176].copy_from_slice(&header(PT_DYNAMIC, 0x200, 16 * dynamic.len() as u64));
        for (i, (tag, value)) in dynamic.iter().enumerate() {
            file[0x200 + 16 * i..][..8].copy_from_slice(&tag.to_le_bytes());
            file[0x208 + 16 * i..][..8].copy_from_slice(&value.to_le_bytes());
        }
        file.extend_from_slice(strings.as_bytes());
        file
    }

    fn read(bytes: &[u8]) -> Result<Elf, ElfError> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mrcuda-elf-{}-{n}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let elf = Elf::read(&path);
        std::fs::remove_file(path).unwrap();
        elf
    }

    #[test]
    fn a_library_is_read() {
        let elf = read(&library(Some("/opt/cuda"), "cuInit")).unwrap();
        assert_eq!((elf.needed.as_slice(), elf.rpath.as_deref()), (&["libc.so.6".to_owned()][..], Some("/opt/cuda")));
        assert!(elf.mentions("cuInit") && !elf.mentions("cuIni") && elf.dynamic && elf.interpreter.is_none());
        assert_eq!(read(&library(None, "x")).unwrap().rpath, None);
    }

    #[test]
    fn our_own_program_is_read() {
        let elf = Elf::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(elf.dynamic && elf.interpreter.is_some_and(|i| i.contains("ld-linux")));
        assert!(elf.needed.iter().any(|n| n.starts_with("libc.so")));
    }

    #[test]
    fn damage_is_an_error_and_never_more() {
        let whole = library(Some("/opt"), "cuInit");
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
        for at in (0..whole.len()).step_by(3) {
            let mut bent = whole.clone();
            bent[at] ^= 0xff;
            // Any result is correct, as long as the function returns.
            let _ = read(&bent);
        }
    }
}
