//! Launches and occupancy.

calls! { $ for_each_launch_call launch LaunchCalls;

    /// Launches a kernel.
    0x0601 work custom fn cuLaunchKernel(f: Raw<sys::CUfunction>, gridDimX: Raw<c_uint>, gridDimY: Raw<c_uint>, gridDimZ: Raw<c_uint>, blockDimX: Raw<c_uint>, blockDimY: Raw<c_uint>, blockDimZ: Raw<c_uint>, sharedMemBytes: Raw<c_uint>, hStream: Raw<sys::CUstream>, kernelParams: Raw<*mut *mut c_void>, extra: Raw<*mut *mut c_void>) ptsz;
    /// Launches a kernel with attributes.
    0x0602 work custom fn cuLaunchKernelEx(config: Raw<*const sys::CUlaunchConfig>, f: Raw<sys::CUfunction>, kernelParams: Raw<*mut *mut c_void>, extra: Raw<*mut *mut c_void>) ptsz;
    /// Launches a kernel whose blocks are all resident.
    0x0603 work custom fn cuLaunchCooperativeKernel(f: Raw<sys::CUfunction>, gridDimX: Raw<c_uint>, gridDimY: Raw<c_uint>, gridDimZ: Raw<c_uint>, blockDimX: Raw<c_uint>, blockDimY: Raw<c_uint>, blockDimZ: Raw<c_uint>, sharedMemBytes: Raw<c_uint>, hStream: Raw<sys::CUstream>, kernelParams: Raw<*mut *mut c_void>) ptsz;
    /// Blocks of a kernel that fit a multiprocessor.
    0x0604 query wait fn cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks: Out<c_int>, func: Use<Function>, blockSize: Val<c_int>, dynamicSMemSize: Val<usize>);
    /// Blocks of a kernel that fit a multiprocessor.
    0x0605 query wait fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks: Out<c_int>, func: Use<Function>, blockSize: Val<c_int>, dynamicSMemSize: Val<usize>, flags: Val<c_uint>);
    /// Shared memory left for each block.
    0x0606 query wait fn cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize: Out<usize>, func: Use<Function>, numBlocks: Val<c_int>, blockSize: Val<c_int>);
    /// Block size of the best occupancy.
    0x0607 query custom fn cuOccupancyMaxPotentialBlockSize(minGridSize: Raw<*mut c_int>, blockSize: Raw<*mut c_int>, func: Raw<sys::CUfunction>, blockSizeToDynamicSMemSize: Raw<sys::CUoccupancyB2DSize>, dynamicSMemSize: Raw<usize>, blockSizeLimit: Raw<c_int>);
    /// Block size of the best occupancy.
    0x0608 query custom fn cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize: Raw<*mut c_int>, blockSize: Raw<*mut c_int>, func: Raw<sys::CUfunction>, blockSizeToDynamicSMemSize: Raw<sys::CUoccupancyB2DSize>, dynamicSMemSize: Raw<usize>, blockSizeLimit: Raw<c_int>, flags: Raw<c_uint>);
    /// Clusters of a kernel that fit the device.
    0x0609 query custom fn cuOccupancyMaxActiveClusters(numClusters: Raw<*mut c_int>, func: Raw<sys::CUfunction>, config: Raw<*const sys::CUlaunchConfig>);
    /// Largest cluster of a kernel.
    0x060a query custom fn cuOccupancyMaxPotentialClusterSize(clusterSize: Raw<*mut c_int>, func: Raw<sys::CUfunction>, config: Raw<*const sys::CUlaunchConfig>);
    /// A descriptor for the tensor memory accelerator.
    0x060b query custom fn cuTensorMapEncodeTiled(tensorMap: Raw<*mut sys::CUtensorMap>, tensorDataType: RawEnum<sys::CUtensorMapDataType>, tensorRank: Raw<sys::cuuint32_t>, globalAddress: Raw<*mut c_void>, globalDim: Raw<*const sys::cuuint64_t>, globalStrides: Raw<*const sys::cuuint64_t>, boxDim: Raw<*const sys::cuuint32_t>, elementStrides: Raw<*const sys::cuuint32_t>, interleave: RawEnum<sys::CUtensorMapInterleave>, swizzle: RawEnum<sys::CUtensorMapSwizzle>, l2Promotion: RawEnum<sys::CUtensorMapL2promotion>, oobFill: RawEnum<sys::CUtensorMapFloatOOBfill>);
    /// Threads of a block of the next launches in the way of CUDA 3.
    0x060c local custom fn cuFuncSetBlockShape(hfunc: Raw<sys::CUfunction>, x: Raw<c_int>, y: Raw<c_int>, z: Raw<c_int>);
    /// Shared memory of such launches.
    0x060d local custom fn cuFuncSetSharedSize(hfunc: Raw<sys::CUfunction>, bytes: Raw<c_uint>);
    /// Bytes of the parameters of such launches.
    0x060e local custom fn cuParamSetSize(hfunc: Raw<sys::CUfunction>, numbytes: Raw<c_uint>);
    /// A parameter of such launches.
    0x060f local custom fn cuParamSeti(hfunc: Raw<sys::CUfunction>, offset: Raw<c_int>, value: Raw<c_uint>);
    /// A parameter of such launches.
    0x0610 local custom fn cuParamSetf(hfunc: Raw<sys::CUfunction>, offset: Raw<c_int>, value: Raw<f32>);
    /// A parameter of such launches.
    0x0611 local custom fn cuParamSetv(hfunc: Raw<sys::CUfunction>, offset: Raw<c_int>, ptr: Raw<*mut c_void>, numbytes: Raw<c_uint>);
    /// Launches one block in the way of CUDA 3.
    0x0612 work custom fn cuLaunch(f: Raw<sys::CUfunction>);
    /// Launches a kernel in the way of CUDA 3.
    0x0613 work custom fn cuLaunchGrid(f: Raw<sys::CUfunction>, grid_width: Raw<c_int>, grid_height: Raw<c_int>);
    /// Launches a kernel in the way of CUDA 3, in a stream.
    0x0614 work custom fn cuLaunchGridAsync(f: Raw<sys::CUfunction>, grid_width: Raw<c_int>, grid_height: Raw<c_int>, hStream: Raw<sys::CUstream>);
}
