// Fills a GPU: threads allocate blocks in one way, each until it has so many or finds no memory, and fill them. In the end every block must
// have what was written to it.
//
// Usage: full WAY THREADS BLOCKS MIB: WAY is alloc, pitch, async, pool, create, array or graph. Prints how many blocks there were in all.
// Exit code: 0 right, 1 wrong, 2 a call failed otherwise than for want of memory.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*call)();
typedef unsigned long long address;
enum { OUT_OF_MEMORY = 2, ROW = 1 << 16, MOST = 4096 };

static void *cuda, *context;
static const char *way;
static size_t bytes;
static int wanted;

static call find(const char *name) {
    call found = (call)dlsym(cuda, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

static void check(const char *name, int code) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", name, code);
        exit(2);
    }
}
#define TRY(name, ...) find(#name)(__VA_ARGS__)
#define CUDA(name, ...) check(#name, TRY(name, __VA_ARGS__))

static int is(const char *name) { return !strcmp(way, name); }

// Physical memory of the GPU, mapped where the program chooses.
static int create(address *at) {
    struct { int type, handles, location, device; void *win32; char flags[8]; } property = {1, 0, 1, 0, NULL, {0}};
    struct { int type, device, flags; } access = {1, 0, 3};
    address handle;
    int code = TRY(cuMemCreate, &handle, bytes, &property, 0ull);
    if (code) return code;
    CUDA(cuMemAddressReserve, at, bytes, (size_t)0, 0ull, 0ull);
    CUDA(cuMemMap, *at, bytes, (size_t)0, handle, 0ull);
    CUDA(cuMemRelease, handle);
    CUDA(cuMemSetAccess, *at, bytes, &access, (size_t)1);
    return 0;
}

static int array(address *made) {
    struct { size_t width, height; int format; unsigned channels; } shape = {ROW / 4, bytes / ROW, 3, 1};
    return TRY(cuArrayCreate_v2, made, &shape);
}

// A node that allocates has its memory from the time when it is added.
static int node(address *at) {
    struct { int type, handles, location, device; void *win32; size_t most; unsigned char rest[56]; } pool = {1, 0, 1, 0};
    struct { unsigned char pool[88]; void *access; size_t count, bytes; address at; } parameters = {{0}, NULL, 0, bytes, 0};
    void *graph, *added;
    memcpy(parameters.pool, &pool, sizeof pool < 88 ? sizeof pool : 88);
    CUDA(cuGraphCreate, &graph, 0u);
    int code = TRY(cuGraphAddMemAllocNode, &added, graph, NULL, (size_t)0, &parameters);
    if (code) return code;
    void *instance;
    CUDA(cuGraphInstantiateWithFlags, &instance, graph, 0ull);
    CUDA(cuGraphLaunch, instance, NULL);
    *at = parameters.at;
    return 0;
}

static int make(address *at, void *pool) {
    size_t pitch;
    if (is("alloc")) return TRY(cuMemAlloc_v2, at, bytes);
    if (is("pitch")) return TRY(cuMemAllocPitch_v2, at, &pitch, (size_t)ROW, bytes / ROW, 4u);
    if (is("async")) return TRY(cuMemAllocAsync, at, bytes, NULL);
    if (is("pool")) return TRY(cuMemAllocFromPoolAsync, at, bytes, pool, NULL);
    if (is("create")) return create(at);
    if (is("array")) return array(at);
    if (is("graph")) return node(at);
    exit(64);
}

static void transfer(address at, unsigned *words, int out) {
    if (!is("array")) {
        if (out) CUDA(cuMemcpyDtoH_v2, words, at, bytes);
        else CUDA(cuMemcpyHtoD_v2, at, words, bytes);
        return;
    }
    // Rows of the array, from or to host memory.
    struct side { size_t x, y; int kind, pad; void *host; address device, array; size_t pitch; };
    struct { struct side from, to; size_t width, height; } copy;
    memset(&copy, 0, sizeof copy);
    copy.from = (struct side){.kind = out ? 3 : 1, .host = words, .array = at, .pitch = ROW};
    copy.to = (struct side){.kind = out ? 1 : 3, .host = words, .array = at, .pitch = ROW};
    copy.width = ROW, copy.height = bytes / ROW;
    CUDA(cuMemcpy2D_v2, &copy);
}

static void *fill(void *number) {
    static int device = 0;
    unsigned seed = (unsigned)(size_t)number << 16;
    unsigned *words = malloc(bytes);
    address *blocks = calloc(MOST, sizeof *blocks);
    void *pool = NULL;
    size_t made = 0;
    CUDA(cuCtxSetCurrent, context);
    if (is("pool")) CUDA(cuDeviceGetDefaultMemPool, &pool, device);
    for (int code = 0; made < (size_t)wanted && made < MOST; made++) {
        code = make(&blocks[made], pool);
        if (code == OUT_OF_MEMORY) {
            fprintf(stderr, "full after %zu blocks\n", made);
            break;
        }
        check("an allocation", code);
        for (size_t i = 0; i < bytes / 4; i++) words[i] = seed + (unsigned)made * 7919 + (unsigned)i * 31;
        transfer(blocks[made], words, 0);
    }
    for (size_t n = 0; n < made; n++) {
        memset(words, 0, bytes);
        transfer(blocks[n], words, 1);
        for (size_t i = 0; i < bytes / 4; i++) {
            if (words[i] != seed + (unsigned)n * 7919 + (unsigned)i * 31) {
                fprintf(stderr, "word %zu of block %zu is %u\n", i, n, words[i]);
                exit(1);
            }
        }
    }
    return (void *)made;
}

int main(int argc, char **argv) {
    if (argc != 5) return 64;
    way = argv[1];
    int threads = atoi(argv[2]), device;
    wanted = atoi(argv[3]);
    bytes = (size_t)atoi(argv[4]) << 20;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    CUDA(cuInit, 0);
    CUDA(cuDeviceGet, &device, 0);
    CUDA(cuDevicePrimaryCtxRetain, &context, device);
    pthread_t all[64];
    size_t blocks = 0;
    for (int n = 0; n < threads; n++) pthread_create(&all[n], NULL, fill, (void *)(size_t)(n + 1));
    for (int n = 0; n < threads; n++) {
        void *made;
        pthread_join(all[n], &made);
        blocks += (size_t)made;
    }
    printf("%zu blocks\nRESULT ok\n", blocks);
    return 0;
}
