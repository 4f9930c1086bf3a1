//! Virtual memory: programs use it, and executors build places from it.

calls! { $ for_each_vmm_call vmm VmmCalls;

    /// Reserves addresses.
    0x0701 local custom fn cuMemAddressReserve(ptr: Raw<*mut sys::CUdeviceptr>, size: Raw<usize>, alignment: Raw<usize>, addr: Raw<sys::CUdeviceptr>, flags: Raw<c_ulonglong>);
    /// Gives addresses back.
    0x0702 local custom fn cuMemAddressFree(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>);
    /// Makes physical memory.
    0x0703 memory custom fn cuMemCreate(handle: Raw<*mut sys::CUmemGenericAllocationHandle>, size: Raw<usize>, prop: Raw<*const sys::CUmemAllocationProp>, flags: Raw<c_ulonglong>);
    /// Gives physical memory back.
    0x0704 memory custom fn cuMemRelease(handle: Raw<sys::CUmemGenericAllocationHandle>);
    /// Maps physical memory.
    0x0705 memory custom fn cuMemMap(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, offset: Raw<usize>, handle: Raw<sys::CUmemGenericAllocationHandle>, flags: Raw<c_ulonglong>);
    /// Unmaps.
    0x0706 memory custom fn cuMemUnmap(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>);
    /// Makes a mapping accessible.
    0x0707 memory custom fn cuMemSetAccess(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, desc: Raw<*const sys::CUmemAccessDesc>, count: Raw<usize>);
    /// Granularity of physical memory.
    0x0708 local custom fn cuMemGetAllocationGranularity(granularity: Raw<*mut usize>, prop: Raw<*const sys::CUmemAllocationProp>, option: RawEnum<sys::CUmemAllocationGranularity_flags>);
    /// A descriptor for physical memory.
    0x0709 local custom fn cuMemExportToShareableHandle(shareableHandle: Raw<*mut c_void>, handle: Raw<sys::CUmemGenericAllocationHandle>, handleType: RawEnum<sys::CUmemAllocationHandleType>, flags: Raw<c_ulonglong>);
    /// Physical memory of a descriptor.
    0x070a local custom fn cuMemImportFromShareableHandle(handle: Raw<*mut sys::CUmemGenericAllocationHandle>, osHandle: Raw<*mut c_void>, shHandleType: RawEnum<sys::CUmemAllocationHandleType>);
    /// Whether a device may use a mapping.
    0x070c local custom fn cuMemGetAccess(flags: Raw<*mut c_ulonglong>, location: Raw<*const sys::CUmemLocation>, ptr: Raw<sys::CUdeviceptr>);
    /// What physical memory was asked for.
    0x070d local custom fn cuMemGetAllocationPropertiesFromHandle(prop: Raw<*mut sys::CUmemAllocationProp>, handle: Raw<sys::CUmemGenericAllocationHandle>);
    /// The handle of what is mapped at an address, once more.
    0x070e local custom fn cuMemRetainAllocationHandle(handle: Raw<*mut sys::CUmemGenericAllocationHandle>, addr: Raw<*mut c_void>);
    /// Maps and unmaps tiles of sparse arrays, and arrays that are mapped later, in stream order.
    0x070f state custom fn cuMemMapArrayAsync(mapInfoList: Raw<*mut sys::CUarrayMapInfo>, count: Raw<c_uint>, hStream: Raw<sys::CUstream>) ptsz;
    /// Memory that a job has exported by a descriptor; memory of graphics or of other drivers is refused.
    0x0710 local custom fn cuImportExternalMemory(extMem_out: Raw<*mut sys::CUexternalMemory>, memHandleDesc: Raw<*const sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC>);
    /// Maps such memory as a buffer.
    0x0711 local custom fn cuExternalMemoryGetMappedBuffer(devPtr: Raw<*mut sys::CUdeviceptr>, extMem: Raw<sys::CUexternalMemory>, bufferDesc: Raw<*const sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC>);
    /// Gives such memory back; buffers keep it.
    0x0712 local custom fn cuDestroyExternalMemory(extMem: Raw<sys::CUexternalMemory>);
}
