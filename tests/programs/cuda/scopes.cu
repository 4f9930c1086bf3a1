// Counts with atomic operations of one scope in memory of one kind, as the variable SCOPES says: "managed system", say, or "late system" for
// managed memory that is made behind the first launch.
#include "program.cuh"

__device__ __noinline__ void add_for_all(uint32_t *counter) { atomicAdd_system(counter, 1u); }

__global__ void of_system(uint32_t *counter) { add_for_all(counter); }

__global__ void of_device(uint32_t *counter) { atomicAdd(counter, 1u); }

static uint32_t *make(const std::string &kind) {
    uint32_t *made = nullptr;
    if (kind == "managed") CHECK(cudaMallocManaged(reinterpret_cast<void **>(&made), 4));
    if (kind == "mapped") CHECK(cudaHostAlloc(reinterpret_cast<void **>(&made), 4, cudaHostAllocMapped));
    if (kind == "device") CHECK(cudaMalloc(reinterpret_cast<void **>(&made), 4));
    CHECK(cudaMemset(made, 0, 4));
    return made;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 4);
    const char *what = std::getenv("SCOPES");
    std::string kind = what != nullptr ? what : "managed system";
    const bool system = kind.find(" system") != std::string::npos;
    kind = kind.substr(0, kind.find(' '));
    const bool late = kind == "late";
    uint32_t *counter = make(late ? "device" : kind);
    for (long step = 0; step < options.steps; step++) {
        if (late && step == 1) counter = make("managed");
        if (system) of_system<<<1, 32>>>(counter);
        else of_device<<<1, 32>>>(counter);
        CHECK_LAUNCH();
        options.pace();
    }
    uint32_t count = 0;
    CHECK(cudaMemcpy(&count, counter, 4, cudaMemcpyDefault));
    program::Report report;
    report.expect_value("counter", count, 32 * (options.steps - late));
    return report.finish();
}
