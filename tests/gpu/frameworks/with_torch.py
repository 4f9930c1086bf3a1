"""What PyTorch programs are made of beside train.py's modes: models of other libraries, compiled loops, green contexts, other allocators.

Modes: `torch-gpt2` (a small GPT-2 of transformers, trained in bfloat16), `torch-generate` (the same writes with a static cache and
compiled steps), `torch-resnet` (torchvision, channels last), `torch-vit` (timm), `torch-gnn` (torch-geometric), `torch-lstm` (cuDNN's
recurrent layers), `torch-reduce` (compiled into CUDA graphs), `torch-async` (memory from the driver's pool), `torch-green` (a green
context), `torch-kernel` (kernels that NVRTC compiles), `torch-accelerate`, `torch-lightning`; and two that need 30 GiB: `torch-xl`
(GPT-2 XL trained with 25 GB of weights, slopes and moments) and `torch-cache` (decoding with 20 GiB of keys and values).
"""

import os
import sys

from steps import arguments, digest, leave_out, need, steps

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if MODE == "torch-async":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"

torch = need("torch")
nn, F = torch.nn, torch.nn.functional
GPU = "cuda"


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def train(model, batch, loss_of, precision=None, forward=None):
    """Steps of training, each of which yields the loss; `batch` gives the data of a step."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    k = 0
    while True:
        data = [x.to(GPU, non_blocking=True) for x in batch(k)]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=precision or torch.bfloat16, enabled=precision is not None):
            loss = loss_of(forward or model, *data)
        loss.backward()
        optimizer.step()
        k += 1
        yield [loss, *model.state_dict().values()]


def gpt2():
    transformers = need("transformers")
    config = transformers.GPT2Config(vocab_size=512, n_positions=128, n_embd=128, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    return transformers.GPT2LMHeadModel(config).to(GPU)


def train_xl():
    transformers = need("transformers")
    config = transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    with torch.device(GPU):
        model = transformers.GPT2LMHeadModel(config)
    return train(model, tokens, lambda model, x: model(input_ids=x, labels=x).loss, torch.bfloat16)


def decode_with_cache():
    """A token of each of 128 texts a step, with attention to all tokens before; the sums show each block of the cache."""
    layers, texts, heads, length, width = 16, 128, 16, 2560, 64
    random_on = torch.Generator(GPU).manual_seed(3)
    made = lambda *shape: torch.randn(shape, generator=random_on, device=GPU, dtype=torch.bfloat16)
    keys, values = ([made(texts, heads, length, width) for _ in range(layers)] for _ in range(2))
    weights = [made(4, heads * width, heads * width) / 32 for _ in range(layers)]
    x, at = made(texts, heads * width), 2000
    while True:
        with torch.no_grad():
            for key, value, w in zip(keys, values, weights):
                q, k, v = ((x @ w[n]).view(texts, heads, width) for n in range(3))
                key[:, :, at], value[:, :, at] = k, v
                seen = F.scaled_dot_product_attention(q[:, :, None], key[:, :, :at + 1], value[:, :, :at + 1])
                x = F.layer_norm(x + seen.reshape(x.shape) @ w[3], x.shape[1:])
            sums = [cache.view(torch.int32).sum((1, 3), dtype=torch.int64) for cache in keys + values]
        at += 1
        yield [x, *sums]


def tokens(k):
    return [torch.randint(1, 512, (4, 96), generator=torch.Generator().manual_seed(k))]


def train_gpt2():
    return train(gpt2(), tokens, lambda model, x: model(input_ids=x, labels=x).loss, torch.bfloat16)


def generate():
    """Text that each step continues by some words."""
    model = gpt2().eval()
    text = tokens(0)[0][:, :16].to(GPU)
    while True:
        with torch.no_grad():
            made = model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=16, min_new_tokens=16, do_sample=True,
                                  cache_implementation="static", pad_token_id=0)
        text = made[:, -16:].contiguous()
        yield [text]


def resnet():
    model = need("torchvision").models.resnet18(num_classes=10).to(GPU, memory_format=torch.channels_last)
    batch = lambda k: [random(16, 3, 64, 64, seed=k).to(memory_format=torch.channels_last), torch.arange(16) % 10]
    return train(model, batch, lambda model, x, y: F.cross_entropy(model(x), y), torch.bfloat16)


def vit():
    model = need("timm").create_model("vit_tiny_patch16_224", pretrained=False, img_size=64, depth=4, num_classes=10).to(GPU)
    batch = lambda k: [random(16, 3, 64, 64, seed=k), torch.arange(16) % 10]
    return train(model, batch, lambda model, x, y: F.cross_entropy(model(x), y), torch.float16)


def gnn():
    layers = need("torch_geometric.nn")
    edges = torch.randint(0, 400, (2, 3000), generator=torch.Generator().manual_seed(3)).to(GPU)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers.GCNConv(32, 64), layers.SAGEConv(64, 16)

        def forward(self, x):
            return self.second(F.relu(self.first(x, edges)), edges)

    return train(Net().to(GPU), lambda k: [random(400, 32, seed=k)], lambda model, x: (model(x) ** 2).mean())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.LSTM(32, 128, 2, batch_first=True, dropout=0.1), nn.Linear(128, 8)

    def forward(self, x):
        return self.out(self.layers(x)[0][:, -1])


def lstm():
    return train(Recurrent().to(GPU), lambda k: [random(16, 40, 32, seed=k)], lambda model, x: (model(x) ** 2).mean())


def mlp():
    return nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512), nn.Dropout(0.1), nn.Linear(512, 64)).to(GPU)


def squares(model, x, y):
    return F.mse_loss(model(x), y)


def pairs(k):
    return [random(128, 64, seed=k), random(128, 64, seed=-k - 1)]


def reduce():
    """Compiled into CUDA graphs."""
    model = mlp()
    return train(model, pairs, squares, forward=torch.compile(model, mode="reduce-overhead"))


def sizes():
    """Batches of all sizes, so that memory comes and goes."""
    return train(mlp(), lambda k: [x[:16 + k * 37 % 112] for x in pairs(k)], squares)


def green():
    """Half of the steps in a green context with some of the multiprocessors."""
    try:
        context = torch.cuda.green_contexts.GreenContext.create(16, 0)
    except (AttributeError, RuntimeError) as why:
        leave_out(f"green contexts: {why}")
    training = train(mlp(), pairs, squares)
    while True:
        yield next(training)
        torch.cuda.synchronize()
        context.set_context()
        made = next(training)
        torch.cuda.synchronize()
        context.pop_context()
        yield made


def kernel():
    """Kernels that NVRTC compiles, and PyTorch's own that it writes at run time."""
    source = "__global__ void mix(int *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = x[i] * 1664525 + 1013904223; }"
    if not hasattr(torch.cuda, "_compile_kernel"):
        leave_out("this PyTorch compiles no kernels")
    mix = torch.cuda._compile_kernel(source, "mix")
    twist = torch.cuda.jiterator._create_jit_fn("template <typename T> T twist(T x, T y) { return x * 3 + y * 7 + 1; }")
    x = torch.arange(10_000, device=GPU, dtype=torch.int32)
    while True:
        mix(grid=(40, 1, 1), block=(256, 1, 1), args=[x, 10_000])
        x = twist(x, x.flip(0))
        yield [x]


def accelerate():
    accelerator = need("accelerate").Accelerator(mixed_precision="bf16")
    model = mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    k = 0
    while True:
        with accelerator.accumulate(model):
            loss = squares(model, *[x.to(accelerator.device) for x in pairs(k)])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        k += 1
        yield [loss, *accelerator.unwrap_model(model).state_dict().values()]


def lightning(args, finish):
    """Its own loop, which takes a step of ours at each batch."""
    try:
        import lightning as library
    except ImportError:
        library = need("pytorch_lightning")
    state = {}
    progress = steps(args, lambda: f"{state['loss'].item():.9g}")

    class Net(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def training_step(self, batch, _):
            state["loss"] = squares(self.net, *batch)
            return state["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def on_train_batch_start(self, *_):
            next(progress, None)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return args.steps

        def __getitem__(self, k):
            return [x[0] for x in pairs(k)]

    net = Net()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = library.Trainer(max_epochs=16, max_steps=args.steps, accelerator="gpu", devices=1, precision="16-mixed", **quiet)
    trainer.fit(net, torch.utils.data.DataLoader(Data(), batch_size=16, pin_memory=True))
    next(progress, None)
    finish([state["loss"], *(x.to(GPU) for x in net.state_dict().values())])


LOOPS = {"gpt2": train_gpt2, "xl": train_xl, "cache": decode_with_cache, "generate": generate, "resnet": resnet, "vit": vit, "gnn": gnn, "lstm": lstm, "reduce": reduce,
         "async": sizes, "green": green, "kernel": kernel, "accelerate": accelerate}


def main():
    args = arguments(__doc__).parse_args()
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    kind = args.mode.partition("-")[2]
    as_arrays = lambda state: [x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for x in state]
    finish = lambda state: print(args.mode, digest(as_arrays(state)))
    if kind == "lightning":
        lightning(args, finish)
        return
    loop, state = LOOPS[kind](), None
    for _ in steps(args, lambda: digest(as_arrays(state[:1]))):
        state = next(loop)
    finish(state)


main()
