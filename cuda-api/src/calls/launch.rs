//! Launches and occupancy.

calls! { $ for_each_launch_call launch LaunchCalls;

    /// Launches a kernel.
    0x0601 work irregular "hot path: parameters go straight into the message" fn cuLaunchKernel(f: Raw<sys::CUfunction>, gridDimX: Raw<c_uint>, gridDimY: Raw<c_uint>, gridDimZ: Raw<c_uint>, blockDimX: Raw<c_uint>, blockDimY: Raw<c_uint>, blockDimZ: Raw<c_uint>, sharedMemBytes: Raw<c_uint>, hStream: Raw<sys::CUstream>, kernelParams: ParamList, extra: ExtraList) ptsz;
    /// Launches a kernel with attributes.
    0x0602 work irregular "hot path: parameters go straight into the message" fn cuLaunchKernelEx(config: Reads<sys::CUlaunchConfig>, f: Raw<sys::CUfunction>, kernelParams: ParamList, extra: ExtraList) ptsz [null(config, VALUE)];
    /// Launches a kernel whose blocks are all resident.
    0x0603 work irregular "hot path: parameters go straight into the message" fn cuLaunchCooperativeKernel(f: Raw<sys::CUfunction>, gridDimX: Raw<c_uint>, gridDimY: Raw<c_uint>, gridDimZ: Raw<c_uint>, blockDimX: Raw<c_uint>, blockDimY: Raw<c_uint>, blockDimZ: Raw<c_uint>, sharedMemBytes: Raw<c_uint>, hStream: Raw<sys::CUstream>, kernelParams: ParamList) ptsz;
    /// Blocks of a kernel that fit a multiprocessor.
    0x0604 query wait fn cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks: Out<c_int>, func: Use<Function>, blockSize: Val<c_int>, dynamicSMemSize: Val<usize>) [start, context, null(numBlocks, VALUE)];
    /// Blocks of a kernel that fit a multiprocessor.
    0x0605 query wait fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks: Out<c_int>, func: Use<Function>, blockSize: Val<c_int>, dynamicSMemSize: Val<usize>, flags: Val<c_uint>) [start, context, null(numBlocks, VALUE), above(flags, 1)];
    /// Shared memory left for each block.
    0x0606 query wait fn cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize: Out<usize>, func: Use<Function>, numBlocks: Val<c_int>, blockSize: Val<c_int>) [start, context, null(dynamicSmemSize, VALUE), null(func, VALUE)];
    /// Block size of the best occupancy.
    0x0607 query irregular "the program's function computes an input" fn cuOccupancyMaxPotentialBlockSize(minGridSize: Writes<c_int>, blockSize: Writes<c_int>, func: Raw<sys::CUfunction>, blockSizeToDynamicSMemSize: Raw<sys::CUoccupancyB2DSize>, dynamicSMemSize: Raw<usize>, blockSizeLimit: Raw<c_int>) [start, context, null(minGridSize, VALUE), null(blockSize, VALUE)];
    /// Block size of the best occupancy.
    0x0608 query irregular "the program's function computes an input" fn cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize: Writes<c_int>, blockSize: Writes<c_int>, func: Raw<sys::CUfunction>, blockSizeToDynamicSMemSize: Raw<sys::CUoccupancyB2DSize>, dynamicSMemSize: Raw<usize>, blockSizeLimit: Raw<c_int>, flags: Raw<c_uint>) [start, context, null(minGridSize, VALUE), null(blockSize, VALUE), above(flags, 1)];
    /// Clusters of a kernel that fit the device.
    0x0609 query irregular "its structure points to others" fn cuOccupancyMaxActiveClusters(numClusters: Writes<c_int>, func: Raw<sys::CUfunction>, config: Reads<sys::CUlaunchConfig>) [null(numClusters, VALUE), null(func, VALUE), null(config, VALUE)];
    /// Largest cluster of a kernel.
    0x060a query irregular "its structure points to others" fn cuOccupancyMaxPotentialClusterSize(clusterSize: Writes<c_int>, func: Raw<sys::CUfunction>, config: Reads<sys::CUlaunchConfig>) [null(clusterSize, VALUE), null(func, VALUE), null(config, VALUE)];
    /// A descriptor for the tensor memory accelerator.
    0x060b query irregular "the rank is the length of its arrays" fn cuTensorMapEncodeTiled(tensorMap: Writes<sys::CUtensorMap>, tensorDataType: RawEnum<sys::CUtensorMapDataType>, tensorRank: Raw<sys::cuuint32_t>, globalAddress: Raw<*mut c_void>, globalDim: Reads<sys::cuuint64_t>, globalStrides: Reads<sys::cuuint64_t>, boxDim: Reads<sys::cuuint32_t>, elementStrides: Reads<sys::cuuint32_t>, interleave: RawEnum<sys::CUtensorMapInterleave>, swizzle: RawEnum<sys::CUtensorMapSwizzle>, l2Promotion: RawEnum<sys::CUtensorMapL2promotion>, oobFill: RawEnum<sys::CUtensorMapFloatOOBfill>) [start, context];
    /// Threads of a block of the next launches in the way of CUDA 3.
    0x060c local answer fn cuFuncSetBlockShape(hfunc: HandleArg<sys::CUfunction>, x: Val<c_int>, y: Val<c_int>, z: Val<c_int>);
    /// Shared memory of such launches.
    0x060d local answer fn cuFuncSetSharedSize(hfunc: HandleArg<sys::CUfunction>, bytes: Val<c_uint>);
    /// Bytes of the parameters of such launches.
    0x060e local answer fn cuParamSetSize(hfunc: HandleArg<sys::CUfunction>, numbytes: Val<c_uint>);
    /// A parameter of such launches.
    0x060f local answer fn cuParamSeti(hfunc: HandleArg<sys::CUfunction>, offset: Val<c_int>, value: Val<c_uint>);
    /// A parameter of such launches.
    0x0610 local answer fn cuParamSetf(hfunc: HandleArg<sys::CUfunction>, offset: Val<c_int>, value: Val<f32>);
    /// A parameter of such launches.
    0x0611 local irregular "bytes behind a void pointer" fn cuParamSetv(hfunc: Raw<sys::CUfunction>, offset: Raw<c_int>, ptr: ReadsMut<c_void>, numbytes: Raw<c_uint>);
    /// Launches one block in the way of CUDA 3.
    0x0612 work answer fn cuLaunch(f: HandleArg<sys::CUfunction>);
    /// Launches a kernel in the way of CUDA 3.
    0x0613 work answer fn cuLaunchGrid(f: HandleArg<sys::CUfunction>, grid_width: Val<c_int>, grid_height: Val<c_int>) [start, context, null(f, HANDLE)];
    /// Launches a kernel in the way of CUDA 3, in a stream.
    0x0614 work answer fn cuLaunchGridAsync(f: HandleArg<sys::CUfunction>, grid_width: Val<c_int>, grid_height: Val<c_int>, hStream: HandleArg<sys::CUstream>) [start, context, null(f, HANDLE)];
}
