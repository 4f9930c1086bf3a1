//! Contexts.

calls! { $ for_each_context_call context ContextCalls;

    /// Takes a reference to the primary context.
    0x0201 local answer fn cuDevicePrimaryCtxRetain(pctx: OutHandle<sys::CUcontext>, dev: DeviceArg);
    /// Gives a reference back.
    0x0202 state answer fn cuDevicePrimaryCtxRelease_v2(dev: DeviceArg);
    /// Flags of the primary context.
    0x0203 local answer fn cuDevicePrimaryCtxSetFlags_v2(dev: DeviceArg, flags: Val<c_uint>);
    /// Flags of the primary context and whether it is active.
    0x0204 local answer fn cuDevicePrimaryCtxGetState(dev: DeviceArg, flags: Out<c_uint>, active: Out<c_int>) [null(flags, VALUE), null(active, VALUE)];
    /// Destroys everything in the primary context.
    0x0205 state answer fn cuDevicePrimaryCtxReset_v2(dev: DeviceArg);
    /// Makes a context.
    0x0206 local answer fn cuCtxCreate_v2(pctx: OutHandle<sys::CUcontext>, flags: Val<c_uint>, dev: DeviceArg) older;
    /// Makes a context.
    0x0207 local irregular "its structure points to others" fn cuCtxCreate_v4(pctx: Writes<sys::CUcontext>, ctxCreateParams: ReadsMut<sys::CUctxCreateParams>, flags: Raw<c_uint>, dev: Raw<sys::CUdevice>);
    /// Destroys a context.
    0x0208 local answer fn cuCtxDestroy_v2(ctx: HandleArg<sys::CUcontext>) [null(ctx, VALUE)];
    /// The context of the calling thread.
    0x0209 local answer fn cuCtxGetCurrent(pctx: OutHandle<sys::CUcontext>);
    /// Changes the context of the calling thread.
    0x020a local answer fn cuCtxSetCurrent(ctx: HandleArg<sys::CUcontext>);
    /// Pushes a context.
    0x020b local answer fn cuCtxPushCurrent_v2(ctx: HandleArg<sys::CUcontext>) [start, null(ctx, VALUE)];
    /// Pops a context.
    0x020c local answer fn cuCtxPopCurrent_v2(pctx: OutHandleOpt<sys::CUcontext>);
    /// Device of the current context.
    0x020d local answer fn cuCtxGetDevice(device: Out<sys::CUdevice>) [null(device, VALUE), start, context];
    /// Device of a context.
    0x020e local answer fn cuCtxGetDevice_v2(device: Out<sys::CUdevice>, ctx: HandleArg<sys::CUcontext>) [null(device, VALUE), start, context];
    /// Flags of the current context.
    0x020f local answer fn cuCtxGetFlags(flags: Out<c_uint>) [null(flags, VALUE), start, context];
    /// Unique number of a context.
    0x0210 local answer fn cuCtxGetId(ctx: HandleArg<sys::CUcontext>, ctxId: Out<c_ulonglong>) [null(ctxId, VALUE), start, context];
    /// API version of a context.
    0x0211 local irregular "the context is checked before the output" fn cuCtxGetApiVersion(ctx: Raw<sys::CUcontext>, version: Writes<c_uint>);
    /// Waits for everything in the current context.
    0x0212 sync answer fn cuCtxSynchronize();
    /// Waits for everything in a context.
    0x0213 sync answer fn cuCtxSynchronize_v2(ctx: HandleArg<sys::CUcontext>);
    /// A limit of the context.
    0x0214 query wait fn cuCtxGetLimit(pvalue: Out<usize>, limit: Enum<sys::CUlimit>);
    /// Changes a limit of the context.
    0x0215 state wait fn cuCtxSetLimit(limit: KeyEnum<sys::CUlimit>, value: Val<usize>);
    /// Preference between cache and shared memory.
    0x0216 query wait fn cuCtxGetCacheConfig(pconfig: OutEnum<sys::CUfunc_cache>);
    /// Changes the preference between cache and shared memory.
    0x0217 state wait fn cuCtxSetCacheConfig(config: Enum<sys::CUfunc_cache>);
    /// Lowest and highest priority of streams.
    0x0218 local answer fn cuCtxGetStreamPriorityRange(leastPriority: OutOpt<c_int>, greatestPriority: OutOpt<c_int>);
    /// Access to the memory of another context.
    0x0219 local answer fn cuCtxEnablePeerAccess(peerContext: HandleArg<sys::CUcontext>, Flags: Val<c_uint>);
    /// Ends access to the memory of another context.
    0x021a local answer fn cuCtxDisablePeerAccess(peerContext: HandleArg<sys::CUcontext>);
    /// As `cuDevicePrimaryCtxRelease_v2`; libraries look the old name up.
    0x021b local answer fn cuDevicePrimaryCtxRelease(dev: DeviceArg) older;
    /// As `cuDevicePrimaryCtxReset_v2`.
    0x021c state answer fn cuDevicePrimaryCtxReset(dev: DeviceArg) older;
    /// As `cuDevicePrimaryCtxSetFlags_v2`.
    0x021d local answer fn cuDevicePrimaryCtxSetFlags(dev: DeviceArg, flags: Val<c_uint>) older;
    /// As `cuCtxPushCurrent_v2`.
    0x021e local answer fn cuCtxPushCurrent(ctx: HandleArg<sys::CUcontext>) older [start, null(ctx, VALUE)];
    /// As `cuCtxPopCurrent_v2`.
    0x021f local answer fn cuCtxPopCurrent(pctx: OutHandleOpt<sys::CUcontext>) older;
    /// Changes the flags of the current context.
    0x0220 local answer fn cuCtxSetFlags(flags: Val<c_uint>);
    /// Width of the banks of shared memory.
    0x0221 query wait fn cuCtxGetSharedMemConfig(pConfig: OutEnum<sys::CUsharedconfig>);
    /// Changes the width of the banks of shared memory, where it can be changed.
    0x0222 state wait fn cuCtxSetSharedMemConfig(config: Enum<sys::CUsharedconfig>);
    /// Lines of the cache that were to stay are like all others again.
    0x0223 work wait fn cuCtxResetPersistingL2Cache();
    /// How many multiprocessors a context may use: all.
    0x0224 local irregular "an opaque structure" fn cuCtxGetExecAffinity(pExecAffinity: Writes<sys::CUexecAffinityParam>, type_: RawEnum<sys::CUexecAffinityType>) [start, context, null(pExecAffinity, VALUE)];
    /// Makes a context; a share of the multiprocessors is not offered.
    0x0225 local answer fn cuCtxCreate_v3(pctx: OutHandle<sys::CUcontext>, paramsArray: HandleArg<*mut sys::CUexecAffinityParam>, numParams: Val<c_int>, flags: Val<c_uint>, dev: DeviceArg) older;
    /// Records an event behind everything in a context.
    0x0226 work answer fn cuCtxRecordEvent(hCtx: HandleArg<sys::CUcontext>, hEvent: HandleArg<sys::CUevent>) [start, context, null(hCtx, CONTEXT)];
    /// Lets everything that comes later in a context wait for an event.
    0x0227 work answer fn cuCtxWaitEvent(hCtx: HandleArg<sys::CUcontext>, hEvent: HandleArg<sys::CUevent>) [start, context, null(hCtx, CONTEXT)];
    /// Takes a reference to the current context.
    0x0228 local answer fn cuCtxAttach(pctx: OutHandle<sys::CUcontext>, flags: Val<c_uint>) [start, context, null(pctx, VALUE)];
    /// Gives a reference to the current context back.
    0x0229 state answer fn cuCtxDetach(ctx: HandleArg<sys::CUcontext>);
    /// Creates a green context: a context that reports a part of the GPU as its own.
    0x022a local answer fn cuGreenCtxCreate(phCtx: OutHandle<sys::CUgreenCtx>, desc: HandleArg<sys::CUdevResourceDesc>, dev: DeviceArg, flags: Val<c_uint>) [start];
    /// Destroys a green context.
    0x022b state answer fn cuGreenCtxDestroy(hCtx: HandleArg<sys::CUgreenCtx>) [start, context, null(hCtx, CONTEXT)];
    /// The context that stands for a green one.
    0x022c local answer fn cuCtxFromGreenCtx(pContext: OutHandle<sys::CUcontext>, hCtx: HandleArg<sys::CUgreenCtx>) [null(pContext, VALUE), start, context, null(hCtx, CONTEXT)];
    /// The multiprocessors of a device.
    0x022d local irregular "an opaque structure" fn cuDeviceGetDevResource(device: Raw<sys::CUdevice>, resource: Writes<sys::CUdevResource>, type_: RawEnum<sys::CUdevResourceType>) [start, null(resource, VALUE)];
    /// The multiprocessors of a context.
    0x022e local irregular "an opaque structure" fn cuCtxGetDevResource(hCtx: Raw<sys::CUcontext>, resource: Writes<sys::CUdevResource>, type_: RawEnum<sys::CUdevResourceType>) [null(resource, VALUE)];
    /// The multiprocessors of a green context.
    0x022f local irregular "an opaque structure" fn cuGreenCtxGetDevResource(hCtx: Raw<sys::CUgreenCtx>, resource: Writes<sys::CUdevResource>, type_: RawEnum<sys::CUdevResourceType>) [null(resource, VALUE)];
    /// Splits multiprocessors into groups.
    0x0230 local irregular "an opaque structure" fn cuDevSmResourceSplitByCount(result: Writes<sys::CUdevResource>, nbGroups: Updates<c_uint>, input: Reads<sys::CUdevResource>, remaining: Writes<sys::CUdevResource>, useFlags: Raw<c_uint>, minCount: Raw<c_uint>) [start, null(useFlags, VALUE)];
    /// Describes what a green context is to have.
    0x0231 local irregular "an opaque structure" fn cuDevResourceGenerateDesc(phDesc: Writes<sys::CUdevResourceDesc>, resources: ReadsMut<sys::CUdevResource>, nbResources: Raw<c_uint>) [null(phDesc, VALUE)];
    /// Records an event behind everything in a green context.
    0x0232 work answer fn cuGreenCtxRecordEvent(hCtx: HandleArg<sys::CUgreenCtx>, hEvent: HandleArg<sys::CUevent>) [null(hCtx, CONTEXT)];
    /// Lets everything that comes later in a green context wait for an event.
    0x0233 work answer fn cuGreenCtxWaitEvent(hCtx: HandleArg<sys::CUgreenCtx>, hEvent: HandleArg<sys::CUevent>) [null(hCtx, CONTEXT)];
    /// Makes a stream in a green context.
    0x0234 state answer fn cuGreenCtxStreamCreate(phStream: OutHandle<sys::CUstream>, greenCtx: HandleArg<sys::CUgreenCtx>, flags: Val<c_uint>, priority: Val<c_int>) [null(phStream, VALUE), start, context, null(greenCtx, CONTEXT)];
    /// Unique number of a green context.
    0x0235 local answer fn cuGreenCtxGetId(greenCtx: HandleArg<sys::CUgreenCtx>, greenCtxId: Out<c_ulonglong>) [null(greenCtxId, VALUE), start, context, null(greenCtx, CONTEXT)];
    /// As `cuCtxCreate_v2`.
    0x0236 local answer fn cuCtxCreate(pctx: OutHandle<sys::CUcontext>, flags: Val<c_uint>, dev: DeviceArg) older;
    /// As `cuCtxDestroy_v2`.
    0x0237 local answer fn cuCtxDestroy(ctx: HandleArg<sys::CUcontext>) older [null(ctx, VALUE)];
}
