// For mix.cu: blocks of memory of every kind, each with what it must hold.
#pragma once

#include "mix_order.cuh"

#include <memory>
#include <sys/mman.h>

namespace mix {

enum class Kind { Device, Pool, Managed, Pinned, Registered, Plain, Symbol, Constant, Variable, Virtual, Array };

inline const char *name_of(Kind kind) {
    static const char *const NAMES[] = {"device", "pool", "managed", "pinned", "registered", "plain", "symbol", "constant", "variable", "virtual", "array"};
    return NAMES[static_cast<int>(kind)];
}

constexpr size_t SYMBOL_WORDS = 1024, CONSTANT_WORDS = 256;
__device__ uint32_t symbol_words[MAX_THREADS][SYMBOL_WORDS];
__constant__ uint32_t constant_words[MAX_THREADS][CONSTANT_WORDS];

struct Module;

struct Block {
    int number;
    Kind kind;
    size_t size;
    // Where kernels and copies find it; where the host does. Null where they do not.
    char *device = nullptr, *host = nullptr;
    // A second address of the same memory.
    char *alias = nullptr;
    std::vector<unsigned char> want;
    Use writer;
    std::vector<Use> readers;
    // Graphs and tables that name it: it must not be freed.
    int held = 0;
    // An array: its edges, and the objects by which kernels get at it.
    size_t width = 0, height = 0;
    cudaArray_t array = nullptr;
    cudaTextureObject_t texture = 0;
    cudaSurfaceObject_t surface = 0;
    // Virtual memory.
    CUmemGenericAllocationHandle handle = 0;
    size_t mapped = 0;
    cudaMemPool_t pool = nullptr;
    std::shared_ptr<Module> module;
    // A table of addresses: the blocks that it leads to.
    std::vector<Block *> targets;
    History history{16};

    size_t words() const { return size / 4; }
    bool on_host() const { return host != nullptr; }
    bool plain() const { return kind == Kind::Plain; }
    uint32_t *want_words() { return reinterpret_cast<uint32_t *>(want.data()); }
    // Either of its addresses.
    char *address(Random &random) const { return alias != nullptr && random.one_in(2) ? alias : device != nullptr ? device : host; }
    // What must be done before somebody writes to it, or only reads it.
    bool free_for(const Clock &clock, bool writes) const {
        if (!writer.done(clock)) return false;
        return !writes || std::all_of(readers.begin(), readers.end(), [&](const Use &u) { return u.done(clock); });
    }
    void used(Use use, bool writes) {
        if (writes) {
            writer = use;
            readers.clear();
        } else if (!readers.empty() && readers.back().lane == use.lane) {
            readers.back() = use;
        } else {
            readers.push_back(use);
        }
    }
};

// Compares what was read of a block with what it must hold, and ends the program at the first difference.
inline void compare(const Block &block, const void *got, size_t at, size_t size, long step, const char *how) {
    const unsigned char *have = static_cast<const unsigned char *>(got), *want = block.want.data() + at;
    if (std::memcmp(have, want, size) == 0) return;
    size_t first = 0, wrong = 0;
    while (have[first] == want[first]) first++;
    for (size_t i = first; i < size; i++) wrong += have[i] != want[i];
    std::fprintf(stderr, "mix: seed %llu, thread %d, step %ld: block %d (%s, %zu bytes) is wrong, read by %s: %zu bytes differ, the first is byte %zu (%02x for %02x)\n",
                 static_cast<unsigned long long>(seed_of_all), thread_number, step, block.number, name_of(block.kind), block.size, how, wrong,
                 at + first, have[first], want[first]);
    for (size_t i = first & ~size_t(3), shown = 0; i + 4 <= size && shown < 8; i += 4, shown++) {
        uint32_t a, b;
        std::memcpy(&a, have + i, 4);
        std::memcpy(&b, want + i, 4);
        std::fprintf(stderr, "    byte %zu: %08x for %08x\n", at + i, a, b);
    }
    std::fprintf(stderr, "  what was done to block %d:\n", block.number);
    block.history.print();
    std::printf("RESULT wrong\n");
    give_up(1);
}

inline size_t granule() {
    static const size_t size = [] {
        CUmemAllocationProp p = {};
        p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        size_t s = 0;
        DRIVER(cuMemGetAllocationGranularity, &s, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        return s;
    }();
    return size;
}

// Virtual memory: a range, perhaps a second one for the same memory.
inline void map(Block &block, char *at) {
    const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(at);
    DRIVER(cuMemMap, address, block.mapped, 0, block.handle, 0);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess, address, block.mapped, &access, 1);
}

inline void unmap(Block &block, char *at) { DRIVER(cuMemUnmap, reinterpret_cast<CUdeviceptr>(at), block.mapped); }

inline void make_virtual(Block &block, bool twice) {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    block.mapped = granule();
    DRIVER(cuMemCreate, &block.handle, block.mapped, &p, 0);
    for (char **at : {&block.device, &block.alias}) {
        if (at == &block.alias && !twice) break;
        CUdeviceptr address;
        DRIVER(cuMemAddressReserve, &address, block.mapped, 0, 0, 0);
        *at = reinterpret_cast<char *>(address);
        map(block, *at);
    }
}

inline void end_virtual(Block &block) {
    DRIVER(cuMemRelease, block.handle);
    for (char *at : {block.device, block.alias}) {
        if (at == nullptr) continue;
        unmap(block, at);
        DRIVER(cuMemAddressFree, reinterpret_cast<CUdeviceptr>(at), block.mapped);
    }
}

inline void make_array(Block &block, size_t width, size_t height) {
    block.width = width, block.height = height;
    const cudaChannelFormatDesc word = cudaCreateChannelDesc<uint32_t>();
    DO(cudaMallocArray(&block.array, &word, width, height, cudaArraySurfaceLoadStore));
    cudaResourceDesc what = {};
    what.resType = cudaResourceTypeArray;
    what.res.array.array = block.array;
    cudaTextureDesc how = {};
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    DO(cudaCreateTextureObject(&block.texture, &what, &how, nullptr));
    DO(cudaCreateSurfaceObject(&block.surface, &what));
}

inline void end_array(Block &block) {
    DO(cudaDestroyTextureObject(block.texture));
    DO(cudaDestroySurfaceObject(block.surface));
    DO(cudaFreeArray(block.array));
}

inline void make_registered(Block &block) {
    const size_t page = 4096, pages = (block.size + page - 1) / page * page;
    void *memory = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(memory != MAP_FAILED, "mmap");
    block.host = static_cast<char *>(memory);
    block.mapped = pages;
    DO(cudaHostRegister(block.host, block.size, cudaHostRegisterMapped));
    DO(cudaHostGetDevicePointer(reinterpret_cast<void **>(&block.device), block.host, 0));
}

inline void end_registered(Block &block) {
    DO(cudaHostUnregister(block.host));
    munmap(block.host, block.mapped);
}

// What is known of a pointer must fit its block.
inline void look_up(const Block &block) {
    cudaPointerAttributes a;
    char *const at = block.device != nullptr ? block.device : block.host;
    DO(cudaPointerGetAttributes(&a, at + block.size / 2));
    cudaMemoryType type = cudaMemoryTypeDevice;
    if (block.kind == Kind::Managed) type = cudaMemoryTypeManaged;
    if (block.kind == Kind::Pinned || block.kind == Kind::Registered) type = cudaMemoryTypeHost;
    if (block.plain()) type = cudaMemoryTypeUnregistered;
    if (a.type != type) std::fprintf(stderr, "mix: memory of kind %s, %zu bytes, has type %d\n", name_of(block.kind), block.size, static_cast<int>(a.type));
    expect(a.type == type, "type of a pointer");
    if (!block.plain()) expect(a.device == 0 && a.devicePointer == at + block.size / 2, "device pointer");
    if (block.on_host() && !block.plain()) expect(a.hostPointer == block.host + block.size / 2, "host pointer");
    if (block.kind == Kind::Device) {
        CUdeviceptr base;
        size_t size;
        DRIVER(cuMemGetAddressRange, &base, &size, reinterpret_cast<CUdeviceptr>(at + block.size - 1));
        expect(base == reinterpret_cast<CUdeviceptr>(at) && size >= block.size, "address range");
    }
}

} // namespace mix
