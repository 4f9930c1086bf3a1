//! The driver's order of checks, which determines which of several errors a call returns.
//!
//! A call without a context and with bad arguments has more than one error, and programs see which one is returned.
//! Functions differ: some check a pointer before they know whether CUDA was initialized, others require a context
//! before they check anything. The table holds the order as observed on an H200 with driver 580 (`tests/conformance`);
//! for functions that are not listed, the first error found is the right one. It is used only when a call has failed,
//! so it costs a successful call nothing.

use Check::{Above, Context, Nothing, Null, Start};
use cuda_api::code::{self, Code};

/// One check of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The parameter with this number must not be zero; otherwise this error is returned.
    Null(usize, Code),
    /// The parameter with this number must not be greater; otherwise `INVALID_VALUE` is returned.
    Above(usize, u64),
    /// If both parameters are zero nothing is requested, which is a success.
    Nothing(usize, usize),
    /// CUDA must be initialized.
    Start,
    /// The thread must have a current context.
    Context,
}

const VALUE: Code = code::ERROR_INVALID_VALUE;
const HANDLE: Code = code::ERROR_INVALID_HANDLE;
const CONTEXT: Code = code::ERROR_INVALID_CONTEXT;

const TABLE: &[(&str, &[Check])] = &[
    ("cuDeviceGet", &[Start, Null(0, VALUE)]),
    ("cuDeviceGetAttribute", &[Null(0, VALUE)]),
    ("cuDeviceGetP2PAttribute", &[Start, Null(0, VALUE)]),
    ("cuDeviceSetMemPool", &[Start, Null(1, VALUE)]),
    ("cuDevicePrimaryCtxGetState", &[Null(1, VALUE), Null(2, VALUE)]),
    ("cuCtxDestroy_v2", &[Null(0, VALUE)]),
    ("cuCtxDestroy", &[Null(0, VALUE)]),
    ("cuCtxPushCurrent_v2", &[Start, Null(0, VALUE)]),
    ("cuCtxGetDevice", &[Null(0, VALUE), Start, Context]),
    ("cuCtxGetDevice_v2", &[Null(0, VALUE), Start, Context]),
    ("cuCtxGetFlags", &[Null(0, VALUE), Start, Context]),
    ("cuCtxGetId", &[Null(1, VALUE), Start, Context]),
    ("cuCtxPushCurrent", &[Start, Null(0, VALUE)]),
    ("cuMemAlloc_v2", &[Start, Context]),
    ("cuMemAllocPitch_v2", &[Start, Context]),
    ("cuMemGetAddressRange_v2", &[Nothing(0, 1)]),
    ("cuMemAllocHost_v2", &[Start, Context]),
    ("cuMemHostAlloc", &[Start, Context]),
    ("cuMemHostGetFlags", &[Null(0, VALUE), Start, Context]),
    ("cuMemHostUnregister", &[Start, Null(0, VALUE)]),
    ("cuMemcpy2D_v2", &[Start, Context]),
    ("cuMemcpy2DUnaligned_v2", &[Start, Context]),
    ("cuMemcpy2DAsync_v2", &[Start, Context]),
    ("cuMemcpy3D_v2", &[Start, Context]),
    ("cuMemcpy3DAsync_v2", &[Start, Context]),
    ("cuMemAdvise_v2", &[Null(3, VALUE)]),
    ("cuMemPrefetchAsync_v2", &[Null(2, VALUE)]),
    ("cuStreamAttachMemAsync", &[Start, Context]),
    ("cuMemAllocAsync", &[Start, Context]),
    ("cuMemAllocFromPoolAsync", &[Start, Context, Null(2, VALUE)]),
    ("cuMemGetDefaultMemPool", &[Start, Null(0, VALUE), Null(1, VALUE)]),
    ("cuMemGetMemPool", &[Start, Null(0, VALUE), Null(1, VALUE)]),
    ("cuMemSetMemPool", &[Start, Null(0, VALUE)]),
    ("cuIpcGetMemHandle", &[Null(0, VALUE)]),
    ("cuIpcOpenMemHandle_v2", &[Null(0, VALUE)]),
    ("cuIpcOpenMemHandle", &[Null(0, VALUE)]),
    ("cuIpcCloseMemHandle", &[Start, Context]),
    ("cuIpcGetEventHandle", &[Null(0, VALUE), Null(1, VALUE)]),
    ("cuIpcOpenEventHandle", &[Null(0, VALUE), Start, Context]),
    ("cuMemcpy3DPeer", &[Start, Context]),
    ("cuMemcpy3DPeerAsync", &[Start, Context]),
    ("cuMemcpyBatchAsync_v2", &[Null(0, VALUE), Null(3, VALUE)]),
    ("cuMemcpy3DBatchAsync_v2", &[Null(0, VALUE)]),
    ("cuMemcpyBatchAsync", &[Null(0, VALUE), Null(3, VALUE)]),
    ("cuMemcpy3DBatchAsync", &[Null(0, VALUE)]),
    ("cuMemPrefetchBatchAsync", &[Null(0, VALUE), Null(2, VALUE)]),
    ("cuMemDiscardBatchAsync", &[Null(0, VALUE), Null(2, VALUE)]),
    ("cuMemDiscardAndPrefetchBatchAsync", &[Null(0, VALUE), Null(2, VALUE)]),
    ("cuStreamCreate", &[Null(0, VALUE), Start, Context]),
    ("cuStreamCreateWithPriority", &[Null(0, VALUE), Start, Context]),
    ("cuStreamDestroy_v2", &[Null(0, HANDLE)]),
    ("cuStreamDestroy", &[Null(0, HANDLE)]),
    ("cuStreamGetFlags", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetPriority", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetCtx", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetCtx_v2", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetDevice", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetId", &[Null(1, VALUE), Start, Context]),
    ("cuStreamAddCallback", &[Null(1, VALUE)]),
    ("cuLaunchHostFunc", &[Null(1, VALUE)]),
    ("cuEventCreate", &[Start, Context]),
    ("cuEventDestroy_v2", &[Null(0, HANDLE)]),
    ("cuEventDestroy", &[Null(0, HANDLE)]),
    ("cuEventRecord", &[Start, Context, Null(0, HANDLE)]),
    ("cuEventRecordWithFlags", &[Start, Context, Null(0, HANDLE)]),
    ("cuEventQuery", &[Null(0, HANDLE)]),
    ("cuEventSynchronize", &[Null(0, HANDLE)]),
    ("cuEventElapsedTime", &[Null(0, HANDLE), Null(1, HANDLE), Null(2, HANDLE)]),
    ("cuEventElapsedTime_v2", &[Null(0, HANDLE), Null(1, HANDLE), Null(2, HANDLE)]),
    ("cuStreamBatchMemOp_v2", &[Start, Context]),
    ("cuStreamBatchMemOp", &[Start, Context]),
    ("cuModuleLoad", &[Start, Context]),
    ("cuModuleLoadData", &[Start, Context]),
    ("cuModuleLoadDataEx", &[Start, Context]),
    ("cuModuleLoadFatBinary", &[Start, Context]),
    ("cuModuleUnload", &[Start, Null(0, HANDLE)]),
    ("cuModuleGetFunction", &[Start, Null(1, HANDLE)]),
    ("cuModuleGetGlobal_v2", &[Start, Null(2, HANDLE)]),
    ("cuModuleGetFunctionCount", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuModuleEnumerateFunctions", &[Null(0, VALUE), Start, Null(2, HANDLE)]),
    ("cuLibraryLoadData", &[Null(0, VALUE)]),
    ("cuLibraryLoadFromFile", &[Null(0, VALUE), Null(1, VALUE)]),
    ("cuLibraryUnload", &[Null(0, HANDLE)]),
    ("cuLibraryGetKernel", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuLibraryGetModule", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuLibraryGetGlobal", &[Null(2, VALUE)]),
    ("cuLibraryGetKernelCount", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuLibraryEnumerateKernels", &[Null(0, VALUE), Start, Null(2, HANDLE)]),
    ("cuKernelGetFunction", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuKernelGetLibrary", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuKernelGetName", &[Null(0, VALUE), Null(1, VALUE)]),
    ("cuKernelGetAttribute", &[Null(2, HANDLE)]),
    ("cuKernelSetAttribute", &[Null(2, HANDLE)]),
    ("cuKernelSetCacheConfig", &[Null(0, HANDLE)]),
    ("cuKernelGetParamInfo", &[Null(0, VALUE)]),
    ("cuFuncGetAttribute", &[Null(0, VALUE), Start, Null(2, HANDLE)]),
    ("cuFuncSetAttribute", &[Start, Null(0, HANDLE)]),
    ("cuFuncSetCacheConfig", &[Start, Null(0, HANDLE)]),
    ("cuFuncGetModule", &[Start, Null(1, VALUE)]),
    ("cuFuncGetName", &[Null(0, VALUE), Null(1, VALUE)]),
    ("cuFuncGetParamInfo", &[Null(0, VALUE)]),
    ("cuFuncIsLoaded", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuFuncLoad", &[Null(0, HANDLE)]),
    ("cuLinkAddData_v2", &[Null(0, HANDLE)]),
    ("cuLinkAddData", &[Null(0, HANDLE)]),
    ("cuLinkAddFile_v2", &[Null(0, HANDLE)]),
    ("cuLinkAddFile", &[Null(0, HANDLE)]),
    ("cuLinkComplete", &[Null(0, HANDLE)]),
    ("cuLinkDestroy", &[Null(0, HANDLE)]),
    ("cuFuncSetSharedMemConfig", &[Start, Null(0, HANDLE)]),
    ("cuLaunchGrid", &[Start, Context, Null(0, HANDLE)]),
    ("cuLaunchGridAsync", &[Start, Context, Null(0, HANDLE)]),
    ("cuLaunchKernelEx", &[Null(0, VALUE)]),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessor", &[Start, Context, Null(0, VALUE)]),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", &[Start, Context, Null(0, VALUE), Above(4, 1)]),
    ("cuOccupancyAvailableDynamicSMemPerBlock", &[Start, Context, Null(0, VALUE), Null(1, VALUE)]),
    ("cuOccupancyMaxPotentialBlockSize", &[Start, Context, Null(0, VALUE), Null(1, VALUE)]),
    ("cuOccupancyMaxPotentialBlockSizeWithFlags", &[Start, Context, Null(0, VALUE), Null(1, VALUE), Above(6, 1)]),
    ("cuOccupancyMaxActiveClusters", &[Null(0, VALUE), Null(1, VALUE), Null(2, VALUE)]),
    ("cuOccupancyMaxPotentialClusterSize", &[Null(0, VALUE), Null(1, VALUE), Null(2, VALUE)]),
    ("cuTensorMapEncodeTiled", &[Start, Context]),
    ("cuMemExportToShareableHandle", &[Start, Null(0, VALUE), Null(1, VALUE)]),
    ("cuMemImportFromShareableHandle", &[Start, Null(0, VALUE)]),
    ("cuMemGetAccess", &[Start, Null(0, VALUE), Null(1, VALUE), Null(2, VALUE)]),
    ("cuStreamBeginCaptureToGraph", &[Null(1, VALUE)]),
    ("cuStreamIsCapturing", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetCaptureInfo", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetCaptureInfo_v2", &[Null(1, VALUE), Start, Context]),
    ("cuStreamGetCaptureInfo_v3", &[Null(1, VALUE), Start, Context]),
    ("cuGraphAddKernelNode", &[Start, Null(0, VALUE), Null(1, HANDLE)]),
    ("cuGraphAddKernelNode_v2", &[Start, Null(0, VALUE), Null(1, HANDLE)]),
    ("cuGraphAddMemcpyNode", &[Start, Null(0, VALUE), Null(1, VALUE)]),
    ("cuGraphAddHostNode", &[Null(1, VALUE)]),
    ("cuGraphAddEmptyNode", &[Null(1, VALUE)]),
    ("cuGraphAddEventRecordNode", &[Null(1, VALUE)]),
    ("cuGraphAddEventWaitNode", &[Null(1, VALUE)]),
    ("cuGraphAddBatchMemOpNode", &[Null(1, VALUE)]),
    ("cuGraphAddNode", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuGraphAddNode_v2", &[Null(0, VALUE), Start, Null(1, HANDLE)]),
    ("cuGraphAddDependencies", &[Null(0, VALUE)]),
    ("cuGraphAddDependencies_v2", &[Null(0, VALUE)]),
    ("cuGraphRemoveDependencies", &[Null(0, VALUE)]),
    ("cuGraphRemoveDependencies_v2", &[Null(0, VALUE)]),
    ("cuGraphKernelNodeGetParams", &[Null(0, VALUE)]),
    ("cuGraphKernelNodeGetParams_v2", &[Null(0, VALUE)]),
    ("cuGraphKernelNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphKernelNodeSetParams_v2", &[Null(0, VALUE)]),
    ("cuGraphMemcpyNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphMemsetNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphHostNodeGetParams", &[Null(0, VALUE)]),
    ("cuGraphHostNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphBatchMemOpNodeGetParams", &[Null(0, VALUE)]),
    ("cuGraphBatchMemOpNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphEventRecordNodeGetEvent", &[Null(0, VALUE)]),
    ("cuGraphEventRecordNodeSetEvent", &[Null(0, VALUE)]),
    ("cuGraphEventWaitNodeGetEvent", &[Null(0, VALUE)]),
    ("cuGraphEventWaitNodeSetEvent", &[Null(0, VALUE)]),
    ("cuGraphNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphInstantiateWithParams", &[Null(0, VALUE), Start, Context]),
    ("cuGraphExecKernelNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecKernelNodeSetParams_v2", &[Null(0, VALUE)]),
    ("cuGraphExecMemcpyNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecMemsetNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecHostNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecChildGraphNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecEventRecordNodeSetEvent", &[Null(0, VALUE)]),
    ("cuGraphExecEventWaitNodeSetEvent", &[Null(0, VALUE)]),
    ("cuGraphExecBatchMemOpNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphNodeSetEnabled", &[Null(0, VALUE)]),
    ("cuGraphNodeGetEnabled", &[Null(0, VALUE)]),
    ("cuGraphUpload", &[Start, Context]),
    ("cuUserObjectCreate", &[Null(0, VALUE), Null(2, VALUE)]),
    ("cuUserObjectRetain", &[Null(0, VALUE)]),
    ("cuUserObjectRelease", &[Null(0, VALUE)]),
    ("cuGraphRetainUserObject", &[Null(0, VALUE)]),
    ("cuGraphReleaseUserObject", &[Null(0, VALUE)]),
    ("cuGraphDebugDotPrint", &[Null(0, VALUE)]),
    ("cuGraphMemAllocNodeGetParams", &[Null(0, VALUE)]),
    ("cuGraphMemFreeNodeGetParams", &[Null(0, VALUE)]),
    ("cuGraphConditionalHandleCreate", &[Null(1, VALUE)]),
    ("cuArrayDestroy", &[Start, Null(0, HANDLE)]),
    ("cuArrayGetDescriptor_v2", &[Null(1, HANDLE)]),
    ("cuArray3DGetDescriptor_v2", &[Null(1, HANDLE)]),
    ("cuArrayGetSparseProperties", &[Null(1, VALUE)]),
    ("cuMipmappedArrayGetSparseProperties", &[Null(1, VALUE)]),
    ("cuArrayGetMemoryRequirements", &[Null(1, VALUE)]),
    ("cuMipmappedArrayGetMemoryRequirements", &[Null(1, VALUE)]),
    ("cuArrayGetPlane", &[Null(1, HANDLE)]),
    ("cuMipmappedArrayGetLevel", &[Null(1, HANDLE)]),
    ("cuMipmappedArrayDestroy", &[Start, Null(0, HANDLE)]),
    ("cuMemRangeGetAttribute", &[Start, Context]),
    ("cuMemRangeGetAttributes", &[Start, Context]),
    // Not supported, but its arguments are checked all the same.
    ("cuDeviceGetLuid", &[Start, Null(0, VALUE)]),
    ("cuDeviceGetHostAtomicCapabilities", &[Null(2, VALUE)]),
    ("cuFlushGPUDirectRDMAWrites", &[Start, Context]),
    ("cuCtxGetExecAffinity", &[Start, Context, Null(0, VALUE)]),
    ("cuCtxRecordEvent", &[Start, Context, Null(0, CONTEXT)]),
    ("cuCtxWaitEvent", &[Start, Context, Null(0, CONTEXT)]),
    ("cuCtxAttach", &[Start, Context, Null(0, VALUE)]),
    ("cuModuleGetTexRef", &[Start, Null(1, HANDLE)]),
    ("cuModuleGetSurfRef", &[Start, Null(1, HANDLE)]),
    ("cuLibraryGetManaged", &[Null(2, VALUE)]),
    ("cuLibraryGetUnifiedFunction", &[Start, Null(0, VALUE), Null(1, HANDLE)]),
    ("cuDeviceRegisterAsyncNotification", &[Start, Null(1, VALUE)]),
    ("cuDeviceUnregisterAsyncNotification", &[Start, Null(1, VALUE)]),
    ("cuMemGetHandleForAddressRange", &[Null(1, VALUE)]),
    ("cuMemBatchDecompressAsync", &[Start, Context]),
    ("cuImportExternalMemory", &[Start, Context, Null(0, VALUE), Null(1, VALUE)]),
    ("cuExternalMemoryGetMappedBuffer", &[Start, Null(1, VALUE)]),
    ("cuExternalMemoryGetMappedMipmappedArray", &[Start, Null(1, VALUE)]),
    ("cuDestroyExternalMemory", &[Start, Null(0, VALUE)]),
    ("cuImportExternalSemaphore", &[Start, Context, Null(0, VALUE), Null(1, VALUE)]),
    ("cuSignalExternalSemaphoresAsync", &[Start, Context, Null(3, VALUE)]),
    ("cuWaitExternalSemaphoresAsync", &[Start, Context, Null(3, VALUE)]),
    ("cuDestroyExternalSemaphore", &[Start, Null(0, VALUE)]),
    ("cuLaunchCooperativeKernelMultiDevice", &[Start, Null(1, VALUE)]),
    ("cuParamSetTexRef", &[Start, Context, Null(0, HANDLE), Null(2, HANDLE)]),
    ("cuGraphAddExternalSemaphoresSignalNode", &[Null(1, VALUE)]),
    ("cuGraphExternalSemaphoresSignalNodeGetParams", &[Null(0, VALUE)]),
    ("cuGraphExternalSemaphoresSignalNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphAddExternalSemaphoresWaitNode", &[Null(1, VALUE)]),
    ("cuGraphExternalSemaphoresWaitNodeGetParams", &[Null(0, VALUE)]),
    ("cuGraphExternalSemaphoresWaitNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecExternalSemaphoresSignalNodeSetParams", &[Null(0, VALUE)]),
    ("cuGraphExecExternalSemaphoresWaitNodeSetParams", &[Null(0, VALUE)]),
    ("cuTexRefSetArray", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetMipmappedArray", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetAddress_v2", &[Start, Null(1, HANDLE)]),
    ("cuTexRefSetAddress2D_v3", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetFormat", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetAddressMode", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetFilterMode", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetMipmapFilterMode", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetMipmapLevelBias", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetMipmapLevelClamp", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetMaxAnisotropy", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetBorderColor", &[Start, Null(0, HANDLE)]),
    ("cuTexRefSetFlags", &[Start, Null(0, HANDLE)]),
    ("cuTexRefGetAddress_v2", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetArray", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetMipmappedArray", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetAddressMode", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetFilterMode", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetFormat", &[Start, Null(2, HANDLE)]),
    ("cuTexRefGetMipmapFilterMode", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetMipmapLevelBias", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetMipmapLevelClamp", &[Start, Null(2, HANDLE)]),
    ("cuTexRefGetMaxAnisotropy", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetBorderColor", &[Start, Null(1, HANDLE)]),
    ("cuTexRefGetFlags", &[Start, Null(1, HANDLE)]),
    ("cuTexRefCreate", &[Start, Context, Null(0, VALUE)]),
    ("cuTexRefDestroy", &[Start, Null(0, HANDLE)]),
    ("cuSurfRefSetArray", &[Start, Null(0, HANDLE)]),
    ("cuSurfRefGetArray", &[Start, Null(1, HANDLE)]),
    ("cuDeviceGetP2PAtomicCapabilities", &[Start, Null(2, VALUE)]),
    ("cuGraphicsUnregisterResource", &[Start, Null(0, HANDLE)]),
    ("cuGraphicsSubResourceGetMappedArray", &[Start, Null(1, HANDLE)]),
    ("cuGraphicsResourceGetMappedMipmappedArray", &[Start, Null(1, HANDLE)]),
    ("cuGraphicsResourceGetMappedPointer_v2", &[Start, Null(2, HANDLE)]),
    ("cuGraphicsResourceSetMapFlags_v2", &[Start, Null(0, HANDLE)]),
    ("cuGraphicsMapResources", &[Start, Null(0, VALUE)]),
    ("cuGraphicsUnmapResources", &[Start, Null(0, VALUE)]),
    ("cuGreenCtxCreate", &[Start]),
    ("cuGreenCtxDestroy", &[Start, Context, Null(0, CONTEXT)]),
    ("cuCtxFromGreenCtx", &[Null(0, VALUE), Start, Context, Null(1, CONTEXT)]),
    ("cuDeviceGetDevResource", &[Start, Null(1, VALUE)]),
    ("cuCtxGetDevResource", &[Null(1, VALUE)]),
    ("cuGreenCtxGetDevResource", &[Null(1, VALUE)]),
    ("cuDevSmResourceSplitByCount", &[Start, Null(4, VALUE)]),
    ("cuDevResourceGenerateDesc", &[Null(0, VALUE)]),
    ("cuGreenCtxRecordEvent", &[Null(0, CONTEXT)]),
    ("cuGreenCtxWaitEvent", &[Null(0, CONTEXT)]),
    ("cuStreamGetGreenCtx", &[Null(1, VALUE), Start, Context]),
    ("cuGreenCtxStreamCreate", &[Null(0, VALUE), Start, Context, Null(1, CONTEXT)]),
    ("cuGreenCtxGetId", &[Null(1, VALUE), Start, Context, Null(0, CONTEXT)]),
    ("cuDeviceGetNvSciSyncAttributes", &[Start, Null(0, HANDLE)]),
    ("cuMemMapArrayAsync", &[Null(1, VALUE)]),
];

/// The first checks of a function, in order; empty if the order is unknown.
pub const fn checks(function: &str) -> &'static [Check] {
    let mut i = 0;
    while i < TABLE.len() {
        if is_same(TABLE[i].0.as_bytes(), function.as_bytes()) {
            return TABLE[i].1;
        }
        i += 1;
    }
    &[]
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = a.len();
    // From the end, because many names have a common beginning.
    while i > 0 {
        i -= 1;
        if a[i] != b[i] {
            return false;
        }
    }
    true
}

/// The error that a failed call returns: that of the first check that fails, otherwise `found`. `args` are its
/// arguments as numbers; `error` converts a code of the table; `started` and `context` tell whether CUDA is initialized
/// and whether the thread has a current context.
pub fn choose<E>(
    checks: &[Check],
    args: &[u64],
    found: E,
    error: impl Fn(Code) -> E,
    started: impl Fn() -> Result<(), E>,
    context: impl Fn() -> Result<(), E>,
) -> E {
    let arg = |i: usize| args.get(i).copied().unwrap_or(u64::MAX);
    let refused = |check: &Check| match *check {
        Null(i, rc) => (arg(i) == 0).then(|| error(rc)),
        Above(i, most) => (arg(i) > most).then(|| error(VALUE)),
        Nothing(i, j) => (arg(i) == 0 && arg(j) == 0).then(|| error(code::SUCCESS)),
        Start => started().err(),
        Context => context().err(),
    };
    checks.iter().find_map(refused).unwrap_or(found)
}

/// An argument as a number; one that is larger than a number counts as not zero.
pub fn number<T: Copy>(value: T) -> u64 {
    if size_of::<T>() > size_of::<u64>() {
        return u64::MAX;
    }
    let mut bytes = [0; 8];
    // SAFETY: a C argument of this size is an integer, a pointer or a pair of integers, which have no padding; it fits.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes.as_mut_ptr(), size_of::<T>()) };
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::calls::rows;

    #[test]
    fn the_table_names_rows_once_and_their_parameters() {
        for (i, (name, checks)) in TABLE.iter().enumerate() {
            let row = rows().find(|r| r.name == *name).unwrap_or_else(|| panic!("{name} has no row"));
            assert!(TABLE[..i].iter().all(|(other, _)| other != name), "{name} is there twice");
            for step in *checks {
                if let Null(at, _) | Above(at, _) | Nothing(_, at) = step {
                    assert!(*at < row.params.len(), "{name}: no parameter {at}");
                }
            }
        }
    }

    #[test]
    fn steps_are_taken_in_order() {
        let (yes, no) = (|| Ok(()), || Err(code::ERROR_INVALID_CONTEXT));
        let checks = checks("cuCtxGetDevice");
        assert_eq!(checks, [Null(0, VALUE), Start, Context]);
        assert_eq!(choose(checks, &[0], 201, |c| c, no, no), VALUE);
        assert_eq!(choose(checks, &[8], 999, |c| c, yes, no), code::ERROR_INVALID_CONTEXT);
        assert_eq!(choose(checks, &[8], 999, |c| c, yes, yes), 999);
        assert!(super::checks("cuLaunchKernel").is_empty());
    }

    #[test]
    fn arguments_are_numbers() {
        assert_eq!(
            (number(-1i32), number(7u8), number(std::ptr::null::<u8>()), number([0u64; 2])),
            (0xffff_ffff, 7, 0, u64::MAX)
        );
    }
}
