//! Virtual memory: programs use it, and executors build places from it.

calls! { $ for_each_vmm_call vmm VmmCalls;

    /// Reserves addresses.
    0x0701 local answer fn cuMemAddressReserve(ptr: Out<sys::CUdeviceptr>, size: Val<usize>, alignment: Val<usize>, addr: Address, flags: Val<c_ulonglong>);
    /// Gives addresses back.
    0x0702 local answer fn cuMemAddressFree(ptr: Address, size: Val<usize>);
    /// Makes physical memory.
    0x0703 memory answer fn cuMemCreate(handle: OutHandle<sys::CUmemGenericAllocationHandle>, size: Val<usize>, prop: In<sys::CUmemAllocationProp>, flags: Val<c_ulonglong>);
    /// Gives physical memory back.
    0x0704 memory answer fn cuMemRelease(handle: HandleArg<sys::CUmemGenericAllocationHandle>);
    /// Maps physical memory.
    0x0705 memory answer fn cuMemMap(ptr: Address, size: Val<usize>, offset: Val<usize>, handle: HandleArg<sys::CUmemGenericAllocationHandle>, flags: Val<c_ulonglong>);
    /// Unmaps.
    0x0706 memory answer fn cuMemUnmap(ptr: Address, size: Val<usize>);
    /// Makes a mapping accessible.
    0x0707 memory irregular "its array is checked for its length before it is read" fn cuMemSetAccess(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, desc: Reads<sys::CUmemAccessDesc>, count: Raw<usize>);
    /// Granularity of physical memory.
    0x0708 local answer fn cuMemGetAllocationGranularity(granularity: Out<usize>, prop: In<sys::CUmemAllocationProp>, option: Enum<sys::CUmemAllocationGranularity_flags>);
    /// A descriptor for physical memory.
    0x0709 local answer fn cuMemExportToShareableHandle(shareableHandle: OutVoid<c_int>, handle: HandleArg<sys::CUmemGenericAllocationHandle>, handleType: Enum<sys::CUmemAllocationHandleType>, flags: Val<c_ulonglong>) [start, null(shareableHandle, VALUE), null(handle, VALUE)];
    /// Physical memory of a descriptor.
    0x070a local answer fn cuMemImportFromShareableHandle(handle: OutHandle<sys::CUmemGenericAllocationHandle>, osHandle: HostAddress, shHandleType: Enum<sys::CUmemAllocationHandleType>) [start, null(handle, VALUE)];
    /// Whether a device may use a mapping.
    0x070c local answer fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<sys::CUmemLocation>, ptr: Address) [start, null(flags, VALUE), null(location, VALUE), null(ptr, VALUE)];
    /// What physical memory was asked for.
    0x070d local answer fn cuMemGetAllocationPropertiesFromHandle(prop: OutStruct<sys::CUmemAllocationProp>, handle: HandleArg<sys::CUmemGenericAllocationHandle>);
    /// The handle of what is mapped at an address, once more.
    0x070e local answer fn cuMemRetainAllocationHandle(handle: OutHandle<sys::CUmemGenericAllocationHandle>, addr: HostAddress);
    /// Maps and unmaps tiles of sparse arrays, and arrays that are mapped later, in stream order.
    0x070f state irregular "an array whose elements are unions" fn cuMemMapArrayAsync(mapInfoList: ReadsMut<sys::CUarrayMapInfo>, count: Raw<c_uint>, hStream: Raw<sys::CUstream>) ptsz [null(count, VALUE)];
    /// Memory that a job has exported by a descriptor; memory of graphics or of other drivers is refused.
    0x0710 local irregular "a structure with a union of handles" fn cuImportExternalMemory(extMem_out: Writes<sys::CUexternalMemory>, memHandleDesc: Reads<sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC>) [start, context, null(extMem_out, VALUE), null(memHandleDesc, VALUE)];
    /// Maps such memory as a buffer.
    0x0711 memory irregular "the handle is checked before the context" fn cuExternalMemoryGetMappedBuffer(devPtr: Writes<sys::CUdeviceptr>, extMem: Raw<sys::CUexternalMemory>, bufferDesc: Reads<sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC>) [start, null(extMem, VALUE)];
    /// Gives such memory back; buffers keep it.
    0x0712 local answer fn cuDestroyExternalMemory(extMem: HandleArg<sys::CUexternalMemory>) [start, null(extMem, VALUE)];
}
