// Host memory ends with the context in which it was made while a copy of another GPU to it is on its way. What the program makes of the
// memory then is its own: the copy's bytes are not written there.
#include "program.cuh"
#include "driver.cuh"

#include <atomic>
#include <thread>

constexpr size_t BYTES = 8 << 20;

// Holds its stream back.
static void CUDART_CB wait_at(void *open) {
    while (!*static_cast<std::atomic<bool> *>(open)) usleep(50);
}

int main() {
    int gpus;
    CHECK(cudaGetDeviceCount(&gpus));
    unsigned char *device, *pinned, *fresh;
    cudaStream_t stream;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMallocHost(&pinned, BYTES));
    CHECK(cudaSetDevice(gpus - 1));
    CHECK(cudaMalloc(&device, BYTES));
    CHECK(cudaMemset(device, 3, BYTES));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());

    std::atomic<bool> open{false};
    CHECK(cudaLaunchHostFunc(stream, wait_at, &open));
    CHECK(cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, stream));
    std::thread opens([&open] {
        usleep(300000);
        open = true;
    });
    DRIVER(cuDevicePrimaryCtxReset, 0);
    CHECK(cudaMallocHost(&fresh, BYTES));
    std::memset(fresh, 9, BYTES);
    CHECK(cudaStreamSynchronize(stream));
    opens.join();

    program::Report report;
    std::vector<unsigned char> want(BYTES, 9);
    report.expect("memory made anew", fresh, want.data(), want.size());
    return report.finish();
}
