"""Clients that mean no good, or know no better: python3 hostile.py PID KIND. Ends with code 0 if the job answers as it should."""

import json
import os
import resource
import socket
import sys
import time

from scheduler import Job, directory


def connect(pid):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect(os.path.join(directory(), str(pid)))
    return s


def answer(s):
    """The one line that the job says, as JSON; none if it has only closed the connection."""
    said = b""
    while not said.endswith(b"\n"):
        piece = s.recv(65536)
        if not piece:
            return None
        said += piece
    assert said.count(b"\n") == 1, said
    return json.loads(said)


def says(s, error):
    told = answer(s)
    assert told and told["ok"] is False and told["error"] == error and told["reason"], (error, told)


def garbage(pid):
    s = connect(pid)
    for line, error in [
        (b"", "bad_request"),
        (b"hello", "bad_request"),
        (b"GET / HTTP/1.1", "bad_request"),
        (b"\x00\xff\xfe", "bad_request"),
        (b"[" * 20000, "bad_request"),
        (b'{"v":2,"op":"list"}{"v":2,"op":"list"}', "bad_request"),
        (b'{"v":2,"op":"migrate","to":"local","deadline":1}', "bad_request"),
        (b'{"v":2,"op":"migrate","to":"' + b"x" * 60000 + b'"}', "bad_place"),
        (b'{"v":1,"op":"status"}', "version"),
        (b'{"op":"list"}', "version"),
        (b'{"v":2,"op":"shutdown"}', "unknown_op"),
    ]:
        s.sendall(line + b"\n")
        says(s, error)
    # The connection is as good as new.
    s.sendall(b'{"v":2,"op":"list"}\n')
    assert answer(s)["job"]["pid"] == pid


def half(pid):
    s = connect(pid)
    s.sendall(b'{"v":2,"op":"list"}')
    s.shutdown(socket.SHUT_WR)
    says(s, "bad_request")
    # Several at once are answered one after the other.
    s = connect(pid)
    s.sendall(b'{"v":2,"op":"report"}\n' * 100)
    lines = s.makefile("rb")
    assert all(json.loads(lines.readline())["ok"] for _ in range(100))
    # One that leaves in the middle of a line, or of its answer, is nobody's concern.
    for text in [b"{", b'{"v":2,"op":"list"}\n' * 50]:
        s = connect(pid)
        s.sendall(text)
        s.close()


def long(pid):
    s = connect(pid)
    try:
        s.sendall(b"x" * (1 << 20))
    except (BrokenPipeError, ConnectionResetError):
        pass
    says(s, "too_long")


def slow(pid):
    """A byte now and then: the request is not whole in time, and nobody else waits for it."""
    s = connect(pid)
    began = time.monotonic()
    for byte in b'{"v":2,"op":"list","comment":"' + b"x" * 1000:
        try:
            s.sendall(bytes([byte]))
        except (BrokenPipeError, ConnectionResetError):
            break
        Job(pid).list()
        time.sleep(0.2)
    assert time.monotonic() - began < 30, "it goes on for ever"
    says(s, "too_long")


def deaf(pid):
    """Asks and never reads: its answers fill the socket, and the connection ends."""
    s = connect(pid)
    s.settimeout(60)
    try:
        while True:
            s.sendall(b'{"v":2,"op":"list"}\n' * 1000)
            Job(pid).list()
    except (BrokenPipeError, ConnectionResetError):
        pass


def crowd(pid):
    """A thousand connections, all held open and silent; others are served all the same."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    held = []
    for n in range(1000):
        held.append(connect(pid))
        if n % 100 == 99:
            assert Job(pid).list()["pid"] == pid
    says(held[0], "too_many")
    threads = len(os.listdir(f"/proc/{pid}/task"))
    assert threads < 200, f"{threads} threads"


def listeners(pid):
    """More that want events than there may be; requests are answered all the same."""
    held = [connect(pid) for _ in range(40)]
    for s in held:
        s.sendall(b'{"v":2,"op":"subscribe"}\n')
    told = [answer(s) for s in held]
    assert sum(t["ok"] for t in told) == 16, told
    assert all(t["ok"] or t["error"] == "too_many" for t in told), told
    assert Job(pid).list()["pid"] == pid


def stranger(pid):
    """Another user, who was let through to the socket by a mistake in its directory's mode."""
    path = directory()
    os.chmod(os.path.dirname(path), 0o755)
    os.chmod(path, 0o755)
    os.chmod(os.path.join(path, str(pid)), 0o777)
    os.setgid(65534)
    os.setuid(65534)
    s = connect(pid)
    says(s, "forbidden")
    assert answer(s) is None, "the connection stays open"


if __name__ == "__main__":
    globals()[sys.argv[2]](int(sys.argv[1]))
