// Uses SIGUSR1 and SIGUSR2 itself: handlers of its own, set before the first CUDA call and again later, and signals at any
// moment. Every signal must reach the program's handler.
#include "program.cuh"

#include <csignal>
#include <pthread.h>

static volatile std::sig_atomic_t first, second;

static void on_first(int) { first = first + 1; }
static void on_second(int) { second = second + 1; }

__global__ void advance(unsigned *cells, unsigned n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cells[i] = (cells[i] ^ n) * 2246822519u;
}

static void handle(int signal, void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    if (sigaction(signal, &action, nullptr) != 0) std::_Exit(3);
}

static void (*handler_of(int signal))(int) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 200);
    constexpr int CELLS = 1024;
    handle(SIGUSR1, on_first);
    std::vector<unsigned> host(CELLS, 5);
    unsigned *cells;
    CHECK(cudaMalloc(&cells, sizeof(unsigned) * CELLS));
    CHECK(cudaMemcpy(cells, host.data(), sizeof(unsigned) * CELLS, cudaMemcpyHostToDevice));
    handle(SIGUSR2, on_second);
    program::Report report;
    program::Bystanders bystanders;
    // No SA_RESTART: whatever a CUDA call waits for must stand being interrupted.
    long sent = 0;
    for (long round = 0; round < options.steps; round++) {
        unsigned n = static_cast<unsigned>(program::mix(round));
        advance<<<CELLS / 128, 128>>>(cells, n);
        CHECK_LAUNCH();
        for (unsigned &cell : host) cell = (cell ^ n) * 2246822519u;
        pthread_kill(pthread_self(), SIGUSR1);
        kill(getpid(), SIGUSR2);
        sent++;
        if (round % 5 == 4) CHECK(cudaDeviceSynchronize());
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    // A signal to the whole process may reach any of its threads; it has been handled soon.
    for (int wait = 0; wait < 1000 && second < sent; wait++) usleep(1000);
    report.expect_value("handler of SIGUSR1", handler_of(SIGUSR1) == on_first, 1);
    report.expect_value("handler of SIGUSR2", handler_of(SIGUSR2) == on_second, 1);
    report.expect_value("SIGUSR1", first, sent);
    std::printf("signals %ld\n", sent);
    report.expect_device("cells", cells, host.data(), sizeof(unsigned) * CELLS);
    report.allocation("cells", cells, sizeof(unsigned) * CELLS);
    CHECK(cudaFree(cells));
    bystanders.end(report);
    return report.finish();
}
