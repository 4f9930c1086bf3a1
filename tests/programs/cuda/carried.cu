// Code that is loaded, code that needs more local memory, and an array that ends while a copy waits in a stream: one between two GPUs, one between
// pinned memory and the other GPU than the stream's, or one inside host memory. A driver waits for these streams before it returns from such a call, and
// under mrcuda the copies are the job's own. With one GPU both halves run on it; the result is the same.
#include "program.cuh"

#include "driver.cuh"

#include <unistd.h>

constexpr int GPUS = 2;
constexpr int SHORT = 5000;
constexpr int LONG = 300000;

// Adds the number of its thread to a word of each.
static const char *const NUMBER = ".version 7.0\n.target sm_75\n.address_size 64\n"
                                  ".visible .entry number(.param .u64 to) {\n"
                                  "  .reg .b64 %to, %i;\n  .reg .b32 %v, %t;\n"
                                  "  ld.param.u64 %to, [to];\n  mov.u32 %t, %tid.x;\n  mul.wide.u32 %i, %t, 4;\n  add.u64 %to, %to, %i;\n"
                                  "  ld.global.u32 %v, [%to];\n  add.u32 %v, %v, %t;\n  st.global.u32 [%to], %v;\n  ret;\n}\n";

// Needs more local memory than any kernel before, and the driver waits for the GPU before it provides that.
__global__ void deep(uint32_t *words, uint32_t key) {
    uint32_t local[2048];
    for (int i = 0; i < 2048; i++) local[i] = key + i * (words[i % 64] | 1);
    uint32_t sum = 0;
    for (int i = 0; i < 2048; i++) sum += local[local[i] % 2048];
    words[64 + threadIdx.x] = sum;
}

static uint32_t deep_here(const uint32_t *words, uint32_t key) {
    static uint32_t local[2048];
    for (int i = 0; i < 2048; i++) local[i] = key + i * (words[i % 64] | 1);
    uint32_t sum = 0;
    for (int i = 0; i < 2048; i++) sum += local[local[i] % 2048];
    return sum;
}

struct Gpu {
    int device;
    cudaStream_t stream;
    uint32_t *words;
    std::vector<uint32_t> want;
};

// Until then the copies behind it have not begun.
static void linger(void *) { usleep(3000); }

int main(int argc, char **argv) {
    program::Options options(argc, argv, 24);
    program::Report report;
    int there = 0;
    CHECK(cudaGetDeviceCount(&there));
    Gpu gpus[GPUS];
    uint32_t *pinned, *managed;
    for (int g = 0; g < GPUS; g++) {
        gpus[g].device = g % there;
        CHECK(cudaSetDevice(gpus[g].device));
        CHECK(cudaStreamCreateWithFlags(&gpus[g].stream, cudaStreamNonBlocking));
        CHECK(cudaMalloc(&gpus[g].words, LONG * 4));
        CHECK(cudaMemset(gpus[g].words, g, LONG * 4));
        gpus[g].want.assign(LONG, g * 0x01010101u);
    }
    CHECK(cudaMallocHost(&pinned, LONG * 4));
    CHECK(cudaMallocManaged(&managed, 2 * SHORT * 4));
    std::vector<uint32_t> want_managed(2 * SHORT, 0);
    std::memset(managed, 0, 2 * SHORT * 4);
    for (long round = 0; round < options.steps; round++) {
        const uint32_t key = static_cast<uint32_t>(program::mix(round));
        const int count = round / 4 % 2 == 0 ? SHORT : LONG;
        Gpu &own = gpus[round % GPUS], &other = gpus[(round + 1) % GPUS];
        CHECK(cudaSetDevice(own.device));
        CHECK(cudaLaunchHostFunc(own.stream, linger, nullptr));
        switch (round % 4) {
        case 0:
            CHECK(cudaMemcpyPeerAsync(own.words, own.device, other.words, other.device, count * 4, own.stream));
            std::memcpy(own.want.data(), other.want.data(), count * 4);
            break;
        case 1:
            CHECK(cudaMemcpyPeerAsync(other.words, other.device, own.words, own.device, count * 4, own.stream));
            std::memcpy(other.want.data(), own.want.data(), count * 4);
            break;
        case 2:
            for (int i = 0; i < count; i++) pinned[i] = other.want[i] = key + i;
            CHECK(cudaMemcpyAsync(other.words, pinned, count * 4, cudaMemcpyHostToDevice, own.stream));
            break;
        default:
            for (int i = 0; i < SHORT; i++) managed[i] = want_managed[i] = want_managed[SHORT + i] = key + i;
            CHECK(cudaMemcpyAsync(managed + SHORT, managed, SHORT * 4, cudaMemcpyDefault, own.stream));
        }
        // What waits for the GPU, on the one whose stream waits or on the other one.
        Gpu &waits = round / 2 % 2 == 0 ? own : other;
        CHECK(cudaSetDevice(waits.device));
        if (round % 3 == 2) {
            cudaArray_t array;
            const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned int>();
            CHECK(cudaMallocArray(&array, &format, 64));
            CHECK(cudaFreeArray(array));
        }
        CUmodule module;
        CUfunction number;
        DRIVER(cuModuleLoadData, &module, NUMBER);
        DRIVER(cuModuleGetFunction, &number, module, "number");
        cudaEvent_t copied;
        CHECK(cudaSetDevice(own.device));
        CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
        CHECK(cudaEventRecord(copied, own.stream));
        CHECK(cudaSetDevice(waits.device));
        CHECK(cudaStreamWaitEvent(waits.stream, copied, 0));
        void *params[] = {&waits.words};
        DRIVER(cuLaunchKernel, number, 1, 1, 1, 256, 1, 1, 0, waits.stream, params, nullptr);
        for (int i = 0; i < 256; i++) waits.want[i] += i;
        if (round >= 8 && round <= 11) {
            deep<<<1, 32, 0, waits.stream>>>(waits.words, key);
            CHECK_LAUNCH();
            const uint32_t sum = deep_here(waits.want.data(), key);
            for (int i = 0; i < 32; i++) waits.want[64 + i] = sum;
        }
        CHECK(cudaStreamSynchronize(waits.stream));
        DRIVER(cuModuleUnload, module);
        CHECK(cudaEventDestroy(copied));
        for (Gpu &gpu : gpus) {
            CHECK(cudaSetDevice(gpu.device));
            report.expect_device("words", gpu.words, gpu.want.data(), LONG * 4);
        }
        report.expect("managed", managed, want_managed.data(), 2 * SHORT * 4);
        options.pace();
    }
    for (Gpu &gpu : gpus) {
        CHECK(cudaSetDevice(gpu.device));
        report.allocation("words", gpu.words, LONG * 4);
        CHECK(cudaFree(gpu.words));
        CHECK(cudaStreamDestroy(gpu.stream));
    }
    CHECK(cudaFree(managed));
    CHECK(cudaFreeHost(pinned));
    return report.finish();
}
