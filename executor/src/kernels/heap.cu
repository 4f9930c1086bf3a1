// Finds the device heap. A module of its own: loading code that allocates changes what a context holds, so it is loaded only
// before the first of the job's modules that allocates.
//
//   nvcc -arch=compute_75 -ptx -O3 heap.cu -o heap.ptx && sed -i 's/^.version .*/.version 7.8/' heap.ptx

typedef unsigned long long u64;

// Fills the heap with blocks of a size, tells the lowest address and the end of the highest, and frees them again.
extern "C" __global__ void mrcuda_heap(u64 *found, u64 bytes) {
    u64 low = ~0ull, high = 0;
    void **last = 0;
    for (u64 size = 16;; size = bytes) {
        void **block = (void **)malloc(size);
        if (!block) break;
        *block = last;
        last = block;
        if ((u64)block < low) low = (u64)block;
        if ((u64)block + size > high) high = (u64)block + size;
    }
    while (last) {
        void **next = (void **)*last;
        free(last);
        last = next;
    }
    found[0] = low;
    found[1] = high;
}
