// Green contexts: the GPU is split into two parts, each with streams of its own. Events are recorded behind everything in a part and
// waited for by everything that comes later in another one, also by streams that are made after the wait.
#include "program.cuh"
#include "driver.cuh"


constexpr int BLOCK = 128;
constexpr size_t WORDS = 2048;
constexpr int STREAMS = 3;

__global__ void fill(uint64_t *cells, uint64_t seed) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    cells[i] = program::mix(cells[i] ^ seed ^ i);
}

// Takes what all streams of the other part have written.
__global__ void gather(uint64_t *sums, const uint64_t *cells, uint64_t seed) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    uint64_t sum = sums[i] ^ seed;
    for (int s = 0; s < STREAMS; s++) sum = program::mix(sum + cells[s * WORDS + i]);
    sums[i] = sum;
}

struct Part {
    CUgreenCtx green;
    CUcontext context;
    cudaStream_t streams[STREAMS];
};

// Two parts of eight multiprocessors or more.
static void make(Part (&parts)[2], program::Report &report) {
    CUdevResource all, groups[2], rest;
    DRIVER(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
    unsigned count = 2;
    DRIVER(cuDevSmResourceSplitByCount, groups, &count, &all, &rest, 0, 8);
    report.expect_value("groups", count, 2);
    report.expect_value("multiprocessors", groups[0].sm.smCount + groups[1].sm.smCount + rest.sm.smCount, all.sm.smCount);
    for (int p = 0; p < 2; p++) {
        Part &part = parts[p];
        CUdevResourceDesc desc;
        DRIVER(cuDevResourceGenerateDesc, &desc, &groups[p], 1);
        DRIVER(cuGreenCtxCreate, &part.green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM);
        DRIVER(cuCtxFromGreenCtx, &part.context, part.green);
        CUdevResource has;
        DRIVER(cuGreenCtxGetDevResource, part.green, &has, CU_DEV_RESOURCE_TYPE_SM);
        report.expect_value("multiprocessors of a part", has.sm.smCount, groups[p].sm.smCount);
        for (int s = 0; s < STREAMS - 1; s++) {
            DRIVER(cuGreenCtxStreamCreate, &part.streams[s], part.green, CU_STREAM_NON_BLOCKING, 0);
        }
        // The last one is made while the part is current.
        DRIVER(cuCtxPushCurrent, part.context);
        DRIVER(cuStreamCreate, &part.streams[STREAMS - 1], CU_STREAM_NON_BLOCKING);
        CUcontext popped;
        DRIVER(cuCtxPopCurrent, &popped);
        report.expect_value("popped", popped == part.context, 1);
        for (cudaStream_t stream : part.streams) {
            CUgreenCtx green = nullptr;
            DRIVER(cuStreamGetGreenCtx, stream, &green);
            report.expect_value("part of a stream", green == part.green, 1);
        }
    }
}

static void end(Part (&parts)[2]) {
    for (Part &part : parts) {
        for (cudaStream_t stream : part.streams) CHECK(cudaStreamDestroy(stream));
        DRIVER(cuGreenCtxDestroy, part.green);
    }
}

// What the runtime does while a part is current: in its default stream, in a stream that it makes, in a graph.
static void inside(const Part &part, program::Report &report, uint64_t seed) {
    constexpr size_t BYTES = WORDS * sizeof(uint64_t);
    CUcontext popped;
    DRIVER(cuCtxPushCurrent, part.context);
    int device = -1;
    CHECK(cudaGetDevice(&device));
    report.expect_value("device", device, 0);
    uint64_t *cells;
    CHECK(cudaMalloc(&cells, BYTES));
    CHECK(cudaMemset(cells, 0, BYTES));
    fill<<<WORDS / BLOCK, BLOCK>>>(cells, seed);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    fill<<<WORDS / BLOCK, BLOCK, 0, stream>>>(cells, ~seed);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CHECK(cudaGraphLaunch(instance, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::vector<uint64_t> want(WORDS);
    for (size_t i = 0; i < WORDS; i++) want[i] = program::mix(program::mix(seed ^ i) ^ ~seed ^ i);
    report.expect_device("inside", cells, want.data(), BYTES);
    CHECK(cudaGraphExecDestroy(instance));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(cells));
    DRIVER(cuCtxPopCurrent, &popped);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    CHECK(cudaFree(nullptr));
    program::Report report;
    Part parts[2];
    make(parts, report);
    uint64_t *cells, *sums;
    CHECK(cudaMalloc(&cells, STREAMS * WORDS * sizeof(uint64_t)));
    CHECK(cudaMalloc(&sums, 2 * WORDS * sizeof(uint64_t)));
    CHECK(cudaMemset(cells, 0, STREAMS * WORDS * sizeof(uint64_t)));
    CHECK(cudaMemset(sums, 0, 2 * WORDS * sizeof(uint64_t)));
    CHECK(cudaDeviceSynchronize());
    std::vector<uint64_t> want(STREAMS * WORDS, 0), want_sums(2 * WORDS, 0);
    cudaEvent_t written, read;
    CHECK(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
    CUcontext primary;
    DRIVER(cuCtxGetCurrent, &primary);
    for (long round = 0; round < options.steps; round++) {
        uint64_t seed = program::mix(round);
        Part &writer = parts[round % 2], &reader = parts[1 - round % 2];
        for (int s = 0; s < STREAMS; s++) {
            fill<<<WORDS / BLOCK, BLOCK, 0, writer.streams[s]>>>(cells + s * WORDS, seed + s);
            CHECK_LAUNCH();
        }
        DRIVER(cuGreenCtxRecordEvent, writer.green, written);
        cudaStream_t late = nullptr;
        if (round % 3 == 0) {
            DRIVER(cuCtxWaitEvent, reader.context, written);
            DRIVER(cuGreenCtxStreamCreate, &late, reader.green, CU_STREAM_NON_BLOCKING, 0);
        } else {
            DRIVER(cuGreenCtxWaitEvent, reader.green, written);
        }
        gather<<<WORDS / BLOCK, BLOCK, 0, reader.streams[round % STREAMS]>>>(sums, cells, seed);
        CHECK_LAUNCH();
        gather<<<WORDS / BLOCK, BLOCK, 0, late ? late : reader.streams[(round + 1) % STREAMS]>>>(sums + WORDS, cells, ~seed);
        CHECK_LAUNCH();
        // Nothing of the next round begins before.
        if (round % 2) {
            DRIVER(cuCtxRecordEvent, primary, read);
            DRIVER(cuCtxWaitEvent, primary, read);
        } else {
            DRIVER(cuGreenCtxRecordEvent, reader.green, read);
            for (Part &part : parts) DRIVER(cuGreenCtxWaitEvent, part.green, read);
        }
        if (late) CHECK(cudaStreamDestroy(late));
        for (size_t i = 0; i < WORDS; i++) {
            for (int s = 0; s < STREAMS; s++) {
                uint64_t &cell = want[s * WORDS + i];
                cell = program::mix(cell ^ (seed + s) ^ i);
            }
            for (int half = 0; half < 2; half++) {
                uint64_t &sum = want_sums[half * WORDS + i];
                sum ^= half ? ~seed : seed;
                for (int s = 0; s < STREAMS; s++) sum = program::mix(sum + want[s * WORDS + i]);
            }
        }
        if (round % 8 == 7) {
            CHECK(cudaEventSynchronize(read));
            report.expect_device("sums", sums, want_sums.data(), 2 * WORDS * sizeof(uint64_t));
            inside(reader, report, seed);
        }
        if (round % 16 == 15) {
            CHECK(cudaDeviceSynchronize());
            end(parts);
            make(parts, report);
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    report.expect_device("cells", cells, want.data(), STREAMS * WORDS * sizeof(uint64_t));
    report.expect_device("sums", sums, want_sums.data(), 2 * WORDS * sizeof(uint64_t));
    report.allocation("cells", cells, STREAMS * WORDS * sizeof(uint64_t));
    report.allocation("sums", sums, 2 * WORDS * sizeof(uint64_t));
    end(parts);
    return report.finish();
}
