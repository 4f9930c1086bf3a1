//! The executor's own device code: page hashes and their comparison, comparison of pages, raw copies, many small copies,
//! changes of mirrored memory (kernels/executor.cu), and
//! finding the device heap (kernels/heap.cu).

use crate::gpu::Gpu;
use crate::page_hash::KEY_BYTES;
use crate::steer::Placing;
use cuda_api::code::{self, Code};
use cuda_api::ops::Fill;
use cuda_api::sys::{CUdevice_attribute_enum, CUlimit_enum};
use std::ffi::CStr;
use std::ops::Range;

/// NUL-terminated, as the driver requires PTX.
const EXECUTOR: &str = concat!(include_str!("../kernels/executor.ptx"), "\0");
const HEAP: &str = concat!(include_str!("../kernels/heap.ptx"), "\0");

/// Threads of a block, as in the kernels' source.
const THREADS: u32 = 256;
/// Threads of a block of the page hash.
const HASH_THREADS: u32 = 128;
/// Threads of the only block that writes changed lines.
const PATCH_THREADS: u32 = 1024;
/// Blocks of the page hash for each multiprocessor: as many as are resident at a time (its launch bounds).
const HASH_BLOCKS: u32 = 6;
/// Maximum number of ranges of a launch of the page hash, and the bytes of each.
pub(crate) const RANGES: usize = 4096;
pub(crate) const RANGE_BYTES: usize = 24;
/// Maximum number of blocks of a raw copy: enough to saturate a large GPU.
const COPY_BLOCKS: u64 = 264;
/// The heap begins at a multiple of this.
const HEAP_PAGE: u64 = 2 << 20;
/// Number of blocks that fill the heap in order to find it.
const HEAP_BLOCKS: u64 = 128;
/// Number of streams created at the start of a context.
const WARM_STREAMS: usize = 512;

/// The executor's module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own {
    module: u64,
    hash: u64,
    /// Maximum number of blocks of a launch of the page hash.
    hash_blocks: u32,
    /// Device address of the page hash's key.
    pub(crate) page_key: u64,
    /// Device address of the ranges whose pages are hashed.
    pub(crate) ranges: u64,
    differ: u64,
    compare: u64,
    copy: u64,
    pieces: u64,
    patch: u64,
}

fn load(gpu: &Gpu, text: &'static str) -> Result<u64, Code> {
    // SAFETY: complete, NUL-terminated static PTX; no options.
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
        let function = |name| function(gpu, module, name);
        let variable = |name: &CStr, bytes: usize| match gpu.variable(module, false, &name.to_owned())? {
            (at, n) if n == bytes as u64 => Ok(at),
            _ => Err(code::ERROR_INVALID_IMAGE),
        };
        let multiprocessors = gpu.attribute(CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32)?;
        Ok(Own {
            module,
            hash: function(c"mrcuda_hash")?,
            hash_blocks: HASH_BLOCKS * multiprocessors.max(1) as u32,
            page_key: variable(c"mrcuda_page_key", KEY_BYTES)?,
            ranges: variable(c"mrcuda_ranges", RANGES * RANGE_BYTES)?,
            differ: function(c"mrcuda_differ")?,
            compare: function(c"mrcuda_compare")?,
            copy: function(c"mrcuda_copy")?,
            pieces: function(c"mrcuda_pieces")?,
            patch: function(c"mrcuda_patch")?,
        })
    }

    pub(crate) fn unload(&self, gpu: &Gpu) {
        // Fails only if the context was destroyed, and the module with it.
        let _ = gpu.unload_module(self.module);
    }

    /// Hashes the pages with these numbers of the first `ranges` ranges, with the key. The stream has written both. `hashes` is the table
    /// of hashes, in memory that the GPU can access.
    pub(crate) fn hash(&self, gpu: &Gpu, ranges: u32, pages: Range<u32>, hashes: u64, stream: u64) -> Result<(), Code> {
        let mut params: Vec<u8> = [ranges, pages.start, pages.end, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
        params.extend(hashes.to_le_bytes());
        let blocks = (pages.end - pages.start).min(self.hash_blocks);
        gpu.launch(self.hash, [blocks, 1, 1], [HASH_THREADS, 1, 1], 0, stream, &params)
    }

    /// Compares the hashes of `pages` pages with those of another place: sets the bits of those that are others there, and clears the rest.
    pub(crate) fn differ(&self, gpu: &Gpu, [ours, theirs]: [u64; 2], pages: u32, bits: u64, stream: u64) -> Result<(), Code> {
        let mut params: Vec<u8> = [ours, theirs].iter().flat_map(|v| v.to_le_bytes()).collect();
        params.extend([pages, 0].iter().flat_map(|v| v.to_le_bytes()));
        params.extend(bits.to_le_bytes());
        let blocks = u64::from(pages.div_ceil(THREADS)).clamp(1, COPY_BLOCKS) as u32;
        gpu.launch(self.differ, [blocks, 1, 1], [THREADS, 1, 1], 0, stream, &params)
    }

    /// Compares both sides of `count` pairs, of a table of (here, there, bytes) in memory that the GPU can access. Sets a pair's 32-bit word of
    /// `differs` to 1 if they differ.
    pub(crate) fn compare(&self, gpu: &Gpu, pairs: u64, differs: u64, count: u32, stream: u64) -> Result<(), Code> {
        let params: Vec<u8> = [pairs, differs].iter().flat_map(|v| v.to_le_bytes()).collect();
        gpu.launch(self.compare, [count, 1, 1], [THREADS, 1, 1], 0, stream, &params)
    }

    /// Copies `count` pairs of a table as for [`Own::compare`]; `out`: from here to there.
    pub(crate) fn copy_pieces(&self, gpu: &Gpu, pairs: u64, count: u32, out: bool, stream: u64) -> Result<(), Code> {
        let mut params = pairs.to_le_bytes().to_vec();
        params.extend(u32::from(out).to_le_bytes());
        gpu.launch(self.pieces, [count, 1, 1], [THREADS, 1, 1], 0, stream, &params)
    }

    /// Writes the changed bytes of `count` lines, none of them twice, in memory that the GPU can access, to their addresses and `agreed` bytes
    /// behind them, if the second of two words of such memory is not zero when the kernel runs. It sets the first one to 1 before it
    /// asks, and to 2 when it has written them, or to 0 if it may not.
    pub(crate) fn patch(&self, gpu: &Gpu, lines: u64, count: u32, agreed: u64, words: [u64; 2], stream: u64) -> Result<(), Code> {
        let mut params = lines.to_le_bytes().to_vec();
        params.extend([count, 0].iter().flat_map(|v| v.to_le_bytes()));
        params.extend([agreed, words[0], words[1]].iter().flat_map(|v| v.to_le_bytes()));
        gpu.launch(self.patch, [1, 1, 1], [PATCH_THREADS, 1, 1], 0, stream, &params)
    }

    /// Copies bytes with a kernel; either side may be page-locked host memory.
    pub(crate) fn copy(&self, gpu: &Gpu, to: u64, from: u64, bytes: u64, stream: u64) -> Result<(), Code> {
        let params: Vec<u8> = [to, from, bytes].iter().flat_map(|v| v.to_le_bytes()).collect();
        let blocks = bytes.div_ceil(16 * u64::from(THREADS)).clamp(1, COPY_BLOCKS) as u32;
        gpu.launch(self.copy, [blocks, 1, 1], [THREADS, 1, 1], 0, stream, &params)
    }
}

/// Finds the device heap. Loads a module that allocates, which makes the context create a heap: a placing call, made before the job's
/// first module that allocates, so that it happens at the same point of the journal in every place. The heap must also have been used
/// once before its raw bytes can be restored.
///
/// # Errors
/// The driver's error; `NOT_SUPPORTED` if the heap's blocks do not look like what was measured.
pub(crate) fn find_heap(gpu: &Gpu, virtual_device: u32, stream: u64) -> Result<(u64, u64), Code> {
    let _placing = Placing::enter(virtual_device);
    let bytes = gpu.limit(CUlimit_enum::CU_LIMIT_MALLOC_HEAP_SIZE)?;
    let module = load(gpu, HEAP)?;
    let probe = function(gpu, module, c"mrcuda_heap")?;
    let answer = gpu.pin(4096)?;
    let params: Vec<u8> = [answer as u64, (bytes / HEAP_BLOCKS).max(16)].iter().flat_map(|v| v.to_le_bytes()).collect();
    let found = gpu.launch(probe, [1, 1, 1], [1, 1, 1], 0, stream, &params).and_then(|()| {
        gpu.synchronize_stream(stream)?;
        // SAFETY: the executor's own mapping; the kernel that wrote it is complete.
        Ok(unsafe { std::ptr::read_volatile(answer as *const [u64; 2]) })
    });
    gpu.unpin(answer, 4096);
    let [low, high] = found?;
    heap_range(low, high, bytes).ok_or(code::ERROR_NOT_SUPPORTED)
}

/// The range of a heap of `bytes` whose blocks range from `low` to `high`; the driver offers no query for it. The lowest block is in the
/// heap's first page of 2 MB; the highest ends at most 2 MB or a fraction of the heap before its end.
fn heap_range(low: u64, high: u64, bytes: u64) -> Option<(u64, u64)> {
    let start = low & !(HEAP_PAGE - 1);
    let end = start.checked_add(bytes)?;
    (high <= end && end - high < HEAP_PAGE.max(bytes / 16)).then_some((start, bytes))
}

/// Makes the driver provide `bytes` of local memory per thread now rather than at the launch that needs it: a placing call, made at a
/// function's first use, so that the launch itself places nothing (docs/migration.md, "What the journal keeps").
pub(crate) fn grow_local(gpu: &Gpu, virtual_device: u32, bytes: u32, stream: u64) -> Result<(), Code> {
    let _placing = Placing::enter(virtual_device);
    let text = LOCAL.replace("ROOM", &bytes.next_multiple_of(16).to_string());
    // SAFETY: complete, NUL-terminated PTX; no options.
    let module = unsafe { gpu.load_module(text.as_ptr().cast(), &mut [], &mut []) }?;
    let f = function(gpu, module, c"mrcuda_local")?;
    gpu.launch(f, [8, 1, 1], [THREADS, 1, 1], 0, stream, &0u64.to_le_bytes())?;
    gpu.synchronize_stream(stream)
}

/// A kernel with this amount of local memory, in a module without variables. The compiler cannot tell which bytes are read, so it keeps
/// all of them; nothing is written, because the parameter is null.
const LOCAL: &str = concat!(
    ".version 7.0\n.target sm_70\n.address_size 64\n",
    ".visible .entry mrcuda_local(.param .u64 to) {\n",
    "  .local .align 16 .b8 room[ROOM];\n",
    "  .reg .b64 %rd<5>;\n  .reg .b32 %r<3>;\n  .reg .pred %p;\n",
    "  ld.param.u64 %rd1, [to];\n",
    "  mov.u64 %rd2, room;\n  add.s64 %rd3, %rd2, %rd1;\n",
    "  mov.u32 %r1, %tid.x;\n  st.local.u32 [%rd3], %r1;\n",
    "  mul.wide.u32 %rd4, %r1, 4;\n  add.s64 %rd4, %rd4, %rd2;\n  ld.local.u32 %r2, [%rd4];\n",
    "  setp.eq.u64 %p, %rd1, 0;\n  @%p bra done;\n",
    "  cvta.to.global.u64 %rd3, %rd1;\n  st.global.u32 [%rd3], %r2;\n",
    "done:\n  ret;\n}\n\0"
);

/// Makes the driver allocate what it needs internally for streams, once and for all: streams that the job creates later then do not move
/// addresses (docs/migration.md, "Preparing a place"). `room` is a mapped address with 64 bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_is_recognised_by_its_ends() {
        const MB: u64 = 1 << 20;
        // As measured on an H200, with 8 and 256 MB, and on the CPU driver.
        assert_eq!(heap_range(0x2_06c0_0120, 0x2_073f_f930, 8 * MB), Some((0x2_06c0_0000, 8 * MB)));
        assert_eq!(heap_range(0x2_06c0_0120, 0x2_16ae_eb30, 256 * MB), Some((0x2_06c0_0000, 256 * MB)));
        assert_eq!(heap_range(0x2_0540_0030, 0x2_05b8_0000, 8 * MB), Some((0x2_0540_0000, 8 * MB)));
        assert_eq!(heap_range(0x2_0540_0030, 0x2_05f0_0000, 8 * MB), None, "larger than it should be");
        assert_eq!(heap_range(0x2_0540_0030, 0x2_0550_0000, 8 * MB), None, "far from its end");
        assert_eq!(heap_range(u64::MAX, 0, 8 * MB), None, "gave out nothing");
    }
}
