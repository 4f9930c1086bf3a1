// Kernels of the interpreter's tests. kernels.ptx: nvcc -ptx -arch=compute_90 kernels.cu
#include <cassert>
#include <cooperative_groups.h>
#include <cstdio>
namespace cg = cooperative_groups;

struct Base {
    __device__ virtual int f(int x) { return x + 1; }
    __device__ virtual ~Base() {}
};
struct Derived : Base {
    int k;
    __device__ Derived(int k) : k(k) {}
    __device__ int f(int x) override { return x * k; }
};
typedef int (*Function)(int);
__device__ int plus10(int x) { return x + 10; }
__device__ int times10(int x) { return x * 10; }
__device__ Function table[2] = {plus10, times10};
__device__ const char *greeting = "hello";
__device__ int counter = 5;
__constant__ float coefficients[4] = {1.f, 2.f, 3.f, 4.f};
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
struct Record {
    int a;
    double d;
    char c[13];
};
__device__ __noinline__ Record change(Record s, int k) {
    s.a += k;
    s.d *= 2;
    s.c[k] = 1;
    return s;
}

extern "C" {
__global__ void vadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
__global__ void recursion(int *o) { o[threadIdx.x] = fib(threadIdx.x % 12); }
__global__ void pointers(int *o) { o[threadIdx.x] = table[threadIdx.x & 1](threadIdx.x); }
__global__ void virtuals(int *o) {
    Base b;
    Derived d(threadIdx.x);
    Base *p = threadIdx.x & 1 ? &b : (Base *)&d;
    o[threadIdx.x] = p->f(7);
}
__global__ void virtuals_on_heap(int *o) {
    Base *p = threadIdx.x & 1 ? new Base : (Base *)new Derived(3);
    o[threadIdx.x] = p->f(7);
    delete p;
}
__global__ void print(int n, double d, long long l, unsigned long long u) {
    printf("hi %d %f %lld %g %s %c %p %5.2f%% %llu\n", n, d, l, d, greeting, 'x', (void *)0x10, d, u);
}
__global__ void check(int n) { assert(n == 3); }
__global__ void reduce(const float *in, float *o, int n) {
    extern __shared__ float partial[];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += in[i];
    for (int k = 16; k; k >>= 1) v += __shfl_down_sync(~0u, v, k);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float s = 0;
        for (int i = 0; i < blockDim.x / 32; i++) s += partial[i];
        atomicAdd(o, s);
    }
}
__global__ void atomics(unsigned *a, float *f, double *d, unsigned long long *l) {
    unsigned t = threadIdx.x;
    atomicAdd(a, 1);
    atomicMax((int *)a + 1, (int)t - 100);
    atomicMin(a + 2, t);
    atomicAnd(a + 3, ~(1u << (t & 31)));
    atomicOr(a + 4, 1u << (t & 31));
    atomicXor(a + 5, t);
    atomicInc(a + 6, 6);
    atomicDec(a + 7, 6);
    if (atomicCAS(a + 8, 0, t + 1) == 0) atomicExch(a + 9, t + 1);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    atomicAdd(l, 1ull << 33);
    atomicMax(l + 1, (unsigned long long)t << 40);
}
__global__ void warp_ops(unsigned *o) {
    unsigned t = threadIdx.x;
    o[t] = __ballot_sync(~0u, t & 1);
    o[32 + t] = __any_sync(~0u, t == 3) + 2 * __all_sync(~0u, t < 31);
    o[64 + t] = __shfl_sync(~0u, t, 5) + __shfl_up_sync(~0u, t, 1) * 100;
    o[96 + t] = __shfl_xor_sync(~0u, t, 1, 8);
    o[128 + t] = __match_any_sync(~0u, t / 3);
    o[160 + t] = __reduce_add_sync(~0u, t) + __reduce_max_sync(~0u, t);
    // Both sides of a branch must meet in the shuffle.
    if (t < 16)
        o[192 + t] = __shfl_xor_sync(~0u, t * 10, 16);
    else
        o[192 + t] = __shfl_xor_sync(~0u, t * 1000, 16);
    if (t & 1) o[224 + t] = __activemask();
}
__global__ void block_ops(int *o) {
    int t = threadIdx.x;
    if (t == 77) return;
    o[t * 3] = __syncthreads_count(t & 1);
    o[t * 3 + 1] = __syncthreads_and(t >= 0);
    o[t * 3 + 2] = __syncthreads_or(t == 9);
}
__global__ void grid_sync(unsigned *o) {
    auto grid = cg::this_grid();
    atomicAdd(o, 1);
    grid.sync();
    if (threadIdx.x == 0) o[1 + blockIdx.x] = *(volatile unsigned *)o;
    grid.sync();
    if (grid.thread_rank() == 0) o[0] = 0;
}
__global__ void lock(int *mutex, int *sum) {
    // Lanes of one warp contend: needs progress of diverged lanes.
    while (atomicCAS(mutex, 0, 1) != 0) {}
    *(volatile int *)sum += 1;
    __threadfence();
    atomicExch(mutex, 0);
}
__global__ void handshake(volatile int *flag) {
    // The upper half of the warp waits for the lower half.
    if (threadIdx.x >= 16) {
        while (flag[threadIdx.x - 16] == 0) {}
        flag[threadIdx.x] = 2;
    } else {
        flag[threadIdx.x] = 1;
    }
}
__global__ void records(Record s, Record *o) { *o = change(s, s.a & 7); }
__global__ void indexed(Record s, int *o) { o[threadIdx.x] = s.c[threadIdx.x] + (int)coefficients[threadIdx.x & 3]; }
__global__ void locals(int *a, int k) {
    int t[32];
    for (int i = 0; i < 32; i++) t[i] = a[i];
    for (int i = 0; i < 32; i++) t[(i * k) & 31] += t[i];
    a[32 + threadIdx.x] = t[(k + threadIdx.x) & 31];
}
__global__ void jumps(int *a) {
    int t = threadIdx.x;
    switch (a[t]) {
        case 0: a[t] = 5; break;
        case 1: a[t] = t * 3; break;
        case 2: a[t] = plus10(t); break;
        case 3: a[t] ^= 64; break;
        case 4: a[t] = 11; break;
        case 5: a[t] = times10(t); break;
        case 6: a[t] = 3; break;
        default: __trap();
    }
}
__global__ void diverge(int *o, int n) {
    int t = threadIdx.x, s = 0;
    for (int i = 0; i < t; i++) {
        if (i % 3 == 0) continue;
        if (i > n) break;
        s += (i & 1) ? i * t : -i;
    }
    o[t] = s;
}
__global__ void globals(int *o) { o[0] = counter; counter = 9; o[1] = greeting[1]; }
__global__ void wide(unsigned long long a, unsigned long long b, unsigned long long *o) {
    unsigned __int128 q = (unsigned __int128)a * b + a;
    o[0] = (unsigned long long)(q >> 64);
    o[1] = (unsigned long long)q;
    q -= b;
    o[2] = (unsigned long long)(q >> 64);
    o[3] = (unsigned long long)(q << (b & 127));
    o[4] = a / (b | 1);
    o[5] = a % (b | 1);
}
__global__ void copy4(const float4 *a, float4 *b, const uchar4 *c, uchar4 *d) {
    b[threadIdx.x] = a[threadIdx.x];
    d[threadIdx.x] = make_uchar4(c[threadIdx.x].w, c[threadIdx.x].z, 0, 7);
}
__global__ void spin(volatile int *flag) { while (*flag == 0) {} }
}
