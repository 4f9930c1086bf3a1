// For mix.cu: one thread's play. Each step does one thing out of many; how often each comes depends on the seed.
#pragma once

#include "mix_choice.cuh"

#include <mutex>

namespace mix {

class Player {
  public:
    Player(int thread, int threads, uint64_t seed, const program::Options &options)
        : w(thread, threads, seed), random(w.random), chooser_(w), graphs_(w, chooser_), options_(options) {
        for (size_t i = 0; i < STEPS; i++) weights_[i] = random.one_in(5) ? 0 : table()[i].weight * (1 + random.below(4));
        w.make_block(Kind::Symbol);
        w.make_block(Kind::Constant);
        for (int i = 0; i < 6; i++) w.make_block();
        blocks_ = 6 + random.below(18);
    }

    std::string play() {
        std::string report;
        size_t all = 0;
        for (size_t weight : weights_) all += weight;
        for (w.step = 0; w.step < options_.steps; w.step++) {
            size_t at = random.below(all + 40), what = 0;
            // Work on the blocks is a good part of all.
            if (at >= all) {
                work();
            } else {
                while (at >= weights_[what]) at -= weights_[what++];
                (this->*table()[what].go)();
            }
            if (w.step % 64 == 63) tell(report);
            options_.pace();
        }
        tell(report);
        graphs_.end_all();
        w.end();
        return report;
    }

  private:
    struct Step {
        void (Player::*go)();
        size_t weight;
    };
    static constexpr size_t STEPS = 24;

    static const Step *table() {
        static const Step TABLE[STEPS] = {
            {&Player::allocate, 8},   {&Player::free, 6},          {&Player::copy_and_wait, 4}, {&Player::poke, 5},         {&Player::wait, 3},
            {&Player::streams, 2},    {&Player::events, 3},        {&Player::verify, 3},        {&Player::make_graph, 4},   {&Player::launch_graph, 8},
            {&Player::change_graph, 3}, {&Player::end_graph, 2},   {&Player::load, 1},          {&Player::unload, 1},       {&Player::make_table, 2},
            {&Player::remap, 2},      {&Player::batch, 2},         {&Player::advise, 2},        {&Player::look, 2},         {&Player::pool, 2},
            {&Player::mistake, 1},    {&Player::time, 1},          {&Player::context, 1},       {&Player::copy_symbol, 2},
        };
        return TABLE;
    }

    void tell(std::string &report) {
        char line[140];
        std::snprintf(line, sizeof line, "thread %d step %ld blocks %zu digest %016llx answers %016llx\n", w.thread, w.step, w.blocks.size(),
                      static_cast<unsigned long long>(w.verify_all()), static_cast<unsigned long long>(answers_));
        report += line;
    }

    void work() {
        std::optional<Op> op = chooser_.choose(false);
        if (!op) return;
        Lane &lane = w.any_lane();
        // Plain memory is read and written when the call is made; host functions do it in their stream.
        if (op->what != What::Call) {
            const bool by_processor = World::by_processor(*op);
            if (op->to->plain() || by_processor) w.host_ready(*op->to, true);
            if (op->from != nullptr && (op->from->plain() || by_processor)) w.host_ready(*op->from, false);
        }
        w.run(lane, *op);
    }

    void allocate() {
        if (w.blocks.size() >= blocks_) return free();
        Kind kind = Kind::Variable;
        if (!w.modules.empty() && random.one_in(12) && std::none_of(w.blocks.begin(), w.blocks.end(), [](const auto &b) { return b->kind == Kind::Variable; }))
            w.make_block(kind);
        else w.make_block();
    }

    void free() {
        if (Block *b = w.pick([&](const Block &b) { return w.may_free(b); })) {
            if (random.one_in(3)) w.verify(*b);
            w.free_block(*b);
        }
    }

    // Copies and fills that wait, in the legacy stream.
    void copy_and_wait() {
        Block *to = w.pick(has_bytes), *from = w.pick([&](const Block &b) { return has_bytes(b) && &b != to; });
        if (to == nullptr || from == nullptr) return;
        Op op;
        op.what = What::Copy;
        op.to = to, op.from = from, op.thread = w.thread;
        op.to_address = to->address(random), op.from_address = from->address(random);
        op.n = 1 + random.below(std::min(to->size, from->size));
        op.at = random.below(to->size - op.n + 1), op.from_at = random.below(from->size - op.n + 1);
        op.how = static_cast<unsigned>(random.below(60));
        const bool both_here = to->on_host() && from->on_host();
        if (to->plain() || both_here) w.host_ready(*to, true);
        if (from->plain() || both_here) w.host_ready(*from, false);
        Lane &legacy = w.lanes[0];
        w.give(legacy, op, both_here, [&] {
            w.describe(op, "copy that waits, stream", 0);
            DO(cudaMemcpy(op.to_address + op.at, op.from_address + op.from_at, op.n, kind_of(op)));
        });
        // What is surely done when the call returns.
        const bool managed = to->kind == Kind::Managed || from->kind == Kind::Managed;
        if (!managed && !both_here && (to->on_host() || (from->on_host() && !from->plain()))) w.host.join(legacy.clock);
        if (from->plain()) from->readers.clear();
    }

    void copy_symbol() {
        Block *b = w.pick([](const Block &b) { return b.kind == Kind::Symbol || b.kind == Kind::Constant; });
        if (b == nullptr) return;
        Lane &lane = w.any_lane();
        const size_t n = 1 + random.below(b->size), at = random.below(b->size - n + 1);
        std::vector<unsigned char> some(n);
        for (unsigned char &c : some) c = static_cast<unsigned char>(random.next());
        w.ready(lane, {}, {b});
        const size_t offset = offset_of(*b, at, w.thread);
        if (b->kind == Kind::Symbol) DO(cudaMemcpyToSymbolAsync(symbol_words, some.data(), n, offset, cudaMemcpyHostToDevice, lane.stream));
        else DO(cudaMemcpyToSymbolAsync(constant_words, some.data(), n, offset, cudaMemcpyHostToDevice, lane.stream));
        std::memcpy(b->want.data() + at, some.data(), n);
        b->used(w.count(lane), true);
        w.note("symbol %d+%zu, %zu bytes, stream %d", b->number, at, n, lane.number);
        std::fill(some.begin(), some.end(), 0xEE);
    }

    // The host reads and writes what it can reach.
    void poke() {
        Block *b = w.pick([](const Block &b) { return b.on_host(); });
        if (b == nullptr) return;
        w.host_ready(*b, true);
        compare(*b, b->host, 0, b->size, w.step, "the host before it writes");
        const size_t n = 1 + random.below(b->size), at = random.below(b->size - n + 1);
        const unsigned char first = static_cast<unsigned char>(random.next());
        for (size_t i = 0; i < n; i++) b->host[at + i] = static_cast<char>(b->want[at + i] = static_cast<unsigned char>(first + i * 3));
        b->history.add(w.step, "the host writes");
        w.note("the host writes to %d+%zu, %zu bytes", b->number, at, n);
    }

    void wait() {
        const size_t how = random.below(6);
        if (how == 0) return w.wait_for_device();
        if (how == 1 && !w.events.empty()) return w.wait_for_event(w.events[random.below(w.events.size())], random.one_in(2));
        w.wait_for_lane(w.any_lane(), how == 2);
    }

    void streams() {
        if (w.lanes_alive() < 4 || (w.lanes_alive() < 10 && random.one_in(2))) return w.make_lane();
        w.end_lane(w.any_lane(true));
    }

    void events() {
        Event &e = w.some_event();
        const size_t how = random.below(8);
        if (how < 3) return w.record(e, w.any_lane());
        if (how < 6) return w.await(w.any_lane(), e);
        if (how == 6) return w.wait_for_event(e, random.one_in(2));
        DO(cudaEventDestroy(e.event));
        w.events.erase(w.events.begin() + (&e - w.events.data()));
    }

    void verify() {
        if (Block *b = w.pick([](const Block &) { return true; })) w.verify(*b);
    }

    void make_graph() { graphs_.make(options_); }
    void launch_graph() { graphs_.launch(); }
    void change_graph() { graphs_.change(options_); }
    void end_graph() { graphs_.end_one(); }

    void load() {
        if (w.modules.size() < 3) w.modules.push_back(std::make_shared<Module>(random.one_in(2)));
        w.note("modules: %zu", w.modules.size());
    }

    void unload() {
        if (w.modules.empty()) return;
        const size_t i = random.below(w.modules.size());
        // Graphs and the block of a variable keep it.
        if (w.modules[i].use_count() > 1) return;
        w.wait_for_device();
        w.modules.erase(w.modules.begin() + static_cast<long>(i));
        w.note("module unloaded");
    }

    // A table of addresses in the device's memory: they stay right wherever the device is.
    void make_table() {
        Block &b = w.make_block(Kind::Device);
        const size_t rows = std::min<size_t>(b.size / sizeof(Row), 1 + random.below(12));
        std::vector<Row> table;
        std::vector<Block *> targets;
        for (size_t i = 0; i < rows; i++) {
            Block *t = w.pick([&](const Block &t) { return &t != &b && has_words(t) && t.kind != Kind::Variable; });
            if (t == nullptr) continue;
            table.push_back({reinterpret_cast<const uint32_t *>(t->address(random)), t->words()});
            targets.push_back(t);
            t->held++;
        }
        if (targets.empty()) return;
        Lane &lane = w.any_lane();
        w.ready(lane, {}, {&b});
        DO(cudaMemcpyAsync(b.device, table.data(), table.size() * sizeof(Row), cudaMemcpyHostToDevice, lane.stream));
        std::memcpy(b.want.data(), table.data(), table.size() * sizeof(Row));
        b.used(w.count(lane), true);
        b.targets = targets;
        b.history.add(w.step, "it is a table");
        w.note("block %d is a table of %zu rows", b.number, targets.size());
    }

    // Virtual memory is taken away and comes back with what it held.
    void remap() {
        Block *b = w.pick([](const Block &b) { return b.kind == Kind::Virtual; });
        if (b == nullptr) return;
        w.host_ready(*b, true);
        char *const at = b->address(random);
        unmap(*b, at);
        options_.nap();
        map(*b, at);
        b->history.add(w.step, "mapped anew");
        w.note("block %d is mapped anew", b->number);
    }

    void batch() {
        std::vector<Op> ops;
        for (size_t i = 0; i < 1 + random.below(5); i++) {
            Op op;
            op.what = What::Copy;
            op.thread = w.thread;
            op.to = w.pick([](const Block &b) { return has_bytes(b) && !b.plain(); });
            op.from = w.pick([&](const Block &b) { return has_bytes(b) && !b.plain() && &b != op.to; });
            if (op.to == nullptr || op.from == nullptr) continue;
            op.to_address = op.to->address(random), op.from_address = op.from->address(random);
            op.n = 1 + random.below(std::min(op.to->size, op.from->size));
            op.at = random.below(op.to->size - op.n + 1), op.from_at = random.below(op.from->size - op.n + 1);
            // The copies of a batch have no order among themselves.
            if (std::none_of(ops.begin(), ops.end(), [&](const Op &o) { return conflict(o, op); })) ops.push_back(op);
        }
        if (ops.empty()) return;
        Lane &lane = w.any_lane(true);
        std::vector<void *> to;
        std::vector<const void *> from;
        std::vector<size_t> sizes;
        for (const Op &op : ops) {
            w.ready(lane, op.reads(), op.writes());
            to.push_back(op.to_address + op.at), from.push_back(op.from_address + op.from_at), sizes.push_back(op.n);
        }
        cudaMemcpyAttributes how = {};
        how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        size_t first = 0;
        if (std::any_of(ops.begin(), ops.end(), reads_pinned)) await_turn(lane.stream);
        DO(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), ops.size(), &how, &first, 1, lane.stream));
        const Use use = w.count(lane);
        for (const Op &op : ops) {
            w.describe(op, "batch in stream", lane.number);
            apply(op);
            World::touch(use, op.reads(), op.writes());
        }
    }

    // What says how managed memory is used changes nothing of what it holds.
    void advise() {
        Block *b = w.pick([](const Block &b) { return b.kind == Kind::Managed; });
        if (b == nullptr) return;
        Lane &lane = w.any_lane(true);
        cudaMemLocation here = {};
        here.type = random.one_in(2) ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
        switch (random.below(4)) {
        case 0: {
            const cudaMemoryAdvise advice[] = {cudaMemAdviseSetReadMostly, cudaMemAdviseUnsetReadMostly, cudaMemAdviseSetPreferredLocation, cudaMemAdviseSetAccessedBy};
            DO(cudaMemAdvise(b->device, b->size, advice[random.below(4)], here));
            break;
        }
        case 1:
            b->used(w.lightly(lane, {}, {b}, [&] { DO(cudaStreamAttachMemAsync(lane.stream, b->device, 0, cudaMemAttachGlobal)); }), false);
            break;
        default:
            b->used(w.lightly(lane, {b}, {}, [&] { DO(cudaMemPrefetchAsync(b->device, b->size, here, 0, lane.stream)); }), false);
        }
        w.note("advice for block %d", b->number);
    }

    // What CUDA tells of pointers and of the device.
    void look() {
        if (Block *b = w.pick([](const Block &b) { return b.array == nullptr; })) look_up(*b);
        size_t free, total;
        static size_t first_total = 0;
        static std::once_flag once;
        DO(cudaMemGetInfo(&free, &total));
        std::call_once(once, [&] { first_total = total; });
        expect(total == first_total && free <= total, "cudaMemGetInfo");
        int device = -1;
        DO(cudaGetDevice(&device));
        expect(device == 0, "cudaGetDevice");
        cudaStreamCaptureStatus status;
        Lane &lane = w.any_lane(true);
        DO(cudaStreamIsCapturing(lane.stream, &status));
        expect(status == cudaStreamCaptureStatusNone, "cudaStreamIsCapturing");
        unsigned flags;
        DO(cudaStreamGetFlags(lane.stream, &flags));
        expect((flags == cudaStreamNonBlocking) == !lane.blocking, "cudaStreamGetFlags");
    }

    void pool() {
        const size_t how = random.below(4);
        if (w.pools.size() < 2 && how == 0) {
            cudaMemPoolProps p = {};
            p.allocType = cudaMemAllocationTypePinned;
            p.location.type = cudaMemLocationTypeDevice;
            cudaMemPool_t made;
            DO(cudaMemPoolCreate(&made, &p));
            w.pools.push_back(made);
            return w.note("a pool");
        }
        if (!w.pools.empty() && how == 1) {
            cudaMemPool_t one = w.pools[random.below(w.pools.size())];
            if (std::any_of(w.blocks.begin(), w.blocks.end(), [&](const auto &b) { return b->pool == one; })) return;
            DO(cudaMemPoolDestroy(one));
            w.pools.erase(std::find(w.pools.begin(), w.pools.end(), one));
            return w.note("a pool less");
        }
        cudaMemPool_t some;
        DO(cudaDeviceGetDefaultMemPool(&some, 0));
        if (!w.pools.empty() && random.one_in(2)) some = w.pools[random.below(w.pools.size())];
        uint64_t threshold = random.one_in(2) ? 0 : random.below(64) << 20, used, reserved;
        if (how == 2) DO(cudaMemPoolSetAttribute(some, cudaMemPoolAttrReleaseThreshold, &threshold));
        else DO(cudaMemPoolTrimTo(some, threshold));
        DO(cudaMemPoolGetAttribute(some, cudaMemPoolAttrUsedMemCurrent, &used));
        DO(cudaMemPoolGetAttribute(some, cudaMemPoolAttrReservedMemCurrent, &reserved));
        if (w.threads == 1) expect(used <= reserved, "used and reserved memory of a pool");
    }

    // Calls that are wrong, and change nothing.
    void mistake() {
        int here = 0;
        auto answers = [](cudaError_t got, cudaError_t want, const char *what) {
            if (got != want) std::fprintf(stderr, "mix: %s answers %s\n", what, cudaGetErrorName(got));
            expect(got == want, what);
            expect(cudaGetLastError() == want, "cudaGetLastError");
            expect(cudaGetLastError() == cudaSuccess, "cudaGetLastError again");
        };
        switch (random.below(5)) {
        case 0: return answers(cudaFree(&here), cudaErrorInvalidValue, "cudaFree of the host's memory");
        case 1: return answers(cudaMemcpy(&here, &here, 4, static_cast<cudaMemcpyKind>(17)), cudaErrorInvalidMemcpyDirection, "a kind of copies");
        case 2: return answers(cudaSetDevice(1000), cudaErrorInvalidDevice, "a device");
        case 3: {
            uint32_t *none = nullptr, n = 1, a = 1, b = 1;
            void *args[] = {&none, &n, &a, &b};
            const cudaError_t got = cudaLaunchKernel(reinterpret_cast<const void *>(scale), dim3(1), dim3(2048), args, 0, w.any_lane().stream);
            // Which error depends on the version of the runtime.
            expect(got != cudaSuccess, "a launch of too many threads");
            answers_ = program::mix(answers_ + got);
            return answers(got, got, "a launch");
        }
        default: return answers(cudaHostUnregister(&here), cudaErrorHostMemoryNotRegistered, "cudaHostUnregister");
        }
    }

    // Times between events are never negative.
    void time() {
        Event *first = nullptr, *second = nullptr;
        for (Event &e : w.events)
            for (Event &f : w.events)
                if (&e != &f && e.timed && f.timed && e.recorded && f.recorded && e.use.done(f.clock)) first = &e, second = &f;
        if (second == nullptr) return;
        w.wait_for_event(*first, false);
        w.wait_for_event(*second, false);
        float ms = -1;
        DO(cudaEventElapsedTime(&ms, first->event, second->event));
        expect(ms >= 0, "a time");
    }

    // A context of its own, with memory, code and a stream that end with it.
    void context() {
        if (!random.one_in(4)) return;
        CUcontext made, popped;
        CUdevice device;
        DRIVER(cuDeviceGet, &device, 0);
        DRIVER(cuCtxCreate, &made, nullptr, 0, device);
        {
            Module module(false);
            CUdeviceptr memory;
            CUstream stream;
            const uint32_t n = 100 + static_cast<uint32_t>(random.below(1000)), a = random.word(), b = random.word();
            std::vector<uint32_t> words(n), want(n);
            DRIVER(cuMemAlloc, &memory, n * 4);
            DRIVER(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
            for (uint32_t i = 0; i < n; i++) want[i] = words[i] = i * a;
            DRIVER(cuMemcpyHtoDAsync, memory, words.data(), n * 4, stream);
            module.scale(reinterpret_cast<char *>(memory), n, a, b, random.one_in(2), stream);
            options_.nap();
            DRIVER(cuMemcpyDtoHAsync, words.data(), memory, n * 4, stream);
            DRIVER(cuStreamSynchronize, stream);
            scale_here(want.data(), n, a, b);
            expect(words == want, "what was computed in another context");
            DRIVER(cuMemFree, memory);
            DRIVER(cuStreamDestroy, stream);
        }
        DRIVER(cuCtxPopCurrent, &popped);
        expect(popped == made, "the context");
        DRIVER(cuCtxDestroy, made);
        w.note("another context");
    }

    World w;
    Random &random;
    Chooser chooser_;
    Graphs graphs_;
    const program::Options &options_;
    size_t weights_[STEPS], blocks_;
    uint64_t answers_ = 0;
};

} // namespace mix
