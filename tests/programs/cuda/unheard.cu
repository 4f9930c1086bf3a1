// Work that may fail when its call has returned already, since the place cannot get the memory for it: the bytes are right, or the program
// hears of it. The argument says which work: `in` and `array`, copies from pinned memory; `out`, one to it. With others it is the first of
// these, and the next call is another one: `waits` waits for it at once; `reset` resets the context; `green` ends a green context in which
// an event was recorded; `library`, with the copy on the last GPU, unloads a library that all GPUs have.
#include "program.cuh"
#include "driver.cuh"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <thread>

constexpr size_t ROW = 2048, ROWS = 1024, BYTES = ROW * ROWS;

// Holds its stream back, so that what is copied behind it is read when it has returned.
static void CUDART_CB wait_at(void *open) {
    while (!*static_cast<std::atomic<bool> *>(open)) usleep(50);
}

// A green context in which something of this library's own lies: an event was recorded in it.
struct Green {
    CUgreenCtx green;

    Green() {
        CHECK(cudaFree(nullptr));
        CUdevResource all, group, rest;
        unsigned count = 1;
        CUdevResourceDesc desc;
        DRIVER(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
        DRIVER(cuDevSmResourceSplitByCount, &group, &count, &all, &rest, 0, 8);
        DRIVER(cuDevResourceGenerateDesc, &desc, &group, 1);
        DRIVER(cuGreenCtxCreate, &green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM);
        CUevent event;
        DRIVER(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
        DRIVER(cuGreenCtxRecordEvent, green, event);
    }

    CUresult end() { return program::entry<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy")(green); }

    // It has ended, whatever its end returned.
    bool has_ended() {
        CUcontext context;
        return program::entry<decltype(&cuCtxFromGreenCtx)>("cuCtxFromGreenCtx")(&context, green) == CUDA_ERROR_INVALID_CONTEXT;
    }
};

// A library, and its kernel on the first GPU.
struct Library {
    static constexpr const char *TEXT = ".version 7.0\n.target sm_75\n.address_size 64\n"
                                        ".visible .entry mark(.param .u64 to) {\n"
                                        "  .reg .b64 %a;\n  .reg .b32 %v;\n"
                                        "  ld.param.u64 %a, [to];\n  ld.global.u32 %v, [%a];\n  add.u32 %v, %v, 1;\n"
                                        "  st.global.u32 [%a], %v;\n  ret;\n}\n";
    CUlibrary library;
    CUfunction mark;
    unsigned *marks, made = 0;

    Library() {
        CHECK(cudaSetDevice(0));
        CHECK(cudaMalloc(&marks, sizeof *marks));
        CHECK(cudaMemset(marks, 0, sizeof *marks));
        DRIVER(cuLibraryLoadData, &library, TEXT, nullptr, nullptr, 0, nullptr, nullptr, 0);
        CUkernel kernel;
        DRIVER(cuLibraryGetKernel, &kernel, library, "mark");
        DRIVER(cuKernelGetFunction, &mark, kernel);
    }

    CUresult end() { return program::entry<decltype(&cuLibraryUnload)>("cuLibraryUnload")(library); }

    // Its kernel does what it did.
    bool is_whole() {
        CHECK(cudaSetDevice(0));
        void *params[] = {&marks};
        auto launch = program::entry<decltype(&cuLaunchKernel)>("cuLaunchKernel");
        if (launch(mark, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr) != CUDA_SUCCESS) return false;
        unsigned got = 0;
        return cudaMemcpy(&got, marks, sizeof got, cudaMemcpyDeviceToHost) == cudaSuccess && got == ++made;
    }
};

int main(int argc, char **argv) {
    std::string way = argc == 2 ? argv[1] : "";
    const char *const ways[] = {"in", "out", "array", "waits", "reset", "green", "library"};
    if (std::find(std::begin(ways), std::end(ways), way) == std::end(ways)) return 64;
    std::optional<Library> library;
    std::optional<Green> green;
    if (way == "green") green.emplace();
    if (way == "library") {
        int gpus;
        library.emplace();
        if (!library->is_whole()) return 1;
        CHECK(cudaGetDeviceCount(&gpus));
        CHECK(cudaSetDevice(gpus - 1));
    }
    unsigned char *device, *pinned;
    cudaStream_t stream;
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned char>();
    CHECK(cudaMalloc(&device, BYTES));
    CHECK(cudaMemset(device, 3, BYTES));
    CHECK(cudaMallocArray(&array, &format, ROW, ROWS));
    CHECK(cudaMallocHost(&pinned, BYTES));
    std::memset(pinned, 5, BYTES);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());

    std::atomic<bool> open{false};
    CHECK(cudaLaunchHostFunc(stream, wait_at, &open));
    cudaError_t said;
    if (way == "out") said = cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, stream);
    else if (way == "array") said = cudaMemcpy2DToArrayAsync(array, 0, 0, pinned, ROW, ROW, ROWS, cudaMemcpyHostToDevice, stream);
    else said = cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream);
    std::thread opens([&open] {
        // Meanwhile the place has said what became of it.
        usleep(1000000);
        open = true;
    });
    if (way != "waits") opens.join();

    bool right = true;
    if (way == "green") {
        if (green->end() != CUDA_SUCCESS) said = cudaErrorUnknown;
        right = green->has_ended();
    } else if (way == "library") {
        if (library->end() != CUDA_SUCCESS) said = cudaErrorUnknown;
        // What a call that returns an error was to end has not ended anywhere.
        right = said == cudaSuccess || (library->is_whole() && library->end() == CUDA_SUCCESS);
    } else if (way == "reset") {
        CUresult result = program::entry<decltype(&cuDevicePrimaryCtxReset)>("cuDevicePrimaryCtxReset")(0);
        if (result != CUDA_SUCCESS) said = cudaErrorUnknown;
        unsigned flags;
        int active = 1;
        DRIVER(cuDevicePrimaryCtxGetState, 0, &flags, &active);
        right = active == 0;
    } else {
        said = said == cudaSuccess ? cudaStreamSynchronize(stream) : said;
        if (opens.joinable()) opens.join();
        std::vector<unsigned char> got(BYTES);
        if (said == cudaSuccess && way == "out") std::memcpy(got.data(), pinned, BYTES);
        else if (said == cudaSuccess && way == "array") CHECK(cudaMemcpy2DFromArray(got.data(), ROW, array, 0, 0, ROW, ROWS, cudaMemcpyDeviceToHost));
        else if (said == cudaSuccess) CHECK(cudaMemcpy(got.data(), device, BYTES, cudaMemcpyDeviceToHost));
        for (unsigned char byte : got) right &= said != cudaSuccess || byte == (way == "out" ? 3 : 5);
    }
    std::printf("%s\nRESULT %s\n", said == cudaSuccess ? "done" : "told", right ? "ok" : "wrong");
    return right ? 0 : 1;
}
