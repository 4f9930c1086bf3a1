// What gets through beside a kernel that fills the GPU and waits for the host.
//
//     nvcc -O2 -arch=native -o beside beside.cu -lcuda
#include "check.cuh"

#include <atomic>
#include <chrono>
#include <cuda.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

// One block for each multiprocessor: none has room for another.
static const int BLOCKS = 132, SHARED = 220 << 10;

__global__ void fill(volatile unsigned *flag) {
    extern __shared__ char room[];
    if (threadIdx.x == 0) {
        while (*flag == 0) {}
        room[0] = 1;
    }
    __syncthreads();
}

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Whether `body` ends within a second beside the kernel.
template <class Body> static void beside(const char *what, volatile unsigned *flag, cudaStream_t s, Body body) {
    *flag = 0;
    fill<<<BLOCKS, 1024, SHARED, s>>>(flag);
    CHECK(cudaGetLastError());
    usleep(20000);
    std::atomic<bool> done{false};
    double began = now(), took = 0;
    std::thread other([&] {
        CHECK(cudaSetDevice(0));
        body();
        took = now() - began;
        done = true;
    });
    while (!done && now() - began < 1.0) usleep(1000);
    bool through = done;
    *flag = 1;
    other.join();
    CHECK(cudaStreamSynchronize(s));
    std::printf("%-44s %s (%.3f ms)\n", what, through ? "gets through" : "WAITS", took * 1e3);
}

int main() {
    const size_t most = 64 << 20;
    volatile unsigned *flag;
    char *a, *b, *pinned, text[64];
    cudaStream_t s, copies;
    CHECK(cudaMallocHost((void **)&flag, 4096));
    CHECK(cudaMallocHost((void **)&pinned, most));
    CHECK(cudaMalloc((void **)&a, most));
    CHECK(cudaMalloc((void **)&b, most));
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    CHECK(cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    auto copy = [&](void *from, size_t bytes, cudaMemcpyKind kind) {
        CHECK(cudaMemcpyAsync(a, from, bytes, kind, copies));
        CHECK(cudaStreamSynchronize(copies));
    };
    copy(b, most, cudaMemcpyDeviceToDevice), copy(pinned, most, cudaMemcpyHostToDevice);
    for (size_t bytes : {size_t(4) << 10, size_t(256) << 10, size_t(2) << 20, size_t(8) << 20, most}) {
        std::snprintf(text, sizeof text, "device to device, %zu KiB", bytes >> 10);
        beside(text, flag, s, [&] { copy(b, bytes, cudaMemcpyDeviceToDevice); });
        std::snprintf(text, sizeof text, "pinned to device, %zu KiB", bytes >> 10);
        beside(text, flag, s, [&] { copy(pinned, bytes, cudaMemcpyHostToDevice); });
    }
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    beside("registering a page", flag, s, [&] { cuMemHostRegister(page, 4096, 0); });
    beside("unregistering it", flag, s, [&] { cuMemHostUnregister(page); });
    int fd = -1;
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle memory = 0;
    CUmemAllocationProp of = {};
    of.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    of.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc access = {of.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    beside("a dma-buf", flag, s, [&] {
        cuMemGetHandleForAddressRange(&fd, (CUdeviceptr)a, 2 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    });
    beside("reserving 512 GiB of addresses", flag, s, [&] { cuMemAddressReserve(&at, 512ull << 30, 0, 0x4b0000000000ull, 0); });
    beside("creating and mapping memory", flag, s, [&] {
        cuMemCreate(&memory, most, &of, 0), cuMemMap(at, most, 0, memory, 0), cuMemSetAccess(at, most, &access, 1);
    });
    beside("unmapping and releasing it", flag, s, [&] { cuMemUnmap(at, most), cuMemRelease(memory); });
    return 0;
}
