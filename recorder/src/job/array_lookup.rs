//! Finds the shapes of live arrays.

use crate::base::log::lock;
use crate::job::Job;
use crate::objects::arrays::Array;
use cuda_api::array::{Layout, Shape, WINDOW_STEP, WINDOWS, WITHOUT_MEMORY};
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of a live array.
pub(crate) fn find(job: &Job, handle: u64) -> Result<Array, Code> {
    job.tables.arrays.get(handle).map(|slot| lock(&slot.data.0).clone())
}

/// The shape of the first level of a mipmapped array.
pub(crate) fn first_level(job: &Job, mipmap: u64) -> Result<Shape, Code> {
    let first = lock(&job.tables.mipmaps.get(mipmap)?.data.0).levels.first().copied();
    Ok(find(job, first.ok_or(code::ERROR_INVALID_HANDLE)?)?.shape)
}

/// An array without memory of its own.
pub(crate) struct WithoutMemory {
    /// The shape of its first level.
    pub(crate) shape: Shape,
    pub(crate) levels: u32,
    pub(crate) layout: Layout,
    pub(crate) device: u32,
}

/// An array, or mipmapped array, without memory of its own; levels of a mipmapped array do not count.
pub(crate) fn without_memory(job: &Job, handle: u64, mipmapped: bool) -> Result<WithoutMemory, Code> {
    let device = job.tables.device(if mipmapped { Kind::Mipmap } else { Kind::Array }, handle)?;
    let (shape, levels, layout) = if mipmapped {
        let mipmap = lock(&job.tables.mipmaps.get(handle)?.data.0).clone();
        (first_level(job, handle)?, mipmap.levels.len() as u32, mipmap.layout)
    } else {
        let array = find(job, handle)?;
        (array.shape, 1, array.layout)
    };
    Ok(WithoutMemory { shape, levels, layout: layout.ok_or(code::ERROR_INVALID_VALUE)?, device })
}

/// A range of window numbers for this number of bytes of contents.
pub(crate) fn window(bytes: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(WINDOWS);
    NEXT.fetch_add(bytes.next_multiple_of(WINDOW_STEP), Ordering::Relaxed)
}

/// Total size of all arrays of a device.
pub(crate) fn bytes(job: &Job, device: u32) -> u64 {
    let plain = job.tables.arrays.all(device).into_iter().map(|(_, slot)| lock(&slot.data.0).shape);
    // Elements are usually padded to rows and tiles: an estimate that is rather too large.
    plain
        .filter(|shape| shape.flags & WITHOUT_MEMORY == 0)
        .map(|shape| shape.bytes().unwrap_or(0).next_multiple_of(WINDOW_STEP))
        .sum()
}
