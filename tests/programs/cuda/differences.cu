// Writers whose changes a weak sum over a page does not see: signs of neighbouring floats in lattices, bit 63 of two words in one lane,
// amounts that one word loses and another one gains, rows of counters, words and rows that change places, pages that become zero, and
// pages that change and change back. The host applies every change to a model of all the memory and compares all of it at the end.
//
// For some hundred steps a page's change is the same one: whoever compares the page with what it was before sees that change alone.
#include "program.cuh"
#include "until.cuh"

constexpr uint32_t PAGES = 16;
// What a move compares at a time, and the stride at which a block of 256 threads reads it, 16 bytes for each thread.
constexpr uint32_t PAGE_WORDS = 8192, ROW_WORDS = 512;
constexpr uint32_t EPOCH = 256;
constexpr int BLOCK = 32;
// Bytes of the last page, which is not whole.
constexpr uint32_t TAIL = 24 + 4096 * 5;

enum Writer {
    SIGNS_1024,
    SIGNS_512,
    SIGNS_2048,
    HIGH_BITS,
    ANY_BIT,
    EXCHANGES,
    SMALL_EXCHANGES,
    COUNTERS,
    SWAPS,
    MOVED_WORDS,
    ROTATED_ROWS,
    SWAPPED_ROWS,
    ZEROS,
    RETURNS,
    WRITERS
};

static const char *const NAMES[WRITERS] = {"signs_1024",  "signs_512", "signs_2048",   "high_bits",    "any_bit",      "exchanges", "small_exchanges",
                                           "counters",    "swaps",     "moved_words",  "rotated_rows", "swapped_rows", "zeros",     "returns"};

// Flips the signs of a few neighbouring floats in a lattice with rows of this width: shapes of two to four sites.
__host__ __device__ inline void flip_cluster(uint32_t *page, uint32_t words, uint32_t width, uint64_t random) {
    // Rows and columns of the sites; a shape of fewer than four repeats its last one.
    const unsigned char shapes[6][4][2] = {
        {{0, 1}, {1, 0}, {1, 1}, {1, 1}}, {{0, 0}, {1, 0}, {1, 1}, {1, 1}}, {{0, 0}, {0, 1}, {1, 1}, {1, 1}},
        {{0, 0}, {0, 1}, {1, 0}, {1, 1}}, {{0, 0}, {1, 0}, {1, 0}, {1, 0}}, {{0, 0}, {0, 1}, {0, 1}, {0, 1}},
    };
    const uint32_t rows = words / width, shape = random % 8 < 3 ? 0 : random % 6;
    const uint32_t row = (random >> 8) % (rows - 1), column = (random >> 24) % (width / 2) * 2;
    for (int i = 0; i < 4; i++) {
        const unsigned char *site = shapes[shape][i];
        if (i > 0 && site[0] == shapes[shape][i - 1][0] && site[1] == shapes[shape][i - 1][1]) break;
        page[(row + site[0]) * width + column + site[1]] ^= 0x80000000u;
    }
}

__host__ __device__ inline void swap(uint64_t &a, uint64_t &b) {
    const uint64_t was = a;
    a = b, b = was;
}

// One change of a page of so many words. `again`: whether it is the second of two changes that cancel each other.
__host__ __device__ inline void change(int writer, uint64_t *page, uint32_t words, uint64_t random, bool again) {
    const uint32_t rows = words / ROW_WORDS, lane = (random >> 8) % ROW_WORDS;
    const uint32_t row = (random >> 24) % (rows - 1), far = row + 1 + (random >> 40) % (rows - 1 - row);
    // Most often two rows that follow each other.
    const uint32_t other = random % 4 == 0 ? far : row + 1;
    uint64_t &one = page[row * ROW_WORDS + lane], &two = page[other * ROW_WORDS + lane];
    uint32_t *halves = reinterpret_cast<uint32_t *>(page);
    switch (writer) {
    case SIGNS_1024: return flip_cluster(halves, words * 2, 1024, random);
    case SIGNS_512: return flip_cluster(halves, words * 2, 512, random);
    case SIGNS_2048: return flip_cluster(halves, words * 2, 2048, random);
    case HIGH_BITS:
        one ^= 1ull << 63;
        two ^= random >> 60 & 1 ? 1ull << 63 : 1ull << 63 | 1ull << 31;
        return;
    case ANY_BIT: {
        const uint64_t bit = 1ull << (random >> 52) % 64;
        one ^= bit;
        if (random >> 60 & 1) two ^= bit;
        return;
    }
    case EXCHANGES: {
        const uint64_t amount = again ? -(random >> 20) : random >> 20;
        one += amount, two -= amount;
        return;
    }
    case SMALL_EXCHANGES: {
        uint32_t *a = reinterpret_cast<uint32_t *>(&one), *b = reinterpret_cast<uint32_t *>(&two);
        const uint32_t amount = again ? -1u : 1u;
        a[random >> 60 & 1] += amount, b[random >> 61 & 1] -= amount;
        return;
    }
    case COUNTERS:
        for (uint32_t i = lane / 16 * 16, end = i + 16; i < end; i++) page[row * ROW_WORDS + i]++, page[other * ROW_WORDS + i]--;
        return;
    case SWAPS: return swap(one, random >> 60 & 1 ? two : page[row * ROW_WORDS + (lane ^ 1)]);
    case MOVED_WORDS:
        // A word leaves a hole behind, or comes back to it.
        if (again) one = two, two = 0;
        else two = one, one = 0;
        return;
    case ROTATED_ROWS: {
        uint64_t *at = page + row * ROW_WORDS;
        const uint64_t first = at[0];
        for (uint32_t i = 0; i + 1 < ROW_WORDS; i++) at[i] = at[i + 1];
        at[ROW_WORDS - 1] = first;
        return;
    }
    case SWAPPED_ROWS:
        for (uint32_t i = 0; i < ROW_WORDS; i += 4) swap(page[row * ROW_WORDS + i], page[other * ROW_WORDS + i]);
        return;
    case ZEROS:
        // Only few words of such a page are not zero.
        one = again ? 0 : random;
        if (random >> 60 & 1) two = again ? 0 : random;
        return;
    default:
        one = ~one;
        two = ~two;
    }
}

// Whether a page changes in a step, and how: the same for host and device.
__host__ __device__ inline void change_in(uint64_t step, int writer, uint64_t *memory, uint32_t page, uint64_t words) {
    const uint64_t first = uint64_t(page) * PAGE_WORDS;
    const uint32_t size = static_cast<uint32_t>(words - first < PAGE_WORDS ? words - first : PAGE_WORDS);
    const uint64_t random = program::mix(((step / EPOCH) << 20) + writer * 256 + page);
    // Changes that go one way only come in pairs of steps, the others in any of them.
    const bool paired = writer == EXCHANGES || writer == SMALL_EXCHANGES || writer == MOVED_WORDS || writer == ZEROS || writer == RETURNS;
    const uint64_t turn = step % EPOCH, period = 2 + random % 7;
    const bool now = paired ? turn % period == 0 && turn / period < EPOCH / period / 2 * 2 : program::mix(random + turn) & 1;
    if (now) change(writer, memory + first, size, random, turn / period % 2 == 1);
}

__global__ void write(int writer, uint64_t *memory, uint64_t words, uint64_t step) {
    const uint32_t page = blockIdx.x * BLOCK + threadIdx.x;
    if (page < PAGES) change_in(step, writer, memory, page, words);
}

struct Memory {
    uint64_t *device;
    std::vector<uint64_t> want;
    // Not every length is one of whole words.
    size_t bytes;
    cudaStream_t stream;
};

static uint64_t initial(int writer, uint64_t i) {
    const uint64_t random = program::mix(writer * 1000003ull + i);
    switch (writer) {
    case SIGNS_1024:
    case SIGNS_512:
    case SIGNS_2048: return 0x3F8000003F800000ull | (random & 0x8000000080000000ull);
    case SMALL_EXCHANGES:
    case COUNTERS: return random % 100;
    case ZEROS: return 0;
    default: return random;
    }
}

int main(int argc, char **argv) {
    const program::Until until(argc, argv);
    program::Options options(argc, argv, 400);
    program::Report report;
    program::Window window;
    cudaStream_t streams[2];
    for (cudaStream_t &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<Memory> all(WRITERS);
    for (int w = 0; w < WRITERS; w++) {
        Memory &m = all[w];
        // Every second one ends within a page, and some of these within a word.
        m.bytes = w % 2 == 0 ? PAGES * PAGE_WORDS * 8 : (PAGES - 1) * PAGE_WORDS * 8 + TAIL + w / 2 % 2 * 5;
        m.want.resize((m.bytes + 7) / 8);
        for (uint64_t i = 0; i < m.want.size(); i++) m.want[i] = initial(w, i);
        CHECK(cudaMalloc(&m.device, m.bytes));
        CHECK(cudaMemcpy(m.device, m.want.data(), m.bytes, cudaMemcpyHostToDevice));
        m.stream = streams[w % 2];
    }
    for (long step = 0; until.more(step, options.steps); step++) {
        for (int w = 0; w < WRITERS; w++) {
            Memory &m = all[w];
            const uint64_t words = m.bytes / 8;
            write<<<(PAGES + BLOCK - 1) / BLOCK, BLOCK, 0, m.stream>>>(w, m.device, words, step);
            CHECK_LAUNCH();
            for (uint32_t page = 0; page < PAGES; page++) change_in(step, w, m.want.data(), page, words);
        }
        window.round_done(streams[step % 2]);
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    for (int w = 0; w < WRITERS; w++) {
        report.expect_device(NAMES[w], all[w].device, all[w].want.data(), all[w].bytes);
        if (!until.told()) report.allocation(NAMES[w], all[w].device, all[w].bytes);
    }
    window.destroy();
    for (Memory &m : all) CHECK(cudaFree(m.device));
    for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
    return report.finish();
}
