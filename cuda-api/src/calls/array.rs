//! Arrays, mipmapped arrays, textures, surfaces, tensor maps.

calls! { $ for_each_array_call array ArrayCalls;

    /// Makes an array.
    0x0901 state custom fn cuArrayCreate_v2(pHandle: Raw<*mut sys::CUarray>, pAllocateArray: Raw<*const sys::CUDA_ARRAY_DESCRIPTOR>);
    /// Makes an array of any shape.
    0x0902 state custom fn cuArray3DCreate_v2(pHandle: Raw<*mut sys::CUarray>, pAllocateArray: Raw<*const sys::CUDA_ARRAY3D_DESCRIPTOR>);
    /// Ends an array.
    0x0903 state custom fn cuArrayDestroy(hArray: Raw<sys::CUarray>);
    /// Shape of an array.
    0x0904 local custom fn cuArrayGetDescriptor_v2(pArrayDescriptor: Raw<*mut sys::CUDA_ARRAY_DESCRIPTOR>, hArray: Raw<sys::CUarray>);
    /// Shape of an array, whole.
    0x0905 local custom fn cuArray3DGetDescriptor_v2(pArrayDescriptor: Raw<*mut sys::CUDA_ARRAY3D_DESCRIPTOR>, hArray: Raw<sys::CUarray>);
    /// How a sparse array is tiled: none is sparse.
    0x0906 local custom fn cuArrayGetSparseProperties(sparseProperties: Raw<*mut sys::CUDA_ARRAY_SPARSE_PROPERTIES>, array: Raw<sys::CUarray>);
    /// How a sparse mipmapped array is tiled: none is sparse.
    0x0907 local custom fn cuMipmappedArrayGetSparseProperties(sparseProperties: Raw<*mut sys::CUDA_ARRAY_SPARSE_PROPERTIES>, mipmap: Raw<sys::CUmipmappedArray>);
    /// Memory that an array waits for: none does.
    0x0908 local custom fn cuArrayGetMemoryRequirements(memoryRequirements: Raw<*mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: Raw<sys::CUarray>, device: Raw<sys::CUdevice>);
    /// Memory that a mipmapped array waits for: none does.
    0x0909 local custom fn cuMipmappedArrayGetMemoryRequirements(memoryRequirements: Raw<*mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>, mipmap: Raw<sys::CUmipmappedArray>, device: Raw<sys::CUdevice>);
    /// A plane of an array: none has several.
    0x090a local custom fn cuArrayGetPlane(pPlaneArray: Raw<*mut sys::CUarray>, hArray: Raw<sys::CUarray>, planeIdx: Raw<c_uint>);
    /// Makes a mipmapped array.
    0x090b state custom fn cuMipmappedArrayCreate(pHandle: Raw<*mut sys::CUmipmappedArray>, pMipmappedArrayDesc: Raw<*const sys::CUDA_ARRAY3D_DESCRIPTOR>, numMipmapLevels: Raw<c_uint>);
    /// A level of a mipmapped array.
    0x090c local custom fn cuMipmappedArrayGetLevel(pLevelArray: Raw<*mut sys::CUarray>, hMipmappedArray: Raw<sys::CUmipmappedArray>, level: Raw<c_uint>);
    /// Ends a mipmapped array.
    0x090d state custom fn cuMipmappedArrayDestroy(hMipmappedArray: Raw<sys::CUmipmappedArray>);
    /// Copies device memory to an array.
    0x090f work custom fn cuMemcpyDtoA_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies an array to device memory.
    0x0910 work custom fn cuMemcpyAtoD_v2(dstDevice: Raw<sys::CUdeviceptr>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>) ptds;
    /// Copies host bytes to an array.
    0x0911 work custom fn cuMemcpyHtoA_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>) ptds;
    /// Copies an array to the host.
    0x0912 work custom fn cuMemcpyAtoH_v2(dstHost: Raw<*mut c_void>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>) ptds;
    /// Copies between arrays.
    0x0913 work custom fn cuMemcpyAtoA_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>) ptds;
    /// Copies host bytes to an array, in stream order.
    0x0914 work custom fn cuMemcpyHtoAAsync_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies an array to the host, in stream order.
    0x0915 work custom fn cuMemcpyAtoHAsync_v2(dstHost: Raw<*mut c_void>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Makes a texture object.
    0x0920 state custom fn cuTexObjectCreate(pTexObject: Raw<*mut sys::CUtexObject>, pResDesc: Raw<*const sys::CUDA_RESOURCE_DESC>, pTexDesc: Raw<*const sys::CUDA_TEXTURE_DESC>, pResViewDesc: Raw<*const sys::CUDA_RESOURCE_VIEW_DESC>);
    /// Ends a texture object.
    0x0921 state custom fn cuTexObjectDestroy(texObject: Raw<sys::CUtexObject>);
    /// What a texture object reads.
    0x0922 local custom fn cuTexObjectGetResourceDesc(pResDesc: Raw<*mut sys::CUDA_RESOURCE_DESC>, texObject: Raw<sys::CUtexObject>);
    /// How a texture object samples.
    0x0923 local custom fn cuTexObjectGetTextureDesc(pTexDesc: Raw<*mut sys::CUDA_TEXTURE_DESC>, texObject: Raw<sys::CUtexObject>);
    /// How a texture object sees what it reads.
    0x0924 local custom fn cuTexObjectGetResourceViewDesc(pResViewDesc: Raw<*mut sys::CUDA_RESOURCE_VIEW_DESC>, texObject: Raw<sys::CUtexObject>);
    /// Makes a surface object.
    0x0925 state custom fn cuSurfObjectCreate(pSurfObject: Raw<*mut sys::CUsurfObject>, pResDesc: Raw<*const sys::CUDA_RESOURCE_DESC>);
    /// Ends a surface object.
    0x0926 state custom fn cuSurfObjectDestroy(surfObject: Raw<sys::CUsurfObject>);
    /// What a surface object reads and writes.
    0x0927 local custom fn cuSurfObjectGetResourceDesc(pResDesc: Raw<*mut sys::CUDA_RESOURCE_DESC>, surfObject: Raw<sys::CUsurfObject>);
    /// A descriptor for the tensor memory accelerator, by pixels.
    0x0930 query custom fn cuTensorMapEncodeIm2col(tensorMap: Raw<*mut sys::CUtensorMap>, tensorDataType: RawEnum<sys::CUtensorMapDataType>, tensorRank: Raw<sys::cuuint32_t>, globalAddress: Raw<*mut c_void>, globalDim: Raw<*const sys::cuuint64_t>, globalStrides: Raw<*const sys::cuuint64_t>, pixelBoxLowerCorner: Raw<*const c_int>, pixelBoxUpperCorner: Raw<*const c_int>, channelsPerPixel: Raw<sys::cuuint32_t>, pixelsPerColumn: Raw<sys::cuuint32_t>, elementStrides: Raw<*const sys::cuuint32_t>, interleave: RawEnum<sys::CUtensorMapInterleave>, swizzle: RawEnum<sys::CUtensorMapSwizzle>, l2Promotion: RawEnum<sys::CUtensorMapL2promotion>, oobFill: RawEnum<sys::CUtensorMapFloatOOBfill>);
    /// A descriptor for the tensor memory accelerator, by wide columns of pixels.
    0x0931 query custom fn cuTensorMapEncodeIm2colWide(tensorMap: Raw<*mut sys::CUtensorMap>, tensorDataType: RawEnum<sys::CUtensorMapDataType>, tensorRank: Raw<sys::cuuint32_t>, globalAddress: Raw<*mut c_void>, globalDim: Raw<*const sys::cuuint64_t>, globalStrides: Raw<*const sys::cuuint64_t>, pixelBoxLowerCornerWidth: Raw<c_int>, pixelBoxUpperCornerWidth: Raw<c_int>, channelsPerPixel: Raw<sys::cuuint32_t>, pixelsPerColumn: Raw<sys::cuuint32_t>, elementStrides: Raw<*const sys::cuuint32_t>, interleave: RawEnum<sys::CUtensorMapInterleave>, mode: RawEnum<sys::CUtensorMapIm2ColWideMode>, swizzle: RawEnum<sys::CUtensorMapSwizzle>, l2Promotion: RawEnum<sys::CUtensorMapL2promotion>, oobFill: RawEnum<sys::CUtensorMapFloatOOBfill>);
    /// Changes the address in such a descriptor.
    0x0932 query custom fn cuTensorMapReplaceAddress(tensorMap: Raw<*mut sys::CUtensorMap>, globalAddress: Raw<*mut c_void>);
}
