// Host functions and callbacks in chains: each checks that what the stream did before it is done, and what comes behind it in
// the stream uses what it has written. Two streams that wait for each other by event carry the chain on.
#include "program.cuh"

constexpr int N = 2048;
constexpr int BLOCK = 128;

__global__ void step(uint64_t *state, const uint64_t *from_host) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    state[i] = program::mix(state[i] ^ from_host[i % 8]);
}

// What the host functions of a run share; only they touch it while streams have work.
struct Chain {
    uint64_t *seen;      // pinned: the first words of the state, copied out before each host function
    uint64_t *next;      // pinned: written by host functions, copied in behind them
    uint64_t digest = 0; // over everything that host functions saw, in order
    long functions = 0, callbacks = 0, out_of_order = 0, failed = 0, permitted = 0;
};

// One round's call: the stream must bring the rounds in order.
struct Call {
    Chain *chain;
    long round;
};

static void look(Call *call) {
    Chain &c = *call->chain;
    if (c.functions + c.callbacks != call->round) c.out_of_order++;
    c.digest = program::mix(c.digest ^ program::digest(c.seen, 8 * sizeof(uint64_t)));
    for (int i = 0; i < 8; i++) c.next[i] = program::mix(c.digest + i);
    // No CUDA call is permitted here.
    void *p = nullptr;
    if (cudaMalloc(&p, 64) != cudaErrorNotPermitted) c.permitted++;
}

static void CUDART_CB function(void *data) {
    Call *call = static_cast<Call *>(data);
    look(call);
    call->chain->functions++;
}

static void CUDART_CB callback(cudaStream_t, cudaError_t status, void *data) {
    Call *call = static_cast<Call *>(data);
    if (status != cudaSuccess) call->chain->failed++;
    look(call);
    call->chain->callbacks++;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    cudaStream_t streams[2];
    cudaEvent_t done[2];
    for (int s = 0; s < 2; s++) {
        CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done[s], cudaEventDisableTiming));
    }
    uint64_t *state, *from_host;
    Chain chain;
    CHECK(cudaMalloc(&state, N * sizeof(uint64_t)));
    CHECK(cudaMalloc(&from_host, 8 * sizeof(uint64_t)));
    CHECK(cudaMallocHost(&chain.seen, 8 * sizeof(uint64_t)));
    CHECK(cudaMallocHost(&chain.next, 8 * sizeof(uint64_t)));
    std::vector<uint64_t> want(N);
    for (int i = 0; i < N; i++) want[i] = program::mix(i);
    CHECK(cudaMemcpy(state, want.data(), N * sizeof(uint64_t), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(from_host, 0, 8 * sizeof(uint64_t)));

    std::vector<Call> calls(options.steps);
    program::Window window;
    for (long round = 0; round < options.steps; round++) {
        int s = round % 2;
        calls[round] = {&chain, round};
        if (round > 0) CHECK(cudaStreamWaitEvent(streams[s], done[1 - s], 0));
        step<<<N / BLOCK, BLOCK, 0, streams[s]>>>(state, from_host);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(chain.seen, state, 8 * sizeof(uint64_t), cudaMemcpyDeviceToHost, streams[s]));
        if (round % 3 == 2) {
            CHECK(cudaStreamAddCallback(streams[s], callback, &calls[round], 0));
        } else {
            CHECK(cudaLaunchHostFunc(streams[s], function, &calls[round]));
        }
        CHECK(cudaMemcpyAsync(from_host, chain.next, 8 * sizeof(uint64_t), cudaMemcpyHostToDevice, streams[s]));
        CHECK(cudaEventRecord(done[s], streams[s]));
        window.round_done(streams[s]);
        options.pace();
    }
    for (cudaStream_t s : streams) CHECK(cudaStreamSynchronize(s));

    // The same by the host alone.
    uint64_t digest = 0, next[8] = {};
    for (long round = 0; round < options.steps; round++) {
        for (int i = 0; i < N; i++) want[i] = program::mix(want[i] ^ next[i % 8]);
        digest = program::mix(digest ^ program::digest(want.data(), 8 * sizeof(uint64_t)));
        for (int i = 0; i < 8; i++) next[i] = program::mix(digest + i);
    }
    program::Report report;
    report.expect_device("state", state, want.data(), N * sizeof(uint64_t));
    report.expect_device("from_host", from_host, next, sizeof next);
    report.expect_value("digest", chain.digest, digest);
    report.expect_value("callbacks", chain.callbacks, options.steps / 3);
    report.expect_value("functions", chain.functions, options.steps - options.steps / 3);
    report.expect_value("out of order", chain.out_of_order, 0);
    report.expect_value("callbacks told of an error", chain.failed, 0);
    report.expect_value("calls permitted", chain.permitted, 0);
    report.allocation("state", state, N * sizeof(uint64_t));
    report.line("host", "digest", &chain.digest, sizeof chain.digest);
    report.line("pinned", "next", chain.next, 8 * sizeof(uint64_t));

    window.destroy();
    for (int s = 0; s < 2; s++) {
        CHECK(cudaEventDestroy(done[s]));
        CHECK(cudaStreamDestroy(streams[s]));
    }
    CHECK(cudaFree(state));
    CHECK(cudaFree(from_host));
    CHECK(cudaFreeHost(chain.seen));
    CHECK(cudaFreeHost(chain.next));
    return report.finish();
}
