//! Modules, libraries, kernels, functions.

calls! { $ for_each_module_call module ModuleCalls;

    /// Loads a module from a file.
    0x0501 state custom fn cuModuleLoad(module: Raw<*mut sys::CUmodule>, fname: Raw<*const c_char>);
    /// Loads a module.
    0x0502 state custom fn cuModuleLoadData(module: Raw<*mut sys::CUmodule>, image: Raw<*const c_void>);
    /// Loads a module with options.
    0x0503 state custom fn cuModuleLoadDataEx(module: Raw<*mut sys::CUmodule>, image: Raw<*const c_void>, numOptions: Raw<c_uint>, options: Raw<*mut sys::CUjit_option>, optionValues: Raw<*mut *mut c_void>);
    /// Loads a module from a fat binary.
    0x0504 state custom fn cuModuleLoadFatBinary(module: Raw<*mut sys::CUmodule>, fatCubin: Raw<*const c_void>);
    /// Unloads a module.
    0x0505 state wait fn cuModuleUnload(hmod: End<Module>);
    /// Whether code is loaded lazily.
    0x0506 local custom fn cuModuleGetLoadingMode(mode: Raw<*mut sys::CUmoduleLoadingMode>);
    /// A kernel by name.
    0x0507 state wait fn cuModuleGetFunction(hfunc: New<Function>, hmod: Use<Module>, name: Str);
    /// A variable by name.
    0x0508 query wait fn cuModuleGetGlobal_v2(dptr: Out<sys::CUdeviceptr>, bytes: Out<usize>, hmod: Use<Module>, name: Str);
    /// Number of kernels in a module.
    0x0509 query wait fn cuModuleGetFunctionCount(count: Out<c_uint>, mod_: Use<Module>);
    /// Kernels of a module.
    0x0525 state custom fn cuModuleEnumerateFunctions(functions: Raw<*mut sys::CUfunction>, numFunctions: Raw<c_uint>, mod_: Raw<sys::CUmodule>);
    /// Loads a library.
    0x050a state custom fn cuLibraryLoadData(library: Raw<*mut sys::CUlibrary>, code: Raw<*const c_void>, jitOptions: Raw<*mut sys::CUjit_option>, jitOptionsValues: Raw<*mut *mut c_void>, numJitOptions: Raw<c_uint>, libraryOptions: Raw<*mut sys::CUlibraryOption>, libraryOptionValues: Raw<*mut *mut c_void>, numLibraryOptions: Raw<c_uint>);
    /// Loads a library from a file.
    0x050b state custom fn cuLibraryLoadFromFile(library: Raw<*mut sys::CUlibrary>, fileName: Raw<*const c_char>, jitOptions: Raw<*mut sys::CUjit_option>, jitOptionsValues: Raw<*mut *mut c_void>, numJitOptions: Raw<c_uint>, libraryOptions: Raw<*mut sys::CUlibraryOption>, libraryOptionValues: Raw<*mut *mut c_void>, numLibraryOptions: Raw<c_uint>);
    /// Unloads a library.
    0x050c state wait fn cuLibraryUnload(library: End<Library>);
    /// A kernel by name.
    0x050d state wait fn cuLibraryGetKernel(pKernel: New<Kernel>, library: Use<Library>, name: Str);
    /// The module of a library in the current context.
    0x050e state wait fn cuLibraryGetModule(pMod: New<Module>, library: Use<Library>);
    /// A variable by name.
    0x050f query wait fn cuLibraryGetGlobal(dptr: Out<sys::CUdeviceptr>, bytes: Out<usize>, library: Use<Library>, name: Str);
    /// Number of kernels in a library.
    0x0510 query wait fn cuLibraryGetKernelCount(count: Out<c_uint>, lib: Use<Library>);
    /// Kernels of a library.
    0x0526 state custom fn cuLibraryEnumerateKernels(kernels: Raw<*mut sys::CUkernel>, numKernels: Raw<c_uint>, lib: Raw<sys::CUlibrary>);
    /// The function of a kernel in the current context.
    0x0511 state wait fn cuKernelGetFunction(pFunc: New<Function>, kernel: Use<Kernel>);
    /// The library of a kernel.
    0x0512 local custom fn cuKernelGetLibrary(pLib: Raw<*mut sys::CUlibrary>, kernel: Raw<sys::CUkernel>);
    /// Name of a kernel.
    0x0513 local custom fn cuKernelGetName(name: Raw<*mut *const c_char>, hfunc: Raw<sys::CUkernel>);
    /// A property of a kernel.
    0x0514 query wait fn cuKernelGetAttribute(pi: Out<c_int>, attrib: Enum<sys::CUfunction_attribute>, kernel: Use<Kernel>, dev: DeviceArg);
    /// Changes a property of a kernel.
    0x0515 state wait fn cuKernelSetAttribute(attrib: Enum<sys::CUfunction_attribute>, val: Val<c_int>, kernel: Use<Kernel>, dev: DeviceArg);
    /// Cache preference of a kernel.
    0x0516 state wait fn cuKernelSetCacheConfig(kernel: Use<Kernel>, config: Enum<sys::CUfunc_cache>, dev: DeviceArg);
    /// Place and size of a parameter.
    0x0517 query wait fn cuKernelGetParamInfo(kernel: Use<Kernel>, paramIndex: Val<usize>, paramOffset: Out<usize>, paramSize: Out<usize>);
    /// A property of a function.
    0x0518 query wait fn cuFuncGetAttribute(pi: Out<c_int>, attrib: Enum<sys::CUfunction_attribute>, hfunc: Use<Function>);
    /// Changes a property of a function.
    0x0519 state wait fn cuFuncSetAttribute(hfunc: Use<Function>, attrib: Enum<sys::CUfunction_attribute>, value: Val<c_int>);
    /// Cache preference of a function.
    0x051a state wait fn cuFuncSetCacheConfig(hfunc: Use<Function>, config: Enum<sys::CUfunc_cache>);
    /// The module of a function.
    0x051b state custom fn cuFuncGetModule(hmod: Raw<*mut sys::CUmodule>, hfunc: Raw<sys::CUfunction>);
    /// Name of a function.
    0x051c local custom fn cuFuncGetName(name: Raw<*mut *const c_char>, hfunc: Raw<sys::CUfunction>);
    /// Place and size of a parameter.
    0x051d query wait fn cuFuncGetParamInfo(func: Use<Function>, paramIndex: Val<usize>, paramOffset: Out<usize>, paramSize: Out<usize>);
    /// Whether the code of a function is on the device.
    0x051e query wait fn cuFuncIsLoaded(state: OutEnum<sys::CUfunctionLoadingState>, function: Use<Function>);
    /// Puts the code of a function on the device.
    0x051f state wait fn cuFuncLoad(function: Use<Function>);
    /// Begins to link code.
    0x0520 local custom fn cuLinkCreate_v2(numOptions: Raw<c_uint>, options: Raw<*mut sys::CUjit_option>, optionValues: Raw<*mut *mut c_void>, stateOut: Raw<*mut sys::CUlinkState>);
    /// Adds a part in memory to a link.
    0x0521 query custom fn cuLinkAddData_v2(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, data: Raw<*mut c_void>, size: Raw<usize>, name: Raw<*const c_char>, numOptions: Raw<c_uint>, options: Raw<*mut sys::CUjit_option>, optionValues: Raw<*mut *mut c_void>);
    /// Adds a part in a file to a link.
    0x0522 query custom fn cuLinkAddFile_v2(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, path: Raw<*const c_char>, numOptions: Raw<c_uint>, options: Raw<*mut sys::CUjit_option>, optionValues: Raw<*mut *mut c_void>);
    /// Links the parts; the image belongs to the link.
    0x0523 query custom fn cuLinkComplete(state: Raw<sys::CUlinkState>, cubinOut: Raw<*mut *mut c_void>, sizeOut: Raw<*mut usize>);
    /// Ends a link.
    0x0524 local custom fn cuLinkDestroy(state: Raw<sys::CUlinkState>);
    /// Changes the width of the banks of shared memory for a function, where it can be changed.
    0x0527 state wait fn cuFuncSetSharedMemConfig(hfunc: Use<Function>, config: Enum<sys::CUsharedconfig>);
    /// A function that host and GPU call by one address: there are none.
    0x0528 local custom fn cuLibraryGetUnifiedFunction(fptr: Raw<*mut *mut c_void>, library: Raw<sys::CUlibrary>, symbol: Raw<*const c_char>);
    /// As `cuLinkCreate_v2`.
    0x0529 local custom fn cuLinkCreate(numOptions: Raw<c_uint>, options: Raw<*mut sys::CUjit_option>, optionValues: Raw<*mut *mut c_void>, stateOut: Raw<*mut sys::CUlinkState>) older;
    /// As `cuLinkAddData_v2`.
    0x052a query custom fn cuLinkAddData(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, data: Raw<*mut c_void>, size: Raw<usize>, name: Raw<*const c_char>, numOptions: Raw<c_uint>, options: Raw<*mut sys::CUjit_option>, optionValues: Raw<*mut *mut c_void>) older;
    /// As `cuLinkAddFile_v2`.
    0x052b query custom fn cuLinkAddFile(state: Raw<sys::CUlinkState>, type_: RawEnum<sys::CUjitInputType>, path: Raw<*const c_char>, numOptions: Raw<c_uint>, options: Raw<*mut sys::CUjit_option>, optionValues: Raw<*mut *mut c_void>) older;
    /// A managed variable by name.
    0x052c local custom fn cuLibraryGetManaged(dptr: Raw<*mut sys::CUdeviceptr>, bytes: Raw<*mut usize>, library: Raw<sys::CUlibrary>, name: Raw<*const c_char>);
    /// A texture reference by name.
    0x052d state wait fn cuModuleGetTexRef(pTexRef: New<TextureRef>, hmod: Use<Module>, name: Str);
    /// A surface reference by name.
    0x052e state wait fn cuModuleGetSurfRef(pSurfRef: New<SurfaceRef>, hmod: Use<Module>, name: Str);
}
