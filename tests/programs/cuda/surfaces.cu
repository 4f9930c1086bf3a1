// Surfaces: arrays that kernels read and write in place, of every shape and of elements of 1 to 16 bytes, within their edges and
// beyond them; what was written is read as a texture by the next kernel, and by copies in the end.
#include "program.cuh"

constexpr int BLOCK = 64;

// From one plane to the other, mixed with its neighbours: beyond the edges it reads the nearest element, or zero.
__global__ void spread(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height, uint32_t seed) {
    const int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y;
    if (x >= width) return;
    const uint32_t left = surf2Dread<uint32_t>(from, (x - 1) * 4, y, cudaBoundaryModeClamp);
    const uint32_t right = surf2Dread<uint32_t>(from, (x + 1) * 4, y, cudaBoundaryModeZero);
    const uint32_t above = surf2Dread<uint32_t>(from, x * 4, y - 1, cudaBoundaryModeZero);
    const uint32_t below = surf2Dread<uint32_t>(from, x * 4, y + 1, cudaBoundaryModeClamp);
    const uint32_t here = surf2Dread<uint32_t>(from, x * 4, y);
    surf2Dwrite(static_cast<uint32_t>(program::mix(here + 3ull * left + 5ull * right + 7ull * above + 11ull * below + seed)), to, x * 4, y);
    // Nothing is there to be written.
    if (x == 0) surf2Dwrite(seed, to, width * 4, y, cudaBoundaryModeZero);
}

// Changes the other shapes in place.
__global__ void change(cudaSurfaceObject_t line, cudaSurfaceObject_t volume, cudaSurfaceObject_t layers, cudaSurfaceObject_t bytes,
                       cudaSurfaceObject_t strips, int step) {
    const int x = threadIdx.x;
    float4 f = surf1Dread<float4>(line, x * 16);
    surf1Dwrite(make_float4(f.y + 1, f.z + 2, f.w + 3, f.x + step % 5), line, x * 16);
    if (x < 20)
        for (int y = 0; y < 7; y++)
            for (int z = 0; z < 3; z++) {
                uint2 v = surf3Dread<uint2>(volume, x * 8, y, z);
                surf3Dwrite(make_uint2(v.y * 5 + step, v.x + z), volume, x * 8, y, z);
                short2 s = surf2DLayeredread<short2>(layers, x * 4, y, z);
                surf2DLayeredwrite(make_short2(s.y + 1, s.x - step), layers, x * 4, y, z);
            }
    uchar4 b = surf2Dread<uchar4>(bytes, x * 4, step % 9);
    surf2Dwrite(make_uchar4(b.w + 1, b.x + 2, b.y + 3, b.z + x), bytes, x * 4, step % 9);
    unsigned char u = surf1DLayeredread<unsigned char>(strips, x, step % 4);
    surf1DLayeredwrite(static_cast<unsigned char>(u * 3 + step), strips, x, step % 4);
}

// Reads through a texture what kernels have written through surfaces.
__global__ void look(cudaTextureObject_t texture, int width, uint32_t *sums) {
    const int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y;
    if (x < width) atomicAdd(&sums[y], tex2D<uint32_t>(texture, x, y) * (2 * x + 1));
}

constexpr int WIDTH = 150, HEIGHT = 40;

template <class T> static cudaArray_t make(cudaExtent extent, unsigned flags) {
    cudaArray_t array;
    const cudaChannelFormatDesc desc = cudaCreateChannelDesc<T>();
    CHECK(cudaMalloc3DArray(&array, &desc, extent, flags | cudaArraySurfaceLoadStore));
    return array;
}

static cudaMemcpy3DParms whole(cudaArray_t array, void *host, size_t row, size_t element, size_t rows, size_t slices, bool out) {
    cudaMemcpy3DParms p = {};
    p.extent = make_cudaExtent(row / element, rows, slices);
    p.kind = out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    cudaPitchedPtr at = make_cudaPitchedPtr(host, row, row / element, rows);
    if (out) p.srcArray = array, p.dstPtr = at;
    else p.dstArray = array, p.srcPtr = at;
    return p;
}

static cudaSurfaceObject_t surface(cudaArray_t array) {
    cudaResourceDesc what = {};
    what.resType = cudaResourceTypeArray;
    what.res.array.array = array;
    cudaSurfaceObject_t object;
    CHECK(cudaCreateSurfaceObject(&object, &what));
    return object;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    struct {
        const char *name;
        cudaArray_t array;
        size_t row, element, rows, slices;
        std::vector<unsigned char> want;
        cudaSurfaceObject_t object;
    } all[] = {
        {"plane", make<uint32_t>(make_cudaExtent(WIDTH, HEIGHT, 0), 0), WIDTH * 4, 4, HEIGHT, 1, {}, 0},
        {"other", make<uint32_t>(make_cudaExtent(WIDTH, HEIGHT, 0), 0), WIDTH * 4, 4, HEIGHT, 1, {}, 0},
        {"line", make<float4>(make_cudaExtent(BLOCK, 0, 0), 0), BLOCK * 16, 16, 1, 1, {}, 0},
        {"volume", make<uint2>(make_cudaExtent(20, 7, 3), 0), 160, 8, 7, 3, {}, 0},
        {"layers", make<short2>(make_cudaExtent(20, 7, 3), cudaArrayLayered), 80, 4, 7, 3, {}, 0},
        {"bytes", make<uchar4>(make_cudaExtent(BLOCK, 9, 0), 0), BLOCK * 4, 4, 9, 1, {}, 0},
        {"strips", make<unsigned char>(make_cudaExtent(BLOCK, 0, 4), cudaArrayLayered), BLOCK, 1, 1, 4, {}, 0},
    };
    for (auto &a : all) {
        a.want.resize(a.row * a.rows * a.slices);
        for (size_t i = 0; i < a.want.size(); i++) a.want[i] = static_cast<unsigned char>(program::mix(i + a.row));
        // Small integers, so that additions stay exact.
        if (a.element == 16)
            for (size_t i = 0; i < a.want.size() / 4; i++) reinterpret_cast<float *>(a.want.data())[i] = static_cast<float>(i % 37);
        cudaMemcpy3DParms p = whole(a.array, a.want.data(), a.row, a.element, a.rows, a.slices, false);
        CHECK(cudaMemcpy3D(&p));
        a.object = surface(a.array);
    }
    cudaTextureObject_t textures[2];
    for (int i = 0; i < 2; i++) {
        cudaResourceDesc what = {};
        what.resType = cudaResourceTypeArray;
        what.res.array.array = all[i].array;
        cudaTextureDesc how = {};
        how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
        CHECK(cudaCreateTextureObject(&textures[i], &what, &how, nullptr));
    }
    uint32_t *sums;
    CHECK(cudaMalloc(&sums, HEIGHT * sizeof(uint32_t)));
    CHECK(cudaMemset(sums, 0, HEIGHT * sizeof(uint32_t)));
    std::vector<uint32_t> want_sums(HEIGHT, 0);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaDeviceSynchronize());

    program::Window window;
    const dim3 grid((WIDTH + BLOCK - 1) / BLOCK, HEIGHT);
    for (long step = 0; step < options.steps; step++) {
        const int from = static_cast<int>(step % 2), to = 1 - from, s = static_cast<int>(step);
        spread<<<grid, BLOCK, 0, stream>>>(all[from].object, all[to].object, WIDTH, HEIGHT, static_cast<uint32_t>(step));
        CHECK_LAUNCH();
        change<<<1, BLOCK, 0, stream>>>(all[2].object, all[3].object, all[4].object, all[5].object, all[6].object, s);
        CHECK_LAUNCH();
        look<<<grid, BLOCK, 0, stream>>>(textures[to], WIDTH, sums);
        CHECK_LAUNCH();
        // The same on the host.
        const uint32_t *a = reinterpret_cast<uint32_t *>(all[from].want.data());
        uint32_t *b = reinterpret_cast<uint32_t *>(all[to].want.data());
        for (int y = 0; y < HEIGHT; y++)
            for (int x = 0; x < WIDTH; x++) {
                const uint32_t left = a[y * WIDTH + (x > 0 ? x - 1 : 0)], right = x + 1 < WIDTH ? a[y * WIDTH + x + 1] : 0;
                const uint32_t above = y > 0 ? a[(y - 1) * WIDTH + x] : 0, below = a[(y + 1 < HEIGHT ? y + 1 : y) * WIDTH + x];
                const uint32_t v = static_cast<uint32_t>(program::mix(a[y * WIDTH + x] + 3ull * left + 5ull * right + 7ull * above + 11ull * below + static_cast<uint32_t>(step)));
                b[y * WIDTH + x] = v;
                want_sums[y] += v * (2 * x + 1);
            }
        for (int x = 0; x < BLOCK; x++) {
            float *f = reinterpret_cast<float *>(all[2].want.data()) + x * 4;
            const float first = f[0];
            f[0] = f[1] + 1, f[1] = f[2] + 2, f[2] = f[3] + 3, f[3] = first + static_cast<float>(s % 5);
            for (int y = 0; x < 20 && y < 7; y++)
                for (int z = 0; z < 3; z++) {
                    uint32_t *v = reinterpret_cast<uint32_t *>(all[3].want.data()) + ((z * 7 + y) * 20 + x) * 2;
                    const uint32_t v0 = v[0];
                    v[0] = v[1] * 5 + static_cast<uint32_t>(s), v[1] = v0 + static_cast<uint32_t>(z);
                    int16_t *h = reinterpret_cast<int16_t *>(all[4].want.data()) + ((z * 7 + y) * 20 + x) * 2;
                    const int16_t h0 = h[0];
                    h[0] = static_cast<int16_t>(h[1] + 1), h[1] = static_cast<int16_t>(h0 - s);
                }
            unsigned char *c = all[5].want.data() + (s % 9 * BLOCK + x) * 4;
            const unsigned char c3 = c[3];
            c[3] = static_cast<unsigned char>(c[2] + x), c[2] = static_cast<unsigned char>(c[1] + 3), c[1] = static_cast<unsigned char>(c[0] + 2),
            c[0] = static_cast<unsigned char>(c3 + 1);
            unsigned char *u = all[6].want.data() + s % 4 * BLOCK + x;
            *u = static_cast<unsigned char>(*u * 3 + s);
        }
        window.round_done(stream);
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    for (auto &a : all) {
        std::vector<unsigned char> got(a.want.size());
        cudaMemcpy3DParms p = whole(a.array, got.data(), a.row, a.element, a.rows, a.slices, true);
        CHECK(cudaMemcpy3D(&p));
        report.expect(a.name, got.data(), a.want.data(), got.size());
        report.line("array", a.name, got.data(), got.size());
        CHECK(cudaDestroySurfaceObject(a.object));
    }
    report.expect_device("sums", sums, want_sums.data(), HEIGHT * sizeof(uint32_t));
    report.allocation("sums", sums, HEIGHT * sizeof(uint32_t));
    for (cudaTextureObject_t t : textures) CHECK(cudaDestroyTextureObject(t));
    for (auto &a : all) CHECK(cudaFreeArray(a.array));
    CHECK(cudaFree(sums));
    window.destroy();
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
