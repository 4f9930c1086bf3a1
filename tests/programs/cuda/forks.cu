// Forks children that compute on the host, print and exit normally, with all their exit handlers; the parent goes on.
#include "program.cuh"

#include <cerrno>
#include <sys/wait.h>

constexpr int CELLS = 4096;

__global__ void advance(unsigned *cells, unsigned n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cells[i] = cells[i] * 22695477u + n;
}

static void said_goodbye() { std::printf("an exit handler has run\n"); }

int main(int argc, char **argv) {
    program::Options options(argc, argv, 200);
    std::vector<unsigned> host(CELLS, 1);
    unsigned *cells;
    cudaStream_t stream;
    CHECK(cudaMalloc(&cells, sizeof(unsigned) * CELLS));
    CHECK(cudaMemcpy(cells, host.data(), sizeof(unsigned) * CELLS, cudaMemcpyHostToDevice));
    CHECK(cudaStreamCreate(&stream));
    program::Window window;
    int failed = 0;
    for (long round = 0; round < options.steps; round++) {
        unsigned n = static_cast<unsigned>(program::mix(round));
        advance<<<CELLS / 128, 128, 0, stream>>>(cells, n);
        CHECK_LAUNCH();
        window.round_done(stream);
        for (unsigned &cell : host) cell = cell * 22695477u + n;
        if (round % 20 == 10) {
            std::fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                // Work is under way on the GPU; the child has nothing to do with it.
                std::atexit(said_goodbye);
                std::printf("child %ld: %016llx\n", round, static_cast<unsigned long long>(program::digest(host.data(), 64)));
                std::exit(static_cast<int>(round % 7));
            }
            int status = 0;
            pid_t ended = child;
            do ended = waitpid(child, &status, 0);
            while (ended < 0 && errno == EINTR);
            if (child < 0 || ended != child || !WIFEXITED(status) || WEXITSTATUS(status) != round % 7) failed++;
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    program::Report report;
    report.expect_value("failed children", failed, 0);
    report.expect_device("cells", cells, host.data(), sizeof(unsigned) * CELLS);
    report.allocation("cells", cells, sizeof(unsigned) * CELLS);
    window.destroy();
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(cells));
    return report.finish();
}
