// What each call costs in a loop of arrays with texture objects that come and go: microseconds, mean.
// Built with nvcc alone; run natively and with `mrcuda run`.
#include "timed.cuh"

constexpr int ROUNDS = 400, WARM_UP = 20;
constexpr int WIDTH = 3840, HEIGHT = 2160;

__global__ void look(cudaTextureObject_t image, unsigned *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    uchar4 p = tex2D<uchar4>(image, x + 0.5f, y + 0.5f);
    out[y * width + x] += p.x + p.y * 3 + p.z * 5 + p.w * 7;
}

int main() {
    const size_t row = WIDTH * sizeof(uchar4);
    unsigned *pixels;
    CHECK(cudaMalloc(&pixels, row * HEIGHT));
    CHECK(cudaMemset(pixels, 1, row * HEIGHT));
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    const dim3 block(16, 8), grid(WIDTH / 16, HEIGHT / 8);
    for (int round = 0; round < ROUNDS; round++) {
        if (round == WARM_UP) times.clear();
        cudaArray_t array;
        timed("1 make an array", [&] { return cudaMallocArray(&array, &format, WIDTH, HEIGHT); });
        timed("2 copy to it", [&] { return cudaMemcpy2DToArray(array, 0, 0, pixels, row, row, HEIGHT, cudaMemcpyDeviceToDevice); });
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        resource.res.array.array = array;
        cudaTextureDesc sampling = {};
        cudaTextureObject_t texture;
        timed("3 make a texture", [&] { return cudaCreateTextureObject(&texture, &resource, &sampling, nullptr); });
        timed("4 launch", [&] { look<<<grid, block>>>(texture, pixels, WIDTH, HEIGHT); return cudaGetLastError(); });
        timed("5 destroy the texture", [&] { return cudaDestroyTextureObject(texture); });
        timed("6 free the array", [&] { return cudaFreeArray(array); });
    }
    CHECK(cudaDeviceSynchronize());
    print_times(ROUNDS - WARM_UP);
    return 0;
}
