//! Flags and keys of cuda.h, as the numbers that calls carry.
//!
//! The recorder and the executor use these. softgpu has its own, as a driver does, so that the two can disagree: a wrong one here is then
//! found by the tests.

use crate::sys;

/// `CU_STREAM_NON_BLOCKING`
pub const STREAM_NON_BLOCKING: u32 = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;

/// `CU_EVENT_BLOCKING_SYNC`
pub const EVENT_BLOCKING_SYNC: u32 = sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32;
/// `CU_EVENT_DISABLE_TIMING`
pub const EVENT_DISABLE_TIMING: u32 = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
/// `CU_EVENT_INTERPROCESS`: other processes may know the event.
pub const EVENT_INTERPROCESS: u32 = sys::CUevent_flags_enum::CU_EVENT_INTERPROCESS as u32;

/// `CU_CTX_MAP_HOST`
pub const CONTEXT_MAP_HOST: u32 = sys::CUctx_flags_enum::CU_CTX_MAP_HOST as u32;

/// `CU_MEMHOSTALLOC_PORTABLE`
pub const HOST_ALLOC_PORTABLE: u32 = sys::CU_MEMHOSTALLOC_PORTABLE;
/// `CU_MEMHOSTALLOC_DEVICEMAP`
pub const HOST_ALLOC_DEVICE_MAP: u32 = sys::CU_MEMHOSTALLOC_DEVICEMAP;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`
pub const HOST_ALLOC_WRITE_COMBINED: u32 = sys::CU_MEMHOSTALLOC_WRITECOMBINED;

/// `CU_MEMHOSTREGISTER_PORTABLE`
pub const HOST_REGISTER_PORTABLE: u32 = sys::CU_MEMHOSTREGISTER_PORTABLE;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`
pub const HOST_REGISTER_DEVICE_MAP: u32 = sys::CU_MEMHOSTREGISTER_DEVICEMAP;
/// `CU_MEMHOSTREGISTER_IOMEMORY`
pub const HOST_REGISTER_IO_MEMORY: u32 = sys::CU_MEMHOSTREGISTER_IOMEMORY;
/// `CU_MEMHOSTREGISTER_READ_ONLY`
pub const HOST_REGISTER_READ_ONLY: u32 = sys::CU_MEMHOSTREGISTER_READ_ONLY;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
pub const ALLOCATION_PINNED: u32 = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED as u32;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: u32 = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE as u32;
/// `CU_MEM_LOCATION_TYPE_HOST`
pub const LOCATION_HOST: u32 = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST as u32;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`
pub const LOCATION_HOST_NUMA: u32 = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST_NUMA as u32;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`
pub const LOCATION_HOST_NUMA_CURRENT: u32 = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as u32;

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
pub const ACCESS_READ_WRITE: u32 = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub const HANDLE_FILE_DESCRIPTOR: u32 = sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub const CAPTURE_RELAXED: u32 = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED as u32;

/// `CU_STREAM_MEM_OP_WAIT_VALUE_32`, whose plain form waits for a value that is greater or equal.
pub const MEM_OP_WAIT_32: u32 = sys::CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WAIT_VALUE_32 as u32;
/// `CU_STREAM_MEM_OP_WRITE_VALUE_32`
pub const MEM_OP_WRITE_32: u32 = sys::CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WRITE_VALUE_32 as u32;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`
pub const INSTANTIATE_UPLOAD: u64 = sys::CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0 as u64;

/// The last attribute of launches in CUDA 13.0's header.
pub const LAST_LAUNCH_ATTRIBUTE: u32 = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING as u32;
