// A thread uses the driver's library and ends; then the library is closed while its own threads run, and used again.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define CALL(name, ...)                                                         \
    do {                                                                        \
        int (*call)() = dlsym(library, #name);                                  \
        int rc = call ? call(__VA_ARGS__) : -1;                                 \
        if (rc) return fprintf(stderr, "%s: %d\n", #name, rc), (void *)1;       \
    } while (0)

static unsigned long long memory;

static void *use(void *library) {
    unsigned value = 7, back = 0;
    void *context;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    if (!memory) {
        CALL(cuMemAlloc_v2, &memory, sizeof value);
        CALL(cuMemcpyHtoD_v2, memory, &value, sizeof value);
    }
    CALL(cuMemcpyDtoH_v2, &back, memory, sizeof back);
    printf("%u\n", back);
    return 0;
}

int main(void) {
    for (int round = 0; round < 2; round++) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW), *failed;
        if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
        pthread_t thread;
        if (pthread_create(&thread, 0, use, library) || pthread_join(thread, &failed) || failed) return 2;
        dlclose(library);
        usleep(200000);
    }
    return 0;
}
