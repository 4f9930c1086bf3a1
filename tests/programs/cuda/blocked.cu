// Calls that never wait, each made while a host function holds its stream back until the call has returned; copies, fills and graphs of
// other streams that end while a host function waits for them; and host memory that is taken wherever a driver takes it: filled, shown by
// a texture, named by tables and by addresses just outside of it.
#include "program.cuh"

#include <atomic>
#include <functional>
#include <sys/mman.h>

constexpr int SIDE = 64;
constexpr int N = SIDE * SIDE;
constexpr size_t BYTES = N * sizeof(int);

__device__ int symbol[N];

__global__ void add(const int *from, int *to, int what) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) to[i] = from[i] + what;
}

__global__ void read_texture(cudaTextureObject_t texture, int *to) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) to[i] = tex1Dfetch<int>(texture, i);
}

__global__ void follow(int *const *table, int *to) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) to[i] = table[i % 2][i];
}

__global__ void sum_backwards(const int *end, const int *before, int *to) {
    to[0] = 0;
    for (int i = 1; i <= N; i++) to[0] += end[-i] + before[i];
}

// What holds a stream back until it is opened.
struct Door {
    std::atomic<bool> open{false};
};

static void CUDART_CB wait_at(void *data) {
    while (!static_cast<Door *>(data)->open) usleep(50);
}

static Door door;

// Makes a call while its stream is held back: the call must return first.
static void held(cudaStream_t stream, const std::function<void()> &call) {
    door.open = false;
    CHECK(cudaLaunchHostFunc(stream, wait_at, &door));
    call();
    door.open = true;
    CHECK(cudaStreamSynchronize(stream));
}

// Makes calls on a stream, which must end while another one is held back.
static void beside(cudaStream_t blocked, cudaStream_t stream, const std::function<void()> &calls) {
    door.open = false;
    CHECK(cudaLaunchHostFunc(blocked, wait_at, &door));
    calls();
    CHECK(cudaStreamSynchronize(stream));
    door.open = true;
    CHECK(cudaStreamSynchronize(blocked));
}

static int *registered(unsigned flags) {
    void *memory = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(cudaHostRegister(memory, BYTES, flags));
    return static_cast<int *>(memory);
}

static int *pinned() {
    int *memory;
    CHECK(cudaMallocHost(&memory, BYTES));
    return memory;
}

struct World {
    program::Report &report;
    cudaStream_t one, two;
    int *device, *other;
    cudaArray_t array;
    long step;

    void set(int *memory, int what) const {
        for (int i = 0; i < N; i++) memory[i] = static_cast<int>(program::mix(step * N + i) + what);
    }
    void expect(const char *name, const int *memory, int what) const {
        std::vector<int> want(N);
        set(want.data(), what);
        report.expect(name, memory, want.data(), BYTES);
    }
    void expect_device(const char *name, const int *memory, int what) const {
        std::vector<int> want(N);
        set(want.data(), what);
        report.expect_device(name, memory, want.data(), BYTES);
    }
    void expect_filled(const char *name, const int *memory, const std::function<int(int)> &byte) const {
        std::vector<unsigned char> want(BYTES);
        for (size_t i = 0; i < BYTES; i++) want[i] = static_cast<unsigned char>(byte(static_cast<int>(i)));
        report.expect(name, memory, want.data(), BYTES);
    }
};

// Copies of arrays and of symbols, while their stream is held back.
static void calls_return(World &w, int *host) {
    w.set(host, 1);
    held(w.one, [&] {
        CHECK(cudaMemcpy2DToArrayAsync(w.array, 0, 0, host, SIDE * 4, SIDE * 4, SIDE, cudaMemcpyHostToDevice, w.one));
        CHECK(cudaMemcpy2DFromArrayAsync(w.device, SIDE * 4, w.array, 0, 0, SIDE * 4, SIDE, cudaMemcpyDeviceToDevice, w.one));
        add<<<1, 64, 0, w.one>>>(w.device, w.device, 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy2DToArrayAsync(w.array, 0, 0, w.device, SIDE * 4, SIDE * 4, SIDE, cudaMemcpyDeviceToDevice, w.one));
        CHECK(cudaMemcpy2DFromArrayAsync(host, SIDE * 4, w.array, 0, 0, SIDE * 4, SIDE, cudaMemcpyDeviceToHost, w.one));
    });
    w.expect("out of an array", host, 2);
    held(w.one, [&] {
        CHECK(cudaMemcpyToSymbolAsync(symbol, host, BYTES, 0, cudaMemcpyHostToDevice, w.one));
        CHECK(cudaMemcpyFromSymbolAsync(w.device, symbol, BYTES, 0, cudaMemcpyDeviceToDevice, w.one));
        add<<<1, 64, 0, w.one>>>(w.device, w.device, 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyToSymbolAsync(symbol, w.device, BYTES, 0, cudaMemcpyDeviceToDevice, w.one));
        CHECK(cudaMemcpyFromSymbolAsync(host, symbol, BYTES, 0, cudaMemcpyDeviceToHost, w.one));
    });
    w.expect("out of a symbol", host, 3);
}

// The address of memory to which a copy is on its way: the program and a kernel get it at once, and find what the copy has brought.
static void addresses_are_told(World &w) {
    int *host = pinned(), *there = nullptr;
    std::vector<int> from(N);
    w.set(from.data(), 20);
    CHECK(cudaMemcpy(w.device, from.data(), BYTES, cudaMemcpyHostToDevice));
    // The copy has left `from`, but a stream that does not follow the default one may come before it (seen on an H200 shared by eight).
    CHECK(cudaStreamSynchronize(cudaStreamLegacy));
    held(w.one, [&] {
        CHECK(cudaMemcpyAsync(host, w.device, BYTES, cudaMemcpyDeviceToHost, w.one));
        if (w.step % 2 == 0) CHECK(cudaHostGetDevicePointer(&there, host, 0));
        add<<<1, 64, 0, w.one>>>(host, host, 1);
        CHECK_LAUNCH();
    });
    w.expect("behind a copy", host, 21);
    CHECK(cudaFreeHost(host));
}

// Copies that read what the stream before them leaves, and go both ways, beside a stream that is held back.
static void others_go_on(World &w, int *host, int *managed) {
    w.set(host, 4);
    beside(w.one, w.two, [&] {
        CHECK(cudaMemcpyAsync(w.device, host, BYTES, cudaMemcpyHostToDevice, w.two));
        add<<<1, 64, 0, w.two>>>(w.device, w.device, 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(host, w.device, BYTES, cudaMemcpyDeviceToHost, w.two));
    });
    w.expect("copies beside", host, 5);
    beside(w.one, w.two, [&] {
        CHECK(cudaMemcpyAsync(managed, host, BYTES, cudaMemcpyDefault, w.two));
        add<<<1, 64, 0, w.two>>>(managed, w.device, 1);
        CHECK_LAUNCH();
    });
    w.expect("managed memory beside", managed, 5);
    w.expect_device("what was read of it", w.device, 6);
    beside(w.one, w.two, [&] {
        CHECK(cudaMemsetAsync(host, 3, BYTES / 2, w.two));
        CHECK(cudaMemcpyAsync(w.device, host, BYTES / 2, cudaMemcpyHostToDevice, w.two));
    });
    std::vector<unsigned char> threes(BYTES / 2, 3);
    w.report.expect("a fill beside", host, threes.data(), BYTES / 2);
    w.report.expect_device("a copy of it", w.device, threes.data(), BYTES / 2);
}

// A graph's copies from and to pinned memory, and inside it, beside a stream that is held back; launched twice, with the nodes that bring
// bytes switched off once.
static void graphs_go_on(World &w, int *from, int *to) {
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamBeginCapture(w.two, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(w.device, from, BYTES, cudaMemcpyHostToDevice, w.two));
    add<<<1, 64, 0, w.two>>>(w.device, w.device, 1);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyAsync(to, w.device, BYTES, cudaMemcpyDeviceToHost, w.two));
    CHECK(cudaStreamEndCapture(w.two, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    cudaGraphNode_t nodes[3];
    size_t count = 3;
    CHECK(cudaGraphGetNodes(graph, nodes, &count));
    auto switch_copies = [&](unsigned on) {
        for (size_t i = 0; i < count; i++) {
            cudaGraphNodeType type;
            CHECK(cudaGraphNodeGetType(nodes[i], &type));
            if (type == cudaGraphNodeTypeMemcpy) CHECK(cudaGraphNodeSetEnabled(instance, nodes[i], on));
        }
    };
    w.set(from, 7);
    std::memset(to, 0, BYTES);
    beside(w.one, w.two, [&] { CHECK(cudaGraphLaunch(instance, w.two)); });
    w.expect("a graph's copies", to, 8);
    switch_copies(0);
    std::memset(to, 0, BYTES);
    beside(w.one, w.two, [&] { CHECK(cudaGraphLaunch(instance, w.two)); });
    w.expect_filled("copies that are switched off", to, [](int) { return 0; });
    w.expect_device("what was there, and the kernel", w.device, 9);
    switch_copies(1);
    w.set(from, 10);
    // Three launches, of which none waits for the one before.
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(instance, w.two));
    CHECK(cudaStreamSynchronize(w.two));
    w.expect("copies that are switched on", to, 11);
    CHECK(cudaGraphExecDestroy(instance));
    CHECK(cudaGraphDestroy(graph));
}

// Fills of memory that no GPU has used yet, of each size and shape.
static void fills(World &w, int *host, const char *name) {
    std::memset(host, 1, BYTES);
    CHECK(cudaMemsetAsync(host, 5, BYTES - 8, w.one));
    CHECK(cudaMemset2DAsync(host, 64, 6, 13, 10, w.one));
    CHECK(cudaStreamSynchronize(w.one));
    w.expect_filled(name, host, [](int i) { return i / 64 < 10 && i % 64 < 13 ? 6 : i < static_cast<int>(BYTES) - 8 ? 5 : 1; });
    CHECK(cudaMemset(host, 9, BYTES));
    w.expect_filled(name, host, [](int) { return 9; });
}

// Memory that nothing names but a texture, a table that a graph copies, an address behind it and one before it.
static void names(World &w) {
    int *shown = pinned();
    w.set(shown, 12);
    cudaResourceDesc what{};
    what.resType = cudaResourceTypeLinear;
    what.res.linear.devPtr = shown;
    what.res.linear.desc = cudaCreateChannelDesc<int>();
    what.res.linear.sizeInBytes = BYTES;
    cudaTextureDesc how{};
    how.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &what, &how, nullptr));
    read_texture<<<1, 64, 0, w.one>>>(texture, w.device);
    CHECK_LAUNCH();
    CHECK(cudaStreamSynchronize(w.one));
    w.expect_device("a texture of pinned memory", w.device, 12);
    CHECK(cudaDestroyTextureObject(texture));

    int **table;
    CHECK(cudaMallocHost(&table, 4096));
    int *first = pinned(), *second = registered(cudaHostRegisterMapped);
    w.set(first, 13);
    w.set(second, 13);
    table[0] = nullptr;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamBeginCapture(w.two, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(w.other, table, 4096, cudaMemcpyHostToDevice, w.two));
    follow<<<1, 64, 0, w.two>>>(reinterpret_cast<int *const *>(w.other), w.device);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(w.two, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    // The table is written when the launch has been made and is held back: only when the copy reads it can anybody see what it holds.
    held(w.two, [&] {
        CHECK(cudaGraphLaunch(instance, w.two));
        table[0] = first;
        table[1] = second;
    });
    w.expect_device("a table that a graph copies", w.device, 13);
    CHECK(cudaGraphExecDestroy(instance));
    CHECK(cudaGraphDestroy(graph));

    int *ends = pinned(), *begins = pinned();
    long want = 0;
    w.set(ends, 14);
    w.set(begins, 15);
    for (int i = 0; i < N; i++) want += static_cast<long>(ends[i]) + begins[i];
    sum_backwards<<<1, 1, 0, w.one>>>(ends + N, begins - 1, w.device);
    CHECK_LAUNCH();
    int got;
    CHECK(cudaMemcpyAsync(&got, w.device, 4, cudaMemcpyDeviceToHost, w.one));
    CHECK(cudaStreamSynchronize(w.one));
    w.report.expect_value("addresses just outside", static_cast<unsigned>(got), static_cast<unsigned>(want));

    CHECK(cudaHostUnregister(second));
    munmap(second, BYTES);
    for (void *memory : {static_cast<void *>(shown), static_cast<void *>(table), static_cast<void *>(first),
                         static_cast<void *>(ends), static_cast<void *>(begins)}) {
        CHECK(cudaFreeHost(memory));
    }
}

// Pinned memory to and from another device than that of the stream, while the stream is held back.
static void another_device(World &w, int *host) {
    int count;
    CHECK(cudaGetDeviceCount(&count));
    if (count < 2) return;
    int *there;
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&there, BYTES));
    CHECK(cudaSetDevice(0));
    w.set(host, 16);
    held(w.one, [&] { CHECK(cudaMemcpyAsync(there, host, BYTES, cudaMemcpyHostToDevice, w.one)); });
    w.expect_device("to another device", there, 16);
    std::memset(host, 0, BYTES);
    held(w.one, [&] { CHECK(cudaMemcpyAsync(host, there, BYTES, cudaMemcpyDeviceToHost, w.one)); });
    w.expect("from another device", host, 16);
    held(w.one, [&] {
        CHECK(cudaMemsetAsync(host, 0, 64, w.one));
        CHECK(cudaMemcpyAsync(there, host, BYTES, cudaMemcpyHostToDevice, w.one));
        CHECK(cudaMemcpyAsync(host + 1, there, BYTES - 4, cudaMemcpyDeviceToHost, w.one));
    });
    std::vector<int> want(N);
    w.set(want.data(), 16);
    for (int i = 0; i < 16; i++) want[i] = 0;
    w.report.expect("there and back", host + 1, want.data(), BYTES - 4);
    CHECK(cudaSetDevice(1));
    CHECK(cudaFree(there));
    CHECK(cudaSetDevice(0));
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 4);
    program::Report report;
    World w{report, nullptr, nullptr, nullptr, nullptr, nullptr, 0};
    CHECK(cudaStreamCreateWithFlags(&w.one, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&w.two, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&w.device, BYTES));
    CHECK(cudaMalloc(&w.other, BYTES));
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    CHECK(cudaMallocArray(&w.array, &format, SIDE, SIDE));
    int *managed;
    CHECK(cudaMallocManaged(&managed, BYTES));

    // Code is loaded at its first use, which waits for everything.
    std::vector<int> zeros(N);
    CHECK(cudaMemcpyToSymbol(symbol, zeros.data(), BYTES));
    add<<<1, 64>>>(w.device, w.device, 0);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    names(w);

    for (w.step = 0; w.step < options.steps; w.step++) {
        int *made = pinned(), *own = registered(cudaHostRegisterDefault), *used = pinned();
        void *there;
        CHECK(cudaHostGetDevicePointer(&there, used, 0));
        fills(w, made, "pinned memory that was filled");
        fills(w, own, "registered memory that was filled");
        for (int *host : {made, own, used}) {
            calls_return(w, host);
            others_go_on(w, host, managed);
            another_device(w, host);
        }
        graphs_go_on(w, made, used);
        graphs_go_on(w, own, made);
        graphs_go_on(w, used, own);
        addresses_are_told(w);
        names(w);
        options.pace();
        CHECK(cudaFreeHost(made));
        CHECK(cudaFreeHost(used));
        CHECK(cudaHostUnregister(own));
        munmap(own, BYTES);
    }
    report.allocation("device", w.device, 4);
    return report.finish();
}
