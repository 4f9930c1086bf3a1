//! The structures of cuda.h that describe arrays and objects, with enums as plain numbers, since a C program can store
//! any value.

use super::tiles::{Layout, write_requirements, write_sparse};
use super::{OF_ARRAY, OF_MEMORY, OF_MIPMAP, OF_ROWS, Resource, Sampling, Shape, View};
use crate::answer::structs;
use crate::code::{self, Code};
use crate::pointer::{InPtr, OutPtr, Plain};
use crate::sys;

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawShape2 {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawShape3 {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_RESOURCE_DESC`: the union as words, an enum and the channels in one of them.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawResource {
    kind: u32,
    first: u64,
    format: u32,
    channels: u32,
    sizes: [u64; 3],
    rest: [u64; 11],
    flags: u32,
}

/// `CUDA_TEXTURE_DESC`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawSampling {
    address: [u32; 3],
    filter: u32,
    flags: u32,
    anisotropy: u32,
    mip_filter: u32,
    mip_bias: u32,
    mip_clamp: [u32; 2],
    border: [u32; 4],
    reserved: [u32; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawView {
    format: u32,
    size: [u64; 3],
    levels: [u32; 2],
    layers: [u32; 2],
    reserved: [u32; 16],
}

// SAFETY: numbers.
unsafe impl Plain for RawShape2 {}
// SAFETY: numbers.
unsafe impl Plain for RawShape3 {}
// SAFETY: numbers.
unsafe impl Plain for RawResource {}
// SAFETY: numbers.
unsafe impl Plain for RawSampling {}
// SAFETY: numbers.
unsafe impl Plain for RawView {}

const _: () = assert!(size_of::<RawShape2>() == size_of::<sys::CUDA_ARRAY_DESCRIPTOR>());
const _: () = assert!(size_of::<RawShape3>() == size_of::<sys::CUDA_ARRAY3D_DESCRIPTOR>());
const _: () = assert!(size_of::<RawResource>() == size_of::<sys::CUDA_RESOURCE_DESC>());
const _: () = assert!(size_of::<RawSampling>() == size_of::<sys::CUDA_TEXTURE_DESC>());
const _: () = assert!(size_of::<RawView>() == size_of::<sys::CUDA_RESOURCE_VIEW_DESC>());

/// Reads the shape of a one- or two-dimensional array.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn shape_2d(p: InPtr<sys::CUDA_ARRAY_DESCRIPTOR>) -> Result<Shape, Code> {
    let r = p.cast::<RawShape2>().read()?;
    Ok(Shape { width: r.width as u64, height: r.height as u64, depth: 0, format: r.format, channels: r.channels, flags: 0 })
}

/// Reads the shape of an array.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn shape(p: InPtr<sys::CUDA_ARRAY3D_DESCRIPTOR>) -> Result<Shape, Code> {
    let r = p.cast::<RawShape3>().read()?;
    let (width, height, depth) = (r.width as u64, r.height as u64, r.depth as u64);
    Ok(Shape { width, height, depth, format: r.format, channels: r.channels, flags: r.flags })
}

/// Writes a shape: all of it, or without depth and flags.
///
/// # Errors
/// `INVALID_VALUE` if both are null.
pub fn write_shape(
    whole: OutPtr<sys::CUDA_ARRAY3D_DESCRIPTOR>,
    flat: OutPtr<sys::CUDA_ARRAY_DESCRIPTOR>,
    s: &Shape,
) -> Result<(), Code> {
    let (width, height, depth) = (s.width as usize, s.height as usize, s.depth as usize);
    let (format, channels) = (s.format, s.channels);
    if whole.is_null() {
        return flat.cast().write(RawShape2 { width, height, format, channels });
    }
    whole.cast().write(RawShape3 { width, height, depth, format, channels, flags: s.flags })
}

/// Reads a resource description.
///
/// # Errors
/// `INVALID_VALUE` for null and kinds that do not exist.
pub fn resource(p: InPtr<sys::CUDA_RESOURCE_DESC>) -> Result<Resource, Code> {
    let r = p.cast::<RawResource>().read()?;
    let plain = Resource { kind: r.kind, flags: r.flags, ..Resource::default() };
    Ok(match r.kind {
        OF_ARRAY | OF_MIPMAP if r.first == 0 => return Err(code::ERROR_INVALID_VALUE),
        OF_ARRAY | OF_MIPMAP => Resource { array: r.first, ..plain },
        OF_MEMORY | OF_ROWS => {
            let [width, height, pitch] = if r.kind == OF_MEMORY { [r.sizes[0], 0, 0] } else { r.sizes };
            Resource { address: r.first, format: r.format, channels: r.channels, width, height, pitch, ..plain }
        }
        _ => return Err(code::ERROR_INVALID_VALUE),
    })
}

/// Writes a resource description.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn write_resource(to: OutPtr<sys::CUDA_RESOURCE_DESC>, r: &Resource) -> Result<(), Code> {
    // One of the two is 0.
    let first = r.array | r.address;
    let sizes = [r.width, r.height, r.pitch];
    let (kind, format, channels, flags) = (r.kind, r.format, r.channels, r.flags);
    to.cast().write(RawResource { kind, first, format, channels, sizes, rest: [0; 11], flags })
}

/// Reads a texture description.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn sampling(p: InPtr<sys::CUDA_TEXTURE_DESC>) -> Result<Sampling, Code> {
    let r = p.cast::<RawSampling>().read()?;
    Ok(Sampling {
        address: r.address,
        filter: r.filter,
        flags: r.flags,
        anisotropy: r.anisotropy,
        mip_filter: r.mip_filter,
        mip_bias: r.mip_bias,
        mip_clamp: r.mip_clamp,
        border: r.border,
    })
}

/// Writes a texture description.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn write_sampling(to: OutPtr<sys::CUDA_TEXTURE_DESC>, s: &Sampling) -> Result<(), Code> {
    to.cast().write(RawSampling {
        address: s.address,
        filter: s.filter,
        flags: s.flags,
        anisotropy: s.anisotropy,
        mip_filter: s.mip_filter,
        mip_bias: s.mip_bias,
        mip_clamp: s.mip_clamp,
        border: s.border,
        reserved: [0; 12],
    })
}

/// Reads a resource view; null means none.
///
/// # Errors
/// None; the return type is that of the sibling functions.
pub fn view(p: InPtr<sys::CUDA_RESOURCE_VIEW_DESC>) -> Result<Option<View>, Code> {
    if p.is_null() {
        return Ok(None);
    }
    let r = p.cast::<RawView>().read()?;
    Ok(Some(View { format: r.format, size: r.size, levels: r.levels, layers: r.layers }))
}

/// Writes a resource view.
///
/// # Errors
/// `INVALID_VALUE` for null.
pub fn write_view(to: OutPtr<sys::CUDA_RESOURCE_VIEW_DESC>, v: &View) -> Result<(), Code> {
    to.cast().write(RawView { format: v.format, size: v.size, levels: v.levels, layers: v.layers, reserved: [0; 16] })
}

structs! { read
    CUDA_ARRAY_DESCRIPTOR as Shape = shape_2d;
    CUDA_ARRAY3D_DESCRIPTOR as Shape = shape;
    CUDA_RESOURCE_DESC as Resource = resource;
    CUDA_TEXTURE_DESC as Sampling = sampling;
    CUDA_RESOURCE_VIEW_DESC as View = |p| view(p)?.ok_or(code::ERROR_INVALID_VALUE);
}
structs! { write
    CUDA_ARRAY_DESCRIPTOR as Shape = |to, shape| write_shape(OutPtr::null(), to, shape);
    CUDA_ARRAY3D_DESCRIPTOR as Shape = |to, shape| write_shape(to, OutPtr::null(), shape);
    CUDA_RESOURCE_DESC as Resource = write_resource;
    CUDA_TEXTURE_DESC as Sampling = write_sampling;
    CUDA_RESOURCE_VIEW_DESC as View = write_view;
    CUDA_ARRAY_SPARSE_PROPERTIES as Layout = write_sparse;
    CUDA_ARRAY_MEMORY_REQUIREMENTS as Layout = write_requirements;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_header_says() {
        // SAFETY: all fields are numbers, pointers and enums that have the value 0, or are written below.
        let mut c: sys::CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
        c.resType = sys::CUresourcetype::CU_RESOURCE_TYPE_PITCH2D;
        c.flags = 7;
        c.res.pitch2D = sys::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 {
            devPtr: 0x1234,
            format: sys::CUarray_format::CU_AD_FORMAT_HALF,
            numChannels: 2,
            width: 3,
            height: 4,
            pitchInBytes: 5,
        };
        // SAFETY: the value is there.
        let r = resource(unsafe { InPtr::new(&raw const c) }).unwrap();
        let rows =
            Resource { kind: 3, array: 0, address: 0x1234, format: 16, channels: 2, width: 3, height: 4, pitch: 5, flags: 7 };
        assert_eq!(r, rows);
        // SAFETY: as above.
        let mut back: sys::CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
        write_resource(OutPtr::of(&mut back), &r).unwrap();
        // SAFETY: as above.
        assert_eq!(resource(unsafe { InPtr::new(&raw const back) }), Ok(r));
        let s = Sampling {
            address: [1, 2, 3],
            filter: 1,
            flags: 2,
            anisotropy: 16,
            mip_filter: 1,
            mip_bias: 0x3f80_0000,
            mip_clamp: [0, 0x4000_0000],
            border: [9; 4],
        };
        let mut t = std::mem::MaybeUninit::<sys::CUDA_TEXTURE_DESC>::zeroed();
        write_sampling(OutPtr::of_room(&mut t), &s).unwrap();
        // SAFETY: as above.
        assert_eq!(sampling(unsafe { InPtr::new(t.as_ptr()) }), Ok(s));
        // SAFETY: the enums written are values that they have.
        let t = unsafe { t.assume_init() };
        assert_eq!((t.maxAnisotropy, t.mipmapLevelBias, t.maxMipmapLevelClamp), (16, 1.0, 2.0));
        let v = View { format: 3, size: [1, 2, 3], levels: [4, 5], layers: [6, 7] };
        let mut w = std::mem::MaybeUninit::<sys::CUDA_RESOURCE_VIEW_DESC>::zeroed();
        write_view(OutPtr::of_room(&mut w), &v).unwrap();
        // SAFETY: as above.
        assert_eq!(view(unsafe { InPtr::new(w.as_ptr()) }), Ok(Some(v)));
        // SAFETY: as above.
        let w = unsafe { w.assume_init() };
        assert_eq!((w.depth, w.lastMipmapLevel, w.firstLayer), (3, 5, 6));
    }
}
