#!/bin/bash
# Runs everything that this bundle carries on this machine's GPU, and prints one table: each program native, remote over
# TCP, and moved remote -> local -> second server -> back, with its output compared. What it costs: ./run-bench.sh
# Options go to the runner: ./run-gpu.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -d programs ] || tar -xzf programs.tar.gz
export MRCUDA_BIN_DIR="$PWD/bin" MRCUDA_PROGRAMS="$PWD/programs"
PATH="$PATH:/usr/local/cuda/bin"
if command -v nvcc >/dev/null; then
    # cuBLAS comes with the machine's toolkit; its kernels are machine code, so this program runs on GPUs only.
    nvcc -std=c++17 -O2 -arch=native -o programs/static/sgemm sources/tests/programs/cuda/sgemm.cu -lcublas ||
        echo "sgemm was not compiled: no cuBLAS here" >&2
else
    echo "sgemm was not compiled: no nvcc here" >&2
fi
exec bin/xtask gpu "$@"
