// Graphs built node by node: kernels, copies, fills, a graph inside a graph, events, clones; instances whose nodes are
// changed and switched on and off between launches; user objects, also when an update exchanges them.
#include "program.cuh"

#include <atomic>

constexpr int N = 1024;
constexpr int BLOCK = 128;
constexpr size_t BYTES = sizeof(uint64_t) * N;

__global__ void step(uint64_t *to, const uint64_t *from, uint64_t k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = program::mix(from[i] + k) ^ to[i];
}

__global__ void shift(uint64_t *to, uint64_t k, unsigned char low) {
    extern __shared__ uint64_t tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = to[i] + k;
    __syncthreads();
    to[i] = tile[(threadIdx.x + 1) % blockDim.x] ^ low;
}

static std::atomic<int> destroyed{0};

static void CUDART_CB on_destroy(void *which) { destroyed += *static_cast<int *>(which); }

static std::atomic<int> exchanged{0};

static void CUDART_CB on_exchange(void *which) { exchanged += *static_cast<int *>(which); }

static std::atomic<bool> stays{true};

static void CUDART_CB stay(void *) {
    while (stays) usleep(1000);
}

// An update gives an instance the objects of the other graph. Those that it had stay until its launches have ended.
static void exchange(program::Report &report, cudaStream_t stream) {
    static int weights[] = {1, 100};
    cudaGraph_t graphs[2];
    for (int i = 0; i < 2; i++) {
        cudaGraphNode_t node;
        cudaUserObject_t object;
        cudaHostNodeParams call = {stay, nullptr};
        CHECK(cudaGraphCreate(&graphs[i], 0));
        CHECK(cudaGraphAddHostNode(&node, graphs[i], nullptr, 0, &call));
        CHECK(cudaUserObjectCreate(&object, &weights[i], on_exchange, 1, cudaUserObjectNoDestructorSync));
        CHECK(cudaGraphRetainUserObject(graphs[i], object, 1, cudaGraphUserObjectMove));
    }
    auto expect = [&](const char *name, int want) {
        for (int i = 0; i < 500 && exchanged < want; i++) usleep(10000);
        usleep(50000);
        report.expect_value(name, static_cast<uint64_t>(exchanged.load()), static_cast<uint64_t>(want));
    };
    cudaGraphExec_t instance;
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphInstantiate(&instance, graphs[0], 0));
    CHECK(cudaGraphDestroy(graphs[0]));
    CHECK(cudaGraphLaunch(instance, stream));
    CHECK(cudaGraphExecUpdate(instance, graphs[1], &info));
    CHECK(cudaGraphDestroy(graphs[1]));
    expect("exchanged while it runs", 0);
    stays = false;
    expect("exchanged", 1);
    CHECK(cudaGraphExecDestroy(instance));
    expect("exchanged at the end", 101);
}

// A kernel node's parameters; they are read when the node is made or changed.
struct Kernel {
    cudaKernelNodeParams params;
    void *args[3];
    uint64_t *to;
    const uint64_t *from;
    uint64_t k;
    unsigned char low;

    Kernel(uint64_t *to, const uint64_t *from, uint64_t k) : to(to), from(from), k(k) {
        args[0] = &this->to, args[1] = &this->from, args[2] = &this->k;
        params = {};
        params.func = reinterpret_cast<void *>(step);
        finish();
    }
    Kernel(uint64_t *to, uint64_t k, unsigned char low) : to(to), k(k), low(low) {
        args[0] = &this->to, args[1] = &this->k, args[2] = &this->low;
        params = {};
        params.func = reinterpret_cast<void *>(shift);
        params.sharedMemBytes = BLOCK * sizeof(uint64_t);
        finish();
    }

    const cudaKernelNodeParams *get() const { return &params; }

  private:
    void finish() {
        params.gridDim = dim3(N / BLOCK), params.blockDim = dim3(BLOCK);
        params.kernelParams = args;
    }
};

int main(int argc, char **argv) {
    program::Options options(argc, argv, 300);
    uint64_t *a, *b, *c;
    for (uint64_t **p : {&a, &b, &c}) {
        CHECK(cudaMalloc(p, BYTES));
        CHECK(cudaMemset(*p, 0x5a, BYTES));
    }
    cudaStream_t stream, other;
    cudaEvent_t inside, outside;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&inside));
    CHECK(cudaEventCreateWithFlags(&outside, cudaEventDisableTiming));
    CHECK(cudaDeviceSynchronize());

    // The child: c is shifted, half of it is filled.
    cudaGraph_t child, graph;
    cudaGraphNode_t in_child[2];
    CHECK(cudaGraphCreate(&child, 0));
    CHECK(cudaGraphAddKernelNode(&in_child[0], child, nullptr, 0, Kernel(c, 1, 2).get()));
    cudaMemsetParams fill = {};
    fill.dst = c, fill.value = 7, fill.elementSize = 4, fill.width = N, fill.height = 1;
    CHECK(cudaGraphAddMemsetNode(&in_child[1], child, &in_child[0], 1, &fill));

    // The whole: a <- a, then b <- a beside the child, both joined by an empty node, then a copy and an event.
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t wait, first, second, nested, joined, copy, record;
    CHECK(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, outside));
    CHECK(cudaGraphAddKernelNode(&first, graph, &wait, 1, Kernel(a, a, 3).get()));
    CHECK(cudaGraphAddKernelNode(&second, graph, &first, 1, Kernel(b, a, 4).get()));
    CHECK(cudaGraphAddChildGraphNode(&nested, graph, &first, 1, child));
    cudaGraphNode_t ends[] = {second, nested};
    CHECK(cudaGraphAddEmptyNode(&joined, graph, ends, 2));
    CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, a + N / 2, c, BYTES / 4, cudaMemcpyDeviceToDevice));
    CHECK(cudaGraphAddDependencies(graph, &joined, &copy, nullptr, 1));
    CHECK(cudaGraphAddEventRecordNode(&record, graph, &copy, 1, inside));

    program::Report report;
    size_t nodes = 0, roots = 0, edges = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(cudaGraphGetRootNodes(graph, nullptr, &roots));
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    report.expect_value("nodes", nodes, 7);
    report.expect_value("roots", roots, 1);
    report.expect_value("edges", edges, 7);
    cudaKernelNodeParams asked;
    CHECK(cudaGraphKernelNodeGetParams(first, &asked));
    report.expect_value("k", *static_cast<uint64_t *>(asked.kernelParams[2]), 3);
    report.expect_value("func", asked.func == reinterpret_cast<void *>(step), 1);

    // What the instance keeps goes with it.
    static int weights[] = {1, 100};
    cudaUserObject_t objects[2];
    for (int i = 0; i < 2; i++) CHECK(cudaUserObjectCreate(&objects[i], &weights[i], on_destroy, 1, cudaUserObjectNoDestructorSync));
    CHECK(cudaGraphRetainUserObject(graph, objects[0], 1, cudaGraphUserObjectMove));
    CHECK(cudaUserObjectRelease(objects[1], 1));

    cudaGraph_t clone;
    cudaGraphNode_t second_in_clone;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&second_in_clone, second, clone));
    CHECK(cudaGraphKernelNodeSetParams(second_in_clone, Kernel(b, c, 5).get()));
    cudaGraphExec_t one, two;
    CHECK(cudaGraphInstantiate(&one, graph, 0));
    CHECK(cudaGraphInstantiate(&two, clone, 0));
    CHECK(cudaGraphUpload(two, stream));

    program::Window window;
    std::vector<uint64_t> va(N, 0x5a5a5a5a5a5a5a5aull), vb = va, vc = va;
    auto run = [&](uint64_t k1, bool second_on, uint64_t k2, size_t copied) {
        for (int i = 0; i < N; i++) va[i] = program::mix(va[i] + k1) ^ va[i];
        if (second_on) {
            for (int i = 0; i < N; i++) vb[i] = program::mix(va[i] + k2) ^ vb[i];
        }
        std::vector<uint64_t> was = vc;
        for (int i = 0; i < N; i++) {
            int block = i / BLOCK * BLOCK;
            vc[i] = (was[block + (i - block + 1) % BLOCK] + 1) ^ 2;
        }
        for (int i = 0; i < N / 2; i++) vc[i] = 0x0000000700000007ull;
        std::memcpy(&va[N / 2], &vc[0], copied);
    };

    for (long round = 0; round < options.steps; round++) {
        uint64_t k = program::mix(static_cast<uint64_t>(round));
        bool on = round % 5 != 3;
        size_t copied = BYTES / 4 + static_cast<size_t>(round % 3) * 8;
        CHECK(cudaEventRecord(outside, other));
        CHECK(cudaGraphExecKernelNodeSetParams(one, first, Kernel(a, a, k).get()));
        CHECK(cudaGraphExecMemcpyNodeSetParams1D(one, copy, a + N / 2, c, copied, cudaMemcpyDeviceToDevice));
        CHECK(cudaGraphNodeSetEnabled(one, second, on));
        CHECK(cudaGraphLaunch(one, stream));
        run(k, on, 4, copied);
        if (round % 4 == 1) {
            // The other instance is made like the first graph again: its second kernel reads a.
            CHECK(cudaGraphKernelNodeSetParams(second_in_clone, Kernel(b, a, k ^ 1).get()));
            cudaGraphExecUpdateResultInfo info;
            CHECK(cudaGraphExecUpdate(two, clone, &info));
            CHECK(cudaGraphLaunch(two, stream));
            run(3, true, k ^ 1, BYTES / 4);
        }
        if (round % 16 == 7) {
            float ms = -1;
            CHECK(cudaEventSynchronize(inside));
            CHECK(cudaEventElapsedTime(&ms, inside, inside));
            report.expect_value("elapsed", ms == 0, 1);
        }
        window.round_done(stream);
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    exchange(report, stream);

    report.expect_device("a", a, va.data(), BYTES);
    report.expect_device("b", b, vb.data(), BYTES);
    report.expect_device("c", c, vc.data(), BYTES);
    report.allocation("a", a, BYTES);
    report.allocation("b", b, BYTES);
    report.allocation("c", c, BYTES);

    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(clone));
    CHECK(cudaGraphDestroy(child));
    CHECK(cudaGraphExecDestroy(two));
    for (int i = 0; i < 200 && destroyed < 100; i++) usleep(10000);
    report.expect_value("destroyed before", static_cast<uint64_t>(destroyed.load()), 100);
    CHECK(cudaGraphExecDestroy(one));
    for (int i = 0; i < 500 && destroyed < 101; i++) usleep(10000);
    report.expect_value("destroyed", static_cast<uint64_t>(destroyed.load()), 101);
    window.destroy();
    CHECK(cudaEventDestroy(inside));
    CHECK(cudaEventDestroy(outside));
    for (cudaStream_t s : {stream, other}) CHECK(cudaStreamDestroy(s));
    for (uint64_t *p : {a, b, c}) CHECK(cudaFree(p));
    return report.finish();
}
