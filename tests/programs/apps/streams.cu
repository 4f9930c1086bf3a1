// Streams that live for one small job: made, a copy in, a kernel, a copy out, destroyed; some before their work is done.
#include "app.cuh"

constexpr int WORDS = 512;
constexpr int SLOTS = 32;

__global__ void work(const uint64_t *in, uint64_t *out, uint64_t round) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    out[i] = app::mix(in[i] + round) + in[(i + 1) % WORDS];
}

static uint64_t input(int round, int i) { return app::mix(uint64_t(round) * WORDS + i); }

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const int rounds = app.pick(400, 12000);
    uint64_t *pinned_in, *pinned_out;
    CHECK(cudaMallocHost(&pinned_in, SLOTS * WORDS * 8));
    CHECK(cudaMallocHost(&pinned_out, SLOTS * WORDS * 8));
    uint64_t *in = app::device_array<uint64_t>(SLOTS * WORDS), *out = app::device_array<uint64_t>(SLOTS * WORDS);
    CHECK(cudaMemset(out, 0, SLOTS * WORDS * 8));
    CHECK(cudaDeviceSynchronize());
    int low, high;
    CHECK(cudaDeviceGetStreamPriorityRange(&low, &high));
    std::vector<uint64_t> small(WORDS);

    auto check = [&](int round) {
        uint64_t *got = pinned_out + round % SLOTS * WORDS;
        for (int i = 0; i < WORDS; i += 37)
            app.expect(got[i] == app::mix(input(round, i) + round) + input(round, (i + 1) % WORDS), "what a stream gave back");
    };
    for (int round = 0; round < rounds; round++) {
        const int at = round % SLOTS * WORDS;
        cudaStream_t stream;
        cudaEvent_t done;
        if (round % 3 == 0) CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, round % 2 ? low : high));
        else CHECK(cudaStreamCreateWithFlags(&stream, round % 3 == 1 ? cudaStreamNonBlocking : cudaStreamDefault));
        CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
        for (int i = 0; i < WORDS; i++) pinned_in[at + i] = input(round, i);
        // Every fourth job copies from memory of the program's own, which the copy has read when it returns.
        if (round % 4 == 0) {
            std::copy(pinned_in + at, pinned_in + at + WORDS, small.begin());
            CHECK(cudaMemcpyAsync(in + at, small.data(), WORDS * 8, cudaMemcpyHostToDevice, stream));
            std::fill(small.begin(), small.end(), ~0ull);
        } else {
            CHECK(cudaMemcpyAsync(in + at, pinned_in + at, WORDS * 8, cudaMemcpyHostToDevice, stream));
        }
        work<<<WORDS / 128, 128, 0, stream>>>(in + at, out + at, round);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(pinned_out + at, out + at, WORDS * 8, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaEventRecord(done, stream));
        if (round % 8 == 7) {
            // Its work goes on without it.
            CHECK(cudaStreamDestroy(stream));
            CHECK(cudaEventSynchronize(done));
        } else {
            CHECK(cudaStreamSynchronize(stream));
            app.expect(cudaEventQuery(done) == cudaSuccess, "an event behind which a stream has waited");
            CHECK(cudaStreamDestroy(stream));
        }
        CHECK(cudaEventDestroy(done));
        check(round);
        if (round % 4 == 3) app.step();
    }
    app.host(pinned_in, SLOTS * WORDS * 8);
    app.host(pinned_out, SLOTS * WORDS * 8);
    app.device(in, SLOTS * WORDS * 8);
    app.device(out, SLOTS * WORDS * 8);
    CHECK(cudaFreeHost(pinned_in));
    CHECK(cudaFreeHost(pinned_out));
    CHECK(cudaFree(in));
    CHECK(cudaFree(out));
    return app.finish();
}
