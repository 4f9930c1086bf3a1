// Radix sort of keys with values, four bits at a time: counts of each block, their prefix sums, then each to its place.
#include "app.cuh"

constexpr int THREADS = 128;
constexpr int EACH = 8; // keys of a thread, one after the other
constexpr int TILE = THREADS * EACH;
constexpr int DIGITS = 16;

__device__ int digit(unsigned key, int shift) { return key >> shift & (DIGITS - 1); }

// counts[digit][block]
__global__ void count(const unsigned *keys, unsigned *counts, int n, int shift) {
    __shared__ unsigned own[DIGITS];
    if (threadIdx.x < DIGITS) own[threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < EACH; k++) {
        int i = blockIdx.x * TILE + k * THREADS + threadIdx.x;
        if (i < n) atomicAdd(&own[digit(keys[i], shift)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < DIGITS) counts[threadIdx.x * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

// Exclusive prefix sums by one block, a stretch for each thread.
__global__ void scan(unsigned *counts, int n) {
    __shared__ unsigned sums[256];
    int each = (n + 255) / 256, from = min(n, static_cast<int>(threadIdx.x) * each), to = min(n, from + each);
    unsigned sum = 0;
    for (int i = from; i < to; i++) sum += counts[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned before = 0;
        for (int t = 0; t < 256; t++) {
            unsigned own = sums[t];
            sums[t] = before;
            before += own;
        }
    }
    __syncthreads();
    sum = sums[threadIdx.x];
    for (int i = from; i < to; i++) {
        unsigned own = counts[i];
        counts[i] = sum;
        sum += own;
    }
}

// Keys of one digit keep their order: each thread has keys that follow each other, and counts come before it in [digit][thread].
__global__ void scatter(const unsigned *keys, const unsigned *values, unsigned *to_keys, unsigned *to_values, const unsigned *counts, int n,
                        int shift) {
    __shared__ unsigned short before[DIGITS][THREADS + 1];
    const int first = blockIdx.x * TILE + threadIdx.x * EACH;
    for (int d = 0; d < DIGITS; d++) before[d][threadIdx.x] = 0;
    for (int k = 0; k < EACH; k++)
        if (first + k < n) before[digit(keys[first + k], shift)][threadIdx.x]++;
    __syncthreads();
    if (threadIdx.x < DIGITS) {
        unsigned short sum = 0;
        for (int t = 0; t < THREADS; t++) {
            unsigned short own = before[threadIdx.x][t];
            before[threadIdx.x][t] = sum;
            sum += own;
        }
    }
    __syncthreads();
    for (int k = 0; k < EACH && first + k < n; k++) {
        unsigned key = keys[first + k];
        int d = digit(key, shift);
        unsigned at = counts[d * gridDim.x + blockIdx.x] + before[d][threadIdx.x]++;
        to_keys[at] = key;
        to_values[at] = values[first + k];
    }
}

__global__ void scramble(unsigned *keys, int n, unsigned round) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) keys[i] = static_cast<unsigned>(app::mix(keys[i] + (static_cast<uint64_t>(round) << 32)));
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int n = app.pick(9000, 24000000), rounds = app.pick(4, 20);
    std::vector<unsigned> keys(n), values(n);
    for (int i = 0; i < n; i++) keys[i] = static_cast<unsigned>(app::mix(i)), values[i] = i;
    unsigned *device_keys[2] = {app::device_copy(keys), app::device_array<unsigned>(n)};
    unsigned *device_values[2] = {app::device_copy(values), app::device_array<unsigned>(n)};
    const unsigned grid = app::blocks(n, TILE);
    unsigned *counts = app::device_array<unsigned>(DIGITS * grid);
    for (int round = 0; round < rounds; round++) {
        if (round > 0) scramble<<<app::blocks(n, 256), 256>>>(device_keys[0], n, round);
        CHECK_LAUNCH();
        for (int shift = 0; shift < 32; shift += 4) {
            count<<<grid, THREADS>>>(device_keys[0], counts, n, shift);
            scan<<<1, 256>>>(counts, DIGITS * grid);
            scatter<<<grid, THREADS>>>(device_keys[0], device_values[0], device_keys[1], device_values[1], counts, n, shift);
            CHECK_LAUNCH();
            std::swap(device_keys[0], device_keys[1]);
            std::swap(device_values[0], device_values[1]);
            app.step();
        }
        CHECK(cudaDeviceSynchronize());
    }
    std::vector<unsigned> sorted(n), carried(n);
    CHECK(cudaMemcpy(sorted.data(), device_keys[0], n * 4ull, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(carried.data(), device_values[0], n * 4ull, cudaMemcpyDeviceToHost));
    app.expect(std::is_sorted(sorted.begin(), sorted.end()), "the keys are in order");
    std::vector<bool> seen(n);
    bool right = true;
    for (int i = 0; i < n; i++) {
        // A value tells which key came with it.
        unsigned key = static_cast<unsigned>(app::mix(carried[i] % n));
        for (int round = 1; round < rounds; round++) key = static_cast<unsigned>(app::mix(key + (static_cast<uint64_t>(round) << 32)));
        right = right && carried[i] < unsigned(n) && key == sorted[i] && !seen[carried[i]];
        seen[carried[i] % n] = true;
    }
    app.expect(right, "each key has its value");
    app.host(sorted.data(), n * 4ull);
    app.host(carried.data(), n * 4ull);
    app.device(device_keys[1], n * 4ull);
    app.device(device_values[1], n * 4ull);
    app.device(counts, DIGITS * grid * 4ull);
    for (unsigned *p : {device_keys[0], device_keys[1], device_values[0], device_values[1], counts}) CHECK(cudaFree(p));
    return app.finish();
}
