// A random program: streams, events, memory of every kind, copies, kernels, host functions, graphs, modules, in an order that follows
// from a seed (`--seed N`, `--threads N`). It keeps a model of what every block of memory must hold by CUDA's rules, compares again and
// again, and names the first block that is wrong with what was done to it. Timing changes nothing of what it prints.
#include "program.cuh"
#include "mix_order.cuh"
#include "mix_memory.cuh"
#include "mix_differences.cuh"
#include "mix_kernels.cuh"
#include "mix_work.cuh"
#include "mix_world.cuh"
#include "mix_choice.cuh"
#include "mix_steps.cuh"

#include <thread>

// Takes `name N` out of the arguments.
static uint64_t take(int &argc, char **argv, const char *name, uint64_t otherwise) {
    for (int i = 1; i + 1 < argc; i++) {
        if (std::strcmp(argv[i], name) != 0) continue;
        const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
        for (int k = i; k + 2 <= argc; k++) argv[k] = argv[k + 2];
        argc -= 2;
        return value;
    }
    return otherwise;
}

int main(int argc, char **argv) {
    const uint64_t seed = take(argc, argv, "--seed", 1);
    // Most seeds play with few threads.
    static const uint64_t USUAL[] = {1, 1, 2, 3, 4, 1, 8, 16};
    const uint64_t threads = std::min<uint64_t>(take(argc, argv, "--threads", USUAL[program::mix(seed) % 8]), mix::MAX_THREADS);
    // What is told of a wrong end: the last operations.
    mix::told = take(argc, argv, "--history", mix::told);
    program::Options options(argc, argv, 300);
    mix::seed_of_all = seed;
    CHECK(cudaFree(nullptr));
    std::vector<std::string> reports(threads);
    std::vector<std::thread> all;
    for (uint64_t t = 0; t < threads; t++)
        all.emplace_back([&, t] { reports[t] = mix::Player(static_cast<int>(t), static_cast<int>(threads), seed, options).play(); });
    for (std::thread &thread : all) thread.join();
    for (const std::string &report : reports) std::printf("%s", report.c_str());
    program::Report report;
    return report.finish();
}
