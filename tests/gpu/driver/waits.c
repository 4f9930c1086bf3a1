// What waits for what, and what marks cost: first use of functions beside running kernels, marks
// on each kind of stream, threads beside each other, copies through pinned memory.
#define _GNU_SOURCE
#include "facts.h"

#include <pthread.h>

static CUcontext context;
static CUstream stream, other;
static CUfunction spin;
static CUdeviceptr out;

static void start_spin(unsigned long long ms) {
    unsigned long long ns = ms * 1000000;
    CK(launch(spin, 1, 1, stream, (void *[]){&ns}));
}

// Times `call` while a kernel runs for 60 ms on another stream.
#define BESIDE(what, call)                                                                                                   \
    do {                                                                                                                     \
        CK(cuCtxSynchronize());                                                                                              \
        start_spin(60);                                                                                                      \
        double start_ = now_us();                                                                                            \
        CUresult result_ = (call);                                                                                           \
        double took_ = now_us() - start_;                                                                                    \
        int running_ = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;                                                        \
        ROW("5", what, "error %d, %.0f us, %s", result_, took_, running_ ? "does not wait" : "WAITS for the running kernel"); \
    } while (0)

static void first_uses(void) {
    CUmodule modules[5];
    for (int k = 0; k < 5; k++) CK(cuModuleLoadData(&modules[k], module_image(k)));
    CUlibrary library, second;
    CUkernel entry;
    CUfunction function;
    CUdeviceptr address;
    size_t size;
    void *one[] = {&out};
    BESIDE("cuModuleGetFunction, first in the module", cuModuleGetFunction(&function, modules[1], "second"));
    BESIDE("cuModuleGetFunction, a second function", cuModuleGetFunction(&function, modules[1], "third"));
    BESIDE("first launch of a function", launch(function, 1, 1, other, one));
    BESIDE("second launch of it", launch(function, 1, 1, other, one));
    CK(cuModuleGetFunction(&function, modules[2], "third"));
    BESIDE("cuFuncLoad", cuFuncLoad(function));
    BESIDE("first launch after cuFuncLoad", launch(function, 1, 1, other, one));
    BESIDE("cuModuleGetGlobal", cuModuleGetGlobal(&address, &size, modules[3], "counter"));
    BESIDE("cuModuleLoadData", cuModuleLoadData(&modules[0], module_image(0)));
    BESIDE("cuLibraryLoadData", cuLibraryLoadData(&library, module_image(4), NULL, NULL, 0, NULL, NULL, 0));
    BESIDE("cuLibraryGetKernel", cuLibraryGetKernel(&entry, library, "third"));
    BESIDE("first launch of a library's kernel", launch((CUfunction)entry, 1, 1, other, one));
    CK(cuLibraryGetKernel(&entry, library, "second"));
    BESIDE("cuKernelGetFunction", cuKernelGetFunction(&function, entry));
    BESIDE("cuFuncLoad of a library's kernel", cuFuncLoad(function));
    CK(cuLibraryLoadData(&second, module_image(1), NULL, NULL, 0, NULL, NULL, 0));
    BESIDE("cuLibraryGetGlobal, first use of the library", cuLibraryGetGlobal(&address, &size, second, "counter"));
    CK(cuLibraryGetKernel(&entry, second, "deep"));
    int n = 9;
    BESIDE("first launch with big local memory", launch((CUfunction)entry, 8, 256, other, (void *[]){&out, &n}));
    BESIDE("cuLibraryUnload", cuLibraryUnload(second));
    BESIDE("cuStreamCreate", cuStreamCreate(&(CUstream){0}, 1));
    BESIDE("cuCtxGetLimit of the heap", cuCtxGetLimit(&size, CU_LIMIT_MALLOC_HEAP_SIZE));
    BESIDE("cuMemcpyHtoD of 64 B (null stream)", cuMemcpyHtoD(out, &n, 4));
    CK(cuCtxSynchronize());
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

#define TIMES 1000
static double samples[TIMES], more[TIMES];

static void marks(void) {
    volatile uint64_t *page;
    CUdeviceptr mark;
    CUevent event;
    CK(cuMemHostAlloc((void **)&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    CK(cuMemHostGetDevicePointer(&mark, (void *)page, 0));
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    *page = 0;
    uint64_t value = 0;
    struct {
        const char *name;
        CUstream stream;
    } kinds[] = {{"non-blocking", stream}, {"legacy", CU_STREAM_LEGACY}, {"per-thread", CU_STREAM_PER_THREAD}};
    for (int k = 0; k < 3; k++) {
        char what[80];
        for (int i = 0; i < TIMES; i++) {
            double start = now_us();
            CK(cuStreamWriteValue64(kinds[k].stream, mark, ++value, 0));
            samples[i] = now_us() - start;
            while (*page != value) continue;
            more[i] = now_us() - start;
        }
        snprintf(what, sizeof what, "cuStreamWriteValue64, %s stream: issue / seen (median)", kinds[k].name);
        ROW("6", what, "%.2f us / %.2f us", median(samples, TIMES), median(more, TIMES));
        for (int i = 0; i < TIMES; i++) {
            double start = now_us();
            CK(cuEventRecord(event, kinds[k].stream));
            samples[i] = now_us() - start;
            while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) continue;
            more[i] = now_us() - start;
        }
        snprintf(what, sizeof what, "event record + poll, %s stream: issue / seen (median)", kinds[k].name);
        ROW("6", what, "%.2f us / %.2f us", median(samples, TIMES), median(more, TIMES));
    }
    CUfunction probe_free;
    CUmodule module;
    CK(cuModuleLoadData(&module, module_image(0)));
    probe_free = kernel(module, "second");
    void *one[] = {&out};
    for (int i = 0; i < TIMES; i++) {
        double start = now_us();
        CK(launch(probe_free, 1, 1, stream, one));
        samples[i] = now_us() - start;
        CK(cuEventRecord(event, stream));
        while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) continue;
        more[i] = now_us() - start;
    }
    ROW("6", "launch of an empty kernel / until an event behind it is seen", "%.2f us / %.2f us", median(samples, TIMES), median(more, TIMES));
    static CUstream streams[64];
    static CUevent events[64];
    for (int i = 0; i < 64; i++) {
        CK(cuStreamCreate(&streams[i], 1));
        CK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    }
    for (int count = 1; count <= 64; count *= 8) {
        for (int i = 0; i < TIMES; i++) {
            double start = now_us();
            for (int s = 0; s < count; s++) CK(cuEventRecord(events[s], streams[s]));
            samples[i] = now_us() - start;
            for (int s = 0; s < count; s++) {
                while (cuEventQuery(events[s]) == CUDA_ERROR_NOT_READY) continue;
            }
            more[i] = now_us() - start;
        }
        char what[80];
        snprintf(what, sizeof what, "an event on each of %d streams: record / all seen", count);
        ROW("6", what, "%.1f us / %.1f us", median(samples, TIMES), median(more, TIMES));
    }
    for (int busy = 0; busy < 2; busy++) {
        CK(cuCtxSynchronize());
        CK(cuEventRecord(event, stream));
        if (busy) start_spin(50);
        if (busy) CK(cuEventRecord(event, stream));
        double start = now_us();
        for (int i = 0; i < TIMES; i++) cuStreamQuery(stream);
        double streams_us = now_us() - start;
        start = now_us();
        for (int i = 0; i < TIMES; i++) cuEventQuery(event);
        double events_us = now_us() - start;
        ROW("6", busy ? "cuStreamQuery / cuEventQuery, work running" : "cuStreamQuery / cuEventQuery, idle", "%.2f us / %.2f us", streams_us / TIMES, events_us / TIMES);
    }
    CK(cuCtxSynchronize());
}

static void *synchronise(void *unused) {
    (void)unused;
    CK(cuCtxSetCurrent(context));
    CK(cuCtxSynchronize());
    return NULL;
}

static void threads(void) {
    CUmodule module;
    CK(cuModuleLoadData(&module, module_image(0)));
    CUfunction second = kernel(module, "second");
    void *one[] = {&out};
    CK(launch(second, 1, 1, other, one));
    CK(cuCtxSynchronize());
    start_spin(200);
    pthread_t thread;
    if (pthread_create(&thread, NULL, synchronise, NULL)) return;
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    double worst = 0, start = now_us();
    int count = 0;
    for (; now_us() - start < 100000 && count < 500; count++) {
        double t = now_us();
        CK(launch(second, 1, 1, other, one));
        if (now_us() - t > worst) worst = now_us() - t;
    }
    int running = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
    double t = now_us();
    CUevent event;
    CUstream fresh;
    CK(cuEventCreate(&event, 0));
    CK(cuStreamCreate(&fresh, 1));
    double created = now_us() - t;
    ROW("12", "launches while another thread is in cuCtxSynchronize", "%d launches, slowest %.0f us, event + stream creation %.0f us, long kernel still running: %s", count, worst, created, running ? "yes" : "no");
    pthread_join(thread, NULL);
    CK(cuCtxSynchronize());
}

static void copies(void) {
    const size_t chunk = 4 << 20, total = 1 << 30;
    char *pinned;
    CUdeviceptr device;
    CUmemGenericAllocationHandle handle;
    CK(cuMemHostAlloc((void **)&pinned, 256 << 20, CU_MEMHOSTALLOC_PORTABLE));
    memset(pinned, 5, 256 << 20);
    CK(cuMemAddressReserve(&device, ARENA, 0, OWN_AT + ARENA, 0));
    CK(back(device, total, &handle));
    CUevent event;
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (size_t size = 4; size <= 64 << 10; size <<= 7) {
        for (int i = 0; i < TIMES; i++) {
            double start = now_us();
            CK(cuMemcpyDtoHAsync(pinned, device, size, stream));
            CK(cuEventRecord(event, stream));
            samples[i] = now_us() - start;
            while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) continue;
            more[i] = now_us() - start;
        }
        char what[80];
        snprintf(what, sizeof what, "cuMemcpyDtoHAsync of %zu B to pinned memory + event: issue / seen", size);
        ROW("12", what, "%.2f us / %.2f us", median(samples, TIMES), median(more, TIMES));
    }
    CUstream streams[4];
    for (int i = 0; i < 4; i++) CK(cuStreamCreate(&streams[i], 1));
    for (int count = 1; count <= 4; count *= 2) {
        double speed[2];
        for (int to_host = 0; to_host < 2; to_host++) {
            double start = now_us();
            for (size_t i = 0; i < total / chunk; i++) {
                char *host = pinned + i * chunk % (256 << 20);
                CUstream s = streams[i % (size_t)count];
                if (to_host) CK(cuMemcpyDtoHAsync(host, device + i * chunk, chunk, s));
                else CK(cuMemcpyHtoDAsync(device + i * chunk, host, chunk, s));
            }
            CK(cuCtxSynchronize());
            speed[to_host] = (double)total / (now_us() - start) / 1e3;
        }
        double start = now_us();
        for (size_t i = 0; i < total / chunk; i++) {
            char *host = pinned + i * chunk % (256 << 20);
            if (i & 1) CK(cuMemcpyDtoHAsync(host, device + i * chunk, chunk, streams[i % (size_t)count]));
            else CK(cuMemcpyHtoDAsync(device + i * chunk, host, chunk, streams[i % (size_t)count]));
        }
        CK(cuCtxSynchronize());
        char what[80];
        snprintf(what, sizeof what, "pinned copies of 4 MB on %d streams: to device / to host / mixed", count);
        ROW("12", what, "%.1f / %.1f / %.1f GB/s", speed[0], speed[1], (double)total / (now_us() - start) / 1e3);
    }
    CK(cuMemFreeHost(pinned));
}

int main(void) {
    context = first_context();
    CUmodule module;
    CUmemGenericAllocationHandle handle;
    CK(cuModuleLoadData(&module, module_image(0)));
    spin = kernel(module, "spin");
    CK(cuStreamCreate(&stream, 1));
    CK(cuStreamCreate(&other, 1));
    CK(cuMemAddressReserve(&out, ARENA, 0, OWN_AT, 0));
    CK(back(out, 2 << 20, &handle));
    CK(cuMemsetD8(out, 0, 2 << 20));
    start_spin(1);
    CK(cuCtxSynchronize());
    first_uses();
    marks();
    threads();
    copies();
    return 0;
}
