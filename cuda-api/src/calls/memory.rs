//! Allocation, copies, memsets, host memory.

calls! { $ for_each_memory_call memory MemoryCalls;

    /// Allocates device memory.
    0x0301 memory irregular "a capture is checked before its arguments" fn cuMemAlloc_v2(dptr: Writes<sys::CUdeviceptr>, bytesize: Raw<usize>) [start, context];
    /// Allocates rows of device memory.
    0x0302 memory irregular "a capture is checked before its arguments" fn cuMemAllocPitch_v2(dptr: Writes<sys::CUdeviceptr>, pPitch: Writes<usize>, WidthInBytes: Raw<usize>, Height: Raw<usize>, ElementSizeBytes: Raw<c_uint>) [start, context];
    /// Frees device memory.
    0x0303 memory answer fn cuMemFree_v2(dptr: Address);
    /// Free and total memory of the device.
    0x0304 query answer fn cuMemGetInfo_v2(free: OutOpt<usize>, total: OutOpt<usize>);
    /// The allocation around an address.
    0x0305 local answer fn cuMemGetAddressRange_v2(pbase: OutOpt<sys::CUdeviceptr>, psize: OutOpt<usize>, dptr: Address) [nothing(pbase, psize)];
    /// Allocates pinned host memory.
    0x0306 local irregular "a capture is checked before its arguments" fn cuMemAllocHost_v2(pp: Writes<*mut c_void>, bytesize: Raw<usize>) [start, context];
    /// Allocates pinned host memory.
    0x0307 local irregular "a capture is checked before its arguments" fn cuMemHostAlloc(pp: Writes<*mut c_void>, bytesize: Raw<usize>, Flags: Raw<c_uint>) [start, context];
    /// Frees pinned host memory.
    0x0308 local answer fn cuMemFreeHost(p: HostAddress);
    /// Device address of pinned host memory, where place and job share memory.
    0x0309 local answer fn cuMemHostGetDevicePointer_v2(pdptr: Out<sys::CUdeviceptr>, p: HostAddress, Flags: Val<c_uint>) [start, context];
    /// Flags of pinned host memory.
    0x030a local answer fn cuMemHostGetFlags(pFlags: Out<c_uint>, p: HostAddress) [null(pFlags, VALUE), start, context];
    /// Pins host memory of the program.
    0x030b local answer fn cuMemHostRegister_v2(p: HostAddress, bytesize: Val<usize>, Flags: Val<c_uint>);
    /// Unpins host memory.
    0x030c local answer fn cuMemHostUnregister(p: HostAddress) [start, null(p, VALUE)];
    /// A property of an address.
    0x030d local irregular "the attribute determines the type of the value" fn cuPointerGetAttribute(data: Writes<c_void>, attribute: RawEnum<sys::CUpointer_attribute>, ptr: Raw<sys::CUdeviceptr>);
    /// Properties of an address.
    0x030e local irregular "the attribute determines the type of the value" fn cuPointerGetAttributes(numAttributes: Raw<c_uint>, attributes: ReadsMut<sys::CUpointer_attribute>, data: ReadsMut<*mut c_void>, ptr: Raw<sys::CUdeviceptr>);
    /// Changes a property of an allocation.
    0x030f local irregular "the attribute determines the type of the value" fn cuPointerSetAttribute(value: Reads<c_void>, attribute: RawEnum<sys::CUpointer_attribute>, ptr: Raw<sys::CUdeviceptr>);
    /// Copies between any two addresses.
    0x0310 work irregular "a copy: the bytes are the program's own" fn cuMemcpy(dst: Raw<sys::CUdeviceptr>, src: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies host bytes to the device.
    0x0311 work irregular "a copy: the bytes are the program's own" fn cuMemcpyHtoD_v2(dstDevice: Raw<sys::CUdeviceptr>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>) ptds;
    /// Copies device bytes to the host.
    0x0312 work irregular "a copy: the bytes are the program's own" fn cuMemcpyDtoH_v2(dstHost: Raw<*mut c_void>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies inside the device.
    0x0313 work irregular "a copy: the bytes are the program's own" fn cuMemcpyDtoD_v2(dstDevice: Raw<sys::CUdeviceptr>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies between any two addresses, in stream order.
    0x0314 work irregular "a copy: the bytes are the program's own" fn cuMemcpyAsync(dst: Raw<sys::CUdeviceptr>, src: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies host bytes to the device, in stream order.
    0x0315 work irregular "a copy: the bytes are the program's own" fn cuMemcpyHtoDAsync_v2(dstDevice: Raw<sys::CUdeviceptr>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies device bytes to the host, in stream order.
    0x0316 work irregular "a copy: the bytes are the program's own" fn cuMemcpyDtoHAsync_v2(dstHost: Raw<*mut c_void>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies inside the device, in stream order.
    0x0317 work irregular "a copy: the bytes are the program's own" fn cuMemcpyDtoDAsync_v2(dstDevice: Raw<sys::CUdeviceptr>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies a rectangle.
    0x0318 work irregular "a copy: the bytes are the program's own" fn cuMemcpy2D_v2(pCopy: Reads<sys::CUDA_MEMCPY2D>) ptds [start, context];
    /// Copies a rectangle of any pitch.
    0x0319 work irregular "a copy: the bytes are the program's own" fn cuMemcpy2DUnaligned_v2(pCopy: Reads<sys::CUDA_MEMCPY2D>) ptds [start, context];
    /// Copies a rectangle, in stream order.
    0x031a work irregular "a copy: the bytes are the program's own" fn cuMemcpy2DAsync_v2(pCopy: Reads<sys::CUDA_MEMCPY2D>, hStream: Raw<sys::CUstream>) ptsz [start, context];
    /// Copies a box.
    0x031b work irregular "a copy: the bytes are the program's own" fn cuMemcpy3D_v2(pCopy: Reads<sys::CUDA_MEMCPY3D>) ptds [start, context];
    /// Copies a box, in stream order.
    0x031c work irregular "a copy: the bytes are the program's own" fn cuMemcpy3DAsync_v2(pCopy: Reads<sys::CUDA_MEMCPY3D>, hStream: Raw<sys::CUstream>) ptsz [start, context];
    /// Fills with 8-bit values.
    0x031d work irregular "hot path: the fills are one operation" fn cuMemsetD8_v2(dstDevice: Raw<sys::CUdeviceptr>, uc: Raw<c_uchar>, N: Raw<usize>) ptds;
    /// Fills with 8-bit values, in stream order.
    0x031e work irregular "hot path: the fills are one operation" fn cuMemsetD8Async(dstDevice: Raw<sys::CUdeviceptr>, uc: Raw<c_uchar>, N: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills a rectangle with 8-bit values.
    0x031f work irregular "hot path: the fills are one operation" fn cuMemsetD2D8_v2(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, uc: Raw<c_uchar>, Width: Raw<usize>, Height: Raw<usize>) ptds;
    /// Fills a rectangle with 8-bit values, in stream order.
    0x0320 work irregular "hot path: the fills are one operation" fn cuMemsetD2D8Async(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, uc: Raw<c_uchar>, Width: Raw<usize>, Height: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills with 16-bit values.
    0x0321 work irregular "hot path: the fills are one operation" fn cuMemsetD16_v2(dstDevice: Raw<sys::CUdeviceptr>, us: Raw<c_ushort>, N: Raw<usize>) ptds;
    /// Fills with 16-bit values, in stream order.
    0x0322 work irregular "hot path: the fills are one operation" fn cuMemsetD16Async(dstDevice: Raw<sys::CUdeviceptr>, us: Raw<c_ushort>, N: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills a rectangle with 16-bit values.
    0x0323 work irregular "hot path: the fills are one operation" fn cuMemsetD2D16_v2(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, us: Raw<c_ushort>, Width: Raw<usize>, Height: Raw<usize>) ptds;
    /// Fills a rectangle with 16-bit values, in stream order.
    0x0324 work irregular "hot path: the fills are one operation" fn cuMemsetD2D16Async(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, us: Raw<c_ushort>, Width: Raw<usize>, Height: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills with 32-bit values.
    0x0325 work irregular "hot path: the fills are one operation" fn cuMemsetD32_v2(dstDevice: Raw<sys::CUdeviceptr>, ui: Raw<c_uint>, N: Raw<usize>) ptds;
    /// Fills with 32-bit values, in stream order.
    0x0326 work irregular "hot path: the fills are one operation" fn cuMemsetD32Async(dstDevice: Raw<sys::CUdeviceptr>, ui: Raw<c_uint>, N: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Fills a rectangle with 32-bit values.
    0x0327 work irregular "hot path: the fills are one operation" fn cuMemsetD2D32_v2(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, ui: Raw<c_uint>, Width: Raw<usize>, Height: Raw<usize>) ptds;
    /// Fills a rectangle with 32-bit values, in stream order.
    0x0328 work irregular "hot path: the fills are one operation" fn cuMemsetD2D32Async(dstDevice: Raw<sys::CUdeviceptr>, dstPitch: Raw<usize>, ui: Raw<c_uint>, Width: Raw<usize>, Height: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Allocates managed memory, where place and job share memory.
    0x0361 local irregular "a capture is checked before its arguments" fn cuMemAllocManaged(dptr: Writes<sys::CUdeviceptr>, bytesize: Raw<usize>, flags: Raw<c_uint>);
    /// Advice on managed memory: checked, nothing else.
    0x0362 local answer fn cuMemAdvise(devPtr: Val<u64>, count: Val<usize>, advice: Enum<sys::CUmem_advise>, device: Val<c_int>) older;
    /// Advice on managed memory: checked, nothing else.
    0x0363 local answer fn cuMemAdvise_v2(devPtr: Address, count: Val<usize>, advice: Enum<sys::CUmem_advise>, location: Pair<sys::CUmemLocation>) [null(location, VALUE)];
    /// Brings managed memory nearer: checked, nothing else.
    0x0364 local answer fn cuMemPrefetchAsync(devPtr: Val<u64>, count: Val<usize>, dstDevice: Val<c_int>, hStream: HandleArg<sys::CUstream>) older ptsz;
    /// Brings managed memory nearer: checked, nothing else.
    0x0365 local answer fn cuMemPrefetchAsync_v2(devPtr: Address, count: Val<usize>, location: Pair<sys::CUmemLocation>, flags: Val<c_uint>, hStream: HandleArg<sys::CUstream>) ptsz [null(location, VALUE)];
    /// Says who uses managed memory: checked, nothing else.
    0x0366 local answer fn cuStreamAttachMemAsync(hStream: HandleArg<sys::CUstream>, dptr: Address, length: Val<usize>, flags: Val<c_uint>) ptsz [start, context];
    /// Allocates from the device's current pool, in stream order.
    0x0340 memory answer fn cuMemAllocAsync(dptr: Out<sys::CUdeviceptr>, bytesize: Val<usize>, hStream: StreamArg) ptsz [start, context, null(dptr, VALUE)];
    /// Frees in stream order.
    0x0341 memory answer fn cuMemFreeAsync(dptr: Address, hStream: StreamArg) ptsz;
    /// Allocates from a pool, in stream order.
    0x0342 memory answer fn cuMemAllocFromPoolAsync(dptr: Out<sys::CUdeviceptr>, bytesize: Val<usize>, pool: HandleArg<sys::CUmemoryPool>, hStream: HandleArg<sys::CUstream>) ptsz [start, context, null(pool, VALUE)];
    /// Makes a pool of device memory.
    0x0343 local answer fn cuMemPoolCreate(pool: OutHandle<sys::CUmemoryPool>, poolProps: In<sys::CUmemPoolProps>);
    /// Ends a pool; what is allocated from it stays until it is freed.
    0x0344 local answer fn cuMemPoolDestroy(pool: HandleArg<sys::CUmemoryPool>);
    /// Gives unused memory of a pool back.
    0x0345 local answer fn cuMemPoolTrimTo(pool: HandleArg<sys::CUmemoryPool>, minBytesToKeep: Val<usize>);
    /// Changes a property of a pool.
    0x0346 local irregular "the attribute determines the type of the value" fn cuMemPoolSetAttribute(pool: Raw<sys::CUmemoryPool>, attr: RawEnum<sys::CUmemPool_attribute>, value: ReadsMut<c_void>);
    /// A property of a pool.
    0x0347 local irregular "the attribute determines the type of the value" fn cuMemPoolGetAttribute(pool: Raw<sys::CUmemoryPool>, attr: RawEnum<sys::CUmemPool_attribute>, value: Writes<c_void>);
    /// Which devices may use a pool: its own.
    0x0348 local answer fn cuMemPoolSetAccess(pool: HandleArg<sys::CUmemoryPool>, map: InSlice<sys::CUmemAccessDesc, 2>, count: Len<usize>);
    /// Whether a device may use a pool.
    0x0349 local answer fn cuMemPoolGetAccess(flags: OutEnum<sys::CUmemAccess_flags>, memPool: HandleArg<sys::CUmemoryPool>, location: InMut<sys::CUmemLocation>);
    /// The pool that a location has from the start.
    0x034a local answer fn cuMemGetDefaultMemPool(pool_out: OutHandle<sys::CUmemoryPool>, location: InMut<sys::CUmemLocation>, type_: Enum<sys::CUmemAllocationType>) [start, null(pool_out, VALUE), null(location, VALUE)];
    /// The pool that a location allocates from.
    0x034b local answer fn cuMemGetMemPool(pool: OutHandle<sys::CUmemoryPool>, location: InMut<sys::CUmemLocation>, type_: Enum<sys::CUmemAllocationType>) [start, null(pool, VALUE), null(location, VALUE)];
    /// Chooses the pool that a location allocates from.
    0x034c local answer fn cuMemSetMemPool(location: InMut<sys::CUmemLocation>, type_: Enum<sys::CUmemAllocationType>, pool: HandleArg<sys::CUmemoryPool>) [start, null(location, VALUE)];
    /// A descriptor by which other processes know a pool.
    0x034d local answer fn cuMemPoolExportToShareableHandle(handle_out: OutVoid<c_int>, pool: HandleArg<sys::CUmemoryPool>, handleType: Enum<sys::CUmemAllocationHandleType>, flags: Val<c_ulonglong>);
    /// The pool of another process: only for pointers of it.
    0x034e local answer fn cuMemPoolImportFromShareableHandle(pool_out: OutHandle<sys::CUmemoryPool>, handle: HostAddress, handleType: Enum<sys::CUmemAllocationHandleType>, flags: Val<c_ulonglong>);
    /// Words by which other processes get at an allocation of a pool.
    0x034f local answer fn cuMemPoolExportPointer(shareData_out: OutStruct<sys::CUmemPoolPtrExportData>, ptr: Address);
    /// Maps an allocation of another process's pool.
    0x0350 memory answer fn cuMemPoolImportPointer(ptr_out: Out<sys::CUdeviceptr>, pool: HandleArg<sys::CUmemoryPool>, shareData: InMut<sys::CUmemPoolPtrExportData>);
    /// A handle by which other processes open an allocation.
    0x0351 local answer fn cuIpcGetMemHandle(pHandle: Out<sys::CUipcMemHandle>, dptr: Address) [null(pHandle, VALUE)];
    /// Opens an allocation of another process.
    0x0352 memory answer fn cuIpcOpenMemHandle_v2(pdptr: Out<sys::CUdeviceptr>, handle: Val<sys::CUipcMemHandle>, Flags: Val<c_uint>) [null(pdptr, VALUE)];
    /// Closes an allocation of another process.
    0x0353 memory answer fn cuIpcCloseMemHandle(dptr: Address) [start, context];
    /// A handle by which other processes open an event.
    0x0354 local answer fn cuIpcGetEventHandle(pHandle: Out<sys::CUipcEventHandle>, event: Use<Event>) [null(pHandle, VALUE), null(event, VALUE)];
    /// Opens an event of another process.
    0x0355 state answer fn cuIpcOpenEventHandle(phEvent: OutHandle<sys::CUevent>, handle: Val<sys::CUipcEventHandle>) [null(phEvent, VALUE), start, context];
    /// Copies between devices.
    0x0370 work irregular "a copy: the bytes are the program's own" fn cuMemcpyPeer(dstDevice: Raw<sys::CUdeviceptr>, dstContext: Raw<sys::CUcontext>, srcDevice: Raw<sys::CUdeviceptr>, srcContext: Raw<sys::CUcontext>, ByteCount: Raw<usize>) ptds;
    /// Copies between devices, in stream order.
    0x0371 work irregular "a copy: the bytes are the program's own" fn cuMemcpyPeerAsync(dstDevice: Raw<sys::CUdeviceptr>, dstContext: Raw<sys::CUcontext>, srcDevice: Raw<sys::CUdeviceptr>, srcContext: Raw<sys::CUcontext>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies a box between devices.
    0x0372 work irregular "a copy: the bytes are the program's own" fn cuMemcpy3DPeer(pCopy: Reads<sys::CUDA_MEMCPY3D_PEER>) ptds [start, context];
    /// Copies a box between devices, in stream order.
    0x0373 work irregular "a copy: the bytes are the program's own" fn cuMemcpy3DPeerAsync(pCopy: Reads<sys::CUDA_MEMCPY3D_PEER>, hStream: Raw<sys::CUstream>) ptsz [start, context];
    /// Copies between any addresses, in stream order but in none among themselves.
    0x0374 work irregular "arrays that index each other" fn cuMemcpyBatchAsync_v2(dsts: ReadsMut<sys::CUdeviceptr>, srcs: ReadsMut<sys::CUdeviceptr>, sizes: ReadsMut<usize>, count: Raw<usize>, attrs: ReadsMut<sys::CUmemcpyAttributes>, attrsIdxs: ReadsMut<usize>, numAttrs: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz [null(dsts, VALUE), null(count, VALUE)];
    /// The form of CUDA 12.8.
    0x0376 work irregular "arrays that index each other" fn cuMemcpyBatchAsync(dsts: ReadsMut<sys::CUdeviceptr>, srcs: ReadsMut<sys::CUdeviceptr>, sizes: ReadsMut<usize>, count: Raw<usize>, attrs: ReadsMut<sys::CUmemcpyAttributes>, attrsIdxs: ReadsMut<usize>, numAttrs: Raw<usize>, failIdx: Writes<usize>, hStream: Raw<sys::CUstream>) older ptsz [null(dsts, VALUE), null(count, VALUE)];
    /// Copies boxes of memory and arrays, in stream order but in none among themselves.
    0x0375 work irregular "arrays that index each other" fn cuMemcpy3DBatchAsync_v2(numOps: Raw<usize>, opList: ReadsMut<sys::CUDA_MEMCPY3D_BATCH_OP>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz [null(numOps, VALUE)];
    /// The form of CUDA 12.8.
    0x0377 work irregular "arrays that index each other" fn cuMemcpy3DBatchAsync(numOps: Raw<usize>, opList: ReadsMut<sys::CUDA_MEMCPY3D_BATCH_OP>, failIdx: Writes<usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) older ptsz [null(numOps, VALUE)];
    /// Moves managed memory ahead of its use: checked, and there is nothing to be done.
    0x0378 local irregular "arrays that index each other" fn cuMemPrefetchBatchAsync(dptrs: ReadsMut<sys::CUdeviceptr>, sizes: ReadsMut<usize>, count: Raw<usize>, prefetchLocs: ReadsMut<sys::CUmemLocation>, prefetchLocIdxs: ReadsMut<usize>, numPrefetchLocs: Raw<usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz [null(dptrs, VALUE), null(count, VALUE)];
    /// The contents of managed memory are not needed: checked, and they stay.
    0x0379 local irregular "arrays that index each other" fn cuMemDiscardBatchAsync(dptrs: ReadsMut<sys::CUdeviceptr>, sizes: ReadsMut<usize>, count: Raw<usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz [null(dptrs, VALUE), null(count, VALUE)];
    /// As both: checked, and there is nothing to be done.
    0x037a local irregular "arrays that index each other" fn cuMemDiscardAndPrefetchBatchAsync(dptrs: ReadsMut<sys::CUdeviceptr>, sizes: ReadsMut<usize>, count: Raw<usize>, prefetchLocs: ReadsMut<sys::CUmemLocation>, prefetchLocIdxs: ReadsMut<usize>, numPrefetchLocs: Raw<usize>, flags: Raw<c_ulonglong>, hStream: Raw<sys::CUstream>) ptsz [null(dptrs, VALUE), null(count, VALUE)];
    /// What was advised of managed memory.
    0x037b local irregular "the attribute determines the type of the value" fn cuMemRangeGetAttribute(data: Writes<c_void>, dataSize: Raw<usize>, attribute: RawEnum<sys::CUmem_range_attribute>, devPtr: Raw<sys::CUdeviceptr>, count: Raw<usize>) [start, context];
    /// Several answers of that kind.
    0x037c local irregular "the attribute determines the type of the value" fn cuMemRangeGetAttributes(data: ReadsMut<*mut c_void>, dataSizes: ReadsMut<usize>, attributes: ReadsMut<sys::CUmem_range_attribute>, numAttributes: Raw<usize>, devPtr: Raw<sys::CUdeviceptr>, count: Raw<usize>) [start, context];
    /// As `cuMemHostRegister_v2`.
    0x037d local answer fn cuMemHostRegister(p: HostAddress, bytesize: Val<usize>, Flags: Val<c_uint>) older;
    /// As `cuIpcOpenMemHandle_v2`.
    0x037e memory answer fn cuIpcOpenMemHandle(pdptr: Out<sys::CUdeviceptr>, handle: Val<sys::CUipcMemHandle>, Flags: Val<c_uint>) older [null(pdptr, VALUE)];
}
