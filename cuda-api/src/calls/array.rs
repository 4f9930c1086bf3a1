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
    /// How a sparse array is tiled.
    0x0906 local custom fn cuArrayGetSparseProperties(sparseProperties: Raw<*mut sys::CUDA_ARRAY_SPARSE_PROPERTIES>, array: Raw<sys::CUarray>);
    /// How a sparse mipmapped array is tiled.
    0x0907 local custom fn cuMipmappedArrayGetSparseProperties(sparseProperties: Raw<*mut sys::CUDA_ARRAY_SPARSE_PROPERTIES>, mipmap: Raw<sys::CUmipmappedArray>);
    /// Memory that an array waits for.
    0x0908 local custom fn cuArrayGetMemoryRequirements(memoryRequirements: Raw<*mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: Raw<sys::CUarray>, device: Raw<sys::CUdevice>);
    /// Memory that a mipmapped array waits for.
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
    /// Makes a texture reference of no module.
    0x0940 state wait fn cuTexRefCreate(pTexRef: New<TextureRef>);
    /// Ends a texture reference.
    0x0941 state wait fn cuTexRefDestroy(hTexRef: End<TextureRef>);
    /// Lets a texture reference see an array.
    0x0942 state custom fn cuTexRefSetArray(hTexRef: Raw<sys::CUtexref>, hArray: Raw<sys::CUarray>, Flags: Raw<c_uint>);
    /// Lets a texture reference see a mipmapped array.
    0x0943 state custom fn cuTexRefSetMipmappedArray(hTexRef: Raw<sys::CUtexref>, hMipmappedArray: Raw<sys::CUmipmappedArray>, Flags: Raw<c_uint>);
    /// Lets a texture reference see memory.
    0x0944 state custom fn cuTexRefSetAddress_v2(ByteOffset: Raw<*mut usize>, hTexRef: Raw<sys::CUtexref>, dptr: Raw<sys::CUdeviceptr>, bytes: Raw<usize>);
    /// Lets a texture reference see rows of memory.
    0x0945 state custom fn cuTexRefSetAddress2D_v3(hTexRef: Raw<sys::CUtexref>, desc: Raw<*const sys::CUDA_ARRAY_DESCRIPTOR>, dptr: Raw<sys::CUdeviceptr>, Pitch: Raw<usize>);
    /// What the memory holds that a texture reference sees.
    0x0946 state custom fn cuTexRefSetFormat(hTexRef: Raw<sys::CUtexref>, fmt: RawEnum<sys::CUarray_format>, NumPackedComponents: Raw<c_int>);
    /// What a texture reference reads outside.
    0x0947 state custom fn cuTexRefSetAddressMode(hTexRef: Raw<sys::CUtexref>, dim: Raw<c_int>, am: RawEnum<sys::CUaddress_mode>);
    /// Whether a texture reference weighs neighbours.
    0x0948 state custom fn cuTexRefSetFilterMode(hTexRef: Raw<sys::CUtexref>, fm: RawEnum<sys::CUfilter_mode>);
    /// Whether a texture reference weighs levels.
    0x0949 state custom fn cuTexRefSetMipmapFilterMode(hTexRef: Raw<sys::CUtexref>, fm: RawEnum<sys::CUfilter_mode>);
    /// What a texture reference adds to the level.
    0x094a state custom fn cuTexRefSetMipmapLevelBias(hTexRef: Raw<sys::CUtexref>, bias: Raw<f32>);
    /// Lowest and highest level of a texture reference.
    0x094b state custom fn cuTexRefSetMipmapLevelClamp(hTexRef: Raw<sys::CUtexref>, minMipmapLevelClamp: Raw<f32>, maxMipmapLevelClamp: Raw<f32>);
    /// Largest ratio of anisotropic filtering of a texture reference.
    0x094c state custom fn cuTexRefSetMaxAnisotropy(hTexRef: Raw<sys::CUtexref>, maxAniso: Raw<c_uint>);
    /// The colour that a texture reference reads outside.
    0x094d state custom fn cuTexRefSetBorderColor(hTexRef: Raw<sys::CUtexref>, pBorderColor: Raw<*mut f32>);
    /// How a texture reference takes coordinates and gives numbers.
    0x094e state custom fn cuTexRefSetFlags(hTexRef: Raw<sys::CUtexref>, Flags: Raw<c_uint>);
    /// The memory that a texture reference sees.
    0x0950 local custom fn cuTexRefGetAddress_v2(pdptr: Raw<*mut sys::CUdeviceptr>, hTexRef: Raw<sys::CUtexref>);
    /// The array that a texture reference sees.
    0x0951 local custom fn cuTexRefGetArray(phArray: Raw<*mut sys::CUarray>, hTexRef: Raw<sys::CUtexref>);
    /// The mipmapped array that a texture reference sees.
    0x0952 local custom fn cuTexRefGetMipmappedArray(phMipmappedArray: Raw<*mut sys::CUmipmappedArray>, hTexRef: Raw<sys::CUtexref>);
    /// What a texture reference reads outside.
    0x0953 local custom fn cuTexRefGetAddressMode(pam: Raw<*mut sys::CUaddress_mode>, hTexRef: Raw<sys::CUtexref>, dim: Raw<c_int>);
    /// Whether a texture reference weighs neighbours.
    0x0954 local custom fn cuTexRefGetFilterMode(pfm: Raw<*mut sys::CUfilter_mode>, hTexRef: Raw<sys::CUtexref>);
    /// What a texture reference takes the texels for.
    0x0955 local custom fn cuTexRefGetFormat(pFormat: Raw<*mut sys::CUarray_format>, pNumChannels: Raw<*mut c_int>, hTexRef: Raw<sys::CUtexref>);
    /// Whether a texture reference weighs levels.
    0x0956 local custom fn cuTexRefGetMipmapFilterMode(pfm: Raw<*mut sys::CUfilter_mode>, hTexRef: Raw<sys::CUtexref>);
    /// What a texture reference adds to the level.
    0x0957 local custom fn cuTexRefGetMipmapLevelBias(pbias: Raw<*mut f32>, hTexRef: Raw<sys::CUtexref>);
    /// Lowest and highest level of a texture reference.
    0x0958 local custom fn cuTexRefGetMipmapLevelClamp(pminMipmapLevelClamp: Raw<*mut f32>, pmaxMipmapLevelClamp: Raw<*mut f32>, hTexRef: Raw<sys::CUtexref>);
    /// Largest ratio of anisotropic filtering of a texture reference.
    0x0959 local custom fn cuTexRefGetMaxAnisotropy(pmaxAniso: Raw<*mut c_int>, hTexRef: Raw<sys::CUtexref>);
    /// The colour that a texture reference reads outside.
    0x095a local custom fn cuTexRefGetBorderColor(pBorderColor: Raw<*mut f32>, hTexRef: Raw<sys::CUtexref>);
    /// How a texture reference takes coordinates and gives numbers.
    0x095b local custom fn cuTexRefGetFlags(pFlags: Raw<*mut c_uint>, hTexRef: Raw<sys::CUtexref>);
    /// Makes what a texture reference sees known to a function, which knows it already.
    0x095c local custom fn cuParamSetTexRef(hfunc: Raw<sys::CUfunction>, texunit: Raw<c_int>, hTexRef: Raw<sys::CUtexref>);
    /// Lets a surface reference see an array.
    0x095d state custom fn cuSurfRefSetArray(hSurfRef: Raw<sys::CUsurfref>, hArray: Raw<sys::CUarray>, Flags: Raw<c_uint>);
    /// The array that a surface reference sees.
    0x095e local custom fn cuSurfRefGetArray(phArray: Raw<*mut sys::CUarray>, hSurfRef: Raw<sys::CUsurfref>);
}
