"""A scheduler in 30 lines: moves every job of this user to a place as soon as it fits there, and ends after the last job.
The place is written as mrcuda ps shows it, with the number of the GPU."""
import json, os, socket, sys, time

TO = sys.argv[1]
RUNTIME = os.environ.get("XDG_RUNTIME_DIR")
SOCKETS = f"{RUNTIME}/mrcuda" if RUNTIME else f"/tmp/mrcuda-{os.geteuid()}"


def ask(pid, **request):
    """The response of a job to a request; a refusal has "ok": false."""
    with socket.socket(socket.AF_UNIX) as job:
        job.connect(f"{SOCKETS}/{pid}")
        job.sendall(json.dumps({"v": 2, **request}).encode() + b"\n")
        return json.loads(job.makefile().readline())


def bring(pid):
    """Moves a job, if it is at work elsewhere and nothing prevents the move. False: it has ended."""
    try:
        job = ask(pid, op="list")["job"]
        gpus = job["devices"]
        if any(gpu["state"] != "running" for gpu in gpus) or all(gpu["place"] == TO for gpu in gpus):
            return True
        plan = ask(pid, op="plan", to=TO).get("plan", {})
        if plan.get("ok"):
            answer = ask(pid, op="migrate", to=TO, max_downtime_ms=10000)
            print(f"{job['name']}: {plan['from']} -> {TO}: {answer['move']['state'] if answer['ok'] else answer['reason']}", flush=True)
        else:
            print(f"{job['name']}: stays at {plan.get('from')}: {plan.get('reason')}", flush=True)
        return True
    except (OSError, ValueError):  # A job that was killed leaves its socket behind.
        return False


while os.path.isdir(SOCKETS) and [pid for pid in os.listdir(SOCKETS) if pid.isdigit() and bring(pid)]:
    time.sleep(1)
