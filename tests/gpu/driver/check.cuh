// Ends the program when a call of the runtime fails.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                            \
    do {                                                                       \
        cudaError_t rc = (call);                                               \
        if (rc != cudaSuccess) {                                               \
            std::printf("%s: %s\n", #call, cudaGetErrorString(rc));            \
            std::exit(1);                                                      \
        }                                                                      \
    } while (0)
