// What textures hold, and what samples of them should give: the host's own sums. After program.cuh.
#pragma once

// The host's own texels.
inline float texel(int which, long x, long y, long z) {
    return static_cast<float>(program::mix(which * 1000003ull + x * 7919 + y * 104729 + z * 1299709) % 200);
}

inline long clamped(long i, long n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }
inline long wrapped(long i, long n) { return ((i % n) + n) % n; }
inline long mirrored(long i, long n) {
    long t = wrapped(i, 2 * n);
    return t < n ? t : 2 * n - 1 - t;
}
inline long below(long a, long b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// A linear sample: coordinates in 256ths of a texel.
template <class T, class I> float weighed(long x, long y, I inside, T at) {
    const long i = below(x - 128, 256), j = below(y - 128, 256);
    const float a = static_cast<float>(x - 128 - i * 256) / 256, b = static_cast<float>(y - 128 - j * 256) / 256;
    const long i0 = inside(i, 0), i1 = inside(i + 1, 0), j0 = inside(j, 1), j1 = inside(j + 1, 1);
    return (1 - a) * (1 - b) * at(i0, j0) + a * (1 - b) * at(i1, j0) + (1 - a) * b * at(i0, j1) + a * b * at(i1, j1);
}

inline uint32_t raw(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}

// A whole array, or memory: slices of rows of elements.
struct Texels {
    cudaArray_t array;
    const void *memory;
    size_t pitch;
};

// Compares all texels with what they were made from.
template <class T, class F> void expect_filled(program::Report &report, const char *name, const Texels &in, cudaExtent extent, F value) {
    const size_t w = extent.width, h = extent.height ? extent.height : 1, d = extent.depth ? extent.depth : 1;
    std::vector<T> got(w * h * d), want(w * h * d);
    for (size_t z = 0; z < d; z++)
        for (size_t y = 0; y < h; y++)
            for (size_t x = 0; x < w; x++) want[(z * h + y) * w + x] = value(static_cast<long>(x), static_cast<long>(y), static_cast<long>(z));
    cudaMemcpy3DParms p = {};
    p.dstPtr = make_cudaPitchedPtr(got.data(), w * sizeof(T), w, h);
    p.extent = make_cudaExtent(in.array != nullptr ? w : w * sizeof(T), h, d);
    p.kind = cudaMemcpyDefault;
    if (in.array != nullptr) p.srcArray = in.array;
    else p.srcPtr = make_cudaPitchedPtr(const_cast<void *>(in.memory), in.pitch, w, h);
    CHECK(cudaMemcpy3D(&p));
    report.expect(name, got.data(), want.data(), got.size() * sizeof(T));
}

// The same for the levels of a mipmap of floats: each has numbers of its own, from `first`.
inline void expect_levels(program::Report &report, cudaMipmappedArray_t mipmap, size_t width, size_t height, unsigned levels, int first) {
    for (unsigned n = 0; n < levels; n++) {
        cudaArray_t level;
        CHECK(cudaGetMipmappedArrayLevel(&level, mipmap, n));
        auto value = [&](long x, long y, long) { return texel(first + static_cast<int>(n), x, y, 0); };
        expect_filled<float>(report, "a level", {level, nullptr, 0}, make_cudaExtent(width >> n, height >> n, 0), value);
    }
}

// An array with these texels.
template <class T, class F> cudaArray_t filled(cudaExtent extent, unsigned flags, F value) {
    cudaArray_t array;
    const cudaChannelFormatDesc desc = cudaCreateChannelDesc<T>();
    CHECK(cudaMalloc3DArray(&array, &desc, extent, flags));
    const size_t w = extent.width, h = extent.height ? extent.height : 1, d = extent.depth ? extent.depth : 1;
    std::vector<T> texels(w * h * d);
    for (size_t z = 0; z < d; z++)
        for (size_t y = 0; y < h; y++)
            for (size_t x = 0; x < w; x++) texels[(z * h + y) * w + x] = value(static_cast<long>(x), static_cast<long>(y), static_cast<long>(z));
    cudaMemcpy3DParms p = {};
    p.srcPtr = make_cudaPitchedPtr(texels.data(), w * sizeof(T), w, h);
    p.dstArray = array;
    p.extent = make_cudaExtent(w, h, d);
    p.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&p));
    return array;
}
