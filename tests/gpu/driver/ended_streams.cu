// Whether work of a stream that was destroyed before its end still orders the legacy default stream, as it did before: natively.
// Built with nvcc alone.
#include "check.cuh"

#include <chrono>
#include <cstdio>
#include <thread>

__global__ void spin(volatile unsigned *flag) {
    while (*flag == 0) {}
}

__global__ void note(unsigned *to) { *to = 1; }

int main() {
    for (unsigned flags : {cudaStreamDefault, cudaStreamNonBlocking}) {
        for (bool destroys : {false, true}) {
            unsigned *flag, *noted;
            CHECK(cudaHostAlloc(&flag, 4, cudaHostAllocMapped));
            CHECK(cudaHostAlloc(&noted, 8, cudaHostAllocMapped));
            *flag = noted[0] = noted[1] = 0;
            // All code is there before a kernel spins.
            note<<<1, 1>>>(noted);
            cudaStream_t held, other;
            CHECK(cudaStreamCreateWithFlags(&held, flags));
            CHECK(cudaStreamCreateWithFlags(&other, cudaStreamDefault));
            CHECK(cudaDeviceSynchronize());
            noted[0] = 0;
            spin<<<1, 1, 0, held>>>(flag);
            CHECK(cudaGetLastError());
            if (destroys) CHECK(cudaStreamDestroy(held));
            const char *legacy = cudaStreamQuery(0) == cudaErrorNotReady ? "busy" : "idle";
            note<<<1, 1>>>(noted);
            note<<<1, 1, 0, other>>>(noted + 1);
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            volatile unsigned *seen = noted;
            std::printf("%s, %s: the legacy stream is %s; its kernel %s, that of another blocking stream behind it %s\n",
                        flags == cudaStreamDefault ? "blocking" : "non-blocking", destroys ? "destroyed" : "alive", legacy,
                        seen[0] ? "has run" : "waits", seen[1] ? "has run" : "waits");
            *flag = 1;
            CHECK(cudaDeviceSynchronize());
            if (!destroys) CHECK(cudaStreamDestroy(held));
            CHECK(cudaStreamDestroy(other));
        }
    }
}
