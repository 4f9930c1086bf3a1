// How fast are large copies, by kind of host memory: pageable, pinned, registered? GB/s (10^9 bytes), medians, beside nothing else.
//
//     nvcc -O2 -arch=native -o large_copies large_copies.cu
//     ./large_copies [MiB] [COUNT]; mrcuda run --server PLACE ./large_copies [MiB] [COUNT]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(call)                                                              \
    do {                                                                         \
        cudaError_t code = (call);                                               \
        if (code != cudaSuccess) {                                               \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));        \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static double median(size_t bytes, int count, void *to, const void *from, cudaMemcpyKind kind) {
    std::vector<double> rates;
    for (int i = 0; i < count + 2; i++) {
        auto began = std::chrono::steady_clock::now();
        CHECK(cudaMemcpy(to, from, bytes, kind));
        CHECK(cudaDeviceSynchronize());
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        // The first copies open connections and touch memory.
        if (i >= 2) rates.push_back(bytes / seconds / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() / 2];
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoull(argv[1], nullptr, 10) : 512) << 20;
    int count = argc > 2 ? atoi(argv[2]) : 15;
    void *device, *pinned;
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMallocHost(&pinned, bytes));
    void *pageable = malloc(bytes), *registered = aligned_alloc(1 << 21, bytes);
    memset(pinned, 1, bytes), memset(pageable, 2, bytes), memset(registered, 3, bytes);
    CHECK(cudaHostRegister(registered, bytes, cudaHostRegisterDefault));
    struct { const char *name; void *memory; } kinds[] = {{"pageable", pageable}, {"pinned", pinned}, {"registered", registered}};
    for (auto kind : kinds) {
        double in = median(bytes, count, device, kind.memory, cudaMemcpyHostToDevice);
        double out = median(bytes, count, kind.memory, device, cudaMemcpyDeviceToHost);
        printf("%s %.1f / %.1f; ", kind.name, in, out);
    }
    printf("(%zu MiB, in / out)\n", bytes >> 20);
    return 0;
}
