// Adds 1 to 65,536 numbers in the GPU's memory, four times a second, and checks all of them each time.
#include <cstdio>
#include <unistd.h>
#include <vector>

__global__ void add(unsigned *numbers) {
    numbers[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

int main() {
    std::vector<unsigned> copy(65536);
    size_t bytes = copy.size() * sizeof(unsigned);
    unsigned *numbers;
    cudaError_t error = cudaMalloc(&numbers, bytes);
    if (error == cudaSuccess) error = cudaMemset(numbers, 0, bytes);
    for (unsigned step = 1; error == cudaSuccess; step++) {
        add<<<copy.size() / 256, 256>>>(numbers);
        error = cudaMemcpy(copy.data(), numbers, bytes, cudaMemcpyDeviceToHost);
        if (error != cudaSuccess) break;
        size_t right = 0;
        for (unsigned number : copy) right += number == step;
        printf("step %u: %zu of %zu numbers are right\n", step, right, copy.size());
        fflush(stdout);
        usleep(250000);
    }
    printf("CUDA error: %s\n", cudaGetErrorString(error));
    return 1;
}
