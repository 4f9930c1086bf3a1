// Short copies in streams of their own beside a large one, `in` to the device or `out` of it. Says on stderr when all are under way
// (`waiting`) and when the short ones are over (`over`), and in its output whether the large one was over before.
#include "program.cuh"

constexpr size_t LARGE = 64 << 20, SHORT = 64 << 10;

static void say(const char *word) {
    std::fprintf(stderr, "%s\n", word);
    std::fflush(stderr);
}

static void fill(unsigned char *bytes, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = program::mix(seed + i);
        std::memcpy(bytes + i, &word, 8);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    const bool in = std::strcmp(argv[1], "in") == 0;
    program::Report report;
    unsigned char *large, *pinned, *device;
    CHECK(cudaMallocHost(&large, LARGE));
    CHECK(cudaMallocHost(&pinned, SHORT));
    CHECK(cudaMalloc(&device, LARGE + 2 * SHORT));
    std::vector<unsigned char> pageable(SHORT), want(LARGE), short_want(SHORT);
    fill(want.data(), LARGE, 1);
    fill(short_want.data(), SHORT, 2);
    cudaStream_t streams[3];
    for (cudaStream_t &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    unsigned char *first = device + LARGE, *second = first + SHORT;

    if (in) {
        std::memcpy(large, want.data(), LARGE);
        std::memcpy(pinned, short_want.data(), SHORT);
        CHECK(cudaMemcpyAsync(device, large, LARGE, cudaMemcpyHostToDevice, streams[0]));
        CHECK(cudaMemcpyAsync(first, pinned, SHORT, cudaMemcpyHostToDevice, streams[1]));
        CHECK(cudaMemcpyAsync(second, short_want.data(), SHORT, cudaMemcpyHostToDevice, streams[2]));
    } else {
        CHECK(cudaMemset(device, 7, LARGE + 2 * SHORT));
        std::fill(want.begin(), want.end(), 7);
        std::fill(short_want.begin(), short_want.end(), 7);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpyAsync(large, device, LARGE, cudaMemcpyDeviceToHost, streams[0]));
        CHECK(cudaMemcpyAsync(pinned, first, SHORT, cudaMemcpyDeviceToHost, streams[1]));
    }
    // Whoever answers has the copies that were submitted before.
    for (cudaStream_t s : streams) {
        cudaError_t rc = cudaStreamQuery(s);
        if (rc != cudaErrorNotReady) CHECK(rc);
    }
    say("waiting");
    if (!in) CHECK(cudaMemcpyAsync(pageable.data(), second, SHORT, cudaMemcpyDeviceToHost, streams[2]));
    for (cudaStream_t s : {streams[1], streams[2]}) CHECK(cudaStreamSynchronize(s));
    std::printf("%s the large copy\n", cudaStreamQuery(streams[0]) == cudaErrorNotReady ? "before" : "behind");
    say("over");
    CHECK(cudaStreamSynchronize(streams[0]));

    if (in) {
        report.expect_device("the large copy", device, want.data(), LARGE);
        for (const unsigned char *at : {first, second}) report.expect_device("a short copy", at, short_want.data(), SHORT);
    } else {
        report.expect("the large copy", large, want.data(), LARGE);
        for (const unsigned char *at : {static_cast<const unsigned char *>(pinned), static_cast<const unsigned char *>(pageable.data())})
            report.expect("a short copy", at, short_want.data(), SHORT);
    }
    return report.finish();
}
