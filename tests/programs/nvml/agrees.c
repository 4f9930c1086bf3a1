/* What NVML says must be what CUDA says, and asking NVML first must not disturb CUDA: not here, and not in forked children. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*fn)();

static void *cuda, *nvml;

static fn get(void *from, const char *name) {
    fn f = (fn)dlsym(from, name);
    if (!f) {
        printf("%s is missing\n", name);
        exit(1);
    }
    return f;
}
#define NVML(name) get(nvml, #name)
#define CUDA(name) get(cuda, #name)

static void want(int is, int should, const char *what, int line) {
    if (is != should) {
        printf("line %d: %s is %d, not %d\n", line, what, is, should);
        exit(1);
    }
}
#define WANT(is, should) want((is), (should), #is, __LINE__)

struct memory {
    unsigned long long total, free, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned instance, part;
};
struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

static void open_cuda(void) {
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        puts(dlerror());
        exit(1);
    }
}

int main(int argc, char **argv) {
    unsigned count = 0, wanted = argc > 1 ? atoi(argv[1]) : 1;
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml) {
        puts(dlerror());
        return 1;
    }
    WANT(NVML(nvmlDeviceGetCount_v2)(&count), 1); /* not started */
    WANT(NVML(nvmlShutdown)(), 1);
    WANT(NVML(nvmlInit_v2)(), 0);
    WANT(NVML(nvmlDeviceGetCount_v2)(&count), 0);
    WANT(count, wanted);
    pid_t child = fork();
    if (child == 0) {
        void *context;
        open_cuda();
        WANT(CUDA(cuInit)(0), 0);
        WANT(CUDA(cuDevicePrimaryCtxRetain)(&context, 0), 0);
        _exit(0);
    }
    int status = -1;
    WANT(waitpid(-1, &status, 0), child);
    WANT(status, 0);
    WANT(waitpid(-1, &status, 0), -1); /* nobody else is our child */

    open_cuda();
    WANT(CUDA(cuInit)(0), 0);
    int devices = 0, version = 0, also = 0;
    WANT(CUDA(cuDeviceGetCount)(&devices), 0);
    WANT(devices, (int)count);
    WANT(CUDA(cuDriverGetVersion)(&version), 0);
    WANT(NVML(nvmlSystemGetCudaDriverVersion_v2)(&also), 0);
    WANT(also, version);
    for (unsigned i = 0; i < count; i++) {
        void *gpu, *again;
        char name[96], cuda_name[96], uuid[96], cuda_uuid[96], address[32];
        unsigned char bytes[16];
        struct pci pci;
        int major, minor, cuda_major, cuda_minor;
        WANT(NVML(nvmlDeviceGetHandleByIndex_v2)(i, &gpu), 0);
        WANT(NVML(nvmlDeviceGetName)(gpu, name, 96), 0);
        WANT(CUDA(cuDeviceGetName)(cuda_name, 96, i), 0);
        WANT(strcmp(name, cuda_name), 0);
        WANT(NVML(nvmlDeviceGetName)(gpu, name, 3), 7);
        WANT(NVML(nvmlDeviceGetUUID)(gpu, uuid, 96), 0);
        WANT(CUDA(cuDeviceGetUuid_v2)(bytes, i), 0);
        char *to = cuda_uuid + sprintf(cuda_uuid, "GPU-");
        for (int b = 0; b < 16; b++) to += sprintf(to, b == 4 || b == 6 || b == 8 || b == 10 ? "-%02x" : "%02x", bytes[b]);
        WANT(strcmp(uuid, cuda_uuid), 0);
        WANT(NVML(nvmlDeviceGetHandleByUUID)(uuid, &again), 0);
        WANT(again == gpu, 1);
        WANT(NVML(nvmlDeviceGetPciInfo_v3)(gpu, &pci), 0);
        WANT(CUDA(cuDeviceGetPCIBusId)(address, 32, i), 0);
        WANT(strstr(pci.text, address) != NULL || strstr(address, pci.text) != NULL, 1);
        WANT(NVML(nvmlDeviceGetHandleByPciBusId_v2)(address, &again), 0);
        WANT(again == gpu, 1);
        WANT(NVML(nvmlDeviceGetCudaComputeCapability)(gpu, &major, &minor), 0);
        WANT(CUDA(cuDeviceComputeCapability)(&cuda_major, &cuda_minor, i), 0);
        WANT(major == cuda_major && minor == cuda_minor, 1);
        /* What softgpu says that it measures. */
        unsigned rates[2] = {0, 0};
        struct { unsigned version; int sensor, degrees; } temperature = {1 << 24 | 12, 0, 0};
        WANT(NVML(nvmlDeviceGetTemperature)(gpu, 0, &also), 0);
        WANT(also, 44);
        WANT(NVML(nvmlDeviceGetTemperature)(gpu, 1, &also), 2);
        WANT(NVML(nvmlDeviceGetTemperatureV)(gpu, &temperature), 0);
        WANT(temperature.degrees, 44);
        temperature.version = 12;
        WANT(NVML(nvmlDeviceGetTemperatureV)(gpu, &temperature), 25);
        WANT(NVML(nvmlDeviceGetUtilizationRates)(gpu, rates), 0);
        WANT(rates[0] == 97 && rates[1] == 41, 1);
        WANT(NVML(nvmlDeviceGetPowerUsage)(gpu, &also), 0);
        WANT(also, 312500);
        WANT(NVML(nvmlDeviceGetEnforcedPowerLimit)(gpu, &also), 0);
        WANT(also, 700000);
        WANT(NVML(nvmlDeviceGetClockInfo)(gpu, 1, &also), 0);
        WANT(also, 1981);
        WANT(NVML(nvmlDeviceGetClockInfo)(gpu, 4, &also), 2);
        WANT(NVML(nvmlDeviceGetPerformanceState)(gpu, &also), 0);
        WANT(also, 0);
        WANT(NVML(nvmlDeviceGetPowerUsage)(gpu, NULL), 2);
        /* softgpu has the link of an H200, and says nothing of its fans. */
        WANT(NVML(nvmlDeviceGetMaxPcieLinkGeneration)(gpu, &also), 0);
        WANT(also, 5);
        WANT(NVML(nvmlDeviceGetCurrPcieLinkWidth)(gpu, &also), 0);
        WANT(also, 16);
        WANT(NVML(nvmlDeviceGetNumFans)(gpu, &also), 3);
    }
    void *gpu, *context;
    unsigned long long address = 0;
    struct memory before, after;
    struct process list[4];
    unsigned n = 0;
    WANT(NVML(nvmlDeviceGetHandleByIndex_v2)(count, &gpu), 2);
    WANT(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &gpu), 0);
    WANT(CUDA(cuDevicePrimaryCtxRetain)(&context, 0), 0);
    WANT(CUDA(cuCtxSetCurrent)(context), 0);
    WANT(NVML(nvmlDeviceGetMemoryInfo)(gpu, &before), 0);
    WANT(CUDA(cuMemAlloc_v2)(&address, 512ul << 20), 0);
    WANT(NVML(nvmlDeviceGetMemoryInfo)(gpu, &after), 0);
    WANT(after.used >= before.used + (512ul << 20) && after.used + after.free == after.total, 1);
    size_t cuda_free = 0, cuda_total = 0;
    WANT(CUDA(cuMemGetInfo_v2)(&cuda_free, &cuda_total), 0);
    WANT(cuda_free == after.free, 1);
    WANT(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(gpu, &n, NULL), 7);
    n = 4;
    WANT(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(gpu, &n, list), 0);
    WANT(n == 1 && list[0].pid == (unsigned)getpid() && list[0].used == after.used, 1);
    void *current = NULL;
    WANT(CUDA(cuCtxGetCurrent)(&current), 0);
    WANT(current == context, 1);
    WANT(NVML(nvmlShutdown)(), 0);
    WANT(NVML(nvmlDeviceGetCount_v2)(&count), 1);
    puts("NVML agrees");
    return 0;
}
