// Makes no call while it waits: looks at memory that an asynchronous copy fills, and works on the host alone for a while. The
// memory is pinned in some rounds, pageable in others.
#include "program.cuh"

#include <atomic>
#include <chrono>

constexpr int CELLS = 20000;

__global__ void fill(unsigned *cells, unsigned n, unsigned mark) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < CELLS) cells[i] = cells[i] * 69069u + n + i;
    // The last word is never zero: the host sees by it that the copy has got there.
    if (i == CELLS - 1) cells[CELLS] = mark;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    const size_t bytes = sizeof(unsigned) * (CELLS + 1);
    unsigned *cells, *pinned;
    std::vector<unsigned> pageable(CELLS + 1), host(CELLS + 1, 0);
    cudaStream_t stream;
    CHECK(cudaMalloc(&cells, bytes));
    CHECK(cudaMemset(cells, 0, bytes));
    CHECK(cudaMallocHost(&pinned, bytes));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    program::Report report;
    unsigned long long busy = 0;
    program::Bystanders bystanders;
    for (long round = 0; round < options.steps; round++) {
        unsigned n = static_cast<unsigned>(program::mix(round)), mark = static_cast<unsigned>(round) + 1;
        unsigned *to = round % 3 == 2 ? pageable.data() : pinned;
        to[CELLS] = 0;
        fill<<<(CELLS + 127) / 128, 128, 0, stream>>>(cells, n, mark);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(to, cells, bytes, cudaMemcpyDeviceToHost, stream));
        for (int i = 0; i < CELLS; i++) host[i] = host[i] * 69069u + n + i;
        host[CELLS] = mark;
        volatile unsigned *last = to + CELLS;
        while (*last != mark) {}
        std::atomic_thread_fence(std::memory_order_acquire);
        // Bytes of a copy may land in any order; only its end is known to be over when the stream is. Nearly always all is there.
        if (std::memcmp(to, host.data(), bytes) != 0) {
            CHECK(cudaStreamSynchronize(stream));
            report.expect(to == pinned ? "pinned" : "pageable", to, host.data(), bytes);
        }
        if (round % 4 == 3) {
            // Nothing but the processor's own work, without a call of any kind.
            auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(2 * options.pace_us);
            do busy = program::mix(busy | 1);
            while (std::chrono::steady_clock::now() < until);
        } else {
            options.pace();
        }
    }
    CHECK(cudaStreamSynchronize(stream));
    report.expect_value("worked", busy == 1, 0);
    report.expect_device("cells", cells, host.data(), bytes);
    report.allocation("cells", cells, bytes);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(cells));
    bystanders.end(report);
    return report.finish();
}
