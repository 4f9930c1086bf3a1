//! Arrays, texture and surface objects, descriptors of tensors.

use super::{Code, Gpu, checked, code, sys};
use cuda_api::array::{DEFERRED, Layout, MapInfo, OF_ARRAY, OF_MIPMAP, Resource, SPARSE, Sampling, Shape, TILE_POOL, View};
use cuda_api::array::{write_resource, write_sampling, write_shape, write_view};
use cuda_api::ops::{TENSOR_MAP_BYTES, TensorMapIm2col};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::work::Copy3;
use std::mem::MaybeUninit;

/// A descriptor of a tensor.
pub(crate) type TensorMap = [u64; TENSOR_MAP_BYTES / 8];

/// Aligned as the driver requires for a descriptor that it writes.
#[repr(align(64))]
struct Aligned(TensorMap);

impl Gpu {
    /// Creates an array, or with `levels` a mipmapped array.
    pub(crate) fn make_array(&self, shape: &Shape, levels: Option<u32>) -> Result<u64, Code> {
        let mut what = MaybeUninit::<sys::CUDA_ARRAY3D_DESCRIPTOR>::uninit();
        write_shape(OutPtr::of_room(&mut what), OutPtr::null(), shape)?;
        if let Some(levels) = levels {
            let mut mipmap: sys::CUmipmappedArray = std::ptr::null_mut();
            return call!(self.array.cuMipmappedArrayCreate(&raw mut mipmap, what.as_ptr(), levels)).map(|()| mipmap as u64);
        }
        let mut array: sys::CUarray = std::ptr::null_mut();
        call!(self.array.cuArray3DCreate_v2(&raw mut array, what.as_ptr())).map(|()| array as u64)
    }

    pub(crate) fn level(&self, mipmap: u64, level: u32) -> Result<u64, Code> {
        let mut array: sys::CUarray = std::ptr::null_mut();
        call!(self.array.cuMipmappedArrayGetLevel(&raw mut array, mipmap as sys::CUmipmappedArray, level))?;
        Ok(array as u64)
    }

    pub(crate) fn destroy_array(&self, array: u64, mipmapped: bool) -> Result<(), Code> {
        if mipmapped {
            call!(self.array.cuMipmappedArrayDestroy(array as sys::CUmipmappedArray))
        } else {
            call!(self.array.cuArrayDestroy(array as sys::CUarray))
        }
    }

    /// The layout of an array without memory, as requested by its flags.
    pub(crate) fn layout(&self, array: u64, mipmapped: bool, flags: u32) -> Result<Layout, Code> {
        let (mut sparse, mut need) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        let (plain, mipmap) = (array as sys::CUarray, array as sys::CUmipmappedArray);
        match (flags & SPARSE != 0, mipmapped) {
            (false, _) => {}
            (true, false) => call!(self.array.cuArrayGetSparseProperties(sparse.as_mut_ptr(), plain))?,
            (true, true) => call!(self.array.cuMipmappedArrayGetSparseProperties(sparse.as_mut_ptr(), mipmap))?,
        }
        match (flags & DEFERRED != 0, mipmapped) {
            (false, _) => {}
            (true, false) => call!(self.array.cuArrayGetMemoryRequirements(need.as_mut_ptr(), plain, 0))?,
            (true, true) => call!(self.array.cuMipmappedArrayGetMemoryRequirements(need.as_mut_ptr(), mipmap, 0))?,
        }
        // SAFETY: both are here, and zero or as the driver has set them.
        let (need, sparse) = unsafe { (InPtr::new(need.as_ptr()), InPtr::new(sparse.as_ptr())) };
        let Layout { bytes, alignment, .. } = cuda_api::array::need(need)?;
        Ok(Layout { bytes, alignment, ..cuda_api::array::sparse(sparse)? })
    }

    /// Creates physical memory for tiles, without addresses.
    pub(crate) fn create_tile_pool(&self, bytes: u64) -> Result<u64, Code> {
        self.create(bytes, false, false, TILE_POOL)
    }

    /// Maps and unmaps tiles, in stream order.
    pub(crate) fn map_tiles(&self, list: &mut [MapInfo], stream: u64) -> Result<(), Code> {
        let count = u32::try_from(list.len()).map_err(|_| code::ERROR_INVALID_VALUE)?;
        call!(self.vmm.cuMemMapArrayAsync(list.as_mut_ptr().cast(), count, stream as sys::CUstream))
    }

    /// # Safety
    /// Host ends of the copy are valid until it is complete.
    pub(crate) unsafe fn copy_3d(&self, copy: &Copy3, stream: u64) -> Result<(), Code> {
        // Its padding would hold what was there before: a test finds addresses in it.
        let mut what = MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
        cuda_api::copy::write_copy_3d(OutPtr::of_room(&mut what), copy)?;
        call!(self.memory.cuMemcpy3DAsync_v2(what.as_ptr(), stream as sys::CUstream))
    }

    /// Creates a texture object, or without sampling a surface object; handles in the resource are the driver's. Returns its number.
    pub(crate) fn make_object(&self, resource: &Resource, sampling: Option<&Sampling>, view: Option<&View>) -> Result<u64, Code> {
        // Checked here because the following code fills the union accordingly.
        if resource.kind > OF_MIPMAP && resource.array != 0 || resource.kind <= OF_MIPMAP && resource.address != 0 {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let mut what = MaybeUninit::<sys::CUDA_RESOURCE_DESC>::uninit();
        write_resource(OutPtr::of_room(&mut what), resource)?;
        let Some(sampling) = sampling else {
            if resource.kind != OF_ARRAY {
                return Err(code::ERROR_INVALID_VALUE);
            }
            let mut object: sys::CUsurfObject = 0;
            return call!(self.array.cuSurfObjectCreate(&raw mut object, what.as_ptr())).map(|()| object);
        };
        let mut how = MaybeUninit::<sys::CUDA_TEXTURE_DESC>::uninit();
        write_sampling(OutPtr::of_room(&mut how), sampling)?;
        let mut seen_as = MaybeUninit::<sys::CUDA_RESOURCE_VIEW_DESC>::uninit();
        let seen_as = match view {
            Some(view) => write_view(OutPtr::of_room(&mut seen_as), view).map(|()| seen_as.as_ptr())?,
            None => std::ptr::null(),
        };
        let mut object: sys::CUtexObject = 0;
        call!(self.array.cuTexObjectCreate(&raw mut object, what.as_ptr(), how.as_ptr(), seen_as)).map(|()| object)
    }

    /// The sampling parameters of a texture object, as the driver reports them.
    pub(crate) fn sampling(&self, number: u64) -> Result<Sampling, Code> {
        let mut how = MaybeUninit::<sys::CUDA_TEXTURE_DESC>::zeroed();
        call!(self.array.cuTexObjectGetTextureDesc(how.as_mut_ptr(), number))?;
        // SAFETY: it is here, as the driver has set it.
        cuda_api::array::sampling(unsafe { InPtr::new(how.as_ptr()) })
    }

    pub(crate) fn destroy_object(&self, number: u64, surface: bool) -> Result<(), Code> {
        if surface { call!(self.array.cuSurfObjectDestroy(number)) } else { call!(self.array.cuTexObjectDestroy(number)) }
    }

    /// Encodes a descriptor for the tensor memory accelerator: computed by the driver without using the GPU.
    pub(crate) fn tensor_map_im2col(&self, op: &TensorMapIm2col) -> Result<TensorMap, Code> {
        let rank = op.dims.len();
        // The driver reads as many elements from each array as the rank implies.
        let corners = if op.wide.is_some() { 1 } else { rank.saturating_sub(2) };
        if op.strides.len() + 1 != rank
            || op.element_strides.len() != rank
            || op.lower.len() != corners
            || op.upper.len() != corners
            || corners == 0
        {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let mut map = Aligned([0; TENSOR_MAP_BYTES / 8]);
        let to = (&raw mut map).cast::<sys::CUtensorMap>();
        let address = std::ptr::without_provenance_mut(op.address as usize);
        let (dims, strides, steps) = (op.dims.as_ptr(), op.strides.as_ptr(), op.element_strides.as_ptr());
        let [interleave, swizzle, promotion, fill] = op.modes;
        let (rank, channels, pixels) = (rank as u32, op.channels, op.pixels);
        match op.wide {
            None => {
                let (lower, upper) = (op.lower.as_ptr(), op.upper.as_ptr());
                call!(self.array.cuTensorMapEncodeIm2col(
                    to,
                    op.data_type,
                    rank,
                    address,
                    dims,
                    strides,
                    lower,
                    upper,
                    channels,
                    pixels,
                    steps,
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                ))?;
            }
            Some(mode) => {
                let (lower, upper) = (op.lower[0], op.upper[0]);
                call!(self.array.cuTensorMapEncodeIm2colWide(
                    to,
                    op.data_type,
                    rank,
                    address,
                    dims,
                    strides,
                    lower,
                    upper,
                    channels,
                    pixels,
                    steps,
                    interleave,
                    mode,
                    swizzle,
                    promotion,
                    fill,
                ))?;
            }
        }
        Ok(map.0)
    }

    /// Puts an address in a descriptor.
    pub(crate) fn replace_tensor_map_address(&self, map: TensorMap, address: u64) -> Result<TensorMap, Code> {
        let mut map = Aligned(map);
        let to = (&raw mut map).cast::<sys::CUtensorMap>();
        call!(self.array.cuTensorMapReplaceAddress(to, std::ptr::without_provenance_mut(address as usize)))?;
        Ok(map.0)
    }
}
