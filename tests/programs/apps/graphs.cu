// Many small graphs: made node by node or captured, instantiated, launched, updated, launched again, destroyed.
#include "app.cuh"

constexpr int WORDS = 256;
constexpr int BUFFERS = 8;
constexpr size_t BYTES = WORDS * 8;

// to = a function of from and the words already there.
__global__ void stir(const uint64_t *from, uint64_t *to, uint64_t salt) {
    int i = threadIdx.x;
    to[i] = app::mix(from[i] ^ salt) + to[i] * 3;
}

static void stir_on_host(const std::vector<uint64_t> &from, std::vector<uint64_t> &to, uint64_t salt) {
    for (int i = 0; i < WORDS; i++) to[i] = app::mix(from[i] ^ salt) + to[i] * 3;
}

struct Args {
    const uint64_t *from;
    uint64_t *to;
    uint64_t salt;
    void *pointers[3] = {&from, &to, &salt};

    cudaKernelNodeParams params() {
        cudaKernelNodeParams p = {};
        p.func = reinterpret_cast<void *>(stir);
        p.gridDim = dim3(1), p.blockDim = dim3(WORDS), p.kernelParams = pointers;
        return p;
    }
};

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int rounds = app.pick(120, 6000);
    uint64_t *buffers[BUFFERS], *pinned;
    std::vector<std::vector<uint64_t>> model(BUFFERS, std::vector<uint64_t>(WORDS));
    for (int b = 0; b < BUFFERS; b++) {
        for (int i = 0; i < WORDS; i++) model[b][i] = app::mix(b * WORDS + i);
        buffers[b] = app::device_copy(model[b]);
    }
    CHECK(cudaMallocHost(&pinned, BYTES));
    cudaStream_t stream, side;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    cudaEvent_t fork, join;
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));

    for (int round = 0; round < rounds; round++) {
        const uint64_t r = app::mix(round);
        const int a = r % BUFFERS, b = (a + 1 + (r >> 8) % (BUFFERS - 1)) % BUFFERS, c = (b + 1 + (r >> 16) % (BUFFERS - 2)) % BUFFERS;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        if (round % 2 == 0) {
            // a is filled from the host, b = stir(a), b is copied out; c = stir(b).
            cudaGraphNode_t in, first, out, second;
            for (int i = 0; i < WORDS; i++) pinned[i] = model[a][i] = app::mix(r + i);
            CHECK(cudaGraphCreate(&graph, 0));
            CHECK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, buffers[a], pinned, BYTES, cudaMemcpyHostToDevice));
            Args one{buffers[a], buffers[b], r}, two{buffers[b], buffers[c], r + 1};
            cudaKernelNodeParams params = one.params();
            CHECK(cudaGraphAddKernelNode(&first, graph, &in, 1, &params));
            CHECK(cudaGraphAddMemcpyNode1D(&out, graph, &first, 1, pinned, buffers[b], BYTES, cudaMemcpyDeviceToHost));
            params = two.params();
            if (c != a && c != b) CHECK(cudaGraphAddKernelNode(&second, graph, &out, 1, &params));
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
            CHECK(cudaGraphLaunch(exec, stream));
            CHECK(cudaStreamSynchronize(stream));
            stir_on_host(model[a], model[b], r);
            app.equal(pinned, model[b].data(), WORDS, "what a graph has copied out");
            if (c != a && c != b) stir_on_host(model[b], model[c], r + 1);
            // The same with another salt: what the copies find is what was copied out.
            one.salt = r + 2;
            params = one.params();
            CHECK(cudaGraphExecKernelNodeSetParams(exec, first, &params));
            CHECK(cudaGraphLaunch(exec, stream));
            model[a] = model[b];
            stir_on_host(model[a], model[b], r + 2);
            if (c != a && c != b) stir_on_host(model[b], model[c], r + 1);
        } else {
            // Captured over two streams: b and c from a.
            auto capture = [&](uint64_t salt) {
                cudaGraph_t made;
                CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                CHECK(cudaEventRecord(fork, stream));
                CHECK(cudaStreamWaitEvent(side, fork, 0));
                stir<<<1, WORDS, 0, stream>>>(buffers[a], buffers[b], salt);
                if (c != a && c != b) stir<<<1, WORDS, 0, side>>>(buffers[a], buffers[c], salt + 1);
                CHECK_LAUNCH();
                CHECK(cudaEventRecord(join, side));
                CHECK(cudaStreamWaitEvent(stream, join, 0));
                CHECK(cudaMemsetAsync(buffers[a], static_cast<int>(salt & 0x7f), BYTES / 2, stream));
                CHECK(cudaStreamEndCapture(stream, &made));
                return made;
            };
            auto on_host = [&](uint64_t salt) {
                stir_on_host(model[a], model[b], salt);
                if (c != a && c != b) stir_on_host(model[a], model[c], salt + 1);
                std::memset(model[a].data(), static_cast<int>(salt & 0x7f), BYTES / 2);
            };
            graph = capture(r);
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
            for (int launch = 0; launch < 3; launch++) {
                CHECK(cudaGraphLaunch(exec, stream));
                on_host(r);
            }
            cudaGraph_t changed = capture(r + 7);
            cudaGraphExecUpdateResultInfo info;
            CHECK(cudaGraphExecUpdate(exec, changed, &info));
            CHECK(cudaGraphLaunch(exec, stream));
            on_host(r + 7);
            CHECK(cudaGraphDestroy(changed));
        }
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
        // The next graph's copies read what this one's have written.
        CHECK(cudaStreamSynchronize(stream));
        app.step();
    }
    for (int b = 0; b < BUFFERS; b++) {
        app.equal_device(buffers[b], model[b].data(), WORDS, "a buffer after all graphs");
        app.device(buffers[b], BYTES);
        CHECK(cudaFree(buffers[b]));
    }
    app.host(pinned, BYTES);
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(join));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(side));
    return app.finish();
}
