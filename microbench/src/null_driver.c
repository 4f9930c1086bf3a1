// A driver that does nothing, at once: what calls through mrcuda cost themselves is measured with it (docs/measurements.md).
//   cc -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.null.so null_driver.c
// With -DCOUNT_CALLS -finstrument-functions -Wl,-Bsymbolic it tells on stderr at its end how often each function was called: the difference of two runs with
// different numbers of calls is what a call of the program makes of the driver.
// It has what an executor asks for when it opens, and what `microbench client`, `microbench graphs` and tests/gpu/driver/overhead.c call. Every handle is a
// fresh number, every kernel has the parameters of `empty` (kernels.cu), every event has happened, no graph has anything in it.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef unsigned long long u64;

enum { INVALID = 1, PAGE_KEY = 4 * (16384 + 3 * 512) };

#ifdef COUNT_CALLS
#include <dlfcn.h>
#include <stdio.h>
#define UNCOUNTED __attribute__((no_instrument_function))

static struct { void *function; u64 calls; } counted[256];
UNCOUNTED void __cyg_profile_func_enter(void *function, void *site) {
    for (int i = 0; i < 256; i++) {
        void *none = NULL;
        if (counted[i].function == function || __atomic_compare_exchange_n(&counted[i].function, &none, function, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || none == function) {
            __atomic_add_fetch(&counted[i].calls, 1, __ATOMIC_RELAXED);
            return;
        }
    }
}
UNCOUNTED void __cyg_profile_func_exit(void *function, void *site) {}
UNCOUNTED __attribute__((destructor)) static void tell(void) {
    Dl_info at;
    for (int i = 0; i < 256 && counted[i].function; i++)
        if (dladdr(counted[i].function, &at) && at.dli_sname) dprintf(2, "%s %llu\n", at.dli_sname, counted[i].calls);
}
#endif

static u64 last = 0x10000;
static int make(u64 *handle) { return *handle = __atomic_add_fetch(&last, 64, __ATOMIC_RELAXED), 0; }

// Executors look for both in a driver, to decide where it puts what and which GPU it shows.
int cuInit(unsigned flags) {
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return flags == 0 && p != MAP_FAILED && getenv("CUDA_VISIBLE_DEVICES") != (char *)1 ? 0 : INVALID;
}
int cuDriverGetVersion(int *v) { return *v = 13000, 0; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGet(int *d, int i) { return *d = i, 0; }
int cuDeviceGetName(char *to, int n, int d) { return strncpy(to, "nothing", n), 0; }
int cuDeviceGetUuid_v2(char *to, int d) { return memset(to, 1, 16), 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { return *n = (size_t)8 << 30, 0; }
int cuMemGetInfo_v2(size_t *f, size_t *n) { return *f = *n = (size_t)8 << 30, 0; }
// Limits of launches are large; the capability is 9.0.
int cuDeviceGetAttribute(int *v, int a, int d) { return *v = a == 75 ? 9 : a == 76 ? 0 : a == 1 ? 1024 : a < 10 ? 65535 : 64, 0; }
int cuDevicePrimaryCtxRetain(u64 *c, int d) { return *c = 0x100, 0; }
int cuCtxGetCurrent(u64 *c) { return *c = 0x100, 0; }
int cuCtxGetDevice_v2(int *d, u64 c) { return *d = 0, 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { return *flags = 0, *active = 1, 0; }
int cuCtxGetStreamPriorityRange(int *a, int *b) { return *a = 0, *b = -5, 0; }
int cuCtxGetLimit(size_t *n, int l) { return *n = 1 << 20, 0; }

int cuMemAddressReserve(u64 *p, size_t n, size_t align, u64 at, u64 flags) {
    void *got = mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return *p = (u64)got, got == MAP_FAILED ? 2 : 0;
}
int cuMemCreate(u64 *h, size_t n, void *prop, u64 flags) { return make(h); }
int cuMemAlloc_v2(u64 *p, size_t n) { return *p = 0x200000000000 + __atomic_fetch_add(&last, n, __ATOMIC_RELAXED), 0; }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) { return (*p = malloc(n)) == NULL ? 2 : 0; }
int cuMemHostGetDevicePointer_v2(u64 *d, u64 h, unsigned flags) { return *d = h, 0; }

// The executor's own code has one variable: the key of its page hash.
int cuModuleGetGlobal_v2(u64 *at, size_t *n, u64 m, char *name) { return make(at), *n = PAGE_KEY, 0; }
int cuModuleLoadData(u64 *m, void *image) { return make(m); }
int cuModuleLoadDataEx(u64 *m, void *image, unsigned n, void *keys, void *values) { return make(m); }
int cuModuleGetFunction(u64 *f, u64 m, char *name) { return make(f); }
int cuModuleGetFunctionCount(unsigned *n, u64 m) { return *n = 0, 0; }
int cuFuncGetName(const char **name, u64 f) { return *name = "empty", 0; }
int cuFuncGetParamInfo(u64 f, size_t i, size_t *at, size_t *n) { return i > 2 ? INVALID : (*at = 8 * i, *n = i == 2 ? 4 : 8, 0); }
int cuFuncGetAttribute(int *v, int a, u64 f) { return *v = a == 0 ? 1024 : a == 8 ? 49152 : 0, 0; }
int cuEventCreate(u64 *e, unsigned flags) { return make(e); }
int cuStreamCreate(u64 *s, unsigned flags) { return make(s); }
int cuStreamCreateWithPriority(u64 *s, unsigned flags, int p) { return make(s); }
int cuGraphCreate(u64 *g, unsigned flags) { return make(g); }
int cuGraphAddNode_v2(u64 *n, u64 g, void *after, void *edges, size_t count, void *params) { return make(n); }
int cuGraphAddKernelNode_v2(u64 *n, u64 g, void *after, size_t count, void *params) { return make(n); }
int cuGraphAddMemcpyNode(u64 *n, u64 g, void *after, size_t count, void *params, u64 context) { return make(n); }
int cuGraphAddMemsetNode(u64 *n, u64 g, void *after, size_t count, void *params, u64 context) { return make(n); }
int cuGraphInstantiateWithFlags(u64 *x, u64 g, u64 flags) { return make(x); }
int cuStreamEndCapture(u64 s, u64 *g) { return make(g); }
int cuEventElapsedTime_v2(float *ms, u64 a, u64 b) { return *ms = 0, 0; }

#define DONE(name) int name(void) { return 0; }
DONE(cuDevicePrimaryCtxRelease_v2) DONE(cuCtxSetCurrent) DONE(cuThreadExchangeStreamCaptureMode) DONE(cuCtxSynchronize)
DONE(cuMemAddressFree) DONE(cuMemRelease) DONE(cuMemMap) DONE(cuMemUnmap) DONE(cuMemSetAccess) DONE(cuMemFree_v2)
DONE(cuMemHostRegister_v2) DONE(cuMemHostUnregister) DONE(cuModuleUnload) DONE(cuFuncLoad) DONE(cuLaunchKernel)
DONE(cuLaunchKernelEx) DONE(cuStreamDestroy_v2) DONE(cuEventDestroy_v2) DONE(cuStreamSynchronize) DONE(cuStreamQuery)
DONE(cuEventQuery) DONE(cuEventSynchronize) DONE(cuEventRecord) DONE(cuEventRecordWithFlags) DONE(cuStreamWaitEvent)
DONE(cuMemsetD8Async) DONE(cuMemsetD16Async) DONE(cuMemsetD32Async) DONE(cuMemsetD2D8Async) DONE(cuMemsetD2D32Async)
DONE(cuMemcpyHtoD_v2) DONE(cuMemcpyDtoH_v2) DONE(cuMemcpyHtoDAsync_v2) DONE(cuMemcpyDtoHAsync_v2) DONE(cuMemcpyDtoDAsync_v2)
DONE(cuMemcpy2DAsync_v2) DONE(cuGraphDestroy) DONE(cuGraphDestroyNode) DONE(cuGraphAddDependencies_v2) DONE(cuGraphLaunch) DONE(cuGraphUpload)
DONE(cuGraphExecDestroy) DONE(cuGraphExecNodeSetParams) DONE(cuGraphExecKernelNodeSetParams_v2) DONE(cuGraphExecUpdate_v2) DONE(cuGraphNodeSetEnabled)
DONE(cuGraphKernelNodeSetAttribute) DONE(cuStreamBeginCapture_v2)
