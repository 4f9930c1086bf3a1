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
    CUstream fresh;
    CK(cuStreamCreate(&fresh, CU_STREAM_DEFAULT));
    beside("a blocking stream that never had work beside legacy", CU_STREAM_LEGACY, fresh);
    between("event in legacy between two blocking streams", blocking, CU_STREAM_LEGACY, second);
    between("event in a blocking stream between two others", blocking, fresh, second);
    between("event in legacy between two non-blocking streams", apart, CU_STREAM_LEGACY, second);
    behind_graph("a graph in legacy, event in a blocking stream", apart, blocking);
    behind_graph("a graph in legacy, event in a blocking stream that has only had events", apart, fresh);
    return 0;
}
