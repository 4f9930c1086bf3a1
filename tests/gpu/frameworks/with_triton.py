"""Triton without a framework around it but PyTorch's tensors: dot products, descriptors of tensors, atomics, reductions, graphs.
Mode: `triton`."""

from steps import arguments, need, run_parts

torch, triton = need("torch", "triton")
tl = need("triton.language")


@triton.jit
def matmul(a, b, c, n, SIZE: tl.constexpr, DEEP: tl.constexpr):
    rows = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    columns = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    deep = tl.arange(0, DEEP)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for k in range(0, n, DEEP):
        left = tl.load(a + rows[:, None] * n + (k + deep)[None, :])
        right = tl.load(b + (k + deep)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], tl.sin(total).to(tl.float16))


@triton.jit
def tiles(a, b, c, n, SIZE: tl.constexpr, DEEP: tl.constexpr):
    row, column = tl.program_id(0) * SIZE, tl.program_id(1) * SIZE
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for k in range(0, n, DEEP):
        total = tl.dot(a.load([row, k]), b.load([k, column]), total)
    c.store([row, column], tl.sin(total).to(tl.float16))


@triton.jit
def softmax(x, y, width, SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    v = tl.load(x + row * width + at, mask=at < width, other=-float("inf"))
    e = tl.exp((v - tl.max(v, 0)) * 5)
    tl.store(y + row * width + at, tl.cos(e / tl.sum(e, 0) * 40 + at), mask=at < width)


@triton.jit
def count(x, bins, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < size, other=0) * 1664525 + 1013904223
    tl.store(x + at, v, mask=at < size)
    tl.atomic_add(bins + (v.to(tl.uint32, bitcast=True) >> 26), 1, mask=at < size)


def dots():
    n = 256
    a = torch.sin(torch.arange(n * n, device="cuda", dtype=torch.float32)).view(n, n).half()
    b, c = a.T.contiguous(), torch.empty_like(a)
    while True:
        matmul[(4, 4)](a, b, c, n, SIZE=64, DEEP=32)
        a, c = c, a
        yield a


def descriptors():
    """Tensor maps, made on the host and given to the kernel."""
    from triton.tools.tensor_descriptor import TensorDescriptor
    n = 256
    a = torch.sin(torch.arange(n * n, device="cuda", dtype=torch.float32)).view(n, n).half()
    b, c = a.T.contiguous(), torch.empty_like(a)
    describe = lambda x, shape: TensorDescriptor(x, [n, n], [n, 1], shape)
    while True:
        tiles[(4, 4)](describe(a, [64, 64]), describe(b, [64, 64]), describe(c, [64, 64]), n, SIZE=64, DEEP=64)
        a, c = c, a
        yield a


def rows():
    x = torch.linspace(0, 1, 300 * 1000, device="cuda").view(300, 1000)
    while True:
        y = torch.empty_like(x)
        softmax[(300,)](x, y, 1000, SIZE=1024)
        x = y
        yield x


def atomics():
    x, bins = torch.arange(50_000, device="cuda", dtype=torch.int32), torch.zeros(64, device="cuda", dtype=torch.int32)
    while True:
        count[(triton.cdiv(50_000, 1024),)](x, bins, 50_000, BLOCK=1024)
        yield [x, bins]


def graph():
    x, bins = torch.arange(50_000, device="cuda", dtype=torch.int32), torch.zeros(64, device="cuda", dtype=torch.int32)
    launch = lambda: count[(triton.cdiv(50_000, 512),)](x, bins, 50_000, BLOCK=512)
    launch()
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        launch()
        launch()
    while True:
        made.replay()
        yield [x, bins]


def main():
    parts = [dots, descriptors, rows, atomics, graph]
    run_parts(arguments(__doc__).parse_args(), parts, lambda state: [x.cpu().numpy() for x in (state if isinstance(state, list) else [state])])


main()
