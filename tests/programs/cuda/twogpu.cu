// Two GPUs that work side by side and exchange through the host: each runs a chain of its own, every few rounds each gets what the
// other one has just computed. With one GPU both chains run on it; the result is the same.
#include "program.cuh"
#include "driver.cuh"

constexpr int N = 8192;
constexpr int BLOCK = 128;
constexpr int GPUS = 2;
constexpr long EXCHANGE = 8;

__device__ unsigned long long rounds_done;
__constant__ uint32_t salt;

__device__ __host__ inline uint32_t step_of(uint32_t x, uint32_t neighbour, uint32_t salt, uint32_t step) {
    return x * 1664525u + (neighbour ^ salt) + step;
}

__global__ void advance(const uint32_t *from, uint32_t *to, uint32_t step) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    to[i] = step_of(from[i], from[(i + 1) % N], salt, step);
    if (i == 0) atomicAdd(&rounds_done, 1ull);
}

__global__ void blend(uint32_t *own, const uint32_t *other) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    own[i] ^= other[i] >> 3;
}

constexpr int LARGE = 60 << 10;

__global__ void use_shared(uint32_t *to, int bytes) {
    extern __shared__ uint32_t shared[];
    shared[bytes / 4 - 1] = static_cast<uint32_t>(bytes);
    *to = shared[bytes / 4 - 1];
}

// A kernel may use more shared memory on the GPU for which that was set, and on no other.
static void limits_are_each_gpus_own(program::Report &report) {
    uint32_t *on[GPUS];
    for (int g = 0; g < GPUS; g++) {
        CHECK(cudaSetDevice(g));
        CHECK(cudaMalloc(&on[g], sizeof **on));
    }
    auto launch = [&](int g, int bytes) {
        CHECK(cudaSetDevice(g));
        use_shared<<<1, 1, bytes>>>(on[g], bytes);
        return cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    };
    CHECK(cudaSetDevice(0));
    CHECK(cudaFuncSetAttribute(use_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, LARGE));
    for (int round = 0; round < 3; round++) {
        report.expect_value("large on the first", launch(0, LARGE), 1);
        report.expect_value("small on the second", launch(1, 1024), 1);
        report.expect_value("large on the second", launch(1, LARGE), 0);
    }
    for (uint32_t *word : on) CHECK(cudaFree(word));
}

static const char *const LIBRARY = ".version 7.0\n.target sm_75\n.address_size 64\n"
                                   ".extern .shared .align 4 .b8 room[];\n"
                                   ".visible .entry shared(.param .u64 to) {\n"
                                   "  .reg .b64 %a;\n  .reg .b32 %v;\n"
                                   "  ld.param.u64 %a, [to];\n  mov.u32 %v, 1;\n  st.shared.u32 [room], %v;\n"
                                   "  st.global.u32 [%a], %v;\n  ret;\n}\n";

// A kernel of a library, its function, and the function of the library's module are one function: what is set of one of them counts for
// all. The line is that of the driver, whatever that does.
static void handles_of_one_kernel(program::Report &report) {
    constexpr CUfunction_attribute SHARED = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    CUlibrary library;
    CUmodule module, of;
    CUkernel kernel;
    CUfunction function, same;
    uint32_t *word;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&word, sizeof *word));
    DRIVER(cuLibraryLoadData, &library, LIBRARY, nullptr, nullptr, 0, nullptr, nullptr, 0);
    DRIVER(cuLibraryGetKernel, &kernel, library, "shared");
    DRIVER(cuKernelGetFunction, &function, kernel);
    DRIVER(cuLibraryGetModule, &module, library);
    DRIVER(cuModuleGetFunction, &same, module, "shared");
    DRIVER(cuFuncGetModule, &of, function);
    report.expect_value("module of the function", of == module, 1);
    const CUfunction all[] = {reinterpret_cast<CUfunction>(kernel), function, same};
    std::string line = "one kernel:";
    auto look = [&] {
        int of_kernel, of_function, of_same;
        DRIVER(cuKernelGetAttribute, &of_kernel, SHARED, kernel, 0);
        DRIVER(cuFuncGetAttribute, &of_function, SHARED, function);
        DRIVER(cuFuncGetAttribute, &of_same, SHARED, same);
        line += " " + std::to_string(of_kernel) + "," + std::to_string(of_function) + "," + std::to_string(of_same);
        auto launch = program::entry<decltype(&cuLaunchKernel)>("cuLaunchKernel");
        void *params[] = {&word};
        for (int bytes : {1000, 49000, 60000}) {
            for (CUfunction f : all) line += launch(f, 1, 1, 1, 1, 1, 1, bytes, nullptr, params, nullptr) == CUDA_SUCCESS ? "+" : "-";
        }
    };
    look();
    for (int round = 0; round < 2; round++) {
        DRIVER(cuFuncSetAttribute, function, SHARED, 60000);
        look();
        DRIVER(cuKernelSetAttribute, SHARED, 500, kernel, 0);
        look();
        DRIVER(cuFuncSetAttribute, same, SHARED, 49000);
        look();
        DRIVER(cuKernelSetAttribute, SHARED, 60000, kernel, 0);
        look();
        DRIVER(cuFuncSetAttribute, function, SHARED, 2000);
        look();
        DRIVER(cuFuncSetAttribute, same, SHARED, 60000);
        look();
    }
    std::printf("%s\n", line.c_str());
    CHECK(cudaDeviceSynchronize());
    DRIVER(cuLibraryUnload, library);
    CHECK(cudaFree(word));
}

struct Gpu {
    int device;
    cudaStream_t stream;
    cudaEvent_t sent;
    uint32_t *a, *b, *inbox, *out;
    program::Window *window;
};

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    int there = 0;
    CHECK(cudaGetDeviceCount(&there));
    Gpu gpus[GPUS];
    std::vector<uint32_t> host[GPUS];
    const uint32_t salts[GPUS] = {0x9E3779B9u, 0x9E3779B9u};
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        gpu.device = g % there;
        CHECK(cudaSetDevice(gpu.device));
        CHECK(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&gpu.sent, cudaEventDisableTiming));
        gpu.window = new program::Window();
        for (uint32_t **p : {&gpu.a, &gpu.b, &gpu.inbox}) CHECK(cudaMalloc(p, sizeof(uint32_t) * N));
        CHECK(cudaMallocHost(&gpu.out, sizeof(uint32_t) * N));
        host[g].resize(N);
        for (int i = 0; i < N; i++) host[g][i] = static_cast<uint32_t>(program::mix(i + g * N));
        CHECK(cudaMemcpyToSymbol(salt, &salts[g], sizeof salts[g]));
        CHECK(cudaMemcpyAsync(gpu.a, host[g].data(), sizeof(uint32_t) * N, cudaMemcpyHostToDevice, gpu.stream));
        CHECK(cudaMemsetAsync(gpu.b, 0, sizeof(uint32_t) * N, gpu.stream));
    }
    for (long step = 0; step < options.steps; step++) {
        for (Gpu &gpu : gpus) {
            CHECK(cudaSetDevice(gpu.device));
            advance<<<N / BLOCK, BLOCK, 0, gpu.stream>>>(gpu.a, gpu.b, static_cast<uint32_t>(step));
            CHECK_LAUNCH();
            std::swap(gpu.a, gpu.b);
            if (step % EXCHANGE == EXCHANGE - 1) {
                CHECK(cudaMemcpyAsync(gpu.out, gpu.a, sizeof(uint32_t) * N, cudaMemcpyDeviceToHost, gpu.stream));
                CHECK(cudaEventRecord(gpu.sent, gpu.stream));
            }
            gpu.window->round_done(gpu.stream);
        }
        if (step % EXCHANGE == EXCHANGE - 1) {
            for (Gpu &gpu : gpus) CHECK(cudaEventSynchronize(gpu.sent));
            for (int g = 0; g < GPUS; g++) {
                Gpu &gpu = gpus[g];
                CHECK(cudaSetDevice(gpu.device));
                CHECK(cudaMemcpyAsync(gpu.inbox, gpus[1 - g].out, sizeof(uint32_t) * N, cudaMemcpyHostToDevice, gpu.stream));
                blend<<<N / BLOCK, BLOCK, 0, gpu.stream>>>(gpu.a, gpu.inbox);
                CHECK_LAUNCH();
            }
            // What was sent must have been read before the next exchange writes there.
            for (Gpu &gpu : gpus) {
                CHECK(cudaSetDevice(gpu.device));
                CHECK(cudaStreamSynchronize(gpu.stream));
            }
        }
        options.pace();
    }

    std::vector<uint32_t> next(N), before[GPUS], out[GPUS];
    for (auto &b : before) b.resize(N);
    for (long step = 0; step < options.steps; step++) {
        for (int g = 0; g < GPUS; g++) {
            for (int i = 0; i < N; i++) {
                next[i] = step_of(host[g][i], host[g][(i + 1) % N], salts[g], static_cast<uint32_t>(step));
            }
            before[g] = host[g];
            host[g] = next;
        }
        if (step % EXCHANGE == EXCHANGE - 1) {
            for (int g = 0; g < GPUS; g++) out[g] = host[g];
            for (int g = 0; g < GPUS; g++) {
                for (int i = 0; i < N; i++) host[g][i] ^= out[1 - g][i] >> 3;
            }
        }
    }
    for (Gpu &gpu : gpus) {
        CHECK(cudaSetDevice(gpu.device));
        CHECK(cudaStreamSynchronize(gpu.stream));
    }
    program::Report report;
    handles_of_one_kernel(report);
    if (there > 1) limits_are_each_gpus_own(report);
    uint64_t rounds = 0;
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        CHECK(cudaSetDevice(gpu.device));
        report.expect_device(g == 0 ? "first" : "second", gpu.a, host[g].data(), sizeof(uint32_t) * N);
        report.allocation(g == 0 ? "first" : "second", gpu.a, sizeof(uint32_t) * N);
        report.expect_device("before", gpu.b, before[g].data(), sizeof(uint32_t) * N);
        if (!out[g].empty()) {
            report.expect("sent", gpu.out, out[g].data(), sizeof(uint32_t) * N);
            report.expect_device("received", gpu.inbox, out[1 - g].data(), sizeof(uint32_t) * N);
        }
        uint32_t salted = 0;
        CHECK(cudaMemcpyFromSymbol(&salted, salt, sizeof salted));
        report.expect_value("salt", salted, salts[g]);
        unsigned long long done = 0;
        CHECK(cudaMemcpyFromSymbol(&done, rounds_done, sizeof done));
        // With one GPU both chains count in the same place.
        if (g < there) rounds += done;
    }
    report.expect_value("rounds_done", rounds, static_cast<uint64_t>(options.steps) * GPUS);
    for (Gpu &gpu : gpus) {
        CHECK(cudaSetDevice(gpu.device));
        gpu.window->destroy();
        delete gpu.window;
        CHECK(cudaEventDestroy(gpu.sent));
        CHECK(cudaStreamDestroy(gpu.stream));
        for (uint32_t *p : {gpu.a, gpu.b, gpu.inbox}) CHECK(cudaFree(p));
        CHECK(cudaFreeHost(gpu.out));
    }
    return report.finish();
}
