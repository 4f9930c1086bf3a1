// Takes all memory of the device that it can get, twice, and prints what the device has, what was free, and what it got: for a server that
// limits the memory of a job.

#include "program.cuh"

constexpr size_t PART = size_t(8) << 20;

static size_t fill(int *error) {
    std::vector<void *> blocks;
    void *block;
    while (cudaMalloc(&block, PART) == cudaSuccess) blocks.push_back(block);
    *error = cudaGetLastError();
    size_t left, total;
    CHECK(cudaMemGetInfo(&left, &total));
    std::printf("left %zu\n", left);
    for (void *b : blocks) CHECK(cudaFree(b));
    return blocks.size() * PART;
}

int main() {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    size_t free, total;
    CHECK(cudaMemGetInfo(&free, &total));
    std::printf("device %zu\ntotal %zu\nfree %zu\n", properties.totalGlobalMem, total, free);
    int error, after;
    size_t got = fill(&error), again = fill(&after);
    std::printf("got %zu\nagain %zu\nerror %d\n", got, again, error == after ? error : -1);
    std::printf("RESULT ok\n");
}
