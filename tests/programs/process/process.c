/* What processes do with CUDA besides computing: end, exec, close and open libraries, reset devices. Prints every answer. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*fn)();

static void *cuda;
static void *context;
static unsigned long long address;

#define CUDA(name) ((fn)dlsym(cuda, #name))
#define SAY(name, ...) (printf("%s: %s = %d\n", label, #name, CUDA(name)(__VA_ARGS__)), fflush(stdout))

static void load(void) {
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        puts(dlerror());
        exit(2);
    }
}

static void start(const char *label) {
    load();
    SAY(cuInit, 0);
    SAY(cuDevicePrimaryCtxRetain, &context, 0);
    SAY(cuCtxSetCurrent, context);
    SAY(cuMemAlloc_v2, &address, (size_t)1 << 20);
    SAY(cuMemsetD8_v2, address, 5, (size_t)1 << 20);
}

static void use(const char *label) {
    unsigned char byte = 0;
    int count = -1;
    unsigned long long more = 0;
    SAY(cuDeviceGetCount, &count);
    SAY(cuCtxSynchronize);
    SAY(cuMemcpyDtoH_v2, &byte, address, (size_t)1);
    SAY(cuMemAlloc_v2, &more, (size_t)4096);
    SAY(cuMemFree_v2, more);
    printf("%s: %d devices, byte %d\n", label, count, byte);
    fflush(stdout);
}

static void at_exit_first(void) { use("a handler from before CUDA's start"); }
static void at_exit_last(void) { use("a handler from after CUDA's start"); }

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "exit")) {
        atexit(at_exit_first);
        start("start");
        use("work");
        atexit(at_exit_last);
        // Until the harness says so.
        while (argc > 2 && access(argv[2], F_OK)) usleep(1000);
        return 0;
    }
    if (!strcmp(mode, "close")) {
        start("start");
        for (int i = 0; i < 3; i++) {
            dlclose(cuda);
            load();
            use("opened again");
        }
        return 0;
    }
    if (!strcmp(mode, "exec")) {
        start("parent");
        for (int i = 0; i < 2; i++) {
            int status = -1;
            pid_t child = fork();
            if (child == 0) {
                char *words[] = {argv[0], "child", NULL};
                execv("/proc/self/exe", words);
                _exit(9);
            }
            waitpid(child, &status, 0);
            printf("the child ended with %d\n", status);
        }
        use("parent");
        return 0;
    }
    if (!strcmp(mode, "child")) {
        start("child");
        use("child");
        return 0;
    }
    if (!strcmp(mode, "reset")) {
        start("start");
        for (int i = 0; i < 2; i++) {
            const char *label = "reset";
            void *event = 0;
            SAY(cuEventCreate, &event, 0);
            SAY(cuDevicePrimaryCtxReset_v2, 0);
            SAY(cuEventQuery, event);
            SAY(cuMemAlloc_v2, &address, (size_t)4096);
            SAY(cuDevicePrimaryCtxRetain, &context, 0);
            SAY(cuCtxSetCurrent, context);
            SAY(cuMemAlloc_v2, &address, (size_t)1 << 20);
            SAY(cuMemsetD8_v2, address, 6 + i, (size_t)1 << 20);
            use("after the reset");
        }
        return 0;
    }
    fputs("usage: process exit [FILE]|close|exec|reset\n", stderr);
    return 64;
}
