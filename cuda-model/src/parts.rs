//! Partitions of a GPU's multiprocessors, from which green contexts are created. They are computed, as the driver does,
//! from the GPU's properties.

use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A `CUdevResource`: its type, 92 bytes private to the driver, then the public fields of multiprocessors.
type Raw = [u32; 36];
const _: () = assert!(size_of::<Raw>() == size_of::<sys::CUdevResource>());

/// `CU_DEV_RESOURCE_TYPE_SM`
const SM: u32 = 1;
/// Marks resources that were created here, in the driver's private bytes.
const MARK: u32 = 0x7061_7274;
/// Index of the first public word.
const FIRST_PUBLIC: usize = 24;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`
const ALONE: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`
const LARGE_CLUSTERS: u32 = 2;
/// Maximum number of blocks in a cluster, for any kernel (CUDA programming guide).
pub const LARGEST_CLUSTER: u32 = 16;
/// First handle of a descriptor; handles are never destroyed, because CUDA has no function for that.
const FIRST_DESCRIPTOR: u64 = 0x5d00_0000_0040;

/// Some multiprocessors of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Ordinal of the device.
    pub device: u32,
    /// Their number.
    pub count: u32,
    /// Major part of the device's compute capability.
    pub major: u32,
    /// The split that it comes from; 0: none.
    split: u32,
}

/// Smallest group, and the granularity of its size (CUDA driver API reference, "Green Contexts").
fn granule(major: u32) -> (u32, u32) {
    match major {
        ..=7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

/// Checks a type of resources.
///
/// # Errors
/// `INVALID_RESOURCE_TYPE`
pub fn check_type(kind: u32) -> Result<(), Code> {
    if kind == SM { Ok(()) } else { Err(code::ERROR_INVALID_RESOURCE_TYPE) }
}

impl Part {
    /// All multiprocessors of a device.
    pub fn of_device(device: u32, count: u32, major: u32) -> Part {
        Part { device, count, major, split: 0 }
    }

    fn raw(self) -> Raw {
        let mut raw = [0; size_of::<Raw>() / 4];
        if self.count != 0 {
            let (least, multiple) = granule(self.major);
            raw[..6].copy_from_slice(&[SM, MARK, self.device, self.count, self.major, self.split]);
            raw[FIRST_PUBLIC..FIRST_PUBLIC + 3].copy_from_slice(&[self.count, least, multiple]);
        }
        raw
    }

    /// Decodes a resource that was created here.
    fn read(raw: &Raw) -> Result<Part, Code> {
        check_type(raw[0])?;
        let [mark, device, count, major, split] = [raw[1], raw[2], raw[3], raw[4], raw[5]];
        if mark != MARK || count == 0 { Err(code::ERROR_INVALID_VALUE) } else { Ok(Part { device, count, major, split }) }
    }

    /// Writes it for the program.
    ///
    /// # Errors
    /// `INVALID_VALUE`: null.
    pub fn write_to(self, to: OutPtr<sys::CUdevResource>) -> Result<(), Code> {
        to.cast().write(self.raw())
    }
}

/// The groups that a part can be split into: their number, and the size of each.
fn groups(input: Part, flags: u32, least: u32) -> Result<(u32, u32), Code> {
    if flags & !(ALONE | LARGE_CLUSTERS) != 0 || least > input.count {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (smallest, multiple) = match flags {
        0 => granule(input.major),
        _ if flags & LARGE_CLUSTERS != 0 && input.major >= 9 => (LARGEST_CLUSTER, LARGEST_CLUSTER),
        _ => (2, 2),
    };
    let size = least.max(smallest).next_multiple_of(multiple);
    match input.count / size {
        0 => Err(code::ERROR_INVALID_RESOURCE_CONFIGURATION),
        many => Ok((many, size)),
    }
}

/// `cuDevSmResourceSplitByCount`
///
/// # Errors
/// `INVALID_VALUE`, or `INVALID_RESOURCE_CONFIGURATION`: no such group is possible.
pub fn split(
    result: OutPtr<sys::CUdevResource>,
    wanted: InOutPtr<u32>,
    input: InPtr<sys::CUdevResource>,
    rest: OutPtr<sys::CUdevResource>,
    flags: u32,
    least: u32,
) -> Result<(), Code> {
    static SPLITS: AtomicU32 = AtomicU32::new(1);
    let (input, number) = (input.cast::<Raw>().read()?, wanted.read()?);
    // A resource that was never filled in.
    if input[0] == 0 || (!result.is_null() && number == 0) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let input = Part::read(&input)?;
    let (possible, size) = groups(input, flags, least)?;
    let made = if result.is_null() { possible } else { possible.min(number) };
    wanted.write(made)?;
    let split = SPLITS.fetch_add(1, Ordering::Relaxed);
    if !result.is_null() {
        for n in 0..made {
            Part { count: size, split, ..input }.write_to(result.element(n as usize))?;
        }
    }
    if rest.is_null() {
        return Ok(());
    }
    Part { count: input.count - made * size, split, ..input }.write_to(rest)
}

/// The parts of all descriptors.
static DESCRIPTORS: Mutex<Vec<Part>> = Mutex::new(Vec::new());

/// `cuDevResourceGenerateDesc`; returns the descriptor. Equal resources have the same one.
///
/// # Errors
/// `INVALID_VALUE`, `INVALID_RESOURCE_TYPE`, or `INVALID_RESOURCE_CONFIGURATION`: the resources cannot be combined.
pub fn describe(resources: InPtr<sys::CUdevResource>, count: u32) -> Result<u64, Code> {
    let mut all: Option<Part> = None;
    for raw in resources.not_null()?.cast::<Raw>().elements(count as usize)? {
        let part = Part::read(&raw)?;
        all = Some(match all {
            None => part,
            Some(sum) if sum.split != 0 && (sum.device, sum.split) == (part.device, part.split) => {
                Part { count: sum.count.saturating_add(part.count), ..sum }
            }
            Some(_) => return Err(code::ERROR_INVALID_RESOURCE_CONFIGURATION),
        });
    }
    // The resources of a green context can be split again.
    let part = Part { split: 0, ..all.ok_or(code::ERROR_INVALID_VALUE)? };
    let mut known = lock(&DESCRIPTORS);
    let at = known.iter().position(|p| *p == part).unwrap_or_else(|| {
        known.push(part);
        known.len() - 1
    });
    Ok(FIRST_DESCRIPTOR + 64 * at as u64)
}

/// The part of a descriptor.
///
/// # Errors
/// `INVALID_VALUE`: unknown descriptor.
pub fn described(descriptor: u64) -> Result<Part, Code> {
    let at = descriptor.checked_sub(FIRST_DESCRIPTOR).filter(|d| d % 64 == 0).ok_or(code::ERROR_INVALID_VALUE)? / 64;
    let known = lock(&DESCRIPTORS);
    known.get(at as usize).copied().ok_or(code::ERROR_INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halves(count: u32, flags: u32, least: u32) -> Result<(u32, u32), Code> {
        groups(Part::of_device(0, count, 9), flags, least)
    }

    #[test]
    fn groups_are_rounded_up_and_fit() {
        assert_eq!(halves(132, 0, 0), Ok((16, 8)));
        assert_eq!(halves(132, 0, 11), Ok((8, 16)));
        assert_eq!(halves(132, ALONE, 11), Ok((11, 12)));
        assert_eq!(halves(132, LARGE_CLUSTERS, 7), Ok((8, 16)));
        assert_eq!(halves(132, 0, 130), Err(code::ERROR_INVALID_RESOURCE_CONFIGURATION));
        assert_eq!(halves(132, 0, 133), Err(code::ERROR_INVALID_VALUE));
        assert_eq!(halves(132, 4, 8), Err(code::ERROR_INVALID_VALUE));
    }

    #[test]
    fn only_what_was_made_here_is_split_or_described() {
        let mut raw = Part::of_device(0, 132, 9).raw();
        let list = [raw, raw];
        let list = InPtr::of_list(&list).cast();
        assert_eq!(describe(list, 0), Err(code::ERROR_INVALID_VALUE));
        assert_eq!(describe(list, 2), Err(code::ERROR_INVALID_RESOURCE_CONFIGURATION));
        let descriptor = describe(list, 1);
        assert_eq!(descriptor.and_then(described).map(|p| p.count), Ok(132));
        assert_eq!(described(FIRST_DESCRIPTOR + 1), Err(code::ERROR_INVALID_VALUE));
        raw[1] = 7;
        assert_eq!(Part::read(&raw), Err(code::ERROR_INVALID_VALUE));
        raw[0] = 2;
        assert_eq!(Part::read(&raw), Err(code::ERROR_INVALID_RESOURCE_TYPE));
    }
}
