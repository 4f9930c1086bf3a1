// Pinned buffers with asynchronous copies both ways: one is filled by a host function just before its copy; one is copied out
// and in again without the host touching it; rectangles; copies inside pinned memory; registered memory; a buffer that is
// freed and made anew. All asynchronous, on two streams, several rounds deep.
#include "program.cuh"

constexpr int N = 4096;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint32_t);

__global__ void blend(uint32_t *state, const uint32_t *filled, const uint32_t *returned, uint32_t round) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    state[i] = state[i] * 1664525u + filled[i] + (returned[i] ^ round);
}

struct Fill {
    uint32_t *to;
    long round;
};

static uint32_t value(long round, int i) { return static_cast<uint32_t>(program::mix(round * N + i)); }

static void CUDART_CB fill(void *data) {
    Fill *f = static_cast<Fill *>(data);
    for (int i = 0; i < N; i++) f->to[i] = value(f->round, i);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    cudaStream_t work, side;
    cudaEvent_t ready;
    CHECK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    uint32_t *state, *filled, *returned, *corner;
    CHECK(cudaMalloc(&state, BYTES));
    CHECK(cudaMalloc(&filled, BYTES));
    CHECK(cudaMalloc(&returned, BYTES));
    CHECK(cudaMalloc(&corner, BYTES));
    uint32_t *source, *round_trip, *twin, *often = nullptr;
    CHECK(cudaMallocHost(&source, BYTES));
    CHECK(cudaHostAlloc(&round_trip, BYTES, cudaHostAllocPortable));
    CHECK(cudaMallocHost(&twin, BYTES));
    std::vector<uint32_t> registered(N, 7);
    CHECK(cudaHostRegister(registered.data(), BYTES, cudaHostRegisterDefault));
    std::vector<uint32_t> want(N);
    for (int i = 0; i < N; i++) want[i] = value(-1, i);
    CHECK(cudaMemcpy(state, want.data(), BYTES, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(returned, 0, BYTES));
    CHECK(cudaMemset(corner, 0, BYTES));

    std::vector<Fill> fills(options.steps);
    program::Window window;
    for (long round = 0; round < options.steps; round++) {
        fills[round] = {source, round};
        // Filled when the stream gets there, read behind it; the next round's function must not come before the copy.
        CHECK(cudaLaunchHostFunc(work, fill, &fills[round]));
        CHECK(cudaMemcpyAsync(filled, source, BYTES, cudaMemcpyHostToDevice, work));
        blend<<<N / BLOCK, BLOCK, 0, work>>>(state, filled, returned, static_cast<uint32_t>(round));
        CHECK_LAUNCH();
        // Out and in again: the host never looks. Every other time by way of another pinned buffer.
        CHECK(cudaMemcpyAsync(round_trip, state, BYTES, cudaMemcpyDeviceToHost, work));
        if (round % 2 == 0) {
            CHECK(cudaMemcpyAsync(returned, round_trip, BYTES, cudaMemcpyHostToDevice, work));
        } else {
            CHECK(cudaMemcpyAsync(twin, round_trip, BYTES, cudaMemcpyHostToHost, work));
            CHECK(cudaMemcpyAsync(returned, twin, BYTES, cudaMemcpyHostToDevice, work));
        }
        CHECK(cudaEventRecord(ready, work));
        // A corner of it by rectangles, on the other stream, into registered memory and back to the device.
        CHECK(cudaStreamWaitEvent(side, ready, 0));
        CHECK(cudaMemcpy2DAsync(registered.data() + 1, 256, returned, 512, 200, N * 4 / 512, cudaMemcpyDeviceToHost, side));
        CHECK(cudaMemcpy2DAsync(corner, 512, registered.data() + 1, 256, 200, N * 4 / 512, cudaMemcpyHostToDevice, side));
        CHECK(cudaEventRecord(ready, side));
        CHECK(cudaStreamWaitEvent(work, ready, 0));
        window.round_done(work);
        if (round % 8 == 7) {
            if (often != nullptr) CHECK(cudaFreeHost(often));
            CHECK(cudaMallocHost(&often, BYTES));
            for (int i = 0; i < N; i++) {
                if (often[i] != 0) std::fprintf(stderr, "fresh pinned memory is not zero\n");
                often[i] = value(round, i);
            }
        }
        options.pace();
    }
    CHECK(cudaStreamSynchronize(work));
    CHECK(cudaStreamSynchronize(side));

    std::vector<uint32_t> back(N), want_registered(N, 7), want_corner(N), want_filled(N), want_twin;
    for (long round = 0; round < options.steps; round++) {
        for (int i = 0; i < N; i++) want[i] = want[i] * 1664525u + value(round, i) + (back[i] ^ static_cast<uint32_t>(round));
        back = want;
        if (round % 2 == 1) want_twin = want;
        for (int i = 0; i < N; i++) want_filled[i] = value(round, i);
        for (int row = 0; row < N * 4 / 512; row++) {
            std::memcpy(want_registered.data() + 1 + row * 64, back.data() + row * 128, 200);
            std::memcpy(want_corner.data() + row * 128, back.data() + row * 128, 200);
        }
    }
    program::Report report;
    report.expect_device("state", state, want.data(), BYTES);
    report.expect_device("returned", returned, back.data(), BYTES);
    report.expect_device("corner", corner, want_corner.data(), BYTES);
    report.expect("registered", registered.data(), want_registered.data(), BYTES);
    if (options.steps > 0) {
        report.expect("round trip", round_trip, back.data(), BYTES);
        report.expect("source", source, want_filled.data(), BYTES);
        report.expect_device("filled", filled, want_filled.data(), BYTES);
    }
    if (!want_twin.empty()) report.expect("twin", twin, want_twin.data(), BYTES);
    if (often != nullptr) {
        long made = (options.steps / 8) * 8 - 1;
        for (int i = 0; i < N; i++) back[i] = value(made, i);
        report.expect("made anew", often, back.data(), BYTES);
        CHECK(cudaFreeHost(often));
    }
    report.allocation("state", state, BYTES);
    report.allocation("corner", corner, BYTES);
    report.line("pinned", "round_trip", round_trip, BYTES);
    report.line("pinned", "registered", registered.data(), BYTES);

    window.destroy();
    CHECK(cudaHostUnregister(registered.data()));
    CHECK(cudaEventDestroy(ready));
    CHECK(cudaStreamDestroy(work));
    CHECK(cudaStreamDestroy(side));
    for (void *p : {state, filled, returned, corner}) CHECK(cudaFree(p));
    for (void *p : {source, round_trip, twin}) CHECK(cudaFreeHost(p));
    return report.finish();
}
