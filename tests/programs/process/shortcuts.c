/* Calls that mrcuda answers itself, or whose objects it shares between threads. Prints every answer, as natively. The argument says which. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*fn)();

static void *cuda;
static void *contexts[2];
static unsigned long long address;

#define CUDA(name) ((fn)dlsym(cuda, #name))
#define SAY(name, ...) (printf("%s: %s = %d\n", label, #name, CUDA(name)(__VA_ARGS__)), fflush(stdout))

static void start(const char *label, int devices) {
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        puts(dlerror());
        exit(2);
    }
    SAY(cuInit, 0);
    for (int i = devices - 1; i >= 0; i--) {
        SAY(cuDevicePrimaryCtxRetain, &contexts[i], i);
        SAY(cuCtxSetCurrent, contexts[i]);
    }
    SAY(cuMemAlloc_v2, &address, (size_t)4096);
}

static void run(void *(*body)(void *), void *argument) {
    pthread_t thread;
    pthread_create(&thread, NULL, body, argument);
    pthread_join(thread, NULL);
}

/* Threads look up the same kernels of a library at the same time: every handle is that of its kernel, on each of two GPUs. */

enum { THREADS = 4, KERNELS = 100, ROUNDS = 6 };

static void *library;
static void *kernels_of[THREADS][KERNELS];
static pthread_barrier_t all;

static void *look_up(void *of) {
    void **kernels = of;
    pthread_barrier_wait(&all);
    for (int i = 0; i < KERNELS; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        if (CUDA(cuLibraryGetKernel)(&kernels[i], library, name)) kernels[i] = NULL;
    }
    return NULL;
}

static void kernels(void) {
    const char *label = "kernels";
    static char text[64 << 10];
    int end = sprintf(text, ".version 7.0\n.target sm_75\n.address_size 64\n");
    for (int i = 0; i < KERNELS; i++) {
        end += sprintf(text + end,
                       ".visible .entry k%d(.param .u64 to) {\n  .reg .b64 %%a;\n  .reg .b32 %%v;\n  ld.param.u64 %%a, [to];\n"
                       "  mov.u32 %%v, %d;\n  st.global.u32 [%%a], %%v;\n  ret;\n}\n",
                       i, i + 1);
    }
    start(label, 2);
    pthread_barrier_init(&all, NULL, THREADS);
    for (int round = 0; round < ROUNDS; round++) {
        SAY(cuLibraryLoadData, &library, text, NULL, NULL, 0, NULL, NULL, 0);
        pthread_t threads[THREADS];
        for (int t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, look_up, kernels_of[t]);
        for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
        int others = 0, failed = 0, wrong = 0;
        for (int t = 0; t < THREADS; t++)
            for (int i = 0; i < KERNELS; i++) others += kernels_of[t][i] != kernels_of[0][i];
        for (int device = 0; device < 2; device++) {
            unsigned words[KERNELS];
            unsigned long long to;
            SAY(cuCtxSetCurrent, contexts[device]);
            SAY(cuMemAlloc_v2, &to, sizeof words);
            for (int t = 0; t < THREADS; t++) {
                CUDA(cuMemsetD8_v2)(to, 0, sizeof words);
                for (int i = 0; i < KERNELS; i++) {
                    unsigned long long at = to + i * sizeof *words;
                    void *params[] = {&at}, *function = NULL;
                    if (CUDA(cuKernelGetFunction)(&function, kernels_of[t][i])) failed++;
                    else if (CUDA(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL)) failed++;
                }
                memset(words, 0, sizeof words);
                CUDA(cuMemcpyDtoH_v2)(words, to, sizeof words);
                for (int i = 0; i < KERNELS; i++) wrong += words[i] != i + 1u;
            }
            SAY(cuMemFree_v2, to);
        }
        printf("%d handles are others, %d calls failed, %d words are wrong\n", others, failed, wrong);
        SAY(cuLibraryUnload, library);
    }
}

/* Threads with their own default streams: each begins with one that nothing was done with, whatever has happened to earlier ones. */

#define PER_THREAD ((void *)2)

static pthread_barrier_t turn;

/* Work in the thread's own stream, and nothing that waits for other streams. */
static void fill(const char *label, int value) {
    unsigned char byte = 0;
    SAY(cuCtxSetCurrent, contexts[0]);
    SAY(cuMemsetD8Async, address, value, (size_t)64, PER_THREAD);
    SAY(cuMemcpyDtoHAsync_v2, &byte, address, (size_t)1, PER_THREAD);
    SAY(cuStreamSynchronize, PER_THREAD);
    printf("%s: byte %d of %d\n", label, byte, value);
}

static void reset(void) {
    const char *label = "reset";
    SAY(cuDevicePrimaryCtxReset_v2, 0);
    SAY(cuDevicePrimaryCtxRetain, &contexts[0], 0);
    SAY(cuCtxSetCurrent, contexts[0]);
    SAY(cuMemAlloc_v2, &address, (size_t)4096);
}

static void *through_a_reset(void *more) {
    fill("before the reset", 1);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    if (more) fill("after the reset", 2);
    return NULL;
}

static void *fresh(void *unused) {
    const char *label = "a fresh thread";
    int value[16] = {0}, status = -1;
    fill(label, 3);
    SAY(cuStreamIsCapturing, PER_THREAD, &status);
    SAY(cuStreamGetAttribute, PER_THREAD, 3, value);
    printf("%s: capture %d, attribute %d\n", label, status, value[0]);
    return NULL;
}

static void *with_an_attribute(void *unused) {
    const char *label = "an attribute";
    int value[16] = {2};
    fill(label, 4);
    SAY(cuStreamSetAttribute, PER_THREAD, 3, value);
    return NULL;
}

static void *with_a_capture(void *unused) {
    const char *label = "a capture";
    fill(label, 5);
    SAY(cuStreamBeginCapture_v2, PER_THREAD, 2);
    return NULL;
}

static void *with_work(void *flag) {
    const char *label = "unfinished work";
    fill(label, 6);
    SAY(cuStreamWaitValue32_v2, PER_THREAD, flag, 1, 1);
    return NULL;
}

static void threads(void) {
    const char *label = "threads";
    start(label, 1);
    pthread_barrier_init(&turn, NULL, 2);
    for (int more = 1; more >= 0; more--) {
        pthread_t thread;
        pthread_create(&thread, NULL, through_a_reset, more ? "more" : NULL);
        pthread_barrier_wait(&turn);
        reset();
        pthread_barrier_wait(&turn);
        pthread_join(thread, NULL);
        run(fresh, NULL);
    }
    run(with_an_attribute, NULL);
    run(fresh, NULL);
    unsigned long long flag;
    void *other;
    SAY(cuMemAlloc_v2, &flag, (size_t)4);
    SAY(cuMemsetD32_v2, flag, 0, (size_t)1);
    SAY(cuCtxSynchronize);
    SAY(cuStreamCreate, &other, 1);
    run(with_work, (void *)flag);
    run(fresh, NULL);
    SAY(cuStreamWriteValue32_v2, other, flag, 1, 0);
    SAY(cuCtxSynchronize);
    run(with_a_capture, NULL);
    run(fresh, NULL);
}

/* What the compiler says of code that it refuses. */

enum { ERRORS = 5, ERRORS_SIZE = 6 };

static void log_of(const char *label, int whole, size_t room) {
    static const char text[] = ".version 7.0\n.target sm_75\n.address_size 64\nnonsense;\n";
    char log[4096];
    int keys[] = {ERRORS, ERRORS_SIZE};
    void *values[] = {log, (void *)room}, *code = NULL;
    memset(log, '?', sizeof log);
    if (whole) {
        SAY(cuLibraryLoadData, &code, text, keys, values, 2, NULL, NULL, 0);
    } else {
        SAY(cuModuleLoadDataEx, &code, text, 2, keys, values);
    }
    printf("%s: %zu bytes: %.*s; behind its end %c\n", label, (size_t)values[1], (int)strnlen(log, room), log, log[room]);
    memset(log, '?', sizeof log);
    values[1] = (void *)room;
    static const char good[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() {\n  ret;\n}\n";
    if (whole) {
        SAY(cuLibraryLoadData, &code, good, keys, values, 2, NULL, NULL, 0);
    } else {
        SAY(cuModuleLoadDataEx, &code, good, 2, keys, values);
    }
    printf("%s: %zu bytes: %.*s\n", label, (size_t)values[1], (int)strnlen(log, room), log);
}

static void logs(void) {
    start("log", 1);
    log_of("module", 0, 4000);
    log_of("module in short", 0, 16);
    log_of("library", 1, 4000);
    log_of("library in short", 1, 16);
}

/* What the program's environment says of loading. */

static void loading(const char *mode) {
    const char *label = "loading";
    int found = -1;
    setenv("CUDA_MODULE_LOADING", mode, 1);
    start(label, 1);
    SAY(cuModuleGetLoadingMode, &found);
    printf("%s: %d\n", mode, found);
}

/* The numbers of memory: of two GPUs, and of variables at one address. */

enum { SYNC_MEMOPS = 6, BUFFER_ID = 7 };

static unsigned long long number(const char *label, unsigned long long at) {
    unsigned long long id = 0;
    SAY(cuPointerGetAttribute, &id, BUFFER_ID, at);
    return id;
}

static void numbers(void) {
    const char *label = "numbers";
    static const char text[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 8 .b8 words[4096];\n";
    unsigned long long ids[16], other, words[2];
    int count = 0, same = 0, waits[2] = {-1, -1}, on = 1;
    void *module, *host;
    start(label, 2);
    ids[count++] = number(label, address);
    SAY(cuCtxSetCurrent, contexts[1]);
    SAY(cuMemAlloc_v2, &other, (size_t)4096);
    ids[count++] = number(label, other);
    SAY(cuMemAllocHost_v2, &host, (size_t)4096);
    ids[count++] = number(label, (unsigned long long)host);
    for (int load = 0; load < 2; load++) {
        SAY(cuModuleLoadData, &module, text);
        SAY(cuModuleGetGlobal_v2, &words[load], NULL, module, "words");
        ids[count++] = number(label, words[load]);
        SAY(cuPointerGetAttribute, &waits[load], SYNC_MEMOPS, words[load]);
        SAY(cuPointerSetAttribute, &on, SYNC_MEMOPS, words[load]);
        SAY(cuModuleUnload, module);
    }
    for (int a = 0; a < count; a++)
        for (int b = 0; b < a; b++) same += ids[a] == ids[b];
    printf("%d of %d numbers are those of other memory; before and after the reload %d, %d\n", same, count, waits[0], waits[1]);
}

int main(int argc, char **argv) {
    const char *mode = argc == 2 ? argv[1] : "";
    if (!strcmp(mode, "kernels")) kernels();
    else if (!strcmp(mode, "threads")) threads();
    else if (!strcmp(mode, "log")) logs();
    else if (!strcmp(mode, "EAGER") || !strcmp(mode, "LAZY")) loading(mode);
    else if (!strcmp(mode, "numbers")) numbers();
    else {
        fputs("usage: shortcuts kernels|threads|log|EAGER|LAZY|numbers\n", stderr);
        return 64;
    }
    return 0;
}
