// Cubemaps: six faces that kernels read by direction, alone and in layers; their faces change in place.
#include "program.cuh"

constexpr int SIDE = 16, FACES = 6, LAYERS = 2;
constexpr int TEXELS = SIDE * SIDE * FACES;

// The direction from the middle of the cube to the middle of a texel.
__host__ __device__ static inline void direction(int face, int x, int y, float *d) {
    float u = (x + 0.5f) / SIDE * 2 - 1, v = (y + 0.5f) / SIDE * 2 - 1;
    const float all[FACES][3] = {{1, -v, -u}, {-1, -v, u}, {u, 1, v}, {u, -1, -v}, {u, -v, 1}, {-u, -v, -1}};
    // Any length does.
    float length = 1 << face % 3;
    for (int i = 0; i < 3; i++) d[i] = all[face][i] * length;
}

// Reads each texel by its direction, and makes the next one of it.
__global__ void look(cudaTextureObject_t one, cudaTextureObject_t many, float *next_one, float *next_many) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = i % SIDE, y = i / SIDE % SIDE, face = i / (SIDE * SIDE) % FACES, layer = i / TEXELS;
    float d[3];
    direction(face, x, y, d);
    float there = texCubemapLayered<float>(many, d[0], d[1], d[2], layer);
    next_many[i] = static_cast<float>((static_cast<int>(there) * 5 + face + layer + 1) % 4096);
    if (layer == 0) next_one[i] = static_cast<float>((static_cast<int>(texCubemap<float>(one, d[0], d[1], d[2])) * 3 + face + 7) % 4096);
}

static cudaArray_t make(int layers, unsigned flags) {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(SIDE, SIDE, FACES * layers), flags));
    return array;
}

static cudaTextureObject_t texture(cudaArray_t array, cudaTextureFilterMode filter) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray, resource.res.array.array = array;
    cudaTextureDesc how = {};
    how.normalizedCoords = 1, how.filterMode = filter, how.readMode = cudaReadModeElementType;
    how.addressMode[0] = how.addressMode[1] = how.addressMode[2] = cudaAddressModeClamp;
    cudaTextureObject_t object;
    CHECK(cudaCreateTextureObject(&object, &resource, &how, nullptr));
    return object;
}

static void copy(cudaArray_t to, const float *from, int layers, cudaMemcpyKind kind, cudaStream_t stream) {
    cudaMemcpy3DParms p = {};
    p.srcPtr = make_cudaPitchedPtr(const_cast<float *>(from), SIDE * sizeof(float), SIDE, SIDE);
    p.dstArray = to, p.extent = make_cudaExtent(SIDE, SIDE, FACES * layers), p.kind = kind;
    CHECK(cudaMemcpy3DAsync(&p, stream));
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<float> one(TEXELS), many(TEXELS * LAYERS);
    for (int i = 0; i < TEXELS * LAYERS; i++) many[i] = static_cast<float>(program::mix(i) % 4096);
    for (int i = 0; i < TEXELS; i++) one[i] = static_cast<float>(program::mix(i + 99) % 4096);
    cudaArray_t cube = make(1, cudaArrayCubemap), cubes = make(LAYERS, cudaArrayCubemap | cudaArrayLayered);
    copy(cube, one.data(), 1, cudaMemcpyHostToDevice, stream);
    copy(cubes, many.data(), LAYERS, cudaMemcpyHostToDevice, stream);
    // In the middle of a texel its neighbours weigh nothing.
    cudaTextureObject_t near = texture(cube, cudaFilterModeLinear), far = texture(cubes, cudaFilterModePoint);
    float *next_one, *next_many;
    CHECK(cudaMalloc(&next_one, TEXELS * sizeof(float)));
    CHECK(cudaMalloc(&next_many, TEXELS * LAYERS * sizeof(float)));
    CHECK(cudaMemcpyAsync(next_one, one.data(), TEXELS * sizeof(float), cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(next_many, many.data(), TEXELS * LAYERS * sizeof(float), cudaMemcpyHostToDevice, stream));

    program::Window window;
    for (long round = 0; round < options.steps; round++) {
        look<<<TEXELS * LAYERS / 256, 256, 0, stream>>>(near, far, next_one, next_many);
        CHECK_LAUNCH();
        copy(cube, next_one, 1, cudaMemcpyDeviceToDevice, stream);
        copy(cubes, next_many, LAYERS, cudaMemcpyDeviceToDevice, stream);
        window.round_done(stream);
        options.pace();
        for (int i = 0; i < TEXELS * LAYERS; i++) {
            int face = i / (SIDE * SIDE) % FACES, layer = i / TEXELS;
            many[i] = static_cast<float>((static_cast<int>(many[i]) * 5 + face + layer + 1) % 4096);
            if (layer == 0) one[i] = static_cast<float>((static_cast<int>(one[i]) * 3 + face + 7) % 4096);
        }
    }
    CHECK(cudaStreamSynchronize(stream));
    report.expect_device("faces", next_one, one.data(), TEXELS * sizeof(float));
    report.expect_device("faces in layers", next_many, many.data(), TEXELS * LAYERS * sizeof(float));
    for (int layers : {1, LAYERS}) {
        const std::vector<float> &want = layers == 1 ? one : many;
        std::vector<float> got(want.size());
        cudaMemcpy3DParms p = {};
        p.srcArray = layers == 1 ? cube : cubes;
        p.dstPtr = make_cudaPitchedPtr(got.data(), SIDE * sizeof(float), SIDE, SIDE);
        p.extent = make_cudaExtent(SIDE, SIDE, FACES * layers), p.kind = cudaMemcpyDeviceToHost;
        CHECK(cudaMemcpy3D(&p));
        report.expect("the array", got.data(), want.data(), got.size() * sizeof(float));
    }
    report.allocation("faces", next_one, TEXELS * sizeof(float));
    report.allocation("layers", next_many, TEXELS * LAYERS * sizeof(float));
    window.destroy();
    CHECK(cudaDestroyTextureObject(near));
    CHECK(cudaDestroyTextureObject(far));
    CHECK(cudaFreeArray(cube));
    CHECK(cudaFreeArray(cubes));
    CHECK(cudaFree(next_one));
    CHECK(cudaFree(next_many));
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
