// Allocations come and go: cudaMalloc and cudaFree of many sizes with waits in between, and the same in stream order from a pool.
#include "app.cuh"

constexpr unsigned SAMPLES = 256;

// Writes words all over a block.
__global__ void fill(uint64_t *block, size_t stride, uint64_t seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < SAMPLES) block[i * stride] = app::mix(seed + i);
}

// Adds what was written to a total.
__global__ void collect(const uint64_t *block, size_t stride, unsigned long long *total) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < SAMPLES) atomicAdd(total, static_cast<unsigned long long>(block[i * stride]));
}

struct Block {
    uint64_t *at = nullptr;
    size_t size = 0;
    uint64_t seed = 0;
    cudaStream_t stream = nullptr; // of its pool; none: cudaMalloc

    size_t stride() const { return size / 8 / SAMPLES; }
};

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int operations = app.pick(500, 20000), slots = app.pick(48, 200), doublings = app.pick(7, 14);
    std::vector<Block> blocks(slots);
    cudaStream_t streams[3];
    for (cudaStream_t &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    unsigned long long *total = app::device_array<unsigned long long>(1), want = 0;
    CHECK(cudaMemset(total, 0, sizeof *total));
    CHECK(cudaDeviceSynchronize());

    for (int i = 0; i < operations; i++) {
        uint64_t random = app::mix(i);
        Block &block = blocks[random % slots];
        if (block.at != nullptr) {
            collect<<<1, SAMPLES, 0, block.stream>>>(block.at, block.stride(), total);
            CHECK_LAUNCH();
            for (unsigned k = 0; k < SAMPLES; k++) want += app::mix(block.seed + k);
            // cudaFree waits for the device, cudaFreeAsync for nothing.
            if (block.stream != nullptr) CHECK(cudaFreeAsync(block.at, block.stream));
            else CHECK(cudaFree(block.at));
        }
        // 4 KiB, doubled, and three quarters of that.
        block.size = (size_t(4096) << (random >> 8) % doublings) * (random >> 16 & 1 ? 4 : 3) / 4;
        block.seed = random;
        block.stream = (random >> 20) % 4 < 3 ? nullptr : streams[(random >> 24) % 3];
        if (block.stream != nullptr) CHECK(cudaMallocAsync(&block.at, block.size, block.stream));
        else CHECK(cudaMalloc(&block.at, block.size));
        CHECK(cudaMemsetAsync(block.at, static_cast<int>(random & 0xff), block.size, block.stream));
        fill<<<1, SAMPLES, 0, block.stream>>>(block.at, block.stride(), block.seed);
        CHECK_LAUNCH();
        if (i % 8 == 7) CHECK(cudaDeviceSynchronize());
        if (i % 8 == 7) app.step();
    }
    CHECK(cudaDeviceSynchronize());
    unsigned long long got;
    CHECK(cudaMemcpy(&got, total, sizeof got, cudaMemcpyDeviceToHost));
    for (Block &block : blocks) {
        if (block.at == nullptr) continue;
        app.device(block.at, block.size);
        if (block.stream != nullptr) CHECK(cudaFreeAsync(block.at, block.stream));
        else CHECK(cudaFree(block.at));
    }
    app.expect(got == want, "the total of all blocks that were freed");
    app.host(&got, sizeof got);
    for (cudaStream_t s : streams) CHECK(cudaStreamDestroy(s));
    CHECK(cudaFree(total));
    return app.finish();
}
