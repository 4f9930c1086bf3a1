// Host memory used by GPU and host at the same time: nodes in pinned allocations of their own that a kernel follows, a table of such
// addresses in device memory, a kernel and the host that answer each other without a call, both writing every other byte of a page,
// a large managed buffer of which little changes, a graph whose kernel reads what its copy has written, and system calls on it.
#include "program.cuh"

#include <atomic>

constexpr int NODES = 24;
constexpr int CELLS = 8;
constexpr int TURNS = 4;
constexpr int PAGE = 4096;
constexpr size_t LARGE = 1 << 20;
constexpr int WORDS = LARGE / sizeof(uint32_t);
constexpr int PIECE = 1024;

struct Node {
    Node *next;
    uint32_t value;
    uint32_t seen;
};

struct Talk {
    uint32_t question;
    uint32_t words[40];
    uint32_t answer;
    uint32_t sum;
};

__global__ void follow(Node *head, unsigned long long *sum, uint32_t round) {
    for (Node *at = head; at != nullptr; at = at->next) {
        *sum += at->value;
        at->seen = round;
    }
}

__global__ void by_table(uint32_t *const *table, uint32_t round) { *table[threadIdx.x] += round * (threadIdx.x + 1); }

// Answers the host, which makes no call.
__global__ void talk(volatile Talk *t, uint32_t first) {
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        while (t->question != first + turn) {
        }
        __threadfence_system();
        uint32_t sum = 0;
        for (int i = 0; i < 40; i++) sum = sum * 31 + t->words[i];
        t->sum = sum;
        __threadfence_system();
        t->answer = first + turn;
    }
}

__global__ void odd_bytes(volatile unsigned char *page, unsigned char mark) {
    for (int i = 1 + 2 * threadIdx.x; i < PAGE; i += 2 * blockDim.x) page[i] = static_cast<unsigned char>(mark + i);
}

__global__ void touch(uint32_t *large, uint32_t round) { large[(threadIdx.x * 7919u + round * 104729u) % WORDS] += round; }

__global__ void fill(uint32_t *cells, uint32_t round) { cells[threadIdx.x] = cells[threadIdx.x] * 1664525u + round; }

__global__ void digest(const uint32_t *piece, uint32_t *to) {
    uint32_t sum = 0;
    for (int i = 0; i < PIECE; i++) sum = sum * 31 + piece[i];
    *to = sum;
}

static uint32_t value(long round, int i) { return static_cast<uint32_t>(program::mix(round * 5003 + i)); }

template <class T> static T *pinned(size_t bytes = sizeof(T)) {
    T *made;
    CHECK(cudaMallocHost(reinterpret_cast<void **>(&made), bytes));
    std::memset(static_cast<void *>(made), 0, bytes);
    return made;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    program::Report report;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Node *nodes[NODES];
    for (Node *&n : nodes) n = pinned<Node>();
    uint32_t *cells[CELLS], **table;
    for (uint32_t *&c : cells) c = pinned<uint32_t>();
    auto *sum = pinned<unsigned long long>();
    auto *page = pinned<unsigned char>(PAGE);
    auto *box = pinned<Talk>();
    auto *piece = pinned<uint32_t>(PIECE * 4), *sums = pinned<uint32_t>();
    uint32_t *large, *state;
    CHECK(cudaMallocManaged(&large, LARGE));
    CHECK(cudaMalloc(&table, sizeof cells));
    CHECK(cudaMalloc(&state, PIECE * 4));
    CHECK(cudaMemset(state, 0, PIECE * 4));
    CHECK(cudaMemcpy(table, cells, sizeof cells, cudaMemcpyHostToDevice));
    std::memset(large, 0, LARGE);
    // All code is there before a kernel waits for the host.
    box->question = box->answer = 0;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(piece, state, PIECE * 4, cudaMemcpyDeviceToHost, stream));
    digest<<<1, 1, 0, stream>>>(piece, sums);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    int ends[2];
    if (pipe(ends) != 0) return 2;

    std::vector<uint32_t> want_large(WORDS), want_state(PIECE), want_cells(CELLS);
    std::vector<unsigned char> want_page(PAGE), through(PAGE);
    unsigned long long want_sum = 0;
    for (long round = 0; round < options.steps; round++) {
        uint32_t r = static_cast<uint32_t>(round) + 1;
        // A list in another order each time.
        for (int i = 0; i < NODES; i++) {
            int at = (i * 7 + static_cast<int>(round)) % NODES, next = ((i + 1) * 7 + static_cast<int>(round)) % NODES;
            *nodes[at] = {i + 1 < NODES ? nodes[next] : nullptr, value(round, i), 0};
            want_sum += value(round, i);
        }
        follow<<<1, 1, 0, stream>>>(nodes[round % NODES], sum, r);
        by_table<<<1, CELLS, 0, stream>>>(table, r);
        CHECK_LAUNCH();
        for (int i = 0; i < CELLS; i++) want_cells[i] += r * (i + 1);
        CHECK(cudaStreamSynchronize(stream));
        report.expect_value("sum", *sum, want_sum);
        for (Node *n : nodes) report.expect_value("seen", n->seen, r);
        for (int i = 0; i < CELLS; i++) report.expect_value("cell", *cells[i], want_cells[i]);

        uint32_t first = r * 16;
        talk<<<1, 1, 0, stream>>>(box, first);
        CHECK_LAUNCH();
        for (uint32_t turn = 0; turn < TURNS; turn++) {
            uint32_t want = 0;
            for (int i = 0; i < 40; i++) {
                box->words[i] = value(round * TURNS + turn, i);
                want = want * 31 + value(round * TURNS + turn, i);
            }
            std::atomic_thread_fence(std::memory_order_release);
            *static_cast<volatile uint32_t *>(&box->question) = first + turn;
            while (*static_cast<volatile uint32_t *>(&box->answer) != first + turn) {
            }
            std::atomic_thread_fence(std::memory_order_acquire);
            report.expect_value("answer", box->sum, want);
        }

        odd_bytes<<<1, 64, 0, stream>>>(page, static_cast<unsigned char>(r));
        CHECK_LAUNCH();
        for (int i = 0; i < PAGE; i++) {
            unsigned char byte = static_cast<unsigned char>(i % 2 ? r + i : r * 3 + i);
            if (i % 2 == 0) static_cast<volatile unsigned char *>(page)[i] = byte;
            want_page[i] = byte;
        }
        for (int i = 0; i < 20; i++) {
            // Words that no kernel of this round writes.
            uint32_t at = value(round, i) % WORDS;
            large[at] ^= r;
            want_large[at] ^= r;
        }
        touch<<<1, 32, 0, stream>>>(large, r);
        fill<<<1, PIECE, 0, stream>>>(state, r);
        CHECK_LAUNCH();
        for (uint32_t i = 0; i < 32; i++) want_large[(i * 7919u + r * 104729u) % WORDS] += r;
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        uint32_t want = 0;
        for (uint32_t &v : want_state) v = v * 1664525u + r, want = want * 31 + v;
        report.expect("large", large, want_large.data(), LARGE);
        report.expect("piece", piece, want_state.data(), PIECE * 4);
        report.expect_value("digest", *sums, want);
        // By the system: out of such memory, and into it.
        if (write(ends[1], page, PAGE) != PAGE || read(ends[0], through.data(), PAGE) != PAGE) return 2;
        report.expect("page", through.data(), want_page.data(), PAGE);
        for (int i = 0; i < PIECE; i++) want_state[i] = value(round, i);
        if (write(ends[1], want_state.data(), PIECE * 4) != PIECE * 4 || read(ends[0], piece, PIECE * 4) != PIECE * 4) return 2;
        digest<<<1, 1, 0, stream>>>(piece, sums);
        CHECK(cudaMemcpyAsync(state, piece, PIECE * 4, cudaMemcpyHostToDevice, stream));
        CHECK(cudaStreamSynchronize(stream));
        want = 0;
        for (uint32_t v : want_state) want = want * 31 + v;
        report.expect_value("read", *sums, want);
        if (round % 8 == 7) {
            // Another cell in the place of one.
            int i = static_cast<int>(round / 8) % CELLS;
            CHECK(cudaFreeHost(cells[i]));
            cells[i] = pinned<uint32_t>();
            want_cells[i] = 0;
            CHECK(cudaMemcpy(table, cells, sizeof cells, cudaMemcpyHostToDevice));
        }
        options.pace();
    }
    report.line("alike", "large", large, LARGE);
    report.line("alike", "sum", sum, sizeof *sum);
    report.expect_device("state", state, want_state.data(), PIECE * 4);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    for (Node *n : nodes) CHECK(cudaFreeHost(n));
    for (uint32_t *c : cells) CHECK(cudaFreeHost(c));
    for (void *p : {static_cast<void *>(sum), static_cast<void *>(page), static_cast<void *>(box), static_cast<void *>(piece), static_cast<void *>(sums)}) {
        CHECK(cudaFreeHost(p));
    }
    CHECK(cudaFree(large));
    CHECK(cudaFree(table));
    CHECK(cudaFree(state));
    return report.finish();
}
