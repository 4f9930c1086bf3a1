// Arrays, texture and surface objects: which numbers objects get, and whether they come out the same again; which memory
// arrays make libcuda ask for, and whether they move what is loaded after them; what waits; result codes of wrong calls.
// What the recorder does with them (recorder/src/texture.rs) and the order that a journal keeps rest on this table.
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

static CUcontext context;
static struct range arena = {DRIVER_AT, DRIVER_AT + ARENA};
static CUdeviceptr linear;

static CUarray array_of(size_t width, size_t height, size_t depth, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, CU_AD_FORMAT_FLOAT, 1, flags};
    CUarray a;
    CK(cuArray3DCreate(&a, &d));
    return a;
}

static CUtexObject texture(CUarray a, int filter) {
    CUDA_RESOURCE_DESC r;
    CUDA_TEXTURE_DESC t;
    memset(&r, 0, sizeof r);
    memset(&t, 0, sizeof t);
    if (a) {
        r.resType = CU_RESOURCE_TYPE_ARRAY;
        r.res.array.hArray = a;
    } else {
        r.resType = CU_RESOURCE_TYPE_LINEAR;
        r.res.linear.devPtr = linear;
        r.res.linear.format = CU_AD_FORMAT_FLOAT;
        r.res.linear.numChannels = 1;
        r.res.linear.sizeInBytes = 4096;
    }
    t.filterMode = filter ? CU_TR_FILTER_MODE_LINEAR : CU_TR_FILTER_MODE_POINT;
    CUtexObject object = 0;
    CK(cuTexObjectCreate(&object, &r, &t, NULL));
    return object;
}

static CUsurfObject surface(CUarray a) {
    CUDA_RESOURCE_DESC r;
    memset(&r, 0, sizeof r);
    r.resType = CU_RESOURCE_TYPE_ARRAY;
    r.res.array.hArray = a;
    CUsurfObject object = 0;
    CK(cuSurfObjectCreate(&object, &r));
    return object;
}

// Numbers of objects that come and go in different orders.
static void numbers(const char *when) {
    CUarray a = array_of(64, 64, 0, CUDA_ARRAY3D_SURFACE_LDST), b = array_of(64, 64, 0, CUDA_ARRAY3D_SURFACE_LDST);
    unsigned long long t[8], s[4];
    t[0] = texture(a, 0), t[1] = texture(b, 0), t[2] = texture(a, 1), t[3] = texture(0, 0), s[0] = surface(a), s[1] = surface(b), t[4] = texture(a, 0);
    ROW("x1", when, "tex a %llx, b %llx, a linear %llx, memory %llx; surf a %llx, b %llx; tex a again %llx", t[0], t[1], t[2], t[3], s[0], s[1], t[4]);
    CK(cuTexObjectDestroy(t[1]));
    CK(cuSurfObjectDestroy(s[0]));
    t[5] = texture(b, 1), s[2] = surface(a), t[6] = texture(b, 1), s[3] = surface(b);
    ROW("x1", "  tex b and surf a destroyed; then tex, surf, tex, surf", "%llx %llx %llx %llx", t[5], s[2], t[6], s[3]);
    CK(cuTexObjectDestroy(t[6]));
    CK(cuTexObjectDestroy(t[5]));
    t[5] = texture(b, 1), t[6] = texture(b, 1);
    ROW("x1", "  the last two tex destroyed in that order; then two", "%llx %llx", t[5], t[6]);
    // Is any free number to be had by making objects until it comes?
    for (int i = 0; i < 7; i++) CK(cuTexObjectDestroy(t[i]));
    for (int i = 1; i < 4; i++) CK(cuSurfObjectDestroy(s[i]));
    unsigned long long fresh[12];
    char line[256];
    int length = 0;
    for (int i = 0; i < 12; i++) {
        fresh[i] = texture(a, 0);
        length += snprintf(line + length, sizeof line - length, " %llx", fresh[i]);
    }
    ROW("x1", "  all destroyed; then twelve", "%s", line);
    for (int i = 0; i < 12; i++) CK(cuTexObjectDestroy(fresh[i]));
    unsigned long long last = 0, least = ~0ull;
    for (int i = 0; i < 5000; i++) {
        last = texture(a, 0);
        if (last < least) least = last;
        CK(cuTexObjectDestroy(last));
    }
    ROW("x1", "  5000 times made and destroyed: least and last number", "%llx %llx", least, last);
    CK(cuArrayDestroy(a));
    CK(cuArrayDestroy(b));
}

static int shown;
static void phase(const char *name) {
    int small = 0, inside = 0, lines = 0;
    for (; shown < hook_log_count; shown++) {
        struct request *r = &hook_log[shown];
        int earlier = 0;
        for (int i = 0; i < shown && r->hint; i++) earlier |= r->answer >= hook_log[i].answer && r->answer < hook_log[i].answer + hook_log[i].size;
        if (r->size < 1 << 20) small++;
        else if (earlier) inside++;
        else printf("    %-44s %s %012lx size %10lx -> %012lx\n", lines++ ? "" : name, r->hint ? "hint" : "NULL", (unsigned long)r->hint, r->size, r->answer);
    }
    printf("    %-44s inside earlier requests %d, smaller than 1 MB %d\n", lines ? "" : name, inside, small);
}

static CUdeviceptr variable(CUmodule module, const char *name) {
    CUdeviceptr at;
    size_t size;
    CK(cuModuleGetGlobal(&at, &size, module, name));
    return at;
}

// Where modules of small and of large variables land after arrays came, and after they went.
static void placement(int how) {
    static const char *names[] = {"nothing", "arrays of 64 KB, 3 MB, 40 MB kept", "the same, destroyed", "5 texture objects of memory", "a mipmapped array kept", "arrays, textures, surfaces; one array goes, one comes"};
    CUmodule first, m[5];
    CUarray a[4];
    CUmipmappedArray mip;
    CK(cuModuleLoadData(&first, module_image(0)));
    CUDA_ARRAY3D_DESCRIPTOR d = {512, 512, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    phase("before");
    switch (how) {
    case 1:
    case 2:
    case 5:
        a[0] = array_of(128, 128, 0, 0);
        phase("array of 64 KB");
        a[1] = array_of(1024, 768, 0, 2);
        phase("array of 3 MB");
        a[2] = array_of(256, 256, 160, 0);
        phase("array of 40 MB");
        if (how == 5) {
            texture(a[0], 0), texture(a[1], 1), surface(a[1]);
            CK(cuArrayDestroy(a[2]));
            a[3] = array_of(100, 100, 100, 0);
            phase("objects, one array less, one more");
        }
        if (how == 2)
            for (int i = 0; i < 3; i++) CK(cuArrayDestroy(a[i]));
        break;
    case 3:
        for (int i = 0; i < 5; i++) texture(0, 0);
        phase("texture objects");
        break;
    case 4: CK(cuMipmappedArrayCreate(&mip, &d, 10)); phase("mipmapped array"); break;
    }
    for (int k = 1; k < 5; k++) CK(cuModuleLoadData(&m[k], module_image(k)));
    phase("loading four modules");
    ROW("x2", names[how], "small %llx %llx, 700 KB %llx, 3 MB %llx, 17 MB %llx", variable(first, "counter") & 0xffffffffff, variable(m[1], "counter") & 0xffffffffff,
        variable(m[2], "zeroed") & 0xffffffffff, variable(m[3], "zeroed") & 0xffffffffff, variable(m[4], "zeroed") & 0xffffffffff);
}

#define BESIDE(what, call) BESIDE_IN("x3", what, call)

static void waiting(void) {
    CUmodule module;
    CUstream other;
    CUarray a, b;
    CUDA_ARRAY3D_DESCRIPTOR d = {256, 256, 0, CU_AD_FORMAT_FLOAT, 1, 2}, large = {1024, 1024, 16, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray mip;
    CUtexObject t = 0;
    CUDA_RESOURCE_DESC r;
    CUDA_TEXTURE_DESC td;
    static char bytes[256 * 256 * 4];
    CK(cuModuleLoadData(&module, module_image(1)));
    CUfunction spin = kernel(module, "spin");
    CK(cuStreamCreate(&other, 1));
    BESIDE("cuArray3DCreate of 256 KB beside a running kernel", cuArray3DCreate(&a, &d));
    BESIDE("cuArray3DCreate of 64 MB", cuArray3DCreate(&b, &large));
    BESIDE("cuMipmappedArrayCreate", cuMipmappedArrayCreate(&mip, &d, 5));
    memset(&r, 0, sizeof r);
    memset(&td, 0, sizeof td);
    r.resType = CU_RESOURCE_TYPE_ARRAY;
    r.res.array.hArray = a;
    BESIDE("cuTexObjectCreate", cuTexObjectCreate(&t, &r, &td, NULL));
    BESIDE("cuTexObjectDestroy", cuTexObjectDestroy(t));
    BESIDE("cuSurfObjectCreate", cuSurfObjectCreate(&t, &r));
    BESIDE("cuSurfObjectDestroy", cuSurfObjectDestroy(t));
    BESIDE("cuMemcpyHtoA of 64 bytes (legacy stream, the kernel's is not blocking)", cuMemcpyHtoA(a, 0, bytes, 64));
    BESIDE("cuMemcpyAtoH of 64 bytes", cuMemcpyAtoH(bytes, a, 0, 64));
    BESIDE("cuMipmappedArrayDestroy", cuMipmappedArrayDestroy(mip));
    BESIDE("cuArrayDestroy, 64 MB", cuArrayDestroy(b));
    BESIDE("cuArrayDestroy, 256 KB", cuArrayDestroy(a));
    CK(cuCtxSynchronize());
}

#define CODE(what, call) ROW("x4", what, "%d", (call))

static void codes(void) {
    CUarray a, level;
    CUmipmappedArray mip;
    CUtexObject t = 0, again = 0;
    CUsurfObject s = 0;
    CUDA_ARRAY_DESCRIPTOR d = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUDA_ARRAY3D_DESCRIPTOR d3, e3;
    CUDA_ARRAY_MEMORY_REQUIREMENTS need;
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    char bytes[4096];
    size_t smallest;
    CODE("cuArrayCreate NULL", cuArrayCreate(NULL, &d));
    CODE("cuArrayCreate NULL descriptor", cuArrayCreate(&a, NULL));
#define TWO(what, w, h, f, n)                                      \
    do {                                                           \
        CUDA_ARRAY_DESCRIPTOR x = {w, h, f, n};                    \
        CUresult rc = cuArrayCreate(&a, &x);                       \
        ROW("x4", "cuArrayCreate " what, "%d", rc);                \
        if (!rc) CK(cuArrayDestroy(a));                            \
    } while (0)
    TWO("width 0", 0, 64, CU_AD_FORMAT_FLOAT, 1);
    TWO("height 0 (1D)", 64, 0, CU_AD_FORMAT_FLOAT, 1);
    TWO("height 1", 64, 1, CU_AD_FORMAT_FLOAT, 1);
    TWO("3 channels", 64, 64, CU_AD_FORMAT_FLOAT, 3);
    TWO("0 channels", 64, 64, CU_AD_FORMAT_FLOAT, 0);
    TWO("format 0", 64, 64, 0, 1);
    TWO("format 0x77", 64, 64, 0x77, 1);
    TWO("half, 4 channels", 64, 64, CU_AD_FORMAT_HALF, 4);
    TWO("width 131072 x 65536", 131072, 65536, CU_AD_FORMAT_UNSIGNED_INT8, 1);
    TWO("width 131073", 131073, 64, CU_AD_FORMAT_UNSIGNED_INT8, 1);
    TWO("1D width 131073", 131073, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1);
    TWO("height 65537", 64, 65537, CU_AD_FORMAT_UNSIGNED_INT8, 1);
#undef TWO
#define THREE(what, ...)                                           \
    do {                                                           \
        CUDA_ARRAY3D_DESCRIPTOR x = {__VA_ARGS__};                 \
        CUresult rc = cuArray3DCreate(&a, &x);                     \
        ROW("x4", "cuArray3DCreate " what, "%d", rc);              \
        if (!rc) {                                                 \
            CK(cuArray3DGetDescriptor(&e3, a));                    \
            CUDA_ARRAY_DESCRIPTOR e2 = {9, 9, 9, 9};               \
            CUresult two = cuArrayGetDescriptor(&e2, a);           \
            CUresult req = cuArrayGetMemoryRequirements(&need, a, 0); \
            CUresult spa = cuArrayGetSparseProperties(&sparse, a); \
            ROW("x4", "    described as", "%zu %zu %zu format %x channels %u flags %x; 2D: %d %zu %zu; requirements: %d; sparse: %d", e3.Width, e3.Height, e3.Depth, e3.Format, e3.NumChannels, e3.Flags, two, e2.Width, e2.Height, req, spa); \
            CK(cuArrayDestroy(a));                                 \
        }                                                          \
    } while (0)
    THREE("2D", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0);
    THREE("2D surface", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 2);
    THREE("3D", 64, 32, 16, CU_AD_FORMAT_FLOAT, 1, 0);
    THREE("3D height 0, depth 4", 64, 0, 4, CU_AD_FORMAT_FLOAT, 1, 0);
    THREE("1D layered", 64, 0, 4, CU_AD_FORMAT_FLOAT, 1, 1);
    THREE("2D layered", 64, 32, 4, CU_AD_FORMAT_FLOAT, 1, 1);
    THREE("layered, depth 0", 64, 32, 0, CU_AD_FORMAT_FLOAT, 1, 1);
    THREE("layered, depth 2049", 64, 32, 2049, CU_AD_FORMAT_FLOAT, 1, 1);
    THREE("cubemap", 64, 64, 6, CU_AD_FORMAT_FLOAT, 1, 4);
    THREE("cubemap, not square", 64, 32, 6, CU_AD_FORMAT_FLOAT, 1, 4);
    THREE("cubemap, depth 5", 64, 64, 5, CU_AD_FORMAT_FLOAT, 1, 4);
    THREE("cubemap layered, 12", 64, 64, 12, CU_AD_FORMAT_FLOAT, 1, 5);
    THREE("cubemap layered, 13", 64, 64, 13, CU_AD_FORMAT_FLOAT, 1, 5);
    THREE("texture gather", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 8);
    THREE("texture gather, 1D", 64, 0, 0, CU_AD_FORMAT_FLOAT, 1, 8);
    THREE("texture gather, 3D", 64, 64, 4, CU_AD_FORMAT_FLOAT, 1, 8);
    THREE("depth texture", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 16);
    THREE("colour attachment", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 32);
    THREE("sparse", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 64);
    THREE("deferred mapping", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 128);
    THREE("flag 0x200", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0x200);
    THREE("flag 0x10000", 64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0x10000);
    THREE("16384 x 16384 x 16385", 16384, 16384, 16385, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0);
    THREE("16384 x 16384 x 16384 floats", 16384, 16384, 16384, CU_AD_FORMAT_FLOAT, 4, 0);
    THREE("unorm int8x4", 64, 64, 0, CU_AD_FORMAT_UNORM_INT8X4, 4, 0);
    THREE("unorm int8x4, 1 channel", 64, 64, 0, CU_AD_FORMAT_UNORM_INT8X4, 1, 0);
    THREE("BC1", 64, 64, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0);
    THREE("NV12", 64, 64, 0, CU_AD_FORMAT_NV12, 3, 0);
#undef THREE
    memset(&d3, 0, sizeof d3);
    d3 = (CUDA_ARRAY3D_DESCRIPTOR){64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 2};
    for (unsigned n = 0; n < 10; n++) {
        CUresult rc = cuMipmappedArrayCreate(&mip, &d3, n);
        CUresult at = rc ? 999 : cuMipmappedArrayGetLevel(&level, mip, n);
        unsigned last = 99;
        CUresult get = 999;
        if (!rc)
            for (last = 0; last < 12 && !(get = cuMipmappedArrayGetLevel(&level, mip, last)); last++) {}
        ROW("x4", "cuMipmappedArrayCreate 64 x 64 of so many levels", "%u: %d; level %u: %d; first level that is refused %u: %d", n, rc, n, at, last, get);
        if (!rc) CK(cuMipmappedArrayDestroy(mip));
    }
    CK(cuMipmappedArrayCreate(&mip, &d3, 4));
    CK(cuMipmappedArrayGetLevel(&level, mip, 1));
    CUarray level2;
    CK(cuMipmappedArrayGetLevel(&level2, mip, 1));
    ROW("x4", "the same level twice", "%s", level == level2 ? "the same handle" : "two handles");
    CK(cuArray3DGetDescriptor(&e3, level));
    ROW("x4", "level 1 is", "%zu %zu %zu flags %x", e3.Width, e3.Height, e3.Depth, e3.Flags);
    CODE("cuArrayDestroy of a level", cuArrayDestroy(level2));
    CODE("cuArray3DGetDescriptor of it then", cuArray3DGetDescriptor(&e3, level));
    CODE("cuMipmappedArrayDestroy", cuMipmappedArrayDestroy(mip));
    CK(cuArray3DCreate(&a, &d3));
    CODE("cuMemcpyHtoA beyond the end of the first row", cuMemcpyHtoA(a, 250, bytes, 64));
    CODE("cuMemcpyHtoA of two rows", cuMemcpyHtoA(a, 0, bytes, 512));
    CODE("cuMemcpyHtoA unaligned", cuMemcpyHtoA(a, 2, bytes, 4));
    CODE("cuMemcpyHtoA of 0 bytes", cuMemcpyHtoA(a, 0, bytes, 0));
    CODE("cuMemcpyHtoA at the end, 4 bytes", cuMemcpyHtoA(a, 252, bytes, 4));
    CODE("cuMemcpyHtoA beyond the end", cuMemcpyHtoA(a, 256, bytes, 4));
    CODE("cuMemcpyHtoA in the second row", cuMemcpyHtoA(a, 300, bytes, 4));
    CUDA_MEMCPY2D c;
    memset(&c, 0, sizeof c);
    c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = bytes, c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = a, c.WidthInBytes = 16, c.Height = 4;
    CODE("cuMemcpy2D to it", cuMemcpy2D(&c));
    c.dstXInBytes = 2;
    CODE("cuMemcpy2D at x 2 of 4-byte elements", cuMemcpy2D(&c));
    c.dstXInBytes = 244;
    CODE("cuMemcpy2D over the right edge", cuMemcpy2D(&c));
    c.dstXInBytes = 0, c.dstY = 61;
    CODE("cuMemcpy2D over the lower edge", cuMemcpy2D(&c));
    c.dstY = 0, c.WidthInBytes = 6;
    CODE("cuMemcpy2D of 6 bytes", cuMemcpy2D(&c));
    c.WidthInBytes = 16, c.Height = 0;
    CODE("cuMemcpy2D of 0 rows", cuMemcpy2D(&c));
    c.Height = 4, c.dstArray = 0;
    CODE("cuMemcpy2D to no array", cuMemcpy2D(&c));
    c.dstArray = a, c.dstMemoryType = 9;
    CODE("cuMemcpy2D of memory type 9", cuMemcpy2D(&c));
    CUDA_RESOURCE_DESC r, r2;
    CUDA_TEXTURE_DESC td, td2;
    CUDA_RESOURCE_VIEW_DESC v, v2;
    memset(&r, 0, sizeof r), memset(&td, 0, sizeof td), memset(&v, 0, sizeof v);
    r.res.array.hArray = a;
    CODE("cuTexObjectCreate", cuTexObjectCreate(&t, &r, &td, NULL));
    CODE("cuTexObjectGetResourceDesc", cuTexObjectGetResourceDesc(&r2, t));
    CODE("cuTexObjectGetTextureDesc", cuTexObjectGetTextureDesc(&td2, t));
    ROW("x4", "  same as given", "%d %d", r2.res.array.hArray == a, memcmp(&td, &td2, sizeof td) == 0);
    CODE("cuTexObjectGetResourceViewDesc without view", cuTexObjectGetResourceViewDesc(&v2, t));
    CODE("cuTexObjectCreate: NULL", cuTexObjectCreate(NULL, &r, &td, NULL));
    CODE("cuTexObjectCreate: no resource", cuTexObjectCreate(&again, NULL, &td, NULL));
    CODE("cuTexObjectCreate: no texture descriptor", cuTexObjectCreate(&again, &r, NULL, NULL));
    r.flags = 1;
    CODE("cuTexObjectCreate: resource flags 1", cuTexObjectCreate(&again, &r, &td, NULL));
    r.flags = 0, td.flags = 0x100;
    CODE("cuTexObjectCreate: texture flags 0x100", cuTexObjectCreate(&again, &r, &td, NULL));
    td.flags = 0, td.addressMode[0] = 7;
    CODE("cuTexObjectCreate: address mode 7", cuTexObjectCreate(&again, &r, &td, NULL));
    td.addressMode[0] = 0, td.filterMode = 5;
    CODE("cuTexObjectCreate: filter 5", cuTexObjectCreate(&again, &r, &td, NULL));
    td.filterMode = 0, td.maxAnisotropy = 99;
    CODE("cuTexObjectCreate: anisotropy 99", cuTexObjectCreate(&again, &r, &td, NULL));
    if (again) cuTexObjectDestroy(again);
    td.maxAnisotropy = 0, r.resType = 9;
    CODE("cuTexObjectCreate: resource type 9", cuTexObjectCreate(&again, &r, &td, NULL));
    r.resType = CU_RESOURCE_TYPE_LINEAR;
    r.res.linear.devPtr = linear, r.res.linear.format = CU_AD_FORMAT_FLOAT, r.res.linear.numChannels = 1, r.res.linear.sizeInBytes = 4096;
    CODE("cuTexObjectCreate: memory", cuTexObjectCreate(&again, &r, &td, NULL));
    CODE("cuTexObjectDestroy", cuTexObjectDestroy(again));
    CODE("cuTexObjectDestroy again", cuTexObjectDestroy(again));
    CODE("cuTexObjectDestroy of 0", cuTexObjectDestroy(0));
    CODE("cuTexObjectDestroy of 0x123456789", cuTexObjectDestroy(0x123456789ull));
    r.res.linear.devPtr = linear + 4;
    CODE("cuTexObjectCreate: memory at +4", cuTexObjectCreate(&again, &r, &td, NULL));
    r.res.linear.devPtr = linear, r.res.linear.sizeInBytes = 1ull << 40;
    CODE("cuTexObjectCreate: memory, too large", cuTexObjectCreate(&again, &r, &td, NULL));
    r.res.linear.sizeInBytes = 0;
    CODE("cuTexObjectCreate: memory, 0 bytes", cuTexObjectCreate(&again, &r, &td, NULL));
    r.res.linear.sizeInBytes = 64, r.res.linear.devPtr = 0x1234000;
    CODE("cuTexObjectCreate: not memory", cuTexObjectCreate(&again, &r, &td, NULL));
    r.res.linear.devPtr = linear, r.res.linear.numChannels = 3;
    CODE("cuTexObjectCreate: memory, 3 channels", cuTexObjectCreate(&again, &r, &td, NULL));
    memset(&r, 0, sizeof r);
    r.resType = CU_RESOURCE_TYPE_PITCH2D;
    r.res.pitch2D.devPtr = linear, r.res.pitch2D.format = CU_AD_FORMAT_FLOAT, r.res.pitch2D.numChannels = 1, r.res.pitch2D.width = 16, r.res.pitch2D.height = 8;
    static const size_t pitches[] = {64, 32, 96, 128, 512, 48};
    for (unsigned i = 0; i < sizeof pitches / sizeof *pitches; i++) {
        r.res.pitch2D.pitchInBytes = pitches[i];
        CUresult rc = cuTexObjectCreate(&again, &r, &td, NULL);
        ROW("x4", "cuTexObjectCreate: rows of 64 bytes with a pitch", "%zu: %d", pitches[i], rc);
        if (!rc) CK(cuTexObjectDestroy(again));
    }
    CODE("cuSurfObjectCreate of memory", cuSurfObjectCreate(&s, &r));
    memset(&r, 0, sizeof r);
    CODE("cuSurfObjectCreate of no array", cuSurfObjectCreate(&s, &r));
    CUarray plain = array_of(64, 64, 0, 0);
    r.res.array.hArray = plain;
    CODE("cuSurfObjectCreate of an array without the flag", cuSurfObjectCreate(&s, &r));
    r.res.array.hArray = a;
    CODE("cuSurfObjectCreate", cuSurfObjectCreate(&s, &r));
    CODE("cuSurfObjectGetResourceDesc", cuSurfObjectGetResourceDesc(&r2, s));
    CODE("cuSurfObjectGetResourceDesc of a texture's number", cuSurfObjectGetResourceDesc(&r2, t));
    CODE("cuTexObjectGetResourceDesc of a surface's number", cuTexObjectGetResourceDesc(&r2, s));
    CODE("cuArrayDestroy while objects use it", cuArrayDestroy(a));
    CODE("cuTexObjectGetResourceDesc then", cuTexObjectGetResourceDesc(&r2, t));
    CODE("cuTexObjectDestroy then", cuTexObjectDestroy(t));
    CODE("cuSurfObjectDestroy then", cuSurfObjectDestroy(s));
    CODE("cuSurfObjectDestroy again", cuSurfObjectDestroy(s));
    CUDA_ARRAY3D_DESCRIPTOR probe = {100, 10, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    size_t before, after, total;
    CK(cuMemGetInfo(&before, &total));
    CUarray many[64];
    for (int i = 0; i < 64; i++) CK(cuArray3DCreate(&many[i], &probe));
    CK(cuMemGetInfo(&after, &total));
    ROW("x4", "64 arrays of 4 KB take", "%zu KB", (before - after) >> 10);
    for (int i = 0; i < 64; i++) CK(cuArrayDestroy(many[i]));
    (void)smallest;
    (void)v2;
}

// Is what is read from an array that was never written the same each time, and are all its bytes readable?
static void contents(void) {
    CUarray a = array_of(1000, 37, 0, 2);
    static float first[37][1000], second[37][1000];
    CUDA_MEMCPY2D c;
    memset(&c, 0, sizeof c);
    c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = a, c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = first, c.WidthInBytes = 4000, c.Height = 37;
    CK(cuMemcpy2D(&c));
    c.dstHost = second;
    CK(cuMemcpy2D(&c));
    ROW("x5", "an array that was never written reads", "%s", memcmp(first, second, sizeof first) ? "differently each time" : "the same each time");
    // Through memory of the device, in parts of rows, as a move does it.
    for (int i = 0; i < 37000; i++) ((float *)first)[i] = (float)i;
    c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = first, c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = a;
    CK(cuMemcpy2D(&c));
    CUdeviceptr stage;
    CK(cuMemAlloc(&stage, sizeof first));
    CUDA_MEMCPY3D c3;
    memset(&c3, 0, sizeof c3);
    c3.srcMemoryType = CU_MEMORYTYPE_ARRAY, c3.srcArray = a, c3.dstMemoryType = CU_MEMORYTYPE_DEVICE, c3.dstDevice = stage, c3.dstPitch = 4000, c3.WidthInBytes = 4000, c3.Height = 37, c3.Depth = 1;
    CUresult rc = cuMemcpy3DAsync(&c3, 0);
    memset(second, 0, sizeof second);
    CK(cuMemcpyDtoH(second, stage, sizeof second));
    ROW("x5", "through packed rows of 4000 bytes of device memory", "error %d, %s", rc, memcmp(first, second, sizeof first) ? "DIFFERENT" : "equal");
    CK(cuArrayDestroy(a));
}

int main(int count, char **arguments) {
    if (count > 1) hook_install(dlopen("libcuda.so.1", RTLD_NOW));
    hook_scratch = &arena;
    context = first_context();
    if (count > 1) {
        CUmemGenericAllocationHandle handle;
        CK(cuMemAddressReserve(&linear, ARENA, 0, OWN_AT, 0));
        CK(back(linear, 2 << 20, &handle));
        placement(atoi(arguments[1]));
        return 0;
    }
    CK(cuMemAlloc(&linear, 1 << 20));
    numbers("first context");
    CK(cuMemFree(linear));
    CK(cuDevicePrimaryCtxReset(0));
    CK(cuDevicePrimaryCtxRetain(&context, 0));
    CK(cuCtxSetCurrent(context));
    CK(cuMemAlloc(&linear, 1 << 20));
    numbers("after a reset");
    contents();
    waiting();
    codes();
    return 0;
}
