//! Functions of modules, and occupancy.

use super::launch::Config;
use super::{In, Out, Res, abi};
use crate::config;
use crate::gpu::attributes::Attributes;
use crate::gpu::launch::{blocks_per_multiprocessor, max_threads};
use crate::gpu::module::{self, FUNCTIONS};
use crate::gpu::{context, device};
use crate::ptx::FunctionInfo;
use cuda_api::sys::{
    CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUlaunchConfig, CUmodule, CUoccupancyB2DSize,
    CUresult, CUsharedconfig,
};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicI32, Ordering};

abi! {
    call fn cuFuncGetAttribute(
        value: Out<c_int> as *mut c_int, which: c_uint as CUfunction_attribute, function: CUfunction,
    ) {
        value.check()?;
        let (function, _) = module::resolve_function(function)?;
        value.set(attribute(function.info(), &function.attributes, which)?)
    }

    call fn cuFuncSetAttribute(function: CUfunction, which: c_uint as CUfunction_attribute, value: c_int) {
        let (function, _) = module::resolve_function(function)?;
        set_attribute(function.info(), &function.attributes, which, value)
    }

    call fn cuFuncSetCacheConfig(function: CUfunction, config: c_uint as CUfunc_cache) {
        module::resolve_function(function)?;
        check_cache_config(config)
    }

    call fn cuFuncSetSharedMemConfig(function: CUfunction, _config: c_uint as CUsharedconfig) {
        module::resolve_function(function).map(drop)
    }

    call fn cuFuncGetModule(out: Out<CUmodule> as *mut CUmodule, function: CUfunction) {
        out.set(module::resolve_function(function)?.0.module as CUmodule)
    }

    call fn cuFuncGetName(out: Out<*const c_char> as *mut *const c_char, function: CUfunction) {
        out.set(module::resolve_function(function)?.0.name.as_ptr())
    }

    call fn cuFuncGetParamInfo(
        function: CUfunction, index: usize, offset: Out<usize> as *mut usize, size: Out<usize> as *mut usize,
    ) {
        context::current()?;
        // The one function that does not take a kernel of a library.
        let function = FUNCTIONS.get(function as usize).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let param = function.info().params.get(index).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        offset.set(param.offset as usize)?;
        size.set_if_wanted(param.size as usize);
        Ok(())
    }

    call fn cuFuncIsLoaded(state: Out<c_uint> as *mut CUfunctionLoadingState, function: CUfunction) {
        module::resolve_function(function)?;
        state.set(1)
    }

    call fn cuFuncLoad(function: CUfunction) {
        module::resolve_function(function).map(drop)
    }

    call fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        count: Out<c_int> as *mut c_int, function: CUfunction, block: c_int, dynamic: usize,
    ) {
        occupancy(count, function, block, dynamic)
    }

    call fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<c_int> as *mut c_int, function: CUfunction, block: c_int, dynamic: usize, flags: c_uint,
    ) {
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        occupancy(count, function, block, dynamic)
    }

    call fn cuOccupancyAvailableDynamicSMemPerBlock(
        size: Out<usize> as *mut usize, function: CUfunction, blocks: c_int, block: c_int,
    ) {
        size.check()?;
        let (function, _) = module::resolve_function(function)?;
        let (blocks, threads) = (positive(blocks)?, positive(block)?);
        let info = function.info();
        if blocks > blocks_per_multiprocessor(info, threads, 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let each = device::SHARED_PER_SM / blocks;
        let usable = (each - each % 128).saturating_sub(device::SHARED_RESERVED + info.static_shared);
        let allowed = function.attributes.max_dynamic_shared.load(Ordering::Relaxed) as u32;
        size.set(usable.min(device::SHARED_OPTIN - info.static_shared).min(allowed) as usize)
    }

    call fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int> as *mut c_int, block: Out<c_int> as *mut c_int, function: CUfunction,
        dynamic_of: CUoccupancyB2DSize, dynamic: usize, limit: c_int,
    ) {
        best_block(grid, block, function, dynamic_of, dynamic, limit)
    }

    call fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int> as *mut c_int, block: Out<c_int> as *mut c_int, function: CUfunction,
        dynamic_of: CUoccupancyB2DSize, dynamic: usize, limit: c_int, flags: c_uint,
    ) {
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        best_block(grid, block, function, dynamic_of, dynamic, limit)
    }

    call fn cuOccupancyMaxActiveClusters(
        count: Out<c_int> as *mut c_int, function: CUfunction, config: In<Config> as *const CUlaunchConfig,
    ) {
        let (function, _) = module::resolve_function(function)?;
        let config = config.get()?;
        config.check_attributes()?;
        // Clusters are of one block.
        let blocks = blocks_per_multiprocessor(function.info(), config.threads(), u64::from(config.shared));
        count.set((blocks * device::multiprocessors()) as c_int)
    }
}

/// An attribute of a function by its number in cuda.h.
pub(super) fn attribute(info: &FunctionInfo, attributes: &Attributes, which: c_uint) -> Res<c_int> {
    Ok(match which {
        0 => max_threads(info) as c_int,
        1 => info.static_shared as c_int,
        3 => info.local_bytes as c_int,
        4 => info.num_regs as c_int,
        5 => info.target as c_int,
        6 => config::get().sm() as c_int,
        8 => attributes.max_dynamic_shared.load(Ordering::Relaxed),
        9 => attributes.carveout.load(Ordering::Relaxed),
        // Bytes of user constants, cache mode.
        2 | 7 => 0,
        10..=15 => cluster_attribute(attributes, which).load(Ordering::Relaxed),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

fn cluster_attribute(attributes: &Attributes, which: c_uint) -> &AtomicI32 {
    &attributes.clusters[(which - Attributes::FIRST_OF_CLUSTERS) as usize]
}

/// Sets one of the attributes that can be set.
pub(super) fn set_attribute(info: &FunctionInfo, attributes: &Attributes, which: c_uint, value: c_int) -> Res {
    let most = device::SHARED_OPTIN.saturating_sub(info.static_shared) as c_int;
    match which {
        8 if (0..=most).contains(&value) => attributes.max_dynamic_shared.store(value, Ordering::Relaxed),
        9 if (-1..=100).contains(&value) => attributes.carveout.store(value, Ordering::Relaxed),
        // Width, height, depth; whether larger ones than every device has are allowed; how they are scheduled. Only kept.
        11..=13 if value >= 0 => cluster_attribute(attributes, which).store(value, Ordering::Relaxed),
        14 => cluster_attribute(attributes, which).store(c_int::from(value != 0), Ordering::Relaxed),
        15 if matches!(value, 0 | 1) => cluster_attribute(attributes, which).store(value, Ordering::Relaxed),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

/// Cache preferences are accepted and have no effect.
pub(super) fn check_cache_config(config: c_uint) -> Res {
    if config <= 3 { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

fn positive(n: c_int) -> Res<u32> {
    u32::try_from(n).ok().filter(|n| *n > 0).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn occupancy(count: Out<c_int>, function: CUfunction, block: c_int, dynamic: usize) -> Res {
    count.check()?;
    let (function, _) = module::resolve_function(function)?;
    count.set(blocks_per_multiprocessor(function.info(), positive(block)?, dynamic as u64) as c_int)
}

fn best_block(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: CUfunction,
    dynamic_of: CUoccupancyB2DSize,
    dynamic: usize,
    limit: c_int,
) -> Res {
    grid.check()?;
    block.check()?;
    let (function, _) = module::resolve_function(function)?;
    let info = function.info();
    let most = if limit <= 0 { 1024 } else { positive(limit)? }.min(max_threads(info));
    let mut best = (0, 0, 0);
    for threads in (1..=most / 32).rev().map(|warps| warps * 32).chain((most < 32).then_some(most)) {
        let shared = match dynamic_of {
            // SAFETY: the program gave this function to be asked for the memory of a block of this size.
            Some(ask) => unsafe { ask(threads as c_int) },
            None => dynamic,
        };
        let blocks = blocks_per_multiprocessor(info, threads, shared as u64);
        if blocks * threads > best.0 {
            best = (blocks * threads, threads, blocks);
        }
    }
    grid.set((best.2 * device::multiprocessors()) as c_int)?;
    block.set(best.1 as c_int)
}
