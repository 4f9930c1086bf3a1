// Host memory that kernels use by its address: mapped pinned buffers read and written, atomics on them, copies between such a
// buffer and the device in the same streams, a flag that a kernel sets and the host looks at without a call, a flag that the host
// sets while a kernel runs, words that streams wait for and write, and registered memory of the program's own where it can be
// mapped (by copies where it cannot: that gives the same).
#include "program.cuh"

#include <cuda.h>

#include <atomic>

constexpr int N = 2048;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint32_t);

// What all rounds count together, in mapped memory.
struct Counts {
    unsigned long long sum;
    unsigned most;
    unsigned rounds;
    unsigned sets;
};

__global__ void step(const uint32_t *in, uint32_t *out, uint32_t *state, Counts *counts, uint32_t round) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    uint32_t v = state[i] * 1664525u + in[i] + round;
    state[i] = v;
    out[i] = v ^ in[i];
    atomicAdd(&counts->sum, static_cast<unsigned long long>(v));
    atomicMax(&counts->most, v >> 8);
    if (i == 0) atomicAdd(&counts->rounds, 1u);
    if (v & 1) atomicOr(&counts->sets, 1u << (i & 31));
}

// Bytes first, then the flag: who sees the flag sees the bytes.
__global__ void tell(const uint32_t *state, uint32_t *board, volatile uint32_t *flag, uint32_t mark) {
    for (int i = threadIdx.x; i < 64; i += blockDim.x) board[i] = state[i] + mark;
    __syncthreads();
    __threadfence_system();
    if (threadIdx.x == 0) *flag = mark;
}

// Waits for the host.
__global__ void obey(volatile uint32_t *order, uint32_t *state, uint32_t mark) {
    while (*order != mark) {
    }
    __threadfence_system();
    state[threadIdx.x] += reinterpret_cast<volatile uint32_t *>(order)[1 + threadIdx.x];
}

__global__ void add(uint32_t *own, const uint32_t *state) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    own[i] += state[i];
}

static uint32_t value(long round, int i) { return static_cast<uint32_t>(program::mix(round * N + i)); }

template <class F> static F entry(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult how;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &how));
    return reinterpret_cast<F>(found);
}

template <class T> static T *mapped(T **host, size_t bytes) {
    CHECK(cudaHostAlloc(reinterpret_cast<void **>(host), bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(*host, 0, bytes);
    T *device;
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void **>(&device), *host, 0));
    return device;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    auto wait_value = entry<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>("cuStreamWaitValue32");
    auto write_value = entry<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>("cuStreamWriteValue32");
    cudaStream_t work, side;
    CHECK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    uint32_t *in, *out, *board, *flag, *order, *words, *state, *copy;
    Counts *counts;
    uint32_t *on_in = mapped(&in, BYTES), *on_out = mapped(&out, BYTES), *on_board = mapped(&board, 256);
    uint32_t *on_flag = mapped(&flag, 64), *on_order = mapped(&order, 4096), *on_words = mapped(&words, 64);
    Counts *on_counts = mapped(&counts, sizeof(Counts));
    CHECK(cudaMalloc(&state, BYTES));
    CHECK(cudaMalloc(&copy, BYTES));
    CHECK(cudaMemset(state, 0, BYTES));
    CHECK(cudaMemset(copy, 0, BYTES));
    CHECK(cudaDeviceSynchronize());
    // All code is on the device before a kernel waits for the host.
    order[0] = 7;
    step<<<0 + N / BLOCK, BLOCK, 0, work>>>(on_in, on_out, copy, on_counts, 0);
    tell<<<1, 64, 0, work>>>(state, on_board, on_flag, 0);
    obey<<<1, 32, 0, work>>>(on_order, copy, 7);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemset(copy, 0, BYTES));
    *counts = Counts();
    order[0] = 0;
    // Memory of the program's own, from the middle of a page.
    std::vector<uint32_t> room(N + 100);
    uint32_t *own = room.data() + 50, *on_own = nullptr;
    CHECK(cudaHostRegister(own, BYTES, cudaHostRegisterMapped | cudaHostRegisterPortable));
    if (cudaHostGetDevicePointer(reinterpret_cast<void **>(&on_own), own, 0) != cudaSuccess) {
        on_own = nullptr;
        cudaGetLastError();
    }

    std::vector<uint32_t> want_state(N), want_out(N), want_own(N), want_copy(N);
    Counts want = {};
    program::Report report;
    for (long round = 0; round < options.steps; round++) {
        uint32_t r = static_cast<uint32_t>(round) + 1;
        for (int i = 0; i < N; i++) in[i] = value(round, i);
        step<<<N / BLOCK, BLOCK, 0, work>>>(on_in, on_out, state, on_counts, r);
        tell<<<1, 64, 0, work>>>(state, on_board, on_flag, r);
        CHECK_LAUNCH();
        for (int i = 0; i < N; i++) {
            want_state[i] = want_state[i] * 1664525u + in[i] + r;
            want_out[i] = want_state[i] ^ in[i];
            want.sum += want_state[i];
            if (want_state[i] >> 8 > want.most) want.most = want_state[i] >> 8;
            if (want_state[i] & 1) want.sets |= 1u << (i & 31);
        }
        want.rounds++;
        // No call is made while the host waits.
        while (*static_cast<volatile uint32_t *>(flag) != r) {
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        for (int i = 0; i < 64; i++) report.expect_value("board", board[i], want_state[i] + r);
        if (round % 4 == 1) {
            // The kernel waits for the host, which takes its time.
            obey<<<1, 32, 0, work>>>(on_order, state, r);
            CHECK_LAUNCH();
            usleep(static_cast<useconds_t>(options.pace_us / 8));
            for (int i = 0; i < 32; i++) order[1 + i] = r * 31 + i;
            std::atomic_thread_fence(std::memory_order_release);
            *static_cast<volatile uint32_t *>(order) = r;
            for (int i = 0; i < 32; i++) want_state[i] += r * 31 + i;
        }
        if (round % 4 == 2) {
            // One stream waits for what another one writes into host memory, and the host for both.
            if (wait_value(side, reinterpret_cast<CUdeviceptr>(on_words), r, CU_STREAM_WAIT_VALUE_EQ) != CUDA_SUCCESS) return 2;
            CHECK(cudaMemcpyAsync(copy, out, BYTES, cudaMemcpyHostToDevice, side));
            if (write_value(side, reinterpret_cast<CUdeviceptr>(on_words + 1), r, 0) != CUDA_SUCCESS) return 2;
            if (write_value(work, reinterpret_cast<CUdeviceptr>(on_words), r, 0) != CUDA_SUCCESS) return 2;
            while (*static_cast<volatile uint32_t *>(words + 1) != r) {
            }
            want_copy = want_out;
        }
        if (round % 4 == 3) {
            if (on_own != nullptr) {
                add<<<N / BLOCK, BLOCK, 0, work>>>(on_own, state);
            } else {
                CHECK(cudaMemcpyAsync(copy, own, BYTES, cudaMemcpyHostToDevice, work));
                add<<<N / BLOCK, BLOCK, 0, work>>>(copy, state);
                CHECK(cudaMemcpyAsync(own, copy, BYTES, cudaMemcpyDeviceToHost, work));
            }
            CHECK_LAUNCH();
            // Out to a mapped buffer and in again from it, without the host.
            CHECK(cudaMemcpyAsync(out, state, BYTES, cudaMemcpyDeviceToHost, work));
            CHECK(cudaMemcpy2DAsync(copy, 512, out, 512, 512, BYTES / 512, cudaMemcpyHostToDevice, work));
            for (int i = 0; i < N; i++) want_own[i] += want_state[i];
            want_out = want_copy = want_state;
        }
        CHECK(cudaStreamSynchronize(work));
        report.expect("out", out, want_out.data(), BYTES);
        report.expect("own", own, want_own.data(), BYTES);
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    report.expect_device("state", state, want_state.data(), BYTES);
    report.expect_device("copy", copy, want_copy.data(), BYTES);
    report.expect_value("sum", counts->sum, want.sum);
    report.expect_value("most", counts->most, want.most);
    report.expect_value("rounds", counts->rounds, want.rounds);
    report.expect_value("sets", counts->sets, want.sets);
    report.allocation("state", state, BYTES);
    report.allocation("copy", copy, BYTES);
    report.line("pinned", "out", out, BYTES);
    report.line("pinned", "counts", counts, sizeof(Counts));
    report.line("pinned", "own", own, BYTES);
    CHECK(cudaHostUnregister(own));
    for (void *p : {in, out, board, flag, order, words}) CHECK(cudaFreeHost(p));
    CHECK(cudaFreeHost(counts));
    CHECK(cudaStreamDestroy(work));
    CHECK(cudaStreamDestroy(side));
    CHECK(cudaFree(state));
    CHECK(cudaFree(copy));
    return report.finish();
}
