// The device heap: where it is, how big, and whether its raw bytes can be moved.
//
//   heap extent LIMIT_MB       first address, range that malloc gives out, what the driver answers
//   heap write FILE LIMIT_MB   builds lists, writes the raw heap to FILE, goes on with them
//   heap read FILE LIMIT_MB USED   in a fresh process puts the bytes back, walks the lists, goes on;
//                              USED: 0 heap untouched, 1 after one malloc, 2 after many
#include "facts.h"

static CUmodule module;
static CUdeviceptr out, stage;

static void start(size_t limit_mb) {
    CUmemGenericAllocationHandle handle;
    first_context();
    if (limit_mb) CK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, limit_mb << 20));
    CK(cuMemAddressReserve(&out, ARENA, 0, OWN_AT, 0));
    CK(back(out, 256 << 20, &handle));
    stage = out + (32 << 20);
    CK(cuModuleLoadData(&module, module_image(0)));
}

static CUresult run(const char *name, void **arguments) {
    CUresult result = launch(kernel(module, name), 1, 1, 0, arguments);
    return result ? result : cuCtxSynchronize();
}

static size_t limit_bytes(void) {
    size_t limit;
    CK(cuCtxGetLimit(&limit, CU_LIMIT_MALLOC_HEAP_SIZE));
    return limit;
}

static CUdeviceptr first_block(void) {
    int with_heap = 1;
    unsigned long long seen[12];
    CK(run("probe", (void *[]){&out, &with_heap}));
    CK(cuMemcpyDtoH(seen, out, sizeof seen));
    return seen[11];
}

// Blocks of `size` that the heap still has, and the range they span.
static void extent(unsigned long long size, unsigned long long result[3]) {
    CUdeviceptr table = out + (8 << 20);
    unsigned long long room = (16 << 20) / 8;
    CK(run("heap_extent", (void *[]){&out, &size, &table, &room}));
    CK(cuMemcpyDtoH(result, out, 3 * sizeof *result));
}

static CUresult raw_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    unsigned long long words = bytes / 8;
    CUresult result = launch(kernel(module, "raw_copy"), 132, 256, 0, (void *[]){&to, &from, &words});
    return result ? result : cuCtxSynchronize();
}

static void walk(unsigned long long result[4]) {
    CK(run("heap_walk", (void *[]){&out}));
    CK(cuMemcpyDtoH(result, out, 4 * sizeof *result));
}

// Frees and allocates on, and says what that took: a heap put back badly is slow or wrong.
static void go_on(const char *who) {
    unsigned long long churned[3], left[3], walked[4];
    int count = 3000;
    double start = now_us(), churn_ms, stress_ms;
    CUresult result = run("heap_churn", (void *[]){&count, &out});
    churn_ms = (now_us() - start) / 1e3;
    if (!result) result = cuMemcpyDtoH(churned, out, sizeof churned);
    if (result) {
        ROW("8", who, "going on fails with error %d", result);
        return;
    }
    start = now_us();
    CK(launch(kernel(module, "heap_stress"), 4, 128, 0, NULL));
    result = cuCtxSynchronize();
    stress_ms = (now_us() - start) / 1e3;
    walk(walked);
    ROW("8", who, "freed %llu, allocated %llu in %.1f ms, 1 MB at %llx; list %llu nodes sum %llu; 512 threads in %.1f ms, error %d", churned[0],
        churned[1], churn_ms, churned[2], walked[0], walked[1], stress_ms, result);
    start = now_us();
    extent(limit_bytes() / 256, left);
    ROW("8", who, "%llu blocks of 1/256 left, counted in %.1f ms", left[0], (now_us() - start) / 1e3);
}

// The first block comes from the heap's end, which is on a 2 MB page.
static CUdeviceptr heap_base(void) { return ((first_block() + (2 << 20) - 1) & ~((2ull << 20) - 1)) - limit_bytes(); }

static void describe(size_t limit_mb) {
    start(limit_mb);
    CUdeviceptr first = first_block(), range = 0;
    unsigned long long span[3];
    size_t size = 0;
    char what[80];
    extent(limit_bytes() / 64, span);
    snprintf(what, sizeof what, "heap of %zu MB: first block ever; blocks of 1/64 of it", limit_bytes() >> 20);
    ROW("8", what, "%llx, so %llx is its beginning; %llu in %llx..%llx", first, ((first + (2 << 20) - 1) & ~((2ull << 20) - 1)) - limit_bytes(), span[0], span[1], span[2]);
    CUresult ranged = cuMemGetAddressRange(&range, &size, first);
    unsigned word;
    CUresult copied = cuMemcpyDtoH(&word, first, 4);
    unsigned long long attribute = 0;
    CUresult asked = cuPointerGetAttribute(&attribute, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, first);
    ROW("8", "driver's view of a heap address", "cuMemGetAddressRange error %d %llx+%zx, range attribute error %d %llx, cuMemcpyDtoH error %d", ranged, range, size, asked, attribute, copied);
    CUresult late = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 128 << 20);
    ROW("8", "changing the limit once a module that uses malloc is loaded", "error %d", late);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "extent")) {
        describe(strtoull(argv[2], NULL, 10));
        return 0;
    }
    if (argc == 4 && !strcmp(argv[1], "write")) {
        start(strtoull(argv[3], NULL, 10));
        CUdeviceptr base = heap_base();
        int count = 20000;
        CK(launch(kernel(module, "heap_stress"), 4, 128, 0, NULL));
        CK(run("heap_grow", (void *[]){&count}));
        CK(launch(kernel(module, "heap_stress"), 4, 128, 0, NULL));
        unsigned long long walked[4], list;
        walk(walked);
        size_t size = limit_bytes();
        CUresult copied = raw_copy(stage, base, size);
        char *bytes = malloc(size);
        CUdeviceptr variable;
        size_t variable_size;
        CK(cuModuleGetGlobal(&variable, &variable_size, module, "heap_list"));
        CK(cuMemcpyDtoH(bytes, stage, size));
        CK(cuMemcpyDtoH(&list, variable, 8));
        FILE *file = fopen(argv[2], "wb");
        if (!file || fwrite(&base, 8, 1, file) != 1 || fwrite(&list, 8, 1, file) != 1 || fwrite(bytes, 1, size, file) != size || fclose(file)) return 2;
        ROW("8", "source: list made with device malloc, raw copy out", "%llu nodes sum %llu in %llx..%llx, base %llx, copy error %d", walked[0], walked[1], walked[2], walked[3], base, copied);
        go_on("source goes on");
        return 0;
    }
    if (argc == 5 && !strcmp(argv[1], "read")) {
        int used = atoi(argv[4]) % 3, count = 1000;
        start(strtoull(argv[3], NULL, 10));
        if (used == 1) first_block();
        if (used == 2) {
            CK(launch(kernel(module, "heap_stress"), 4, 128, 0, NULL));
            CK(run("heap_grow", (void *[]){&count}));
        }
        size_t size = limit_bytes(), variable_size;
        char *bytes = malloc(size);
        unsigned long long base, list, walked[4];
        FILE *file = fopen(argv[2], "rb");
        if (!file || fread(&base, 8, 1, file) != 1 || fread(&list, 8, 1, file) != 1 || fread(bytes, 1, size, file) != size) return 2;
        CUdeviceptr variable;
        CK(cuModuleGetGlobal(&variable, &variable_size, module, "heap_list"));
        CK(cuMemcpyHtoD(stage, bytes, size));
        static const char *targets[] = {"target, heap never used", "target, one malloc before", "target, heap used before"};
        CUresult copied = raw_copy(base, stage, size);
        if (copied) {
            ROW("8", targets[used], "raw copy in fails with error %d", copied);
            return 0;
        }
        CK(cuMemcpyHtoD(variable, &list, 8));
        walk(walked);
        ROW("8", targets[used], "raw copy in: %llu nodes sum %llu in %llx..%llx", walked[0], walked[1], walked[2], walked[3]);
        go_on(targets[used]);
        return 0;
    }
    return 64;
}
