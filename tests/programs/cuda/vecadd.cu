// Vector addition, the smallest program of the set: two streams, an event between them, pinned
// host memory, and one device global that counts the work done.
#include "program.cuh"

constexpr int N = 16384;
constexpr int BLOCK = 128;

__device__ unsigned long long elements_done;
__constant__ float weight;

__global__ void add(const float *a, const float *b, float *c) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    c[i] = __fadd_rn(a[i], b[i]);
}

// Halving keeps the values bounded; `weight` keeps them from settling.
__global__ void feed_back(const float *c, float *a) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    a[i] = __fmaf_rn(c[i], 0.5f, weight);
    if (threadIdx.x == 0) atomicAdd(&elements_done, static_cast<unsigned long long>(BLOCK));
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    std::vector<float> a(N), b(N), c(N);
    for (int i = 0; i < N; i++) {
        a[i] = static_cast<float>(program::mix(i) % 1000) / 8;
        b[i] = static_cast<float>(program::mix(i + N) % 1000) / 16;
    }

    cudaStream_t compute, copy;
    CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking));
    cudaEvent_t summed, copied;
    CHECK(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    float *da, *db, *dc, *snapshot, *pinned;
    CHECK(cudaMalloc(&da, sizeof(float) * N));
    CHECK(cudaMalloc(&db, sizeof(float) * N));
    CHECK(cudaMalloc(&dc, sizeof(float) * N));
    CHECK(cudaMalloc(&snapshot, sizeof(float) * N));
    CHECK(cudaMallocHost(&pinned, sizeof(float) * N));
    const float w = 0.375f;
    CHECK(cudaMemcpyToSymbol(weight, &w, sizeof w));
    CHECK(cudaMemcpyAsync(da, a.data(), sizeof(float) * N, cudaMemcpyHostToDevice, compute));
    CHECK(cudaMemcpyAsync(db, b.data(), sizeof(float) * N, cudaMemcpyHostToDevice, compute));
    CHECK(cudaMemsetAsync(dc, 0, sizeof(float) * N, compute));
    CHECK(cudaMemsetAsync(snapshot, 0, sizeof(float) * N, copy));
    std::memset(pinned, 0, sizeof(float) * N);

    program::Window window;
    CHECK(cudaEventRecord(copied, copy));
    for (long step = 0; step < options.steps; step++) {
        CHECK(cudaStreamWaitEvent(compute, copied, 0));
        add<<<N / BLOCK, BLOCK, 0, compute>>>(da, db, dc);
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(summed, compute));
        feed_back<<<N / BLOCK, BLOCK, 0, compute>>>(dc, da);
        CHECK_LAUNCH();
        CHECK(cudaStreamWaitEvent(copy, summed, 0));
        CHECK(cudaMemcpyAsync(snapshot, dc, sizeof(float) * N, cudaMemcpyDeviceToDevice, copy));
        CHECK(cudaMemcpyAsync(pinned, dc, sizeof(float) * N, cudaMemcpyDeviceToHost, copy));
        CHECK(cudaEventRecord(copied, copy));
        window.round_done(copy);
        options.pace();
    }
    CHECK(cudaStreamSynchronize(compute));
    CHECK(cudaStreamSynchronize(copy));

    for (long step = 0; step < options.steps; step++) {
        for (int i = 0; i < N; i++) {
            c[i] = a[i] + b[i];
            a[i] = c[i] * 0.5f + w; // exact: halving loses nothing here, so one rounding as in fma
        }
    }
    if (options.steps == 0) std::fill(c.begin(), c.end(), 0.0f);
    program::Report report;
    report.expect_device("a", da, a.data(), sizeof(float) * N);
    report.expect_device("b", db, b.data(), sizeof(float) * N);
    report.expect_device("c", dc, c.data(), sizeof(float) * N);
    report.expect_device("snapshot", snapshot, c.data(), sizeof(float) * N);
    report.expect("pinned", pinned, c.data(), sizeof(float) * N);
    unsigned long long done = 0;
    CHECK(cudaMemcpyFromSymbol(&done, elements_done, sizeof done));
    report.expect_value("elements_done", done, static_cast<uint64_t>(options.steps) * N);
    report.allocation("a", da, sizeof(float) * N);
    report.allocation("b", db, sizeof(float) * N);
    report.allocation("c", dc, sizeof(float) * N);
    report.allocation("snapshot", snapshot, sizeof(float) * N);
    report.line("pinned", "pinned", pinned, sizeof(float) * N);
    report.global("elements_done", elements_done);
    report.global("weight", weight);

    window.destroy();
    CHECK(cudaEventDestroy(summed));
    CHECK(cudaEventDestroy(copied));
    CHECK(cudaStreamDestroy(compute));
    CHECK(cudaStreamDestroy(copy));
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
    CHECK(cudaFree(snapshot));
    CHECK(cudaFreeHost(pinned));
    return report.finish();
}
