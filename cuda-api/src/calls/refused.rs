//! Rows that answer `CUDA_ERROR_NOT_SUPPORTED`, each with the reason. Whoever makes one work moves it to its family and gives it
//! an id of that family; its id here is not used again.

calls! { $ for_each_refused_call refused RefusedCalls;

    /// Such numbers exist on Windows only.
    0x0d01 refused refused fn cuDeviceGetLuid(luid: Raw<*mut c_char>, deviceNodeMask: Raw<*mut c_uint>, dev: Raw<sys::CUdevice>) [start, null(luid, VALUE)];
    /// Memory is not handed to other devices: it could not be moved.
    0x0d2f refused refused fn cuMemGetHandleForAddressRange(handle: Raw<*mut c_void>, dptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, handleType: RawEnum<sys::CUmemRangeHandleType>, flags: Raw<c_ulonglong>) [null(dptr, VALUE)];
    /// No memory is reported as usable by decompression engines.
    0x0d30 refused refused fn cuMemBatchDecompressAsync(paramsArray: Raw<*mut sys::CUmemDecompressParams>, count: Raw<usize>, flags: Raw<c_uint>, errorIndex: Raw<*mut usize>, stream: Raw<sys::CUstream>) ptsz [start, context];
    /// Multicast objects span the GPUs of one machine: none of these could leave it.
    0x0d31 refused refused fn cuMulticastCreate(mcHandle: Raw<*mut sys::CUmemGenericAllocationHandle>, prop: Raw<*const sys::CUmulticastObjectProp>);
    /// Multicast objects span the GPUs of one machine: none of these could leave it.
    0x0d32 refused refused fn cuMulticastAddDevice(mcHandle: Raw<sys::CUmemGenericAllocationHandle>, dev: Raw<sys::CUdevice>);
    /// Multicast objects span the GPUs of one machine: none of these could leave it.
    0x0d33 refused refused fn cuMulticastBindMem(mcHandle: Raw<sys::CUmemGenericAllocationHandle>, mcOffset: Raw<usize>, memHandle: Raw<sys::CUmemGenericAllocationHandle>, memOffset: Raw<usize>, size: Raw<usize>, flags: Raw<c_ulonglong>);
    /// Multicast objects span the GPUs of one machine: none of these could leave it.
    0x0d34 refused refused fn cuMulticastBindAddr(mcHandle: Raw<sys::CUmemGenericAllocationHandle>, mcOffset: Raw<usize>, memptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, flags: Raw<c_ulonglong>);
    /// Multicast objects span the GPUs of one machine: none of these could leave it.
    0x0d35 refused refused fn cuMulticastUnbind(mcHandle: Raw<sys::CUmemGenericAllocationHandle>, dev: Raw<sys::CUdevice>, mcOffset: Raw<usize>, size: Raw<usize>);
    /// Multicast objects span the GPUs of one machine: none of these could leave it.
    0x0d36 refused refused fn cuMulticastGetGranularity(granularity: Raw<*mut usize>, prop: Raw<*const sys::CUmulticastObjectProp>, option: RawEnum<sys::CUmulticastGranularity_flags>);
    /// Arrays have memory of their own, which moves with them: none lies in memory that was imported.
    0x0d43 refused refused fn cuExternalMemoryGetMappedMipmappedArray(mipmap: Raw<*mut sys::CUmipmappedArray>, extMem: Raw<sys::CUexternalMemory>, mipmapDesc: Raw<*const sys::CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>) [start, null(extMem, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d45 refused refused fn cuImportExternalSemaphore(extSem_out: Raw<*mut sys::CUexternalSemaphore>, semHandleDesc: Raw<*const sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC>) [start, context, null(extSem_out, VALUE), null(semHandleDesc, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d46 refused refused fn cuSignalExternalSemaphoresAsync(extSemArray: Raw<*const sys::CUexternalSemaphore>, paramsArray: Raw<*const sys::CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS>, numExtSems: Raw<c_uint>, stream: Raw<sys::CUstream>) ptsz [start, context, null(stream, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d47 refused refused fn cuWaitExternalSemaphoresAsync(extSemArray: Raw<*const sys::CUexternalSemaphore>, paramsArray: Raw<*const sys::CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS>, numExtSems: Raw<c_uint>, stream: Raw<sys::CUstream>) ptsz [start, context, null(stream, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d48 refused refused fn cuDestroyExternalSemaphore(extSem: Raw<sys::CUexternalSemaphore>) [start, null(extSem, VALUE)];
    /// Deprecated by CUDA: launches that span devices.
    0x0d49 refused refused fn cuLaunchCooperativeKernelMultiDevice(launchParamsList: Raw<*mut sys::CUDA_LAUNCH_PARAMS>, numDevices: Raw<c_uint>, flags: Raw<c_uint>) [start, null(numDevices, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d55 refused refused fn cuGraphAddExternalSemaphoresSignalNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>) [null(hGraph, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d56 refused refused fn cuGraphExternalSemaphoresSignalNodeGetParams(hNode: Raw<sys::CUgraphNode>, params_out: Raw<*mut sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d57 refused refused fn cuGraphExternalSemaphoresSignalNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d58 refused refused fn cuGraphAddExternalSemaphoresWaitNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>) [null(hGraph, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d59 refused refused fn cuGraphExternalSemaphoresWaitNodeGetParams(hNode: Raw<sys::CUgraphNode>, params_out: Raw<*mut sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d5a refused refused fn cuGraphExternalSemaphoresWaitNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d62 refused refused fn cuGraphExecExternalSemaphoresSignalNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d63 refused refused fn cuGraphExecExternalSemaphoresWaitNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Graphics: the place has not the display of the program.
    0x0d8e refused refused fn cuGraphicsUnregisterResource(resource: Raw<sys::CUgraphicsResource>) [start, null(resource, HANDLE)];
    /// Graphics: the place has not the display of the program.
    0x0d8f refused refused fn cuGraphicsSubResourceGetMappedArray(pArray: Raw<*mut sys::CUarray>, resource: Raw<sys::CUgraphicsResource>, arrayIndex: Raw<c_uint>, mipLevel: Raw<c_uint>) [start, null(resource, HANDLE)];
    /// Graphics: the place has not the display of the program.
    0x0d90 refused refused fn cuGraphicsResourceGetMappedMipmappedArray(pMipmappedArray: Raw<*mut sys::CUmipmappedArray>, resource: Raw<sys::CUgraphicsResource>) [start, null(resource, HANDLE)];
    /// Graphics: the place has not the display of the program.
    0x0d91 refused refused fn cuGraphicsResourceGetMappedPointer_v2(pDevPtr: Raw<*mut sys::CUdeviceptr>, pSize: Raw<*mut usize>, resource: Raw<sys::CUgraphicsResource>) [start, null(resource, HANDLE)];
    /// Graphics: the place has not the display of the program.
    0x0d92 refused refused fn cuGraphicsResourceSetMapFlags_v2(resource: Raw<sys::CUgraphicsResource>, flags: Raw<c_uint>) [start, null(resource, HANDLE)];
    /// Graphics: the place has not the display of the program.
    0x0d93 refused refused fn cuGraphicsMapResources(count: Raw<c_uint>, resources: Raw<*mut sys::CUgraphicsResource>, hStream: Raw<sys::CUstream>) ptsz [start, null(count, VALUE)];
    /// Graphics: the place has not the display of the program.
    0x0d94 refused refused fn cuGraphicsUnmapResources(count: Raw<c_uint>, resources: Raw<*mut sys::CUgraphicsResource>, hStream: Raw<sys::CUstream>) ptsz [start, null(count, VALUE)];
    /// CUDA has taken this function away: it answers the same everywhere.
    0x0dab refused refused fn cuProfilerInitialize(configFile: Raw<*const c_char>, outputFile: Raw<*const c_char>, outputMode: RawEnum<sys::CUoutput_mode>);
    /// Synchronisation objects of embedded systems: no place has them.
    0x0dac refused refused fn cuDeviceGetNvSciSyncAttributes(nvSciSyncAttrList: Raw<*mut c_void>, dev: Raw<sys::CUdevice>, flags: Raw<c_int>) older [start, null(nvSciSyncAttrList, HANDLE)];
    /// Moves are made by mrcuda: a checkpoint of this process would find no GPU in it.
    0x0dad refused refused fn cuCheckpointProcessGetRestoreThreadId(pid: Raw<c_int>, tid: Raw<*mut c_int>) older;
    /// Moves are made by mrcuda: a checkpoint of this process would find no GPU in it.
    0x0dae refused refused fn cuCheckpointProcessGetState(pid: Raw<c_int>, state: Raw<*mut c_uint>) older;
    /// Moves are made by mrcuda: a checkpoint of this process would find no GPU in it.
    0x0daf refused refused fn cuCheckpointProcessLock(pid: Raw<c_int>, args: Raw<*mut c_void>) older;
    /// Moves are made by mrcuda: a checkpoint of this process would find no GPU in it.
    0x0db0 refused refused fn cuCheckpointProcessCheckpoint(pid: Raw<c_int>, args: Raw<*mut c_void>) older;
    /// Moves are made by mrcuda: a checkpoint of this process would find no GPU in it.
    0x0db1 refused refused fn cuCheckpointProcessRestore(pid: Raw<c_int>, args: Raw<*mut c_void>) older;
    /// Moves are made by mrcuda: a checkpoint of this process would find no GPU in it.
    0x0db2 refused refused fn cuCheckpointProcessUnlock(pid: Raw<c_int>, args: Raw<*mut c_void>) older;
}
