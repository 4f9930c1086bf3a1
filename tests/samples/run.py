"""Runs built programs (NVIDIA's CUDA samples, say) natively and under mrcuda, moves them while they run, and compares.

    run.py FOLDER [--mrcuda PATH] [--soft] [--only NAME,...] [--skip NAME,...] [--modes tcp,shm] [--gpus N] [--limit SECONDS]
           [--pace MS] [--rests N] [--jobs N] [--args "ARGUMENTS"]

Each executable file of FOLDER is run in a copy of the folder: twice natively, then remote over TCP and over shared memory. Two servers
are started on this machine. As soon as a process of the run has a control socket it is asked to move, into the job's own process, to
the other server, back, and so on until it ends. Most samples are over in an instant: with --pace a preloaded library lets each rest
for so many milliseconds before each of the first --rests things that it prints.

A run is right if its exit status and what it writes to stdout are native's. In lines that tell times and rates numbers are masked, and
addresses everywhere. Lines that only one of the two native runs has are not compared (`varies` in the table). `order` instead of `ok`:
all lines are there, in another order; programs with threads or blocks that print may do that. `numbers`: the native runs vary, and this one
does in its numbers. With --soft the CPU driver is used; else this machine's. With --gpus N the
program sees N GPUs. The exit status is 1 if any run was wrong.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# A line with one of these words tells how long something took, or how fast it was.
MEASURE = re.compile(
    r"\btime|elapsed|ms\b|msec|\bsec\b|seconds|[GMT]B/s|/sec|/s\b|flop|bandwidth|throughput|iterations while|memcopy:|kernel:|streamed:"
    r"|speed|clocks|lshmName|average|latency|\bfree\b.*bytes",
    re.IGNORECASE,
)
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
ADDRESS = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)


def masked(text):
    lines = []
    for line in text.splitlines():
        line = ADDRESS.sub("ADDRESS", line.rstrip())
        lines.append(NUMBER.sub("#", line) if MEASURE.search(line) else line)
    return lines


class Expected:
    """What two native runs have in common."""

    def __init__(self, first, second):
        self.code = first.code
        self.lines = masked(first.out)
        other = masked(second.out)
        self.exact = self.lines == other
        self.common = collections.Counter(self.lines) & collections.Counter(other)
        self.varies = max(len(self.lines), len(other)) - sum(self.common.values())

    def likeness(self, run):
        """What is the same of a run that differs, or None."""
        def without_numbers(lines):
            return collections.Counter(NUMBER.sub("#", line) for line in lines)

        lines = masked(run.out)
        if run.code != self.code:
            return None
        if collections.Counter(lines) == collections.Counter(self.lines):
            return "order"
        return "numbers" if not self.exact and without_numbers(lines) == without_numbers(self.lines) else None

    def difference(self, run):
        """Why a run is not like the native ones, or None."""
        if run.code != self.code:
            return f"exit status {run.code} instead of {self.code}: {last(run.err) or last(run.out)}"
        lines = masked(run.out)
        if self.exact:
            for have, want in zip(lines + ["(nothing)"], self.lines + ["(nothing)"]):
                if have != want:
                    return f"“{have}” instead of “{want}”"
            return None
        missing = self.common - collections.Counter(lines)
        return f"“{next(iter(missing))}” is missing" if missing else None


def last(text):
    return text.strip().splitlines()[-1][:160] if text.strip() else ""


class Run:
    def __init__(self, code, out, err, seconds, moves=0, refusals=()):
        self.code, self.out, self.err, self.seconds, self.moves, self.refusals = code, out, err, seconds, moves, list(refusals)


class Mover:
    """Moves every process that appears in a runtime folder, again and again."""

    def __init__(self, folder, targets):
        self.folder, self.targets = os.path.join(folder, "mrcuda"), targets
        self.moves, self.refusals, self.over = 0, [], threading.Event()
        self.known, self.lock = set(), threading.Lock()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while not self.over.wait(0.002):
            try:
                names = [n for n in os.listdir(self.folder) if n.isdigit()]
            except FileNotFoundError:
                continue
            for name in set(names) - self.known:
                self.known.add(name)
                threading.Thread(target=self.move, args=(os.path.join(self.folder, name),), daemon=True).start()

    def move(self, path):
        step = 0
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                answers = s.makefile()
                while not self.over.is_set():
                    request = {"v": 2, "op": "migrate", "to": self.targets[step % len(self.targets)]}
                    s.sendall(json.dumps(request).encode() + b"\n")
                    line = answers.readline()
                    if not line:
                        return
                    answer = json.loads(line)
                    move = answer.get("move") or {}
                    with self.lock:
                        if move.get("ok"):
                            self.moves += 1
                            step += 1
                        else:
                            self.refusals.append(str(move.get("reason") or answer.get("reason")))
                            time.sleep(0.02)
        except OSError:
            # It has ended.
            return


class Servers:
    def __init__(self, args, folder):
        self.args, self.folder, self.started = args, folder, []
        self.tcp, self.shm = [], []
        for name in ("one", "two"):
            env = dict(environment(args, folder), SOFTGPU_SEED_ID=name)
            path = os.path.join(folder, f"{name}.socket")
            command = [args.mrcuda, "serve", "--listen", "127.0.0.1:0", "--unix", path] + (["--driver", "soft"] if args.soft else [])
            child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.started.append(child)
            found = None
            while not found:
                line = child.stdout.readline()
                if not line:
                    raise RuntimeError(f"server {name} does not start")
                found = re.search(r"127\.0\.0\.1:\d+", line)
            threading.Thread(target=child.stdout.read, daemon=True).start()
            self.tcp.append(",".join(f"{found.group()}/{g}" for g in range(args.gpus)))
            self.shm.append(",".join(f"unix:{path}/{g}" for g in range(args.gpus)))

    def stop(self):
        for child in self.started:
            child.terminate()
        for child in self.started:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()


def environment(args, folder):
    env = dict(os.environ, XDG_RUNTIME_DIR=folder, XDG_CONFIG_HOME=args.scratch, MRCUDA_TOKEN_FILE=os.path.join(args.scratch, "token"))
    for name in ("MRCUDA_DRIVER", "MRCUDA_SERVERS", "MRCUDA_LOG"):
        env.pop(name, None)
    if args.soft:
        env["SOFTGPU_SEED_ID"] = "local"
        env.pop("CUDA_VISIBLE_DEVICES", None)
    return env


def execute(args, command, env, mover=None):
    """A copy of the samples' folder for each run: samples write files, and sockets, where they are."""
    place = tempfile.mkdtemp(dir=args.scratch)
    for entry in os.listdir(args.folder):
        os.symlink(os.path.join(args.folder, entry), os.path.join(place, entry))
    if args.pace_library:
        env = dict(env, LD_PRELOAD=args.pace_library, PACE_TIMES=str(args.rests), PACE_US=str(args.pace * 1000))
    begun = time.monotonic()
    with open(os.path.join(place, ".out"), "wb+") as out, open(os.path.join(place, ".err"), "wb+") as err:
        child = subprocess.Popen(command, env=env, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            code = child.wait(args.limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = "hung"
        seconds = time.monotonic() - begun
        if mover:
            mover.over.set()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    shutil.rmtree(place, ignore_errors=True)
    return Run(code, *texts, seconds, mover.moves if mover else 0, mover.refusals if mover else ())


def native(args, program):
    env = environment(args, args.scratch)
    if args.soft:
        env["LD_LIBRARY_PATH"] = args.native_folder
        env["SOFTGPU_DEVICES"] = str(args.gpus)
        # The GPU that a job shows for good is its first one.
        env["SOFTGPU_SEED_ID"] = "one"
    else:
        env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(args.gpus))))
    return execute(args, program, env)


def under_mrcuda(args, program, servers, mode):
    runtime = tempfile.mkdtemp(dir=args.scratch, prefix="r")
    here, there = servers.tcp if mode == "tcp" else servers.shm
    targets = ["local", there, here] if mode == "tcp" else [there, "local", here]
    command = [args.mrcuda, "run"] + (["--driver", "soft"] if args.soft else []) + ["--server", here, "--"] + program
    run = execute(args, command, environment(args, runtime), Mover(runtime, targets))
    shutil.rmtree(runtime, ignore_errors=True)
    return run


def sample(args, servers, name):
    """The cells of one line of the table, whether all was right, and remarks."""
    program = [f"./{name}"] + args.args.split()
    first, second = native(args, program), native(args, program)
    if first.code == "hung":
        return [name, "hung"], True, [f"{name}, natively: does not end"]
    right, remarks = True, []
    expected = Expected(first, second)
    if first.code != 0:
        remarks.append(f"{name}, natively: exit status {first.code}: {last(first.err)}")
    cells = [name, f"{first.code}", "" if expected.exact else f"{expected.varies} lines" if expected.varies else "order", f"{first.seconds:.1f}"]
    for mode in args.modes.split(","):
        run = under_mrcuda(args, program, servers, mode)
        why = expected.difference(run)
        likeness = expected.likeness(run) if why else "ok"
        cells += [likeness or "WRONG", str(run.moves), f"{run.seconds:.1f}"]
        if likeness is None:
            right = False
            remarks.append(f"{name}, {mode}: {why}")
        for reason, count in collections.Counter(r for r in run.refusals if "the program ends" not in r).items():
            remarks.append(f"{name}, {mode}: {count} x not moved: {reason[:200]}")
    return cells, right, remarks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--mrcuda", default=os.path.join(HERE, "../../target/release/mrcuda"))
    parser.add_argument("--soft", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--modes", default="tcp,shm")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--pace", type=int, default=0)
    parser.add_argument("--rests", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--args", default="")
    args = parser.parse_args()
    args.folder, args.mrcuda = os.path.abspath(args.folder), os.path.abspath(args.mrcuda)
    args.scratch = tempfile.mkdtemp(prefix="samples-")
    args.native_folder = os.path.join(args.scratch, "native")
    os.mkdir(args.native_folder)
    os.symlink(os.path.join(os.path.dirname(args.mrcuda), "libsoftgpu.so"), os.path.join(args.native_folder, "libcuda.so.1"))
    args.pace_library = None
    if args.pace:
        args.pace_library = os.path.join(args.scratch, "pace.so")
        subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", args.pace_library, os.path.join(HERE, "pace.c")], check=True)
    wanted, unwanted = set(filter(None, args.only.split(","))), set(args.skip.split(","))
    names = sorted(
        entry.name
        for entry in os.scandir(args.folder)
        if entry.is_file() and os.access(entry.path, os.X_OK) and entry.name not in unwanted and (not wanted or entry.name in wanted)
    )
    servers = Servers(args, args.scratch)
    lines, remarks, wrong, moves = [], [], 0, 0
    try:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for cells, right, notes in pool.map(lambda name: sample(args, servers, name), names):
                lines.append(cells)
                remarks += notes
                wrong += not right
                print(" ".join(cells), file=sys.stderr, flush=True)
    finally:
        servers.stop()
        shutil.rmtree(args.scratch, ignore_errors=True)
    head = ["sample", "status", "varies", "s"] + [cell for mode in args.modes.split(",") for cell in (mode, "moves", "s")]
    for cells in [head, ["---"] * len(head)] + lines:
        print("| " + " | ".join(cells + [""] * (len(head) - len(cells))) + " |")
    print()
    for remark in remarks:
        print(remark)
    moves = sum(int(cell) for cells in lines for cell in cells[5::3])
    print(f"{len(lines) - wrong} samples right, {wrong} wrong, {moves} moves")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
