// One of the modules that killer.cu loads and unloads: built three times, with WHICH = 0, 1, 2.
#include "killer_module.cuh"

#ifndef WHICH
#error "build with -DWHICH=0, 1 or 2"
#endif

using killer::ModuleAddresses;

extern "C" {
__device__ unsigned state[killer::module_words(WHICH)];
__device__ unsigned hits;
__constant__ unsigned salt;
}

template <int K> __device__ __noinline__ unsigned op(unsigned x) { return killer::module_op(WHICH, K, x); }

__device__ unsigned (*ops[killer::MODULE_OPS])(unsigned) = {op<0>, op<1>, op<2>, op<3>};

// Hands out the addresses: from here on the program reaches everything through its own memory.
extern "C" __global__ void module_open(ModuleAddresses *addresses) {
    addresses->state = state;
    addresses->hits = &hits;
    addresses->salt = &salt;
    for (int k = 0; k < killer::MODULE_OPS; k++) addresses->ops[k] = ops[k];
}

extern "C" __global__ void module_work(const ModuleAddresses *addresses, unsigned *data, long long step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = addresses->ops[(step + i) % killer::MODULE_OPS](data[i] + *addresses->salt);
    data[i] = x;
    addresses->state[killer::module_word(WHICH, i, step)] += x;
    atomicAdd(addresses->hits, x & 15u);
}
