"""Parks training programs under mrcuda at random moments, in memory and in files, and compares their output with a native run's.

    park.py --mrcuda PATH [--modes eager,graph,...] [--parks N] [--seed N]

A server is started on this machine. A job starts there and is parked and resumed N times, by turns in host memory, in a file and in the
server's memory; each time it goes on at the server or in its own process. The table has a line for each park: where, milliseconds of the
park and of the resume, GiB, and how much of the GPU's memory became free. The exit status is 1 if an output differed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = "127.0.0.1:7941"
PLACE = f"tls://{PORT}"


def free_mib():
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True).stdout.split()[0])


def ask(mrcuda, *args):
    done = subprocess.run([mrcuda, *args, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout.strip() else {"ok": False, "reason": done.stderr.strip()}


def park(args, mode, rng, directory):
    """Returns whether the output was native's."""
    command = [sys.executable, f"{HERE}/train.py", mode, "--steps", "400", "--pace", "20"]
    env = dict(os.environ, OMP_NUM_THREADS="2")
    native = subprocess.run(command, env=env, capture_output=True, text=True).stdout
    with open(f"{directory}/out", "w") as out, open(f"{directory}/err", "w") as err:
        job = subprocess.Popen([args.mrcuda, "run", "--server", PLACE, "--", *command], stdout=out, stderr=err, env=env)
    while "step" not in open(f"{directory}/err").read() and job.poll() is None:
        time.sleep(0.1)
    pid = str(job.pid)
    for number in range(args.parks):
        time.sleep(rng.uniform(0, 1))
        place = ["memory", f"file:{directory}", f"{PLACE}/memory"][number % 3]
        before = free_mib()
        away = ask(args.mrcuda, "suspend", pid, "--to", place)
        if not away.get("ok"):
            print(f"| {mode} | {place.split('/')[-1]} | refused: {away.get('reason')} |")
            continue
        time.sleep(1.5)
        freed = free_mib() - before
        back = ask(args.mrcuda, "resume", pid, "--to", rng.choice([PLACE, "local"]))
        times = [f"{it.get('total_ms', 0):.0f} ({it.get('downtime_ms', 0):.0f})" for it in (away, back)]
        size = away.get("bytes", 0) / (1 << 30)
        where = "server" if place.startswith(PLACE) else place.split(":")[0]
        print(f"| {mode} | {where} | {times[0]} | {times[1]} | {size:.2f} | {freed} | {back.get('reason') or 'ok'} |", flush=True)
    job.wait()
    same = open(f"{directory}/out").read() == native and native != ""
    print(f"| {mode} | {'as native' if same else 'NOT AS NATIVE'} | left: {[n for n in os.listdir(directory) if 'parked' in n]} |", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mrcuda", required=True)
    parser.add_argument("--modes", default="eager,graph")
    parser.add_argument("--parks", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o700)
        log = open(f"{directory}/server", "w")
        server = subprocess.Popen([args.mrcuda, "serve", "--listen", PORT], stdout=log, stderr=log)
        time.sleep(2)
        print("| mode | parked in | park, ms (calls blocked) | resume, ms | GiB copied | MiB that became free | |\n|---|---|---|---|---|---|---|")
        try:
            same = [park(args, mode, rng, directory) for mode in args.modes.split(",")]
        finally:
            server.terminate()
            server.wait()
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
