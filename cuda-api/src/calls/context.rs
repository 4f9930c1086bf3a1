//! Contexts.

calls! { $ for_each_context_call context ContextCalls;

    /// Takes a reference to the primary context.
    0x0201 local custom fn cuDevicePrimaryCtxRetain(pctx: Raw<*mut sys::CUcontext>, dev: Raw<sys::CUdevice>);
    /// Gives a reference back.
    0x0202 local custom fn cuDevicePrimaryCtxRelease_v2(dev: Raw<sys::CUdevice>);
    /// Flags of the primary context.
    0x0203 local custom fn cuDevicePrimaryCtxSetFlags_v2(dev: Raw<sys::CUdevice>, flags: Raw<c_uint>);
    /// Flags of the primary context and whether it is active.
    0x0204 local custom fn cuDevicePrimaryCtxGetState(dev: Raw<sys::CUdevice>, flags: Raw<*mut c_uint>, active: Raw<*mut c_int>);
    /// Destroys everything in the primary context.
    0x0205 state custom fn cuDevicePrimaryCtxReset_v2(dev: Raw<sys::CUdevice>);
    /// Makes a context.
    0x0206 local custom fn cuCtxCreate_v2(pctx: Raw<*mut sys::CUcontext>, flags: Raw<c_uint>, dev: Raw<sys::CUdevice>) older;
    /// Makes a context.
    0x0207 local custom fn cuCtxCreate_v4(pctx: Raw<*mut sys::CUcontext>, ctxCreateParams: Raw<*mut sys::CUctxCreateParams>, flags: Raw<c_uint>, dev: Raw<sys::CUdevice>);
    /// Destroys a context.
    0x0208 local custom fn cuCtxDestroy_v2(ctx: Raw<sys::CUcontext>);
    /// The context of the calling thread.
    0x0209 local custom fn cuCtxGetCurrent(pctx: Raw<*mut sys::CUcontext>);
    /// Changes the context of the calling thread.
    0x020a local custom fn cuCtxSetCurrent(ctx: Raw<sys::CUcontext>);
    /// Pushes a context.
    0x020b local custom fn cuCtxPushCurrent_v2(ctx: Raw<sys::CUcontext>);
    /// Pops a context.
    0x020c local custom fn cuCtxPopCurrent_v2(pctx: Raw<*mut sys::CUcontext>);
    /// Device of the current context.
    0x020d local custom fn cuCtxGetDevice(device: Raw<*mut sys::CUdevice>);
    /// Device of a context.
    0x020e local custom fn cuCtxGetDevice_v2(device: Raw<*mut sys::CUdevice>, ctx: Raw<sys::CUcontext>);
    /// Flags of the current context.
    0x020f local custom fn cuCtxGetFlags(flags: Raw<*mut c_uint>);
    /// Unique number of a context.
    0x0210 local custom fn cuCtxGetId(ctx: Raw<sys::CUcontext>, ctxId: Raw<*mut c_ulonglong>);
    /// API version of a context.
    0x0211 local custom fn cuCtxGetApiVersion(ctx: Raw<sys::CUcontext>, version: Raw<*mut c_uint>);
    /// Waits for everything in the current context.
    0x0212 sync custom fn cuCtxSynchronize();
    /// Waits for everything in a context.
    0x0213 sync custom fn cuCtxSynchronize_v2(ctx: Raw<sys::CUcontext>);
    /// A limit of the context.
    0x0214 query wait fn cuCtxGetLimit(pvalue: Out<usize>, limit: Enum<sys::CUlimit>);
    /// Changes a limit of the context.
    0x0215 state wait fn cuCtxSetLimit(limit: Enum<sys::CUlimit>, value: Val<usize>);
    /// Preference between cache and shared memory.
    0x0216 query wait fn cuCtxGetCacheConfig(pconfig: OutEnum<sys::CUfunc_cache>);
    /// Changes the preference between cache and shared memory.
    0x0217 state wait fn cuCtxSetCacheConfig(config: Enum<sys::CUfunc_cache>);
    /// Lowest and highest priority of streams.
    0x0218 local custom fn cuCtxGetStreamPriorityRange(leastPriority: Raw<*mut c_int>, greatestPriority: Raw<*mut c_int>);
    /// Access to the memory of another context.
    0x0219 local custom fn cuCtxEnablePeerAccess(peerContext: Raw<sys::CUcontext>, Flags: Raw<c_uint>);
    /// Ends access to the memory of another context.
    0x021a local custom fn cuCtxDisablePeerAccess(peerContext: Raw<sys::CUcontext>);
    /// As `cuDevicePrimaryCtxRelease_v2`; libraries look the old name up.
    0x021b local custom fn cuDevicePrimaryCtxRelease(dev: Raw<sys::CUdevice>) older;
    /// As `cuDevicePrimaryCtxReset_v2`.
    0x021c state custom fn cuDevicePrimaryCtxReset(dev: Raw<sys::CUdevice>) older;
    /// As `cuDevicePrimaryCtxSetFlags_v2`.
    0x021d local custom fn cuDevicePrimaryCtxSetFlags(dev: Raw<sys::CUdevice>, flags: Raw<c_uint>) older;
    /// As `cuCtxPushCurrent_v2`.
    0x021e local custom fn cuCtxPushCurrent(ctx: Raw<sys::CUcontext>) older;
    /// As `cuCtxPopCurrent_v2`.
    0x021f local custom fn cuCtxPopCurrent(pctx: Raw<*mut sys::CUcontext>) older;
    /// Changes the flags of the current context.
    0x0220 local custom fn cuCtxSetFlags(flags: Raw<c_uint>);
    /// Width of the banks of shared memory.
    0x0221 query wait fn cuCtxGetSharedMemConfig(pConfig: OutEnum<sys::CUsharedconfig>);
    /// Changes the width of the banks of shared memory, where it can be changed.
    0x0222 state wait fn cuCtxSetSharedMemConfig(config: Enum<sys::CUsharedconfig>);
    /// Lines of the cache that were to stay are like all others again.
    0x0223 work wait fn cuCtxResetPersistingL2Cache();
    /// How many multiprocessors a context may use: all.
    0x0224 local custom fn cuCtxGetExecAffinity(pExecAffinity: Raw<*mut sys::CUexecAffinityParam>, type_: RawEnum<sys::CUexecAffinityType>);
    /// Makes a context; a share of the multiprocessors is not offered.
    0x0225 local custom fn cuCtxCreate_v3(pctx: Raw<*mut sys::CUcontext>, paramsArray: Raw<*mut sys::CUexecAffinityParam>, numParams: Raw<c_int>, flags: Raw<c_uint>, dev: Raw<sys::CUdevice>) older;
    /// Records an event behind everything in a context.
    0x0226 work custom fn cuCtxRecordEvent(hCtx: Raw<sys::CUcontext>, hEvent: Raw<sys::CUevent>);
    /// Lets everything that comes later in a context wait for an event.
    0x0227 work custom fn cuCtxWaitEvent(hCtx: Raw<sys::CUcontext>, hEvent: Raw<sys::CUevent>);
    /// Takes a reference to the current context.
    0x0228 local custom fn cuCtxAttach(pctx: Raw<*mut sys::CUcontext>, flags: Raw<c_uint>);
    /// Gives a reference to the current context back.
    0x0229 local custom fn cuCtxDetach(ctx: Raw<sys::CUcontext>);
    /// Makes a green context: a context that is told to have a part of the GPU.
    0x022a local custom fn cuGreenCtxCreate(phCtx: Raw<*mut sys::CUgreenCtx>, desc: Raw<sys::CUdevResourceDesc>, dev: Raw<sys::CUdevice>, flags: Raw<c_uint>);
    /// Destroys a green context.
    0x022b local custom fn cuGreenCtxDestroy(hCtx: Raw<sys::CUgreenCtx>);
    /// The context that stands for a green one.
    0x022c local custom fn cuCtxFromGreenCtx(pContext: Raw<*mut sys::CUcontext>, hCtx: Raw<sys::CUgreenCtx>);
    /// The multiprocessors of a device.
    0x022d local custom fn cuDeviceGetDevResource(device: Raw<sys::CUdevice>, resource: Raw<*mut sys::CUdevResource>, type_: RawEnum<sys::CUdevResourceType>);
    /// The multiprocessors of a context.
    0x022e local custom fn cuCtxGetDevResource(hCtx: Raw<sys::CUcontext>, resource: Raw<*mut sys::CUdevResource>, type_: RawEnum<sys::CUdevResourceType>);
    /// The multiprocessors of a green context.
    0x022f local custom fn cuGreenCtxGetDevResource(hCtx: Raw<sys::CUgreenCtx>, resource: Raw<*mut sys::CUdevResource>, type_: RawEnum<sys::CUdevResourceType>);
    /// Splits multiprocessors into groups.
    0x0230 local custom fn cuDevSmResourceSplitByCount(result: Raw<*mut sys::CUdevResource>, nbGroups: Raw<*mut c_uint>, input: Raw<*const sys::CUdevResource>, remaining: Raw<*mut sys::CUdevResource>, useFlags: Raw<c_uint>, minCount: Raw<c_uint>);
    /// Describes what a green context is to have.
    0x0231 local custom fn cuDevResourceGenerateDesc(phDesc: Raw<*mut sys::CUdevResourceDesc>, resources: Raw<*mut sys::CUdevResource>, nbResources: Raw<c_uint>);
    /// Records an event behind everything in a green context.
    0x0232 work custom fn cuGreenCtxRecordEvent(hCtx: Raw<sys::CUgreenCtx>, hEvent: Raw<sys::CUevent>);
    /// Lets everything that comes later in a green context wait for an event.
    0x0233 work custom fn cuGreenCtxWaitEvent(hCtx: Raw<sys::CUgreenCtx>, hEvent: Raw<sys::CUevent>);
    /// Makes a stream in a green context.
    0x0234 state custom fn cuGreenCtxStreamCreate(phStream: Raw<*mut sys::CUstream>, greenCtx: Raw<sys::CUgreenCtx>, flags: Raw<c_uint>, priority: Raw<c_int>);
    /// Unique number of a green context.
    0x0235 local custom fn cuGreenCtxGetId(greenCtx: Raw<sys::CUgreenCtx>, greenCtxId: Raw<*mut c_ulonglong>);
    /// As `cuCtxCreate_v2`.
    0x0236 local custom fn cuCtxCreate(pctx: Raw<*mut sys::CUcontext>, flags: Raw<c_uint>, dev: Raw<sys::CUdevice>) older;
    /// As `cuCtxDestroy_v2`.
    0x0237 local custom fn cuCtxDestroy(ctx: Raw<sys::CUcontext>) older;
}
