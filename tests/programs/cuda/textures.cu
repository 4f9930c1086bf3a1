// Textures of every kind: points and linear filtering, all that can happen outside, layers, volumes, mipmaps, gathering, memory and
// rows of memory, numbers made of bytes; objects in a table of the device's, which change places from step to step.
// Texels are small integers, and coordinates so coarse that the weight of each texel is a whole 256th: the hardware rounds others
// in a way of its own. So every weighed sum is exact.
#include "program.cuh"
#include "texels.cuh"

#include <cuda_fp16.h>

constexpr int BLOCK = 128, POINTS = 1024, KINDS = 16;

enum Kind { POINT, LINEAR, WRAP, MIRROR, BORDER, LINE, ROWS, LAYERS, LINES, VOLUME, COLOURS, LEVELS, BETWEEN, HALVES, GATHER, SHORTS };

// Where a point of a step lies, in sixteenths of a texel.
struct Place {
    int x, y, z;
};

__host__ __device__ inline Place place_of(uint64_t seed, int point) {
    uint64_t m = program::mix(seed * 4099 + point);
    return {static_cast<int>(m % 1600) - 256, static_cast<int>(m / 1600 % 900) - 192, static_cast<int>(m / 1440000 % 400) - 64};
}

__device__ inline uint32_t bits(float f) { return __float_as_uint(f); }

__global__ void sample(const cudaTextureObject_t *table, uint64_t seed, uint32_t *out) {
    const int point = blockIdx.x * BLOCK + threadIdx.x;
    const Place p = place_of(seed, point);
    const float x = p.x / 16.0f, y = p.y / 16.0f;
    uint32_t *to = out + point * KINDS;
    to[POINT] = bits(tex2D<float>(table[POINT], x, y));
    to[LINEAR] = bits(tex2D<float>(table[LINEAR], x, y));
    to[WRAP] = bits(tex2D<float>(table[WRAP], x / 64, y / 32));
    to[MIRROR] = bits(tex2D<float>(table[MIRROR], (x + 0.03125f) / 64, (y + 0.03125f) / 32));
    to[BORDER] = bits(tex2D<float>(table[BORDER], x, y));
    const uint2 line = tex1Dfetch<uint2>(table[LINE], (p.x + 256) * 2);
    to[LINE] = line.x ^ line.y * 3;
    const float2 row = tex2D<float2>(table[ROWS], x, y);
    to[ROWS] = bits(row.x * 256 + row.y);
    to[LAYERS] = bits(tex2DLayered<float>(table[LAYERS], x, y, (p.z + 64) / 100));
    to[LINES] = static_cast<uint32_t>(tex1DLayered<int>(table[LINES], x, (p.z + 64) / 100));
    to[VOLUME] = bits(tex3D<float>(table[VOLUME], (p.x >> 4) / 4.0f, (p.y >> 4) / 4.0f, (p.z >> 2) / 4.0f));
    const float4 colour = tex2D<float4>(table[COLOURS], x, y);
    to[COLOURS] = static_cast<uint32_t>(rintf(colour.x * 255)) | static_cast<uint32_t>(rintf(colour.y * 255)) << 8 |
                  static_cast<uint32_t>(rintf(colour.z * 255)) << 16 | static_cast<uint32_t>(rintf(colour.w * 255)) << 24;
    to[LEVELS] = bits(tex2DLod<float>(table[LEVELS], (x + 0.03125f) / 64, (y + 0.03125f) / 32, (point % 5) + 0.25f));
    to[BETWEEN] = bits(tex2DLod<float>(table[BETWEEN], (p.x >> 5) / 32.0f, (p.y >> 5) / 16.0f, (point % 12) / 4.0f));
    const float2 halves = tex2D<float2>(table[HALVES], x, y);
    to[HALVES] = bits(halves.x + halves.y * 256);
    const float4 four = tex2Dgather<float4>(table[GATHER], x, y, 0);
    to[GATHER] = bits(four.x + four.y * 3 + four.z * 5 + four.w * 7);
    const short2 shorts = tex2D<short2>(table[SHORTS], x, y);
    to[SHORTS] = static_cast<uint32_t>(shorts.x) * 65537u + static_cast<uint32_t>(shorts.y);
}

// What a point should read of every texture.
static void host_sample(uint64_t seed, int point, uint32_t *to) {
    const Place p = place_of(seed, point);
    const long x = below(p.x, 16), y = below(p.y, 16);
    auto plane = [](long i, long j) { return texel(0, i, j, 0); };
    auto in_plane = [](long i, int d) { return clamped(i, d ? 32 : 64); };
    auto around = [](long i, int d) { return wrapped(i, d ? 32 : 64); };
    to[POINT] = raw(plane(clamped(x, 64), clamped(y, 32)));
    to[LINEAR] = raw(weighed(p.x * 16, p.y * 16, in_plane, plane));
    to[WRAP] = raw(weighed(p.x * 16, p.y * 16, around, plane));
    to[MIRROR] = raw(plane(mirrored(x, 64), mirrored(y, 32)));
    to[BORDER] = raw(x < 0 || x >= 64 || y < 0 || y >= 32 ? 7.0f : plane(x, y));
    const long at = (p.x + 256) * 2;
    to[LINE] = static_cast<uint32_t>(texel(1, at, 0, 0)) ^ static_cast<uint32_t>(texel(1, at, 1, 0)) * 3;
    const long rx = clamped(x, 50), ry = clamped(y, 20);
    to[ROWS] = raw(texel(2, rx, ry, 0) * 256 + texel(2, rx, ry, 1));
    const long layer = (p.z + 64) / 100;
    to[LAYERS] = raw(weighed(p.x * 16, p.y * 16, [](long i, int d) { return clamped(i, d ? 16 : 32); }, [layer](long i, long j) { return texel(3, i, j, layer); }));
    to[LINES] = static_cast<uint32_t>(static_cast<int>(texel(4, clamped(x, 100), 0, layer)) - 100);
    // A volume is two planes, weighed.
    const long z = (p.z >> 2) * 64, k = below(z - 128, 256);
    const float c = static_cast<float>(z - 128 - k * 256) / 256;
    auto slice = [&](long s) {
        return weighed((p.x >> 4) * 64, (p.y >> 4) * 64, [](long i, int) { return clamped(i, 16); }, [s](long i, long j) { return texel(5, i, j, clamped(s, 16)); });
    };
    to[VOLUME] = raw((1 - c) * slice(k) + c * slice(k + 1));
    to[COLOURS] = 0;
    for (int ch = 0; ch < 4; ch++) to[COLOURS] |= static_cast<uint32_t>(texel(6, clamped(x, 40), clamped(y, 30), ch)) << 8 * ch;
    const int level = point % 5;
    to[LEVELS] = raw(texel(8 + level, clamped(below(p.x, 16 << level), 64 >> level), clamped(below(p.y, 16 << level), 32 >> level), 0));
    // Linear between levels: a level's coordinates are half of those of the one before.
    const int lod = point % 12, low = lod / 4;
    const float w = static_cast<float>(lod % 4) / 4;
    auto of_level = [&](int n) {
        return weighed(((p.x >> 5) * 512) >> n, ((p.y >> 5) * 512) >> n, [n](long i, int d) { return clamped(i, (d ? 32 : 64) >> n); },
                       [n](long i, long j) { return texel(8 + n, i, j, 0); });
    };
    to[BETWEEN] = raw(w == 0 ? of_level(low) : of_level(low) * (1 - w) + of_level(low + 1) * w);
    to[HALVES] = raw(texel(7, clamped(x, 33), clamped(y, 9), 0) + texel(7, clamped(x, 33), clamped(y, 9), 1) * 256);
    const long i = below(p.x * 16 - 128, 256), j = below(p.y * 16 - 128, 256);
    auto g = [&](long di, long dj) { return plane(clamped(i + di, 64), clamped(j + dj, 32)); };
    to[GATHER] = raw(g(0, 1) + g(1, 1) * 3 + g(1, 0) * 5 + g(0, 0) * 7);
    const long sx = clamped(x, 40), sy = clamped(y, 30);
    to[SHORTS] = static_cast<uint32_t>(static_cast<int>(texel(14, sx, sy, 0)) - 100) * 65537u + static_cast<uint32_t>(static_cast<int>(texel(14, sx, sy, 1)) - 100);
}

struct How {
    cudaTextureAddressMode outside = cudaAddressModeClamp;
    bool linear = false, normalized = false, to_float = false;
};

static cudaTextureObject_t object(const cudaResourceDesc &what, How how) {
    cudaTextureDesc desc = {};
    for (cudaTextureAddressMode &mode : desc.addressMode) mode = how.outside;
    desc.filterMode = how.linear ? cudaFilterModeLinear : cudaFilterModePoint;
    desc.mipmapFilterMode = desc.filterMode;
    desc.normalizedCoords = how.normalized;
    desc.readMode = how.to_float ? cudaReadModeNormalizedFloat : cudaReadModeElementType;
    desc.maxMipmapLevelClamp = 10;
    desc.borderColor[0] = 7;
    cudaTextureObject_t made;
    CHECK(cudaCreateTextureObject(&made, &what, &desc, nullptr));
    return made;
}

static cudaResourceDesc of(cudaArray_t array) {
    cudaResourceDesc what = {};
    what.resType = cudaResourceTypeArray;
    what.res.array.array = array;
    return what;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    auto number = [](int which) { return [which](long x, long y, long z) { return texel(which, x, y, z); }; };
    cudaArray_t plane = filled<float>(make_cudaExtent(64, 32, 0), 0, number(0));
    cudaArray_t gathered = filled<float>(make_cudaExtent(64, 32, 0), cudaArrayTextureGather, number(0));
    cudaArray_t layers = filled<float>(make_cudaExtent(32, 16, 5), cudaArrayLayered, number(3));
    auto in_line = [](long x, long, long z) { return static_cast<int>(texel(4, x, 0, z)) - 100; };
    cudaArray_t lines = filled<int>(make_cudaExtent(100, 0, 5), cudaArrayLayered, in_line);
    cudaArray_t volume = filled<float>(make_cudaExtent(16, 16, 16), 0, number(5));
    auto colour = [](long x, long y, long) {
        auto c = [=](int ch) { return static_cast<unsigned char>(texel(6, x, y, ch)); };
        return make_uchar4(c(0), c(1), c(2), c(3));
    };
    auto pair_of_shorts = [](long x, long y, long) {
        return make_short2(static_cast<short>(texel(14, x, y, 0) - 100), static_cast<short>(texel(14, x, y, 1) - 100));
    };
    auto pair_of_halves = [](long x, long y, long) { return __floats2half2_rn(texel(7, x, y, 0), texel(7, x, y, 1)); };
    cudaArray_t colours = filled<uchar4>(make_cudaExtent(40, 30, 0), 0, colour);
    cudaArray_t shorts = filled<short2>(make_cudaExtent(40, 30, 0), 0, pair_of_shorts);
    cudaArray_t halves;
    {
        const cudaChannelFormatDesc desc = cudaCreateChannelDescHalf2();
        CHECK(cudaMallocArray(&halves, &desc, 33, 9));
        std::vector<__half2> texels;
        for (long y = 0; y < 9; y++)
            for (long x = 0; x < 33; x++) texels.push_back(pair_of_halves(x, y, 0));
        CHECK(cudaMemcpy2DToArray(halves, 0, 0, texels.data(), 33 * 4, 33 * 4, 9, cudaMemcpyHostToDevice));
    }
    cudaMipmappedArray_t mipmap;
    const cudaChannelFormatDesc one = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocMipmappedArray(&mipmap, &one, make_cudaExtent(64, 32, 0), 5));
    for (unsigned n = 0; n < 5; n++) {
        cudaArray_t level;
        CHECK(cudaGetMipmappedArrayLevel(&level, mipmap, n));
        std::vector<float> texels;
        for (long y = 0; y < 32 >> n; y++)
            for (long x = 0; x < 64 >> n; x++) texels.push_back(texel(8 + n, x, y, 0));
        CHECK(cudaMemcpy2DToArray(level, 0, 0, texels.data(), (64 >> n) * 4, (64 >> n) * 4, 32 >> n, cudaMemcpyHostToDevice));
    }
    std::vector<uint2> line;
    for (long x = 0; x < 4096; x++) line.push_back(make_uint2(static_cast<unsigned>(texel(1, x, 0, 0)), static_cast<unsigned>(texel(1, x, 1, 0))));
    uint2 *device_line;
    CHECK(cudaMalloc(&device_line, 4096 * sizeof(uint2)));
    CHECK(cudaMemcpy(device_line, line.data(), 4096 * sizeof(uint2), cudaMemcpyHostToDevice));
    std::vector<float2> rows;
    for (long y = 0; y < 20; y++)
        for (long x = 0; x < 50; x++) rows.push_back(make_float2(texel(2, x, y, 0), texel(2, x, y, 1)));
    float2 *device_rows;
    size_t pitch;
    CHECK(cudaMallocPitch(&device_rows, &pitch, 50 * sizeof(float2), 20));
    CHECK(cudaMemcpy2D(device_rows, pitch, rows.data(), 50 * sizeof(float2), 50 * sizeof(float2), 20, cudaMemcpyHostToDevice));

    cudaResourceDesc of_line = {}, of_rows = {}, of_mipmap = {};
    of_line.resType = cudaResourceTypeLinear;
    of_line.res.linear = {device_line, cudaCreateChannelDesc<uint2>(), 4096 * sizeof(uint2)};
    of_rows.resType = cudaResourceTypePitch2D;
    of_rows.res.pitch2D = {device_rows, cudaCreateChannelDesc<float2>(), 50, 20, pitch};
    of_mipmap.resType = cudaResourceTypeMipmappedArray;
    of_mipmap.res.mipmap.mipmap = mipmap;
    How linear, wrap, mirror, border, points, floats;
    linear.linear = true;
    wrap.outside = cudaAddressModeWrap, wrap.linear = wrap.normalized = true;
    mirror.outside = cudaAddressModeMirror, mirror.normalized = true;
    border.outside = cudaAddressModeBorder;
    floats.to_float = true;
    How levels = points, between = linear;
    levels.normalized = between.normalized = true;
    const std::vector<std::pair<cudaResourceDesc, How>> all = {
        {of(plane), points}, {of(plane), linear},     {of(plane), wrap},  {of(plane), mirror},  {of(plane), border}, {of_line, points},
        {of_rows, points},   {of(layers), linear},    {of(lines), points}, {of(volume), linear}, {of(colours), floats}, {of_mipmap, levels},
        {of_mipmap, between}, {of(halves), points},   {of(gathered), points}, {of(shorts), points},
    };
    cudaTextureObject_t objects[KINDS];
    for (int k = 0; k < KINDS; k++) objects[k] = object(all[k].first, all[k].second);
    cudaTextureObject_t *table;
    uint32_t *out;
    CHECK(cudaMalloc(&table, sizeof objects));
    CHECK(cudaMalloc(&out, POINTS * KINDS * sizeof(uint32_t)));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));

    std::vector<uint32_t> got(POINTS * KINDS), want(POINTS * KINDS);
    uint64_t sum = 0;
    static const char *names[KINDS] = {"point", "linear", "wrap", "mirror", "border", "line", "rows", "layers", "lines", "volume", "colours", "levels", "between", "halves", "gather", "shorts"};
    for (long step = 0; step < options.steps; step++) {
        // Three of them go, and come back in another order: they may get other numbers.
        const int a = static_cast<int>(step % KINDS), b = (a + 5) % KINDS, c = (a + 11) % KINDS;
        for (int k : {a, b, c}) CHECK(cudaDestroyTextureObject(objects[k]));
        for (int k : {b, c, a}) objects[k] = object(all[k].first, all[k].second);
        CHECK(cudaMemcpyAsync(table, objects, sizeof objects, cudaMemcpyHostToDevice, stream));
        sample<<<POINTS / BLOCK, BLOCK, 0, stream>>>(table, static_cast<uint64_t>(step), out);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (int point = 0; point < POINTS; point++) host_sample(static_cast<uint64_t>(step), point, &want[point * KINDS]);
        for (int k = 0; k < KINDS; k++)
            for (int point = 0; point < POINTS; point++) {
                const uint32_t g = got[point * KINDS + k], w = want[point * KINDS + k];
                sum = program::mix(sum ^ g);
                if (g == w) continue;
                const Place p = place_of(static_cast<uint64_t>(step), point);
                std::fprintf(stderr, "step %ld, point %d at %d %d %d sixteenths: ", step, point, p.x, p.y, p.z);
                report.expect_value(names[k], g, w);
                break;
            }
        options.pace();
    }
    report.line("texels", "all", &sum, sizeof sum);
    // All that was there to be sampled is still what it was.
    const cudaExtent one_plane = make_cudaExtent(64, 32, 0), coloured = make_cudaExtent(40, 30, 0);
    expect_filled<float>(report, "plane", {plane, nullptr, 0}, one_plane, number(0));
    expect_filled<float>(report, "gathered", {gathered, nullptr, 0}, one_plane, number(0));
    expect_filled<float>(report, "layers", {layers, nullptr, 0}, make_cudaExtent(32, 16, 5), number(3));
    expect_filled<int>(report, "lines", {lines, nullptr, 0}, make_cudaExtent(100, 0, 5), in_line);
    expect_filled<float>(report, "volume", {volume, nullptr, 0}, make_cudaExtent(16, 16, 16), number(5));
    expect_filled<uchar4>(report, "colours", {colours, nullptr, 0}, coloured, colour);
    expect_filled<short2>(report, "shorts", {shorts, nullptr, 0}, coloured, pair_of_shorts);
    expect_filled<__half2>(report, "halves", {halves, nullptr, 0}, make_cudaExtent(33, 9, 0), pair_of_halves);
    expect_levels(report, mipmap, 64, 32, 5, 8);
    report.expect_device("line", device_line, line.data(), 4096 * sizeof(uint2));
    expect_filled<float2>(report, "rows", {nullptr, device_rows, pitch}, make_cudaExtent(50, 20, 0), [&](long x, long y, long) { return rows[y * 50 + x]; });
    for (cudaTextureObject_t o : objects) CHECK(cudaDestroyTextureObject(o));
    for (cudaArray_t array : {plane, gathered, layers, lines, volume, colours, shorts, halves}) CHECK(cudaFreeArray(array));
    CHECK(cudaFreeMipmappedArray(mipmap));
    CHECK(cudaFree(device_line));
    CHECK(cudaFree(device_rows));
    CHECK(cudaFree(table));
    CHECK(cudaFree(out));
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
