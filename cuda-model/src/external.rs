//! Descriptions of external memory that a program imports.

use cuda_api::code::{self, Code};
use cuda_api::pointer::Plain;
use cuda_api::sys;

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`, and the last existing type.
const OPAQUE_FD: u32 = 1;
const LAST_TYPE: u32 = 9;
/// `CUDA_EXTERNAL_MEMORY_DEDICATED`
const DEDICATED: u32 = 1;

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`, with its enum as the integer that it is in C: any bits are valid.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    kind: u32,
    _gap: u32,
    /// The descriptor.
    pub fd: i32,
    _other: [u32; 3],
    /// The claimed size of the memory.
    pub bytes: u64,
    flags: u32,
    _reserved: [u32; 16],
}
// SAFETY: numbers.
unsafe impl Plain for Asked {}
const _: () = assert!(size_of::<Asked>() == size_of::<sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC>());
const _: () = assert!(std::mem::offset_of!(Asked, fd) == std::mem::offset_of!(sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC, handle));
const _: () = assert!(std::mem::offset_of!(Asked, bytes) == std::mem::offset_of!(sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size));

impl Asked {
    /// Checks whether this can be a descriptor of memory that CUDA has exported.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`: memory of graphics or other drivers; `INVALID_VALUE`: invalid type, size, descriptor or flags.
    pub fn check(&self) -> Result<(), Code> {
        match self.kind {
            OPAQUE_FD => {}
            2..=LAST_TYPE => return Err(code::ERROR_NOT_SUPPORTED),
            _ => return Err(code::ERROR_INVALID_VALUE),
        }
        let right = self.bytes != 0 && self.flags & !DEDICATED == 0 && self.fd >= 0;
        if right { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }
}
