// Code that is loaded while streams wait for the host: for the bytes of an asynchronous copy from pinned memory, and for host functions that change
// managed memory. The host does not touch managed memory while kernels run, but changes much of it just before. So when the driver waits in the
// load for these streams, what they wait for comes behind changes of that memory.
#include "program.cuh"

#include "driver.cuh"

#include <unistd.h>

constexpr int WORDS = (3 << 20) / 4;
constexpr int COPIED = 50000;

__global__ void add(uint32_t *words, uint32_t n, uint32_t key) {
    const uint32_t i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) words[i] += key;
}

// Adds the number of its thread to a word of each.
static const char *const NUMBER = ".version 7.0\n.target sm_75\n.address_size 64\n"
                                  ".visible .entry number(.param .u64 to) {\n"
                                  "  .reg .b64 %to, %i;\n  .reg .b32 %v, %t;\n"
                                  "  ld.param.u64 %to, [to];\n  mov.u32 %t, %tid.x;\n  mul.wide.u32 %i, %t, 4;\n  add.u64 %to, %to, %i;\n"
                                  "  ld.global.u32 %v, [%to];\n  add.u32 %v, %v, %t;\n  st.global.u32 [%to], %v;\n  ret;\n}\n";

// Each of these needs more local memory than the one before, and the driver waits for the GPU before it provides that.
template <int N> __global__ void deep(uint32_t *words, uint32_t key) {
    uint32_t local[N];
    for (int i = 0; i < N; i++) local[i] = key + i * (words[i % 64] | 1);
    uint32_t sum = 0;
    for (int i = 0; i < N; i++) sum += local[local[i] % N];
    words[64 + threadIdx.x] = sum;
}

template <int N> static uint32_t deep_here(const uint32_t *words, uint32_t key) {
    static uint32_t local[N];
    for (int i = 0; i < N; i++) local[i] = key + i * (words[i % 64] | 1);
    uint32_t sum = 0;
    for (int i = 0; i < N; i++) sum += local[local[i] % N];
    return sum;
}

template <int N> static void run_deep(uint32_t *words, std::vector<uint32_t> &want, uint32_t key, cudaStream_t stream) {
    deep<N><<<1, 32, 0, stream>>>(words, key);
    CHECK_LAUNCH();
    const uint32_t sum = deep_here<N>(want.data(), key);
    for (int i = 0; i < 32; i++) want[64 + i] = sum;
}

struct Change {
    uint32_t *words, key;
};

static void change(void *data) {
    const Change *what = static_cast<Change *>(data);
    usleep(3000);
    for (int i = 0; i < WORDS; i += 100) what->words[i] ^= what->key;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 30);
    program::Report report;
    uint32_t *words, *pinned, *device;
    cudaStream_t up;
    CHECK(cudaStreamCreateWithFlags(&up, cudaStreamNonBlocking));
    CHECK(cudaMallocManaged(&words, WORDS * 4));
    CHECK(cudaMallocHost(&pinned, COPIED * 4));
    CHECK(cudaMalloc(&device, COPIED * 4));
    std::vector<uint32_t> want(WORDS), want_device(COPIED), found(COPIED);
    std::memset(words, 0, WORDS * 4);
    for (long round = 0; round < options.steps; round++) {
        const uint32_t key = static_cast<uint32_t>(program::mix(round));
        for (int i = 0; i < WORDS; i++) words[i] += key, want[i] += key;
        for (int i = 0; i < COPIED; i++) pinned[i] = want_device[i] = key + i;
        Change later = {words, key};
        if (round % 2 == 1) {
            CHECK(cudaLaunchHostFunc(up, change, &later));
            for (int i = 0; i < WORDS; i += 100) want[i] ^= key;
        }
        CHECK(cudaMemcpyAsync(device, pinned, COPIED * 4, cudaMemcpyHostToDevice, up));
        CUmodule module;
        CUfunction number;
        if (round == 9) run_deep<8192>(words, want, key, up);
        DRIVER(cuModuleLoadData, &module, NUMBER);
        DRIVER(cuModuleGetFunction, &number, module, "number");
        void *params[] = {&words};
        DRIVER(cuLaunchKernel, number, 1, 1, 1, 256, 1, 1, 0, up, params, nullptr);
        for (int i = 0; i < 256; i++) want[i] += i;
        if (round == 3) run_deep<512>(words, want, key, up);
        if (round == 5) run_deep<1024>(words, want, key, up);
        if (round == 7) run_deep<4096>(words, want, key, up);
        add<<<(WORDS + 127) / 128, 128, 0, up>>>(words, WORDS, key);
        CHECK_LAUNCH();
        for (uint32_t &word : want) word += key;
        CHECK(cudaStreamSynchronize(up));
        DRIVER(cuModuleUnload, module);
        report.expect("words", words, want.data(), WORDS * 4);
        CHECK(cudaMemcpy(found.data(), device, COPIED * 4, cudaMemcpyDeviceToHost));
        report.expect("copied", found.data(), want_device.data(), COPIED * 4);
        options.pace();
    }
    report.line("managed", "words", words, WORDS * 4);
    CHECK(cudaFree(words));
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(pinned));
    return report.finish();
}
