#!/bin/sh
# Builds the hardware tests into the directory given as the first argument. Needs gcc, and nvcc and
# CUDA's headers: NVCC (default: nvcc of the PATH), CUDA_INCLUDE (default: found beside it).
# The driver itself is not needed: a library of its name, with functions that do nothing, stands in for it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
to=${1:?usage: build.sh DIRECTORY}
nvcc=${NVCC:-nvcc}
include=${CUDA_INCLUDE:-$(dirname "$(command -v "$nvcc")")/../include}
mkdir -p "$to/stand-in"
cd "$here"
for k in 0 1 2 3 4; do
    "$nvcc" -gencode arch=compute_90,code=sm_90 -cubin -DK=$k -o "$to/module$k.cubin" module.cu &
done
"$nvcc" -gencode arch=compute_90,code=sm_90 -cubin -o "$to/twin.cubin" twin.cu &
for k in 0 1; do
    "$nvcc" -gencode arch=compute_90,code=sm_90 -cubin -DK=$k -o "$to/loads$k.cubin" loads.cu &
    "$nvcc" -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80 \
        -fatbin -DK=$k -o "$to/loads$k.fatbin" loads.cu &
done
"$nvcc" -arch=compute_75 -ptx -DK=1 -o "$to/module1.ptx" module.cu &
flags="-std=gnu11 -O2 -Wall -Wextra -isystem $include"
parts="placement requests memory waits heap globals graphs graph_rest graph_updates textures sparse hostmem peers legacy copies staging engines kernel_copies loads"
for p in $parts hook; do gcc $flags -c -o "$to/$p.o" $p.c; done
# Every function that they name, without a body: the loader takes the driver's.
nm -u "$to"/*.o | awk '$2 ~ /^cu[A-Z]/ { print "void " $2 "(void) {}" }' | sort -u >"$to/names.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$to/names.so" "$to/names.c"
for p in $parts; do gcc -o "$to/$p" "$to/$p.o" "$to/hook.o" "$to/names.so" -ldl -lpthread; done
gcc $flags -o "$to/overhead" overhead.c hook.c -ldl -lpthread
gcc $flags -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$to/stand-in/libcuda.so.1" stand_in.c
gcc $flags -o "$to/loader" loader.c hook.c "$to/stand-in/libcuda.so.1" -Wl,-rpath,'$ORIGIN/stand-in' -ldl
wait
