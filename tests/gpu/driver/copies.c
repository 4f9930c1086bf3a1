// What copies cost natively, by the way in which their device memory was made: cuMemAlloc, or mapped as an executor maps its chunks
// (cuMemCreate and cuMemMap of 2 MiB or more at a chosen address). Times are medians.
#include "facts.h"

enum { BYTES = 512 << 20, TIMES = 400 };

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

#define MEDIAN(times, what)                                      \
    ({                                                           \
        double all_[TIMES];                                      \
        for (int i_ = 0; i_ < (times); i_++) {                   \
            double start_ = now_us();                            \
            CK(what);                                            \
            all_[i_] = now_us() - start_;                        \
        }                                                        \
        qsort(all_, (times), sizeof *all_, by_size);             \
        all_[(times) / 2];                                       \
    })

static CUdeviceptr mapped(size_t bytes, size_t chunk, int as_an_executor) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    // In one reservation of half a TiB at an address of its choice, made so that network cards can reach it.
    prop.allocFlags.gpuDirectRDMACapable = as_an_executor;
    CUdeviceptr at;
    CK(cuMemAddressReserve(&at, as_an_executor ? ARENA : bytes, 2 << 20, as_an_executor ? OWN_AT : 0, 0));
    for (size_t done = 0; done < bytes; done += chunk) {
        CUmemGenericAllocationHandle handle;
        CK(cuMemCreate(&handle, chunk, &prop, 0));
        CK(cuMemMap(at + done, chunk, 0, handle, 0));
    }
    CK(cuMemSetAccess(at, bytes, &access, 1));
    return at;
}

static void measure(const char *name, CUdeviceptr memory, char *pageable, char *pinned, CUstream stream) {
    char row[128];
    static char small[1 << 16];
    for (size_t bytes = 4; bytes <= sizeof small; bytes *= 128) {
        snprintf(row, sizeof row, "%s: copy in, out, of %zu B pageable, synchronous", name, bytes);
        double in = MEDIAN(TIMES, cuMemcpyHtoD(memory, small, bytes)), out = MEDIAN(TIMES, cuMemcpyDtoH(small, memory, bytes));
        ROW("C1", row, "%.2f, %.2f us", in, out);
        snprintf(row, sizeof row, "%s: the same in a stream, asynchronous, and a wait", name);
        in = MEDIAN(TIMES, cuMemcpyHtoDAsync(memory, small, bytes, stream) || cuStreamSynchronize(stream));
        out = MEDIAN(TIMES, cuMemcpyDtoHAsync(small, memory, bytes, stream) || cuStreamSynchronize(stream));
        ROW("C1", row, "%.2f, %.2f us", in, out);
        snprintf(row, sizeof row, "%s: from and to pinned memory, asynchronous, and a wait", name);
        in = MEDIAN(TIMES, cuMemcpyHtoDAsync(memory, pinned, bytes, stream) || cuStreamSynchronize(stream));
        out = MEDIAN(TIMES, cuMemcpyDtoHAsync(pinned, memory, bytes, stream) || cuStreamSynchronize(stream));
        ROW("C1", row, "%.2f, %.2f us", in, out);
    }
    double in = MEDIAN(5, cuMemcpyHtoD(memory, pageable, BYTES)), out = MEDIAN(5, cuMemcpyDtoH(pageable, memory, BYTES));
    snprintf(row, sizeof row, "%s: copy in, out, of 512 MiB pageable", name);
    ROW("C2", row, "%.1f, %.1f GB/s", BYTES / in / 1e3, BYTES / out / 1e3);
    in = MEDIAN(5, cuMemcpyHtoD(memory, pinned, BYTES)), out = MEDIAN(5, cuMemcpyDtoH(pinned, memory, BYTES));
    snprintf(row, sizeof row, "%s: copy in, out, of 512 MiB pinned", name);
    ROW("C2", row, "%.1f, %.1f GB/s", BYTES / in / 1e3, BYTES / out / 1e3);
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr allocated;
    char *pageable = malloc(BYTES), *pinned;
    memset(pageable, 1, BYTES);
    CK(cuInit(0));
    CK(cuDeviceGet(&device, 0));
    CK(cuDevicePrimaryCtxRetain(&context, device));
    CK(cuCtxSetCurrent(context));
    CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(cuMemAllocHost((void **)&pinned, BYTES));
    CK(cuMemAlloc(&allocated, BYTES));
    measure("cuMemAlloc", allocated, pageable, pinned, stream);
    measure("mapped, one chunk", mapped(BYTES, BYTES, 0), pageable, pinned, stream);
    measure("mapped, chunks of 2 MiB", mapped(BYTES, 2 << 20, 0), pageable, pinned, stream);
    measure("mapped, as an executor's", mapped(BYTES, BYTES, 1), pageable, pinned, stream);
    return 0;
}
