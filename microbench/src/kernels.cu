// Kernels of microbench, carried as PTX so that no nvcc is needed to build it:
//   nvcc -arch=compute_75 -ptx -O3 -o - kernels.cu | sed 's/^.version .*/.version 6.5/' > kernels.ptx
#include <cstdint>

// What a word of the large memory holds at first.
__device__ uint64_t pattern(uint64_t i) {
    i ^= i >> 33;
    i *= 0xff51afd7ed558ccdull;
    return i ^ (i >> 29);
}

extern "C" {

// Does nothing: what is measured is the call.
__global__ void empty(uint64_t, uint64_t, uint32_t) {}

// Fills memory with the pattern.
__global__ void fill(uint64_t *memory, uint64_t words) {
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < words; i += step)
        memory[i] = pattern(i);
}

// Adds one to a few words far apart: a job that works on little of what it keeps.
__global__ void touch(uint64_t *memory, uint64_t words, uint64_t stride) {
    uint64_t i = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) * stride;
    if (i < words) memory[i] += 1;
}

// Counts words that are not what `rounds` launches of `touch` make of the pattern.
__global__ void check(const uint64_t *memory, uint64_t words, uint64_t stride, uint64_t threads, uint64_t rounds,
                      unsigned long long *wrong) {
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    unsigned long long bad = 0;
    for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < words; i += step) {
        bool touched = i % stride == 0 && i / stride < threads;
        if (memory[i] != pattern(i) + (touched ? rounds : 0)) bad++;
    }
    if (bad != 0) atomicAdd(wrong, bad);
}

}
