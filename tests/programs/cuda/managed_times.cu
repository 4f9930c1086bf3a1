// Managed memory of a program whose host does not touch it while kernels run: what filling it on the host, many kernels and reading it on the host
// take, and what a wait takes after one word of it has changed. Natively, and under `mrcuda run --server tls://HOST:PORT` with `--managed concurrent`
// and `--managed exclusive`: run-managed.sh of the bundle. With `--prefetch`, as programs for GPUs that move pages do.
//
//   managed_times [--mib 1024] [--kernels 100] [--prefetch]
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                                                  \
    do {                                                                                                             \
        cudaError_t status_ = (call);                                                                                \
        if (status_ != cudaSuccess) {                                                                                \
            std::fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorName(status_));                   \
            std::exit(1);                                                                                            \
        }                                                                                                            \
    } while (0)

__global__ void add(float *words, size_t n, float value) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) words[i] += value;
}

__global__ void put(float *word, float value) { *word = value; }

__global__ void nothing() {}

static double now() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F> static double timed(F run) {
    const double began = now();
    run();
    return now() - began;
}

// The median of several runs.
template <class F> static double usual(F run) {
    std::vector<double> times;
    for (int i = 0; i < 15; i++) times.push_back(timed(run));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main(int argc, char **argv) {
    size_t mib = 1024, kernels = 100;
    bool prefetch = false;
    for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], "--prefetch") == 0) prefetch = true;
        if (std::strcmp(argv[i], "--mib") == 0 && i + 1 < argc) mib = std::strtoul(argv[++i], nullptr, 10);
        if (std::strcmp(argv[i], "--kernels") == 0 && i + 1 < argc) kernels = std::strtoul(argv[++i], nullptr, 10);
    }
    const size_t n = (mib << 20) / sizeof(float);
    int device, concurrent;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device));
    const cudaMemLocation gpu = {cudaMemLocationTypeDevice, device}, host = {cudaMemLocationTypeHost, 0};
    nothing<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());

    float *words;
    std::printf("concurrent managed access %d, %zu MiB, %zu kernels%s\n", concurrent, mib, kernels, prefetch ? ", prefetches" : "");
    const double allocated = timed([&] { CHECK(cudaMallocManaged(&words, n * sizeof(float))); });
    double filled = 0, first = 0, others = 0, read = 0;
    // The second round finds everything allocated.
    for (int round = 0; round < 2; round++) {
        filled = timed([&] {
            for (size_t i = 0; i < n; i++) words[i] = static_cast<float>(i % 1000 + round);
        });
        first = timed([&] {
            if (prefetch) CHECK(cudaMemPrefetchAsync(words, n * sizeof(float), gpu, 0, 0));
            add<<<1056, 256>>>(words, n, 1);
            CHECK(cudaDeviceSynchronize());
        });
        others = timed([&] {
            for (size_t k = 1; k < kernels; k++) add<<<1056, 256>>>(words, n, 1);
            CHECK(cudaDeviceSynchronize());
        });
        double sum = 0, want = 0;
        read = timed([&] {
            if (prefetch) CHECK(cudaMemPrefetchAsync(words, n * sizeof(float), host, 0, 0));
            CHECK(cudaDeviceSynchronize());
            for (size_t i = 0; i < n; i++) sum += words[i];
        });
        for (size_t i = 0; i < n; i++) want += static_cast<double>(i % 1000 + round + kernels);
        if (sum != want) {
            std::printf("WRONG: %f, not %f\n", sum, want);
            return 1;
        }
    }
    std::printf("| allocation | %.3f ms |\n| fill on the host | %.1f ms |\n| first kernel and wait | %.1f ms |\n", allocated, filled, first);
    std::printf("| the other kernels and a wait | %.1f ms |\n| read on the host | %.1f ms |\n", others, read);
    std::printf("| fill, kernels, read | %.1f ms |\n", filled + first + others + read);
    std::printf("| empty kernel and wait | %.3f ms |\n", usual([] {
                    nothing<<<1, 1>>>();
                    CHECK(cudaDeviceSynchronize());
                }));
    float value = 0;
    const double one = usual([&] {
        put<<<1, 1>>>(words + n / 2, ++value);
        CHECK(cudaDeviceSynchronize());
    });
    std::printf("| a kernel that changes one word, and wait | %.3f ms |\n", one);
    const double both = usual([&] {
        words[n / 3] = ++value;
        put<<<1, 1>>>(words + n / 2, value);
        CHECK(cudaDeviceSynchronize());
        if (words[n / 2] != value) std::printf("WRONG: %f\n", words[n / 2]);
    });
    std::printf("| the host changes one word, the kernel another, and wait | %.3f ms |\n", both);
    CHECK(cudaFree(words));
    std::printf("right\n");
    return 0;
}
