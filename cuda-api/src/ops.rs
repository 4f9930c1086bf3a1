//! Operations: the common forms into which irregular driver functions are turned before they are sent.
//!
//! Many functions are one operation (all copies to the device are [`CopyIn`]). An operation is encoded like a call, has
//! an id in the same space (family 0x0f), and is executed by hand-written code of the executor. Its body is a fixed
//! head, then raw bytes.

mod op;

use crate::wire::{Short, Wire, take};
use crate::wire_struct;
pub use crate::work::{ATTRIBUTE_BYTES, STREAM_ATTRIBUTE_BYTES};
use crate::work::{At, Spec, Work};
pub use op::{Memory, Op, id, name};

wire_struct! {
    /// A kernel launch, followed by `attributes` × [`ATTRIBUTE_BYTES`] bytes of `CUlaunchAttribute`, then the parameter
    /// buffer (each parameter at its offset, padding zero) to the end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Launch {
        /// Function or kernel handle.
        pub function: u64,
        /// Stream, encoded.
        pub stream: u64,
        /// Blocks.
        pub grid: [u32; 3],
        /// Threads of a block.
        pub block: [u32; 3],
        /// Dynamic shared memory in bytes.
        pub shared: u32,
        /// Number of launch attributes that follow.
        pub attributes: u16,
        /// Whether it is a cooperative launch (`cuLaunchCooperativeKernel`).
        pub cooperative: bool,
    }
}

/// Splits an encoded launch into head, attributes and parameters.
pub fn split_launch(mut body: &[u8]) -> Result<(Launch, &[u8], &[u8]), Short> {
    let head = Launch::get(&mut body)?;
    let attributes = take(&mut body, usize::from(head.attributes) * ATTRIBUTE_BYTES)?;
    Ok((head, attributes, body))
}

wire_struct! {
    /// Copies host bytes to a rectangle of device memory; the bytes follow, rows packed. `rows` = 1 for a plain copy.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyIn {
        /// Address of the destination.
        pub dst: u64,
        /// Bytes from row to row.
        pub pitch: u64,
        /// Bytes of a row.
        pub width: u64,
        /// Rows.
        pub rows: u64,
        /// Stream, encoded.
        pub stream: u64,
    }
}

wire_struct! {
    /// A large copy between device memory and the job, whose bytes do not travel with the call: the place asks for them, or
    /// sends them, over connections that are used for nothing else.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BulkCopy {
        /// Identifies the copy on these connections; never reused.
        pub token: u64,
        /// First byte of the device memory.
        pub address: u64,
        /// Bytes.
        pub bytes: u64,
        /// Stream, encoded.
        pub stream: u64,
        /// For a copy to the device: the place asks for the bytes only when the stream has reached the copy.
        pub late: bool,
    }
}

wire_struct! {
    /// A call of a host function by a stream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HostCall {
        /// Identifies it between job and place; never reused.
        pub token: u64,
        /// Stream, encoded.
        pub stream: u64,
        /// A callback (`cuStreamAddCallback`): called even in a failed context, with the error.
        pub callback: bool,
    }
}

wire_struct! {
    /// A late copy to a rectangle of device memory: its host bytes are read when the stream reaches it, and are sent
    /// with the token.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyInLate {
        /// As in [`HostCall`].
        pub token: u64,
        /// The destination.
        pub to: CopyIn,
    }
}

wire_struct! {
    /// Writes of values to memory, or waits for values in memory, in stream order.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct StreamMemory {
        /// Stream, encoded.
        pub stream: u64,
        /// Requested by the functions without `_v2`, which a driver may not support.
        pub first_version: bool,
        /// `flags` of the batch.
        pub flags: u32,
        /// In order.
        pub parts: Vec<MemoryPart>,
    }
}

/// A transfer stream of the place, encoded: for copies between GPUs, which are ordered after no stream of the program.
pub const LANE: u64 = 3;

/// Tokens of [`StreamHold`] have this bit; those of [`HostCall`] do not.
pub const HOLD: u64 = 1 << 63;

/// Among the tokens with [`HOLD`], those of fences have this bit: a fence waits only for the job's process.
pub const FENCE: u64 = 1 << 62;

/// Identifies memory that a place exports: 16 bytes for the place's process, 16 for the memory.
pub type Offer = [u8; 32];

wire_struct! {
    /// Holds a stream until the job lets it continue.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StreamHold {
        /// Identifies it between job and place, with the bit [`HOLD`]; never reused.
        pub token: u64,
        /// Stream, encoded.
        pub stream: u64,
    }
}

wire_struct! {
    /// An attribute of a stream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StreamAttribute {
        /// Stream, encoded.
        pub stream: u64,
        /// `CUstreamAttrID`
        pub attribute: u32,
        /// A `CUstreamAttrValue`.
        pub value: [u8; STREAM_ATTRIBUTE_BYTES],
    }
}

/// A driver's interprocess handle of an event.
pub type EventOffer = [u8; 64];

wire_struct! {
    /// An event created by a place of another process on the same machine.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct EventOpen {
        /// Our handle of it.
        pub event: u64,
        /// The driver's interprocess handle.
        pub offer: EventOffer,
    }
}

wire_struct! {
    /// Memory of another place on the machine, and where it is mapped: at its address there, in the range of the
    /// program's reservations, or, for copies alone, between [`IMPORTS`](crate::address_map::IMPORTS) and its end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PeerMap {
        /// First byte.
        pub address: u64,
        /// Bytes.
        pub bytes: u64,
        /// The other place's answer to the export.
        pub offer: Offer,
    }
}

wire_struct! {
    /// One element of a [`StreamMemory`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MemoryPart {
        /// `CUstreamBatchMemOpType`
        pub operation: u32,
        /// The address, for waits and writes.
        pub address: u64,
        /// The value, for waits and writes.
        pub value: u64,
        /// Flags of this operation.
        pub flags: u32,
    }
}

impl MemoryPart {
    /// Bytes of the word that is waited for or written; `None` for barriers and flushes.
    pub fn bytes(&self) -> Option<u64> {
        match self.operation {
            1 | 2 => Some(4),
            4 | 5 => Some(8),
            _ => None,
        }
    }

    /// Whether the stream waits for the word.
    pub fn waits(&self) -> bool {
        matches!(self.operation, 1 | 4)
    }
}

wire_struct! {
    /// Copies a rectangle of device memory to the host; the answer is sent when the stream has reached it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyOut {
        /// First byte of the source.
        pub src: u64,
        /// Bytes from row to row.
        pub pitch: u64,
        /// Bytes of a row.
        pub width: u64,
        /// Rows.
        pub rows: u64,
        /// Stream, encoded.
        pub stream: u64,
    }
}

wire_struct! {
    /// Copies a rectangle within device memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyDevice {
        /// First byte of the destination.
        pub dst: u64,
        /// Bytes from row to row of the destination.
        pub dst_pitch: u64,
        /// First byte of the source.
        pub src: u64,
        /// Bytes from row to row of the source.
        pub src_pitch: u64,
        /// Bytes of a row.
        pub width: u64,
        /// Rows.
        pub rows: u64,
        /// Stream, encoded.
        pub stream: u64,
    }
}

wire_struct! {
    /// Makes later work of a stream wait for an event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StreamWaitEvent {
        /// Stream, encoded.
        pub stream: u64,
        /// Handle of the event.
        pub event: u64,
    }
}

wire_struct! {
    /// Fills a rectangle with a value of 1, 2 or 4 bytes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Fill {
        /// First byte.
        pub dst: u64,
        /// Bytes from row to row.
        pub pitch: u64,
        /// The value.
        pub value: u32,
        /// Its size in bytes.
        pub element: u8,
        /// Elements of a row.
        pub width: u64,
        /// Rows.
        pub rows: u64,
        /// Stream, encoded.
        pub stream: u64,
    }
}

wire_struct! {
    /// Physical memory in the arena: a multiple of 2 MiB, at a multiple of 2 MiB.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Chunk {
        /// Address.
        pub address: u64,
        /// Bytes.
        pub bytes: u64,
    }
}

wire_struct! {
    /// A variable of loaded code.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Variable {
        /// Handle of its module or library.
        pub module: u64,
        /// Its address.
        pub start: u64,
        /// Its bytes.
        pub bytes: u64,
    }
}

wire_struct! {
    /// An alias: the memory of a chunk, from its start, mapped again between [`VMM`](crate::address_map::VMM) and its end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Alias {
        /// Address, a multiple of 2 MiB.
        pub address: u64,
        /// Bytes, a multiple of 2 MiB and at most those of the chunk.
        pub bytes: u64,
        /// Address of the chunk.
        pub chunk: u64,
        /// `CUmemAccess_flags`.
        pub access: u32,
    }
}

wire_struct! {
    /// A part of the range of pinned memory that several small blocks have in common: it is mapped and registered as a whole, since
    /// registering takes some 40 us, however small the memory is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Slab {
        /// Its address, a multiple of 4 KiB.
        pub address: u64,
        /// Bytes; 0: the block is registered by itself.
        pub bytes: u64,
        /// Distinguishes it from others that were at its address before.
        pub number: u64,
    }
}

wire_struct! {
    /// Host memory of the job: a part of its memory file for pinned memory, between [`HOST`](crate::address_map::HOST) and its end, or
    /// memory that the place allocates and that is mirrored (`id::HOST_BYTES`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HostPin {
        /// Address; for a part of the file, a multiple of 4 KiB.
        pub address: u64,
        /// Bytes.
        pub bytes: u64,
        /// `CU_MEMHOSTREGISTER_*`
        pub flags: u32,
        /// The place allocates mirrored memory: whole pages, zero at first.
        pub apart: bool,
        /// The job uses this memory, a block of its own, exclusively: its host does not touch it while kernels run. Its address is a multiple of
        /// [`SLOT`](crate::address_map::SLOT), and it has a [slot](crate::address_map::slot) of addresses. If it is mirrored, the place
        /// keeps it in the GPU's memory, as far as there is room.
        pub exclusive: bool,
        /// The slab that contains it; the place registers all of the slab with its first block.
        pub slab: Slab,
    }
}

wire_struct! {
    /// A module image; its bytes (as `cuda_image::Image` keeps them) follow.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ImagePut {
        /// blake3 of kind and bytes.
        pub hash: [u8; 32],
        /// `cuda_image::Kind` as a number.
        pub kind: u8,
    }
}

wire_struct! {
    /// Loads a module (`library` false) or a library from an image that was put before. An error carries the compiler's
    /// error log as text.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ImageLoad {
        /// Handle of the module or library.
        pub handle: u64,
        /// Content hash of the image.
        pub hash: [u8; 32],
        /// Library or module.
        pub library: bool,
        /// `CUjit_option` and value of each plain option (no buffers).
        pub options: Vec<(u32, u64)>,
        /// Whether the answer describes the code. A driver loads the code of a function that is looked up, so a replay does the same.
        pub describe: bool,
    }
}

wire_struct! {
    /// The effects of a load on the context.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ImageLoaded {
        /// It created the device heap.
        pub made_heap: bool,
        /// Number of variables that were placed.
        pub variables: u32,
        /// What programs ask next, if it was asked for.
        pub facts: CodeFacts,
    }
}

wire_struct! {
    /// Properties of a function that launches need and check.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct FunctionInfo {
        /// Offset and size of each parameter in bytes.
        pub params: Vec<(u32, u32)>,
        /// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`
        pub max_threads: u32,
        /// `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`
        pub static_shared: u32,
        /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
        pub max_dynamic_shared: u32,
        /// Name of the kernel.
        pub name: String,
        /// Whether it uses texture or surface references, so that its launches cannot be captured.
        pub references: bool,
        /// Whether its code contains atomic operations with system scope.
        pub system_atomics: bool,
        /// Whether its code, or an attribute that was set, requires clusters of more than one block (`CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_…`).
        pub clusters: bool,
        /// Bytes of local memory per thread by which the context's local memory had to grow, or 0.
        pub local_grew: u32,
    }
}

wire_struct! {
    /// A variable of loaded code that its driver has placed.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct PlacedVariable {
        /// Its name.
        pub name: String,
        /// Address of its first byte.
        pub address: u64,
        /// Its size in bytes; never 0.
        pub bytes: u64,
    }
}

wire_struct! {
    /// What programs ask of code after they have loaded it, read ahead. A list may be incomplete: what it does not contain must be
    /// asked for.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct CodeFacts {
        /// Variables that the driver finds by name.
        pub variables: Vec<PlacedVariable>,
        /// Functions that the driver finds by name, as their first use reports them: those whose use does not change the context.
        pub functions: Vec<FunctionInfo>,
    }
}

impl CodeFacts {
    /// Maximum number of variables.
    pub const VARIABLES: usize = 256;
    /// Maximum number of kernels of code whose functions are described: it takes some 20 us each.
    pub const FUNCTIONS: usize = 32;
}

/// Parameters of a kernel have at most this many bytes (CUDA programming guide, compute capability 7.0 and later).
pub const MAX_PARAM_BYTES: usize = 32764;

impl FunctionInfo {
    /// Whether the parameters are in order and within the limits of a kernel: a launch reads the program's memory by
    /// them.
    pub fn is_sound(&self) -> bool {
        let mut end = 0usize;
        // Without a limit of its own, parameters without bytes would be as many as fit a message.
        self.params.len() <= MAX_PARAM_BYTES
            && self.params.iter().all(|(offset, bytes)| {
                let follows = *offset as usize >= end;
                end = (*offset as usize).saturating_add(*bytes as usize);
                follows && end <= MAX_PARAM_BYTES
            })
    }
}

wire_struct! {
    /// Records an event in a stream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct EventRecord {
        /// The event.
        pub event: u64,
        /// Stream, encoded.
        pub stream: u64,
        /// `CUevent_record_flags`.
        pub flags: u32,
    }
}

wire_struct! {
    /// Instantiates a graph; the place builds the graph node by node.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct GraphMake {
        /// Handle of the instance.
        pub instance: u64,
        /// `CUgraphInstantiate_flags`
        pub flags: u64,
        /// The name under which its conditions were created; 0: it has none.
        pub home: u64,
        /// Whether the job would launch it with [`DIRECT_COPY`] now: a hint, since any launch may need something else.
        pub direct: bool,
        /// The graph.
        pub spec: Spec,
    }
}

wire_struct! {
    /// Changes a node of an instance.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct GraphChange {
        /// Handle of the instance.
        pub instance: u64,
        /// The node.
        pub at: At,
        /// Its new work, of the same kind as before.
        pub work: Work<u32>,
    }
}

wire_struct! {
    /// Creates a condition of a graph.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GraphCondition {
        /// The job's name for the graph.
        pub home: u64,
        /// Value at the start of a launch, if the flags say so.
        pub default: u32,
        /// `CU_GRAPH_COND_*`
        pub flags: u32,
        /// The handle returned by the first place, which kernels use; 0: any.
        pub wanted: u64,
    }
}

/// In a launch of an instance, instead of the token of a [`GraphCall`]: the GPU makes the node's copy, from or to host memory of the job
/// that the place has. Not for graphs with conditions.
pub const DIRECT_COPY: u64 = u64::MAX;

wire_struct! {
    /// A call by a node of an instance: a host function, or a copy from or to memory of the job.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GraphCall {
        /// As in [`HostCall`].
        pub token: u64,
        /// The stream of the launch, encoded.
        pub stream: u64,
        /// Handle of the instance.
        pub instance: u64,
        /// The node.
        pub at: At,
        /// For a copy to the job: the graph continues when the job has sent `id::HOST_DONE`, that is, when the bytes
        /// are in its memory.
        pub acknowledged: bool,
        /// For a copy from host memory that the place can access: the place reads it by itself when the node is
        /// reached.
        pub own: bool,
    }
}

wire_struct! {
    /// Enables or disables a node of an instance.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GraphSwitch {
        /// Handle of the instance.
        pub instance: u64,
        /// The node.
        pub at: At,
        /// Whether later launches run it.
        pub on: bool,
    }
}

wire_struct! {
    /// Arguments of `cuTensorMapEncodeTiled`, in its order; the address is the same in every place.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TensorMapTiled {
        /// `CUtensorMapDataType`
        pub data_type: u32,
        /// Address of the tensor.
        pub address: u64,
        /// Elements of each dimension; as many as the rank.
        pub dims: Vec<u64>,
        /// Bytes between elements of each dimension except the first.
        pub strides: Vec<u64>,
        /// Elements of the box.
        pub box_dims: Vec<u32>,
        /// Steps through the tensor.
        pub element_strides: Vec<u32>,
        /// Interleave, swizzle, L2 promotion, out-of-bounds fill.
        pub modes: [u32; 4],
    }
}

/// Bytes of a descriptor for the tensor memory accelerator.
pub const TENSOR_MAP_BYTES: usize = 128;

wire_struct! {
    /// Arguments of `cuTensorMapEncodeIm2col`, in its order, or with a mode those of `cuTensorMapEncodeIm2colWide`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TensorMapIm2col {
        /// `CUtensorMapDataType`
        pub data_type: u32,
        /// Address of the tensor.
        pub address: u64,
        /// Elements of each dimension; as many as the rank.
        pub dims: Vec<u64>,
        /// Bytes between elements of each dimension except the first.
        pub strides: Vec<u64>,
        /// Lower corner of the box of pixels: two less than the rank, or the width alone.
        pub lower: Vec<i32>,
        /// Upper corner.
        pub upper: Vec<i32>,
        /// Channels of a pixel.
        pub channels: u32,
        /// Pixels of a column.
        pub pixels: u32,
        /// Steps through the tensor.
        pub element_strides: Vec<u32>,
        /// Interleave, swizzle, L2 promotion, out-of-bounds fill.
        pub modes: [u32; 4],
        /// `CUtensorMapIm2ColWideMode` of the wide form.
        pub wide: Option<u32>,
    }
}

wire_struct! {
    /// An input of a link.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LinkInput {
        /// `CUjitInputType`
        pub kind: u32,
        /// Its name in the linker's messages.
        pub name: Vec<u8>,
        /// Options that are numbers.
        pub options: Vec<(u32, u64)>,
        /// Its bytes.
        pub data: Vec<u8>,
    }
}

wire_struct! {
    /// A whole link. The job keeps the inputs, so that the place has no state of an unfinished link.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Link {
        /// Options that are numbers.
        pub options: Vec<(u32, u64)>,
        /// Parts in order.
        pub inputs: Vec<LinkInput>,
        /// Whether all inputs have been added.
        pub complete: bool,
    }
}

wire_struct! {
    /// The result of a link.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Linked {
        /// The driver's result code.
        pub code: i32,
        /// The image, when it is complete.
        pub image: Vec<u8>,
        /// The linker's information log.
        pub info: Vec<u8>,
        /// The linker's error log.
        pub errors: Vec<u8>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_a_place_tells_of_are_those_of_a_kernel() {
        let sound = |params: &[(u32, u32)]| FunctionInfo { params: params.to_vec(), ..FunctionInfo::default() }.is_sound();
        assert!(sound(&[]) && sound(&[(0, 8), (8, 4), (16, 8)]) && sound(&[(0, 32764)]));
        for wrong in [&[(0, 32765)][..], &[(u32::MAX, u32::MAX)], &[(8, 8), (0, 8)], &[(0, 8), (4, 8)], &[(0, u32::MAX), (8, 8)]]
        {
            assert!(!sound(wrong), "{wrong:?}");
        }
        assert!(sound(&vec![(0, 0); MAX_PARAM_BYTES]) && !sound(&vec![(0, 0); MAX_PARAM_BYTES + 1]));
    }
}
