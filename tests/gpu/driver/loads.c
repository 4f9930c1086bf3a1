// What loading code costs, and whether the cache of compiled code is used: PTX, cubins and fat binaries, as modules and as
// libraries, with and without buffers for the compiler's messages, and code that NVRTC compiles (if its library is found).
//
// Each row has microseconds of: the first load; the same image loaded again beside it; again after both were unloaded; another
// image of the same size. Each of them as load + look-up of a kernel and of its function + its first launch + unload.
//   loads [fresh]        fresh: PTX that no cache can know
#define _GNU_SOURCE
#include "facts.h"

#include <unistd.h>

enum { KERNELS = 16, LINES = 500, ROOM = 2 << 20, LOG = 16 << 10, AGAIN = 5 };

static unsigned salt;

// Text of one size whatever the number, and that takes the compiler a while.
static char *ptx(unsigned number) {
    char *text = malloc(ROOM), *at = text;
    at += sprintf(at, ".version 7.0\n.target sm_70\n.address_size 64\n");
    for (int k = 0; k < KERNELS; k++) {
        at += sprintf(at, ".visible .entry k%02d(.param .u64 to) {\n .reg .b64 %%rd<3>;\n .reg .f32 %%f<9>;\n", k);
        at += sprintf(at, " ld.param.u64 %%rd1, [to];\n cvta.to.global.u64 %%rd1, %%rd1;\n");
        for (int f = 1; f < 9; f++) at += sprintf(at, " ld.global.f32 %%f%d, [%%rd1+%d];\n", f, 4 * f);
        for (int i = 0; i < LINES; i++) {
            unsigned bits = 0x3f000000u | ((salt * 2654435761u + number * 40503u + (unsigned)(k * LINES + i)) & 0x3fffff);
            at += sprintf(at, " fma.rn.f32 %%f%d, %%f%d, 0f%08x, %%f%d;\n", 1 + i % 8, 1 + (i * 5 + 3) % 8, bits, 1 + i / 8 % 8);
        }
        for (int f = 1; f < 9; f++) at += sprintf(at, " st.global.f32 [%%rd1+%d], %%f%d;\n", 4 * f, f);
        at += sprintf(at, " ret;\n}\n");
    }
    return text;
}

enum how { MODULE, MODULE_ERRORS, MODULE_LOGS, LIBRARY, LIBRARY_LOGS };
static const char *const names[] = {"module", "module, room for errors", "module, room for messages", "library", "library, room for messages"};

struct took {
    double load, find, launch, unload;
};

struct loaded {
    CUmodule module;
    CUlibrary library;
};

static CUdeviceptr memory;

// Options that carry buffers, as libraries pass them.
static unsigned room_for(enum how how, CUjit_option *keys, void **values, char *info, char *errors) {
    unsigned n = 0;
    if (how == MODULE_LOGS || how == LIBRARY_LOGS) {
        keys[n] = CU_JIT_INFO_LOG_BUFFER, values[n++] = info;
        keys[n] = CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, values[n++] = (void *)(uintptr_t)LOG;
    }
    if (how != MODULE && how != LIBRARY) {
        keys[n] = CU_JIT_ERROR_LOG_BUFFER, values[n++] = errors;
        keys[n] = CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, values[n++] = (void *)(uintptr_t)LOG;
    }
    return n;
}

static CUresult load(enum how how, const void *image, struct loaded *to, struct took *took) {
    static char info[LOG], errors[LOG];
    CUjit_option keys[8];
    void *values[8];
    unsigned n = room_for(how, keys, values, info, errors);
    int library = how == LIBRARY || how == LIBRARY_LOGS;
    *to = (struct loaded){0};
    double start = now_us();
    CUresult rc = library        ? cuLibraryLoadData(&to->library, image, keys, values, n, NULL, NULL, 0)
                  : n            ? cuModuleLoadDataEx(&to->module, image, n, keys, values)
                                 : cuModuleLoadData(&to->module, image);
    took->load = now_us() - start;
    return rc;
}

static CUresult use(const struct loaded *l, struct took *took) {
    CUfunction function;
    CUkernel kernel;
    double start = now_us();
    CUresult rc = l->library ? cuLibraryGetKernel(&kernel, l->library, "k03") : cuModuleGetFunction(&function, l->module, "k03");
    if (!rc && l->library) rc = cuKernelGetFunction(&function, kernel);
    if (!rc) rc = cuFuncLoad(function);
    took->find = now_us() - start;
    if (rc) return rc;
    start = now_us();
    rc = launch(function, 1, 1, NULL, (void *[]){&memory});
    if (!rc) rc = cuCtxSynchronize();
    took->launch = now_us() - start;
    return rc;
}

static void unload(const struct loaded *l, struct took *took) {
    double start = now_us();
    if (l->library) CK(cuLibraryUnload(l->library));
    else CK(cuModuleUnload(l->module));
    took->unload = now_us() - start;
}

static void show(char *to, const char *what, const struct took *t) {
    sprintf(to + strlen(to), "%s%s %.0f+%.0f+%.0f+%.0f", *to ? ", " : "", what, t->load, t->find, t->launch, t->unload);
}

// Loads the two images in this way in all of the orders that the table has.
static void measure(const char *kind, enum how how, const void *one, const void *other) {
    char line[512] = "", what[80];
    snprintf(what, sizeof what, "%s as %s", kind, names[how]);
    struct loaded l[2];
    struct took first, again, later, another;
    CUresult rc = load(how, one, &l[0], &first);
    if (!rc) rc = use(&l[0], &first);
    if (rc) {
        ROW("l", what, "not taken: error %d", rc);
        return;
    }
    CK(load(how, one, &l[1], &again));
    CK(use(&l[1], &again));
    unload(&l[1], &again);
    unload(&l[0], &first);
    // The best of some: other work of the machine only adds.
    struct took best = {1e12, 1e12, 1e12, 1e12};
    for (int i = 0; i < AGAIN; i++) {
        CK(load(how, one, &l[0], &later));
        CK(use(&l[0], &later));
        unload(&l[0], &later);
        if (later.load + later.find + later.launch + later.unload < best.load + best.find + best.launch + best.unload) best = later;
    }
    CK(load(how, other, &l[0], &another));
    CK(use(&l[0], &another));
    unload(&l[0], &another);
    show(line, "first", &first);
    show(line, "beside", &again);
    show(line, "again", &best);
    show(line, "other", &another);
    ROW("l", what, "%s", line);
}

// NVRTC keeps what it compiles in the driver's cache, too (since CUDA 12.9).
static void run_time_compiler(void) {
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    void *library = NULL;
    for (int i = 0; i < 3 && !library; i++) library = dlopen(files[i], RTLD_NOW);
    if (!library) {
        ROW("l", "NVRTC", "not found (LD_LIBRARY_PATH)");
        return;
    }
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *) = dlsym(library, "nvrtcCreateProgram");
    int (*compile)(void *, int, const char *const *) = dlsym(library, "nvrtcCompileProgram");
    int (*size)(void *, size_t *) = dlsym(library, "nvrtcGetCUBINSize");
    int (*get)(void *, char *) = dlsym(library, "nvrtcGetCUBIN");
    int (*version)(int *, int *) = dlsym(library, "nvrtcVersion");
    if (!create || !compile || !size || !get || !version) return;
    int major = 0, minor = 0;
    version(&major, &minor);
    char source[1024], option[64], what[80], line[256] = "";
    snprintf(source, sizeof source,
             "extern \"C\" __global__ void k03(float *x) { float s = x[threadIdx.x];\n"
             "#pragma unroll\nfor (int i = 0; i < 400; i++) s = s * x[i] + x[i * 7 + %u];\nx[threadIdx.x] = s; }",
             1000 + salt % 1000);
    int capability[2];
    CK(cuDeviceGetAttribute(&capability[0], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    CK(cuDeviceGetAttribute(&capability[1], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    snprintf(option, sizeof option, "-arch=sm_%d%d", capability[0], capability[1]);
    for (int i = 0; i < 3; i++) {
        void *program;
        double start = now_us();
        int rc = create(&program, source, "loads.cu", 0, NULL, NULL);
        if (!rc) rc = compile(program, 1, (const char *const[]){option});
        double took = now_us() - start;
        size_t bytes = 0;
        if (!rc) rc = size(program, &bytes);
        char *cubin = calloc(1, bytes + 1);
        if (!rc) rc = get(program, cubin);
        if (rc) {
            ROW("l", "NVRTC", "error %d", rc);
            return;
        }
        uint64_t sum = 0;
        for (size_t b = 0; b < bytes; b++) sum = sum * 31 + (unsigned char)cubin[b];
        struct loaded l;
        struct took t;
        CUresult loaded = load(LIBRARY, cubin, &l, &t);
        if (!loaded) loaded = use(&l, &t);
        if (!loaded) unload(&l, &t);
        sprintf(line + strlen(line), "%s%.0f (%zu bytes, %08x; load %.0f)", i ? ", " : "", took, bytes, (unsigned)sum, loaded ? -1.0 : t.load + t.find);
        free(cubin);
    }
    snprintf(what, sizeof what, "NVRTC %d.%d: compile the same three times", major, minor);
    ROW("l", what, "%s", line);
}

int main(int count, char **words) {
    int fresh = count > 1 && !strcmp(words[1], "fresh");
    salt = fresh ? (unsigned)(now_us() * 10) ^ (unsigned)getpid() << 20 : 1;
    double start = now_us();
    first_context();
    ROW("l", "first context", "%.0f", now_us() - start);
    CK(cuMemAlloc(&memory, 64 << 10));
    CK(cuMemsetD8(memory, 0, 64 << 10));
    unsigned number = 0;
    for (enum how how = MODULE; how <= LIBRARY_LOGS; how++) {
        char *one = ptx(number++), *other = ptx(number++);
        measure("PTX", how, one, other);
        free(one);
        free(other);
    }
    for (int kind = 0; kind < 2; kind++) {
        char *one = image(kind ? "loads0.fatbin" : "loads0.cubin", NULL), *other = image(kind ? "loads1.fatbin" : "loads1.cubin", NULL);
        measure(kind ? "fat binary" : "cubin", MODULE, one, other);
        measure(kind ? "fat binary" : "cubin", LIBRARY, one, other);
        free(one);
        free(other);
    }
    run_time_compiler();
    return 0;
}
