// Arrays without memory of their own: which can be made and how they are tiled, what the calls answer, which order tiles have in a box,
// what is read where nothing is mapped, whether memory keeps what a tile showed, and whether all of it can be carried to other memory
// through planes of words that show it. What the executor does (executor/src/executor/tiles.rs) rests on this table.
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

#define TILE 65536
#define POOL (8ull << 20)
#define U8 CU_AD_FORMAT_UNSIGNED_INT8
#define U16 CU_AD_FORMAT_UNSIGNED_INT16
#define U32 CU_AD_FORMAT_UNSIGNED_INT32
#define F CU_AD_FORMAT_FLOAT
#define H CU_AD_FORMAT_HALF
#define S CUDA_ARRAY3D_SPARSE
#define D CUDA_ARRAY3D_DEFERRED_MAPPING
#define L CUDA_ARRAY3D_LAYERED

static struct range arena = {DRIVER_AT, DRIVER_AT + ARENA};

static CUmemAllocationProp tile_memory(unsigned handles, unsigned rdma) {
    CUmemAllocationProp p = device_memory();
    p.requestedHandleTypes = handles;
    p.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    p.allocFlags.gpuDirectRDMACapable = rdma;
    return p;
}

static CUmemGenericAllocationHandle pool_of(size_t bytes) {
    CUmemAllocationProp p = tile_memory(0, 0);
    CUmemGenericAllocationHandle handle;
    CK(cuMemCreate(&handle, bytes, &p, 0));
    return handle;
}

static CUarray array_of(size_t width, size_t height, size_t depth, unsigned format, unsigned channels, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, format, channels, flags};
    CUarray a;
    CK(cuArray3DCreate(&a, &d));
    return a;
}

// A box of tiles; without memory it is unmapped.
static CUarrayMapInfo box(CUarray a, const unsigned *at, const unsigned *size, CUmemGenericAllocationHandle pool, size_t offset) {
    CUarrayMapInfo m;
    memset(&m, 0, sizeof m);
    m.resourceType = CU_RESOURCE_TYPE_ARRAY;
    m.resource.array = a;
    m.subresource.sparseLevel.offsetX = at[0], m.subresource.sparseLevel.offsetY = at[1], m.subresource.sparseLevel.offsetZ = at[2];
    m.subresource.sparseLevel.extentWidth = size[0], m.subresource.sparseLevel.extentHeight = size[1], m.subresource.sparseLevel.extentDepth = size[2];
    m.memOperationType = pool ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    m.memHandle.memHandle = pool;
    m.offset = offset;
    m.deviceBitMask = 1;
    return m;
}

#define AT(...) ((const unsigned[]){__VA_ARGS__})

// A copy of a box between an array and packed host memory: bytes of a row, rows, slices.
static CUresult copy(CUarray a, void *host, size_t x, size_t y, size_t z, size_t row, size_t rows, size_t slices, int out) {
    CUDA_MEMCPY3D c;
    memset(&c, 0, sizeof c);
    c.WidthInBytes = row, c.Height = rows, c.Depth = slices;
    if (out) {
        c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = a, c.srcXInBytes = x, c.srcY = y, c.srcZ = z;
        c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = host, c.dstPitch = row, c.dstHeight = rows;
    } else {
        c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = a, c.dstXInBytes = x, c.dstY = y, c.dstZ = z;
        c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = host, c.srcPitch = row, c.srcHeight = rows;
    }
    CUresult rc = cuMemcpy3D(&c);
    return rc ? rc : cuCtxSynchronize();
}

// What memory for tiles can be, and what else can be done with it.
static void memory(void) {
    int sparse, deferred;
    CK(cuDeviceGetAttribute(&sparse, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 0));
    CK(cuDeviceGetAttribute(&deferred, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 0));
    ROW("t1", "attributes: sparse arrays, arrays that are mapped later", "%d %d", sparse, deferred);
    for (unsigned how = 0; how < 4; how++) {
        CUmemAllocationProp p = tile_memory(how & 1, how >> 1), back;
        size_t least = 0, best = 0;
        CUresult g1 = cuMemGetAllocationGranularity(&least, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM), g2 = cuMemGetAllocationGranularity(&best, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        CUmemGenericAllocationHandle handle;
        CUresult small = cuMemCreate(&handle, TILE, &p, 0);
        if (!small) CK(cuMemRelease(handle));
        CUresult made = cuMemCreate(&handle, POOL, &p, 0);
        ROW("t1", "memory for tiles (descriptors, network cards)", "%u %u: granularity %d %zu, %d %zu; of 64 KiB: %d; of 8 MiB: %d", how & 1, how >> 1, g1, least, g2, best, small, made);
        if (made) continue;
        CUresult told = cuMemGetAllocationPropertiesFromHandle(&back, handle);
        CUdeviceptr at;
        CUmemAccessDesc access = read_write();
        CK(cuMemAddressReserve(&at, POOL, 0, 0, 0));
        // -1: not tried.
        int mapped = cuMemMap(at, POOL, 0, handle, 0), allowed = mapped ? -1 : (int)cuMemSetAccess(at, POOL, &access, 1);
        int fd = -1;
        CUresult exported = cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        ROW("t1", "    properties; mapped at addresses, access; exported", "%d usage %x handles %x; %d %d; %d", told, back.allocFlags.usage, back.requestedHandleTypes, mapped, allowed, exported);
        if (!allowed) {
            CUresult filled = cuMemsetD8(at, 7, POOL), waited = cuCtxSynchronize();
            ROW("t1", "    filled by its address", "%d %d", filled, waited);
        }
        if (!mapped) CK(cuMemUnmap(at, POOL));
        CK(cuMemAddressFree(at, POOL));
        CK(cuMemRelease(handle));
    }
}

static void shape_of(const char *what, CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels) {
    CUDA_ARRAY_SPARSE_PROPERTIES s;
    CUDA_ARRAY_MEMORY_REQUIREMENTS n;
    CUarray a = 0, level = 0;
    CUmipmappedArray m = 0;
    memset(&s, 0, sizeof s);
    memset(&n, 0, sizeof n);
    CUresult made = levels ? cuMipmappedArrayCreate(&m, &d, levels) : cuArray3DCreate(&a, &d);
    if (made) {
        ROW("t2", what, "%d", made);
        return;
    }
    CUresult sparse = levels ? cuMipmappedArrayGetSparseProperties(&s, m) : cuArrayGetSparseProperties(&s, a);
    CUresult need = levels ? cuMipmappedArrayGetMemoryRequirements(&n, m, 0) : cuArrayGetMemoryRequirements(&n, a, 0);
    ROW("t2", what, "%d; sparse: %d, tile %u %u %u, tail from %u, %llu bytes, flags %x; needs: %d, %zu aligned %zu", made, sparse, s.tileExtent.width, s.tileExtent.height, s.tileExtent.depth,
        s.miptailFirstLevel, s.miptailSize, s.flags, need, n.size, n.alignment);
    if (levels) {
        CK(cuMipmappedArrayGetLevel(&level, m, 0));
        ROW("t2", "    of its first level", "%d %d", cuArrayGetSparseProperties(&s, level), cuArrayGetMemoryRequirements(&n, level, 0));
        CK(cuMipmappedArrayDestroy(m));
    } else {
        if (!sparse) ROW("t2", "    sparse properties to NULL", "%d", cuArrayGetSparseProperties(NULL, a));
        if (!need) ROW("t2", "    requirements to NULL, of device 99, of device -1", "%d %d %d", cuArrayGetMemoryRequirements(NULL, a, 0), cuArrayGetMemoryRequirements(&n, a, 99), cuArrayGetMemoryRequirements(&n, a, -1));
        CK(cuArrayDestroy(a));
    }
}

static void shapes(void) {
#define SHAPE(what, levels, ...) shape_of(what, (CUDA_ARRAY3D_DESCRIPTOR){__VA_ARGS__}, levels)
    SHAPE("plain plane", 0, 1000, 1000, 0, F, 1, 0);
    SHAPE("plane, 1 byte", 0, 1000, 1000, 0, U8, 1, S);
    SHAPE("plane, 2 bytes", 0, 1000, 1000, 0, U16, 1, S);
    SHAPE("plane, 4 bytes", 0, 1000, 1000, 0, F, 1, S);
    SHAPE("plane, 4 bytes, words", 0, 4096, 1024, 0, U32, 1, S);
    SHAPE("plane, 4 bytes of 4 channels", 0, 1000, 1000, 0, U8, 4, S);
    SHAPE("plane, 8 bytes", 0, 1000, 1000, 0, F, 2, S);
    SHAPE("plane, 16 bytes", 0, 1000, 1000, 0, F, 4, S);
    SHAPE("plane for surfaces", 0, 1000, 1000, 0, F, 1, S | CUDA_ARRAY3D_SURFACE_LDST);
    SHAPE("plane for gathering", 0, 1000, 1000, 0, F, 1, S | CUDA_ARRAY3D_TEXTURE_GATHER);
    SHAPE("plane for depth", 0, 1000, 1000, 0, F, 1, S | CUDA_ARRAY3D_DEPTH_TEXTURE);
    SHAPE("small plane", 0, 20, 10, 0, F, 1, S);
    SHAPE("plane of 131072 x 65536", 0, 131072, 65536, 0, F, 4, S);
    SHAPE("line", 0, 100000, 0, 0, F, 1, S);
    SHAPE("volume, 1 byte", 0, 200, 200, 200, U8, 1, S);
    SHAPE("volume, 4 bytes", 0, 200, 200, 200, F, 1, S);
    SHAPE("volume, 8 bytes", 0, 200, 200, 200, F, 2, S);
    SHAPE("volume, 16 bytes", 0, 200, 200, 200, F, 4, S);
    SHAPE("layers of planes", 0, 300, 300, 5, F, 1, S | CUDA_ARRAY3D_LAYERED);
    SHAPE("small layers", 0, 20, 10, 5, F, 1, S | CUDA_ARRAY3D_LAYERED);
    SHAPE("layers of lines", 0, 300, 0, 5, F, 1, S | CUDA_ARRAY3D_LAYERED);
    SHAPE("cubemap", 0, 256, 256, 6, F, 1, S | CUDA_ARRAY3D_CUBEMAP);
    SHAPE("mipmap", 10, 1000, 1000, 0, F, 1, S);
    SHAPE("mipmap of powers of two", 10, 512, 512, 0, F, 1, S);
    SHAPE("mipmap without a tail", 2, 512, 512, 0, F, 1, S);
    SHAPE("mipmap of a volume", 8, 128, 128, 64, F, 1, S);
    SHAPE("mipmap in layers", 10, 512, 512, 3, F, 1, S | CUDA_ARRAY3D_LAYERED);
    SHAPE("small mipmap", 5, 20, 20, 0, F, 1, S);
    SHAPE("later: plane", 0, 100, 50, 0, F, 2, D);
    SHAPE("later: line", 0, 1000, 0, 0, F, 1, D);
    SHAPE("later: volume", 0, 100, 50, 20, F, 1, D);
    SHAPE("later: layers", 0, 100, 50, 3, F, 1, D | CUDA_ARRAY3D_LAYERED);
    SHAPE("later: mipmap", 5, 512, 512, 0, F, 1, D);
    SHAPE("later and sparse", 0, 512, 512, 0, F, 1, S | D);
    CUDA_ARRAY_SPARSE_PROPERTIES s;
    CUDA_ARRAY_MEMORY_REQUIREMENTS n;
    ROW("t2", "of no array: properties, requirements", "%d %d", cuArrayGetSparseProperties(&s, NULL), cuArrayGetMemoryRequirements(&n, NULL, 0));
}

#define MAP(what, ...)                                                                    \
    do {                                                                                  \
        CUarrayMapInfo m_ = __VA_ARGS__;                                                  \
        CUresult rc_ = cuMemMapArrayAsync(&m_, 1, 0), later_ = cuCtxSynchronize();        \
        ROW("t3", what, "%d%s", rc_, later_ ? ", and an error of execution" : "");        \
        if (later_) exit(3);                                                              \
    } while (0)
#define WITH(field, value) ({ CUarrayMapInfo w_ = good; w_.field = (value); w_; })

static void codes(void) {
    CUarray a = array_of(300, 200, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE), plain = array_of(300, 200, 0, CU_AD_FORMAT_FLOAT, 1, 0);
    CUarray later = array_of(100, 50, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING);
    CUmemGenericAllocationHandle pool = pool_of(POOL), other;
    CUmemAllocationProp p = device_memory();
    CK(cuMemCreate(&other, POOL, &p, 0));
    CUarrayMapInfo good = box(a, AT(0, 0, 0), AT(128, 128, 1), pool, 0);
    ROW("t3", "no list; nothing in the list; neither", "%d %d %d", cuMemMapArrayAsync(NULL, 1, 0), cuMemMapArrayAsync(&good, 0, 0), cuMemMapArrayAsync(NULL, 0, 0));
    MAP("a tile", good);
    MAP("the same again", good);
    MAP("to other memory without unmapping", WITH(offset, TILE));
    MAP("unmapped", box(a, AT(0, 0, 0), AT(128, 128, 1), 0, 0));
    MAP("unmapped again", box(a, AT(0, 0, 0), AT(128, 128, 1), 0, 0));
    MAP("all, to the array's edge", box(a, AT(0, 0, 0), AT(300, 200, 1), pool, 0));
    MAP("all, to the tiles' edge", box(a, AT(0, 0, 0), AT(384, 256, 1), pool, 0));
    MAP("the last tile, to the array's edge", box(a, AT(256, 128, 0), AT(44, 72, 1), pool, 0));
    MAP("the last tile, to its edge", box(a, AT(256, 128, 0), AT(128, 128, 1), pool, 0));
    MAP("the last tile, to one edge each", box(a, AT(256, 128, 0), AT(44, 128, 1), pool, 0));
    MAP("beyond", box(a, AT(384, 0, 0), AT(128, 128, 1), pool, 0));
    MAP("too wide", box(a, AT(0, 0, 0), AT(512, 128, 1), pool, 0));
    MAP("begins inside of a tile", box(a, AT(4, 0, 0), AT(128, 128, 1), pool, 0));
    MAP("ends inside of a tile", box(a, AT(0, 0, 0), AT(100, 128, 1), pool, 0));
    MAP("nothing wide", box(a, AT(0, 0, 0), AT(0, 128, 1), pool, 0));
    MAP("depth 0", box(a, AT(0, 0, 0), AT(128, 128, 0), pool, 0));
    MAP("depth 2", box(a, AT(0, 0, 0), AT(128, 128, 2), pool, 0));
    MAP("at depth 1", box(a, AT(0, 0, 1), AT(128, 128, 1), pool, 0));
    MAP("level 1", WITH(subresource.sparseLevel.level, 1));
    MAP("layer 1", WITH(subresource.sparseLevel.layer, 1));
    MAP("memory at 4096", WITH(offset, 4096));
    MAP("memory at the end", WITH(offset, POOL - TILE));
    MAP("memory beyond the end", WITH(offset, POOL));
    MAP("memory for anything but tiles", WITH(memHandle.memHandle, other));
    MAP("no memory", WITH(memHandle.memHandle, 0));
    MAP("unmapped with memory", WITH(memOperationType, CU_MEM_OPERATION_TYPE_UNMAP));
    MAP("operation 0", WITH(memOperationType, 0));
    MAP("operation 3", WITH(memOperationType, 3));
    MAP("kind of memory 1", WITH(memHandleType, 1));
    MAP("part 2", WITH(subresourceType, 2));
    MAP("kind of resource 2", WITH(resourceType, 2));
    MAP("no device", WITH(deviceBitMask, 0));
    MAP("device 1", WITH(deviceBitMask, 2));
    MAP("devices 0 and 1", WITH(deviceBitMask, 3));
    MAP("flags 1", WITH(flags, 1));
    MAP("reserved 1", WITH(reserved[0], 1));
    MAP("a plain array", WITH(resource.array, plain));
    MAP("no array", WITH(resource.array, NULL));
    CUarrayMapInfo tail = WITH(subresourceType, CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL);
    memset(&tail.subresource, 0, sizeof tail.subresource);
    tail.subresource.miptail.size = TILE;
    MAP("a tail that is none", tail);
    CUarrayMapInfo whole = WITH(resource.array, later);
    MAP("later, with a box", whole);
    memset(&whole.subresource, 0xff, sizeof whole.subresource);
    whole.subresourceType = 7;
    MAP("later, with nonsense in its place", whole);
    whole.offset = 4096;
    MAP("later, memory at 4096", whole);
    // A list with something wrong behind.
    CUarrayMapInfo two[2] = {box(a, AT(0, 0, 0), AT(128, 128, 1), 0, 0), good};
    static unsigned words[128], zeros[128];
    for (int i = 0; i < 128; i++) words[i] = 77 + i;
    MAP("a tile", good);
    CK(copy(a, words, 0, 0, 0, 512, 1, 1, 0));
    two[1].deviceBitMask = 0;
    CUresult listed = cuMemMapArrayAsync(two, 2, 0);
    memset(zeros, 7, sizeof zeros);
    CUresult read = copy(a, zeros, 0, 0, 0, 512, 1, 1, 1);
    ROW("t3", "unmapped in a list with something wrong behind; then read", "%d; %d, %s", listed, read, memcmp(words, zeros, 512) ? "it was unmapped" : "it was not");
    // In a capture.
    CUstream stream;
    CUgraph graph;
    CK(cuStreamCreate(&stream, 1));
    CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUresult captured = cuMemMapArrayAsync(&good, 1, stream), ended = cuStreamEndCapture(stream, &graph);
    ROW("t3", "in a capture; its end", "%d %d", captured, ended);
    CK(cuStreamDestroy(stream));
    CK(cuMemRelease(pool));
    MAP("with memory that has been given back, and is mapped", good);
    CK(cuArrayDestroy(a));
    CK(cuArrayDestroy(plain));
    CK(cuArrayDestroy(later));
    CK(cuMemRelease(other));
}

static void map(CUarrayMapInfo m) {
    CK(cuMemMapArrayAsync(&m, 1, 0));
    CK(cuCtxSynchronize());
}

// What tiles show.
static void contents(void) {
    static unsigned words[256 * 256 * 2], back[256 * 256 * 2];
    CUarray a = array_of(512, 512, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SPARSE), b = array_of(512, 512, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SPARSE);
    CUmemGenericAllocationHandle pool = pool_of(POOL);
    char line[200] = "";
    map(box(a, AT(0, 0, 0), AT(256, 256, 1), pool, 0));
    for (unsigned y = 0; y < 256; y++)
        for (unsigned x = 0; x < 256; x++) words[y * 256 + x] = (y / 128 * 2 + x / 128) << 24 | y << 8 | x;
    CK(copy(a, words, 0, 0, 0, 1024, 256, 1, 0));
    for (unsigned t = 0; t < 4; t++) {
        map(box(b, AT(384, 256, 0), AT(128, 128, 1), pool, t * TILE));
        CK(copy(b, back, 384 * 4, 256, 0, 512, 128, 1, 1));
        int whole = 1;
        for (unsigned i = 0; i < 128 * 128; i++) whole &= back[i] >> 24 == back[0] >> 24 && (back[i] & 127) == i % 128 && (back[i] >> 8 & 127) == i / 128;
        sprintf(line + strlen(line), " %u%s", back[0] >> 24, whole ? "" : " (in another order inside)");
    }
    ROW("t4", "a box of 2 x 2 tiles: which tile each piece of memory has (0 1 2 3: by rows)", "%s", line);
    CUarray volume = array_of(64, 64, 32, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SPARSE), one = array_of(64, 64, 32, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SPARSE);
    CUDA_ARRAY_SPARSE_PROPERTIES s;
    CK(cuArrayGetSparseProperties(&s, volume));
    const unsigned w = s.tileExtent.width, h = s.tileExtent.height, d = s.tileExtent.depth;
    if (w * 2 == 64 && h * 2 == 64 && d * 2 == 32) {
        map(box(volume, AT(0, 0, 0), AT(64, 64, 32), pool, 0));
        for (unsigned i = 0; i < 64 * 64 * 32; i++) words[i] = (i / 4096 / d * 4 + i / 64 % 64 / h * 2 + i % 64 / w) << 24 | i;
        CK(copy(volume, words, 0, 0, 0, 256, 64, 32, 0));
        line[0] = 0;
        for (unsigned t = 0; t < 8; t++) {
            map(box(one, AT(0, 0, 0), AT(w, h, d), pool, t * TILE));
            CK(copy(one, back, 0, 0, 0, w * 4, h, d, 1));
            sprintf(line + strlen(line), " %u", back[0] >> 24);
        }
        ROW("t4", "a box of 2 x 2 x 2 tiles (0 1 ... 7: by rows, then slices)", "%s", line);
    }
    // Where nothing is mapped.
    memset(back, 7, sizeof back);
    for (int i = 0; i < 1024; i++) words[i] = i + 5;
    map(box(a, AT(0, 0, 0), AT(256, 256, 1), 0, 0));
    CUresult read = copy(a, back, 0, 0, 0, 1024, 4, 1, 1);
    int zero = 1;
    for (int i = 0; i < 1024; i++) zero &= back[i] == 0;
    ROW("t4", "a copy out where nothing is mapped", "%d, %s", read, zero ? "zeros" : "something else");
    CUresult written = copy(a, words, 0, 0, 0, 1024, 4, 1, 0);
    memset(back, 7, sizeof back);
    read = copy(a, back, 0, 0, 0, 1024, 4, 1, 1);
    zero = 1;
    for (int i = 0; i < 1024; i++) zero &= back[i] == 0;
    ROW("t4", "a copy in, and out again", "%d %d, %s", written, read, zero ? "zeros" : "something else");
    // Memory keeps what a tile showed.
    map(box(a, AT(0, 0, 0), AT(128, 128, 1), pool, 0));
    CK(copy(a, words, 0, 0, 0, 512, 2, 1, 0));
    map(box(a, AT(0, 0, 0), AT(128, 128, 1), 0, 0));
    map(box(a, AT(128, 384, 0), AT(128, 128, 1), pool, 0));
    CK(copy(a, back, 512, 384, 0, 512, 2, 1, 1));
    ROW("t4", "unmapped, and mapped elsewhere in the array", "%s", memcmp(words, back, 1024) ? "something else" : "the same");
    map(box(b, AT(0, 0, 0), AT(128, 128, 1), pool, 0));
    CK(copy(b, back, 0, 0, 0, 512, 2, 1, 1));
    ROW("t4", "mapped in two arrays at once", "%s", memcmp(words, back, 1024) ? "something else" : "the same in both");
    CK(cuMemRelease(pool));
    memset(back, 0, sizeof back);
    CK(copy(b, back, 0, 0, 0, 512, 2, 1, 1));
    ROW("t4", "the memory's handle given back", "%s", memcmp(words, back, 1024) ? "something else" : "still there");
    for (CUarray *x = (CUarray[]){a, b, volume, one, NULL}; *x; x++) CK(cuArrayDestroy(*x));
}

// Planes of words that show all of a pool, as the executor makes them.
static CUarray viewer(CUmemGenericAllocationHandle pool, size_t offset, size_t bytes, unsigned *rows) {
    CUarray v = array_of(4096, bytes / 16384, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SPARSE);
    *rows = bytes / 16384;
    map(box(v, AT(0, 0, 0), AT(4096, *rows, 1), pool, offset));
    return v;
}

struct thing {
    const char *name;
    CUDA_ARRAY3D_DESCRIPTOR d;
    unsigned levels;
    size_t element;
};

// Makes an array and maps all of it to a pool, from its begin on. The levels are in `level`.
static int place(const struct thing *t, CUmemGenericAllocationHandle pool, void **made, CUarray *level) {
    CUarrayMapInfo m;
    CUDA_ARRAY_SPARSE_PROPERTIES s;
    size_t used = 0;
    unsigned layers = t->d.Flags & CUDA_ARRAY3D_LAYERED ? t->d.Depth : 1;
    if (t->levels ? cuMipmappedArrayCreate((CUmipmappedArray *)made, &t->d, t->levels) : cuArray3DCreate((CUarray *)made, &t->d)) return 0;
    level[0] = *made;
    for (unsigned n = 0; n < t->levels; n++) CK(cuMipmappedArrayGetLevel(&level[n], *made, n));
    m = box(*made, AT(0, 0, 0), AT(0, 0, 0), pool, 0);
    if (t->levels) m.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if (t->d.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) return !cuMemMapArrayAsync(&m, 1, 0) && !cuCtxSynchronize();
    CK(t->levels ? cuMipmappedArrayGetSparseProperties(&s, *made) : cuArrayGetSparseProperties(&s, *made));
    unsigned tiled = s.miptailSize ? s.miptailFirstLevel : t->levels ? t->levels : 1;
    for (unsigned layer = 0; layer < layers; layer++) {
        for (unsigned n = 0; n < tiled; n++) {
            size_t volume = layers == 1 && t->d.Depth ? t->d.Depth >> n : 1, height = t->d.Height >> n, width = t->d.Width >> n;
            m.subresource.sparseLevel.level = n, m.subresource.sparseLevel.layer = layer;
            m.subresource.sparseLevel.extentWidth = width, m.subresource.sparseLevel.extentHeight = height, m.subresource.sparseLevel.extentDepth = volume;
            m.offset = used;
            if (cuMemMapArrayAsync(&m, 1, 0)) return 0;
            used += (width + s.tileExtent.width - 1) / s.tileExtent.width * ((height + s.tileExtent.height - 1) / s.tileExtent.height) * ((volume + s.tileExtent.depth - 1) / s.tileExtent.depth) * TILE;
        }
        if (s.miptailSize && (layer == 0 || !(s.flags & CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL))) {
            CUarrayMapInfo tail = m;
            tail.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
            memset(&tail.subresource, 0, sizeof tail.subresource);
            tail.subresource.miptail.layer = layer;
            tail.subresource.miptail.size = (s.miptailSize + TILE - 1) / TILE * TILE;
            tail.offset = used;
            CUresult rc = cuMemMapArrayAsync(&tail, 1, 0);
            if (rc) ROW("t5", "    mapping a tail of so many bytes", "%llu: %d", s.miptailSize, rc);
            if (rc) return 0;
            used += tail.subresource.miptail.size;
        }
    }
    return !cuCtxSynchronize();
}

static size_t of_level(const struct thing *t, unsigned n, size_t *row, size_t *rows, size_t *slices) {
    size_t width = t->d.Width >> n, height = t->d.Height >> n, depth = t->d.Flags & CUDA_ARRAY3D_LAYERED ? t->d.Depth : t->d.Depth >> n;
    *row = (width ? width : 1) * t->element, *rows = height ? height : 1, *slices = depth ? depth : 1;
    return *row * *rows * *slices;
}

static void carried(void) {
    static const struct thing things[] = {
        {"plane of words", {640, 384, 0, F, 1, S}, 0, 4},          {"plane of 16 bytes", {320, 192, 0, F, 4, S}, 0, 16},
        {"plane of bytes", {1024, 512, 0, U8, 1, S}, 0, 1},         {"plane of halves", {512, 256, 0, H, 2, S}, 0, 4},
        {"plane with edges", {300, 200, 0, F, 2, S}, 0, 8},        {"volume", {64, 64, 64, F, 1, S}, 0, 4},
        {"volume with edges", {70, 50, 20, H, 4, S}, 0, 8},        {"layers", {256, 256, 3, F, 1, S | L}, 0, 4},
        {"mipmap with a tail", {512, 512, 0, F, 1, S}, 8, 4},      {"mipmap in layers", {256, 256, 2, H, 4, S | L}, 6, 8},
        {"mipmap of a volume", {64, 64, 32, F, 1, S}, 5, 4},       {"later: plane", {500, 300, 0, F, 2, D}, 0, 8},
        {"later: volume", {60, 50, 40, U8, 4, D}, 0, 4},            {"later: mipmap", {256, 256, 0, F, 4, D}, 6, 16},
    };
    char *raw = malloc(POOL), *want = malloc(POOL), *got = malloc(POOL);
    for (size_t k = 0; k < sizeof things / sizeof *things; k++) {
        const struct thing *t = &things[k];
        CUmemGenericAllocationHandle from = pool_of(POOL), to = pool_of(POOL);
        void *first = NULL, *second = NULL;
        CUarray one[16], two[16];
        unsigned rows, levels = t->levels ? t->levels : 1;
        CUarray v = viewer(from, 0, POOL, &rows), w = viewer(to, 0, POOL, &rows);
        if (!place(t, from, &first, one) || !place(t, to, &second, two)) {
            ROW("t5", t->name, "could not be made or mapped");
            continue;
        }
        size_t row, lines, slices, at = 0;
        for (unsigned n = 0; n < levels; n++) {
            size_t bytes = of_level(t, n, &row, &lines, &slices);
            for (size_t i = 0; i < bytes; i++) want[at + i] = (char)((at + i) * 2654435761u >> 13);
            CK(copy(one[n], want + at, 0, 0, 0, row, lines, slices, 0));
            at += bytes;
        }
        CUresult out = copy(v, raw, 0, 0, 0, 16384, rows, 1, 1), in = copy(w, raw, 0, 0, 0, 16384, rows, 1, 0);
        size_t all = at, seen = 0;
        for (size_t i = 0; i < POOL; i++) seen += raw[i] != 0;
        at = 0;
        for (unsigned n = 0; n < levels; n++) {
            size_t bytes = of_level(t, n, &row, &lines, &slices);
            CK(copy(two[n], got + at, 0, 0, 0, row, lines, slices, 1));
            at += bytes;
        }
        ROW("t5", t->name, "%d %d; %zu bytes written, %zu that are not 0 seen; in the other memory %s", out, in, all, seen, memcmp(want, got, all) ? "DIFFERENT" : "the same");
        CK(cuArrayDestroy(v));
        CK(cuArrayDestroy(w));
        for (void **x = (void *[]){first, second, NULL}; *x; x++) CK(t->levels ? cuMipmappedArrayDestroy(*x) : cuArrayDestroy(*x));
        CK(cuMemRelease(from));
        CK(cuMemRelease(to));
    }
    // The largest viewer, and one after the other.
    CUmemGenericAllocationHandle large = pool_of(1ull << 30);
    unsigned rows;
    double start = now_us();
    CUarray v = viewer(large, 0, 1ull << 30, &rows);
    ROW("t5", "a viewer of 1 GiB: rows, time with its mapping", "%u, %.0f us", rows, now_us() - start);
    CK(cuArrayDestroy(v));
    CK(cuMemRelease(large));
    free(raw), free(want), free(got);
}

#define BESIDE(what, call) BESIDE_IN("t6", what, call)

static CUresult mapped_and_done(CUarrayMapInfo m, CUstream stream) {
    CUresult rc = cuMemMapArrayAsync(&m, 1, stream);
    return rc ? rc : cuStreamSynchronize(stream);
}

static void waiting(void) {
    CUmodule module;
    CUstream other, mine;
    CK(cuModuleLoadData(&module, module_image(1)));
    CUfunction spin = kernel(module, "spin");
    CK(cuStreamCreate(&other, 1));
    CK(cuStreamCreate(&mine, 1));
    CUmemGenericAllocationHandle pool, second;
    CUmemAllocationProp p = tile_memory(0, 0);
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUarray a;
    BESIDE("memory for tiles, beside a running kernel", cuMemCreate(&pool, POOL, &p, 0));
    CK(cuMemCreate(&second, POOL, &p, 0));
    BESIDE("a sparse array", cuArray3DCreate(&a, &d));
    CUarrayMapInfo m = box(a, AT(0, 0, 0), AT(1024, 1024, 1), pool, 0), u = box(a, AT(0, 0, 0), AT(1024, 1024, 1), 0, 0);
    BESIDE("mapping, in another stream", cuMemMapArrayAsync(&m, 1, mine));
    BESIDE("mapping, and waiting for its stream", mapped_and_done(m, mine));
    BESIDE("unmapping, and waiting for its stream", mapped_and_done(u, mine));
    BESIDE("giving back memory that is mapped nowhere", cuMemRelease(second));
    CK(mapped_and_done(m, mine));
    BESIDE("giving back memory that is mapped", cuMemRelease(pool));
    BESIDE("the array's end", cuArrayDestroy(a));
    double start = now_us();
    CK(cuMemCreate(&pool, 64 << 20, &p, 0));
    d.Width = d.Height = 4096;
    CK(cuArray3DCreate(&a, &d));
    CK(mapped_and_done(box(a, AT(0, 0, 0), AT(4096, 4096, 1), pool, 0), mine));
    ROW("t6", "64 MiB of memory, an array, mapping as one box", "%.0f us", now_us() - start);
    static CUarrayMapInfo rows[32], singles[1024];
    for (unsigned y = 0; y < 32; y++) rows[y] = box(a, AT(0, y * 128, 0), AT(4096, 128, 1), pool, y * 32ull * TILE);
    for (unsigned t = 0; t < 1024; t++) singles[t] = box(a, AT(t % 32 * 128, t / 32 * 128, 0), AT(128, 128, 1), pool, t * (size_t)TILE);
    start = now_us();
    CK(cuMemMapArrayAsync(rows, 32, mine));
    CK(cuStreamSynchronize(mine));
    double middle = now_us();
    CK(cuMemMapArrayAsync(singles, 1024, mine));
    CK(cuStreamSynchronize(mine));
    ROW("t6", "the same mapped as 32 rows; as 1024 tiles", "%.0f us; %.0f us", middle - start, now_us() - middle);
    CK(cuArrayDestroy(a));
    CK(cuMemRelease(pool));
}

static CUdeviceptr variable(CUmodule module, const char *name) {
    CUdeviceptr at;
    size_t size;
    CK(cuModuleGetGlobal(&at, &size, module, name));
    return at;
}

// Where modules land after sparse arrays and viewers came, and after they went.
static void placement(int how) {
    static const char *names[] = {"nothing", "a sparse array of 1 GiB", "the same, mapped", "the same, destroyed", "memory and its viewer", "the same, given back"};
    CUmodule first, m[5];
    CUarray a;
    unsigned rows;
    CK(cuModuleLoadData(&first, module_image(0)));
    if (how >= 1 && how <= 3) {
        a = array_of(16384, 16384, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE);
        if (how == 2) map(box(a, AT(0, 0, 0), AT(1024, 1024, 1), pool_of(POOL), 0));
        if (how == 3) CK(cuArrayDestroy(a));
    } else if (how >= 4) {
        CUmemGenericAllocationHandle pool = pool_of(POOL);
        a = viewer(pool, 0, POOL, &rows);
        if (how == 5) CK(cuArrayDestroy(a));
        if (how == 5) CK(cuMemRelease(pool));
    }
    for (int k = 1; k < 5; k++) CK(cuModuleLoadData(&m[k], module_image(k)));
    ROW("t7", names[how], "small %llx %llx, 700 KB %llx, 3 MB %llx, 17 MB %llx", variable(first, "counter") & 0xffffffffff, variable(m[1], "counter") & 0xffffffffff,
        variable(m[2], "zeroed") & 0xffffffffff, variable(m[3], "zeroed") & 0xffffffffff, variable(m[4], "zeroed") & 0xffffffffff);
}

// What may end the context.
static void dangerous(int how) {
    static const char *names[] = {"later, not mapped: a copy out", "later, not mapped: a copy in", "later, unmapped again: a copy out"};
    static unsigned words[64];
    CUarray later = array_of(64, 64, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING);
    if (how == 2) {
        map(box(later, AT(0, 0, 0), AT(0, 0, 0), pool_of(POOL), 0));
        map(box(later, AT(0, 0, 0), AT(0, 0, 0), 0, 0));
    }
    CUresult rc = copy(later, words, 0, 0, 0, 256, 1, 1, how != 1);
    ROW("t8", names[how], "%d, then %d", rc, cuCtxSynchronize());
}

int main(int count, char **arguments) {
    int placing = count > 2 && !strcmp(arguments[1], "placement");
    if (placing) hook_install(dlopen("libcuda.so.1", RTLD_NOW));
    hook_scratch = &arena;
    first_context();
    if (placing) {
        CUmemGenericAllocationHandle handle;
        CUdeviceptr linear;
        CK(cuMemAddressReserve(&linear, ARENA, 0, OWN_AT, 0));
        CK(back(linear, 2 << 20, &handle));
        placement(atoi(arguments[2]));
        return 0;
    }
    if (count > 2) {
        dangerous(atoi(arguments[2]));
        return 0;
    }
    // Each by itself: what ends one, or takes for ever, leaves the others alone.
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"memory", memory}, {"shapes", shapes}, {"contents", contents}, {"carried", carried}, {"waiting", waiting}, {"codes", codes}};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        if (count < 2 || !strcmp(arguments[1], parts[k].name)) parts[k].run();
    return 0;
}
