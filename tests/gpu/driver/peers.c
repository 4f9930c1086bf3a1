// Memory of a GPU that the process does not see, streams held by a word of registered memory, and codes of calls between devices.
// For a machine with two GPUs; with one the second process uses the same.
#define _GNU_SOURCE
#include "facts.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 2 << 20, CHUNKS = 4 };
#define PEER_AT (OWN_AT + ARENA)

static void send_descriptor(int socket, int descriptor) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
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

// The process of the first GPU: maps the other one's memory at its address, and uses it with copies and a kernel.
static int user(int socket) {
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    first_context();
    CUmodule module;
    CUdeviceptr own, base;
    CUmemGenericAllocationHandle handles[CHUNKS], mine;
    CUmemAccessDesc access = read_write();
    CK(cuModuleLoadData(&module, module_image(1)));
    CK(cuMemAddressReserve(&own, ARENA, 0, OWN_AT, 0));
    CK(back(own, CHUNK, &mine));
    CK(cuMemAddressReserve(&base, ARENA, 0, PEER_AT, 0));
    CUresult imported = 0, mapped = 0, allowed = 0;
    double start = now_us();
    for (int i = 0; i < CHUNKS && !imported && !mapped && !allowed; i++) {
        int descriptor = receive_descriptor(socket);
        imported = cuMemImportFromShareableHandle(&handles[i], (void *)(intptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        close(descriptor);
        if (!imported) mapped = cuMemMap(base + (CUdeviceptr)i * CHUNK, CHUNK, 0, handles[i], 0);
        if (!imported && !mapped) allowed = cuMemSetAccess(base + (CUdeviceptr)i * CHUNK, CHUNK, &access, 1);
    }
    ROW("P1", "memory of an unseen GPU: import, map, access", "errors %d %d %d, %.0f us a chunk, same address: %s", imported, mapped, allowed, (now_us() - start) / CHUNKS, base == PEER_AT ? "yes" : "no");
    if (imported || mapped || allowed) return 1;
    unsigned value = 0;
    CUresult copied = cuMemcpyDtoD(own, base + CHUNK, 4);
    CK(cuMemcpyDtoH(&value, own, 4));
    CUresult fill = cuMemsetD32(base, 4711, 256);
    CUdeviceptr out = base + 2 * CHUNK;
    CUresult kernel_ran = launch(kernel(module, "second"), 1, 1, 0, (void *[]){&out});
    CUresult done = cuCtxSynchronize();
    ROW("P2", "copy from it, fill, kernel that writes there", "errors %d %d %d %d, read %u (99 is right)", copied, fill, kernel_ran, done, value);
    // As long as this process has it mapped the owner may give it up.
    char go = 1;
    if (write(socket, &go, 1) != 1 || read(socket, &go, 1) != 1) return 1;
    CK(cuMemcpyDtoH(&value, base, 4));
    ROW("P3", "after the owner has unmapped and released it", "still %u (4711 is right)", value);
    double unmap = now_us();
    CK(cuMemUnmap(base, (size_t)CHUNKS * CHUNK));
    for (int i = 0; i < CHUNKS; i++) CK(cuMemRelease(handles[i]));
    ROW("P4", "unmapping it here", "%.0f us", now_us() - unmap);
    return 0;
}

static int owner(int socket) {
    setenv("CUDA_VISIBLE_DEVICES", getenv("OWNER_GPU"), 1);
    first_context();
    CUdeviceptr base;
    CUmemGenericAllocationHandle handles[CHUNKS];
    CK(cuMemAddressReserve(&base, ARENA, 0, PEER_AT, 0));
    for (int i = 0; i < CHUNKS; i++) CK(back(base + (CUdeviceptr)i * CHUNK, CHUNK, &handles[i]));
    CK(cuMemsetD32(base, 99, (size_t)CHUNKS * CHUNK / 4));
    CK(cuCtxSynchronize());
    for (int i = 0; i < CHUNKS; i++) {
        int descriptor;
        CK(cuMemExportToShareableHandle(&descriptor, handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        send_descriptor(socket, descriptor);
        close(descriptor);
    }
    char go;
    if (read(socket, &go, 1) != 1) return 1;
    unsigned filled = 0, written = 99;
    CK(cuMemcpyDtoH(&filled, base, 4));
    CK(cuMemcpyDtoH(&written, base + 2 * CHUNK, 4));
    ROW("P2", "what the owner sees of it", "fill %u (4711 is right), kernel %s", filled, written != 99 ? "yes" : "NO");
    CK(cuMemUnmap(base, (size_t)CHUNKS * CHUNK));
    for (int i = 0; i < CHUNKS; i++) CK(cuMemRelease(handles[i]));
    return write(socket, &go, 1) != 1;
}

static int shared_between_processes(void) {
    int pair[2], first, second;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 2;
    pid_t a = fork();
    if (a == 0) {
        close(pair[1]);
        _exit(user(pair[0]));
    }
    pid_t b = fork();
    if (b == 0) {
        close(pair[0]);
        _exit(owner(pair[1]));
    }
    close(pair[0]);
    close(pair[1]);
    waitpid(a, &first, 0);
    waitpid(b, &second, 0);
    return first || second;
}

// Streams that wait for words which the host writes.
static int held_streams(void) {
    first_context();
    enum { STREAMS = 64 };
    volatile uint32_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CK(cuMemHostRegister((void *)words, 4096, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    CUstream streams[STREAMS], free_stream;
    CUdeviceptr out;
    CUmodule module;
    CK(cuModuleLoadData(&module, module_image(1)));
    CUfunction function = kernel(module, "second");
    CK(cuMemAlloc(&out, 4096));
    CK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    int refused = 0;
    for (int i = 0; i < STREAMS; i++) {
        CK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        CUstreamBatchMemOpParams wait;
        memset(&wait, 0, sizeof wait);
        wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        wait.waitValue.address = (CUdeviceptr)(uintptr_t)&words[i];
        wait.waitValue.value = 1;
        refused |= cuStreamBatchMemOp(streams[i], 1, &wait, 0);
        CK(launch(function, 1, 1, streams[i], (void *[]){&out}));
    }
    // Streams share the hardware's queues: one that is held must not keep another from working for ever.
    CK(launch(function, 1, 1, free_stream, (void *[]){&out}));
    double start = now_us();
    while (cuStreamQuery(free_stream) == CUDA_ERROR_NOT_READY && now_us() - start < 2e6) {
    }
    ROW("P5", "64 streams held by words, error of the waits; a 65th stream works", "%d; %s", refused, cuStreamQuery(free_stream) == CUDA_SUCCESS ? "yes" : "NO, it waits for the held ones");
    double longest = 0;
    for (int i = STREAMS - 1; i >= 0; i--) {
        start = now_us();
        words[i] = 1;
        while (cuStreamQuery(streams[i]) == CUDA_ERROR_NOT_READY && now_us() - start < 2e6) {
        }
        if (now_us() - start > longest) longest = now_us() - start;
    }
    ROW("P5", "let go from the last to the first: longest until a stream was through", "%.0f us%s", longest, longest > 1e6 ? ": HELD BY OTHERS" : "");
    for (int i = 0; i < STREAMS; i++) words[i] = 1;
    return cuCtxSynchronize();
}

// Codes of calls between devices.
static int codes(void) {
    CUcontext own, other;
    int count, can = -1;
    CK(cuInit(0));
    CK(cuDeviceGetCount(&count));
    CK(cuDevicePrimaryCtxRetain(&own, 0));
    CK(cuCtxSetCurrent(own));
    ROW("P6", "cuCtxEnablePeerAccess, cuCtxDisablePeerAccess of the current context", "%d, %d", cuCtxEnablePeerAccess(own, 0), cuCtxDisablePeerAccess(own));
    CUdeviceptr p, opened;
    CUipcMemHandle handle;
    CK(cuMemAlloc(&p, 4096));
    CUresult got = cuIpcGetMemHandle(&handle, p);
    ROW("P6", "cuIpcGetMemHandle; opened in its own process with flags 1, with 0", "%d; %d, %d", got, cuIpcOpenMemHandle(&opened, handle, 1), cuIpcOpenMemHandle(&opened, handle, 0));
    ROW("P6", "cuIpcGetMemHandle of an address inside; cuIpcCloseMemHandle of own memory", "%d; %d", cuIpcGetMemHandle(&handle, p + 256), cuIpcCloseMemHandle(p));
    memset(&handle, 0x5a, sizeof handle);
    ROW("P6", "cuIpcOpenMemHandle of no handle", "%d", cuIpcOpenMemHandle(&opened, handle, 1));
    if (count < 2) return 0;
    CK(cuDevicePrimaryCtxRetain(&other, 1));
    CK(cuDeviceCanAccessPeer(&can, 0, 1));
    for (int attribute = 1; attribute <= 4; attribute++) {
        int value = -1;
        CUresult result = cuDeviceGetP2PAttribute(&value, attribute, 0, 1);
        ROW("P7", "cuDeviceGetP2PAttribute", "%d: %d (error %d)", attribute, value, result);
    }
    ROW("P7", "cuDeviceCanAccessPeer; disable before; enable, twice; flags 1", "%d; %d; %d, %d; %d", can, cuCtxDisablePeerAccess(other), cuCtxEnablePeerAccess(other, 0), cuCtxEnablePeerAccess(other, 0), cuCtxEnablePeerAccess(other, 1));
    CUevent event;
    CUstream stream;
    CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(cuCtxSetCurrent(other));
    CK(cuEventCreate(&event, 0));
    CUresult recorded = cuEventRecord(event, stream);
    ROW("P7", "an event of one device recorded in a stream of the other; waited for", "%d; %d", recorded, cuStreamWaitEvent(stream, event, 0));
    CUdeviceptr far;
    CK(cuMemAlloc(&far, 4096));
    CK(cuCtxSetCurrent(own));
    ROW("P7", "fill, copy to the host, plain copy of the other device's memory", "%d, %d, %d", cuMemsetD32(far, 1, 4), cuMemcpyDtoH(&can, far, 4), cuMemcpyDtoD(p, far, 16));
    return 0;
}

// Runs `part` in a process of its own.
static int apart(int (*part)(void)) {
    pid_t child = fork();
    if (child == 0) _exit(part());
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

int main(void) {
    int failed = 0;
    // The other process's GPU: this one's own, then the second.
    setenv("OWNER_GPU", "0", 1);
    failed |= shared_between_processes();
    setenv("OWNER_GPU", "1", 1);
    failed |= shared_between_processes();
    failed |= apart(held_streams) | apart(codes);
    return failed != 0;
}
