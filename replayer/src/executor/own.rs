//! The executor's own device code: page hashes and raw copies (kernels/executor.cu), the heap's place (kernels/heap.cu).

use crate::gpu::Gpu;
use crate::steer::Placing;
use cuda_api::code::{self, Code};
use cuda_api::sys::CUlimit_enum;
use std::ffi::CStr;

/// NUL-terminated, as the driver wants PTX.
const EXECUTOR: &str = concat!(include_str!("../kernels/executor.ptx"), "\0");
const HEAP: &str = concat!(include_str!("../kernels/heap.ptx"), "\0");

/// Threads of a block, as the kernels are compiled.
const THREADS: u32 = 256;
/// Most blocks of a raw copy: enough to saturate a large GPU.
const COPY_BLOCKS: u64 = 264;
/// The heap begins on such a boundary.
const HEAP_ALIGN: u64 = 2 << 20;

/// The executor's module.
#[derive(Debug)]
pub(crate) struct Own {
    module: u64,
    hash: u64,
    copy: u64,
}

fn load(gpu: &Gpu, text: &'static str) -> Result<u64, Code> {
    // SAFETY: whole, NUL-terminated PTX that lives for ever; no options.
    unsafe { gpu.load_module(text.as_ptr().cast(), &mut [], &mut []) }
}

fn function(gpu: &Gpu, module: u64, name: &CStr) -> Result<u64, Code> {
    let f = gpu.function(module, name)?;
    gpu.load_function(f)?;
    Ok(f)
}

impl Own {
    /// Loads the module: a placing call.
    pub(crate) fn load(gpu: &Gpu, virtual_device: u32) -> Result<Own, Code> {
        let _placing = Placing::enter(virtual_device);
        let module = load(gpu, EXECUTOR)?;
        Ok(Own { module, hash: function(gpu, module, c"mrcuda_hash")?, copy: function(gpu, module, c"mrcuda_copy")? })
    }

    pub(crate) fn unload(&self, gpu: &Gpu) {
        // Fails only when the context has ended, and the module with it.
        let _ = gpu.unload_module(self.module);
    }

    /// Hashes `count` pages: `pages` is a table of (address, bytes), `hashes` receives 16 bytes for each. Both in memory that
    /// the GPU reaches.
    pub(crate) fn hash(&self, gpu: &Gpu, pages: u64, hashes: u64, count: u32, stream: u64) -> Result<(), Code> {
        let params: Vec<u8> = [pages, hashes].iter().flat_map(|v| v.to_le_bytes()).collect();
        gpu.launch(self.hash, [count, 1, 1], [THREADS, 1, 1], 0, stream, &params)
    }

    /// Copies bytes by a kernel; either side may be page-locked host memory.
    pub(crate) fn copy(&self, gpu: &Gpu, to: u64, from: u64, bytes: u64, stream: u64) -> Result<(), Code> {
        let params: Vec<u8> = [to, from, bytes].iter().flat_map(|v| v.to_le_bytes()).collect();
        let blocks = bytes.div_ceil(16 * u64::from(THREADS)).clamp(1, COPY_BLOCKS) as u32;
        gpu.launch(self.copy, [blocks, 1, 1], [THREADS, 1, 1], 0, stream, &params)
    }
}

/// Where the device heap lies. Loads a module that allocates, which makes the context have a heap: a placing call, made
/// before the job's first module that allocates, so that it happens at the same point of the journal in every place.
pub(crate) fn find_heap(gpu: &Gpu, virtual_device: u32, stream: u64) -> Result<(u64, u64), Code> {
    let _placing = Placing::enter(virtual_device);
    let module = load(gpu, HEAP)?;
    let probe = function(gpu, module, c"mrcuda_heap")?;
    let answer = gpu.pin(4096)?;
    let found = gpu.launch(probe, [1, 1, 1], [1, 1, 1], 0, stream, &(answer as u64).to_le_bytes()).and_then(|()| {
        gpu.synchronize_stream(stream)?;
        // SAFETY: the driver's own page-locked allocation; the kernel that wrote it has ended.
        Ok(unsafe { std::ptr::read_volatile(answer as *const u64) })
    });
    // The answer has been read; a failure to give the page back loses a page.
    let _ = gpu.unpin(answer);
    let first = found?;
    if first == 0 {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    // The heap gives out its first bytes first, and starts on a 2 MB page (docs/placement.md).
    Ok((first & !(HEAP_ALIGN - 1), gpu.limit(CUlimit_enum::CU_LIMIT_MALLOC_HEAP_SIZE)?))
}
