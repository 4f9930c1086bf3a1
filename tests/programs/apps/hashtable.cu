// A hash table that all threads build at once by compare-and-swap, counting how often each key comes; then look-ups. Which slot a key gets
// depends on who is first, so the digest is of the entries in whatever order.
#include "app.cuh"

constexpr unsigned long long EMPTY = ~0ull;

__device__ inline unsigned key_of(unsigned long long i, unsigned keys) { return static_cast<unsigned>(app::mix(i) % keys); }

__global__ void insert(unsigned long long *slots, unsigned *counts, unsigned mask, unsigned long long from, unsigned count, unsigned keys) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned long long key = key_of(from + i, keys);
    unsigned at = static_cast<unsigned>(app::mix(key + 1)) & mask;
    while (true) {
        unsigned long long seen = atomicCAS(&slots[at], EMPTY, key);
        if (seen == EMPTY || seen == key) break;
        at = (at + 1) & mask;
    }
    atomicAdd(&counts[at], 1u);
}

// How often a key was inserted, for each of them.
__global__ void look_up(const unsigned long long *slots, const unsigned *counts, unsigned mask, unsigned *out, unsigned keys) {
    unsigned key = blockIdx.x * blockDim.x + threadIdx.x;
    if (key >= keys) return;
    unsigned at = static_cast<unsigned>(app::mix(key + 1ull)) & mask;
    while (slots[at] != EMPTY && slots[at] != key) at = (at + 1) & mask;
    out[key] = slots[at] == key ? counts[at] : 0;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const unsigned slots_count = app.pick(1u << 12, 1u << 25), keys = slots_count / 2, batch = app.pick(512u, 8u << 20);
    const int batches = app.pick(15, 10), rounds = app.pick(2, 16);
    unsigned long long *slots = app::device_array<unsigned long long>(slots_count);
    unsigned *counts = app::device_array<unsigned>(slots_count), *out = app::device_array<unsigned>(keys);
    std::vector<unsigned> want(keys), got(keys);
    // The same table again and again.
    for (int round = 0; round < rounds; round++) {
        CHECK(cudaMemset(slots, 0xff, slots_count * 8ull));
        CHECK(cudaMemset(counts, 0, slots_count * 4ull));
        for (int b = 0; b < batches; b++) {
            insert<<<app::blocks(batch, 256), 256>>>(slots, counts, slots_count - 1, uint64_t(b) * batch, batch, keys);
            CHECK_LAUNCH();
            if (b % 8 == 7) CHECK(cudaDeviceSynchronize());
            app.step();
        }
    }
    // The host counts a part of the keys only.
    const unsigned watched = app.pick(1, 64);
    for (uint64_t i = 0; i < uint64_t(batches) * batch; i++) {
        unsigned key = static_cast<unsigned>(app::mix(i) % keys);
        if (key % watched == 0) want[key]++;
    }
    look_up<<<app::blocks(keys, 256), 256>>>(slots, counts, slots_count - 1, out, keys);
    CHECK_LAUNCH();
    CHECK(cudaMemcpy(got.data(), out, keys * 4ull, cudaMemcpyDeviceToHost));
    for (unsigned key = 0; key < keys; key += watched) app.expect(got[key] == want[key], "how often a key came");
    std::vector<uint64_t> table(slots_count);
    std::vector<unsigned> table_counts(slots_count);
    CHECK(cudaMemcpy(table.data(), slots, slots_count * 8ull, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(table_counts.data(), counts, slots_count * 4ull, cudaMemcpyDeviceToHost));
    uint64_t sums[3] = {};
    for (unsigned i = 0; i < slots_count; i++) {
        sums[0] += app::mix(table[i] ^ app::mix(table_counts[i]));
        sums[1] += table[i] != EMPTY;
        sums[2] += table_counts[i];
    }
    app.expect(sums[2] == uint64_t(batches) * batch, "all keys are in the table");
    app.host(sums, sizeof sums);
    app.host(got.data(), keys * 4ull);
    CHECK(cudaFree(slots));
    CHECK(cudaFree(counts));
    CHECK(cudaFree(out));
    return app.finish();
}
