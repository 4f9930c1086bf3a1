//! The executor's own device code: page hashes and raw copies (kernels/executor.cu), the heap's place (kernels/heap.cu).

use crate::gpu::Gpu;
use crate::steer::Placing;
use cuda_api::code::{self, Code};
use cuda_api::ops::Fill;
use cuda_api::sys::CUlimit_enum;
use std::ffi::CStr;

/// NUL-terminated, as the driver wants PTX.
const EXECUTOR: &str = concat!(include_str!("../kernels/executor.ptx"), "\0");
const HEAP: &str = concat!(include_str!("../kernels/heap.ptx"), "\0");

/// Threads of a block, as the kernels are compiled.
const THREADS: u32 = 256;
/// Most blocks of a raw copy: enough to saturate a large GPU.
const COPY_BLOCKS: u64 = 264;
/// Where the heap of a process's first context begins (docs/placement.md).
const HEAP_AT: u64 = 0x2_0540_0000;
/// Streams made at the start of a context.
const WARM_STREAMS: usize = 512;

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
/// before the job's first module that allocates, so that it happens at the same point of the journal in every place. The
/// heap must also have been used once before its raw bytes can be put back.
///
/// # Errors
/// What the driver says; `NOT_SUPPORTED` if the heap is not where it is known to be.
pub(crate) fn find_heap(gpu: &Gpu, virtual_device: u32, stream: u64) -> Result<(u64, u64), Code> {
    let _placing = Placing::enter(virtual_device);
    let bytes = gpu.limit(CUlimit_enum::CU_LIMIT_MALLOC_HEAP_SIZE)?;
    let module = load(gpu, HEAP)?;
    let probe = function(gpu, module, c"mrcuda_heap")?;
    let answer = gpu.pin(4096)?;
    let found = gpu.launch(probe, [1, 1, 1], [1, 1, 1], 0, stream, &(answer as u64).to_le_bytes()).and_then(|()| {
        gpu.synchronize_stream(stream)?;
        // SAFETY: our own mapping; the kernel that wrote it has ended.
        Ok(unsafe { std::ptr::read_volatile(answer as *const u64) })
    });
    gpu.unpin(answer, 4096);
    // There is no way to ask for its bounds: that the first block lies inside confirms what was measured.
    if (HEAP_AT..HEAP_AT + bytes).contains(&found?) { Ok((HEAP_AT, bytes)) } else { Err(code::ERROR_NOT_SUPPORTED) }
}

/// Makes the driver provide `bytes` of local memory a thread now rather than at the launch that needs it: a placing call,
/// made at a function's first use, so that the launch itself places nothing (docs/placement.md, "local memory grew").
pub(crate) fn grow_local(gpu: &Gpu, virtual_device: u32, bytes: u32, stream: u64) -> Result<(), Code> {
    let _placing = Placing::enter(virtual_device);
    let text = LOCAL.replace("ROOM", &bytes.next_multiple_of(16).to_string());
    // SAFETY: whole, NUL-terminated PTX; no options.
    let module = unsafe { gpu.load_module(text.as_ptr().cast(), &mut [], &mut []) }?;
    let f = function(gpu, module, c"mrcuda_local")?;
    gpu.launch(f, [8, 1, 1], [THREADS, 1, 1], 0, stream, &0u64.to_le_bytes())?;
    gpu.synchronize_stream(stream)
}

/// A kernel with so much local memory, in a module without variables. It writes nothing: its parameter is null.
const LOCAL: &str = concat!(
    ".version 7.0\n.target sm_70\n.address_size 64\n",
    ".visible .entry mrcuda_local(.param .u64 to) {\n",
    "  .local .align 16 .b8 room[ROOM];\n",
    "  .reg .b64 %rd<4>;\n  .reg .b32 %r<3>;\n  .reg .pred %p;\n",
    "  ld.param.u64 %rd1, [to];\n",
    "  mov.u64 %rd2, room;\n  add.s64 %rd2, %rd2, %rd1;\n",
    "  mov.u32 %r1, %tid.x;\n  st.volatile.local.u32 [%rd2], %r1;\n  ld.volatile.local.u32 %r2, [%rd2];\n",
    "  setp.eq.u64 %p, %rd1, 0;\n  @%p bra done;\n",
    "  cvta.to.global.u64 %rd3, %rd1;\n  st.global.u32 [%rd3], %r2;\n",
    "done:\n  ret;\n}\n\0"
);

/// Makes what streams need inside the driver, once and for all: streams that the job makes later then move nothing
/// (docs/placement.md). `room` is a mapped address with 64 bytes.
pub(crate) fn warm_up(gpu: &Gpu, priorities: [i32; 2], room: u64) -> Result<(), Code> {
    let mut streams = Vec::with_capacity(WARM_STREAMS);
    let mut make = || {
        for i in 0..WARM_STREAMS {
            let stream = gpu.new_stream_with_priority(i & 1 == 0, priorities[i >> 1 & 1])?;
            streams.push(stream);
            let nothing = Fill { dst: room, pitch: 0, value: 0, element: 1, width: 64, rows: 1, stream: 0 };
            gpu.fill(&nothing, stream)?;
        }
        gpu.synchronize()
    };
    let made = make();
    streams.into_iter().map(|s| gpu.destroy_stream(s)).fold(made, Result::and)
}
