// The real driver beside another library that calls itself libcuda.so.1 too: this program is
// linked with such a library, and opens the real one by its path (argument 1).
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

int stand_in_answer(void); // in the library that stands in for libcuda.so.1

static void *real;
static const char *visible, *loading;

// Finds a function of the real driver; the stand-in exports some of the same names.
static void *find(const char *name) {
    void *at = dlsym(real, name);
    if (!at) {
        fprintf(stderr, "the real driver has no %s\n", name);
        exit(2);
    }
    return at;
}
#define REAL(function) ((__typeof__(&function))find(#function))

static const char *answer(const char *name, int *known) {
    *known = 1;
    if (visible && !strcmp(name, "CUDA_VISIBLE_DEVICES")) return visible;
    if (loading && !strcmp(name, "CUDA_MODULE_LOADING")) return loading;
    *known = 0;
    return NULL;
}

static int count_objects(struct dl_phdr_info *info, size_t size, void *count) {
    (void)size;
    const char *base = strrchr(info->dlpi_name, '/');
    if (!strncmp(base ? base + 1 : info->dlpi_name, "libcuda.so", 10)) ++*(int *)count;
    return 0;
}

// One experiment with the environment, in a process of its own.
static void with_environment(const char *what, const char *set_visible, const char *set_loading) {
    pid_t child = fork();
    if (child == 0) {
        visible = set_visible;
        loading = set_loading;
        hook_getenv = answer;
        int count = -1;
        CUmoduleLoadingMode mode = 0;
        CUresult result = REAL(cuInit)(0);
        if (!result) REAL(cuDeviceGetCount)(&count);
        if (!result) REAL(cuModuleGetLoadingMode)(&mode);
        ROW("11", what, "cuInit error %d, %d devices, module loading %s", result, count, mode == CU_MODULE_EAGER_LOADING ? "eager" : mode == CU_MODULE_LAZY_LOADING ? "lazy" : "?");
        if (!set_visible && !set_loading) {
            printf("    libcuda asked getenv for:");
            for (int i = 0; i < hook_name_count; i++) printf(" %s", hook_names[i]);
            printf("\n");
            fflush(stdout);
        }
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    real = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!real) {
        ROW("10", "real driver opened by path beside the stand-in", "fails: %s", dlerror());
        return 1;
    }
    Dl_info info;
    int objects = 0, known = 0;
    dl_iterate_phdr(count_objects, &objects);
    void *init = find("cuInit");
    known = dladdr(init, &info);
    ROW("10", "objects named libcuda.so loaded; cuInit from dlsym; stand-in answers", "%d; %s; %d", objects, known ? info.dli_fname : "?", stand_in_answer());
    int slots = hook_install(real);
    ROW("11", "slots of mmap, mmap64, getenv, secure_getenv patched", "%d", slots);
    fflush(stdout);
    with_environment("environment untouched", NULL, NULL);
    with_environment("getenv answers CUDA_VISIBLE_DEVICES=-1", "-1", NULL);
    with_environment("getenv answers CUDA_VISIBLE_DEVICES=0", "0", NULL);
    with_environment("getenv answers CUDA_MODULE_LOADING=EAGER", NULL, "EAGER");
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    with_environment("environment says -1, getenv answers 0", "0", NULL);
    unsetenv("CUDA_VISIBLE_DEVICES");

    CUcontext context;
    CUmodule module = NULL;
    CUfunction second;
    CUdeviceptr out;
    unsigned long long got = 0;
    CUresult result = REAL(cuInit)(0);
    if (!result) result = REAL(cuDevicePrimaryCtxRetain)(&context, 0);
    if (!result) result = REAL(cuCtxSetCurrent)(context);
    CUresult compiled = result ? result : REAL(cuModuleLoadData)(&module, image("module1.ptx", NULL));
    if (!compiled) {
        // Without the headers' renaming to _v2 there is no cuMemAlloc to be had by that name.
        __typeof__(&cuMemAlloc) allocate = (__typeof__(&cuMemAlloc))find("cuMemAlloc_v2");
        __typeof__(&cuMemcpyDtoH) copy = (__typeof__(&cuMemcpyDtoH))find("cuMemcpyDtoH_v2");
        result = allocate(&out, 4096);
        if (!result) result = REAL(cuModuleGetFunction)(&second, module, "second");
        void *arguments[] = {&out};
        if (!result) result = REAL(cuLaunchKernel)(second, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
        if (!result) result = copy(&got, out, 8);
    }
    ROW("10", "PTX compiled and run through it", "load error %d, run error %d, result %s", compiled, result, got == 21 ? "right" : "wrong");
    return 0;
}
