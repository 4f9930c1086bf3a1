// For mix.cu: kernels on words, each with what the host computes instead.
#pragma once

#include "mix_differences.cuh"
#include "mix_memory.cuh"

#include <cooperative_groups.h>

namespace mix {

constexpr int BLOCK = 128, WIDE = 900;

struct Wide {
    uint32_t words[WIDE];
};

// A row of a table that the device follows.
struct Row {
    const uint32_t *words;
    uint64_t n;
};

__device__ inline int index() { return blockIdx.x * BLOCK + threadIdx.x; }

__global__ void scale(uint32_t *to, uint32_t n, uint32_t a, uint32_t b) {
    const uint32_t i = index();
    if (i < n) to[i] = to[i] * a + b;
}

__global__ void gather(uint32_t *to, uint32_t n, const uint32_t *from, uint32_t m, uint32_t a, uint32_t b) {
    const uint32_t i = index();
    if (i < n) to[i] = to[i] * a + from[(i * 7ull + b) % m];
}

// The sum of all words of a source, added to each word by which its block begins.
__global__ void total(uint32_t *to, uint32_t n, const uint32_t *from, uint32_t m, uint32_t a) {
    __shared__ uint32_t sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    const uint32_t i = index();
    if (i < m) atomicAdd(&sum, from[i]);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(to + blockIdx.x % n, sum * a);
}

// Each whole block of words the other way round.
__global__ void turn(uint32_t *to, uint32_t a) {
    __shared__ uint32_t words[BLOCK];
    words[threadIdx.x] = to[index()];
    __syncthreads();
    to[index()] = words[BLOCK - 1 - threadIdx.x] + a;
}

__global__ void wide(uint32_t *to, uint32_t n, const __grid_constant__ Wide w) {
    const uint32_t i = index();
    if (i < n) to[i] ^= w.words[i % WIDE];
}

__global__ void constants(uint32_t *to, uint32_t n, int thread, uint32_t a) {
    const uint32_t i = index();
    if (i < n) to[i] += constant_words[thread][i % CONSTANT_WORDS] * a;
}

__global__ void follow(uint32_t *to, uint32_t n, const Row *table, uint32_t rows, uint32_t a) {
    const uint32_t i = index();
    if (i >= n) return;
    const Row row = table[i % rows];
    to[i] += row.words[i * 3ull % row.n] * a;
}

// The whole grid waits for itself; every grid has a part of the scratch for itself.
__global__ void together(uint32_t *to, uint32_t n, uint32_t *scratch, uint32_t a) {
    const uint32_t i = index();
    if (i < n) scratch[i] = to[i] * a;
    cooperative_groups::this_grid().sync();
    if (i < n) to[i] += scratch[n - 1 - i];
}

__global__ void disturb(uint32_t *to, uint32_t n, uint32_t a, uint32_t b) {
    const uint32_t t = index();
    if (t * PAGE_WORDS < n) disturb_one(to, n, t, a, b);
}

__global__ void paint(cudaSurfaceObject_t surface, uint32_t width, uint32_t height, uint32_t a, uint32_t b) {
    const uint32_t i = index(), x = i % width, y = i / width;
    if (y < height) surf2Dwrite(surf2Dread<uint32_t>(surface, x * 4, y) * a + b + x * y, surface, x * 4, y);
}

__global__ void look_at(uint32_t *to, uint32_t n, cudaTextureObject_t texture, uint32_t width, uint32_t height, uint32_t a) {
    const uint32_t i = index();
    if (i < n) to[i] += tex2D<uint32_t>(texture, i % width, i / width % height) * a;
}

inline void scale_here(uint32_t *to, uint32_t n, uint32_t a, uint32_t b) {
    for (uint32_t i = 0; i < n; i++) to[i] = to[i] * a + b;
}

inline void gather_here(uint32_t *to, uint32_t n, const uint32_t *from, uint32_t m, uint32_t a, uint32_t b) {
    for (uint32_t i = 0; i < n; i++) to[i] = to[i] * a + from[(i * 7ull + b) % m];
}

inline void total_here(uint32_t *to, uint32_t n, const uint32_t *from, uint32_t m, uint32_t a) {
    for (uint32_t i = 0; i < m; i++) to[i / BLOCK % n] += from[i] * a;
}

inline void turn_here(uint32_t *to, uint32_t n, uint32_t a) {
    for (uint32_t i = 0; i < n; i += BLOCK) std::reverse(to + i, to + i + BLOCK);
    for (uint32_t i = 0; i < n; i++) to[i] += a;
}

inline Wide wide_of(uint32_t a) {
    Wide w;
    for (int i = 0; i < WIDE; i++) w.words[i] = static_cast<uint32_t>(program::mix(a + i));
    return w;
}

inline void together_here(uint32_t *to, uint32_t n, uint32_t a) {
    const std::vector<uint32_t> before(to, to + n);
    for (uint32_t i = 0; i < n; i++) to[i] += before[n - 1 - i] * a;
}

inline void paint_here(uint32_t *to, uint32_t width, uint32_t height, uint32_t a, uint32_t b) {
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++) to[y * width + x] = to[y * width + x] * a + b + x * y;
}

// A launch of any number of threads in one of the ways that there are.
struct Launch {
    const void *kernel;
    uint32_t threads;
    void **args;
    bool cooperative = false;
};

inline void launch(const Launch &l, unsigned how, cudaStream_t stream) {
    const dim3 grid((l.threads + BLOCK - 1) / BLOCK), block(BLOCK);
    if (l.cooperative && how % 2 == 0) {
        DO(cudaLaunchCooperativeKernel(l.kernel, grid, block, l.args, 0, stream));
    } else if (l.cooperative || how % 3 == 0) {
        cudaLaunchConfig_t config = {};
        config.gridDim = grid, config.blockDim = block, config.stream = stream;
        cudaLaunchAttribute attributes[2] = {};
        if (l.cooperative) {
            attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
            attributes[config.numAttrs++].val.cooperative = 1;
        }
        if (how % 4 == 3) {
            attributes[config.numAttrs].id = cudaLaunchAttributePriority;
            attributes[config.numAttrs++].val.priority = -1;
        }
        config.attrs = attributes;
        DO(cudaLaunchKernelExC(&config, l.kernel, l.args));
    } else if (how % 3 == 1) {
        DO(cudaLaunchKernel(l.kernel, grid, block, l.args, 0, stream));
    } else {
        // By the driver, with the runtime's own function.
        cudaFunction_t function;
        DO(cudaGetFuncBySymbol(&function, l.kernel));
        DRIVER(cuLaunchKernel, function, grid.x, 1, 1, BLOCK, 1, 1, 0, stream, l.args, nullptr);
    }
}

// Code that is loaded and unloaded: `scale` again, and a variable.
inline const char *const MODULE_TEXT = R"(.version 6.4
.target sm_70
.address_size 64
.visible .global .align 4 .b8 variable[2048];
.visible .entry scale_too(.param .u64 to, .param .u32 n, .param .u32 a, .param .u32 b)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [a];
    ld.param.u32 %r3, [b];
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ntid.x;
    mov.u32 %r6, %tid.x;
    mad.lo.s32 %r7, %r4, %r5, %r6;
    setp.ge.u32 %p1, %r7, %r1;
    @%p1 bra end;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r7, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r8, [%rd4];
    mad.lo.s32 %r9, %r8, %r2, %r3;
    st.global.u32 [%rd4], %r9;
end:
    ret;
}
)";
constexpr size_t VARIABLE_SIZE = 2048;

struct Module {
    CUmodule module = nullptr;
    CUlibrary library = nullptr;
    CUfunction function = nullptr;
    CUdeviceptr variable = 0;

    explicit Module(bool by_library) {
        size_t size;
        if (by_library) {
            CUkernel kernel;
            DRIVER(cuLibraryLoadData, &library, MODULE_TEXT, nullptr, nullptr, 0, nullptr, nullptr, 0);
            DRIVER(cuLibraryGetKernel, &kernel, library, "scale_too");
            DRIVER(cuLibraryGetGlobal, &variable, &size, library, "variable");
            // A kernel of a library can be launched as it is.
            function = reinterpret_cast<CUfunction>(kernel);
        } else {
            DRIVER(cuModuleLoadData, &module, MODULE_TEXT);
            DRIVER(cuModuleGetFunction, &function, module, "scale_too");
            DRIVER(cuModuleGetGlobal, &variable, &size, module, "variable");
        }
        expect(size == VARIABLE_SIZE, "size of a variable");
    }
    Module(const Module &) = delete;
    ~Module() {
        if (library != nullptr) DRIVER(cuLibraryUnload, library);
        else DRIVER(cuModuleUnload, module);
    }

    void scale(char *to, uint32_t n, uint32_t a, uint32_t b, bool in_one_piece, cudaStream_t stream) const {
        struct {
            char *to;
            uint32_t n, a, b;
        } piece = {to, n, a, b};
        size_t size = 20;
        void *args[] = {&piece.to, &piece.n, &piece.a, &piece.b};
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &piece, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
        DRIVER(cuLaunchKernel, function, (n + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, in_one_piece ? nullptr : args, in_one_piece ? extra : nullptr);
    }
};

} // namespace mix
