// What a move to another GPU of one host would cost if it committed before memory is copied ("post-copy"): kernels of the target work on the
// source's memory over NVLink, which is then brought home chunk by chunk, each in a pause in which no kernel runs. For two GPUs:
//
//   nvcc -O2 -std=c++17 -gencode arch=compute_90,code=sm_90 -o post_copy post_copy.cu -lcuda
//   post_copy [GiB] [MiB of a chunk ...]
//
// The memory consists of chunks of the first GPU that are mapped at their addresses for the second one, as a target would map what it imports.
#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CK(call)                                                                         \
    do {                                                                                 \
        CUresult rc_ = (call);                                                           \
        if (rc_) {                                                                       \
            std::printf("line %d: %s: error %d\n", __LINE__, #call, rc_);                \
            std::exit(2);                                                                \
        }                                                                                \
    } while (0)

using u64 = unsigned long long;
using Handle = CUmemGenericAllocationHandle;

static __global__ void fill(u64 *words, u64 n) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x) words[i] = i;
}

// What a step of a program does with memory: reads and writes each word once.
static __global__ void add(u64 *words, u64 n) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x) words[i] += 3;
}

static __global__ void look(const u64 *words, u64 n, u64 *sum) {
    u64 mine = 0;
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x) mine += words[i];
    atomicAdd(sum, mine);
}

static __global__ void count_wrong(const u64 *words, u64 n, u64 added, u64 *wrong) {
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x)
        if (words[i] != i + added) atomicAdd(wrong, 1ull);
}

static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static Handle create(int device, size_t bytes) {
    CUmemAllocationProp property = {};
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    Handle handle;
    CK(cuMemCreate(&handle, bytes, &property, 0));
    return handle;
}

static void allow(CUdeviceptr at, size_t bytes, int device) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CK(cuMemSetAccess(at, bytes, &access, 1));
}

// The median and the maximum.
static void row(const char *what, size_t mib, std::vector<double> &times) {
    std::sort(times.begin(), times.end());
    double all = 0;
    for (double t : times) all += t;
    std::printf("| %-44s | %4zu MiB | %8.0f | %8.0f | %8.1f |\n", what, mib, times[times.size() / 2], times.back(), all / 1000);
}

template <class F> static double timed(F run) {
    CK(cuCtxSynchronize());
    double began = now_us();
    run();
    CK(cuCtxSynchronize());
    return now_us() - began;
}

int main(int argc, char **argv) {
    size_t gib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 16;
    std::vector<size_t> sizes;
    for (int i = 2; i < argc; i++) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
    if (sizes.empty()) sizes = {2, 16, 64, 128, 256};
    const size_t bytes = gib << 30;
    const u64 n = bytes / sizeof(u64);
    CUcontext source, target;
    CK(cuInit(0));
    CK(cuDevicePrimaryCtxRetain(&source, 0));
    CK(cuDevicePrimaryCtxRetain(&target, 1));
    CK(cuCtxSetCurrent(target));
    CUdeviceptr scratch;
    CK(cuMemAlloc(&scratch, 1 << 20));
    const dim3 blocks(1056), threads(256);
    std::printf("| %-44s | chunk    | median us | most us | all ms |\n|---|---:|---:|---:|---:|\n", "what");
    for (size_t mib : sizes) {
        const size_t chunk = mib << 20, chunks = bytes / chunk;
        CUdeviceptr at;
        CK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
        std::vector<Handle> theirs(chunks), ours(chunks);
        std::vector<int> descriptors(chunks);
        for (size_t k = 0; k < chunks; k++) theirs[k] = create(0, chunk);
        for (size_t k = 0; k < chunks; k++) CK(cuMemExportToShareableHandle(&descriptors[k], theirs[k], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        std::vector<double> times;
        for (size_t k = 0; k < chunks; k++) {
            double began = now_us();
            CK(cuMemMap(at + k * chunk, chunk, 0, theirs[k], 0));
            allow(at + k * chunk, chunk, 1);
            times.push_back(now_us() - began);
        }
        row("the source's memory is mapped, before", mib, times);
        u64 *words = reinterpret_cast<u64 *>(at), *sum = reinterpret_cast<u64 *>(scratch);
        fill<<<blocks, threads>>>(words, n);
        u64 added = 0;
        auto step = [&] {
            add<<<blocks, threads>>>(words, n);
            added += 3;
        };
        step();
        times = {timed(step), timed(step), timed(step)};
        row("a step that reads and writes all, over NVLink", mib, times);
        times.clear();
        for (int i = 0; i < 3; i++) times.push_back(timed([&] { look<<<blocks, threads>>>(words, n, sum); }));
        row("a step that reads all, over NVLink", mib, times);
        for (size_t k = 0; k < chunks; k++) ours[k] = create(1, chunk);
        CUdeviceptr own;
        CK(cuMemAddressReserve(&own, bytes, 0, 0, 0));
        times.clear();
        for (size_t k = 0; k < chunks; k++) {
            double began = now_us();
            CK(cuMemMap(own + k * chunk, chunk, 0, ours[k], 0));
            allow(own + k * chunk, chunk, 1);
            times.push_back(now_us() - began);
        }
        row("the target's own memory is mapped, aside", mib, times);
        // The pauses: no kernel runs; copy, unmap, map, allow. A short kernel before, as a program's.
        std::vector<double> copies, maps, pauses;
        double all = timed([&] {
            for (size_t k = 0; k < chunks; k++) {
                add<<<1, 256>>>(reinterpret_cast<u64 *>(scratch), 256);
                double began = now_us();
                CK(cuCtxSynchronize());
                CK(cuMemcpyDtoDAsync(own + k * chunk, at + k * chunk, chunk, 0));
                CK(cuStreamSynchronize(0));
                double copied = now_us();
                CK(cuMemUnmap(at + k * chunk, chunk));
                CK(cuMemMap(at + k * chunk, chunk, 0, ours[k], 0));
                allow(at + k * chunk, chunk, 1);
                double done = now_us();
                copies.push_back(copied - began);
                maps.push_back(done - copied);
                pauses.push_back(done - began);
            }
        });
        row("pause: copy of a chunk", mib, copies);
        row("pause: its address gets the target's memory", mib, maps);
        row("pause", mib, pauses);
        std::printf("| %-44s | %4zu MiB | | | %8.1f |\n", "all of it at home after", mib, all / 1000);
        times.clear();
        for (int i = 0; i < 3; i++) times.push_back(timed(step));
        row("a step that reads and writes all, at home", mib, times);
        times.clear();
        for (int i = 0; i < 3; i++) times.push_back(timed([&] { look<<<blocks, threads>>>(words, n, sum); }));
        row("a step that reads all, at home", mib, times);
        CK(cuMemsetD8(scratch, 0, 8));
        count_wrong<<<blocks, threads>>>(words, n, added, sum);
        u64 wrong = 1;
        CK(cuMemcpyDtoH(&wrong, scratch, 8));
        std::printf("%s\n", wrong ? "WRONG" : "all words right");
        // Today's way, for comparison: one copy of all of it, and of a hundredth of it.
        times.clear();
        for (size_t k = 0; k < chunks; k++) {
            CK(cuMemUnmap(at + k * chunk, chunk));
            CK(cuMemMap(at + k * chunk, chunk, 0, theirs[k], 0));
            allow(at + k * chunk, chunk, 1);
        }
        for (int i = 0; i < 3; i++) times.push_back(timed([&] { CK(cuMemcpyDtoDAsync(own, at, bytes, 0)); }));
        row("one copy of all of it", mib, times);
        times.clear();
        for (int i = 0; i < 3; i++) times.push_back(timed([&] { CK(cuMemcpyDtoDAsync(own, at, bytes / 100, 0)); }));
        row("one copy of a hundredth of it", mib, times);
        for (size_t k = 0; k < chunks; k++) {
            CK(cuMemUnmap(at + k * chunk, chunk));
            CK(cuMemUnmap(own + k * chunk, chunk));
            CK(cuMemRelease(theirs[k]));
            CK(cuMemRelease(ours[k]));
        }
        for (int descriptor : descriptors) close(descriptor);
        CK(cuMemAddressFree(at, bytes));
        CK(cuMemAddressFree(own, bytes));
    }
    return 0;
}
