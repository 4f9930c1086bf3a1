// For mix.cu: what happens before what. Each stream is a lane that counts its operations; a clock says how many operations of each lane
// are known to be done. An operation may use memory only if its lane's clock covers what used that memory before: so what the memory
// holds does not depend on timing, and the host can compute it when the operation is handed over.
#pragma once

#include "program.cuh"

#include <algorithm>
#include <cuda.h>
#include <deque>

namespace mix {

constexpr int MAX_THREADS = 16;

// What is random depends on the seed alone, never on time.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(program::mix(seed)) {}
    uint64_t next() { return program::mix(state_ += 0x9E3779B97F4A7C15ull); }
    size_t below(size_t n) { return static_cast<size_t>(next() % n); }
    bool one_in(size_t n) { return below(n) == 0; }
    uint32_t word() { return static_cast<uint32_t>(next() >> 16); }

  private:
    uint64_t state_;
};

// How many operations of each lane are done.
class Clock {
  public:
    bool covers(int lane, uint32_t n) const { return static_cast<size_t>(lane) < done_.size() && done_[lane] >= n; }
    void set(int lane, uint32_t n) {
        if (done_.size() <= static_cast<size_t>(lane)) done_.resize(lane + 1, 0);
        done_[lane] = std::max(done_[lane], n);
    }
    void join(const Clock &other) {
        if (done_.size() < other.done_.size()) done_.resize(other.done_.size(), 0);
        for (size_t i = 0; i < other.done_.size(); i++) done_[i] = std::max(done_[i], other.done_[i]);
    }

  private:
    std::vector<uint32_t> done_;
};

// An operation of a lane; lane -1: none.
struct Use {
    int lane = -1;
    uint32_t n = 0;
    bool done(const Clock &clock) const { return lane < 0 || clock.covers(lane, n); }
};

struct Lane {
    int number;
    cudaStream_t stream;
    // Whether it and the legacy stream wait for each other.
    bool blocking, legacy = false, alive = true;
    uint32_t n = 0;
    // What is done before its next operation begins, its own operations among it.
    Clock clock;
    // Of the legacy stream: what is done before blocking streams go on.
    Clock barrier;
};

struct Event {
    cudaEvent_t event = nullptr;
    bool timed = false, recorded = false;
    // The record itself, and what is done when it has happened.
    Use use;
    Clock clock;
};

// A thread's last operations, for whoever looks for what went wrong.
class History {
  public:
    explicit History(size_t most) : most_(most) {}
    void add(long step, const char *text) {
        if (lines_.size() == most_) lines_.pop_front();
        lines_.push_back("step " + std::to_string(step) + ": " + text);
    }
    void print() const {
        for (const std::string &line : lines_) std::fprintf(stderr, "    %s\n", line.c_str());
    }

  private:
    size_t most_;
    std::deque<std::string> lines_;
};

// What this thread does: told when a call fails.
inline thread_local const History *recent = nullptr;
inline thread_local int thread_number = 0;
inline uint64_t seed_of_all = 0;
// How many operations are told when something is wrong.
inline size_t told = 40;

[[noreturn]] inline void give_up(int code) {
    if (recent != nullptr) {
        std::fprintf(stderr, "  the last operations of thread %d, seed %llu:\n", thread_number, static_cast<unsigned long long>(seed_of_all));
        recent->print();
    }
    std::fflush(stdout);
    std::_Exit(code);
}

inline void must(cudaError_t status, const char *call, int line) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "mix, line %d: %s: %s (%d)\n", line, call, cudaGetErrorName(status), static_cast<int>(status));
    give_up(2);
}

inline void must(CUresult status, const char *call, int line) {
    if (status == CUDA_SUCCESS) return;
    std::fprintf(stderr, "mix, line %d: %s: %d\n", line, call, static_cast<int>(status));
    give_up(2);
}

#define DO(call) ::mix::must((call), #call, __LINE__)

// An answer that is not what CUDA's rules say.
inline void expect(bool right, const char *what) {
    if (right) return;
    std::fprintf(stderr, "mix: wrong answer: %s\n", what);
    std::printf("RESULT wrong\n");
    give_up(1);
}

// The driver's functions, by the runtime: nothing is linked with the driver's library.
template <class F> F *entry(const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult status;
    DO(cudaGetDriverEntryPointByVersion(name, &function, 13000, cudaEnableDefault, &status));
    expect(function != nullptr, name);
    return reinterpret_cast<F *>(function);
}

#define DRIVER(name, ...)                                                          \
    do {                                                                           \
        static auto *const function_ = ::mix::entry<decltype(name)>(#name);        \
        ::mix::must(function_(__VA_ARGS__), #name, __LINE__);                      \
    } while (0)

} // namespace mix
