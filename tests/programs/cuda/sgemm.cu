// cuBLAS sgemm in a loop: a closed library with its own copy of the runtime. Hardware only, for
// its kernels are machine code. The numbers are small integers, for which single precision is
// exact in any order of summation, so the result does not depend on which kernel cuBLAS picks.
#include "program.cuh"

#include <cublas_v2.h>

constexpr int N = 512;
constexpr int CHAINS = 2;
constexpr size_t BYTES = sizeof(float) * N * N;

#define CHECK_CUBLAS(call)                                                                       \
    do {                                                                                         \
        cublasStatus_t status_ = (call);                                                         \
        if (status_ != CUBLAS_STATUS_SUCCESS) {                                                  \
            std::fprintf(stderr, "%s:%d: %s: cuBLAS status %d\n", __FILE__, __LINE__, #call,     \
                         static_cast<int>(status_));                                             \
            std::_Exit(2);                                                                       \
        }                                                                                        \
    } while (0)

__device__ unsigned int reductions;

// Keeps every element between -8 and 8, whole.
__global__ void reduce(const float *c, float *a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int whole = static_cast<int>(c[i]);
    a[i] = static_cast<float>(((whole % 17) + 17) % 17 - 8);
    if (i == 0) atomicAdd(&reductions, 1u);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 64);
    std::vector<float> a(N * N), b(N * N), c(N * N);
    for (int i = 0; i < N * N; i++) {
        a[i] = static_cast<int>(program::mix(i) % 17) - 8;
        b[i] = static_cast<int>(program::mix(i + N * N) % 5) - 2;
    }
    float *da[CHAINS], *dc[CHAINS], *db, *before;
    cudaStream_t streams[CHAINS];
    cublasHandle_t handles[CHAINS];
    CHECK(cudaMalloc(&db, BYTES));
    CHECK(cudaMalloc(&before, BYTES)); // the input of the last step, for the host to check
    CHECK(cudaMemcpy(db, b.data(), BYTES, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(before, 0, BYTES));
    for (int i = 0; i < CHAINS; i++) {
        CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        CHECK_CUBLAS(cublasCreate(&handles[i]));
        CHECK_CUBLAS(cublasSetStream(handles[i], streams[i]));
        CHECK(cudaMalloc(&da[i], BYTES));
        CHECK(cudaMalloc(&dc[i], BYTES));
        CHECK(cudaMemcpy(da[i], a.data(), BYTES, cudaMemcpyHostToDevice));
        CHECK(cudaMemset(dc[i], 0, BYTES));
    }
    CHECK(cudaDeviceSynchronize());

    program::Window windows[CHAINS];
    const float one = 1.0f, zero = 0.0f;
    for (long step = 0; step < options.steps; step++) {
        for (int i = 0; i < CHAINS; i++) {
            if (i == 0) CHECK(cudaMemcpyAsync(before, da[0], BYTES, cudaMemcpyDeviceToDevice, streams[0]));
            // Chain 1 multiplies from the other side, so the two part at once.
            const float *left = i == 0 ? da[i] : db, *right = i == 0 ? db : da[i];
            CHECK_CUBLAS(cublasSgemm(handles[i], CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, left, N, right, N, &zero, dc[i], N));
            reduce<<<N * N / 256, 256, 0, streams[i]>>>(dc[i], da[i]);
            CHECK_LAUNCH();
            windows[i].round_done(streams[i]);
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());

    program::Report report;
    if (options.steps > 0) {
        // One column of the last product of chain 0 (cuBLAS stores by columns).
        CHECK(cudaMemcpy(a.data(), before, BYTES, cudaMemcpyDeviceToHost));
        for (int column : {0, 77, N - 1}) {
            for (int row = 0; row < N; row++) {
                float sum = 0;
                for (int k = 0; k < N; k++) sum += a[k * N + row] * b[column * N + k];
                c[row] = sum;
            }
            report.expect_device("c0 column", dc[0] + column * N, c.data(), sizeof(float) * N);
        }
    }
    unsigned int count = 0;
    CHECK(cudaMemcpyFromSymbol(&count, reductions, sizeof count));
    report.expect_value("reductions", count, static_cast<unsigned>(options.steps * CHAINS));
    report.allocation("b", db, BYTES);
    for (int i = 0; i < CHAINS; i++) {
        report.allocation(("a" + std::to_string(i)).c_str(), da[i], BYTES);
        report.allocation(("c" + std::to_string(i)).c_str(), dc[i], BYTES);
        windows[i].destroy();
        CHECK_CUBLAS(cublasDestroy(handles[i]));
        CHECK(cudaStreamDestroy(streams[i]));
        CHECK(cudaFree(da[i]));
        CHECK(cudaFree(dc[i]));
    }
    CHECK(cudaFree(db));
    CHECK(cudaFree(before));
    report.global("reductions", reductions);
    return report.finish();
}
