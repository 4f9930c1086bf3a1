// Many small blocks of pinned and managed memory come and go. Kernels read and write them by their addresses, copies are made from and to
// them, and the host checks what it finds.
#include "app.cuh"

struct Block {
    uint64_t *at = nullptr;
    unsigned words = 0;
    uint64_t seed = 0;
    bool managed = false;
};

// Adds salt to each word of a block, and its old words to a total.
__global__ void bump(uint64_t *block, unsigned words, uint64_t salt, unsigned long long *total) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words) return;
    atomicAdd(total, static_cast<unsigned long long>(block[i]));
    block[i] += salt;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int rounds = app.pick(60, 100), slots = app.pick(120, 700);
    std::vector<Block> blocks(slots);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned long long *total = app::device_array<unsigned long long>(1), want = 0;
    CHECK(cudaMemset(total, 0, sizeof *total));
    uint64_t *staging = app::device_array<uint64_t>(12 << 10);
    CHECK(cudaDeviceSynchronize());

    uint64_t random = 1;
    auto next = [&](uint64_t below) { return (random = app::mix(random)) % below; };
    auto expected = [](const Block &b, unsigned i) { return app::mix(b.seed + i); };
    for (int round = 0; round < rounds; round++) {
        // Some go, in any order; more come. At times nearly all go.
        const bool sweep = round % 17 == 16;
        for (Block &b : blocks) {
            if (b.at == nullptr || next(sweep ? 16 : 3) == (sweep ? 3 : 0) || !(sweep || next(2))) continue;
            for (unsigned i = 0; i < b.words; i++) app.expect(b.at[i] == expected(b, i), "a block before it goes");
            CHECK(b.managed ? cudaFree(b.at) : cudaFreeHost(b.at));
            b.at = nullptr;
        }
        for (Block &b : blocks) {
            if (b.at != nullptr || next(4) == 0) continue;
            b.words = 1 + static_cast<unsigned>(next(next(8) == 0 ? 12 << 10 : 1200));
            b.managed = next(3) == 0;
            b.seed = next(~0ull);
            if (b.managed) CHECK(cudaMallocManaged(&b.at, b.words * 8ull));
            else CHECK(cudaMallocHost(&b.at, b.words * 8ull));
            for (unsigned i = 0; i < b.words; i++) b.at[i] = expected(b, i);
        }
        // A kernel changes some of them where they lie, and a copy and a kernel on the device others.
        std::vector<std::pair<Block *, uint64_t>> changed;
        for (int k = 0; k < 12; k++) {
            Block &b = blocks[next(slots)];
            if (b.at == nullptr || std::any_of(changed.begin(), changed.end(), [&](auto &c) { return c.first == &b; })) continue;
            const uint64_t salt = next(~0ull);
            changed.push_back({&b, salt});
            const unsigned grid = app::blocks(b.words, 128);
            for (unsigned i = 0; i < b.words; i++) want += expected(b, i);
            if (next(2) == 0) {
                bump<<<grid, 128, 0, stream>>>(b.at, b.words, salt, total);
            } else {
                CHECK(cudaMemcpyAsync(staging, b.at, b.words * 8ull, cudaMemcpyDefault, stream));
                bump<<<grid, 128, 0, stream>>>(staging, b.words, salt, total);
                CHECK(cudaMemcpyAsync(b.at, staging, b.words * 8ull, cudaMemcpyDefault, stream));
            }
            CHECK_LAUNCH();
        }
        CHECK(cudaStreamSynchronize(stream));
        for (auto &[b, salt] : changed) {
            for (unsigned i = 0; i < b->words; i++) app.expect(b->at[i] == expected(*b, i) + salt, "a block after a kernel");
            for (unsigned i = 0; i < b->words; i++) b->at[i] = expected(*b, i);
        }
        app.step();
    }
    for (Block &b : blocks) {
        if (b.at == nullptr) continue;
        app.host(b.at, b.words * 8ull);
        CHECK(b.managed ? cudaFree(b.at) : cudaFreeHost(b.at));
    }
    unsigned long long got;
    CHECK(cudaMemcpy(&got, total, sizeof got, cudaMemcpyDeviceToHost));
    app.expect(got == want, "the total of all words that kernels have read");
    app.host(&got, sizeof got);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(staging));
    CHECK(cudaFree(total));
    return app.finish();
}
