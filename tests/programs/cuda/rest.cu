// Short copies to the device while the GPU is at rest, and what follows them: kernels of streams that wait for nobody read what
// was copied, the host changes its buffers as soon as a copy has returned, and what is done is asked in every way.
#include "program.cuh"

#include <algorithm>

constexpr int WIDTH = 512;
constexpr int SLOTS = 4;
constexpr int STREAMS = 3;

__global__ void take(uint64_t *to, const uint64_t *from, uint64_t n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = program::mix(to[i] ^ from[i] ^ n);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 300);
    constexpr size_t BYTES = sizeof(uint64_t) * WIDTH;
    uint64_t *slots[SLOTS], *sums[STREAMS];
    for (uint64_t *&slot : slots) CHECK(cudaMalloc(&slot, BYTES));
    std::vector<std::vector<uint64_t>> want(STREAMS, std::vector<uint64_t>(WIDTH, 0));
    for (uint64_t *&sum : sums) {
        CHECK(cudaMalloc(&sum, BYTES));
        CHECK(cudaMemset(sum, 0, BYTES));
    }
    // The last one follows the default stream, the others follow nobody.
    cudaStream_t streams[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        CHECK(cudaStreamCreateWithFlags(&streams[s], s + 1 < STREAMS ? cudaStreamNonBlocking : cudaStreamDefault));
    }
    cudaEvent_t before, after;
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventCreate(&after));
    uint64_t *pinned;
    CHECK(cudaMallocHost(&pinned, BYTES));
    program::Report report;
    std::vector<uint64_t> buffer(WIDTH), read(WIDTH);
    CHECK(cudaDeviceSynchronize());
    for (long round = 0; round < options.steps; round++) {
        CHECK(cudaEventRecord(before, streams[0]));
        // At rest, in one of the ways to get there.
        switch (round % 4) {
        case 0: CHECK(cudaDeviceSynchronize()); break;
        case 1: CHECK(cudaStreamSynchronize(cudaStreamLegacy)); break;
        case 2: CHECK(cudaMemcpy(read.data(), sums[0], sizeof(uint64_t), cudaMemcpyDeviceToHost)); break;
        default:
            CHECK(cudaStreamSynchronize(streams[0]));
            CHECK(cudaStreamSynchronize(cudaStreamLegacy));
        }
        uint64_t values[SLOTS];
        for (int k = 0; k < SLOTS; k++) {
            values[k] = program::mix(round * SLOTS + k);
            std::fill(buffer.begin(), buffer.end(), values[k]);
            uint64_t *from = round % 3 == 1 && k % 2 == 0 ? pinned : buffer.data();
            if (from == pinned) std::fill(pinned, pinned + WIDTH, values[k]);
            if (k == 1) {
                CHECK(cudaMemcpyAsync(slots[k], from, BYTES, cudaMemcpyHostToDevice, streams[2]));
                CHECK(cudaStreamSynchronize(streams[2]));
            } else if (k == 2) {
                CHECK(cudaMemcpy2D(slots[k], BYTES / 8, from, BYTES / 8, BYTES / 8, 8, cudaMemcpyHostToDevice));
            } else {
                // Of two copies to one place the second counts.
                uint64_t wrong = ~values[k];
                CHECK(cudaMemcpy(slots[k] + WIDTH / 2, &wrong, sizeof wrong, cudaMemcpyHostToDevice));
                CHECK(cudaMemcpy(slots[k], from, BYTES, cudaMemcpyHostToDevice));
            }
            // The bytes were taken at the call.
            std::fill(from, from + WIDTH, 0xAAAAAAAAAAAAAAAAull);
        }
        for (int s = 0; s < STREAMS; s++) {
            for (int k = 0; k < SLOTS; k++) {
                take<<<WIDTH / 64, 64, 0, streams[s]>>>(sums[s], slots[k], round);
                CHECK_LAUNCH();
                for (uint64_t &w : want[s]) w = program::mix(w ^ values[k] ^ round);
            }
        }
        CHECK(cudaEventRecord(after, streams[0]));
        cudaError_t state;
        do {
            state = round % 2 ? cudaEventQuery(after) : cudaStreamQuery(streams[0]);
        } while (state == cudaErrorNotReady);
        CHECK(state);
        if (round % 2 == 0) CHECK(cudaEventSynchronize(after));
        // What has happened has happened, however often one asks.
        CHECK(cudaEventQuery(after));
        CHECK(cudaEventQuery(before));
        CHECK(cudaStreamQuery(streams[0]));
        CHECK(cudaEventSynchronize(after));
        float ms = -1;
        CHECK(cudaEventElapsedTime(&ms, before, after));
        report.expect_value("time goes on", ms >= 0, 1);
        CHECK(cudaMemcpyAsync(read.data(), sums[0], BYTES, cudaMemcpyDeviceToHost, streams[0]));
        CHECK(cudaStreamSynchronize(streams[0]));
        report.expect("sum", read.data(), want[0].data(), BYTES);
        // The next copies to the slots must not come before these kernels have read them.
        CHECK(cudaStreamSynchronize(streams[1]));
        CHECK(cudaStreamSynchronize(streams[2]));
        options.pace();
    }
    const char *names[STREAMS] = {"first", "second", "third"};
    for (int s = 0; s < STREAMS; s++) {
        report.expect_device(names[s], sums[s], want[s].data(), BYTES);
        report.allocation(names[s], sums[s], BYTES);
        CHECK(cudaStreamDestroy(streams[s]));
        CHECK(cudaFree(sums[s]));
    }
    for (int k = 0; k < SLOTS; k++) {
        const std::vector<uint64_t> last(WIDTH, program::mix((options.steps - 1) * SLOTS + k));
        if (options.steps > 0) report.expect_device("a slot", slots[k], last.data(), BYTES);
        CHECK(cudaFree(slots[k]));
    }
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaEventDestroy(before));
    CHECK(cudaEventDestroy(after));
    return report.finish();
}
