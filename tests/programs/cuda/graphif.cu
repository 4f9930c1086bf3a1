// Conditional nodes: one or the other graph, a graph as long as a kernel says so, one of several; conditions that keep their value and
// conditions with a value for each launch.
#include "program.cuh"

constexpr int N = 512;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint64_t);

__global__ void mixin(uint64_t *state, uint64_t k) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    state[i] = program::mix(state[i] + k);
}

// Decides by the state what the nodes behind it do.
__global__ void decide(const uint64_t *state, cudaGraphConditionalHandle branch, cudaGraphConditionalHandle which) {
    cudaGraphSetConditional(branch, state[3] & 1);
    cudaGraphSetConditional(which, state[5] % 4);
}

// Goes on as long as the last digits of a word do not fit.
__global__ void again(const uint64_t *state, cudaGraphConditionalHandle loop, uint64_t *rounds) {
    rounds[0]++;
    cudaGraphSetConditional(loop, state[0] % 5 != 0);
}

static cudaGraphNode_t add_kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void *function, int blocks, void **args) {
    cudaKernelNodeParams p = {};
    p.func = function;
    p.gridDim = dim3(blocks), p.blockDim = dim3(blocks == 1 ? 1 : BLOCK);
    p.kernelParams = args;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &p));
    return node;
}

static cudaGraphNode_t add_conditional(cudaGraph_t graph, cudaGraphNode_t after, cudaGraphConditionalHandle handle,
                                       cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t *bodies) {
    cudaGraphNodeParams p = {};
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.handle = handle, p.conditional.type = type, p.conditional.size = size;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddNode(&node, graph, &after, nullptr, 1, &p));
    for (unsigned i = 0; i < size; i++) bodies[i] = p.conditional.phGraph_out[i];
    return node;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint64_t *state, *rounds;
    CHECK(cudaMalloc(&state, BYTES));
    CHECK(cudaMalloc(&rounds, sizeof(uint64_t)));
    CHECK(cudaMemset(state, 9, BYTES));
    CHECK(cudaMemset(rounds, 0, sizeof(uint64_t)));
    CHECK(cudaDeviceSynchronize());

    // Another graph with a condition, which goes before the first move: handles are not simply counted.
    cudaGraph_t gone, graph;
    cudaGraphConditionalHandle unused, branch, which, loop;
    CHECK(cudaGraphCreate(&gone, 0));
    CHECK(cudaGraphConditionalHandleCreate(&unused, gone, 0, 0));

    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&branch, graph, 0, 0));
    CHECK(cudaGraphConditionalHandleCreate(&which, graph, 0, 0));
    CHECK(cudaGraphConditionalHandleCreate(&loop, graph, 1, cudaGraphCondAssignDefault));
    CHECK(cudaGraphDestroy(gone));
    uint64_t k[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    void *mix_args[8][2];
    for (int i = 0; i < 8; i++) mix_args[i][0] = &state, mix_args[i][1] = &k[i];
    void *decide_args[] = {&state, &branch, &which};
    void *mixin_f = reinterpret_cast<void *>(mixin);

    cudaGraphNode_t first = add_kernel(graph, {}, mixin_f, N / BLOCK, mix_args[0]);
    cudaGraphNode_t decision = add_kernel(graph, {first}, reinterpret_cast<void *>(decide), 1, decide_args);
    cudaGraph_t branches[2], choices[3], body[1];
    cudaGraphNode_t node = add_conditional(graph, decision, branch, cudaGraphCondTypeIf, 2, branches);
    add_kernel(branches[0], {}, mixin_f, N / BLOCK, mix_args[1]);
    add_kernel(branches[1], {}, mixin_f, N / BLOCK, mix_args[2]);
    node = add_conditional(graph, node, which, cudaGraphCondTypeSwitch, 3, choices);
    for (int i = 0; i < 3; i++) add_kernel(choices[i], {}, mixin_f, N / BLOCK, mix_args[3 + i]);
    node = add_conditional(graph, node, loop, cudaGraphCondTypeWhile, 1, body);
    // The last one is filled by a capture.
    CHECK(cudaStreamBeginCaptureToGraph(stream, body[0], nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
    mixin<<<N / BLOCK, BLOCK, 0, stream>>>(state, k[6]);
    again<<<1, 1, 0, stream>>>(state, loop, rounds);
    CHECK_LAUNCH();
    cudaGraph_t same;
    CHECK(cudaStreamEndCapture(stream, &same));
    report.expect_value("captured into", same == body[0], 1);
    // Who knows the graph need not be told it.
    cudaGraph_t known;
    CHECK(cudaGraphCreate(&known, 0));
    CHECK(cudaStreamBeginCaptureToGraph(stream, known, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
    mixin<<<N / BLOCK, BLOCK, 0, stream>>>(state, k[6]);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(stream, nullptr));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(known, nullptr, &nodes));
    report.expect_value("captured into a known graph", nodes, 1);
    CHECK(cudaGraphDestroy(known));
    add_kernel(graph, {node}, mixin_f, N / BLOCK, mix_args[7]);

    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    program::Window window;
    std::vector<uint64_t> want(N, 0x0909090909090909ull);
    uint64_t counted = 0;
    auto mix_here = [&](uint64_t k) {
        for (int i = 0; i < N; i++) want[i] = program::mix(want[i] + k);
    };
    for (long round = 0; round < options.steps; round++) {
        if (round == options.steps / 2) {
            // The same graph again.
            CHECK(cudaGraphExecDestroy(exec));
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
        }
        CHECK(cudaGraphLaunch(exec, stream));
        mix_here(k[0]);
        bool yes = want[3] & 1;
        uint64_t choice = want[5] % 4;
        mix_here(yes ? k[1] : k[2]);
        if (choice < 3) mix_here(k[3 + choice]);
        do {
            mix_here(k[6]);
            counted++;
        } while (want[0] % 5 != 0);
        mix_here(k[7]);
        window.round_done(stream);
        options.pace();
    }
    CHECK(cudaStreamSynchronize(stream));
    report.expect_device("state", state, want.data(), BYTES);
    report.expect_device("rounds", rounds, &counted, sizeof counted);
    report.allocation("state", state, BYTES);
    report.line("host", "rounds", &counted, sizeof counted);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    window.destroy();
    CHECK(cudaFree(state));
    CHECK(cudaFree(rounds));
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
