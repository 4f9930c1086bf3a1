"""A scheduler that knows a job only by its socket (docs/scheduler.md). Python's standard library is all it needs.

    python3 scheduler.py PID HERE THERE    moves the job from place HERE to THERE and back, and checks what it is told

Whoever writes a scheduler can take the class Job as it is.
"""

import json
import os
import socket
import sys

VERSION = 2


class Refused(Exception):
    """The job has refused a request; .error and .code are for programs, .id is the move that is in the way."""

    def __init__(self, answer):
        super().__init__(answer["reason"])
        self.error, self.code, self.id = answer["error"], answer.get("code"), answer.get("id")


def directory():
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return os.path.join(runtime, "mrcuda") if os.path.isabs(runtime) else f"/tmp/mrcuda-{os.geteuid()}"


class Job:
    """A connection to a job."""

    def __init__(self, pid):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.path.join(directory(), str(pid)))
        self.lines = self.socket.makefile("rb")

    def read(self):
        line = self.lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the job has ended")
        return json.loads(line)

    def ask(self, op, **fields):
        request = {"v": VERSION, "op": op} | {k: v for k, v in fields.items() if v is not None}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        answer = self.read()
        if not answer["ok"]:
            raise Refused(answer)
        return answer

    def list(self):
        return self.ask("list")["job"]

    def plan(self, to, gpu=None):
        return self.ask("plan", to=to, gpu=gpu)["plan"]

    def migrate(self, to, **options):
        return self.ask("migrate", to=to, **options)["move"]

    def cancel(self, id=None):
        return self.ask("cancel", id=id)["move"]

    def report(self, id=None):
        return self.ask("report", id=id)["moves"]

    def events(self):
        """Everything that happens from now on; the connection is of no other use after that."""
        self.ask("subscribe")
        return iter(self.read, None)


def refused(error, ask, *args, code=None, **fields):
    try:
        answer = ask(*args, **fields)
    except Refused as why:
        code = code or error.replace("_", "-")
        assert (why.error, why.code) == (error, code), f"{why.error} ({why.code}) instead of {error} ({code}): {why}"
        return why
    raise AssertionError(f"not refused with {error}: {answer}")


def check(pid, here, there):
    job = Job(pid)
    told = job.list()
    gpu = told["devices"][0]
    assert told["pid"] == pid and told["moving"] is None and told["queued"] == [], told
    assert gpu["place"] == here and gpu["transport"] == "tls" and gpu["state"] == "running" and gpu["moves"] == 0, gpu

    plan = job.plan(there)
    assert plan["ok"] and plan["from"] == here and plan["to"] == there and plan["blockers"] == [], plan
    assert plan["live_bytes"] >= 4 << 20 and plan["records"] > 10 and plan["regions"] >= 5 and plan["modules"] == 1, plan
    blocked = job.plan("127.0.0.1:1/0")
    assert not blocked["ok"] and "127.0.0.1:1" in blocked["blockers"][0], blocked
    assert blocked["code"] == "target-unreachable" and blocked["codes"] == ["target-unreachable"], blocked
    refused("bad_place", job.plan, "nowhere")
    refused("no_such_gpu", job.plan, there, gpu=7)
    refused("no_such_gpu", job.migrate, there, gpu=7)
    refused("bad_place", job.migrate, "local,local", code="place-count")
    refused("no_such_move", job.cancel)
    refused("no_such_move", job.report, "first")

    news = Job(pid).events()
    last = None

    def expect(id):
        """The kinds of events of one move, from its acceptance to its end."""
        nonlocal last
        kinds = []
        for event in news:
            assert event["v"] == VERSION and last in (None, event["seq"] - 1), (last, event)
            last = event["seq"]
            if event["move"]["id"] == id:
                kinds.append(event["event"])
                if kinds[-1] == "ended":
                    return kinds

    done = job.migrate(there, id="first")
    assert done["state"] == "done" and done["ok"] and done["reason"] is None and done["code"] is None, done
    assert done["from"] == here and done["to"] == there and done["by"] == "request", done
    assert done["total_ms"] >= done["downtime_ms"] > 0 and len(done["digest"]) == 64, done
    kinds = expect("first")
    assert kinds[:2] == ["queued", "started"] and kinds[-1] == "ended", kinds
    assert kinds.count("committed") == 1 and kinds.count("progress") >= 2 and kinds.count("phase") >= 6, kinds
    refused("duplicate_id", job.migrate, there, id="first")
    assert refused("too_late", job.cancel, "first").id == "first"
    assert job.report("first") == [done]

    # What is given up leaves the job where it was.
    for id, limit, code in [("soon", "deadline_ms", "deadline-exceeded"), ("still", "max_downtime_ms", "downtime-exceeded")]:
        failed = job.migrate(here, id=id, **{limit: 0})
        assert failed["state"] == "failed" and not failed["ok"] and failed["code"] == code and failed["reason"], failed
        assert job.list()["devices"][0]["place"] == there
        expect(id)

    # Two at once: the second is refused, or waits.
    job.migrate(here, id="back", wait=False)
    try:
        Job(pid).migrate(there, id="not-now")
    except Refused as why:
        assert why.code == why.error == "busy" and why.id == "back", why
        expect("back")
    job.migrate(there, id="again", wait=False, queue=True)
    job.migrate(here, id="home", wait=False, queue=True, trace=True)
    [home] = Job(pid).ask("report", id="home", wait=True)["moves"]
    assert home["state"] in ("done", "failed"), home
    names = {event["name"] for event in home["trace"]["traceEvents"]}
    assert {"move home", "prepare", "round", "attempt to quiesce"} <= names, names
    refused("bad_request", job.ask, "report", wait=True)
    expect("home")
    last = job.list()
    assert last["devices"][0]["place"] == here and last["moving"] is None and last["queued"] == [], last
    assert all(m["state"] in ("done", "failed") for m in job.report()), job.report()

    # The same remains when the job has ended.
    with open(os.path.join(os.environ["XDG_STATE_HOME"], "mrcuda", "moves.jsonl")) as history:
        past = [json.loads(line) for line in history]
    assert {move["pid"] for move in past} == {pid} and past[0]["program"] == told["program"], past
    assert [move["move"] for move in past] == [{k: v for k, v in m.items() if k != "trace"} for m in job.report()], past
    print("scheduler: ok")


if __name__ == "__main__":
    check(int(sys.argv[1]), sys.argv[2], sys.argv[3])
