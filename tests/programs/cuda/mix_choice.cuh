// For mix.cu: random operations, and graphs of them.
#pragma once

#include "mix_world.cuh"

#include <optional>

namespace mix {

// Word-aligned, with room for a word, and used by kernels by address.
inline bool has_words(const Block &b) { return b.device != nullptr && b.array == nullptr && b.words() > 0 && b.targets.empty() && b.kind != Kind::Constant; }
inline bool has_bytes(const Block &b) { return b.array == nullptr && b.targets.empty(); }
inline bool for_functions(const Block &b) { return b.on_host() && b.words() > 0 && b.targets.empty(); }

// What the thread of a graph may use: memory that stays while the graph does.
inline bool for_graphs(const Block &b) { return !b.plain(); }

class Chooser {
  public:
    explicit Chooser(World &world) : w(world), random(world.random) {
        // Seeds differ in what they prefer.
        for (size_t &weight : weights_) weight = random.below(4) == 0 ? 0 : 1 + random.below(8);
        weights_[static_cast<int>(What::Scale)]++;
    }

    // `graph`: of what a graph can do.
    std::optional<Op> choose(bool graph) {
        size_t all = 0;
        for (size_t weight : weights_) all += weight;
        size_t at = random.below(all);
        int what = 0;
        while (at >= weights_[what]) at -= weights_[what++];
        Op op;
        op.what = static_cast<What>(what);
        op.thread = w.thread;
        op.a = random.word() | 1, op.b = random.word();
        op.how = static_cast<unsigned>(random.below(60));
        if (!complete(op, graph)) return std::nullopt;
        return op;
    }

  private:
    template <class F> Block *pick(bool graph, F fits, const Block *other = nullptr) {
        return w.pick([&](const Block &b) { return &b != other && fits(b) && (!graph || for_graphs(b)); });
    }

    // Words of a block: how many, and from where.
    size_t some_words(const Block &b, size_t most, size_t &at) {
        const size_t n = 1 + random.below(std::min(b.words(), most));
        at = random.below(b.words() - n + 1) * 4;
        return n;
    }

    bool complete(Op &op, bool graph) {
        if (op.what == What::Copy) return copy(op, graph);
        if (op.what == What::Box) return box(op, graph);
        if (op.what == What::Fill) return fill(op, graph);
        if (op.what == What::ToArray || op.what == What::FromArray) return part_of_array(op, graph);
        if (op.what == What::Paint) {
            op.to = pick(graph, [](const Block &b) { return b.array != nullptr; });
            return op.to != nullptr;
        }
        if (op.what == What::Word && graph) return false;
        op.to = op.what == What::Call ? pick(graph, for_functions) : pick(graph, has_words);
        if (op.to == nullptr) return false;
        op.to_address = op.what == What::Call ? op.to->host : op.to->address(random);
        op.n = some_words(*op.to, MAX_WORDS, op.at);
        switch (op.what) {
        case What::Turn:
            op.n = op.n / BLOCK * BLOCK;
            return op.n > 0;
        case What::ModuleScale:
            if (w.modules.empty()) return false;
            op.module = w.modules[random.below(w.modules.size())];
            return true;
        case What::Call:
            op.from = pick(graph, for_functions, op.to);
            if (op.from == nullptr) return false;
            op.from_address = op.from->host;
            op.m = some_words(*op.from, MAX_WORDS, op.from_at);
            return true;
        case What::Temporary:
        case What::Gather:
        case What::Total:
            op.from = pick(graph, has_words, op.to);
            if (op.from == nullptr) return false;
            op.from_address = op.from->address(random);
            op.m = some_words(*op.from, MAX_WORDS, op.from_at);
            if (op.what == What::Temporary && !graph && !w.pools.empty() && random.one_in(2)) op.pool = w.pools[random.below(w.pools.size())];
            return true;
        case What::Disturb:
            // A few words of each page, anywhere; often those that changed before.
            op.n = op.to->words(), op.at = 0;
            if (random.one_in(2)) op.b %= 4;
            return true;
        case What::Together:
            // Blocks of a cooperative grid are all there at once, and so are those of other threads.
            op.n = std::min<size_t>(op.n, 8 * BLOCK);
            op.from = pick(graph, [&](const Block &b) { return has_words(b) && b.words() >= op.n; }, op.to);
            if (op.from == nullptr) return false;
            op.from_address = op.from->address(random);
            op.from_at = random.below(op.from->words() - op.n + 1) * 4;
            return true;
        case What::Constants:
            op.more = w.pick([](const Block &b) { return b.kind == Kind::Constant; });
            return op.more != nullptr;
        case What::Follow:
            op.more = w.pick([](const Block &b) { return !b.targets.empty(); });
            // What is written must not be what is read.
            return op.more != nullptr && std::find(op.more->targets.begin(), op.more->targets.end(), op.to) == op.more->targets.end();
        case What::LookAt:
            op.from = pick(graph, [](const Block &b) { return b.array != nullptr; });
            return op.from != nullptr;
        // What streams may write to.
        case What::Word: return op.to->kind != Kind::Registered && op.to->kind != Kind::Pool && op.to->kind != Kind::Managed;
        default: return true;
        }
    }

    bool fill(Op &op, bool graph) {
        op.to = pick(graph, [](const Block &b) { return has_bytes(b) && b.device != nullptr; });
        if (op.to == nullptr) return false;
        op.to_address = op.to->address(random);
        const size_t size = op.to->size;
        op.m = op.to->size < 8 ? 1 : size_t(1) << random.below(3);
        if (size >= 64 && random.one_in(3)) {
            op.rows = 2 + random.below(5);
            op.pitch = (size / op.rows) / op.m * op.m;
            op.n = (1 + random.below(op.pitch / op.m)) * op.m;
            op.at = random.below((size - op.rows * op.pitch) / op.m + 1) * op.m;
        } else {
            op.n = (1 + random.below(size / op.m)) * op.m;
            op.at = random.below((size - op.n) / op.m + 1) * op.m;
            op.pitch = op.n;
        }
        return true;
    }

    bool copy(Op &op, bool graph) {
        op.to = pick(graph, has_bytes), op.from = pick(graph, has_bytes, op.to);
        if (op.to == nullptr || op.from == nullptr) return false;
        // What kernels write to such blocks the host does not see.
        op.to_address = op.to->address(random), op.from_address = op.from->address(random);
        op.n = 1 + random.below(std::min(op.to->size, op.from->size));
        op.at = random.below(op.to->size - op.n + 1), op.from_at = random.below(op.from->size - op.n + 1);
        return true;
    }

    bool box(Op &op, bool graph) {
        auto fits = [](const Block &b) { return has_bytes(b) && b.size >= 64; };
        op.to = pick(graph, fits), op.from = pick(graph, fits, op.to);
        if (op.to == nullptr || op.from == nullptr) return false;
        op.to_address = op.to->address(random), op.from_address = op.from->address(random);
        op.rows = 2 + random.below(7);
        op.pitch = op.to->size / op.rows, op.from_pitch = op.from->size / op.rows;
        op.n = 1 + random.below(std::min(op.pitch, op.from_pitch));
        return true;
    }

    bool part_of_array(Op &op, bool graph) {
        const bool into = op.what == What::ToArray;
        Block *array = pick(graph, [](const Block &b) { return b.array != nullptr; });
        if (array == nullptr) return false;
        const size_t width = 1 + random.below(array->width), rows = 1 + random.below(array->height);
        const size_t x = random.below(array->width - width + 1), y = random.below(array->height - rows + 1);
        Block *memory = pick(graph, [&](const Block &b) { return has_bytes(b) && b.size >= width * 4 * rows; });
        if (memory == nullptr) return false;
        op.n = width * 4, op.rows = rows;
        char *const address = memory->address(random);
        const size_t pitch = random.one_in(2) ? width * 4 : memory->size / rows, at_array = y * array->width * 4 + x * 4;
        (into ? op.to : op.from) = array;
        (into ? op.from : op.to) = memory;
        (into ? op.from_address : op.to_address) = address;
        (into ? op.pitch : op.from_pitch) = array->width * 4;
        (into ? op.from_pitch : op.pitch) = pitch;
        (into ? op.at : op.from_at) = at_array;
        return true;
    }

    World &w;
    Random &random;
    size_t weights_[WHATS];
};

// An instance of a graph, with what a launch does.
struct Graph {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    std::vector<Op> ops;
    // One for each operation, of graphs that were built.
    std::vector<cudaGraphNode_t> nodes;
    // Which operations were captured in the second stream.
    std::vector<bool> aside;
    bool has_memory = false;
    // The streams in which it was captured: the priority of a stream is one of its nodes.
    std::vector<int> lanes;
};

class Graphs {
  public:
    Graphs(World &world, Chooser &chooser) : w(world), chooser_(chooser), random(world.random) {}

    // A new graph, captured or built.
    bool make(const program::Options &options) {
        if (all_.size() >= 4) return false;
        Graph g;
        const bool captured = random.one_in(2);
        const size_t wanted = 1 + random.below(7);
        for (size_t i = 0; i < wanted; i++) {
            std::optional<Op> op = chooser_.choose(true);
            if (op && (captured || is_simple(*op))) g.ops.push_back(*op);
        }
        if (g.ops.empty()) return false;
        if (captured) {
            g.aside = split(g.ops);
            if (!capture(g.ops, g.aside, g.graph, g.lanes, options)) return false;
        } else {
            DO(cudaGraphCreate(&g.graph, 0));
            g.nodes = build(g.ops, g.graph);
            if (random.one_in(4)) add_child(g);
        }
        for (const Op &op : g.ops) g.has_memory |= op.what == What::Temporary;
        if (!g.has_memory && g.nodes.empty() && random.one_in(3)) {
            cudaGraph_t clone;
            DO(cudaGraphClone(&clone, g.graph));
            DO(cudaGraphDestroy(g.graph));
            g.graph = clone;
        }
        DO(cudaGraphInstantiate(&g.exec, g.graph, 0));
        if (random.one_in(3)) {
            // An instance needs its graph no longer.
            DO(cudaGraphDestroy(g.graph));
            g.graph = nullptr;
        } else if (random.one_in(4)) {
            DO(cudaGraphUpload(g.exec, w.any_lane().stream));
        }
        hold(g, 1);
        w.note("graph of %zu operations%s", g.ops.size(), captured ? ", captured" : "");
        all_.push_back(g);
        return true;
    }

    bool launch() {
        if (all_.empty()) return false;
        const Graph &g = all_[random.below(all_.size())];
        Lane &lane = w.any_lane();
        // A driver was seen not to order graphs and the work of the legacy stream as it orders kernels with that (docs/measurements.md).
        if (lane.legacy || lane.blocking) return false;
        std::vector<Block *> reads, writes;
        for (const Op &op : g.ops) {
            for (Block *b : op.reads()) reads.push_back(b);
            for (Block *b : op.writes()) writes.push_back(b);
        }
        w.ready(lane, reads, writes);
        DO(cudaGraphLaunch(g.exec, lane.stream));
        for (const Op &op : g.ops) {
            w.describe(op, "graph in stream", lane.number);
            apply(op);
        }
        World::touch(w.count(lane), reads, writes);
        return true;
    }

    // Other numbers for an instance: node by node, or from another graph of the same form.
    bool change(const program::Options &options) {
        if (all_.empty()) return false;
        Graph &g = all_[random.below(all_.size())];
        if (!g.nodes.empty() && g.graph != nullptr) {
            const size_t i = random.below(g.nodes.size());
            change_node(g.ops[i], g.exec, g.nodes[i], random);
            return true;
        }
        if (g.aside.empty() || g.has_memory) return false;
        std::vector<Op> ops = g.ops;
        for (Op &op : ops) {
            if (op.what == What::Fill && op.rows == 1) op.a = random.word();
            if (is_kernel(op.what) || op.what == What::ModuleScale || op.what == What::Call) op.a = random.word(), op.b = random.word();
        }
        cudaGraph_t graph;
        if (!capture(ops, g.aside, graph, g.lanes, options)) return false;
        cudaGraphExecUpdateResultInfo info;
        if (cudaGraphExecUpdate(g.exec, graph, &info) != cudaSuccess) {
            // Drivers differ in what they can change in an instance.
            cudaGetLastError();
            DO(cudaGraphExecDestroy(g.exec));
            DO(cudaGraphInstantiate(&g.exec, graph, 0));
        }
        g.ops = ops;
        if (g.graph != nullptr) DO(cudaGraphDestroy(g.graph));
        g.graph = graph;
        w.note("graph updated");
        return true;
    }

    bool end_one() {
        if (all_.empty()) return false;
        const size_t i = random.below(all_.size());
        // A launch of it may not be over yet.
        end(all_[i]);
        all_.erase(all_.begin() + static_cast<long>(i));
        w.note("graph ended");
        return true;
    }

    void end_all() {
        for (Graph &g : all_) end(g);
        all_.clear();
    }

  private:
    void end(Graph &g) {
        hold(g, -1);
        DO(cudaGraphExecDestroy(g.exec));
        if (g.graph != nullptr) DO(cudaGraphDestroy(g.graph));
    }

    static void hold(const Graph &g, int count) {
        for (const Op &op : g.ops) {
            for (Block *b : op.reads()) b->held += count;
            for (Block *b : op.writes()) b->held += count;
        }
    }

    // Which operations can go to a second stream meanwhile: those that have nothing to do with those of the first one.
    std::vector<bool> split(const std::vector<Op> &ops) {
        std::vector<bool> aside(ops.size(), false);
        if (random.one_in(2)) return aside;
        for (size_t i = 0; i < ops.size(); i++) {
            bool with_first = false, with_second = false;
            for (size_t k = 0; k < i; k++)
                if (conflict(ops[k], ops[i])) (aside[k] ? with_second : with_first) = true;
            // One that follows operations of both would need a wait between them.
            if (with_first && with_second) return std::vector<bool>(ops.size(), false);
            aside[i] = with_second || (!with_first && random.one_in(2));
        }
        return aside;
    }

    // Captures operations, those aside in a second stream; in the given streams if there are any.
    bool capture(const std::vector<Op> &ops, const std::vector<bool> &aside, cudaGraph_t &graph, std::vector<int> &lanes, const program::Options &options) {
        const bool forked = std::find(aside.begin(), aside.end(), true) != aside.end();
        if (lanes.empty()) {
            std::vector<int> free;
            for (const Lane &lane : w.lanes)
                if (lane.alive && lane.number >= 2 && (!lane.blocking || w.threads == 1)) free.push_back(lane.number);
            if (free.size() < (forked ? 2 : 1)) return false;
            const size_t first = random.below(free.size());
            lanes = {free[first], free[(first + 1) % free.size()]};
        }
        if (!w.lanes[lanes[0]].alive || !w.lanes[lanes[1]].alive) return false;
        const cudaStream_t main = w.lanes[lanes[0]].stream, side = w.lanes[lanes[1]].stream;
        const cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeGlobal};
        cudaEvent_t fork, join;
        DO(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
        DO(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
        std::shared_lock<std::shared_mutex> held(captures);
        DO(cudaStreamBeginCapture(main, modes[random.below(w.threads == 1 ? 3 : 2)]));
        if (forked) {
            DO(cudaEventRecord(fork, main));
            DO(cudaStreamWaitEvent(side, fork, 0));
        }
        for (size_t i = 0; i < ops.size(); i++) {
            issue(ops[i], aside[i] ? side : main, true);
            if (i == 0) options.nap();
        }
        if (forked) {
            DO(cudaEventRecord(join, side));
            DO(cudaStreamWaitEvent(main, join, 0));
        }
        DO(cudaStreamEndCapture(main, &graph));
        DO(cudaEventDestroy(fork));
        DO(cudaEventDestroy(join));
        return true;
    }

    // Node by node; what has to do with each other comes one after the other.
    static std::vector<cudaGraphNode_t> build(const std::vector<Op> &ops, cudaGraph_t graph) {
        std::vector<cudaGraphNode_t> nodes;
        for (size_t i = 0; i < ops.size(); i++) {
            std::vector<cudaGraphNode_t> after;
            for (size_t k = 0; k < i; k++)
                if (conflict(ops[k], ops[i])) after.push_back(nodes[k]);
            nodes.push_back(add_node(ops[i], graph, after));
        }
        return nodes;
    }

    // A graph inside of it, after all of its nodes.
    void add_child(Graph &g) {
        std::vector<Op> ops;
        for (int i = 0; i < 3; i++) {
            std::optional<Op> op = chooser_.choose(true);
            if (op && is_simple(*op)) ops.push_back(*op);
        }
        cudaGraph_t inner;
        cudaGraphNode_t node;
        DO(cudaGraphCreate(&inner, 0));
        build(ops, inner);
        DO(cudaGraphAddChildGraphNode(&node, g.graph, g.nodes.data(), g.nodes.size(), inner));
        DO(cudaGraphDestroy(inner));
        g.ops.insert(g.ops.end(), ops.begin(), ops.end());
    }

    World &w;
    Chooser &chooser_;
    Random &random;
    std::vector<Graph> all_;
};

} // namespace mix
