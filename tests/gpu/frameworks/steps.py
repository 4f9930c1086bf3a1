"""What the programs here have in common: arguments, progress, and digests that a moved run must share with a native one.

A program is made of parts. A part is a generator: it prepares itself and then yields its state once a step. A part that fails before its
first state is left out, with a remark on stderr, for libraries and GPUs differ; the digests show which parts there were.
"""

import argparse
import fcntl
import hashlib
import importlib
import os
import statistics
import sys
import time

# The exit status of a program whose framework is not installed.
MISSING = 77


def need(*names):
    """Modules; without one of them the program is over."""
    try:
        found = [importlib.import_module(name) for name in names]
    except ImportError as why:
        leave_out(str(why))
    return found[0] if len(found) == 1 else found


def leave_out(why):
    print(f"left out: {why}", file=sys.stderr)
    sys.exit(MISSING)


def arguments(what):
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pace", type=float, default=0, metavar="MS", help="rest so long after each step")
    parser.add_argument("--parts", nargs="?", const="", metavar="PART,…",
                        help="show for these parts, or all, the median times of a step and of the copy of its state to the host, and the bytes of that")
    parser.add_argument("--turns", metavar="DIRECTORY", help="make each ten steps of the second half while no other program with this directory does")
    return parser


def take_turn(directory):
    """Begins when the directory has a file `go`; ends when what it returns is closed."""
    if not os.path.exists(f"{directory}/go"):
        print("waits", file=sys.stderr, flush=True)
    while not os.path.exists(f"{directory}/go"):
        time.sleep(0.02)
    turn = open(f"{directory}/turn", "w")
    fcntl.flock(turn, fcntl.LOCK_EX)
    return turn


def steps(args, said):
    """The numbers of the steps; after each ten of them what `said` returns, and the milliseconds of each, go to stderr. At the end go there
    the longest step and the median, as the program's own clock saw them: what a move delays is in the first."""
    began, turn, times = time.perf_counter(), None, []
    for k in range(args.steps):
        if args.turns and k % 10 == 0 and 2 * k >= args.steps:
            turn = take_turn(args.turns)
            began = time.perf_counter()
        step = time.perf_counter()
        yield k
        times.append(1000 * (time.perf_counter() - step))
        if args.pace:
            time.sleep(args.pace / 1000)
        if k % 10 == 9:
            shown = said()
            now = time.perf_counter()
            print(f"step {k + 1} {shown} {(now - began) * 100:.3f}", file=sys.stderr, flush=True)
            if turn:
                turn.close()
                # The others' turn.
                time.sleep(0.002)
            began = time.perf_counter()
    # The first steps compile and load.
    later = times[min(10, len(times) // 2):]
    if later:
        print(f"longest {max(later):.3f} median {statistics.median(later):.3f}", file=sys.stderr, flush=True)


def digest(arrays):
    """Of NumPy arrays, alone or in lists."""
    hashed = hashlib.sha256()
    for array in arrays if isinstance(arrays, (list, tuple)) else [arrays]:
        hashed.update(array.tobytes())
    return hashed.hexdigest()[:16]


def show_parts(args, parts, fetch):
    """Makes the steps of one part after the other. The copy of a state also waits for the GPU."""
    wanted = args.parts.split(",") if args.parts else list(parts)
    for name in wanted:
        times = []
        for _ in range(args.steps):
            began = time.perf_counter()
            state = next(parts[name])
            stepped = time.perf_counter()
            state = fetch(state)
            times.append((1000 * (stepped - began), 1000 * (time.perf_counter() - stepped)))
        arrays = state if isinstance(state, (list, tuple)) else [state]
        step, copy = (statistics.median(of) for of in zip(*times[len(times) // 2:]))
        print(f"part {name} {step:.3f} {copy:.3f} {sum(array.nbytes for array in arrays)} in {len(arrays)}", flush=True)


def run_parts(args, makers, fetch):
    """Makes the steps of all parts and prints the digests of their last states, which `fetch` brings to the host."""
    parts, states = {}, {}
    for maker in makers:
        part = maker()
        try:
            states[maker.__name__] = next(part)
        except Exception as why:
            print(f"without {maker.__name__}: {type(why).__name__}: {' '.join(str(why).split())[:300]}", file=sys.stderr)
            continue
        parts[maker.__name__] = part
    if not parts:
        leave_out("no part of it runs here")

    def digests():
        return {name: digest(fetch(state)) for name, state in states.items()}

    if args.parts is not None:
        return show_parts(args, parts, fetch)
    # A short one for each part, so that a run that differs shows where and since when it did.
    for _ in steps(args, lambda: ",".join(f"{name}:{found[:4]}" for name, found in digests().items())):
        for name, part in parts.items():
            states[name] = next(part)
    print(args.mode, " ".join(f"{name}={found}" for name, found in digests().items()))
    # Parts that are left while the GPU's library is going would be cleaned up after it.
    for part in parts.values():
        part.close()
