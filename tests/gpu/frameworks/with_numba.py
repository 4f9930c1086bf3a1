"""Numba: kernels in Python, device, pinned, mapped and managed arrays, streams, cooperative grids. Mode: `numba`."""

import ctypes
import warnings

import numpy as np

from steps import arguments, leave_out, need, run_parts

# Names that NumPy has dropped and some versions of Numba still ask for.
for old, new in {"row_stack": "vstack", "trapz": "trapezoid", "in1d": "isin"}.items():
    if not hasattr(np, old):
        setattr(np, old, getattr(np, new))

cuda, numba = need("numba.cuda", "numba")


def shared():
    """Tiles in shared memory."""
    tile = 16

    @cuda.jit
    def multiply(a, b, c):
        left, right = cuda.shared.array((16, 16), numba.int32), cuda.shared.array((16, 16), numba.int32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        total = numba.int32(0)
        for k in range(a.shape[1] // 16):
            left[ty, tx] = a[y, k * 16 + tx]
            right[ty, tx] = b[k * 16 + ty, x]
            cuda.syncthreads()
            for i in range(16):
                total += left[ty, i] * right[i, tx]
            cuda.syncthreads()
        c[y, x] = total

    n = 8 * tile
    a = cuda.to_device(np.arange(n * n, dtype=np.int32).reshape(n, n) % 17)
    b = cuda.to_device(np.arange(n * n, dtype=np.int32).reshape(n, n) % 13 + 1)
    c = cuda.device_array((n, n), np.int32)
    while True:
        multiply[(8, 8), (16, 16)](a, b, c)
        a, c = c, a
        yield a


def atomics():
    @cuda.jit
    def count(x, bins, greatest):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = x[i] * 1664525 + 1013904223
            cuda.atomic.add(bins, (x[i] >> 8) % bins.size, 1)
            cuda.atomic.max(greatest, 0, x[i])

    x, bins, greatest = cuda.to_device(np.arange(20_000, dtype=np.uint32)), cuda.to_device(np.zeros(64, np.int32)), cuda.to_device(np.zeros(1, np.uint32))
    while True:
        count[79, 256](x, bins, greatest)
        yield [x, bins, greatest]


def reduction():
    total = cuda.reduce(lambda a, b: a + b)
    x = np.arange(30_000, dtype=np.int64)
    on_gpu, found = cuda.to_device(x), 0

    @cuda.jit
    def push(x, by):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = x[i] * 3 + by

    while True:
        found = int(total(on_gpu)) % 1_000_003
        push[118, 256](on_gpu, found)
        yield on_gpu


def ufunc():
    @numba.vectorize(["float64(float64, float64)"], target="cuda")
    def step(x, r):
        return r * x * (1 - x)

    x = cuda.to_device(np.linspace(0.1, 0.9, 10_000))
    while True:
        x = step(x, 3.9)
        yield x


def warps():
    @cuda.jit
    def mix(x):
        i = cuda.grid(1)
        v = x[i]
        other = cuda.shfl_xor_sync(0xFFFFFFFF, v, 5)
        below = cuda.shfl_up_sync(0xFFFFFFFF, v, 1)
        votes = cuda.ballot_sync(0xFFFFFFFF, (v ^ other) & 1)
        x[i] = v * 5 + other * 3 + below + cuda.popc(votes)

    x = cuda.to_device(np.arange(4096, dtype=np.int32))
    while True:
        mix[16, 256](x)
        yield x


def grid():
    """Blocks that wait for each other."""
    @cuda.jit
    def turn(x, y):
        i = cuda.grid(1)
        whole = cuda.cg.this_grid()
        for k in range(4):
            y[i] = x[(i + 257) % x.size] + x[(i * 7) % x.size]
            whole.sync()
            x[i] = y[x.size - 1 - i] ^ k
            whole.sync()

    x = cuda.to_device(np.arange(2048, dtype=np.int64))
    y = cuda.device_array_like(x)
    while True:
        turn[8, 256](x, y)
        yield x


def random():
    from numba.cuda import random as generators

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = out[i] * 0.5 + generators.xoroshiro128p_uniform_float64(states, i)

    states = generators.create_xoroshiro128p_states(1024, seed=3)
    out = cuda.to_device(np.zeros(1024))
    while True:
        draw[4, 256](states, out)
        yield out


def constants():
    table = np.arange(64, dtype=np.int32) * 3 + 1

    @cuda.jit
    def look_up(x):
        known, own = cuda.const.array_like(table), cuda.local.array(8, numba.int32)
        i = cuda.grid(1)
        for k in range(8):
            own[k] = known[(x[i] + k) % 64]
        total = numba.int32(0)
        for k in range(8):
            total += own[(k * 3) % 8] * (k + 1)
        x[i] = x[i] * 3 + total

    x = cuda.to_device(np.arange(4096, dtype=np.uint32))
    while True:
        look_up[16, 256](x)
        yield x


@cuda.jit
def triple(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * 3 + 1


def streams():
    """Pinned memory, copies in a stream, events."""
    stream, done = cuda.stream(), cuda.event()
    host = cuda.pinned_array(40_000, np.int64)
    host[:] = np.arange(host.size)
    x = cuda.device_array(host.size, np.int64, stream=stream)
    while True:
        x.copy_to_device(host, stream=stream)
        triple[157, 256, stream](x)
        x.copy_to_host(host, stream=stream)
        done.record(stream)
        done.synchronize()
        host ^= host >> 7
        yield [np.array(host)]


class Number(int):
    """A stream's number that has a `value`, as handles of ctypes have."""

    value = property(int)


def caller(stream):
    """The stream as callbacks can be added to it: some versions of Numba ask NVIDIA's own handles for a `value`, which those lack."""
    handle = stream.handle
    return stream if hasattr(handle, "value") else type(stream)(Number(int(handle)), external=True)


def callbacks():
    """Functions of the host in a stream."""
    stream, seen = cuda.stream(), []
    x = cuda.to_device(np.arange(1000, dtype=np.int64), stream=stream)
    while True:
        triple[4, 256, stream](x)
        caller(stream).add_callback(lambda stream, status, what: seen.append(what), len(seen))
        stream.synchronize()
        yield [x, np.array(seen[-30:])]


def mapped():
    """Memory of the host that a kernel writes to."""
    x = cuda.mapped_array(10_000, np.int64)
    x[:] = np.arange(x.size)
    while True:
        triple[40, 256](x)
        cuda.synchronize()
        np.asarray(x)[::3] ^= 12345
        yield [np.array(x)]


def registered():
    """An array of NumPy's that is pinned for a while."""
    x = np.arange(100_000, dtype=np.int64)
    while True:
        with cuda.pinned(x):
            on_gpu = cuda.to_device(x)
            triple[391, 256](on_gpu)
            on_gpu.copy_to_host(x)
        yield [x]


def managed():
    x = cuda.managed_array(10_000, np.int64)
    x[:] = np.arange(x.size)
    while True:
        triple[40, 256](x)
        cuda.synchronize()
        np.asarray(x)[::3] ^= 12345
        yield [np.array(x)]


def linked():
    """A function in CUDA C, compiled by NVRTC and linked to the kernel."""
    source = cuda.CUSource('extern "C" __device__ int spin(int *out, int x) { *out = x * 7 ^ x >> 3; return 0; }')
    spin = cuda.declare_device("spin", "int32(int32)", link=source)

    @cuda.jit
    def use(x):
        i = cuda.grid(1)
        x[i] = spin(x[i])

    x = cuda.to_device(np.arange(1024, dtype=np.int32))
    while True:
        use[4, 256](x)
        yield x


def driver():
    """The driver's functions, and memory that its numbers name."""
    context = cuda.current_context()
    x = cuda.to_device(np.arange(1000, dtype=np.int64))
    sizes = []
    while True:
        piece = context.memalloc(8000)
        cuda.driver.device_to_device(piece, x, 8000)
        triple[4, 256](x)
        back = (ctypes.c_int64 * 1000)()
        cuda.driver.device_to_host(back, piece, 8000)
        sizes = [int(back[n]) for n in range(0, 1000, 100)]
        yield [x, np.array(sizes)]


def fetch(state):
    return [x if isinstance(x, np.ndarray) else x.copy_to_host() for x in (state if isinstance(state, list) else [state])]


def main():
    warnings.simplefilter("ignore")
    if not cuda.is_available():
        leave_out("Numba finds no GPU")
    parts = [shared, atomics, reduction, ufunc, warps, grid, random, constants, streams, callbacks, mapped, registered, managed, linked]
    parts += [driver]
    run_parts(arguments(__doc__).parse_args(), parts, fetch)


main()
