// Two threads: one works without end and checks what it computes, the other asks for properties all the time. While the job is parked, the first
// waits and the second gets its answers.
//
// Usage: parked END [MIB]: works until the file END exists; MIB more of the GPU's memory, an even number, have contents that never
// change, in blocks that each have memory of their own. Counts what both have done on stderr. Exit code: 0 right, 1 wrong, 2 a call failed.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*call)();
static void *cuda, *nvml;
static volatile int over;
static volatile long worked;
static int device;
static void *context;

static call find(void *library, const char *name) {
    call found = (call)dlsym(library, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

static void check(const char *name, int code) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", name, code);
        exit(2);
    }
}
#define CUDA(name, ...) check(#name, find(cuda, #name)(__VA_ARGS__))
#define NVML(name, ...) check(#name, find(nvml, #name)(__VA_ARGS__))

enum { WORDS = 1 << 18, BLOCK = 1 << 19, MOST = 4096 };

static void *work(void *unused) {
    static unsigned words[WORDS];
    unsigned long long memory;
    CUDA(cuCtxSetCurrent, context);
    CUDA(cuMemAlloc_v2, &memory, (size_t)sizeof words);
    for (unsigned round = 1; !over; round++) {
        CUDA(cuMemsetD32_v2, memory, round, (size_t)WORDS);
        CUDA(cuCtxSynchronize);
        CUDA(cuMemcpyDtoH_v2, words, memory, (size_t)sizeof words);
        for (int i = 0; i < WORDS; i++) {
            if (words[i] != round) {
                fprintf(stderr, "word %d of round %u is %u\n", i, round, words[i]);
                exit(1);
            }
        }
        worked = round;
        usleep(2000);
    }
    return NULL;
}

// Bytes of a block that cannot be compressed, or whether they are still there.
static void rest(unsigned long long block, unsigned number, int is_there) {
    static unsigned words[BLOCK], found[BLOCK];
    unsigned state = number + 1;
    for (size_t i = 0; i < BLOCK; i++) words[i] = state = state * 1664525u + 1013904223u;
    if (!is_there) {
        CUDA(cuMemcpyHtoD_v2, block, words, sizeof words);
        return;
    }
    CUDA(cuMemcpyDtoH_v2, found, block, sizeof found);
    if (memcmp(words, found, sizeof words)) {
        fprintf(stderr, "what never changes has changed in block %u\n", number);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 3) return 64;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !nvml) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    CUDA(cuInit, 0);
    CUDA(cuDeviceGet, &device, 0);
    CUDA(cuDevicePrimaryCtxRetain, &context, device);
    CUDA(cuCtxSetCurrent, context);
    NVML(nvmlInit_v2);
    static unsigned long long blocks[MOST];
    unsigned count = argc == 3 ? (unsigned)atoi(argv[2]) / 2 : 0;
    if (count > MOST) return 64;
    for (unsigned i = 0; i < count; i++) {
        CUDA(cuMemAlloc_v2, &blocks[i], BLOCK * sizeof(unsigned));
        rest(blocks[i], i, 0);
    }
    pthread_t worker;
    pthread_create(&worker, NULL, work, NULL);
    char name[256], first[256] = "";
    for (long asked = 1; access(argv[1], F_OK); asked++) {
        int value, count;
        size_t total;
        void *handle, *current;
        unsigned cores;
        CUDA(cuDeviceGetCount, &count);
        CUDA(cuDeviceGetAttribute, &value, 16, device);
        CUDA(cuDeviceTotalMem_v2, &total, device);
        CUDA(cuDeviceGetName, name, (int)sizeof name, device);
        CUDA(cuCtxGetCurrent, &current);
        if (!*first) strcpy(first, name);
        if (strcmp(first, name) || count != 1 || current != context) {
            fprintf(stderr, "%s, %d GPUs\n", name, count);
            return 1;
        }
        NVML(nvmlDeviceGetHandleByIndex_v2, 0, &handle);
        NVML(nvmlDeviceGetName, handle, name, (unsigned)sizeof name);
        find(nvml, "nvmlDeviceGetNumGpuCores")(handle, &cores);
        fprintf(stderr, "asked %ld worked %ld\n", asked, worked);
        usleep(10000);
    }
    over = 1;
    pthread_join(worker, NULL);
    for (unsigned i = 0; i < count; i++) rest(blocks[i], i, 1);
    puts("RESULT ok");
    return 0;
}
