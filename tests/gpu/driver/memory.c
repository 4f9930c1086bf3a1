// The plan of addresses and what moving memory costs: reservations exchanged for placeholders,
// unmapping beside running kernels, and physical memory handed to another process.
#define _GNU_SOURCE
#include "facts.h"
#include "hook.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static CUmodule load_module(void) {
    CUmodule module;
    CK(cuModuleLoadData(&module, module_image(0)));
    return module;
}

// Runs `part` in a process of its own and answers its exit code.
static int apart(int (*part)(int), int argument) {
    pid_t child = fork();
    if (child == 0) _exit(part(argument));
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

// ---- 3: placeholder exchange ----

enum { BEFORE_INIT, LIFTED_FOR_INIT, BEFORE_CONTEXT, AFTER_CONTEXT };

static void *placeholder_at(uintptr_t at) {
    return mmap((void *)at, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

// `when`: at which moment the placeholder is put in the way.
static int exchange(int when) {
    static const char *names[] = {"before cuInit", "before cuInit, lifted while that runs", "before the context", "after the context"};
    hook_install(dlopen("libcuda.so.1", RTLD_NOW));
    void *placeholder = when <= LIFTED_FOR_INIT ? placeholder_at(OWN_AT) : NULL;
    if (when == LIFTED_FOR_INIT) munmap(placeholder, ARENA);
    CUdeviceptr at;
    CK(cuInit(0));
    if (when == LIFTED_FOR_INIT || when == BEFORE_CONTEXT) placeholder = placeholder_at(OWN_AT);
    first_context();
    if (when == AFTER_CONTEXT) placeholder = placeholder_at(OWN_AT);
    hook_exchange_from = OWN_AT;
    hook_exchange_to = OWN_AT + ARENA;
    int requests = hook_log_count;
    double start = now_us();
    CUresult result = cuMemAddressReserve(&at, ARENA, 0, OWN_AT, 0);
    double took = now_us() - start;
    for (; requests < hook_log_count; requests++) {
        struct request *r = &hook_log[requests];
        printf("    placeholder %s: hint %lx size %lx flags %x -> %lx\n", names[when], (unsigned long)r->hint, r->size, r->flags, r->answer);
    }
    int good = placeholder == (void *)OWN_AT && !result;
    // Chunks come and go inside, also out of order, and hold what is written.
    int cycles = 0;
    for (int i = 0; good && i < 200; i++) {
        CUmemGenericAllocationHandle handle;
        CUdeviceptr chunk = at + (uint64_t)(i * 37 % 101) * (32 << 20);
        unsigned value = 0;
        good = !back(chunk, 32 << 20, &handle) && !cuMemsetD32(chunk, 77 + (unsigned)i, 1024) && !cuMemcpyDtoH(&value, chunk + 4092, 4);
        good = good && value == 77u + (unsigned)i && !cuMemUnmap(chunk, 32 << 20) && !cuMemRelease(handle);
        cycles += good;
    }
    // When the range is given back, is it a hole that anybody may take?
    CUresult freed = cuMemAddressFree(at, ARENA);
    void *again = placeholder_at(at);
    char what[80];
    snprintf(what, sizeof what, "512 GB placeholder put %s, then exchanged", names[when]);
    ROW("3", what, "error %d at %llx in %.0f us; %d of 200 chunk cycles good; freed: error %d, %s", result, at, took, cycles, freed,
        again == (void *)at ? "a hole is left" : "still taken");
    return !good;
}

// ---- 4: unmapping while kernels run ----

static int unmap_beside_kernels(int unused) {
    (void)unused;
    CUmodule module = (first_context(), load_module());
    CUfunction copy = kernel(module, "raw_copy"), spin = kernel(module, "spin");
    CUdeviceptr base;
    CK(cuMemAddressReserve(&base, ARENA, 0, OWN_AT, 0));
    CUmemGenericAllocationHandle handle, source;
    CK(back(base, 64 << 20, &source));
    CUstream streams[8], busy;
    CUevent events[8];
    for (int i = 0; i < 8; i++) {
        CK(cuStreamCreate(&streams[i], 1));
        CK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    }
    CK(cuStreamCreate(&busy, 1));
    unsigned long long long_ns = 3000000000ull, words = (2 << 20) / 8;
    void *spin_arguments[] = {&long_ns};
    CK(launch(spin, 1, 1, busy, spin_arguments));
    int rounds = 0;
    double unmap_us = 0, map_us = 0, start = now_us();
    for (; rounds < 500 && now_us() - start < 2500000; rounds++) {
        CUdeviceptr chunk = base + (1ull << 30) + (uint64_t)(rounds % 50) * (2 << 20);
        double t = now_us();
        CK(back(chunk, 2 << 20, &handle));
        map_us += now_us() - t;
        void *arguments[] = {&chunk, &base, &words};
        for (int i = 0; i < 8; i++) {
            CK(launch(copy, 32, 256, streams[i], arguments));
            CK(cuEventRecord(events[i], streams[i]));
        }
        for (int i = 0; i < 8; i++) {
            while (cuEventQuery(events[i]) == CUDA_ERROR_NOT_READY) continue;
        }
        t = now_us();
        CK(cuMemUnmap(chunk, 2 << 20));
        CK(cuMemRelease(handle));
        unmap_us += now_us() - t;
    }
    int still_running = cuStreamQuery(busy) == CUDA_ERROR_NOT_READY;
    CUresult result = cuCtxSynchronize();
    ROW("4", "2 MB unmapped once marks on 8 streams passed, beside a long kernel", "%d rounds, error %d, the kernel ran throughout: %s", rounds, result, still_running ? "yes" : "no");
    ROW("4", "cost beside a running kernel: create + map + access / unmap + release", "%.0f us / %.0f us for 2 MB", map_us / rounds, unmap_us / rounds);
    for (size_t size = 64 << 20; size <= 1u << 30; size <<= 4) {
        long_ns = 50000000;
        CK(launch(spin, 1, 1, busy, spin_arguments));
        double t = now_us();
        CK(back(base + (1ull << 33), size, &handle));
        double mapped = now_us();
        CK(cuMemUnmap(base + (1ull << 33), size));
        CK(cuMemRelease(handle));
        double done = now_us();
        still_running = cuStreamQuery(busy) == CUDA_ERROR_NOT_READY;
        char what[80];
        snprintf(what, sizeof what, "the same for %zu MB", size >> 20);
        ROW("4", what, "%.0f us / %.0f us, kernel still running: %s", mapped - t, done - mapped, still_running ? "yes" : "no");
        CK(cuCtxSynchronize());
    }
    return 0;
}

// What the quarantine prevents: a kernel that still writes to memory unmapped under it.
static int unmap_too_early(int unused) {
    (void)unused;
    CUmodule module = (first_context(), load_module());
    CUfunction copy = kernel(module, "raw_copy"), spin = kernel(module, "spin");
    CUdeviceptr base;
    CK(cuMemAddressReserve(&base, ARENA, 0, OWN_AT, 0));
    CUmemGenericAllocationHandle first, second;
    CK(back(base, 2 << 20, &first));
    CK(back(base + (2 << 20), 2 << 20, &second));
    unsigned long long ns = 50000000, words = 1024;
    CUdeviceptr to = base + (2 << 20);
    CUstream stream;
    CK(cuStreamCreate(&stream, 1));
    CK(launch(spin, 1, 1, stream, (void *[]){&ns}));
    CK(launch(copy, 1, 32, stream, (void *[]){&to, &base, &words}));
    CUresult unmapped = cuMemUnmap(to, 2 << 20);
    CUresult after = cuCtxSynchronize();
    ROW("4", "unmapped without waiting: cuMemUnmap, then the kernel", "error %d, error %d", unmapped, after);
    return 0;
}

// ---- 7: memory handed over ----

static void send_descriptor(int socket, int descriptor) {
    char byte = 1, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(socket, &message, 0) != 1) exit(2);
}

static int receive_descriptor(int socket) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int descriptor = -1;
    if (recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message)) memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

#define CHUNKS 8
#define CHUNK (512ull << 20)

// Takes over the memory of the process at the other end of `socket`, at the same address.
static int take_over(int socket) {
    first_context();
    int descriptors[CHUNKS];
    for (int i = 0; i < CHUNKS; i++) descriptors[i] = receive_descriptor(socket);
    CUmemGenericAllocationHandle handles[CHUNKS];
    CUmemAccessDesc access = read_write();
    CUdeviceptr base;
    CK(cuMemAddressReserve(&base, ARENA, 0, OWN_AT, 0));
    double start = now_us();
    for (int i = 0; i < CHUNKS; i++) CK(cuMemImportFromShareableHandle(&handles[i], (void *)(intptr_t)descriptors[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    double imported = now_us();
    for (int i = 0; i < CHUNKS; i++) CK(cuMemMap(base + i * CHUNK, CHUNK, 0, handles[i], 0));
    CK(cuMemSetAccess(base, CHUNKS * CHUNK, &access, 1));
    double mapped = now_us();
    unsigned first = 0, last = 0;
    CK(cuMemcpyDtoH(&first, base, 4));
    CK(cuMemcpyDtoH(&last, base + CHUNKS * CHUNK - 4, 4));
    CK(cuMemsetD32(base + CHUNK, 4711, 1024));
    CK(cuCtxSynchronize());
    CUmemAllocationProp property;
    CK(cuMemGetAllocationPropertiesFromHandle(&property, handles[0]));
    ROW("7", "4 GB in 8 chunks imported in another process: import / map + access", "%.1f ms / %.1f ms, same address: %s, contents right: %s, gpuDirectRDMACapable kept: %d", (imported - start) / 1e3, (mapped - imported) / 1e3, base == OWN_AT ? "yes" : "no", first == 1234567 && last == 1234567 ? "yes" : "no", property.allocFlags.gpuDirectRDMACapable);
    return 0;
}

static int hand_over(int rdma) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 2;
    pid_t child = fork();
    if (child == 0) {
        close(pair[0]);
        _exit(take_over(pair[1]));
    }
    close(pair[1]);
    first_context();
    int supported = 0;
    CK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0));
    CUmemAllocationProp property = device_memory();
    property.allocFlags.gpuDirectRDMACapable = (unsigned char)rdma;
    CUmemAccessDesc access = read_write();
    CUmemGenericAllocationHandle handles[CHUNKS];
    CUdeviceptr base;
    CK(cuMemAddressReserve(&base, ARENA, 0, OWN_AT, 0));
    double start = now_us();
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < CHUNKS && !result; i++) {
        result = cuMemCreate(&handles[i], CHUNK, &property, 0);
        if (!result) result = cuMemMap(base + i * CHUNK, CHUNK, 0, handles[i], 0);
    }
    if (!result) result = cuMemSetAccess(base, CHUNKS * CHUNK, &access, 1);
    char what[80];
    snprintf(what, sizeof what, "create + map 4 GB, gpuDirectRDMACapable %d (device says %d)", rdma, supported);
    ROW("7", what, "error %d, %.1f ms", result, (now_us() - start) / 1e3);
    if (result) {
        shutdown(pair[0], SHUT_RDWR);
        waitpid(child, NULL, 0);
        return 0;
    }
    CK(cuMemsetD32(base, 1234567, CHUNKS * CHUNK / 4));
    CK(cuCtxSynchronize());
    start = now_us();
    for (int i = 0; i < CHUNKS; i++) {
        int descriptor;
        CK(cuMemExportToShareableHandle(&descriptor, handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        send_descriptor(pair[0], descriptor);
        close(descriptor);
    }
    double exported = now_us() - start;
    waitpid(child, NULL, 0);
    unsigned value = 0;
    CK(cuMemcpyDtoH(&value, base + CHUNK, 4));
    ROW("7", "export of the 8 chunks; the other's write is seen here", "%.2f ms; %s", exported / 1e3, value == 4711 ? "yes" : "no");
    return 0;
}

int main(void) {
    // Two of the exchanges run at once: each process has its own placeholder.
    pid_t other = fork();
    if (other == 0) _exit(exchange(AFTER_CONTEXT));
    int failed = apart(exchange, BEFORE_INIT);
    int status;
    waitpid(other, &status, 0);
    failed |= apart(exchange, LIFTED_FOR_INIT) | apart(exchange, BEFORE_CONTEXT);
    failed |= status | apart(unmap_beside_kernels, 0) | apart(unmap_too_early, 0) | apart(hand_over, 0) | apart(hand_over, 1);
    return failed != 0;
}
