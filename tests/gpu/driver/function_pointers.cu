// What function pointers are, and what a pointer from one module means in another one. Built as two objects, K = 0 and 1, without
// relocatable device code, so that each is a module of its own: nvcc -DK=0 -c, nvcc -DK=1 -c, linked together.
// Prints the pointers of both modules, what calls through them compute, and (with the argument "across") what calls through the other
// module's pointers compute.
#include <cstdio>
#include <cstring>

using Function = unsigned (*)(unsigned);

void values_of_1(unsigned long long *values);
cudaError_t call_in_1(const unsigned long long *pointers, unsigned *results);

// Module 0 takes pointers to three functions, module 1 to five.

#define FUNCTION(n) \
    static __device__ __noinline__ unsigned f##n(unsigned x) { return x * 1000 + K * 100 + n; }
FUNCTION(0)
FUNCTION(1)
FUNCTION(2)
FUNCTION(3)
FUNCTION(4)

static __device__ Function table[5] = {f0, f1, f2, K == 0 ? f2 : f3, K == 0 ? f2 : f4};

static __global__ void take(unsigned long long *values, int which) {
    Function in_code = which == 0 ? f0 : which == 1 ? f1 : f2;
    for (int i = 0; i < 5; i++) values[i] = reinterpret_cast<unsigned long long>(table[i]);
    values[5] = reinterpret_cast<unsigned long long>(in_code);
}

static __global__ void call(const unsigned long long *pointers, unsigned *results) {
    results[threadIdx.x] = reinterpret_cast<Function>(pointers[threadIdx.x])(threadIdx.x + 7);
}

static void values_of(unsigned long long *values) {
    unsigned long long *device;
    cudaMalloc(&device, 6 * sizeof *device);
    take<<<1, 1>>>(device, 1);
    cudaMemcpy(values, device, 6 * sizeof *device, cudaMemcpyDeviceToHost);
    cudaFree(device);
}

static cudaError_t call_in(const unsigned long long *pointers, unsigned *results) {
    unsigned long long *device;
    unsigned *out;
    cudaMalloc(&device, 3 * sizeof *device);
    cudaMalloc(&out, 3 * sizeof *out);
    cudaMemcpy(device, pointers, 3 * sizeof *device, cudaMemcpyHostToDevice);
    call<<<1, 3>>>(device, out);
    return cudaMemcpy(results, out, 3 * sizeof *out, cudaMemcpyDeviceToHost);
}

#if K == 1
void values_of_1(unsigned long long *values) { values_of(values); }
cudaError_t call_in_1(const unsigned long long *pointers, unsigned *results) { return call_in(pointers, results); }
#else
int main(int count, char **arguments) {
    unsigned long long own[6], other[6];
    unsigned results[3] = {};
    auto show = [&](const char *what, cudaError_t error) {
        std::printf("%s: %s %u %u %u\n", what, cudaGetErrorName(error), results[0], results[1], results[2]);
        std::memset(results, 0, sizeof results);
    };
    // The second module is loaded first.
    values_of_1(other);
    values_of(own);
    std::printf("module 0:");
    for (unsigned long long value : own) std::printf(" %#llx", value);
    std::printf("\nmodule 1:");
    for (unsigned long long value : other) std::printf(" %#llx", value);
    std::printf("\n");
    show("0 calls its own", call_in(own, results));
    show("1 calls its own", call_in_1(other, results));
    if (count > 1 && !std::strcmp(arguments[1], "across")) show("0 calls 1's last three", call_in(other + 2, results));
    return 0;
}
#endif
