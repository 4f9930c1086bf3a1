// Two processes with memory by descriptors: the second, started by the first, gets physical memory (cuMemExportToShareableHandle) and a
// pool (cudaMemPoolExportToShareableHandle) over a Unix socket, maps them and works on them in turns with the first. Every few rounds
// there is new memory. `handles --peer FD GPU` is the second process. `--gpu` lets that use physical memory with the last GPU that it sees. With HANDLES_GO it waits for that file when the other one has ended, and
// uses the memory again.
#include "program.cuh"
#include "driver.cuh"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern char **environ;

constexpr int N = 4096;
constexpr int BLOCK = 128;
constexpr long RENEW = 8;
constexpr size_t BYTES = sizeof(uint32_t) * N;

__global__ void add(uint32_t *x, uint32_t what) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    x[i] = x[i] * 1664525u + what + i;
}

struct Message {
    uint32_t more, fresh, step;
    cudaMemPoolPtrExportData pointer;
};

static void give(int fd, const void *bytes, size_t size) {
    if (write(fd, bytes, size) != static_cast<ssize_t>(size)) std::_Exit(3);
}

static void take(int fd, void *bytes, size_t size) {
    for (size_t got = 0; got < size;) {
        ssize_t n = read(fd, static_cast<char *>(bytes) + got, size - got);
        if (n <= 0) std::_Exit(3);
        got += static_cast<size_t>(n);
    }
}

static void give_descriptor(int socket, int fd) {
    char byte = 1, control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&byte, 1};
    msghdr m = {};
    m.msg_iov = &part, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
    cmsghdr *head = CMSG_FIRSTHDR(&m);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(socket, &m, 0) != 1) std::_Exit(3);
}

static int take_descriptor(int socket) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    iovec part = {&byte, 1};
    msghdr m = {};
    m.msg_iov = &part, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
    if (recvmsg(socket, &m, 0) != 1 || CMSG_FIRSTHDR(&m) == nullptr) std::_Exit(3);
    int fd;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

// Physical memory at an address of its own.
struct Mapped {
    CUdeviceptr at = 0;
    size_t bytes = 0;

    uint32_t *words() const { return reinterpret_cast<uint32_t *>(at); }
    void map(CUmemGenericAllocationHandle handle, size_t size, int gpu = 0) {
        bytes = size;
        DRIVER(cuMemAddressReserve, &at, bytes, 0, 0, 0);
        DRIVER(cuMemMap, at, bytes, 0, handle, 0);
        CUmemAccessDesc access = {};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = gpu;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        DRIVER(cuMemSetAccess, at, bytes, &access, 1);
        DRIVER(cuMemRelease, handle);
    }
    void unmap() {
        if (at == 0) return;
        DRIVER(cuMemUnmap, at, bytes);
        DRIVER(cuMemAddressFree, at, bytes);
        at = 0;
    }
};

static int second(int socket, bool last_gpu) {
    int count = 1;
    CHECK(cudaGetDeviceCount(&count));
    const int gpu = last_gpu ? count - 1 : 0;
    cudaStream_t stream, mapped_stream;
    CHECK(cudaSetDevice(gpu));
    CHECK(cudaStreamCreate(&mapped_stream));
    CHECK(cudaSetDevice(0));
    CHECK(cudaStreamCreate(&stream));
    uint64_t bytes;
    take(socket, &bytes, sizeof bytes);
    int fd = take_descriptor(socket);
    cudaMemPool_t pool;
    CHECK(cudaMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void *>(static_cast<intptr_t>(fd)), cudaMemHandleTypePosixFileDescriptor, 0));
    close(fd);
    // Nothing is allocated from somebody else's pool.
    void *none = nullptr;
    if (cudaMallocFromPoolAsync(&none, 512, pool, stream) == cudaSuccess) std::_Exit(5);
    (void)cudaGetLastError();
    Mapped mapped;
    uint32_t *pooled = nullptr;
    for (;;) {
        Message m;
        take(socket, &m, sizeof m);
        if (m.fresh || !m.more) {
            mapped.unmap();
            if (pooled != nullptr) CHECK(cudaFreeAsync(pooled, stream));
            CHECK(cudaStreamSynchronize(stream));
            pooled = nullptr;
        }
        if (!m.more) {
            CHECK(cudaMemPoolDestroy(pool));
            return 0;
        }
        if (m.fresh) {
            fd = take_descriptor(socket);
            CUmemGenericAllocationHandle handle;
            DRIVER(cuMemImportFromShareableHandle, &handle, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            close(fd);
            mapped.map(handle, bytes, gpu);
            CHECK(cudaMemPoolImportPointer(reinterpret_cast<void **>(&pooled), pool, &m.pointer));
        }
        add<<<N / BLOCK, BLOCK, 0, stream>>>(pooled, m.step * 2 + 1);
        CHECK_LAUNCH();
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaSetDevice(gpu));
        add<<<N / BLOCK, BLOCK, 0, mapped_stream>>>(mapped.words(), m.step * 2 + 1);
        CHECK_LAUNCH();
        // What is copied from one to the other is there for the first process.
        CHECK(cudaMemcpyAsync(mapped.words() + N, pooled, BYTES, cudaMemcpyDeviceToDevice, mapped_stream));
        CHECK(cudaStreamSynchronize(mapped_stream));
        CHECK(cudaSetDevice(0));
        give(socket, &m.step, sizeof m.step);
    }
}

int main(int argc, char **argv) {
    if (argc == 4 && std::strcmp(argv[1], "--peer") == 0) return second(std::atoi(argv[2]), argv[3][0] == '1');
    const bool last_gpu = argc > 1 && std::strcmp(argv[1], "--gpu") == 0;
    if (last_gpu) {
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    program::Options options(argc, argv, 24);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 3;
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    const int socket = pair[0];
    const std::string theirs = std::to_string(pair[1]);
    const char *args[] = {"handles", "--peer", theirs.c_str(), last_gpu ? "1" : "0", nullptr};
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char *const *>(args), environ) != 0) return 3;
    close(pair[1]);

    program::Report report;
    CHECK(cudaFree(nullptr));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t granule = 0;
    DRIVER(cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    const uint64_t bytes = granule;
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    cudaMemPool_t pool, closed;
    CHECK(cudaMemPoolCreate(&pool, &props));
    int fd = -1;
    CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, cudaMemHandleTypePosixFileDescriptor, 0));
    give(socket, &bytes, sizeof bytes);
    give_descriptor(socket, fd);
    close(fd);
    // A pool that was not made to be shared.
    props.handleTypes = cudaMemHandleTypeNone;
    CHECK(cudaMemPoolCreate(&closed, &props));
    report.expect_value("a pool of one's own", cudaMemPoolExportToShareableHandle(&fd, closed, cudaMemHandleTypePosixFileDescriptor, 0) == cudaSuccess, 0);
    (void)cudaGetLastError();

    std::vector<uint32_t> host(N), want(N), pool_want(N);
    for (int i = 0; i < N; i++) want[i] = static_cast<uint32_t>(program::mix(i)), pool_want[i] = want[i] + 1;
    Mapped mapped, before;
    uint32_t *pooled = nullptr, *pooled_before = nullptr;
    for (long step = 0; step < options.steps; step++) {
        Message m = {1, step % RENEW == 0, static_cast<uint32_t>(step), {}};
        if (m.fresh) {
            // The old memory stays until the other process has given it back.
            before = mapped, pooled_before = pooled;
            CUmemGenericAllocationHandle handle;
            DRIVER(cuMemCreate, &handle, bytes, &prop, 0);
            DRIVER(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
            mapped = Mapped();
            mapped.map(handle, bytes);
            // Large and small ones in turns.
            CHECK(cudaMallocFromPoolAsync(&pooled, step / RENEW % 2 == 0 ? BYTES : 40 << 20, pool, stream));
            if (pooled_before == nullptr) {
                CHECK(cudaMemcpyAsync(mapped.words(), want.data(), BYTES, cudaMemcpyHostToDevice, stream));
                CHECK(cudaMemcpyAsync(pooled, pool_want.data(), BYTES, cudaMemcpyHostToDevice, stream));
            } else {
                CHECK(cudaMemcpyAsync(mapped.words(), before.words(), BYTES, cudaMemcpyDeviceToDevice, stream));
                CHECK(cudaMemcpyAsync(pooled, pooled_before, BYTES, cudaMemcpyDeviceToDevice, stream));
            }
            CHECK(cudaMemPoolExportPointer(&m.pointer, pooled));
        }
        add<<<N / BLOCK, BLOCK, 0, stream>>>(mapped.words(), m.step * 2);
        add<<<N / BLOCK, BLOCK, 0, stream>>>(pooled, m.step * 2);
        CHECK_LAUNCH();
        CHECK(cudaStreamSynchronize(stream));
        give(socket, &m, sizeof m);
        if (m.fresh) {
            give_descriptor(socket, fd);
            close(fd);
        }
        uint32_t answer = 0;
        take(socket, &answer, sizeof answer);
        if (answer != m.step) return 4;
        before.unmap();
        if (pooled_before != nullptr) CHECK(cudaFreeAsync(pooled_before, stream));
        pooled_before = nullptr;
        options.pace();
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < N; i++) want[i] = want[i] * 1664525u + m.step * 2 + half + i;
            for (int i = 0; i < N; i++) pool_want[i] = pool_want[i] * 1664525u + m.step * 2 + half + i;
        }
    }
    CHECK(cudaStreamSynchronize(stream));
    if (pooled != nullptr) {
        report.expect_device("mapped", mapped.words(), want.data(), BYTES);
        report.expect_device("pooled", pooled, pool_want.data(), BYTES);
        report.expect_device("copied", mapped.words() + N, pool_want.data(), BYTES);
        report.allocation("mapped", mapped.words(), 2 * BYTES);
        report.allocation("pooled", pooled, BYTES);
    }
    Message end = {};
    give(socket, &end, sizeof end);
    int status = 0;
    waitpid(child, &status, 0);
    report.expect_value("the other process's end", static_cast<uint64_t>(status), 0);
    // Nobody has it any more: the program can be moved again.
    if (const char *go = std::getenv("HANDLES_GO")) {
        std::fprintf(stderr, "alone\n");
        while (access(go, F_OK) != 0) usleep(10000);
        add<<<N / BLOCK, BLOCK, 0, stream>>>(mapped.words(), 1);
        add<<<N / BLOCK, BLOCK, 0, stream>>>(pooled, 1);
        CHECK_LAUNCH();
        for (int i = 0; i < N; i++) want[i] = want[i] * 1664525u + 1 + i, pool_want[i] = pool_want[i] * 1664525u + 1 + i;
        CHECK(cudaStreamSynchronize(stream));
        report.expect_device("mapped alone", mapped.words(), want.data(), BYTES);
        report.expect_device("pooled alone", pooled, pool_want.data(), BYTES);
    }
    mapped.unmap();
    if (pooled != nullptr) CHECK(cudaFreeAsync(pooled, stream));
    CHECK(cudaMemPoolDestroy(pool));
    CHECK(cudaMemPoolDestroy(closed));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
