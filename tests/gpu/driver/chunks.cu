// What moves of jobs with thousands of chunks pay the driver for each chunk, with one call after the other, with one call for a whole range,
// and with several threads; and how long the end of a process takes that still has, or has released, its chunks.
//
//   nvcc -O2 -o chunks chunks.cu -lcuda      (where there is no driver to link with: a stub libcuda.so, or softgpu under that name, by -L; the program then loads the driver that LD_LIBRARY_PATH or the system names)
//   chunks [--counts 64,1024,4096] [--mib 4] [--threads 1,2,4,8] [--source 0] [--target 0] [--no-ends] [--no-steps]
//
// It starts two processes on the GPUs --source and --target (the same by default), forked and executed anew before any CUDA call. The source
// makes N chunks of so many MiB and exports them, the target imports and maps them. Times are of the slowest thread, from a common start. "range":
// one call for the whole range, or one for the part of each thread. Afterwards, for the largest N and for 64 chunks, a process ends in several
// ways: `waitpid` is the time from the kill (or its exit) to its end as its parent sees it, `memory` that from its first call,
// or the kill, until cuMemGetInfo of another process has it again. Meanwhile the target takes steps (a fill of 64 KiB with a wait; and 2 MiB created, mapped,
// unmapped, released), of which the longest is printed: a job that goes on there would be held up as long. All result codes are checked; the
// exit status is 0 only if everything was right, also the contents of each chunk at the target after the source has been killed.
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

typedef CUmemGenericAllocationHandle Handle;

static const int MAX_THREADS = 16;
// Descriptors of a role: the parent's messages, and a connection to the other role for each thread.
static const int CONTROL = 100, DATA = 101;
// What other memory of the watching process may have grown by.
static const uint64_t SLACK = 32 << 20;
static const char *role_name = "parent";

[[noreturn]] static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    std::fprintf(stderr, "chunks (%s): ", role_name);
    std::vfprintf(stderr, format, list);
    std::fprintf(stderr, "\n");
    va_end(list);
    _exit(2);
}

#define CK(call)                                                                        \
    do {                                                                                \
        CUresult rc_ = (call);                                                          \
        if (rc_) fail("line %d: %s: error %d", __LINE__, #call, (int)rc_);              \
    } while (0)
#define SYS(call)                                                                       \
    do {                                                                                \
        if ((call) < 0) fail("line %d: %s: %s", __LINE__, #call, std::strerror(errno)); \
    } while (0)

static double now_ms() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void read_all(int fd, void *to, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, (char *)to + got, bytes - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("the other end of a connection has ended");
        got += n;
    }
}

static void write_all(int fd, const void *from, size_t bytes) {
    for (size_t sent = 0; sent < bytes;) {
        ssize_t n = send(fd, (const char *)from + sent, bytes - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("cannot send: %s", std::strerror(errno));
        sent += n;
    }
}

// ---- Messages between the parent and its roles

enum Op {
    RESERVE, FREE, CREATE, MAP, ALLOW_EACH, ALLOW_RANGE, UNMAP_EACH, UNMAP_RANGE, RELEASE, EXPORT, CLOSE, SEND, RECEIVE, IMPORT, SERVE, FETCH,
    MARK, CHECK, FREE_BYTES, WATCH, STEPS_BEGIN, STEPS_END, END_CONTEXT, EXIT
};
struct Order {
    int op, n, threads, batch;
    uint64_t bytes;
};
struct Answer {
    double ms;       // Duration.
    double at;       // Moment on the machine's monotonic clock.
    uint64_t value;
    double most, median, most_mapping, median_mapping;
    int count;
};

// ---- A role: a process with a context

struct Role {
    CUcontext context = nullptr;
    CUdevice device = 0;
    bool rdma = false;
    size_t bytes = 0;
    CUdeviceptr base = 0;
    size_t reserved = 0;
    std::vector<Handle> handles;
    std::vector<int> fds;
    std::thread stepper;
    std::atomic<bool> stop{false};
    Answer steps = {};

    // Runs a part on each of some threads. The time is from the first beginning after a common start to the end of the last thread.
    Answer timed(int n, int threads, const std::function<void(int, int, int)> &part) {
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, nullptr, threads);
        std::vector<double> begins(threads), ends(threads);
        std::vector<std::thread> all;
        for (int t = 0; t < threads; t++)
            all.emplace_back([&, t] {
                CK(cuCtxSetCurrent(context));
                pthread_barrier_wait(&barrier);
                begins[t] = now_ms();
                part(t, (int)((int64_t)n * t / threads), (int)((int64_t)n * (t + 1) / threads));
                ends[t] = now_ms();
            });
        for (auto &t : all) t.join();
        pthread_barrier_destroy(&barrier);
        Answer a = {};
        a.at = *std::min_element(begins.begin(), begins.end());
        a.ms = *std::max_element(ends.begin(), ends.end()) - a.at;
        return a;
    }

    Answer each(int n, int threads, const std::function<void(int)> &one) {
        return timed(n, threads, [&](int, int from, int to) {
            for (int i = from; i < to; i++) one(i);
        });
    }

    CUdeviceptr at(int i) const { return base + (CUdeviceptr)i * bytes; }

    Handle create(size_t size) {
        CUmemAllocationProp property = {};
        property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        property.location.id = device;
        property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        property.allocFlags.gpuDirectRDMACapable = rdma;
        Handle handle;
        CK(cuMemCreate(&handle, size, &property, 0));
        return handle;
    }

    void allow(CUdeviceptr address, size_t size) {
        CUmemAccessDesc access = {};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = device;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CK(cuMemSetAccess(address, size, &access, 1));
    }

    int export_one(int i) {
        int fd = -1;
        CK(cuMemExportToShareableHandle(&fd, handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        if (fd < 0) fail("no descriptor");
        return fd;
    }

    void import_one(int i, int fd) {
        CK(cuMemImportFromShareableHandle(&handles[i], (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    }

    void begin() {
        rlimit limit;
        SYS(getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_cur = limit.rlim_max;
        SYS(setrlimit(RLIMIT_NOFILE, &limit));
        CK(cuInit(0));
        CK(cuDeviceGet(&device, 0));
        int value = 0;
        CK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device));
        rdma = value == 1;
        CK(cuDevicePrimaryCtxRetain(&context, device));
        CK(cuCtxSetCurrent(context));
        if (rdma) {
            // Some machines report it and refuse.
            CUmemAllocationProp property = {};
            property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
            property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            property.location.id = device;
            property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            property.allocFlags.gpuDirectRDMACapable = 1;
            Handle handle;
            rdma = cuMemCreate(&handle, 2 << 20, &property, 0) == CUDA_SUCCESS;
            if (rdma) CK(cuMemRelease(handle));
        }
    }

    // What a job does that goes on here.
    void step_until_stopped() {
        CK(cuCtxSetCurrent(context));
        CUstream stream;
        CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CUdeviceptr here;
        CK(cuMemAlloc(&here, 64 << 10));
        CUdeviceptr range;
        CK(cuMemAddressReserve(&range, 2 << 20, 0, 0, 0));
        std::vector<double> fills, mappings;
        while (!stop) {
            double began = now_ms();
            CK(cuMemsetD8Async(here, 1, 64 << 10, stream));
            CK(cuStreamSynchronize(stream));
            fills.push_back(now_ms() - began);
            began = now_ms();
            Handle handle = create(2 << 20);
            CK(cuMemMap(range, 2 << 20, 0, handle, 0));
            allow(range, 2 << 20);
            CK(cuMemUnmap(range, 2 << 20));
            CK(cuMemRelease(handle));
            mappings.push_back(now_ms() - began);
        }
        CK(cuMemAddressFree(range, 2 << 20));
        CK(cuMemFree(here));
        CK(cuStreamDestroy(stream));
        auto figures = [](std::vector<double> &all, double &most, double &median) {
            std::sort(all.begin(), all.end());
            most = all.empty() ? 0 : all.back();
            median = all.empty() ? 0 : all[all.size() / 2];
        };
        steps.count = (int)fills.size();
        figures(fills, steps.most, steps.median);
        figures(mappings, steps.most_mapping, steps.median_mapping);
    }

    // Passes descriptors, `batch` in each message.
    void send_some(int socket, int from, int to, int batch) {
        for (int i = from; i < to; i += batch) {
            int count = std::min(batch, to - i);
            char byte = 1;
            alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))];
            iovec part = {&byte, 1};
            msghdr message = {};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(count * sizeof(int));
            cmsghdr *head = CMSG_FIRSTHDR(&message);
            head->cmsg_level = SOL_SOCKET;
            head->cmsg_type = SCM_RIGHTS;
            head->cmsg_len = CMSG_LEN(count * sizeof(int));
            std::memcpy(CMSG_DATA(head), &fds[i], count * sizeof(int));
            ssize_t sent;
            do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
            while (sent < 0 && (errno == EINTR || errno == ETOOMANYREFS));
            if (sent != 1) fail("sendmsg: %s", std::strerror(errno));
        }
    }

    void receive_some(int socket, int from, int to) {
        for (int i = from; i < to;) {
            char byte;
            alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))];
            iovec part = {&byte, 1};
            msghdr message = {};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            ssize_t got;
            do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
            while (got < 0 && errno == EINTR);
            cmsghdr *head = CMSG_FIRSTHDR(&message);
            if (got != 1 || !head || head->cmsg_type != SCM_RIGHTS || (message.msg_flags & MSG_CTRUNC)) fail("no descriptor came");
            int count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            if (count < 1 || i + count > to) fail("%d descriptors came", count);
            std::memcpy(&fds[i], CMSG_DATA(head), count * sizeof(int));
            i += count;
        }
    }

    Answer carry_out(const Order &o) {
        Answer a = {};
        const int n = o.n, t = o.threads;
        switch (o.op) {
        case RESERVE:
            bytes = o.bytes;
            reserved = bytes * n;
            CK(cuMemAddressReserve(&base, reserved, 0, 0, 0));
            handles.assign(n, 0);
            fds.assign(n, -1);
            break;
        case FREE: CK(cuMemAddressFree(base, reserved)); break;
        case CREATE: a = each(n, t, [&](int i) { handles[i] = create(bytes); }); break;
        case MAP: a = each(n, t, [&](int i) { CK(cuMemMap(at(i), bytes, 0, handles[i], 0)); }); break;
        case ALLOW_EACH: a = each(n, t, [&](int i) { allow(at(i), bytes); }); break;
        case ALLOW_RANGE: a = timed(n, t, [&](int, int from, int to) { if (from < to) allow(at(from), bytes * (to - from)); }); break;
        case UNMAP_EACH: a = each(n, t, [&](int i) { CK(cuMemUnmap(at(i), bytes)); }); break;
        case UNMAP_RANGE: a = timed(n, t, [&](int, int from, int to) { if (from < to) CK(cuMemUnmap(at(from), bytes * (to - from))); }); break;
        case RELEASE: a = each(n, t, [&](int i) { CK(cuMemRelease(handles[i])); }); break;
        case EXPORT: a = each(n, t, [&](int i) { fds[i] = export_one(i); }); break;
        case CLOSE: a = each(n, t, [&](int i) { SYS(close(fds[i])); fds[i] = -1; }); break;
        case SEND: a = timed(n, t, [&](int k, int from, int to) { send_some(DATA + k, from, to, o.batch); }); break;
        case RECEIVE: a = timed(n, t, [&](int k, int from, int to) { receive_some(DATA + k, from, to); }); break;
        case IMPORT: a = each(n, t, [&](int i) { import_one(i, fds[i]); }); break;
        // The source's part of a hand-over as it is now, on each connection: a request of 16 bytes is answered with a descriptor.
        case SERVE:
            a = timed(n, t, [&](int k, int from, int to) {
                for (int left = to - from; left > 0; left--) {
                    uint64_t wanted[2];
                    read_all(DATA + k, wanted, sizeof wanted);
                    int i = (int)wanted[0];
                    if (i < from || i >= to) fail("chunk %d", i);
                    fds[i] = export_one(i);
                    send_some(DATA + k, i, i + 1, 1);
                    SYS(close(fds[i]));
                    fds[i] = -1;
                }
            });
            break;
        // The target's: 16 requests ahead.
        case FETCH:
            a = timed(n, t, [&](int k, int from, int to) {
                auto ask = [&](int i) {
                    uint64_t wanted[2] = {(uint64_t)i, 0};
                    if (i < to) write_all(DATA + k, wanted, sizeof wanted);
                };
                for (int i = from; i < from + 16; i++) ask(i);
                for (int i = from; i < to; i++) {
                    receive_some(DATA + k, i, i + 1);
                    import_one(i, fds[i]);
                    ask(i + 16);
                }
            });
            break;
        case MARK:
            for (int i = 0; i < n; i++) CK(cuMemsetD32(at(i), 0xc0de0000u + i, 4));
            CK(cuCtxSynchronize());
            break;
        case CHECK:
            for (int i = 0; i < n; i++) {
                uint32_t words[4];
                CK(cuMemcpyDtoH(words, at(i), sizeof words));
                for (uint32_t word : words)
                    if (word != 0xc0de0000u + i) fail("chunk %d has %08x", i, word);
            }
            break;
        case FREE_BYTES: {
            size_t free_bytes, total;
            CK(cuMemGetInfo(&free_bytes, &total));
            a.value = free_bytes;
            break;
        }
        // Waits until so much memory is free: at most 20 s.
        case WATCH: {
            a.at = now_ms();
            write_all(CONTROL, &a, sizeof a);
            double began = a.at;
            for (;;) {
                size_t free_bytes, total;
                CK(cuMemGetInfo(&free_bytes, &total));
                a.at = now_ms();
                a.value = free_bytes;
                if (free_bytes >= o.bytes || a.at - began > 20e3) break;
                usleep(1000);
            }
            break;
        }
        case STEPS_BEGIN:
            stop = false;
            stepper = std::thread([this] { step_until_stopped(); });
            break;
        case STEPS_END:
            stop = true;
            stepper.join();
            a = steps;
            break;
        case END_CONTEXT: {
            double began = now_ms();
            CK(cuDevicePrimaryCtxRelease(device));
            a.ms = now_ms() - began;
            break;
        }
        case EXIT:
            a.at = now_ms();
            write_all(CONTROL, &a, sizeof a);
            _exit(0);
        default: fail("order %d", o.op);
        }
        return a;
    }

    int serve() {
        begin();
        Answer ready = {};
        write_all(CONTROL, &ready, sizeof ready);
        for (;;) {
            Order o;
            ssize_t got = recv(CONTROL, &o, sizeof o, MSG_WAITALL);
            if (got == 0) return 0;
            if (got != sizeof o) fail("half an order");
            Answer a = carry_out(o);
            write_all(CONTROL, &a, sizeof a);
        }
    }
};

// ---- The parent, which makes no CUDA call

struct Child {
    pid_t pid = 0;
    int socket = -1;

    void ask(int op, int n = 0, int threads = 1, uint64_t bytes = 0, int batch = 1) const {
        Order o = {op, n, threads, batch, bytes};
        write_all(socket, &o, sizeof o);
    }
    Answer answer() const {
        Answer a;
        read_all(socket, &a, sizeof a);
        return a;
    }
    Answer run(int op, int n = 0, int threads = 1, uint64_t bytes = 0, int batch = 1) const {
        ask(op, n, threads, bytes, batch);
        return answer();
    }
    // Waits for its end; returns the moment.
    double wait_for_end(int signal_expected) {
        int status;
        pid_t got;
        do got = waitpid(pid, &status, 0);
        while (got < 0 && errno == EINTR);
        double at = now_ms();
        if (got != pid) fail("waitpid: %s", std::strerror(errno));
        bool right = signal_expected ? WIFSIGNALED(status) && WTERMSIG(status) == signal_expected : WIFEXITED(status) && !WEXITSTATUS(status);
        if (!right) fail("a process has ended with status %x", status);
        close(socket);
        pid = 0;
        socket = -1;
        return at;
    }
};

// Starts a process; its first answer says that it has a context.
static Child start(const char *name, const std::string &visible, const std::vector<int> &data) {
    int pair[2];
    SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    Child child;
    child.pid = fork();
    SYS(child.pid);
    if (child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        // Above all that the parent has, so that none is overwritten before it is duplicated.
        std::vector<int> moved = {fcntl(pair[1], F_DUPFD, 300)};
        for (int fd : data) moved.push_back(fcntl(fd, F_DUPFD, 300));
        for (size_t i = 0; i < moved.size(); i++) SYS(dup2(moved[i], CONTROL + (int)i));
        for (int fd : moved) close(fd);
        setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
        execl("/proc/self/exe", "chunks", "--role", name, (char *)nullptr);
        _exit(127);
    }
    close(pair[1]);
    child.socket = pair[0];
    return child;
}

struct Pair {
    Child source, target;
};

static std::string source_gpu, target_gpu;

static void connect(std::vector<int> &a, std::vector<int> &b) {
    for (int i = 0; i < MAX_THREADS; i++) {
        int pair[2];
        SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        a.push_back(pair[0]);
        b.push_back(pair[1]);
    }
}

static Pair start_pair() {
    std::vector<int> a, b;
    connect(a, b);
    Pair pair = {start("source", source_gpu, a), start("target", target_gpu, b)};
    for (int fd : a) close(fd);
    for (int fd : b) close(fd);
    pair.source.answer();
    pair.target.answer();
    return pair;
}

// Both parts of what the processes do together: the time from when both have begun to the end of the target's part.
static double together(const Pair &p, int source_op, int target_op, int n, int threads, int batch = 1) {
    p.target.ask(target_op, n, threads, 0, batch);
    p.source.ask(source_op, n, threads, 0, batch);
    Answer target = p.target.answer(), source = p.source.answer();
    return target.at + target.ms - std::max(source.at, target.at);
}

struct Row {
    const char *what;
    std::vector<double> ms;
};

static void measure(const Pair &p, int n, size_t bytes, const std::vector<int> &threads, bool print) {
    std::vector<Row> rows;
    p.source.run(RESERVE, n, 1, bytes);
    p.target.run(RESERVE, n, 1, bytes);
    bool checked = false;
    for (int t : threads) {
        size_t at = 0;
        auto note = [&](const char *what, double ms) {
            if (at == rows.size()) rows.push_back({what, {}});
            rows[at++].ms.push_back(ms);
        };
        auto of = [&](const Child &child, const char *what, int op, int batch = 1) { note(what, child.run(op, n, t, 0, batch).ms); };
        of(p.source, "source: cuMemCreate", CREATE);
        of(p.source, "source: cuMemMap", MAP);
        of(p.source, "source: cuMemSetAccess, each", ALLOW_EACH);
        of(p.source, "source: cuMemUnmap, each", UNMAP_EACH);
        p.source.run(MAP, n, 1);
        of(p.source, "source: cuMemSetAccess, range", ALLOW_RANGE);
        if (!checked) p.source.run(MARK, n);
        of(p.source, "source: cuMemExportToShareableHandle", EXPORT);
        note("both: a descriptor in a message", together(p, SEND, RECEIVE, n, t));
        p.target.run(CLOSE, n, 1);
        note("both: 64 descriptors in a message", together(p, SEND, RECEIVE, n, t, 64));
        of(p.source, "source: close of a descriptor", CLOSE);
        of(p.target, "target: cuMemImportFromShareableHandle", IMPORT);
        of(p.target, "target: cuMemMap", MAP);
        of(p.target, "target: cuMemSetAccess, each", ALLOW_EACH);
        of(p.target, "target: cuMemUnmap, each", UNMAP_EACH);
        p.target.run(MAP, n, 1);
        of(p.target, "target: cuMemSetAccess, range", ALLOW_RANGE);
        if (!checked) p.target.run(CHECK, n);
        of(p.source, "source: cuMemUnmap, range (the target has it)", UNMAP_RANGE);
        of(p.source, "source: cuMemRelease (the target has it)", RELEASE);
        if (!checked) p.target.run(CHECK, n);
        of(p.target, "target: cuMemUnmap, range", UNMAP_RANGE);
        of(p.target, "target: cuMemRelease", RELEASE);
        of(p.target, "target: close of a descriptor (frees)", CLOSE);
        // As a hand-over does it: export, pass, import at the same time.
        p.source.run(CREATE, n, 1);
        note("both: export, pass, import; 16 ahead", together(p, SERVE, FETCH, n, t));
        p.target.run(RELEASE, n, 1);
        p.target.run(CLOSE, n, 1);
        of(p.source, "source: cuMemRelease (frees)", RELEASE);
        checked = true;
    }
    p.source.run(FREE);
    p.target.run(FREE);
    if (!print) return;
    for (auto &row : rows) {
        std::printf("%6d  %-46s", n, row.what);
        for (double ms : row.ms) std::printf(" %9.2f", ms);
        std::printf("   %8.2f %8.2f\n", row.ms.front() * 1e3 / n, *std::min_element(row.ms.begin(), row.ms.end()) * 1e3 / n);
    }
    std::fflush(stdout);
}

// How a process ends.
enum Way { KILLED, EACH, RANGE, CONTEXT, WAYS };
static const char *ways[WAYS] = {
    "killed", "unmapped and released one by one, killed", "unmapped in one call, released, killed",
    "one by one, its context released, exits",
};

static void end_of_process(int n, size_t bytes, Way way, bool imported, bool with_steps) {
    Pair p = start_pair();
    const uint64_t all = (uint64_t)n * bytes;
    p.source.run(RESERVE, n, 1, bytes);
    p.target.run(RESERVE, n, 1, bytes);
    // With two GPUs the target does not see the source's memory, and another process is asked.
    const bool other = source_gpu != target_gpu;
    Child observer = p.target;
    if (other) {
        observer = start("observer", source_gpu, {});
        observer.answer();
    }
    const uint64_t at_first = observer.run(FREE_BYTES).value;
    p.source.run(CREATE, n, 4);
    p.source.run(MAP, n, 1);
    p.source.run(ALLOW_RANGE, n, 1);
    p.source.run(MARK, n);
    if (imported) {
        together(p, SERVE, FETCH, n, 4);
        p.target.run(MAP, n, 1);
        p.target.run(ALLOW_RANGE, n, 1);
    }
    const uint64_t before = observer.run(FREE_BYTES).value;
    // softgpu counts the memory of each process by itself.
    const bool counts_others = at_first >= before + all - SLACK;
    if (with_steps) {
        p.target.run(STEPS_BEGIN);
        usleep(50000);
    }
    // Only where nothing else keeps the memory.
    const bool watches = !imported && counts_others;
    if (watches) {
        observer.ask(WATCH, 0, 1, before + all - SLACK);
        observer.answer();
    }
    const double began = now_ms();
    double work = 0, context = 0;
    if (way != KILLED) {
        work += p.source.run(way == RANGE ? UNMAP_RANGE : UNMAP_EACH, n, 1).ms;
        work += p.source.run(RELEASE, n, 1).ms;
    }
    if (way == CONTEXT) context = p.source.run(END_CONTEXT).ms;
    double from;
    if (way == CONTEXT) {
        from = p.source.run(EXIT).at;
    } else {
        from = now_ms();
        SYS(kill(p.source.pid, SIGKILL));
    }
    const double ended = p.source.wait_for_end(way == CONTEXT ? 0 : SIGKILL);
    double memory = -1;
    if (watches) {
        Answer a = observer.answer();
        if (a.value < before + all - SLACK) fail("the memory did not come back: %llu of %llu", (unsigned long long)a.value, (unsigned long long)(before + all));
        memory = a.at - began;
    } else if (!imported && way == KILLED) {
        std::printf("cuMemGetInfo does not count the memory of other processes here\n");
    }
    Answer steps = {};
    if (with_steps) {
        usleep(50000);
        steps = p.target.run(STEPS_END);
    }
    if (imported) p.target.run(CHECK, n);
    std::printf("%6d  %-9s %-42s %8.1f %8.1f %8.1f %8.1f ", n, imported ? "imported" : "alone", ways[way], work, context, ended - from, ended - began);
    if (memory >= 0) std::printf("%8.1f", memory);
    else std::printf("%8s", "-");
    if (with_steps) std::printf("   %7.2f / %-6.2f %7.2f / %-6.2f", steps.most, steps.median, steps.most_mapping, steps.median_mapping);
    std::printf("\n");
    std::fflush(stdout);
    if (other) {
        observer.ask(EXIT);
        observer.answer();
        observer.wait_for_end(0);
    }
    // What the target's own end takes, which has the last mappings.
    from = now_ms();
    SYS(kill(p.target.pid, SIGKILL));
    const double target_ended = p.target.wait_for_end(SIGKILL) - from;
    if (imported && way == KILLED)
        std::printf("%6d  %-9s %-42s %8.1f %8.1f %8.1f %8.1f %8s\n", n, "imported", "then the target, killed: the last that has it", 0.0, 0.0, target_ended, target_ended, "-");
    std::fflush(stdout);
}

static std::vector<int> numbers(const char *text) {
    std::vector<int> all;
    for (const char *at = text; *at;) {
        char *end;
        long n = std::strtol(at, &end, 10);
        if (end == at || n < 0) fail("not a list of numbers: %s", text);
        all.push_back((int)n);
        at = *end ? end + 1 : end;
    }
    if (all.empty()) fail("an empty list");
    return all;
}

// The entry of CUDA_VISIBLE_DEVICES for a GPU: each process sees one, as a worker does.
static std::string visible(int gpu) {
    const char *list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!list) return std::to_string(gpu);
    std::string text = list;
    for (int i = 0;; i++) {
        size_t comma = text.find(',');
        if (i == gpu) return text.substr(0, comma);
        if (comma == std::string::npos) fail("GPU %d is not among %s", gpu, list);
        text = text.substr(comma + 1);
    }
}

int main(int count, char **args) {
    if (count == 3 && !std::strcmp(args[1], "--role")) {
        role_name = args[2];
        return Role().serve();
    }
    std::vector<int> counts = {64, 1024, 4096}, threads = {1, 2, 4, 8};
    int mib = 4, source = 0, target = 0;
    bool ends = true, with_steps = true;
    for (int i = 1; i < count; i++) {
        std::string name = args[i];
        auto value = [&] { return ++i < count ? args[i] : (fail("%s needs a value", name.c_str()), (char *)nullptr); };
        if (name == "--counts") counts = numbers(value());
        else if (name == "--threads") threads = numbers(value());
        else if (name == "--mib") mib = numbers(value())[0];
        else if (name == "--source") source = numbers(value())[0];
        else if (name == "--target") target = numbers(value())[0];
        else if (name == "--no-ends") ends = false;
        else if (name == "--no-steps") with_steps = false;
        else fail("unknown: %s", name.c_str());
    }
    for (int t : threads)
        if (t < 1 || t > MAX_THREADS) fail("1 to %d threads", MAX_THREADS);
    for (int n : counts)
        if (n < 1 || n > (1 << 16)) fail("1 to 65536 chunks");
    if (mib < 2 || mib % 2) fail("chunks of a multiple of 2 MiB");
    rlimit limit;
    SYS(getrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_max < (rlim_t)*std::max_element(counts.begin(), counts.end()) + 400)
        fail("the hard limit of descriptors is %llu", (unsigned long long)limit.rlim_max);
    source_gpu = visible(source);
    target_gpu = visible(target);
    const size_t bytes = (size_t)mib << 20;
    const double began = now_ms();
    {
        Pair p = start_pair();
        // The first calls of a kind take longer.
        measure(p, 16, bytes, {1, threads.back()}, false);
        std::printf("GPU %s -> %s, chunks of %d MiB, %ld processors; ms in all, then us for each chunk: with the first number of threads, and best\n",
                    source_gpu.c_str(), target_gpu.c_str(), mib, sysconf(_SC_NPROCESSORS_ONLN));
        std::printf("%6s  %-46s", "chunks", "operation / threads");
        for (int t : threads) std::printf(" %9d", t);
        std::printf("   %8s %8s\n", "us", "best us");
        for (int n : counts) measure(p, n, bytes, threads, true);
        for (Child *child : {&p.source, &p.target}) {
            child->ask(EXIT);
            child->answer();
            child->wait_for_end(0);
        }
    }
    if (ends) {
        std::printf("\nend of the source; ms. work: its calls; context: cuDevicePrimaryCtxRelease; waitpid: from the kill or its exit; all: from the first "
                    "call or the kill to the end; memory: from there until it is free; steps of the target meanwhile, longest / median: a fill, 2 MiB mapped\n");
        std::printf("%6s  %-9s %-42s %8s %8s %8s %8s %8s   %16s %16s\n", "chunks", "memory", "end", "work", "context", "waitpid", "all", "memory", "fill", "mapping");
        const int most = *std::max_element(counts.begin(), counts.end());
        std::vector<int> sizes = {std::min(64, most)};
        if (most != sizes[0]) sizes.push_back(most);
        for (int n : sizes)
            for (bool imported : {false, true})
                for (int way = 0; way < WAYS; way++) {
                    if (n != most && way == RANGE) continue;
                    if (now_ms() - began > 100e3) fail("it takes too long");
                    end_of_process(n, bytes, (Way)way, imported, with_steps);
                }
    }
    std::printf("all right, %.1f s\n", (now_ms() - began) / 1e3);
    std::fflush(stdout);
    return 0;
}
