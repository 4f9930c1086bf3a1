// A graph that copies pinned memory to the device and back, launched while other host memory comes and goes: its nodes are changed,
// switched off, and used again with new memory at old addresses; for a while the GPU uses registered memory by its address. The memory
// of a fill ends while its node is off.
#include "program.cuh"

constexpr int WORDS = 512;
constexpr size_t BYTES = WORDS * sizeof(uint64_t);

__global__ void step(uint64_t *state, const uint64_t *in, uint64_t salt) {
    const int i = threadIdx.x;
    state[i] = program::mix(state[i] ^ in[i] ^ salt);
}

__global__ void take(uint64_t *state, const uint64_t *registered) { state[threadIdx.x] += registered[threadIdx.x]; }

int main(int argc, char **argv) {
    program::Options options(argc, argv, 96);
    program::Report report;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint64_t *state, *in, *from[2], *back;
    CHECK(cudaMalloc(&state, BYTES));
    CHECK(cudaMalloc(&in, BYTES));
    CHECK(cudaMemset(state, 0, BYTES));
    CHECK(cudaMemset(in, 0, BYTES));
    for (uint64_t *&p : from) CHECK(cudaMallocHost(&p, BYTES));
    // Longer than a small block: it has pages of its own.
    CHECK(cudaMallocHost(&back, 1 << 20));
    std::memset(back, 0, 1 << 20);
    std::vector<uint64_t> pages(8192), wanted(WORDS), there(WORDS), seen(WORDS);

    uint64_t *extra[2];
    for (uint64_t *&p : extra) CHECK(cudaMalloc(&p, BYTES));

    cudaGraph_t graph;
    cudaGraphNode_t load, run, store, fill;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemcpyNode1D(&load, graph, nullptr, 0, in, from[0], BYTES, cudaMemcpyHostToDevice));
    uint64_t salt = 5;
    void *args[] = {&state, &in, &salt};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void *>(step);
    params.gridDim = dim3(1), params.blockDim = dim3(WORDS);
    params.kernelParams = args;
    CHECK(cudaGraphAddKernelNode(&run, graph, &load, 1, &params));
    CHECK(cudaGraphAddMemcpyNode1D(&store, graph, &run, 1, back, state, BYTES, cudaMemcpyDeviceToHost));
    cudaMemsetParams filled = {};
    filled.dst = extra[0], filled.elementSize = 4, filled.width = BYTES / 4, filled.height = 1, filled.value = 9;
    CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &filled));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));

    int source = 0;
    bool registered = false, stores = true;
    for (long round = 0; round < options.steps; round++) {
        // Other bytes, fewer of them, from the other block; then all of the first one again.
        if (round % 3 == 1) {
            source = 1;
            CHECK(cudaGraphExecMemcpyNodeSetParams1D(exec, load, in, from[1], BYTES / 2, cudaMemcpyHostToDevice));
        } else if (round % 3 == 2) {
            source = 0;
            CHECK(cudaGraphExecMemcpyNodeSetParams1D(exec, load, in, from[0], BYTES, cudaMemcpyHostToDevice));
        }
        if (round == 4) {
            CHECK(cudaGraphNodeSetEnabled(exec, fill, 0));
            CHECK(cudaFree(extra[0]));
        } else if (round == 40) {
            filled.dst = extra[1];
            CHECK(cudaGraphExecMemsetNodeSetParams(exec, fill, &filled));
        } else if (round == 50) {
            CHECK(cudaGraphNodeSetEnabled(exec, fill, 1));
        }
        if (round % 7 == 5) {
            // The block that no node uses now; the new one may lie at its address, with other pages.
            CHECK(cudaFreeHost(from[1 - source]));
            CHECK(cudaMallocHost(&from[1 - source], BYTES));
        }
        if (round % 16 == 6) {
            CHECK(cudaHostRegister(pages.data(), pages.size() * sizeof(uint64_t), cudaHostRegisterDefault));
            registered = true;
            uint64_t *at;
            CHECK(cudaHostGetDevicePointer(&at, pages.data(), 0));
            for (int i = 0; i < WORDS; i++) pages[i] = program::mix(round + i);
            take<<<1, WORDS, 0, stream>>>(state, at);
            CHECK_LAUNCH();
            for (int i = 0; i < WORDS; i++) wanted[i] += pages[i];
        } else if (round % 16 == 12 && registered) {
            CHECK(cudaHostUnregister(pages.data()));
            registered = false;
        }
        if (stores != (round % 5 != 4)) {
            stores = !stores;
            CHECK(cudaGraphNodeSetEnabled(exec, store, stores));
        }
        for (int i = 0; i < WORDS; i++) from[source][i] = program::mix(round * WORDS + i);
        const int words = round % 3 == 1 ? WORDS / 2 : WORDS;
        // The second launch reads what the first has left.
        for (int launch = 0; launch < 2; launch++) {
            CHECK(cudaGraphLaunch(exec, stream));
            std::copy(from[source], from[source] + words, there.begin());
            for (int i = 0; i < WORDS; i++) wanted[i] = program::mix(wanted[i] ^ there[i] ^ salt);
            if (stores) seen = wanted;
        }
        CHECK(cudaStreamSynchronize(stream));
        report.expect("what came back", back, seen.data(), BYTES);
        options.pace();
    }
    report.expect_device("state", state, wanted.data(), BYTES);
    report.expect_device("in", in, there.data(), BYTES);
    if (options.steps > 50) report.expect_device("filled", extra[1], std::vector<unsigned>(BYTES / 4, 9).data(), BYTES);
    report.allocation("state", state, BYTES);
    report.line("host", "back", back, BYTES);
    if (registered) CHECK(cudaHostUnregister(pages.data()));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    for (uint64_t *p : from) CHECK(cudaFreeHost(p));
    CHECK(cudaFreeHost(back));
    for (uint64_t *p : {state, in, extra[1]}) CHECK(cudaFree(p));
    if (options.steps <= 4) CHECK(cudaFree(extra[0]));
    return report.finish();
}
