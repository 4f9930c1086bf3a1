// Finds the device heap. A module of its own: loading code that allocates changes what a context holds, so it is loaded only
// before the first of the job's modules that allocates.
//
//   nvcc -arch=compute_75 -ptx -O3 heap.cu -o heap.ptx && sed -i 's/^.version .*/.version 7.8/' heap.ptx

typedef unsigned long long u64;

extern "C" __global__ void mrcuda_heap(u64 *first) {
    void *block = malloc(16);
    *first = (u64)block;
    free(block);
}
