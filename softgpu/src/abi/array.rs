//! Arrays, mipmapped arrays, and the one-dimensional copies of them.

use super::memcpy::DEFAULT;
use super::{Out, Res, abi};
use crate::gpu::array;
use crate::gpu::copy::copy_3d;
use crate::gpu::graph_table::error;
use crate::gpu::stream::{Target, resolve};
use crate::gpu::{context, device, reference, tile_mapping, wait};
use cuda_api::array::{ARRAY, DEFERRED, DEVICE, HOST, SPARSE, shape, shape_2d, write_requirements, write_shape, write_sparse};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR, CUarray,
    CUdevice, CUdeviceptr, CUmipmappedArray, CUresult, CUstream,
};
use cuda_api::work::{Copy3, CopyEnd};
use std::ffi::{c_uint, c_void};

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

abi! {
    call fn cuArrayCreate_v2(
        out: Out<CUarray> as *mut CUarray, what: InPtr<CUDA_ARRAY_DESCRIPTOR> as *const CUDA_ARRAY_DESCRIPTOR,
    ) {
        let live = context::current()?;
        out.check()?;
        let shape = shape_2d(what).map_err(error)?;
        out.set(array::create(&live, shape)?.handle as CUarray)
    }

    call fn cuArray3DCreate_v2(
        out: Out<CUarray> as *mut CUarray, what: InPtr<CUDA_ARRAY3D_DESCRIPTOR> as *const CUDA_ARRAY3D_DESCRIPTOR,
    ) {
        let live = context::current()?;
        out.check()?;
        let shape = shape(what).map_err(error)?;
        out.set(array::create(&live, shape)?.handle as CUarray)
    }

    call fn cuArrayDestroy(array: CUarray) {
        let live = context::current()?;
        array::resolve(array as usize)?;
        // As on hardware: what runs may use it.
        wait::for_device(live.device.ordinal as usize);
        array::destroy(array as usize, reference::array_ended)
    }

    call fn cuArrayGetDescriptor_v2(out: OutPtr<CUDA_ARRAY_DESCRIPTOR> as *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) {
        write_shape(OutPtr::null(), out, &array::resolve(array as usize)?.shape).map_err(error)
    }

    call fn cuArray3DGetDescriptor_v2(out: OutPtr<CUDA_ARRAY3D_DESCRIPTOR> as *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) {
        let array = array::resolve(array as usize)?;
        if out.is_null() {
            return Err(BAD);
        }
        write_shape(out, OutPtr::null(), &array.shape).map_err(error)
    }

    call fn cuArrayGetSparseProperties(
        out: OutPtr<CUDA_ARRAY_SPARSE_PROPERTIES> as *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray,
    ) {
        write_sparse(out, &tile_mapping::layout(array as usize, false, SPARSE)?).map_err(error)
    }

    call fn cuMipmappedArrayGetSparseProperties(
        out: OutPtr<CUDA_ARRAY_SPARSE_PROPERTIES> as *mut CUDA_ARRAY_SPARSE_PROPERTIES, mipmap: CUmipmappedArray,
    ) {
        write_sparse(out, &tile_mapping::layout(mipmap as usize, true, SPARSE)?).map_err(error)
    }

    call fn cuArrayGetMemoryRequirements(
        out: OutPtr<CUDA_ARRAY_MEMORY_REQUIREMENTS> as *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, on: CUdevice,
    ) {
        let layout = tile_mapping::layout(array as usize, false, DEFERRED)?;
        device::get(on)?;
        write_requirements(out, &layout).map_err(error)
    }

    call fn cuMipmappedArrayGetMemoryRequirements(
        out: OutPtr<CUDA_ARRAY_MEMORY_REQUIREMENTS> as *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray,
        on: CUdevice,
    ) {
        let layout = tile_mapping::layout(mipmap as usize, true, DEFERRED)?;
        device::get(on)?;
        write_requirements(out, &layout).map_err(error)
    }

    call fn cuArrayGetPlane(_out: Out<CUarray> as *mut CUarray, array: CUarray, _plane: c_uint) {
        array::resolve(array as usize)?;
        Err(BAD)
    }

    call fn cuMipmappedArrayCreate(
        out: Out<CUmipmappedArray> as *mut CUmipmappedArray,
        what: InPtr<CUDA_ARRAY3D_DESCRIPTOR> as *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint,
    ) {
        let live = context::current()?;
        out.check()?;
        let shape = shape(what).map_err(error)?;
        out.set(array::create_mipmap(&live, shape, levels)?.handle as CUmipmappedArray)
    }

    call fn cuMipmappedArrayGetLevel(out: Out<CUarray> as *mut CUarray, mipmap: CUmipmappedArray, level: c_uint) {
        let mipmap = array::resolve_mipmap(mipmap as usize)?;
        out.set(mipmap.levels.get(level as usize).ok_or(BAD)?.handle as CUarray)
    }

    call fn cuMipmappedArrayDestroy(mipmap: CUmipmappedArray) {
        let live = context::current()?;
        array::resolve_mipmap(mipmap as usize)?;
        wait::for_device(live.device.ordinal as usize);
        array::destroy_mipmap(mipmap as usize, reference::array_ended)
    }

    stream fn cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds(to: CUarray, at: usize, from: CUdeviceptr, size: usize) |default| {
        line(&resolve(DEFAULT, default)?, of_array(to, at), of_device(from), size, true)
    }

    stream fn cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds(to: CUdeviceptr, from: CUarray, at: usize, size: usize) |default| {
        line(&resolve(DEFAULT, default)?, of_device(to), of_array(from, at), size, true)
    }

    stream fn cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds(to: CUarray, at: usize, from: *const c_void, size: usize) |default| {
        line(&resolve(DEFAULT, default)?, of_array(to, at), of_host(from), size, true)
    }

    stream fn cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds(to: *mut c_void, from: CUarray, at: usize, size: usize) |default| {
        line(&resolve(DEFAULT, default)?, of_host(to), of_array(from, at), size, true)
    }

    stream fn cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds(
        to: CUarray, to_at: usize, from: CUarray, from_at: usize, size: usize,
    ) |default| {
        line(&resolve(DEFAULT, default)?, of_array(to, to_at), of_array(from, from_at), size, true)
    }

    stream fn cuMemcpyHtoAAsync_v2 / cuMemcpyHtoAAsync_v2_ptsz(
        to: CUarray, at: usize, from: *const c_void, size: usize, stream: CUstream,
    ) |default| {
        line(&resolve(stream, default)?, of_array(to, at), of_host(from), size, false)
    }

    stream fn cuMemcpyAtoHAsync_v2 / cuMemcpyAtoHAsync_v2_ptsz(
        to: *mut c_void, from: CUarray, at: usize, size: usize, stream: CUstream,
    ) |default| {
        line(&resolve(stream, default)?, of_host(to), of_array(from, at), size, false)
    }
}

fn of_array(array: CUarray, at: usize) -> CopyEnd {
    CopyEnd { memory: ARRAY, array: array as u64, x: at as u64, ..CopyEnd::default() }
}

fn of_host(at: *const c_void) -> CopyEnd {
    CopyEnd { memory: HOST, host: at as u64, ..CopyEnd::default() }
}

fn of_device(at: CUdeviceptr) -> CopyEnd {
    CopyEnd { memory: DEVICE, device: at, ..CopyEnd::default() }
}

/// A copy inside the first row.
fn line(target: &Target, dst: CopyEnd, src: CopyEnd, size: usize, waits: bool) -> Res {
    if size == 0 {
        // The array is not checked then, as on hardware.
        return Ok(());
    }
    copy_3d(target, Copy3 { src, dst, width: size as u64, rows: 1, depth: 1 }, waits)
}
