// A seven-point stencil in three dimensions, from one array to the other and back.
#include "app.cuh"

__host__ __device__ inline float heat(const float *from, size_t at, size_t row, size_t plane) {
    return from[at] + 0.125f * (from[at - 1] + from[at + 1] + from[at - row] + from[at + row] + from[at - plane] + from[at + plane] -
                                6.0f * from[at]);
}

__global__ void step(const float *from, float *to, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z;
    if (x == 0 || y == 0 || z == 0 || x >= n - 1 || y >= n - 1 || z >= n - 1) return;
    size_t row = n, plane = row * n, at = z * plane + y * row + x;
    to[at] = heat(from, at, row, plane);
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int n = app.pick(26, 384), steps = app.pick(40, 6000), wait = app.pick(4, 200);
    const size_t count = size_t(n) * n * n;
    std::vector<float> start(count);
    for (size_t i = 0; i < count; i++) start[i] = static_cast<float>(app::mix(i) >> 40) / 1024.0f;
    float *from = app::device_copy(start), *to = app::device_copy(start);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const dim3 block(32, 4), grid(app::blocks(n, 32), app::blocks(n, 4), n);
    for (int i = 0; i < steps; i++) {
        step<<<grid, block, 0, stream>>>(from, to, n);
        CHECK_LAUNCH();
        std::swap(from, to);
        if (i % wait == wait - 1) CHECK(cudaStreamSynchronize(stream));
        app.step();
    }
    CHECK(cudaStreamSynchronize(stream));
    // The last step again by the host, at some points.
    std::vector<float> last(count);
    CHECK(cudaMemcpy(last.data(), from, count * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(start.data(), to, count * 4, cudaMemcpyDeviceToHost));
    const size_t row = n, plane = row * n;
    for (size_t at = plane + row + 1; at < count - plane - row - 1; at += 31) {
        size_t x = at % row, y = at / row % row;
        if (x == 0 || y == 0 || x == row - 1 || y == row - 1) continue;
        float want = heat(start.data(), at, row, plane);
        app.equal(&last[at], &want, 1, "a point of the last step");
    }
    app.host(last.data(), count * 4);
    app.host(start.data(), count * 4);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    return app.finish();
}
