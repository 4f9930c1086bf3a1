// Memory of the program's own, registered, copied in and out in four streams, while the host changes a little of it; registered anew
// now and then.
#include "app.cuh"

#include <sys/mman.h>

constexpr int STREAMS = 4;

__global__ void advance(unsigned *words, size_t count, unsigned round) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        words[i] = words[i] * 1664525u + round;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const size_t count = app.pick<size_t>(64 << 10, 16 << 20), part = count / STREAMS, bytes = count * 4;
    const int rounds = app.pick(24, 120), lifetime = app.pick(8, 40);
    void *mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 2;
    unsigned *host = static_cast<unsigned *>(mapped);
    unsigned *device = app::device_array<unsigned>(count);
    // What the host expects of some words.
    const size_t watched = 4093;
    std::vector<unsigned> model;
    for (size_t i = 0; i < count; i++) host[i] = static_cast<unsigned>(app::mix(i));
    for (size_t i = 0; i < count; i += watched) model.push_back(host[i]);
    cudaStream_t streams[STREAMS];
    for (cudaStream_t &s : streams) CHECK(cudaStreamCreate(&s));

    for (int round = 0; round < rounds; round++) {
        if (round % lifetime == 0) CHECK(cudaHostRegister(host, bytes, cudaHostRegisterDefault));
        for (int s = 0; s < STREAMS; s++) {
            const size_t at = s * part;
            CHECK(cudaMemcpyAsync(device + at, host + at, part * 4, cudaMemcpyHostToDevice, streams[s]));
            advance<<<std::min(app::blocks(part, 256), 512u), 256, 0, streams[s]>>>(device + at, part, round);
            CHECK_LAUNCH();
            CHECK(cudaMemcpyAsync(host + at, device + at, part * 4, cudaMemcpyDeviceToHost, streams[s]));
        }
        for (cudaStream_t s : streams) CHECK(cudaStreamSynchronize(s));
        for (size_t i = 0; i < count; i += watched) {
            unsigned &want = model[i / watched];
            want = want * 1664525u + round;
            app.expect(host[i] == want, "a word that came back");
            if (i / watched % 16 == size_t(round) % 16) want = host[i] = static_cast<unsigned>(app::mix(want));
        }
        if (round % lifetime == lifetime - 1) CHECK(cudaHostUnregister(host));
        app.step();
    }
    app.host(host, bytes);
    app.device(device, bytes);
    for (cudaStream_t s : streams) CHECK(cudaStreamDestroy(s));
    CHECK(cudaFree(device));
    munmap(mapped, bytes);
    return app.finish();
}
