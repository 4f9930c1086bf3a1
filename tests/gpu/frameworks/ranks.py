"""Runs training on two GPUs under mrcuda, moves it at random steps, and compares its output with a native run's.

    ranks.py --mrcuda PATH [--modes ddp,ddp-gloo,split] [--transports shm,tcp,local] [--nccl net|p2p] [--runs N] [--steps N] [--moves N]
             [--pace MS] [--at-once N] [--limit SECONDS]

Two servers are started on this machine. In the modes `ddp…` there are two processes, each a job of its own under `mrcuda run` with one
GPU; a move concerns one of them. In the mode `split` there is one job with two GPUs, which move together. A run counts when all output
is native's to the last bit. The exit status is 1 if any run differed.
"""

import argparse
import concurrent.futures
import os
import random
import subprocess
import sys
import tempfile
import time

from moves import LIMIT, Run, Servers, environment, show_refusals, train

GPUS = 2
# What NCCL must not try here: memory that several GPUs have in common, and physical memory by other calls than those of the runtime.
NCCL = {"NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
BY_NET = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def rank_environment(args, rank, port):
    env = dict(NCCL, RANK=str(rank), WORLD_SIZE=str(GPUS), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return dict(env, **(BY_NET if args.nccl == "net" else {"NCCL_SHM_DISABLE": "1"}))


def native(args, mode, port):
    """What each process prints."""
    def start(env):
        return subprocess.Popen(train(args, mode), env=environment(mode, env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if mode == "split":
        started = [start({})]
    else:
        started = [start(dict(rank_environment(args, r, port), CUDA_VISIBLE_DEVICES=str(r))) for r in range(GPUS)]
    outputs = []
    for process in started:
        out, err = process.communicate(timeout=LIMIT)
        if process.returncode:
            raise RuntimeError(f"{mode} fails natively: {err[-500:]}")
        outputs.append(out)
    return outputs


def places_of(servers, transport):
    """For each server the places of its GPUs."""
    if transport == "local":
        return [[f"local:{g}" for g in range(GPUS)], [f"helper:{g}" for g in range(GPUS)]]
    by_gpu = [servers.places(transport, g) for g in range(GPUS)]
    return [list(places) for places in zip(*by_gpu)]


def one_run(args, servers, directory, mode, transport, number, port):
    rng = random.Random(f"{args.seed} {mode} {transport} {number}")
    sides = places_of(servers, transport)
    runs = []
    for rank in range(1 if mode == "split" else GPUS):
        place = ",".join(sides[0]) if mode == "split" else sides[0][rank]
        runs.append(Run(args, directory, f"{mode}-{transport}-{number}-{rank}", mode, place, rank_environment(args, rank, port)))
    here = [0] * len(runs)
    for step in sorted(rng.randrange(10, max(args.steps // 2, 11)) for _ in range(args.moves)):
        rank = rng.randrange(len(runs))
        if not runs[rank].reaches(step // 10 * 10):
            break
        time.sleep(rng.random() * 0.02)
        there = rng.choice([side for side in range(3) if side != here[rank]])
        if there == 2:
            to = "local" if mode == "split" else f"local:{rank}"
        else:
            to = ",".join(sides[there]) if mode == "split" else sides[there][rank]
        if runs[rank].migrate(to):
            here[rank] = there
    ends = [run.end() for run in runs]
    return [out for out, _ in ends], [status for _, status in ends], [m for r in runs for m in r.moves], [w for r in runs for w in r.refusals]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mrcuda", required=True)
    parser.add_argument("--modes", default="ddp,ddp-gloo,split")
    parser.add_argument("--transports", default="shm")
    parser.add_argument("--nccl", choices=["net", "p2p"], default="net")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--moves", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0, metavar="MS", help="rest so long after each step, so that moves get in")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs side by side")
    parser.add_argument("--limit", type=float, default=1e9, metavar="SECONDS", help="begin no run after so long")
    parser.add_argument("--logs", help="a directory that keeps what the runs wrote")
    args = parser.parse_args()
    args.mrcuda, args.costs = os.path.abspath(args.mrcuda), 0
    directory = args.logs or tempfile.mkdtemp(prefix="mrcuda-ranks-")
    os.makedirs(directory, exist_ok=True)
    right, port, until = True, 29400, time.monotonic() + args.limit
    servers = Servers(args.mrcuda, directory)
    try:
        print(f"{'mode':<12}{'':<6}{'same':>8}{'moves':>7}{'down ms':>9}{'max':>7}{'s':>8}")
        for mode in args.modes.split(","):
            port += 1
            try:
                want = native(args, mode, port)
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                print(f"{mode:<12}{why}", flush=True)
                right = False
                continue
            for transport in args.transports.split(","):
                began = time.monotonic()
                first, port = port + 1, port + args.runs
                started = lambda n: one_run(args, servers, directory, mode, transport, n, first + n) if time.monotonic() < until else None
                with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
                    runs = [run for run in pool.map(started, range(args.runs)) if run]
                same = sum(out == want and not any(status) for out, status, _, _ in runs)
                downs = sorted(m["downtime_ms"] for r in runs for m in r[2]) or [float("nan")]
                moved = sum(len(r[2]) for r in runs)
                print(f"{mode:<12}{transport:<6}{f'{same}/{len(runs)}':>8}{moved:>7}{downs[len(downs) // 2]:>9.1f}{downs[-1]:>7.0f}"
                      f"{time.monotonic() - began:>8.0f}", flush=True)
                show_refusals([why for r in runs for why in r[3]])
                for out, status, _, _ in runs:
                    if out != want or any(status):
                        print(f"    DIFFERS (status {status}): {[o.strip()[-100:] for o in out]!r}")
                right &= same == len(runs)
    finally:
        servers.stop()
    sys.exit(not right)


if __name__ == "__main__":
    main()
