// The address killer. Nearly everything here holds addresses in device memory: linked lists,
// pointers to device variables, function pointers, objects with virtual functions, lists made with
// the device's own malloc, and addresses inside modules that are loaded, unloaded and loaded again
// in the middle of the work. If one address were different after a move, this program would fail.
//
// The modules are files beside the program: killer_0.fatbin, killer_1.fatbin, killer_2.fatbin.
#include "killer_module.cuh"
#include "program.cuh"

#include <cuda.h>
#include <memory>
#include <new>

// ---- 1. Linked lists over two allocations; every node also points at a device variable ----

constexpr int LISTS = 8, NODES = 32; // lists, and nodes in each
constexpr int SUMS = 5;

struct Node {
    Node *next;
    unsigned *target;
    unsigned value, visits;
};

__device__ Node *heads[LISTS];
__device__ unsigned sums[SUMS];

// Node `n` of list `l` lies in one pool or the other, in an order that is not the list's.
__host__ __device__ inline int node_pool(int l, int n) { return (l + n) & 1; }
__host__ __device__ inline int node_slot(int l, int n) { return (n / 2 * 5 % (NODES / 2)) * LISTS + l; }
constexpr int POOL_NODES = LISTS * NODES / 2;

__host__ __device__ inline unsigned next_value(unsigned value, long step) {
    return static_cast<unsigned>(program::mix(value + static_cast<uint64_t>(step)));
}

__global__ void build_lists(Node *pool0, Node *pool1) {
    int l = threadIdx.x;
    Node *after = nullptr;
    for (int n = NODES - 1; n >= 0; n--) {
        Node *node = (node_pool(l, n) ? pool1 : pool0) + node_slot(l, n);
        node->next = after;
        node->target = &sums[(l + n) % SUMS];
        node->value = static_cast<unsigned>(l * NODES + n);
        node->visits = 0;
        after = node;
    }
    heads[l] = after;
}

// Walks its list, changes every node, and puts the first node last.
__global__ void walk_lists(long step) {
    int l = threadIdx.x;
    Node *first = heads[l], *last = first;
    for (Node *node = first; node != nullptr; node = node->next) {
        node->value = next_value(node->value, step);
        node->visits++;
        atomicAdd(node->target, node->value);
        last = node;
    }
    heads[l] = first->next;
    first->next = nullptr;
    last->next = first;
}

// ---- 2. Objects with virtual functions, in allocated memory ----

constexpr int OBJECTS = 24;

struct Shape {
    unsigned value;
    Shape *peer;
    __device__ explicit Shape(unsigned v) : value(v), peer(nullptr) {}
    __device__ virtual void update(long step) = 0;
    __device__ virtual unsigned weight() const { return value; }
};
struct Circle : Shape {
    __device__ explicit Circle(unsigned v) : Shape(v) {}
    __device__ void update(long step) override { value = value * 69069u + static_cast<unsigned>(step); }
};
struct Square : Shape {
    unsigned side = 3;
    __device__ explicit Square(unsigned v) : Shape(v) {}
    __device__ void update(long) override { value ^= side++ * 2246822519u; }
    __device__ unsigned weight() const override { return value + side; }
};
struct Triangle : Shape {
    __device__ explicit Triangle(unsigned v) : Shape(v) {}
    __device__ void update(long step) override { value = (value << 5 | value >> 27) + static_cast<unsigned>(step); }
    __device__ unsigned weight() const override { return ~value; }
};
constexpr size_t OBJECT_BYTES = 64; // room for each of them

__device__ Shape *favourite; // an object's address in a device variable

__global__ void build_objects(unsigned char *room) {
    int i = threadIdx.x;
    void *at = room + i * OBJECT_BYTES;
    Shape *shape;
    if (i % 3 == 0) shape = new (at) Circle(i);
    else if (i % 3 == 1) shape = new (at) Square(i);
    else shape = new (at) Triangle(i);
    __syncthreads();
    shape->peer = reinterpret_cast<Shape *>(room + (i * 5 + 3) % OBJECTS * OBJECT_BYTES);
    if (i == OBJECTS - 1) favourite = shape;
}

__global__ void update_objects(unsigned char *room, long step) {
    reinterpret_cast<Shape *>(room + threadIdx.x * OBJECT_BYTES)->update(step);
}

// Reads every object through the pointer that another one holds.
__global__ void weigh_objects(unsigned char *room, unsigned *weights) {
    int i = threadIdx.x;
    weights[i] = reinterpret_cast<Shape *>(room + i * OBJECT_BYTES)->peer->weight();
    if (i == 0) weights[OBJECTS] = favourite->weight();
}

// ---- 3. Function pointers: in a device variable, and copied from there into allocated memory ----

constexpr int OPS = 5, NUMBERS = 256;
typedef unsigned (*Op)(unsigned);

__host__ __device__ inline unsigned plain_op(int k, unsigned x) {
    switch (k) {
    case 0: return x + 0x9E3779B9u;
    case 1: return x * 2246822519u;
    case 2: return x ^ (x >> 15);
    case 3: return (x << 13) | (x >> 19);
    default: return ~x;
    }
}
template <int K> __device__ __noinline__ unsigned table_op(unsigned x) { return plain_op(K, x); }
__device__ Op table[OPS] = {table_op<0>, table_op<1>, table_op<2>, table_op<3>, table_op<4>};

__global__ void copy_table(Op *copy) { copy[threadIdx.x] = table[threadIdx.x]; }

// Thread 0 of the only block turns the table by one when all have read it.
__global__ void apply_table(Op *copy, unsigned *numbers) {
    int i = threadIdx.x;
    Op op = copy[i % OPS];
    numbers[i] = op(numbers[i]);
    __syncthreads();
    if (i == 0) {
        Op first = copy[0];
        for (int k = 0; k + 1 < OPS; k++) copy[k] = copy[k + 1];
        copy[OPS - 1] = first;
    }
}

// ---- 4. Lists made with the device's malloc ----

constexpr int HEAP_LISTS = 4;

struct HeapNode {
    HeapNode *next;
    unsigned value;
    unsigned filling[5]; // blocks of 32 bytes and more
};

__device__ HeapNode *heap_heads[HEAP_LISTS];
__device__ unsigned heap_failures;

// Adds a node, and in every third step frees the two before it.
__global__ void grow_heap(long step) {
    int l = threadIdx.x;
    HeapNode *node = static_cast<HeapNode *>(malloc(sizeof(HeapNode)));
    if (node == nullptr) {
        atomicAdd(&heap_failures, 1u);
        return;
    }
    node->value = static_cast<unsigned>(step * HEAP_LISTS + l);
    for (int k = 0; k < 5; k++) node->filling[k] = node->value + k;
    node->next = heap_heads[l];
    heap_heads[l] = node;
    for (int k = 0; k < 2 && step % 3 == 2 && node->next != nullptr; k++) {
        HeapNode *old = node->next;
        node->next = old->next;
        free(old);
    }
}

// Length and mixed content of every list.
__global__ void read_heap(unsigned long long *out) {
    int l = threadIdx.x;
    unsigned long long count = 0, content = 0;
    for (HeapNode *node = heap_heads[l]; node != nullptr; node = node->next) {
        content = program::mix(content ^ node->value ^ (static_cast<unsigned long long>(node->filling[4]) << 32));
        count++;
    }
    out[2 * l] = count;
    out[2 * l + 1] = content;
}

// ---- 5. Modules ----

// The driver functions that the program needs, found through the runtime: nothing to link with.
struct Driver {
    decltype(&cuModuleLoadData) load;
    decltype(&cuModuleUnload) unload;
    decltype(&cuModuleGetFunction) function;
    decltype(&cuModuleGetGlobal) global;
    decltype(&cuLaunchKernel) launch;

    template <class F> static void find(const char *name, F &function) {
        cudaDriverEntryPointQueryResult found;
        void *address = nullptr;
        CHECK(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found));
        if (found != cudaDriverEntryPointSuccess) {
            std::fprintf(stderr, "the driver has no %s\n", name);
            std::_Exit(2);
        }
        function = reinterpret_cast<F>(address);
    }
    Driver() {
        find("cuModuleLoadData", load);
        find("cuModuleUnload", unload);
        find("cuModuleGetFunction", function);
        find("cuModuleGetGlobal", global);
        find("cuLaunchKernel", launch);
    }
};

#define CHECK_DRIVER(call)                                                                       \
    do {                                                                                         \
        CUresult result_ = (call);                                                               \
        if (result_ != CUDA_SUCCESS) {                                                           \
            std::fprintf(stderr, "%s:%d: %s: driver error %d\n", __FILE__, __LINE__, #call,      \
                         static_cast<int>(result_));                                             \
            std::fflush(stdout);                                                                 \
            std::_Exit(2);                                                                       \
        }                                                                                        \
    } while (0)

static std::vector<char> read_module_file(int which) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    std::string path(self, length > 0 ? static_cast<size_t>(length) : 0);
    path = path.substr(0, path.rfind('/') + 1) + "killer_" + std::to_string(which) + ".fatbin";
    std::vector<char> image;
    FILE *file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) {
        std::perror(path.c_str());
        std::_Exit(2);
    }
    char piece[4096];
    for (size_t n; (n = std::fread(piece, 1, sizeof piece, file)) > 0;) image.insert(image.end(), piece, piece + n);
    std::fclose(file);
    return image;
}

// A loaded module and what the host expects in it. Module 1 goes the runtime's way (a library),
// the others the driver's way.
class Module {
  public:
    Module(const Driver &driver, int which, killer::ModuleAddresses *addresses, cudaStream_t stream)
        : driver_(driver), which_(which), addresses_(addresses), stream_(stream),
          state_(killer::module_words(which), 0) {
        std::vector<char> image = read_module_file(which);
        if (as_library()) {
            CHECK(cudaLibraryLoadData(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
        } else {
            CHECK_DRIVER(driver_.load(&module_, image.data()));
        }
        const unsigned salt = killer::module_salt(which);
        CHECK(cudaMemcpy(address("salt"), &salt, sizeof salt, cudaMemcpyHostToDevice));
        void *arguments[] = {&addresses_};
        launch("module_open", 1, 1, arguments);
    }

    void work(unsigned *data, std::vector<unsigned> &expected, long long step) {
        void *arguments[] = {&addresses_, &data, &step};
        launch("module_work", 2, killer::MODULE_THREADS / 2, arguments);
        for (int i = 0; i < killer::MODULE_THREADS; i++) {
            int k = static_cast<int>((step + i) % killer::MODULE_OPS);
            unsigned x = killer::module_op(which_, k, expected[i] + killer::module_salt(which_));
            expected[i] = x;
            state_[killer::module_word(which_, i, step)] += x;
            hits_ += x & 15u;
        }
    }

    void report(program::Report &report) {
        std::string name = "module" + std::to_string(which_);
        size_t bytes = state_.size() * sizeof(unsigned);
        std::vector<unsigned> state(state_.size());
        unsigned hits = 0;
        CHECK(cudaMemcpy(state.data(), address("state"), bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&hits, address("hits"), sizeof hits, cudaMemcpyDeviceToHost));
        report.expect((name + ".state").c_str(), state.data(), state_.data(), bytes);
        report.expect_value((name + ".hits").c_str(), hits, hits_);
        report.line("global", (name + ".state").c_str(), state.data(), bytes);
        report.line("global", (name + ".hits").c_str(), &hits, sizeof hits);
    }

    // Waits for the module's kernels and checks its variables, which go away with it.
    void close(program::Report &report) {
        CHECK(cudaStreamSynchronize(stream_));
        this->report(report);
        if (as_library()) CHECK(cudaLibraryUnload(library_));
        else CHECK_DRIVER(driver_.unload(module_));
    }

  private:
    bool as_library() const { return which_ == 1; }

    void *address(const char *name) {
        void *at = nullptr;
        size_t size = 0;
        if (as_library()) {
            CHECK(cudaLibraryGetGlobal(&at, &size, library_, name));
        } else {
            CUdeviceptr pointer = 0;
            CHECK_DRIVER(driver_.global(&pointer, &size, module_, name));
            at = reinterpret_cast<void *>(pointer);
        }
        return at;
    }

    void launch(const char *name, unsigned blocks, unsigned threads, void **arguments) {
        if (as_library()) {
            cudaKernel_t kernel;
            CHECK(cudaLibraryGetKernel(&kernel, library_, name));
            CHECK(cudaLaunchKernel(reinterpret_cast<const void *>(kernel), dim3(blocks), dim3(threads), arguments, 0, stream_));
        } else {
            CUfunction function;
            CHECK_DRIVER(driver_.function(&function, module_, name));
            CHECK_DRIVER(driver_.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream_, arguments, nullptr));
        }
    }

    const Driver &driver_;
    int which_;
    killer::ModuleAddresses *addresses_;
    cudaStream_t stream_;
    CUmodule module_ = nullptr;
    cudaLibrary_t library_ = nullptr;
    std::vector<unsigned> state_;
    unsigned hits_ = 0;
};

// ---- The host's own run of parts 1 to 4 ----

struct HostNode {
    unsigned value, visits;
    int list, index; // which node it was at the start
};

// Checks parts 1 to 4 and prints their lines. Addresses are replaced by what they lead to.
static void report_lists(program::Report &report, long steps, Node *const pools[2]) {
    std::vector<std::vector<HostNode>> lists(LISTS);
    unsigned want_sums[SUMS] = {};
    for (int l = 0; l < LISTS; l++) {
        for (int n = 0; n < NODES; n++) lists[l].push_back({static_cast<unsigned>(l * NODES + n), 0, l, n});
        for (long step = 0; step < steps; step++) {
            for (HostNode &node : lists[l]) {
                node.value = next_value(node.value, step);
                node.visits++;
                want_sums[(node.list + node.index) % SUMS] += node.value;
            }
            lists[l].push_back(lists[l].front());
            lists[l].erase(lists[l].begin());
        }
    }
    std::vector<Node> pool[2];
    for (int p = 0; p < 2; p++) {
        pool[p].resize(POOL_NODES);
        CHECK(cudaMemcpy(pool[p].data(), pools[p], sizeof(Node) * POOL_NODES, cudaMemcpyDeviceToHost));
    }
    Node *first[LISTS];
    unsigned got_sums[SUMS], *sums_at;
    CHECK(cudaMemcpyFromSymbol(first, heads, sizeof first));
    CHECK(cudaMemcpyFromSymbol(got_sums, sums, sizeof got_sums));
    CHECK(cudaGetSymbolAddress(reinterpret_cast<void **>(&sums_at), sums));

    // (list, position, value, visits, target) of every node, found by following the pointers.
    std::vector<uint64_t> got, want;
    for (int l = 0; l < LISTS; l++) {
        Node *at = first[l];
        for (int position = 0; position < NODES; position++) {
            const HostNode &host = lists[l][static_cast<size_t>(position)];
            want.insert(want.end(), {host.value, host.visits, static_cast<uint64_t>((host.list + host.index) % SUMS)});
            const Node *copy = nullptr;
            for (int p = 0; p < 2; p++) {
                if (at >= pools[p] && at < pools[p] + POOL_NODES) copy = &pool[p][static_cast<size_t>(at - pools[p])];
            }
            if (copy == nullptr) break; // the list is torn: `got` stays shorter
            got.insert(got.end(), {copy->value, copy->visits, static_cast<uint64_t>(copy->target - sums_at)});
            at = copy->next;
        }
    }
    report.expect_value("list words", got.size(), want.size());
    if (got.size() == want.size()) report.expect("lists", got.data(), want.data(), got.size() * sizeof(uint64_t));
    report.expect("sums", got_sums, want_sums, sizeof want_sums);
    report.line("alloc", "pools", got.data(), got.size() * sizeof(uint64_t));
    report.global("sums", sums);
}

static void report_objects(program::Report &report, long steps, const unsigned *weights) {
    std::vector<unsigned> value(OBJECTS), want(OBJECTS + 1);
    std::vector<unsigned> side(OBJECTS, 3);
    for (int i = 0; i < OBJECTS; i++) {
        unsigned &v = value[static_cast<size_t>(i)];
        v = static_cast<unsigned>(i);
        for (long step = 0; step < steps; step++) {
            if (i % 3 == 0) v = v * 69069u + static_cast<unsigned>(step);
            else if (i % 3 == 1) v ^= side[static_cast<size_t>(i)]++ * 2246822519u;
            else v = (v << 5 | v >> 27) + static_cast<unsigned>(step);
        }
    }
    auto weigh = [&](int i) {
        unsigned v = value[static_cast<size_t>(i)];
        return i % 3 == 0 ? v : i % 3 == 1 ? v + side[static_cast<size_t>(i)] : ~v;
    };
    for (int i = 0; i < OBJECTS; i++) want[static_cast<size_t>(i)] = weigh((i * 5 + 3) % OBJECTS);
    want[OBJECTS] = weigh(OBJECTS - 1);
    report.expect_device("weights", weights, want.data(), want.size() * sizeof(unsigned));
    report.allocation("weights", weights, want.size() * sizeof(unsigned));
}

static void report_numbers(program::Report &report, long steps, const unsigned *numbers) {
    std::vector<unsigned> want(NUMBERS);
    for (int i = 0; i < NUMBERS; i++) {
        unsigned &x = want[static_cast<size_t>(i)];
        x = static_cast<unsigned>(i);
        for (long step = 0; step < steps; step++) x = plain_op(static_cast<int>((i % OPS + step) % OPS), x);
    }
    report.expect_device("numbers", numbers, want.data(), want.size() * sizeof(unsigned));
    report.allocation("numbers", numbers, want.size() * sizeof(unsigned));
}

static void report_heap(program::Report &report, long steps, const unsigned long long *contents) {
    std::vector<unsigned long long> want;
    for (long l = 0; l < HEAP_LISTS; l++) {
        std::vector<unsigned> list; // newest last
        for (long step = 0; step < steps; step++) {
            for (int k = 0; k < 2 && step % 3 == 2 && !list.empty(); k++) list.pop_back();
            list.push_back(static_cast<unsigned>(step * HEAP_LISTS + l));
        }
        unsigned long long content = 0;
        for (size_t i = list.size(); i-- > 0;) {
            content = program::mix(content ^ list[i] ^ (static_cast<unsigned long long>(list[i] + 4) << 32));
        }
        want.insert(want.end(), {list.size(), content});
    }
    report.expect_device("heap", contents, want.data(), want.size() * sizeof(unsigned long long));
    report.allocation("heap", contents, want.size() * sizeof(unsigned long long));
    unsigned failures = 0;
    CHECK(cudaMemcpyFromSymbol(&failures, heap_failures, sizeof failures));
    report.expect_value("heap_failures", failures, 0);
    report.global("heap_failures", heap_failures);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 48);
    enum { LIST, OBJECT, HEAP, MODULE, STREAMS };
    cudaStream_t streams[STREAMS];
    for (cudaStream_t &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Node *pools[2];
    for (Node *&pool : pools) CHECK(cudaMalloc(&pool, sizeof(Node) * POOL_NODES));
    unsigned char *room;
    unsigned *weights, *numbers, *module_data;
    Op *turning;
    unsigned long long *contents;
    killer::ModuleAddresses *addresses[killer::MODULES];
    CHECK(cudaMalloc(&room, OBJECTS * OBJECT_BYTES));
    CHECK(cudaMalloc(&weights, (OBJECTS + 1) * sizeof(unsigned)));
    CHECK(cudaMalloc(&numbers, NUMBERS * sizeof(unsigned)));
    CHECK(cudaMalloc(&turning, OPS * sizeof(Op)));
    CHECK(cudaMalloc(&contents, 2 * HEAP_LISTS * sizeof(unsigned long long)));
    CHECK(cudaMalloc(&module_data, killer::MODULE_THREADS * sizeof(unsigned)));
    for (auto &address : addresses) CHECK(cudaMalloc(&address, sizeof(killer::ModuleAddresses)));
    std::vector<unsigned> start(NUMBERS), expected(killer::MODULE_THREADS);
    for (int i = 0; i < NUMBERS; i++) start[static_cast<size_t>(i)] = static_cast<unsigned>(i);
    for (int i = 0; i < killer::MODULE_THREADS; i++) expected[static_cast<size_t>(i)] = static_cast<unsigned>(i * 17);
    CHECK(cudaMemcpy(numbers, start.data(), NUMBERS * sizeof(unsigned), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(module_data, expected.data(), expected.size() * sizeof(unsigned), cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    build_lists<<<1, LISTS, 0, streams[LIST]>>>(pools[0], pools[1]);
    CHECK_LAUNCH();
    build_objects<<<1, OBJECTS, 0, streams[OBJECT]>>>(room);
    CHECK_LAUNCH();
    copy_table<<<1, OPS, 0, streams[OBJECT]>>>(turning);
    CHECK_LAUNCH();

    program::Report report;
    Driver driver;
    program::Window windows[STREAMS];
    std::unique_ptr<Module> modules[killer::MODULES];
    auto load = [&](int which) {
        modules[which] = std::make_unique<Module>(driver, which, addresses[which], streams[MODULE]);
    };
    auto unload = [&](int which) {
        modules[which]->close(report);
        modules[which].reset();
    };
    for (long step = 0; step < options.steps; step++) {
        // 0, 1, unload 0, 2, 0 again: the second visit of module 0 lands elsewhere.
        if (step == 0) load(0);
        if (step == options.steps / 4) load(1);
        if (step == options.steps / 2) {
            unload(0);
            load(2);
        }
        if (step == options.steps * 3 / 4 && !modules[0]) load(0);
        walk_lists<<<1, LISTS, 0, streams[LIST]>>>(step);
        CHECK_LAUNCH();
        update_objects<<<1, OBJECTS, 0, streams[OBJECT]>>>(room, step);
        CHECK_LAUNCH();
        apply_table<<<1, NUMBERS, 0, streams[OBJECT]>>>(turning, numbers);
        CHECK_LAUNCH();
        grow_heap<<<1, HEAP_LISTS, 0, streams[HEAP]>>>(step);
        CHECK_LAUNCH();
        for (auto &module : modules) {
            if (module) module->work(module_data, expected, step);
        }
        for (int i = 0; i < STREAMS; i++) windows[i].round_done(streams[i]);
        options.pace();
    }
    weigh_objects<<<1, OBJECTS, 0, streams[OBJECT]>>>(room, weights);
    CHECK_LAUNCH();
    read_heap<<<1, HEAP_LISTS, 0, streams[HEAP]>>>(contents);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());

    report_lists(report, options.steps, pools);
    report_objects(report, options.steps, weights);
    report_numbers(report, options.steps, numbers);
    report_heap(report, options.steps, contents);
    report.expect_device("module_data", module_data, expected.data(), expected.size() * sizeof(unsigned));
    report.allocation("module_data", module_data, expected.size() * sizeof(unsigned));
    for (int which = 0; which < killer::MODULES; which++) {
        if (modules[which]) unload(which);
    }

    for (int i = 0; i < STREAMS; i++) {
        windows[i].destroy();
        CHECK(cudaStreamDestroy(streams[i]));
    }
    for (Node *pool : pools) CHECK(cudaFree(pool));
    for (auto *address : addresses) CHECK(cudaFree(address));
    CHECK(cudaFree(room));
    CHECK(cudaFree(weights));
    CHECK(cudaFree(numbers));
    CHECK(cudaFree(turning));
    CHECK(cudaFree(contents));
    CHECK(cudaFree(module_data));
    return report.finish();
}
