// What the driver says of the default stream while only another stream works: whether a query or a wait of
// one includes the work that its own next work would follow. What a client may learn from the answers rests on it.
#define _GNU_SOURCE
#include "facts.h"

static CUfunction spin;

// Keeps a stream busy for so long.
static void busy(CUstream stream, unsigned long long ms) {
    unsigned long long ns = ms * 1000000;
    CK(launch(spin, 1, 1, stream, (void *[]){&ns}));
}

static const char *word(CUresult rc) {
    return rc == CUDA_SUCCESS ? "SUCCESS" : rc == CUDA_ERROR_NOT_READY ? "NOT_READY" : "another code";
}

// Asks about one stream while another one works.
static void beside(const char *what, CUstream works, CUstream asked) {
    CUevent event;
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CK(cuCtxSynchronize());
    busy(works, 60);
    CUresult first = cuStreamQuery(asked);
    CK(cuEventRecord(event, asked));
    CUresult recorded = cuEventQuery(event), second = cuStreamQuery(asked);
    ROW("L", what, "query %s, event behind it %s, query then %s", word(first), word(recorded), word(second));
    CK(cuCtxSynchronize());
    busy(works, 60);
    double start = now_us();
    CK(cuStreamSynchronize(asked));
    double took = now_us() - start;
    ROW("L", what, "wait takes %.1f ms of 60, the other is %s", took / 1e3, word(cuStreamQuery(works)));
    CK(cuCtxSynchronize());
    CK(cuEventDestroy(event));
}

// Whether an event in one stream holds up what is submitted to a second one afterwards, while a third one works.
static void between(const char *what, CUstream works, CUstream middle, CUstream next) {
    CUevent event;
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CK(cuCtxSynchronize());
    busy(works, 60);
    CK(cuEventRecord(event, middle));
    busy(next, 1);
    CUevent end;
    CK(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
    CK(cuEventRecord(end, next));
    double start = now_us();
    while (cuEventQuery(end) == CUDA_ERROR_NOT_READY) {}
    ROW("L", what, "a kernel of 1 ms behind the event ends after %.1f ms, the other stream is %s", (now_us() - start) / 1e3, word(cuStreamQuery(works)));
    CK(cuCtxSynchronize());
    CK(cuEventDestroy(event));
    CK(cuEventDestroy(end));
}

// Whether an event in a blocking stream comes behind a graph in the legacy default stream.
static void behind_graph(const char *what, CUstream capture, CUstream asked) {
    CUgraph graph;
    CUgraphExec instance;
    CUevent event;
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CK(cuStreamBeginCapture(capture, CU_STREAM_CAPTURE_MODE_RELAXED));
    busy(capture, 60);
    CK(cuStreamEndCapture(capture, &graph));
    CK(cuGraphInstantiate(&instance, graph, 0));
    int wrong = 0;
    for (int n = 0; n < 20; n++) {
        CK(cuCtxSynchronize());
        CK(cuGraphLaunch(instance, CU_STREAM_LEGACY));
        CK(cuEventRecord(event, asked));
        CK(cuEventSynchronize(event));
        wrong += cuStreamQuery(CU_STREAM_LEGACY) == CUDA_ERROR_NOT_READY;
    }
    ROW("L", what, "an event behind it occurred before its end in %d of 20", wrong);
    CK(cuCtxSynchronize());
    CK(cuGraphExecDestroy(instance));
    CK(cuGraphDestroy(graph));
    CK(cuEventDestroy(event));
}

#define MANY 40
static CUstream many[MANY];

enum work { HOST_COPY, DEVICE_COPY, FILL, HOST_FUNCTION, EVENT, WORD, WORKS };
static const char *works[] = {"a copy from the host", "a copy on the device", "a fill", "a host function", "a wait for an event", "a wait for a word"};

#define BYTES (1ull << 30)
static CUdeviceptr memory, word_at;
static void *pinned;
static volatile unsigned *awaited;
static CUevent before;

static void pause_20_ms(void *unused) {
    (void)unused;
    for (double start = now_us(); now_us() - start < 20e3;) {}
}

static void submit(enum work work, CUstream stream) {
    switch (work) {
    case HOST_COPY: CK(cuMemcpyHtoDAsync(memory, pinned, BYTES / 4, stream)); break;
    case DEVICE_COPY: CK(cuMemcpyDtoDAsync(memory, memory + BYTES, BYTES, stream)); break;
    case FILL: CK(cuMemsetD8Async(memory, 1, 2 * BYTES, stream)); break;
    case HOST_FUNCTION: CK(cuLaunchHostFunc(stream, pause_20_ms, NULL)); break;
    case EVENT:
        busy(many[0], 20);
        CK(cuEventRecord(before, many[0]));
        CK(cuStreamWaitEvent(stream, before, 0));
        break;
    default: CK(cuStreamWaitValue32(stream, word_at, 1, CU_STREAM_WAIT_VALUE_EQ)); break;
    }
}

// Whether an event in a blocking stream comes behind work of each kind in the legacy default stream.
static void behind_work(const char *what, CUstream asked) {
    CUevent event;
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (enum work work = HOST_COPY; work < WORKS; work++) {
        int wrong = 0, early = 0;
        for (int n = 0; n < 20; n++) {
            CK(cuCtxSynchronize());
            *awaited = 0;
            submit(work, CU_STREAM_LEGACY);
            CK(cuEventRecord(event, asked));
            early += cuStreamQuery(CU_STREAM_LEGACY) == CUDA_SUCCESS;
            double start = now_us();
            CUresult found;
            while ((found = cuEventQuery(event)) == CUDA_ERROR_NOT_READY && now_us() - start < 5e3) {}
            wrong += found != CUDA_ERROR_NOT_READY && cuStreamQuery(CU_STREAM_LEGACY) == CUDA_ERROR_NOT_READY;
            *awaited = 1;
            CK(cuEventSynchronize(event));
            wrong += cuStreamQuery(CU_STREAM_LEGACY) == CUDA_ERROR_NOT_READY;
        }
        ROW("L", what, "behind %s: occurred before its end in %d of 20 (over before the first question: %d)", works[work], wrong, early);
    }
    CK(cuEventDestroy(event));
}

// In how many other streams work is stuck behind an event that waits for the default stream: they share a queue of the GPU with its stream.
static void stuck_behind(const char *what, CUstream asked) {
    CUevent event, ends[MANY];
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int n = 0; n < MANY; n++) CK(cuEventCreate(&ends[n], CU_EVENT_DISABLE_TIMING));
    CK(cuCtxSynchronize());
    busy(CU_STREAM_LEGACY, 60);
    if (asked) CK(cuEventRecord(event, asked));
    for (int n = 0; n < MANY; n++) {
        unsigned long long ns = 1000;
        CK(launch(spin, 1, 1, many[n], (void *[]){&ns}));
        CK(cuEventRecord(ends[n], many[n]));
    }
    double start = now_us();
    int late = MANY;
    while (late && now_us() - start < 30e3) {
        late = 0;
        for (int n = 0; n < MANY; n++) late += cuEventQuery(ends[n]) == CUDA_ERROR_NOT_READY;
    }
    ROW("L", what, "work in %d of %d non-blocking streams waits for the default stream (%s)", late, MANY, word(cuStreamQuery(CU_STREAM_LEGACY)));
    CK(cuCtxSynchronize());
    CK(cuEventDestroy(event));
    for (int n = 0; n < MANY; n++) CK(cuEventDestroy(ends[n]));
}

// What queries and waits say of a stream that only waits for an event of a busy non-blocking stream, or for a word.
static void only_waits(const char *what, CUstream stream, CUstream works, int word_wait) {
    CUevent event;
    CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CK(cuCtxSynchronize());
    *awaited = 0;
    if (word_wait) {
        CK(cuStreamWaitValue32(stream, word_at, 1, CU_STREAM_WAIT_VALUE_EQ));
    } else {
        busy(works, 60);
        CK(cuEventRecord(event, works));
        CK(cuStreamWaitEvent(stream, event, 0));
    }
    CUresult itself = cuStreamQuery(stream), legacy = cuStreamQuery(CU_STREAM_LEGACY);
    double start = now_us();
    if (!word_wait) CK(cuStreamSynchronize(stream));
    double took = now_us() - start;
    ROW("L", what, "query of it %s, of legacy %s; a wait takes %.1f ms", word(itself), word(legacy), took / 1e3);
    *awaited = 1;
    CK(cuCtxSynchronize());
    CK(cuEventDestroy(event));
}

int main(void) {
    first_context();
    CUmodule module;
    CK(cuModuleLoadData(&module, module_image(0)));
    spin = kernel(module, "spin");
    CUstream blocking, apart, second;
    CK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CK(cuStreamCreate(&second, CU_STREAM_DEFAULT));
    CK(cuStreamCreate(&apart, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 2; round++) {
        // Before any work of its own, and after some.
        beside(round ? "legacy (used) beside a blocking stream" : "legacy (unused) beside a blocking stream", blocking, CU_STREAM_LEGACY);
        beside("legacy beside the per-thread stream", CU_STREAM_PER_THREAD, CU_STREAM_LEGACY);
        beside("legacy beside a non-blocking stream", apart, CU_STREAM_LEGACY);
        beside("a blocking stream beside legacy", CU_STREAM_LEGACY, blocking);
        beside("a blocking stream beside another one", second, blocking);
        beside("the per-thread stream beside legacy", CU_STREAM_LEGACY, CU_STREAM_PER_THREAD);
        beside("a non-blocking stream beside legacy", CU_STREAM_LEGACY, apart);
        busy(CU_STREAM_LEGACY, 1);
    }
    CUstream fresh, high, next;
    CK(cuStreamCreate(&fresh, CU_STREAM_DEFAULT));
    int least, greatest;
    CK(cuCtxGetStreamPriorityRange(&least, &greatest));
    CK(cuStreamCreateWithPriority(&high, CU_STREAM_DEFAULT, greatest));
    CK(cuStreamCreateWithPriority(&next, CU_STREAM_DEFAULT, greatest + 1));
    for (int n = 0; n < MANY; n++) CK(cuStreamCreate(&many[n], CU_STREAM_NON_BLOCKING));
    beside("a blocking stream that never had work beside legacy", CU_STREAM_LEGACY, fresh);
    between("event in legacy between two blocking streams", blocking, CU_STREAM_LEGACY, second);
    between("event in a blocking stream between two others", blocking, fresh, second);
    between("event in legacy between two non-blocking streams", apart, CU_STREAM_LEGACY, second);
    behind_graph("a graph in legacy, event in a blocking stream", apart, blocking);
    behind_graph("a graph in legacy, event in a blocking stream that has only had events", apart, fresh);
    CK(cuMemAlloc(&memory, 2 * BYTES));
    CK(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    CK(cuMemHostAlloc(&pinned, BYTES / 4, 0));
    CK(cuMemHostAlloc((void **)&awaited, 4, CU_MEMHOSTALLOC_DEVICEMAP));
    CK(cuMemHostGetDevicePointer(&word_at, (void *)awaited, 0));
    only_waits("a blocking stream that waits for an event", blocking, apart, 0);
    only_waits("a fresh blocking stream that waits for an event", fresh, apart, 0);
    only_waits("a blocking stream that waits for a word", blocking, apart, 1);
    only_waits("a non-blocking stream that waits for an event", many[0], apart, 0);
    only_waits("a non-blocking stream that waits for a word", many[0], apart, 1);
    stuck_behind("no event", NULL);
    stuck_behind("event in legacy", CU_STREAM_LEGACY);
    stuck_behind("event in a blocking stream", fresh);
    stuck_behind("event in a blocking stream of the highest priority", high);
    stuck_behind("event in a blocking stream of the second priority", next);
    stuck_behind("event in the per-thread stream", CU_STREAM_PER_THREAD);
    behind_work("event in a blocking stream of the highest priority", high);
    behind_work("event in a blocking stream", blocking);
    behind_work("event in a blocking stream that has only had events", fresh);
    return 0;
}
