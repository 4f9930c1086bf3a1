// Stream capture as frameworks use it: work forked over three streams by events becomes a graph that is launched again and
// again, updated from a fresh capture, and instantiated anew. Some captures stay open for as long as the host sleeps, so a
// move can fall into one.
#include "program.cuh"

constexpr int N = 2048;
constexpr int BLOCK = 256;
constexpr size_t BYTES = sizeof(uint64_t) * N;
constexpr int LAUNCHES = 3; // of the graph in a round

__global__ void seed(uint64_t *a, uint64_t k) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    a[i] = program::mix(a[i] + k);
}

__global__ void fold(uint64_t *to, const uint64_t *from, uint64_t k) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    to[i] = program::mix((to[i] ^ from[i]) + k);
}

__global__ void join(uint64_t *a, const uint64_t *b, const uint64_t *c, const uint64_t *d) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    a[i] = program::mix(a[i] ^ b[i]) + (c[i] ^ d[i]);
}

struct Buffers {
    uint64_t *a, *b, *c, *d;
};

struct Streams {
    cudaStream_t main, left, right;
    cudaEvent_t fork, left_done, right_done;
};

// Captures one round; the host sleeps in the middle of it if it is to.
static cudaGraph_t capture(const Buffers &x, const Streams &s, long round, const program::Options *sleep) {
    static const cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                                  cudaStreamCaptureModeRelaxed};
    const uint64_t k = program::mix(static_cast<uint64_t>(round));
    CHECK(cudaStreamBeginCapture(s.main, modes[round % 3]));
    seed<<<N / BLOCK, BLOCK, 0, s.main>>>(x.a, k);
    CHECK_LAUNCH();
    CHECK(cudaEventRecord(s.fork, s.main));
    CHECK(cudaStreamWaitEvent(s.left, s.fork, 0));
    CHECK(cudaStreamWaitEvent(s.right, s.fork, 0));
    fold<<<N / BLOCK, BLOCK, 0, s.left>>>(x.b, x.a, k);
    CHECK_LAUNCH();
    if (sleep != nullptr) sleep->nap();
    fold<<<N / BLOCK, BLOCK, 0, s.right>>>(x.c, x.a, ~k);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyAsync(x.d, x.b, BYTES / 2, cudaMemcpyDeviceToDevice, s.left));
    CHECK(cudaMemsetAsync(x.d + N / 2, static_cast<int>(k & 0xff), BYTES / 2, s.left));
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(s.right, &status));
    if (status != cudaStreamCaptureStatusActive) std::fprintf(stderr, "the fork does not capture\n");
    CHECK(cudaEventRecord(s.left_done, s.left));
    CHECK(cudaEventRecord(s.right_done, s.right));
    CHECK(cudaStreamWaitEvent(s.main, s.left_done, 0));
    CHECK(cudaStreamWaitEvent(s.main, s.right_done, 0));
    join<<<N / BLOCK, BLOCK, 0, s.main>>>(x.a, x.b, x.c, x.d);
    CHECK_LAUNCH();
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(s.main, &graph));
    return graph;
}

// What the graph does, on the host.
static void replay(std::vector<uint64_t> (&v)[4], long round) {
    const uint64_t k = program::mix(static_cast<uint64_t>(round));
    auto &[a, b, c, d] = v;
    for (int i = 0; i < N; i++) {
        a[i] = program::mix(a[i] + k);
        b[i] = program::mix((b[i] ^ a[i]) + k);
        c[i] = program::mix((c[i] ^ a[i]) + ~k);
        d[i] = i < N / 2 ? b[i] : (k & 0xff) * 0x0101010101010101ull;
        a[i] = program::mix(a[i] ^ b[i]) + (c[i] ^ d[i]);
    }
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 400);
    Buffers x;
    for (uint64_t **p : {&x.a, &x.b, &x.c, &x.d}) {
        CHECK(cudaMalloc(p, BYTES));
        CHECK(cudaMemset(*p, 0, BYTES));
    }
    Streams s;
    CHECK(cudaStreamCreateWithFlags(&s.main, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&s.left, cudaStreamNonBlocking));
    CHECK(cudaStreamCreate(&s.right));
    for (cudaEvent_t *e : {&s.fork, &s.left_done, &s.right_done}) CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    CHECK(cudaDeviceSynchronize());

    program::Window window;
    cudaGraphExec_t instance = nullptr;
    long captured = 0;
    for (long round = 0; round < options.steps; round++) {
        bool fresh = round % 64 == 0;
        if (fresh || round % 4 == 0) {
            cudaGraph_t graph = capture(x, s, round, round % 8 == 4 ? &options : nullptr);
            captured = round;
            if (fresh) {
                if (instance != nullptr) CHECK(cudaGraphExecDestroy(instance));
                CHECK(cudaGraphInstantiate(&instance, graph, 0));
            } else {
                cudaGraphExecUpdateResultInfo info;
                CHECK(cudaGraphExecUpdate(instance, graph, &info));
            }
            // The instance needs the graph no more.
            CHECK(cudaGraphDestroy(graph));
        }
        for (int n = 0; n < LAUNCHES; n++) CHECK(cudaGraphLaunch(instance, s.main));
        // Ordinary work between launches.
        seed<<<N / BLOCK, BLOCK, 0, s.main>>>(x.b, static_cast<uint64_t>(captured));
        CHECK_LAUNCH();
        window.round_done(s.main);
        if (round % 8 != 4) options.pace();
    }
    CHECK(cudaDeviceSynchronize());

    std::vector<uint64_t> v[4] = {std::vector<uint64_t>(N), std::vector<uint64_t>(N), std::vector<uint64_t>(N),
                                  std::vector<uint64_t>(N)};
    for (long round = 0; round < options.steps; round++) {
        long of = round - round % 4;
        for (int n = 0; n < LAUNCHES; n++) replay(v, of);
        for (int i = 0; i < N; i++) v[1][i] = program::mix(v[1][i] + static_cast<uint64_t>(of));
    }
    program::Report report;
    const char *names[] = {"a", "b", "c", "d"};
    uint64_t *device[] = {x.a, x.b, x.c, x.d};
    for (int i = 0; i < 4; i++) {
        report.expect_device(names[i], device[i], v[i].data(), BYTES);
        report.allocation(names[i], device[i], BYTES);
    }
    if (instance != nullptr) CHECK(cudaGraphExecDestroy(instance));
    window.destroy();
    for (cudaEvent_t e : {s.fork, s.left_done, s.right_done}) CHECK(cudaEventDestroy(e));
    for (cudaStream_t t : {s.main, s.left, s.right}) CHECK(cudaStreamDestroy(t));
    for (uint64_t *p : device) CHECK(cudaFree(p));
    return report.finish();
}
