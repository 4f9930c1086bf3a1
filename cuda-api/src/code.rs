//! Driver result codes as plain integers, because codes that cross the C boundary may be unknown to any enum.

/// Result of a driver call, `CUresult` as the ABI sees it.
pub type Code = i32;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(#[doc = concat!("`CUDA_", stringify!($name), "`: ", $text, ".")] pub const $name: Code = $value;)*
        /// Name of a code, with the final NUL, as `cuGetErrorName` returns it, and a description for
        /// `cuGetErrorString`.
        pub fn describe(code: Code) -> Option<(&'static str, &'static str)> {
            match code { $($value => Some((concat!("CUDA_", stringify!($name), "\0"), concat!($text, "\0"))),)* _ => None }
        }
    };
}

codes! {
    SUCCESS = 0, "no error";
    ERROR_INVALID_VALUE = 1, "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "initialization error";
    ERROR_DEINITIALIZED = 4, "driver shutting down";
    ERROR_PROFILER_DISABLED = 5, "profiler disabled while using external profiling tool";
    ERROR_PROFILER_NOT_INITIALIZED = 6, "profiler not initialized: call cudaProfilerInitialize()";
    ERROR_PROFILER_ALREADY_STARTED = 7, "profiler already started";
    ERROR_PROFILER_ALREADY_STOPPED = 8, "profiler already stopped";
    ERROR_STUB_LIBRARY = 34, "CUDA driver is a stub library";
    ERROR_CALL_REQUIRES_NEWER_DRIVER = 36, "API call is not supported in the installed CUDA driver";
    ERROR_DEVICE_UNAVAILABLE = 46, "CUDA-capable device(s) is/are busy or unavailable";
    ERROR_NO_DEVICE = 100, "no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    ERROR_DEVICE_NOT_LICENSED = 102, "device doesn't have valid Grid license";
    ERROR_INVALID_IMAGE = 200, "device kernel image is invalid";
    ERROR_INVALID_CONTEXT = 201, "invalid device context";
    ERROR_CONTEXT_ALREADY_CURRENT = 202, "context already current";
    ERROR_MAP_FAILED = 205, "mapping of buffer object failed";
    ERROR_UNMAP_FAILED = 206, "unmapping of buffer object failed";
    ERROR_ARRAY_IS_MAPPED = 207, "array is mapped";
    ERROR_ALREADY_MAPPED = 208, "resource already mapped";
    ERROR_NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ERROR_ALREADY_ACQUIRED = 210, "resource already acquired";
    ERROR_NOT_MAPPED = 211, "resource not mapped";
    ERROR_NOT_MAPPED_AS_ARRAY = 212, "resource not mapped as array";
    ERROR_NOT_MAPPED_AS_POINTER = 213, "resource not mapped as pointer";
    ERROR_ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    ERROR_UNSUPPORTED_LIMIT = 215, "limit is not supported on this architecture";
    ERROR_CONTEXT_ALREADY_IN_USE = 216, "exclusive-thread device already in use by a different thread";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    ERROR_INVALID_PTX = 218, "a PTX JIT compilation failed";
    ERROR_INVALID_GRAPHICS_CONTEXT = 219, "invalid OpenGL or DirectX context";
    ERROR_NVLINK_UNCORRECTABLE = 220, "uncorrectable NVLink error detected during the execution";
    ERROR_JIT_COMPILER_NOT_FOUND = 221, "PTX JIT compiler library not found";
    ERROR_UNSUPPORTED_PTX_VERSION = 222, "the provided PTX was compiled with an unsupported toolchain.";
    ERROR_JIT_COMPILATION_DISABLED = 223, "PTX JIT compilation was disabled";
    ERROR_UNSUPPORTED_EXEC_AFFINITY = 224, "the provided execution affinity is not supported";
    ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225, "the provided PTX contains unsupported call to cudaDeviceSynchronize";
    ERROR_CONTAINED = 226, "Invalid access of peer GPU memory over nvlink or a hardware error";
    ERROR_INVALID_SOURCE = 300, "device kernel image is invalid";
    ERROR_FILE_NOT_FOUND = 301, "file not found";
    ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "shared object symbol not found";
    ERROR_SHARED_OBJECT_INIT_FAILED = 303, "shared object initialization failed";
    ERROR_OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    ERROR_LOSSY_QUERY = 402, "attempted introspection would be semantically lossy";
    ERROR_NOT_FOUND = 500, "named symbol not found";
    ERROR_NOT_READY = 600, "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    ERROR_LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703, "launch uses incompatible texturing mode";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "cannot set while device is active in this process";
    ERROR_CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ERROR_ASSERT = 710, "device-side assert triggered";
    ERROR_TOO_MANY_PEERS = 711, "peer mapping resources exhausted";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    ERROR_HARDWARE_STACK_ERROR = 714, "hardware stack error";
    ERROR_ILLEGAL_INSTRUCTION = 715, "an illegal instruction was encountered";
    ERROR_MISALIGNED_ADDRESS = 716, "misaligned address";
    ERROR_INVALID_ADDRESS_SPACE = 717, "operation not supported on global/shared address space";
    ERROR_INVALID_PC = 718, "invalid program counter";
    ERROR_LAUNCH_FAILED = 719, "unspecified launch failure";
    ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, "too many blocks in cooperative launch";
    ERROR_TENSOR_MEMORY_LEAK = 721, "tensor memory not completely freed";
    ERROR_NOT_PERMITTED = 800, "operation not permitted";
    ERROR_NOT_SUPPORTED = 801, "operation not supported";
    ERROR_SYSTEM_NOT_READY = 802, "system not yet initialized";
    ERROR_SYSTEM_DRIVER_MISMATCH = 803, "system has unsupported display driver / cuda driver combination";
    ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "forward compatibility was attempted on non supported HW";
    ERROR_MPS_CONNECTION_FAILED = 805, "MPS client failed to connect to the MPS control daemon or the MPS server";
    ERROR_MPS_RPC_FAILURE = 806, "the remote procedural call between the MPS server and the MPS client failed";
    ERROR_MPS_SERVER_NOT_READY = 807, "MPS server is not ready to accept new MPS client requests";
    ERROR_MPS_MAX_CLIENTS_REACHED = 808, "the hardware resources required to create MPS client have been exhausted";
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809, "the hardware resources required to support device connections have been exhausted";
    ERROR_MPS_CLIENT_TERMINATED = 810, "the MPS client has been terminated by the server";
    ERROR_CDP_NOT_SUPPORTED = 811, "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it";
    ERROR_CDP_VERSION_MISMATCH = 812, "unsupported interaction between different versions of CUDA Dynamic Parallelism";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    ERROR_STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    ERROR_CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    ERROR_TIMEOUT = 909, "wait operation timed out";
    ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910, "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    ERROR_EXTERNAL_DEVICE = 911, "an async error has occured in external entity outside of CUDA";
    ERROR_INVALID_CLUSTER_SIZE = 912, "a kernel launch error has occurred due to cluster misconfiguration";
    ERROR_FUNCTION_NOT_LOADED = 913, "the function handle is not loaded when calling an API that requires a loaded function";
    ERROR_INVALID_RESOURCE_TYPE = 914, "one or more resources passed in are not valid resource types for the operation";
    ERROR_INVALID_RESOURCE_CONFIGURATION = 915, "one or more resources are insufficient or non-applicable for the operation";
    ERROR_KEY_ROTATION = 916, "an error happened during the key rotation sequence";
    ERROR_UNKNOWN = 999, "unknown error";
}

/// Whether an execution error is sticky: it stays until the context is destroyed (CUDA driver API reference,
/// `CUresult`).
pub fn is_sticky(code: Code) -> bool {
    matches!(code, 46 | 214 | 220 | 700 | 702 | 710 | 714..=719 | 721 | 999)
}
