// Times calls by name and prints the mean of each, in microseconds.
#pragma once

#include "check.cuh"

#include <chrono>
#include <cstdio>
#include <map>
#include <string>

// Sum of the times of each call, and how often it was made.
static std::map<std::string, std::pair<double, long>> times;

template <class F> static void timed(const char *name, F &&call) {
    auto start = std::chrono::steady_clock::now();
    CHECK(call());
    auto &[sum, count] = times[name];
    sum += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    count++;
}

// A line for each call, and one for a whole round.
static void print_times(int rounds) {
    double round = 0;
    for (auto &[name, t] : times) {
        std::printf("| %s | %.2f |\n", name.c_str(), t.first / t.second);
        round += t.first / rounds;
    }
    std::printf("| a round | %.2f |\n", round);
}
