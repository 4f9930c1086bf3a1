//! Devices, versions, symbols, error texts.

calls! { $ for_each_device_call device DeviceCalls;

    /// Starts the driver.
    0x0101 local bare fn cuInit(Flags: Raw<c_uint>);
    /// Version of the driver that the job sees.
    0x0102 local bare fn cuDriverGetVersion(driverVersion: Raw<*mut c_int>);
    /// A device by its ordinal.
    0x0103 local custom fn cuDeviceGet(device: Raw<*mut sys::CUdevice>, ordinal: Raw<c_int>);
    /// Number of devices.
    0x0104 local custom fn cuDeviceGetCount(count: Raw<*mut c_int>);
    /// Name of a device.
    0x0105 local custom fn cuDeviceGetName(name: Raw<*mut c_char>, len: Raw<c_int>, dev: Raw<sys::CUdevice>);
    /// Identity of a device.
    0x0106 local custom fn cuDeviceGetUuid(uuid: Raw<*mut sys::CUuuid>, dev: Raw<sys::CUdevice>) older;
    /// Identity of a device.
    0x0107 local custom fn cuDeviceGetUuid_v2(uuid: Raw<*mut sys::CUuuid>, dev: Raw<sys::CUdevice>);
    /// Memory of a device in bytes.
    0x0108 local custom fn cuDeviceTotalMem_v2(bytes: Raw<*mut usize>, dev: Raw<sys::CUdevice>);
    /// A property of a device.
    0x0109 local custom fn cuDeviceGetAttribute(pi: Raw<*mut c_int>, attrib: RawEnum<sys::CUdevice_attribute>, dev: Raw<sys::CUdevice>);
    /// PCI address of a device as text.
    0x010a local custom fn cuDeviceGetPCIBusId(pciBusId: Raw<*mut c_char>, len: Raw<c_int>, dev: Raw<sys::CUdevice>);
    /// The device at a PCI address.
    0x010b local custom fn cuDeviceGetByPCIBusId(dev: Raw<*mut sys::CUdevice>, pciBusId: Raw<*const c_char>);
    /// Compute capability.
    0x010c local custom fn cuDeviceComputeCapability(major: Raw<*mut c_int>, minor: Raw<*mut c_int>, dev: Raw<sys::CUdevice>);
    /// Whether a device can reach the memory of another.
    0x010d local custom fn cuDeviceCanAccessPeer(canAccessPeer: Raw<*mut c_int>, dev: Raw<sys::CUdevice>, peerDev: Raw<sys::CUdevice>);
    /// Properties of the link between two devices.
    0x010e local custom fn cuDeviceGetP2PAttribute(value: Raw<*mut c_int>, attrib: RawEnum<sys::CUdevice_P2PAttribute>, srcDevice: Raw<sys::CUdevice>, dstDevice: Raw<sys::CUdevice>);
    /// Name of a result code.
    0x010f local bare fn cuGetErrorName(error: RawEnum<sys::CUresult>, pStr: Raw<*mut *const c_char>);
    /// Description of a result code.
    0x0110 local bare fn cuGetErrorString(error: RawEnum<sys::CUresult>, pStr: Raw<*mut *const c_char>);
    /// Address of a driver function, version 1 of the call.
    0x0111 local bare fn cuGetProcAddress(symbol: Raw<*const c_char>, pfn: Raw<*mut *mut c_void>, cudaVersion: Raw<c_int>, flags: Raw<sys::cuuint64_t>) older;
    /// Address of a driver function.
    0x0112 local bare fn cuGetProcAddress_v2(symbol: Raw<*const c_char>, pfn: Raw<*mut *mut c_void>, cudaVersion: Raw<c_int>, flags: Raw<sys::cuuint64_t>, symbolStatus: Raw<*mut sys::CUdriverProcAddressQueryResult>);
    /// The private tables of NVIDIA's own libraries.
    0x0113 local bare fn cuGetExportTable(ppExportTable: Raw<*mut *const c_void>, pExportTableId: Raw<*const sys::CUuuid>);
    /// The pool that a device allocates from.
    0x0114 local custom fn cuDeviceGetMemPool(pool: Raw<*mut sys::CUmemoryPool>, dev: Raw<sys::CUdevice>);
    /// The pool that a device has from the start.
    0x0115 local custom fn cuDeviceGetDefaultMemPool(pool_out: Raw<*mut sys::CUmemoryPool>, dev: Raw<sys::CUdevice>);
    /// Widest linear texture.
    0x0116 local custom fn cuDeviceGetTexture1DLinearMaxWidth(maxWidthInElements: Raw<*mut usize>, format: RawEnum<sys::CUarray_format>, numChannels: Raw<c_uint>, dev: Raw<sys::CUdevice>);
    /// Whether contexts can be bound to multiprocessors: no.
    0x0117 local custom fn cuDeviceGetExecAffinitySupport(pi: Raw<*mut c_int>, type_: RawEnum<sys::CUexecAffinityType>, dev: Raw<sys::CUdevice>);
    /// Profiling starts: nothing to do.
    0x0118 local custom fn cuProfilerStart();
    /// Profiling ends: nothing to do.
    0x0119 local custom fn cuProfilerStop();
    /// Chooses the pool that a device allocates from.
    0x0120 local custom fn cuDeviceSetMemPool(dev: Raw<sys::CUdevice>, pool: Raw<sys::CUmemoryPool>);
    /// Some properties of a device, as the first versions of CUDA put them together.
    0x0121 local custom fn cuDeviceGetProperties(prop: Raw<*mut sys::CUdevprop>, dev: Raw<sys::CUdevice>);
    /// A setting of dumps, of the current context: kept, and no dump is written.
    0x0122 local bare fn cuCoredumpGetAttribute(attrib: RawEnum<sys::CUcoredumpSettings>, value: Raw<*mut c_void>, size: Raw<*mut usize>);
    /// A setting of dumps, of all contexts.
    0x0123 local bare fn cuCoredumpGetAttributeGlobal(attrib: RawEnum<sys::CUcoredumpSettings>, value: Raw<*mut c_void>, size: Raw<*mut usize>);
    /// Sets how the current context would be dumped.
    0x0124 local bare fn cuCoredumpSetAttribute(attrib: RawEnum<sys::CUcoredumpSettings>, value: Raw<*mut c_void>, size: Raw<*mut usize>);
    /// Sets how contexts would be dumped.
    0x0125 local bare fn cuCoredumpSetAttributeGlobal(attrib: RawEnum<sys::CUcoredumpSettings>, value: Raw<*mut c_void>, size: Raw<*mut usize>);
    /// A function that would be told of errors: nothing is logged.
    0x0126 local bare fn cuLogsRegisterCallback(callbackFunc: Raw<sys::CUlogsCallback>, userData: Raw<*mut c_void>, callback_out: Raw<*mut sys::CUlogsCallbackHandle>);
    /// Takes such a function back.
    0x0127 local bare fn cuLogsUnregisterCallback(callback: Raw<sys::CUlogsCallbackHandle>);
    /// The end of the log, which is empty.
    0x0128 local bare fn cuLogsCurrent(iterator_out: Raw<*mut sys::CUlogIterator>, flags: Raw<c_uint>);
    /// Writes the log, which is empty.
    0x0129 local bare fn cuLogsDumpToFile(iterator: Raw<*mut sys::CUlogIterator>, pathToFile: Raw<*const c_char>, flags: Raw<c_uint>);
    /// Writes the log, which is empty.
    0x012a local bare fn cuLogsDumpToMemory(iterator: Raw<*mut sys::CUlogIterator>, buffer: Raw<*mut c_char>, size: Raw<*mut usize>, flags: Raw<c_uint>);
    /// What the link to the host can do at once: nothing, as the attribute says.
    0x012b local custom fn cuDeviceGetHostAtomicCapabilities(capabilities: Raw<*mut c_uint>, operations: Raw<*const sys::CUatomicOperation>, count: Raw<c_uint>, dev: Raw<sys::CUdevice>);
    /// What the link between two GPUs can do at once: nothing, as the attribute says.
    0x012c local custom fn cuDeviceGetP2PAtomicCapabilities(capabilities: Raw<*mut c_uint>, operations: Raw<*const sys::CUatomicOperation>, count: Raw<c_uint>, srcDevice: Raw<sys::CUdevice>, dstDevice: Raw<sys::CUdevice>);
    /// A function that would be told of the driver's memory budget: never called.
    0x012d local custom fn cuDeviceRegisterAsyncNotification(device: Raw<sys::CUdevice>, callbackFunc: Raw<sys::CUasyncCallback>, userData: Raw<*mut c_void>, callback: Raw<*mut sys::CUasyncCallbackHandle>);
    /// Takes such a function back.
    0x012e local custom fn cuDeviceUnregisterAsyncNotification(device: Raw<sys::CUdevice>, callback: Raw<sys::CUasyncCallbackHandle>);
    /// Checked: no network card writes to the memory of a job.
    0x012f local custom fn cuFlushGPUDirectRDMAWrites(target: RawEnum<sys::CUflushGPUDirectRDMAWritesTarget>, scope: RawEnum<sys::CUflushGPUDirectRDMAWritesScope>);
}
