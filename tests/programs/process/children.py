"""A job with two children that outlive it: one that was forked and goes on, one that has begun another program.

Argument: a file. It forks when the file exists, prints the process ids of both, and waits to be killed.
"""
import ctypes
import os
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
while not os.path.exists(sys.argv[1]):
    time.sleep(0.005)
forked = os.fork()
if forked == 0:
    time.sleep(600)
    os._exit(0)
begun = os.fork()
if begun == 0:
    os.execlp("sleep", "sleep", "600")
print("children", forked, begun, flush=True)
time.sleep(600)
