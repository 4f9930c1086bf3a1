// Litmus tests of the order in which host and GPU see each other's writes (docs/consistency.md). Each one has a name of four parts,
// shape/data/way/flag, and is tried for some rounds:
//   out/DATA/WAY/FLAG   bytes come to host memory of the kind DATA in the way WAY, then the host is told by FLAG and must find them;
//   in/DATA/WAY/FLAG    the host writes memory of the kind DATA, then lets the GPU go on by FLAG, whose work must find the bytes;
//   in/device/copy_SOURCE/FLAG the host copies to the GPU's memory, by a call that waits, and then lets a running kernel go on that has not got
//                   the address of its flag as a parameter, again and again;
//   sb/DATA/-/FLAG      each writes its own word and then reads the other's: at least one must see the other's write.
// `--only TEXT`: names that contain TEXT; `--except TEXT,TEXT...`: not those; `--rounds N`; `--words N`: words of the large rounds;
// `--list`: names only; `--counts`: how many rounds were wrong, too; `--unregistered`: kernels use no registered memory by its address, so
// that places which map pinned memory go on with that.
#include "program.cuh"
#include "driver.cuh"

#include <atomic>
#include <chrono>
#include <functional>
#include <sys/mman.h>

namespace {

constexpr int SMALL = 16;
constexpr int ROW = 16;

long rounds = 6, words = 1 << 15;
bool list = false, counts = false, unregistered = false;
std::string only;
std::vector<std::string> except;

cudaStream_t work, other;
// Streams that the default stream waits for, and that wait for it.
cudaStream_t blocking, another_blocking;
cudaEvent_t began, ended, plain;
int *device, *round_on_device, *seen;
std::atomic<int> told{0}, released{0};

// ---------------------------------------------------------------------------------------------- device code

__global__ void fill(volatile int *to, int n, int value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = value;
}
__global__ void set_flag(volatile int *flag, int value) { *flag = value; }
__global__ void set_flag_fenced(volatile int *flag, int value) {
    __threadfence_system();
    *flag = value;
}
__global__ void set_flag_from(volatile int *flag, const int *value) { *flag = *value; }
__global__ void fill_and_set(volatile int *to, int n, volatile int *flag, int value) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = value;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        *flag = value;
    }
}
// How many of the words are not the value, for the host to read later.
__device__ void compare(const volatile int *data, int n, int value, int *wrong) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += data[i] != value;
    *wrong = sum;
}
__global__ void check(const volatile int *data, int n, int value, int *wrong) { compare(data, n, value, wrong); }
__global__ void await_flag(const volatile int *flag, int value) {
    while (*flag != value) {}
    __threadfence_system();
}
__global__ void await_and_check(const volatile int *flag, const volatile int *data, int n, int value, int *wrong) {
    while (*flag != value) {}
    __threadfence_system();
    compare(data, n, value, wrong);
}
// A flag, and behind it, in another line of a cache, the answer to it.
constexpr int ANSWER = 32;
struct Place {
    volatile int *flag;
};
__device__ void await_each_at(volatile int *flag, const volatile int *data, const int *sizes, int value, int count, int *wrong) {
    int sum = 0;
    for (int i = 0; i < count; i++) {
        while (flag[0] != value + i) {}
        __threadfence_system();
        for (int j = 0; j < sizes[i % 4]; j++) sum += data[j] != value + i;
        __threadfence_system();
        flag[ANSWER] = value + i;
    }
    *wrong = sum;
}
__global__ void await_each(const Place *place, const volatile int *data, const int *sizes, int value, int count, int *wrong) {
    await_each_at(place->flag, data, sizes, value, count, wrong);
}
__managed__ int managed_flag[2 * ANSWER];
__global__ void await_each_managed(const volatile int *data, const int *sizes, int value, int count, int *wrong) {
    await_each_at(managed_flag, data, sizes, value, count, wrong);
}
__global__ void store_buffering(const volatile int *go, volatile int *mine, const volatile int *theirs, int value, int *result) {
    while (*go != value) {}
    *mine = value;
    __threadfence_system();
    *result = *theirs;
}

// -------------------------------------------------------------------------------------------------- memory

struct Memory {
    const char *name;
    int *at;
    // Kernels use it by its address.
    bool mapped;
};
std::vector<Memory> kinds, flags;

int *pages(size_t bytes) {
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::_Exit(2);
    return static_cast<int *>(at);
}
int *pinned(size_t bytes, unsigned how) {
    void *at;
    CHECK(cudaHostAlloc(&at, bytes, how));
    return static_cast<int *>(at);
}
int *mapped(size_t bytes, unsigned how) {
    int *at = pinned(bytes, how | cudaHostAllocMapped);
    void *same;
    CHECK(cudaHostGetDevicePointer(&same, at, 0));
    return at;
}
int *registered(size_t bytes, unsigned how) {
    int *at = pages(bytes);
    CHECK(cudaHostRegister(at, bytes, how));
    return at;
}
int *managed(size_t bytes) {
    int *at;
    CHECK(cudaMallocManaged(&at, bytes));
    std::memset(at, 0, bytes);
    return at;
}

void make_memory() {
    const size_t bytes = sizeof(int) * words, page = 4096;
    kinds = {{"pinned", pinned(bytes, cudaHostAllocDefault), false},
             {"mapped", mapped(bytes, cudaHostAllocPortable), true},
             {"registered", registered(bytes, cudaHostRegisterDefault), false},
             {"pageable", pages(bytes), false}};
    flags = {{"mapped", mapped(page, cudaHostAllocPortable), true}};
    if (!unregistered) {
        kinds.push_back({"registered_mapped", registered(bytes, cudaHostRegisterMapped), true});
        flags.push_back({"registered", registered(page, cudaHostRegisterMapped), true});
    }
    int together = 0;
    CHECK(cudaDeviceGetAttribute(&together, cudaDevAttrConcurrentManagedAccess, 0));
    if (together) {
        kinds.push_back({"managed", managed(bytes), true});
        flags.push_back({"managed", managed(page), true});
    }
    for (Memory &m : kinds) std::memset(m.at, 0, bytes);
    for (Memory &m : flags) std::memset(m.at, 0, page);
}

// ------------------------------------------------------------------------------------------------ the tests

struct Round {
    int *data;
    int n;
    int value;
    // A flag that the host and the GPU use by its address, of a kind.
    volatile int *flag;
};

[[noreturn]] void hang(const std::string &name) {
    std::printf("%s hangs\n", name.c_str());
    std::fflush(stdout);
    std::_Exit(3);
}

std::string current;
void until(const std::function<bool()> &there) {
    auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (long n = 1; !there(); n++)
        if (n % 1024 == 0 && std::chrono::steady_clock::now() > limit) hang(current);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

// All bytes alike, so that a fill of bytes makes it; never zero, never that of the round before.
int value_of(long round) { return static_cast<int>(round % 199 + 1) * 0x01010101; }

int wrong_words(const int *data, int n, int value) {
    int wrong = 0;
    for (int i = 0; i < n; i++) wrong += reinterpret_cast<const volatile int *>(data)[i] != value;
    return wrong;
}

cudaArray_t array;
cudaGraphExec_t instance, waiting_instance;
bool graph_sets_flag;

// Ways of bytes to the host. What is copied lies in `device` already.
struct Way {
    const char *name;
    std::function<void(const Round &, cudaStream_t)> go;
};
void out_batch(const Round &r, cudaStream_t stream) {
    void *to[] = {r.data, r.data + r.n / 2};
    const void *from[] = {device, device + r.n / 2};
    size_t sizes[] = {sizeof(int) * (r.n / 2), sizeof(int) * (r.n - r.n / 2)}, first = 0;
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    CHECK(cudaMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, stream));
}
void out_3d(const Round &r, cudaStream_t stream) {
    cudaMemcpy3DParms p{};
    p.srcPtr = make_cudaPitchedPtr(device, 4 * ROW, ROW, r.n / ROW);
    p.dstPtr = make_cudaPitchedPtr(r.data, 4 * ROW, ROW, r.n / ROW);
    p.extent = make_cudaExtent(4 * ROW, r.n / ROW, 1);
    p.kind = cudaMemcpyDefault;
    CHECK(cudaMemcpy3DAsync(&p, stream));
}
void out_array(const Round &r, cudaStream_t stream) {
    CHECK(cudaMemcpy2DToArrayAsync(array, 0, 0, device, 4 * ROW, 4 * ROW, r.n / ROW, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpy2DFromArrayAsync(r.data, 4 * ROW, array, 0, 0, 4 * ROW, r.n / ROW, cudaMemcpyDeviceToHost, stream));
}
// A graph whose copy, and flag, are captured anew in each round.
void launch_captured(cudaStream_t stream, const std::function<void(cudaStream_t)> &calls, cudaGraphExec_t &instance = ::instance) {
    cudaGraph_t graph;
    if (instance != nullptr) CHECK(cudaGraphExecDestroy(instance));
    CHECK(cudaStreamBeginCapture(work, cudaStreamCaptureModeThreadLocal));
    calls(work);
    CHECK(cudaStreamEndCapture(work, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphLaunch(instance, stream));
}

// A graph that does nothing but wait for an event.
void launch_wait(cudaEvent_t event, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphNode_t node;
    if (waiting_instance != nullptr) CHECK(cudaGraphExecDestroy(waiting_instance));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddEventWaitNode(&node, graph, nullptr, 0, event));
    CHECK(cudaGraphInstantiate(&waiting_instance, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphLaunch(waiting_instance, stream));
}

void out_linear(const Round &r, cudaStream_t stream) {
    CHECK(cudaMemcpyAsync(r.data, device, sizeof(int) * r.n, cudaMemcpyDefault, stream));
}
const std::vector<Way> WAYS = {
    {"copy", out_linear},
    {"copy2d",
     [](const Round &r, cudaStream_t stream) {
         CHECK(cudaMemcpy2DAsync(r.data, 4 * ROW, device, 4 * ROW, 4 * ROW, r.n / ROW, cudaMemcpyDefault, stream));
     }},
    {"copy3d", out_3d},
    {"array", out_array},
    {"batch", out_batch},
    // The flag is set by a node of the same graph, if a kernel sets it.
    {"graph",
     [](const Round &r, cudaStream_t stream) {
         launch_captured(stream, [&](cudaStream_t s) {
             out_linear(r, s);
             if (graph_sets_flag) set_flag_from<<<1, 1, 0, s>>>(r.flag, round_on_device);
         });
     }},
    {"kernel", [](const Round &r, cudaStream_t stream) { fill<<<2, 64, 0, stream>>>(r.data, r.n, r.value); }},
};

void CUDART_CB tell(void *value) { told = static_cast<int>(reinterpret_cast<intptr_t>(value)); }

// Ways to tell the host. `set` comes behind the bytes in the stream, `seen` is what the host asks until it is so.
struct Flag {
    const char *name;
    bool in_memory;
    std::function<void(const Round &)> set;
    std::function<bool(const Round &)> seen;
};
bool flag_is_set(const Round &r) { return *r.flag == r.value; }
bool is_done(cudaError_t status) {
    if (status == cudaErrorNotReady) cudaGetLastError();
    else CHECK(status);
    return status == cudaSuccess;
}
const std::vector<Flag> FLAGS = {
    {"store", true, [](const Round &r) { set_flag<<<1, 1, 0, work>>>(r.flag, r.value); }, flag_is_set},
    {"fenced", true, [](const Round &r) { set_flag_fenced<<<1, 1, 0, work>>>(r.flag, r.value); }, flag_is_set},
    {"write_value", true,
     [](const Round &r) { DRIVER(cuStreamWriteValue32, work, reinterpret_cast<CUdeviceptr>(r.flag), r.value, 0); }, flag_is_set},
    {"graph_node", true,
     [](const Round &r) {
         if (!graph_sets_flag)
             launch_captured(work, [&](cudaStream_t s) { set_flag_from<<<1, 1, 0, s>>>(r.flag, round_on_device); });
     },
     flag_is_set},
    {"copy", true,
     [](const Round &r) { CHECK(cudaMemcpyAsync(const_cast<int *>(r.flag), round_on_device, sizeof(int), cudaMemcpyDefault, work)); },
     flag_is_set},
    {"fill", true, [](const Round &r) { CHECK(cudaMemsetAsync(const_cast<int *>(r.flag), r.value & 255, sizeof(int), work)); },
     flag_is_set},
    {"other_stream", true,
     [](const Round &r) {
         CHECK(cudaEventRecord(plain, work));
         CHECK(cudaStreamWaitEvent(other, plain, 0));
         set_flag<<<1, 1, 0, other>>>(r.flag, r.value);
     },
     flag_is_set},
    {"event_query", false, [](const Round &) { CHECK(cudaEventRecord(plain, work)); },
     [](const Round &) { return is_done(cudaEventQuery(plain)); }},
    {"stream_query", false, [](const Round &) {}, [](const Round &) { return is_done(cudaStreamQuery(work)); }},
    {"elapsed", false, [](const Round &) { CHECK(cudaEventRecord(ended, work)); },
     [](const Round &) {
         float ms;
         return is_done(cudaEventElapsedTime(&ms, began, ended));
     }},
    {"host_function", false,
     [](const Round &r) { CHECK(cudaLaunchHostFunc(work, tell, reinterpret_cast<void *>(static_cast<intptr_t>(r.value)))); },
     [](const Round &r) { return told == r.value; }},
};

bool is_wanted(const std::string &name) {
    if (name.find(only) == std::string::npos) return false;
    for (const std::string &e : except)
        if (name.find(e) != std::string::npos) return false;
    return true;
}

bool any_wrong = false;

// Tries one test; `once` tells whether a round was wrong.
void attempt(const std::string &name, const std::function<bool(long)> &once) {
    if (!is_wanted(name)) return;
    if (list) {
        std::printf("%s\n", name.c_str());
        return;
    }
    current = name;
    long wrong = 0;
    for (long round = 0; round < rounds; round++) wrong += once(round);
    any_wrong |= wrong > 0;
    if (counts) std::printf("%s %s %ld of %ld\n", name.c_str(), wrong ? "wrong" : "ok", wrong, rounds);
    else std::printf("%s %s\n", name.c_str(), wrong ? "wrong" : "ok");
}

// Rounds are long and short in turn.
Round round_of(const Memory &data, const Memory &flag, long round) {
    static long number = 0;
    int n = round % 2 == 0 ? static_cast<int>(words) : SMALL;
    return {data.at, n, value_of(number++), flag.at};
}

void to_the_host() {
    for (const Memory &data : kinds)
        for (const Way &way : WAYS)
            for (const Flag &flag : FLAGS)
                for (const Memory &memory : flags) {
                    bool kernel = std::strcmp(way.name, "kernel") == 0, graph = std::strcmp(way.name, "graph") == 0;
                    bool node = std::strcmp(flag.name, "graph_node") == 0;
                    if (kernel && !data.mapped) continue;
                    // A graph node reads pageable memory at its own time, and is no part of this.
                    if (graph && std::strcmp(data.name, "pageable") == 0) continue;
                    if (!flag.in_memory && &memory != &flags[0]) continue;
                    // Not of managed memory.
                    if (std::strcmp(flag.name, "write_value") == 0 && std::strcmp(memory.name, "managed") == 0) continue;
                    std::string name = std::string("out/") + data.name + "/" + way.name + "/" + flag.name;
                    if (flag.in_memory) name += std::string("_") + memory.name;
                    attempt(name, [&](long round) {
                        Round r = round_of(data, memory, round);
                        if (kernel && r.n > 4096) r.n = 4096;
                        graph_sets_flag = graph && node;
                        CHECK(cudaEventRecord(began, work));
                        CHECK(cudaMemsetAsync(device, r.value & 255, sizeof(int) * r.n, work));
                        CHECK(cudaMemsetAsync(round_on_device, r.value & 255, sizeof(int), work));
                        way.go(r, work);
                        CHECK_LAUNCH();
                        flag.set(r);
                        CHECK_LAUNCH();
                        until([&] { return flag.seen(r); });
                        bool wrong = wrong_words(r.data, r.n, r.value) > 0;
                        CHECK(cudaDeviceSynchronize());
                        if (wrong_words(r.data, r.n, r.value) > 0) {
                            std::printf("%s: wrong for good\n", name.c_str());
                            wrong = true;
                        }
                        return wrong;
                    });
                }
    // Data and flag by one kernel.
    for (const Memory &data : kinds)
        for (const Memory &memory : flags) {
            if (!data.mapped) continue;
            attempt(std::string("out/") + data.name + "/kernel/same_kernel_" + memory.name, [&](long round) {
                Round r = round_of(data, memory, round);
                if (r.n > 4096) r.n = 4096;
                fill_and_set<<<1, 64, 0, work>>>(r.data, r.n, r.flag, r.value);
                CHECK_LAUNCH();
                until([&] { return flag_is_set(r); });
                bool wrong = wrong_words(r.data, r.n, r.value) > 0;
                CHECK(cudaDeviceSynchronize());
                return wrong;
            });
        }
}

void CUDART_CB wait_for_release(void *value) {
    while (released != static_cast<int>(reinterpret_cast<intptr_t>(value))) usleep(50);
}

void to_the_gpu() {
    for (const Memory &data : kinds)
        for (const Memory &memory : flags) {
            // The kernel that waits reads the data itself, or another kernel behind it, or a copy.
            // That copy is in the same stream, or in another one that follows it: by work of the default stream, by a graph that
            // waits for an event, or by both.
            for (const char *way :
                 {"same_kernel", "next_kernel", "copy", "graph", "copy_behind_default", "copy_behind_wait", "copy_behind_both"})
                for (const char *flag : {"store", "store_graph", "wait_value", "host_function"}) {
                    bool same = std::strcmp(way, "same_kernel") == 0, copies = way[0] == 'c' || way[0] == 'g';
                    bool both = std::strcmp(way, "copy_behind_both") == 0;
                    bool by_default = both || std::strcmp(way, "copy_behind_default") == 0;
                    bool by_wait = both || std::strcmp(way, "copy_behind_wait") == 0;
                    if ((by_default || by_wait) && std::strcmp(flag, "store") != 0) continue;
                    cudaStream_t first = by_default && !both ? blocking : work;
                    cudaStream_t waiting = both ? blocking : other;
                    cudaStream_t last = by_default ? another_blocking : by_wait ? other : work;
                    bool spins = std::strncmp(flag, "store", 5) == 0, waits = std::strcmp(flag, "wait_value") == 0;
                    // The kernel that waits is one of a graph.
                    bool in_graph = spins && flag[5] != 0;
                    if ((!copies && !data.mapped) || (same && !spins)) continue;
                    // Pageable memory is read when the call is made.
                    if (copies && std::strcmp(data.name, "pageable") == 0) continue;
                    if (waits && std::strcmp(memory.name, "managed") == 0) continue;
                    if (!spins && !waits && &memory != &flags[0]) continue;
                    std::string name = std::string("in/") + data.name + "/" + way + "/" + flag;
                    if (spins || waits) name += std::string("_") + memory.name;
                    attempt(name, [&](long round) {
                        Round r = round_of(data, memory, round);
                        if (!copies && r.n > 4096) r.n = 4096;
                        // The driver reads a few bytes of pinned memory at the call if only the default stream's work is between.
                        if (by_default) r.n = static_cast<int>(words);
                        CHECK(cudaMemsetAsync(device, 0, sizeof(int) * r.n, first));
                        auto kernel = [&](cudaStream_t s) {
                            if (same) await_and_check<<<1, 1, 0, s>>>(r.flag, r.data, r.n, r.value, seen);
                            else await_flag<<<1, 1, 0, s>>>(r.flag, r.value);
                        };
                        if (in_graph) {
                            launch_captured(work, kernel, waiting_instance);
                        } else if (spins) {
                            kernel(first);
                        } else if (waits) {
                            DRIVER(cuStreamWaitValue32, work, reinterpret_cast<CUdeviceptr>(r.flag), r.value, CU_STREAM_WAIT_VALUE_EQ);
                        } else {
                            CHECK(cudaLaunchHostFunc(work, wait_for_release, reinterpret_cast<void *>(static_cast<intptr_t>(r.value))));
                        }
                        CHECK_LAUNCH();
                        auto copy = [&](cudaStream_t s) {
                            CHECK(cudaMemcpyAsync(device, r.data, sizeof(int) * r.n, cudaMemcpyDefault, s));
                        };
                        if (by_wait) {
                            CHECK(cudaEventRecord(plain, first));
                            launch_wait(plain, waiting);
                        }
                        if (by_default) CHECK(cudaMemsetAsync(seen, 0, sizeof *seen, nullptr));
                        if (way[0] == 'c') copy(last);
                        if (way[0] == 'g') launch_captured(work, copy);
                        if (!copies && !same) check<<<1, 1, 0, work>>>(r.data, r.n, r.value, seen);
                        CHECK_LAUNCH();
                        if (round % 3 == 0) usleep(1500);
                        for (int i = 0; i < r.n; i++) const_cast<volatile int *>(r.data)[i] = r.value;
                        std::atomic_thread_fence(std::memory_order_seq_cst);
                        *r.flag = r.value;
                        released = r.value;
                        CHECK(cudaStreamSynchronize(last));
                        std::vector<int> got(r.n);
                        int wrong = 0;
                        if (copies) {
                            CHECK(cudaMemcpy(got.data(), device, sizeof(int) * r.n, cudaMemcpyDeviceToHost));
                            wrong = wrong_words(got.data(), r.n, r.value);
                        } else {
                            CHECK(cudaMemcpy(&wrong, seen, sizeof wrong, cudaMemcpyDeviceToHost));
                        }
                        return wrong != 0;
                    });
                }
        }
}

// Copies that wait, while a kernel runs in a stream that does not follow the default stream.
void copies_beside_a_kernel() {
    constexpr int COUNT = 16;
    const int sizes[] = {1, 1024, 16, 256};
    int together = 0, *sizes_on_device;
    Place *place;
    CHECK(cudaDeviceGetAttribute(&together, cudaDevAttrConcurrentManagedAccess, 0));
    CHECK(cudaMalloc(&sizes_on_device, sizeof sizes));
    CHECK(cudaMemcpy(sizes_on_device, sizes, sizeof sizes, cudaMemcpyHostToDevice));
    CHECK(cudaMalloc(&place, sizeof *place));
    std::vector<Memory> all = flags;
    if (together) all.push_back({"variable", nullptr, true});
    const std::pair<const char *, int *> sources[] = {{"pinned", pinned(4096, cudaHostAllocDefault)}, {"pageable", pages(4096)}};
    for (auto [kind, source] : sources)
      for (const Memory &memory : all)
        attempt(std::string("in/device/copy_") + kind + "/again_" + memory.name, [&, source = source](long round) {
            volatile int *flag = memory.at != nullptr ? memory.at : managed_flag;
            int first = static_cast<int>(round) * COUNT + 1;
            flag[0] = flag[ANSWER] = 0;
            Place there = {flag};
            CHECK(cudaMemcpy(place, &there, sizeof there, cudaMemcpyHostToDevice));
            CHECK(cudaDeviceSynchronize());
            if (memory.at != nullptr) await_each<<<1, 1, 0, work>>>(place, device, sizes_on_device, first, COUNT, seen);
            else await_each_managed<<<1, 1, 0, work>>>(device, sizes_on_device, first, COUNT, seen);
            CHECK_LAUNCH();
            for (int i = 0; i < COUNT; i++) {
                int n = sizes[i % 4];
                std::fill_n(source, n, first + i);
                CHECK(cudaMemcpy(device, source, sizeof(int) * n, cudaMemcpyHostToDevice));
                *flag = first + i;
                until([&] { return flag[ANSWER] == first + i; });
            }
            CHECK(cudaStreamSynchronize(work));
            int wrong = 0;
            CHECK(cudaMemcpy(&wrong, seen, sizeof wrong, cudaMemcpyDeviceToHost));
            return wrong != 0;
        });
}

void store_buffers() {
    for (const Memory &data : kinds)
        for (const Memory &memory : flags) {
            if (!data.mapped) continue;
            attempt(std::string("sb/") + data.name + "/-/" + memory.name, [&](long round) {
                Round r = round_of(data, memory, round);
                volatile int *theirs = r.data, *mine = r.data + 64;
                store_buffering<<<1, 1, 0, work>>>(r.flag, theirs, mine, r.value, seen);
                CHECK_LAUNCH();
                usleep(200);
                *r.flag = r.value;
                *mine = r.value;
                std::atomic_thread_fence(std::memory_order_seq_cst);
                int here = *theirs, there;
                CHECK(cudaStreamSynchronize(work));
                CHECK(cudaMemcpy(&there, seen, sizeof there, cudaMemcpyDeviceToHost));
                return here != r.value && there != r.value;
            });
        }
}

void read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        std::string a = argv[i];
        bool more = i + 1 < argc;
        if (a == "--list") list = true;
        else if (a == "--counts") counts = true;
        else if (a == "--unregistered") unregistered = true;
        else if (a == "--only" && more) only = argv[++i];
        else if (a == "--rounds" && more) rounds = std::atol(argv[++i]);
        else if (a == "--words" && more) words = std::atol(argv[++i]);
        else if (a == "--except" && more) {
            std::string all = argv[++i], one;
            for (char c : all + ",") {
                if (c != ',') one += c;
                else if (!one.empty()) except.push_back(std::exchange(one, ""));
            }
        } else words = 0;
    }
    if (words < SMALL || words % ROW != 0 || words > 1 << 24 || rounds < 1) {
        std::fprintf(stderr, "usage: %s [--only TEXT] [--except TEXT,...] [--rounds N] [--words N] [--list] [--counts] [--unregistered]\n", argv[0]);
        std::_Exit(64);
    }
}

} // namespace

int main(int argc, char **argv) {
    read_arguments(argc, argv);
    setvbuf(stdout, nullptr, _IOLBF, 0);
    make_memory();
    CHECK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaStreamCreate(&blocking));
    CHECK(cudaStreamCreate(&another_blocking));
    CHECK(cudaEventCreate(&began));
    CHECK(cudaEventCreate(&ended));
    CHECK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    CHECK(cudaMalloc(&device, sizeof(int) * words));
    CHECK(cudaMalloc(&round_on_device, sizeof(int)));
    CHECK(cudaMalloc(&seen, sizeof(int)));
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    CHECK(cudaMallocArray(&array, &format, ROW, words / ROW));
    to_the_host();
    to_the_gpu();
    copies_beside_a_kernel();
    store_buffers();
    if (list) return 0;
    std::printf("RESULT %s\n", any_wrong ? "wrong" : "ok");
    return any_wrong ? 1 : 0;
}
