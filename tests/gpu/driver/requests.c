// Which memory does libcuda ask of the C library, and when? Prints, for each phase of a program's
// life, the mmap requests of at least 1 MB that are not placed inside an earlier one, and which of
// them hold addresses that device code saw.
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

#include <sys/mman.h>
#include <unistd.h>

static int shown;

// Requests without an address are the ones that can be steered; the others are placed inside what
// came before, or at addresses of the driver's own choice.
static void phase(const char *name) {
    int small = 0, inside = 0, fixed = 0, lines = 0;
    for (; shown < hook_log_count; shown++) {
        struct request *r = &hook_log[shown];
        int earlier = 0;
        for (int i = 0; i < shown && r->hint; i++) earlier |= r->answer >= hook_log[i].answer && r->answer < hook_log[i].answer + hook_log[i].size;
        if (r->size < 1 << 20) small++;
        else if (earlier) inside++;
        else if (r->flags & MAP_FIXED) fixed++;
        else {
            printf("    %-26s %2d: %s %012lx size %10lx prot %d flags %x -> %012lx%s\n", lines++ ? "" : name, shown, r->hint ? "hint" : "NULL",
                   (unsigned long)r->hint, r->size, r->protection, r->flags, r->answer, r->thread ? " (another thread)" : "");
        }
    }
    printf("    %-26s inside earlier requests %d, fixed elsewhere %d, smaller than 1 MB %d\n", lines ? "" : name, inside, fixed, small);
}

int main(void) {
    static struct range arena = {DRIVER_AT, DRIVER_AT + ARENA};
    hook_install(dlopen("libcuda.so.1", RTLD_NOW));
    hook_scratch = &arena;
    CK(cuInit(0));
    phase("cuInit");
    CUcontext context, second;
    CK(cuDevicePrimaryCtxRetain(&context, 0));
    CK(cuCtxSetCurrent(context));
    phase("primary context");
    CUdeviceptr out, pointer;
    CUmemGenericAllocationHandle handle;
    CK(cuMemAddressReserve(&out, ARENA, 0, OWN_AT, 0));
    phase("reserve 512 GB");
    CK(back(out, 2 << 20, &handle));
    CK(back(out + (2 << 20), 64 << 20, &handle));
    phase("create + map 2 MB, 64 MB");
    CUmodule modules[5];
    for (int k = 0; k < 5; k++) {
        char name[32];
        CK(cuModuleLoadData(&modules[k], module_image(k)));
        snprintf(name, sizeof name, "load module %d", k);
        phase(name);
    }
    CUfunction probe = kernel(modules[3], "probe");
    phase("get function");
    int with_heap = 0;
    void *arguments[] = {&out, &with_heap};
    CK(launch(probe, 1, 1, 0, arguments));
    CK(cuCtxSynchronize());
    phase("first launch");
    unsigned long long seen[13];
    CK(cuMemcpyDtoH(seen, out, sizeof seen));
    phase("small copy to the host");
    static const char *names[] = {"counter", "zeroed", "filled", "constants", "hidden", "op0", "op1", "vtable", "static", "text", "local"};
    for (int i = 0; i < 11; i++) {
        struct request *in = NULL;
        for (int j = 0; j < hook_log_count; j++) {
            struct request *r = &hook_log[j];
            if (seen[i] >= r->answer && seen[i] < r->answer + r->size && (!in || r->size <= in->size)) in = r;
        }
        if (in) printf("    address of %-9s %012llx lies in request %ld (size %lx)\n", names[i], seen[i], (long)(in - hook_log), in->size);
        else printf("    address of %-9s %012llx lies in no request\n", names[i], seen[i]);
    }
    CUstream streams[65];
    CK(cuStreamCreate(&streams[0], 1));
    phase("1 stream");
    for (int i = 1; i < 65; i++) CK(cuStreamCreate(&streams[i], 1));
    phase("64 streams");
    for (int i = 0; i < 65; i++) CK(launch(probe, 1, 1, streams[i], arguments));
    CK(cuCtxSynchronize());
    phase("a launch on each");
    CUevent event;
    for (int i = 0; i < 1000; i++) CK(cuEventCreate(&event, 0));
    phase("1000 events");
    void *host;
    CK(cuMemHostAlloc(&host, 1 << 20, 0));
    phase("pinned host 1 MB");
    CK(cuMemHostAlloc(&host, 64 << 20, 0));
    phase("pinned host 64 MB");
    void *ours = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CK(cuMemHostRegister(ours, 16 << 20, 0));
    phase("register 16 MB of ours");
    printf("    pinned memory came from %012lx\n", (unsigned long)host);
    CK(cuMemAlloc(&pointer, 1000));
    phase("cuMemAlloc 1000 B");
    printf("    it came from %012llx\n", pointer);
    CK(cuMemAlloc(&pointer, 64 << 20));
    phase("cuMemAlloc 64 MB");
    CK(cuMemAlloc(&pointer, 1 << 30));
    phase("cuMemAlloc 1 GB");
    CK(cuMemAllocAsync(&pointer, 1 << 20, 0));
    phase("cuMemAllocAsync 1 MB");
    int n = 9;
    void *deep_arguments[] = {&out, &n};
    CK(launch(kernel(modules[0], "deep"), 264, 1024, 0, deep_arguments));
    CK(cuCtxSynchronize());
    phase("launch with local memory");
    with_heap = 1;
    CK(launch(probe, 1, 1, 0, arguments));
    CK(cuCtxSynchronize());
    phase("first device malloc");
    CK(cuMemsetD8(out, 1, 4096));
    CK(cuMemcpyDtoD(out + 8192, out, 512));
    phase("memset, device copy");
    CUgraph graph;
    CUgraphExec instance;
    CK(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CK(launch(probe, 1, 1, streams[0], arguments));
    CK(cuStreamEndCapture(streams[0], &graph));
    CK(cuGraphInstantiate(&instance, graph, 0));
    CK(cuGraphLaunch(instance, streams[0]));
    CK(cuCtxSynchronize());
    phase("graph");
    CK(cuModuleUnload(modules[2]));
    phase("unload module 2");
    CK(cuModuleLoadData(&modules[2], module_image(2)));
    phase("load module 2 again");
    char *ptx = image("module1.ptx", NULL);
    CUmodule jit;
    CK(cuModuleLoadData(&jit, ptx));
    phase("load PTX");
    CK(cuCtxCreate(&second, NULL, 0, 0));
    phase("second context");
    CK(cuCtxDestroy(second));
    phase("destroy it");
    CK(cuDevicePrimaryCtxReset(0));
    phase("reset");
    CK(cuDevicePrimaryCtxRetain(&context, 0));
    CK(cuCtxSetCurrent(context));
    CUresult limit = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1ull << 30);
    phase("new context, heap of 1 GB");
    CK(cuModuleLoadData(&modules[0], module_image(0)));
    CK(launch(kernel(modules[0], "probe"), 1, 1, 0, (void *[]){&out, &with_heap}));
    CK(cuCtxSynchronize());
    phase("first device malloc in it");
    printf("    setting the limit: error %d; range used %llx\n", limit, arena.next - DRIVER_AT);
    return 0;
}
