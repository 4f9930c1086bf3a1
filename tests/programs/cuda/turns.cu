// Copies whose source the GPU writes just before, in a stream that they follow only by the rules of the legacy default stream; copies inside the
// host's memory that are over when the call returns; registered memory that kernels use by its own address.
#include "program.cuh"

#include <sys/mman.h>

#include <thread>

constexpr int CELLS = 64;
constexpr size_t BYTES = CELLS * sizeof(unsigned);

__global__ void next(unsigned *cells, unsigned n) {
    const int i = threadIdx.x;
    cells[i] = cells[i] * 69069u + n + i;
}

// Adds what a table's rows hold to it.
__global__ void follow(unsigned *sums, unsigned *const *table, int rows) {
    for (int r = 0; r < rows; r++) sums[threadIdx.x] += table[r][threadIdx.x];
}

// Waits until the host says so.
__global__ void await(const volatile unsigned *flag, unsigned value) {
    while (*flag != value) {
    }
}

static void next_here(unsigned *cells, unsigned n) {
    for (int i = 0; i < CELLS; i++) cells[i] = cells[i] * 69069u + n + i;
}

static unsigned *registered() {
    void *p = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(p, 0, 1 << 16);
    CHECK(cudaHostRegister(p, 1 << 16, cudaHostRegisterDefault));
    return static_cast<unsigned *>(p);
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Bystanders bystanders;
    program::Report report;
    unsigned *pinned, *other, *managed, *cells[4], *sums, **table;
    CHECK(cudaMallocHost(&pinned, BYTES));
    CHECK(cudaMallocHost(&other, BYTES));
    CHECK(cudaMallocManaged(&managed, BYTES));
    for (unsigned *&c : cells) CHECK(cudaMalloc(&c, BYTES));
    CHECK(cudaMalloc(&sums, BYTES));
    CHECK(cudaMemset(sums, 0, BYTES));
    CHECK(cudaMalloc(&table, 2 * sizeof(unsigned *)));
    unsigned *const own = registered(), *const named = registered();
    // Only this says that the GPU uses the second one.
    unsigned *const rows[2] = {own, named};
    CHECK(cudaMemcpy(table, rows, sizeof rows, cudaMemcpyHostToDevice));
    std::memset(pinned, 0, BYTES);
    std::memset(managed, 0, BYTES);
    volatile unsigned *flag;
    {
        unsigned *at;
        CHECK(cudaMallocHost(&at, sizeof *at));
        flag = at;
    }
    *flag = 0;
    constexpr size_t MAX_BYTES = 100 << 10;
    unsigned *wide;
    CHECK(cudaMalloc(&wide, MAX_BYTES));
    std::vector<unsigned> source(MAX_BYTES / sizeof(unsigned));
    cudaStream_t a, b;
    CHECK(cudaStreamCreate(&a));
    CHECK(cudaStreamCreate(&b));
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned> of_pinned(CELLS, 0), of_managed(CELLS, 0), of_own(CELLS, 0), of_sums(CELLS, 0), pageable(CELLS), of_cells[3], of_other, of_named(CELLS);
    for (long round = 0; round < options.steps; round++) {
        const unsigned n = static_cast<unsigned>(program::mix(round));
        auto late = [&](cudaStream_t stream, unsigned *what, std::vector<unsigned> &here, unsigned m) {
            program::linger<<<1, 1, 0, stream>>>(100000);
            next<<<1, CELLS, 0, stream>>>(what, m);
            CHECK_LAUNCH();
            next_here(here.data(), m);
        };
        // A copy that waits follows all blocking streams.
        late(a, pinned, of_pinned, n);
        CHECK(cudaMemcpy(cells[0], pinned, BYTES, cudaMemcpyHostToDevice));
        of_cells[0] = of_pinned;
        report.expect_device("pinned, copy that waits", cells[0], of_pinned.data(), BYTES);
        // So does any copy in the legacy stream, and they follow that.
        late(a, managed, of_managed, n + 1);
        CHECK(cudaMemcpyAsync(cells[1], managed, BYTES, cudaMemcpyDefault, cudaStreamLegacy));
        CHECK(cudaDeviceSynchronize());
        of_cells[1] = of_managed;
        report.expect_device("managed, copy in the legacy stream", cells[1], of_managed.data(), BYTES);
        late(cudaStreamLegacy, managed, of_managed, n + 2);
        CHECK(cudaMemcpyAsync(cells[2], managed, BYTES, cudaMemcpyDefault, b));
        CHECK(cudaDeviceSynchronize());
        of_cells[2] = of_managed;
        report.expect_device("managed, copy behind the legacy stream", cells[2], of_managed.data(), BYTES);
        // Inside the host's memory nothing is left to do when the call returns.
        late(a, pinned, of_pinned, n + 3);
        CHECK(cudaMemcpyAsync(other, pinned, BYTES, cudaMemcpyDefault, a));
        of_other = of_pinned;
        report.expect("pinned to pinned", other, of_pinned.data(), BYTES);
        // Managed memory could as well be the GPU's: pageable memory is read at once, and written there in the stream's order.
        for (int i = 0; i < CELLS; i++) pageable[i] = n * i;
        late(a, managed, of_managed, n + 4);
        CHECK(cudaMemcpyAsync(managed, pageable.data(), BYTES, cudaMemcpyDefault, a));
        of_managed = pageable;
        std::fill(pageable.begin(), pageable.end(), 7u);
        next<<<1, CELLS, 0, a>>>(managed, n + 5);
        CHECK_LAUNCH();
        next_here(of_managed.data(), n + 5);
        // Registered memory, by its own address and by a table.
        late(a, own, of_own, n + 6);
        CHECK(cudaStreamSynchronize(a));
        report.expect("managed, from pageable", managed, of_managed.data(), BYTES);
        report.expect("registered", own, of_own.data(), BYTES);
        for (int i = 0; i < CELLS; i++) named[i] = of_named[i] = n ^ i;
        follow<<<1, CELLS, 0, b>>>(sums, table, 2);
        CHECK_LAUNCH();
        CHECK(cudaStreamSynchronize(b));
        for (int i = 0; i < CELLS; i++) of_sums[i] += of_own[i] + (n ^ i);
        report.expect_device("sums", sums, of_sums.data(), BYTES);
        // A copy that waits reads pageable memory when its turn has come: behind a kernel that waits for another thread, which changes
        // that memory first.
        if (round % 4 == 0) {
            const size_t bytes = round % 8 == 0 ? BYTES : MAX_BYTES;
            std::fill(source.begin(), source.end(), 1u);
            await<<<1, 1, 0, round % 3 == 0 ? a : cudaStreamLegacy>>>(const_cast<unsigned *>(flag), n | 1);
            CHECK_LAUNCH();
            std::thread later([&] {
                usleep(2000);
                std::fill(source.begin(), source.end(), n);
                __sync_synchronize();
                *flag = n | 1;
            });
            CHECK(cudaMemcpy(wide, source.data(), bytes, cudaMemcpyHostToDevice));
            later.join();
            report.expect_device("pageable, copy behind a kernel that waits", wide, source.data(), bytes);
            CHECK(cudaDeviceSynchronize());
            *flag = 0;
        }
        options.pace();
    }
    // All of it once more: moves may have come since.
    for (int c = 0; c < 3; c++)
        if (!of_cells[c].empty()) report.expect_device("cells", cells[c], of_cells[c].data(), BYTES);
    if (!of_other.empty()) report.expect("other", other, of_other.data(), BYTES);
    report.expect("pinned", pinned, of_pinned.data(), BYTES);
    report.expect("managed", managed, of_managed.data(), BYTES);
    report.expect("registered", own, of_own.data(), BYTES);
    if (options.steps > 0) report.expect("named", named, of_named.data(), BYTES);
    report.expect_device("sums", sums, of_sums.data(), BYTES);
    report.line("host", "pinned", pinned, BYTES);
    report.line("host", "managed", managed, BYTES);
    report.line("host", "registered", own, BYTES);
    report.allocation("sums", sums, BYTES);
    for (unsigned *r : rows) CHECK(cudaHostUnregister(r));
    for (unsigned *c : cells) CHECK(cudaFree(c));
    CHECK(cudaFreeHost(const_cast<unsigned *>(flag)));
    CHECK(cudaFree(wide));
    CHECK(cudaFree(sums));
    CHECK(cudaFree(table));
    CHECK(cudaFree(managed));
    CHECK(cudaFreeHost(other));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
    bystanders.end(report);
    return report.finish();
}
