// What host functions cost: a stream of kernels and host functions, and memory of the host that kernels use; microseconds of a turn, median.
// Built with nvcc alone; run natively and with `mrcuda run`.
#include "check.cuh"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

constexpr int TURNS = 400, WARM_UP = 40, MANY = 20;

__global__ void add(unsigned *x, unsigned by) { atomicAdd(x, by); }

static std::atomic<unsigned> called;
static void count(void *) { called++; }

template <typename F> static void turns(const char *name, int parts, F turn) {
    std::vector<double> times;
    for (int n = 0; n < TURNS; n++) {
        const auto began = std::chrono::steady_clock::now();
        turn();
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
        if (n >= WARM_UP) times.push_back(took.count() / parts);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-58s %9.1f %9.1f\n", name, times[times.size() / 2], times[times.size() * 99 / 100]);
}

int main() {
    unsigned *x;
    cudaStream_t s;
    CHECK(cudaMalloc(&x, 4));
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    const auto kernel = [&] {
        add<<<1, 1, 0, s>>>(x, 1);
        CHECK(cudaGetLastError());
    };
    std::printf("%-58s %9s %9s\n", "us", "p50", "p99");
    const auto wait = [&] { CHECK(cudaStreamSynchronize(s)); };
    const auto pairs = [&](int many) {
        for (int n = 0; n < many; n++) {
            kernel();
            CHECK(cudaLaunchHostFunc(s, count, nullptr));
        }
    };
    turns("kernel, wait", 1, [&] { kernel(), wait(); });
    turns("kernel, host function, wait", 1, [&] { pairs(1), wait(); });
    turns("20 times kernel and host function, a wait; each", MANY, [&] { pairs(MANY), wait(); });
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    pairs(MANY);
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    turns("the same as a graph; each", MANY, [&] {
        CHECK(cudaGraphLaunch(instance, s));
        wait();
    });
    unsigned sum;
    CHECK(cudaMemcpy(&sum, x, 4, cudaMemcpyDeviceToHost));
    if (sum != TURNS * (2 + 2 * MANY) || called != TURNS * (1 + 2 * MANY)) return std::printf("wrong: %u %u\n", sum, called.load()), 1;

    // Managed memory in blocks, none of which is touched meanwhile: what launches and waits cost where the host's memory is mirrored.
    for (const size_t bytes : {size_t(64) << 10, size_t(160) << 10, size_t(400) << 10, size_t(4) << 20}) {
        std::vector<char *> blocks(8);
        for (auto &b : blocks) {
            CHECK(cudaMallocManaged(&b, bytes));
            std::fill_n(b, bytes, 1);
        }
        kernel(), wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        char name[80];
        std::snprintf(name, sizeof name, "8 managed blocks of %zu KiB: launch of a kernel", bytes >> 10);
        turns(name, MANY, [&] {
            for (int n = 0; n < MANY; n++) kernel();
        });
        wait();
        std::snprintf(name, sizeof name, "8 managed blocks of %zu KiB: kernel, wait", bytes >> 10);
        turns(name, 1, [&] { kernel(), wait(); });
        for (auto b : blocks) CHECK(cudaFree(b));
    }
}
