// What a wait costs after a number of launches, with and without time of the program's own between them: microseconds of a turn and of its
// wait, medians. Built with nvcc alone; run natively and with `mrcuda run`. `bursts mapped` gives the kernels memory of the host.
#include "check.cuh"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

using Clock = std::chrono::steady_clock;
constexpr int TURNS = 600, WARM_UP = 100;

__global__ void add(unsigned *x, unsigned by) { atomicAdd(x, by); }

static double since(Clock::time_point began) { return std::chrono::duration<double, std::micro>(Clock::now() - began).count(); }

static void think(double us) {
    for (auto began = Clock::now(); since(began) < us;) {}
}

static double median(std::vector<double> &times) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

int main(int argc, char **argv) {
    const bool mapped = argc > 1 && !std::strcmp(argv[1], "mapped");
    unsigned *x, *host = nullptr, seen, total = 0;
    cudaStream_t s;
    CHECK(cudaMalloc(&x, 4));
    CHECK(cudaMemset(x, 0, 4));
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    if (mapped) {
        CHECK(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
        add<<<1, 1, 0, s>>>(host, 1);
        CHECK(cudaStreamSynchronize(s));
    }
    std::printf("%8s %8s %10s | %9s %9s | %9s %9s\n", "launches", "think us", "", "turn", "its wait", "turn", "its copy");
    for (const double own : {0.0, 3.0, 10.0}) {
        for (const int launches : {1, 4, 15, 60}) {
            double shown[4];
            for (const bool copies : {false, true}) {
                std::vector<double> turns, waits;
                for (int n = 0; n < TURNS; n++) {
                    const auto began = Clock::now();
                    for (int k = 0; k < launches; k++) {
                        think(own);
                        add<<<1, 1, 0, s>>>(x, 1);
                    }
                    total += launches;
                    think(own);
                    const auto waited = Clock::now();
                    if (copies) CHECK(cudaMemcpyAsync(&seen, x, 4, cudaMemcpyDeviceToHost, s));
                    CHECK(cudaStreamSynchronize(s));
                    if (copies && seen != total) return std::printf("wrong: %u, not %u\n", seen, total), 1;
                    if (n >= WARM_UP) turns.push_back(since(began)), waits.push_back(since(waited));
                }
                shown[2 * copies] = median(turns), shown[2 * copies + 1] = median(waits);
            }
            std::printf("%8d %8.0f %10s | %9.1f %9.1f | %9.1f %9.1f\n", launches, own, mapped ? "mapped" : "", shown[0], shown[1], shown[2], shown[3]);
        }
    }
}
