"""CuPy: its kernels, libraries, pools, streams, graphs and textures, each a part with a state that every step changes.

Modes: `cupy`; `cupy-async` and `cupy-managed` with all memory from the driver's stream-ordered pools, or managed.
"""

import importlib

import numpy as np

from steps import arguments, need, run_parts

cp = need("cupy")

MIX = r"""
extern "C" __global__ void mix(unsigned *x, unsigned *sum, int n)
{
    __shared__ unsigned part[256];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = i < n ? x[i] : 0;
    for (int k = 0; k < 20; k++) v = v * 1664525u + 1013904223u;
    v ^= v >> 15;
    part[threadIdx.x] = v;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
    if (i < n) x[i] = v;
}
"""


def raw():
    """A kernel in CUDA C, compiled by NVRTC."""
    mix = cp.RawKernel(MIX, "mix")
    x, total = cp.arange(100_000, dtype=cp.uint32), cp.zeros(1, cp.uint32)
    while True:
        mix((391,), (256,), (x, total, np.int32(x.size)))
        yield [x, total]


def module():
    """A module with a constant, a global variable and a template."""
    code = r"""
    __constant__ int weights[16];
    __device__ unsigned calls;
    extern "C" __global__ void call() { calls++; }
    template <typename T> __global__ void weigh(T *x, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * weights[i % 16] + (T)calls;
    }
    """
    built = cp.RawModule(code=code, options=("-std=c++17",), name_expressions=["call", "weigh<int>", "weigh<long long>"])
    call, small, large = built.get_function("call"), built.get_function("weigh<int>"), built.get_function("weigh<long long>")
    weights = cp.ndarray(16, cp.int32, built.get_global("weights"))
    weights[...] = cp.arange(3, 35, 2, dtype=cp.int32)
    x, y = cp.arange(5000, dtype=cp.int32), cp.arange(5000, dtype=cp.int64)
    while True:
        call((1,), (1,), ())
        small((20,), (256,), (x, np.int32(x.size)))
        large((20,), (256,), (y, np.int32(y.size)))
        yield [x, y]


def cooperative():
    """A grid whose blocks wait for each other."""
    code = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void turn(unsigned *x, unsigned *y, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        for (int k = 0; k < 4; k++) {
            y[i] = x[(i + 257) % n] + x[(i * 7) % n];
            cooperative_groups::this_grid().sync();
            x[i] = y[n - 1 - i] ^ k;
            cooperative_groups::this_grid().sync();
        }
    }
    """
    turn = cp.RawKernel(code, "turn", enable_cooperative_groups=True)
    x = cp.arange(4096, dtype=cp.uint32)
    y = cp.empty_like(x)
    while True:
        turn((16,), (256,), (x, y, np.int32(x.size)))
        yield x


def elementwise():
    """Kernels that CuPy writes itself: element by element, reductions, fused ones."""
    logistic = cp.ElementwiseKernel("float64 x, float64 r", "float64 y", "y = r * x * (1 - x)", "logistic")
    squares = cp.ReductionKernel("float64 x", "float64 y", "x * x", "a + b", "y = sqrt(a)", "0", "squares")

    @cp.fuse()
    def smooth(x, y):
        return cp.sin(x * 3) * 0.5 + y * y * 0.25

    x = cp.linspace(0.1, 0.9, 20_000)
    sizes = cp.zeros(4)
    while True:
        x = logistic(x, 3.9)
        sizes = cp.stack([squares(x), x.sum(), x.max(), smooth(x, x[::-1]).mean()])
        yield [x, sizes]


def fft():
    x = cp.linspace(0, 1, 64 * 64).reshape(64, 64).astype(cp.complex128)
    gain = cp.exp(1j * cp.arange(64.0))
    while True:
        x = cp.fft.ifft2(cp.fft.fft2(x) * gain)
        row = cp.fft.irfft(cp.fft.rfft(x.real, axis=1), axis=1)
        x = cp.cos(5 * row) + 1j * x.imag
        yield x


def linalg():
    """cuBLAS and cuSOLVER."""
    n = 48
    a = cp.asarray(np.random.RandomState(3).standard_normal((n, n)))
    while True:
        s = a @ a.T + cp.eye(n)
        values, vectors = cp.linalg.eigh(s)
        b = cp.linalg.solve(s, a) + cp.linalg.cholesky(s) * 0.1
        q, r = cp.linalg.qr(b)
        sizes = cp.linalg.svd(b, compute_uv=False)
        a = cp.sin(3 * b + q) + cp.log1p(cp.abs(values) + sizes) * 0.1
        yield [a, vectors * 0 + r]


def sparse():
    """cuSPARSE; whole numbers, so that no order of additions matters."""
    sparse = importlib.import_module("cupyx.scipy.sparse")
    n = 500
    i = np.arange(n)
    rows, columns = np.concatenate([i, i, i]), np.concatenate([i, (i * 7 + 1) % n, (i * 3 + 2) % n])
    a = sparse.csr_matrix((cp.asarray(np.concatenate([i % 5 + 1, i % 3, i % 7]).astype(float)), (cp.asarray(rows), cp.asarray(columns))), (n, n))
    x = cp.arange(n, dtype=float)
    while True:
        x = (a @ x + a.T @ x) % 1009
        yield x


def random():
    """cuRAND's host library, whose generators keep their state on the GPU, and CuPy's own generators."""
    old, new = cp.random.RandomState(7), cp.random.Generator(cp.random.Philox4x3210(7))
    total = cp.zeros(1000)
    while True:
        total = total * 0.5 + old.standard_normal(1000) + new.random(1000) + old.randint(0, 9, 1000)
        yield total


def sorting():
    x = cp.arange(30_000, dtype=cp.uint32)
    while True:
        x = x * cp.uint32(2654435761) + cp.uint32(12345)
        order = cp.argsort(x >> 7)
        x = cp.cumsum(x[order], dtype=cp.uint32)
        found = cp.searchsorted(cp.sort(x), x[:100])
        yield [x, found, cp.unique(x % 100)]


def streams():
    """Two streams with pinned memory and events: the host changes what one brings, the other takes it back."""
    cupyx = importlib.import_module("cupyx")
    up, down = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    there, here = cp.cuda.Event(disable_timing=True), cp.cuda.Event()
    host, back = cupyx.zeros_pinned(50_000, np.int64), cupyx.zeros_pinned(50_000, np.int64)
    host[:] = np.arange(host.size)
    x = cp.empty(host.size, cp.int64)
    # Its memory may have been another array's, in the stream that is no longer waited for.
    cp.cuda.get_current_stream().synchronize()
    while True:
        x.set(host, stream=up)
        with up:
            x *= 3
            x += 1
            there.record(up)
        down.wait_event(there)
        x.get(stream=down, out=back, blocking=False)
        here.record(down)
        here.synchronize()
        host[:] = back ^ (back >> 5)
        yield [host.copy()]


def callbacks():
    """Functions of the host in a stream."""
    stream, seen = cp.cuda.Stream(non_blocking=True), []
    x = cp.zeros(1000, cp.int64)
    stream.wait_event(cp.cuda.get_current_stream().record())
    while True:
        with stream:
            x += 1
        stream.launch_host_func(lambda n: seen.append(n), len(seen))
        stream.synchronize()
        yield [x, np.array(seen[-50:])]


def graph():
    """A captured graph, launched each step."""
    stream = cp.cuda.Stream(non_blocking=True)
    mix = cp.RawKernel(MIX, "mix")
    x, total, y = cp.arange(20_000, dtype=cp.uint32), cp.zeros(1, cp.uint32), cp.zeros(20_000, cp.uint32)
    cp.cuda.get_current_stream().synchronize()
    with stream:
        mix((79,), (256,), (x, total, np.int32(x.size)))
        cp.multiply(x, 3, out=y)
        stream.synchronize()
        stream.begin_capture()
        mix((79,), (256,), (x, total, np.int32(x.size)))
        cp.add(x, y, out=y)
        mix((79,), (256,), (y, total, np.int32(y.size)))
        made = stream.end_capture()
    while True:
        made.launch(stream)
        stream.synchronize()
        yield [x, y, total]


def pools():
    """Memory from pools of every kind, of sizes that change, given back each step."""
    kinds = [cp.cuda.MemoryPool().malloc, cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc, cp.cuda.malloc_async]
    kept = cp.zeros(3000, cp.int32)
    step = 0
    while True:
        for kind, allocate in enumerate(kinds):
            with cp.cuda.using_allocator(allocate):
                piece = cp.arange(1000 + step % 7 * 5000, dtype=cp.int32) * (kind + 2)
                kept[kind * 1000:][:1000] += piece[:1000] + piece[-1000:]
        step += 1
        yield kept


def async_pool():
    """The driver's pool with several streams."""
    pool = cp.cuda.MemoryAsyncPool()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
    kept = [cp.zeros(4096, cp.int64) for _ in streams]
    cp.cuda.get_current_stream().synchronize()
    while True:
        with cp.cuda.using_allocator(pool.malloc):
            for n, stream in enumerate(streams):
                with stream:
                    piece = cp.arange(4096, dtype=cp.int64) * (n + 1)
                    cp.add(kept[n] * 3, piece, out=kept[n])
        for stream in streams:
            stream.synchronize()
        yield kept


def managed():
    """Managed memory that processor and GPU write in turn."""
    with cp.cuda.using_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc):
        x = cp.arange(10_000, dtype=cp.int64)
    seen = np.frombuffer((np.ctypeslib.ctypes.c_char * x.nbytes).from_address(x.data.ptr), np.int64)
    cp.cuda.get_current_stream().synchronize()
    while True:
        x *= 5
        cp.cuda.get_current_stream().synchronize()
        seen[::3] ^= 12345
        yield x


def textures():
    """A texture that interpolates, over an array that each step writes to; a surface that a kernel writes to."""
    texture = cp.cuda.texture
    code = r"""
    extern "C" __global__ void sample(cudaTextureObject_t from, cudaSurfaceObject_t to, float *out, int w, int h)
    {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x >= w || y >= h) return;
        float v = tex2D<float>(from, x + 0.75f, y + 0.5f) + tex2D<float>(from, w - x - 0.25f, h - y + 0.25f);
        v = v * 1.7f - floorf(v * 1.7f);
        surf2Dwrite(v, to, x * 4, y);
        out[y * w + x] = v;
    }
    """
    w, h = 96, 64
    kernel = cp.RawKernel(code, "sample")
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, cp.cuda.runtime.cudaChannelFormatKindFloat)
    source = texture.CUDAarray(channel, w, h)
    target = texture.CUDAarray(channel, w, h, 0, cp.cuda.runtime.cudaArraySurfaceLoadStore)
    of_array = lambda array: texture.ResourceDescriptor(cp.cuda.runtime.cudaResourceTypeArray, cuArr=array)
    wrap = (cp.cuda.runtime.cudaAddressModeMirror,) * 2
    described = texture.TextureDescriptor(wrap, cp.cuda.runtime.cudaFilterModeLinear, cp.cuda.runtime.cudaReadModeElementType)
    seen, surface = texture.TextureObject(of_array(source), described), texture.SurfaceObject(of_array(target))
    out = cp.linspace(0, 1, w * h, dtype=cp.float32).reshape(h, w)
    written = cp.empty_like(out)
    while True:
        source.copy_from(out)
        kernel((6, 4), (16, 16), (seen, surface, out, np.int32(w), np.int32(h)))
        target.copy_to(written)
        yield [out, written]


def jit():
    """A kernel in Python."""
    jit = importlib.import_module("cupyx.jit")

    @jit.rawkernel()
    def shift(x, y, n):
        i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
        if i < n:
            y[i] = x[(i * 5 + 3) % n] * 3 + 1

    x = cp.arange(4096, dtype=cp.int32)
    y = cp.empty_like(x)
    while True:
        shift[32, 128](x, y, np.uint32(x.size))
        x, y = y, x
        yield x


def main():
    args = arguments(__doc__).parse_args()
    allocator = {"async": cp.cuda.malloc_async, "managed": cp.cuda.malloc_managed}.get(args.mode.partition("-")[2])
    if allocator:
        cp.cuda.set_allocator(allocator if args.mode == "cupy-async" else cp.cuda.MemoryPool(allocator).malloc)
    parts = [raw, module, cooperative, elementwise, fft, linalg, sparse, random, sorting, streams, callbacks, graph, pools, async_pool]
    parts += [managed, textures, jit]
    run_parts(args, parts, lambda state: [cp.asnumpy(x) for x in (state if isinstance(state, list) else [state])])


main()
