// The executor's own device code: page hashes, raw copies, pages of another place.
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

struct Hash {
    u64 low, high;
};

#define THREADS 256

// Holds the page that small variables share, from before the job's first module to the end (docs/placement.md).
__device__ u32 mrcuda_anchor;

// One step of an accumulator: for a given `h` different words give different results, and the other way round.
static __device__ __forceinline__ u64 mix(u64 h, u64 word) {
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 32);
}

static __device__ __forceinline__ void step(u64 &a, u64 &b, u64 x, u64 y) {
    a = mix(a, x);
    b = mix(b + a, y);
}

static __device__ u64 part(const unsigned char *from, u32 bytes) {
    u64 word = 0;
#pragma unroll 1
    for (u32 i = 0; i < bytes; i++) word |= (u64)from[i] << (8 * i);
    return word;
}

// 128-bit hashes of pages of any length at any address, one block for each. The value depends on the bytes and their number,
// not on the address: aligned and unaligned pages of the same bytes agree.
extern "C" __global__ void __launch_bounds__(THREADS) mrcuda_hash(const Page *pages, Hash *hashes) {
    const Page page = pages[blockIdx.x];
    const u32 thread = threadIdx.x;
    const u64 whole = page.bytes / 16;
    u64 a = (thread + 1) * 0xD6E8FEB86659FD93ull, b = ~a ^ page.bytes;
    if (page.address % 16 == 0) {
        const ulonglong2 *at = (const ulonglong2 *)page.address;
        u64 i = thread;
        for (; i + 3 * THREADS < whole; i += 4 * THREADS) {
            ulonglong2 w0 = at[i], w1 = at[i + THREADS], w2 = at[i + 2 * THREADS], w3 = at[i + 3 * THREADS];
            step(a, b, w0.x, w0.y);
            step(a, b, w1.x, w1.y);
            step(a, b, w2.x, w2.y);
            step(a, b, w3.x, w3.y);
        }
        for (; i < whole; i += THREADS) {
            ulonglong2 w = at[i];
            step(a, b, w.x, w.y);
        }
    } else {
        for (u64 i = thread; i < whole; i += THREADS) {
            const unsigned char *at = (const unsigned char *)page.address + 16 * i;
            step(a, b, part(at, 8), part(at + 8, 8));
        }
    }
    const u32 rest = (u32)(page.bytes % 16);
    if (rest && thread == 0) {
        const unsigned char *at = (const unsigned char *)page.address + 16 * whole;
        step(a, b, part(at, rest < 8 ? rest : 8), rest > 8 ? part(at + 8, rest - 8) : 0);
    }
    __shared__ u64 low[THREADS], high[THREADS];
    low[thread] = a;
    high[thread] = b;
    __syncthreads();
    for (u32 half = THREADS / 2; half; half /= 2) {
        if (thread < half) {
            a = low[thread] * 3;
            b = high[thread] * 5;
            step(a, b, low[thread + half], high[thread + half]);
            low[thread] = a;
            high[thread] = b;
        }
        __syncthreads();
    }
    if (thread == 0) {
        hashes[blockIdx.x].low = low[0];
        hashes[blockIdx.x].high = high[0];
    }
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

// Fetches pages of another place whose memory is mapped here, `distance` bytes behind ours: one block for each. Addresses and sizes are
// multiples of 16.
extern "C" __global__ void __launch_bounds__(THREADS) mrcuda_fetch(const Page *pages, u64 distance) {
    const Page page = pages[blockIdx.x];
    ulonglong2 *to = (ulonglong2 *)page.address;
    const ulonglong2 *from = (const ulonglong2 *)(page.address + distance);
    const u64 whole = page.bytes / 16;
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
