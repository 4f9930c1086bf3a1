// A device assertion that fails at the end: its text goes to stderr, and every later call returns the same error.
#include "program.cuh"

#include <cassert>

__global__ void count(int *cells, long round) {
    int value = ++cells[threadIdx.x];
    assert(value <= round);
    if (threadIdx.x == 0 && value == round) printf("round %ld\n", round);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 20);
    int *cells;
    CHECK(cudaMalloc(&cells, 32 * sizeof(int)));
    CHECK(cudaMemset(cells, 0, 32 * sizeof(int)));
    for (long round = 1; round <= options.steps; round++) {
        count<<<1, 32>>>(cells, round);
        CHECK(cudaDeviceSynchronize());
        options.pace();
    }
    std::printf("now one too many\n");
    count<<<1, 2>>>(cells, options.steps);
    CHECK_LAUNCH();
    std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    int word;
    std::printf("%s\n", cudaGetErrorName(cudaMemcpy(&word, cells, sizeof word, cudaMemcpyDeviceToHost)));
    std::printf("%s\n", cudaGetErrorName(cudaMalloc(&cells, 16)));
    std::printf("RESULT ok\n");
    std::fflush(stdout);
    return 0;
}
