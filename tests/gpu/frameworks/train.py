"""Deterministic PyTorch training in the modes that frameworks use; prints a digest of loss, parameters and optimiser state.

    train.py MODE [--steps N]

The digest line of a run through mrcuda must equal the native run's. Progress goes to stderr, so that a harness can choose the
moment of a move: after each ten steps `step K LOSS MS`, with the time that each of the ten took.
"""

import hashlib
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import arguments, steps


class Mlp(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 64))

    def forward(self, x):
        return self.layers(x)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(4))
        self.head = nn.Linear(64 * 16, 64)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Attention(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, w))


class Fourier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(width // 2 + 1))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.gain, n=x.shape[-1]))


class Solver(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)

    def forward(self, x):
        a = self.weight @ self.weight.T + torch.eye(self.weight.shape[0], device=x.device)
        return torch.linalg.solve(a, x.unsqueeze(-1)).squeeze(-1) + torch.linalg.cholesky(a).sum() * 1e-3


class Split(nn.Module):
    """Half of the layers on each of two GPUs: activations and gradients go from GPU to GPU."""

    def __init__(self, width=512):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.LayerNorm(width)).to("cuda:0")
        self.second = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 64)).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x).to("cuda:1")).to("cuda:0")


def batches(shape, steps, workers, rank=0):
    if not workers:
        generator = torch.Generator().manual_seed(7 + rank)
        for _ in range(steps):
            yield torch.randn(shape, generator=generator), torch.randn(shape[0], 64, generator=generator)
        return
    generator = torch.Generator().manual_seed(7)
    data = torch.utils.data.TensorDataset(torch.randn(steps * shape[0], *shape[1:], generator=generator),
                                          torch.randn(steps * shape[0], 64, generator=generator))
    yield from torch.utils.data.DataLoader(data, batch_size=shape[0], num_workers=workers, pin_memory=True)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    mode, device = args.mode, torch.device(args.device)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False

    rank = int(os.environ.get("RANK", "0"))
    distributed = {"ddp": "nccl", "ddp-gloo": "gloo"}.get(mode)
    if distributed:
        # Each rank has one GPU, which it sees as the first.
        torch.cuda.set_device(device)
        torch.distributed.init_process_group(distributed)
    models = {"cudnn": Conv, "attention": Attention, "fft": Fourier, "solver": Solver, "split": Split}
    model = models.get(mode, Mlp)()
    model = model if mode == "split" else model.to(device)
    if distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    shape = {"cudnn": (32, 3, 32, 32), "attention": (8, 128, 64)}.get(mode, (256, 64))
    if mode == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=mode == "graph")
    scaler = torch.amp.GradScaler("cuda", enabled=mode == "amp")
    forward = torch.compile(model) if mode == "compile" else model

    def step(x, y):
        optimizer.zero_grad(set_to_none=mode != "graph")
        with torch.autocast("cuda", dtype=torch.float16, enabled=mode == "amp"):
            out = forward(x)
            loss = F.mse_loss(out if out.dim() == 2 else out.mean(1), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    graph = None
    if mode == "graph":
        static_x, static_y = torch.zeros(shape, device=device), torch.zeros(shape[0], 64, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(static_x, static_y)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static_loss = step(static_x, static_y)

    data = batches(shape, args.steps, 2 if mode == "dataloader" else 0, rank)
    for _, (x, y) in zip(steps(args, lambda: f"{loss.item():.9g}"), data):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        if graph:
            static_x.copy_(x)
            static_y.copy_(y)
            graph.replay()
            loss = static_loss
        else:
            loss = step(x, y)
    digest = hashlib.sha256()
    tensors = list(model.state_dict().values()) + [loss.detach()]
    tensors += [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    for t in tensors:
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    print(f"{mode} loss {loss.item().hex()} digest {digest.hexdigest()}")
    if distributed:
        torch.distributed.destroy_process_group()


main()
