// Small helpers of the hardware tests: errors, rows of the result table, time, modules.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Where the plan of addresses puts things (docs/memory.md, "Addresses").
#define OWN_AT 0x200000000000ull
#define DRIVER_AT 0x300000000000ull
#define SCRATCH_AT 0x480000000000ull
#define ARENA (512ull << 30)

// Ends the process when a call fails: for calls whose failure is no finding.
#define CK(call)                                                                           \
    do {                                                                                   \
        CUresult result_ = (call);                                                         \
        if (result_) {                                                                     \
            fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, result_); \
            exit(2);                                                                       \
        }                                                                                  \
    } while (0)

// One row of the table: question, what was measured, value (printf style).
#define ROW(question, what, ...)                       \
    do {                                               \
        printf("| %-3s | %-66s | ", question, what);   \
        printf(__VA_ARGS__);                           \
        printf(" |\n");                                \
        fflush(stdout);                                \
    } while (0)

static inline double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

// Module images lie beside the programs: module0.cubin .. module4.cubin, module0.ptx.
static inline char *image(const char *name, size_t *size) {
    FILE *file = fopen(name, "rb");
    if (!file) {
        perror(name);
        exit(2);
    }
    char *bytes = calloc(1, 64 << 20);
    size_t n = fread(bytes, 1, (64 << 20) - 1, file);
    fclose(file);
    if (size) *size = n;
    return bytes;
}

static inline char *module_image(int k) {
    char name[32];
    snprintf(name, sizeof name, "module%d.cubin", k);
    return image(name, NULL);
}

// Makes the primary context of device 0 current.
static inline CUcontext first_context(void) {
    CUcontext context;
    CK(cuInit(0));
    CK(cuDevicePrimaryCtxRetain(&context, 0));
    CK(cuCtxSetCurrent(context));
    return context;
}

static inline CUfunction kernel(CUmodule module, const char *name) {
    CUfunction function;
    CK(cuModuleGetFunction(&function, module, name));
    return function;
}

static inline CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, void **arguments) {
    return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
}

// Whether `call` waits for a kernel, `spin`, that runs for 60 ms in `other`; both are the caller's.
#define BESIDE_IN(question, what, call)                                                                             \
    do {                                                                                                            \
        CK(cuCtxSynchronize());                                                                                     \
        unsigned long long ns_ = 60000000;                                                                          \
        CK(launch(spin, 1, 1, other, (void *[]){&ns_}));                                                            \
        double start_ = now_us();                                                                                   \
        CUresult result_ = (call);                                                                                  \
        double took_ = now_us() - start_;                                                                           \
        int running_ = cuStreamQuery(other) == CUDA_ERROR_NOT_READY;                                                \
        ROW(question, what, "error %d, %.0f us, %s", result_, took_, running_ ? "does not wait" : "WAITS for it");  \
    } while (0)

static inline CUmemAllocationProp device_memory(void) {
    CUmemAllocationProp property;
    memset(&property, 0, sizeof property);
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return property;
}

static inline CUmemAccessDesc read_write(void) {
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

// Creates memory and maps it at an address that is already reserved.
static inline CUresult back(CUdeviceptr at, size_t size, CUmemGenericAllocationHandle *handle) {
    CUmemAllocationProp property = device_memory();
    CUmemAccessDesc access = read_write();
    CUresult result = cuMemCreate(handle, size, &property, 0);
    if (!result) result = cuMemMap(at, size, 0, *handle, 0);
    if (!result) result = cuMemSetAccess(at, size, &access, 1);
    return result;
}
