// For mix.cu: what one thread has (streams, events, memory), and how it sees to it that work comes in the right order.
#pragma once

#include "mix_work.cuh"

#include <mutex>
#include <shared_mutex>

namespace mix {

// Whoever waits for the whole device must not meet a capture of another thread.
inline std::shared_mutex captures;

constexpr size_t EVENTS = 12, FLAGS = 4096;
// Kernels are short: CPU drivers interpret them.
constexpr size_t MAX_WORDS = 3000;

class World {
  public:
    World(int thread, int threads, uint64_t seed) : random(seed * 1000003 + thread), thread(thread), threads(threads) {
        recent = &history;
        thread_number = thread;
        budget_ = (size_t(160) << 20) / (threads + 1);
        add_lane(cudaStreamLegacy, true);
        lanes[0].legacy = true;
        add_lane(cudaStreamPerThread, true);
        for (int i = 0; i < 3; i++) make_lane();
        DO(cudaMalloc(&flags_, FLAGS * 4));
        DO(cudaMemset(flags_, 0, FLAGS * 4));
        wait_for_device();
    }

    Random random;
    const int thread, threads;
    long step = 0;
    History history{told};
    std::deque<Lane> lanes;
    std::vector<Event> events;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::shared_ptr<Module>> modules;
    std::vector<cudaMemPool_t> pools;
    Clock host;

    // ---- streams

    Lane &add_lane(cudaStream_t stream, bool blocking) {
        lanes.push_back(Lane{static_cast<int>(lanes.size()), stream, blocking});
        return lanes.back();
    }

    void make_lane() {
        cudaStream_t stream;
        const bool blocking = random.one_in(3);
        const unsigned flags = blocking ? cudaStreamDefault : cudaStreamNonBlocking;
        if (random.one_in(3)) DO(cudaStreamCreateWithPriority(&stream, flags, -static_cast<int>(random.below(3))));
        else DO(cudaStreamCreateWithFlags(&stream, flags));
        add_lane(stream, blocking);
    }

    // A stream that is there; `own`: one that was made by this thread.
    Lane &any_lane(bool own = false) {
        for (;;) {
            Lane &lane = lanes[random.below(lanes.size())];
            if (lane.alive && (!own || lane.number >= 2)) return lane;
        }
    }

    size_t lanes_alive() const {
        return static_cast<size_t>(std::count_if(lanes.begin(), lanes.end(), [](const Lane &l) { return l.alive; }));
    }

    void end_lane(Lane &lane) {
        // What it has been given is still done; somebody must be able to wait for it.
        if (random.one_in(2)) {
            wait_for_lane(lane);
        } else {
            record(some_event(), lane);
        }
        lane.alive = false;
        DO(cudaStreamDestroy(lane.stream));
        note("end of stream %d", lane.number);
    }

    // What the lane's next operation follows.
    void enter(Lane &lane) {
        lane.clock.join(host);
        if (lane.legacy) {
            for (Lane &other : lanes)
                if (other.alive && other.blocking) lane.clock.join(other.clock);
        } else if (lane.blocking) {
            lane.clock.join(lanes[0].barrier);
        }
    }

    // An operation was handed over. `quiet`: other streams need not follow it in the legacy stream, unlike other work there.
    Use count(Lane &lane, bool quiet = false) {
        lane.clock.set(lane.number, ++lane.n);
        if (lane.legacy && !quiet) lane.barrier = lane.clock;
        return {lane.number, lane.n};
    }

    // Hands over what may be no work of the stream at all: nothing else is known to be done when it is.
    template <class F> Use lightly(Lane &lane, const std::vector<Block *> &reads, const std::vector<Block *> &writes, F f) {
        const Clock before = lane.clock;
        ready(lane, reads, writes);
        f();
        lane.clock = before;
        return count(lane, true);
    }

    // ---- events and waits

    Event &some_event() {
        if (events.size() < EVENTS && (events.empty() || random.one_in(2))) {
            Event e;
            e.timed = random.one_in(3);
            DO(cudaEventCreateWithFlags(&e.event, (e.timed ? cudaEventDefault : cudaEventDisableTiming) | (random.one_in(3) ? cudaEventBlockingSync : 0)));
            events.push_back(e);
        }
        return events[random.below(events.size())];
    }

    void record(Event &event, Lane &lane) {
        enter(lane);
        if (random.one_in(4)) DO(cudaEventRecordWithFlags(event.event, lane.stream, cudaEventRecordDefault));
        else DO(cudaEventRecord(event.event, lane.stream));
        event.recorded = true;
        event.use = count(lane, true);
        event.clock = lane.clock;
        note("event %zu recorded in stream %d", &event - events.data(), lane.number);
    }

    void await(Lane &lane, Event &event) {
        // An event that has happened already, or was never recorded, may be no work at all.
        DO(cudaStreamWaitEvent(lane.stream, event.event, 0));
        if (event.recorded) lane.clock.join(event.clock);
        note("stream %d waits for event %zu", lane.number, &event - events.data());
    }

    void wait_for_event(Event &event, bool poll) {
        poll_or(poll, [&] { return cudaEventQuery(event.event); }, [&] { return cudaEventSynchronize(event.event); });
        if (event.recorded) host.join(event.clock);
        note("waits for event %zu%s", &event - events.data(), poll ? ", polling" : "");
    }

    void wait_for_lane(Lane &lane, bool poll = false) {
        poll_or(poll, [&] { return cudaStreamQuery(lane.stream); }, [&] { return cudaStreamSynchronize(lane.stream); });
        host.join(lane.clock);
        note("waits for stream %d%s", lane.number, poll ? ", polling" : "");
    }

    void wait_for_device() {
        std::unique_lock<std::shared_mutex> held(captures);
        DO(cudaDeviceSynchronize());
        for (Lane &lane : lanes) host.join(lane.clock);
        note("waits for the device");
    }

    // Sees to it that the host knows an operation to be done.
    void learn(const Use &use) {
        if (use.done(host)) return;
        Lane &lane = lanes[use.lane];
        for (Event &e : events)
            if (e.recorded && use.done(e.clock) && random.one_in(2)) return wait_for_event(e, random.one_in(3));
        if (!lane.alive) return wait_for_device();
        switch (random.below(5)) {
        case 0: return wait_for_device();
        case 1: {
            Event &e = some_event();
            record(e, lane);
            return wait_for_event(e, random.one_in(3));
        }
        default: return wait_for_lane(lane, random.one_in(4));
        }
    }

    // Sees to it that a lane follows an operation.
    void follow_up(Lane &lane, const Use &use) {
        if (use.done(lane.clock)) return;
        Lane &other = lanes[use.lane];
        for (Event &e : events)
            if (e.recorded && use.done(e.clock) && random.one_in(2)) return await(lane, e);
        const size_t how = random.below(8);
        if (!other.alive || how == 0) {
            learn(use);
            return enter(lane);
        }
        if (how == 1 && other.number < static_cast<int>(FLAGS)) {
            // A word that one stream writes and the other one waits for.
            const CUdeviceptr word = reinterpret_cast<CUdeviceptr>(flags_ + other.number);
            enter(other);
            DRIVER(cuStreamWriteValue32, other.stream, word, count(other).n, 0);
            DRIVER(cuStreamWaitValue32, lane.stream, word, other.n, CU_STREAM_WAIT_VALUE_GEQ);
            flags_want_[other.number] = other.n;
            lane.clock.join(other.clock);
            return note("stream %d waits for a word of stream %d", lane.number, other.number);
        }
        Event &e = some_event();
        record(e, other);
        await(lane, e);
    }

    // Before an operation.
    void ready(Lane &lane, const std::vector<Block *> &reads, const std::vector<Block *> &writes) {
        enter(lane);
        for (Block *b : reads) follow_up(lane, b->writer);
        for (Block *b : writes) {
            follow_up(lane, b->writer);
            for (size_t i = 0; i < b->readers.size(); i++) follow_up(lane, b->readers[i]);
        }
    }

    // Before the host itself touches a block.
    void host_ready(Block &b, bool writes) {
        learn(b.writer);
        for (size_t i = 0; writes && i < b.readers.size(); i++) learn(b.readers[i]);
        if (writes) b.readers.clear();
    }

    // ---- operations

    static void touch(const Use &use, const std::vector<Block *> &reads, const std::vector<Block *> &writes) {
        for (Block *b : reads) b->used(use, false);
        for (Block *b : writes) b->used(use, true);
    }

    void describe(const Op &op, const char *where, int lane) {
        char text[240];
        std::snprintf(text, sizeof text, "%s %d: %s to %d+%zu (%s) n %zu rows %zu, from %d+%zu (%s) m %zu, a %x b %x, way %u", where, lane, name_of(op.what), op.to->number,
                      op.at, name_of(op.to->kind), op.n, op.rows, op.from != nullptr ? op.from->number : -1, op.from_at, op.from != nullptr ? name_of(op.from->kind) : "", op.m, op.a, op.b, op.how);
        history.add(step, text);
        for (Block *b : op.writes()) b->history.add(step, text);
    }

    void run(Lane &lane, const Op &op) {
        auto go = [&] {
            describe(op, "stream", lane.number);
            issue(op, lane.stream, false);
        };
        give(lane, op, by_processor(op), go);
    }

    // Copies that may be made by the processor during the call.
    static bool by_processor(const Op &op) {
        return op.what != What::Call && op.from != nullptr && op.from->on_host() && op.to->on_host() && (op.from->plain() || op.to->plain());
    }

    // Hands an operation over; `light`: see above.
    template <class F> void give(Lane &lane, const Op &op, bool light, F go) {
        Use use;
        if (light) {
            use = lightly(lane, op.reads(), op.writes(), go);
        } else {
            ready(lane, op.reads(), op.writes());
            go();
            use = count(lane);
        }
        apply(op);
        touch(use, op.reads(), op.writes());
    }

    template <class... A> void note(const char *format, A... a) {
        char text[200];
        std::snprintf(text, sizeof text, format, a...);
        history.add(step, text);
    }

    // ---- memory

    template <class F> Block *pick(F fits) {
        for (int tries = 0; tries < 12 && !blocks.empty(); tries++) {
            Block *b = blocks[random.below(blocks.size())].get();
            if (fits(*b)) return b;
        }
        return nullptr;
    }

    Block &make_block() {
        static const Kind KINDS[] = {Kind::Device, Kind::Device, Kind::Pool,  Kind::Pool,    Kind::Managed, Kind::Pinned,
                                     Kind::Pinned, Kind::Plain,  Kind::Array, Kind::Virtual, Kind::Registered};
        return make_block(KINDS[random.below(sizeof KINDS / sizeof *KINDS)]);
    }

    // A block that holds something already.
    Block &make_block(Kind kind) {
        blocks.push_back(std::make_unique<Block>());
        Block &b = *blocks.back();
        b.number = made_++;
        b.kind = kind;
        b.size = size_for(kind);
        void *memory = nullptr;
        Lane *lane = nullptr;
        switch (kind) {
        case Kind::Device: DO(cudaMalloc(&memory, b.size)); break;
        case Kind::Pool:
            lane = &any_lane();
            b.writer = lightly(*lane, {}, {}, [&] {
                if (!pools.empty() && random.one_in(2)) {
                    b.pool = pools[random.below(pools.size())];
                    DO(cudaMallocFromPoolAsync(&memory, b.size, b.pool, lane->stream));
                } else {
                    DO(cudaMallocAsync(&memory, b.size, lane->stream));
                }
            });
            break;
        case Kind::Managed:
            DO(cudaMallocManaged(&memory, b.size));
            b.host = static_cast<char *>(memory);
            break;
        case Kind::Pinned: {
            const unsigned flags[] = {cudaHostAllocDefault, cudaHostAllocPortable, cudaHostAllocMapped, cudaHostAllocMapped | cudaHostAllocPortable};
            DO(cudaHostAlloc(&memory, b.size, flags[random.below(4)]));
            b.host = static_cast<char *>(memory);
            DO(cudaHostGetDevicePointer(&memory, memory, 0));
            break;
        }
        case Kind::Registered: make_registered(b); break;
        case Kind::Plain: b.host = static_cast<char *>(std::malloc(b.size)); break;
        case Kind::Array: {
            const size_t width = 1 + random.below(70), height = 1 + random.below(30);
            b.size = width * height * 4;
            make_array(b, width, height);
            break;
        }
        case Kind::Virtual: make_virtual(b, random.one_in(2)); break;
        case Kind::Symbol: DO(cudaGetSymbolAddress(&memory, symbol_words)); break;
        case Kind::Constant: DO(cudaGetSymbolAddress(&memory, constant_words)); break;
        case Kind::Variable:
            b.module = modules[random.below(modules.size())];
            memory = reinterpret_cast<void *>(b.module->variable);
            break;
        }
        if (memory != nullptr) b.device = static_cast<char *>(memory);
        if (kind == Kind::Symbol || kind == Kind::Constant) b.device += static_cast<size_t>(thread) * b.size;
        b.want.resize(b.size);
        spent_ += b.size;
        char text[100];
        std::snprintf(text, sizeof text, "block %d: %s, %zu bytes%s", b.number, name_of(kind), b.size, b.alias != nullptr ? ", twice" : "");
        b.history.add(step, text);
        history.add(step, text);
        fill_first(b);
        return b;
    }

    bool may_free(const Block &b) const {
        return b.held == 0 && b.kind != Kind::Symbol && b.kind != Kind::Constant;
    }

    void free_block(Block &b) {
        const size_t how = random.below(3);
        Lane &lane = any_lane();
        const bool in_stream = how == 0 ? b.kind == Kind::Pool || b.kind == Kind::Device : b.kind == Kind::Pool;
        if (in_stream) {
            lightly(lane, {}, {&b}, [&] { DO(cudaFreeAsync(b.device, lane.stream)); });
        } else if (b.kind == Kind::Device && how == 1) {
            // It waits by itself for what uses the memory.
            DO(cudaFree(b.device));
        } else {
            host_ready(b, true);
            end_at_rest(b);
        }
        note("block %d is freed%s", b.number, in_stream ? " in a stream" : "");
        spent_ -= b.size;
        for (Block *t : b.targets) t->held--;
        blocks.erase(std::find_if(blocks.begin(), blocks.end(), [&](const auto &p) { return p.get() == &b; }));
    }

    // Reads a block and compares all of it.
    void verify(Block &b) {
        if (b.on_host() && random.one_in(2)) {
            host_ready(b, false);
            return compare(b, b.host, 0, b.size, step, "the host");
        }
        if (b.kind == Kind::Array) {
            host_ready(b, false);
            std::vector<char> got(b.size);
            DO(cudaMemcpy2DFromArray(got.data(), b.width * 4, b.array, 0, 0, b.width * 4, b.height, cudaMemcpyDeviceToHost));
            host.join(lanes[0].clock);
            return compare(b, got.data(), 0, b.size, step, "a copy of the array");
        }
        Lane &lane = any_lane();
        char *const at = b.address(random);
        std::vector<char> got(b.size);
        if (random.one_in(3)) {
            Lane &legacy = lanes[0];
            ready(legacy, {&b}, {});
            if (b.plain()) host_ready(b, false);
            DO(cudaMemcpy(got.data(), at, b.size, cudaMemcpyDefault));
            count(legacy);
            host.join(legacy.clock);
            return compare(b, got.data(), 0, b.size, step, "a copy that waits");
        }
        if (b.plain()) host_ready(b, false);
        ready(lane, {&b}, {});
        DO(cudaMemcpyAsync(got.data(), at, b.size, cudaMemcpyDefault, lane.stream));
        count(lane);
        wait_for_lane(lane, random.one_in(4));
        compare(b, got.data(), 0, b.size, step, "a copy in a stream");
    }

    // A number for all that this thread's blocks hold, each compared first.
    uint64_t verify_all() {
        uint64_t h = 0;
        for (const auto &b : blocks) {
            verify(*b);
            if (!b->targets.empty()) continue;
            uint64_t word = 0;
            for (size_t i = 0; i < b->size; i += 8) {
                std::memcpy(&word, b->want.data() + i, std::min<size_t>(8, b->size - i));
                h = program::mix(h ^ word);
            }
        }
        return h;
    }

    void end() {
        wait_for_device();
        while (!blocks.empty()) {
            // Tables before what they lead to.
            for (Block *t : blocks.back()->targets) t->held--;
            blocks.back()->targets.clear();
            if (blocks.back()->kind != Kind::Symbol && blocks.back()->kind != Kind::Constant) end_at_rest(*blocks.back());
            blocks.pop_back();
        }
        for (Event &e : events) DO(cudaEventDestroy(e.event));
        for (Lane &lane : lanes)
            if (lane.alive && lane.number >= 2) DO(cudaStreamDestroy(lane.stream));
        for (cudaMemPool_t pool : pools) DO(cudaMemPoolDestroy(pool));
        modules.clear();
        std::vector<uint32_t> flags(FLAGS);
        DO(cudaMemcpy(flags.data(), flags_, FLAGS * 4, cudaMemcpyDeviceToHost));
        expect(flags == flags_want_, "words that streams write");
        DO(cudaFree(flags_));
    }

  private:
    template <class Q, class S> static void poll_or(bool poll, Q query, S synchronize) {
        if (!poll) return DO(synchronize());
        cudaError_t status;
        while ((status = query()) == cudaErrorNotReady) {
            // Not being ready is no error that the next launch should tell.
            (void)cudaGetLastError();
            usleep(100);
        }
        DO(status);
    }

    size_t size_for(Kind kind) {
        if (kind == Kind::Symbol) return SYMBOL_WORDS * 4;
        if (kind == Kind::Constant) return CONSTANT_WORDS * 4;
        if (kind == Kind::Variable) return VARIABLE_SIZE;
        if (kind == Kind::Virtual) return granule();
        size_t size = 1 + random.below(size_t(1) << (2 + random.below(15)));
        if (random.one_in(20)) size = size_t(1) << (16 + random.below(5));
        if (random.one_in(60)) size = (size_t(1) << (20 + random.below(7))) + random.below(2) * 12345;
        return spent_ + size <= budget_ ? size : 1 + size % 5000;
    }

    // Every byte of a new block becomes known.
    void fill_first(Block &b) {
        const uint32_t a = random.word();
        if (b.on_host() && random.one_in(2)) {
            for (size_t i = 0; i < b.size; i++) b.want[i] = static_cast<unsigned char>(a + i * 5);
            std::memcpy(b.host, b.want.data(), b.size);
            return;
        }
        if (b.plain() || b.kind == Kind::Array || random.one_in(3)) {
            // From plain memory, which is gone when the call returns.
            for (size_t i = 0; i < b.size; i++) b.want[i] = static_cast<unsigned char>(a * 3 + i * 7);
            std::vector<unsigned char> first(b.want);
            if (b.plain()) std::memcpy(b.host, first.data(), b.size);
            Lane &lane = any_lane();
            if (b.plain()) return;
            ready(lane, {}, {&b});
            if (b.kind == Kind::Array) DO(cudaMemcpy2DToArrayAsync(b.array, 0, 0, first.data(), b.width * 4, b.width * 4, b.height, cudaMemcpyHostToDevice, lane.stream));
            else DO(cudaMemcpyAsync(b.device, first.data(), b.size, cudaMemcpyDefault, lane.stream));
            b.used(count(lane), true);
            b.history.add(step, "filled from plain memory");
            std::memset(first.data(), 0xEE, first.size());
            return;
        }
        std::memset(b.want.data(), static_cast<int>(a & 0xFF), b.size);
        Lane &lane = random.one_in(3) ? lanes[0] : any_lane();
        ready(lane, {}, {&b});
        if (lane.legacy) DO(cudaMemset(b.device, static_cast<int>(a & 0xFF), b.size));
        else DO(cudaMemsetAsync(b.device, static_cast<int>(a & 0xFF), b.size, lane.stream));
        b.used(count(lane), true);
        b.history.add(step, "filled");
    }

    static void end_at_rest(Block &b) {
        switch (b.kind) {
        case Kind::Pinned: DO(cudaFreeHost(b.host)); break;
        case Kind::Registered: end_registered(b); break;
        case Kind::Plain: std::free(b.host); break;
        case Kind::Virtual: end_virtual(b); break;
        case Kind::Array: end_array(b); break;
        case Kind::Variable: break;
        default: DO(cudaFree(b.device));
        }
    }

    size_t budget_, spent_ = 0;
    int made_ = 0;
    uint32_t *flags_ = nullptr;
    std::vector<uint32_t> flags_want_ = std::vector<uint32_t>(FLAGS);
};

} // namespace mix
