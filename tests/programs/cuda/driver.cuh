// The driver's functions, by the runtime: nothing is linked with the driver's library. After program.cuh.
#pragma once

#include <cuda.h>

namespace program {

template <class F> F entry(const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult status;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12090, cudaEnableDefault, &status));
    if (function == nullptr) {
        std::fprintf(stderr, "the driver has no %s\n", name);
        std::_Exit(2);
    }
    return reinterpret_cast<F>(function);
}

} // namespace program

// Calls a function of the driver, which must succeed.
#define DRIVER(name, ...)                                                                                 \
    do {                                                                                                  \
        static auto function_ = program::entry<decltype(&name)>(#name);                                   \
        CUresult status_ = function_(__VA_ARGS__);                                                        \
        if (status_ != CUDA_SUCCESS) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #name, static_cast<int>(status_)); \
            std::_Exit(2);                                                                                \
        }                                                                                                 \
    } while (0)
