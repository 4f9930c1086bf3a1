// What machine code for compute capability 9.0 can do: clusters of blocks that read each other's shared memory, tiles that a tensor
// map describes, products of matrices of five kinds of numbers. Elsewhere the kernels compute the same numbers plainly.
#include "program.cuh"
#include "driver.cuh"

#include <algorithm>
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

namespace cg = cooperative_groups;

// Matrices of small whole numbers: every kind of number here holds them, and their products, exactly.
constexpr int SIDE = 32, ELEMENTS = SIDE * SIDE;
constexpr int KINDS = 5;
// The ring of blocks.
constexpr int BLOCK = 128, BLOCKS = 16, CLUSTER = 4, N = BLOCK * BLOCKS;
// The tensor, and the tile that is taken out of it.
constexpr int WIDTH = 64, HEIGHT = 48, TILE_W = 16, TILE_H = 8;

__device__ void multiply_plainly(const int *a, const int *b, int *d) {
    for (int e = threadIdx.x; e < ELEMENTS; e += 32) {
        int sum = 0;
        for (int k = 0; k < SIDE; k++) sum += a[e / SIDE * SIDE + k] * b[k * SIDE + e % SIDE];
        d[e] += sum;
    }
}

#if __CUDA_ARCH__ >= 900
// `In`: what lies in memory; `Number`: what the tensor cores are told that it is.
template <class In, class Number, class Sum, int M, int NN, int K> __device__ void multiply_tiles(const int *a, const int *b, int *d) {
    using namespace nvcuda;
    __shared__ __align__(128) In left[ELEMENTS], right[ELEMENTS];
    __shared__ __align__(128) Sum result[ELEMENTS];
    for (int e = threadIdx.x; e < ELEMENTS; e += 32) {
        left[e] = static_cast<In>(static_cast<float>(a[e])), right[e] = static_cast<In>(static_cast<float>(b[e]));
    }
    __syncwarp();
    for (int row = 0; row < SIDE; row += M) {
        for (int column = 0; column < SIDE; column += NN) {
            wmma::fragment<wmma::accumulator, M, NN, K, Sum> sum;
            wmma::fill_fragment(sum, static_cast<Sum>(0));
            for (int k = 0; k < SIDE; k += K) {
                wmma::fragment<wmma::matrix_a, M, NN, K, Number, wmma::row_major> l;
                wmma::fragment<wmma::matrix_b, M, NN, K, Number, wmma::row_major> r;
                wmma::load_matrix_sync(l, left + row * SIDE + k, SIDE);
                wmma::load_matrix_sync(r, right + k * SIDE + column, SIDE);
                wmma::mma_sync(sum, l, r, sum);
            }
            wmma::store_matrix_sync(result + row * SIDE + column, sum, SIDE, wmma::mem_row_major);
        }
    }
    __syncwarp();
    for (int e = threadIdx.x; e < ELEMENTS; e += 32) d[e] += static_cast<int>(result[e]);
}
#endif

// Adds the product of two matrices to a third one, with numbers of a kind.
template <int KIND> __global__ void multiply(const int *a, const int *b, int *d) {
#if __CUDA_ARCH__ >= 900
    using namespace nvcuda;
    if constexpr (KIND == 0) multiply_tiles<__half, __half, float, 16, 16, 16>(a, b, d);
    if constexpr (KIND == 1) multiply_tiles<__nv_bfloat16, __nv_bfloat16, float, 16, 16, 16>(a, b, d);
    if constexpr (KIND == 2) multiply_tiles<float, wmma::precision::tf32, float, 16, 16, 8>(a, b, d);
    if constexpr (KIND == 3) multiply_tiles<double, double, double, 8, 8, 4>(a, b, d);
    if constexpr (KIND == 4) multiply_tiles<signed char, signed char, int, 16, 16, 16>(a, b, d);
#else
    multiply_plainly(a, b, d);
#endif
}

// The next matrices: small numbers again.
__global__ void reduce(int *a, int *b, const int *d) {
    int e = threadIdx.x;
    int old = a[e];
    a[e] = (b[e] + d[e] + e) % 5;
    b[e] = (old + 3 * d[e] + 1) % 5;
}

// Each thread adds what its neighbour in the next block of its cluster holds.
__global__ void ring(const uint64_t *from, uint64_t *to) {
    unsigned i = blockIdx.x * BLOCK + threadIdx.x, there = (threadIdx.x + 7) % BLOCK;
    uint64_t own = program::mix(from[i]), other;
#if __CUDA_ARCH__ >= 900
    __shared__ uint64_t held[BLOCK];
    cg::cluster_group cluster = cg::this_cluster();
    held[threadIdx.x] = own;
    cluster.sync();
    // A launch without clusters would read its own block's.
    other = cluster.map_shared_rank(held, (cluster.block_rank() + 1) % cluster.num_blocks())[there];
    cluster.sync();
#else
    unsigned rank = blockIdx.x % CLUSTER, next = blockIdx.x - rank + (rank + 1) % CLUSTER;
    other = program::mix(from[next * BLOCK + there]);
#endif
    to[i] = own + 3 * other;
}

// Folds the tile at x, y into a number; what is outside of the tensor is 0.
__global__ void fold(const __grid_constant__ CUtensorMap map, const int *tensor, int x, int y, uint64_t *folded) {
    __shared__ __align__(128) int tile[TILE_H * TILE_W];
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(8) uint64_t barrier;
    unsigned bar = static_cast<unsigned>(__cvta_generic_to_shared(&barrier)), to = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(static_cast<unsigned>(sizeof tile)) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                     "l"(&map), "r"(x), "r"(y), "r"(bar)
                     : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(bar)
                     : "memory");
    }
#else
    for (int e = threadIdx.x; e < TILE_H * TILE_W; e += blockDim.x) {
        int column = x + e % TILE_W, row = y + e / TILE_W;
        bool inside = column >= 0 && column < WIDTH && row >= 0 && row < HEIGHT;
        tile[e] = inside ? tensor[row * WIDTH + column] : 0;
    }
    __syncthreads();
#endif
    if (threadIdx.x == 0) {
        for (int e = 0; e < TILE_H * TILE_W; e++) *folded = program::mix(*folded + static_cast<unsigned>(tile[e]));
    }
}

// Changes the tensor.
__global__ void stir(int *tensor) {
    int e = blockIdx.x * BLOCK + threadIdx.x;
    tensor[e] = static_cast<int>(program::mix(static_cast<unsigned>(tensor[e])) >> 33);
}

static CUtensorMap describe(int *tensor) {
    cuuint64_t size[] = {WIDTH, HEIGHT}, stride[] = {WIDTH * sizeof(int)};
    cuuint32_t box[] = {TILE_W, TILE_H}, step[] = {1, 1};
    CUtensorMap map;
    DRIVER(cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, tensor, size, stride, box, step,
           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int *a, *b, *d, *tensor;
    uint64_t *from, *to, *folded;
    CHECK(cudaMalloc(&a, ELEMENTS * sizeof(int)));
    CHECK(cudaMalloc(&b, ELEMENTS * sizeof(int)));
    CHECK(cudaMalloc(&d, KINDS * ELEMENTS * sizeof(int)));
    CHECK(cudaMalloc(&tensor, WIDTH * HEIGHT * sizeof(int)));
    CHECK(cudaMalloc(&from, N * sizeof(uint64_t)));
    CHECK(cudaMalloc(&to, N * sizeof(uint64_t)));
    CHECK(cudaMalloc(&folded, sizeof(uint64_t)));
    std::vector<int> left(ELEMENTS), right(ELEMENTS), sums(ELEMENTS), cells(WIDTH * HEIGHT);
    std::vector<uint64_t> held(N), next(N);
    for (int i = 0; i < ELEMENTS; i++) left[i] = program::mix(i) % 5, right[i] = program::mix(i + ELEMENTS) % 5;
    for (int i = 0; i < WIDTH * HEIGHT; i++) cells[i] = static_cast<int>(program::mix(i) >> 33);
    for (int i = 0; i < N; i++) held[i] = program::mix(i + 17);
    CHECK(cudaMemcpy(a, left.data(), ELEMENTS * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, right.data(), ELEMENTS * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(tensor, cells.data(), WIDTH * HEIGHT * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(from, held.data(), N * sizeof(uint64_t), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(folded, 0, sizeof(uint64_t)));
    CHECK(cudaDeviceSynchronize());

    // Whether the code that runs was compiled for 9.0: else it has no clusters and looks at no tensor map.
    cudaFuncAttributes code;
    CHECK(cudaFuncGetAttributes(&code, ring));
    bool able = code.ptxVersion >= 90;
    CUtensorMap map = {};
    // Made once: the address in it is the same wherever the GPU is.
    if (able) map = describe(tensor);
    cudaLaunchAttribute clustered;
    clustered.id = cudaLaunchAttributeClusterDimension;
    clustered.val.clusterDim.x = CLUSTER, clustered.val.clusterDim.y = 1, clustered.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(BLOCKS), config.blockDim = dim3(BLOCK), config.stream = stream;
    config.attrs = &clustered, config.numAttrs = able ? 1 : 0;
    if (able) {
        int clusters = 0;
        CHECK(cudaOccupancyMaxActiveClusters(&clusters, ring, &config));
        report.expect_value("clusters at a time", clusters >= 1, 1);
    }

    program::Window window;
    uint64_t want_folded = 0;
    for (long round = 0; round < options.steps; round++) {
        CHECK(cudaMemsetAsync(d, 0, KINDS * ELEMENTS * sizeof(int), stream));
        multiply<0><<<1, 32, 0, stream>>>(a, b, d);
        multiply<1><<<1, 32, 0, stream>>>(a, b, d + ELEMENTS);
        multiply<2><<<1, 32, 0, stream>>>(a, b, d + 2 * ELEMENTS);
        multiply<3><<<1, 32, 0, stream>>>(a, b, d + 3 * ELEMENTS);
        multiply<4><<<1, 32, 0, stream>>>(a, b, d + 4 * ELEMENTS);
        CHECK_LAUNCH();
        // Each round goes on with what another kind of numbers gave.
        reduce<<<1, ELEMENTS, 0, stream>>>(a, b, d + round % KINDS * ELEMENTS);
        CHECK_LAUNCH();
        CHECK(cudaLaunchKernelEx(&config, ring, static_cast<const uint64_t *>(from), to));
        std::swap(from, to);
        // Somewhere inside, and beyond the edges.
        int x = static_cast<int>(round * 12 % (WIDTH + 2 * TILE_W)) / 4 * 4 - TILE_W, y = static_cast<int>(round * 5 % (HEIGHT + TILE_H)) - TILE_H;
        fold<<<1, 64, 0, stream>>>(map, tensor, x, y, folded);
        CHECK_LAUNCH();
        stir<<<WIDTH * HEIGHT / BLOCK, BLOCK, 0, stream>>>(tensor);
        CHECK_LAUNCH();
        window.round_done(stream);
        options.pace();

        for (int e = 0; e < ELEMENTS; e++) {
            sums[e] = 0;
            for (int k = 0; k < SIDE; k++) sums[e] += left[e / SIDE * SIDE + k] * right[k * SIDE + e % SIDE];
        }
        for (int e = 0; e < ELEMENTS; e++) {
            int old = left[e];
            left[e] = (right[e] + sums[e] + e) % 5, right[e] = (old + 3 * sums[e] + 1) % 5;
        }
        for (int i = 0; i < N; i++) {
            int block = i / BLOCK, rank = block % CLUSTER, other = block - rank + (rank + 1) % CLUSTER;
            next[i] = program::mix(held[i]) + 3 * program::mix(held[other * BLOCK + (i % BLOCK + 7) % BLOCK]);
        }
        held.swap(next);
        for (int e = 0; e < TILE_H * TILE_W; e++) {
            int column = x + e % TILE_W, row = y + e / TILE_W;
            bool inside = column >= 0 && column < WIDTH && row >= 0 && row < HEIGHT;
            want_folded = program::mix(want_folded + (inside ? static_cast<unsigned>(cells[row * WIDTH + column]) : 0));
        }
        for (int &cell : cells) cell = static_cast<int>(program::mix(static_cast<unsigned>(cell)) >> 33);
    }
    CHECK(cudaStreamSynchronize(stream));
    report.expect_device("left", a, left.data(), ELEMENTS * sizeof(int));
    report.expect_device("right", b, right.data(), ELEMENTS * sizeof(int));
    report.expect_device("ring", from, held.data(), N * sizeof(uint64_t));
    if (options.steps > 0) report.expect_device("the ring before", to, next.data(), N * sizeof(uint64_t));
    report.expect_device("tensor", tensor, cells.data(), WIDTH * HEIGHT * sizeof(int));
    report.expect_device("folded", folded, &want_folded, sizeof want_folded);
    const char *names[KINDS] = {"half", "bfloat16", "tf32", "double", "int8"};
    for (int kind = 0; options.steps > 0 && kind < KINDS; kind++) {
        report.expect_device(names[kind], d + kind * ELEMENTS, sums.data(), ELEMENTS * sizeof(int));
        report.allocation(names[kind], d + kind * ELEMENTS, ELEMENTS * sizeof(int));
    }
    report.allocation("left", a, ELEMENTS * sizeof(int));
    report.allocation("right", b, ELEMENTS * sizeof(int));
    report.allocation("ring", from, N * sizeof(uint64_t));
    report.allocation("tensor", tensor, WIDTH * HEIGHT * sizeof(int));
    report.allocation("folded", folded, sizeof(uint64_t));
    window.destroy();
    CHECK(cudaStreamDestroy(stream));
    for (int *p : {a, b, d, tensor}) CHECK(cudaFree(p));
    for (uint64_t *p : {from, to, folded}) CHECK(cudaFree(p));
    return report.finish();
}
