"""Forks while another thread is in its first cuInit: the child's must answer, though it lacks that thread.

Argument: a file. It forks when the file exists, and prints what the child's cuInit returned, then what the parent's did.
"""
import ctypes
import os
import signal
import sys
import threading
import time

cuda = ctypes.CDLL("libcuda.so.1")
opened = []
opener = threading.Thread(target=lambda: opened.append(cuda.cuInit(0)))
opener.start()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.005)
child = os.fork()
if child == 0:
    # One that hangs ends all the same.
    signal.alarm(60)
    os._exit(cuda.cuInit(0))
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
opener.join()
print("opened", *opened, flush=True)
