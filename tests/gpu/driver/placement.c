// Where do modules land? Runs a script of module operations and prints every address that device
// code sees, so that two runs can be compared as text.
//
//   placement [-s none|all|calls] [-n SEED] [-c CLASSES] [-b WORDS] SCRIPT
//
// -s: steer nothing, every request, or only those made while a context is created and inside
//     module calls (the others then get scratch addresses that differ with the seed);
// -n: do random other work between the operations;
// -c: which kinds of it: s streams, e events, v mapped memory, m memsets and copies, l a kernel with
//     big local memory, r registered host memory, g graphs, a cuMemAlloc, h cuMemHostAlloc;
// -b: begin with it after so many words of the script.
//
// A script is words of two letters, the second naming the module (0 to 4):
//   modules    M load  f get function  c cuFuncLoad  g get global  p probe  s t other kernels  u unload
//   libraries  L load  K get kernel  F kernel's function  C cuFuncLoad  G get global  P probe
//              S T other kernels  U unload
//   contexts   r0 reset the primary context, r1 the same and begin the range again where it was
//              after cuInit, e1 make a second context current, e0 the first
//   w0         create streams of all kinds, use them, and destroy them
//   d x        launch a kernel of module x that needs 100 KB of local memory a thread
//   D x        make as much room by raising the stack limit and a recursive kernel of module x
//   n0 N0      load and unload a module without variables
//   z0         make as much room by launching the kernel of a module without variables
//   h0         print the first address that the device heap gives
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

#include <sys/mman.h>
#include <unistd.h>

static struct {
    CUmodule module;
    CUlibrary library;
    CUfunction probe;
    CUkernel kernel;
} modules[5];
static CUmodule plain; // has no variables
static char *images[5];
static CUdeviceptr out;
static struct range arena = {DRIVER_AT, DRIVER_AT + ARENA}, scratch;
static enum { NONE, ALL, CALLS } steering = ALL;
static uint64_t random_state;
static const char *classes = "sevmlrg";
static uintptr_t after_init; // where the range stood when cuInit returned

static unsigned chance(unsigned below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(random_state >> 33) % below;
}

static void map_output(void) {
    CUmemGenericAllocationHandle handle;
    CK(cuMemAddressReserve(&out, 1ull << 30, 0, OWN_AT, 0));
    CK(back(out, 2 << 20, &handle));
}

// Makes the driver provide local memory for `deep`: by launching it, or by a recursive kernel under
// a stack limit of the same size.
static void deep_launch(CUmodule module, int by_limit) {
    int n = 9, bytes;
    CUdeviceptr at = out + 8192;
    void *arguments[] = {&at, &n};
    CUfunction deep = kernel(module, "deep");
    if (!by_limit) {
        CK(launch(deep, 8, 256, 0, arguments));
    } else {
        CK(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, deep));
        CK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, (size_t)bytes));
        CK(launch(kernel(module, "recurse"), 8, 256, 0, arguments));
    }
    CK(cuCtxSynchronize());
}

// What streams need inside the driver is made once and kept: make it now.
static void warm_up(void) {
    static CUstream streams[512];
    int least, greatest;
    CK(cuCtxGetStreamPriorityRange(&least, &greatest));
    for (int i = 0; i < 512; i++) {
        CK(cuStreamCreateWithPriority(&streams[i], i & 1, i & 2 ? greatest : least));
        CK(cuMemsetD8Async(out + 4096, 1, 64, streams[i]));
    }
    CK(cuCtxSynchronize());
    for (int i = 0; i < 512; i++) CK(cuStreamDestroy(streams[i]));
}

// A little of everything that programs do between their module loads.
static void noise(void) {
    if (!random_state) return;
    static CUdeviceptr mapped;
    for (const char *c = classes; *c; c++) {
        unsigned count = chance(12);
        for (unsigned i = 0; i < count; i++) {
            CUstream stream;
            CUevent event;
            CUdeviceptr pointer;
            CUmemGenericAllocationHandle handle;
            void *host;
            switch (*c) {
            case 's': CK(cuStreamCreate(&stream, i & 1)); break;
            case 'e':
                CK(cuEventCreate(&event, 0));
                CK(cuEventRecord(event, 0));
                break;
            case 'a':
                CK(cuMemAlloc(&pointer, (size_t)1 << (8 + chance(18))));
                if (chance(3) == 0) CK(cuMemFree(pointer));
                break;
            case 'v':
                if (!mapped) mapped = out + (64 << 20);
                CK(back(mapped, 2 << 20, &handle));
                mapped += 2 << 20;
                break;
            case 'r': {
                // At an address of our own, as the recorder does with the program's pinned memory.
                static char *next = (char *)0x400000000000;
                size_t size = (size_t)1 << (16 + chance(8));
                host = mmap(next, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                if (i > 3 || host != next) break;
                next += 16 << 20;
                CK(cuMemHostRegister(host, size, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
                break;
            }
            case 'g': {
                CUgraph graph;
                CUgraphExec instance;
                if (i > 1) break;
                CK(cuStreamCreate(&stream, 1));
                CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
                for (unsigned n = 0; n < 4; n++) CK(cuMemsetD8Async(out + 4096, 1, 4096 << n, stream));
                CK(cuStreamEndCapture(stream, &graph));
                CK(cuGraphInstantiate(&instance, graph, 0));
                CK(cuGraphLaunch(instance, stream));
                CK(cuStreamSynchronize(stream));
                break;
            }
            case 'h':
                if (i > 2) break;
                CK(cuMemHostAlloc(&host, (size_t)1 << (12 + chance(10)), 0));
                memset(malloc(1 << chance(22)), 1, 1);
                break;
            case 'm':
                CK(cuMemsetD8(out + 4096, (unsigned char)i, 1000 + chance(5000)));
                CK(cuMemcpyDtoD(out + 65536, out + 4096, 512));
                break;
            case 'l':
                // Only where some module is loaded; its kernel asks for more local memory.
                for (int k = 0; k < 5 && i == 0; k++) {
                    if (!modules[k].module) continue;
                    deep_launch(modules[k].module, 0);
                    break;
                }
                break;
            }
        }
    }
}

static void show(const char *word) {
    static const char *names[] = {"counter", "zeroed", "filled", "constants", "hidden", "op0", "op1", "vtable", "static", "text", "local", "heap"};
    unsigned long long values[13];
    CK(cuMemcpyDtoH(values, out, sizeof values));
    printf("%s", word);
    for (int i = 0; i < 12; i++) printf(" %s=%llx", names[i], values[i]);
    printf(" check=%llu\n", values[12]);
}

static void probe(const char *word, CUfunction function) {
    int with_heap = 0;
    void *arguments[] = {&out, &with_heap};
    CK(launch(function, 1, 1, 0, arguments));
    show(word);
}

static void run(const char *word) {
    int k = word[1] - '0';
    CUfunction function;
    CUkernel other;
    CUdeviceptr address;
    size_t size;
    void *arguments[] = {&out};
    const char *name = word[0] == 's' || word[0] == 'S' ? "second" : "third";
    switch (word[0]) {
    case 'M':
        memset(&modules[k], 0, sizeof modules[k]);
        CK(cuModuleLoadData(&modules[k].module, images[k]));
        break;
    case 'f': CK(cuModuleGetFunction(&modules[k].probe, modules[k].module, "probe")); break;
    case 'c': CK(cuFuncLoad(modules[k].probe)); break;
    case 'g':
        CK(cuModuleGetGlobal(&address, &size, modules[k].module, "counter"));
        printf("%s counter=%llx\n", word, address);
        break;
    case 'p':
        if (!modules[k].probe) modules[k].probe = kernel(modules[k].module, "probe");
        probe(word, modules[k].probe);
        break;
    case 's':
    case 't': CK(launch(kernel(modules[k].module, name), 1, 1, 0, arguments)); break;
    case 'u':
        CK(cuModuleUnload(modules[k].module));
        memset(&modules[k], 0, sizeof modules[k]);
        break;
    case 'L': CK(cuLibraryLoadData(&modules[k].library, images[k], NULL, NULL, 0, NULL, NULL, 0)); break;
    case 'K': CK(cuLibraryGetKernel(&modules[k].kernel, modules[k].library, "probe")); break;
    case 'F': CK(cuKernelGetFunction(&function, modules[k].kernel)); break;
    case 'C':
        CK(cuKernelGetFunction(&function, modules[k].kernel));
        CK(cuFuncLoad(function));
        break;
    case 'G':
        CK(cuLibraryGetGlobal(&address, &size, modules[k].library, "counter"));
        printf("%s counter=%llx\n", word, address);
        break;
    case 'P':
        if (!modules[k].kernel) CK(cuLibraryGetKernel(&modules[k].kernel, modules[k].library, "probe"));
        probe(word, (CUfunction)modules[k].kernel);
        break;
    case 'S':
    case 'T':
        CK(cuLibraryGetKernel(&other, modules[k].library, name));
        CK(launch((CUfunction)other, 1, 1, 0, arguments));
        break;
    case 'U':
        CK(cuLibraryUnload(modules[k].library));
        memset(&modules[k], 0, sizeof modules[k]);
        break;
    case 'w':
        warm_up();
        break;
    case 'd':
        deep_launch(modules[k].module, 0);
        break;
    case 'z': {
        CUmodule twin;
        CK(cuModuleLoadData(&twin, image("twin.cubin", NULL)));
        deep_launch(twin, 0);
        break;
    }
    case 'n': CK(cuModuleLoadData(&plain, image("twin.cubin", NULL))); break;
    case 'N': CK(cuModuleUnload(plain)); break;
    case 'D':
        deep_launch(modules[k].module, 1);
        break;
    case 'h': {
        int with_heap = 1;
        void *heap_arguments[] = {&out, &with_heap};
        for (int i = 0; i < 5; i++) {
            if (!modules[i].module) continue;
            CK(launch(kernel(modules[i].module, "probe"), 1, 1, 0, heap_arguments));
            unsigned long long heap;
            CK(cuMemcpyDtoH(&heap, out + 88, 8));
            printf("h heap=%llx\n", heap);
            break;
        }
        break;
    }
    case 'r': {
        CUcontext context;
        CK(cuDevicePrimaryCtxReset(0));
        if (k) arena.next = after_init;
        CK(cuDevicePrimaryCtxRetain(&context, 0));
        CK(cuCtxSetCurrent(context));
        unsigned word_read;
        if (cuMemcpyDtoH(&word_read, out, 4)) map_output();
        memset(modules, 0, sizeof modules);
        break;
    }
    case 'e': {
        static CUcontext contexts[2];
        if (k == 1 && !contexts[1]) {
            CK(cuCtxGetCurrent(&contexts[0]));
            CK(cuCtxCreate(&contexts[1], NULL, 0, 0));
            CUmemAccessDesc access = read_write();
            CK(cuMemSetAccess(out, 2 << 20, &access, 1));
        }
        CK(cuCtxSetCurrent(contexts[k]));
        break;
    }
    default: fprintf(stderr, "no operation %s\n", word); exit(64);
    }
}

int main(int argc, char **argv) {
    int quiet_words = 0;
    for (int option; (option = getopt(argc, argv, "s:n:c:b:")) != -1;) {
        if (option == 's') steering = !strcmp(optarg, "none") ? NONE : !strcmp(optarg, "all") ? ALL : CALLS;
        else if (option == 'n') random_state = strtoull(optarg, NULL, 10);
        else if (option == 'c') classes = optarg;
        else if (option == 'b') quiet_words = atoi(optarg);
        else return 64;
    }
    if (optind != argc - 1) return 64;
    for (int k = 0; k < 5; k++) images[k] = module_image(k);
    uint64_t seed = random_state;
    random_state *= 0x9E3779B97F4A7C15ull;
    // The scratch range begins elsewhere in each run: what lands there must not matter.
    scratch.next = SCRATCH_AT + (seed << 32);
    scratch.end = scratch.next + ARENA;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (steering != NONE) hook_install(library);
    if (steering == ALL) hook_scratch = &arena;
    if (steering == CALLS) hook_scratch = &scratch;
    if (steering == CALLS) hook_range = &arena;
    CK(cuInit(0));
    after_init = arena.next;
    first_context();
    hook_range = NULL;
    map_output();
    for (char *word = strtok(argv[optind], " "); word; word = strtok(NULL, " ")) {
        if (--quiet_words < 0) noise();
        if (steering == CALLS) hook_range = &arena;
        run(word);
        hook_range = NULL;
    }
    fprintf(stderr, "range used %llx\n", arena.next - DRIVER_AT);
    return 0;
}
