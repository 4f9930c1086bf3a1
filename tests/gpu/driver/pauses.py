"""Measures the pauses of moves to the other GPU of a host, on one GPU, and over TCP, for several builds by turns on the same machine.

    pauses.py --mrcuda PATH [--mrcuda OTHER ...] [--gib 1,16,64] [--allocations 1,128,4096] [--dirty 0,1,10,100]
              [--ways gpu,same,tcp,checkpoint] [--moves N] [--gpus 1] [--job PATH] [--seconds S]

Each build has two servers. A job (`microbench live`, the one beside the first PATH) keeps so much memory in so many
allocations and changes so many percent of its pages all the time. It is moved there and back N times between the first GPU and the second:
over shared memory (`gpu`), and as between two machines (`tcp`). With `--gpus 1` both places are of one GPU, whose memory is copied all the
same; `same` is a move between two places of the first GPU that hands the memory over. `checkpoint` is the driver's own: the job runs
without mrcuda, and another process has the driver checkpoint and restore it (`cuCheckpointProcess…`) on the same GPU. The job checks every word
at its end. A line has medians in milliseconds: the pause, its worst, the longest that the program itself saw between two of its steps in all
moves, the phases, of which `quiesce`, `delta` and `verify` are the pause, and from the trace of its last round the time for hashing and copying at the target; the MiB that were copied in
the pause; the time of the whole move; the rate of the copy before the pause, its first round if pages change; and how the memory got there.
After S seconds no load is begun any more. The exit status is 1 if a move failed or a word was wrong.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PHASES = ["prepare", "replay", "quiesce", "delta", "verify", "release"]
LIMIT = 120


def numbers(text):
    return [float(n) if "." in n else int(n) for n in text.split(",")]


class Build:
    """A build with its servers."""

    def __init__(self, mrcuda, directory, number):
        self.mrcuda, self.directory = mrcuda, f"{directory}/{number}"
        os.mkdir(self.directory, 0o700)
        own = {"XDG_RUNTIME_DIR": self.directory, "XDG_CONFIG_HOME": self.directory, "XDG_STATE_HOME": self.directory}
        self.native = {**os.environ, **own}
        self.handing_over = {**self.native, "MRCUDA_TOKEN_FILE": f"{self.directory}/token"}
        # Places over TCP stand for other machines, and between places of one GPU memory is copied, too.
        self.copying = {**self.handing_over, "MRCUDA_FAULT_TCP_IS_FAR": "1", "MRCUDA_FAULT_NO_ADOPTION": "1"}
        self.servers, self.addresses = [], []
        for name, env in [("a", self.copying), ("b", self.copying), ("c", self.handing_over), ("d", self.handing_over)]:
            command = [mrcuda, "serve", "--allow-plain", "--listen", "127.0.0.1:0", "--unix", f"{self.directory}/{name}"]
            log = open(f"{self.directory}/{name}.log", "w")
            server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
            self.servers.append(server)
            self.addresses.append(next(word for word in server.stdout.readline().split() if word.startswith("127.0.0.1:")))

    def places(self, way, gpus):
        numbers = [0, 1 if gpus > 1 else 0]
        if way == "same":
            return [f"unix:{self.directory}/{name}/0" for name in "cd"]
        if way == "gpu":
            return [f"unix:{self.directory}/{name}/{number}" for name, number in zip("ab", numbers)]
        return [f"plain://{address}/{number}" for address, number in zip(self.addresses, numbers)]

    def environment(self, way):
        return {"checkpoint": self.native, "same": self.handing_over}.get(way, self.copying)

    def move(self, pid, to, way):
        trace = f"{self.directory}/trace"
        command = [self.mrcuda, "migrate", str(pid), "--to", to, "--json", "--trace", trace]
        done = subprocess.run(command, env=self.environment(way), capture_output=True, text=True, timeout=LIMIT)
        report = json.loads(done.stdout) if done.stdout.strip() else {"ok": False, "reason": done.stderr.strip()}
        if not report.get("ok"):
            raise RuntimeError(f"a move to {to} failed: {report.get('reason')}")
        rounds = [event["args"] for event in json.load(open(trace))["traceEvents"] if event["name"] == "round"]
        return report, next((round for round in rounds if round["verified"]), {})

    def job(self, program, way, gpus, gib, allocations, dirty, moves):
        """The reports of moves of a job, each with the details of its last round, and the longest time between two of its steps."""
        stop = f"{self.directory}/stop"
        if os.path.exists(stop):
            os.remove(stop)
        places = self.places(way, gpus)
        under = [] if way == "checkpoint" else [self.mrcuda, "run", "--server", places[0], "--"]
        live = ["live", "--mib", str(int(gib * 1024)), "--regions", str(allocations), "--dirty", str(dirty), "--until", stop]
        job = subprocess.Popen([*under, program, *live, "--limit", str(LIMIT)], env=self.environment(way), stdout=subprocess.PIPE, text=True)
        move = lambda n: checkpoint(job.pid) if way == "checkpoint" else self.move(job.pid, places[(n + 1) % 2], way)
        try:
            ready = json.loads(job.stdout.readline())
            done = [move(n) for n in range(moves)] if ready.get("ready") else []
        finally:
            open(stop, "w").close()
            end = json.loads(job.stdout.readline() or "{}")
            job.wait(LIMIT)
        if job.returncode != 0 or end.get("wrong_words") != 0:
            raise RuntimeError(f"the job is wrong: {end}")
        return done, end["longest_ms"]


def checkpoint(pid):
    """Has the driver checkpoint a process and restore it; milliseconds of each, as a report."""
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuInit(0) != 0:
        raise RuntimeError("no driver")
    times = []
    for step in ["Lock", "Checkpoint", "Restore", "Unlock"]:
        began = time.monotonic()
        code = getattr(driver, f"cuCheckpointProcess{step}")(ctypes.c_int(pid), None)
        if code != 0:
            raise RuntimeError(f"cuCheckpointProcess{step}: error {code}")
        times.append(1000 * (time.monotonic() - began))
    memory = {"delta_bytes": 0, "bytes_by_descriptor": 0, "bytes_adopted": 0}
    return {"downtime_ms": sum(times), "total_ms": sum(times), **memory, "legs": [{"phases": {}, "data": "driver"}]}, {}


def line(build, way, load, done, longest):
    reports, rounds = [report for report, _ in done], [round for _, round in done]
    middle = lambda values: f"{statistics.median(values):.1f}"
    pauses = [report["downtime_ms"] for report in reports]
    cells = [build, way, *map(str, load), middle(pauses), f"{max(pauses):.1f}", f"{longest:.1f}"]
    cells += [middle([report["legs"][0]["phases"].get(phase, 0) for report in reports]) for phase in PHASES]
    cells += [middle([round.get(name, 0) for round in rounds]) for name in ["hashing at the target (ms)", "copying (ms)"]]
    cells.append(middle([report["delta_bytes"] / (1 << 20) for report in reports]))
    cells.append(middle([report["total_ms"] for report in reports]))
    cells.append(middle([load[0] * (1 << 30) / 1e6 / report["legs"][0]["phases"].get("precopy", float("nan")) for report in reports]))
    by_gpu = all(report["bytes_by_descriptor"] > 0 for report in reports)
    handed_over = all(report["bytes_adopted"] > 0 for report in reports)
    cells.append("handed over" if handed_over else "GPU" if by_gpu else reports[0]["legs"][0].get("by_socket") or reports[0]["legs"][0]["data"])
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mrcuda", action="append", required=True)
    parser.add_argument("--job", help="the program microbench; otherwise the one beside the first PATH")
    parser.add_argument("--gib", type=numbers, default=[1, 16, 64])
    parser.add_argument("--allocations", type=numbers, default=[1, 128, 4096])
    parser.add_argument("--dirty", type=numbers, default=[0, 1, 10, 100])
    parser.add_argument("--ways", default="gpu,tcp")
    parser.add_argument("--moves", type=int, default=6)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=500)
    args = parser.parse_args()
    program = os.path.abspath(args.job or os.path.join(os.path.dirname(args.mrcuda[0]), "microbench"))
    since, failed = time.monotonic(), False
    print(f"| build | way | GiB | allocations | dirty % | pause | worst | seen | {' | '.join(PHASES)} | hashing | copying | MiB | total | GB/s | by |")
    print("|" + "---|" * 20)
    with tempfile.TemporaryDirectory(prefix="mrp-") as directory:
        builds = [Build(os.path.abspath(mrcuda), directory, number) for number, mrcuda in enumerate(args.mrcuda)]
        try:
            loads = [(gib, n, dirty) for gib in args.gib for n in args.allocations for dirty in args.dirty]
            for way, load in ((way, load) for load in loads for way in args.ways.split(",")):
                for number, build in enumerate(builds):
                    if time.monotonic() - since > args.seconds:
                        print(f"no time for {way}, {load} and what follows", flush=True)
                        return int(failed)
                    try:
                        done, longest = build.job(program, way, args.gpus, *load, args.moves)
                        print(line(str(number), way, load, done, longest), flush=True)
                    except (RuntimeError, ValueError, KeyError, StopIteration, subprocess.TimeoutExpired) as why:
                        failed = True
                        print(f"| {number} | {way} | {' | '.join(map(str, load))} | {why} |", flush=True)
        finally:
            for server in (server for build in builds for server in build.servers):
                server.terminate()
                server.wait()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
