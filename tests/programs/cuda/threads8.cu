// Eight host threads, each on its own per-thread default stream, all at once, with one device
// variable that they share. A call of one thread must never be taken for a call of another.
#include "program.cuh"

#include <atomic>
#include <thread>

constexpr int THREADS = 8;
constexpr int WORDS = 2048;
constexpr int BLOCK = 128;
constexpr size_t BYTES = sizeof(uint64_t) * WORDS;

__device__ unsigned int rounds_done[THREADS];
__device__ unsigned int all_rounds;

__global__ void scramble(uint64_t *words, int thread, long step) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    words[i] = program::mix(words[i] ^ static_cast<uint64_t>(thread + 1) * 1000003u) + static_cast<uint64_t>(step);
    if (i == 0) {
        rounds_done[thread]++; // only this thread's stream writes this element
        atomicAdd(&all_rounds, 1u);
    }
}

// Adds a block's words into one, through shared memory.
__global__ void fold(const uint64_t *words, uint64_t *folded) {
    __shared__ uint64_t part[BLOCK];
    part[threadIdx.x] = words[blockIdx.x * BLOCK + threadIdx.x];
    __syncthreads();
    for (int width = BLOCK / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) folded[blockIdx.x] = program::mix(folded[blockIdx.x] ^ part[0]);
}

struct Worker {
    uint64_t *words = nullptr, *folded = nullptr, *pinned = nullptr;
};

static void run(int thread, const program::Options &options, Worker &worker, const std::atomic<bool> &start) {
    const cudaStream_t stream = cudaStreamPerThread;
    const size_t folded_bytes = sizeof(uint64_t) * WORDS / BLOCK;
    std::vector<uint64_t> words(WORDS);
    for (int i = 0; i < WORDS; i++) words[i] = program::mix(static_cast<uint64_t>(thread) * WORDS + i);
    while (!start) std::this_thread::yield();
    CHECK(cudaMalloc(&worker.words, BYTES));
    CHECK(cudaMalloc(&worker.folded, folded_bytes));
    CHECK(cudaMallocHost(&worker.pinned, folded_bytes));
    std::memset(worker.pinned, 0, folded_bytes);
    CHECK(cudaMemcpyAsync(worker.words, words.data(), BYTES, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(worker.folded, 0, folded_bytes, stream));
    program::Window window;
    for (long step = 0; step < options.steps; step++) {
        scramble<<<WORDS / BLOCK, BLOCK, 0, stream>>>(worker.words, thread, step);
        CHECK_LAUNCH();
        fold<<<WORDS / BLOCK, BLOCK, 0, stream>>>(worker.words, worker.folded);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(worker.pinned, worker.folded, folded_bytes, cudaMemcpyDeviceToHost, stream));
        // An allocation that comes and goes while the other threads work.
        if (step % 8 == thread) {
            void *passing;
            CHECK(cudaMalloc(&passing, 4096 * (thread + 1)));
            CHECK(cudaMemsetAsync(passing, thread, 4096 * (thread + 1), stream));
            CHECK(cudaStreamSynchronize(stream));
            CHECK(cudaFree(passing));
        }
        window.round_done(stream);
        options.pace();
    }
    CHECK(cudaStreamSynchronize(stream));
    window.destroy();
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 16);
    CHECK(cudaFree(nullptr)); // one context before the threads ask for it
    Worker workers[THREADS];
    std::atomic<bool> start(false);
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) {
        threads.emplace_back([t, &options, &workers, &start] { run(t, options, workers[t], start); });
    }
    start = true;
    for (std::thread &thread : threads) thread.join();
    CHECK(cudaDeviceSynchronize());

    program::Report report;
    unsigned int done[THREADS], all = 0;
    CHECK(cudaMemcpyFromSymbol(done, rounds_done, sizeof done));
    CHECK(cudaMemcpyFromSymbol(&all, all_rounds, sizeof all));
    const uint64_t steps = static_cast<uint64_t>(options.steps);
    report.expect_value("all_rounds", all, static_cast<unsigned>(steps * THREADS));
    for (int t = 0; t < THREADS; t++) {
        std::vector<uint64_t> words(WORDS), folded(WORDS / BLOCK, 0);
        for (int i = 0; i < WORDS; i++) words[i] = program::mix(static_cast<uint64_t>(t) * WORDS + i);
        for (uint64_t step = 0; step < steps; step++) {
            for (uint64_t &word : words) word = program::mix(word ^ static_cast<uint64_t>(t + 1) * 1000003u) + step;
            for (int b = 0; b < WORDS / BLOCK; b++) {
                uint64_t sum = 0;
                for (int i = 0; i < BLOCK; i++) sum += words[b * BLOCK + i];
                folded[b] = program::mix(folded[b] ^ sum);
            }
        }
        std::string n = std::to_string(t);
        size_t folded_bytes = folded.size() * sizeof(uint64_t);
        report.expect_value(("rounds_done" + n).c_str(), done[t], static_cast<unsigned>(steps));
        report.expect_device(("words" + n).c_str(), workers[t].words, words.data(), BYTES);
        report.expect_device(("folded" + n).c_str(), workers[t].folded, folded.data(), folded_bytes);
        report.expect(("pinned" + n).c_str(), workers[t].pinned, folded.data(), folded_bytes);
        report.allocation(("words" + n).c_str(), workers[t].words, BYTES);
        report.allocation(("folded" + n).c_str(), workers[t].folded, folded_bytes);
        report.line("pinned", ("pinned" + n).c_str(), workers[t].pinned, folded_bytes);
        CHECK(cudaFree(workers[t].words));
        CHECK(cudaFree(workers[t].folded));
        CHECK(cudaFreeHost(workers[t].pinned));
    }
    report.global("rounds_done", rounds_done);
    report.global("all_rounds", all_rounds);
    return report.finish();
}
