// The virtual-memory functions: a buffer that grows and shrinks in place, memory that is mapped twice, and memory that keeps
// its contents while it is not mapped at all.
#include "program.cuh"
#include "driver.cuh"


constexpr int BLOCK = 128;
constexpr size_t MAX_GRANULES = 12;     // granules of the growing buffer
constexpr size_t WORDS = 2048;  // of each granule that are used

static size_t granule;

static CUmemAllocationProp prop() {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return p;
}

static CUmemGenericAllocationHandle create(size_t granules) {
    CUmemAllocationProp p = prop();
    CUmemGenericAllocationHandle handle;
    DRIVER(cuMemCreate, &handle, granules * granule, &p, 0);
    return handle;
}

static void map(CUdeviceptr at, size_t granules, CUmemGenericAllocationHandle handle) {
    DRIVER(cuMemMap, at, granules * granule, 0, handle, 0);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess, at, granules * granule, &access, 1);
}

// Scrambles the words at the start of each granule; each granule also takes the word of the one before it.
__global__ void scramble(uint64_t *buffer, size_t stride, int granules, uint64_t seed) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    uint64_t carry = seed;
    for (int g = 0; g < granules; g++) {
        uint64_t *word = buffer + g * stride + i;
        *word = program::mix(*word ^ carry);
        carry = *word;
    }
}

__global__ void clear(uint64_t *words) { words[blockIdx.x * BLOCK + threadIdx.x] = 0; }

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    CHECK(cudaFree(nullptr));
    CUmemAllocationProp p = prop();
    DRIVER(cuMemGetAllocationGranularity, &granule, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUdeviceptr base, first, second;
    DRIVER(cuMemAddressReserve, &base, 256 * granule, 0, 0, 0);
    DRIVER(cuMemAddressReserve, &first, 2 * granule, 0, 0, 0);
    DRIVER(cuMemAddressReserve, &second, 2 * granule, 0, 0, 0);
    CUmemGenericAllocationHandle twice = create(2), resting = create(1);
    map(first, 2, twice);
    map(second, 2, twice);
    map(base + 200 * granule, 1, resting);
    program::Bystanders bystanders;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto words = [](CUdeviceptr at) { return reinterpret_cast<uint64_t *>(at); };
    const int blocks = WORDS / BLOCK;
    const size_t stride = granule / sizeof(uint64_t);
    clear<<<blocks, BLOCK, 0, stream>>>(words(first));
    clear<<<blocks, BLOCK, 0, stream>>>(words(first + granule));
    clear<<<blocks, BLOCK, 0, stream>>>(words(base + 200 * granule));
    CHECK_LAUNCH();

    std::vector<CUmemGenericAllocationHandle> handles;
    std::vector<std::vector<uint64_t>> want, alias(2, std::vector<uint64_t>(WORDS, 0));
    std::vector<uint64_t> rest(WORDS, 0);
    auto host = [](std::vector<std::vector<uint64_t>> &buffer, uint64_t seed) {
        for (size_t i = 0; i < WORDS; i++) {
            uint64_t carry = seed;
            for (auto &g : buffer) carry = g[i] = program::mix(g[i] ^ carry);
        }
    };
    for (long step = 0; step < options.steps; step++) {
        // Twelve steps up, twelve down, and again.
        const size_t phase = static_cast<size_t>(step) % (2 * MAX_GRANULES);
        if (phase < MAX_GRANULES) {
            CUmemGenericAllocationHandle handle = create(1);
            CUdeviceptr at = base + handles.size() * granule;
            map(at, 1, handle);
            clear<<<blocks, BLOCK, 0, stream>>>(words(at));
            CHECK_LAUNCH();
            // Half of them are kept by their mapping alone.
            if (handles.size() % 2 == 0) {
                DRIVER(cuMemRelease, handle);
                handle = 0;
            }
            handles.push_back(handle);
            want.emplace_back(WORDS, 0);
        } else {
            CHECK(cudaStreamSynchronize(stream));
            DRIVER(cuMemUnmap, base + (handles.size() - 1) * granule, granule);
            if (handles.back() != 0) DRIVER(cuMemRelease, handles.back());
            handles.pop_back();
            want.pop_back();
        }
        scramble<<<blocks, BLOCK, 0, stream>>>(words(base), stride, static_cast<int>(handles.size()), step);
        // Through one address, then through the other.
        scramble<<<blocks, BLOCK, 0, stream>>>(words(step % 2 == 0 ? first : second), stride, 2, step + 1);
        CHECK_LAUNCH();
        host(want, step);
        host(alias, step + 1);
        CHECK(cudaStreamSynchronize(stream));
        // At rest except for this moment.
        if (step % 3 == 0) {
            if (step > 0) map(base + 200 * granule, 1, resting);
            scramble<<<blocks, BLOCK, 0, stream>>>(words(base + 200 * granule), stride, 1, step + 2);
            CHECK_LAUNCH();
            CHECK(cudaStreamSynchronize(stream));
            DRIVER(cuMemUnmap, base + 200 * granule, granule);
            for (uint64_t &word : rest) word = program::mix(word ^ static_cast<uint64_t>(step + 2));
        }
        options.pace();
    }
    if (options.steps == 0) DRIVER(cuMemUnmap, base + 200 * granule, granule);
    map(base + 200 * granule, 1, resting);
    CHECK(cudaDeviceSynchronize());

    auto granule_of = [&](const char *name, CUdeviceptr at, const std::vector<uint64_t> &expected) {
        report.expect_device(name, words(at), expected.data(), WORDS * sizeof(uint64_t));
        report.allocation(name, words(at), WORDS * sizeof(uint64_t));
    };
    for (size_t g = 0; g < want.size(); g++) granule_of(("granule" + std::to_string(g)).c_str(), base + g * granule, want[g]);
    for (int g = 0; g < 2; g++) {
        granule_of("first", first + g * granule, alias[g]);
        granule_of("second", second + g * granule, alias[g]);
    }
    granule_of("resting", base + 200 * granule, rest);
    if (want.size() > 1) {
        // A copy may span memory that was made apart.
        std::vector<unsigned char> both(granule);
        CHECK(cudaMemcpy(both.data(), words(base + granule / 2), granule, cudaMemcpyDeviceToHost));
        report.expect("spanning", both.data() + granule / 2, want[1].data(), WORDS * sizeof(uint64_t));
    }
    CUmemGenericAllocationHandle again;
    DRIVER(cuMemRetainAllocationHandle, &again, reinterpret_cast<void *>(second));
    DRIVER(cuMemRelease, again);
    int descriptor;
    DRIVER(cuMemExportToShareableHandle, &descriptor, twice, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    DRIVER(cuMemUnmap, first, 2 * granule);
    DRIVER(cuMemUnmap, second, 2 * granule);
    DRIVER(cuMemRelease, twice);
    // The descriptor alone keeps it.
    CUmemGenericAllocationHandle imported;
    DRIVER(cuMemImportFromShareableHandle, &imported, reinterpret_cast<void *>(static_cast<intptr_t>(descriptor)),
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(descriptor);
    map(first, 2, imported);
    granule_of("imported", first, alias[0]);
    DRIVER(cuMemUnmap, first, 2 * granule);
    DRIVER(cuMemRelease, imported);
    for (size_t g = 0; g < handles.size(); g++) {
        DRIVER(cuMemUnmap, base + g * granule, granule);
        if (handles[g] != 0) DRIVER(cuMemRelease, handles[g]);
    }
    DRIVER(cuMemUnmap, base + 200 * granule, granule);
    DRIVER(cuMemRelease, resting);
    DRIVER(cuMemAddressFree, first, 2 * granule);
    DRIVER(cuMemAddressFree, second, 2 * granule);
    DRIVER(cuMemAddressFree, base, 256 * granule);
    CHECK(cudaStreamDestroy(stream));
    bystanders.end(report);
    return report.finish();
}
