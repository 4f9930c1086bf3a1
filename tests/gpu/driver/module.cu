// The module that the hardware tests load: built five times, K = 0..4, with variables and code of
// different sizes, so that the order of loading shows in where things land.
//
// `probe` reports addresses as device code sees them; the other kernels are tools.
typedef unsigned long long u64;
typedef int (*Op)(int);

#ifndef K
#error "build with -DK=0 .. 4"
#endif
#define WORDS (K == 0 ? 256 : K == 1 ? 16 << 10 : K == 2 ? 175 << 10 : K == 3 ? 768 << 10 : 4352 << 10)
#define CONSTANTS (16 << K)

extern "C" {
__device__ int counter = 100 + K;
__device__ float zeroed[WORDS];
__device__ int filled[64 << K] = {7, 7, 7};
__constant__ int constants[CONSTANTS] = {11, 12};
}
static __device__ int hidden = 200 + K;

struct Base {
    __device__ virtual int value(int x) { return x; }
};
struct Derived : Base {
    __device__ int value(int x) override { return x + K; }
};

__device__ __noinline__ int first_op(int x) { return x * 3 + K; }
__device__ __noinline__ int second_op(int x) { return x * 5 + K; }
__device__ Op ops[2] = {first_op, second_op};

__device__ __noinline__ int *counter_in_function() {
    static int calls = 300 + K;
    calls++;
    return &calls;
}
__device__ const char *text() { return "a string literal of the module"; }

// Addresses of everything that the driver places: out[0..11].
extern "C" __global__ void probe(u64 *out, int with_heap) {
    Derived object;
    Op op = second_op;
    int local;
    out[0] = (u64)&counter;
    out[1] = (u64)zeroed;
    out[2] = (u64)filled;
    out[3] = (u64)constants;
    out[4] = (u64)&hidden;
    out[5] = (u64)ops[0];
    out[6] = (u64)op;
    out[7] = *(u64 *)&object; // where the table of virtual functions is
    out[8] = (u64)counter_in_function();
    out[9] = (u64)text();
    out[10] = (u64)&local;
    out[11] = with_heap ? (u64)malloc(64) : 0;
    out[12] = (u64)ops[0](5) + (u64)constants[1] + (u64)hidden;
}

// Kernels that only matter for when their code is placed; the third is a big one.
extern "C" __global__ void second(u64 *out) { out[0] = (u64)second_op(4); }
extern "C" __global__ void third(u64 *out) {
    u64 x = out[1];
#pragma unroll
    for (int i = 0; i < 64 << K; i++) x = (x ^ (x >> 7)) * (2 * i + 1);
    out[0] = x;
}

// Runs for `ns` nanoseconds.
extern "C" __global__ void spin(u64 ns) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}

// Uses far more local memory than other kernels: the driver must make room for it.
extern "C" __global__ void deep(u64 *out, int n) {
    volatile char stack[100000];
    for (int i = 0; i < n; i++) stack[i * 7 % 100000] = i;
    out[0] = stack[n];
}

// Its depth is unknown to the compiler, so it gets the stack that the context's limit says.
__device__ __noinline__ int descend(int n, int *trail) {
    int here[4] = {n, n + 1, n + 2, n + 3};
    *trail += here[n & 3];
    return n <= 0 ? 0 : descend(n - 1, &here[n & 1]) + here[0] + here[1];
}
extern "C" __global__ void recurse(u64 *out, int n) {
    int trail = 0;
    out[0] = descend(n, &trail);
}

// Raw copy through generic addresses, which reaches what the driver's own copies refuse.
extern "C" __global__ void raw_copy(u64 *to, const u64 *from, u64 words) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) to[i] = from[i];
}

// Reads a constant through its own bank, as compiled code does.
extern "C" __global__ void read_constant(int *out, int index) { out[0] = constants[index]; }

// ---- Lists on the device heap ----

struct HeapNode {
    HeapNode *next;
    u64 value;
};
extern "C" {
__device__ HeapNode *heap_list;
}

extern "C" __global__ void heap_grow(int count) {
    for (int i = 0; i < count; i++) {
        HeapNode *node = (HeapNode *)malloc(sizeof(HeapNode) + i % 5 * 16);
        if (!node) return;
        node->value = i * 17 + 3;
        node->next = heap_list;
        heap_list = node;
    }
}

// out: nodes, sum of values, lowest and highest address.
extern "C" __global__ void heap_walk(u64 *out) {
    out[0] = out[1] = out[3] = 0;
    out[2] = ~0ull;
    for (HeapNode *node = heap_list; node; node = node->next) {
        out[0]++;
        out[1] += node->value;
        if ((u64)node < out[2]) out[2] = (u64)node;
        if ((u64)node > out[3]) out[3] = (u64)node;
    }
}

// Frees `count` nodes, then allocates as many; out: how many of each, then one big block's address.
extern "C" __global__ void heap_churn(int count, u64 *out) {
    out[0] = out[1] = 0;
    for (int i = 0; i < count && heap_list; i++) {
        HeapNode *node = heap_list;
        heap_list = node->next;
        free(node);
        out[0]++;
    }
    for (int i = 0; i < count; i++) {
        HeapNode *node = (HeapNode *)malloc(sizeof(HeapNode));
        if (!node) break;
        node->value = 1;
        node->next = heap_list;
        heap_list = node;
        out[1]++;
    }
    void *block = malloc(1 << 20);
    out[2] = (u64)block;
    free(block);
}

// Every thread allocates and frees, so that the allocator's own books are in a mixed state.
extern "C" __global__ void heap_stress() {
    void *blocks[8];
    for (int i = 0; i < 8; i++) blocks[i] = malloc(16 + (threadIdx.x * 7 + i * 40) % 300);
    for (int i = 7; i >= 0; i--) free(blocks[i]);
}

// Takes the heap's blocks of `size` bytes until there are no more, then gives all back; out: count,
// lowest address, highest end. `table` has room for `room` pointers.
extern "C" __global__ void heap_extent(u64 *out, u64 size, void **table, u64 room) {
    u64 count = 0;
    out[1] = ~0ull;
    out[2] = 0;
    while (count < room && (table[count] = malloc(size))) {
        u64 at = (u64)table[count++];
        if (at < out[1]) out[1] = at;
        if (at + size > out[2]) out[2] = at + size;
    }
    out[0] = count;
    for (u64 i = 0; i < count; i++) free(table[i]);
}
