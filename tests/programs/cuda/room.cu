// Memory that was freed makes room for memory of every other kind. The device is filled and a part of it freed, and its place is taken by
// memory for tiles, by an array, and by a mipmapped array; each is freed again for the next one. Needs a device of 512 MiB.

#include "program.cuh"

#include "driver.cuh"

constexpr size_t PART = size_t(40) << 20, TILE_MEMORY = size_t(32) << 20, WIDTH = 4096;

// Blocks that fill the device.
static std::vector<void *> fill() {
    std::vector<void *> blocks;
    void *block;
    while (cudaMalloc(&block, PART) == cudaSuccess) blocks.push_back(block);
    if (cudaGetLastError() != cudaErrorMemoryAllocation) std::_Exit(3);
    return blocks;
}

// Whether a kind of memory takes the place of a freed block.
template <class Make> static void expect_room(const char *what, Make make) {
    std::vector<void *> blocks = fill();
    if (blocks.size() < 2) std::_Exit(4);
    CHECK(cudaFree(blocks.back()));
    blocks.pop_back();
    std::printf("%s: %d\n", what, make());
    for (void *block : blocks) CHECK(cudaFree(block));
}

static int make_tile_memory() {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    CUmemGenericAllocationHandle handle;
    CUresult made = program::entry<decltype(&cuMemCreate)>("cuMemCreate")(&handle, TILE_MEMORY, &prop, 0);
    if (made == CUDA_SUCCESS) DRIVER(cuMemRelease, handle);
    return made;
}

static int make_array() {
    CUDA_ARRAY3D_DESCRIPTOR shape = {WIDTH, TILE_MEMORY / WIDTH / 4, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUarray array;
    CUresult made = program::entry<decltype(&cuArray3DCreate)>("cuArray3DCreate")(&array, &shape);
    if (made == CUDA_SUCCESS) DRIVER(cuArrayDestroy, array);
    return made;
}

static int make_mipmap() {
    CUDA_ARRAY3D_DESCRIPTOR shape = {WIDTH, TILE_MEMORY / WIDTH / 8, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray array;
    CUresult made = program::entry<decltype(&cuMipmappedArrayCreate)>("cuMipmappedArrayCreate")(&array, &shape, 4);
    if (made == CUDA_SUCCESS) DRIVER(cuMipmappedArrayDestroy, array);
    return made;
}

int main() {
    CHECK(cudaFree(nullptr));
    expect_room("memory for tiles", make_tile_memory);
    expect_room("array", make_array);
    expect_room("mipmapped array", make_mipmap);
    std::printf("RESULT ok\n");
}
