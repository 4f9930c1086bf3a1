// The kernel of mill, which carries it as PTX so that it can be built without nvcc:
//   nvcc -arch=compute_75 -ptx -O3 -o - mill.cu | sed 's/^.version .*/.version 6.5/; s/^.global/.visible .global/' > mill.ptx
#include <cstdint>

extern "C" {

// Words ground so far.
__device__ unsigned int ground;

__global__ void grind(uint32_t *acc, const uint32_t *grain, uint32_t first, uint32_t turn) {
    uint32_t i = first + blockIdx.x * blockDim.x + threadIdx.x;
    acc[i] = acc[i] * 1664525u + grain[i] + turn;
    if (threadIdx.x == 0) atomicAdd(&ground, blockDim.x);
}

}
