// Two GPUs that work side by side and exchange through the host: each runs a chain of its own, every few rounds each gets what the
// other one has just computed. With one GPU both chains run on it; the result is the same.
#include "program.cuh"

constexpr int N = 8192;
constexpr int BLOCK = 128;
constexpr int GPUS = 2;
constexpr long EXCHANGE = 8;

__device__ unsigned long long rounds_done;
__constant__ uint32_t salt;

__device__ __host__ inline uint32_t step_of(uint32_t x, uint32_t neighbour, uint32_t salt, uint32_t step) {
    return x * 1664525u + (neighbour ^ salt) + step;
}

__global__ void advance(const uint32_t *from, uint32_t *to, uint32_t step) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    to[i] = step_of(from[i], from[(i + 1) % N], salt, step);
    if (i == 0) atomicAdd(&rounds_done, 1ull);
}

__global__ void blend(uint32_t *own, const uint32_t *other) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    own[i] ^= other[i] >> 3;
}

struct Gpu {
    int device;
    cudaStream_t stream;
    cudaEvent_t sent;
    uint32_t *a, *b, *inbox, *out;
    program::Window *window;
};

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    int there = 0;
    CHECK(cudaGetDeviceCount(&there));
    Gpu gpus[GPUS];
    std::vector<uint32_t> host[GPUS];
    const uint32_t salts[GPUS] = {0x9E3779B9u, 0x9E3779B9u};
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        gpu.device = g % there;
        CHECK(cudaSetDevice(gpu.device));
        CHECK(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&gpu.sent, cudaEventDisableTiming));
        gpu.window = new program::Window();
        for (uint32_t **p : {&gpu.a, &gpu.b, &gpu.inbox}) CHECK(cudaMalloc(p, sizeof(uint32_t) * N));
        CHECK(cudaMallocHost(&gpu.out, sizeof(uint32_t) * N));
        host[g].resize(N);
        for (int i = 0; i < N; i++) host[g][i] = static_cast<uint32_t>(program::mix(i + g * N));
        CHECK(cudaMemcpyToSymbol(salt, &salts[g], sizeof salts[g]));
        CHECK(cudaMemcpyAsync(gpu.a, host[g].data(), sizeof(uint32_t) * N, cudaMemcpyHostToDevice, gpu.stream));
        CHECK(cudaMemsetAsync(gpu.b, 0, sizeof(uint32_t) * N, gpu.stream));
    }
    for (long step = 0; step < options.steps; step++) {
        for (Gpu &gpu : gpus) {
            CHECK(cudaSetDevice(gpu.device));
            advance<<<N / BLOCK, BLOCK, 0, gpu.stream>>>(gpu.a, gpu.b, static_cast<uint32_t>(step));
            CHECK_LAUNCH();
            std::swap(gpu.a, gpu.b);
            if (step % EXCHANGE == EXCHANGE - 1) {
                CHECK(cudaMemcpyAsync(gpu.out, gpu.a, sizeof(uint32_t) * N, cudaMemcpyDeviceToHost, gpu.stream));
                CHECK(cudaEventRecord(gpu.sent, gpu.stream));
            }
            gpu.window->round_done(gpu.stream);
        }
        if (step % EXCHANGE == EXCHANGE - 1) {
            for (Gpu &gpu : gpus) CHECK(cudaEventSynchronize(gpu.sent));
            for (int g = 0; g < GPUS; g++) {
                Gpu &gpu = gpus[g];
                CHECK(cudaSetDevice(gpu.device));
                CHECK(cudaMemcpyAsync(gpu.inbox, gpus[1 - g].out, sizeof(uint32_t) * N, cudaMemcpyHostToDevice, gpu.stream));
                blend<<<N / BLOCK, BLOCK, 0, gpu.stream>>>(gpu.a, gpu.inbox);
                CHECK_LAUNCH();
            }
            // What was sent must have been read before the next exchange writes there.
            for (Gpu &gpu : gpus) {
                CHECK(cudaSetDevice(gpu.device));
                CHECK(cudaStreamSynchronize(gpu.stream));
            }
        }
        options.pace();
    }

    std::vector<uint32_t> next(N), before[GPUS], out[GPUS];
    for (auto &b : before) b.resize(N);
    for (long step = 0; step < options.steps; step++) {
        for (int g = 0; g < GPUS; g++) {
            for (int i = 0; i < N; i++) {
                next[i] = step_of(host[g][i], host[g][(i + 1) % N], salts[g], static_cast<uint32_t>(step));
            }
            before[g] = host[g];
            host[g] = next;
        }
        if (step % EXCHANGE == EXCHANGE - 1) {
            for (int g = 0; g < GPUS; g++) out[g] = host[g];
            for (int g = 0; g < GPUS; g++) {
                for (int i = 0; i < N; i++) host[g][i] ^= out[1 - g][i] >> 3;
            }
        }
    }
    for (Gpu &gpu : gpus) {
        CHECK(cudaSetDevice(gpu.device));
        CHECK(cudaStreamSynchronize(gpu.stream));
    }
    program::Report report;
    uint64_t rounds = 0;
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        CHECK(cudaSetDevice(gpu.device));
        report.expect_device(g == 0 ? "first" : "second", gpu.a, host[g].data(), sizeof(uint32_t) * N);
        report.allocation(g == 0 ? "first" : "second", gpu.a, sizeof(uint32_t) * N);
        report.expect_device("before", gpu.b, before[g].data(), sizeof(uint32_t) * N);
        if (!out[g].empty()) {
            report.expect("sent", gpu.out, out[g].data(), sizeof(uint32_t) * N);
            report.expect_device("received", gpu.inbox, out[1 - g].data(), sizeof(uint32_t) * N);
        }
        uint32_t salted = 0;
        CHECK(cudaMemcpyFromSymbol(&salted, salt, sizeof salted));
        report.expect_value("salt", salted, salts[g]);
        unsigned long long done = 0;
        CHECK(cudaMemcpyFromSymbol(&done, rounds_done, sizeof done));
        // With one GPU both chains count in the same place.
        if (g < there) rounds += done;
    }
    report.expect_value("rounds_done", rounds, static_cast<uint64_t>(options.steps) * GPUS);
    for (Gpu &gpu : gpus) {
        CHECK(cudaSetDevice(gpu.device));
        gpu.window->destroy();
        delete gpu.window;
        CHECK(cudaEventDestroy(gpu.sent));
        CHECK(cudaStreamDestroy(gpu.stream));
        for (uint32_t *p : {gpu.a, gpu.b, gpu.inbox}) CHECK(cudaFree(p));
        CHECK(cudaFreeHost(gpu.out));
    }
    return report.finish();
}
