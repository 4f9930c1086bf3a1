// Two processes with one buffer: the second, started by the first, opens the buffer by its handle and both work on it in turns, told by
// bytes in pipes; the second waits for an event of the first. Every few rounds the first makes a new buffer. `ipc --peer IN OUT` is the second process. `--gpu` lets the second use
// the last GPU of those that it sees.
#include "program.cuh"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

constexpr int N = 4096;
constexpr int BLOCK = 128;
constexpr long RENEW = 16;

__global__ void add(uint32_t *x, uint32_t what) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    x[i] = x[i] * 1664525u + what + i;
}

struct Message {
    uint32_t more, fresh, step;
    cudaIpcMemHandle_t handle;
    cudaIpcEventHandle_t event;
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

static int second(int in, int out, bool last_gpu) {
    if (last_gpu) {
        int count = 0;
        CHECK(cudaGetDeviceCount(&count));
        CHECK(cudaSetDevice(count - 1));
    }
    uint32_t *x = nullptr;
    cudaEvent_t theirs = nullptr;
    for (;;) {
        Message m;
        take(in, &m, sizeof m);
        if (m.fresh || !m.more) {
            if (x != nullptr) CHECK(cudaIpcCloseMemHandle(x));
            x = nullptr;
        }
        if (!m.more) {
            if (theirs != nullptr) CHECK(cudaEventDestroy(theirs));
            return 0;
        }
        if (theirs == nullptr) CHECK(cudaIpcOpenEventHandle(&theirs, m.event));
        // What the first process has begun need not have ended.
        CHECK(cudaStreamWaitEvent(0, theirs, 0));
        if (m.fresh) {
            CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&x), m.handle, cudaIpcMemLazyEnablePeerAccess));
            void *again = nullptr;
            CHECK(cudaIpcOpenMemHandle(&again, m.handle, cudaIpcMemLazyEnablePeerAccess));
            if (again != x) std::_Exit(4);
            CHECK(cudaIpcCloseMemHandle(again));
        }
        add<<<N / BLOCK, BLOCK>>>(x, m.step * 2 + 1);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        give(out, &m.step, sizeof m.step);
    }
}

int main(int argc, char **argv) {
    if (argc == 5 && std::strcmp(argv[1], "--peer") == 0) return second(std::atoi(argv[2]), std::atoi(argv[3]), argv[4][0] == '1');
    const bool last_gpu = argc > 1 && std::strcmp(argv[1], "--gpu") == 0;
    if (last_gpu) {
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    program::Options options(argc, argv, 48);
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) return 3;
    fcntl(to[1], F_SETFD, FD_CLOEXEC);
    fcntl(from[0], F_SETFD, FD_CLOEXEC);
    const std::string in = std::to_string(to[0]), out = std::to_string(from[1]);
    const char *args[] = {"ipc", "--peer", in.c_str(), out.c_str(), last_gpu ? "1" : "0", nullptr};
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char *const *>(args), environ) != 0) return 3;
    close(to[0]);
    close(from[1]);

    std::vector<uint32_t> host(N), want(N);
    for (int i = 0; i < N; i++) want[i] = static_cast<uint32_t>(program::mix(i));
    uint32_t *x = nullptr, *before = nullptr;
    cudaEvent_t begun;
    cudaIpcEventHandle_t event;
    CHECK(cudaEventCreateWithFlags(&begun, cudaEventInterprocess | cudaEventDisableTiming));
    CHECK(cudaIpcGetEventHandle(&event, begun));
    program::Report report;
    for (long step = 0; step < options.steps; step++) {
        Message m = {1, step % RENEW == 0, static_cast<uint32_t>(step), {}, event};
        if (m.fresh) {
            // The old one stays until the other process has closed it. Small and large ones in turns.
            uint32_t *fresh;
            CHECK(cudaMalloc(&fresh, step / RENEW % 2 == 0 ? sizeof(uint32_t) * N : 3 << 20));
            if (x == nullptr) {
                CHECK(cudaMemcpy(fresh, want.data(), sizeof(uint32_t) * N, cudaMemcpyHostToDevice));
            } else {
                CHECK(cudaMemcpy(fresh, x, sizeof(uint32_t) * N, cudaMemcpyDeviceToDevice));
            }
            before = x;
            x = fresh;
            CHECK(cudaIpcGetMemHandle(&m.handle, x));
        }
        add<<<N / BLOCK, BLOCK>>>(x, m.step * 2);
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(begun, 0));
        give(to[1], &m, sizeof m);
        uint32_t answer = 0;
        take(from[0], &answer, sizeof answer);
        if (answer != m.step) return 4;
        CHECK(cudaEventQuery(begun));
        if (before != nullptr) CHECK(cudaFree(before));
        before = nullptr;
        options.pace();
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < N; i++) want[i] = want[i] * 1664525u + m.step * 2 + half + i;
        }
    }
    // A handle is of no use in its own process.
    cudaIpcMemHandle_t own;
    void *opened = nullptr;
    if (x != nullptr) {
        CHECK(cudaIpcGetMemHandle(&own, x));
        report.expect_value("opened in its own process", cudaIpcOpenMemHandle(&opened, own, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess, 0);
        (void)cudaGetLastError();
        report.expect_device("shared", x, want.data(), sizeof(uint32_t) * N);
        report.allocation("shared", x, sizeof(uint32_t) * N);
    }
    Message end = {};
    give(to[1], &end, sizeof end);
    int status = 0;
    waitpid(child, &status, 0);
    report.expect_value("the other process's end", static_cast<uint64_t>(status), 0);
    CHECK(cudaEventDestroy(begun));
    if (x != nullptr) CHECK(cudaFree(x));
    return report.finish();
}
