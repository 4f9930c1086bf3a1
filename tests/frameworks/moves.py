"""Runs training programs under mrcuda, moves each at random moments, and compares their output with a native run's.

    moves.py --mrcuda PATH [--modes eager,graph,...] [--runs N] [--steps N] [--moves N] [--seed N] [--unix] [--at-once N]

Two servers are started on this machine. A run goes through remote -> local -> other server -> ... in random order; it counts
when its output is native's to the last bit. The table has one line for each mode; the exit status is 1 if any run differed.
"""

import argparse
import concurrent.futures
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = "eager,amp,attention,cudnn,fft,solver,dataloader,compile,graph,expandable"


def environment(mode, extra=()):
    env = dict(os.environ, **dict(extra))
    if mode == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return env


class Servers:
    """Two servers on this machine, over TCP or on Unix sockets (the same memory)."""

    def __init__(self, mrcuda, folder, unix):
        self.places, self.running = [], []
        for n in range(2):
            where = f"{folder}/s{n}" if unix else f"127.0.0.1:{7910 + n}"
            option = "--unix" if unix else "--listen"
            log = open(f"{folder}/server{n}.log", "w")
            self.running.append(subprocess.Popen([mrcuda, "serve", option, where], stdout=log, stderr=log))
            self.places.append(f"unix:{where}" if unix else where)
        time.sleep(4)

    def stop(self):
        for s in self.running:
            s.terminate()
            s.wait()


def train(mode, steps):
    return [sys.executable, f"{HERE}/train.py", mode, "--steps", str(steps)]


def native(mode, steps):
    began = time.monotonic()
    done = subprocess.run(train(mode, steps), env=environment(mode), capture_output=True, text=True, timeout=200)
    if done.returncode:
        raise RuntimeError(f"{mode} fails natively: {done.stderr[-500:]}")
    return done.stdout, pace(done.stderr), time.monotonic() - began


def pace(text):
    found = re.search(r"([\d.]+) ms a step", text)
    return float(found.group(1)) if found else float("nan")


def one_run(args, servers, folder, mode, number):
    rng = random.Random(f"{args.seed} {mode} {number}")
    name = f"{folder}/{mode}-{number}"
    with open(name + ".out", "w") as out, open(name + ".err", "w") as err:
        command = [args.mrcuda, "run", "--server", servers.places[0], "--"] + train(mode, args.steps)
        job = subprocess.Popen(command, stdout=out, stderr=err, env=environment(mode, {"MRCUDA_LOG": name + ".log"}.items()))
    here, moves, refusals = servers.places[0], [], []
    deadline = time.monotonic() + 120
    while job.poll() is None and "step 10 " not in open(name + ".err").read() and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(args.moves):
        time.sleep(rng.random() * args.pause)
        if job.poll() is not None:
            break
        to = rng.choice([p for p in servers.places + ["local"] if p != here])
        asked = subprocess.run([args.mrcuda, "migrate", str(job.pid), "--to", to, "--json"], capture_output=True, text=True)
        try:
            report = json.loads(asked.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            break
        if report.get("ok"):
            moves.append(report)
            here = to
        elif job.poll() is None:
            refusals.append(str(report.get("reason")))
    try:
        status = job.wait(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        job.kill()
        status = "hung"
    return open(name + ".out").read(), status, pace(open(name + ".err").read()), moves, refusals


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mrcuda", required=True)
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--moves", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.6, help="longest pause before a move, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unix", action="store_true")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--logs", help="a folder that keeps what the runs wrote")
    args = parser.parse_args()
    args.mrcuda = os.path.abspath(args.mrcuda)
    folder = args.logs or tempfile.mkdtemp(prefix="mrcuda-frameworks-")
    os.makedirs(folder, exist_ok=True)
    servers = Servers(args.mrcuda, folder, args.unix)
    failed = False
    print(f"{'mode':<12}{'same':>8}{'moves':>7}{'down ms':>9}{'max':>6}{'native ms/step':>16}{'moved ms/step':>15}")
    try:
        with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            for mode in args.modes.split(","):
                try:
                    want, native_pace, _ = native(mode, args.steps)
                except (RuntimeError, subprocess.TimeoutExpired) as why:
                    print(f"{mode:<12}{why}", flush=True)
                    failed = True
                    continue
                runs = list(pool.map(lambda n: one_run(args, servers, folder, mode, n), range(args.runs)))
                same = sum(out == want and status == 0 for out, status, *_ in runs)
                downs = sorted(m["downtime_ms"] for r in runs for m in r[3]) or [float("nan")]
                paces = sorted(r[2] for r in runs)
                print(f"{mode:<12}{f'{same}/{len(runs)}':>8}{sum(len(r[3]) for r in runs):>7}{downs[len(downs) // 2]:>9.1f}"
                      f"{downs[-1]:>6.0f}{native_pace:>16.3f}{paces[len(paces) // 2]:>15.3f}", flush=True)
                for out, status, _, _, refusals in runs:
                    for why in refusals:
                        print(f"    refused: {why[:300]}")
                    if out != want or status != 0:
                        failed = True
                        print(f"    DIFFERS (status {status}): {out.strip()[-160:]!r}")
    finally:
        servers.stop()
    sys.exit(failed)


main()
