// One pattern of calls again and again, for counting what each costs in round trips to a place:
//
//   trips PATTERN COUNT
//
// Two runs with different counts differ by what the pattern itself costs. Prints `PATTERN ok`.
#include "program.cuh"

#include <functional>
#include <map>
#include <vector>

static constexpr int WORDS = 256;
static constexpr size_t BYTES = WORDS * 8;

__global__ void add(const uint64_t *from, uint64_t *to, uint64_t n) { to[threadIdx.x] = from[threadIdx.x] + n; }

// Waits until another kernel has set a word.
__global__ void wait_for(volatile unsigned *word, unsigned value) {
    while (*word != value) {
    }
    __threadfence();
}

__global__ void set(volatile unsigned *word, unsigned value) {
    __threadfence();
    *word = value;
}

__global__ void set_sum(const uint64_t *from, uint64_t *to) {
    *to = 0;
    for (int i = 0; i < WORDS; i++) *to += from[i];
}

static void expect(bool right, const char *what) {
    if (right) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::_Exit(1);
}

static bool all(const uint64_t *words, uint64_t value) {
    for (int i = 0; i < WORDS; i++)
        if (words[i] != value) return false;
    return true;
}

struct Memory {
    uint64_t *pinned_in, *pinned_out, *in, *out;

    Memory() {
        CHECK(cudaMallocHost(&pinned_in, BYTES));
        CHECK(cudaMallocHost(&pinned_out, BYTES));
        CHECK(cudaMalloc(&in, BYTES));
        CHECK(cudaMalloc(&out, BYTES));
        CHECK(cudaMemset(out, 0, BYTES));
        CHECK(cudaDeviceSynchronize());
    }

    void put(uint64_t value) const {
        for (int i = 0; i < WORDS; i++) pinned_in[i] = value;
    }
};

// Small allocations without work.
static void allocations(int count) {
    for (int i = 0; i < count; i++) {
        void *p;
        CHECK(cudaMalloc(&p, 4096 << i % 8));
        CHECK(cudaFree(p));
    }
}

// Large ones, beyond what stays mapped when it is freed.
static void large(int count) {
    for (int i = 0; i < count; i++) {
        void *p;
        CHECK(cudaMalloc(&p, size_t(i % 2 ? 96 : 80) << 20));
        CHECK(cudaFree(p));
    }
}

// Many at a time, then all are freed.
static void many(int count) {
    for (int i = 0; i < count; i++) {
        void *blocks[64];
        for (void *&p : blocks) CHECK(cudaMalloc(&p, 300 << 10));
        for (void *p : blocks) CHECK(cudaFree(p));
    }
}

// Allocations that are used: the free waits for that, as natively.
static void used(int count) {
    for (int i = 0; i < count; i++) {
        void *p;
        CHECK(cudaMalloc(&p, 4096));
        CHECK(cudaMemsetAsync(p, i, 4096));
        CHECK(cudaFree(p));
    }
}

static void hosts(int count) {
    for (int i = 0; i < count; i++) {
        void *p;
        CHECK(cudaMallocHost(&p, 4096));
        CHECK(cudaFreeHost(p));
    }
}

static void managed(int count) {
    for (int i = 0; i < count; i++) {
        void *p;
        CHECK(cudaMallocManaged(&p, 4096));
        CHECK(cudaFree(p));
    }
}

// Host memory registered for a copy in and out.
static void registered(int count) {
    Memory m;
    std::vector<uint64_t> host(WORDS);
    for (int i = 0; i < count; i++) {
        CHECK(cudaHostRegister(host.data(), BYTES, cudaHostRegisterDefault));
        host.assign(WORDS, i);
        cudaStream_t streams[2];
        for (cudaStream_t &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        for (int s = 0; s < 2; s++) {
            const size_t at = s * WORDS / 2;
            CHECK(cudaMemcpyAsync(m.in + at, host.data() + at, BYTES / 2, cudaMemcpyHostToDevice, streams[s]));
            add<<<1, WORDS / 2, 0, streams[s]>>>(m.in + at, m.out + at, 1);
            CHECK_LAUNCH();
            CHECK(cudaMemcpyAsync(host.data() + at, m.out + at, BYTES / 2, cudaMemcpyDeviceToHost, streams[s]));
        }
        for (cudaStream_t s : streams) CHECK(cudaStreamSynchronize(s));
        expect(all(host.data(), i + 1), "registered memory");
        for (cudaStream_t s : streams) CHECK(cudaStreamDestroy(s));
        CHECK(cudaHostUnregister(host.data()));
    }
}

// A stream and an event for one small job.
static void streams(int count) {
    Memory m;
    for (int i = 0; i < count; i++) {
        cudaStream_t stream;
        cudaEvent_t done;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
        m.put(i);
        CHECK(cudaMemcpyAsync(m.in, m.pinned_in, BYTES, cudaMemcpyHostToDevice, stream));
        add<<<1, WORDS, 0, stream>>>(m.in, m.out, 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(m.pinned_out, m.out, BYTES, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaEventRecord(done, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventQuery(done));
        expect(all(m.pinned_out, i + 1), "what a stream gave back");
        CHECK(cudaEventDestroy(done));
        CHECK(cudaStreamDestroy(stream));
    }
}

// Data streamed through two buffers in two streams, taken over by host functions.
static void pipeline(int count) {
    Memory m[2];
    cudaStream_t streams[2];
    cudaEvent_t done[2];
    struct Taken {
        const uint64_t *from;
        uint64_t sum;
    } taken[2] = {};
    uint64_t want = 0;
    for (int b = 0; b < 2; b++) {
        CHECK(cudaStreamCreateWithFlags(&streams[b], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done[b], cudaEventDisableTiming));
        taken[b].from = m[b].pinned_out;
    }
    for (int i = 0; i < count; i++) {
        const int b = i % 2;
        if (i >= 2) CHECK(cudaEventSynchronize(done[b]));
        m[b].put(i);
        CHECK(cudaMemcpyAsync(m[b].in, m[b].pinned_in, BYTES, cudaMemcpyHostToDevice, streams[b]));
        add<<<1, WORDS, 0, streams[b]>>>(m[b].in, m[b].out, 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(m[b].pinned_out, m[b].out, BYTES, cudaMemcpyDeviceToHost, streams[b]));
        auto take = [](void *data) {
            Taken &t = *static_cast<Taken *>(data);
            for (int i = 0; i < WORDS; i++) t.sum += t.from[i];
        };
        CHECK(cudaLaunchHostFunc(streams[b], take, &taken[b]));
        CHECK(cudaEventRecord(done[b], streams[b]));
        want += uint64_t(i + 1) * WORDS;
    }
    for (cudaStream_t s : streams) CHECK(cudaStreamSynchronize(s));
    expect(taken[0].sum + taken[1].sum == want, "what host functions have taken over");
}

static cudaGraphNode_t kernel_node(cudaGraph_t graph, cudaGraphNode_t after, const uint64_t *from, uint64_t *to, uint64_t n) {
    void *pointers[] = {&from, &to, &n};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void *>(add);
    params.gridDim = dim3(1), params.blockDim = dim3(WORDS), params.kernelParams = pointers;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after == nullptr ? nullptr : &after, after == nullptr ? 0 : 1, &params));
    return node;
}

// A graph with copies from and to the host, made node by node, instantiated, launched, ended.
static void graphs(int count) {
    Memory m;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < count; i++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        cudaGraphNode_t in, out;
        CHECK(cudaGraphCreate(&graph, 0));
        CHECK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, m.in, m.pinned_in, BYTES, cudaMemcpyHostToDevice));
        cudaGraphNode_t kernel = kernel_node(graph, in, m.in, m.out, i);
        CHECK(cudaGraphAddMemcpyNode1D(&out, graph, &kernel, 1, m.pinned_out, m.out, BYTES, cudaMemcpyDeviceToHost));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        m.put(7);
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        expect(all(m.pinned_out, i + 7), "what a graph has copied out");
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
}

// Graphs whose copies from the host must read what comes before them has written: a function of the program, in the stream or behind an
// event, a copy of the graph before or of the stream, a function or a copy in the graph itself. Nobody waits in between.
static void order(int count) {
    Memory m;
    cudaStream_t stream, side;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    uint64_t *between;
    CHECK(cudaMallocHost(&between, BYTES));
    auto slow = [](void *data) {
        usleep(2000);
        for (int i = 0; i < WORDS; i++) static_cast<uint64_t *>(data)[i] += 1;
    };
    struct Boxes {
        uint64_t *from, *to;
    } boxes{m.pinned_out, m.pinned_in};
    auto hand_back = [](void *data) { std::memcpy(static_cast<Boxes *>(data)->to, static_cast<Boxes *>(data)->from, BYTES); };
    // Copies in, adds 1, copies back to where it was read; behind a function that adds 1; by another buffer and 1 more; or to another
    // buffer, and a function hands that back.
    enum Kind { PLAIN, CALLING, THROUGH, TAKING };
    cudaGraphExec_t plain, calling, through, taking;
    auto make = [&](Kind kind, cudaGraphExec_t &instance) {
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        if (kind == CALLING) CHECK(cudaLaunchHostFunc(stream, slow, m.pinned_in));
        CHECK(cudaMemcpyAsync(m.in, m.pinned_in, BYTES, cudaMemcpyHostToDevice, stream));
        add<<<1, WORDS, 0, stream>>>(m.in, m.out, 1);
        CHECK_LAUNCH();
        if (kind == THROUGH) {
            CHECK(cudaMemcpyAsync(between, m.out, BYTES, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaMemcpyAsync(m.in, between, BYTES, cudaMemcpyHostToDevice, stream));
            add<<<1, WORDS, 0, stream>>>(m.in, m.out, 1);
            CHECK_LAUNCH();
        }
        CHECK(cudaMemcpyAsync(kind == TAKING ? m.pinned_out : m.pinned_in, m.out, BYTES, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&instance, graph, 0));
        CHECK(cudaGraphDestroy(graph));
    };
    auto take = [&](cudaStream_t s) {
        CHECK(cudaGraphLaunch(taking, s));
        CHECK(cudaLaunchHostFunc(s, hand_back, &boxes));
    };
    make(PLAIN, plain), make(CALLING, calling), make(THROUGH, through), make(TAKING, taking);
    m.put(0);
    uint64_t want = 0;
    for (int i = 0; i < count; i++) {
        take(stream);                          // + 1
        CHECK(cudaGraphLaunch(plain, stream)); // + 1
        take(stream);                          // + 1, behind a copy of a graph alone
        CHECK(cudaGraphLaunch(plain, stream)); // + 1
        CHECK(cudaLaunchHostFunc(stream, slow, m.pinned_in)); // + 1
        CHECK(cudaGraphLaunch(plain, stream)); // + 1
        CHECK(cudaGraphLaunch(calling, stream)); // + 2
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaGraphLaunch(through, stream)); // + 2
        take(stream);                            // + 1, behind a copy of a graph alone
        // A copy of the stream writes what a graph in another stream reads.
        add<<<1, WORDS, 0, stream>>>(m.out, m.in, 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(m.pinned_in, m.in, BYTES, cudaMemcpyDeviceToHost, stream)); // + 1
        CHECK(cudaLaunchHostFunc(stream, slow, m.pinned_in)); // + 1
        CHECK(cudaEventRecord(event, stream));
        CHECK(cudaStreamWaitEvent(side, event, 0));
        take(side);                            // + 1
        CHECK(cudaGraphLaunch(plain, side));   // + 1
        CHECK(cudaEventRecord(event, side));
        CHECK(cudaStreamWaitEvent(stream, event, 0));
        want += 15;
        if (i % 3 == 2) {
            CHECK(cudaStreamSynchronize(stream));
            expect(all(m.pinned_in, want), "what graphs have read and written in turn");
            m.put(want += 5);
        }
    }
    CHECK(cudaDeviceSynchronize());
    expect(all(m.pinned_in, want), "what graphs have read and written");
}

// Copies behind a kernel that waits for another stream, where a function of the program is before the kernel that it waits for: copies of
// the stream, and of a graph with that kernel, which may be launched before the other stream has anything to do.
static void kernels(int count) {
    Memory m;
    cudaStream_t stream, side;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    unsigned *word;
    CHECK(cudaMalloc(&word, sizeof *word));
    CHECK(cudaMemset(word, 0, sizeof *word));
    CHECK(cudaDeviceSynchronize());
    auto copies = [&](unsigned turn) {
        wait_for<<<1, 1, 0, stream>>>(word, turn);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(m.in, m.pinned_in, BYTES, cudaMemcpyHostToDevice, stream));
        add<<<1, WORDS, 0, stream>>>(m.in, m.out, 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(m.pinned_out, m.out, BYTES, cudaMemcpyDeviceToHost, stream));
    };
    auto slow = [](void *data) {
        usleep(1000);
        for (int i = 0; i < WORDS; i++) static_cast<uint64_t *>(data)[i] += 1;
    };
    m.put(0);
    for (int i = 1; i <= count; i++) {
        auto other = [&] {
            CHECK(cudaLaunchHostFunc(side, slow, m.pinned_in));
            set<<<1, 1, 0, side>>>(word, i);
            CHECK_LAUNCH();
        };
        if (i % 3 != 2) other();
        if (i % 3 == 0) {
            copies(i);
        } else {
            cudaGraph_t graph;
            cudaGraphExec_t instance;
            CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            copies(i);
            CHECK(cudaStreamEndCapture(stream, &graph));
            CHECK(cudaGraphInstantiate(&instance, graph, 0));
            CHECK(cudaGraphLaunch(instance, stream));
            CHECK(cudaGraphDestroy(graph));
            CHECK(cudaGraphExecDestroy(instance));
        }
        if (i % 3 == 2) other();
        CHECK(cudaStreamSynchronize(stream));
        expect(all(m.pinned_out, i + 1), "a copy behind a kernel that waits for another stream");
    }
}

// An instance launched in a stream behind a function, and once more in another stream, which has nothing to do: it comes behind its first launch.
static void instances(int count) {
    Memory m;
    cudaStream_t one, two;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(m.in, m.pinned_in, BYTES, cudaMemcpyHostToDevice, one));
    add<<<1, WORDS, 0, one>>>(m.in, m.out, 1);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyAsync(m.pinned_out, m.out, BYTES, cudaMemcpyDeviceToHost, one));
    CHECK(cudaStreamEndCapture(one, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    auto slow = [](void *data) {
        usleep(1000);
        for (int i = 0; i < WORDS; i++) static_cast<uint64_t *>(data)[i] += 1;
    };
    m.put(0);
    for (int i = 1; i <= count; i++) {
        CHECK(cudaLaunchHostFunc(one, slow, m.pinned_in));
        CHECK(cudaGraphLaunch(instance, one));
        CHECK(cudaGraphLaunch(instance, two));
        CHECK(cudaStreamSynchronize(two));
        expect(all(m.pinned_out, i + 1), "an instance's second launch, in another stream");
        CHECK(cudaStreamSynchronize(one));
    }
}

// One step of training in eager mode, as PyTorch makes it: a batch from pageable memory, one launch after the other with questions between
// them, gradients filled with zeros, events of the allocator, and the loss read at the end (`loss.item()`), which the program waits for.
static void eager(int count) {
    Memory m;
    std::vector<uint64_t> batch(64 * WORDS);
    uint64_t *input, *loss;
    cudaEvent_t freed;
    CHECK(cudaMalloc(&input, batch.size() * sizeof batch[0]));
    CHECK(cudaMalloc(&loss, BYTES));
    CHECK(cudaEventCreateWithFlags(&freed, cudaEventDisableTiming));
    for (int i = 1; i <= count; i++) {
        batch.assign(batch.size(), i);
        CHECK(cudaMemcpyAsync(input, batch.data(), batch.size() * sizeof batch[0], cudaMemcpyHostToDevice, nullptr));
        CHECK(cudaMemsetAsync(m.in, 0, BYTES, nullptr));
        for (int layer = 0; layer < 40; layer++) {
            int device;
            cudaStreamCaptureStatus capturing;
            CHECK(cudaGetDevice(&device));
            CHECK(cudaStreamIsCapturing(nullptr, &capturing));
            add<<<1, WORDS>>>(layer == 0 ? input : layer % 2 ? m.out : m.in, layer % 2 ? m.in : m.out, 1);
            CHECK_LAUNCH();
        }
        CHECK(cudaEventRecord(freed, nullptr));
        set_sum<<<1, 1>>>(m.in, loss);
        CHECK_LAUNCH();
        uint64_t item;
        CHECK(cudaMemcpyAsync(&item, loss, sizeof item, cudaMemcpyDeviceToHost, nullptr));
        CHECK(cudaStreamSynchronize(nullptr));
        CHECK(cudaEventQuery(freed));
        expect(item == uint64_t(i + 40) * WORDS, "the loss of a step");
    }
}

// Weights of several sizes copied from pageable memory, one after the other, as a model is loaded.
static void weights(int count) {
    std::vector<uint64_t> host(256 << 10);
    for (size_t i = 0; i < host.size(); i++) host[i] = i * 0x9e3779b97f4a7c15ull;
    uint64_t *there;
    const size_t bytes = host.size() * sizeof host[0];
    CHECK(cudaMalloc(&there, bytes));
    for (int i = 0; i < count; i++)
        for (size_t part : {bytes, bytes / 3, bytes / 40}) {
            host[0] = i + part;
            CHECK(cudaMemcpy(there, host.data(), part, cudaMemcpyHostToDevice));
            CHECK(cudaStreamSynchronize(nullptr));
        }
    std::vector<uint64_t> back(host.size());
    CHECK(cudaMemcpy(back.data(), there, bytes, cudaMemcpyDeviceToHost));
    expect(count == 0 || back == host, "weights");
}

// Short copies, after the question whether GPUs can use each other's memory.
static void asked(int count) {
    int can;
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK(cudaDeviceCanAccessPeer(&can, 1, 0));
    uint64_t *there, back = 0;
    CHECK(cudaMalloc(&there, BYTES));
    for (uint64_t i = 1; i <= uint64_t(count); i++) CHECK(cudaMemcpy(there, &i, sizeof i, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(&back, there, sizeof back, cudaMemcpyDeviceToHost));
    expect(back == uint64_t(count), "the last copy");
}

// A limit that only the program itself changes.
static void limits(int count) {
    size_t value, other;
    CHECK(cudaDeviceSetLimit(cudaLimitMaxL2FetchGranularity, 32));
    CHECK(cudaDeviceGetLimit(&value, cudaLimitMaxL2FetchGranularity));
    for (int i = 0; i < count; i++) {
        CHECK(cudaDeviceGetLimit(&other, cudaLimitMaxL2FetchGranularity));
        expect(other == value, "a limit has changed");
    }
    CHECK(cudaDeviceSetLimit(cudaLimitMaxL2FetchGranularity, 128));
    CHECK(cudaDeviceGetLimit(&other, cudaLimitMaxL2FetchGranularity));
    expect(other == 128 && value == 32, "the limit is another one");
}

// Copies of memory that is not pinned, of a middling size, in and out.
static void pageable(int count) {
    std::vector<uint64_t> there(40'000), back(there.size());
    uint64_t *device;
    const size_t bytes = there.size() * 8;
    CHECK(cudaMalloc(&device, bytes));
    for (int i = 1; i <= count; i++) {
        for (uint64_t &word : there) word = word * 6364136223846793005u + uint64_t(i);
        CHECK(cudaMemcpy(device, there.data(), bytes, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(back.data(), device, bytes, cudaMemcpyDeviceToHost));
        expect(there == back, "bytes that were copied there and back");
    }
    CHECK(cudaFree(device));
}

static cudaGraph_t captured(const Memory &m, cudaStream_t stream, int n) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemsetAsync(m.in, n & 0x7f, BYTES, stream));
    add<<<1, WORDS, 0, stream>>>(m.in, m.out, n);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

// An instance that is changed before each launch to what a capture has made, values of fills and kernels.
static void updates(int count) {
    Memory m;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t graph = captured(m, stream, 0);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 1; i <= count; i++) {
        cudaGraph_t changed = captured(m, stream, i);
        cudaGraphExecUpdateResultInfo info;
        CHECK(cudaGraphExecUpdate(exec, changed, &info));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaGraphDestroy(changed));
    }
    CHECK(cudaMemcpyAsync(m.pinned_out, m.out, BYTES, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect(all(m.pinned_out, (count & 0x7f) * 0x0101010101010101ull + count), "an instance that was changed");
}

int main(int argc, char **argv) {
    const std::map<std::string, std::function<void(int)>> patterns = {
        {"allocations", allocations}, {"large", large},       {"many", many},     {"used", used},     {"hosts", hosts},
        {"registered", registered},   {"streams", streams},   {"pipeline", pipeline}, {"graphs", graphs}, {"updates", updates}, {"managed", managed}, {"order", order},     {"kernels", kernels},
        {"instances", instances},     {"eager", eager},         {"weights", weights},     {"asked", asked},         {"pageable", pageable},   {"limits", limits},
    };
    const auto pattern = argc == 3 ? patterns.find(argv[1]) : patterns.end();
    if (pattern == patterns.end()) {
        std::fprintf(stderr, "usage: %s PATTERN COUNT\n", argv[0]);
        return 64;
    }
    CHECK(cudaFree(nullptr));
    pattern->second(std::atoi(argv[2]));
    std::printf("%s ok\n", argv[1]);
}
