// Device printf: every kind of conversion that CUDA documents (a precision of `*` is none: the driver takes later arguments for
// widths then, and fills disks with blanks), shown by every kind of call that shows it, between lines that the host prints. The
// order of all lines is part of the output: a kernel's text is there after the first call after its end that shows text (CUDA C++
// Programming Guide, "Formatted Output"). Other calls show it too, seldom (0.5 % of the rounds on an H200), so the host says nothing
// between a launch and the call that must show.
#include "program.cuh"

__device__ const char *const words[4] = {"north", "east", "south", "west"};

__global__ void say(long round, double x, const int *table) {
    if (threadIdx.x != 0 || blockIdx.x != 0) return;
    int n = table[round % 64];
    unsigned u = static_cast<unsigned>(round) * 2654435761u;
    unsigned long long wide = program::mix(round);
    printf("kernel %ld: %s |%5d|%-6d|%+d|% d|%05d|%.3d\n", round, words[round & 3], n, n, n, n, n, n & 63);
    printf("  %u %x %X %#o %#x %c %% %.2s %8s| %hd %hu\n", u, u, u, u & 511, u, 'a' + n % 26, "text", "right", u, u);
    printf("  %lld %llu %llx %p\n", static_cast<long long>(wide), wide, wide, reinterpret_cast<void *>(wide >> 16));
    printf("  %f %.3f %10.2f %-10.1f| %e %.2E %g %G %a\n", x, x, x, x, x, x, x, x, x);
    printf("  %*d %.1f %-*d|\n", 7, n, x, 5, n);
    if (printf("  %d of %d arguments\n", 2, 2) != 2) printf("wrong count\n");
}

// More text in one launch, by one thread: its order is the program's.
__global__ void recite(long round, int lines) {
    for (int i = 0; i < lines; i++) printf("recital %ld line %d %016llx\n", round, i, static_cast<unsigned long long>(program::mix(i)));
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 30);
    size_t wanted = 4 << 20, before = 0, after = 0;
    CHECK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, wanted));
    CHECK(cudaDeviceGetLimit(&before, cudaLimitPrintfFifoSize));
    int host[64], *table, word;
    for (int i = 0; i < 64; i++) host[i] = static_cast<int>(program::mix(i) % 2000) - 1000;
    CHECK(cudaMalloc(&table, sizeof host));
    CHECK(cudaMemcpy(table, host, sizeof host, cudaMemcpyHostToDevice));
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));

    program::Bystanders bystanders;
    for (long round = 0; round < options.steps; round++) {
        double x = (static_cast<int>(program::mix(round) % 4096) - 2048) * 0.0625;
        std::printf("host before %ld\n", round);
        say<<<1, 32, 0, stream>>>(round, x, table);
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(event, stream));
        if (round % 3 == 0) options.nap();
        switch (round % 6) {
        case 0: CHECK(cudaStreamSynchronize(stream)); break;
        case 1: CHECK(cudaEventSynchronize(event)); break;
        case 2: CHECK(cudaDeviceSynchronize()); break;
        case 3: // A blocking copy on the legacy stream shows text, but it does not wait for this one.
            while (cudaEventQuery(event) == cudaErrorNotReady) usleep(100);
            CHECK(cudaMemcpy(&word, table, sizeof word, cudaMemcpyDeviceToHost));
            break;
        case 4: // The kernel is known to have ended when the next one is launched.
            while (cudaStreamQuery(stream) == cudaErrorNotReady) usleep(100);
            recite<<<1, 1, 0, stream>>>(round, 3);
            CHECK_LAUNCH();
            CHECK(cudaStreamSynchronize(stream));
            break;
        case 5:
            recite<<<1, 1, 0, stream>>>(round, 40);
            CHECK_LAUNCH();
            CHECK(cudaDeviceSynchronize());
            break;
        }
        std::printf("host after %ld\n", round);
        options.pace();
    }
    CHECK(cudaDeviceGetLimit(&after, cudaLimitPrintfFifoSize));
    program::Report report;
    report.expect_value("limit", after, before);
    report.expect_device("table", table, host, sizeof host);
    report.allocation("table", table, sizeof host);
    CHECK(cudaEventDestroy(event));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(table));
    bystanders.end(report);
    return report.finish();
}
