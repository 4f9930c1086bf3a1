// Products of matrices in single precision by tiles in shared memory, each the input of the next.
#include "app.cuh"

constexpr int TILE = 16;

// c = a b / 4, in the order of k.
__global__ void multiply(const float *a, const float *b, float *c, int n) {
    __shared__ float own_a[TILE][TILE], own_b[TILE][TILE + 1];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        own_a[y][x] = a[size_t(row) * n + k + x];
        own_b[y][x] = b[size_t(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += own_a[y][i] * own_b[i][x];
        __syncthreads();
    }
    c[size_t(row) * n + column] = sum * 0.25f;
}

// Keeps the elements between -1 and 1.
__global__ void fold(const float *from, float *to, size_t count) {
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i < count) to[i] = from[i] - rintf(from[i]);
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int n = app.pick(48, 2048), rounds = app.pick(24, 120);
    const size_t count = size_t(n) * n;
    std::vector<float> a(count), b(count);
    for (size_t i = 0; i < count; i++) {
        a[i] = static_cast<float>(app::mix(i) >> 40) / float(1 << 23) - 1.0f;
        b[i] = static_cast<float>(app::mix(i + count) >> 40) / float(1 << 23) - 1.0f;
    }
    float *left = app::device_copy(a), *right = app::device_copy(b), *product = app::device_array<float>(count);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const dim3 block(TILE, TILE), grid(n / TILE, n / TILE);
    for (int round = 0; round < rounds; round++) {
        multiply<<<grid, block, 0, stream>>>(left, right, product, n);
        CHECK_LAUNCH();
        if (round + 1 < rounds) fold<<<app::blocks(count, 256), 256, 0, stream>>>(product, left, count);
        CHECK_LAUNCH();
        if (round % 8 == 7) CHECK(cudaStreamSynchronize(stream));
        app.step();
    }
    CHECK(cudaStreamSynchronize(stream));
    // The last product again by the host, in some rows.
    std::vector<float> last(count);
    CHECK(cudaMemcpy(a.data(), left, count * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(last.data(), product, count * 4, cudaMemcpyDeviceToHost));
    for (int row = 0; row < n; row += n / 16) {
        std::vector<float> want(n);
        for (int k = 0; k < n; k++)
            for (int x = 0; x < n; x++) want[x] += a[size_t(row) * n + k] * b[size_t(k) * n + x];
        for (float &w : want) w *= 0.25f;
        app.equal(&last[size_t(row) * n], want.data(), n, "a row of the last product");
    }
    app.host(a.data(), count * 4);
    app.host(last.data(), count * 4);
    app.device(right, count * 4);
    CHECK(cudaStreamDestroy(stream));
    for (float *p : {left, right, product}) CHECK(cudaFree(p));
    return app.finish();
}
