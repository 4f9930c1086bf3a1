// Managed memory: where the driver places it, whether its addresses can be chosen and move variables, what moves its pages and how long
// that takes, and what gets through while a kernel fills the GPU.
//
//   nvcc -std=c++17 -arch=native managed.cu -o managed -lcuda -Xlinker -E && ./managed
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

// Where the next reservation without an address is placed; 0: anywhere.
static uint64_t wanted;
static bool logging;
constexpr size_t MB = 1 << 20;

static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return reinterpret_cast<void *>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

// libcuda calls these: the program's symbols come before those of the C library.
extern "C" void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) __THROW {
    void *got = MAP_FAILED;
    if (at == nullptr && wanted != 0 && bytes >= 2 * MB) {
        got = map(reinterpret_cast<void *>(wanted), bytes, protection, flags | MAP_FIXED_NOREPLACE, fd, offset);
        wanted = 0;
    }
    if (got == MAP_FAILED) got = map(at, bytes, protection, flags, fd, offset);
    if (logging) printf("  mmap(%p, %zu KiB, protection %d, flags %x) = %p\n", at, bytes >> 10, protection, flags, got);
    return got;
}

extern "C" void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) __THROW {
    return mmap(at, bytes, protection, flags, fd, offset);
}

static void check(int rc, const char *what, int line) {
    if (rc != 0) printf("line %d: %s returned %d\n", line, what, rc);
}
#define CHECK(call) check(static_cast<int>(call), #call, __LINE__)

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

template <class F> static void timed(const char *what, F run) {
    double began = now();
    run();
    printf("| %s | %.3f ms |\n", what, now() - began);
}

__global__ void fill(uint4 *to, size_t n, unsigned seed) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += gridDim.x * size_t(blockDim.x)) {
        to[i] = make_uint4(i * seed, seed, i, ~i);
    }
}

// A warp for each page of 4 KiB.
__global__ void compare(const uint4 *a, const uint4 *b, size_t n, unsigned char *differs) {
    unsigned lane = threadIdx.x % 32;
    for (size_t page = (blockIdx.x * size_t(blockDim.x) + threadIdx.x) / 32; page < n / 256; page += gridDim.x * size_t(blockDim.x) / 32) {
        unsigned difference = 0;
        for (int i = 0; i < 8; i++) {
            uint4 x = a[page * 256 + i * 32 + lane], y = b[page * 256 + i * 32 + lane];
            difference |= (x.x ^ y.x) | (x.y ^ y.y) | (x.z ^ y.z) | (x.w ^ y.w);
        }
        if (__any_sync(~0u, difference) && lane == 0) differs[page] = 1;
    }
}

__global__ void spin(volatile unsigned *a, volatile unsigned *b) {
    while (*a == 0 && *b == 0) __nanosleep(200);
}

static char *managed(size_t bytes, uint64_t at = 0) {
    void *p = nullptr;
    wanted = at;
    CHECK(cudaMallocManaged(&p, bytes));
    wanted = 0;
    return static_cast<char *>(p);
}

static CUdeviceptr variable(const char *name, int bytes) {
    char text[300];
    const char *form = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 %s[%d];\n";
    snprintf(text, sizeof text, form, name, bytes);
    CUmodule module;
    CUdeviceptr at = 0;
    size_t size;
    CHECK(cuModuleLoadData(&module, text));
    CHECK(cuModuleGetGlobal(&at, &size, module, name));
    return at;
}

static void placement() {
    const uint64_t base = 0x400000000000;
    printf("variables %llx %llx\n", variable("a", 3 * MB), variable("b", 1000));
    std::vector<char *> all;
    for (size_t bytes : {size_t(4096), MB, 3 * MB, 64 * MB, 1024 * MB}) {
        uint64_t want = base + (bytes << 4);
        logging = true;
        char *at = managed(bytes, want);
        logging = false;
        printf("%zu KiB: wanted %llx, got %p\n", bytes >> 10, static_cast<unsigned long long>(want), at);
        all.push_back(at);
    }
    printf("variables behind it %llx %llx\n", variable("c", 5 * MB), variable("d", 1000));
    for (char *at : all) CHECK(cudaFree(at));
    // Freed memory is at its address again, and zero.
    for (bool by_gpu : {false, true}) {
        char *at = managed(64 * MB, base);
        CHECK(cudaMemset(at, 7, 64 * MB));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaFree(at));
        char *again = managed(64 * MB, base);
        std::vector<char> bytes(64 * MB, 1);
        if (by_gpu) CHECK(cudaMemcpy(bytes.data(), again, 64 * MB, cudaMemcpyDefault));
        if (!by_gpu) memcpy(bytes.data(), again, 64 * MB);
        int sum = 0;
        for (char byte : bytes) sum |= byte;
        printf("again at its address: %d, its bytes: %d\n", at == again, sum);
        CHECK(cudaFree(again));
    }
}

static void times() {
    const size_t bytes = 1024 * MB, n = bytes / 16;
    char *memory = managed(bytes), *shadow, *pinned;
    unsigned char *differs;
    CHECK(cudaMalloc(&shadow, bytes));
    CHECK(cudaMallocHost(&pinned, bytes));
    CHECK(cudaMallocHost(&differs, n / 256));
    std::vector<char> host(bytes, 1);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto wait = [&] { CHECK(cudaStreamSynchronize(stream)); };
    auto kernel = [&] { fill<<<2048, 256, 0, stream>>>(reinterpret_cast<uint4 *>(memory), n, 3), wait(); };
    auto compared = [&] {
        compare<<<2112, 256, 0, stream>>>(reinterpret_cast<uint4 *>(memory), reinterpret_cast<uint4 *>(shadow), n, differs), wait();
    };
    auto copy = [&](void *to, void *from, size_t size) { CHECK(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream)), wait(); };
    timed("the processor writes 1 GiB", [&] { memset(memory, 3, bytes); });
    timed("a kernel writes it", kernel);
    timed("again", kernel);
    copy(shadow, memory, bytes);
    compared();
    timed("a kernel compares it", compared);
    timed("4 KiB are copied to the host", [&] { copy(pinned, memory + 5 * MB, 4096); });
    timed("all is copied to the host", [&] { copy(pinned, memory, bytes); });
    timed("the kernel then", kernel);
    timed("all is copied to the GPU", [&] { copy(memory, pinned, bytes); });
    timed("the kernel then", kernel);
    timed("the processor reads it", [&] { memcpy(host.data(), memory, bytes); });
    timed("the kernel then", kernel);
    timed("the processor writes in 256 pages", [&] {
        for (size_t i = 0; i < 256; i++) reinterpret_cast<volatile char *>(memory)[i * 997 % 16384 * 65536] = 1;
    });
    timed("the kernel then", kernel);
    timed("the processor writes all", [&] { memset(memory, 3, bytes); });
    cudaMemLocation gpu = {cudaMemLocationTypeDevice, 0};
    timed("a prefetch", [&] { CHECK(cudaMemPrefetchAsync(memory, bytes, gpu, 0, stream)), wait(); });
    timed("the kernel then", kernel);
}

// What gets through beside a kernel that waits for the host.
static void beside(int blocks) {
    const size_t bytes = 64 * MB, n = bytes / 16;
    char *memory = managed(bytes), *device, *pinned;
    unsigned char *differs;
    volatile unsigned *go;
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMallocHost(&pinned, bytes));
    CHECK(cudaMallocHost(&differs, n / 256));
    CHECK(cudaMallocHost(reinterpret_cast<void **>(const_cast<unsigned **>(&go)), 4096));
    memset(memory, 0, bytes);
    cudaStream_t streams[6];
    for (auto &stream : streams) CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5));
    auto compared = [&](cudaStream_t s) {
        compare<<<2112, 256, 0, s>>>(reinterpret_cast<uint4 *>(memory), reinterpret_cast<uint4 *>(device), n, differs);
    };
    compared(streams[1]);
    CHECK(cudaDeviceSynchronize());
    auto *flag = reinterpret_cast<volatile unsigned *>(memory + MB);
    *go = 0;
    spin<<<blocks, 1024, 0, streams[0]>>>(go, flag);
    usleep(20000);
    printf("%d blocks of 1024 threads wait:\n", blocks);
    auto ends = [&](const char *what, cudaStream_t stream) {
        double began = now();
        cudaError_t rc;
        while ((rc = cudaStreamQuery(stream)) == cudaErrorNotReady && now() - began < 100) {
        }
        printf("| %s | %s after %.3f ms |\n", what, rc == cudaSuccess ? "done" : "not", now() - began);
    };
    compared(streams[1]), ends("another kernel", streams[1]);
    CHECK(cudaMemcpyAsync(device, pinned, MB, cudaMemcpyDefault, streams[2])), ends("1 MiB of pinned memory to the GPU", streams[2]);
    CHECK(cudaMemcpyAsync(pinned, memory, MB, cudaMemcpyDefault, streams[3])), ends("1 MiB of managed memory to the host", streams[3]);
    timed("the processor reads beside the flag", [&] { (void)flag[1024]; });
    std::atomic<bool> freed{false}, copied{false};
    std::thread frees([&] {
        void *p;
        CHECK(cudaMalloc(&p, 8 * MB));
        CHECK(cudaFree(p));
        freed = true;
    });
    usleep(30000);
    std::thread copies([&] {
        CHECK(cudaMemcpyAsync(device, pinned, 4096, cudaMemcpyDefault, streams[4]));
        copied = true;
    });
    usleep(100000);
    printf("cudaFree has returned: %d; the call of a copy beside it: %d\n", freed.load(), copied.load());
    timed("the processor sets the flag", [&] { *flag = 1; });
    ends("the kernel then", streams[0]);
    *go = 1;
    frees.join();
    copies.join();
    CHECK(cudaDeviceSynchronize());
}

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    CHECK(cudaFree(nullptr));
    int multiprocessors;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    placement();
    times();
    beside(1);
    beside(2 * multiprocessors);
    return 0;
}
