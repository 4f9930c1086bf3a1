// External memory: a descriptor of physical memory is imported and mapped as buffers, which are the memory that was exported.
#include "program.cuh"
#include "driver.cuh"


constexpr int BLOCK = 128;
constexpr size_t WORDS = 4096;
constexpr size_t OFFSET = 1 << 20;

__global__ void scramble(uint64_t *cells, uint64_t seed) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    cells[i] = program::mix(cells[i] ^ seed ^ i);
}

static size_t granule;

// Memory of which nothing is left but what was imported.
static cudaExternalMemory_t import(size_t bytes) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    DRIVER(cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUmemGenericAllocationHandle handle;
    DRIVER(cuMemCreate, &handle, (bytes + granule - 1) / granule * granule, &prop, 0);
    cudaExternalMemoryHandleDesc desc = {};
    desc.type = cudaExternalMemoryHandleTypeOpaqueFd;
    desc.size = bytes;
    DRIVER(cuMemExportToShareableHandle, &desc.handle.fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cudaExternalMemory_t memory;
    CHECK(cudaImportExternalMemory(&memory, &desc));
    DRIVER(cuMemRelease, handle);
    return memory;
}

static uint64_t *map(cudaExternalMemory_t memory, size_t offset, size_t bytes) {
    cudaExternalMemoryBufferDesc desc = {};
    desc.offset = offset;
    desc.size = bytes;
    void *buffer;
    CHECK(cudaExternalMemoryGetMappedBuffer(&buffer, memory, &desc));
    return static_cast<uint64_t *>(buffer);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    CHECK(cudaFree(nullptr));
    program::Report report;
    constexpr size_t BYTES = WORDS * sizeof(uint64_t);
    cudaExternalMemory_t memory = import(2 * OFFSET);
    // The second buffer begins inside the first.
    uint64_t *whole = map(memory, 0, 2 * OFFSET), *inner = map(memory, OFFSET, BYTES);
    CHECK(cudaMemset(whole, 0, 2 * OFFSET));
    std::vector<uint64_t> want(2 * WORDS, 0);
    for (long round = 0; round < options.steps; round++) {
        uint64_t seed = program::mix(round);
        scramble<<<WORDS / BLOCK, BLOCK>>>(whole, seed);
        CHECK_LAUNCH();
        // By turns by one address and by the other.
        scramble<<<WORDS / BLOCK, BLOCK>>>(round % 2 ? inner : whole + OFFSET / sizeof(uint64_t), ~seed);
        CHECK_LAUNCH();
        for (size_t i = 0; i < WORDS; i++) {
            want[i] = program::mix(want[i] ^ seed ^ i);
            want[WORDS + i] = program::mix(want[WORDS + i] ^ ~seed ^ i);
        }
        if (round % 10 == 9) {
            CHECK(cudaFree(inner));
            inner = map(memory, OFFSET, BYTES);
        }
        if (round % 20 == 19) {
            // A buffer keeps the memory when all else is gone.
            CHECK(cudaDestroyExternalMemory(memory));
            report.expect_device("first", whole, want.data(), BYTES);
            report.expect_device("second", inner, want.data() + WORDS, BYTES);
            cudaExternalMemory_t next = import(2 * OFFSET);
            uint64_t *copy = map(next, 0, 2 * OFFSET);
            CHECK(cudaMemcpy(copy, whole, 2 * OFFSET, cudaMemcpyDeviceToDevice));
            CHECK(cudaFree(whole));
            CHECK(cudaFree(inner));
            memory = next;
            whole = copy;
            inner = map(memory, OFFSET, BYTES);
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    report.expect_device("first", whole, want.data(), BYTES);
    report.expect_device("second", inner, want.data() + WORDS, BYTES);
    report.allocation("first", whole, BYTES);
    report.allocation("second", inner, BYTES);
    CHECK(cudaFree(whole));
    CHECK(cudaFree(inner));
    CHECK(cudaDestroyExternalMemory(memory));
    return report.finish();
}
