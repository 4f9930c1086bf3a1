// What each call costs in a loop of streams that live for one small job (tests/apps/streams.cu): microseconds, mean.
// Built with nvcc alone; run natively and with `mrcuda run`.
#include "timed.cuh"

constexpr int ROUNDS = 3000, WARM_UP = 50;
constexpr size_t BYTES = 4096;

__global__ void work(const unsigned *in, unsigned *out, unsigned salt) { out[threadIdx.x] = in[threadIdx.x] * 3 + salt; }

int main() {
    unsigned *in, *out, *from, *to, pageable[BYTES / 4] = {};
    CHECK(cudaMalloc(&in, BYTES));
    CHECK(cudaMalloc(&out, BYTES));
    CHECK(cudaMallocHost(&from, BYTES));
    CHECK(cudaMallocHost(&to, BYTES));
    for (int round = 0; round < ROUNDS; round++) {
        if (round == WARM_UP) times.clear();
        cudaStream_t s;
        cudaEvent_t done;
        timed("create the stream", [&] { return cudaStreamCreateWithFlags(&s, round % 2 ? cudaStreamNonBlocking : cudaStreamDefault); });
        timed("create the event", [&] { return cudaEventCreateWithFlags(&done, cudaEventDisableTiming); });
        from[0] = round;
        if (round % 4 == 0) timed("copy in, pageable", [&] { return cudaMemcpyAsync(in, pageable, BYTES, cudaMemcpyHostToDevice, s); });
        else timed("copy in, pinned", [&] { return cudaMemcpyAsync(in, from, BYTES, cudaMemcpyHostToDevice, s); });
        timed("launch", [&] {
            work<<<1, BYTES / 4, 0, s>>>(in, out, round);
            return cudaGetLastError();
        });
        timed("copy out, pinned", [&] { return cudaMemcpyAsync(to, out, BYTES, cudaMemcpyDeviceToHost, s); });
        timed("record the event", [&] { return cudaEventRecord(done, s); });
        if (round % 8 == 7) {
            timed("destroy the stream, busy", [&] { return cudaStreamDestroy(s); });
            timed("wait for the event", [&] { return cudaEventSynchronize(done); });
        } else {
            timed("wait for the stream", [&] { return cudaStreamSynchronize(s); });
            timed("query the event", [&] { return cudaEventQuery(done); });
            timed("destroy the stream", [&] { return cudaStreamDestroy(s); });
        }
        timed("destroy the event", [&] { return cudaEventDestroy(done); });
    }
    print_times(ROUNDS - WARM_UP);
}
