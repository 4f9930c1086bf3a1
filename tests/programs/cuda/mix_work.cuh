// For mix.cu: operations of streams. Each can be handed to a stream (also one that captures), can be a node of a graph if it is simple,
// and can be done to what the host expects.
#pragma once

#include "mix_kernels.cuh"

namespace mix {

enum class What { Scale, ModuleScale, Gather, Total, Turn, Wide, Constants, Follow, Together, Disturb, Paint, LookAt, Fill, Copy, Box, ToArray, FromArray, Call, Temporary, Word };
constexpr int WHATS = 20;

inline const char *name_of(What what) {
    static const char *const NAMES[] = {"scale", "module's scale", "gather", "total", "turn", "wide", "constants", "follow", "together", "disturb", "paint", "look_at",
                                        "fill", "copy", "box", "to array", "from array", "call", "temporary", "word"};
    return NAMES[static_cast<int>(what)];
}

// What a host function does.
struct Order {
    uint32_t *to;
    const uint32_t *from;
    uint32_t n, m, a, b;
    bool once;
};

// Orders of graphs: a launch that is not over may need one that its graph has lost.
inline thread_local std::vector<std::unique_ptr<Order>> kept_orders;

inline Order *keep(Order order) {
    kept_orders.push_back(std::make_unique<Order>(order));
    return kept_orders.back().get();
}

inline void CUDART_CB carry_out(void *data) {
    Order *o = static_cast<Order *>(data);
    gather_here(o->to, o->n, o->from, o->m, o->a, o->b);
    if (o->once) delete o;
}

inline void CUDART_CB carry_out_of_stream(cudaStream_t, cudaError_t status, void *data) {
    expect(status == cudaSuccess, "status of a callback");
    carry_out(data);
}

struct Op {
    What what;
    // What it writes to, reads, and reads besides.
    Block *to = nullptr, *from = nullptr, *more = nullptr;
    char *to_address = nullptr, *from_address = nullptr;
    // Words of kernels; bytes of copies, fills and boxes; edges of boxes.
    size_t n = 0, m = 0, rows = 1, pitch = 0, from_pitch = 0;
    // Where in the block, in bytes.
    size_t at = 0, from_at = 0;
    uint32_t a = 0, b = 0;
    // Which of the ways in which CUDA can be asked for it.
    unsigned how = 0;
    std::shared_ptr<Module> module;
    int thread = 0;
    cudaMemPool_t pool = nullptr;

    std::vector<Block *> writes() const {
        if (what == What::Together) return {to, from};
        return {to};
    }
    std::vector<Block *> reads() const {
        std::vector<Block *> all;
        if (from != nullptr && what != What::Together) all.push_back(from);
        if (more != nullptr) {
            all.push_back(more);
            all.insert(all.end(), more->targets.begin(), more->targets.end());
        }
        return all;
    }
    uint32_t *to_words() const { return reinterpret_cast<uint32_t *>(to_address + at); }
    uint32_t *from_words() const { return reinterpret_cast<uint32_t *>(from_address + from_at); }
    uint32_t *want_to() const { return reinterpret_cast<uint32_t *>(to->want.data() + at); }
    uint32_t *want_from() const { return reinterpret_cast<uint32_t *>(from->want.data() + from_at); }
};

inline Order order_of(const Op &op, bool once) {
    return {op.to_words(), op.from_words(), static_cast<uint32_t>(op.n), static_cast<uint32_t>(op.m), op.a, op.b, once};
}

inline bool conflict(const Op &x, const Op &y) {
    auto meet = [](const std::vector<Block *> &p, const std::vector<Block *> &q) {
        return std::any_of(p.begin(), p.end(), [&](Block *b) { return std::find(q.begin(), q.end(), b) != q.end(); });
    };
    return meet(x.writes(), y.writes()) || meet(x.writes(), y.reads()) || meet(x.reads(), y.writes());
}

// What the operation leaves behind.
inline void apply(const Op &op) {
    const uint32_t n = static_cast<uint32_t>(op.n), m = static_cast<uint32_t>(op.m);
    switch (op.what) {
    case What::Scale:
    case What::ModuleScale: return scale_here(op.want_to(), n, op.a, op.b);
    case What::Call:
    case What::Gather: return gather_here(op.want_to(), n, op.want_from(), m, op.a, op.b);
    case What::Total: return total_here(op.want_to(), n, op.want_from(), m, op.a);
    case What::Turn: return turn_here(op.want_to(), n, op.a);
    case What::Wide: {
        const Wide w = wide_of(op.a);
        for (uint32_t i = 0; i < n; i++) op.want_to()[i] ^= w.words[i % WIDE];
        return;
    }
    case What::Constants:
        for (uint32_t i = 0; i < n; i++) op.want_to()[i] += op.more->want_words()[i % CONSTANT_WORDS] * op.a;
        return;
    case What::Follow:
        for (uint32_t i = 0; i < n; i++) {
            Block *row = op.more->targets[i % op.more->targets.size()];
            op.want_to()[i] += row->want_words()[i * 3ull % row->words()] * op.a;
        }
        return;
    case What::Together:
        for (uint32_t i = 0; i < n; i++) op.want_from()[i] = op.want_to()[i] * op.a;
        return together_here(op.want_to(), n, op.a);
    case What::Disturb: return disturb_here(op.want_to(), n, op.a, op.b);
    case What::Paint: return paint_here(op.to->want_words(), static_cast<uint32_t>(op.to->width), static_cast<uint32_t>(op.to->height), op.a, op.b);
    case What::LookAt:
        for (uint32_t i = 0; i < n; i++) op.want_to()[i] += op.from->want_words()[i % op.from->words()] * op.a;
        return;
    case What::Fill:
        for (size_t row = 0; row < op.rows; row++)
            for (size_t i = 0; i < op.n; i++) op.to->want[op.at + row * op.pitch + i] = static_cast<unsigned char>(op.a >> i % op.m * 8);
        return;
    case What::Copy: std::memcpy(op.to->want.data() + op.at, op.from->want.data() + op.from_at, op.n); return;
    case What::Box:
    case What::ToArray:
    case What::FromArray:
        for (size_t row = 0; row < op.rows; row++)
            std::memcpy(op.to->want.data() + op.at + row * op.pitch, op.from->want.data() + op.from_at + row * op.from_pitch, op.n);
        return;
    case What::Temporary: {
        std::vector<uint32_t> some(op.want_from(), op.want_from() + m);
        scale_here(some.data(), m, op.b, op.a);
        return gather_here(op.want_to(), n, some.data(), m, op.a, op.b);
    }
    case What::Word: *op.want_to() = op.a; return;
    }
}

inline cudaMemcpyKind kind_of(const Op &op) {
    auto host = [](const Block *b) { return b->plain() || b->kind == Kind::Pinned || b->kind == Kind::Registered; };
    if (op.how % 2 == 0 || op.to->kind == Kind::Managed || op.from->kind == Kind::Managed) return cudaMemcpyDefault;
    if (host(op.from)) return host(op.to) ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice;
    return host(op.to) ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
}

inline size_t offset_of(const Block &symbol, size_t at, int thread) { return static_cast<size_t>(thread) * symbol.size + at; }

inline bool reads_pinned(const Op &op) { return op.from != nullptr && (op.from->kind == Kind::Pinned || op.from->kind == Kind::Registered); }

// Before a copy from pinned memory: a driver reads a few bytes of that when the copy is asked for, if its stream itself has nothing to do,
// though it may have to follow the legacy stream, or this all others (docs/measurements.md). Not behind the record of an event.
inline void await_turn(cudaStream_t stream) {
    static const cudaEvent_t turn = [] {
        cudaEvent_t event;
        DO(cudaEventCreate(&event));
        return event;
    }();
    DO(cudaEventRecord(turn, stream));
}

inline void issue_copy(const Op &op, cudaStream_t stream) {
    char *const to = op.to_address + op.at, *const from = op.from_address + op.from_at;
    const cudaMemcpyKind kind = kind_of(op);
    if (op.how % 3 == 1 && op.to->kind == Kind::Symbol) {
        DO(cudaMemcpyToSymbolAsync(symbol_words, from, op.n, offset_of(*op.to, op.at, op.thread), kind, stream));
    } else if (op.how % 3 == 1 && op.to->kind == Kind::Constant) {
        DO(cudaMemcpyToSymbolAsync(constant_words, from, op.n, offset_of(*op.to, op.at, op.thread), kind, stream));
    } else if (op.how % 3 == 1 && op.from->kind == Kind::Symbol) {
        DO(cudaMemcpyFromSymbolAsync(to, symbol_words, op.n, offset_of(*op.from, op.from_at, op.thread), kind, stream));
    } else if (op.how % 5 == 2) {
        DRIVER(cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), op.n, stream);
    } else {
        DO(cudaMemcpyAsync(to, from, op.n, kind, stream));
    }
}

inline void issue_box(const Op &op, cudaStream_t stream) {
    char *const to = op.to_address + op.at, *const from = op.from_address + op.from_at;
    if (op.how % 4 < 2 || op.rows % 2 != 0) {
        DO(cudaMemcpy2DAsync(to, op.pitch, from, op.from_pitch, op.n, op.rows, kind_of(op), stream));
        return;
    }
    cudaMemcpy3DParms p = {};
    p.dstPtr = make_cudaPitchedPtr(to, op.pitch, op.n, op.rows / 2);
    p.srcPtr = make_cudaPitchedPtr(from, op.from_pitch, op.n, op.rows / 2);
    p.extent = make_cudaExtent(op.n, op.rows / 2, 2);
    p.kind = kind_of(op);
    DO(cudaMemcpy3DAsync(&p, stream));
}

inline void issue_fill(const Op &op, cudaStream_t stream) {
    char *const to = op.to_address + op.at;
    const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(to);
    const uint16_t half = static_cast<uint16_t>(op.a);
    if (op.rows > 1) {
        if (op.m == 4) DRIVER(cuMemsetD2D32Async, at, op.pitch, op.a, op.n / 4, op.rows, stream);
        else if (op.m == 2) DRIVER(cuMemsetD2D16Async, at, op.pitch, half, op.n / 2, op.rows, stream);
        else DO(cudaMemset2DAsync(to, op.pitch, static_cast<int>(op.a & 0xFF), op.n, op.rows, stream));
    } else if (op.m == 4) {
        DRIVER(cuMemsetD32Async, at, op.a, op.n / 4, stream);
    } else if (op.m == 2) {
        DRIVER(cuMemsetD16Async, at, half, op.n / 2, stream);
    } else {
        DO(cudaMemsetAsync(to, static_cast<int>(op.a & 0xFF), op.n, stream));
    }
}

inline void issue_temporary(const Op &op, cudaStream_t stream) {
    uint32_t *some, n = static_cast<uint32_t>(op.n), m = static_cast<uint32_t>(op.m);
    if (op.pool != nullptr) DO(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&some), m * 4ull, op.pool, stream));
    else DO(cudaMallocAsync(&some, m * 4ull, stream));
    DO(cudaMemcpyAsync(some, op.from_words(), m * 4ull, cudaMemcpyDefault, stream));
    scale<<<(m + BLOCK - 1) / BLOCK, BLOCK, 0, stream>>>(some, m, op.b, op.a);
    gather<<<(n + BLOCK - 1) / BLOCK, BLOCK, 0, stream>>>(op.to_words(), n, some, m, op.a, op.b);
    DO(cudaPeekAtLastError());
    DO(cudaFreeAsync(some, stream));
}

// The kernel of an operation with its parameters, for whoever launches it.
template <class F> void with_kernel(const Op &op, F f) {
    uint32_t *to = op.to_words(), *from = op.from != nullptr && op.from->array == nullptr ? op.from_words() : nullptr;
    uint32_t n = static_cast<uint32_t>(op.n), m = static_cast<uint32_t>(op.m), a = op.a, b = op.b;
    auto kernel = [](auto *k) { return reinterpret_cast<const void *>(k); };
    auto run = [&](const void *k, uint32_t threads, std::vector<void *> args, bool cooperative) { f(Launch{k, threads, args.data(), cooperative}); };
    switch (op.what) {
    case What::Scale: return run(kernel(scale), n, {&to, &n, &a, &b}, false);
    case What::Gather: return run(kernel(gather), n, {&to, &n, &from, &m, &a, &b}, false);
    case What::Total: return run(kernel(total), m, {&to, &n, &from, &m, &a}, false);
    case What::Turn: return run(kernel(turn), n, {&to, &a}, false);
    case What::Wide: {
        Wide w = wide_of(op.a);
        return run(kernel(wide), n, {&to, &n, &w}, false);
    }
    case What::Constants: {
        int thread = op.thread;
        return run(kernel(constants), n, {&to, &n, &thread, &a}, false);
    }
    case What::Follow: {
        const char *table = op.more->device;
        uint32_t rows = static_cast<uint32_t>(op.more->targets.size());
        return run(kernel(follow), n, {&to, &n, &table, &rows, &a}, false);
    }
    case What::Together: return run(kernel(together), n, {&to, &n, &from, &a}, true);
    case What::Disturb: return run(kernel(disturb), parts_of(n), {&to, &n, &a, &b}, false);
    case What::Paint: {
        cudaSurfaceObject_t surface = op.to->surface;
        uint32_t width = static_cast<uint32_t>(op.to->width), height = static_cast<uint32_t>(op.to->height);
        return run(kernel(paint), width * height, {&surface, &width, &height, &a, &b}, false);
    }
    case What::LookAt: {
        cudaTextureObject_t texture = op.from->texture;
        uint32_t width = static_cast<uint32_t>(op.from->width), height = static_cast<uint32_t>(op.from->height);
        return run(kernel(look_at), n, {&to, &n, &texture, &width, &height, &a}, false);
    }
    default: expect(false, "no kernel");
    }
}

inline bool is_kernel(What what) { return what <= What::LookAt && what != What::ModuleScale; }

// Hands the operation to a stream; one that captures makes nodes of it.
inline void issue(const Op &op, cudaStream_t stream, bool captures) {
    if (!captures && !is_kernel(op.what) && reads_pinned(op)) await_turn(stream);
    switch (op.what) {
    case What::ModuleScale: return op.module->scale(op.to_address + op.at, static_cast<uint32_t>(op.n), op.a, op.b, op.how % 2 == 0, stream);
    case What::Fill: return issue_fill(op, stream);
    case What::Copy: return issue_copy(op, stream);
    case What::Box: return issue_box(op, stream);
    case What::ToArray: {
        const size_t x = op.at % op.pitch, y = op.at / op.pitch;
        DO(cudaMemcpy2DToArrayAsync(op.to->array, x, y, op.from_address + op.from_at, op.from_pitch, op.n, op.rows, cudaMemcpyDefault, stream));
        return;
    }
    case What::FromArray: {
        const size_t x = op.from_at % op.from_pitch, y = op.from_at / op.from_pitch;
        DO(cudaMemcpy2DFromArrayAsync(op.to_address + op.at, op.pitch, op.from->array, x, y, op.n, op.rows, cudaMemcpyDefault, stream));
        return;
    }
    case What::Call: {
        Order *const order = captures ? keep(order_of(op, false)) : new Order(order_of(op, true));
        if (!captures && op.how % 3 == 0) DO(cudaStreamAddCallback(stream, carry_out_of_stream, order, 0));
        else DO(cudaLaunchHostFunc(stream, carry_out, order));
        return;
    }
    case What::Temporary: return issue_temporary(op, stream);
    case What::Word: DRIVER(cuStreamWriteValue32, stream, reinterpret_cast<CUdeviceptr>(op.to_words()), op.a, 0); return;
    default: with_kernel(op, [&](const Launch &l) { launch(l, op.how, stream); });
    }
}

// Whether it can be a node by itself.
inline bool is_simple(const Op &op) {
    if (op.what == What::Fill) return op.rows == 1 || op.m == 1;
    return is_kernel(op.what) || op.what == What::Copy || op.what == What::Call;
}

inline cudaKernelNodeParams kernel_params(const Launch &l) {
    cudaKernelNodeParams p = {};
    p.func = const_cast<void *>(l.kernel);
    p.gridDim = dim3((l.threads + BLOCK - 1) / BLOCK), p.blockDim = dim3(BLOCK);
    p.kernelParams = l.args;
    return p;
}

inline cudaMemsetParams fill_params(const Op &op) {
    cudaMemsetParams p = {};
    p.dst = op.to_address + op.at;
    p.pitch = op.pitch;
    p.elementSize = static_cast<unsigned>(op.m);
    p.value = op.m == 4 ? op.a : op.m == 2 ? op.a & 0xFFFF : op.a & 0xFF;
    p.width = op.n / op.m;
    p.height = op.rows;
    return p;
}

inline cudaGraphNode_t add_node(const Op &op, cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after) {
    cudaGraphNode_t node = nullptr;
    if (op.what == What::Fill) {
        const cudaMemsetParams p = fill_params(op);
        DO(cudaGraphAddMemsetNode(&node, graph, after.data(), after.size(), &p));
    } else if (op.what == What::Copy) {
        DO(cudaGraphAddMemcpyNode1D(&node, graph, after.data(), after.size(), op.to_address + op.at, op.from_address + op.from_at, op.n, kind_of(op)));
    } else if (op.what == What::Call) {
        const cudaHostNodeParams p = {carry_out, keep(order_of(op, false))};
        DO(cudaGraphAddHostNode(&node, graph, after.data(), after.size(), &p));
    } else {
        with_kernel(op, [&](const Launch &l) {
            const cudaKernelNodeParams p = kernel_params(l);
            DO(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &p));
            if (!l.cooperative) return;
            cudaKernelNodeAttrValue value = {};
            value.cooperative = 1;
            DO(cudaGraphKernelNodeSetAttribute(node, cudaKernelNodeAttributeCooperative, &value));
        });
    }
    return node;
}

// Gives an instance other numbers for a node.
inline void change_node(Op &op, cudaGraphExec_t exec, cudaGraphNode_t node, Random &random) {
    // Of fills only those of one row can be changed.
    if (op.what == What::Fill && op.rows > 1) return;
    op.a = random.word(), op.b = random.word();
    if (op.what == What::Fill) {
        const cudaMemsetParams p = fill_params(op);
        DO(cudaGraphExecMemsetNodeSetParams(exec, node, &p));
    } else if (op.what == What::Call) {
        const cudaHostNodeParams p = {carry_out, keep(order_of(op, false))};
        DO(cudaGraphExecHostNodeSetParams(exec, node, &p));
    } else if (is_kernel(op.what)) {
        with_kernel(op, [&](const Launch &l) {
            const cudaKernelNodeParams p = kernel_params(l);
            DO(cudaGraphExecKernelNodeSetParams(exec, node, &p));
        });
    }
}

} // namespace mix
