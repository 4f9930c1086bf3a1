// Instances of graphs that live longer than what they were made for: memory that is freed since, memory that is mapped anew behind the
// same addresses, host memory that is gone, nodes that were given other memory. Those whose memory is there are launched.
#include "program.cuh"
#include "driver.cuh"

#include <algorithm>

constexpr size_t WORDS = 2048, BYTES = WORDS * sizeof(uint32_t), LARGE = size_t(3) << 20;
// So many rounds an instance stays whose memory is gone.
constexpr long STAYS = 5;

__global__ void scramble(uint32_t *to, const uint32_t *from, uint32_t salt) {
    size_t i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = (to[i] ^ from[i]) * 1664525u + salt + static_cast<uint32_t>(i);
}

static size_t granule;

static CUmemAllocationProp prop() {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return p;
}

// New memory at an address.
static void map(CUdeviceptr at) {
    CUmemAllocationProp p = prop();
    CUmemGenericAllocationHandle handle;
    DRIVER(cuMemCreate, &handle, granule, &p, 0);
    DRIVER(cuMemMap, at, granule, 0, handle, 0);
    DRIVER(cuMemRelease, handle);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess, at, granule, &access, 1);
}

static cudaMemsetParams fill(void *to, unsigned value) {
    cudaMemsetParams p = {};
    p.dst = to, p.value = value, p.elementSize = 4, p.width = WORDS, p.height = 1;
    return p;
}

// `to` is filled, and scrambled with what is copied through `from`.
struct Graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t first, copy, second, kernel;

    Graph(uint32_t *to, uint32_t *from, const uint32_t *source, uint32_t salt) {
        CHECK(cudaGraphCreate(&graph, 0));
        cudaMemsetParams p = fill(to, salt);
        CHECK(cudaGraphAddMemsetNode(&first, graph, nullptr, 0, &p));
        CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, from, source, BYTES, cudaMemcpyDefault));
        // In rows, which is another kind of node to a driver.
        cudaMemcpy3DParms box = {};
        box.srcPtr = make_cudaPitchedPtr(from, 512, 512, 8);
        box.dstPtr = make_cudaPitchedPtr(to, 512, 512, 8);
        box.extent = make_cudaExtent(256, 8, 1);
        box.kind = cudaMemcpyDeviceToDevice;
        cudaGraphNode_t both[] = {first, copy};
        CHECK(cudaGraphAddMemcpyNode(&second, graph, both, 2, &box));
        cudaKernelNodeParams k = {};
        const uint32_t *read = from;
        void *args[] = {&to, &read, &salt};
        k.func = reinterpret_cast<void *>(scramble);
        k.gridDim = dim3(WORDS / 128), k.blockDim = dim3(128), k.kernelParams = args;
        CHECK(cudaGraphAddKernelNode(&kernel, graph, &second, 1, &k));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
    }

    void end() {
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
};

// The same on the host.
static void model(std::vector<uint32_t> &to, const std::vector<uint32_t> &source, uint32_t fill, uint32_t salt) {
    to.assign(WORDS, fill);
    for (size_t row = 0; row < 8; row++) std::copy_n(source.begin() + row * 128, 64, to.begin() + row * 128);
    for (size_t i = 0; i < WORDS; i++) to[i] = (to[i] ^ source[i]) * 1664525u + salt + static_cast<uint32_t>(i);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    CHECK(cudaFree(nullptr));
    CUmemAllocationProp p = prop();
    DRIVER(cuMemGetAllocationGranularity, &granule, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUdeviceptr range;
    DRIVER(cuMemAddressReserve, &range, 2 * granule, 0, 0, 0);
    map(range);
    map(range + granule);
    uint32_t *const mapped = reinterpret_cast<uint32_t *>(range), *const behind = reinterpret_cast<uint32_t *>(range + granule);
    program::Bystanders bystanders;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *source;
    CHECK(cudaMalloc(&source, BYTES));
    std::vector<uint32_t> numbers(WORDS), want, got(WORDS);
    for (size_t i = 0; i < WORDS; i++) numbers[i] = static_cast<uint32_t>(program::mix(i));
    CHECK(cudaMemcpy(source, numbers.data(), BYTES, cudaMemcpyHostToDevice));

    // One stays all the time, and what is behind its addresses does not.
    Graph steady(mapped, behind, source, 77);
    std::vector<Graph> gone;
    std::vector<uint64_t> digests;
    auto launch = [&](const Graph &g, const uint32_t *to, uint32_t fill, uint32_t salt) {
        CHECK(cudaGraphLaunch(g.exec, stream));
        CHECK(cudaMemcpyAsync(got.data(), to, BYTES, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        model(want, numbers, fill, salt);
        report.expect("what a graph has written", got.data(), want.data(), BYTES);
        digests.push_back(program::digest(got.data(), BYTES));
    };
    for (long step = 0; step < options.steps; step++) {
        const uint32_t salt = static_cast<uint32_t>(program::mix(step));
        // Memory of its own, memory with others in it, of a pool, and of the host.
        uint32_t *a, *b;
        const bool large = step % 4 == 0, pooled = step % 4 == 1, pinned = step % 4 == 2;
        if (pinned) {
            CHECK(cudaMalloc(&a, BYTES));
            if (step % 8 == 2) CHECK(cudaMallocHost(&b, BYTES));
            else CHECK(cudaMallocManaged(&b, BYTES));
        } else if (pooled) {
            CHECK(cudaMallocAsync(&a, LARGE, stream));
            CHECK(cudaMallocAsync(&b, BYTES, stream));
            CHECK(cudaStreamSynchronize(stream));
        } else {
            CHECK(cudaMalloc(&a, large ? LARGE : BYTES));
            CHECK(cudaMalloc(&b, large ? LARGE : BYTES));
        }
        Graph g(a, b, source, salt);
        launch(g, a, salt, salt);
        launch(steady, mapped, 77, 77);
        options.pace();
        // A node goes to other memory before its own is freed.
        if (step % 3 == 0) {
            cudaMemsetParams to = fill(mapped, salt);
            CHECK(cudaGraphExecMemsetNodeSetParams(g.exec, g.first, &to));
        }
        if (pooled) {
            CHECK(cudaFreeAsync(a, stream));
            CHECK(cudaFreeAsync(b, stream));
            CHECK(cudaStreamSynchronize(stream));
            cudaMemPool_t pool;
            CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
            CHECK(cudaMemPoolTrimTo(pool, 0));
        } else {
            CHECK(cudaFree(a));
            CHECK(pinned && step % 8 == 2 ? cudaFreeHost(b) : cudaFree(b));
        }
        gone.push_back(g);
        // Other memory behind the addresses that the steady graph has.
        const CUdeviceptr other = step % 2 == 0 ? range : range + granule;
        DRIVER(cuMemUnmap, other, granule);
        if (step % 5 == 0) options.pace();
        map(other);
        options.pace();
        launch(steady, mapped, 77, 77);
        // Host memory that comes and goes with its graph.
        uint32_t *host;
        CHECK(cudaMallocHost(&host, BYTES));
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        cudaGraphNode_t node;
        cudaMemsetParams to = fill(host, salt);
        CHECK(cudaGraphCreate(&graph, 0));
        CHECK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &to));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        if (step % 2 == 0) options.pace();
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (size_t i = 0; i < WORDS; i++) report.expect_value("a filled word", host[i], salt);
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaFreeHost(host));
        if (gone.size() > STAYS) {
            gone.front().end();
            gone.erase(gone.begin());
        }
    }
    for (Graph &g : gone) g.end();
    steady.end();
    bystanders.end(report);
    report.line("launches", "digests", digests.data(), digests.size() * sizeof digests[0]);
    report.allocation("source", source, BYTES);
    DRIVER(cuMemUnmap, range, 2 * granule);
    DRIVER(cuMemAddressFree, range, 2 * granule);
    return report.finish();
}
