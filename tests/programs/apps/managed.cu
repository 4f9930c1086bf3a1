// Managed memory in which processor and GPU take turns, with prefetches and advice.
#include "app.cuh"

// An element from itself and its neighbours in the other array.
__host__ __device__ inline unsigned relaxed(const unsigned *from, size_t count, size_t i, unsigned round) {
    unsigned left = from[i == 0 ? count - 1 : i - 1], right = from[i + 1 == count ? 0 : i + 1];
    return (left >> 1) + (right >> 1) + from[i] * 3 + round;
}

__global__ void relax(const unsigned *from, unsigned *to, size_t count, unsigned round) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = relaxed(from, count, i, round);
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const size_t count = app.pick<size_t>(24 << 10, 12 << 20), bytes = count * 4;
    const int rounds = app.pick(40, 60);
    unsigned *a, *b, *table;
    CHECK(cudaMallocManaged(&a, bytes));
    CHECK(cudaMallocManaged(&b, bytes));
    CHECK(cudaMallocManaged(&table, 4096 * 4));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    int concurrent = 0;
    CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    const cudaMemLocation gpu = {cudaMemLocationTypeDevice, 0}, host = {cudaMemLocationTypeHost, 0};
    if (concurrent) CHECK(cudaMemAdvise(table, 4096 * 4, cudaMemAdviseSetReadMostly, gpu));
    for (size_t i = 0; i < count; i++) a[i] = static_cast<unsigned>(app::mix(i)), b[i] = 0;
    for (int i = 0; i < 4096; i++) table[i] = i;
    const size_t watched = app.pick<size_t>(97, 4001);
    std::vector<unsigned> want;
    for (int round = 0; round < rounds; round++) {
        // The processor's turn: some elements anew, and what it expects of others.
        for (size_t i = round; i < count; i += 1009) a[i] += round;
        want.clear();
        for (size_t i = 0; i < count; i += watched) want.push_back(relaxed(a, count, i, round));
        // The GPU's turn, with what it needs brought there in two rounds of three.
        if (concurrent && round % 3 != 0) {
            CHECK(cudaMemPrefetchAsync(a, bytes, gpu, 0, stream));
            CHECK(cudaMemPrefetchAsync(b, bytes, gpu, 0, stream));
        }
        relax<<<std::min(app::blocks(count, 256), 1024u), 256, 0, stream>>>(a, b, count, round);
        CHECK_LAUNCH();
        if (concurrent && round % 3 == 1) CHECK(cudaMemPrefetchAsync(b, bytes / 2, host, 0, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (size_t i = 0, k = 0; i < count; i += watched, k++) app.expect(b[i] == want[k], "an element after the GPU's turn");
        table[round % 4096] += b[round];
        std::swap(a, b);
        app.step();
    }
    app.host(a, bytes);
    app.host(b, bytes);
    app.host(table, 4096 * 4);
    CHECK(cudaStreamDestroy(stream));
    for (unsigned *p : {a, b, table}) CHECK(cudaFree(p));
    return app.finish();
}
