"""Runs training programs under mrcuda, moves each at random steps, and compares their output with a native run's.

    moves.py --mrcuda PATH [--modes eager,graph,...|others] [--transports tcp,shm,local,helper] [--runs N] [--steps N] [--moves N] [--seed N]
             [--pace MS] [--early] [--gpus N] [--at-once N] [--limit SECONDS] [--costs N]

Two servers are started on this machine, each reached over TCP and over shared memory. A run starts at one of them and goes, at
random steps, to the other or into the job's own process (with the transports local and helper it starts there), with --gpus to any of so many GPUs; it counts when its output is native's
to the last bit. The table has one line for each mode and transport: runs as native, runs that moved, moves, downtime (median and
longest), and by how much the longest step after the first ten exceeds the median one, natively and moved. With --costs no run moves:
the table shows the time of a step natively, remote, and in-process (see `costs`). The exit status is 1 if any run differed.

The modes are train.py's; one that begins with `jax`, `cupy`, … is of with_jax.py, with_cupy.py, …; `others` stands for all of those.
A mode whose framework is not installed is left out.

A step of these small models takes a millisecond or two, so that 200 of them are over before a move is: with --pace each step is
followed by a rest, as a loader of data or a larger model would make it.

With --early the moves are requested in a run's first second, from its first CUDA call on: while it loads code and allocates.
"""

import argparse
import concurrent.futures
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from steps import MISSING

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = "eager,amp,attention,cudnn,fft,solver,dataloader,compile,graph,expandable"
OTHERS = ("jax,jax-graphs,jax-async,jax-platform,cupy,cupy-async,cupy-managed,numba,core,triton,torch-gpt2,torch-generate,torch-resnet,"
          "torch-vit,torch-gnn,torch-lstm,torch-reduce,torch-async,torch-green,torch-kernel,torch-accelerate,torch-lightning")
# Longer than this, a run hangs.
LIMIT = 240


def environment(mode, extra=None):
    env = dict(os.environ, OMP_NUM_THREADS="2", **(extra or {}))
    if mode == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return env


def free_port():
    """A port that nobody uses: other runs on the machine have servers, too."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Servers:
    """Two servers on this machine, each at a TCP port and a Unix socket (there memory is shared)."""

    def __init__(self, mrcuda, directory):
        self.running, self.names = [], {"tcp": [], "shm": []}
        for n in range(2):
            tcp, unix = f"127.0.0.1:{free_port()}", f"{directory}/s{n}"
            log = open(f"{directory}/server{n}.log", "w")
            self.running.append(subprocess.Popen([mrcuda, "serve", "--listen", tcp, "--unix", unix], stdout=log, stderr=log))
            self.names["tcp"].append(f"tls://{tcp}")
            self.names["shm"].append(f"unix:{unix}")
        time.sleep(4)

    def places(self, transport, gpu):
        """The places of a run, the first of which it starts at."""
        if transport in ("local", "helper"):
            return [f"{transport}:{gpu}", *self.places("tcp", gpu), *self.places("shm", gpu)]
        return [f"{name}/{gpu}" for name in self.names[transport]]

    def stop(self):
        for s in self.running:
            s.terminate()
            s.wait()


def train(args, mode, pace=0):
    """The program's command."""
    special = f"{HERE}/with_{mode.partition('-')[0]}.py"
    return [sys.executable, special if os.path.exists(special) else f"{HERE}/train.py", mode, "--steps", str(args.steps), "--pace", str(pace)]


class Missing(RuntimeError):
    """A framework is not installed."""


def native(args, mode, gpu=0):
    """What it prints, its gap, and which of its parts are not to be had."""
    env = environment(mode, {"CUDA_VISIBLE_DEVICES": str(gpu)})
    done = subprocess.run(train(args, mode), env=env, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode == MISSING:
        raise Missing(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise RuntimeError(f"{mode} fails natively: {done.stderr[-500:]}")
    return done.stdout, gap(done.stderr), re.findall(r"^without .*$", done.stderr, re.M)


def progress(text):
    """Steps that are done, and the milliseconds of each, as far as they were said."""
    return [(int(step), float(ms)) for step, ms in re.findall(r"^step (\d+) \S+ ([\d.]+)$", text, re.M)]


def gap(text):
    found = re.search(r"^longest ([\d.]+) median ([\d.]+)$", text, re.M)
    return float(found[1]) - float(found[2]) if found else float("nan")


class Run:
    """One run of a program under mrcuda, or natively where no place is given."""

    def __init__(self, args, directory, name, mode, place, extra=None, turns=None):
        self.args, self.err = args, f"{directory}/{name}.err"
        self.out, self.moves, self.refusals = f"{directory}/{name}.out", [], []
        with open(self.out, "w") as out, open(self.err, "w") as err:
            command = ([args.mrcuda, "run", "--server", place, "--"] if place else []) + train(args, mode, args.pace)
            command += ["--turns", turns] if turns else []
            env = environment(mode, dict(extra or {}, **({"MRCUDA_LOG": f"{directory}/{name}.log"} if args.logs else {})))
            self.job = subprocess.Popen(command, stdout=out, stderr=err, env=env)
        self.deadline = time.monotonic() + LIMIT

    def progress(self):
        return progress(open(self.err).read())

    def reaches(self, step):
        """Waits for a step; whether it came before the end."""
        while time.monotonic() < self.deadline and self.job.poll() is None:
            done = self.progress()
            if done and done[-1][0] >= step:
                return True
            time.sleep(0.001)
        return False

    def is_job(self):
        """Waits for the first CUDA call, with which the job can be moved; whether there was one before the end."""
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        socket_file = os.path.join(f"{runtime}/mrcuda" if os.path.isdir(runtime) else f"/tmp/mrcuda-{os.getuid()}", str(self.job.pid))
        while time.monotonic() < self.deadline and self.job.poll() is None:
            if os.path.exists(socket_file):
                return True
            time.sleep(0.001)
        return False

    def gap(self):
        """By how many milliseconds its longest step exceeds the median one."""
        return gap(open(self.err).read())

    def migrate(self, to):
        """Whether the job is there now."""
        command = [self.args.mrcuda, "migrate", str(self.job.pid), "--to", to, "--json"]
        asked = subprocess.run(command, capture_output=True, text=True)
        try:
            report = json.loads(asked.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            report = {"code": "no-answer", "reason": asked.stderr.strip() or "no answer"}
        if report.get("ok"):
            self.moves.append(report)
        elif self.job.poll() is None and report.get("code") != "job-ended":
            # A code of a later version is a refusal like any other.
            self.refusals.append((str(report.get("code")), str(report.get("reason"))))
        return bool(report.get("ok"))

    def end(self):
        """Output and exit status."""
        try:
            status = self.job.wait(timeout=max(1.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.job.kill()
            status = "hung"
        self.output, self.status = open(self.out).read(), status
        return self.output, status


def one_run(args, servers, directory, mode, transport, number):
    rng = random.Random(f"{args.seed} {mode} {transport} {number}")
    places = [place for gpu in range(args.gpus) for place in servers.places(transport, gpu)]
    here = servers.places(transport, number % args.gpus)[0]
    run = Run(args, directory, f"{mode}-{transport}-{number}", mode, here)
    if args.early:
        moments = sorted(rng.random() for _ in range(args.moves)) if run.is_job() else []
        since = time.monotonic()
    else:
        moments = sorted(rng.randrange(10, max(args.steps * 3 // 4, 11)) for _ in range(args.moves))
    for moment in moments:
        if args.early:
            time.sleep(max(0.0, since + moment - time.monotonic()))
        else:
            # A step is said in tens; the rest of the moment is chance.
            if not run.reaches(moment // 10 * 10):
                break
            time.sleep(rng.random() * 0.02)
        to = rng.choice([p for p in places + [f"local:{gpu}" for gpu in range(args.gpus)] if p != here])
        if run.migrate(to):
            here = to
    run.end()
    return run


def show_refusals(refusals):
    """Each kind of refusal, how often, and the words of one."""
    for kind in sorted({code for code, _ in refusals}):
        reasons = [why for code, why in refusals if code == kind]
        print(f"    refused {len(reasons)} times ({kind}): {reasons[0][:300]}")


def exactness(args, mode, transport, runs, want, native_gap):
    same = sum(r.output == want and r.status == 0 for r in runs)
    moves = [m for r in runs for m in r.moves]
    downs = sorted(m["downtime_ms"] for m in moves) or [float("nan")]
    moved = sum(bool(r.moves) for r in runs)
    print(f"{mode:<18}{transport:<6}{f'{same}/{len(runs)}':>8}{moved:>8}{len(moves):>7}{downs[len(downs) // 2]:>9.1f}{downs[-1]:>7.0f}"
          f"{native_gap:>9.1f}{max((r.gap() for r in runs), default=float('nan')):>9.1f}", flush=True)
    show_refusals([why for r in runs for why in r.refusals])
    for r in runs:
        if r.output != want or r.status != 0:
            print(f"    DIFFERS (status {r.status}): {r.output.strip()[-600:] or open(r.err).read()[-600:]!r}")
    if same != len(runs):
        again = native(args, mode)[0]
        print(f"    natively: {want.strip()[-600:]!r}" + ("" if again == want else f", and another time {again.strip()[-600:]!r}"), flush=True)
    return same == len(runs)


def all_runs(args, servers, directory, modes):
    """Native runs first, then first runs of all modes over all transports, then second ones, …, until the time is over."""
    until = time.monotonic() + args.limit
    started = lambda *run: one_run(args, servers, directory, *run) if time.monotonic() < until else None
    kinds = [(mode, transport) for mode in modes for transport in args.transports.split(",")]
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        wants = {mode: pool.submit(native, args, mode, n % args.gpus) for n, mode in enumerate(modes)}
        runs = [(kind, pool.submit(started, *kind, n)) for n in range(args.runs) for kind in kinds]
    print(f"{'mode':<18}{'':<6}{'same':>8}{'moved':>8}{'moves':>7}{'down ms':>9}{'max':>7}{'gap':>9}{'moved':>9}")
    right = True
    for mode, transport in kinds:
        try:
            want, native_gap, remarks = wants[mode].result()
        except (RuntimeError, subprocess.TimeoutExpired) as why:
            print(f"{mode:<18}{why}", flush=True)
            right &= isinstance(why, Missing)
            continue
        made = [run.result() for kind, run in runs if kind == (mode, transport) and run.result()]
        right &= exactness(args, mode, transport, made, want, native_gap)
        for remark in remarks if transport == kinds[-1][1] else []:
            print(f"    {remark}")
    return right


def costs(args, servers, directory, modes):
    """Prints for each mode the median time of a step natively, over TCP, over shared memory and in-process, and the ratios to native. All
    programs are started at once and make the first half of their steps; the second half they make by turns, ten steps each, one at a
    time, so that all are measured in the same minutes. Returns whether all programs of a mode had the same output."""
    kinds = {"native": None, "tcp": servers.places("tcp", 0)[0], "shm": servers.places("shm", 0)[0], "local": "local:0"}
    turns, until = f"{directory}/turns", time.monotonic() + min(args.limit, LIMIT)
    os.makedirs(turns)
    wanted = [(mode, kind, n) for mode in modes for kind in kinds for n in range(args.costs)]
    runs = {(mode, kind, n): Run(args, directory, f"cost-{mode}-{kind}-{n}", mode, kinds[kind], turns=turns) for mode, kind, n in wanted}
    waits = lambda run: run.job.poll() is not None or re.search("^waits$", open(run.err).read(), re.M)
    while not all(waits(run) for run in runs.values()) and time.monotonic() < until:
        time.sleep(0.1)
    open(f"{turns}/go", "w").close()
    for run in runs.values():
        run.deadline = until
        run.end()
    print(f"{'mode':<18}{'native ms':>10}{'tcp':>9}{'shm':>9}{'local':>9}   ratios")
    right = True
    for mode in modes:
        of = lambda kind: [runs[mode, kind, n] for n in range(args.costs)]
        if all(run.status == MISSING for run in of("native")):
            print(f"{mode:<18}left out")
            continue
        steps = lambda kind: [ms for run in of(kind) for step, ms in run.progress() if 2 * step > args.steps]
        times = {kind: statistics.median(steps(kind) or [float("nan")]) for kind in kinds}
        same = len({(run.output, run.status) for kind in kinds for run in of(kind)}) == 1 and runs[mode, "native", 0].status == 0
        ratios = " ".join(f"{times[kind] / times['native']:.2f}" for kind in ["tcp", "shm", "local"])
        print(f"{mode:<18}{times['native']:>10.3f}{times['tcp']:>9.3f}{times['shm']:>9.3f}{times['local']:>9.3f}   {ratios}"
              + ("" if same else f"   DIFFER, exit statuses {[run.status for kind in kinds for run in of(kind)]}"), flush=True)
        right &= same
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mrcuda", required=True)
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--transports", default="tcp,shm")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--moves", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0, metavar="MS", help="rest so long after each step, so that moves get in")
    parser.add_argument("--early", action="store_true", help="request the moves in the first second after the first CUDA call")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--costs", type=int, default=0, metavar="N", help="measure the time of a step instead, with N runs of each kind")
    parser.add_argument("--limit", type=float, default=1e9, metavar="SECONDS", help="begin no run after so long")
    parser.add_argument("--logs", help="a directory that keeps what the runs wrote")
    args = parser.parse_args()
    args.mrcuda = os.path.abspath(args.mrcuda)
    directory = args.logs or tempfile.mkdtemp(prefix="mrcuda-frameworks-")
    os.makedirs(directory, exist_ok=True)
    modes, right = args.modes.replace("others", OTHERS).split(","), True
    servers = Servers(args.mrcuda, directory)
    try:
        if args.costs:
            right = costs(args, servers, directory, modes)
        else:
            right = all_runs(args, servers, directory, modes)
    finally:
        servers.stop()
    sys.exit(not right)


if __name__ == "__main__":
    main()
