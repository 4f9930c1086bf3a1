// A program that waits for itself, in one of three ways, until a file appears; then it goes on working for a while.
//
//   stuck lock  FILE   a host function needs a lock that a thread which makes CUDA calls holds
//   stuck spin  FILE   a kernel spins until another one, which is launched later, has run
//   stuck value FILE   a stream waits for a word of memory that the host writes later
//
// Until the file is there the GPU cannot come to rest, so a move must be refused without harm; after that moves work.
#include "program.cuh"

#include <cuda.h>

#include <atomic>
#include <mutex>

constexpr int N = 4096;
constexpr int ROUNDS = 400;

__global__ void advance(uint64_t *state) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    state[i] = program::mix(state[i]);
}

__global__ void spin(volatile unsigned *flag) {
    while (*flag == 0) {
    }
}

__global__ void raise(volatile unsigned *flag) { *flag = 1; }

static bool released(const char *file) { return access(file, F_OK) == 0; }

static std::mutex held;
static std::atomic<int> entered;

static void CUDART_CB needs_lock(void *data) {
    entered++;
    std::lock_guard<std::mutex> guard(held);
    ++*static_cast<long *>(data);
}

static void say_stuck() {
    std::fprintf(stderr, "stuck\n");
    std::fflush(stderr);
}

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    const std::string way = argv[1];
    const char *file = argv[2];
    cudaStream_t first, second;
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    uint64_t *state, *twin;
    unsigned *flag;
    CHECK(cudaMalloc(&state, N * sizeof(uint64_t)));
    CHECK(cudaMalloc(&twin, N * sizeof(uint64_t)));
    CHECK(cudaMalloc(&flag, sizeof(unsigned)));
    CHECK(cudaMemset(state, 0, N * sizeof(uint64_t)));
    CHECK(cudaMemset(twin, 0, N * sizeof(uint64_t)));
    CHECK(cudaMemset(flag, 0, sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());
    // All code is on the device before anything waits: the first launch of a kernel may wait for running ones.
    advance<<<N / 128, 128, 0, first>>>(state);
    advance<<<N / 128, 128, 0, second>>>(twin);
    raise<<<1, 1, 0, first>>>(flag);
    spin<<<1, 1, 0, first>>>(flag);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemset(flag, 0, sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());
    long calls = 0;
    uint64_t *pinned;
    CHECK(cudaMallocHost(&pinned, N * sizeof(uint64_t)));

    if (way == "lock") {
        std::unique_lock<std::mutex> guard(held);
        CHECK(cudaLaunchHostFunc(first, needs_lock, &calls));
        advance<<<N / 128, 128, 0, first>>>(state);
        while (entered == 0) usleep(1000);
        say_stuck();
        // With the lock, in and out of CUDA calls: one that stands at a closed gate holds it.
        while (!released(file)) {
            if (cudaStreamQuery(second) != cudaSuccess) CHECK(cudaStreamSynchronize(second));
            usleep(500);
        }
    } else if (way == "spin") {
        spin<<<1, 1, 0, first>>>(flag);
        advance<<<N / 128, 128, 0, first>>>(state);
        CHECK_LAUNCH();
        say_stuck();
        while (!released(file)) usleep(1000);
        raise<<<1, 1, 0, second>>>(flag);
    } else if (way == "value") {
        typedef CUresult (*WaitValue)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
        WaitValue wait_value = nullptr;
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", reinterpret_cast<void **>(&wait_value), 12000,
                                               cudaEnableDefault, &found));
        for (int i = 0; i < N; i++) pinned[i] = 1;
        if (wait_value(first, reinterpret_cast<CUdeviceptr>(flag), 1, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) return 2;
        // The copy cannot be made before the value is there, so what the host writes until then is what it copies.
        CHECK(cudaMemcpyAsync(state, pinned, N * sizeof(uint64_t), cudaMemcpyHostToDevice, first));
        advance<<<N / 128, 128, 0, first>>>(state);
        CHECK_LAUNCH();
        say_stuck();
        while (!released(file)) usleep(1000);
        for (int i = 0; i < N; i++) pinned[i] = program::mix(0);
        unsigned one = 1;
        CHECK(cudaMemcpyAsync(flag, &one, sizeof one, cudaMemcpyHostToDevice, second));
    } else {
        return 64;
    }
    CHECK_LAUNCH();
    // Now nothing is stuck for long, but host functions still need the lock from time to time.
    for (int round = 0; round < ROUNDS; round++) {
        {
            std::lock_guard<std::mutex> guard(held);
            advance<<<N / 128, 128, 0, first>>>(state);
            advance<<<N / 128, 128, 0, second>>>(twin);
            CHECK_LAUNCH();
            if (round % 10 == 0) CHECK(cudaLaunchHostFunc(first, needs_lock, &calls));
            usleep(5000);
        }
        // A mutex is not fair: whoever takes it again at once starves the functions.
        usleep(5000);
    }
    CHECK(cudaDeviceSynchronize());
    std::vector<uint64_t> want(N);
    program::Report report;
    for (int i = 0; i < ROUNDS + 1; i++) want[0] = program::mix(want[0]);
    std::fill(want.begin(), want.end(), want[0]);
    report.expect_device("twin", twin, want.data(), N * sizeof(uint64_t));
    std::fill(want.begin(), want.end(), program::mix(want[0]));
    report.expect_device("state", state, want.data(), N * sizeof(uint64_t));
    report.expect_value("calls", calls, ROUNDS / 10 + (way == "lock"));
    report.allocation("state", state, N * sizeof(uint64_t));
    report.allocation("twin", twin, N * sizeof(uint64_t));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
    CHECK(cudaFree(state));
    CHECK(cudaFree(twin));
    CHECK(cudaFree(flag));
    return report.finish();
}
