//! Checks the memory, handles and pointers in calls from another process.
//!
//! A worker carries out the calls of a job that it need not trust. The driver interprets many numbers of a call as addresses of this
//! process or as pointers, so all such values from another process are checked here before the driver sees them:
//!
//! * An address is *device memory* if it lies in an arena that the job has at this place ([`super::state::mappings::Arenas`]), where the process itself has
//!   nothing, or in a variable of its code; it is *pinned memory* of the job if it was registered here. Any other address is
//!   `INVALID_VALUE`, which is what a driver returns for an invalid device pointer.
//! * A memory type is device or array, or host if it refers to pinned memory. Other host memory is used only by the executor, which
//!   inserts a buffer of its own. A type that depends on the address (`CU_MEMORYTYPE_UNIFIED`) could refer to this process's memory, so
//!   it is always refused.
//! * Handles have their kind checked ([`cuda_api::handle::Bindings::live`]).
//! * Options and attributes whose value is a pointer or a handle of the driver are refused, unless the handle is one of the job's.
//!
//! [`cuda_api::ops::Op::memory`] tells what memory each operation refers to; an operation without an entry does not compile. `tests.rs`
//! sends each operation addresses that it must not use, and checks whether a driver sees any.
//!
//! An executor in the job's own process ([`Executor::is_here`]) checks no addresses: the program makes the calls itself, any memory of
//! the process is its own, and the driver reports errors as natively. Kernels are not checked anywhere: they can access what the GPU maps
//! for this process, and a worker's process maps the memory of one job only.

use super::{Executor, short};
use cuda_api::array::{ARRAY, DEVICE, HOST, OF_ARRAY, OF_MIPMAP, Resource};
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_api::ops::{ATTRIBUTE_BYTES, MemoryPart, StreamMemory};
use cuda_api::sys::CUlaunchAttributeID_enum as Id;
use cuda_api::wire::Wire;
use cuda_api::work::{Copy3, CopyEnd, Fill};

#[cfg(test)]
pub(super) mod tests;

const BAD: Code = code::ERROR_INVALID_VALUE;

/// What may be the host end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostEnds {
    /// No host memory.
    None,
    /// Pinned memory of the job, which is registered here.
    Pinned,
    /// The executor inserts memory of its own: what the call contains there is ignored.
    Staged,
}

impl Executor {
    /// Checks that the bytes of a call are memory of the job: on the device, or pinned.
    ///
    /// # Errors
    /// `INVALID_VALUE`
    #[inline]
    pub(super) fn check_memory(&self, address: u64, bytes: u64) -> Result<(), Code> {
        if self.arenas.contain(address, bytes) || self.is_here() { Ok(()) } else { self.check_elsewhere(address, bytes) }
    }

    /// Checks for memory of the job outside of its arenas: pinned, or a variable of its code that the driver has placed elsewhere.
    #[cold]
    fn check_elsewhere(&self, address: u64, bytes: u64) -> Result<(), Code> {
        if self.is_host(address, bytes)? || self.is_in_variable(address, bytes) { Ok(()) } else { Err(BAD) }
    }

    /// As [`Executor::check_memory`], for rows of memory; no rows are valid at any address.
    #[inline]
    pub(super) fn check_pitched(&self, address: u64, pitch: u64, width: u64, rows: u64) -> Result<(), Code> {
        let bytes = span(address, pitch, width, rows)?;
        if width == 0 || rows == 0 { Ok(()) } else { self.check_memory(address, bytes) }
    }

    /// Rebuilds one end of a copy from checked fields only, with the driver's array.
    fn check_end(&self, e: &CopyEnd, c: &Copy3, host: HostEnds) -> Result<CopyEnd, Code> {
        match e.memory {
            ARRAY => {
                let array = self.bindings.live(Kind::Array, e.array)?;
                Ok(CopyEnd { host: 0, device: 0, array, ..*e })
            }
            _ if self.is_here() => Ok(*e),
            DEVICE => {
                let checked = CopyEnd { host: 0, array: 0, ..*e };
                if c.width == 0 || c.rows == 0 || c.depth == 0 {
                    return Ok(checked);
                }
                let (start, bytes) = reach(e, c).ok_or(BAD)?;
                self.check_memory(e.device.checked_add(start).ok_or(BAD)?, bytes).map(|()| checked)
            }
            HOST if host == HostEnds::Pinned => {
                let (start, bytes) = if c.width == 0 || c.rows == 0 || c.depth == 0 { None } else { reach(e, c) }.ok_or(BAD)?;
                let pinned = self.is_host(e.host.checked_add(start).ok_or(BAD)?, bytes)?;
                match pinned {
                    true if self.is_on_gpu(e.host) => Ok(CopyEnd { memory: DEVICE, device: e.host, host: 0, array: 0, ..*e }),
                    true => Ok(CopyEnd { device: 0, array: 0, ..*e }),
                    false => Err(BAD),
                }
            }
            HOST if host == HostEnds::Staged => Ok(CopyEnd { memory: HOST, ..CopyEnd::default() }),
            _ => Err(BAD),
        }
    }

    /// A described copy with the driver's arrays, checked.
    pub(super) fn check_copy(&self, c: &Copy3, host: HostEnds) -> Result<Copy3, Code> {
        Ok(Copy3 { src: self.check_end(&c.src, c, host)?, dst: self.check_end(&c.dst, c, host)?, ..*c })
    }

    /// Checks a fill.
    pub(super) fn check_fill(&self, f: &Fill) -> Result<(), Code> {
        if !matches!(f.element, 1 | 2 | 4) {
            return Err(BAD);
        }
        self.check_pitched(f.dst, f.pitch, f.width.checked_mul(f.element.into()).ok_or(BAD)?, f.rows)
    }

    /// Checks words of memory that a stream waits for or writes.
    pub(super) fn check_stream_memory(&self, op: &StreamMemory) -> Result<(), Code> {
        op.parts.iter().try_for_each(|p| self.check_word(p.operation, p.address).map(drop))
    }

    /// Checks an operation on a word; returns whether it uses memory.
    fn check_word(&self, operation: u32, address: u64) -> Result<bool, Code> {
        /// `CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES`, `CU_STREAM_MEM_OP_BARRIER`: they use no memory.
        const WITHOUT_MEMORY: [u32; 2] = [3, 6];
        let part = MemoryPart { operation, address, value: 0, flags: 0 };
        match part.bytes() {
            Some(bytes) => self.check_memory(address, bytes).map(|()| true),
            None if WITHOUT_MEMORY.contains(&operation) => Ok(false),
            // Other operations may have addresses in other words.
            None => Err(BAD),
        }
    }

    /// Rebuilds the memory operations of a graph's node from checked fields only.
    pub(super) fn check_memory_nodes(&self, ops: &[[u64; 6]]) -> Result<Vec<[u64; 6]>, Code> {
        let one = |words: &[u64; 6]| {
            let [operation, address, value, flags, ..] = *words;
            let names_memory = self.check_word(operation as u32, address)?;
            // The other words are for the driver, one of them an address.
            Ok(if names_memory { [operation, address, value, flags, 0, 0] } else { [operation, 0, 0, 0, 0, 0] })
        };
        ops.iter().map(one).collect()
    }

    /// The resource of a texture or surface, checked, with the driver's array.
    pub(super) fn check_resource(&self, r: &Resource) -> Result<Resource, Code> {
        let array = match r.kind {
            OF_ARRAY => self.bindings.live(Kind::Array, r.array)?,
            OF_MIPMAP => self.bindings.live(Kind::Mipmap, r.array)?,
            _ => {
                let (address, bytes) = r.memory().ok_or(BAD)?;
                self.check_memory(address, bytes)?;
                r.array
            }
        };
        Ok(Resource { array, ..*r })
    }

    /// Checks the address in a descriptor of a tensor. It may be zero: libraries set it on the device.
    pub(super) fn check_tensor(&self, address: u64) -> Result<(), Code> {
        if address == 0 { Ok(()) } else { self.check_memory(address, 1) }
    }

    /// Checks an attribute of a launch, a kernel's node or a stream, and replaces the job's event by the driver's.
    pub(super) fn check_attribute(&self, id: u32, value: &mut [u64]) -> Result<(), Code> {
        let [first, ..] = value else { return Err(BAD) };
        match id {
            // A hint of what the GPU's cache should keep, which drivers accept for any address. It causes no read or write.
            ID_WINDOW => {}
            ID_PROGRAMMATIC_EVENT | ID_COMPLETION_EVENT => *first = self.bindings.live(Kind::Event, *first)?,
            // Its value is a graph node of the program's process.
            ID_DEVICE_UPDATABLE => return Err(code::ERROR_NOT_SUPPORTED),
            // The value of an unknown attribute may be a pointer.
            _ if id > ID_LAST && !self.is_here() => return Err(BAD),
            _ => {}
        }
        Ok(())
    }

    /// The driver's function or kernel.
    #[inline]
    pub(super) fn callable(&self, handle: u64) -> Result<u64, Code> {
        self.bindings.live(if kind(handle) == Some(Kind::Kernel) { Kind::Kernel } else { Kind::Function }, handle)
    }
}

const ID_WINDOW: u32 = Id::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW as u32;
const ID_PROGRAMMATIC_EVENT: u32 = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT as u32;
const ID_COMPLETION_EVENT: u32 = Id::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT as u32;
const ID_DEVICE_UPDATABLE: u32 = Id::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE as u32;
/// The last attribute of CUDA 13.0.
const ID_LAST: u32 = Id::CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING as u32;

/// The words of an attribute's value.
pub(super) type AttributeWords = [u64; (ATTRIBUTE_BYTES - 8) / 8];

/// Reads them.
pub(super) fn attribute_words(bytes: &[u8]) -> Result<AttributeWords, Code> {
    let mut words = [0; (ATTRIBUTE_BYTES - 8) / 8];
    let mut rest = bytes;
    words.iter_mut().try_for_each(|word| u64::get(&mut rest).map(|w| *word = w)).map_err(short)?;
    Ok(words)
}

/// Checks options of the compiler and the linker: those that are outputs of the sender's process, or point at its memory, cannot be.
pub(super) fn check_options(options: &[(u32, u64)]) -> Result<(), Code> {
    /// `CU_JIT_WALL_TIME` to `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
    const OUTPUTS: std::ops::RangeInclusive<u32> = 2..=6;
    /// `CU_JIT_SPLIT_COMPILE`, the last one of CUDA 13.0.
    const LAST: u32 = 34;
    options.iter().try_for_each(|(key, _)| match key {
        k if OUTPUTS.contains(k) => Err(BAD),
        // Names and addresses of symbols; names of referenced kernels and variables, with their number.
        17..=19 | 25..=28 => Err(code::ERROR_NOT_SUPPORTED),
        // The value of an unknown option may be a pointer.
        k if *k > LAST => Err(BAD),
        _ => Ok(()),
    })
}

/// Number of bytes from the first to the last of rows of memory, if nothing overflows.
pub(super) fn span(start: u64, pitch: u64, width: u64, rows: u64) -> Result<u64, Code> {
    let bytes = rows.saturating_sub(1).checked_mul(pitch).and_then(|n| n.checked_add(width)).ok_or(BAD)?;
    start.checked_add(bytes).ok_or(BAD)?;
    Ok(if rows == 0 { 0 } else { bytes })
}

/// The offset of a copy's bytes from the address of an end in memory, and their number from the first to the last.
fn reach(e: &CopyEnd, c: &Copy3) -> Option<(u64, u64)> {
    // A pitch or height of 0 means adjacent rows or slices.
    let pitch = if e.pitch == 0 { c.width } else { e.pitch };
    let height = if e.height == 0 { c.rows } else { e.height };
    let at = |x: u64, y: u64, z: u64| z.checked_mul(height)?.checked_add(y)?.checked_mul(pitch)?.checked_add(x);
    let start = at(e.x, e.y, e.z).filter(|_| e.lod == 0)?;
    let end = at(e.x.checked_add(c.width)?, e.y.checked_add(c.rows - 1)?, e.z.checked_add(c.depth - 1)?)?;
    Some((start, end.checked_sub(start)?))
}
