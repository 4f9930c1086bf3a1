"""cuda.core and cuda.bindings: programs compiled and linked at run time, buffers, graphs, conditions, green contexts. Mode: `core`."""

import importlib

import numpy as np

from steps import arguments, need, run_parts

driver = need("cuda.bindings.driver")
try:
    core = importlib.import_module("cuda.core.experimental")
    core = importlib.import_module("cuda.core") if hasattr(importlib.import_module("cuda.core"), "Device") else core
except ImportError:
    core = need("cuda.core")

MIX = r"""
extern "C" __global__ void mix(unsigned *x, int n, unsigned by)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 1664525u + by;
}
"""


def ok(answer):
    """What a function of the driver gives beside its result."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(answer[0]))
    return answer[1] if len(answer) == 2 else answer[1:]


class Gpu:
    """The device, a stream of it, and copies to and from NumPy's arrays."""

    def __init__(self):
        self.device = core.Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        major, minor = self.device.compute_capability
        self.arch = f"{major}{minor}"

    def program(self, code, target="ptx", **options):
        made = core.Program(code, "c++", core.ProgramOptions(std="c++17", arch=f"sm_{self.arch}", **options))
        return made.compile(target)

    def buffer(self, array, resource=None):
        made = (resource or self.device).allocate(array.nbytes, stream=self.stream)
        ok(driver.cuMemcpyHtoDAsync(int(made.handle), array.ctypes.data, array.nbytes, int(self.stream.handle)))
        self.stream.sync()
        return made

    def launch(self, kernel, count, *rest, stream=None):
        core.launch(stream or self.stream, core.LaunchConfig(grid=(count + 255) // 256, block=256), kernel, *rest)


def fetch(state):
    found = []
    for x in state if isinstance(state, list) else [state]:
        if not isinstance(x, np.ndarray):
            array = np.empty(x.size, np.uint8)
            ok(driver.cuCtxSynchronize())
            ok(driver.cuMemcpyDtoH(array.ctypes.data, int(x.handle), x.size))
            x = array
        found.append(x)
    return found


def numbers(count):
    return np.arange(count, dtype=np.uint32)


def launches():
    """Machine code."""
    gpu = Gpu()
    mix, x = gpu.program(MIX, "cubin").get_kernel("mix"), gpu.buffer(numbers(50_000))
    step = 0
    while True:
        step += 1
        gpu.launch(mix, 50_000, x, np.int32(50_000), np.uint32(step))
        gpu.stream.sync()
        yield x


def ptx():
    """PTX, which the driver compiles."""
    gpu = Gpu()
    mix, x = gpu.program(MIX).get_kernel("mix"), gpu.buffer(numbers(1000))
    while True:
        gpu.launch(mix, 1000, x, np.int32(1000), np.uint32(9))
        gpu.stream.sync()
        yield x


def linked():
    """Two programs that are linked."""
    gpu = Gpu()
    one = gpu.program("extern __device__ unsigned twist(unsigned); extern \"C\" __global__ void use(unsigned *x, int n)"
                      "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = twist(x[i]); }", relocatable_device_code=True)
    two = gpu.program("__device__ unsigned twist(unsigned v) { return v * 7 ^ v >> 3; }", relocatable_device_code=True)
    use = core.Linker(one, two, options=core.LinkerOptions(arch=f"sm_{gpu.arch}")).link("cubin").get_kernel("use")
    x = gpu.buffer(numbers(3000))
    while True:
        gpu.launch(use, 3000, x, np.int32(3000))
        gpu.stream.sync()
        yield x


def templates():
    gpu = Gpu()
    code = "template <int N> __global__ void spin(unsigned *x, int n) { int i = threadIdx.x; for (int k = 0; k < N; k++) x[i] = x[i] * 5 + n; }"
    made = core.Program(code, "c++", core.ProgramOptions(std="c++17", arch=f"sm_{gpu.arch}")).compile("ptx", name_expressions=("spin<3>", "spin<8>"))
    three, eight = made.get_kernel("spin<3>"), made.get_kernel("spin<8>")
    x = gpu.buffer(numbers(256))
    while True:
        gpu.launch(three, 256, x, np.int32(1))
        gpu.launch(eight, 256, x, np.int32(2))
        gpu.stream.sync()
        yield x


def buffers():
    """Memory of pools of its own, given back each step; copies, fills, events."""
    gpu = Gpu()
    resource = core.DeviceMemoryResource(gpu.device)
    mix = gpu.program(MIX).get_kernel("mix")
    kept, step = gpu.buffer(numbers(4096)), 0
    while True:
        step += 1
        piece = resource.allocate(4096 * 4 * (step % 5 + 1), stream=gpu.stream)
        part = resource.allocate(4096 * 4, stream=gpu.stream)
        kept.copy_to(part, stream=gpu.stream)
        gpu.launch(mix, 4096, part, np.int32(4096), np.uint32(step))
        kept.copy_from(part, stream=gpu.stream)
        event = gpu.stream.record()
        event.sync()
        piece.close(gpu.stream)
        part.close(gpu.stream)
        yield kept


def pinned():
    """Pinned memory of the host, which it writes between the steps."""
    gpu = Gpu()
    resource = (getattr(core, "LegacyPinnedMemoryResource", None) or core.PinnedMemoryResource)()
    mix = gpu.program(MIX).get_kernel("mix")
    made = resource.allocate(8192 * 4, stream=gpu.stream)
    gpu.stream.sync()
    host = np.from_dlpack(made).view(np.uint32)
    host[:] = numbers(8192)
    while True:
        gpu.launch(mix, 8192, made, np.int32(8192), np.uint32(77))
        gpu.stream.sync()
        host[::3] ^= 12345
        yield [host.copy()]


def graph():
    """A captured graph with two branches."""
    gpu = Gpu()
    mix = gpu.program(MIX).get_kernel("mix")
    x, y = gpu.buffer(numbers(10_000)), gpu.buffer(numbers(10_000))
    config = core.LaunchConfig(grid=40, block=256)
    builder = gpu.device.create_graph_builder().begin_building()
    core.launch(builder, config, mix, x, np.int32(10_000), np.uint32(1))
    left, right = builder.split(2)
    core.launch(left, config, mix, x, np.int32(10_000), np.uint32(2))
    core.launch(right, config, mix, y, np.int32(10_000), np.uint32(3))
    made = (core.GraphBuilder if hasattr(core, "GraphBuilder") else type(builder)).join(left, right).end_building().complete()
    made.upload(gpu.stream)
    while True:
        made.launch(gpu.stream)
        gpu.stream.sync()
        yield [x, y]


def green():
    """A green context with some of the multiprocessors."""
    gpu = Gpu()
    device = ok(driver.cuDeviceGet(0))
    all_of_it = ok(driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups = ok(driver.cuDevSmResourceSplitByCount(1, all_of_it, 0, 16))[0]
    wanted = ok(driver.cuDevResourceGenerateDesc([groups[0]], 1))
    context = ok(driver.cuGreenCtxCreate(wanted, device, driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM))
    stream = ok(driver.cuGreenCtxStreamCreate(context, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
    mix, x = ok(driver.cuLibraryLoadData(bytes(gpu.program(MIX).code), [], [], 0, [], [], 0)), gpu.buffer(numbers(4096))
    kernel = ok(driver.cuLibraryGetKernel(mix, b"mix"))
    address, count, by = np.array([int(x.handle)], np.uint64), np.array([4096], np.int32), np.array([5], np.uint32)
    packed = np.array([a.ctypes.data for a in (address, count, by)], np.uint64)
    while True:
        ok(driver.cuLaunchKernel(int(kernel), 16, 1, 1, 256, 1, 1, 0, stream, packed.ctypes.data, 0))
        ok(driver.cuStreamSynchronize(stream))
        yield x


def virtual():
    """Physical memory, mapped at reserved addresses; each step maps a second piece for a while."""
    gpu = Gpu()
    mix = gpu.program(MIX).get_kernel("mix")
    what = driver.CUmemAllocationProp()
    what.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    what.location.type, what.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    size = ok(driver.cuMemGetAllocationGranularity(what, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
    access = driver.CUmemAccessDesc()
    access.location.type, access.location.id = what.location.type, 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    base = ok(driver.cuMemAddressReserve(size * 4, 0, 0, 0))

    def map_piece(at):
        piece = ok(driver.cuMemCreate(size, what, 0))
        ok(driver.cuMemMap(int(base) + at * size, size, 0, piece, 0))
        ok(driver.cuMemSetAccess(int(base) + at * size, size, [access], 1))
        ok(driver.cuMemRelease(piece))

    map_piece(0)
    first, seen = numbers(size // 4), np.empty(size // 4, np.uint32)
    ok(driver.cuMemcpyHtoD(base, first.ctypes.data, size))
    step = 0
    while True:
        step += 1
        at = step % 3 + 1
        map_piece(at)
        ok(driver.cuMemcpyDtoD(int(base) + at * size, base, size))
        ok(driver.cuCtxSynchronize())
        gpu.launch(mix, size // 4, int(base) + at * size, np.int32(size // 4), np.uint32(step))
        gpu.stream.sync()
        ok(driver.cuMemcpyDtoD(base, int(base) + at * size, size))
        ok(driver.cuCtxSynchronize())
        ok(driver.cuMemUnmap(int(base) + at * size, size))
        ok(driver.cuMemcpyDtoH(seen.ctypes.data, base, size))
        yield [seen[:5000].copy()]


def main():
    run_parts(arguments(__doc__).parse_args(), [launches, ptx, linked, templates, buffers, pinned, graph, green, virtual], fetch)


main()
