"""JAX: a network with convolution, attention, Fourier transforms and solvers in a jitted step; loops, callbacks, kernels in Pallas.

Modes: `jax`, with a pool of a twentieth of the GPU's memory; `jax-whole`, with JAX's own pool of three quarters of it; `jax-graphs`, with
all that can be in CUDA graphs, loops and branches too; `jax-async` and `jax-platform`, with the driver's pools and without any.
"""

import os
import sys

from steps import arguments, leave_out, need, run_parts

FLAGS = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
GRAPHS = " --xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE"
KIND = (sys.argv[1] if len(sys.argv) > 1 else "").partition("-")[2]
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), FLAGS + (GRAPHS if KIND == "graphs" else "")]).strip()
if KIND != "whole":
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".05"
if KIND in ("async", "platform"):
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = {"async": "cuda_async"}.get(KIND, KIND)

import numpy as np

jax, jnp = need("jax", "jax.numpy")
WIDTH, ROWS = 64, 16


def parameters():
    random = np.random.RandomState(1)
    made = lambda *shape: jnp.asarray(random.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), jnp.float32)
    return {"conv": made(3, 3, 3, WIDTH), "qkv": made(WIDTH, 3 * WIDTH), "gain": made(ROWS * ROWS // 2 + 1, WIDTH),
            "solve": made(WIDTH, WIDTH), "up": made(WIDTH, 4 * WIDTH), "down": made(4 * WIDTH, WIDTH)}


def forward(p, x, key):
    """Of images, 16 by 16."""
    h = jax.lax.conv_general_dilated(x, p["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = jax.nn.gelu(h).reshape(x.shape[0], ROWS * ROWS, WIDTH)
    q, k, v = jnp.split((h @ p["qkv"]).reshape(x.shape[0], ROWS * ROWS, 4, 3 * WIDTH // 4), 3, -1)
    h = h + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(h.shape)
    h = h + jnp.fft.irfft(jnp.fft.rfft(h, axis=1) * p["gain"], n=h.shape[1], axis=1)
    h = h * jax.random.bernoulli(key, 0.9, h.shape)
    h = (h + jax.nn.relu(h @ p["up"]) @ p["down"]).mean(1)
    a = p["solve"] @ p["solve"].T + jnp.eye(WIDTH)
    return jnp.linalg.solve(a, h.T).T + jnp.linalg.cholesky(a).sum() * 1e-3


def update(state, x, y, k):
    key = jax.random.fold_in(jax.random.key(7), k)
    loss, slopes = jax.value_and_grad(lambda p: jnp.mean((forward(p, x, key) - y) ** 2))(state["p"])
    # What the host makes of the loss sets the rate.
    rate = jax.pure_callback(lambda v: np.float32(1e-3) / (1 + np.abs(v, dtype=np.float32)), jax.ShapeDtypeStruct((), jnp.float32), loss)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], slopes)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], slopes)
    p = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-6), state["p"], m, v)
    return {"p": p, "m": m, "v": v}, loss


def train():
    p = parameters()
    state = {"p": p, "m": jax.tree.map(jnp.zeros_like, p), "v": jax.tree.map(jnp.zeros_like, p)}
    step = jax.jit(update, donate_argnums=0)
    random, k = np.random.RandomState(2), 0
    while True:
        x, y = random.standard_normal((8, ROWS, ROWS, 3)).astype(np.float32), random.standard_normal((8, WIDTH)).astype(np.float32)
        state, loss = step(state, x, y, k)
        k += 1
        yield jax.tree.leaves(state) + [loss]


def loops():
    """Loops whose ends the GPU finds, branches, scans."""
    @jax.jit
    def step(x):
        x = jax.lax.fori_loop(0, 5, lambda i, x: x * jnp.uint32(1664525) + jnp.uint32(1013904223), x)
        x, n = jax.lax.while_loop(lambda s: (s[0].max() % 7 != 0) & (s[1] < 20), lambda s: (s[0] * 3 + 1, s[1] + 1), (x, 0))
        x = jax.lax.cond(x[0] % 2 == 0, lambda x: x ^ (x >> 5), lambda x: jnp.roll(x, 3), x)
        total, parts = jax.lax.scan(lambda total, v: (total * 5 + v, total), jnp.uint32(n), x[:16])
        return jnp.concatenate([parts, x[16:]]) + total

    x = jnp.arange(10_000, dtype=jnp.uint32)
    while True:
        x = step(x)
        yield [x]


def linalg():
    @jax.jit
    def step(a):
        s = a @ a.T + jnp.eye(a.shape[0])
        values, vectors = jnp.linalg.eigh(s)
        q, r = jnp.linalg.qr(a)
        u, sizes, _ = jnp.linalg.svd(s, full_matrices=False)
        return jnp.sin(3 * q + jnp.log1p(values) + jnp.log1p(sizes)) + r * 0.01, vectors, u

    a = jnp.asarray(np.random.RandomState(3).standard_normal((40, 40)), jnp.float32)
    while True:
        a, vectors, u = step(a)
        yield [a, vectors, u]


def sorting():
    @jax.jit
    def step(x):
        order = jnp.argsort(x >> 5)
        x = jnp.cumsum(x[order] * jnp.uint32(2654435761) + 1, dtype=jnp.uint32)
        return x + jax.ops.segment_sum(x, x % 100, 100)[x % 100]

    x = jnp.arange(20_000, dtype=jnp.uint32)
    while True:
        x = step(x)
        yield [x]


def flash():
    """cuDNN's attention, in half precision."""
    @jax.jit
    def step(x):
        return jnp.sin(3 * jax.nn.dot_product_attention(x, x + 1, x * 2, is_causal=True, implementation="cudnn"))

    x = jnp.sin(jnp.arange(2 * 128 * 4 * 64, dtype=jnp.float32)).reshape(2, 128, 4, 64).astype(jnp.bfloat16)
    while True:
        x = step(x)
        yield [x.astype(jnp.float32)]


def pallas():
    from jax.experimental import pallas

    def mix(x, out):
        out[...] = x[...] * 3 + (x[...] >> 7)

    step = jax.jit(pallas.pallas_call(mix, out_shape=jax.ShapeDtypeStruct((8192,), jnp.int32), grid=(8,),
                                      in_specs=[pallas.BlockSpec((1024,), lambda i: (i,))], out_specs=pallas.BlockSpec((1024,), lambda i: (i,))))
    x = jnp.arange(8192, dtype=jnp.int32)
    while True:
        x = step(x)
        yield [x]


def callbacks():
    """Functions of the host that the GPU's work calls, in order."""
    from jax.experimental import io_callback
    seen = []

    def note(v):
        seen.append(int(v))
        return np.int32(len(seen))

    @jax.jit
    def step(x):
        n = io_callback(note, jax.ShapeDtypeStruct((), jnp.int32), x[0], ordered=True)
        return x * 5 + n

    x = jnp.arange(1000, dtype=jnp.int32)
    while True:
        x = step(x)
        yield [x]


def main():
    args = arguments(__doc__).parse_args()
    if jax.default_backend() == "cpu" and "JAX_PLATFORMS" not in os.environ:
        leave_out("JAX finds no GPU")
    run_parts(args, [train, loops, linalg, sorting, flash, pallas, callbacks], lambda state: [np.asarray(x) for x in state])


main()
