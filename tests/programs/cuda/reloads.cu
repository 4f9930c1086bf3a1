// A program that loads and unloads code, sets the same again and again, or resets its context; then it waits until a file appears, so
// that it can be moved, and uses what it has.
//
//   reloads heap     FILE    code that allocates from the device heap is unloaded, the blocks stay
//   reloads pairs    FILE N  so many modules are loaded and unloaded, each before the next one; a few stay
//   reloads window   FILE N  so many modules are loaded, each of which is unloaded when three others have come
//   reloads settings FILE N  attributes, preferences, limits, and attributes of streams that end
//   reloads reset    FILE N  so many resets, each with functions and settings of a library
//   reloads large    FILE N  code of so many instructions that is never used, and code with a large variable that is loaded after it
//
// All code is PTX text that is a little different each time, as compilers at run time make it.
#include "program.cuh"

#include "driver.cuh"

#include <deque>

constexpr uint64_t NODES = 1000;
constexpr size_t KEPT = 3;

static const char *const HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n";

// A kernel that counts in a variable of its own and gives the count.
static std::string counter(long start) {
    return std::string(HEAD) + ".visible .global .align 8 .u64 count = " + std::to_string(start) +
           ";\n.visible .entry step(.param .u64 to) {\n"
           "  .reg .b64 %a, %b, %n;\n"
           "  ld.param.u64 %a, [to];\n  mov.u64 %b, count;\n  ld.global.u64 %n, [%b];\n  add.u64 %n, %n, 1;\n"
           "  st.global.u64 [%b], %n;\n  st.global.u64 [%a], %n;\n  ret;\n}\n";
}

// A list of nodes (value, next) from the device heap, and its sum.
static const char *const MAKE =
    ".extern .func (.param .b64 got) malloc (.param .b64 bytes);\n"
    ".visible .entry make(.param .u64 box, .param .u64 count) {\n"
    "  .reg .b64 %box, %n, %node, %next, %v;\n  .reg .pred %p;\n"
    "  ld.param.u64 %box, [box];\n  ld.param.u64 %n, [count];\n  mov.u64 %next, 0;\n"
    "more:\n  setp.eq.u64 %p, %n, 0;\n  @%p bra done;\n"
    "  { .param .b64 bytes; .param .b64 got;\n    mov.u64 %v, 16;\n    st.param.b64 [bytes], %v;\n"
    "    call.uni (got), malloc, (bytes);\n    ld.param.b64 %node, [got]; }\n"
    "  mul.lo.u64 %v, %n, 81985529216486895;\n  st.u64 [%node], %v;\n  st.u64 [%node+8], %next;\n"
    "  mov.u64 %next, %node;\n  sub.u64 %n, %n, 1;\n  bra more;\n"
    "done:\n  st.global.u64 [%box], %next;\n  ret;\n}\n";
static const char *const SUM =
    ".visible .entry sum(.param .u64 box, .param .u64 to) {\n"
    "  .reg .b64 %a, %to, %node, %s, %v;\n  .reg .pred %p;\n"
    "  ld.param.u64 %a, [box];\n  ld.param.u64 %to, [to];\n  ld.global.u64 %node, [%a];\n  mov.u64 %s, 0;\n"
    "more:\n  setp.eq.u64 %p, %node, 0;\n  @%p bra done;\n"
    "  ld.u64 %v, [%node];\n  add.u64 %s, %s, %v;\n  ld.u64 %node, [%node+8];\n  bra more;\n"
    "done:\n  st.global.u64 [%to], %s;\n  ret;\n}\n";

static CUdeviceptr memory(size_t bytes) {
    CUdeviceptr p;
    DRIVER(cuMemAlloc, &p, bytes);
    DRIVER(cuMemsetD8, p, 0, bytes);
    return p;
}

static CUmodule load(const std::string &text) {
    CUmodule module;
    DRIVER(cuModuleLoadData, &module, text.c_str());
    return module;
}

static CUfunction function(CUmodule module, const char *name) {
    CUfunction f;
    DRIVER(cuModuleGetFunction, &f, module, name);
    return f;
}

// Runs a kernel whose last parameter is where it writes a number; that number.
static uint64_t run(CUfunction f, std::vector<CUdeviceptr> params, unsigned shared = 0) {
    static CUdeviceptr to;
    std::vector<void *> pointers;
    to = params.back();
    for (CUdeviceptr &p : params) pointers.push_back(&p);
    DRIVER(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, shared, nullptr, pointers.data(), nullptr);
    uint64_t got = 0;
    DRIVER(cuMemcpyDtoH, &got, to, sizeof got);
    return got;
}

static void expect(uint64_t got, uint64_t want, const char *what) {
    if (got == want) return;
    std::fprintf(stderr, "%s: %llu, not %llu\n", what, (unsigned long long)got, (unsigned long long)want);
    std::_Exit(1);
}

static void wait_for(const char *file) {
    std::fprintf(stderr, "ready\n");
    std::fflush(stderr);
    while (access(file, F_OK) != 0) usleep(5000);
}

struct Counter {
    CUmodule module;
    uint64_t count;

    explicit Counter(long start) : module(load(counter(start))), count(start) {}
    void step(CUdeviceptr to) { expect(run(function(module, "step"), {to}), ++count, "a count"); }
    void unload() { DRIVER(cuModuleUnload, module); }
};

static void heap(const char *file) {
    CUdeviceptr box = memory(8), to = memory(8), count = NODES;
    CUmodule make = load(std::string(HEAD) + MAKE), sum = load(std::string(HEAD) + SUM);
    void *params[] = {&box, &count};
    DRIVER(cuLaunchKernel, function(make, "make"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
    DRIVER(cuCtxSynchronize);
    DRIVER(cuModuleUnload, make);
    wait_for(file);
    expect(run(function(sum, "sum"), {box, to}), 81985529216486895u * (NODES * (NODES + 1) / 2), "the sum of the list");
}

static void pairs(const char *file, long n) {
    CUdeviceptr to = memory(8);
    std::vector<Counter> kept;
    for (long i = 0; i < n; i++) {
        Counter c(i);
        c.step(to);
        if (i % (n / 4 + 1) == 0) kept.push_back(c);
        else c.unload();
    }
    wait_for(file);
    for (Counter &c : kept) c.step(to);
}

static void window(const char *file, long n) {
    CUdeviceptr to = memory(8);
    std::deque<Counter> kept;
    for (long i = 0; i < n; i++) {
        kept.emplace_back(i);
        kept.back().step(to);
        if (kept.size() > KEPT) {
            kept.front().unload();
            kept.pop_front();
        }
    }
    wait_for(file);
    for (Counter &c : kept) c.step(to);
}

static void settings(const char *file, long n) {
    CUdeviceptr to = memory(1 << 16);
    Counter c(0);
    CUfunction f = function(c.module, "step");
    for (long i = 0; i < n; i++) {
        int shared = 49152 + 1024 * (1 + i % 2);
        DRIVER(cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared);
        DRIVER(cuFuncSetCacheConfig, f, i % 3 ? CU_FUNC_CACHE_PREFER_L1 : CU_FUNC_CACHE_PREFER_SHARED);
        DRIVER(cuCtxSetCacheConfig, CU_FUNC_CACHE_PREFER_SHARED);
        DRIVER(cuCtxSetLimit, CU_LIMIT_PRINTF_FIFO_SIZE, (size_t)(1 + i % 2) << 20);
        if (i % 64 == 0) expect(run(f, {to}, shared), ++c.count, "a count");
        if (i % 16 != 0) continue;
        CUstream s;
        DRIVER(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
        CUstreamAttrValue v = {};
        v.accessPolicyWindow.base_ptr = (void *)to;
        v.accessPolicyWindow.num_bytes = 4096;
        v.accessPolicyWindow.hitRatio = 1;
        v.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
        v.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
        DRIVER(cuStreamSetAttribute, s, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &v);
        DRIVER(cuMemsetD8Async, to + 64, (unsigned char)i, 64, s);
        DRIVER(cuStreamSynchronize, s);
        DRIVER(cuStreamDestroy, s);
    }
    wait_for(file);
    // As much as the last attribute allows.
    expect(run(f, {to}, 49152 + 1024 * (1 + (n - 1) % 2)), ++c.count, "a count");
}

static void reset(const char *file, long n) {
    CUdevice device;
    CUcontext context;
    CUlibrary library;
    CUkernel kernel;
    DRIVER(cuDeviceGet, &device, 0);
    const std::string text = counter(5);
    DRIVER(cuLibraryLoadData, &library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    DRIVER(cuLibraryGetKernel, &kernel, library, "step");
    CUfunction old = nullptr;
    for (long i = 0; i <= n; i++) {
        CUfunction f, again;
        CUmodule module;
        DRIVER(cuKernelGetFunction, &f, kernel);
        DRIVER(cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000);
        CUdeviceptr to = memory(8);
        expect(run(f, {to}, 90000), 6, "the first count of a context");
        DRIVER(cuLibraryGetModule, &module, library);
        DRIVER(cuModuleGetFunction, &again, module, "step");
        expect(run(again, {to}), 7, "the second one, through the library's module");
        if (old != nullptr) {
            // What was lent in the context before cannot be launched.
            static auto launch = program::entry<decltype(&cuLaunchKernel)>("cuLaunchKernel");
            void *params[] = {&to};
            if (launch(old, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr) == CUDA_SUCCESS) expect(0, 1, "an old function was launched");
        }
        if (i == n) {
            wait_for(file);
            expect(run(again, {to}), 8, "the third one");
            return;
        }
        old = f;
        DRIVER(cuDevicePrimaryCtxReset, device);
        DRIVER(cuDevicePrimaryCtxRetain, &context, device);
        DRIVER(cuCtxSetCurrent, context);
    }
}

// A kernel, and another one that is so long that a driver puts its code where variables could be.
static std::string with_large(long instructions) {
    std::string text = counter(7) + ".visible .entry large(.param .u64 to) {\n  .reg .b64 %a, %n;\n  ld.param.u64 %a, [to];\n  ld.global.u64 %n, [%a];\n";
    for (long i = 0; i < instructions; i++) text += "  mad.lo.u64 %n, %n, %n, " + std::to_string(i % 7) + ";\n";
    return text + "  st.global.u64 [%a], %n;\n  ret;\n}\n";
}

static void large(const char *file, long instructions) {
    const CUdeviceptr to = memory(8);
    const CUfunction step = function(load(with_large(instructions)), "step");
    expect(run(step, {to}), 8, "a kernel beside the long one");
    const CUmodule module =
        load(std::string(HEAD) + ".visible .global .align 4 .b8 room[3145728];\n.visible .entry nothing() { ret; }\n");
    CUdeviceptr room;
    size_t bytes;
    DRIVER(cuModuleGetGlobal, &room, &bytes, module, "room");
    DRIVER(cuMemsetD32, room, 11, bytes / 4);
    wait_for(file);
    int last = 0;
    DRIVER(cuMemcpyDtoH, &last, room + bytes - 4, 4);
    expect(last, 11, "the large variable");
    expect(run(step, {to}), 9, "the kernel after the move");
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    const std::string way = argv[1];
    const long n = argc > 3 ? std::atol(argv[3]) : 1;
    CHECK(cudaFree(nullptr));
    if (way == "heap") heap(argv[2]);
    else if (way == "pairs") pairs(argv[2], n);
    else if (way == "window") window(argv[2], n);
    else if (way == "settings") settings(argv[2], n);
    else if (way == "reset") reset(argv[2], n);
    else if (way == "large") large(argv[2], n);
    else return 64;
    std::printf("%s\nRESULT ok\n", way.c_str());
    return 0;
}
