// A storm of allocations: sixteen threads allocate and free in every way at once, and check what they hold.
#include "program.cuh"
#include "until.cuh"

#include <thread>

constexpr int THREADS = 16;
constexpr int HELD = 4;
constexpr int BLOCK = 128;

__global__ void fill(uint64_t *words, int n, uint64_t seed) {
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK) words[i] = program::mix(seed + i);
}

// Counts the words that are not what `fill` left.
__global__ void check(const uint64_t *words, int n, uint64_t seed, unsigned long long *wrong) {
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK)
        if (words[i] != program::mix(seed + i)) atomicAdd(wrong, 1ull);
}

struct Block {
    uint64_t *words = nullptr;
    int n = 0;
    uint64_t seed = 0;
    bool pooled = false;
};

static void run(int thread, const program::Options &options, const program::Until &until, unsigned long long *wrong) {
    const cudaStream_t stream = cudaStreamPerThread;
    Block held[HELD];
    auto end = [&](Block &block) {
        if (block.words == nullptr) return;
        check<<<2, BLOCK, 0, stream>>>(block.words, block.n, block.seed, wrong + thread);
        CHECK_LAUNCH();
        if (block.pooled) CHECK(cudaFreeAsync(block.words, stream));
        else CHECK(cudaFree(block.words));
        block.words = nullptr;
    };
    for (long step = 0; until.more(step, options.steps); step++) {
        const uint64_t random = program::mix(static_cast<uint64_t>(step) * THREADS + thread);
        Block &block = held[random % HELD];
        end(block);
        // Few are large: moves are to meet allocations more than bytes.
        block.n = 64 << ((random >> 8) % 10 + ((random >> 32) % 16 == 0 ? 3 : 0));
        block.seed = random;
        block.pooled = (random >> 20) % 4 != 0;
        const size_t bytes = block.n * sizeof(uint64_t);
        if (block.pooled) CHECK(cudaMallocAsync(&block.words, bytes, stream));
        else CHECK(cudaMalloc(&block.words, bytes));
        fill<<<2, BLOCK, 0, stream>>>(block.words, block.n, block.seed);
        CHECK_LAUNCH();
        if ((random >> 24) % 16 == 0) CHECK(cudaStreamSynchronize(stream));
        options.pace();
    }
    for (Block &block : held) end(block);
    CHECK(cudaStreamSynchronize(stream));
}

int main(int argc, char **argv) {
    const program::Until until(argc, argv);
    program::Options options(argc, argv, 40);
    unsigned long long *wrong;
    CHECK(cudaMalloc(&wrong, THREADS * sizeof *wrong));
    CHECK(cudaMemset(wrong, 0, THREADS * sizeof *wrong));
    CHECK(cudaDeviceSynchronize());
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) threads.emplace_back([t, &options, &until, wrong] { run(t, options, until, wrong); });
    for (std::thread &thread : threads) thread.join();
    CHECK(cudaDeviceSynchronize());
    program::Report report;
    std::vector<unsigned long long> none(THREADS, 0);
    report.expect_device("wrong", wrong, none.data(), THREADS * sizeof *wrong);
    report.allocation("wrong", wrong, THREADS * sizeof *wrong);
    CHECK(cudaFree(wrong));
    return report.finish();
}
