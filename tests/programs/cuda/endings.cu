// Calls at the end of threads and of the process, which natively work as all others do: in destructors of
// thread-local objects and of pthread keys, of static objects, in exit handlers. And threads that are
// cancelled between their calls. Arguments: the way, and a file; it goes on until the file exists. Of what
// it works nothing may be lost: each call leaves a trace in memory, which is counted at the end.

#include "program.cuh"

#include <algorithm>
#include <atomic>
#include <functional>
#include <pthread.h>
#include <thread>

constexpr long SLOTS = 1 << 20;
constexpr int CALLS = 40;

static const char *file;
static unsigned char *slots;
static unsigned long long *sum;
static std::atomic<long> written{0}, launched{0}, endings{0};

static __global__ void add(unsigned long long *sum) { atomicAdd(sum, 1ull); }

static bool released() { return access(file, F_OK) == 0; }

// A call of each kind: work that is submitted, a kernel, what builds state and ends it.
static void work() {
    CHECK(cudaMemsetAsync(slots + written++ % SLOTS, 1, 1));
    add<<<1, 1>>>(sum);
    CHECK_LAUNCH();
    launched++;
    void *some;
    CHECK(cudaMalloc(&some, 3 << 20));
    CHECK(cudaMemset(some, 7, 3 << 20));
    CHECK(cudaFree(some));
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaEventRecord(event));
    CHECK(cudaEventSynchronize(event));
    CHECK(cudaEventDestroy(event));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamDestroy(stream));
}

static void end_of_a_thread() {
    for (int i = 0; i < CALLS; i++) {
        work();
        usleep(300);
    }
    endings++;
}

static void begin() {
    CHECK(cudaMalloc(&slots, SLOTS));
    CHECK(cudaMemset(slots, 0, SLOTS));
    CHECK(cudaMalloc(&sum, sizeof *sum));
    CHECK(cudaMemset(sum, 0, sizeof *sum));
    CHECK(cudaDeviceSynchronize());
}

static int finish() {
    program::Report report;
    std::vector<unsigned char> got(SLOTS), want(SLOTS);
    std::fill(want.begin(), want.begin() + std::min(written.load(), SLOTS), 1);
    report.expect_device("slots", slots, want.data(), SLOTS);
    unsigned long long counted;
    CHECK(cudaMemcpy(&counted, sum, sizeof counted, cudaMemcpyDeviceToHost));
    report.expect_value("launches", counted, launched);
    return report.finish();
}

// What a thread has made before its first call of CUDA, and destroys after everything that libraries have for it.
struct Local {
    bool used = false;
    ~Local() {
        if (used) end_of_a_thread();
    }
};
static thread_local Local local;
static pthread_key_t key;

static void until_released(const std::function<void()> &body) {
    auto run = [&] {
        do std::thread(body).join();
        while (!released());
    };
    std::thread other(run);
    run();
    other.join();
}

struct Last {
    bool used = false;
    ~Last() {
        if (!used) return;
        do work();
        while (!released());
        if (finish() != 0) std::_Exit(1);
    }
};

static void at_exit() {
    do work();
    while (!released());
    if (finish() != 0) std::_Exit(1);
}

// Asks without end, and is cancelled: never in the middle of a call.
static void *ask(void *stream) {
    for (;;) {
        cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream));
        if (status != cudaErrorNotReady) CHECK(status);
        work();
        pthread_testcancel();
    }
}

static void cancel_one() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    program::linger<<<1, 1, 0, stream>>>(2000000);
    CHECK_LAUNCH();
    pthread_t thread;
    if (pthread_create(&thread, nullptr, ask, stream) != 0) std::_Exit(3);
    usleep(1000 + written % 3000);
    pthread_cancel(thread);
    pthread_join(thread, nullptr);
    endings++;
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    std::string way = argv[1];
    file = argv[2];
    if (way == "error") {
        // It goes on whatever its calls say, and tells it. There is work to wait for: a wait for an idle place asks nobody.
        void *memory = nullptr;
        (void)cudaMalloc(&memory, 4);
        (void)cudaMemset(memory, 1, 4);
        for (int i = 0; i < 2; i++) std::fprintf(stderr, "%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
        while (!released()) usleep(1000);
        std::printf("RESULT ok\n");
        return 0;
    }
    begin();
    if (way == "local") {
        until_released([] {
            local.used = true;
            work();
        });
    } else if (way == "key") {
        if (pthread_key_create(&key, [](void *) { end_of_a_thread(); }) != 0) return 3;
        until_released([] {
            pthread_setspecific(key, &key);
            work();
        });
    } else if (way == "static") {
        static Last last;
        last.used = true;
        return 0;
    } else if (way == "exit") {
        std::atexit(at_exit);
        return 0;
    } else if (way == "cancel") {
        do cancel_one();
        while (!released());
    } else {
        return 64;
    }
    return endings == 0 ? 1 : finish();
}
