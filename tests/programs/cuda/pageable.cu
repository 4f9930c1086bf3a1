// Large copies of pageable memory: many sizes, at odd addresses, to and from the device, in the default stream and in others, waited for and
// not, by several threads at a time; beside them children are forked, and at the end a thread is cancelled in the middle of its copies.
// With the argument `in`, `out`, `async-in` or `async-out` only a copy of memory that cannot be accessed: the output says what happens.
#include "program.cuh"

#include <atomic>
#include <csignal>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>

constexpr size_t MIB = 1 << 20;
constexpr size_t ROOM = 20 * MIB;
constexpr int THREADS = 3;

// Adds to one word of each 4 KiB.
__global__ void add(uint64_t *words, size_t count, uint64_t what) {
    size_t i = (blockIdx.x * size_t(blockDim.x) + threadIdx.x) * 512;
    if (i < count) words[i] += what;
}

static void launch(void *at, size_t bytes, uint64_t what, cudaStream_t stream) {
    size_t count = bytes / 8;
    unsigned blocks = static_cast<unsigned>((count / 512 + 1 + 127) / 128);
    add<<<blocks, 128, 0, stream>>>(static_cast<uint64_t *>(at), count, what);
    CHECK_LAUNCH();
}

// One thread: its own memory, and a digest of all that it has seen.
struct Worker {
    uint64_t seed, seen = 0;
    cudaStream_t stream;
    unsigned char *device;
    std::vector<unsigned char> host, back;

    explicit Worker(int number) : seed(program::mix(number + 1)), host(ROOM + 64), back(ROOM + 64) {
        // The default stream, one that follows it, one that does not.
        stream = nullptr;
        if (number > 0) CHECK(cudaStreamCreateWithFlags(&stream, number == 1 ? cudaStreamDefault : cudaStreamNonBlocking));
        CHECK(cudaMalloc(&device, ROOM));
        uint64_t word = seed;
        for (size_t i = 0; i + 8 <= host.size(); i += 8) {
            word = program::mix(word);
            std::memcpy(&host[i], &word, 8);
        }
    }

    uint64_t below(uint64_t n) {
        seed = program::mix(seed);
        return seed % n;
    }

    void step(program::Report &report) {
        // Some around the size from which on several threads copy.
        size_t bytes = below(3) == 0 ? 4 * MIB - 4 + below(9) : 4 * MIB + below(ROOM - 4 * MIB);
        size_t from = below(64), to = 8 * below((ROOM - bytes) / 8 + 1);
        bytes = bytes + to > ROOM ? ROOM - to : bytes;
        uint64_t what = below(1000);
        bool waits = below(2) == 0;
        // What comes before the copy in its stream must not be seen, what comes after must.
        CHECK(cudaMemsetAsync(device + to, 0x5a, bytes, stream));
        if (waits && stream == nullptr) CHECK(cudaMemcpy(device + to, &host[from], bytes, cudaMemcpyHostToDevice));
        else CHECK(cudaMemcpyAsync(device + to, &host[from], bytes, cudaMemcpyHostToDevice, stream));
        launch(device + to, bytes, what, stream);
        if (waits && stream == nullptr) CHECK(cudaMemcpy(&back[from], device + to, bytes, cudaMemcpyDeviceToHost));
        else CHECK(cudaMemcpyAsync(&back[from], device + to, bytes, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (size_t at = 0; at / 8 < bytes / 8; at += 4096) {
            uint64_t word;
            std::memcpy(&word, &host[from + at], 8);
            word += what;
            std::memcpy(&host[from + at], &word, 8);
        }
        report.expect("what came back", &back[from], &host[from], bytes);
        seen = program::mix(seen ^ what ^ bytes) ^ program::digest(&back[from], 4096) ^ program::digest(&back[from + bytes - 4096], 4096);
    }
};

static std::atomic<bool> done{false};

// Children that use no CUDA, as programs make them that start others.
static void fork_children() {
    while (!done) {
        pid_t child = fork();
        if (child == 0) _exit(7);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) std::_Exit(3);
        usleep(20000);
    }
}

static void *copy_until_cancelled(void *first) {
    // No destructor: it would not run in every C library.
    static unsigned char memory[9 * MIB];
    unsigned char *device;
    CHECK(cudaMalloc(&device, sizeof memory));
    for (;;) {
        CHECK(cudaMemcpyAsync(device, memory, sizeof memory, cudaMemcpyHostToDevice, cudaStreamPerThread));
        CHECK(cudaMemcpyAsync(memory, device, sizeof memory, cudaMemcpyDeviceToHost, cudaStreamPerThread));
        *static_cast<std::atomic<bool> *>(first) = true;
        pthread_testcancel();
    }
}

// What an address in device memory leads to.
__global__ void follow(const uint64_t *const *at, uint64_t *to) { *to = **at + 1; }

// A large copy that has the address of registered memory among its bytes, as tables of pointers have.
static void copy_an_address(program::Report &report) {
    constexpr size_t WORDS = 9 * MIB / 8;
    uint64_t *own = static_cast<uint64_t *>(aligned_alloc(4096, 4096)), **device, *result, found = 0;
    *own = 41;
    CHECK(cudaHostRegister(own, 4096, cudaHostRegisterMapped));
    std::vector<uint64_t *> table(WORDS);
    table[WORDS - 7] = own;
    CHECK(cudaMalloc(&device, WORDS * 8));
    CHECK(cudaMalloc(&result, 8));
    CHECK(cudaMemcpy(device, table.data(), WORDS * 8, cudaMemcpyHostToDevice));
    follow<<<1, 1>>>(device + WORDS - 7, result);
    CHECK_LAUNCH();
    CHECK(cudaMemcpy(&found, result, 8, cudaMemcpyDeviceToHost));
    uint64_t want = 42;
    report.expect("what an address among the bytes leads to", &found, &want, 8);
    CHECK(cudaHostUnregister(own));
    std::free(own);
    CHECK(cudaFree(device));
    CHECK(cudaFree(result));
}

static pthread_t first_thread;

static void on_fault(int) {
    bool ours = pthread_equal(pthread_self(), first_thread) != 0;
    const char *text = ours ? "a fault of the calling thread\nRESULT ok\n" : "a fault of another thread\n";
    std::_Exit(write(STDOUT_FILENO, text, std::strlen(text)) > 0 && ours ? 0 : 3);
}

// All of the memory but its beginning cannot be accessed.
static int copy_bad_memory(const std::string &way) {
    bool in = way == "in" || way == "async-in";
    unsigned char *device;
    CHECK(cudaMalloc(&device, 8 * MIB));
    void *bad = mmap(nullptr, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bad == MAP_FAILED || mprotect(static_cast<char *>(bad) + 3 * MIB, 5 * MIB, PROT_NONE) != 0) return 3;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    first_thread = pthread_self();
    signal(SIGSEGV, on_fault);
    void *from = in ? bad : device, *to = in ? device : bad;
    cudaMemcpyKind kind = in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    bool waits = way == "in" || way == "out";
    cudaError_t rc = waits ? cudaMemcpy(to, from, 8 * MIB, kind) : cudaMemcpyAsync(to, from, 8 * MIB, kind, stream);
    std::printf("the copy returns %d\nRESULT ok\n", static_cast<int>(rc));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2) return copy_bad_memory(argv[1]);
    program::Options options(argc, argv, 8);
    program::Report report;
    program::Bystanders bystanders;
    std::vector<Worker> workers;
    for (int i = 0; i < THREADS; i++) workers.emplace_back(i);
    std::thread forker(fork_children);
    for (long step = 0; step < options.steps; step++) {
        std::vector<std::thread> threads;
        for (Worker &worker : workers) threads.emplace_back([&] { worker.step(report); });
        for (std::thread &thread : threads) thread.join();
        options.pace();
    }
    done = true;
    forker.join();
    copy_an_address(report);
    pthread_t copies;
    std::atomic<bool> copied{false};
    if (pthread_create(&copies, nullptr, copy_until_cancelled, &copied) != 0) return 3;
    while (!copied) usleep(1000);
    pthread_cancel(copies);
    void *how;
    if (pthread_join(copies, &how) != 0 || how != PTHREAD_CANCELED) return 3;
    workers[0].step(report);
    for (Worker &worker : workers) report.line("copies", "seen", &worker.seen, sizeof worker.seen);
    bystanders.end(report);
    return report.finish();
}
