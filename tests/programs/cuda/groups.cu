// Threads that cooperate: a whole grid that waits for itself, parts of warps, barriers in two halves, copies that go on while the
// block works.
#include "program.cuh"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/pipeline>

#include <algorithm>

namespace cg = cooperative_groups;

constexpr int N = 2048;
constexpr int BLOCK = 128;
constexpr int PHASES = 4;
constexpr int LABELS = 5;
constexpr size_t BYTES = N * sizeof(uint64_t);

__device__ unsigned backwards;

// Several phases in one launch: each reads what all blocks wrote in the one before. Every grid computes the same.
__global__ void phases(uint64_t *a, uint64_t *b) {
    cg::grid_group grid = cg::this_grid();
    long long before = clock64();
    for (int phase = 0; phase < PHASES; phase++) {
        for (unsigned i = grid.thread_rank(); i < N; i += grid.size()) b[i] = program::mix(a[i] + a[(i + 129 * (phase + 1)) % N]);
        grid.sync();
        uint64_t *other = a;
        a = b, b = other;
    }
    if (clock64() < before) atomicAdd(&backwards, 1u);
}

// Sums and sizes of the parts of each warp: by a label, and by a bit.
__global__ void parts(const uint64_t *state, unsigned *sums, unsigned *members) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    unsigned i = blockIdx.x * BLOCK + threadIdx.x, value = static_cast<unsigned>(state[i] & 0xFFFF), label = state[i] % LABELS;
    auto alike = cg::labeled_partition(warp, label);
    unsigned sum = cg::reduce(alike, value, cg::plus<unsigned>());
    if (alike.thread_rank() == 0) {
        atomicAdd(&sums[label], sum);
        atomicAdd(&members[label], static_cast<unsigned>(alike.size()));
    }
    auto half = cg::binary_partition(warp, (value & 1) != 0);
    unsigned largest = cg::reduce(half, value, cg::greater<unsigned>());
    if (half.thread_rank() == half.size() - 1) atomicMax(&sums[LABELS + (value & 1)], largest);
    unsigned mask = __match_any_sync(~0u, label);
    int all = 0;
    __match_all_sync(~0u, blockIdx.x, &all);
#if __CUDA_ARCH__ >= 800
    unsigned whole = __reduce_xor_sync(~0u, value);
#else
    unsigned whole = value;
    for (int offset = 16; offset > 0; offset /= 2) whole ^= __shfl_xor_sync(~0u, whole, offset);
#endif
    if (warp.thread_rank() == 0) atomicXor(&members[LABELS], whole * static_cast<unsigned>(all));
    atomicAdd(&members[LABELS + 1], static_cast<unsigned>(__popc(mask)));
}

// Whoever comes to this line takes a place; who shares one atomic operation with whom is up to the device.
__global__ void choose(const uint64_t *state, uint64_t *chosen, unsigned *count) {
    unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (state[i] % 3 != 0) return;
    cg::coalesced_group here = cg::coalesced_threads();
    unsigned first = 0;
    if (here.thread_rank() == 0) first = atomicAdd(count, static_cast<unsigned>(here.size()));
    chosen[here.shfl(first, 0) + here.thread_rank()] = state[i];
}

// Two tiles under way while one is worked on, and a barrier that is arrived at long before it is waited for.
__global__ void staged(const uint64_t *state, uint64_t *out) {
    constexpr int TILES = 4, STAGES = 2;
    __shared__ uint64_t tiles[STAGES][BLOCK];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> shared;
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ uint64_t left[BLOCK];
    cg::thread_block block = cg::this_thread_block();
    if (threadIdx.x == 0) init(&barrier, BLOCK);
    block.sync();
    auto pipe = cuda::make_pipeline(block, &shared);
    const uint64_t *from = state + blockIdx.x * BLOCK;
    auto tile = [&](int t) { return from + (t * gridDim.x * BLOCK) % N; };
    uint64_t sum = 0;
    for (int ahead = 0, t = 0; t < TILES; t++) {
        for (; ahead < TILES && ahead < t + STAGES; ahead++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tiles[ahead % STAGES], tile(ahead), cuda::aligned_size_t<16>(sizeof tiles[0]), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum = program::mix(sum + tiles[t % STAGES][(threadIdx.x + t) % BLOCK]);
        pipe.consumer_release();
    }
    left[threadIdx.x] = sum;
    auto token = barrier.arrive();
    uint64_t own = program::mix(sum ^ threadIdx.x);
    barrier.wait(std::move(token));
    out[blockIdx.x * BLOCK + threadIdx.x] = own + left[(threadIdx.x + 1) % BLOCK];
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint64_t *a, *b, *out, *chosen;
    unsigned *sums, *members, *count;
    CHECK(cudaMalloc(&a, BYTES));
    CHECK(cudaMalloc(&b, BYTES));
    CHECK(cudaMalloc(&out, BYTES));
    CHECK(cudaMalloc(&chosen, BYTES));
    CHECK(cudaMalloc(&sums, (LABELS + 2) * sizeof(unsigned)));
    CHECK(cudaMalloc(&members, (LABELS + 2) * sizeof(unsigned)));
    CHECK(cudaMalloc(&count, sizeof(unsigned)));
    std::vector<uint64_t> state(N), next(N), want_out(N);
    for (int i = 0; i < N; i++) state[i] = program::mix(i);
    CHECK(cudaMemcpy(a, state.data(), BYTES, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(b, 0, BYTES));
    CHECK(cudaMemset(sums, 0, (LABELS + 2) * sizeof(unsigned)));
    CHECK(cudaMemset(members, 0, (LABELS + 2) * sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());

    // As many blocks as are resident at a time, if that is not more than there is work for.
    int device = 0, processors = 0, together = 0, each = 0, least = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    report.expect_value("cooperative launch", together, 1);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, phases, BLOCK, 0));
    int block = 0;
    CHECK(cudaOccupancyMaxPotentialBlockSize(&least, &block, phases));
    report.expect_value("a block as large as is good", block >= 32 && least >= 1, 1);
    int blocks = std::min(each * processors, N / BLOCK);
    // A grid that is not resident as a whole is refused.
    void *args[] = {&a, &b};
    auto kernel = reinterpret_cast<void *>(phases);
    cudaError_t refused = cudaLaunchCooperativeKernel(kernel, dim3(each * processors + 1), dim3(BLOCK), args, 0, stream);
    report.expect_value("too many blocks", refused, cudaErrorCooperativeLaunchTooLarge);
    cudaGetLastError();

    program::Window window;
    unsigned want_sums[LABELS + 2] = {}, want_members[LABELS + 2] = {}, want_chosen = 0;
    for (long round = 0; round < options.steps; round++) {
        CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(phases), dim3(blocks), dim3(BLOCK), args, 0, stream));
        parts<<<N / BLOCK, BLOCK, 0, stream>>>(a, sums, members);
        CHECK_LAUNCH();
        CHECK(cudaMemsetAsync(count, 0, sizeof(unsigned), stream));
        choose<<<N / BLOCK, BLOCK, 0, stream>>>(a, chosen, count);
        CHECK_LAUNCH();
        staged<<<N / BLOCK, BLOCK, 0, stream>>>(a, out);
        CHECK_LAUNCH();
        window.round_done(stream);
        options.pace();

        for (int phase = 0; phase < PHASES; phase++) {
            for (int i = 0; i < N; i++) next[i] = program::mix(state[i] + state[(i + 129 * (phase + 1)) % N]);
            state.swap(next);
        }
        want_chosen = 0;
        for (int i = 0; i < N; i++) {
            unsigned value = state[i] & 0xFFFF, label = state[i] % LABELS;
            want_sums[label] += value;
            want_sums[LABELS + (value & 1)] = std::max(want_sums[LABELS + (value & 1)], value);
            want_members[label]++;
            want_members[LABELS] ^= value;
            want_chosen += state[i] % 3 == 0;
            for (int other = i / 32 * 32; other < i / 32 * 32 + 32; other++) want_members[LABELS + 1] += state[other] % LABELS == label;
        }
    }
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) {
        auto sum = [&](int thread) {
            uint64_t sum = 0;
            for (int t = 0; t < 4; t++) {
                // All blocks together cover the state once, so each tile is the block's own.
                sum = program::mix(sum + state[i / BLOCK * BLOCK + (thread + t) % BLOCK]);
            }
            return sum;
        };
        int thread = i % BLOCK;
        want_out[i] = program::mix(sum(thread) ^ thread) + sum((thread + 1) % BLOCK);
    }
    report.expect_device("state", a, state.data(), BYTES);
    // What the last phase read.
    if (options.steps > 0) report.expect_device("the phase before", b, next.data(), BYTES);
    report.expect_device("sums", sums, want_sums, sizeof want_sums);
    report.expect_device("members", members, want_members, sizeof want_members);
    if (options.steps > 0) report.expect_device("out", out, want_out.data(), BYTES);
    // In whatever order they came.
    std::vector<uint64_t> taken(N);
    unsigned got = 0;
    if (options.steps > 0) CHECK(cudaMemcpy(&got, count, sizeof got, cudaMemcpyDeviceToHost));
    report.expect_value("chosen", got, want_chosen);
    CHECK(cudaMemcpy(taken.data(), chosen, std::min<unsigned>(got, N) * sizeof(uint64_t), cudaMemcpyDeviceToHost));
    taken.resize(std::min<unsigned>(got, N));
    std::sort(taken.begin(), taken.end());
    report.line("alloc", "chosen", taken.data(), taken.size() * sizeof(uint64_t));
    report.allocation("state", a, BYTES);
    report.allocation("sums", sums, sizeof want_sums);
    report.allocation("members", members, sizeof want_members);
    if (options.steps > 0) report.allocation("out", out, BYTES);
    report.global("backwards", backwards);
    window.destroy();
    CHECK(cudaStreamDestroy(stream));
    for (void *p : {static_cast<void *>(a), static_cast<void *>(b), static_cast<void *>(out), static_cast<void *>(chosen)}) CHECK(cudaFree(p));
    for (unsigned *p : {sums, members, count}) CHECK(cudaFree(p));
    return report.finish();
}
