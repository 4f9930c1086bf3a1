//! Devices, versions, symbols, error texts.

calls! { $ for_each_device_call device DeviceCalls;

    /// Starts the driver.
    0x0101 local bare fn cuInit(Flags: Raw<c_uint>);
    /// Version of the driver that the job sees.
    0x0102 local bare fn cuDriverGetVersion(driverVersion: Writes<c_int>);
    /// A device by its ordinal.
    0x0103 local answer fn cuDeviceGet(device: Out<sys::CUdevice>, ordinal: Val<c_int>) [start, null(device, VALUE)];
    /// Number of devices.
    0x0104 local answer fn cuDeviceGetCount(count: Out<c_int>);
    /// Name of a device.
    0x0105 local answer fn cuDeviceGetName(name: OutText<1>, len: Val<c_int>, dev: DeviceArg);
    /// Identity of a device.
    0x0106 local answer fn cuDeviceGetUuid(uuid: Out<sys::CUuuid>, dev: DeviceArg) older;
    /// Identity of a device.
    0x0107 local answer fn cuDeviceGetUuid_v2(uuid: Out<sys::CUuuid>, dev: DeviceArg);
    /// Memory of a device in bytes.
    0x0108 local answer fn cuDeviceTotalMem_v2(bytes: Out<usize>, dev: DeviceArg);
    /// A property of a device.
    0x0109 local answer fn cuDeviceGetAttribute(pi: Out<c_int>, attrib: Enum<sys::CUdevice_attribute>, dev: DeviceArg) [null(pi, VALUE)];
    /// PCI address of a device as text.
    0x010a local answer fn cuDeviceGetPCIBusId(pciBusId: OutText<1>, len: Val<c_int>, dev: DeviceArg);
    /// The device at a PCI address.
    0x010b local answer fn cuDeviceGetByPCIBusId(dev: Out<sys::CUdevice>, pciBusId: Str);
    /// Compute capability.
    0x010c local answer fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, dev: DeviceArg);
    /// Whether a device can reach the memory of another.
    0x010d local answer fn cuDeviceCanAccessPeer(canAccessPeer: Out<c_int>, dev: DeviceArg, peerDev: DeviceArg);
    /// Properties of the link between two devices.
    0x010e local answer fn cuDeviceGetP2PAttribute(value: Out<c_int>, attrib: Enum<sys::CUdevice_P2PAttribute>, srcDevice: DeviceArg, dstDevice: DeviceArg) [start, null(value, VALUE)];
    /// Name of a result code.
    0x010f local bare fn cuGetErrorName(error: RawEnum<sys::CUresult>, pStr: Writes<*const c_char>);
    /// Description of a result code.
    0x0110 local bare fn cuGetErrorString(error: RawEnum<sys::CUresult>, pStr: Writes<*const c_char>);
    /// Address of a driver function, version 1 of the call.
    0x0111 local bare fn cuGetProcAddress(symbol: Reads<c_char>, pfn: Writes<*mut c_void>, cudaVersion: Raw<c_int>, flags: Raw<sys::cuuint64_t>) older;
    /// Address of a driver function.
    0x0112 local bare fn cuGetProcAddress_v2(symbol: Reads<c_char>, pfn: Writes<*mut c_void>, cudaVersion: Raw<c_int>, flags: Raw<sys::cuuint64_t>, symbolStatus: Writes<sys::CUdriverProcAddressQueryResult>);
    /// The private tables of NVIDIA's own libraries.
    0x0113 local bare fn cuGetExportTable(ppExportTable: Writes<*const c_void>, pExportTableId: Reads<sys::CUuuid>);
    /// The pool that a device allocates from.
    0x0114 local answer fn cuDeviceGetMemPool(pool: OutHandle<sys::CUmemoryPool>, dev: Val<sys::CUdevice>);
    /// The pool that a device has from the start.
    0x0115 local answer fn cuDeviceGetDefaultMemPool(pool_out: OutHandle<sys::CUmemoryPool>, dev: DeviceArg);
    /// Widest linear texture.
    0x0116 local answer fn cuDeviceGetTexture1DLinearMaxWidth(maxWidthInElements: Out<usize>, format: Enum<sys::CUarray_format>, numChannels: Val<c_uint>, dev: Val<sys::CUdevice>);
    /// Whether contexts can be bound to multiprocessors: no.
    0x0117 local answer fn cuDeviceGetExecAffinitySupport(pi: Out<c_int>, type_: Enum<sys::CUexecAffinityType>, dev: DeviceArg);
    /// Profiling starts: nothing to do.
    0x0118 local answer fn cuProfilerStart();
    /// Profiling ends: nothing to do.
    0x0119 local answer fn cuProfilerStop();
    /// Chooses the pool that a device allocates from.
    0x0120 local answer fn cuDeviceSetMemPool(dev: Val<sys::CUdevice>, pool: HandleArg<sys::CUmemoryPool>) [start, null(pool, VALUE)];
    /// Some properties of a device, as the first versions of CUDA put them together.
    0x0121 local answer fn cuDeviceGetProperties(prop: Out<sys::CUdevprop>, dev: DeviceArg);
    /// A setting of dumps, of the current context: kept, and no dump is written.
    0x0122 local bare fn cuCoredumpGetAttribute(attrib: RawEnum<sys::CUcoredumpSettings>, value: Writes<c_void>, size: Updates<usize>);
    /// A setting of dumps, of all contexts.
    0x0123 local bare fn cuCoredumpGetAttributeGlobal(attrib: RawEnum<sys::CUcoredumpSettings>, value: Writes<c_void>, size: Updates<usize>);
    /// Sets how the current context would be dumped.
    0x0124 local bare fn cuCoredumpSetAttribute(attrib: RawEnum<sys::CUcoredumpSettings>, value: ReadsMut<c_void>, size: Updates<usize>);
    /// Sets how contexts would be dumped.
    0x0125 local bare fn cuCoredumpSetAttributeGlobal(attrib: RawEnum<sys::CUcoredumpSettings>, value: ReadsMut<c_void>, size: Updates<usize>);
    /// A function that would be told of errors: nothing is logged.
    0x0126 local bare fn cuLogsRegisterCallback(callbackFunc: Raw<sys::CUlogsCallback>, userData: Raw<*mut c_void>, callback_out: Writes<sys::CUlogsCallbackHandle>);
    /// Takes such a function back.
    0x0127 local bare fn cuLogsUnregisterCallback(callback: Raw<sys::CUlogsCallbackHandle>);
    /// The end of the log, which is empty.
    0x0128 local bare fn cuLogsCurrent(iterator_out: Writes<sys::CUlogIterator>, flags: Raw<c_uint>);
    /// Writes the log, which is empty.
    0x0129 local bare fn cuLogsDumpToFile(iterator: Raw<*mut sys::CUlogIterator>, pathToFile: Reads<c_char>, flags: Raw<c_uint>);
    /// Writes the log, which is empty.
    0x012a local bare fn cuLogsDumpToMemory(iterator: Raw<*mut sys::CUlogIterator>, buffer: Writes<c_char>, size: Updates<usize>, flags: Raw<c_uint>);
    /// What the link to the host can do at once: nothing, as the attribute says.
    0x012b local irregular "an output array as long as an input says" fn cuDeviceGetHostAtomicCapabilities(capabilities: Writes<c_uint>, operations: Reads<sys::CUatomicOperation>, count: Raw<c_uint>, dev: Raw<sys::CUdevice>) [null(count, VALUE)];
    /// What the link between two GPUs can do at once: nothing, as the attribute says.
    0x012c local irregular "an output array as long as an input says" fn cuDeviceGetP2PAtomicCapabilities(capabilities: Writes<c_uint>, operations: Reads<sys::CUatomicOperation>, count: Raw<c_uint>, srcDevice: Raw<sys::CUdevice>, dstDevice: Raw<sys::CUdevice>) [start, null(count, VALUE)];
    /// A function that would be told of the driver's memory budget: never called.
    0x012d local answer fn cuDeviceRegisterAsyncNotification(device: Val<sys::CUdevice>, callbackFunc: Val<sys::CUasyncCallback>, userData: HostAddress, callback: OutHandle<sys::CUasyncCallbackHandle>) [start, null(callbackFunc, VALUE)];
    /// Takes such a function back.
    0x012e local answer fn cuDeviceUnregisterAsyncNotification(device: Val<sys::CUdevice>, callback: HandleArg<sys::CUasyncCallbackHandle>) [start, null(callback, VALUE)];
    /// Checked: no network card writes to the memory of a job.
    0x012f local answer fn cuFlushGPUDirectRDMAWrites(target: Enum<sys::CUflushGPUDirectRDMAWritesTarget>, scope: Enum<sys::CUflushGPUDirectRDMAWritesScope>) [start, context];
}
