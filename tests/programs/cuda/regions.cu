// Registered memory, copied in and out by several threads, each in two streams, in pieces of random sizes at random offsets; registered anew
// now and then. With the argument `in` or `out` only one copy, behind a kernel, and a part of its memory is unmapped or protected
// (`in-protected`, `out-protected`) before the GPU gets there: the output says what happens.
#include "program.cuh"

#include <sys/mman.h>
#include <thread>

constexpr size_t ROOM = 512 << 10;
constexpr int THREADS = 4, ROUNDS = 6;

__global__ void add(unsigned char *bytes, size_t count, unsigned what) {
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i < count) bytes[i] += static_cast<unsigned char>(what + i);
}

__global__ void spin(volatile unsigned *flag) {
    while (*flag == 0) {}
}

static unsigned char *map(size_t bytes) {
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::_Exit(3);
    return static_cast<unsigned char *>(at);
}

// One thread: what it copies from and to, and what the host says of the device's memory.
struct Worker {
    uint64_t seed;
    unsigned char *from, *to, *device;
    cudaStream_t streams[2];
    cudaEvent_t event;
    std::vector<unsigned char> model;
    program::Report report;

    explicit Worker(int number) : seed(program::mix(number + 1)), from(map(ROOM)), to(map(ROOM)), model(ROOM) {
        CHECK(cudaMalloc(&device, ROOM));
        CHECK(cudaMemset(device, 0, ROOM));
        for (cudaStream_t &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        CHECK(cudaDeviceSynchronize());
        hold();
    }

    void hold() {
        CHECK(cudaHostRegister(from, ROOM, cudaHostRegisterDefault));
        CHECK(cudaHostRegister(to, ROOM, cudaHostRegisterDefault));
    }

    void let_go() {
        CHECK(cudaHostUnregister(from));
        CHECK(cudaHostUnregister(to));
    }

    uint64_t below(uint64_t n) {
        seed = program::mix(seed);
        return seed % n;
    }

    void copy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
        CHECK(cudaMemcpyAsync(dst, src, bytes, kind, stream));
        if (below(4) == 0) CHECK(cudaStreamSynchronize(stream));
    }

    void step() {
        std::memset(to, 0, ROOM);
        size_t end = 0;
        std::vector<unsigned char> want(ROOM);
        // Pieces of the device's memory that do not overlap.
        for (int round = 0; round < ROUNDS && end < ROOM; round++) {
            size_t at = end + below(ROOM / 8), bytes = 1 + below(ROOM / 2), skip = below(64);
            if (at >= ROOM - 64) break;
            if (at + bytes + skip > ROOM) bytes = ROOM - at - skip;
            if (bytes == 0) break;
            uint64_t word = seed;
            for (size_t i = 0; i < bytes; i++) {
                if (i % 8 == 0) word = program::mix(word);
                from[at + skip + i] = static_cast<unsigned char>(word >> (i % 8 * 8));
            }
            cudaStream_t first = streams[below(2)], second = streams[below(2)];
            unsigned what = static_cast<unsigned>(below(256));
            copy(device + at, from + at + skip, bytes, cudaMemcpyHostToDevice, first);
            add<<<static_cast<unsigned>((bytes + 255) / 256), 256, 0, first>>>(device + at, bytes, what);
            CHECK_LAUNCH();
            CHECK(cudaEventRecord(event, first));
            CHECK(cudaStreamWaitEvent(second, event, 0));
            copy(to + at, device + at, bytes, cudaMemcpyDeviceToHost, second);
            for (size_t i = 0; i < bytes; i++) {
                want[at + i] = model[at + i] = static_cast<unsigned char>(from[at + skip + i] + what + i);
            }
            end = at + bytes + skip;
        }
        for (cudaStream_t stream : streams) CHECK(cudaStreamSynchronize(stream));
        report.expect("what came back", to, want.data(), ROOM);
        if (below(8) == 0) {
            let_go();
            hold();
        }
    }
};

static int lose_memory(const std::string &way) {
    constexpr size_t BYTES = 1 << 20, PART = BYTES / 4;
    bool in = way[0] == 'i', protects = way.find('-') != std::string::npos;
    unsigned char *host = map(BYTES), *device;
    unsigned *flag;
    CHECK(cudaMalloc(&device, BYTES));
    CHECK(cudaMalloc(&flag, 4));
    CHECK(cudaMemset(flag, 0, 4));
    cudaStream_t held, other;
    CHECK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
    std::memset(host, 7, BYTES);
    spin<<<1, 1, 0, held>>>(flag);
    CHECK_LAUNCH();
    CHECK(in ? cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, held)
             : cudaMemcpyAsync(host, device, BYTES, cudaMemcpyDeviceToHost, held));
    if ((protects ? mprotect(host + BYTES - PART, PART, PROT_NONE) : munmap(host + BYTES - PART, PART)) != 0) return 3;
    CHECK(cudaMemsetAsync(flag, 1, 4, other));
    cudaError_t rc = cudaStreamSynchronize(held);
    std::printf("the copy ends with %d\n", static_cast<int>(rc));
    // What follows is right.
    CHECK(cudaMemsetAsync(device, 9, BYTES, held));
    CHECK(cudaMemcpyAsync(host, device, BYTES - PART, cudaMemcpyDeviceToHost, held));
    CHECK(cudaStreamSynchronize(held));
    program::Report report;
    std::vector<unsigned char> want(BYTES - PART, 9);
    report.expect("a later copy", host, want.data(), want.size());
    return report.finish();
}

int main(int argc, char **argv) {
    if (argc == 2) return lose_memory(argv[1]);
    program::Options options(argc, argv, 8);
    program::Bystanders bystanders;
    std::vector<Worker> workers;
    for (int i = 0; i < THREADS; i++) workers.emplace_back(i);
    for (long step = 0; step < options.steps; step++) {
        std::vector<std::thread> threads;
        for (Worker &worker : workers) threads.emplace_back([&] { worker.step(); });
        for (std::thread &thread : threads) thread.join();
        options.pace();
    }
    program::Report report;
    bool right = true;
    for (Worker &worker : workers) {
        worker.let_go();
        report.expect_device("a device's memory", worker.device, worker.model.data(), ROOM);
        report.allocation("copied", worker.device, ROOM);
        right = worker.report.finish() == 0 && right;
    }
    bystanders.end(report);
    int status = report.finish();
    return right ? status : 1;
}
