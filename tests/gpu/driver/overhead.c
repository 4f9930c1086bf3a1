// What cheap calls cost their caller: the driver as a program finds it, in the states that an executor puts it in, and, as a job,
// through mrcuda and beside it in the same process. Nothing of the driver is linked: `beside PATH` calls a second one.
//
// Each row: nanoseconds of a call, the median and the best of a hundred.
//   overhead [streams] [steered] [arena] [priority] [relaxed] [module] [threads] [touch N] [atomic] [clock] [beside PATH]
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME_(name) #name
#define NAME(name) NAME_(name)
#define CALLS(X)                                                                                                              \
    X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxGetCurrent) X(cuDeviceGetAttribute) X(cuStreamCreate)     \
    X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize) X(cuEventCreate) X(cuEventQuery) \
    X(cuEventRecord) X(cuMemAlloc) X(cuMemsetD8Async) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel)            \
    X(cuThreadExchangeStreamCaptureMode) X(cuMemAddressReserve) X(cuMemCreate) X(cuMemMap) X(cuMemSetAccess) X(cuCtxSynchronize) \
    X(cuEventDestroy) X(cuMemcpyHtoD) X(cuMemcpyDtoH)

struct driver {
#define POINTER(name) __typeof__(&name) name##_;
    CALLS(POINTER)
};

static struct driver load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(2);
    struct driver d;
#define LOOK(name)                                                             \
    d.name##_ = (__typeof__(d.name##_))dlsym(library, NAME(name));             \
    if (!d.name##_) fprintf(stderr, "%s has no %s\n", path, NAME(name)), exit(2);
    CALLS(LOOK)
    return d;
}

static const char kernel_text[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
                                  ".visible .entry empty(.param .u64 a, .param .u64 b, .param .u32 c) { ret; }\n";

// What a wrapper could do around each call.
static int touched;
static int atomic, clocked;
enum { PAGE = 4096, MAX_LINES = 1024 };
static char *lines[MAX_LINES];
static uint64_t counter;

static inline void around(void) {
    // A different line of each page: all of a page's first lines would share a set of the cache.
    for (int i = 0; i < touched; i++) *(volatile char *)lines[i] += 1;
    if (atomic) __atomic_fetch_add(&counter, 1, __ATOMIC_SEQ_CST);
    if (clocked) now_us();
}

struct made {
    const struct driver *d;
    CUstream stream;
    CUevent event;
    CUfunction function;
    CUdeviceptr memory;
};

static void look_at_clock(struct made *m) {
    (void)m;
    now_us();
}
static void attribute(struct made *m) {
    int value;
    CK(m->d->cuDeviceGetAttribute_(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
}
static void current(struct made *m) {
    CUcontext context;
    CK(m->d->cuCtxGetCurrent_(&context));
}
static void record(struct made *m) { CK(m->d->cuEventRecord_(m->event, m->stream)); }
static void query_event(struct made *m) { CK(m->d->cuEventQuery_(m->event)); }
static void query_stream(struct made *m) { CK(m->d->cuStreamQuery_(m->stream)); }
static void fill(struct made *m) { CK(m->d->cuMemsetD8Async_(m->memory, 3, 4096, m->stream)); }
static void wait_idle(struct made *m) { CK(m->d->cuStreamSynchronize_(m->stream)); }
static void make_event(struct made *m) {
    CUevent event;
    CK(m->d->cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING));
    CK(m->d->cuEventDestroy_(event));
}
static char small[4];
static void copy_in(struct made *m) { CK(m->d->cuMemcpyHtoD_(m->memory, small, sizeof small)); }
static void copy_out(struct made *m) { CK(m->d->cuMemcpyDtoH_(small, m->memory, sizeof small)); }
static void start_kernel(struct made *m) {
    uint64_t words[2] = {m->memory, 1};
    uint32_t last = 2;
    CK(m->d->cuLaunchKernel_(m->function, 1, 1, 1, 32, 1, 1, 0, m->stream, (void *[]){&words[0], &words[1], &last}, NULL));
}

static const struct {
    const char *name;
    int each;
    void (*call)(struct made *);
} cases[] = {
    {"clock", 50, look_at_clock},   {"attribute", 50, attribute},       {"current", 50, current},  {"record", 20, record},
    {"query event", 50, query_event}, {"query stream", 50, query_stream}, {"fill", 20, fill},        {"launch", 20, start_kernel},
    {"wait", 1, wait_idle},         {"event", 10, make_event},          {"copy in", 1, copy_in},   {"copy out", 1, copy_out},
};
enum { CASES = sizeof cases / sizeof *cases, BATCHES = 400, ROUNDS = 3 };
static double samples[2][CASES][BATCHES * ROUNDS];

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct made *m, double (*to)[BATCHES * ROUNDS], int round) {
    for (int c = 0; c < CASES; c++) {
        // The query must find an event that has happened.
        CK(m->d->cuStreamSynchronize_(m->stream));
        for (int b = -3; b < BATCHES; b++) {
            double start = now_us();
            for (int i = 0; i < cases[c].each; i++) {
                around();
                cases[c].call(m);
            }
            double took = now_us() - start;
            if (b >= 0) to[c][round * BATCHES + b] = took * 1e3 / cases[c].each;
            CK(m->d->cuStreamSynchronize_(m->stream));
        }
    }
}

static void show(const char *how, double (*of)[BATCHES * ROUNDS]) {
    char line[512] = "";
    for (int c = 0; c < CASES; c++) {
        qsort(of[c], BATCHES * ROUNDS, sizeof(double), compare);
        size_t at = strlen(line);
        snprintf(line + at, sizeof line - at, "%s%s %.0f/%.0f", c ? ", " : "", cases[c].name, of[c][BATCHES * ROUNDS / 2], of[c][BATCHES * ROUNDS / 100]);
    }
    ROW("o", how, "%s", line);
}

static struct made make(const struct driver *d, int priority, int arena) {
    struct made m = {.d = d};
    CUmodule module;
    CK(d->cuModuleLoadData_(&module, kernel_text));
    CK(d->cuModuleGetFunction_(&m.function, module, "empty"));
    if (priority) CK(d->cuStreamCreateWithPriority_(&m.stream, CU_STREAM_NON_BLOCKING, 0));
    else CK(d->cuStreamCreate_(&m.stream, CU_STREAM_NON_BLOCKING));
    CK(d->cuEventCreate_(&m.event, CU_EVENT_DISABLE_TIMING));
    if (arena) {
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp property = device_memory();
        CUmemAccessDesc access = read_write();
        CK(d->cuMemAddressReserve_(&m.memory, ARENA, 0, OWN_AT, 0));
        CK(d->cuMemCreate_(&handle, 32 << 20, &property, 0));
        CK(d->cuMemMap_(m.memory, 32 << 20, 0, handle, 0));
        CK(d->cuMemSetAccess_(m.memory, 32 << 20, &access, 1));
    } else {
        CK(d->cuMemAlloc_(&m.memory, 1 << 20));
    }
    CK(d->cuEventRecord_(m.event, m.stream));
    start_kernel(&m);
    CK(d->cuStreamSynchronize_(m.stream));
    return m;
}

static void *sleeps(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

int main(int count, char **words) {
    char how[256] = "";
    const char *beside = NULL;
    int streams = 0, steered = 0, arena = 0, priority = 0, relaxed = 0, module = 0, threads = 0;
    for (int i = 1; i < count; i++) {
        const char *w = words[i];
        if (!strcmp(w, "beside") && i + 1 < count) {
            beside = words[++i];
            continue;
        }
        snprintf(how + strlen(how), sizeof how - strlen(how), "%s%s", *how ? " " : "", w);
        if (!strcmp(w, "streams")) streams = 512;
        else if (!strcmp(w, "steered")) steered = 1;
        else if (!strcmp(w, "arena")) arena = 1;
        else if (!strcmp(w, "priority")) priority = 1;
        else if (!strcmp(w, "relaxed")) relaxed = 1;
        else if (!strcmp(w, "module")) module = 1;
        else if (!strcmp(w, "threads")) threads = 4;
        else if (!strcmp(w, "atomic")) atomic = 1;
        else if (!strcmp(w, "clock")) clocked = 1;
        else if (!strcmp(w, "touch") && i + 1 < count) {
            touched = atoi(words[++i]);
            if (touched < 0 || touched > MAX_LINES) return 2;
            snprintf(how + strlen(how), sizeof how - strlen(how), " %d", touched);
        } else return fprintf(stderr, "what is %s?\n", w), 2;
    }
    char *pages = mmap(NULL, (size_t)MAX_LINES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return 2;
    for (int i = 0; i < MAX_LINES; i++) lines[i] = pages + i * PAGE + i % 64 * 64;

    struct driver first = load("libcuda.so.1");
    static struct range scratch = {SCRATCH_AT, SCRATCH_AT + (64ull << 30)};
    if (steered) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (!library || !hook_install(library)) return fprintf(stderr, "nothing to steer\n"), 2;
        hook_scratch = &scratch;
    }
    CUcontext context;
    CK(first.cuInit_(0));
    CK(first.cuDevicePrimaryCtxRetain_(&context, 0));
    CK(first.cuCtxSetCurrent_(context));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (relaxed) CK(first.cuThreadExchangeStreamCaptureMode_(&mode));
    static CUstream many[512];
    CUdeviceptr room;
    CK(first.cuMemAlloc_(&room, 4096));
    for (int i = 0; i < streams; i++) {
        // As an executor warms a context up; it keeps eight for itself.
        CK(first.cuStreamCreateWithPriority_(&many[i], i & 1 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT, i & 2 ? -5 : 0));
        CK(first.cuMemsetD8Async_(room, 0, 64, many[i]));
    }
    CK(first.cuCtxSynchronize_());
    for (int i = 0; i < streams; i++) CK(first.cuStreamDestroy_(many[i]));
    for (int i = 0; i < streams / 64; i++) CK(first.cuStreamCreate_(&many[i], CU_STREAM_NON_BLOCKING));
    CUmodule other;
    if (module) CK(first.cuModuleLoadData_(&other, kernel_text));
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, sleeps, NULL)) return 2;
    }
    struct made mine = make(&first, priority, arena), theirs;
    struct driver second;
    if (beside) {
        // The executor's context is this thread's by now, as its driver sees it: the first one's calls have made it so.
        second = load(beside);
        theirs = make(&second, priority, 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        measure(&mine, samples[0], round);
        if (beside) measure(&theirs, samples[1], round);
    }
    if (beside) {
        // Natively both are the driver: that shows what the order of things in a process makes of them.
        show("through libcuda.so.1, which may be mrcuda's", samples[0]);
        show("past it in the same process", samples[1]);
    } else {
        show(*how ? how : "the driver itself", samples[0]);
    }
    return 0;
}
