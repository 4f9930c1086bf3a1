// What else graphs do: memory nodes with their errors and levels, handles of conditions when some are gone, host functions beside each
// other.
#include "facts.h"

#include <pthread.h>

static CUcontext context;
static CUstream stream;

static CUgraph new_graph(void) {
    CUgraph graph;
    CK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUresult add_memory(CUgraph graph, CUgraphNode *node, CUdeviceptr *at, size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS p = {0};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.bytesize = bytes;
    CUresult rc = cuGraphAddMemAllocNode(node, graph, NULL, 0, &p);
    *at = p.dptr;
    return rc;
}

static void levels(const char *when) {
    unsigned long long l[4];
    for (int i = 0; i < 4; i++) CK(cuDeviceGetGraphMemAttribute(0, (CUgraphMem_attribute)i, &l[i]));
    ROW("m1", when, "used %llu high %llu, held %llu high %llu", l[0], l[1], l[2], l[3]);
}

static void memory(void) {
    CUgraph graph = new_graph(), parent = new_graph(), copy;
    CUgraphNode node, node_free, child, more;
    CUgraphExec exec, again;
    CUdeviceptr at, left, other;
    CK(cuMemAlloc(&other, 4096));
    CK(add_memory(graph, &node, &at, 5000));
    levels("levels after a node of 5000 bytes");
    ROW("m2", "free node of other memory", "%d", cuGraphAddMemFreeNode(&node_free, graph, &node, 1, other));
    CK(cuGraphAddMemFreeNode(&node_free, graph, &node, 1, at));
    ROW("m2", "second free node", "%d", cuGraphAddMemFreeNode(&more, graph, &node, 1, at));
    ROW("m2", "cuMemFree before a launch", "%d", cuMemFree(at));
    ROW("m2", "cuGraphClone", "%d", cuGraphClone(&copy, graph));
    ROW("m2", "as a child graph", "%d", cuGraphAddChildGraphNode(&child, parent, NULL, 0, graph));
    ROW("m2", "cuGraphDestroyNode", "%d", cuGraphDestroyNode(node_free));
    CUgraphNode from = node, to = node_free;
    ROW("m2", "cuGraphRemoveDependencies", "%d", cuGraphRemoveDependencies(graph, &from, &to, NULL, 1));
    CK(cuGraphInstantiate(&exec, graph, 0));
    ROW("m2", "a second instance", "%d", cuGraphInstantiate(&again, graph, 0));
    for (int i = 0; i < 2; i++) CK(cuGraphLaunch(exec, stream));
    CK(cuStreamSynchronize(stream));
    levels("levels after two launches that free");
    CK(cuGraphExecDestroy(exec));
    levels("levels after the instance");
    CK(cuGraphDestroy(graph));
    levels("levels after the graph");
    CK(cuDeviceGraphMemTrim(0));
    levels("levels after the trim");

    graph = new_graph();
    CK(add_memory(graph, &node, &left, 3 << 20));
    CK(cuGraphInstantiate(&exec, graph, 0));
    CK(cuGraphLaunch(exec, stream));
    ROW("m3", "launch on top of what was not freed", "%d", cuGraphLaunch(exec, stream));
    CK(cuGraphExecDestroy(exec));
    CK(cuGraphDestroy(graph));
    ROW("m3", "fill after the graph is gone", "%d", cuMemsetD8Async(left, 1, 3 << 20, stream));
    levels("levels while 3 MiB are left");
    ROW("m3", "cuMemFree of it", "%d", cuMemFree(left));
    ROW("m3", "cuMemFree again", "%d", cuMemFree(left));
    levels("levels at the end");
    CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ROW("m4", "cuMemFreeAsync of other memory in a capture", "%d", cuMemFreeAsync(other, stream));
    ROW("m4", "the capture then", "%d", cuStreamEndCapture(stream, &graph));
    CK(cuMemFree(other));
}

static void conditions(void) {
    CUgraph a = new_graph(), b = new_graph(), c = new_graph();
    CUgraphConditionalHandle h[5];
    CK(cuGraphConditionalHandleCreate(&h[0], a, context, 1, 1));
    CK(cuGraphConditionalHandleCreate(&h[1], b, context, 1, 1));
    CK(cuGraphConditionalHandleCreate(&h[2], b, context, 1, 1));
    CK(cuGraphDestroy(a));
    CK(cuGraphConditionalHandleCreate(&h[3], c, context, 1, 1));
    CK(cuGraphConditionalHandleCreate(&h[4], c, context, 1, 1));
    ROW("c1", "handles: 1 graph, 2 graph, the first graph gone, 2 graph", "%llx %llx %llx %llx %llx", (unsigned long long)h[0],
        (unsigned long long)h[1], (unsigned long long)h[2], (unsigned long long)h[3], (unsigned long long)h[4]);
    CUgraphExec exec;
    ROW("c2", "instance with a handle that no node has", "%d", cuGraphInstantiate(&exec, b, 0));
    CUgraphNodeParams p = {0};
    p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    p.conditional.handle = h[3], p.conditional.type = CU_GRAPH_COND_TYPE_IF, p.conditional.size = 1, p.conditional.ctx = context;
    CUgraphNode node, host;
    CK(cuGraphAddNode(&node, c, NULL, NULL, 0, &p));
    CUgraph body = p.conditional.phGraph_out[0];
    CUgraphConditionalHandle inner;
    ROW("c3", "handle for the graph in the node", "%d", cuGraphConditionalHandleCreate(&inner, body, context, 0, 0));
    p.conditional.handle = h[4], p.conditional.phGraph_out = NULL;
    ROW("c3", "node in the body with a handle of the outer graph", "%d", cuGraphAddNode(&node, body, NULL, NULL, 0, &p));
    CUDA_HOST_NODE_PARAMS call = {(CUhostFn)free, NULL};
    ROW("c3", "host function in the body", "%d", cuGraphAddHostNode(&host, body, NULL, 0, &call));
    CUgraph copy;
    ROW("c4", "cuGraphClone", "%d", cuGraphClone(&copy, c));
}

static pthread_t seen[2];
static volatile int inside, both;

static void look(void *which) {
    seen[*(int *)which] = pthread_self();
    inside++;
    for (double until = now_us() + 200e3; now_us() < until;) {
        if (inside == 2) both = 1;
    }
}

static void host_functions(void) {
    CUgraph graph = new_graph();
    CUgraphNode node;
    static int which[2] = {0, 1};
    for (int i = 0; i < 2; i++) {
        CUDA_HOST_NODE_PARAMS call = {look, &which[i]};
        CK(cuGraphAddHostNode(&node, graph, NULL, 0, &call));
    }
    CUgraphExec exec;
    CK(cuGraphInstantiate(&exec, graph, 0));
    CK(cuGraphLaunch(exec, stream));
    CK(cuStreamSynchronize(stream));
    ROW("h1", "two host nodes side by side: at one time, on one thread", "%d %d", both, pthread_equal(seen[0], seen[1]) != 0);
}

static CUdeviceptr ends[2];

// A box of 8 x 2 x 1 bytes from one piece of memory to another.
static CUDA_MEMCPY3D_BATCH_OP box(void) {
    CUDA_MEMCPY3D_BATCH_OP op = {.extent = {8, 2, 1}, .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = ends[0];
    op.dst.op.ptr.ptr = ends[1];
    return op;
}

static CUresult batch_of(int kind) {
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t size = 64, from = 0;
    CUDA_MEMCPY3D_BATCH_OP op = box();
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    switch (kind) {
    case 0: return cuMemcpyBatchAsync(&ends[1], &ends[0], &size, 1, &attributes, &from, 1, stream);
    case 1: return cuMemcpy3DBatchAsync(1, &op, 0, stream);
    case 2: return cuMemPrefetchBatchAsync(&ends[0], &size, 1, &here, &from, 1, 0, stream);
    default: return cuMemDiscardBatchAsync(&ends[0], &size, 1, 0, stream);
    }
}

// Batches on a capturing stream, and which of two mistakes in a batch of boxes is told.
static void batches(void) {
    static const char *kinds[] = {"copies", "boxes", "prefetches", "discards"};
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < 2; i++) {
            if (kind < 2) CK(cuMemAlloc(&ends[i], 1 << 20));
            else CK(cuMemAllocManaged(&ends[i], 1 << 20, CU_MEM_ATTACH_GLOBAL));
        }
        CUresult plain = batch_of(kind);
        CK(cuStreamSynchronize(stream));
        for (int mode = 0; mode < 3; mode++) {
            CUgraph graph = NULL;
            size_t nodes = 0;
            CK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
            CUresult inside = batch_of(kind), end = cuStreamEndCapture(stream, &graph);
            if (!end) CK(cuGraphGetNodes(graph, NULL, &nodes));
            ROW("b1", kinds[kind], "outside %d; mode %d: in a capture %d, its end %d, %zu nodes", plain, mode, inside, end, nodes);
            if (graph) CK(cuGraphDestroy(graph));
        }
        for (int i = 0; i < 2; i++) CK(cuMemFree(ends[i]));
    }
    for (int i = 0; i < 2; i++) CK(cuMemAlloc(&ends[i], 1 << 20));
    CUDA_MEMCPY3D_BATCH_OP op = box();
    ROW("b2", "boxes: none, no list, flags 1, null stream", "%d %d %d %d", cuMemcpy3DBatchAsync(0, &op, 0, stream), cuMemcpy3DBatchAsync(1, NULL, 0, stream),
        cuMemcpy3DBatchAsync(1, &op, 1, stream), cuMemcpy3DBatchAsync(1, &op, 0, NULL));
    for (int wrong = 0; wrong < 9; wrong++) {
        CUDA_MEMCPY3D_BATCH_OP ops[2] = {box(), box()};
        CUDA_MEMCPY3D_BATCH_OP *o = &ops[1];
        switch (wrong) {
        case 0: o->extent.width = 0; break;
        case 1: o->extent.depth = 0; break;
        case 2: o->srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID; break;
        case 3: o->srcAccessOrder = (CUmemcpySrcAccessOrder)9; break;
        case 4: o->flags = 16; break;
        case 5: o->src.type = (CUmemcpy3DOperandType)7; break;
        case 6: o->src.op.ptr.rowLength = 4; break;
        case 7: o->src.op.ptr.ptr = 0; break;
        case 8: o->extent.height = 1 << 20; break;
        }
        static const char *what[] = {"width 0", "depth 0", "order invalid", "order 9", "flags 16", "type 7", "row too short", "no address", "too high"};
        CUresult result = cuMemcpy3DBatchAsync(2, ops, 0, stream), after = cuStreamSynchronize(stream);
        ROW("b3", what[wrong], "%d, the stream then %d", result, after);
    }
}

int main(void) {
    CUdevice device;
    CK(cuInit(0));
    CK(cuDeviceGet(&device, 0));
    CK(cuDevicePrimaryCtxRetain(&context, device));
    CK(cuCtxSetCurrent(context));
    CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    memory();
    conditions();
    host_functions();
    batches();
    return 0;
}
