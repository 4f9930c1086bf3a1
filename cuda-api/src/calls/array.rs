//! Arrays, mipmapped arrays, textures, surfaces, tensor maps.

calls! { $ for_each_array_call array ArrayCalls;

    /// Makes an array.
    0x0901 state answer fn cuArrayCreate_v2(pHandle: OutHandle<sys::CUarray>, pAllocateArray: In<sys::CUDA_ARRAY_DESCRIPTOR>) [start, context];
    /// Makes an array of any shape.
    0x0902 state answer fn cuArray3DCreate_v2(pHandle: OutHandle<sys::CUarray>, pAllocateArray: In<sys::CUDA_ARRAY3D_DESCRIPTOR>) [start, context];
    /// Ends an array.
    0x0903 state answer fn cuArrayDestroy(hArray: HandleArg<sys::CUarray>) [start, null(hArray, HANDLE)];
    /// Shape of an array.
    0x0904 local answer fn cuArrayGetDescriptor_v2(pArrayDescriptor: OutStruct<sys::CUDA_ARRAY_DESCRIPTOR>, hArray: HandleArg<sys::CUarray>) [null(hArray, HANDLE)];
    /// Shape of an array, whole.
    0x0905 local answer fn cuArray3DGetDescriptor_v2(pArrayDescriptor: OutStruct<sys::CUDA_ARRAY3D_DESCRIPTOR>, hArray: HandleArg<sys::CUarray>) [null(hArray, HANDLE)];
    /// How a sparse array is tiled.
    0x0906 local answer fn cuArrayGetSparseProperties(sparseProperties: OutStruct<sys::CUDA_ARRAY_SPARSE_PROPERTIES>, array: HandleArg<sys::CUarray>) [null(array, VALUE)];
    /// How a sparse mipmapped array is tiled.
    0x0907 local answer fn cuMipmappedArrayGetSparseProperties(sparseProperties: OutStruct<sys::CUDA_ARRAY_SPARSE_PROPERTIES>, mipmap: HandleArg<sys::CUmipmappedArray>) [null(mipmap, VALUE)];
    /// Memory that an array waits for.
    0x0908 local answer fn cuArrayGetMemoryRequirements(memoryRequirements: OutStruct<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: HandleArg<sys::CUarray>, device: Val<sys::CUdevice>) [null(array, VALUE)];
    /// Memory that a mipmapped array waits for.
    0x0909 local answer fn cuMipmappedArrayGetMemoryRequirements(memoryRequirements: OutStruct<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>, mipmap: HandleArg<sys::CUmipmappedArray>, device: Val<sys::CUdevice>) [null(mipmap, VALUE)];
    /// A plane of an array: none has several.
    0x090a local answer fn cuArrayGetPlane(pPlaneArray: OutHandleOpt<sys::CUarray>, hArray: HandleArg<sys::CUarray>, planeIdx: Val<c_uint>) [null(hArray, HANDLE)];
    /// Makes a mipmapped array.
    0x090b state answer fn cuMipmappedArrayCreate(pHandle: OutHandle<sys::CUmipmappedArray>, pMipmappedArrayDesc: In<sys::CUDA_ARRAY3D_DESCRIPTOR>, numMipmapLevels: Val<c_uint>) [start, context];
    /// A level of a mipmapped array.
    0x090c local answer fn cuMipmappedArrayGetLevel(pLevelArray: OutHandle<sys::CUarray>, hMipmappedArray: HandleArg<sys::CUmipmappedArray>, level: Val<c_uint>) [null(hMipmappedArray, HANDLE)];
    /// Ends a mipmapped array.
    0x090d state answer fn cuMipmappedArrayDestroy(hMipmappedArray: HandleArg<sys::CUmipmappedArray>) [start, null(hMipmappedArray, HANDLE)];
    /// Copies device memory to an array.
    0x090f work irregular "a copy: the bytes are the program's own" fn cuMemcpyDtoA_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcDevice: Raw<sys::CUdeviceptr>, ByteCount: Raw<usize>) ptds;
    /// Copies an array to device memory.
    0x0910 work irregular "a copy: the bytes are the program's own" fn cuMemcpyAtoD_v2(dstDevice: Raw<sys::CUdeviceptr>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>) ptds;
    /// Copies host bytes to an array.
    0x0911 work irregular "a copy: the bytes are the program's own" fn cuMemcpyHtoA_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>) ptds;
    /// Copies an array to the host.
    0x0912 work irregular "a copy: the bytes are the program's own" fn cuMemcpyAtoH_v2(dstHost: Raw<*mut c_void>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>) ptds;
    /// Copies between arrays.
    0x0913 work irregular "a copy: the bytes are the program's own" fn cuMemcpyAtoA_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>) ptds;
    /// Copies host bytes to an array, in stream order.
    0x0914 work irregular "a copy: the bytes are the program's own" fn cuMemcpyHtoAAsync_v2(dstArray: Raw<sys::CUarray>, dstOffset: Raw<usize>, srcHost: Raw<*const c_void>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Copies an array to the host, in stream order.
    0x0915 work irregular "a copy: the bytes are the program's own" fn cuMemcpyAtoHAsync_v2(dstHost: Raw<*mut c_void>, srcArray: Raw<sys::CUarray>, srcOffset: Raw<usize>, ByteCount: Raw<usize>, hStream: Raw<sys::CUstream>) ptsz;
    /// Makes a texture object.
    0x0920 state answer fn cuTexObjectCreate(pTexObject: OutHandle<sys::CUtexObject>, pResDesc: In<sys::CUDA_RESOURCE_DESC>, pTexDesc: In<sys::CUDA_TEXTURE_DESC>, pResViewDesc: InOpt<sys::CUDA_RESOURCE_VIEW_DESC>) [start, context];
    /// Ends a texture object.
    0x0921 state answer fn cuTexObjectDestroy(texObject: HandleArg<sys::CUtexObject>);
    /// What a texture object reads.
    0x0922 local answer fn cuTexObjectGetResourceDesc(pResDesc: OutStruct<sys::CUDA_RESOURCE_DESC>, texObject: HandleArg<sys::CUtexObject>) [start, context];
    /// How a texture object samples.
    0x0923 local answer fn cuTexObjectGetTextureDesc(pTexDesc: OutStruct<sys::CUDA_TEXTURE_DESC>, texObject: HandleArg<sys::CUtexObject>) [start, context];
    /// How a texture object sees what it reads.
    0x0924 local answer fn cuTexObjectGetResourceViewDesc(pResViewDesc: OutStruct<sys::CUDA_RESOURCE_VIEW_DESC>, texObject: HandleArg<sys::CUtexObject>) [start, context];
    /// Makes a surface object.
    0x0925 state answer fn cuSurfObjectCreate(pSurfObject: OutHandle<sys::CUsurfObject>, pResDesc: In<sys::CUDA_RESOURCE_DESC>) [start, context];
    /// Ends a surface object.
    0x0926 state answer fn cuSurfObjectDestroy(surfObject: HandleArg<sys::CUsurfObject>);
    /// What a surface object reads and writes.
    0x0927 local answer fn cuSurfObjectGetResourceDesc(pResDesc: OutStruct<sys::CUDA_RESOURCE_DESC>, surfObject: HandleArg<sys::CUsurfObject>) [start, context];
    /// A descriptor for the tensor memory accelerator, by pixels.
    0x0930 query irregular "the rank is the length of its arrays" fn cuTensorMapEncodeIm2col(tensorMap: Writes<sys::CUtensorMap>, tensorDataType: RawEnum<sys::CUtensorMapDataType>, tensorRank: Raw<sys::cuuint32_t>, globalAddress: Raw<*mut c_void>, globalDim: Reads<sys::cuuint64_t>, globalStrides: Reads<sys::cuuint64_t>, pixelBoxLowerCorner: Reads<c_int>, pixelBoxUpperCorner: Reads<c_int>, channelsPerPixel: Raw<sys::cuuint32_t>, pixelsPerColumn: Raw<sys::cuuint32_t>, elementStrides: Reads<sys::cuuint32_t>, interleave: RawEnum<sys::CUtensorMapInterleave>, swizzle: RawEnum<sys::CUtensorMapSwizzle>, l2Promotion: RawEnum<sys::CUtensorMapL2promotion>, oobFill: RawEnum<sys::CUtensorMapFloatOOBfill>);
    /// A descriptor for the tensor memory accelerator, by wide columns of pixels.
    0x0931 query irregular "the rank is the length of its arrays" fn cuTensorMapEncodeIm2colWide(tensorMap: Writes<sys::CUtensorMap>, tensorDataType: RawEnum<sys::CUtensorMapDataType>, tensorRank: Raw<sys::cuuint32_t>, globalAddress: Raw<*mut c_void>, globalDim: Reads<sys::cuuint64_t>, globalStrides: Reads<sys::cuuint64_t>, pixelBoxLowerCornerWidth: Raw<c_int>, pixelBoxUpperCornerWidth: Raw<c_int>, channelsPerPixel: Raw<sys::cuuint32_t>, pixelsPerColumn: Raw<sys::cuuint32_t>, elementStrides: Reads<sys::cuuint32_t>, interleave: RawEnum<sys::CUtensorMapInterleave>, mode: RawEnum<sys::CUtensorMapIm2ColWideMode>, swizzle: RawEnum<sys::CUtensorMapSwizzle>, l2Promotion: RawEnum<sys::CUtensorMapL2promotion>, oobFill: RawEnum<sys::CUtensorMapFloatOOBfill>);
    /// Changes the address in such a descriptor.
    0x0932 query irregular "it changes a descriptor in the program's memory" fn cuTensorMapReplaceAddress(tensorMap: Updates<sys::CUtensorMap>, globalAddress: Raw<*mut c_void>);
    /// Makes a texture reference of no module.
    0x0940 state wait fn cuTexRefCreate(pTexRef: New<TextureRef>) [start, context, null(pTexRef, VALUE)];
    /// Ends a texture reference.
    0x0941 state wait fn cuTexRefDestroy(hTexRef: End<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// Lets a texture reference see an array.
    0x0942 state answer fn cuTexRefSetArray(hTexRef: Use<TextureRef>, hArray: HandleArg<sys::CUarray>, Flags: Val<c_uint>) [start, null(hTexRef, HANDLE)];
    /// Lets a texture reference see a mipmapped array.
    0x0943 state answer fn cuTexRefSetMipmappedArray(hTexRef: Use<TextureRef>, hMipmappedArray: HandleArg<sys::CUmipmappedArray>, Flags: Val<c_uint>) [start, null(hTexRef, HANDLE)];
    /// Lets a texture reference see memory.
    0x0944 state irregular "a null output changes what is allowed" fn cuTexRefSetAddress_v2(ByteOffset: Writes<usize>, hTexRef: Raw<sys::CUtexref>, dptr: Raw<sys::CUdeviceptr>, bytes: Raw<usize>) [start, null(hTexRef, HANDLE)];
    /// Lets a texture reference see rows of memory.
    0x0945 state answer fn cuTexRefSetAddress2D_v3(hTexRef: Use<TextureRef>, desc: In<sys::CUDA_ARRAY_DESCRIPTOR>, dptr: Address, Pitch: Val<usize>) [start, null(hTexRef, HANDLE)];
    /// What the memory holds that a texture reference sees.
    0x0946 state answer fn cuTexRefSetFormat(hTexRef: Use<TextureRef>, fmt: Enum<sys::CUarray_format>, NumPackedComponents: Val<c_int>) [start, null(hTexRef, HANDLE)];
    /// What a texture reference reads outside.
    0x0947 state answer fn cuTexRefSetAddressMode(hTexRef: Use<TextureRef>, dim: Val<c_int>, am: Enum<sys::CUaddress_mode>) [start, null(hTexRef, HANDLE)];
    /// Whether a texture reference weighs neighbours.
    0x0948 state answer fn cuTexRefSetFilterMode(hTexRef: Use<TextureRef>, fm: Enum<sys::CUfilter_mode>) [start, null(hTexRef, HANDLE)];
    /// Whether a texture reference weighs levels.
    0x0949 state answer fn cuTexRefSetMipmapFilterMode(hTexRef: Use<TextureRef>, fm: Enum<sys::CUfilter_mode>) [start, null(hTexRef, HANDLE)];
    /// What a texture reference adds to the level.
    0x094a state answer fn cuTexRefSetMipmapLevelBias(hTexRef: Use<TextureRef>, bias: Val<f32>) [start, null(hTexRef, HANDLE)];
    /// Lowest and highest level of a texture reference.
    0x094b state answer fn cuTexRefSetMipmapLevelClamp(hTexRef: Use<TextureRef>, minMipmapLevelClamp: Val<f32>, maxMipmapLevelClamp: Val<f32>) [start, null(hTexRef, HANDLE)];
    /// Largest ratio of anisotropic filtering of a texture reference.
    0x094c state answer fn cuTexRefSetMaxAnisotropy(hTexRef: Use<TextureRef>, maxAniso: Val<c_uint>) [start, null(hTexRef, HANDLE)];
    /// The colour that a texture reference reads outside.
    0x094d state answer fn cuTexRefSetBorderColor(hTexRef: Use<TextureRef>, pBorderColor: InArray<f32, 4>) [start, null(hTexRef, HANDLE)];
    /// How a texture reference takes coordinates and gives numbers.
    0x094e state answer fn cuTexRefSetFlags(hTexRef: Use<TextureRef>, Flags: Val<c_uint>) [start, null(hTexRef, HANDLE)];
    /// The memory that a texture reference sees.
    0x0950 local answer fn cuTexRefGetAddress_v2(pdptr: Out<sys::CUdeviceptr>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// The array that a texture reference sees.
    0x0951 local answer fn cuTexRefGetArray(phArray: OutHandle<sys::CUarray>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// The mipmapped array that a texture reference sees.
    0x0952 local answer fn cuTexRefGetMipmappedArray(phMipmappedArray: OutHandle<sys::CUmipmappedArray>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// What a texture reference reads outside.
    0x0953 local answer fn cuTexRefGetAddressMode(pam: OutEnum<sys::CUaddress_mode>, hTexRef: Use<TextureRef>, dim: Val<c_int>) [start, null(hTexRef, HANDLE)];
    /// Whether a texture reference weighs neighbours.
    0x0954 local answer fn cuTexRefGetFilterMode(pfm: OutEnum<sys::CUfilter_mode>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// What a texture reference takes the texels for.
    0x0955 local answer fn cuTexRefGetFormat(pFormat: OutEnumOpt<sys::CUarray_format>, pNumChannels: OutOpt<c_int>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// Whether a texture reference weighs levels.
    0x0956 local answer fn cuTexRefGetMipmapFilterMode(pfm: OutEnum<sys::CUfilter_mode>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// What a texture reference adds to the level.
    0x0957 local answer fn cuTexRefGetMipmapLevelBias(pbias: Out<f32>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// Lowest and highest level of a texture reference.
    0x0958 local answer fn cuTexRefGetMipmapLevelClamp(pminMipmapLevelClamp: OutOpt<f32>, pmaxMipmapLevelClamp: OutOpt<f32>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// Largest ratio of anisotropic filtering of a texture reference.
    0x0959 local answer fn cuTexRefGetMaxAnisotropy(pmaxAniso: Out<c_int>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// The colour that a texture reference reads outside.
    0x095a local answer fn cuTexRefGetBorderColor(pBorderColor: OutArray<f32, 4>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// How a texture reference takes coordinates and gives numbers.
    0x095b local answer fn cuTexRefGetFlags(pFlags: Out<c_uint>, hTexRef: Use<TextureRef>) [start, null(hTexRef, HANDLE)];
    /// Makes what a texture reference sees known to a function, which knows it already.
    0x095c local answer fn cuParamSetTexRef(hfunc: HandleArg<sys::CUfunction>, texunit: Val<c_int>, hTexRef: HandleArg<sys::CUtexref>) [start, context, null(hfunc, HANDLE), null(hTexRef, HANDLE)];
    /// Lets a surface reference see an array.
    0x095d state answer fn cuSurfRefSetArray(hSurfRef: Use<SurfaceRef>, hArray: HandleArg<sys::CUarray>, Flags: Val<c_uint>) [start, null(hSurfRef, HANDLE)];
    /// The array that a surface reference sees.
    0x095e local answer fn cuSurfRefGetArray(phArray: OutHandle<sys::CUarray>, hSurfRef: Use<SurfaceRef>) [start, null(hSurfRef, HANDLE)];
}
