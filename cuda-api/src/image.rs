//! Module images: what a pointer given to `cuModuleLoadData` or `cuLibraryLoadData` is, how long it is, what is in it.
//!
//! The driver takes a bare pointer, without a length. [`measure`] finds out what it points to, copies it and makes it
//! position-independent, so that it can travel, be kept by its hash and be given to another driver ([`Image::load_form`]).
//! Everything read from an image is checked: a damaged one gives an error, never a panic or a read outside of it.

mod cubin;
mod fatbin;
#[cfg(test)]
mod fuzz;
mod index;
mod load;
pub mod managed;
mod ptx;
mod size;
mod source;
#[cfg(test)]
mod tests;

pub use index::Index;
pub use load::LoadForm;

use source::{Memory, Source};
use std::sync::Arc;

/// No image is larger: a length beyond it is taken for damage.
pub const MAX_IMAGE: u64 = 2 << 30;
/// All entries of an image together are not larger once decompressed: beyond it, they are taken for a trap.
const MAX_ENTRIES: u64 = 4 << 30;
/// So many bytes of code any image may have, however small it is as stored; beyond them [`RATIO`] counts.
const SMALL: u64 = 256 << 20;
/// A byte of a stored image stands for at most so many bytes of code: compilers' output shrinks to a third or a tenth.
const RATIO: u64 = 64;

/// What an image is. The numbers travel and are kept in files: they are only ever added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A fat binary that was reached through a version 1 wrapper; `bytes` is the fat binary alone.
    Wrapped = 1,
    /// A version 2 wrapper (`-rdc=true`): the linked fat binary and the inputs it was linked from, in a container of ours.
    Linked = 2,
    /// A fat binary.
    Fatbin = 3,
    /// One ELF file of device code.
    Cubin = 4,
    /// An `ar` archive of any of these.
    Archive = 5,
    /// PTX text; `bytes` ends with its terminating zero.
    Ptx = 6,
}

impl Kind {
    /// The number that stands for this kind in messages and files.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    pub const fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::Wrapped,
            2 => Kind::Linked,
            3 => Kind::Fatbin,
            4 => Kind::Cubin,
            5 => Kind::Archive,
            6 => Kind::Ptx,
            _ => return None,
        })
    }
}

/// Why bytes are not an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The pointer is null.
    #[error("the image pointer is null")]
    Null,
    /// Memory that the image claims as its own cannot be read.
    #[error("the image cannot be read at byte {at}")]
    Unreadable {
        /// Offset from the start of the part being read.
        at: u64,
    },
    /// A length in the image is beyond [`MAX_IMAGE`].
    #[error("the image claims to have {size} bytes")]
    TooLarge {
        /// The length it claims.
        size: u64,
    },
    /// A field does not fit the others.
    #[error("damaged image: {what} at byte {at}")]
    Damaged {
        /// Which field, in words.
        what: &'static str,
        /// Offset from the start of the part being read.
        at: u64,
    },
    /// The bytes are an image of another kind or length than was said.
    #[error("the bytes are not one whole image of the kind {kind:?}")]
    NotThis {
        /// What they were said to be.
        kind: Kind,
    },
    /// Compressed code does not decompress.
    #[error("entry {entry} of the fat binary does not decompress")]
    Compression {
        /// Number of the entry in its fat binary, from 0.
        entry: usize,
    },
}

type Result<T> = std::result::Result<T, ImageError>;

/// Bytes of code that may still come out of an image.
#[derive(Debug)]
struct Room(u64);

impl Room {
    /// Takes so many.
    fn take(&mut self, bytes: u64) -> Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(ImageError::TooLarge { size: bytes })?;
        Ok(())
    }
}

/// What an entry of an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// PTX text, without trailing zeros.
    Ptx,
    /// An ELF file of device code.
    Cubin,
    /// Something else (link-time intermediate code, …), as stored.
    Other,
}

/// One piece of code in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: EntryKind,
    /// Compute capability that it is for: 10 × major + minor; 0 if it does not say.
    pub sm: u32,
    /// It is for this capability or its family only (`sm_90a`, `sm_100f`): PTX of it does not suit every later one.
    pub arch_specific: bool,
    /// Its bytes, decompressed.
    pub bytes: Vec<u8>,
}

/// One parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Param {
    /// Bytes from the start of the parameter buffer.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// A self-contained copy of an image: no pointers in it, the same wherever it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What it is.
    pub kind: Kind,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
}

/// Finds out what is at `ptr` and copies it.
///
/// The memory is read through the kernel, which refuses what is not mapped: a wrong pointer or length gives
/// [`ImageError::Unreadable`] where it can (where the kernel does not offer this, memory is read as a driver would).
///
/// # Safety
/// `ptr` must be what the driver would accept: null, or an image whose parts (also those that a wrapper points to) stay
/// readable and unchanged until this returns.
pub unsafe fn measure(ptr: *const u8) -> Result<Image> {
    // SAFETY: the caller vouches for the memory at `ptr`.
    let memory = unsafe { Memory::new(ptr) }?;
    let mut magic = [0; 4];
    // PTX text may be shorter than a magic number; the whole of it is then read by the text branch below.
    if memory.read(0, &mut magic).is_ok() && u32::from_le_bytes(magic) == load::WRAPPER_MAGIC {
        // SAFETY: the caller vouches for what the wrapper points to as well.
        return unsafe { load::unwrap(&memory) };
    }
    let (kind, len) = size::of(&memory)?;
    // Checked again as copied: another thread of the program may have written to it meanwhile.
    Image::from_bytes(kind, memory.shared(len)?)
}

impl Image {
    /// Takes bytes that came from elsewhere, after checking that they are one whole image of this kind.
    pub fn from_bytes(kind: Kind, bytes: Arc<[u8]>) -> Result<Image> {
        match kind {
            Kind::Linked => {
                load::parts(&bytes)?;
            }
            _ => {
                let plain = if kind == Kind::Wrapped { Kind::Fatbin } else { kind };
                if size::of(&*bytes)? != (plain, bytes.len() as u64) {
                    return Err(ImageError::NotThis { kind });
                }
            }
        }
        Ok(Image { kind, bytes })
    }

    /// BLAKE3 of kind and bytes: images with the same hash are interchangeable.
    pub fn hash(&self) -> [u8; 32] {
        let mut h = blake3::Hasher::new();
        h.update(&[self.kind.code()]).update(&self.bytes);
        *h.finalize().as_bytes()
    }

    /// Whether a wrapper led to it. Drivers load libraries from wrappers, and refuse to load modules from them (200, seen on an H200).
    pub fn is_wrapped(&self) -> bool {
        matches!(self.kind, Kind::Wrapped | Kind::Linked)
    }

    /// What the driver is to be given for this image as a library.
    pub fn load_form(&self) -> Result<LoadForm> {
        LoadForm::new(self, true)
    }

    /// What the driver is to be given for this image as a module; nothing if only a library can be made of it.
    pub fn module_form(&self) -> Result<Option<LoadForm>> {
        if self.kind == Kind::Linked { Ok(None) } else { LoadForm::new(self, false).map(Some) }
    }

    /// All pieces of code, decompressed, in the order in which they are stored.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        self.visit(u64::MAX, None, &mut |entry| {
            all.push(entry?);
            Ok(())
        })?;
        Ok(all)
    }

    /// How much code it may have, decompressed: `most`, and no more than images of its size can be thought to have.
    fn room(&self, most: u64) -> Room {
        let likely = (self.bytes.len() as u64).saturating_mul(RATIO).clamp(SMALL, MAX_ENTRIES);
        Room(likely.min(most))
    }

    /// Names, kernels and needs of all entries, found in one pass. Prefer it where more than one of them is wanted.
    pub fn index(&self) -> Index {
        self.index_within(u64::MAX, None)
    }

    /// As [`Image::index`], of an image whose code takes at most so many bytes, decompressed: of more, the index says that it is
    /// too large. For a GPU of a compute capability (10 × major + minor) only what it may be given of a fat binary is looked at:
    /// decompressing the rest is most of the work for libraries that support many GPUs.
    pub fn index_within(&self, most: u64, capability: Option<u32>) -> Index {
        Index::of(self, most, capability)
    }

    /// Names of all variables that the code declares in global or constant memory, of whatever entry; sorted.
    pub fn global_names(&self) -> Vec<String> {
        self.index().globals.into_iter().collect()
    }

    /// Names of all kernels of whatever entry; sorted.
    pub fn kernel_names(&self) -> Vec<String> {
        self.index().kernels.into_keys().collect()
    }

    /// Whether device code allocates with `malloc` or frees with `free`: the device heap is then part of the job's memory.
    pub fn uses_device_heap(&self) -> bool {
        self.index().uses_device_heap
    }

    /// Whether device code may print while all goes well, with `printf`.
    pub fn prints(&self) -> bool {
        self.index().prints
    }

    /// Parameters of a kernel, in order: as the code for `sm` has them, else as any other does.
    pub fn kernel_params(&self, name: &str, sm: u32) -> Option<Vec<Param>> {
        self.index().kernel_params(name, sm).map(<[Param]>::to_vec)
    }

    /// Calls `f` with each entry that a GPU of this capability may be given, or with what is wrong with it; an error of `f` ends the
    /// walk, and so does code of more than `most` bytes in all.
    fn visit(&self, most: u64, capability: Option<u32>, f: &mut dyn FnMut(Result<Entry>) -> Result<()>) -> Result<()> {
        let room = &mut self.room(most);
        match self.kind {
            Kind::Linked => {
                for part in load::parts(&self.bytes)? {
                    // A wrapper may come without a linked fat binary: the part is then empty.
                    if let Some(bytes) = self.bytes.get(part).filter(|b| !b.is_empty()) {
                        fatbin::visit(bytes, room, capability, f)?;
                    }
                }
                Ok(())
            }
            Kind::Wrapped | Kind::Fatbin => fatbin::visit(&self.bytes, room, capability, f),
            Kind::Archive => {
                for member in size::members(&self.bytes)? {
                    let Some(bytes) = self.bytes.get(member) else {
                        continue;
                    };
                    match size::of(bytes) {
                        Ok((Kind::Fatbin, _)) => fatbin::visit(bytes, room, capability, f)?,
                        Ok((Kind::Cubin, _)) => f(Ok(cubin_entry(bytes)))?,
                        // A member has a length of its own and needs no terminating zero.
                        _ if ptx::looks_like(bytes) => f(Ok(ptx_entry(bytes)))?,
                        _ => f(Ok(Entry { kind: EntryKind::Other, sm: 0, arch_specific: false, bytes: bytes.to_vec() }))?,
                    }
                }
                Ok(())
            }
            Kind::Cubin => f(Ok(cubin_entry(&self.bytes))),
            Kind::Ptx => f(Ok(ptx_entry(&self.bytes))),
        }
    }
}

fn cubin_entry(bytes: &[u8]) -> Entry {
    Entry { kind: EntryKind::Cubin, sm: cubin::sm(bytes), arch_specific: false, bytes: bytes.to_vec() }
}

fn ptx_entry(bytes: &[u8]) -> Entry {
    let text = trim_zeros(bytes);
    let (sm, arch_specific) = ptx::target(text);
    Entry { kind: EntryKind::Ptx, sm, arch_specific, bytes: text.to_vec() }
}

/// PTX is stored with padding zeros behind it.
fn trim_zeros(bytes: &[u8]) -> &[u8] {
    let len = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    &bytes[..len]
}
