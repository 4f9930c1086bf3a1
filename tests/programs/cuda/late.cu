// More copies than anybody can keep in buffers stand in a stream behind something that a later call brings.
// The argument says which: `in`, copies from pinned memory behind a value that another stream writes; `out`,
// copies to pinned memory behind a kernel that waits for one which is launched last; `named`, one such copy,
// and behind it kernels that read its destination by its address, in its stream and in one that waits for it;
// `streams`, copies both ways in several streams at a time; `unloaded`, a copy from pinned memory that contains the
// address of other pinned memory, which a kernel of a module follows, and the end of that module, which waits for it;
// `unloaded-late`, the same behind a function of the program that writes the address; `registered`, such copies
// from registered memory that name registered memory.

#include "program.cuh"

#include "driver.cuh"

#include <atomic>

constexpr size_t PIECE = 4 << 20;
// Pieces: more than 256 MiB, and more than 1 GiB.
constexpr int IN = 75, OUT = 262, ROUND = 5;

static __global__ void spin(volatile unsigned *flag) {
    while (*flag == 0) {}
}

static __global__ void read_words(const unsigned *from, unsigned *to) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = from[i];
}

static __global__ void raise(volatile unsigned *flag) { *flag = 1; }

template <class F> static F entry(const char *name) {
    F found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, reinterpret_cast<void **>(&found), 12000, cudaEnableDefault, &result));
    return found;
}

// Copies `*from`, which is an address, follows it, and stores the word that is there.
static const char *const FOLLOW = ".version 7.0\n.target sm_75\n.address_size 64\n"
                                  ".visible .entry follow(.param .u64 from, .param .u64 to) {\n"
                                  "  .reg .b64 %a, %p, %to;\n  .reg .b32 %v;\n"
                                  "  ld.param.u64 %a, [from];\n  ld.param.u64 %to, [to];\n  ld.global.u64 %p, [%a];\n"
                                  "  ld.global.u32 %v, [%p];\n  st.global.u32 [%to], %v;\n  ret;\n}\n";

static std::atomic<bool> unloading{false};
static unsigned *named, **place_of_name;

static void CUDART_CB write_name(void *) {
    while (!unloading) usleep(50);
    usleep(2000);
    *place_of_name = named;
}

// So many times, as the order of the messages between two processes is not always the same.
static void unload_behind(cudaStream_t stream, unsigned char *device, unsigned char *pinned, bool late, program::Report &report) {
    constexpr int ROUNDS = 30, BYTES = 128 << 10, AT = 72 << 10;
    unsigned *found;
    CHECK(cudaMalloc(&found, ROUNDS * sizeof *found));
    place_of_name = reinterpret_cast<unsigned **>(pinned + AT);
    std::vector<unsigned> want;
    for (unsigned i = 0; i < ROUNDS; i++) {
        CUmodule module;
        CUfunction follow;
        DRIVER(cuModuleLoadData, &module, FOLLOW);
        DRIVER(cuModuleGetFunction, &follow, module, "follow");
        // Nothing has shown before that GPUs use this memory.
        CHECK(cudaMallocHost(&named, 4096));
        *named = i + 1;
        want.push_back(i + 1);
        std::memset(pinned, 0, BYTES);
        unloading = false;
        if (late) CHECK(cudaLaunchHostFunc(stream, write_name, nullptr));
        else *place_of_name = named;
        CHECK(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
        unsigned char *from = device + AT;
        unsigned *to = found + i;
        void *params[] = {&from, &to};
        DRIVER(cuLaunchKernel, follow, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
        unloading = true;
        DRIVER(cuModuleUnload, module);
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaFreeHost(named));
    }
    report.expect_device("found", found, want.data(), ROUNDS * sizeof *found);
}

// Both are the program's own memory, registered anew each time, so that nothing has shown before that GPUs use it.
static void follow_registered(cudaStream_t stream, unsigned char *device, program::Report &report) {
    // In turn the copies go to odd addresses, so that the name lies across a multiple of 64 KiB of the copy.
    constexpr int ROUNDS = 20, BYTES = 128 << 10, AT = 64 << 10, WORDS = 512 << 10;
    unsigned *found;
    CHECK(cudaMalloc(&found, ROUNDS * sizeof *found));
    CUmodule module;
    CUfunction follow;
    DRIVER(cuModuleLoadData, &module, FOLLOW);
    DRIVER(cuModuleGetFunction, &follow, module, "follow");
    std::vector<unsigned> want;
    for (unsigned i = 0; i < ROUNDS; i++) {
        auto *table = static_cast<unsigned char *>(std::aligned_alloc(4096, BYTES));
        auto *data = static_cast<unsigned *>(std::aligned_alloc(4096, WORDS * sizeof(unsigned)));
        std::memset(table, 0, BYTES);
        std::fill(data, data + WORDS, i + 1);
        unsigned *last = data + WORDS - 1 - i;
        const int odd = i % 8;
        std::memcpy(table + AT - odd, &last, sizeof last);
        CHECK(cudaHostRegister(table, BYTES, cudaHostRegisterDefault));
        CHECK(cudaHostRegister(data, WORDS * sizeof *data, cudaHostRegisterDefault));
        // Copies that are waited for are searched in parts.
        if (i < ROUNDS / 2) CHECK(cudaMemcpyAsync(device + odd, table, BYTES, cudaMemcpyHostToDevice, stream));
        else CHECK(cudaMemcpy(device + odd, table, BYTES, cudaMemcpyHostToDevice));
        unsigned char *from = device + AT;
        unsigned *to = found + i;
        void *params[] = {&from, &to};
        DRIVER(cuLaunchKernel, follow, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaHostUnregister(data));
        CHECK(cudaHostUnregister(table));
        std::free(data);
        std::free(table);
        want.push_back(i + 1);
    }
    report.expect_device("found", found, want.data(), ROUNDS * sizeof *found);
}

int main(int argc, char **argv) {
    std::string way = argc == 2 ? argv[1] : "";
    unsigned *flag;
    unsigned char *device, *pinned;
    CHECK(cudaMalloc(&flag, sizeof *flag));
    CHECK(cudaMemset(flag, 0, sizeof *flag));
    CHECK(cudaMalloc(&device, ROUND * PIECE));
    CHECK(cudaMemset(device, 3, ROUND * PIECE));
    CHECK(cudaMallocHost(&pinned, ROUND * PIECE));
    cudaStream_t first, second;
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    program::Report report;
    std::vector<unsigned char> want(ROUND * PIECE);
    if (way == "in") {
        typedef CUresult (*Value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
        CUdeviceptr at = reinterpret_cast<CUdeviceptr>(flag);
        if (entry<Value>("cuStreamWaitValue32")(first, at, 1, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) return 2;
        for (int i = 0; i < IN; i++) {
            size_t part = i % ROUND * PIECE;
            CHECK(cudaMemcpyAsync(device + part, pinned + part, PIECE, cudaMemcpyHostToDevice, first));
        }
        // They are read when the stream gets there.
        std::memset(pinned, 5, ROUND * PIECE);
        if (entry<Value>("cuStreamWriteValue32")(second, at, 1, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS) return 2;
        CHECK(cudaDeviceSynchronize());
        std::fill(want.begin(), want.end(), 5);
        report.expect_device("device", device, want.data(), want.size());
    } else if (way == "out") {
        spin<<<1, 1, 0, first>>>(flag);
        CHECK_LAUNCH();
        for (int i = 0; i < OUT; i++) {
            size_t part = i % ROUND * PIECE;
            CHECK(cudaMemcpyAsync(pinned + part, device + part, PIECE, cudaMemcpyDeviceToHost, first));
        }
        raise<<<1, 1, 0, second>>>(flag);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        std::fill(want.begin(), want.end(), 3);
        report.expect("pinned", pinned, want.data(), want.size());
    } else if (way == "registered") {
        follow_registered(first, device, report);
    } else if (way == "unloaded" || way == "unloaded-late") {
        unload_behind(first, device, pinned, way == "unloaded-late", report);
    } else if (way == "streams") {
        typedef CUresult (*Value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
        CUdeviceptr at = reinterpret_cast<CUdeviceptr>(flag);
        unsigned char *back;
        CHECK(cudaMallocHost(&back, ROUND * PIECE));
        std::memset(pinned, 5, ROUND * PIECE);
        std::memset(back, 1, ROUND * PIECE);
        for (int i = 0; i < ROUND; i++) {
            cudaStream_t stream;
            CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            if (entry<Value>("cuStreamWaitValue32")(stream, at, 1, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) return 2;
            CHECK(cudaMemcpyAsync(device + i * PIECE, pinned + i * PIECE, PIECE, cudaMemcpyHostToDevice, stream));
            CHECK(cudaMemcpyAsync(back + i * PIECE, device + i * PIECE, PIECE, cudaMemcpyDeviceToHost, stream));
        }
        if (entry<Value>("cuStreamWriteValue32")(second, at, 1, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS) return 2;
        CHECK(cudaDeviceSynchronize());
        std::fill(want.begin(), want.end(), 5);
        report.expect_device("device", device, want.data(), want.size());
        report.expect("back", back, want.data(), want.size());
    } else if (way == "named") {
        // Nothing has shown before that GPUs use this memory.
        std::memset(pinned, 9, PIECE);
        cudaStream_t third;
        cudaEvent_t copied;
        CHECK(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
        constexpr int WORDS = 64 << 10;
        unsigned *read;
        CHECK(cudaMalloc(&read, 2 * WORDS * sizeof *read));
        CHECK(cudaDeviceSynchronize());
        spin<<<1, 1, 0, first>>>(flag);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(pinned, device, PIECE, cudaMemcpyDeviceToHost, first));
        CHECK(cudaEventRecord(copied, first));
        CHECK(cudaStreamWaitEvent(third, copied));
        const unsigned *words = reinterpret_cast<const unsigned *>(pinned);
        read_words<<<WORDS / 128, 128, 0, first>>>(words, read);
        read_words<<<WORDS / 128, 128, 0, third>>>(words + WORDS, read + WORDS);
        raise<<<1, 1, 0, second>>>(flag);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        std::fill(want.begin(), want.end(), 3);
        report.expect_device("read", read, want.data(), 2 * WORDS * sizeof *read);
        report.expect("pinned", pinned, want.data(), PIECE);
    } else {
        return 64;
    }
    return report.finish();
}
