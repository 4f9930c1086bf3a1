//! Allocation, copies, memsets, host memory.

calls! { $ for_each_memory_call memory MemoryCalls;

    /// Allocates device memory.
    0x0301 memory custom fn cuMemAlloc_v2(dptr: Raw<*mut sys::CUdeviceptr>, bytesize: Raw<usize>);
    /// Allocates rows of device memory.
    0x0302 memory custom fn cuMemAllocPitch_v2(dptr: Raw<*mut sys::CUdeviceptr>, pPitch: Raw<*mut usize>, WidthInBytes: Raw<usize>, Height: Raw<usize>, ElementSizeBytes: Raw<c_uint>);
    /// Frees device memory.
    0x0303 memory custom fn cuMemFree_v2(dptr: Raw<sys::CUdeviceptr>);
    /// Free and total memory of the device.
    0x0304 query custom fn cuMemGetInfo_v2(free: Raw<*mut usize>, total: Raw<*mut usize>);
    /// The allocation around an address.
    0x0305 local custom fn cuMemGetAddressRange_v2(pbase: Raw<*mut sys::CUdeviceptr>, psize: Raw<*mut usize>, dptr: Raw<sys::CUdeviceptr>);
    /// Allocates pinned host memory.
    0x0306 local custom fn cuMemAllocHost_v2(pp: Raw<*mut *mut c_void>, bytesize: Raw<usize>);
    /// Allocates pinned host memory.
    0x0307 local custom fn cuMemHostAlloc(pp: Raw<*mut *mut c_void>, bytesize: Raw<usize>, Flags: Raw<c_uint>);
    /// Frees pinned host memory.
    0x0308 local custom fn cuMemFreeHost(p: Raw<*mut c_void>);
    /// Device address of pinned host memory, where place and job share memory.
    0x0309 local custom fn cuMemHostGetDevicePointer_v2(pdptr: Raw<*mut sys::CUdeviceptr>, p: Raw<*mut c_void>, Flags: Raw<c_uint>);
    /// Flags of pinned host memory.
    0x030a local custom fn cuMemHostGetFlags(pFlags: Raw<*mut c_uint>, p: Raw<*mut c_void>);
    /// Pins host memory of the program.
    0x030b local custom fn cuMemHostRegister_v2(p: Raw<*mut c_void>, bytesize: Raw<usize>, Flags: Raw<c_uint>);
    /// Unpins host memory.
    0x030c local custom fn cuMemHostUnregister(p: Raw<*mut c_void>);
    /// A property of an address.
    0x030d local custom fn cuPointerGetAttribute(data: Raw<*mut c_void>, attribute: RawEnum<sys::CUpointer_attribute>, ptr: Raw<sys::CUdeviceptr>);
    /// Properties of an address.
    0x030e local custom fn cuPointerGetAttributes(numAttributes: Raw<c_uint>, attributes: Raw<*mut sys::CUpointer_attribute>, data: Raw<*mut *mut c_void>, ptr: Raw<sys::CUdeviceptr>);
    /// Changes a property of an allocation.
    0x030f local custom fn cuPointerSetAttribute(value: Raw<*const c_void>, attribute: RawEnum<sys::CUpointer_attribute>, ptr: Raw<sys::CUdeviceptr>);
    /// Copies between any two addresses.
    0x0310 work custom fn cuMemcpy(dst: Raw<sys::CUdeviceptr>, src: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies host bytes to the device.
    0x0311 work custom fn cuMemcpyHtoD_v2(dstDevice: Raw<sys::CUdeviceptr>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>) ptds;
    /// Copies device bytes to the host.
    0x0312 work custom fn cuMemcpyDtoH_v2(dstHost: Raw<*mut c_void>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies inside the device.
    0x0313 work custom fn cuMemcpyDtoD_v2(dstDevice: Raw<sys::CUdeviceptr>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies between any two addresses, in stream order.
    0x0314 work custom fn cuMemcpyAsync(dst: Raw<sys::CUdeviceptr>, src: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies host bytes to the device, in stream order.
    0x0315 work custom fn cuMemcpyHtoDAsync_v2(dstDevice: Raw<sys::CUdeviceptr>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies device bytes to the host, in stream order.
    0x0316 work custom fn cuMemcpyDtoHAsync_v2(dstHost: Raw<*mut c_void>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies inside the device, in stream order.
    0x0317 work custom fn cuMemcpyDtoDAsync_v2(dstDevice: Raw<sys::CUdeviceptr>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies a rectangle.
    0x0318 work custom fn cuMemcpy2D_v2(pCopy: Raw<*const sys::CUDA_MEMCPY2D>) ptds;
    /// Copies a rectangle of any pitch.
    0x0319 work custom fn cuMemcpy2DUnaligned_v2(pCopy: Raw<*const sys::CUDA_MEMCPY2D>) ptds;
    /// Copies a rectangle, in stream order.
    0x031a work custom fn cuMemcpy2DAsync_v2(pCopy: Raw<*const sys::CUDA_MEMCPY2D>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies a box.
    0x031b work custom fn cuMemcpy3D_v2(pCopy: Raw<*const sys::CUDA_MEMCPY3D>) ptds;
    /// Copies a box, in stream order.
    0x031c work custom fn cuMemcpy3DAsync_v2(pCopy: Raw<*const sys::CUDA_MEMCPY3D>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills with 8-bit values.
    0x031d work custom fn cuMemsetD8_v2(dstDevice: Raw<sys::CUdeviceptr>, uc: Raw<c_uchar>, N: Raw<usize>) ptds;
    /// Fills with 8-bit values, in stream order.
    0x031e work custom fn cuMemsetD8Async(dstDevice: Raw<sys::CUdeviceptr>, uc: Raw<c_uchar>, N: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills a rectangle with 8-bit values.
    0x031f work custom fn cuMemsetD2D8_v2(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, uc: Raw<c_uchar>, Width: Raw<usize>, Height: Raw<usize>) ptds;
    /// Fills a rectangle with 8-bit values, in stream order.
    0x0320 work custom fn cuMemsetD2D8Async(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, uc: Raw<c_uchar>, Width: Raw<usize>, Height: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills with 16-bit values.
    0x0321 work custom fn cuMemsetD16_v2(dstDevice: Raw<sys::CUdeviceptr>, us: Raw<c_ushort>, N: Raw<usize>) ptds;
    /// Fills with 16-bit values, in stream order.
    0x0322 work custom fn cuMemsetD16Async(dstDevice: Raw<sys::CUdeviceptr>, us: Raw<c_ushort>, N: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills a rectangle with 16-bit values.
    0x0323 work custom fn cuMemsetD2D16_v2(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, us: Raw<c_ushort>, Width: Raw<usize>, Height: Raw<usize>) ptds;
    /// Fills a rectangle with 16-bit values, in stream order.
    0x0324 work custom fn cuMemsetD2D16Async(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, us: Raw<c_ushort>, Width: Raw<usize>, Height: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills with 32-bit values.
    0x0325 work custom fn cuMemsetD32_v2(dstDevice: Raw<sys::CUdeviceptr>, ui: Raw<c_uint>, N: Raw<usize>) ptds;
    /// Fills with 32-bit values, in stream order.
    0x0326 work custom fn cuMemsetD32Async(dstDevice: Raw<sys::CUdeviceptr>, ui: Raw<c_uint>, N: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills a rectangle with 32-bit values.
    0x0327 work custom fn cuMemsetD2D32_v2(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, ui: Raw<c_uint>, Width: Raw<usize>, Height: Raw<usize>) ptds;
    /// Fills a rectangle with 32-bit values, in stream order.
    0x0328 work custom fn cuMemsetD2D32Async(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, ui: Raw<c_uint>, Width: Raw<usize>, Height: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Allocates managed memory, where place and job share memory.
    0x0361 local custom fn cuMemAllocManaged(dptr: Raw<*mut sys::CUdeviceptr>, bytesize: Raw<usize>, flags: Raw<c_uint>);
    /// Advice on managed memory: checked, nothing else.
    0x0362 local custom fn cuMemAdvise(devPtr: Raw<u64>, count: Raw<usize>, advice: RawEnum<sys::CUmem_advise>, device: Raw<c_int>) older;
    /// Advice on managed memory: checked, nothing else.
    0x0363 local custom fn cuMemAdvise_v2(devPtr: Raw<sys::CUdeviceptr>, count: Raw<usize>, advice: RawEnum<sys::CUmem_advise>, location: RawPair<sys::CUmemLocation>);
    /// Brings managed memory nearer: checked, nothing else.
    0x0364 local custom fn cuMemPrefetchAsync(devPtr: Raw<u64>, count: Raw<usize>, dstDevice: Raw<c_int>, hStream: Raw<sys::CUstream>) older ptsz;
    /// Brings managed memory nearer: checked, nothing else.
    0x0365 local custom fn cuMemPrefetchAsync_v2(devPtr: Raw<sys::CUdeviceptr>, count: Raw<usize>, location: RawPair<sys::CUmemLocation>, flags: Raw<c_uint>, hStream: Raw<sys::CUstream>) ptsz;
    /// Says who uses managed memory: checked, nothing else.
    0x0366 local custom fn cuStreamAttachMemAsync(hStream: Raw<sys::CUstream>, dptr: Raw<sys::CUdeviceptr>, length: Raw<usize>, flags: Raw<c_uint>) ptsz;
    /// Allocates from the device's current pool, in stream order.
    0x0340 memory custom fn cuMemAllocAsync(dptr: Raw<*mut sys::CUdeviceptr>, bytesize: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Frees in stream order.
    0x0341 memory custom fn cuMemFreeAsync(dptr: Raw<sys::CUdeviceptr>, hStream: Raw<sys::CUstream>) ptsz;
    /// Allocates from a pool, in stream order.
    0x0342 memory custom fn cuMemAllocFromPoolAsync(dptr: Raw<*mut sys::CUdeviceptr>, bytesize: Raw<usize>, pool: Raw<sys::CUmemoryPool>, hStream: Raw<sys::CUstream>) ptsz;
    /// Makes a pool of device memory.
    0x0343 local custom fn cuMemPoolCreate(pool: Raw<*mut sys::CUmemoryPool>, poolProps: Raw<*const sys::CUmemPoolProps>);
    /// Ends a pool; what is allocated from it stays until it is freed.
    0x0344 local custom fn cuMemPoolDestroy(pool: Raw<sys::CUmemoryPool>);
    /// Gives unused memory of a pool back.
    0x0345 local custom fn cuMemPoolTrimTo(pool: Raw<sys::CUmemoryPool>, minBytesToKeep: Raw<usize>);
    /// Changes a property of a pool.
    0x0346 local custom fn cuMemPoolSetAttribute(pool: Raw<sys::CUmemoryPool>, attr: RawEnum<sys::CUmemPool_attribute>, value: Raw<*mut c_void>);
    /// A property of a pool.
    0x0347 local custom fn cuMemPoolGetAttribute(pool: Raw<sys::CUmemoryPool>, attr: RawEnum<sys::CUmemPool_attribute>, value: Raw<*mut c_void>);
    /// Which devices may use a pool: its own.
    0x0348 local custom fn cuMemPoolSetAccess(pool: Raw<sys::CUmemoryPool>, map: Raw<*const sys::CUmemAccessDesc>, count: Raw<usize>);
    /// Whether a device may use a pool.
    0x0349 local custom fn cuMemPoolGetAccess(flags: Raw<*mut sys::CUmemAccess_flags>, memPool: Raw<sys::CUmemoryPool>, location: Raw<*mut sys::CUmemLocation>);
    /// The pool that a location has from the start.
    0x034a local custom fn cuMemGetDefaultMemPool(pool_out: Raw<*mut sys::CUmemoryPool>, location: Raw<*mut sys::CUmemLocation>, type_: RawEnum<sys::CUmemAllocationType>);
    /// The pool that a location allocates from.
    0x034b local custom fn cuMemGetMemPool(pool: Raw<*mut sys::CUmemoryPool>, location: Raw<*mut sys::CUmemLocation>, type_: RawEnum<sys::CUmemAllocationType>);
    /// Chooses the pool that a location allocates from.
    0x034c local custom fn cuMemSetMemPool(location: Raw<*mut sys::CUmemLocation>, type_: RawEnum<sys::CUmemAllocationType>, pool: Raw<sys::CUmemoryPool>);
    /// A descriptor by which other processes know a pool.
    0x034d local custom fn cuMemPoolExportToShareableHandle(handle_out: Raw<*mut c_void>, pool: Raw<sys::CUmemoryPool>, handleType: RawEnum<sys::CUmemAllocationHandleType>, flags: Raw<c_ulonglong>);
    /// The pool of another process: only for pointers of it.
    0x034e local custom fn cuMemPoolImportFromShareableHandle(pool_out: Raw<*mut sys::CUmemoryPool>, handle: Raw<*mut c_void>, handleType: RawEnum<sys::CUmemAllocationHandleType>, flags: Raw<c_ulonglong>);
    /// Words by which other processes get at an allocation of a pool.
    0x034f local custom fn cuMemPoolExportPointer(shareData_out: Raw<*mut sys::CUmemPoolPtrExportData>, ptr: Raw<sys::CUdeviceptr>);
    /// Maps an allocation of another process's pool.
    0x0350 memory custom fn cuMemPoolImportPointer(ptr_out: Raw<*mut sys::CUdeviceptr>, pool: Raw<sys::CUmemoryPool>, shareData: Raw<*mut sys::CUmemPoolPtrExportData>);
    /// A handle by which other processes open an allocation.
    0x0351 local custom fn cuIpcGetMemHandle(pHandle: Raw<*mut sys::CUipcMemHandle>, dptr: Raw<sys::CUdeviceptr>);
    /// Opens an allocation of another process.
    0x0352 memory custom fn cuIpcOpenMemHandle_v2(pdptr: Raw<*mut sys::CUdeviceptr>, handle: Raw<sys::CUipcMemHandle>, Flags: Raw<c_uint>);
    /// Closes an allocation of another process.
    0x0353 memory custom fn cuIpcCloseMemHandle(dptr: Raw<sys::CUdeviceptr>);
    /// A handle by which other processes open an event.
    0x0354 local custom fn cuIpcGetEventHandle(pHandle: Raw<*mut sys::CUipcEventHandle>, event: Raw<sys::CUevent>);
    /// Opens an event of another process.
    0x0355 state custom fn cuIpcOpenEventHandle(phEvent: Raw<*mut sys::CUevent>, handle: Raw<sys::CUipcEventHandle>);
    /// Copies between devices.
    0x0370 work custom fn cuMemcpyPeer(dstDevice: Raw<sys::CUdeviceptr>, dstContext: Raw<sys::CUcontext>, srcDevice: Raw<sys::CUdeviceptr>, srcContext: Raw<sys::CUcontext>, ByteCount: Raw<usize>) ptds;
    /// Copies between devices, in stream order.
    0x0371 work custom fn cuMemcpyPeerAsync(dstDevice: Raw<sys::CUdeviceptr>, dstContext: Raw<sys::CUcontext>, srcDevice: Raw<sys::CUdeviceptr>, srcContext: Raw<sys::CUcontext>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies a box between devices.
    0x0372 work custom fn cuMemcpy3DPeer(pCopy: Raw<*const sys::CUDA_MEMCPY3D_PEER>) ptds;
    /// Copies a box between devices, in stream order.
    0x0373 work custom fn cuMemcpy3DPeerAsync(pCopy: Raw<*const sys::CUDA_MEMCPY3D_PEER>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies between any addresses, in stream order but in none among themselves.
    0x0374 work custom fn cuMemcpyBatchAsync_v2(dsts: Raw<*mut sys::CUdeviceptr>, srcs: Raw<*mut sys::CUdeviceptr>, sizes: Raw<*mut usize>, count: Raw<usize>, attrs: Raw<*mut sys::CUmemcpyAttributes>, attrsIdxs: Raw<*mut usize>, numAttrs: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// The form of CUDA 12.8.
    0x0376 work custom fn cuMemcpyBatchAsync(dsts: Raw<*mut sys::CUdeviceptr>, srcs: Raw<*mut sys::CUdeviceptr>, sizes: Raw<*mut usize>, count: Raw<usize>, attrs: Raw<*mut sys::CUmemcpyAttributes>, attrsIdxs: Raw<*mut usize>, numAttrs: Raw<usize>, failIdx: Raw<*mut usize>, hStream: Raw<sys::CUstream>) older ptsz;
    /// Copies boxes of memory and arrays, in stream order but in none among themselves.
    0x0375 work custom fn cuMemcpy3DBatchAsync_v2(numOps: Raw<usize>, opList: Raw<*mut sys::CUDA_MEMCPY3D_BATCH_OP>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz;
    /// The form of CUDA 12.8.
    0x0377 work custom fn cuMemcpy3DBatchAsync(numOps: Raw<usize>, opList: Raw<*mut sys::CUDA_MEMCPY3D_BATCH_OP>, failIdx: Raw<*mut usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) older ptsz;
    /// Moves managed memory ahead of its use: checked, and there is nothing to be done.
    0x0378 local custom fn cuMemPrefetchBatchAsync(dptrs: Raw<*mut sys::CUdeviceptr>, sizes: Raw<*mut usize>, count: Raw<usize>, prefetchLocs: Raw<*mut sys::CUmemLocation>, prefetchLocIdxs: Raw<*mut usize>, numPrefetchLocs: Raw<usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz;
    /// The contents of managed memory are not needed: checked, and they stay.
    0x0379 local custom fn cuMemDiscardBatchAsync(dptrs: Raw<*mut sys::CUdeviceptr>, sizes: Raw<*mut usize>, count: Raw<usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz;
    /// As both: checked, and there is nothing to be done.
    0x037a local custom fn cuMemDiscardAndPrefetchBatchAsync(dptrs: Raw<*mut sys::CUdeviceptr>, sizes: Raw<*mut usize>, count: Raw<usize>, prefetchLocs: Raw<*mut sys::CUmemLocation>, prefetchLocIdxs: Raw<*mut usize>, numPrefetchLocs: Raw<usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz;
    /// What was advised of managed memory.
    0x037b local custom fn cuMemRangeGetAttribute(data: Raw<*mut c_void>, dataSize: Raw<usize>, attribute: RawEnum<sys::CUmem_range_attribute>, devPtr: Raw<sys::CUdeviceptr>, count: Raw<usize>);
    /// Several answers of that kind.
    0x037c local custom fn cuMemRangeGetAttributes(data: Raw<*mut *mut c_void>, dataSizes: Raw<*mut usize>, attributes: Raw<*mut sys::CUmem_range_attribute>, numAttributes: Raw<usize>, devPtr: Raw<sys::CUdeviceptr>, count: Raw<usize>);
    /// As `cuMemHostRegister_v2`.
    0x037d local custom fn cuMemHostRegister(p: Raw<*mut c_void>, bytesize: Raw<usize>, Flags: Raw<c_uint>) older;
    /// As `cuIpcOpenMemHandle_v2`.
    0x037e memory custom fn cuIpcOpenMemHandle(pdptr: Raw<*mut sys::CUdeviceptr>, handle: Raw<sys::CUipcMemHandle>, Flags: Raw<c_uint>) older;
}
