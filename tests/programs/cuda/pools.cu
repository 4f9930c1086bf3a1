// Stream-ordered allocation: blocks that come and go in four streams and the default stream, are used in one stream and
// freed in another, from the device's pool and from one of the program's own. Memory that is given out too early shows in
// the sums.
#include "program.cuh"

constexpr int STREAMS = 4;
constexpr int BLOCK = 128;

// Fills a block with numbers that follow from the step.
__global__ void fill(uint64_t *block, int words, uint64_t seed) {
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < words; i += gridDim.x * BLOCK) block[i] = program::mix(seed + i);
}

// Adds a block to a sum of 256 words.
__global__ void add(const uint64_t *block, int words, uint64_t *sum) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    uint64_t s = sum[i];
    for (int k = i; k < words; k += 256) s = program::mix(s ^ block[k]);
    sum[i] = s;
}

static int words_of(long step, int stream) {
    return 256 << (program::mix(static_cast<uint64_t>(step) * 8 + stream) % 9);
}

static void host_add(std::vector<uint64_t> &sum, int words, uint64_t seed) {
    for (int i = 0; i < 256; i++)
        for (int k = i; k < words; k += 256) sum[i] = program::mix(sum[i] ^ program::mix(seed + k));
}

static uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
    uint64_t value = 0;
    CHECK(cudaMemPoolGetAttribute(pool, which, &value));
    return value;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    cudaMemPool_t device_pool, own_pool;
    CHECK(cudaDeviceGetDefaultMemPool(&device_pool, 0));
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemPoolCreate(&own_pool, &props));
    uint64_t keep = UINT64_MAX;
    CHECK(cudaMemPoolSetAttribute(own_pool, cudaMemPoolAttrReleaseThreshold, &keep));

    cudaStream_t streams[STREAMS];
    cudaEvent_t filled[STREAMS];
    uint64_t *sums[STREAMS + 1];
    for (int s = 0; s <= STREAMS; s++) {
        CHECK(cudaMalloc(&sums[s], 256 * sizeof(uint64_t)));
        CHECK(cudaMemset(sums[s], 0, 256 * sizeof(uint64_t)));
    }
    for (int s = 0; s < STREAMS; s++) {
        CHECK(cudaStreamCreateWithFlags(&streams[s], s % 2 == 0 ? cudaStreamNonBlocking : cudaStreamDefault));
        CHECK(cudaEventCreateWithFlags(&filled[s], cudaEventDisableTiming));
    }
    CHECK(cudaDeviceSynchronize());
    // One that lives from the first step to the last.
    uint64_t *lasting;
    CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&lasting), 5000 * sizeof(uint64_t), own_pool, streams[0]));
    fill<<<4, BLOCK, 0, streams[0]>>>(lasting, 5000, 77);
    CHECK_LAUNCH();

    std::vector<std::vector<uint64_t>> want(STREAMS + 1, std::vector<uint64_t>(256, 0));
    program::Window window;
    for (long step = 0; step < options.steps; step++) {
        for (int s = 0; s < STREAMS; s++) {
            const int words = words_of(step, s);
            const uint64_t seed = static_cast<uint64_t>(step) * 1000003 + static_cast<uint64_t>(s) * 7919;
            uint64_t *block;
            void **at = reinterpret_cast<void **>(&block);
            if (s == 1) {
                CHECK(cudaMallocFromPoolAsync(at, words * sizeof(uint64_t), own_pool, streams[s]));
            } else {
                CHECK(cudaMallocAsync(at, words * sizeof(uint64_t), streams[s]));
            }
            fill<<<4, BLOCK, 0, streams[s]>>>(block, words, seed);
            CHECK_LAUNCH();
            CHECK(cudaEventRecord(filled[s], streams[s]));
            // Used and freed in the next stream; every third time where it was made.
            const int t = step % 3 == 0 ? s : (s + 1) % STREAMS;
            CHECK(cudaStreamWaitEvent(streams[t], filled[s], 0));
            add<<<2, BLOCK, 0, streams[t]>>>(block, words, sums[t]);
            CHECK_LAUNCH();
            host_add(want[t], words, seed);
            CHECK(cudaFreeAsync(block, streams[t]));
        }
        // The default stream frees what a blocking stream has used, and a blocking stream uses what comes next.
        uint64_t *first, *second;
        CHECK(cudaMallocAsync(&first, 4096 * sizeof(uint64_t), streams[1]));
        fill<<<4, BLOCK, 0, streams[1]>>>(first, 4096, 5 + step);
        add<<<2, BLOCK, 0, streams[1]>>>(first, 4096, sums[1]);
        CHECK(cudaFreeAsync(first, cudaStreamLegacy));
        CHECK(cudaMallocAsync(&second, 4096 * sizeof(uint64_t), cudaStreamLegacy));
        fill<<<4, BLOCK, 0, streams[3]>>>(second, 4096, 9 + step);
        add<<<2, BLOCK, 0, streams[3]>>>(second, 4096, sums[STREAMS]);
        CHECK(cudaFreeAsync(second, streams[3]));
        CHECK_LAUNCH();
        host_add(want[1], 4096, 5 + step);
        host_add(want[STREAMS], 4096, 9 + step);
        if (step % 4 == 1) {
            // Memory of cudaMalloc can be freed in a stream as well.
            uint64_t *plain;
            CHECK(cudaMalloc(&plain, 300000));
            fill<<<4, BLOCK, 0, streams[2]>>>(plain, 20000, 3);
            CHECK_LAUNCH();
            CHECK(cudaFreeAsync(plain, streams[2]));
        }
        if (step % 7 == 6) CHECK(cudaMemPoolTrimTo(device_pool, 0));
        window.round_done(streams[step % STREAMS]);
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    std::printf("used %llu %llu\n", static_cast<unsigned long long>(attribute(device_pool, cudaMemPoolAttrUsedMemCurrent)),
                static_cast<unsigned long long>(attribute(own_pool, cudaMemPoolAttrUsedMemCurrent)));
    std::printf("reserved %llu, own %s\n", static_cast<unsigned long long>(attribute(device_pool, cudaMemPoolAttrReservedMemCurrent)),
                attribute(own_pool, cudaMemPoolAttrReservedMemCurrent) > 0 ? "some" : "none");

    std::vector<uint64_t> made(5000);
    for (int i = 0; i < 5000; i++) made[i] = program::mix(77 + i);
    report.expect_device("lasting", lasting, made.data(), made.size() * sizeof(uint64_t));
    report.allocation("lasting", lasting, made.size() * sizeof(uint64_t));
    for (int s = 0; s <= STREAMS; s++) {
        std::string name = "sum" + std::to_string(s);
        report.expect_device(name.c_str(), sums[s], want[s].data(), 256 * sizeof(uint64_t));
        report.allocation(name.c_str(), sums[s], 256 * sizeof(uint64_t));
        CHECK(cudaFree(sums[s]));
    }
    CHECK(cudaFree(lasting));
    CHECK(cudaMemPoolDestroy(own_pool));
    window.destroy();
    for (int s = 0; s < STREAMS; s++) {
        CHECK(cudaEventDestroy(filled[s]));
        CHECK(cudaStreamDestroy(streams[s]));
    }
    return report.finish();
}
