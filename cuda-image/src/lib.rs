//! Module images: determines kind, length and contents of the data behind a pointer given to `cuModuleLoadData` or
//! `cuLibraryLoadData`.
//!
//! The driver takes a bare pointer, without a length. [`measure`] determines what it points to, copies it and makes it
//! position-independent, so that it can be sent, stored by its hash and given to another driver ([`Image::load_form`]).
//! Everything read from an image is checked: a damaged one causes an error, never a panic or an out-of-bounds read.

mod cubin;
mod fatbin;
#[cfg(test)]
mod fuzz;
mod index;
mod kind;
mod known;
mod load;
pub mod managed;
mod ptx;
mod size;
mod source;
#[cfg(test)]
mod tests;

pub use index::Index;
pub use kind::{Entry, EntryKind, ImageError, Kind, MAX_IMAGE, Param};
pub use known::Known;
pub use load::LoadForm;

use cubin::Cubin;
use kind::{Result, Room, trim_zeros};
use source::{Memory, Source};
use std::sync::{Arc, OnceLock};

/// Maximum decompressed size of all entries of an image together; a larger one is treated as a decompression bomb.
const MAX_ENTRIES: u64 = 4 << 30;
/// Decompressed code up to this size is always accepted; beyond it, [`RATIO`] applies.
const SMALL: u64 = 256 << 20;
/// Maximum decompressed bytes per stored byte: compilers' output shrinks to a third or a tenth.
const RATIO: u64 = 64;

/// A self-contained, position-independent copy of an image.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its kind.
    pub kind: Kind,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// See [`Image::hash`].
    hash: Arc<OnceLock<[u8; 32]>>,
}

impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        (self.kind, &self.bytes) == (other.kind, &other.bytes)
    }
}

impl Eq for Image {}

/// Determines what is at `ptr` and copies it.
///
/// The memory is read through the kernel, which refuses unmapped addresses: a wrong pointer or length causes
/// [`ImageError::Unreadable`] (where the kernel does not offer this, memory is read directly, as a driver would).
///
/// # Safety
/// `ptr` must be what the driver would accept: null, or an image whose parts (also those that a wrapper points to) stay
/// readable and unchanged until this returns.
pub unsafe fn measure(ptr: *const u8) -> Result<Image> {
    // SAFETY: the caller vouches for the memory at `ptr`.
    let memory = unsafe { Memory::new(ptr) }?;
    let mut magic = [0; 4];
    // PTX text may be shorter than a magic number; the text branch below then reads all of it.
    if memory.read(0, &mut magic).is_ok() && u32::from_le_bytes(magic) == load::WRAPPER_MAGIC {
        // SAFETY: the caller vouches for what the wrapper points to as well.
        let (kind, bytes) = unsafe { load::unwrap(&memory) }?;
        return Image::from_bytes(kind, bytes);
    }
    let (kind, len) = size::of(&memory)?;
    // The copy is validated again: another thread of the program may have written to the memory meanwhile.
    Image::from_bytes(kind, memory.shared(len)?)
}

impl Image {
    /// Creates an image from bytes, after checking that they are one whole image of this kind.
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
        Ok(Image { kind, bytes, hash: Arc::default() })
    }

    /// BLAKE3 of kind and bytes: images with the same hash are interchangeable. Copies of an image compute it once.
    pub fn hash(&self) -> [u8; 32] {
        *self.hash.get_or_init(|| {
            let mut h = blake3::Hasher::new();
            h.update(&[self.kind.code()]).update(&self.bytes);
            *h.finalize().as_bytes()
        })
    }

    /// Whether it was reached through a wrapper. Drivers load libraries from wrappers, but refuse to load modules from
    /// them (200, seen on an H200).
    pub fn is_wrapped(&self) -> bool {
        matches!(self.kind, Kind::Wrapped | Kind::Linked)
    }

    /// The form in which the driver loads this image as a library.
    pub fn load_form(&self) -> Result<LoadForm> {
        LoadForm::new(self.kind, &self.bytes, true)
    }

    /// The form in which the driver loads this image as a module; `None` if it can only be a library.
    pub fn module_form(&self) -> Result<Option<LoadForm>> {
        if self.kind == Kind::Linked { Ok(None) } else { LoadForm::new(self.kind, &self.bytes, false).map(Some) }
    }

    /// All entries, decompressed, in stored order.
    pub fn entries(&self) -> Result<Vec<Entry<'_>>> {
        let mut all = Vec::new();
        self.visit(u64::MAX, None, &mut |entry| {
            all.push(entry?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Limit of the decompressed code: `most`, and no more than is plausible for the image's size.
    fn room(&self, most: u64) -> Room {
        let likely = (self.bytes.len() as u64).saturating_mul(RATIO).clamp(SMALL, MAX_ENTRIES);
        Room(likely.min(most))
    }

    /// Names, kernels and properties of all entries, determined in one pass. Preferable if more than one of them is
    /// needed.
    pub fn index(&self) -> Index {
        self.index_within(u64::MAX, None)
    }

    /// As [`Image::index`], for an image whose decompressed code has at most `most` bytes; otherwise the index says
    /// that it is too large. With a compute capability (10 × major + minor), only the entries of a fat binary that such
    /// a GPU may use are read: decompressing the others is most of the work for libraries that support many GPUs.
    pub fn index_within(&self, most: u64, capability: Option<u32>) -> Index {
        Index::of(|add| self.visit(most, capability, add))
    }

    /// Names of all variables in global or constant memory, of all entries; sorted.
    pub fn global_names(&self) -> Vec<String> {
        self.index().globals.into_iter().collect()
    }

    /// Names of all kernels, of all entries; sorted.
    pub fn kernel_names(&self) -> Vec<String> {
        self.index().kernels.into_keys().collect()
    }

    /// Whether device code allocates with `malloc` or frees with `free`: the device heap is then part of the job's memory.
    pub fn uses_device_heap(&self) -> bool {
        self.index().uses_device_heap
    }

    /// Whether device code may print without a failure, with `printf`.
    pub fn prints(&self) -> bool {
        self.index().prints
    }

    /// Whether a GPU of this compute capability (10 × major + minor) can run the image: there is machine code for the same major version and
    /// no newer minor one, or PTX for no newer capability. Code for one architecture alone must be for exactly this one.
    pub fn has_code_for(&self, capability: u32) -> bool {
        let mut found = false;
        let walked = self.visit(u64::MAX, None, &mut |entry| {
            found |= entry.is_ok_and(|entry| entry.runs_on(capability));
            Ok(())
        });
        found && walked.is_ok()
    }

    /// Whether a GPU of one compute capability executes what one of the other executes: in each part, both choose code that was compiled for
    /// the same architecture, as machine code or as PTX. Other entries can have other contents, as code asks for what it is compiled.
    pub fn is_same_code(&self, first: u32, second: u32) -> bool {
        let Ok(parts) = self.parts() else { return false };
        parts.iter().all(|part| {
            let (first, second) = (part.chosen(first), part.chosen(second));
            first.is_some_and(|first| second == Some(first))
        })
    }

    /// The images among whose entries a driver chooses one each.
    fn parts(&self) -> Result<Vec<Image>> {
        let (ranges, is_archive) = match self.kind {
            Kind::Linked => (load::parts(&self.bytes)?, false),
            Kind::Archive => (size::members(&self.bytes)?, true),
            _ => return Ok(vec![self.clone()]),
        };
        let mut parts = Vec::new();
        for range in ranges {
            let bytes = self.bytes.get(range).filter(|bytes| !bytes.is_empty());
            let Some(bytes) = bytes else { continue };
            let kind = match size::of(bytes) {
                _ if !is_archive => Kind::Fatbin,
                Ok((kind @ (Kind::Fatbin | Kind::Cubin), _)) => kind,
                _ if ptx::looks_like(bytes) => Kind::Ptx,
                _ => return Err(ImageError::NotThis { kind: self.kind }),
            };
            parts.push(Image { kind, bytes: bytes.into(), hash: Arc::default() });
        }
        Ok(parts)
    }

    /// What a GPU of this capability executes: code for which capability, and whether for this one alone. Machine code goes before PTX, and
    /// newer before older. `None` if there is none, or if an entry cannot be read.
    fn chosen(&self, capability: u32) -> Option<(u32, bool)> {
        let mut best: Option<(bool, u32, bool)> = None;
        let mut damaged = false;
        let walked = self.visit(u64::MAX, None, &mut |entry| {
            match entry {
                Ok(entry) if entry.runs_on(capability) => {
                    best = best.max(Some((entry.kind == EntryKind::Cubin, entry.sm, entry.arch_specific)));
                }
                Ok(_) => {}
                Err(_) => damaged = true,
            }
            Ok(())
        });
        best.filter(|_| walked.is_ok() && !damaged).map(|(_, sm, alone)| (sm, alone))
    }

    /// Whether code of any entry may take the address of a function: it calls functions by their addresses, or refers to functions otherwise
    /// than a linker resolves. This is assumed for entries that cannot be read.
    pub fn takes_addresses_of_functions(&self) -> bool {
        let mut found = false;
        let walked = self.visit(u64::MAX, None, &mut |entry| {
            found |= entry.map_or(true, |entry| match entry.kind {
                EntryKind::Cubin => Cubin::parse(&entry.bytes).map_or(true, |cubin| cubin.refers_to_functions()),
                EntryKind::Ptx => ptx::takes_addresses(&entry.bytes),
                EntryKind::Other => false,
            });
            Ok(())
        });
        found || walked.is_err()
    }

    /// Parameters of a kernel, in order: as in the code for `sm`, otherwise as in any other entry.
    pub fn kernel_params(&self, name: &str, sm: u32) -> Option<Vec<Param>> {
        self.index().kernel_params(name, sm).map(<[Param]>::to_vec)
    }

    /// Calls `f` with each entry that a GPU of this capability may use, or with the error in it. An error of `f` ends
    /// the walk, and so does decompressed code of more than `most` bytes.
    fn visit<'a>(&'a self, most: u64, capability: Option<u32>, f: &mut dyn FnMut(Result<Entry<'a>>) -> Result<()>) -> Result<()> {
        let room = &mut self.room(most);
        match self.kind {
            Kind::Linked => {
                for part in load::parts(&self.bytes)? {
                    // A wrapper may have no linked fat binary: the part is then empty.
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
                        // A member has an explicit length and needs no terminating zero.
                        _ if ptx::looks_like(bytes) => f(Ok(ptx_entry(bytes)))?,
                        _ => f(Ok(Entry { kind: EntryKind::Other, sm: 0, arch_specific: false, bytes: bytes.into() }))?,
                    }
                }
                Ok(())
            }
            Kind::Cubin => f(Ok(cubin_entry(&self.bytes))),
            Kind::Ptx => f(Ok(ptx_entry(&self.bytes))),
        }
    }
}

impl Entry<'_> {
    /// Whether a GPU of this compute capability can run it.
    fn runs_on(&self, capability: u32) -> bool {
        match self.kind {
            EntryKind::Other => false,
            _ if self.arch_specific => self.sm == capability,
            EntryKind::Cubin => self.sm / 10 == capability / 10 && self.sm <= capability,
            EntryKind::Ptx => self.sm <= capability,
        }
    }
}

fn cubin_entry(bytes: &[u8]) -> Entry<'_> {
    Entry { kind: EntryKind::Cubin, sm: cubin::sm(bytes), arch_specific: false, bytes: bytes.into() }
}

fn ptx_entry(bytes: &[u8]) -> Entry<'_> {
    let text = trim_zeros(bytes);
    let (sm, arch_specific) = ptx::target(text);
    Entry { kind: EntryKind::Ptx, sm, arch_specific, bytes: text.into() }
}
