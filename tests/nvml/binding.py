"""What NVIDIA's own binding of NVML makes of the library."""
import ctypes

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
    for call in (pynvml.nvmlDeviceGetUtilizationRates, pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetSerial):
        try:
            call(gpu)
        except pynvml.NVMLError_NotSupported:
            continue
        raise AssertionError(call)
print("to itself", pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu, gpu))
try:
    pynvml.nvmlDeviceGetHandleByIndex(99)
except pynvml.NVMLError_InvalidArgument as e:
    print(e)
pynvml.nvmlShutdown()
