"""What NVIDIA's own binding of NVML makes of the library."""
import ctypes
import re

import pynvml


def address(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value


pynvml.nvmlInit()
print("count", pynvml.nvmlDeviceGetCount())
for i in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(i)
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    newer = pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2)
    assert memory.total == newer.total and memory.free + memory.used == memory.total
    pci = pynvml.nvmlDeviceGetPciInfo(gpu)
    assert address(pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId)) == address(gpu)
    assert pynvml.nvmlDeviceGetIndex(gpu) == i
    print(i, pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetCudaComputeCapability(gpu))
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    link = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu), pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
    assert link == (pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu), pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)) == (5, 16)
    rates = pynvml.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (97, 41)
    assert (pynvml.nvmlDeviceGetPowerUsage(gpu), pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu)) == (312500, 700000)
    assert pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU) == 44
    assert [pynvml.nvmlDeviceGetClockInfo(gpu, domain) for domain in range(4)] == [1980, 1981, 3201, 1545]
    assert pynvml.nvmlDeviceGetPerformanceState(gpu) == 0
    try:
        pynvml.nvmlDeviceGetSerial(gpu)
    except pynvml.NVMLError_NotSupported:
        pass
    else:
        raise AssertionError("serial")
print("to itself", pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu, gpu))
try:
    pynvml.nvmlDeviceGetHandleByIndex(99)
except pynvml.NVMLError_InvalidArgument as e:
    print(e)
# Whatever the binding, or an older header, may look for is there.
library = ctypes.CDLL("libnvidia-ml.so.1")
source = open(pynvml.__file__).read()
older = "nvmlInternalGetExportTable nvmlDeviceRemoveGpu_v2 nvmlEventSetWait nvmlGetBlacklistDeviceCount nvmlComputeInstanceGetInfo"
for name in set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', source)) | set(older.split()):
    assert hasattr(library, name), name
table = ctypes.POINTER(ctypes.c_size_t)()
known = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
assert library.nvmlInternalGetExportTable(ctypes.byref(table), known) == 0 and table[0] == 8
assert library.nvmlInternalGetExportTable(ctypes.byref(table), bytes(16)) == 2 and not table
pynvml.nvmlShutdown()
