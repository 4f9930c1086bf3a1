// How soon the processor learns that a stream has got somewhere: by a wait, by queries of an event or of the stream, by a word that the
// stream writes to host memory. Microseconds.
//
//     nvcc -O2 -arch=native -o marks marks.cu -lcuda
#include "check.cuh"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cuda.h>
#include <vector>

static const int COUNT = 3000;

__global__ void empty() {}
__global__ void fill(unsigned *to, unsigned value) { to[threadIdx.x] = value; }

static void call(CUresult result, const char *text) {
    if (result != CUDA_SUCCESS) {
        std::printf("%s: %d\n", text, result);
        std::exit(1);
    }
}
#define CALL(x) call(x, #x)

static double now() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Step> static void measure(const char *name, Step step) {
    std::vector<double> times;
    for (int i = 0; i < COUNT; i++) {
        double began = now();
        step(i);
        times.push_back(now() - began);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-48s p50 %6.2f  p90 %6.2f  p99 %6.2f\n", name, times[COUNT / 2], times[COUNT * 9 / 10], times[COUNT * 99 / 100]);
}

int main() {
    CHECK(cudaFree(nullptr));
    volatile uint32_t *word;
    unsigned *host, *device;
    CHECK(cudaMallocHost((void **)&word, 4096));
    CHECK(cudaMallocHost((void **)&host, 4096));
    CHECK(cudaMalloc((void **)&device, 4096));
    CUdeviceptr at = (CUdeviceptr)word;
    cudaStream_t free_stream, blocking;
    CHECK(cudaStreamCreateWithFlags(&free_stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreate(&blocking));
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    struct { const char *name; cudaStream_t stream; } all[] = {
        {"non-blocking", free_stream}, {"legacy", cudaStreamLegacy}, {"blocking", blocking}};
    uint32_t number = 0;
    for (auto &one : all) {
        cudaStream_t s = one.stream;
        std::printf("-- %s stream\n", one.name);
        auto mark = [&] { CALL(cuStreamWriteValue32(s, at, ++number, 0)); };
        auto see = [&] { while (*word != number) {} };
        auto launch = [&] { empty<<<1, 32, 0, s>>>(); };
        int late = 0;
        measure("launch", [&](int) { launch(); });
        CHECK(cudaStreamSynchronize(s));
        measure("launch, wait", [&](int) { launch(); CHECK(cudaStreamSynchronize(s)); });
        measure("launch, event, queries of it", [&](int) { launch(); CHECK(cudaEventRecord(event, s)); while (cudaEventQuery(event)) {} });
        measure("launch, queries of the stream", [&](int) { launch(); while (cudaStreamQuery(s)) {} });
        measure("launch, word", [&](int) { launch(), mark(), see(); });
        measure("the same, and then a query", [&](int) { launch(), mark(), see(), late += cudaStreamQuery(s) != cudaSuccess; });
        std::printf("%d of %d queries: not ready\n", late, COUNT);
        measure("a kernel that writes host memory, word", [&](int i) {
            fill<<<1, 1024, 0, s>>>(host, i), mark(), see();
            if (std::any_of(host, host + 1024, [i](unsigned x) { return x != (unsigned)i; })) std::printf("stale at %d\n", i);
        });
        measure("copy out of 64 B, event", [&](int) {
            CHECK(cudaMemcpyAsync(host, device, 64, cudaMemcpyDeviceToHost, s));
            CHECK(cudaEventRecord(event, s));
            while (cudaEventQuery(event)) {}
        });
        measure("copy out of 64 B, word", [&](int) {
            CHECK(cudaMemcpyAsync(host, device, 64, cudaMemcpyDeviceToHost, s));
            mark(), see();
        });
        measure("an event in an idle stream", [&](int) { CHECK(cudaEventRecord(event, s)); });
        CHECK(cudaStreamSynchronize(s));
        measure("a word in an idle stream", [&](int) { mark(); });
        CHECK(cudaStreamSynchronize(s));
    }
    return 0;
}
