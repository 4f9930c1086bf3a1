// What the test programs share: options, error checks, digests and the final report.
//
// A test program prints nothing that depends on an address, on time or on scheduling, so that its
// whole standard output can be compared byte for byte between a native run, a run on a CPU driver,
// and a run that was moved in the middle.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

// Ends the process when a runtime call fails, naming the call and the error on stderr.
#define CHECK(call)                                                                            \
    do {                                                                                       \
        cudaError_t status_ = (call);                                                          \
        if (status_ != cudaSuccess) {                                                          \
            std::fprintf(stderr, "%s:%d: %s: %s (%d)\n", __FILE__, __LINE__, #call,            \
                         cudaGetErrorName(status_), static_cast<int>(status_));                \
            std::fflush(stdout);                                                               \
            std::_Exit(2);                                                                     \
        }                                                                                      \
    } while (0)

// Checks the launch before it: a launch reports its own errors through cudaGetLastError.
#define CHECK_LAUNCH() CHECK(cudaGetLastError())

namespace program {

// A kernel that works for so many nanoseconds.
static __global__ void linger(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < ns);
}

// `--steps N`: how many rounds of work; `--pace US`: how long the host sleeps between rounds, so
// that somebody can move the program before it ends; `--busy US`: how long the GPU works then,
// besides, so that whoever moves it meets a kernel that has not ended.
struct Options {
    long steps;
    long pace_us;
    long busy_us;

    Options(int argc, char **argv, long default_steps) : steps(default_steps), pace_us(0), busy_us(0) {
        for (int i = 1; i < argc; i++) {
            long *target = nullptr;
            if (std::strcmp(argv[i], "--steps") == 0) target = &steps;
            if (std::strcmp(argv[i], "--pace") == 0) target = &pace_us;
            if (std::strcmp(argv[i], "--busy") == 0) target = &busy_us;
            char *end = nullptr;
            if (target != nullptr && i + 1 < argc) *target = std::strtol(argv[++i], &end, 10);
            if (target == nullptr || end == nullptr || *end != '\0' || *target < 0) {
                std::fprintf(stderr, "usage: %s [--steps N] [--pace MICROSECONDS] [--busy MICROSECONDS]\n", argv[0]);
                std::_Exit(64);
            }
        }
    }

    void pace() const {
        if (busy_us > 0) {
            linger<<<1, 1, 0, cudaStreamPerThread>>>(static_cast<unsigned long long>(busy_us) * 1000);
            CHECK_LAUNCH();
        }
        nap();
    }

    // The same without a call.
    void nap() const {
        if (pace_us > 0) usleep(static_cast<useconds_t>(pace_us));
    }
};

// One step of splitmix64; the same on host and device.
__host__ __device__ inline uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// FNV-1a, 64 bits.
inline uint64_t digest(const void *bytes, size_t size) {
    const unsigned char *p = static_cast<const unsigned char *>(bytes);
    uint64_t h = 0xCBF29CE484222325ull;
    for (size_t i = 0; i < size; i++) h = (h ^ p[i]) * 0x100000001B3ull;
    return h;
}

// Collects what the program verified and prints the report: one line for each allocation and each
// device global, then the result.
class Report {
  public:
    // A device allocation, copied back and digested byte for byte.
    void allocation(const char *name, const void *device, size_t size) {
        std::vector<unsigned char> host(size);
        CHECK(cudaMemcpy(host.data(), device, size, cudaMemcpyDeviceToHost));
        line("alloc", name, host.data(), size);
    }

    // A __device__ or __constant__ variable, by symbol.
    template <class T> void global(const char *name, const T &symbol) {
        std::vector<unsigned char> host(sizeof(T));
        CHECK(cudaMemcpyFromSymbol(host.data(), symbol, sizeof(T)));
        line("global", name, host.data(), sizeof(T));
    }

    // Bytes that already are on the host, for example memory that holds addresses, after these
    // were replaced by something that does not depend on where things are.
    void line(const char *kind, const char *name, const void *bytes, size_t size) {
        std::printf("%s %s %zu %016llx\n", kind, name, size,
                    static_cast<unsigned long long>(digest(bytes, size)));
    }

    // Compares with what the host computed itself.
    void expect(const char *name, const void *got, const void *want, size_t size) {
        if (std::memcmp(got, want, size) == 0) return;
        size_t at = 0;
        while (static_cast<const char *>(got)[at] == static_cast<const char *>(want)[at]) at++;
        std::fprintf(stderr, "%s differs from the host's own result at byte %zu of %zu\n", name,
                     at, size);
        wrong_ = true;
    }

    // The same for a device allocation.
    void expect_device(const char *name, const void *device, const void *want, size_t size) {
        std::vector<unsigned char> host(size);
        CHECK(cudaMemcpy(host.data(), device, size, cudaMemcpyDeviceToHost));
        expect(name, host.data(), want, size);
    }

    // The same for one number.
    void expect_value(const char *name, uint64_t got, uint64_t want) {
        if (got == want) return;
        std::fprintf(stderr, "%s is %llu, the host's own result is %llu\n", name,
                     static_cast<unsigned long long>(got), static_cast<unsigned long long>(want));
        wrong_ = true;
    }

    // Prints the last line and answers the exit code.
    int finish() const {
        std::printf("RESULT %s\n", wrong_ ? "wrong" : "ok");
        std::fflush(stdout);
        return wrong_ ? 1 : 0;
    }

  private:
    bool wrong_ = false;
};

// Events that happened before the work began, and still have after every move. A small program has
// them so that a move has more to carry than the little that the program strains.
class Bystanders {
  public:
    Bystanders() {
        for (cudaEvent_t &event : events_) {
            CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            CHECK(cudaEventRecord(event, cudaStreamPerThread));
        }
        CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    }
    void end(Report &report) {
        for (cudaEvent_t event : events_) {
            report.expect_value("a bystander", cudaEventQuery(event), cudaSuccess);
            CHECK(cudaEventDestroy(event));
        }
    }

  private:
    cudaEvent_t events_[8];
};

// Keeps a stream's queue several rounds deep, and no deeper: round k waits for round k - DEPTH.
// Its events are part of the live objects that a move has to carry over.
class Window {
  public:
    Window() {
        for (cudaEvent_t &event : events_) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    void round_done(cudaStream_t stream) {
        cudaEvent_t event = events_[round_++ % DEPTH];
        if (round_ > DEPTH) CHECK(cudaEventSynchronize(event));
        CHECK(cudaEventRecord(event, stream));
    }
    void destroy() {
        for (cudaEvent_t event : events_) CHECK(cudaEventDestroy(event));
    }

  private:
    static constexpr size_t DEPTH = 6;
    cudaEvent_t events_[DEPTH];
    size_t round_ = 0;
};

} // namespace program
