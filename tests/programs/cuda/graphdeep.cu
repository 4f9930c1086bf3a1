// Conditional nodes inside of each other: in a graph that is run as long as a kernel says so, one that is run or not, and in that one of
// three, which are a graph inside a graph, a fill and a copy. Conditions made for the whole graph and for a graph inside a node.
#include "program.cuh"

#include <algorithm>

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

static cudaGraphNode_t add_conditional(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, cudaGraphConditionalHandle handle,
                                       cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t *bodies) {
    cudaGraphNodeParams p = {};
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.handle = handle, p.conditional.type = type, p.conditional.size = size;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddNode(&node, graph, after.data(), nullptr, after.size(), &p));
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
    CHECK(cudaMemset(state, 5, BYTES));
    CHECK(cudaMemset(rounds, 0, sizeof(uint64_t)));
    CHECK(cudaDeviceSynchronize());

    uint64_t k[6] = {1, 2, 3, 4, 5, 6};
    void *mix_args[6][2];
    for (int i = 0; i < 6; i++) mix_args[i][0] = &state, mix_args[i][1] = &k[i];
    void *mixin_f = reinterpret_cast<void *>(mixin);

    cudaGraph_t graph, body, branch_body, choices[3], child;
    cudaGraphConditionalHandle loop, branch, which;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&loop, graph, 1, cudaGraphCondAssignDefault));
    CHECK(cudaGraphConditionalHandleCreate(&which, graph, 0, 0));
    cudaGraphNode_t first = add_kernel(graph, {}, mixin_f, N / BLOCK, mix_args[0]);
    add_conditional(graph, {first}, loop, cudaGraphCondTypeWhile, 1, &body);

    CHECK(cudaGraphConditionalHandleCreate(&branch, body, 0, 0));
    void *decide_args[] = {&state, &branch, &which};
    cudaGraphNode_t node = add_kernel(body, {}, mixin_f, N / BLOCK, mix_args[1]);
    node = add_kernel(body, {node}, reinterpret_cast<void *>(decide), 1, decide_args);
    node = add_conditional(body, {node}, branch, cudaGraphCondTypeIf, 1, &branch_body);
    void *again_args[] = {&state, &loop, &rounds};
    add_kernel(body, {node}, reinterpret_cast<void *>(again), 1, again_args);

    node = add_kernel(branch_body, {}, mixin_f, N / BLOCK, mix_args[2]);
    node = add_conditional(branch_body, {node}, which, cudaGraphCondTypeSwitch, 3, choices);
    add_kernel(branch_body, {node}, mixin_f, N / BLOCK, mix_args[3]);

    // A condition belongs to one node.
    cudaGraphNodeParams twice = {};
    twice.type = cudaGraphNodeTypeConditional;
    twice.conditional.handle = which, twice.conditional.type = cudaGraphCondTypeIf, twice.conditional.size = 1;
    report.expect_value("a second node", cudaGraphAddNode(&node, body, nullptr, nullptr, 0, &twice) == cudaSuccess, 0);
    (void)cudaGetLastError();

    CHECK(cudaGraphCreate(&child, 0));
    cudaGraphNode_t inner = add_kernel(child, {}, mixin_f, N / BLOCK, mix_args[4]);
    add_kernel(child, {inner}, mixin_f, N / BLOCK, mix_args[5]);
    CHECK(cudaGraphAddChildGraphNode(&node, choices[0], nullptr, 0, child));
    CHECK(cudaGraphDestroy(child));
    cudaMemsetParams fill = {};
    fill.dst = state + 7, fill.elementSize = 1, fill.value = 0x5a, fill.width = 8 * 9, fill.height = 1;
    CHECK(cudaGraphAddMemsetNode(&node, choices[1], nullptr, 0, &fill));
    CHECK(cudaGraphAddMemcpyNode1D(&node, choices[2], nullptr, 0, state + 64, state + 128, 8 * 32, cudaMemcpyDeviceToDevice));

    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    program::Window window;
    std::vector<uint64_t> want(N, 0x0505050505050505ull);
    uint64_t counted = 0;
    auto mix_here = [&](uint64_t k) {
        for (int i = 0; i < N; i++) want[i] = program::mix(want[i] + k);
    };
    for (long round = 0; round < options.steps; round++) {
        CHECK(cudaGraphLaunch(exec, stream));
        mix_here(k[0]);
        do {
            mix_here(k[1]);
            const bool yes = want[3] & 1;
            const uint64_t choice = want[5] % 4;
            if (yes) {
                mix_here(k[2]);
                if (choice == 0) mix_here(k[4]), mix_here(k[5]);
                if (choice == 1) std::fill_n(want.begin() + 7, 9, 0x5a5a5a5a5a5a5a5aull);
                if (choice == 2) std::copy_n(want.begin() + 128, 32, want.begin() + 64);
                mix_here(k[3]);
            }
            counted++;
        } while (want[0] % 5 != 0);
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
