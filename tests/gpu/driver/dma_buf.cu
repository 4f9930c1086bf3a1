// Of which memory of the device the driver makes a dma-buf, by which other devices of the machine reach it, and what the descriptor keeps.
//
//     nvcc -arch=native -o dma_buf dma_buf.cu -lcuda
#include <cstdio>
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

// Makes a call and prints its result.
#define SHOW(call) show(#call, call)

static CUresult show(const char *call, CUresult result) {
    const char *name = "?";
    cuGetErrorName(result, &name);
    std::printf("%s = %s\n", call, name);
    return result;
}

static size_t free_mib() {
    size_t free = 0, total = 0;
    cuMemGetInfo(&free, &total);
    return free >> 20;
}

// Asks for a dma-buf of a range; returns the descriptor, or -1.
static int dma_buf(const char *what, CUdeviceptr at, size_t bytes, unsigned long long flags = 0) {
    int fd = -1;
    show(what, cuMemGetHandleForAddressRange(&fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags));
    return fd;
}

int main() {
    const size_t bytes = 32 << 20;
    CUdevice device;
    CUcontext context;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context)) return 1;
    for (int attribute : {110, 116, 117, 118, 124}) {
        int value = -1;
        cuDeviceGetAttribute(&value, (CUdevice_attribute)attribute, device);
        std::printf("attribute %d = %d\n", attribute, value);
    }
    CUdeviceptr base = 0;
    SHOW(cuMemAddressReserve(&base, 512ull << 30, 0, 0x4b0000000000ull, 0));
    std::printf("at %llx\n", base);
    CUmemAllocationProp of = {};
    of.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    of.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    of.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc access = {of.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (unsigned char capable : {1, 0}) {
        of.allocFlags.gpuDirectRDMACapable = capable;
        std::printf("gpuDirectRDMACapable %d, free %zu MiB\n", capable, free_mib());
        CUmemGenericAllocationHandle memory;
        if (SHOW(cuMemCreate(&memory, bytes, &of, 0))) continue;
        SHOW(cuMemMap(base, bytes, 0, memory, 0));
        SHOW(cuMemSetAccess(base, bytes, &access, 1));
        SHOW(cuMemRelease(memory));
        int fd = dma_buf("the whole range", base, bytes);
        for (int part : {dma_buf("4 MiB of it", base + (2 << 20), 4 << 20), dma_buf("a page of it", base + 4096, 4096),
                         dma_buf("an odd address", base + 100, 4096), dma_buf("more than is mapped", base, 2 * bytes),
                         dma_buf("unknown flags", base, bytes, 7)}) {
            if (part >= 0) close(part);
        }
        bool can_be_mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED;
        std::printf("size %ld, mmap %s\n", (long)lseek(fd, 0, SEEK_END), can_be_mapped ? "works" : "fails");
        std::printf("free %zu MiB while mapped", free_mib());
        cuMemUnmap(base, bytes);
        std::printf(", %zu when unmapped", free_mib());
        if (fd >= 0) close(fd);
        std::printf(", %zu without the descriptor\n", free_mib());
    }
    CUdeviceptr allocated;
    SHOW(cuMemAlloc(&allocated, bytes));
    int fd = dma_buf("cuMemAlloc's memory", allocated, bytes);
    std::printf("free %zu MiB", free_mib());
    cuMemFree(allocated);
    std::printf(", %zu after cuMemFree", free_mib());
    if (fd >= 0) close(fd);
    std::printf(", %zu without the descriptor\n", free_mib());
    return 0;
}
