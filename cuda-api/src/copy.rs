//! The structures of cuda.h that describe copies, with enums as plain numbers, since a C program can store any value.

use crate::array::ARRAY;
use crate::code::{self, Code};
use crate::pointer::{InPtr, OutPtr, Plain};
use crate::sys;
use crate::work::{Copy3, CopyEnd};

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// One end of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawEnd {
    x: usize,
    y: usize,
    z: usize,
    lod: usize,
    memory: u32,
    host: usize,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawCopy {
    src: RawEnd,
    dst: RawEnd,
    width: usize,
    rows: usize,
    depth: usize,
}

// SAFETY: numbers.
unsafe impl Plain for RawCopy {}
const _: () = assert!(size_of::<RawCopy>() == size_of::<sys::CUDA_MEMCPY3D>());
const _: () = assert!(size_of::<RawCopy>() == size_of::<sys::CUDA_MEMCPY3D_PEER>());

fn end(e: RawEnd) -> CopyEnd {
    CopyEnd {
        x: e.x as u64,
        y: e.y as u64,
        z: e.z as u64,
        lod: e.lod as u64,
        memory: e.memory,
        host: e.host as u64,
        device: e.device,
        array: e.array as u64,
        pitch: e.pitch as u64,
        height: e.height as u64,
    }
}

fn raw_end(e: &CopyEnd) -> RawEnd {
    RawEnd {
        x: e.x as usize,
        y: e.y as usize,
        z: e.z as usize,
        lod: e.lod as usize,
        memory: e.memory,
        host: e.host as usize,
        device: e.device,
        array: e.array as usize,
        reserved: 0,
        pitch: e.pitch as usize,
        height: e.height as usize,
    }
}

fn copy(c: RawCopy) -> Result<Copy3, Code> {
    if c.src.reserved != 0 || c.dst.reserved != 0 {
        return Err(INVALID);
    }
    let c = Copy3 { src: end(c.src), dst: end(c.dst), width: c.width as u64, rows: c.rows as u64, depth: c.depth as u64 };
    // The rows of a slice must include those copied, even if there is only one slice (measured).
    let is_too_low = |e: &CopyEnd| e.memory != ARRAY && e.height != 0 && e.y.saturating_add(c.rows) > e.height;
    if is_too_low(&c.src) || is_too_low(&c.dst) {
        return Err(INVALID);
    }
    Ok(c)
}

fn raw_copy(c: &Copy3) -> RawCopy {
    RawCopy {
        src: raw_end(&c.src),
        dst: raw_end(&c.dst),
        width: c.width as usize,
        rows: c.rows as usize,
        depth: c.depth as usize,
    }
}

/// Reads a three-dimensional copy.
///
/// # Errors
/// `INVALID_VALUE` for null, for reserved fields that are used, and for slices with fewer rows than are copied.
pub fn copy_3d(p: InPtr<sys::CUDA_MEMCPY3D>) -> Result<Copy3, Code> {
    copy(p.cast::<RawCopy>().read()?)
}

/// One end of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawFlatEnd {
    x: usize,
    y: usize,
    memory: u32,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawFlat {
    src: RawFlatEnd,
    dst: RawFlatEnd,
    width: usize,
    rows: usize,
}

// SAFETY: numbers.
unsafe impl Plain for RawFlat {}
const _: () = assert!(size_of::<RawFlat>() == size_of::<sys::CUDA_MEMCPY2D>());

/// Reads a two-dimensional copy: a box of one slice.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn copy_2d(p: InPtr<sys::CUDA_MEMCPY2D>) -> Result<Copy3, Code> {
    let c = p.cast::<RawFlat>().read()?;
    let end = |e: RawFlatEnd| CopyEnd {
        x: e.x as u64,
        y: e.y as u64,
        memory: e.memory,
        host: e.host as u64,
        device: e.device,
        array: e.array as u64,
        pitch: e.pitch as u64,
        ..CopyEnd::default()
    };
    Ok(Copy3 { src: end(c.src), dst: end(c.dst), width: c.width as u64, rows: c.rows as u64, depth: 1 })
}

/// The contexts of the destination and the source of a copy between devices, and whether anything is copied.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn peer_contexts(p: InPtr<sys::CUDA_MEMCPY3D_PEER>) -> Result<([u64; 2], bool), Code> {
    let c = p.cast::<RawCopy>().read()?;
    Ok(([c.dst.reserved as u64, c.src.reserved as u64], ![c.width, c.rows, c.depth].contains(&0)))
}

/// Reads a three-dimensional copy between devices: the same fields, with contexts where the plain struct has reserved ones.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn copy_3d_peer(p: InPtr<sys::CUDA_MEMCPY3D_PEER>) -> Result<Copy3, Code> {
    let mut c = p.cast::<RawCopy>().read()?;
    (c.src.reserved, c.dst.reserved) = (0, 0);
    copy(c)
}

/// Writes a three-dimensional copy for the program, or for a driver.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn write_copy_3d(to: OutPtr<sys::CUDA_MEMCPY3D>, c: &Copy3) -> Result<(), Code> {
    to.cast().write(raw_copy(c))
}
