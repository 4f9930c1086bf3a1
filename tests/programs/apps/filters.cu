// Filters of images by textures: a blur, edges, a median and a turned picture, with arrays and texture objects that come and go.
#include "app.cuh"

// Five by five, with the weights of a binomial; outside is the edge.
__global__ void blur(cudaTextureObject_t image, uchar4 *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int weights[5] = {1, 4, 6, 4, 1};
    int4 sum = {128, 128, 128, 128};
    for (int dy = -2; dy <= 2; dy++) {
        for (int dx = -2; dx <= 2; dx++) {
            uchar4 p = tex2D<uchar4>(image, x + dx + 0.5f, y + dy + 0.5f);
            int w = weights[dx + 2] * weights[dy + 2];
            sum.x += w * p.x, sum.y += w * p.y, sum.z += w * p.z, sum.w += w * p.w;
        }
    }
    out[y * width + x] = make_uchar4(sum.x >> 8, sum.y >> 8, sum.z >> 8, sum.w >> 8);
}

__device__ int grey(uchar4 p) { return (p.x * 77 + p.y * 150 + p.z * 29) >> 8; }

// Sobel's edges and, in the last part, the median of five.
__global__ void edges(cudaTextureObject_t image, uchar4 *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int g[3][3];
    for (int dy = 0; dy < 3; dy++)
        for (int dx = 0; dx < 3; dx++) g[dy][dx] = grey(tex2D<uchar4>(image, x + dx - 0.5f, y + dy - 0.5f));
    int h = g[0][2] + 2 * g[1][2] + g[2][2] - g[0][0] - 2 * g[1][0] - g[2][0];
    int v = g[2][0] + 2 * g[2][1] + g[2][2] - g[0][0] - 2 * g[0][1] - g[0][2];
    int five[5] = {g[1][1], g[0][1], g[1][0], g[1][2], g[2][1]};
    for (int i = 0; i < 3; i++) {
        for (int k = i + 1; k < 5; k++) {
            int low = min(five[i], five[k]);
            five[k] = max(five[i], five[k]), five[i] = low;
        }
    }
    uchar4 own = tex2D<uchar4>(image, x + 0.5f, y + 0.5f);
    int edge = min((abs(h) + abs(v)) >> 2, 255);
    out[y * width + x] = make_uchar4(own.x ^ edge, own.y + edge, five[2], own.w + 1);
}

// Turned about the middle, between the pixels by the texture unit.
__global__ void turn(cudaTextureObject_t image, float *out, int width, int height, float c, float s) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float u = x - width * 0.5f, v = y - height * 0.5f;
    float4 p = tex2D<float4>(image, width * 0.5f + c * u - s * v, height * 0.5f + s * u + c * v);
    out[y * width + x] = p.x + p.y + p.z + p.w;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int width = app.pick(48, 3840), height = app.pick(36, 2160), rounds = app.pick(24, 300);
    const size_t count = size_t(width) * height, row = width * sizeof(uchar4);
    std::vector<uchar4> picture(count), before(count), after(count);
    for (size_t i = 0; i < count; i++) {
        uint64_t m = app::mix(i);
        picture[i] = make_uchar4(m, m >> 8, m >> 16, m >> 24);
    }
    uchar4 *pixels = app::device_copy(picture);
    float *turned = app::device_array<float>(count);
    CHECK(cudaMemset(turned, 0, count * 4));
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    const dim3 block(16, 8), grid(app::blocks(width, 16), app::blocks(height, 8));
    for (int round = 0; round < rounds; round++) {
        cudaArray_t array;
        CHECK(cudaMallocArray(&array, &format, width, height));
        CHECK(cudaMemcpy2DToArray(array, 0, 0, pixels, row, row, height, cudaMemcpyDeviceToDevice));
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        resource.res.array.array = array;
        cudaTextureDesc sampling = {};
        sampling.addressMode[0] = sampling.addressMode[1] = cudaAddressModeClamp;
        sampling.filterMode = round % 4 == 3 ? cudaFilterModeLinear : cudaFilterModePoint;
        sampling.readMode = round % 4 == 3 ? cudaReadModeNormalizedFloat : cudaReadModeElementType;
        cudaTextureObject_t texture;
        CHECK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
        if (round % 4 == 3) turn<<<grid, block>>>(texture, turned, width, height, 0.8f, 0.6f);
        else if (round % 2 == 0) edges<<<grid, block>>>(texture, pixels, width, height);
        else blur<<<grid, block>>>(texture, pixels, width, height);
        CHECK_LAUNCH();
        if (round + 3 >= rounds && round % 4 == 1) {
            // The host blurs some pixels of the last round that does.
            CHECK(cudaMemcpy2DFromArray(before.data(), row, array, 0, 0, row, height, cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpy(after.data(), pixels, count * 4, cudaMemcpyDeviceToHost));
            for (size_t i = 0; i < count; i += 17) {
                int x = i % width, y = i / width, sum = 128;
                const int weights[5] = {1, 4, 6, 4, 1};
                for (int dy = -2; dy <= 2; dy++)
                    for (int dx = -2; dx <= 2; dx++) {
                        int nx = std::clamp(x + dx, 0, width - 1), ny = std::clamp(y + dy, 0, height - 1);
                        sum += weights[dx + 2] * weights[dy + 2] * before[size_t(ny) * width + nx].y;
                    }
                app.expect(after[i].y == sum >> 8, "a blurred pixel");
            }
        }
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaDestroyTextureObject(texture));
        CHECK(cudaFreeArray(array));
        app.step();
    }
    app.expect(after[0].w != 0 || after[1].w != 0 || after[2].w != 0, "the host has looked at a blurred picture");
    app.device(pixels, count * 4);
    app.device(turned, count * 4);
    app.host(before.data(), count * 4);
    CHECK(cudaFree(pixels));
    CHECK(cudaFree(turned));
    return app.finish();
}
