// The page hash on a GPU: equal to the host's (docs/page-hash.md), and how fast. Built with nvcc alone:
//   nvcc -O3 -arch=native -o hash hash.cu
#include "../../../executor/src/kernels/executor.cu"
#include "check.cuh"
#include <algorithm>
#include <vector>

static const u32 KEY_WORDS = sizeof(mrcuda_page_key) / 4, SHIFT = 4 * HASH_THREADS, AT_ONCE = 32768;

// Writes ranges, and returns the number of their pages.
static u32 set_ranges(std::vector<Range> ranges) {
    u32 pages = 0;
    for (Range &r : ranges) r.first = r.slot = pages, pages += (r.bytes + PAGE_BYTES - 1) / PAGE_BYTES;
    CHECK(cudaMemcpyToSymbol(mrcuda_ranges, ranges.data(), sizeof(Range) * ranges.size()));
    return pages;
}

static u64 state = 88172645463325252;
static u64 random_word() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

// The definition, written out.
static Hash reference(const unsigned char *page, u64 bytes, const std::vector<u32> &key) {
    auto word = [&](u64 i) {
        u32 w = 0;
        for (u64 b = 4 * i; b < 4 * i + 4 && b < bytes; b++) w |= (u32)page[b] << (8 * (b % 4));
        return w;
    };
    Hash hash;
    for (u32 t = 0; t < PASSES; t++) {
        u64 sum = bytes;
        for (u64 i = 0; 8 * i < bytes; i++) {
            u32 a = word(2 * i) + key[2 * i + SHIFT * t], b = word(2 * i + 1) + key[2 * i + 1 + SHIFT * t];
            sum += (u64)a * b;
        }
        hash.sums[t] = sum;
    }
    return hash;
}

static void set_key(std::vector<u32> key) { CHECK(cudaMemcpyToSymbol(mrcuda_page_key, key.data(), 4 * KEY_WORDS)); }

static void compare_with_host(Hash *hashes) {
    const u32 bytes = 4 << 20;
    std::vector<unsigned char> host(bytes);
    for (auto &b : host) b = random_word() >> 20;
    unsigned char *device;
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice));
    u32 wrong = 0, all = 0;
    for (int round = 0; round < 4; round++) {
        std::vector<u32> key(KEY_WORDS);
        for (auto &k : key) k = round == 0 ? (u32)(&k - key.data()) * 0x9E3779B9u : (u32)random_word();
        set_key(key);
        const u32 count = 2000;
        std::vector<u32> at(count);
        std::vector<Range> pages(count);
        for (u32 i = 0; i < count; i++) {
            u32 length = i < 40 ? i + 1 : i % 3 == 0 ? PAGE_BYTES : 1 + random_word() % PAGE_BYTES;
            at[i] = random_word() % (bytes - PAGE_BYTES) & (i % 2 ? ~15u : ~0u);
            pages[i] = {(u64)device + at[i], length};
        }
        std::vector<Hash> want;
        for (u32 i = 0; i < count; i++) want.push_back(reference(&host[at[i]], pages[i].bytes, key));
        set_ranges(pages);
        // In one launch, and in two: each page belongs to its place in the table, whichever launch hashes it.
        const u32 part = 1 + random_word() % (count - 1);
        for (u32 end : {count, part}) {
            std::fill(hashes, hashes + count, Hash());
            mrcuda_hash<<<792, HASH_THREADS>>>(count, 0, end, hashes);
            if (end < count) mrcuda_hash<<<792, HASH_THREADS>>>(count, end, count, hashes);
            CHECK(cudaGetLastError());
            CHECK(cudaDeviceSynchronize());
            for (u32 i = 0; i < count; i++, all++) {
                for (u32 t = 0; t < PASSES; t++) wrong += hashes[i].sums[t] != want[i].sums[t];
            }
        }
    }
    printf("| h1  | %u hashes of pages, aligned and not, 1 to 65,536 bytes, 4 keys, in one launch and in two | %s |\n", all, wrong ? "WRONG" : "those of the host");
    CHECK(cudaFree(device));
}

// Tables with known differences, of numbers of pages around those of half a warp and of a warp, and of more than the blocks take at once.
static void compare_known_tables() {
    const u32 most = 70001, words = (most + 31) / 32;
    Hash *ours, *theirs;
    u32 *bits;
    CHECK(cudaMallocHost(&ours, sizeof(Hash) * most));
    CHECK(cudaMallocHost(&theirs, sizeof(Hash) * most));
    CHECK(cudaMallocHost(&bits, sizeof(u32) * (words + 1)));
    u32 wrong = 0, all = 0;
    for (u32 count : {1u, 15u, 16u, 17u, 31u, 32u, 33u, 1000u, most}) {
        std::vector<bool> want(count);
        for (u32 p = 0; p < count; p++, all++) {
            for (u64 &sum : ours[p].sums) sum = random_word();
            theirs[p] = ours[p];
            const u32 sum = random_word() % PASSES, kind = (random_word() >> 20) % 4;
            // Equal; one bit differs; does not exist there, which is no difference; exists there, with zeros in all sums but one.
            if (kind == 1) theirs[p].sums[sum] ^= 1ull << (random_word() >> 20) % 64;
            if (kind >= 2) theirs[p] = Hash();
            if (kind == 3) theirs[p].sums[sum] = 1;
            want[p] = kind == 1 || kind == 3;
        }
        std::fill(bits, bits + words + 1, ~0u);
        mrcuda_differ<<<std::min<u32>((count + THREADS - 1) / THREADS, 64), THREADS>>>((ulonglong2 *)ours, (ulonglong2 *)theirs, count, bits);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        const u32 written = (count + 31) / 32;
        for (u32 p = 0; p < 32 * written; p++) wrong += (bits[p / 32] >> p % 32 & 1) != (p < count && want[p] ? 1u : 0u);
        wrong += bits[written] != ~0u;
    }
    printf("| h7  | differences between tables of %u hashes in all | %s |\n", all, wrong ? "WRONG" : "the known ones");
    CHECK(cudaFreeHost(ours));
    CHECK(cudaFreeHost(theirs));
    CHECK(cudaFreeHost(bits));
}

__global__ void __launch_bounds__(512) read_only(const Page *pages, u32 *never) {
    const uint4 *at = (const uint4 *)pages[blockIdx.x].address + threadIdx.x;
    u32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        uint4 w = at[i * 512];
        sum ^= w.x ^ w.y ^ w.z ^ w.w;
    }
    if (sum == 0x12345678) *never = sum;
}

template <typename Launch> static double terabytes(u64 bytes, u32 count, Launch launch) {
    std::vector<float> times;
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int i = 0; i < 11; i++) {
        CHECK(cudaEventRecord(from));
        for (u32 first = 0; first < count; first += AT_ONCE) launch(first, std::min(AT_ONCE, count - first));
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return bytes / times[times.size() / 2] / 1e9;
}

int main() {
    const u64 bytes = 16ull << 30;
    const u32 count = bytes / PAGE_BYTES;
    Page *pages;
    Hash *hashes;
    CHECK(cudaMallocHost(&pages, sizeof(Page) * count));
    CHECK(cudaMallocHost(&hashes, sizeof(Hash) * count));
    compare_with_host(hashes);
    compare_known_tables();

    unsigned char *memory;
    u32 *differs;
    int processors;
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMallocHost(&differs, 4 * count));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    std::vector<u32> noise(1 << 20);
    for (auto &n : noise) n = random_word();
    for (u64 at = 0; at < bytes; at += 4 * noise.size()) CHECK(cudaMemcpy(memory + at, noise.data(), 4 * noise.size(), cudaMemcpyHostToDevice));
    u32 ranges;
    auto hash = [&](u32 first, u32 n) { mrcuda_hash<<<std::min<u32>(n, 6 * processors), HASH_THREADS>>>(ranges, first, first + n, hashes); };
    auto read = [&](u32 first, u32 n) { read_only<<<n, 512>>>(pages + first, differs); };
    for (u32 i = 0; i < count; i++) pages[i] = {(u64)memory + (u64)i * PAGE_BYTES, PAGE_BYTES};
    printf("| h2  | reading 16 GiB, TB/s | %.2f |\n", terabytes(bytes, count, read));
    for (u32 n : {1, 128, 4096}) {
        std::vector<Range> parts;
        for (u32 i = 0; i < n; i++) parts.push_back({(u64)memory + bytes / n * i, bytes / n});
        set_ranges(parts);
        ranges = n;
        printf("| h3  | hashing 16 GiB in %u ranges, TB/s | %.2f |\n", n, terabytes(bytes, count, hash));
    }
    // A table against itself.
    auto differ = [&](u32 first, u32 n) {
        mrcuda_differ<<<n / THREADS, THREADS>>>((ulonglong2 *)(hashes + first), (ulonglong2 *)(hashes + first), n, differs + first / 32);
    };
    printf("| h6  | comparing two tables of the host's memory, TB/s of the memory that they are about | %.2f |\n", terabytes(bytes, count, differ));
    // Half of the memory against the other half.
    Pair *pairs;
    CHECK(cudaMallocHost(&pairs, sizeof(Pair) * count / 2));
    for (u32 i = 0; i < count / 2; i++) pairs[i] = {pages[i].address, pages[i].address + bytes / 2, PAGE_BYTES};
    auto compare = [&](u32 first, u32 n) { mrcuda_compare<<<n, THREADS>>>(pairs + first, differs + first); };
    printf("| h4  | comparing 8 GiB with 8 GiB of the same GPU, TB/s read | %.2f |\n", terabytes(bytes, count / 2, compare));
    std::vector<Range> cached;
    for (u32 i = 0; i < 1024; i++) cached.push_back({(u64)memory, 256 * PAGE_BYTES});
    set_ranges(cached);
    ranges = 1024;
    printf("| h5  | hashing 16 MiB 1,024 times, out of the second-level cache, TB/s: what arithmetic allows | %.2f |\n", terabytes(bytes, count, hash));
    CHECK(cudaGetLastError());
}
