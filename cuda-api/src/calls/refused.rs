//! Rows that answer `CUDA_ERROR_NOT_SUPPORTED`, each with the reason. Whoever makes one work moves it to its family and gives it
//! an id of that family; its id here is not used again.

calls! { $ for_each_refused_call refused RefusedCalls;

    /// Such numbers exist on Windows only.
    0x0d01 refused refused fn cuDeviceGetLuid(luid: Raw<*mut c_char>, deviceNodeMask: Raw<*mut c_uint>, dev: Raw<sys::CUdevice>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d0e refused refused fn cuModuleGetTexRef(pTexRef: Raw<*mut sys::CUtexref>, hmod: Raw<sys::CUmodule>, name: Raw<*const c_char>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d0f refused refused fn cuModuleGetSurfRef(pSurfRef: Raw<*mut sys::CUsurfref>, hmod: Raw<sys::CUmodule>, name: Raw<*const c_char>);
    /// Memory is not handed to other devices: it could not be moved.
    0x0d2f refused refused fn cuMemGetHandleForAddressRange(handle: Raw<*mut c_void>, dptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, handleType: RawEnum<sys::CUmemRangeHandleType>, flags: Raw<c_ulonglong>);
    /// No memory is told to be fit for engines that decompress.
    0x0d30 refused refused fn cuMemBatchDecompressAsync(paramsArray: Raw<*mut sys::CUmemDecompressParams>, count: Raw<usize>, flags: Raw<c_uint>, errorIndex: Raw<*mut usize>, stream: Raw<sys::CUstream>) ptsz;
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
    0x0d43 refused refused fn cuExternalMemoryGetMappedMipmappedArray(mipmap: Raw<*mut sys::CUmipmappedArray>, extMem: Raw<sys::CUexternalMemory>, mipmapDesc: Raw<*const sys::CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d45 refused refused fn cuImportExternalSemaphore(extSem_out: Raw<*mut sys::CUexternalSemaphore>, semHandleDesc: Raw<*const sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d46 refused refused fn cuSignalExternalSemaphoresAsync(extSemArray: Raw<*const sys::CUexternalSemaphore>, paramsArray: Raw<*const sys::CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS>, numExtSems: Raw<c_uint>, stream: Raw<sys::CUstream>) ptsz;
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d47 refused refused fn cuWaitExternalSemaphoresAsync(extSemArray: Raw<*const sys::CUexternalSemaphore>, paramsArray: Raw<*const sys::CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS>, numExtSems: Raw<c_uint>, stream: Raw<sys::CUstream>) ptsz;
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d48 refused refused fn cuDestroyExternalSemaphore(extSem: Raw<sys::CUexternalSemaphore>);
    /// Deprecated by CUDA: launches that span devices.
    0x0d49 refused refused fn cuLaunchCooperativeKernelMultiDevice(launchParamsList: Raw<*mut sys::CUDA_LAUNCH_PARAMS>, numDevices: Raw<c_uint>, flags: Raw<c_uint>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d53 refused refused fn cuParamSetTexRef(hfunc: Raw<sys::CUfunction>, texunit: Raw<c_int>, hTexRef: Raw<sys::CUtexref>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d55 refused refused fn cuGraphAddExternalSemaphoresSignalNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d56 refused refused fn cuGraphExternalSemaphoresSignalNodeGetParams(hNode: Raw<sys::CUgraphNode>, params_out: Raw<*mut sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d57 refused refused fn cuGraphExternalSemaphoresSignalNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d58 refused refused fn cuGraphAddExternalSemaphoresWaitNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d59 refused refused fn cuGraphExternalSemaphoresWaitNodeGetParams(hNode: Raw<sys::CUgraphNode>, params_out: Raw<*mut sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d5a refused refused fn cuGraphExternalSemaphoresWaitNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d62 refused refused fn cuGraphExecExternalSemaphoresSignalNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>);
    /// Such semaphores are made by graphics or other drivers, never by CUDA: no job can have both ends, and another place does not have the other one.
    0x0d63 refused refused fn cuGraphExecExternalSemaphoresWaitNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_EXT_SEM_WAIT_NODE_PARAMS>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d65 refused refused fn cuTexRefSetArray(hTexRef: Raw<sys::CUtexref>, hArray: Raw<sys::CUarray>, Flags: Raw<c_uint>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d66 refused refused fn cuTexRefSetMipmappedArray(hTexRef: Raw<sys::CUtexref>, hMipmappedArray: Raw<sys::CUmipmappedArray>, Flags: Raw<c_uint>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d67 refused refused fn cuTexRefSetAddress_v2(ByteOffset: Raw<*mut usize>, hTexRef: Raw<sys::CUtexref>, dptr: Raw<sys::CUdeviceptr>, bytes: Raw<usize>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d68 refused refused fn cuTexRefSetAddress2D_v3(hTexRef: Raw<sys::CUtexref>, desc: Raw<*const sys::CUDA_ARRAY_DESCRIPTOR>, dptr: Raw<sys::CUdeviceptr>, Pitch: Raw<usize>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d69 refused refused fn cuTexRefSetFormat(hTexRef: Raw<sys::CUtexref>, fmt: RawEnum<sys::CUarray_format>, NumPackedComponents: Raw<c_int>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d6a refused refused fn cuTexRefSetAddressMode(hTexRef: Raw<sys::CUtexref>, dim: Raw<c_int>, am: RawEnum<sys::CUaddress_mode>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d6b refused refused fn cuTexRefSetFilterMode(hTexRef: Raw<sys::CUtexref>, fm: RawEnum<sys::CUfilter_mode>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d6c refused refused fn cuTexRefSetMipmapFilterMode(hTexRef: Raw<sys::CUtexref>, fm: RawEnum<sys::CUfilter_mode>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d6d refused refused fn cuTexRefSetMipmapLevelBias(hTexRef: Raw<sys::CUtexref>, bias: Raw<f32>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d6e refused refused fn cuTexRefSetMipmapLevelClamp(hTexRef: Raw<sys::CUtexref>, minMipmapLevelClamp: Raw<f32>, maxMipmapLevelClamp: Raw<f32>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d6f refused refused fn cuTexRefSetMaxAnisotropy(hTexRef: Raw<sys::CUtexref>, maxAniso: Raw<c_uint>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d70 refused refused fn cuTexRefSetBorderColor(hTexRef: Raw<sys::CUtexref>, pBorderColor: Raw<*mut f32>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d71 refused refused fn cuTexRefSetFlags(hTexRef: Raw<sys::CUtexref>, Flags: Raw<c_uint>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d72 refused refused fn cuTexRefGetAddress_v2(pdptr: Raw<*mut sys::CUdeviceptr>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d73 refused refused fn cuTexRefGetArray(phArray: Raw<*mut sys::CUarray>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d74 refused refused fn cuTexRefGetMipmappedArray(phMipmappedArray: Raw<*mut sys::CUmipmappedArray>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d75 refused refused fn cuTexRefGetAddressMode(pam: Raw<*mut sys::CUaddress_mode>, hTexRef: Raw<sys::CUtexref>, dim: Raw<c_int>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d76 refused refused fn cuTexRefGetFilterMode(pfm: Raw<*mut sys::CUfilter_mode>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d77 refused refused fn cuTexRefGetFormat(pFormat: Raw<*mut sys::CUarray_format>, pNumChannels: Raw<*mut c_int>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d78 refused refused fn cuTexRefGetMipmapFilterMode(pfm: Raw<*mut sys::CUfilter_mode>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d79 refused refused fn cuTexRefGetMipmapLevelBias(pbias: Raw<*mut f32>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d7a refused refused fn cuTexRefGetMipmapLevelClamp(pminMipmapLevelClamp: Raw<*mut f32>, pmaxMipmapLevelClamp: Raw<*mut f32>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d7b refused refused fn cuTexRefGetMaxAnisotropy(pmaxAniso: Raw<*mut c_int>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d7c refused refused fn cuTexRefGetBorderColor(pBorderColor: Raw<*mut f32>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d7d refused refused fn cuTexRefGetFlags(pFlags: Raw<*mut c_uint>, hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d7e refused refused fn cuTexRefCreate(pTexRef: Raw<*mut sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d7f refused refused fn cuTexRefDestroy(hTexRef: Raw<sys::CUtexref>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d80 refused refused fn cuSurfRefSetArray(hSurfRef: Raw<sys::CUsurfref>, hArray: Raw<sys::CUarray>, Flags: Raw<c_uint>);
    /// References are gone from CUDA's runtime since version 12, and no compiler makes them: objects are the way.
    0x0d81 refused refused fn cuSurfRefGetArray(phArray: Raw<*mut sys::CUarray>, hSurfRef: Raw<sys::CUsurfref>);
    /// Graphics: the place has not the display of the program.
    0x0d8e refused refused fn cuGraphicsUnregisterResource(resource: Raw<sys::CUgraphicsResource>);
    /// Graphics: the place has not the display of the program.
    0x0d8f refused refused fn cuGraphicsSubResourceGetMappedArray(pArray: Raw<*mut sys::CUarray>, resource: Raw<sys::CUgraphicsResource>, arrayIndex: Raw<c_uint>, mipLevel: Raw<c_uint>);
    /// Graphics: the place has not the display of the program.
    0x0d90 refused refused fn cuGraphicsResourceGetMappedMipmappedArray(pMipmappedArray: Raw<*mut sys::CUmipmappedArray>, resource: Raw<sys::CUgraphicsResource>);
    /// Graphics: the place has not the display of the program.
    0x0d91 refused refused fn cuGraphicsResourceGetMappedPointer_v2(pDevPtr: Raw<*mut sys::CUdeviceptr>, pSize: Raw<*mut usize>, resource: Raw<sys::CUgraphicsResource>);
    /// Graphics: the place has not the display of the program.
    0x0d92 refused refused fn cuGraphicsResourceSetMapFlags_v2(resource: Raw<sys::CUgraphicsResource>, flags: Raw<c_uint>);
    /// Graphics: the place has not the display of the program.
    0x0d93 refused refused fn cuGraphicsMapResources(count: Raw<c_uint>, resources: Raw<*mut sys::CUgraphicsResource>, hStream: Raw<sys::CUstream>) ptsz;
    /// Graphics: the place has not the display of the program.
    0x0d94 refused refused fn cuGraphicsUnmapResources(count: Raw<c_uint>, resources: Raw<*mut sys::CUgraphicsResource>, hStream: Raw<sys::CUstream>) ptsz;
    /// CUDA has taken this function away: it answers the same everywhere.
    0x0dab refused refused fn cuProfilerInitialize(configFile: Raw<*const c_char>, outputFile: Raw<*const c_char>, outputMode: RawEnum<sys::CUoutput_mode>);
    /// Synchronisation objects of embedded systems: no place has them.
    0x0dac refused refused fn cuDeviceGetNvSciSyncAttributes(nvSciSyncAttrList: Raw<*mut c_void>, dev: Raw<sys::CUdevice>, flags: Raw<c_int>) older;
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
