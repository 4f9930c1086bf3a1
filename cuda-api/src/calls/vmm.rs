//! Virtual memory and marks: what executors build places from.

calls! { $ for_each_vmm_call vmm VmmCalls;

    /// Reserves addresses.
    0x0701 internal custom fn cuMemAddressReserve(ptr: Raw<*mut sys::CUdeviceptr>, size: Raw<usize>, alignment: Raw<usize>, addr: Raw<sys::CUdeviceptr>, flags: Raw<c_ulonglong>);
    /// Gives addresses back.
    0x0702 internal custom fn cuMemAddressFree(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>);
    /// Makes physical memory.
    0x0703 internal custom fn cuMemCreate(handle: Raw<*mut sys::CUmemGenericAllocationHandle>, size: Raw<usize>, prop: Raw<*const sys::CUmemAllocationProp>, flags: Raw<c_ulonglong>);
    /// Gives physical memory back.
    0x0704 internal custom fn cuMemRelease(handle: Raw<sys::CUmemGenericAllocationHandle>);
    /// Maps physical memory.
    0x0705 internal custom fn cuMemMap(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, offset: Raw<usize>, handle: Raw<sys::CUmemGenericAllocationHandle>, flags: Raw<c_ulonglong>);
    /// Unmaps.
    0x0706 internal custom fn cuMemUnmap(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>);
    /// Makes a mapping accessible.
    0x0707 internal custom fn cuMemSetAccess(ptr: Raw<sys::CUdeviceptr>, size: Raw<usize>, desc: Raw<*const sys::CUmemAccessDesc>, count: Raw<usize>);
    /// Granularity of physical memory.
    0x0708 internal custom fn cuMemGetAllocationGranularity(granularity: Raw<*mut usize>, prop: Raw<*const sys::CUmemAllocationProp>, option: RawEnum<sys::CUmemAllocationGranularity_flags>);
    /// A descriptor for physical memory.
    0x0709 internal custom fn cuMemExportToShareableHandle(shareableHandle: Raw<*mut c_void>, handle: Raw<sys::CUmemGenericAllocationHandle>, handleType: Raw<sys::CUmemAllocationHandleType>, flags: Raw<c_ulonglong>);
    /// Physical memory of a descriptor.
    0x070a internal custom fn cuMemImportFromShareableHandle(handle: Raw<*mut sys::CUmemGenericAllocationHandle>, osHandle: Raw<*mut c_void>, shHandleType: Raw<sys::CUmemAllocationHandleType>);
    /// Writes a mark in stream order.
    0x070b internal custom fn cuStreamWriteValue64_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>);
}
