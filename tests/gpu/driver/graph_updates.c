// How an update pairs the nodes of two graphs, what it and changes of single nodes may change of a fill, which node a refusal names, and
// what graphs with memory nodes refuse. What the shim answers by itself (cuda-model/src/graph/instance.rs) rests on this table.
#include "facts.h"

static CUcontext context;
static CUstream first, second;
static CUevent fork_event, join_event;
static CUfunction put, put_too;
static CUdeviceptr out;

enum { SLOTS = 6, MOST = 8 };

// Two kernels that write a number to a slot.
#define ENTRY(name)                                                                              \
    ".visible .entry " name "(.param .u64 to, .param .u32 value) {\n"                            \
    ".reg .u64 %a;\n.reg .u32 %v;\n"                                                             \
    "ld.param.u64 %a, [to];\ncvta.to.global.u64 %a, %a;\nld.param.u32 %v, [value];\n"            \
    "st.global.u32 [%a], %v;\nret;\n}\n"
static const char code[] = ".version 7.0\n.target sm_70\n.address_size 64\n" ENTRY("put") ENTRY("put_too");

// A graph, with its nodes in the order in which they are named here.
struct graph {
    CUgraph graph;
    CUgraphNode nodes[MOST];
    int count;
};

// The number of a node among those of a graph, counted from 1; 0: none.
static int number(const struct graph *g, CUgraphNode node) {
    for (int i = 0; i < g->count; i++)
        if (g->nodes[i] == node) return i + 1;
    return node ? -1 : 0;
}

struct write {
    CUdeviceptr to;
    unsigned value;
    void *list[2];
};

static CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, int slot, unsigned value, struct write *w) {
    *w = (struct write){out + 4 * slot, value, {0}};
    w->list[0] = &w->to, w->list[1] = &w->value;
    return (CUDA_KERNEL_NODE_PARAMS){.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                                     .blockDimZ = 1, .kernelParams = w->list};
}

static CUgraphNode add_kernel(struct graph *g, CUfunction function, int slot, unsigned value, const CUgraphNode *after, int n) {
    struct write w;
    CUDA_KERNEL_NODE_PARAMS p = kernel_node(function, slot, value, &w);
    CUgraphNode node;
    CK(cuGraphAddKernelNode(&node, g->graph, after, n, &p));
    return g->nodes[g->count++] = node;
}

static struct graph new_graph(void) {
    struct graph g = {0};
    CK(cuGraphCreate(&g.graph, 0));
    return g;
}

static CUgraphExec instance_of(const struct graph *g) {
    CUgraphExec exec;
    CK(cuGraphInstantiate(&exec, g->graph, 0));
    return exec;
}

// Launches, and shows what each slot holds then.
static const char *slots(CUgraphExec exec) {
    static char text[128];
    unsigned held[SLOTS];
    int at = 0;
    CK(cuMemsetD32(out, 0, SLOTS));
    CK(cuCtxSynchronize());
    CK(cuGraphLaunch(exec, first));
    CK(cuStreamSynchronize(first));
    CK(cuMemcpyDtoH(held, out, sizeof held));
    for (int i = 0; i < SLOTS; i++) at += snprintf(text + at, sizeof text - at, " %u", held[i]);
    return text;
}

// An update: the code, the result, and by number the node that is named and the one before it.
static const char *update(CUgraphExec exec, const struct graph *g) {
    static char text[128];
    CUgraphExecUpdateResultInfo info;
    memset(&info, 0xff, sizeof info);
    CUresult rc = cuGraphExecUpdate(exec, g->graph, &info);
    snprintf(text, sizeof text, "%d, result %d, node %d, from %d", rc, info.result, number(g, info.errorNode), number(g, info.errorFromNode));
    return text;
}

static void submit(CUfunction function, int slot, unsigned value, CUstream stream) {
    struct write w;
    CUDA_KERNEL_NODE_PARAMS p = kernel_node(function, slot, value, &w);
    CK(launch(p.func, 1, 1, stream, p.kernelParams));
}

// The last node that a stream is behind in a capture.
static CUgraphNode last(CUstream stream) {
    CUstreamCaptureStatus status;
    const CUgraphNode *after = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t n = 0;
    CK(cuStreamGetCaptureInfo(stream, &status, NULL, NULL, &after, &edges, &n));
    return n ? after[0] : NULL;
}

// k1 in one stream and k2 in another, then k3 behind k1, and k4 behind both: nodes 1 to 4, whatever the order of k1 and k2.
static struct graph fork_join(int k2_is_first, CUfunction other, unsigned values) {
    struct graph g = {.count = 4};
    CK(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    CK(cuEventRecord(fork_event, first));
    CK(cuStreamWaitEvent(second, fork_event, 0));
    for (int i = 0; i < 2; i++) {
        int k = (i == 0) == !k2_is_first ? 1 : 2;
        CUstream stream = k == 1 ? first : second;
        submit(k == 1 ? put : other, k - 1, values + k, stream);
        g.nodes[k - 1] = last(stream);
    }
    submit(put, 2, values + 3, first);
    g.nodes[2] = last(first);
    CK(cuEventRecord(join_event, second));
    CK(cuStreamWaitEvent(first, join_event, 0));
    submit(put, 3, values + 4, first);
    g.nodes[3] = last(first);
    CK(cuStreamEndCapture(first, &g.graph));
    return g;
}

static void captured(const char *what, CUfunction other) {
    char text[96];
    struct graph a = fork_join(0, other, 10), b = fork_join(1, other, 20);
    CUgraphExec exec = instance_of(&a);
    snprintf(text, sizeof text, "%s: update to a capture with k2 before k1", what);
    ROW("p1", text, "%s", update(exec, &b));
    snprintf(text, sizeof text, "%s: slots of a launch then", what);
    ROW("p1", text, "%s", slots(exec));
    struct write w;
    CUDA_KERNEL_NODE_PARAMS p = kernel_node(put, 5, 99, &w);
    CUresult rc = cuGraphExecKernelNodeSetParams(exec, a.nodes[0], &p);
    snprintf(text, sizeof text, "%s: k1 of the first capture set to slot 5", what);
    ROW("p1", text, "%d, slots%s", rc, slots(exec));
    rc = cuGraphExecKernelNodeSetParams(exec, b.nodes[0], &p);
    snprintf(text, sizeof text, "%s: k1 of the second capture set to slot 5", what);
    ROW("p1", text, "%d, slots%s", rc, slots(exec));
    CK(cuGraphExecDestroy(exec));
    CK(cuGraphDestroy(a.graph));
    CK(cuGraphDestroy(b.graph));
}

// Two nodes and a third behind both; which of them is made first, and which edge is named first.
static struct graph joined(int b_is_first, int edge_of_b_is_first, CUfunction other, unsigned values) {
    struct graph g = new_graph();
    CUgraphNode nodes[2];
    for (int i = 0; i < 2; i++) {
        int k = i ^ b_is_first;
        nodes[k] = add_kernel(&g, k ? other : put, k, values + k, NULL, 0);
    }
    CUgraphNode after[2] = {nodes[edge_of_b_is_first], nodes[!edge_of_b_is_first]};
    add_kernel(&g, put, 2, values + 2, after, 2);
    return g;
}

static void edges(const char *what, CUfunction other) {
    static const char *orders[] = {"as it was", "edges in another order", "nodes in another order", "nodes and edges in another order"};
    for (int order = 0; order < 4; order++) {
        char text[96];
        struct graph a = joined(0, 0, other, 10), b = joined(order >> 1, order & 1, other, 20);
        CUgraphExec exec = instance_of(&a);
        const char *outcome = update(exec, &b);
        snprintf(text, sizeof text, "%s: update, %s", what, orders[order]);
        ROW("p2", text, "%s; slots%s", outcome, slots(exec));
        struct write w;
        CUDA_KERNEL_NODE_PARAMS p = kernel_node(put, 5, 99, &w);
        CUresult rc = cuGraphExecKernelNodeSetParams(exec, a.nodes[0], &p);
        ROW("p2", "its first node set to slot 5 then", "%d, slots%s", rc, slots(exec));
        CK(cuGraphExecDestroy(exec));
        CK(cuGraphDestroy(a.graph));
        CK(cuGraphDestroy(b.graph));
    }
}

static CUgraphNode add_fill(struct graph *g, const CUDA_MEMSET_NODE_PARAMS *p) {
    CUgraphNode node;
    CK(cuGraphAddMemsetNode(&node, g->graph, NULL, 0, p, context));
    return g->nodes[g->count++] = node;
}

// Fills of several rows.
static void fills(void) {
    static const char *what[] = {"nothing else", "value", "address", "width", "height", "pitch", "element size", "one row"};
    CUdeviceptr at;
    CK(cuMemAlloc(&at, 1 << 20));
    for (int rows = 4; rows >= 1; rows -= 3) {
        for (int i = 0; i < 8; i++) {
            CUDA_MEMSET_NODE_PARAMS p = {.dst = at, .pitch = 64, .value = 1, .elementSize = 1, .width = 32, .height = rows}, q = p;
            switch (i) {
            case 1: q.value = 2; break;
            case 2: q.dst += 4096; break;
            case 3: q.width = 16; break;
            case 4: q.height = rows + 1; break;
            case 5: q.pitch = 128; break;
            case 6: q.elementSize = 2, q.width = 16; break;
            case 7: q.height = 1; break;
            }
            struct graph a = new_graph(), b = new_graph();
            CUgraphNode node = add_fill(&a, &p);
            add_fill(&b, &q);
            CUgraphExec exec = instance_of(&a), again = instance_of(&a);
            const char *outcome = update(exec, &b);
            CUresult set = cuGraphExecMemsetNodeSetParams(again, node, &q, context);
            char text[96];
            unsigned char held[2][2];
            for (int one = 0; one < 2; one++) {
                CK(cuMemsetD8(at, 0, 1 << 20));
                CK(cuCtxSynchronize());
                CK(cuGraphLaunch(one ? again : exec, first));
                CK(cuStreamSynchronize(first));
                CK(cuMemcpyDtoH(&held[one][0], at, 1));
                CK(cuMemcpyDtoH(&held[one][1], q.dst + (q.height - 1) * q.pitch + q.width - 1, 1));
            }
            snprintf(text, sizeof text, "fill of height %d, other: %s", rows, what[i]);
            ROW("f1", text, "update %s; set %d; first byte, last byte of the new %d %d, %d %d", outcome, set, held[0][0], held[0][1], held[1][0],
                held[1][1]);
            CK(cuGraphExecDestroy(exec));
            CK(cuGraphExecDestroy(again));
            CK(cuGraphDestroy(a.graph));
            CK(cuGraphDestroy(b.graph));
        }
    }
    CK(cuMemFree(at));
}

// A row of nodes, each behind the one before, of which one is something else.
static struct graph chain(int count, int odd) {
    struct graph g = new_graph();
    for (int i = 0; i < count; i++) {
        CUgraphNode before = i ? g.nodes[i - 1] : NULL;
        if (i == odd) CK(cuGraphAddEmptyNode(&g.nodes[g.count++], g.graph, &before, i > 0));
        else add_kernel(&g, put, i, i, &before, i > 0);
    }
    return g;
}

static void counts(void) {
    static const struct {
        const char *what;
        int count, odd;
    } others[] = {{"as many nodes", 3, -1}, {"more nodes", 4, -1}, {"fewer nodes", 2, -1}, {"no nodes", 0, -1}, {"more nodes, the first of another type", 4, 0},
                  {"the second of another type", 3, 1}};
    struct graph a = chain(3, -1);
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        struct graph b = chain(others[i].count, others[i].odd);
        CUgraphExec exec = instance_of(&a);
        ROW("n1", others[i].what, "%s", update(exec, &b));
        CK(cuGraphExecDestroy(exec));
        CK(cuGraphDestroy(b.graph));
    }
    // Inside a graph.
    struct graph outer = new_graph(), other = new_graph(), more = chain(4, -1);
    CUgraphNode node;
    CK(cuGraphAddChildGraphNode(&node, outer.graph, NULL, 0, a.graph));
    CK(cuGraphAddChildGraphNode(&other.nodes[other.count++], other.graph, NULL, 0, more.graph));
    CUgraphExec exec = instance_of(&outer);
    ROW("n2", "more nodes in a graph inside", "%s", update(exec, &other));
    ROW("n2", "the same by cuGraphExecChildGraphNodeSetParams", "%d", cuGraphExecChildGraphNodeSetParams(exec, node, more.graph));
    // An edge less.
    struct graph fewer = new_graph();
    add_kernel(&fewer, put, 0, 0, NULL, 0);
    add_kernel(&fewer, put, 1, 1, fewer.nodes, 1);
    add_kernel(&fewer, put, 2, 2, NULL, 0);
    CUgraphExec whole = instance_of(&a);
    ROW("n3", "an edge less", "%s", update(whole, &fewer));
    CK(cuGraphExecDestroy(whole));
    CK(cuGraphExecDestroy(exec));
}

static void memory(void) {
    struct graph g = new_graph(), parent = new_graph();
    CUDA_MEM_ALLOC_NODE_PARAMS p = {0};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.bytesize = 5000;
    CUgraphNode node, node_free, child;
    CUgraphExec exec, again;
    CUgraph copy;
    CK(cuGraphAddMemAllocNode(&node, g.graph, NULL, 0, &p));
    CK(cuGraphAddMemFreeNode(&node_free, g.graph, &node, 1, p.dptr));
    ROW("m1", "graph with memory nodes as a child graph", "%d", cuGraphAddChildGraphNode(&child, parent.graph, NULL, 0, g.graph));
    ROW("m1", "a clone of it", "%d", cuGraphClone(&copy, g.graph));
    CK(cuGraphInstantiate(&exec, g.graph, 0));
    ROW("m1", "a second instance", "%d", cuGraphInstantiate(&again, g.graph, 0));
    CK(cuGraphExecDestroy(exec));
    ROW("m1", "an instance when the first one is gone", "%d", cuGraphInstantiate(&again, g.graph, 0));
}

// Conditional nodes of a graph that was made again.
static void conditions(void) {
    struct graph g[2];
    CUgraphConditionalHandle handles[2];
    for (int i = 0; i < 2; i++) {
        g[i] = new_graph();
        CK(cuGraphConditionalHandleCreate(&handles[i], g[i].graph, context, i, CU_GRAPH_COND_ASSIGN_DEFAULT));
        CUgraphNodeParams p = {0};
        p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        p.conditional.handle = handles[i], p.conditional.type = CU_GRAPH_COND_TYPE_IF, p.conditional.size = 1, p.conditional.ctx = context;
        CK(cuGraphAddNode(&g[i].nodes[g[i].count++], g[i].graph, NULL, NULL, 0, &p));
        struct graph body = {.graph = p.conditional.phGraph_out[0]};
        add_kernel(&body, put, 0, 10 + i, NULL, 0);
    }
    CUgraphExec exec = instance_of(&g[0]);
    ROW("c1", "IF node, default 0: slots", "%s", slots(exec));
    ROW("c1", "handles; update to the same with default 1", "%llx %llx; %s", (unsigned long long)handles[0], (unsigned long long)handles[1],
        update(exec, &g[1]));
    ROW("c1", "slots then", "%s", slots(exec));
    CK(cuGraphExecDestroy(exec));
}

// The end of a user object.
static volatile int ended[2];

static void end(void *which) { ended[*(int *)which] = 1; }

static void stay(void *on) {
    while (*(volatile int *)on) continue;
}

static void objects(void) {
    static int which[2] = {0, 1};
    static volatile int on = 1;
    struct graph g[2];
    for (int i = 0; i < 2; i++) {
        CUuserObject object;
        CUDA_HOST_NODE_PARAMS call = {stay, (void *)&on};
        g[i] = new_graph();
        CK(cuGraphAddHostNode(&g[i].nodes[g[i].count++], g[i].graph, NULL, 0, &call));
        CK(cuUserObjectCreate(&object, &which[i], end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
        CK(cuGraphRetainUserObject(g[i].graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    }
    CUgraphExec exec = instance_of(&g[0]);
    CK(cuGraphDestroy(g[0].graph));
    CK(cuGraphLaunch(exec, first));
    const char *outcome = update(exec, &g[1]);
    CK(cuGraphDestroy(g[1].graph));
    struct timespec some = {0, 200000000};
    nanosleep(&some, NULL);
    ROW("u1", "update beside a launch; objects ended: the old, the new", "%s; %d %d", outcome, ended[0], ended[1]);
    on = 0;
    CK(cuStreamSynchronize(first));
    nanosleep(&some, NULL);
    ROW("u1", "when the launch has ended", "%d %d", ended[0], ended[1]);
    CK(cuGraphExecDestroy(exec));
    nanosleep(&some, NULL);
    ROW("u1", "when the instance is gone", "%d %d", ended[0], ended[1]);
}

int main(void) {
    context = first_context();
    CUmodule module;
    CK(cuModuleLoadData(&module, code));
    put = kernel(module, "put"), put_too = kernel(module, "put_too");
    CK(cuMemAlloc(&out, 4 * SLOTS));
    CK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    CK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    CK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    captured("one kernel", put);
    captured("two kernels", put_too);
    edges("one kernel", put);
    edges("two kernels", put_too);
    fills();
    counts();
    memory();
    objects();
    conditions();
    return 0;
}
