// Memory that belongs to graphs: allocated and freed inside a launch, left by a launch and freed by the program or by another graph,
// freed by the next launch; captured and built. Its addresses stay.
#include "program.cuh"

constexpr int N = 4096;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint64_t);

__global__ void scatter(uint64_t *to, const uint64_t *from, uint64_t k) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    to[i] = program::mix(from[i] + k);
}

__global__ void gather(uint64_t *state, const uint64_t *a, const uint64_t *b) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    state[i] ^= a[i] + 3 * b[N - 1 - i];
}

static cudaGraphNode_t add_kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void *function, void **args) {
    cudaKernelNodeParams p = {};
    p.func = function;
    p.gridDim = dim3(N / BLOCK), p.blockDim = dim3(BLOCK);
    p.kernelParams = args;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &p));
    return node;
}

static cudaGraphNode_t add_memory(cudaGraph_t graph, uint64_t **to) {
    cudaMemAllocNodeParams p = {};
    p.poolProps.allocType = cudaMemAllocationTypePinned;
    p.poolProps.location.type = cudaMemLocationTypeDevice;
    p.bytesize = BYTES;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &p));
    *to = static_cast<uint64_t *>(p.dptr);
    return node;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint64_t *state;
    CHECK(cudaMalloc(&state, BYTES));
    CHECK(cudaMemset(state, 7, BYTES));
    CHECK(cudaDeviceSynchronize());

    // Everything inside: two blocks, freed again.
    uint64_t *a, *b;
    cudaGraph_t inside, leaves, frees;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMallocAsync(&a, BYTES, stream));
    scatter<<<N / BLOCK, BLOCK, 0, stream>>>(a, state, 1);
    CHECK(cudaMallocAsync(&b, BYTES, stream));
    scatter<<<N / BLOCK, BLOCK, 0, stream>>>(b, a, 2);
    gather<<<N / BLOCK, BLOCK, 0, stream>>>(state, a, b);
    CHECK_LAUNCH();
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaFreeAsync(b, stream));
    CHECK(cudaStreamEndCapture(stream, &inside));
    report.expect_value("two blocks", a != b, 1);

    // One that leaves a block to whoever frees it; another graph can.
    uint64_t *left;
    CHECK(cudaGraphCreate(&leaves, 0));
    cudaGraphNode_t memory = add_memory(leaves, &left), free_node;
    uint64_t four = 4;
    void *args[] = {&left, &state, &four};
    add_kernel(leaves, {memory}, reinterpret_cast<void *>(scatter), args);
    CHECK(cudaGraphCreate(&frees, 0));
    void *more[] = {&state, &left, &left};
    cudaGraphNode_t use = add_kernel(frees, {}, reinterpret_cast<void *>(gather), more);
    CHECK(cudaGraphAddMemFreeNode(&free_node, frees, &use, 1, left));
    cudaMemAllocNodeParams asked;
    CHECK(cudaGraphMemAllocNodeGetParams(memory, &asked));
    report.expect_value("address", asked.dptr == left && asked.bytesize == BYTES, 1);
    report.expect_value("a second free", cudaGraphAddMemFreeNode(&free_node, frees, nullptr, 0, left) == cudaSuccess, 0);
    report.expect_value("free of other memory", cudaGraphAddMemFreeNode(&free_node, frees, nullptr, 0, state) == cudaSuccess, 0);
    report.expect_value("free before a launch", cudaFree(left) == cudaSuccess, 0);
    cudaGetLastError();

    cudaGraphExec_t one, two, three, again;
    CHECK(cudaGraphInstantiate(&one, inside, 0));
    CHECK(cudaGraphInstantiate(&two, leaves, 0));
    CHECK(cudaGraphInstantiate(&three, frees, 0));
    report.expect_value("a second instance", cudaGraphInstantiate(&again, inside, 0) == cudaSuccess, 0);
    cudaGetLastError();

    program::Window window;
    std::vector<uint64_t> want(N, 0x0707070707070707ull), x(N), y(N), kept(N), got(N);
    auto gather_here = [&](const std::vector<uint64_t> &a, const std::vector<uint64_t> &b) {
        for (int i = 0; i < N; i++) want[i] ^= a[i] + 3 * b[N - 1 - i];
    };
    for (long round = 0; round < options.steps; round++) {
        CHECK(cudaGraphLaunch(one, stream));
        for (int i = 0; i < N; i++) x[i] = program::mix(want[i] + 1), y[i] = program::mix(x[i] + 2);
        gather_here(x, y);

        CHECK(cudaGraphLaunch(two, stream));
        for (int i = 0; i < N; i++) kept[i] = program::mix(want[i] + 4);
        if (round % 3 == 0) {
            // Not before it has been freed.
            report.expect_value("launch on top", cudaGraphLaunch(two, stream) == cudaSuccess, 0);
            cudaGetLastError();
            CHECK(cudaMemcpyAsync(got.data(), left, BYTES, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
            report.expect("left", got.data(), kept.data(), BYTES);
            CHECK(cudaFree(left));
        } else if (round % 3 == 1) {
            CHECK(cudaGraphLaunch(three, stream));
            gather_here(kept, kept);
        } else {
            gather<<<N / BLOCK, BLOCK, 0, stream>>>(state, left, state);
            CHECK_LAUNCH();
            CHECK(cudaFreeAsync(left, stream));
            // What the kernel reads of the state it may have written already: its own element, and another block's.
            CHECK(cudaMemcpyAsync(state, want.data(), BYTES, cudaMemcpyHostToDevice, stream));
            CHECK(cudaStreamSynchronize(stream));
        }
        window.round_done(stream);
        options.pace();
    }
    CHECK(cudaStreamSynchronize(stream));
    report.expect_device("state", state, want.data(), BYTES);
    report.allocation("state", state, BYTES);

    // An instance that frees what its last launch has left.
    CHECK(cudaGraphExecDestroy(two));
    CHECK(cudaGraphInstantiate(&two, leaves, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(two, stream));
    CHECK(cudaStreamSynchronize(stream));
    uint64_t used = 0;
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    report.expect_value("used", used >= BYTES, 1);
    // It outlives graph and instance.
    CHECK(cudaGraphExecDestroy(two));
    CHECK(cudaGraphDestroy(leaves));
    for (int i = 0; i < N; i++) kept[i] = program::mix(want[i] + 4);
    report.expect_device("kept", left, kept.data(), BYTES);
    CHECK(cudaFreeAsync(left, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(one));
    CHECK(cudaGraphExecDestroy(three));
    CHECK(cudaGraphDestroy(inside));
    CHECK(cudaGraphDestroy(frees));
    CHECK(cudaDeviceGraphMemTrim(0));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    report.expect_value("used at the end", used, 0);
    window.destroy();
    CHECK(cudaFree(state));
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
