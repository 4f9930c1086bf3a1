// Many kernels in one image, for loads.c: built twice, K = 0 and 1, with the same size.
#ifndef K
#error "build with -DK=0 or 1"
#endif
#define KERNEL(n)                                                                      \
    extern "C" __global__ void k##n(float *x) {                                        \
        float s = x[threadIdx.x];                                                      \
        _Pragma("unroll") for (int i = 0; i < 60; i++) s = s * x[i] + x[i * 7 + 1##n + K]; \
        x[threadIdx.x] = s;                                                            \
    }
#define TEN(n) KERNEL(n##0) KERNEL(n##1) KERNEL(n##2) KERNEL(n##3) KERNEL(n##4) KERNEL(n##5) KERNEL(n##6) KERNEL(n##7) KERNEL(n##8) KERNEL(n##9)
TEN(0) TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9)
