//! Kinds of images and entries, and errors.

use std::borrow::Cow;

/// Maximum size of an image; a larger length is treated as damage.
pub const MAX_IMAGE: u64 = 2 << 30;

/// The kind of an image. The numbers are used on the wire and in files: they are only ever added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A fat binary that was reached through a version 1 wrapper; `bytes` is the fat binary alone.
    Wrapped = 1,
    /// A version 2 wrapper (`-rdc=true`): the linked fat binary and the inputs it was linked from, in a container
    /// format of this crate.
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
    /// The number of this kind in messages and files.
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
    /// Memory that is part of the image, according to its fields, cannot be read.
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
    /// A field is inconsistent with others.
    #[error("damaged image: {what} at byte {at}")]
    Damaged {
        /// The field.
        what: &'static str,
        /// Offset from the start of the part being read.
        at: u64,
    },
    /// The bytes are an image of another kind or length than expected.
    #[error("the bytes are not one whole image of the kind {kind:?}")]
    NotThis {
        /// The expected kind.
        kind: Kind,
    },
    /// Compressed code does not decompress.
    #[error("entry {entry} of the fat binary does not decompress")]
    Compression {
        /// Number of the entry in its fat binary, from 0.
        entry: usize,
    },
}

/// Result of reading an image.
pub(crate) type Result<T> = std::result::Result<T, ImageError>;

/// Remaining budget of decompressed bytes of an image.
#[derive(Debug)]
pub(crate) struct Room(pub(crate) u64);

impl Room {
    /// Takes bytes from the budget.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(ImageError::TooLarge { size: bytes })?;
        Ok(())
    }
}

/// The contents of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// PTX text, without trailing zeros.
    Ptx,
    /// An ELF file of device code.
    Cubin,
    /// Other contents (link-time intermediate code, …), as stored.
    Other,
}

/// One piece of code in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its kind.
    pub kind: EntryKind,
    /// Its compute capability: 10 × major + minor; 0 if unspecified.
    pub sm: u32,
    /// It is only for this capability or its family (`sm_90a`, `sm_100f`), so its PTX does not fit every later one.
    pub arch_specific: bool,
    /// Its bytes, decompressed: those of the image, unless it is compressed.
    pub bytes: Cow<'a, [u8]>,
}

/// One parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Param {
    /// Offset in the parameter buffer.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// PTX is stored with trailing zeros.
pub(crate) fn trim_zeros(bytes: &[u8]) -> &[u8] {
    let len = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    &bytes[..len]
}
