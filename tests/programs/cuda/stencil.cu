// An iterative stencil on a ring of cells, thousands of steps: two halves of the ring on two
// streams, each of which waits by event for the other half's step before it reads its border.
#include "program.cuh"

constexpr int CELLS = 1024; // the whole ring
constexpr int HALF = CELLS / 2;
constexpr int BLOCK = 128;
constexpr size_t BYTES = sizeof(float) * CELLS;

__device__ unsigned int border_crossings[2];

__host__ __device__ inline float relax(float left, float middle, float right) {
#ifdef __CUDA_ARCH__
    float sides = __fadd_rn(left, right);
    return __fmaf_rn(sides, 0.25f, __fmul_rn(middle, 0.5f));
#else
    // Multiplying by 0.25 and 0.5 is exact for these values, so separate roundings agree with fma.
    float sides = left + right;
    return sides * 0.25f + middle * 0.5f;
#endif
}

__global__ void advance(const float *from, float *to, const float *source, int half) {
    int i = half * HALF + blockIdx.x * BLOCK + threadIdx.x;
    float value = relax(from[(i + CELLS - 1) % CELLS], from[i], from[(i + 1) % CELLS]);
    to[i] = __fadd_rn(value, source[i]);
    if (i % HALF == 0) atomicAdd(&border_crossings[half], 1u);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 2000);
    std::vector<float> now(CELLS), next(CELLS), source(CELLS);
    for (int i = 0; i < CELLS; i++) {
        now[i] = static_cast<float>(program::mix(i) % 4096);
        source[i] = (static_cast<int>(program::mix(i + CELLS) % 65) - 32) * 0.0078125f;
    }
    float *grid[2], *d_source, *history;
    // One value in sixteen steps of cell 0, as a trace of the way and not only of the end.
    const size_t kept = static_cast<size_t>(options.steps / 16 + 1);
    cudaStream_t streams[2];
    cudaEvent_t done[2][2];
    CHECK(cudaMalloc(&d_source, BYTES));
    CHECK(cudaMalloc(&history, sizeof(float) * kept));
    CHECK(cudaMemset(history, 0, sizeof(float) * kept));
    for (int i = 0; i < 2; i++) {
        CHECK(cudaMalloc(&grid[i], BYTES));
        CHECK(cudaMemset(grid[i], 0, BYTES));
        CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        for (int k = 0; k < 2; k++) CHECK(cudaEventCreateWithFlags(&done[i][k], cudaEventDisableTiming));
    }
    CHECK(cudaMemcpy(grid[0], now.data(), BYTES, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(d_source, source.data(), BYTES, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());

    program::Window windows[2];
    for (long step = 0; step < options.steps; step++) {
        int from = static_cast<int>(step & 1);
        for (int half = 0; half < 2; half++) {
            // The other half must have finished the step before: it wrote the border that is read
            // here, and it read the cells that are overwritten here.
            if (step > 0) CHECK(cudaStreamWaitEvent(streams[half], done[1 - half][1 - from], 0));
            advance<<<HALF / BLOCK, BLOCK, 0, streams[half]>>>(grid[from], grid[1 - from], d_source, half);
            CHECK_LAUNCH();
            if (half == 0 && step % 16 == 0) {
                CHECK(cudaMemcpyAsync(history + step / 16, grid[1 - from], sizeof(float), cudaMemcpyDeviceToDevice,
                                      streams[0]));
            }
            CHECK(cudaEventRecord(done[half][from], streams[half]));
        }
        if (step % 8 == 7) {
            for (int half = 0; half < 2; half++) windows[half].round_done(streams[half]);
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());

    std::vector<float> trace(kept, 0.0f);
    for (long step = 0; step < options.steps; step++) {
        for (int i = 0; i < CELLS; i++) {
            next[i] = relax(now[(i + CELLS - 1) % CELLS], now[i], now[(i + 1) % CELLS]) + source[i];
        }
        now.swap(next);
        if (step % 16 == 0) trace[step / 16] = now[0];
    }
    if (options.steps == 0) std::fill(next.begin(), next.end(), 0.0f);
    int last = static_cast<int>(options.steps & 1);
    program::Report report;
    report.expect_device("now", grid[last], now.data(), BYTES);
    report.expect_device("before", grid[1 - last], next.data(), BYTES);
    report.expect_device("source", d_source, source.data(), BYTES);
    report.expect_device("history", history, trace.data(), sizeof(float) * kept);
    unsigned int crossings[2];
    CHECK(cudaMemcpyFromSymbol(crossings, border_crossings, sizeof crossings));
    for (unsigned int count : crossings) report.expect_value("border_crossings", count, static_cast<uint64_t>(options.steps));
    report.allocation("grid0", grid[0], BYTES);
    report.allocation("grid1", grid[1], BYTES);
    report.allocation("source", d_source, BYTES);
    report.allocation("history", history, sizeof(float) * kept);
    report.global("border_crossings", border_crossings);

    for (int i = 0; i < 2; i++) {
        windows[i].destroy();
        for (int k = 0; k < 2; k++) CHECK(cudaEventDestroy(done[i][k]));
        CHECK(cudaStreamDestroy(streams[i]));
        CHECK(cudaFree(grid[i]));
    }
    CHECK(cudaFree(d_source));
    CHECK(cudaFree(history));
    return report.finish();
}
