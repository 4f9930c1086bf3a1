// Sixteen threads that disturb each other as much as they may: captures that stay open for a while, graphs with host functions, long
// kernels, allocations of every kind, a lock that host functions and callers of CUDA both take.
#include "program.cuh"
#include "until.cuh"

#include <algorithm>
#include <mutex>
#include <thread>

constexpr int THREADS = 16;
constexpr int N = 512;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint64_t);

__global__ void step(uint64_t *state, const uint64_t *in, int times) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    uint64_t x = state[i];
    for (int n = 0; n < times; n++) x = program::mix(x ^ in[i % 8]);
    state[i] = x;
}

static std::mutex lock;
static uint64_t under_lock = 0;

// What a thread's host functions read and write.
struct Box {
    uint64_t *seen; // pinned
    uint64_t *next; // pinned
    uint64_t digest = 0;

    void answer() {
        digest = program::mix(digest ^ program::digest(seen, 8 * sizeof(uint64_t)));
        for (int i = 0; i < 8; i++) next[i] = program::mix(digest + i);
    }
};

static void CUDART_CB look(void *data) {
    std::lock_guard<std::mutex> held(lock);
    under_lock++;
    static_cast<Box *>(data)->answer();
}

struct Worker {
    int number;
    const program::Options &options;
    const program::Until &until;
    cudaStream_t stream;
    uint64_t *state, *in;
    Box box;
    uint64_t digest = 0;
    bool wrong = false;

    // Kernel, copy out, host function, copy in: in the stream, or in whatever captures it.
    void chain(int times) {
        step<<<N / BLOCK, BLOCK, 0, stream>>>(state, in, times);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(box.seen, state, 8 * sizeof(uint64_t), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(stream, look, &box));
        CHECK(cudaMemcpyAsync(in, box.next, 8 * sizeof(uint64_t), cudaMemcpyHostToDevice, stream));
    }

    void run() {
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaMalloc(&state, BYTES));
        CHECK(cudaMalloc(&in, 8 * sizeof(uint64_t)));
        CHECK(cudaMallocHost(&box.seen, 8 * sizeof(uint64_t)));
        CHECK(cudaMallocHost(&box.next, 8 * sizeof(uint64_t)));
        CHECK(cudaMemsetAsync(state, number, BYTES, stream));
        CHECK(cudaMemsetAsync(in, 0, 8 * sizeof(uint64_t), stream));
        for (int i = 0; i < 8; i++) box.next[i] = 0;
        std::vector<uint64_t> want(N, 0x0101010101010101ull * number);
        uint64_t next[8] = {}, expected = 0;
        auto imitate = [&](int times) {
            for (int i = 0; i < N; i++) {
                for (int n = 0; n < times; n++) want[i] = program::mix(want[i] ^ next[i % 8]);
            }
            expected = program::mix(expected ^ program::digest(want.data(), 8 * sizeof(uint64_t)));
            for (int i = 0; i < 8; i++) next[i] = program::mix(expected + i);
        };
        cudaGraphExec_t kept = nullptr;
        for (long round = 0; until.more(round, options.steps); round++) {
            switch (program::mix(number * 1000 + round) % 6) {
            case 0: { // A capture that stays open; its instance is used for a while.
                cudaGraph_t graph;
                CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                chain(2);
                options.pace();
                chain(3);
                CHECK(cudaStreamEndCapture(stream, &graph));
                if (kept) CHECK(cudaGraphExecDestroy(kept));
                CHECK(cudaGraphInstantiate(&kept, graph, 0));
                CHECK(cudaGraphDestroy(graph));
                break;
            }
            case 1: { // A long kernel.
                chain(4000);
                imitate(4000);
                break;
            }
            case 2: { // Memory of the stream, used and given back.
                uint64_t *some;
                CHECK(cudaMallocAsync(&some, BYTES + 4096 * (round % 7), stream));
                CHECK(cudaMemcpyAsync(some, state, BYTES, cudaMemcpyDeviceToDevice, stream));
                CHECK(cudaMemsetAsync(state, 1, BYTES, stream));
                CHECK(cudaMemcpyAsync(state, some, BYTES, cudaMemcpyDeviceToDevice, stream));
                CHECK(cudaFreeAsync(some, stream));
                break;
            }
            case 3: { // Memory that is everybody's: the free waits for all.
                void *some;
                CHECK(cudaMalloc(&some, 1 << (10 + round % 12)));
                CHECK(cudaMemsetAsync(some, 1, 1024, stream));
                CHECK(cudaFree(some));
                break;
            }
            case 4: { // A call made with the lock held that host functions wait for.
                std::lock_guard<std::mutex> held(lock);
                CHECK(cudaMemsetAsync(in, 0, 0, stream));
                under_lock++;
                break;
            }
            default: // Waits.
                CHECK(cudaStreamSynchronize(stream));
            }
            if (kept) {
                CHECK(cudaGraphLaunch(kept, stream));
                imitate(2);
                imitate(3);
            }
            chain(1);
            imitate(1);
            options.pace();
        }
        CHECK(cudaStreamSynchronize(stream));
        std::vector<uint64_t> got(N);
        CHECK(cudaMemcpy(got.data(), state, BYTES, cudaMemcpyDeviceToHost));
        std::vector<uint64_t> last(8);
        CHECK(cudaMemcpy(last.data(), in, 8 * sizeof(uint64_t), cudaMemcpyDeviceToHost));
        wrong = got != want || box.digest != expected || !std::equal(last.begin(), last.end(), next);
        digest = program::digest(got.data(), BYTES) ^ box.digest;
        if (kept) CHECK(cudaGraphExecDestroy(kept));
        CHECK(cudaFree(state));
        CHECK(cudaFree(in));
        CHECK(cudaFreeHost(box.seen));
        CHECK(cudaFreeHost(box.next));
        CHECK(cudaStreamDestroy(stream));
    }
};

int main(int argc, char **argv) {
    const program::Until until(argc, argv);
    program::Options options(argc, argv, 30);
    CHECK(cudaFree(nullptr));
    std::vector<Worker> workers;
    for (int t = 0; t < THREADS; t++) workers.push_back(Worker{t + 1, options, until});
    std::vector<std::thread> threads;
    for (Worker &w : workers) threads.emplace_back([&w] { w.run(); });
    for (std::thread &t : threads) t.join();
    program::Report report;
    for (Worker &w : workers) {
        report.expect_value("wrong", w.wrong, 0);
        if (!until.told()) report.line("host", "thread", &w.digest, sizeof w.digest);
    }
    return report.finish();
}
