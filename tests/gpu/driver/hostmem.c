// What managed memory is to the calls that look at addresses, which mistakes give which errors, and what can be done with a
// shared file's pages that are registered at a fixed address, as a helper has the job's pinned memory.
#define _GNU_SOURCE
#include "facts.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT 0x400000002000ull
#define BYTES 8192

static void attributes(const char *what, CUdeviceptr at) {
    const struct {
        CUpointer_attribute attribute;
        const char *name;
    } all[] = {
        {CU_POINTER_ATTRIBUTE_CONTEXT, "CONTEXT"},
        {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "MEMORY_TYPE"},
        {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "DEVICE_POINTER"},
        {CU_POINTER_ATTRIBUTE_HOST_POINTER, "HOST_POINTER"},
        {CU_POINTER_ATTRIBUTE_IS_MANAGED, "IS_MANAGED"},
        {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "DEVICE_ORDINAL"},
        {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "IPC_CAPABLE"},
        {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "RANGE_START"},
        {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "RANGE_SIZE"},
        {CU_POINTER_ATTRIBUTE_MAPPED, "MAPPED"},
        {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, "SYNC_MEMOPS"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        unsigned long long value = 0;
        CUresult result = cuPointerGetAttribute(&value, all[i].attribute, at);
        char question[80];
        snprintf(question, sizeof question, "%s: %s", what, all[i].name);
        // Addresses as what they are relative to the memory.
        if (value >= at - 64 && value <= at) ROW("hm", question, "error %d, the memory's address", result);
        else if (value > 0xffffffff) ROW("hm", question, "error %d, an address", result);
        else ROW("hm", question, "error %d, %llu", result, value);
    }
}

static void managed(CUstream stream) {
    CUdeviceptr at, base, plain;
    size_t size = 0;
    unsigned flags = 0;
    int value = 0;
    CK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    ROW("hm", "concurrent managed access", "%d", value);
    for (unsigned f = 0; f < 5; f++) {
        CUresult result = cuMemAllocManaged(&at, BYTES, f);
        ROW("hm", "cuMemAllocManaged", "flags %u: error %d", f, result);
        if (!result) CK(cuMemFree(at));
    }
    ROW("hm", "cuMemAllocManaged of 0 bytes", "error %d", cuMemAllocManaged(&at, 0, 1));
    CK(cuMemAllocManaged(&at, BYTES, CU_MEM_ATTACH_GLOBAL));
    CK(cuMemAlloc(&plain, BYTES));
    attributes("managed, inside", at + 64);
    CUresult result = cuMemGetAddressRange(&base, &size, at + 64);
    ROW("hm", "cuMemGetAddressRange", "error %d, from its start %d, %zu bytes", result, base == at, size);
    result = cuMemHostGetFlags(&flags, (void *)at);
    ROW("hm", "cuMemHostGetFlags of managed memory", "error %d, %u", result, flags);
    ROW("hm", "cuMemHostGetDevicePointer of managed memory", "error %d", cuMemHostGetDevicePointer(&base, (void *)at, 0));
    ROW("hm", "cuMemFreeHost of managed memory", "error %d", cuMemFreeHost((void *)at));
    ROW("hm", "cuMemHostRegister of managed memory", "error %d", cuMemHostRegister((void *)at, BYTES, 0));
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, wrong = {CU_MEM_LOCATION_TYPE_DEVICE, 99};
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0}, nowhere = {CU_MEM_LOCATION_TYPE_INVALID, 0};
    for (int advice = 0; advice <= 7; advice++) {
        ROW("hm", "cuMemAdvise: device, host, wrong device, invalid kind, not managed, too long", "advice %d: %d %d %d %d %d %d", advice,
            cuMemAdvise(at, BYTES, advice, device), cuMemAdvise(at, BYTES, advice, host), cuMemAdvise(at, BYTES, advice, wrong),
            cuMemAdvise(at, BYTES, advice, nowhere), cuMemAdvise(plain, BYTES, advice, device), cuMemAdvise(at, 64 << 20, advice, device));
    }
    ROW("hm", "cuMemPrefetchAsync: device, host, wrong device, invalid kind, not managed, flags 1, 0 bytes", "%d %d %d %d %d %d %d",
        cuMemPrefetchAsync(at, BYTES, device, 0, stream), cuMemPrefetchAsync(at, BYTES, host, 0, stream),
        cuMemPrefetchAsync(at, BYTES, wrong, 0, stream), cuMemPrefetchAsync(at, BYTES, nowhere, 0, stream),
        cuMemPrefetchAsync(plain, BYTES, device, 0, stream), cuMemPrefetchAsync(at, BYTES, device, 1, stream),
        cuMemPrefetchAsync(at, 0, device, 0, stream));
    CK(cuStreamAttachMemAsync(stream, at, 0, CU_MEM_ATTACH_GLOBAL));
    CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    result = cuMemPrefetchAsync(at, BYTES, device, 0, stream);
    CUgraph graph = NULL;
    ROW("hm", "cuMemPrefetchAsync on a capturing stream, end of the capture", "error %d, %d", result, cuStreamEndCapture(stream, &graph));
    CK(cuMemFree(at));
    CK(cuMemFree(plain));
}

// One wrong or right way to attach memory to a stream, in the driver of this process.
static CUresult attach(int way, unsigned flags) {
    CUstream stream;
    CUdeviceptr at, plain;
    first_context();
    CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(cuMemAllocManaged(&at, BYTES, CU_MEM_ATTACH_GLOBAL));
    CK(cuMemAlloc(&plain, BYTES));
    switch (way) {
    case 0: return cuStreamAttachMemAsync(stream, at, BYTES, flags);
    case 1: return cuStreamAttachMemAsync(stream, at, 0, flags);
    case 2: return cuStreamAttachMemAsync(stream, at, 64, flags);
    case 3: return cuStreamAttachMemAsync(stream, at + 64, 0, flags);
    case 4: return cuStreamAttachMemAsync(stream, plain, 0, flags);
    default: return cuStreamAttachMemAsync(NULL, at, 0, flags);
    }
}

// Each way in a process of its own, before this one starts CUDA: one of them ended the process in a 580 driver.
static void attachments(void) {
    const char *ways[] = {"whole", "length 0", "a part", "from inside", "not managed", "null stream"};
    for (int way = 0; way < 6; way++) {
        int told[5];
        for (unsigned flags = 0; flags < 5; flags++) {
            fflush(stdout);
            pid_t child = fork();
            if (child < 0) exit(2);
            // Result codes that matter here are below 128; what does not fit ends as 127.
            if (child == 0) {
                CUresult result = attach(way, flags);
                _exit(result < 127 ? (int)result : 127);
            }
            int status = 0;
            if (waitpid(child, &status, 0) != child) exit(2);
            told[flags] = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
        }
        char question[80];
        snprintf(question, sizeof question, "cuStreamAttachMemAsync, flags 0 to 4 (negative: a signal): %s", ways[way]);
        ROW("hm", question, "%d %d %d %d %d", told[0], told[1], told[2], told[3], told[4]);
    }
}

// A file's pages at an address of ours, registered; the same pages are changed through another mapping, as by another process.
static void registered(CUstream stream) {
    int fd = memfd_create("pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, 1 << 20) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)) exit(2);
    char *here = mmap((void *)AT, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0x2000);
    char *there = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0x2000);
    if (here != (char *)AT || there == MAP_FAILED) exit(2);
    ROW("hm", "cuMemHostRegister of a sealed file's pages, odd size", "error %d", cuMemHostRegister(here, 5000, CU_MEMHOSTREGISTER_DEVICEMAP));
    CUdeviceptr device = 0, memory;
    CK(cuMemHostGetDevicePointer(&device, here, 0));
    ROW("hm", "device pointer = host pointer", "%s", device == AT ? "yes" : "NO");
    CK(cuMemAlloc(&memory, BYTES));
    strcpy(there, "seen");
    char back[8] = "";
    CK(cuMemcpyHtoDAsync(memory, here, 8, stream));
    CK(cuMemcpyDtoHAsync(here + 4096, memory, 8, stream));
    CK(cuStreamSynchronize(stream));
    memcpy(back, there + 4096, 8);
    ROW("hm", "copies through it see the other mapping", "%s", strcmp(back, "seen") ? "NO" : "yes");
    ROW("hm", "cuMemsetD8 on it, cuMemcpyDtoD from it to the device", "error %d, %d", cuMemsetD8Async(device, 7, 16, stream),
        cuMemcpyDtoDAsync(memory, device, 16, stream));
    CK(cuStreamSynchronize(stream));
    ROW("hm", "cuStreamWriteValue32 to it", "error %d", cuStreamWriteValue32(stream, device, 42, 0));
    CK(cuStreamSynchronize(stream));
    ROW("hm", "and the other mapping sees it", "%s", *(volatile int *)there == 42 ? "yes" : "NO");
    ROW("hm", "cuMemcpyHtoD past the end of what is registered, within the page", "error %d", cuMemcpyHtoDAsync(memory, here + 4992, 64, stream));
    CK(cuStreamSynchronize(stream));
    attributes("registered, inside", device + 64);
    CK(cuMemHostUnregister(here));
    CK(cuMemFree(memory));
    close(fd);
}

int main(void) {
    CUstream stream;
    attachments();
    first_context();
    CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    managed(stream);
    registered(stream);
    return 0;
}
