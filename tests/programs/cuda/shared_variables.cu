// Managed variables: scalars, arrays and structures that host and kernels name alike and change in turn without a copy, atomics on
// them, pointers to them in each other and in ordinary variables, copies by symbol, a flag that a kernel sets while the host looks.
#include "program.cuh"

#include <atomic>

constexpr int N = 2048;
constexpr int BLOCK = 128;
constexpr int CHAIN = 64;

struct Node {
    Node *next;
    double weight;
    uint32_t value;
    uint8_t seen[3];
};

__device__ __managed__ uint32_t counter = 5;
__device__ __managed__ unsigned long long total = 0x100000002ull;
__device__ __managed__ uint32_t highest;
__device__ __managed__ float scale = 1.5f;
__device__ __managed__ uint32_t field[N];
__device__ __managed__ uint16_t table[7] = {1, 2, 3, 0xffff};
__device__ __managed__ Node chain[CHAIN];
__device__ __managed__ Node head = {nullptr, 2.5, 77, {1, 2, 3}};
__device__ __managed__ volatile uint32_t board[2];
static __device__ __managed__ int8_t odd[3] = {-1, 2, -3};
static __device__ __managed__ double after_odd = -0.125;
// A pointer in ordinary memory, which a kernel sets, and one in constant memory, which the host sets.
__device__ uint32_t *to_field;
__device__ uint32_t ordinary = 9;
__constant__ Node *to_head;

__global__ void link() { to_field = field + 3; }

__global__ void blend(uint32_t round) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    field[i] = field[i] * 1664525u + table[i % 7] + round;
    atomicAdd(&counter, 1u);
    atomicAdd(&total, static_cast<unsigned long long>(field[i]));
    atomicMax(&highest, field[i]);
}

__global__ void follow(uint32_t round) {
    for (Node *at = to_head->next; at != nullptr; at = at->next) {
        to_head->weight += at->weight * scale;
        to_head->value ^= at->value;
        at->seen[round % 3]++;
    }
    to_field[round % 100] += ordinary++;
    odd[round % 3] += static_cast<int8_t>(round);
    after_odd += odd[0];
    table[6] = static_cast<uint16_t>(round);
}

__global__ void tell(uint32_t mark) {
    board[1] = counter ^ mark;
    __threadfence_system();
    board[0] = mark;
}

static uint32_t value(long round, int i) { return static_cast<uint32_t>(program::mix(round * N + i)); }

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    program::Report report;
    // Before anything else of CUDA's: what they begin with.
    report.expect_value("counter", counter, 5);
    report.expect_value("total", total, 0x100000002ull);
    report.expect_value("scale", scale == 1.5f, 1);
    report.expect_value("table", table[3], 0xffff);
    report.expect_value("rest of it", table[4] + table[6], 0);
    report.expect_value("head", head.value + head.seen[2] + (head.next == nullptr && head.weight == 2.5), 77 + 3 + 1);
    report.expect_value("odd", odd[0] == -1 && odd[1] == 2 && odd[2] == -3, 1);
    report.expect_value("after", after_odd == -0.125, 1);
    for (int i = 0; i < N; i++) report.expect_value("zero", field[i], 0);

    void *address = nullptr;
    size_t size = 0;
    CHECK(cudaGetSymbolAddress(&address, field));
    CHECK(cudaGetSymbolSize(&size, field));
    report.expect_value("one address", address == field, 1);
    report.expect_value("size", size, sizeof field);
    cudaPointerAttributes about;
    CHECK(cudaPointerGetAttributes(&about, &field[5]));
    report.expect_value("type", about.type, cudaMemoryTypeManaged);
    report.expect_value("pointers", about.hostPointer == &field[5] && about.devicePointer == &field[5], 1);
    report.expect_value("freed", cudaFree(field), cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaMemAdvise(field, sizeof field, cudaMemAdviseSetReadMostly, {cudaMemLocationTypeDevice, 0}));

    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Node *first = &head;
    CHECK(cudaMemcpyToSymbol(to_head, &first, sizeof first));
    link<<<1, 1>>>();
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());

    // The same on the host alone.
    std::vector<uint32_t> want(N);
    uint32_t want_counter = 5, want_value = 77, want_ordinary = 9;
    unsigned long long want_total = 0x100000002ull;
    double want_weight = 2.5, want_after = -0.125;
    uint16_t want_table[7] = {1, 2, 3, 0xffff};
    int8_t want_odd[3] = {-1, 2, -3};
    for (long round = 0; round < options.steps; round++) {
        uint32_t r = static_cast<uint32_t>(round) + 1;
        // The host makes the chain anew, in another order each time.
        for (int i = 0; i < CHAIN; i++) {
            auto place = [&](int n) { return (n * 37 + static_cast<int>(round % CHAIN)) % CHAIN; };
            chain[place(i)] = {i + 1 < CHAIN ? &chain[place(i + 1)] : nullptr, i * 0.5, value(round, i), {0, 0, 0}};
        }
        head.next = &chain[round % CHAIN];
        scale = 0.5f + round % 4;
        for (int i = 0; i < 16; i++) field[i * 100] += r, want[i * 100] += r;
        want_table[round % 6] = table[round % 6] = static_cast<uint16_t>(value(round, 1));
        blend<<<N / BLOCK, BLOCK, 0, stream>>>(r);
        CHECK_LAUNCH();
        CHECK(cudaStreamSynchronize(stream));
        uint32_t want_highest = 0;
        for (int i = 0; i < N; i++) {
            want[i] = want[i] * 1664525u + want_table[i % 7] + r;
            want_total += want[i];
            if (want[i] > want_highest) want_highest = want[i];
        }
        want_counter += N;
        report.expect("field", field, want.data(), sizeof field);
        report.expect_value("counter", counter, want_counter);
        report.expect_value("total", total, want_total);
        report.expect_value("highest", highest, want_highest);
        highest = 0;
        follow<<<1, 1, 0, stream>>>(r);
        tell<<<1, 1, 0, stream>>>(r);
        CHECK_LAUNCH();
        while (board[0] != r) {
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        report.expect_value("board", board[1], want_counter ^ r);
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < CHAIN; i++) {
            want_weight += i * 0.5 * (0.5f + round % 4);
            want_value ^= value(round, i);
            report.expect_value("seen", chain[i].seen[r % 3], 1);
        }
        want[3 + r % 100] += want_ordinary++;
        want_odd[r % 3] = static_cast<int8_t>(want_odd[r % 3] + static_cast<int8_t>(r));
        want_after += want_odd[0];
        want_table[6] = static_cast<uint16_t>(r);
        report.expect_value("weight", head.weight == want_weight, 1);
        report.expect_value("value", head.value, want_value);
        report.expect("odd", odd, want_odd, sizeof want_odd);
        report.expect_value("after", after_odd == want_after, 1);
        report.expect("table", table, want_table, sizeof want_table);
        report.expect_value("through a pointer", field[3 + r % 100], want[3 + r % 100]);
        if (round % 4 == 1) {
            // By copies, out of variables and into them.
            uint32_t some[64];
            CHECK(cudaMemcpyFromSymbol(some, field, sizeof some, 256));
            report.expect("by symbol", some, want.data() + 64, sizeof some);
            for (int i = 0; i < 64; i++) want[512 + i] = some[i] ^ r, some[i] ^= r;
            CHECK(cudaMemcpyToSymbolAsync(field, some, sizeof some, 2048, cudaMemcpyHostToDevice, stream));
            CHECK(cudaStreamSynchronize(stream));
        }
        if (round % 4 == 3) {
            CHECK(cudaMemsetAsync(field + 1024, 0x5a, 256, stream));
            std::memset(want.data() + 1024, 0x5a, 256);
            CHECK(cudaStreamSynchronize(stream));
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    report.expect("field", field, want.data(), sizeof field);
    report.line("shared_variables", "field", field, sizeof field);
    report.line("shared_variables", "counter", &counter, sizeof counter);
    report.line("shared_variables", "total", &total, sizeof total);
    report.line("shared_variables", "value", &head.value, sizeof head.value);
    report.line("shared_variables", "odd", odd, sizeof odd);
    CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
