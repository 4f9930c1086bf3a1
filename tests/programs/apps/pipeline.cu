// A stream of data through two pinned buffers: while one is copied in, worked on and copied out, the host prepares the other; results are
// taken over by host functions in the stream.
#include "app.cuh"

constexpr int BUFFERS = 2;

__global__ void transform(const unsigned *in, unsigned *out, size_t count, unsigned key) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = (in[i] ^ key) * 2654435761u + in[(i + 1) % count];
}

struct Taken {
    const unsigned *from;
    size_t count;
    uint64_t *sum;
};

// Adds some of the words that have come back.
static void take(void *argument) {
    const Taken &t = *static_cast<Taken *>(argument);
    for (size_t i = 0; i < t.count; i += 61) *t.sum += t.from[i];
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const size_t count = app.pick<size_t>(24 << 10, 8 << 20), bytes = count * 4, step = app.pick<size_t>(7, 127);
    const int chunks = app.pick(48, 400);
    unsigned *in[BUFFERS], *out[BUFFERS], *device_in[BUFFERS], *device_out[BUFFERS];
    cudaStream_t streams[BUFFERS];
    cudaEvent_t done[BUFFERS];
    uint64_t sums[BUFFERS] = {}, want[BUFFERS] = {};
    Taken taken[BUFFERS];
    for (int b = 0; b < BUFFERS; b++) {
        CHECK(cudaHostAlloc(&in[b], bytes, b == 0 ? cudaHostAllocDefault : cudaHostAllocWriteCombined));
        CHECK(cudaMallocHost(&out[b], bytes));
        device_in[b] = app::device_array<unsigned>(count), device_out[b] = app::device_array<unsigned>(count);
        CHECK(cudaStreamCreateWithFlags(&streams[b], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done[b], cudaEventDisableTiming | cudaEventBlockingSync));
        std::memset(out[b], 0, bytes);
        for (size_t i = 0; i < count; i++) in[b][i] = static_cast<unsigned>(app::mix(i + b));
        taken[b] = {out[b], count, &sums[b]};
    }
    // What the host has put into the buffers; write-combined memory is slow to read.
    std::vector<unsigned> model[BUFFERS];
    for (int b = 0; b < BUFFERS; b++) {
        for (size_t i = 0; i < count; i++) model[b].push_back(static_cast<unsigned>(app::mix(i + b)));
    }
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int b = chunk % BUFFERS;
        if (chunk >= BUFFERS) CHECK(cudaEventSynchronize(done[b]));
        for (size_t i = chunk % step; i < count; i += step) in[b][i] = model[b][i] = model[b][i] * 5 + chunk;
        CHECK(cudaMemcpyAsync(device_in[b], in[b], bytes, cudaMemcpyHostToDevice, streams[b]));
        transform<<<std::min(app::blocks(count, 256), 1024u), 256, 0, streams[b]>>>(device_in[b], device_out[b], count, chunk);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(out[b], device_out[b], bytes, cudaMemcpyDeviceToHost, streams[b]));
        CHECK(cudaLaunchHostFunc(streams[b], take, &taken[b]));
        CHECK(cudaEventRecord(done[b], streams[b]));
        for (size_t i = 0; i < count; i += 61) want[b] += (model[b][i] ^ chunk) * 2654435761u + model[b][(i + 1) % count];
        app.step();
    }
    for (int b = 0; b < BUFFERS; b++) {
        CHECK(cudaStreamSynchronize(streams[b]));
        app.expect(sums[b] == want[b], "what the host functions have taken over");
        app.host(out[b], bytes);
        app.host(in[b], bytes);
        app.device(device_in[b], bytes);
        app.device(device_out[b], bytes);
        CHECK(cudaEventDestroy(done[b]));
        CHECK(cudaStreamDestroy(streams[b]));
        CHECK(cudaFree(device_in[b]));
        CHECK(cudaFree(device_out[b]));
        CHECK(cudaFreeHost(in[b]));
        CHECK(cudaFreeHost(out[b]));
    }
    return app.finish();
}
