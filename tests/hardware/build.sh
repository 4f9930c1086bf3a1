#!/bin/sh
# Builds the hardware tests into the folder given as the first argument. Needs gcc, and nvcc and
# CUDA's headers: NVCC (default: nvcc of the PATH), CUDA_INCLUDE (default: found beside it).
# LIBCUDA names a libcuda.so.1 to link with: the driver's, or any library of that soname.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
to=${1:?usage: build.sh FOLDER}
nvcc=${NVCC:-nvcc}
include=${CUDA_INCLUDE:-$(dirname "$(command -v "$nvcc")")/../include}
libcuda=${LIBCUDA:-$(ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/ { print $NF; exit }')}
mkdir -p "$to/stand-in"
cd "$here"
for k in 0 1 2 3 4; do
    "$nvcc" -gencode arch=compute_90,code=sm_90 -cubin -DK=$k -o "$to/module$k.cubin" module.cu &
done
"$nvcc" -gencode arch=compute_90,code=sm_90 -cubin -o "$to/twin.cubin" twin.cu &
"$nvcc" -arch=compute_75 -ptx -DK=1 -o "$to/module1.ptx" module.cu &
flags="-std=gnu11 -O2 -Wall -Wextra -isystem $include"
for p in placement requests memory waits heap globals graphs graph_rest textures hostmem peers; do
    gcc $flags -o "$to/$p" $p.c hook.c "$libcuda" -Wl,--allow-shlib-undefined -ldl -lpthread
done
gcc $flags -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$to/stand-in/libcuda.so.1" stand_in.c
gcc $flags -o "$to/loader" loader.c hook.c "$to/stand-in/libcuda.so.1" -Wl,-rpath,'$ORIGIN/stand-in' -ldl
wait
