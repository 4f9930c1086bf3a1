// Arrays without memory of their own: a plane whose tiles come and go while textures read it and copies read and write it, what was
// written to a tile still there when its memory is mapped again, the same memory seen in two arrays; a volume, a mipmap with its tail in
// layers, and an array that is mapped as a whole. Drivers make no sparse array for surfaces.
#include "program.cuh"
#include "driver.cuh"
#include "packed.cuh"

constexpr int BLOCK = 64;
// Tiles of the plane.
constexpr unsigned ACROSS = 5, DOWN = 3;

static size_t granule;
static CUdevice device;

static CUmemAllocationProp prop() {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    p.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    return p;
}

static CUmemGenericAllocationHandle create(size_t bytes) {
    CUmemAllocationProp p = prop();
    CUmemGenericAllocationHandle handle;
    DRIVER(cuMemCreate, &handle, (bytes + granule - 1) / granule * granule, &p, 0);
    return handle;
}

struct Box {
    unsigned level, layer, x, y, z, width, height, depth;
};

static CUarrayMapInfo blank(void *array, bool mipmapped, CUmemGenericAllocationHandle memory, size_t offset) {
    CUarrayMapInfo info = {};
    info.resourceType = mipmapped ? CU_RESOURCE_TYPE_MIPMAPPED_ARRAY : CU_RESOURCE_TYPE_ARRAY;
    if (mipmapped) info.resource.mipmap = static_cast<CUmipmappedArray>(array);
    else info.resource.array = static_cast<CUarray>(array);
    info.memOperationType = memory != 0 ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info.memHandle.memHandle = memory;
    info.offset = offset;
    info.deviceBitMask = 1u << device;
    return info;
}

// A box of tiles; without memory it is unmapped.
static CUarrayMapInfo tiles(void *array, bool mipmapped, Box b, CUmemGenericAllocationHandle memory = 0, size_t offset = 0) {
    CUarrayMapInfo info = blank(array, mipmapped, memory, offset);
    info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    auto &at = info.subresource.sparseLevel;
    at.level = b.level, at.layer = b.layer;
    at.offsetX = b.x, at.offsetY = b.y, at.offsetZ = b.z;
    at.extentWidth = b.width, at.extentHeight = b.height, at.extentDepth = b.depth;
    return info;
}

static void map(std::vector<CUarrayMapInfo> list, cudaStream_t stream) {
    DRIVER(cuMemMapArrayAsync, list.data(), static_cast<unsigned>(list.size()), reinterpret_cast<CUstream>(stream));
}

__host__ __device__ static uint4 stirred(uint4 v, uint32_t seed, uint32_t i) {
    const uint64_t a = program::mix(v.x + (static_cast<uint64_t>(v.y) << 32) + seed), b = program::mix(v.z + (static_cast<uint64_t>(v.w) << 32) + i);
    return make_uint4(static_cast<uint32_t>(a), static_cast<uint32_t>(b >> 32), static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32));
}

// What a plane is to hold next, from what it shows: zeros where nothing is mapped.
__global__ void stir(cudaTextureObject_t plane, int width, uint32_t seed, uint4 *out) {
    const int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y;
    if (x < width) out[y * width + x] = stirred(tex2D<uint4>(plane, x, y), seed, y * width + x);
}

__global__ void look(cudaTextureObject_t plane, int width, uint4 *out) {
    const int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y;
    if (x < width) out[y * width + x] = tex2D<uint4>(plane, x, y);
}

__global__ void stir_words(uint32_t *words, int count, uint32_t seed) {
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < count; i += gridDim.x * BLOCK)
        words[i] = static_cast<uint32_t>(program::mix(words[i] + static_cast<uint64_t>(seed) * 65537 + i));
}

static cudaArray_t array_of(cudaChannelFormatDesc format, cudaExtent extent, unsigned flags) {
    cudaArray_t array;
    CHECK(cudaMalloc3DArray(&array, &format, extent, flags));
    return array;
}

static cudaArraySparseProperties tiled(cudaChannelFormatDesc format, cudaExtent extent) {
    cudaArray_t array = array_of(format, extent, cudaArraySparse);
    cudaArraySparseProperties p;
    CHECK(cudaArrayGetSparseProperties(&p, array));
    CHECK(cudaFreeArray(array));
    std::printf("tiles of %d bits: %u x %u x %u, flags %u\n", format.x + format.y + format.z + format.w, p.tileExtent.width,
                p.tileExtent.height, p.tileExtent.depth, p.flags);
    return p;
}

// The plane, the memory of its tiles, and what both should hold.
struct Plane {
    unsigned tile_width, tile_height, width, height;
    cudaArray_t array, twin;
    cudaTextureObject_t texture, twin_texture;
    CUmemGenericAllocationHandle memory;
    static constexpr int POOL = 32;
    std::vector<std::vector<uint4>> held; // by tile of the memory
    int mapped[ACROSS * DOWN];            // which of them a tile of the plane shows, or -1
    uint4 *device_out, *out;
    unsigned compared = 0;

    Box box(unsigned x, unsigned y, unsigned w = 1, unsigned h = 1) const {
        return {0, 0, x * tile_width, y * tile_height, 0, w * tile_width, h * tile_height, 1};
    }
    size_t row() const { return width * sizeof(uint4); }
    size_t bytes() const { return row() * height; }

    Plane() {
        const cudaChannelFormatDesc four = cudaCreateChannelDesc<uint4>();
        const cudaArraySparseProperties p = tiled(four, make_cudaExtent(500, 500, 0));
        tile_width = p.tileExtent.width, tile_height = p.tileExtent.height;
        width = ACROSS * tile_width, height = DOWN * tile_height;
        memory = create(static_cast<size_t>(POOL) * tile_width * tile_height * sizeof(uint4));
        for (int twice = 0; twice < 2; twice++) {
            cudaArray_t made = array_of(four, make_cudaExtent(width, height, 0), cudaArraySparse);
            cudaResourceDesc r = {};
            r.resType = cudaResourceTypeArray;
            r.res.array.array = made;
            cudaTextureDesc t = {};
            t.addressMode[0] = t.addressMode[1] = cudaAddressModeClamp;
            (twice ? twin : array) = made;
            CHECK(cudaCreateTextureObject(twice ? &twin_texture : &texture, &r, &t, nullptr));
        }
        held.assign(POOL, std::vector<uint4>(tile_width * tile_height, make_uint4(0, 0, 0, 0)));
        CHECK(cudaMalloc(&device_out, bytes()));
        CHECK(cudaMallocHost(&out, bytes()));
    }

    size_t tile_bytes() const { return static_cast<size_t>(tile_width) * tile_height * sizeof(uint4); }

    // Maps a box of tiles to tiles of the memory that follow each other, or to nothing.
    void show(unsigned x, unsigned y, unsigned w, unsigned h, int first, cudaStream_t stream) {
        map({tiles(array, false, box(x, y, w, h), first < 0 ? 0 : memory, first < 0 ? 0 : first * tile_bytes())}, stream);
        for (unsigned r = 0; r < h; r++)
            for (unsigned c = 0; c < w; c++) mapped[(y + r) * ACROSS + x + c] = first < 0 ? -1 : first + static_cast<int>(r * w + c);
    }

    bool in_use(int tile) const {
        for (int m : mapped)
            if (m == tile) return true;
        return false;
    }

    // The first of so many tiles side by side that the plane does not show.
    int unused(int count, int from) const {
        for (int n = 0; n < POOL; n++) {
            const int first = (from + n) % POOL;
            bool good = first + count <= POOL;
            for (int k = 0; good && k < count; k++) good = !in_use(first + k);
            if (good) return first;
        }
        return -1;
    }

    dim3 grid() const { return dim3((width + BLOCK - 1) / BLOCK, height); }

    // Changes one of the arrays in place: what is written where nothing is mapped is lost.
    void stir_one(bool of_twin, uint32_t seed, cudaStream_t stream) {
        stir<<<grid(), BLOCK, 0, stream>>>(of_twin ? twin_texture : texture, static_cast<int>(width), seed, device_out);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy2DToArrayAsync(of_twin ? twin : array, 0, 0, device_out, row(), row(), height, cudaMemcpyDeviceToDevice, stream));
    }

    // Changes the plane by what it holds, or fills it from host memory.
    void change(uint32_t seed, cudaStream_t stream, bool anew = false) {
        if (!anew) stir_one(false, seed, stream);
        // What is copied from host memory may still be.
        else CHECK(cudaStreamSynchronize(stream));
        for (unsigned y = 0; y < height; y++)
            for (unsigned x = 0; x < width; x++) {
                const uint32_t i = y * width + x;
                if (anew) out[i] = stirred(make_uint4(0, 0, 0, 0), seed, i);
                const int tile = mapped[y / tile_height * ACROSS + x / tile_width];
                if (tile < 0) continue;
                uint4 &v = held[tile][y % tile_height * tile_width + x % tile_width];
                v = anew ? out[i] : stirred(v, seed, i);
            }
        if (anew) CHECK(cudaMemcpy2DToArrayAsync(array, 0, 0, out, row(), row(), height, cudaMemcpyHostToDevice, stream));
    }

    // Everything that is to be seen now, half of it by a texture and half of it by a copy, and is compared.
    void compare(const char *name, bool of_twin, const int *showing, cudaStream_t stream, program::Report &report) {
        look<<<grid(), BLOCK, 0, stream>>>(of_twin ? twin_texture : texture, static_cast<int>(width), device_out);
        CHECK_LAUNCH();
        const unsigned half = height / 2, copied = compared++ % 2 * half, looked = half - copied;
        CHECK(cudaMemcpyAsync(out + looked * width, device_out + looked * width, half * row(), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaMemcpy2DFromArrayAsync(out + copied * width, row(), of_twin ? twin : array, 0, copied, row(), half,
                                         cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        std::vector<uint4> want(static_cast<size_t>(width) * height, make_uint4(0, 0, 0, 0));
        for (unsigned y = 0; y < height; y++)
            for (unsigned x = 0; x < width; x++) {
                const int tile = showing[y / tile_height * ACROSS + x / tile_width];
                if (tile >= 0) want[y * width + x] = held[tile][y % tile_height * tile_width + x % tile_width];
            }
        report.expect(name, out, want.data(), bytes());
    }
};

// What copies alone see: parts of arrays with what they should hold.
struct Part {
    const char *name;
    cudaArray_t array;
    size_t row, rows, slices, element;
    std::vector<uint32_t> want;
    uint32_t *device_words;

    size_t bytes() const { return row * rows * slices; }
    cudaMemcpy3DParms whole(void *packed, bool out, cudaMemcpyKind kind) const {
        return program::packed_copy(array, packed, row, rows, slices, element, out, kind);
    }
    void fill(uint32_t seed, cudaStream_t stream) {
        want.resize(bytes() / 4);
        for (size_t i = 0; i < want.size(); i++) want[i] = static_cast<uint32_t>(program::mix(static_cast<uint64_t>(seed) * 1000003 + i));
        cudaMemcpy3DParms p = whole(want.data(), false, cudaMemcpyHostToDevice);
        CHECK(cudaMemcpy3DAsync(&p, stream));
        CHECK(cudaStreamSynchronize(stream));
    }
    void change(uint32_t seed, cudaStream_t stream) {
        if (device_words == nullptr) CHECK(cudaMalloc(&device_words, bytes()));
        cudaMemcpy3DParms p = whole(device_words, true, cudaMemcpyDeviceToDevice);
        CHECK(cudaMemcpy3DAsync(&p, stream));
        stir_words<<<8, BLOCK, 0, stream>>>(device_words, static_cast<int>(bytes() / 4), seed);
        CHECK_LAUNCH();
        p = whole(device_words, false, cudaMemcpyDeviceToDevice);
        CHECK(cudaMemcpy3DAsync(&p, stream));
        for (size_t i = 0; i < want.size(); i++) want[i] = static_cast<uint32_t>(program::mix(want[i] + static_cast<uint64_t>(seed) * 65537 + i));
    }
    void finish(program::Report &report) {
        std::vector<uint32_t> got(want.size());
        cudaMemcpy3DParms p = whole(got.data(), true, cudaMemcpyDeviceToHost);
        CHECK(cudaMemcpy3D(&p));
        report.expect(name, got.data(), want.data(), bytes());
        report.line("array", name, got.data(), bytes());
        if (device_words != nullptr) CHECK(cudaFree(device_words));
    }
};

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    CHECK(cudaFree(nullptr));
    CHECK(cudaGetDevice(&device));
    int sparse, deferred;
    CHECK(cudaDeviceGetAttribute(&sparse, cudaDevAttrSparseCudaArraySupported, device));
    CHECK(cudaDeviceGetAttribute(&deferred, cudaDevAttrDeferredMappingCudaArraySupported, device));
    if (sparse == 0 || deferred == 0) {
        std::fprintf(stderr, "this device has no such arrays\n");
        return 2;
    }
    CUmemAllocationProp p = prop();
    DRIVER(cuMemGetAllocationGranularity, &granule, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    program::Bystanders bystanders;

    Plane plane;
    const cudaChannelFormatDesc word = cudaCreateChannelDesc<unsigned>(), two = cudaCreateChannelDesc<uint2>();
    // Each tile of the memory is written once before anything else is asked of it.
    for (int round = 0; round < 3; round++) {
        plane.show(0, 0, ACROSS, DOWN, round < 2 ? round * 15 : 17, stream);
        plane.change(1000 + round, stream, true);
    }
    plane.show(0, 0, ACROSS, DOWN, -1, stream);
    plane.compare("nothing", false, plane.mapped, stream, report);

    // A volume of two tiles in each direction.
    const cudaArraySparseProperties cube = tiled(word, make_cudaExtent(100, 100, 100));
    const unsigned vw = 2 * cube.tileExtent.width, vh = 2 * cube.tileExtent.height, vd = 2 * cube.tileExtent.depth;
    cudaArray_t volume = array_of(word, make_cudaExtent(vw, vh, vd), cudaArraySparse);
    const size_t volume_bytes = static_cast<size_t>(vw) * vh * vd * 4;
    CUmemGenericAllocationHandle volume_memory = create(2 * volume_bytes);

    // A mipmap in two layers.
    const cudaArraySparseProperties flat = tiled(word, make_cudaExtent(1000, 1000, 0));
    const unsigned mw = 2 * flat.tileExtent.width, mh = 2 * flat.tileExtent.height;
    constexpr unsigned LEVELS = 5, LAYERS = 2;
    cudaMipmappedArray_t mipmap;
    CHECK(cudaMallocMipmappedArray(&mipmap, &word, make_cudaExtent(mw, mh, LAYERS), LEVELS, cudaArraySparse | cudaArrayLayered));
    cudaArraySparseProperties tail;
    CHECK(cudaMipmappedArrayGetSparseProperties(&tail, mipmap));
    std::printf("the tail begins at level %u\n", tail.miptailFirstLevel);
    const size_t mipmap_bytes = static_cast<size_t>(mw) * mh * 4;
    const bool one_tail = (tail.flags & cudaArraySparsePropertiesSingleMipTail) != 0;
    const size_t tail_bytes = (tail.miptailSize + plane.tile_bytes() - 1) / plane.tile_bytes() * plane.tile_bytes();
    CUmemGenericAllocationHandle mipmap_memory = create(LAYERS * (2 * mipmap_bytes + tail_bytes));
    {
        std::vector<CUarrayMapInfo> list;
        size_t used = 0;
        for (unsigned layer = 0; layer < LAYERS; layer++) {
            for (unsigned level = 0; level < LEVELS && (tail_bytes == 0 || level < tail.miptailFirstLevel); level++) {
                list.push_back(tiles(mipmap, true, {level, layer, 0, 0, 0, mw >> level, mh >> level, 1}, mipmap_memory, used));
                used += mipmap_bytes >> (2 * level);
            }
            if (tail_bytes > 0 && (layer == 0 || !one_tail)) {
                CUarrayMapInfo info = blank(mipmap, true, mipmap_memory, used);
                info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
                info.subresource.miptail.layer = layer;
                info.subresource.miptail.size = tail_bytes;
                list.push_back(info);
                used += tail_bytes;
            }
        }
        map(list, stream);
    }

    // An array that is mapped as a whole.
    cudaArray_t later = array_of(two, make_cudaExtent(100, 50, 0), cudaArrayDeferredMapping);
    cudaArrayMemoryRequirements need;
    CHECK(cudaArrayGetMemoryRequirements(&need, later, device));
    const size_t later_step = (need.size + need.alignment - 1) / need.alignment * need.alignment;
    CUmemGenericAllocationHandle later_memory = create(2 * later_step);

    // Something of each begins at a part's edge and ends at it; where an array ends inside of a tile drivers may count the tile or what
    // is seen of it.
    cudaArray_t odd = array_of(word, make_cudaExtent(mw - 28, mh - 100, 0), cudaArraySparse);
    {
        CUarrayMapInfo info = tiles(odd, false, {0, 0, 0, 0, 0, mw - 28, mh - 100, 1}, create(mipmap_bytes), 0);
        const CUmemGenericAllocationHandle memory = info.memHandle.memHandle;
        auto call = program::entry<decltype(&cuMemMapArrayAsync)>("cuMemMapArrayAsync");
        if (call(&info, 1, reinterpret_cast<CUstream>(stream)) != CUDA_SUCCESS) {
            info = tiles(odd, false, {0, 0, 0, 0, 0, mw, mh, 1}, memory, 0);
            map({info}, stream);
        }
        // The tiles alone keep it.
        DRIVER(cuMemRelease, memory);
    }

    std::vector<Part> parts = {{"volume", volume, vw * size_t(4), vh, vd, 4, {}, nullptr},
                               {"later", later, 800, 50, 1, 8, {}, nullptr},
                               {"odd", odd, (mw - 28) * size_t(4), mh - 100, 1, 4, {}, nullptr}};
    static const char *levels[] = {"level0", "level1", "level2", "level3", "level4"};
    for (unsigned n = 0; n < LEVELS; n++) {
        cudaArray_t level;
        CHECK(cudaGetMipmappedArrayLevel(&level, mipmap, n));
        parts.push_back({levels[n], level, (mw >> n) * size_t(4), mh >> n, LAYERS, 4, {}, nullptr});
    }
    for (size_t i = 2; i < parts.size(); i++) parts[i].fill(static_cast<uint32_t>(i), stream);

    for (long step = 0; step < options.steps; step++) {
        const uint32_t seed = static_cast<uint32_t>(step) * 31 + 7;
        // Tiles of the plane come and go, alone and four at once.
        for (int n = 0; n < 3; n++) {
            const uint64_t r = program::mix(seed * 8 + n);
            const unsigned x = r % (ACROSS - 1), y = (r >> 8) % (DOWN - 1);
            const bool four = (r >> 16) % 3 == 0;
            const int first = plane.unused(four ? 4 : 1, static_cast<int>((r >> 24) % Plane::POOL));
            if (four) plane.show(x, y, 2, 2, (r >> 32) % 4 == 0 ? -1 : first, stream);
            else plane.show(x + (r >> 40) % 2, y + (r >> 41) % 2, 1, 1, (r >> 32) % 3 == 0 ? -1 : first, stream);
        }
        plane.change(seed, stream);
        plane.compare("plane", false, plane.mapped, stream, report);
        if (step % 3 == 1) {
            // Another array shows some of the same memory at the same place.
            int showing[ACROSS * DOWN];
            std::vector<CUarrayMapInfo> list, back;
            for (unsigned t = 0; t < ACROSS * DOWN; t++) {
                showing[t] = t % 2 == 0 ? plane.mapped[t] : -1;
                if (showing[t] < 0) continue;
                list.push_back(tiles(plane.twin, false, plane.box(t % ACROSS, t / ACROSS), plane.memory, showing[t] * plane.tile_bytes()));
                back.push_back(tiles(plane.twin, false, plane.box(t % ACROSS, t / ACROSS)));
            }
            if (!list.empty()) {
                map(list, stream);
                options.pace();
                plane.compare("twin", true, showing, stream, report);
                map(back, stream);
            }
        }
        if (step % 4 == 0) {
            // The volume and the array that is mapped as a whole move to the other half of their memory, and are written anew.
            const size_t half = step / 4 % 2;
            if (step > 0) map({tiles(volume, false, {0, 0, 0, 0, 0, vw, vh, vd}), blank(later, false, 0, 0)}, stream);
            map({tiles(volume, false, {0, 0, 0, 0, 0, vw, vh, vd}, volume_memory, half * volume_bytes), blank(later, false, later_memory, half * later_step)},
                stream);
            parts[0].fill(seed, stream);
            parts[1].fill(seed + 1, stream);
        }
        if (step % 5 == 2) {
            // Memory that comes and goes, kept by a tile alone.
            CUmemGenericAllocationHandle brief = create(granule);
            map({tiles(plane.twin, false, plane.box(ACROSS - 1, DOWN - 1), brief, plane.tile_bytes())}, stream);
            DRIVER(cuMemRelease, brief);
            plane.stir_one(true, seed, stream);
            options.pace();
            map({tiles(plane.twin, false, plane.box(ACROSS - 1, DOWN - 1))}, stream);
            const std::vector<int> none(ACROSS * DOWN, -1);
            plane.compare("gone", true, none.data(), stream, report);
        }
        for (size_t i = 0; i < parts.size(); i++)
            if ((step + i) % 3 == 0) parts[i].change(seed, stream);
        CHECK(cudaStreamSynchronize(stream));
        options.pace();
    }
    plane.show(0, 0, ACROSS, DOWN, 0, stream);
    plane.compare("first half", false, plane.mapped, stream, report);
    report.line("array", "plane", plane.out, plane.bytes());
    plane.show(0, 0, ACROSS, DOWN, 15, stream);
    plane.compare("second half", false, plane.mapped, stream, report);
    report.line("array", "plane", plane.out, plane.bytes());
    for (size_t i = options.steps > 0 ? 0 : 2; i < parts.size(); i++) parts[i].finish(report);

    CHECK(cudaDestroyTextureObject(plane.texture));
    CHECK(cudaDestroyTextureObject(plane.twin_texture));
    for (cudaArray_t array : {plane.array, plane.twin, volume, later, odd}) CHECK(cudaFreeArray(array));
    CHECK(cudaFreeMipmappedArray(mipmap));
    for (CUmemGenericAllocationHandle memory : {plane.memory, volume_memory, mipmap_memory, later_memory}) DRIVER(cuMemRelease, memory);
    CHECK(cudaFree(plane.device_out));
    CHECK(cudaFreeHost(plane.out));
    CHECK(cudaStreamDestroy(stream));
    bystanders.end(report);
    return report.finish();
}
