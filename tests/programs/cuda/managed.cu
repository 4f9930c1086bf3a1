// Managed memory: buffers that host and kernels change in turn without a copy, a list whose links the host makes and a kernel
// follows, copies and fills of such memory, advice, prefetches, a flag that a kernel sets while the host looks.
#include "program.cuh"

#include <atomic>

constexpr int N = 2048;
constexpr int BLOCK = 128;
constexpr size_t BYTES = N * sizeof(uint32_t);
constexpr int LINKS = 200;

struct Link {
    Link *next;
    uint32_t value;
    uint32_t seen;
};

__global__ void blend(uint32_t *shared, const uint32_t *own, uint32_t round) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    shared[i] = shared[i] * 1664525u + own[i] + round;
}

__global__ void follow(Link *head, unsigned long long *sum, uint32_t round) {
    for (Link *at = head; at != nullptr; at = at->next) {
        *sum += at->value;
        at->seen = round;
    }
}

__global__ void tell(volatile uint32_t *board, const uint32_t *shared, uint32_t mark) {
    board[1] = shared[7] ^ mark;
    __threadfence_system();
    board[0] = mark;
}

static uint32_t value(long round, int i) { return static_cast<uint32_t>(program::mix(round * N + i)); }

int main(int argc, char **argv) {
    program::Options options(argc, argv, 40);
    program::Report report;
    int device;
    CHECK(cudaGetDevice(&device));
    int has = 0;
    CHECK(cudaDeviceGetAttribute(&has, cudaDevAttrManagedMemory, device));
    report.expect_value("managed memory", has, 1);
    uint32_t *shared, *own, *board;
    Link *links;
    unsigned long long *sum;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMallocManaged(&shared, BYTES));
    CHECK(cudaMallocManaged(&links, LINKS * sizeof(Link)));
    CHECK(cudaMallocManaged(&sum, sizeof *sum, cudaMemAttachHost));
    CHECK(cudaMallocManaged(&board, 64));
    CHECK(cudaStreamAttachMemAsync(stream, sum, 0, cudaMemAttachGlobal));
    CHECK(cudaMalloc(&own, BYTES));
    cudaPointerAttributes about;
    CHECK(cudaPointerGetAttributes(&about, shared + 3));
    report.expect_value("type", about.type, cudaMemoryTypeManaged);
    report.expect_value("one address", about.hostPointer == about.devicePointer && about.devicePointer == shared + 3, 1);
    cudaMemLocation here = {cudaMemLocationTypeDevice, device}, host = {cudaMemLocationTypeHost, 0};
    CHECK(cudaMemAdvise(shared, BYTES, cudaMemAdviseSetPreferredLocation, here));
    CHECK(cudaMemAdvise(links, LINKS * sizeof(Link), cudaMemAdviseSetAccessedBy, host));
    // Something that is no managed memory.
    report.expect_value("advice", cudaMemAdvise(own, BYTES, cudaMemAdviseSetReadMostly, here), cudaErrorInvalidValue);
    cudaGetLastError();

    CHECK(cudaMemset(shared, 0, BYTES));
    CHECK(cudaDeviceSynchronize());
    std::vector<uint32_t> want(N), fill(N);
    *sum = 0;
    *board = 0;
    unsigned long long want_sum = 0;
    for (long round = 0; round < options.steps; round++) {
        uint32_t r = static_cast<uint32_t>(round) + 1;
        // The host makes the list anew, in another order each time, with real addresses.
        for (int i = 0; i < LINKS; i++) {
            int at = (i * 37 + static_cast<int>(round % LINKS)) % LINKS, next = ((i + 1) * 37 + static_cast<int>(round % LINKS)) % LINKS;
            links[at] = {i + 1 < LINKS ? &links[next] : nullptr, value(round, i), 0};
            want_sum += links[at].value;
        }
        for (int i = 0; i < N; i++) fill[i] = value(round, i);
        for (int i = 0; i < 16; i++) shared[i * 100] += r, want[i * 100] += r;
        CHECK(cudaMemcpyAsync(own, fill.data(), BYTES, cudaMemcpyHostToDevice, stream));
        if (round % 3 == 0) CHECK(cudaMemPrefetchAsync(shared, BYTES, round % 2 ? here : host, 0, stream));
        int32_t preferred = -5, users[2] = {-5, -5}, asked[2] = {-5, -5};
        void *places[2] = {&asked[0], &asked[1]};
        size_t sizes[2] = {4, 4};
        cudaMemRangeAttribute both[2] = {cudaMemRangeAttributeReadMostly, cudaMemRangeAttributeLastPrefetchLocation};
        CHECK(cudaMemRangeGetAttribute(&preferred, 4, cudaMemRangeAttributePreferredLocation, shared, BYTES));
        CHECK(cudaMemRangeGetAttribute(users, 8, cudaMemRangeAttributeAccessedBy, links, LINKS * sizeof(Link)));
        CHECK(cudaMemRangeGetAttributes(places, sizes, both, 2, shared, BYTES));
        report.expect_value("preferred", preferred, device);
        report.expect_value("users", users[0] == cudaCpuDeviceId && users[1] == cudaInvalidDeviceId, 1);
        report.expect_value("read mostly", asked[0], 0);
        report.expect_value("prefetched", asked[1], (round / 3) % 2 ? device : cudaCpuDeviceId);
        blend<<<N / BLOCK, BLOCK, 0, stream>>>(shared, own, r);
        follow<<<1, 1, 0, stream>>>(&links[round % LINKS], sum, r);
        tell<<<1, 1, 0, stream>>>(board, shared, r);
        CHECK_LAUNCH();
        for (int i = 0; i < N; i++) want[i] = want[i] * 1664525u + fill[i] + r;
        while (*static_cast<volatile uint32_t *>(board) != r) {
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        report.expect_value("board", board[1], want[7] ^ r);
        if (round % 4 == 1) {
            // By copies, out of managed memory and into it.
            CHECK(cudaMemcpyAsync(own, shared, BYTES, cudaMemcpyDefault, stream));
            CHECK(cudaMemcpyAsync(shared + N / 2, own, BYTES / 2, cudaMemcpyDefault, stream));
            std::memcpy(want.data() + N / 2, want.data(), BYTES / 2);
        }
        if (round % 4 == 3) {
            CHECK(cudaMemsetAsync(shared + 64, 0x5a, 256, stream));
            std::memset(want.data() + 64, 0x5a, 256);
        }
        CHECK(cudaStreamSynchronize(stream));
        report.expect("shared", shared, want.data(), BYTES);
        report.expect_value("sum", *sum, want_sum);
        for (int i = 0; i < LINKS; i++) report.expect_value("seen", links[i].seen, r);
        if (round % 10 == 9) {
            // An allocation of a moment.
            uint32_t *brief;
            CHECK(cudaMallocManaged(&brief, BYTES));
            CHECK(cudaMemcpy(brief, shared, BYTES, cudaMemcpyDefault));
            report.expect("brief", brief, want.data(), BYTES);
            CHECK(cudaFree(brief));
        }
        options.pace();
    }
    report.line("managed", "shared", shared, BYTES);
    report.line("managed", "sum", sum, sizeof *sum);
    report.expect_value("freed wrongly", cudaFreeHost(shared), cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaStreamDestroy(stream));
    for (void *p : {static_cast<void *>(shared), static_cast<void *>(links), static_cast<void *>(sum), static_cast<void *>(board)}) {
        CHECK(cudaFree(p));
    }
    CHECK(cudaFree(own));
    return report.finish();
}
