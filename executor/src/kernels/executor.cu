// The executor's own device code: page hashes and their comparison, comparison of pages, raw copies, many small copies, changes
// of mirrored memory.
//
//   nvcc -arch=compute_75 -ptx -O3 executor.cu -o executor.ptx && sed -i 's/^.version .*/.version 7.8/' executor.ptx
//
// (nvcc 13.0.88; the lower version lets older drivers compile it, nothing newer is used.) The result is committed and must
// be made anew when this file changes.

typedef unsigned int u32;
typedef unsigned long long u64;

struct Page {
    u64 address;
    u64 bytes;
};

// Memory of this place, and memory of another place or of the host that the GPU has mapped. All numbers are multiples of 16.
struct Pair {
    u64 here;
    u64 there;
    u64 bytes;
};

#define THREADS 256

// Holds the page that small variables share, from before the job's first module to the end (docs/migration.md, "Preparing a place").
__device__ u32 mrcuda_anchor;

// The page hash: NH with 32-bit words, four passes, 256 bits. docs/page-hash.md has the definition, the bound and its proof;
// executor/src/page_hash.rs is the same function for the host.
#define HASH_THREADS 128
#define PASSES 4
// Each thread takes four words of a row, so the keys of one pass are those of the pass before, one row on.
#define ROW_BYTES (16 * HASH_THREADS)
#define PAGE_BYTES 65536
#define ROWS (PAGE_BYTES / ROW_BYTES)
// Rows that are loaded before the first is used.
#define AHEAD 8

struct Hash {
    u64 sums[PASSES];
};

// The key of the launches that follow in the stream that wrote it.
__device__ uint4 mrcuda_page_key[(ROWS + PASSES - 1) * HASH_THREADS];

static __device__ __forceinline__ void add_product(u64 &sum, u32 a, u32 b) {
    asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
}

// Four words, two pairs. The second pair is beyond the end of some last pieces of a page.
static __device__ __forceinline__ void add_piece(u64 &sum, uint4 w, uint4 key, bool second = true) {
    add_product(sum, w.x + key.x, w.y + key.y);
    if (second) add_product(sum, w.z + key.z, w.w + key.w);
}

// Data passes by the first-level cache, which is for the key.
static __device__ __forceinline__ uint4 load_once(const uint4 *from) {
    uint4 w;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(from));
    return w;
}

static __device__ u32 word(const unsigned char *from, u64 bytes) {
    u32 word = 0;
    for (u32 i = 0; i < 4 && i < bytes; i++) word |= (u32)from[i] << (8 * i);
    return word;
}

// A whole, aligned page.
static __device__ __forceinline__ void hash_whole(const uint4 *at, const uint4 *key, u64 sums[PASSES]) {
    uint4 k0 = __ldg(key), k1 = __ldg(key + HASH_THREADS), k2 = __ldg(key + 2 * HASH_THREADS);
#pragma unroll 1
    for (u32 row = 0; row < ROWS; row += AHEAD) {
        uint4 w[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) w[i] = load_once(at + (row + i) * HASH_THREADS);
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            uint4 k3 = __ldg(key + (row + i + 3) * HASH_THREADS);
            add_piece(sums[0], w[i], k0);
            add_piece(sums[1], w[i], k1);
            add_piece(sums[2], w[i], k2);
            add_piece(sums[3], w[i], k3);
            k0 = k1, k1 = k2, k2 = k3;
        }
    }
}

// A page of any length at any address. The value depends on the bytes and their number alone.
static __device__ void hash_part(Page page, u32 thread, const uint4 *key, u64 sums[PASSES]) {
#pragma unroll 1
    for (u64 offset = 16 * thread; offset < page.bytes; offset += ROW_BYTES) {
        const unsigned char *from = (const unsigned char *)page.address + offset;
        const u64 left = page.bytes - offset;
        uint4 w;
        if (left >= 16 && page.address % 16 == 0) {
            w = *(const uint4 *)from;
        } else {
            w.x = word(from, left);
            w.y = left > 4 ? word(from + 4, left - 4) : 0;
            w.z = left > 8 ? word(from + 8, left - 8) : 0;
            w.w = left > 12 ? word(from + 12, left - 12) : 0;
        }
        const uint4 *k = key + offset / ROW_BYTES * HASH_THREADS;
#pragma unroll
        for (u32 pass = 0; pass < PASSES; pass++) add_piece(sums[pass], w, __ldg(k + pass * HASH_THREADS), left > 8);
    }
}

// Memory whose pages have numbers: those of a range follow those of the one before.
struct Range {
    u64 address;
    u64 bytes;
    // Number of its first page among the pages of the launch, and its place in the table of hashes.
    u32 first;
    u32 slot;
};

#define RANGES 4096

// The ranges of the launch that follows in the stream that wrote them.
__device__ Range mrcuda_ranges[RANGES];

// The range of a page: the last one whose first page is not behind it.
static __device__ __forceinline__ Range range_of(u32 page, u32 ranges) {
    u32 low = 0;
    for (u32 high = ranges; high - low > 1;) {
        const u32 middle = (low + high) / 2;
        if (__ldg(&mrcuda_ranges[middle].first) <= page) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return mrcuda_ranges[low];
}

// Hashes of the pages from `from` to `end` of ranges, PAGE_BYTES each but the last of a range. Each block takes one page after the other.
extern "C" __global__ void __launch_bounds__(HASH_THREADS, 6) mrcuda_hash(u32 ranges, u32 from, u32 end, Hash *hashes) {
    __shared__ u64 parts[2][HASH_THREADS / 32][PASSES];
    const u32 thread = threadIdx.x;
    const uint4 *key = mrcuda_page_key + thread;
    u32 half = 0;
    for (u32 p = from + blockIdx.x; p < end; p += gridDim.x, half ^= 1) {
        const Range range = range_of(p, ranges);
        const u64 offset = (u64)(p - range.first) * PAGE_BYTES, left = range.bytes - offset;
        const Page page = {range.address + offset, left < PAGE_BYTES ? left : PAGE_BYTES};
        u64 sums[PASSES] = {0, 0, 0, 0};
        if (page.bytes == PAGE_BYTES && page.address % 16 == 0) {
            hash_whole((const uint4 *)page.address + thread, key, sums);
        } else {
            hash_part(page, thread, key, sums);
        }
#pragma unroll
        for (u32 distance = 16; distance; distance /= 2) {
#pragma unroll
            for (u32 pass = 0; pass < PASSES; pass++) sums[pass] += __shfl_xor_sync(~0u, sums[pass], distance);
        }
        if (thread % 32 == 0) {
#pragma unroll
            for (u32 pass = 0; pass < PASSES; pass++) parts[half][thread / 32][pass] = sums[pass];
        }
        // One barrier a page: the other half of `parts` is still being read by those who are late.
        __syncthreads();
        if (thread < PASSES) {
            u64 sum = page.bytes;
#pragma unroll
            for (u32 warp = 0; warp < HASH_THREADS / 32; warp++) sum += parts[half][warp][thread];
            hashes[range.slot + (p - range.first)].sums[thread] = sum;
        }
    }
}

// Compares two tables of hashes: bit p of `bits` says whether page p is another one in `theirs`. A hash of zeros there is that of a page
// that does not exist, which is left alone. A warp takes 32 pages; those behind the last are equal.
extern "C" __global__ void __launch_bounds__(THREADS) mrcuda_differ(const ulonglong2 *ours, const ulonglong2 *theirs, u32 pages, u32 *bits) {
    const u32 lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
    for (u32 word = (blockIdx.x * THREADS + threadIdx.x) / 32; word < (pages + 31) / 32; word += warps) {
        u32 differs = 0;
        // The tables lie in the host's memory, so neighbours read what is next to each other: two lanes for each page.
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 page = word * 32 + half * 16 + lane / 2;
            bool other = false, exists = false;
            if (page < pages) {
                const ulonglong2 a = ours[2 * (u64)page + lane % 2], b = theirs[2 * (u64)page + lane % 2];
                other = a.x != b.x || a.y != b.y;
                exists = (b.x | b.y) != 0;
            }
            u32 others = __ballot_sync(~0u, other), existing = __ballot_sync(~0u, exists);
            others |= others >> 1, existing |= existing >> 1;
            // Every second bit counts: the one of this lane is that of the page `lane` of the half.
            const bool mine = lane < 16 && (others & existing) >> (2 * lane) & 1;
            differs |= __ballot_sync(~0u, mine) << (16 * half);
        }
        if (lane == 0) bits[word] = differs;
    }
}

// Compares both sides of pairs: one block for each. Sets its word of `differs` to 1 where they differ, and leaves it alone otherwise.
extern "C" __global__ void __launch_bounds__(THREADS) mrcuda_compare(const Pair *pairs, u32 *differs) {
    const Pair pair = pairs[blockIdx.x];
    const uint4 *ours = (const uint4 *)pair.here, *theirs = (const uint4 *)pair.there;
    const u64 whole = pair.bytes / 16;
    u32 difference = 0;
#pragma unroll 4
    for (u64 i = threadIdx.x; i < whole; i += THREADS) {
        const uint4 a = ours[i], b = theirs[i];
        difference |= (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w);
    }
    if (difference) differs[blockIdx.x] = 1;
}

// Copies bytes that the driver's own copies refuse (the device heap). Either side may be pinned host memory.
extern "C" __global__ void __launch_bounds__(THREADS) mrcuda_copy(unsigned char *to, const unsigned char *from, u64 bytes) {
    const u64 all = (u64)gridDim.x * THREADS, first = (u64)blockIdx.x * THREADS + threadIdx.x;
    u64 done = 0;
    if ((((u64)to | (u64)from) & 15) == 0) {
        const u64 whole = bytes / 16;
        for (u64 i = first; i < whole; i += all) ((ulonglong2 *)to)[i] = ((const ulonglong2 *)from)[i];
        done = whole * 16;
    }
    for (u64 i = done + first; i < bytes; i += all) to[i] = from[i];
}

// Copies pairs: one block for each. `out`: from here to there.
extern "C" __global__ void __launch_bounds__(THREADS) mrcuda_pieces(const Pair *pairs, u32 out) {
    const Pair pair = pairs[blockIdx.x];
    ulonglong2 *to = (ulonglong2 *)(out ? pair.there : pair.here);
    const ulonglong2 *from = (const ulonglong2 *)(out ? pair.here : pair.there);
    const u64 whole = pair.bytes / 16;
    u64 i = threadIdx.x;
#pragma unroll 1
    for (; i + 3 * THREADS < whole; i += 4 * THREADS) {
        ulonglong2 w0 = from[i], w1 = from[i + THREADS], w2 = from[i + 2 * THREADS], w3 = from[i + 3 * THREADS];
        to[i] = w0;
        to[i + THREADS] = w1;
        to[i + 2 * THREADS] = w2;
        to[i + 3 * THREADS] = w3;
    }
#pragma unroll 1
    for (; i < whole; i += THREADS) to[i] = from[i];
}

// A line of memory in a message of changes (executor/src/host_mirror/line.rs): a bit of the mask for each byte that has changed.
struct Line {
    u64 address;
    u64 mask;
    u64 words[8];
};

// A word of a line; writes only the bytes whose bits are set.
static __device__ __forceinline__ void put(u64 to, u64 word, u32 bits) {
    if (bits == 0xff) {
        *(u64 *)to = word;
        return;
    }
    for (u32 byte = 0; byte < 8; byte++) {
        if (bits >> byte & 1) ((unsigned char *)to)[byte] = (unsigned char)(word >> (8 * byte));
    }
}

// Writes the changed bytes of lines, no two of which have the same address, to memory and to the copy of it that is `agreed` bytes behind it.
// One block, so that it has either started or not. Behind a kernel that fills the GPU it can be called off (executor/src/executor/state/gpu_blocks.rs):
// it says that it has started before it asks whether it still may, so the host learns of the one or it learns of the other.
#define STARTED 1
#define WRITTEN 2
extern "C" __global__ void __launch_bounds__(1024) mrcuda_patch(const Line *lines, u32 count, u64 agreed, volatile u32 *far, volatile u32 *may) {
    __shared__ u32 goes;
    if (threadIdx.x == 0) {
        *far = STARTED;
        __threadfence_system();
        goes = *may;
        if (!goes) *far = 0;
    }
    __syncthreads();
    if (!goes) return;
    for (u32 i = threadIdx.x; i < 8 * count; i += blockDim.x) {
        const Line *line = lines + i / 8;
        const u32 bits = (u32)(line->mask >> (8 * (i % 8))) & 0xff;
        // Loaded at once with the mask, which takes as long as a word alone.
        const u64 to = line->address + 8 * (i % 8), word = line->words[i % 8];
        if (!bits) continue;
        put(to, word, bits);
        put(to + agreed, word, bits);
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *far = WRITTEN;
}
