// Reductions with warp shuffles and votes, and all kinds of atomics: integers, floating point, compare-and-swap, 64 bits, in
// shared and global memory, of every scope. Sums of floating point are of values that add up exactly, so their order is free.
#include "program.cuh"

#include <algorithm>

constexpr int BLOCKS = 6;
constexpr int THREADS = 160;
constexpr unsigned ALL = 0xffffffffu;

struct Totals {
    unsigned long long sum, product_or, bits_xor, min64, swaps64;
    long long max64;
    int sum32, min32, max32;
    unsigned umin, umax, all_and, any_or, flips, wrapped, down, swaps, exchanged;
    float fsum, block_fsum;
    double dsum;
    unsigned votes, matches, scans;
};

__device__ Totals totals;
__device__ unsigned spin_lock;
__device__ unsigned long long guarded;

__device__ inline uint64_t value_of(long round, int i) { return program::mix(round * 100003 + i); }

// The largest value of a warp, by a butterfly.
__device__ int warp_max(int v) {
    for (int d = 16; d > 0; d /= 2) v = max(v, __shfl_xor_sync(ALL, v, d));
    return v;
}

__device__ unsigned long long warp_sum(unsigned long long v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(ALL, v, d);
    return __shfl_sync(ALL, v, 0);
}

// Maximum of floats by compare-and-swap of their bits.
__device__ void swap_max(unsigned *to, float v) {
    unsigned old = *to;
    while (__uint_as_float(old) < v) {
        unsigned seen = atomicCAS(to, old, __float_as_uint(v));
        if (seen == old) break;
        old = seen;
    }
}

__global__ void reduce(long round) {
    __shared__ int low, high;
    __shared__ unsigned histogram[16];
    __shared__ unsigned long long sum;
    __shared__ float fsum;
    int t = threadIdx.x, i = blockIdx.x * THREADS + t, lane = t % 32;
    if (t == 0) low = INT32_MAX, high = INT32_MIN, sum = 0, fsum = 0.0f;
    if (t < 16) histogram[t] = 0;
    __syncthreads();

    uint64_t v = value_of(round, i);
    int small = static_cast<int>(v % 20001) - 10000;
    unsigned long long whole = warp_sum(v >> 20);
    int most = warp_max(small);
    // An inclusive scan, checked by its last lane.
    int scan = small;
    for (int d = 1; d < 32; d *= 2) {
        int left = __shfl_up_sync(ALL, scan, d);
        if (lane >= d) scan += left;
    }
    if (lane == 0) {
        atomicAdd_block(&sum, whole);
        atomicMax_block(&high, most);
    }
    atomicMin(&low, small);
    atomicAdd(&histogram[v % 16], 1u);
    atomicAdd_block(&fsum, static_cast<float>(small % 64) * 0.25f);
    __syncthreads();

    if (lane == 31) atomicAdd(reinterpret_cast<int *>(&totals.scans), scan);
    unsigned odd = __ballot_sync(ALL, small & 1);
    int any = __any_sync(ALL, small & 1);
    if (lane == 0) atomicAdd(&totals.votes, any ? __popc(odd) : 0);
    if (__all_sync(ALL, small > -20000) && lane == 0) atomicAdd(&totals.matches, 1u);
    if (t == 0) {
        atomicAdd(&totals.sum, sum);
        atomicMin(&totals.min32, low);
        atomicMax_system(&totals.max32, high);
        atomicAdd(&totals.block_fsum, fsum);
    }
    if (t < 16) atomicAdd_system(&totals.exchanged, histogram[t] * (t + 1));
    atomicAdd(&totals.sum32, small);
    atomicMin(&totals.umin, static_cast<unsigned>(v));
    atomicMax(&totals.umax, static_cast<unsigned>(v));
    atomicMin(&totals.min64, static_cast<unsigned long long>(v));
    atomicMax(&totals.max64, static_cast<long long>(v));
    atomicAnd(&totals.all_and, static_cast<unsigned>(v) | 0xf0f0u);
    atomicOr(&totals.any_or, static_cast<unsigned>(v) & 0x0ff00ff0u);
    atomicXor(&totals.flips, static_cast<unsigned>(v));
    atomicOr(&totals.product_or, static_cast<unsigned long long>(v) & 0xff00ff00ff00ull);
    atomicXor_system(&totals.bits_xor, static_cast<unsigned long long>(v));
    atomicInc(&totals.wrapped, 1000u);
    atomicDec(&totals.down, 777u);
    atomicAdd(&totals.fsum, static_cast<float>(small % 64) * 0.5f);
    atomicAdd(&totals.dsum, small * 0.125);
    swap_max(&totals.swaps, static_cast<float>(v % 1000000));
    unsigned long long old = totals.swaps64, seen;
    do {
        seen = old;
        old = atomicCAS(&totals.swaps64, seen, seen + (v & 1023));
    } while (old != seen);
    // A lock of one word, by exchange; one thread of each block.
    if (t == 0) {
        while (atomicExch(&spin_lock, 1u) != 0) {}
        __threadfence();
        guarded += value_of(round, blockIdx.x) % 1009;
        __threadfence();
        atomicExch(&spin_lock, 0u);
    }
}

// What the host works out by itself.
static void expect(Totals &h, unsigned long long &guard, long round) {
    auto value = [&](int i) { return program::mix(round * 100003 + i); };
    auto bits = [](float f) { unsigned u; std::memcpy(&u, &f, 4); return u; };
    auto number = [](unsigned u) { float f; std::memcpy(&f, &u, 4); return f; };
    for (int i = 0; i < BLOCKS * THREADS; i++) {
        uint64_t v = value(i);
        int small = static_cast<int>(v % 20001) - 10000;
        unsigned low = static_cast<unsigned>(v);
        h.sum += v >> 20;
        h.sum32 += small;
        h.min32 = std::min(h.min32, small);
        h.max32 = std::max(h.max32, small);
        h.umin = std::min(h.umin, low);
        h.umax = std::max(h.umax, low);
        h.min64 = std::min<unsigned long long>(h.min64, v);
        h.max64 = std::max<long long>(h.max64, static_cast<long long>(v));
        h.all_and &= low | 0xf0f0u;
        h.any_or |= low & 0x0ff00ff0u;
        h.flips ^= low;
        h.product_or |= v & 0xff00ff00ff00ull;
        h.bits_xor ^= v;
        h.wrapped = h.wrapped >= 1000 ? 0 : h.wrapped + 1;
        h.down = h.down == 0 || h.down > 777 ? 777 : h.down - 1;
        h.fsum += (small % 64) * 0.5f;
        h.block_fsum += (small % 64) * 0.25f;
        h.dsum += small * 0.125;
        if (number(h.swaps) < static_cast<float>(v % 1000000)) h.swaps = bits(static_cast<float>(v % 1000000));
        h.swaps64 += v & 1023;
        h.votes += small & 1;
        h.scans += small;
        h.exchanged += v % 16 + 1;
    }
    h.matches += BLOCKS * THREADS / 32;
    for (int b = 0; b < BLOCKS; b++) guard += value(b) % 1009;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    Totals start{}, host{};
    start.min64 = ~0ull;
    start.max64 = INT64_MIN;
    start.min32 = INT32_MAX;
    start.max32 = INT32_MIN;
    start.umin = start.all_and = ~0u;
    host = start;
    unsigned long long guard = 0, device_guard;
    CHECK(cudaMemcpyToSymbol(totals, &start, sizeof start));
    cudaStream_t streams[2];
    for (cudaStream_t &s : streams) CHECK(cudaStreamCreate(&s));
    program::Window windows[2];
    for (long round = 0; round < options.steps; round++) {
        // Two streams add to the same totals at the same time.
        int s = static_cast<int>(round & 1);
        reduce<<<BLOCKS, THREADS, 0, streams[s]>>>(round);
        CHECK_LAUNCH();
        windows[s].round_done(streams[s]);
        expect(host, guard, round);
        // Sums of floating point stay small enough to be exact.
        if (round % 16 == 15) {
            CHECK(cudaDeviceSynchronize());
            Totals now;
            CHECK(cudaMemcpyFromSymbol(&now, totals, sizeof now));
            if (std::memcmp(&now, &host, sizeof now) != 0) std::fprintf(stderr, "differs in round %ld\n", round);
            host.fsum = host.block_fsum = 0.0f;
            now.fsum = now.block_fsum = 0.0f;
            CHECK(cudaMemcpyToSymbol(totals, &now, sizeof now));
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    program::Report report;
    Totals got;
    CHECK(cudaMemcpyFromSymbol(&got, totals, sizeof got));
    CHECK(cudaMemcpyFromSymbol(&device_guard, guarded, sizeof device_guard));
    report.expect("totals", &got, &host, sizeof got);
    report.expect_value("guarded", device_guard, guard);
    report.global("totals", totals);
    report.global("guarded", guarded);
    for (int s = 0; s < 2; s++) {
        windows[s].destroy();
        CHECK(cudaStreamDestroy(streams[s]));
    }
    return report.finish();
}
