// Streams of every priority, made and destroyed while others work; what a stream was made with can be asked for at any time.
#include "program.cuh"

#include <algorithm>

constexpr int WIDTH = 256;

__global__ void work(unsigned *cells, unsigned n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned k = 0; k < 8; k++) cells[i] = cells[i] * 1664525u + n + k;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 300);
    int least, greatest;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    int count = std::min(least - greatest + 1, 8);
    std::printf("several priorities: %s\n", count > 1 ? "yes" : "no");
    std::vector<cudaStream_t> streams(count);
    std::vector<unsigned *> cells(count);
    std::vector<std::vector<unsigned>> host(count, std::vector<unsigned>(WIDTH, 0));
    program::Report report;
    auto make = [&](int i) {
        // Beyond the range the nearest priority is taken.
        int asked = i == 0 ? greatest - 100 : i == count - 1 ? least + 100 : greatest + i;
        CHECK(cudaStreamCreateWithPriority(&streams[i], i % 2 ? cudaStreamNonBlocking : cudaStreamDefault, asked));
    };
    auto check = [&](int i) {
        int priority = 12345;
        unsigned flags = 12345;
        CHECK(cudaStreamGetPriority(streams[i], &priority));
        CHECK(cudaStreamGetFlags(streams[i], &flags));
        report.expect_value("flags", flags, i % 2 ? cudaStreamNonBlocking : cudaStreamDefault);
        report.expect_value("priority", priority, i == count - 1 ? least : greatest + i);
    };
    for (int i = 0; i < count; i++) {
        make(i);
        CHECK(cudaMalloc(&cells[i], sizeof(unsigned) * WIDTH));
        CHECK(cudaMemset(cells[i], 0, sizeof(unsigned) * WIDTH));
    }
    CHECK(cudaDeviceSynchronize());
    for (long round = 0; round < options.steps; round++) {
        for (int i = 0; i < count; i++) {
            unsigned n = static_cast<unsigned>(program::mix(round * 8 + i));
            work<<<WIDTH / 64, 64, 0, streams[i]>>>(cells[i], n);
            CHECK_LAUNCH();
            for (unsigned &cell : host[i]) {
                for (unsigned k = 0; k < 8; k++) cell = cell * 1664525u + n + k;
            }
        }
        int changed = static_cast<int>(round % count);
        check(changed);
        if (round % 4 == 3) {
            // Its work goes on when a stream is destroyed; the next of its name must wait for it.
            cudaEvent_t done;
            CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
            CHECK(cudaEventRecord(done, streams[changed]));
            CHECK(cudaStreamDestroy(streams[changed]));
            make(changed);
            CHECK(cudaStreamWaitEvent(streams[changed], done, 0));
            CHECK(cudaEventDestroy(done));
        }
        if (round % 8 == 7) CHECK(cudaStreamSynchronize(streams[(changed + 1) % count]));
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < std::min(count, 2); i++) {
        report.expect_device("cells", cells[i], host[i].data(), sizeof(unsigned) * WIDTH);
        report.allocation(i ? "cells1" : "cells0", cells[i], sizeof(unsigned) * WIDTH);
    }
    for (int i = 0; i < count; i++) {
        report.expect_device("cells", cells[i], host[i].data(), sizeof(unsigned) * WIDTH);
        CHECK(cudaStreamDestroy(streams[i]));
        CHECK(cudaFree(cells[i]));
    }
    return report.finish();
}
