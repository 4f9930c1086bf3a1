// Arrays of every shape, without textures: a line, a plane, a volume, layers, a mipmap. Each step takes an array apart,
// changes it on the device or on the host, and puts it back, by copies in every direction. What lies in an array only ever
// is there: a move that loses a byte of one shows at the end.
#include "program.cuh"
#include "packed.cuh"

#include <algorithm>

constexpr int BLOCK = 128;

// Changes words in place.
__global__ void stir(uint32_t *words, int count, uint32_t seed) {
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < count; i += gridDim.x * BLOCK)
        words[i] = static_cast<uint32_t>(program::mix(words[i] + static_cast<uint64_t>(seed) * 65537 + i));
}

static void host_stir(std::vector<uint32_t> &words, uint32_t seed) {
    for (size_t i = 0; i < words.size(); i++)
        words[i] = static_cast<uint32_t>(program::mix(words[i] + static_cast<uint64_t>(seed) * 65537 + i));
}

// An array with what it should hold.
struct Box {
    const char *name;
    cudaArray_t array;
    size_t row, rows, slices, element; // bytes of a row, rows, slices, bytes of an element
    std::vector<uint32_t> want;
    uint32_t *device, *pinned; // as large as the array, packed
    std::vector<uint32_t> on_device_last, on_host_last; // what these two should hold, once they hold something

    size_t bytes() const { return row * rows * slices; }

    // A copy of the whole between the array and packed memory.
    cudaMemcpy3DParms whole(void *packed, bool out, cudaMemcpyKind kind) const {
        return program::packed_copy(array, packed, row, rows, slices, element, out, kind);
    }

    void prepare(uint32_t seed) {
        want.resize(bytes() / 4);
        for (size_t i = 0; i < want.size(); i++) want[i] = static_cast<uint32_t>(program::mix(seed + i));
        CHECK(cudaMalloc(&device, bytes()));
        CHECK(cudaMallocHost(&pinned, bytes()));
        cudaMemcpy3DParms p = whole(want.data(), false, cudaMemcpyHostToDevice);
        CHECK(cudaMemcpy3D(&p));
    }

    // Out to the device, stirred there, and in again.
    void on_device(cudaStream_t stream, uint32_t seed) {
        cudaMemcpy3DParms p = whole(device, true, cudaMemcpyDeviceToDevice);
        CHECK(cudaMemcpy3DAsync(&p, stream));
        stir<<<8, BLOCK, 0, stream>>>(device, static_cast<int>(bytes() / 4), seed);
        CHECK_LAUNCH();
        p = whole(device, false, cudaMemcpyDeviceToDevice);
        CHECK(cudaMemcpy3DAsync(&p, stream));
        host_stir(want, seed);
        on_device_last = want;
    }

    // Out to pinned memory, stirred by the host, and in again.
    void on_host(cudaStream_t stream, uint32_t seed) {
        cudaMemcpy3DParms p = whole(pinned, true, cudaMemcpyDeviceToHost);
        CHECK(cudaMemcpy3DAsync(&p, stream));
        CHECK(cudaStreamSynchronize(stream));
        std::vector<uint32_t> words(pinned, pinned + bytes() / 4);
        host_stir(words, seed);
        std::memcpy(pinned, words.data(), bytes());
        p = whole(pinned, false, cudaMemcpyHostToDevice);
        CHECK(cudaMemcpy3DAsync(&p, stream));
        host_stir(want, seed);
        on_host_last = want;
    }

    void finish(program::Report &report) {
        std::vector<uint32_t> got(want.size());
        cudaMemcpy3DParms p = whole(got.data(), true, cudaMemcpyDeviceToHost);
        CHECK(cudaMemcpy3D(&p));
        report.expect(name, got.data(), want.data(), bytes());
        if (!on_device_last.empty()) report.expect_device(name, device, on_device_last.data(), bytes());
        if (!on_host_last.empty()) report.expect(name, pinned, on_host_last.data(), bytes());
        report.line("array", name, got.data(), bytes());
        CHECK(cudaFree(device));
        CHECK(cudaFreeHost(pinned));
    }
};

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    cudaStream_t streams[2];
    CHECK(cudaStreamCreate(&streams[0]));
    CHECK(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));

    const cudaChannelFormatDesc word = cudaCreateChannelDesc<unsigned>(), two = cudaCreateChannelDesc<uint2>();
    const cudaChannelFormatDesc bytes4 = cudaCreateChannelDesc<uchar4>(), halves = cudaCreateChannelDesc<ushort2>();
    const cudaChannelFormatDesc four = cudaCreateChannelDesc<float4>();
    cudaArray_t line, plane, other, volume, layers;
    CHECK(cudaMallocArray(&line, &two, 3000));
    CHECK(cudaMallocArray(&plane, &word, 1000, 37));
    CHECK(cudaMallocArray(&other, &word, 1000, 37));
    CHECK(cudaMalloc3DArray(&volume, &bytes4, make_cudaExtent(33, 17, 9)));
    CHECK(cudaMalloc3DArray(&layers, &halves, make_cudaExtent(40, 24, 5), cudaArrayLayered));
    cudaMipmappedArray_t mipmap;
    CHECK(cudaMallocMipmappedArray(&mipmap, &four, make_cudaExtent(64, 48, 0), 5));

    std::vector<Box> boxes = {
        {"line", line, 24000, 1, 1, 8, {}, nullptr, nullptr, {}, {}},        {"plane", plane, 4000, 37, 1, 4, {}, nullptr, nullptr, {}, {}},
        {"other", other, 4000, 37, 1, 4, {}, nullptr, nullptr, {}, {}},      {"volume", volume, 132, 17, 9, 4, {}, nullptr, nullptr, {}, {}},
        {"layers", layers, 160, 24, 5, 4, {}, nullptr, nullptr, {}, {}},
    };
    static const char *levels[] = {"level0", "level1", "level2", "level3", "level4"};
    for (unsigned n = 0; n < 5; n++) {
        cudaArray_t level;
        CHECK(cudaGetMipmappedArrayLevel(&level, mipmap, n));
        boxes.push_back({levels[n], level, (64u >> n) * 16, 48u >> n, 1, 16, {}, nullptr, nullptr, {}, {}});
    }
    for (size_t i = 0; i < boxes.size(); i++) {
        boxes[i].prepare(static_cast<uint32_t>(i) * 1000003);
        cudaChannelFormatDesc format;
        cudaExtent extent;
        unsigned flags;
        CHECK(cudaArrayGetInfo(&format, &extent, &flags, boxes[i].array));
        std::printf("%s is %zu x %zu x %zu, %d %d %d %d bits, flags %u\n", boxes[i].name, extent.width, extent.height, extent.depth, format.x,
                    format.y, format.z, format.w, flags);
    }

    program::Window window;
    std::vector<uint32_t> strip(250 * 5);
    for (long step = 0; step < options.steps; step++) {
        const uint32_t seed = static_cast<uint32_t>(step) * 31 + 7;
        for (size_t i = 0; i < boxes.size(); i++) {
            cudaStream_t stream = streams[i % 2];
            if ((step + static_cast<long>(i)) % 5 == 4) boxes[i].on_host(stream, seed);
            else boxes[i].on_device(stream, seed);
        }
        for (cudaStream_t stream : streams) CHECK(cudaStreamSynchronize(stream));
        // A strip of the host's into the middle of a plane, and a rectangle from one plane to the other.
        const size_t x = static_cast<size_t>(step % 700), y = static_cast<size_t>(step % 30);
        for (size_t i = 0; i < strip.size(); i++) strip[i] = static_cast<uint32_t>(program::mix(seed * 77 + i));
        CHECK(cudaMemcpy2DToArray(plane, x * 4, y, strip.data(), 1000, 1000, 5, cudaMemcpyHostToDevice));
        for (size_t r = 0; r < 5; r++) std::copy_n(&strip[r * 250], 250, &boxes[1].want[(y + r) * 1000 + x]);
        CHECK(cudaMemcpy2DArrayToArray(other, 400, 3, plane, x * 4, y, 800, 4, cudaMemcpyDeviceToDevice));
        for (size_t r = 0; r < 4; r++) std::copy_n(&boxes[1].want[(y + r) * 1000 + x], 200, &boxes[2].want[(3 + r) * 1000 + 100]);
        // And one back, of which the sum is kept.
        CHECK(cudaMemcpy2DFromArray(strip.data(), 1000, other, 480, 4, 1000, 2, cudaMemcpyDeviceToHost));
        for (size_t r = 0; r < 2; r++)
            report.expect("strip", &strip[r * 250], &boxes[2].want[(4 + r) * 1000 + 120], 1000);
        // One that comes and goes.
        if (step % 6 == 5) {
            cudaArray_t brief;
            CHECK(cudaMallocArray(&brief, &word, 250, 5));
            CHECK(cudaMemcpy2DToArray(brief, 0, 0, strip.data(), 1000, 1000, 5, cudaMemcpyHostToDevice));
            CHECK(cudaFreeArray(brief));
        }
        window.round_done(streams[step % 2]);
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    for (Box &box : boxes) box.finish(report);
    for (cudaArray_t array : {line, plane, other, volume, layers}) CHECK(cudaFreeArray(array));
    CHECK(cudaFreeMipmappedArray(mipmap));
    window.destroy();
    for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
