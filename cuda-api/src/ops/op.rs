//! The operations by number: ids, names, and how each refers to memory.

/// How an operation refers to memory. An address from another process reaches a driver only through the executor's
/// checker (executor/src/executor/checker.rs), whose tests use this to cover all operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Not at all: it contains only handles, and numbers that no driver interprets as addresses.
    Nothing,
    /// Addresses or memory types that the checker accepts if they belong to the job.
    Named,
    /// Addresses of objects that the place has created before; it rejects others.
    Known,
    /// Addresses at which the place maps something, each kind in its own range.
    Placed,
    /// It contains other calls.
    Inside,
}

macro_rules! memory {
    (nothing) => {
        Memory::Nothing
    };
    (named) => {
        Memory::Named
    };
    (known) => {
        Memory::Known
    };
    (placed) => {
        Memory::Placed
    };
    (inside) => {
        Memory::Inside
    };
}

macro_rules! operations {
    ($($(#[doc = $doc:literal])+ $name:ident $op:ident = $value:literal $memory:ident;)*) => {
        /// Ids of operations.
        pub mod id {
            $($(#[doc = $doc])+ pub const $name: u16 = $value;)*
        }
        /// An operation. What carries operations out matches on it, so that a new one does not compile until it is there.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Op {
            $(#[doc = concat!("[`id::", stringify!($name), "`]")] $op = $value),*
        }
        impl Op {
            /// All operations.
            pub const ALL: &[Op] = &[$(Op::$op),*];

            /// The operation with an id.
            #[inline]
            pub fn from_id(id: u16) -> Option<Op> {
                match id { $($value => Some(Op::$op),)* _ => None }
            }

            /// How it refers to memory.
            pub fn memory(self) -> Memory {
                match self { $(Op::$op => memory!($memory)),* }
            }

            /// Its name, for journals and logs.
            pub fn name(self) -> &'static str {
                match self { $(Op::$op => stringify!($op)),* }
            }
        }
    };
}

impl Op {
    /// Its id.
    pub fn id(self) -> u16 {
        self as u16
    }
}

/// Name of an operation, for journals and logs.
pub fn name(op: u16) -> Option<&'static str> {
    Op::from_id(op).map(Op::name)
}

operations! {
    /// [`crate::ops::Launch`]
    LAUNCH Launch = 0x0f01 named;
    /// [`crate::ops::CopyIn`]
    COPY_IN CopyIn = 0x0f02 named;
    /// [`crate::ops::CopyOut`]; the answer is the bytes, rows packed.
    COPY_OUT CopyOut = 0x0f03 named;
    /// [`crate::ops::CopyDevice`], also with one end in the job's pinned memory, where the place maps that.
    COPY_DEVICE CopyDevice = 0x0f04 named;
    /// [`crate::ops::Fill`]
    FILL Fill = 0x0f05 named;
    /// [`crate::ops::CopyIn`], completed before any later call is applied. The recorder has made sure that the stream is
    /// idle, so only the copy itself is waited for.
    COPY_IN_AT_REST CopyInAtRest = 0x0f06 named;
    /// [`crate::ops::BulkCopy`] to the device, whose bytes come over connections of their own.
    BULK_IN BulkIn = 0x0f08 named;
    /// [`crate::ops::BulkCopy`] to the host, whose bytes go over connections of their own. The stream continues, and the answer
    /// is sent, when the job has them.
    BULK_OUT BulkOut = 0x0f09 named;
    /// Several calls, one after the other, with one answer: what a replay sends (executor/src/batch.rs). Waits.
    BATCH Batch = 0x0f07 inside;
    /// [`crate::ops::Chunk`]: maps physical memory at an address of the arena. Waits.
    CHUNK_MAP ChunkMap = 0x0f10 placed;
    /// [`crate::ops::Chunk`]: unmaps it. The recorder has made sure that it is not in use.
    CHUNK_UNMAP ChunkUnmap = 0x0f11 known;
    /// [`crate::ops::ImagePut`]: bytes of a module image, once for each content hash.
    IMAGE_PUT ImagePut = 0x0f12 nothing;
    /// [`crate::ops::ImageLoad`]: loads a module or library from an image. The answer: [`crate::ops::ImageLoaded`]. Waits.
    IMAGE_LOAD ImageLoad = 0x0f13 named;
    /// Body: content hash of an image, which is released. It must be put again before another load.
    IMAGE_END ImageEnd = 0x0f19 nothing;
    /// No body. Creates the context's device heap, as the first load of code that allocates does. Waits.
    HEAP_MAKE HeapMake = 0x0f1a nothing;
    /// Body: bytes per thread (u32). Grows the context's local memory, as the first use of a function that needs it
    /// does. Waits.
    LOCAL_GROW LocalGrow = 0x0f1b nothing;
    /// Body: function or kernel handle. The answer: [`crate::ops::FunctionInfo`]. Loads the function's code: the journalled first use.
    FUNCTION_INFO FunctionInfo = 0x0f14 nothing;
    /// Body: module or library handle. The answer: names of its kernels, `Vec<String>`, in the driver's order.
    KERNEL_NAMES KernelNames = 0x0f15 nothing;
    /// Body: [`crate::ops::Launch`] with attributes. The answer: i32 of `cuOccupancyMaxActiveClusters`.
    MAX_ACTIVE_CLUSTERS MaxActiveClusters = 0x0f16 named;
    /// Body: [`crate::ops::Launch`] with attributes. The answer: i32 of `cuOccupancyMaxPotentialClusterSize`.
    MAX_CLUSTER_SIZE MaxClusterSize = 0x0f17 named;
    /// [`crate::ops::TensorMapTiled`]. The answer: the 128 bytes of the descriptor.
    TENSOR_MAP_TILED TensorMapTiled = 0x0f18 named;
    /// [`crate::ops::Link`]. The answer: [`crate::ops::Linked`], even if the compiler or the linker fails.
    LINK Link = 0x0f1c named;
    /// Body: stream, encoded. Answered when everything in it has completed.
    STREAM_SYNC StreamSync = 0x0f20 nothing;
    /// No body. Answered when everything in the context has completed.
    CONTEXT_SYNC ContextSync = 0x0f21 nothing;
    /// Body: event handle. Answered when its last record has completed.
    EVENT_SYNC EventSync = 0x0f22 nothing;
    /// [`crate::ops::EventRecord`]
    EVENT_RECORD EventRecord = 0x0f23 nothing;
    /// Body: event handle. The answer is the result code alone: success or not ready.
    EVENT_QUERY EventQuery = 0x0f24 nothing;
    /// Body: two event handles. The answer: f32 milliseconds.
    EVENT_ELAPSED EventElapsed = 0x0f25 nothing;
    /// Body: event handle. The answer: f64, milliseconds from the place's reference event to the event's last record.
    EVENT_TIME EventTime = 0x0f26 nothing;
    /// [`crate::ops::StreamWaitEvent`]
    STREAM_WAIT_EVENT StreamWaitEvent = 0x0f80 nothing;
    /// Body: stream, encoded. The answer is the result code alone: success or not ready.
    STREAM_QUERY StreamQuery = 0x0f81 nothing;
    /// [`crate::ops::GraphMake`]: instantiates a graph. Waits.
    GRAPH_MAKE GraphMake = 0x0f82 named;
    /// [`crate::ops::GraphChange`]: changes the work of a node of an instance for later launches.
    GRAPH_CHANGE GraphChange = 0x0f83 named;
    /// [`crate::ops::GraphSwitch`]: enables or disables a node of an instance for later launches.
    GRAPH_SWITCH GraphSwitch = 0x0f84 nothing;
    /// Body: handle of a change that a later one has replaced: a replay does nothing, and the journal can drop both
    /// records.
    OVERTAKEN Overtaken = 0x0f85 nothing;
    /// Body: handle of an instance, encoded stream; then, if nodes of it call the job, a token (u64) for each of them
    /// in order: 0 if the node does nothing in this launch, [`crate::ops::DIRECT_COPY`] if it needs no call.
    GRAPH_LAUNCH GraphLaunch = 0x0f86 nothing;
    /// Body: handle of an instance, encoded stream. Prepares the next launch.
    GRAPH_UPLOAD GraphUpload = 0x0f87 nothing;
    /// Body: handle of an instance. Destroys it; a running launch continues.
    GRAPH_END GraphEnd = 0x0f88 nothing;
    /// [`crate::ops::GraphCall`]: a call of a node in the launch that names its token. Answered as `id::HOST_CALL` when the
    /// node is reached; for a copy to the host the bytes follow, and the node then continues by itself. So does a copy
    /// from the host whose bytes, rows packed, follow the call itself.
    GRAPH_CALL GraphCall = 0x0f89 nothing;
    /// [`crate::ops::GraphCondition`]: creates a condition that device code can set. The answer: the driver's handle (u64).
    /// Waits.
    GRAPH_CONDITION GraphCondition = 0x0f8a nothing;
    /// Body: the job's name (u64) of a graph. Its conditions are released.
    GRAPH_CONDITIONS_END GraphConditionsEnd = 0x0f8b nothing;
    /// Times of events that are older than the reference event. Body: a list of events; reply: a list of f64,
    /// milliseconds from the reference event, NaN where there is no time.
    EVENT_TIMES EventTimes = 0x0f2e nothing;
    /// Records the reference event anew, on an idle place.
    EVENT_REFERENCE EventReference = 0x0f2f nothing;
    /// No body. The answer: free and total bytes of the GPU, u64 each.
    MEMORY_INFO MemoryInfo = 0x0f60 nothing;
    /// Body: an address. The answer: the [`crate::ops::Variable`] of loaded code that contains it, or
    /// `CUDA_ERROR_NOT_FOUND`.
    VARIABLE_AROUND VariableAround = 0x0f67 known;
    /// No body. The answer: the [`crate::board::Constants`] that the place's NVML reports for the GPU.
    BOARD Board = 0x0f68 nothing;
    /// [`crate::ops::Alias`]: maps the memory of a chunk a second time, at the program's address; not accessible yet. Waits.
    ALIAS_MAP AliasMap = 0x0f61 placed;
    /// [`crate::ops::Alias`]: unmaps such a mapping. As in the driver's own call, this does not wait for kernels.
    ALIAS_UNMAP AliasUnmap = 0x0f62 known;
    /// [`crate::ops::Alias`]: sets the GPU's access to such a mapping.
    ALIAS_ACCESS AliasAccess = 0x0f63 known;
    /// [`crate::ops::HostPin`]: maps host memory of the job at its address and registers it with the driver. Waits.
    HOST_PIN HostPin = 0x0f64 placed;
    /// Body: its address. Unmaps and unregisters such memory, which is not in use. Waits.
    HOST_UNPIN HostUnpin = 0x0f65 known;
    /// [`crate::ops::HostPin`]: a block of mirrored memory in a slab that the place has already registered for another block, so that
    /// no driver call is needed. Applied at once, before earlier calls that are still queued; the place counts these blocks.
    HOST_BLOCK HostBlock = 0x0f69 placed;
    /// Lines of host memory that the job has changed, 80 bytes each: address, a bit for each byte, 64 bytes. Applied at
    /// once, before earlier calls that are still queued. A byte 1 behind them: the next message has more of the same changes, all of memory that
    /// the job uses exclusively, and these may be applied with them.
    HOST_BYTES HostBytes = 0x0f66 known;
    /// No body: the job has changed much of the host memory that it uses exclusively, and the changes travel over the connections of large copies.
    /// The place asks for them. Applied at once, before earlier calls that are still queued; messages behind it come after the changes.
    HOST_RUNS HostRuns = 0x0f6a nothing;
    /// Destroys the primary context and creates it anew. Waits.
    CONTEXT_RESET ContextReset = 0x0f28 nothing;
    /// [`crate::ops::HostCall`]: a function of the job's process in stream order. The answer (i32: the status for a
    /// callback) is sent when the stream reaches it; the stream continues when the job has sent `id::HOST_DONE`. If its
    /// token has the bit [`crate::ops::HOLD`], it is an action of the job itself: the stream is held, and the answer is
    /// empty.
    HOST_CALL HostCall = 0x0f30 nothing;
    /// [`crate::ops::CopyInLate`]: as `id::COPY_IN`, with bytes that the job must read when the stream reaches it. Answered
    /// then; the stream continues when the job has sent `id::HOST_DONE`.
    COPY_IN_LATE CopyInLate = 0x0f31 named;
    /// Body: token (u64), then the bytes of a late copy. Applied at once, before earlier calls that are still queued.
    HOST_DONE HostDone = 0x0f32 nothing;
    /// [`crate::ops::StreamMemory`]: answered when the stream has passed it.
    STREAM_MEMORY StreamMemory = 0x0f33 named;
    /// [`crate::array::ArrayMake`]: creates an array or a mipmapped array. The answer, for one without memory: its
    /// [`crate::array::Layout`]. Waits.
    ARRAY_MAKE ArrayMake = 0x0fa0 nothing;
    /// Body: handle of an array or mipmapped array. Destroys it. Waits.
    ARRAY_END ArrayEnd = 0x0fa1 nothing;
    /// [`crate::array::CopyBox`] between arrays and device memory.
    COPY_BOX CopyBox = 0x0fa2 named;
    /// [`crate::array::CopyBox`] to an array; the bytes follow, rows and slices packed.
    COPY_BOX_IN CopyBoxIn = 0x0fa3 named;
    /// [`crate::array::CopyBox`] from an array; the answer is the bytes, rows and slices packed.
    COPY_BOX_OUT CopyBoxOut = 0x0fa4 named;
    /// [`crate::array::CopyBoxLate`]: as `id::COPY_BOX_IN`, with bytes that the job must read when the stream reaches
    /// it. Answered then; the stream continues when the job has sent `id::HOST_DONE`.
    COPY_BOX_LATE CopyBoxLate = 0x0fac named;
    /// [`crate::array::ObjectMake`]: creates a texture or surface object. The answer: u64, its number, and an optional
    /// [`crate::array::Sampling`], as the driver reports it. Waits.
    OBJECT_MAKE ObjectMake = 0x0fa5 named;
    /// Body: handle of an object. Destroys it.
    OBJECT_END ObjectEnd = 0x0fa6 nothing;
    /// [`crate::array::TilePool`]: allocates memory for tiles. Waits.
    TILE_POOL_MAKE TilePoolMake = 0x0fa9 nothing;
    /// Body: handle of such memory, to which no tile is mapped. Frees it. Waits.
    TILE_POOL_END TilePoolEnd = 0x0faa nothing;
    /// [`crate::array::TilesMap`]: maps or unmaps tiles, in stream order, or without a stream before any later work.
    /// Waits for the call only.
    TILES_MAP TilesMap = 0x0fab nothing;
    /// [`crate::ops::TensorMapIm2col`]. The answer: the 128 bytes of the descriptor.
    TENSOR_MAP_IM2COL TensorMapIm2col = 0x0fa7 named;
    /// Body: a descriptor as 16 × u64, an address. The answer: the descriptor with the address in it.
    TENSOR_MAP_ADDRESS TensorMapAddress = 0x0fa8 named;
    /// Body: event handle. Answered when the event's last record as of this call has completed.
    EVENT_REACHED EventReached = 0x0fb0 nothing;
    /// [`crate::ops::StreamHold`]: the stream continues when the job has sent `id::HOST_DONE` with the token, which may
    /// arrive earlier.
    STREAM_HOLD StreamHold = 0x0fb1 nothing;
    /// [`crate::ops::Chunk`]: exports a chunk's memory to other places on the machine. The answer: an [`crate::ops::Offer`].
    /// Without bytes it exports separate memory, with which another place tests whether its GPU can access this one's
    /// memory.
    CHUNK_OFFER ChunkOffer = 0x0fb2 known;
    /// Body: address of a chunk. Ends the export of its memory.
    CHUNK_WITHDRAW ChunkWithdraw = 0x0fb3 known;
    /// [`crate::ops::PeerMap`]: maps memory that another place on this machine exports. Waits. Without bytes it only tests
    /// whether that is possible.
    PEER_MAP PeerMap = 0x0fb4 placed;
    /// [`crate::ops::Chunk`]: unmaps it.
    PEER_UNMAP PeerUnmap = 0x0fb5 known;
    /// Body: event handle. The answer: the driver's interprocess handle of it, 64 bytes.
    EVENT_SHARE EventShare = 0x0fb6 nothing;
    /// [`crate::ops::EventOpen`]: opens an event of another process. Waits.
    EVENT_OPEN EventOpen = 0x0fb7 nothing;
    /// [`crate::ops::StreamAttribute`]: sets an attribute of a stream. Waits.
    STREAM_ATTRIBUTE StreamAttribute = 0x0fb8 named;
    /// [`crate::reference::ReferenceSet`]: changes a setting of a texture or surface reference, for later launches. The
    /// answer for memory: u64, the byte offset of the memory from the aligned start of the texture.
    REFERENCE_SET ReferenceSet = 0x0fb9 named;
    /// [`crate::ops::StreamHold`] with a token of [`FENCE`](crate::ops::FENCE). Answered when the stream reaches it, after
    /// everything that its earlier work has done to the job's memory; the stream continues when the job has sent
    /// `id::HOST_DONE` with the token.
    STREAM_FENCE StreamFence = 0x0fba nothing;
}
