// Tiled matrix multiplication through shared memory, fed back into itself: every step multiplies
// the last result again, so one lost or doubled step changes every digit after it.
#include "program.cuh"

#include <cmath>

constexpr int N = 64;
constexpr int TILE = 16;
constexpr int LANES = 3; // independent chains, one stream each
constexpr size_t BYTES = sizeof(float) * N * N;

__device__ unsigned int tiles_done[LANES];

// c = a × b. Every element is one chain of fused multiply-adds in rising k: the order is fixed.
__global__ void multiply(const float *a, const float *b, float *c, int lane) {
    __shared__ float sa[TILE][TILE], sb[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < N; k += TILE) {
        sa[threadIdx.y][threadIdx.x] = a[row * N + k + threadIdx.x];
        sb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * N + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum = __fmaf_rn(sa[threadIdx.y][i], sb[i][threadIdx.x], sum);
        __syncthreads();
    }
    c[row * N + column] = sum;
    if (threadIdx.x == 0 && threadIdx.y == 0) atomicAdd(&tiles_done[lane], 1u);
}

// Brings the product back to the range of the input: scaled, and shifted by its own place.
__global__ void rescale(const float *c, float *a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    a[i] = __fmaf_rn(c[i], 0.0625f, static_cast<float>(i % 7) - 3.0f);
}

static void multiply_on_host(const std::vector<float> &a, const std::vector<float> &b, std::vector<float> &c) {
    for (int row = 0; row < N; row++) {
        for (int column = 0; column < N; column++) {
            float sum = 0.0f;
            for (int k = 0; k < N; k++) sum = fmaf(a[row * N + k], b[k * N + column], sum);
            c[row * N + column] = sum;
        }
    }
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 6);
    std::vector<float> b(N * N), a[LANES], c[LANES];
    for (int i = 0; i < N * N; i++) b[i] = (static_cast<int>(program::mix(i) % 9) - 4) * 0.25f;
    float *db, *da[LANES], *dc[LANES];
    cudaStream_t streams[LANES];
    CHECK(cudaMalloc(&db, BYTES));
    CHECK(cudaMemcpy(db, b.data(), BYTES, cudaMemcpyHostToDevice));
    for (int lane = 0; lane < LANES; lane++) {
        a[lane].resize(N * N);
        c[lane].resize(N * N);
        for (int i = 0; i < N * N; i++) a[lane][i] = static_cast<int>(program::mix(i + lane * N * N) % 13) - 6;
        CHECK(cudaStreamCreateWithFlags(&streams[lane], cudaStreamNonBlocking));
        CHECK(cudaMalloc(&da[lane], BYTES));
        CHECK(cudaMalloc(&dc[lane], BYTES));
        CHECK(cudaMemcpy(da[lane], a[lane].data(), BYTES, cudaMemcpyHostToDevice));
        CHECK(cudaMemset(dc[lane], 0, BYTES));
    }
    // The copies above went through the legacy stream, which the non-blocking streams do not follow.
    CHECK(cudaDeviceSynchronize());

    program::Window windows[LANES];
    const dim3 grid(N / TILE, N / TILE), block(TILE, TILE);
    for (long step = 0; step < options.steps; step++) {
        for (int lane = 0; lane < LANES; lane++) {
            multiply<<<grid, block, 0, streams[lane]>>>(da[lane], db, dc[lane], lane);
            CHECK_LAUNCH();
            rescale<<<N * N / 256, 256, 0, streams[lane]>>>(dc[lane], da[lane]);
            CHECK_LAUNCH();
            windows[lane].round_done(streams[lane]);
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());

    program::Report report;
    unsigned int tiles[LANES];
    CHECK(cudaMemcpyFromSymbol(tiles, tiles_done, sizeof tiles));
    // The host repeats at most this many steps: it has to stay quick in long runs too.
    const bool repeat = options.steps <= 64;
    for (int lane = 0; lane < LANES; lane++) {
        for (long step = 0; repeat && step < options.steps; step++) {
            multiply_on_host(a[lane], b, c[lane]);
            for (int i = 0; i < N * N; i++) a[lane][i] = fmaf(c[lane][i], 0.0625f, static_cast<float>(i % 7) - 3.0f);
        }
        std::string name = std::to_string(lane);
        if (repeat) {
            report.expect_device(("a" + name).c_str(), da[lane], a[lane].data(), BYTES);
            report.expect_device(("c" + name).c_str(), dc[lane], c[lane].data(), BYTES);
        } else {
            // One step back is enough to catch a torn result: a follows from c.
            std::vector<float> last(N * N);
            CHECK(cudaMemcpy(last.data(), dc[lane], BYTES, cudaMemcpyDeviceToHost));
            for (int i = 0; i < N * N; i++) last[i] = fmaf(last[i], 0.0625f, static_cast<float>(i % 7) - 3.0f);
            report.expect_device(("a" + name).c_str(), da[lane], last.data(), BYTES);
        }
        uint64_t want = static_cast<uint64_t>(options.steps) * (N / TILE) * (N / TILE);
        report.expect_value("tiles_done", tiles[lane], static_cast<unsigned int>(want));
        report.allocation(("a" + name).c_str(), da[lane], BYTES);
        report.allocation(("c" + name).c_str(), dc[lane], BYTES);
    }
    report.expect_device("b", db, b.data(), BYTES);
    report.allocation("b", db, BYTES);
    report.global("tiles_done", tiles_done);

    for (int lane = 0; lane < LANES; lane++) {
        windows[lane].destroy();
        CHECK(cudaStreamDestroy(streams[lane]));
        CHECK(cudaFree(da[lane]));
        CHECK(cudaFree(dc[lane]));
    }
    CHECK(cudaFree(db));
    return report.finish();
}
