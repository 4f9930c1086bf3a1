// Batches of copies: between device, page-locked and plain memory and arrays, with every promise about when the source is read; what is
// promised is relied upon. Batches of prefetches and discards of managed memory. What a batch that is wrong leaves behind.
#include "program.cuh"

#include <cuda.h>

#include <algorithm>

constexpr int N = 1 << 14;
constexpr size_t BYTES = N * sizeof(uint64_t);
constexpr int WIDTH = 24, ROWS = 10, SLICES = 3;
constexpr int SPLIT = 5000;

using Old = CUresult (*)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream);

__global__ void stir(uint64_t *to, const uint64_t *from, uint64_t round) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = program::mix(to[i] + from[i] * 3 + round);
}

static void stir_here(std::vector<uint64_t> &to, const std::vector<uint64_t> &from, uint64_t round) {
    for (int i = 0; i < N; i++) to[i] = program::mix(to[i] + from[i] * 3 + round);
}

struct Order {
    uint64_t *buffer;
    uint64_t value;
};

static void CUDART_CB fill(void *p) {
    Order *order = static_cast<Order *>(p);
    std::fill(order->buffer, order->buffer + N, order->value);
}

static cudaMemcpyAttributes reads(cudaMemcpySrcAccessOrder order) {
    cudaMemcpyAttributes a = {};
    a.srcAccessOrder = order;
    return a;
}

static cudaMemcpy3DOperand memory(void *p, size_t row, size_t height) {
    cudaMemcpy3DOperand o = {};
    o.type = cudaMemcpyOperandTypePointer;
    o.op.ptr.ptr = p;
    o.op.ptr.rowLength = row;
    o.op.ptr.layerHeight = height;
    return o;
}

static cudaMemcpy3DOperand part(cudaArray_t array, size_t x, size_t y, size_t z) {
    cudaMemcpy3DOperand o = {};
    o.type = cudaMemcpyOperandTypeArray;
    o.op.array.array = array;
    o.op.array.offset = {x, y, z};
    return o;
}

// A box through an array, in two batches: the second reads what the first has written.
static void boxes(program::Report &report, cudaArray_t array, uint32_t *device, cudaStream_t stream, uint32_t round) {
    std::vector<uint32_t> from(WIDTH * ROWS * SLICES), back(WIDTH * ROWS * SLICES, 7), flat(40 * 6);
    for (size_t i = 0; i < from.size(); i++) from[i] = static_cast<uint32_t>(program::mix(round + i));
    cudaMemcpy3DBatchOp ops[2] = {};
    ops[0].src = memory(from.data(), 0, 0);
    ops[0].dst = part(array, 0, 0, 0);
    ops[0].extent = {WIDTH, ROWS, SLICES};
    ops[0].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    ops[1].src = memory(from.data(), WIDTH * 4, 0);
    ops[1].dst = memory(device, 160, 8);
    ops[1].extent = {WIDTH * 4 - 1, ROWS / 2, 1};
    ops[1].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    CHECK(cudaMemcpy3DBatchAsync(2, ops, 0, stream));
    std::vector<uint32_t> want = from;
    std::fill(from.begin(), from.end(), 0xEEEEEEEE);
    ops[0].src = part(array, 4, 2, 1);
    ops[0].dst = memory(back.data(), WIDTH, ROWS);
    ops[0].extent = {WIDTH - 4, ROWS - 2, SLICES - 1};
    ops[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    ops[1].src = memory(device, 160, 8);
    ops[1].dst = memory(flat.data(), 160, 6);
    ops[1].srcAccessOrder = cudaMemcpySrcAccessOrderAny;
    CHECK(cudaMemcpy3DBatchAsync(2, ops, 0, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int z = 0; z < SLICES; z++) {
        for (int y = 0; y < ROWS; y++) {
            for (int x = 0; x < WIDTH; x++) {
                bool inside = x < WIDTH - 4 && y < ROWS - 2 && z < SLICES - 1;
                uint32_t value = inside ? want[((z + 1) * ROWS + y + 2) * WIDTH + x + 4] : 7;
                report.expect_value("box", back[(z * ROWS + y) * WIDTH + x], value);
            }
        }
    }
    for (int y = 0; y < ROWS / 2; y++) {
        report.expect("rows", reinterpret_cast<char *>(flat.data()) + y * 160, reinterpret_cast<char *>(want.data()) + y * WIDTH * 4,
                      WIDTH * 4 - 1);
    }
}

// Batches that are wrong: the answer, and nothing is copied.
static void wrong(program::Report &report, Old old, uint64_t *device, uint64_t *plain, cudaStream_t stream) {
    void *dsts[2] = {device, device + 8};
    const void *srcs[2] = {plain, plain + 8};
    size_t sizes[2] = {64, 64}, from[2] = {0, 1};
    cudaMemcpyAttributes how[2] = {reads(cudaMemcpySrcAccessOrderStream), reads(cudaMemcpySrcAccessOrderStream)};
    auto answer = [&](const char *name, cudaError_t got) { report.expect_value(name, got, cudaErrorInvalidValue); };
    answer("no copies", cudaMemcpyBatchAsync(dsts, srcs, sizes, 0, how, from, 1, stream));
    answer("no attributes", cudaMemcpyBatchAsync(dsts, srcs, sizes, 2, how, from, 0, stream));
    answer("more attributes than copies", cudaMemcpyBatchAsync(dsts, srcs, sizes, 1, how, from, 2, stream));
    answer("the legacy stream", cudaMemcpyBatchAsync(dsts, srcs, sizes, 2, how, from, 1, cudaStreamLegacy));
    from[0] = 1;
    answer("attributes of nothing", cudaMemcpyBatchAsync(dsts, srcs, sizes, 2, how, from, 1, stream));
    from[0] = 0;
    how[1].srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
    answer("no order", cudaMemcpyBatchAsync(dsts, srcs, sizes, 2, how, from, 2, stream));
    CUdeviceptr to[2] = {reinterpret_cast<CUdeviceptr>(device), reinterpret_cast<CUdeviceptr>(device + 8)};
    CUdeviceptr source[2] = {reinterpret_cast<CUdeviceptr>(plain), reinterpret_cast<CUdeviceptr>(plain + 8)};
    CUmemcpyAttributes first[2] = {};
    first[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t fail = 77;
    report.expect_value("no order either", old(to, source, sizes, 2, first, from, 2, &fail, stream), CUDA_ERROR_INVALID_VALUE);
    cudaMemcpy3DBatchOp op = {};
    op.src = memory(plain, 0, 0);
    op.dst = memory(device, 0, 0);
    op.extent = {8, 0, 1};
    op.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    answer("no rows", cudaMemcpy3DBatchAsync(1, &op, 0, stream));
    op.extent = {8, 1, 1};
    answer("flags", cudaMemcpy3DBatchAsync(1, &op, 1, stream));
    (void)cudaGetLastError();
}

// A capture takes no batch, and goes on without it.
static void captured(program::Report &report, uint64_t *to, uint64_t *from, cudaStream_t stream, uint64_t round) {
    cudaGraph_t graph;
    cudaGraphExec_t made;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    void *dst = to;
    const void *src = from;
    size_t size = BYTES, first = 0;
    cudaMemcpyAttributes how = reads(cudaMemcpySrcAccessOrderStream);
    cudaError_t refused = cudaMemcpyBatchAsync(&dst, &src, &size, 1, &how, &first, 1, stream);
    report.expect_value("a batch in a capture", refused, cudaErrorStreamCaptureUnsupported);
    (void)cudaGetLastError();
    stir<<<N / 128, 128, 0, stream>>>(to, from, round);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&made, graph, 0));
    CHECK(cudaGraphLaunch(made, stream));
    CHECK(cudaGraphExecDestroy(made));
    CHECK(cudaGraphDestroy(graph));
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    program::Report report;
    void *found = nullptr;
    cudaDriverEntryPointQueryResult state;
    CHECK(cudaGetDriverEntryPointByVersion("cuMemcpyBatchAsync", &found, 12080, cudaEnableDefault, &state));
    Old old = reinterpret_cast<Old>(found);
    uint64_t *sum, *inputs[3], *pinned, *result, *managed;
    uint32_t *flat;
    CHECK(cudaMalloc(&sum, BYTES));
    CHECK(cudaMemset(sum, 0, BYTES));
    for (uint64_t *&input : inputs) CHECK(cudaMalloc(&input, BYTES));
    CHECK(cudaMalloc(&flat, 160 * 8));
    CHECK(cudaMallocHost(&pinned, BYTES));
    CHECK(cudaMallocHost(&result, BYTES));
    CHECK(cudaMallocManaged(&managed, BYTES));
    cudaArray_t array;
    cudaChannelFormatDesc word = cudaCreateChannelDesc<uint32_t>();
    CHECK(cudaMalloc3DArray(&array, &word, cudaExtent{WIDTH, ROWS, SLICES}));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<uint64_t> plain(N), kept(N), want(N, 0), back(N);
    for (long round = 0; round < options.steps; round++) {
        uint64_t values[3];
        for (int k = 0; k < 3; k++) values[k] = program::mix(round * 3 + k);
        // In stream order: a host function fills the plain memory before the copy reads it.
        std::fill(plain.begin(), plain.end(), ~values[0]);
        Order order = {plain.data(), values[0]};
        program::linger<<<1, 1, 0, stream>>>(round % 2 ? 300000 : 0);
        CHECK_LAUNCH();
        CHECK(cudaLaunchHostFunc(stream, fill, &order));
        // During the call: page-locked and plain memory are the host's again when it returns.
        std::fill(pinned, pinned + N, values[1]);
        std::fill(kept.begin(), kept.end(), values[2]);
        void *dsts[4] = {inputs[0], inputs[1], inputs[2], inputs[2] + SPLIT};
        const void *srcs[4] = {plain.data(), pinned, kept.data(), kept.data() + SPLIT};
        size_t sizes[4] = {BYTES, BYTES, SPLIT * sizeof(uint64_t), BYTES - SPLIT * sizeof(uint64_t)}, from[2] = {0, 1};
        cudaMemcpyAttributes how[2] = {reads(cudaMemcpySrcAccessOrderStream), reads(cudaMemcpySrcAccessOrderDuringApiCall)};
        CHECK(cudaMemcpyBatchAsync(dsts, srcs, sizes, 4, how, from, 2, stream));
        std::fill(pinned, pinned + N, 0xAAAAAAAAAAAAAAAAull);
        std::fill(kept.begin(), kept.end(), 0xBBBBBBBBBBBBBBBBull);
        for (int k = 0; k < 3; k++) {
            stir<<<N / 128, 128, 0, stream>>>(sum, inputs[k], round);
            CHECK_LAUNCH();
            stir_here(want, std::vector<uint64_t>(N, values[k]), round);
        }
        if (round % 3 == 0) {
            captured(report, sum, inputs[1], stream, round);
            stir_here(want, std::vector<uint64_t>(N, values[1]), round);
        }
        // Out, by the form of CUDA 12.8, to page-locked, plain and managed memory, and inside the device.
        CUdeviceptr outs[4] = {reinterpret_cast<CUdeviceptr>(result), reinterpret_cast<CUdeviceptr>(back.data()),
                               reinterpret_cast<CUdeviceptr>(managed), reinterpret_cast<CUdeviceptr>(inputs[0])};
        CUdeviceptr source = reinterpret_cast<CUdeviceptr>(sum), ins[4] = {source, source, source, source};
        size_t whole[4] = {BYTES, BYTES, BYTES, BYTES}, fail = 99;
        CUmemcpyAttributes any = {};
        any.srcAccessOrder = round % 2 ? CU_MEMCPY_SRC_ACCESS_ORDER_STREAM : CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        any.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
        CUresult rc = old(outs, ins, whole, 4, &any, from, 1, &fail, stream);
        report.expect_value("the older form", rc, CUDA_SUCCESS);
        CHECK(cudaStreamSynchronize(stream));
        report.expect("page-locked", result, want.data(), BYTES);
        report.expect("plain", back.data(), want.data(), BYTES);
        report.expect("managed", managed, want.data(), BYTES);
        report.expect_device("inside", inputs[0], want.data(), BYTES);
        void *range = managed;
        cudaMemLocation there = {cudaMemLocationTypeDevice, 0};
        size_t bytes = BYTES, zero = 0;
        CHECK(cudaMemPrefetchBatchAsync(&range, &bytes, 1, &there, &zero, 1, 0, stream));
        boxes(report, array, flat, stream, static_cast<uint32_t>(round));
        report.expect("prefetched", managed, want.data(), BYTES);
        CHECK(cudaMemDiscardBatchAsync(&range, &bytes, 1, 0, stream));
        CHECK(cudaMemDiscardAndPrefetchBatchAsync(&range, &bytes, 1, &there, &zero, 1, 0, stream));
        if (round % 8 == 0) wrong(report, old, inputs[1], plain.data(), stream);
        options.pace();
    }
    report.expect_device("sum", sum, want.data(), BYTES);
    for (int k = 1; options.steps > 0 && k < 3; k++) {
        const std::vector<uint64_t> last(N, program::mix((options.steps - 1) * 3 + k));
        report.expect_device("an input", inputs[k], last.data(), BYTES);
    }
    report.allocation("sum", sum, BYTES);
    CHECK(cudaFreeArray(array));
    for (void *p : {static_cast<void *>(sum), static_cast<void *>(inputs[0]), static_cast<void *>(inputs[1]),
                    static_cast<void *>(inputs[2]), static_cast<void *>(flat), static_cast<void *>(managed)}) {
        CHECK(cudaFree(p));
    }
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFreeHost(result));
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
