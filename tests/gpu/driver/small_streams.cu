// What each call costs in a loop of streams that live for one small job (tests/programs/apps/streams.cu): microseconds, mean; and how the creation of
// a stream develops. Built with nvcc alone; run natively and with `mrcuda run`. Arguments: `marked` records an event of a pool in each
// stream that is destroyed before its work is done, as an executor does; `idle` destroys none of these.
#include "timed.cuh"

#include <cstring>
#include <deque>
#include <vector>

constexpr int ROUNDS = 12000, WARM_UP = 50, WINDOW = 1000;
constexpr size_t BYTES = 4096;

__global__ void work(const unsigned *in, unsigned *out, unsigned salt) { out[threadIdx.x] = in[threadIdx.x] * 3 + salt; }

// Events that are recorded in streams about to be destroyed, and used again when they have happened.
struct Marks {
    std::deque<cudaEvent_t> used;
    std::vector<cudaEvent_t> spare;

    void record(cudaStream_t stream) {
        cudaEvent_t event;
        if (spare.empty()) {
            CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        } else {
            event = spare.back();
            spare.pop_back();
        }
        CHECK(cudaEventRecord(event, stream));
        used.push_back(event);
        if (used.size() <= 16) return;
        for (; !used.empty() && cudaEventQuery(used.front()) == cudaSuccess; used.pop_front()) spare.push_back(used.front());
    }
};

int main(int argc, char **argv) {
    const bool marked = argc > 1 && !std::strcmp(argv[1], "marked"), idle = argc > 1 && !std::strcmp(argv[1], "idle");
    Marks marks;
    std::vector<double> windows;
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
        if (round % WINDOW == WINDOW - 1) {
            double sum = times["create the stream"].first;
            static double before = 0;
            windows.push_back((sum - before) / WINDOW);
            before = sum;
        }
        if (round % 8 == 7 && !idle) {
            if (marked) timed("mark the stream", [&] { return marks.record(s), cudaSuccess; });
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
    std::printf("| create the stream, by %d |", WINDOW);
    for (double mean : windows) std::printf(" %.1f", mean);
    std::printf(" |\n");
}
