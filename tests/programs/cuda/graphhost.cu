// Graphs that call the host: functions and copies from and to its memory as nodes, captured and built, also in a graph inside a
// graph. Each launch reads what the functions of the launch before have written; nobody waits in between.
#include "program.cuh"

constexpr int N = 1024;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint64_t);
constexpr int WORDS = 16;

__global__ void step(uint64_t *state, const uint64_t *in) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    state[i] = program::mix(state[i] ^ in[i % WORDS]);
}

// What the host functions of one graph share.
struct Box {
    uint64_t *pinned;       // read by a copy at the start of each launch, written by the function of the launch before
    uint64_t *reply;        // pinned: written by the function, read by a copy behind it
    uint64_t given[WORDS];  // pageable: read when the graph is launched
    uint64_t taken[WORDS];  // what the last launch read of `pinned`, where the host imitates it
    std::vector<uint64_t> seen; // the state, copied out before the function
    uint64_t digest = 0, salt = 0;
    long calls = 0;
};

static void answer(Box &box) {
    box.digest = program::mix(box.digest ^ box.salt ^ program::digest(box.seen.data(), box.seen.size() * sizeof(uint64_t)));
    for (int i = 0; i < WORDS; i++) {
        box.reply[i] = program::mix(box.digest + i);
        box.pinned[i] = program::mix(box.digest - i);
    }
    box.calls++;
}

static void CUDART_CB look(void *data) { answer(*static_cast<Box *>(data)); }

static void CUDART_CB salt_3(void *data) {
    static_cast<Box *>(data)->salt = 3;
    answer(*static_cast<Box *>(data));
}

// What a launch does, by the host alone; `words` of the state are copied out.
static void imitate(std::vector<uint64_t> &state, Box &box, size_t words, uint64_t salt) {
    std::memcpy(box.taken, box.pinned, sizeof box.taken);
    for (int i = 0; i < N; i++) state[i] = program::mix(state[i] ^ box.pinned[i % WORDS]);
    for (int i = 0; i < N; i++) state[i] = program::mix(state[i] ^ box.given[i % WORDS]);
    std::memcpy(box.seen.data(), state.data(), words * sizeof(uint64_t));
    box.salt = salt;
    answer(box);
    for (int i = 0; i < N; i++) state[i] = program::mix(state[i] ^ box.reply[i % WORDS]);
}

static cudaKernelNodeParams kernel(void **args) {
    cudaKernelNodeParams p = {};
    p.func = reinterpret_cast<void *>(step);
    p.gridDim = dim3(N / BLOCK), p.blockDim = dim3(BLOCK);
    p.kernelParams = args;
    return p;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    cudaStream_t streams[2];
    uint64_t *state[2], *in[2], *back[2], *more[2];
    Box boxes[2], want[2];
    std::vector<uint64_t> wanted[2];
    for (int g = 0; g < 2; g++) {
        CHECK(cudaStreamCreateWithFlags(&streams[g], cudaStreamNonBlocking));
        CHECK(cudaMalloc(&state[g], BYTES));
        CHECK(cudaMalloc(&in[g], WORDS * sizeof(uint64_t)));
        CHECK(cudaMalloc(&back[g], WORDS * sizeof(uint64_t)));
        CHECK(cudaMalloc(&more[g], WORDS * sizeof(uint64_t)));
        CHECK(cudaMemset(state[g], 17 + g, BYTES));
        CHECK(cudaMallocHost(&boxes[g].pinned, WORDS * sizeof(uint64_t)));
        CHECK(cudaMallocHost(&boxes[g].reply, WORDS * sizeof(uint64_t)));
        want[g].pinned = new uint64_t[WORDS], want[g].reply = new uint64_t[WORDS];
        for (Box *b : {&boxes[g], &want[g]}) {
            for (int i = 0; i < WORDS; i++) b->pinned[i] = program::mix(g * 100 + i);
            b->seen.assign(N, 0);
        }
        wanted[g].assign(N, 0x0101010101010101ull * (17 + g));
    }
    CHECK(cudaDeviceSynchronize());

    // The first is captured.
    cudaGraph_t graphs[2];
    cudaGraphExec_t execs[2];
    cudaStream_t s = streams[0];
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMemcpyAsync(in[0], boxes[0].pinned, WORDS * sizeof(uint64_t), cudaMemcpyHostToDevice, s));
    CHECK(cudaMemcpyAsync(more[0], boxes[0].given, WORDS * sizeof(uint64_t), cudaMemcpyHostToDevice, s));
    step<<<N / BLOCK, BLOCK, 0, s>>>(state[0], in[0]);
    step<<<N / BLOCK, BLOCK, 0, s>>>(state[0], more[0]);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyAsync(boxes[0].seen.data(), state[0], BYTES, cudaMemcpyDeviceToHost, s));
    CHECK(cudaLaunchHostFunc(s, look, &boxes[0]));
    CHECK(cudaMemcpyAsync(back[0], boxes[0].reply, WORDS * sizeof(uint64_t), cudaMemcpyHostToDevice, s));
    step<<<N / BLOCK, BLOCK, 0, s>>>(state[0], back[0]);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(s, &graphs[0]));

    // The second is built: what the function does is in a graph of its own, copies are rows and slices.
    cudaGraph_t inner;
    cudaGraphNode_t in_inner[3], nodes[6];
    CHECK(cudaGraphCreate(&inner, 0));
    cudaMemcpy3DParms slices = {};
    slices.srcPtr = make_cudaPitchedPtr(state[1], 64, 64, 4);
    slices.dstPtr = make_cudaPitchedPtr(boxes[1].seen.data(), 64, 64, 4);
    slices.extent = make_cudaExtent(64, 4, BYTES / 256);
    slices.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaGraphAddMemcpyNode(&in_inner[0], inner, nullptr, 0, &slices));
    cudaHostNodeParams host = {look, &boxes[1]};
    CHECK(cudaGraphAddHostNode(&in_inner[1], inner, &in_inner[0], 1, &host));
    CHECK(cudaGraphAddMemcpyNode1D(&in_inner[2], inner, &in_inner[1], 1, back[1], boxes[1].reply, WORDS * sizeof(uint64_t),
                                   cudaMemcpyHostToDevice));
    CHECK(cudaGraphCreate(&graphs[1], 0));
    cudaMemcpy3DParms rows = {};
    rows.srcPtr = make_cudaPitchedPtr(boxes[1].pinned, 32, 32, 4);
    rows.dstPtr = make_cudaPitchedPtr(in[1], 32, 32, 4);
    rows.extent = make_cudaExtent(32, 4, 1);
    rows.kind = cudaMemcpyHostToDevice;
    CHECK(cudaGraphAddMemcpyNode(&nodes[0], graphs[1], nullptr, 0, &rows));
    void *first[] = {&state[1], &in[1]}, *second[] = {&state[1], &more[1]}, *third[] = {&state[1], &back[1]};
    cudaKernelNodeParams params = kernel(first);
    CHECK(cudaGraphAddKernelNode(&nodes[1], graphs[1], &nodes[0], 1, &params));
    CHECK(cudaGraphAddMemcpyNode1D(&nodes[2], graphs[1], &nodes[1], 1, more[1], boxes[1].given, WORDS * sizeof(uint64_t),
                                   cudaMemcpyHostToDevice));
    params = kernel(second);
    CHECK(cudaGraphAddKernelNode(&nodes[3], graphs[1], &nodes[2], 1, &params));
    CHECK(cudaGraphAddChildGraphNode(&nodes[4], graphs[1], &nodes[3], 1, inner));
    params = kernel(third);
    CHECK(cudaGraphAddKernelNode(&nodes[5], graphs[1], &nodes[4], 1, &params));
    for (int g = 0; g < 2; g++) CHECK(cudaGraphInstantiate(&execs[g], graphs[g], 0));

    // Nodes of the captured graph that change between launches.
    size_t count = 0;
    cudaGraphNode_t captured[8], out = nullptr, function = nullptr;
    CHECK(cudaGraphGetNodes(graphs[0], nullptr, &count));
    program::Report report;
    report.expect_value("captured nodes", count, 8);
    CHECK(cudaGraphGetNodes(graphs[0], captured, &count));
    for (size_t i = 0; i < count; i++) {
        cudaGraphNodeType type;
        CHECK(cudaGraphNodeGetType(captured[i], &type));
        if (type == cudaGraphNodeTypeHost) function = captured[i];
    }
    size_t before = 1;
    CHECK(cudaGraphNodeGetDependencies(function, &out, nullptr, &before));
    cudaHostNodeParams asked;
    CHECK(cudaGraphHostNodeGetParams(function, &asked));
    report.expect_value("function", asked.fn == look && asked.userData == &boxes[0], 1);

    program::Window windows[2];
    for (long round = 0; round < options.steps; round++) {
        bool less = round % 4 == 3, other = round % 5 == 4;
        cudaHostNodeParams now = {other ? salt_3 : look, &boxes[0]};
        // What runs already keeps what it was launched with.
        CHECK(cudaGraphExecHostNodeSetParams(execs[0], function, &now));
        CHECK(cudaGraphExecMemcpyNodeSetParams1D(execs[0], out, boxes[0].seen.data(), state[0], less ? BYTES / 2 : BYTES,
                                                 cudaMemcpyDeviceToHost));
        CHECK(cudaGraphNodeSetEnabled(execs[0], out, round % 7 != 6));
        for (int g = 0; g < 2; g++) {
            for (int i = 0; i < WORDS; i++) boxes[g].given[i] = want[g].given[i] = program::mix(round * 7 + g * 3 + i);
            CHECK(cudaGraphLaunch(execs[g], streams[g]));
            windows[g].round_done(streams[g]);
        }
        size_t words = round % 7 == 6 ? 0 : less ? N / 2 : N;
        imitate(wanted[0], want[0], words, other || want[0].salt ? 3 : 0);
        imitate(wanted[1], want[1], N, 0);
        options.pace();
    }
    for (int g = 0; g < 2; g++) {
        CHECK(cudaStreamSynchronize(streams[g]));
        // No call between: what the last copy and function have left is there.
        report.expect("seen", boxes[g].seen.data(), want[g].seen.data(), BYTES);
        report.expect("pinned", boxes[g].pinned, want[g].pinned, WORDS * sizeof(uint64_t));
        report.expect_device("state", state[g], wanted[g].data(), BYTES);
        if (options.steps > 0) {
            report.expect_device("in", in[g], want[g].taken, sizeof want[g].taken);
            report.expect_device("more", more[g], want[g].given, sizeof want[g].given);
            report.expect_device("back", back[g], want[g].reply, WORDS * sizeof(uint64_t));
        }
        report.expect_value("digest", boxes[g].digest, want[g].digest);
        report.expect_value("calls", boxes[g].calls, options.steps);
        report.allocation("state", state[g], BYTES);
        report.line("host", "digest", &boxes[g].digest, sizeof boxes[g].digest);
    }
    for (int g = 0; g < 2; g++) {
        CHECK(cudaGraphLaunch(execs[g], streams[g]));
        // A launch that runs goes on.
        CHECK(cudaGraphExecDestroy(execs[g]));
        CHECK(cudaGraphDestroy(graphs[g]));
        CHECK(cudaStreamSynchronize(streams[g]));
        report.expect_value("calls at the end", boxes[g].calls, options.steps + 1);
        windows[g].destroy();
        CHECK(cudaStreamDestroy(streams[g]));
        for (uint64_t *p : {state[g], in[g], back[g], more[g]}) CHECK(cudaFree(p));
        CHECK(cudaFreeHost(boxes[g].pinned));
        CHECK(cudaFreeHost(boxes[g].reply));
    }
    CHECK(cudaGraphDestroy(inner));
    return report.finish();
}
