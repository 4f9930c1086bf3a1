// Captures and graphs: which calls a capture forbids and what becomes of it then; which memory instances make libcuda ask
// for; what waits. What the recorder answers by itself (cuda-model/src/graph) rests on this table.
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

#include <pthread.h>
#include <sys/mman.h>

static CUcontext context;
static CUstream blocking, plain, other;
static CUevent event, unrecorded, recorded;
static CUfunction spin, probe;
static CUdeviceptr out;
static void *pinned;
static CUmodule module;

enum { STATES = 3 };
static const char *states[STATES] = {"none", "active", "invalidated"};

static CUresult work(CUstream stream) {
    unsigned long long ns = 1000;
    return launch(spin, 1, 1, stream, (void *[]){&ns});
}

// The calls that a capture may forbid. Each is made once beside a fresh capture.
static CUresult call(int which, CUstream capturing, const char **name) {
    CUdeviceptr p;
    void *host;
    char bytes[64];
    size_t free_bytes, total;
    CUevent made;
    CUstream stream;
    CUmodule loaded;
    CUgraph graph;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp property = device_memory();
    switch (which) {
#define CASE(n, text, expression) \
    case n:                       \
        *name = text;             \
        return (expression)
        CASE(0, "cuMemAlloc", cuMemAlloc(&p, 4096));
        CASE(1, "cuMemFree of 0", cuMemFree(0));
        CASE(2, "cuMemHostAlloc", cuMemHostAlloc(&host, 4096, 0));
        CASE(3, "cuMemHostRegister + unregister", cuMemHostRegister(bytes, sizeof bytes, 0) ?: cuMemHostUnregister(bytes));
        CASE(4, "cuMemGetInfo", cuMemGetInfo(&free_bytes, &total));
        CASE(5, "cuMemcpyHtoD", cuMemcpyHtoD(out, bytes, sizeof bytes));
        CASE(6, "cuMemcpyDtoH", cuMemcpyDtoH(bytes, out, sizeof bytes));
        CASE(7, "cuMemcpyDtoD", cuMemcpyDtoD(out, out + 64, 64));
        CASE(8, "cuMemsetD8", cuMemsetD8(out, 1, 64));
        CASE(9, "cuCtxSynchronize", cuCtxSynchronize());
        CASE(10, "cuStreamSynchronize of the capturing stream", cuStreamSynchronize(capturing));
        CASE(11, "cuStreamQuery of the capturing stream", cuStreamQuery(capturing));
        CASE(12, "cuStreamSynchronize of another stream", cuStreamSynchronize(other));
        CASE(13, "cuStreamQuery of another stream", cuStreamQuery(other));
        CASE(14, "cuEventQuery of a recorded event", cuEventQuery(recorded));
        CASE(15, "cuEventSynchronize of a recorded event", cuEventSynchronize(recorded));
        CASE(16, "cuEventQuery of an event recorded in the capture", cuEventRecord(event, capturing) ?: cuEventQuery(event));
        CASE(17, "cuEventElapsedTime", (cuEventElapsedTime)(&(float){0}, recorded, recorded));
        CASE(18, "cuEventCreate", cuEventCreate(&made, 0));
        CASE(19, "cuStreamCreate", cuStreamCreate(&stream, 1));
        CASE(20, "cuModuleLoadData", cuModuleLoadData(&loaded, module_image(2)));
        CASE(21, "cuMemCreate", cuMemCreate(&handle, 2 << 20, &property, 0));
        CASE(22, "launch in the legacy stream", work(CU_STREAM_LEGACY));
        CASE(23, "cuStreamQuery of the legacy stream", cuStreamQuery(CU_STREAM_LEGACY));
        CASE(24, "cuStreamBeginCapture of the legacy stream", cuStreamBeginCapture(CU_STREAM_LEGACY, 0));
        CASE(25, "cuStreamBeginCapture again", cuStreamBeginCapture(capturing, 0));
        CASE(26, "cuStreamEndCapture of another stream", cuStreamEndCapture(other, &graph));
        CASE(27, "cuStreamWaitEvent: recorded outside", cuStreamWaitEvent(capturing, recorded, 0));
        CASE(28, "cuStreamWaitEvent: never recorded", cuStreamWaitEvent(capturing, unrecorded, 0));
        CASE(29, "the same, external", cuStreamWaitEvent(capturing, recorded, 1));
        CASE(30, "cuStreamAddCallback", cuStreamAddCallback(capturing, NULL, NULL, 0));
        CASE(31, "cuMemcpyHtoDAsync, pageable", cuMemcpyHtoDAsync(out, bytes, sizeof bytes, capturing));
        CASE(32, "cuMemcpyDtoHAsync, pageable", cuMemcpyDtoHAsync(bytes, out, sizeof bytes, capturing));
        CASE(33, "cuMemcpyHtoDAsync, pinned", cuMemcpyHtoDAsync(out, pinned, 64, capturing));
        CASE(34, "cuMemcpyDtoDAsync with a wrong address", cuMemcpyDtoDAsync(out, 0x1234, 64, capturing));
        CASE(35, "launch of too many threads", launch(spin, 1, 2048, capturing, (void *[]){&out}));
        CASE(36, "first launch of a function", launch(kernel(module, "second"), 1, 1, capturing, (void *[]){&out}));
        CASE(37, "cuStreamDestroy of the capturing stream (a fork)", cuEventRecord(event, capturing) ?: cuStreamCreate(&stream, 1) ?: cuStreamWaitEvent(stream, event, 0) ?: cuStreamDestroy(stream));
        CASE(38, "cuGraphUpload, cuMemHostUnregister of nothing", cuMemHostUnregister(bytes));
        CASE(39, "cuCtxSetLimit", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
#undef CASE
    }
    *name = NULL;
    return 0;
}

struct asked {
    int which, mode;
    CUstream capturing;
    CUresult result;
    const char *name;
};

static void *elsewhere(void *argument) {
    struct asked *a = argument;
    CUstreamCaptureMode mode = a->mode;
    CK(cuCtxSetCurrent(context));
    CK(cuThreadExchangeStreamCaptureMode(&mode));
    a->result = call(a->which, a->capturing, &a->name);
    return NULL;
}

// The result of each call, and the state of the capture after it: on the same thread and on another one.
static void forbidden(CUstream stream, const char *what) {
    printf("    %s: call, then result and state for: same thread, global / thread-local / relaxed capture; other thread of global / thread-local / relaxed mode beside a global capture\n", what);
    for (int which = 0;; which++) {
        const char *name;
        char line[256];
        int length = 0;
        for (int column = 0; column < 6; column++) {
            int mode = column < 3 ? column : 0;
            CK(cuStreamBeginCapture(stream, mode));
            CK(work(stream));
            struct asked a = {which, column - 3, stream, 0, NULL};
            CUstreamCaptureMode relaxed = column == 2 ? 2 : 0;
            if (column < 3) {
                CK(cuThreadExchangeStreamCaptureMode(&relaxed));
                a.result = call(which, stream, &a.name);
                CK(cuThreadExchangeStreamCaptureMode(&relaxed));
            } else {
                pthread_t thread;
                pthread_create(&thread, NULL, elsewhere, &a);
                pthread_join(thread, NULL);
            }
            name = a.name;
            CUstreamCaptureStatus state = 9;
            CUgraph graph = NULL;
            CUresult asked = cuStreamIsCapturing(stream, &state), ended = cuStreamEndCapture(stream, &graph);
            length += snprintf(line + length, sizeof line - length, " %d %s%s end %d%s", a.result, asked ? "?" : (int)state < STATES ? states[state] : "?", ",", ended, column == 5 ? "" : ";");
            if (graph) CK(cuGraphDestroy(graph));
            if (cuStreamIsCapturing(stream, &state) == 0 && state != 0) printf("    STILL CAPTURING after %s\n", name ? name : "");
            if (!name) return;
        }
        ROW("g1", name, "%s", line);
    }
}

// Rules of forks and joins.
static void forks(void) {
    CUgraph graph;
    CUstream fork, second;
    CK(cuStreamCreate(&fork, 1));
    CK(cuStreamCreate(&second, 1));
#define BEGIN() do { CK(cuStreamBeginCapture(plain, 2)); CK(work(plain)); CK(cuEventRecord(event, plain)); CK(cuStreamWaitEvent(fork, event, 0)); } while (0)
    BEGIN();
    CK(work(fork));
    ROW("g2", "fork with work, not joined: end", "%d", cuStreamEndCapture(plain, &graph));
    BEGIN();
    ROW("g2", "fork without work, not joined: end", "%d", cuStreamEndCapture(plain, &graph));
    BEGIN();
    ROW("g2", "end in the fork / then in the origin", "%d / %d", cuStreamEndCapture(fork, &graph), cuStreamEndCapture(plain, &graph));
    BEGIN();
    CK(cuStreamBeginCapture(second, 2));
    CK(cuEventRecord(recorded, second));
    CUresult merged = cuStreamWaitEvent(fork, recorded, 0);
    CUresult first = cuStreamEndCapture(plain, &graph), last = cuStreamEndCapture(second, &graph);
    ROW("g2", "wait for another capture's event / end of both", "%d / %d %d", merged, first, last);
    BEGIN();
    CK(work(fork));
    CK(cuEventRecord(recorded, fork));
    CK(cuStreamWaitEvent(plain, recorded, 0));
    CK(cuStreamEndCapture(plain, &graph));
    ROW("g2", "wait outside for an event of a capture that has ended", "%d", cuStreamWaitEvent(other, recorded, 0));
    ROW("g2", "query / synchronise / elapsed of such an event", "%d / %d / %d", cuEventQuery(recorded), cuEventSynchronize(recorded), (cuEventElapsedTime)(&(float){0}, recorded, recorded));
    CUresult again = cuEventRecord(recorded, other);
    ROW("g2", "record it again outside / query", "%d / %d", again, cuCtxSynchronize() ?: cuEventQuery(recorded));
    CK(cuStreamBeginCapture(blocking, 2));
    ROW("g2", "blocking stream captures: legacy launch / status of the legacy stream", "%d / %d", work(CU_STREAM_LEGACY), cuStreamIsCapturing(CU_STREAM_LEGACY, &(CUstreamCaptureStatus){0}));
    ROW("g2", "then end", "%d", cuStreamEndCapture(blocking, &graph));
    ROW("g2", "end of a stream that does not capture", "%d", cuStreamEndCapture(other, &graph));
}

// What asking gives back for kernels.
static void parameters(void) {
    CUlibrary library;
    CUkernel entry;
    CUfunction function;
    CUgraph graph;
    CUgraphNode node, list[4];
    size_t n = 4;
    CK(cuLibraryLoadData(&library, module_image(1), NULL, NULL, 0, NULL, NULL, 0));
    CK(cuLibraryGetKernel(&entry, library, "third"));
    CK(cuKernelGetFunction(&function, entry));
    void *one[] = {&out};
    CUDA_KERNEL_NODE_PARAMS p = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = one};
#define TOLD(what) ROW("g3", what, "func %s kern %s ctx %s extra %s", p.func == function ? "the function" : p.func == (CUfunction)entry ? "the kernel" : p.func ? "other" : "null", p.kern == entry ? "the kernel" : p.kern ? "other" : "null", p.ctx == context ? "the context" : p.ctx ? "other" : "null", p.extra ? "set" : "null")
    CK(cuGraphCreate(&graph, 0));
    for (int way = 0; way < 3; way++) {
        p.func = way == 0 ? function : way == 1 ? (CUfunction)entry : NULL, p.kern = way == 2 ? entry : NULL, p.ctx = way == 2 ? context : NULL, p.kernelParams = one;
        CUresult added = cuGraphAddKernelNode(&node, graph, NULL, 0, &p);
        if (added) {
            ROW("g3", "kernel node refused", "way %d: %d", way, added);
            continue;
        }
        CK(cuGraphKernelNodeGetParams(node, &p));
        TOLD(way == 0 ? "kernel node by function" : way == 1 ? "kernel node by kernel as function" : "kernel node by kernel");
    }
    CK(cuStreamBeginCapture(plain, 2));
    CK(launch((CUfunction)entry, 1, 1, plain, one));
    CK(cuStreamEndCapture(plain, &graph));
    CK(cuGraphGetNodes(graph, list, &n));
    CK(cuGraphKernelNodeGetParams(list[0], &p));
    TOLD("captured launch of a kernel");
    CK(cuStreamBeginCapture(plain, 2));
    CK(cuMemcpyHtoDAsync(out, pinned, 64, plain));
    CK(cuMemcpyDtoDAsync(out, out + 64, 64, plain));
    CK(cuStreamEndCapture(plain, &graph));
    n = 4;
    CK(cuGraphGetNodes(graph, list, &n));
    for (size_t i = 0; i < n; i++) {
        CUDA_MEMCPY3D c;
        CK(cuGraphMemcpyNodeGetParams(list[i], &c));
        ROW("g3", i ? "captured cuMemcpyDtoDAsync" : "captured cuMemcpyHtoDAsync", "types %d to %d, pitch %zu to %zu, height %zu to %zu, %zu x %zu x %zu", c.srcMemoryType, c.dstMemoryType, c.srcPitch, c.dstPitch, c.srcHeight, c.dstHeight, c.WidthInBytes, c.Height, c.Depth);
    }
}

// Handles of conditions.
static void conditions(void) {
    for (int round = 0; round < 2; round++) {
        CUgraph graph[3];
        CUgraphConditionalHandle h[3];
        for (int i = 0; i < 3; i++) {
            CK(cuGraphCreate(&graph[i], 0));
            CK(cuGraphConditionalHandleCreate(&h[i], graph[i], context, 1, 1));
        }
        ROW("g4", "conditional handles of three graphs", "%llx %llx %llx", (unsigned long long)h[0], (unsigned long long)h[1], (unsigned long long)h[2]);
        for (int i = 0; i < 3; i++) CK(cuGraphDestroy(graph[i]));
    }
}

static int shown;

static void phase(const char *name) {
    int steered = 0;
    for (; shown < hook_log_count; shown++) {
        struct request *r = &hook_log[shown];
        if (!r->hint && r->size >= (2 << 20)) {
            steered++;
            printf("    %-40s mmap of %lx -> %lx%s\n", name, (unsigned long)r->size, (unsigned long)r->answer, r->thread ? " (another thread)" : "");
        }
    }
    ROW("g5", name, "%d requests of 2 MB and more without an address", steered);
}

// A graph of `n` kernels in `width` branches.
static CUgraph big(int n, int width) {
    CUgraph graph;
    CUgraphNode *nodes = calloc(n, sizeof *nodes);
    unsigned long long ns = 1000;
    CUDA_KERNEL_NODE_PARAMS p = {.func = spin, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = (void *[]){&ns}};
    CK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < n; i++) CK(cuGraphAddKernelNode(&nodes[i], graph, i < width ? NULL : &nodes[i - width], i < width ? 0 : 1, &p));
    free(nodes);
    return graph;
}

static void memory(void) {
    static const struct { int n, width; } shapes[] = {{1, 1}, {100, 1}, {100, 16}, {5000, 1}, {5000, 64}, {50000, 8}};
    phase("before");
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char name[64];
        CUgraphExec instance;
        CUgraph graph = big(shapes[i].n, shapes[i].width);
        snprintf(name, sizeof name, "%d kernels, %d wide: building", shapes[i].n, shapes[i].width);
        phase(name);
        double t = now_us();
        CK(cuGraphInstantiate(&instance, graph, 0));
        double made = now_us() - t;
        snprintf(name, sizeof name, "%d kernels, %d wide: instantiate (%.0f us)", shapes[i].n, shapes[i].width, made);
        phase(name);
        CK(cuGraphUpload(instance, plain));
        phase("  upload");
        CK(cuGraphLaunch(instance, plain));
        CK(cuStreamSynchronize(plain));
        phase("  launch");
        CK(cuGraphExecDestroy(instance));
        CK(cuGraphDestroy(graph));
        phase("  destroy");
    }
}

#define BESIDE(what, call) BESIDE_IN("g6", what, call)

static void waiting(void) {
    CUgraph graph = big(100, 4);
    CUgraphExec instance;
    CUgraphNode node;
    size_t n = 1;
    CUgraphExecUpdateResultInfo info;
    CK(cuGraphGetNodes(graph, &node, &n));
    CUDA_KERNEL_NODE_PARAMS p;
    CK(cuGraphKernelNodeGetParams(node, &p));
    BESIDE("cuGraphInstantiate beside a running kernel", cuGraphInstantiate(&instance, graph, 0));
    BESIDE("cuGraphUpload", cuGraphUpload(instance, plain));
    BESIDE("cuGraphLaunch", cuGraphLaunch(instance, plain));
    BESIDE("cuGraphExecKernelNodeSetParams", cuGraphExecKernelNodeSetParams(instance, node, &p));
    BESIDE("cuGraphExecUpdate", cuGraphExecUpdate(instance, graph, &info));
    BESIDE("cuGraphExecDestroy", cuGraphExecDestroy(instance));
    CK(cuGraphInstantiate(&instance, graph, 0));
    unsigned long long ns = 60000000;
    p.kernelParams = (void *[]){&ns};
    CK(cuGraphExecKernelNodeSetParams(instance, node, &p));
    CK(cuGraphLaunch(instance, plain));
    double start = now_us();
    CK(cuGraphExecDestroy(instance));
    ROW("g6", "cuGraphExecDestroy of an instance that runs for 60 ms", "%.0f us", now_us() - start);
    CK(cuCtxSynchronize());
}

int main(void) {
    static struct range arena = {DRIVER_AT, DRIVER_AT + ARENA};
    hook_install(dlopen("libcuda.so.1", RTLD_NOW));
    hook_scratch = &arena;
    context = first_context();
    CK(cuModuleLoadData(&module, module_image(1)));
    spin = kernel(module, "spin");
    probe = kernel(module, "third");
    CK(cuMemAlloc(&out, 1 << 20));
    CK(cuMemHostAlloc(&pinned, 4096, 0));
    CK(cuStreamCreate(&blocking, 0));
    CK(cuStreamCreate(&plain, 1));
    CK(cuStreamCreate(&other, 1));
    CK(cuEventCreate(&event, 0));
    CK(cuEventCreate(&unrecorded, 0));
    CK(cuEventCreate(&recorded, 0));
    CK(cuEventRecord(recorded, other));
    CK(cuCtxSynchronize());
    memory();
    waiting();
    conditions();
    parameters();
    forks();
    CK(cuEventRecord(recorded, other));
    CK(cuCtxSynchronize());
    forbidden(plain, "a non-blocking stream captures");
    forbidden(blocking, "a blocking stream captures");
    return 0;
}
