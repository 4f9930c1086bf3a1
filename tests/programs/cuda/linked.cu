// Code that is put together while the program works: parts in PTX that call each other, linked and loaded anew every few rounds; and
// kernels whose parameters take kilobytes, given one by one or in one piece.
#include "program.cuh"
#include "driver.cuh"

#include <dlfcn.h>

constexpr int N = 1024;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint64_t);
constexpr int WORDS = 1000;

// More than the 4 KB that were once the limit.
struct Large {
    uint64_t words[WORDS];
};

__global__ void take(const Large large, uint64_t *state) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    state[i] = program::mix(state[i] + large.words[i % WORDS]);
}

// A function of one part, which another part calls. The number is put in before it is linked.
static const char *FUNCTION = R"(.version 6.4
.target sm_70
.address_size 64
.visible .func (.param .b64 out) twist(.param .b64 in)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [in];
    mul.lo.u64 %rd2, %rd1, %llu;
    xor.b64 %rd3, %rd2, %rd1;
    st.param.b64 [out], %rd3;
    ret;
}
)";

static const char *KERNEL = R"(.version 6.4
.target sm_70
.address_size 64
.extern .func (.param .b64 out) twist(.param .b64 in);
.visible .global .align 8 .u64 launches = 0;
.visible .entry twist_all(.param .u64 state, .param .u64 more)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<12>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [state];
    ld.param.u64 %rd2, [more];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %rd3, %r4, 8;
    cvta.to.global.u64 %rd4, %rd1;
    add.s64 %rd5, %rd4, %rd3;
    ld.global.u64 %rd6, [%rd5];
    {
        .param .b64 argument;
        .param .b64 result;
        st.param.b64 [argument], %rd6;
        call.uni (result), twist, (argument);
        ld.param.b64 %rd7, [result];
    }
    add.s64 %rd8, %rd7, %rd2;
    st.global.u64 [%rd5], %rd8;
    setp.ne.u32 %p1, %r4, 0;
    @%p1 bra end;
    mov.u64 %rd9, 1;
    red.global.add.u64 [launches], %rd9;
end:
    ret;
}
)";

// What the driver's library has by this name: libraries that look there, as cuDNN does, get the functions that had these names first.
template <class F> static F named(const char *name) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *function = library != nullptr ? dlsym(library, name) : nullptr;
    if (function == nullptr) {
        std::fprintf(stderr, "the driver's library has no %s\n", name);
        std::_Exit(2);
    }
    return reinterpret_cast<F>(function);
}

// A module whose function multiplies by this.
static CUmodule build(uint64_t factor, const program::Options &options) {
    std::string text = FUNCTION;
    text.replace(text.find("%llu"), 4, std::to_string(factor));
    CUlinkState link;
    char log[4096] = "";
    CUjit_option wanted[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof log)};
    if (factor & 2) {
        DRIVER(cuLinkCreate, 2, wanted, values, &link);
    } else if (named<decltype(&cuLinkCreate)>("cuLinkCreate")(2, wanted, values, &link) != CUDA_SUCCESS) {
        std::_Exit(2);
    }
    static auto add = named<decltype(&cuLinkAddData)>("cuLinkAddData");
    DRIVER(cuLinkAddData, link, CU_JIT_INPUT_PTX, text.data(), text.size() + 1, "function", 0, nullptr, nullptr);
    // Whoever moves the program may do it between two parts.
    options.pace();
    if (add(link, CU_JIT_INPUT_PTX, const_cast<char *>(KERNEL), std::strlen(KERNEL) + 1, "kernel", 0, nullptr, nullptr) != CUDA_SUCCESS) {
        std::_Exit(2);
    }
    void *image;
    size_t size;
    DRIVER(cuLinkComplete, link, &image, &size);
    CUmodule module;
    DRIVER(cuModuleLoadData, &module, image);
    DRIVER(cuLinkDestroy, link);
    return module;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    program::Bystanders bystanders;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint64_t *state;
    CHECK(cudaMalloc(&state, BYTES));
    std::vector<uint64_t> want(N);
    for (int i = 0; i < N; i++) want[i] = program::mix(i);
    CHECK(cudaMemcpy(state, want.data(), BYTES, cudaMemcpyHostToDevice));
    CUmodule module = nullptr;
    CUfunction twist_all = nullptr;
    CUdeviceptr launches = 0;
    uint64_t factor = 0, launched = 0, counted = 0;
    program::Window window;
    for (long round = 0; round < options.steps; round++) {
        if (round % 15 == 0) {
            CUmodule before = module;
            if (before != nullptr) {
                CHECK(cudaMemcpy(&counted, reinterpret_cast<void *>(launches), sizeof counted, cudaMemcpyDeviceToHost));
                report.expect_value("launches of a module", counted, launched);
            }
            factor = program::mix(round) | 1;
            module = build(factor, options);
            DRIVER(cuModuleGetFunction, &twist_all, module, "twist_all");
            size_t size;
            DRIVER(cuModuleGetGlobal, &launches, &size, module, "launches");
            report.expect_value("a variable's size", size, 8);
            launched = 0;
            if (before != nullptr) DRIVER(cuModuleUnload, before);
        }
        // One by one, or all in one piece.
        uint64_t more = program::mix(round + 1);
        CUdeviceptr address = reinterpret_cast<CUdeviceptr>(state);
        if (round % 2 == 0) {
            void *parameters[] = {&address, &more};
            DRIVER(cuLaunchKernel, twist_all, N / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, parameters, nullptr);
        } else {
            uint64_t packed[] = {address, more};
            size_t size = sizeof packed;
            void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
            DRIVER(cuLaunchKernel, twist_all, N / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, nullptr, extra);
        }
        launched++;
        Large large;
        for (int i = 0; i < WORDS; i++) large.words[i] = program::mix(round * WORDS + i);
        take<<<N / BLOCK, BLOCK, 0, stream>>>(large, state);
        CHECK_LAUNCH();
        // What a module's kernels have counted is looked at before the next one comes.
        if (round % 15 == 14) CHECK(cudaStreamSynchronize(stream));
        window.round_done(stream);
        options.pace();
        for (int i = 0; i < N; i++) want[i] = program::mix(((want[i] * factor) ^ want[i]) + more + large.words[i % WORDS]);
    }
    CHECK(cudaStreamSynchronize(stream));
    report.expect_device("state", state, want.data(), BYTES);
    report.allocation("state", state, BYTES);
    if (module != nullptr) DRIVER(cuModuleUnload, module);
    bystanders.end(report);
    window.destroy();
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(state));
    return report.finish();
}
