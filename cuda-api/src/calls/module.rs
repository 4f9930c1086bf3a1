//! Modules, libraries, kernels, functions.

calls! { $ for_each_module_call module ModuleCalls;

    /// Loads a module from a file.
    0x0501 state irregular "the file is read before its output is checked" fn cuModuleLoad(module: Writes<sys::CUmodule>, fname: Reads<c_char>) [start, context];
    /// Loads a module.
    0x0502 state irregular "an image whose size only its headers tell" fn cuModuleLoadData(module: Writes<sys::CUmodule>, image: Reads<c_void>) [start, context];
    /// Loads a module with options.
    0x0503 state irregular "options are values of several types" fn cuModuleLoadDataEx(module: Writes<sys::CUmodule>, image: Reads<c_void>, numOptions: Raw<c_uint>, options: ReadsMut<sys::CUjit_option>, optionValues: Updates<*mut c_void>) [start, context];
    /// Loads a module from a fat binary.
    0x0504 state irregular "an image whose size only its headers tell" fn cuModuleLoadFatBinary(module: Writes<sys::CUmodule>, fatCubin: Reads<c_void>) [start, context];
    /// Unloads a module.
    0x0505 state wait fn cuModuleUnload(hmod: End<Module>) [start, null(hmod, HANDLE)];
    /// Whether code is loaded lazily.
    0x0506 local answer fn cuModuleGetLoadingMode(mode: OutEnum<sys::CUmoduleLoadingMode>);
    /// A kernel by name.
    0x0507 state wait fn cuModuleGetFunction(hfunc: New<Function>, hmod: Use<Module>, name: Str) [start, null(hmod, HANDLE)];
    /// A variable by name.
    0x0508 query wait fn cuModuleGetGlobal_v2(dptr: Out<sys::CUdeviceptr>, bytes: Out<usize>, hmod: Use<Module>, name: Str) [start, null(hmod, HANDLE)];
    /// Number of kernels in a module.
    0x0509 query wait fn cuModuleGetFunctionCount(count: Out<c_uint>, mod_: Use<Module>) [null(count, VALUE), start, null(mod_, HANDLE)];
    /// Kernels of a module.
    0x0525 state irregular "an output array as long as an input says" fn cuModuleEnumerateFunctions(functions: Writes<sys::CUfunction>, numFunctions: Raw<c_uint>, mod_: Raw<sys::CUmodule>) [null(functions, VALUE), start, null(mod_, HANDLE)];
    /// Loads a library.
    0x050a state irregular "options are values of several types" fn cuLibraryLoadData(library: Writes<sys::CUlibrary>, code: Reads<c_void>, jitOptions: ReadsMut<sys::CUjit_option>, jitOptionsValues: Updates<*mut c_void>, numJitOptions: Raw<c_uint>, libraryOptions: Raw<*mut sys::CUlibraryOption>, libraryOptionValues: Raw<*mut *mut c_void>, numLibraryOptions: Raw<c_uint>) [null(library, VALUE)];
    /// Loads a library from a file.
    0x050b state irregular "options are values of several types" fn cuLibraryLoadFromFile(library: Writes<sys::CUlibrary>, fileName: Reads<c_char>, jitOptions: ReadsMut<sys::CUjit_option>, jitOptionsValues: Updates<*mut c_void>, numJitOptions: Raw<c_uint>, libraryOptions: Raw<*mut sys::CUlibraryOption>, libraryOptionValues: Raw<*mut *mut c_void>, numLibraryOptions: Raw<c_uint>) [null(library, VALUE), null(fileName, VALUE)];
    /// Unloads a library.
    0x050c state wait fn cuLibraryUnload(library: End<Library>) [null(library, HANDLE)];
    /// A kernel by name.
    0x050d state wait fn cuLibraryGetKernel(pKernel: New<Kernel>, library: Use<Library>, name: Str) [null(pKernel, VALUE), start, null(library, HANDLE)];
    /// The module of a library in the current context.
    0x050e state wait fn cuLibraryGetModule(pMod: New<Module>, library: Use<Library>) [null(pMod, VALUE), start, null(library, HANDLE)];
    /// A variable by name.
    0x050f query wait fn cuLibraryGetGlobal(dptr: Out<sys::CUdeviceptr>, bytes: Out<usize>, library: Use<Library>, name: Str) [null(library, VALUE)];
    /// Number of kernels in a library.
    0x0510 query wait fn cuLibraryGetKernelCount(count: Out<c_uint>, lib: Use<Library>) [null(count, VALUE), start, null(lib, HANDLE)];
    /// Kernels of a library.
    0x0526 state irregular "an output array as long as an input says" fn cuLibraryEnumerateKernels(kernels: Writes<sys::CUkernel>, numKernels: Raw<c_uint>, lib: Raw<sys::CUlibrary>) [null(kernels, VALUE), start, null(lib, HANDLE)];
    /// The function of a kernel in the current context.
    0x0511 state wait fn cuKernelGetFunction(pFunc: New<Function>, kernel: Use<Kernel>) [null(pFunc, VALUE), start, null(kernel, HANDLE)];
    /// The library of a kernel.
    0x0512 local answer fn cuKernelGetLibrary(pLib: OutHandle<sys::CUlibrary>, kernel: Use<Kernel>) [null(pLib, VALUE), start, null(kernel, HANDLE)];
    /// Name of a kernel.
    0x0513 local answer fn cuKernelGetName(name: OutStr, hfunc: Use<Kernel>) [null(name, VALUE), null(hfunc, VALUE)];
    /// A property of a kernel.
    0x0514 query wait fn cuKernelGetAttribute(pi: Out<c_int>, attrib: Enum<sys::CUfunction_attribute>, kernel: Use<Kernel>, dev: DeviceArg) [null(kernel, HANDLE)];
    /// Changes a property of a kernel.
    0x0515 state wait fn cuKernelSetAttribute(attrib: KeyEnum<sys::CUfunction_attribute>, val: Val<c_int>, kernel: Use<Kernel>, dev: DeviceArg) [null(kernel, HANDLE)];
    /// Cache preference of a kernel.
    0x0516 state wait fn cuKernelSetCacheConfig(kernel: Use<Kernel>, config: Enum<sys::CUfunc_cache>, dev: DeviceArg) [null(kernel, HANDLE)];
    /// Place and size of a parameter.
    0x0517 query wait fn cuKernelGetParamInfo(kernel: Use<Kernel>, paramIndex: Val<usize>, paramOffset: Out<usize>, paramSize: Out<usize>) [null(kernel, VALUE)];
    /// A property of a function.
    0x0518 query wait fn cuFuncGetAttribute(pi: Out<c_int>, attrib: Enum<sys::CUfunction_attribute>, hfunc: Use<Function>) [null(pi, VALUE), start, null(hfunc, HANDLE)];
    /// Changes a property of a function.
    0x0519 state wait fn cuFuncSetAttribute(hfunc: Use<Function>, attrib: KeyEnum<sys::CUfunction_attribute>, value: Val<c_int>) [start, null(hfunc, HANDLE)];
    /// Cache preference of a function.
    0x051a state wait fn cuFuncSetCacheConfig(hfunc: Use<Function>, config: Enum<sys::CUfunc_cache>) [start, null(hfunc, HANDLE)];
    /// The module of a function.
    0x051b state answer fn cuFuncGetModule(hmod: OutHandle<sys::CUmodule>, hfunc: HandleArg<sys::CUfunction>) [start, null(hfunc, VALUE)];
    /// Name of a function.
    0x051c local answer fn cuFuncGetName(name: OutStr, hfunc: Use<Function>) [null(name, VALUE), null(hfunc, VALUE)];
    /// Place and size of a parameter.
    0x051d query wait fn cuFuncGetParamInfo(func: Use<Function>, paramIndex: Val<usize>, paramOffset: Out<usize>, paramSize: Out<usize>) [null(func, VALUE)];
    /// Whether the code of a function is on the device.
    0x051e query wait fn cuFuncIsLoaded(state: OutEnum<sys::CUfunctionLoadingState>, function: Use<Function>) [null(state, VALUE), start, null(function, HANDLE)];
    /// Puts the code of a function on the device.
    0x051f state wait fn cuFuncLoad(function: Use<Function>) [null(function, HANDLE)];
    /// Begins to link code.
    0x0520 local irregular "options are values of several types" fn cuLinkCreate_v2(numOptions: Raw<c_uint>, options: ReadsMut<sys::CUjit_option>, optionValues: Kept<Updates<*mut c_void>>, stateOut: Writes<sys::CUlinkState>);
    /// Adds a part in memory to a link.
    0x0521 query irregular "options are values of several types" fn cuLinkAddData_v2(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, data: ReadsMut<c_void>, size: Raw<usize>, name: Reads<c_char>, numOptions: Raw<c_uint>, options: ReadsMut<sys::CUjit_option>, optionValues: Updates<*mut c_void>) [null(state, HANDLE)];
    /// Adds a part in a file to a link.
    0x0522 query irregular "options are values of several types" fn cuLinkAddFile_v2(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, path: Reads<c_char>, numOptions: Raw<c_uint>, options: ReadsMut<sys::CUjit_option>, optionValues: Updates<*mut c_void>) [null(state, HANDLE)];
    /// Links the parts; the image belongs to the link.
    0x0523 query irregular "the output belongs to the link" fn cuLinkComplete(state: Raw<sys::CUlinkState>, cubinOut: Writes<*mut c_void>, sizeOut: Writes<usize>) [null(state, HANDLE)];
    /// Ends a link.
    0x0524 local answer fn cuLinkDestroy(state: HandleArg<sys::CUlinkState>) [null(state, HANDLE)];
    /// Changes the width of the banks of shared memory for a function, where it can be changed.
    0x0527 state wait fn cuFuncSetSharedMemConfig(hfunc: Use<Function>, config: Enum<sys::CUsharedconfig>) [start, null(hfunc, HANDLE)];
    /// A function that host and GPU call by one address: there are none.
    0x0528 local answer fn cuLibraryGetUnifiedFunction(fptr: OutHandle<*mut c_void>, library: Use<Library>, symbol: Str) [start, null(fptr, VALUE), null(library, HANDLE)];
    /// As `cuLinkCreate_v2`.
    0x0529 local irregular "options are values of several types" fn cuLinkCreate(numOptions: Raw<c_uint>, options: ReadsMut<sys::CUjit_option>, optionValues: Kept<Updates<*mut c_void>>, stateOut: Writes<sys::CUlinkState>) older;
    /// As `cuLinkAddData_v2`.
    0x052a query irregular "options are values of several types" fn cuLinkAddData(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, data: ReadsMut<c_void>, size: Raw<usize>, name: Reads<c_char>, numOptions: Raw<c_uint>, options: ReadsMut<sys::CUjit_option>, optionValues: Updates<*mut c_void>) older [null(state, HANDLE)];
    /// As `cuLinkAddFile_v2`.
    0x052b query irregular "options are values of several types" fn cuLinkAddFile(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, path: Reads<c_char>, numOptions: Raw<c_uint>, options: ReadsMut<sys::CUjit_option>, optionValues: Updates<*mut c_void>) older [null(state, HANDLE)];
    /// A managed variable by name.
    0x052c local irregular "one of two outputs may be null" fn cuLibraryGetManaged(dptr: Writes<sys::CUdeviceptr>, bytes: Writes<usize>, library: Raw<sys::CUlibrary>, name: Reads<c_char>) [null(library, VALUE)];
    /// A texture reference by name.
    0x052d state wait fn cuModuleGetTexRef(pTexRef: New<TextureRef>, hmod: Use<Module>, name: Str) [start, null(hmod, HANDLE)];
    /// A surface reference by name.
    0x052e state wait fn cuModuleGetSurfRef(pSurfRef: New<SurfaceRef>, hmod: Use<Module>, name: Str) [start, null(hmod, HANDLE)];
}
