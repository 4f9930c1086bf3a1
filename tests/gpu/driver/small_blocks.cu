// What small blocks of host memory cost: microseconds of an allocation and of a free, of 500 blocks of each size that are allocated and
// then freed. Built with nvcc alone; run natively and with `mrcuda run`.
#include "check.cuh"

#include <chrono>
#include <cstdio>

constexpr int BLOCKS = 500;

template <class F> static double each(F &&work) {
    auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / BLOCKS;
}

int main() {
    CHECK(cudaFree(nullptr));
    void *blocks[BLOCKS];
    for (bool managed : {false, true}) {
        for (size_t bytes : {size_t(64), size_t(4096), size_t(64) << 10, size_t(1) << 20}) {
            const double allocate = each([&] {
                for (void *&p : blocks) {
                    if (managed) CHECK(cudaMallocManaged(&p, bytes));
                    else CHECK(cudaHostAlloc(&p, bytes, cudaHostAllocMapped));
                }
            });
            const double free = each([&] {
                for (void *p : blocks) {
                    if (managed) CHECK(cudaFree(p));
                    else CHECK(cudaFreeHost(p));
                }
            });
            std::printf("| %s, %zu B | %.1f, %.1f |\n", managed ? "managed" : "pinned", bytes, allocate, free);
        }
    }
}
