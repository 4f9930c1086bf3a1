// Four threads, each with a stream, share three large blocks of host memory (managed, pinned, registered), line by line, so that every
// page is everybody's: while some give work to the GPU others write, by stores, in a signal's handler, by the system (read from a pipe,
// and past the page cache from a file), after a fork, and on pages that could not be written to a moment before. Each checks what the GPU
// has made of its own lines, and that nobody else's writes have come into them.
#include "program.cuh"

#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <mutex>
#include <pthread.h>
#include <shared_mutex>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>

constexpr int THREADS = 4;
constexpr int LINE = 16;
constexpr int PAGE = 1024;
constexpr int BLOCKS = 3;
constexpr int WORDS = 256 * PAGE;
// The first words are everybody's by lines; the last pages are one thread's each, for what writes whole pages.
constexpr int OWN_PAGES = 4;
constexpr int SHARED = WORDS - THREADS * OWN_PAGES * PAGE;
constexpr int LINES = SHARED / LINE / THREADS;
constexpr int TOUCHED = 64;
constexpr int READ = 128;

// Words of a thread: in its lines, of which kernels change the even ones and add up the odd ones, and in its own pages.
__host__ __device__ static uint32_t word(int thread, uint32_t line, uint32_t at) {
    return ((line % LINES) * THREADS + thread) * LINE + at % LINE;
}
__host__ __device__ static uint32_t own(int thread, uint32_t at) {
    return SHARED + thread * OWN_PAGES * PAGE + at % (OWN_PAGES * PAGE);
}

__host__ __device__ static uint32_t changed(int thread, uint32_t n, uint32_t round, int block) {
    return word(thread, 2 * (n * 61 + round * 977), n + block);
}
__host__ __device__ static uint32_t added(int thread, uint32_t k, uint32_t round) {
    return word(thread, 2 * (k * 37 + round * 13) + 1, k);
}

struct Blocks {
    uint32_t *at[BLOCKS];
};

// Changes one word in each of some lines, and adds up others.
__global__ void work(Blocks b, int thread, uint32_t round, uint32_t *sums) {
    uint32_t n = threadIdx.x;
    for (int i = 0; i < BLOCKS; i++) b.at[i][changed(thread, n, round, i)] += round + n;
    if (n < BLOCKS) {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < READ; k++) sum = sum * 31 + b.at[n][added(thread, k, round)];
        for (uint32_t k = 0; k < READ; k++) sum = sum * 31 + b.at[n][own(thread, k * 29u + round)];
        sums[n] = sum;
    }
}

static uint32_t value(int thread, long round, uint32_t i) {
    return static_cast<uint32_t>(program::mix((round * 8 + thread) * 100003 + i));
}

// What a signal's handler writes for the thread that it runs on.
struct Note {
    volatile uint32_t *to;
    uint32_t value;
};
static thread_local Note note;
static void handler(int) { *note.to = note.value; }

// As the host and as kernels know them.
static Blocks blocks, mapped;
static std::atomic<bool> wrong{false};
// A fork beside a read past the page cache may leave what is read with the child (open(2)): one at a time.
static std::shared_mutex forking;

static void expect(const char *what, int thread, long round, uint32_t got, uint32_t want) {
    if (got == want) return;
    std::fprintf(stderr, "thread %d, round %ld: %s is %u, not %u\n", thread, round, what, got, want);
    wrong = true;
}

static void run(int thread, const program::Options &options) {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *sums;
    CHECK(cudaMallocHost(reinterpret_cast<void **>(&sums), 4096));
    std::vector<uint32_t> want[BLOCKS];
    for (auto &w : want) w.assign(WORDS, 0);
    int ends[2];
    char name[] = "/tmp/writersXXXXXX";
    int file = mkstemp(name), direct = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    if (file < 0 || pipe(ends) != 0) std::_Exit(2);
    if (direct < 0) direct = file;
    std::vector<uint32_t> page(PAGE);
    auto put = [&](int block, uint32_t at, uint32_t v) {
        static_cast<volatile uint32_t *>(blocks.at[block])[at] = v;
        want[block][at] = v;
    };
    for (long round = 0; round < options.steps; round++) {
        uint32_t r = static_cast<uint32_t>(round) + 1;
        for (int b = 0; b < BLOCKS; b++) {
            for (uint32_t i = 0; i < 24; i++) put(b, word(thread, value(thread, round, i), i), value(thread, round, i + 100));
        }
        // In a handler of this thread.
        uint32_t at = word(thread, r * 11u, r);
        note = {blocks.at[r % BLOCKS] + at, r};
        want[r % BLOCKS][at] = r;
        pthread_kill(pthread_self(), SIGUSR1);
        // By the system: a line from a pipe, a page from a file.
        int block = r % BLOCKS;
        uint32_t *line = blocks.at[block] + word(thread, r * 17u, 0);
        for (uint32_t i = 0; i < LINE; i++) page[i] = value(thread, round, i + 200);
        if (write(ends[1], page.data(), LINE * 4) != LINE * 4 || read(ends[0], line, LINE * 4) != LINE * 4) std::_Exit(2);
        std::memcpy(&want[block][word(thread, r * 17u, 0)], page.data(), LINE * 4);
        if (round % 4 == thread) {
            for (uint32_t i = 0; i < PAGE; i++) page[i] = value(thread, round, i + 300);
            uint32_t to = own(thread, (r / 4 % OWN_PAGES) * PAGE);
            if (pwrite(file, page.data(), PAGE * 4, 0) != PAGE * 4 || fsync(file) != 0) std::_Exit(2);
            // Not managed memory: natively its pages go to the GPU while the disk still writes to them.
            int into = 1 + round / 4 % 2;
            std::shared_lock<std::shared_mutex> no_fork(forking);
            if (pread(direct, blocks.at[into] + to, PAGE * 4, 0) != PAGE * 4) std::_Exit(2);
            std::memcpy(&want[into][to], page.data(), PAGE * 4);
        }
        if (round % 16 == 5 + thread) {
            // What was everybody's is copied when it is written to after this.
            std::unique_lock<std::shared_mutex> alone(forking);
            pid_t child = fork();
            if (child == 0) _exit(0);
            int status;
            if (child < 0 || waitpid(child, &status, 0) != child) std::_Exit(2);
        }
        if (round % 8 == 3) {
            uint32_t to = own(thread, 2 * PAGE);
            if (mprotect(blocks.at[0] + to, PAGE * 4, PROT_READ) != 0) std::_Exit(2);
            if (mprotect(blocks.at[0] + to, PAGE * 4, PROT_READ | PROT_WRITE) != 0) std::_Exit(2);
            put(0, to + r % PAGE, r);
        }
        work<<<1, TOUCHED, 0, stream>>>(mapped, thread, r, sums);
        CHECK_LAUNCH();
        for (uint32_t n = 0; n < TOUCHED; n++) {
            for (int b = 0; b < BLOCKS; b++) want[b][changed(thread, n, r, b)] += r + n;
        }
        CHECK(cudaStreamSynchronize(stream));
        for (int b = 0; b < BLOCKS; b++) {
            uint32_t sum = 0;
            for (uint32_t k = 0; k < READ; k++) sum = sum * 31 + want[b][added(thread, k, r)];
            for (uint32_t k = 0; k < READ; k++) sum = sum * 31 + want[b][own(thread, k * 29u + r)];
            expect("sum", thread, round, sums[b], sum);
            for (uint32_t n = 0; n < TOUCHED; n++) {
                uint32_t w = changed(thread, n, r, b);
                expect("word", thread, round, static_cast<volatile uint32_t *>(blocks.at[b])[w], want[b][w]);
            }
        }
        options.nap();
    }
    CHECK(cudaStreamSynchronize(stream));
    for (int b = 0; b < BLOCKS; b++) {
        for (uint32_t l = 0; l < LINES; l++) {
            for (uint32_t i = 0; i < LINE; i++) expect("at the end", thread, b, blocks.at[b][word(thread, l, i)], want[b][word(thread, l, i)]);
        }
        for (uint32_t i = 0; i < OWN_PAGES * PAGE; i++) {
            expect("at the end, own", thread, b, blocks.at[b][own(thread, i)], want[b][own(thread, i)]);
        }
    }
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFreeHost(sums));
    for (int fd : {ends[0], ends[1], file}) close(fd);
    if (direct != file) close(direct);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    program::Report report;
    struct sigaction act = {};
    act.sa_handler = handler;
    act.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &act, nullptr);
    CHECK(cudaMallocManaged(&blocks.at[0], WORDS * 4));
    CHECK(cudaMallocHost(reinterpret_cast<void **>(&blocks.at[1]), WORDS * 4));
    void *mine = mmap(nullptr, WORDS * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mine == MAP_FAILED) return 2;
    CHECK(cudaHostRegister(mine, WORDS * 4, cudaHostRegisterMapped));
    blocks.at[2] = static_cast<uint32_t *>(mine);
    mapped = blocks;
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void **>(&mapped.at[2]), mine, 0));
    for (uint32_t *b : blocks.at) std::memset(b, 0, WORDS * 4);
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) threads.emplace_back(run, t, std::cref(options));
    for (std::thread &t : threads) t.join();
    for (int b = 0; b < BLOCKS; b++) report.line("writers", b == 0 ? "managed" : b == 1 ? "pinned" : "registered", blocks.at[b], WORDS * 4);
    report.expect_value("something", wrong, false);
    CHECK(cudaHostUnregister(mine));
    munmap(mine, WORDS * 4);
    CHECK(cudaFreeHost(blocks.at[1]));
    CHECK(cudaFree(blocks.at[0]));
    return report.finish();
}
