// Large copies of pageable memory by several threads through page-locked buffers, against the driver's own: which number of threads and which size of
// pieces an executor should take, and from which size on it is worth it.
//   staging [MIB]      so many MiB for the tables (512)
#define _GNU_SOURCE
#include "facts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sched.h>
#include <sys/mman.h>

enum { MAX_THREADS = 16, MAX_BUFFERS = 4, LARGEST_PIECE = 4 << 20, TIMES = 5, PAGE = 4096 };

static CUcontext context;
static CUstream stream = CU_STREAM_LEGACY;
// Those of each thread, as large as the largest piece.
static char *buffers[MAX_THREADS][MAX_BUFFERS];
static CUevent events[MAX_THREADS][MAX_BUFFERS];

struct copy {
    int out, threads, each;
    CUdeviceptr device;
    char *host;
    size_t bytes, piece;
    atomic_size_t next;
};

static void await(CUevent event) {
    CUresult rc;
    for (unsigned looks = 1; (rc = cuEventQuery(event)) == CUDA_ERROR_NOT_READY; looks++)
        if (looks % 64 == 0) sched_yield();
    CK(rc);
}

static void work(struct copy *c, int thread) {
    size_t begun[MAX_BUFFERS], first = 0, last = 0;
    for (;;) {
        // `first` to `last` are under way.
        size_t at = c->bytes;
        if (!c->out || last - first < (size_t)c->each) at = atomic_fetch_add(&c->next, c->piece);
        size_t n = at >= c->bytes ? 0 : c->bytes - at < c->piece ? c->bytes - at : c->piece;
        if (n && !c->out && last - first == (size_t)c->each) await(events[thread][first++ % c->each]);
        if (n) {
            int slot = last % c->each;
            begun[slot] = at;
            if (c->out) CK(cuMemcpyDtoHAsync(buffers[thread][slot], c->device + at, n, stream));
            else {
                memcpy(buffers[thread][slot], c->host + at, n);
                CK(cuMemcpyHtoDAsync(c->device + at, buffers[thread][slot], n, stream));
            }
            CK(cuEventRecord(events[thread][slot], stream));
            last++;
            continue;
        }
        if (first == last) return;
        int slot = first % c->each;
        await(events[thread][slot]);
        if (c->out) {
            size_t left = c->bytes - begun[slot];
            memcpy(c->host + begun[slot], buffers[thread][slot], left < c->piece ? left : c->piece);
        }
        first++;
    }
}

static struct { struct copy *copy; int number; } jobs[MAX_THREADS];

static void *helper(void *job) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int number = (int)(intptr_t)job;
    CK(cuCtxSetCurrent(context));
    CK(cuThreadExchangeStreamCaptureMode(&mode));
    work(jobs[number].copy, number);
    return NULL;
}

static void touch(int write, char *memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE) {
        if (write) __atomic_compare_exchange_n(memory + at, &(char){memory[at]}, memory[at], 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        else (void)*(volatile char *)(memory + at);
    }
}

// As the executor makes such a copy: threads are made for it and end with it.
static double staged(struct copy *c) {
    pthread_t threads[MAX_THREADS];
    double start = now_us();
    touch(c->out, c->host, c->bytes);
    atomic_store(&c->next, 0);
    for (int i = 1; i < c->threads; i++) {
        jobs[i].copy = c;
        if (pthread_create(&threads[i], NULL, helper, (void *)(intptr_t)i)) exit(2);
    }
    work(c, 0);
    for (int i = 1; i < c->threads; i++) pthread_join(threads[i], NULL);
    CK(cuStreamSynchronize(stream));
    return now_us() - start;
}

static double natively(struct copy *c) {
    double start = now_us();
    if (c->out) CK(cuMemcpyDtoH(c->host, c->device, c->bytes));
    else CK(cuMemcpyHtoD(c->device, c->host, c->bytes));
    return now_us() - start;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double median(double (*how)(struct copy *), struct copy *c, int times) {
    double all[64];
    how(c);
    for (int i = 0; i < times; i++) all[i] = how(c);
    qsort(all, times, sizeof *all, by_size);
    return all[times / 2];
}

static CUdeviceptr mapped(size_t bytes) {
    CUmemAllocationProp property = device_memory();
    CUmemAccessDesc access = read_write();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    CK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    CK(cuMemCreate(&handle, bytes, &property, 0));
    CK(cuMemMap(at, bytes, 0, handle, 0));
    CK(cuMemSetAccess(at, bytes, &access, 1));
    return at;
}

static char *pages(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) exit(2);
    return at;
}

int main(int count, char **words) {
    size_t most = (size_t)(count > 1 ? atoi(words[1]) : 512) << 20;
    context = first_context();
    char *host = pages(most), row[160];
    uint64_t word = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < most; i += 8) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        memcpy(host + i, &word, 8);
    }
    double start = now_us();
    for (int t = 0; t < MAX_THREADS; t++)
        for (int b = 0; b < MAX_BUFFERS; b++) {
            buffers[t][b] = pages(LARGEST_PIECE);
            CK(cuMemHostRegister(buffers[t][b], LARGEST_PIECE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
            CK(cuEventCreate(&events[t][b], CU_EVENT_DISABLE_TIMING));
        }
    ROW("G0", "a buffer of 4 MiB is made and registered", "%.0f us", (now_us() - start) / MAX_THREADS / MAX_BUFFERS);
    CUdeviceptr memory[2], allocated;
    CK(cuMemAlloc(&allocated, most));
    memory[0] = allocated, memory[1] = mapped(most);
    // What arrives is what was sent.
    struct copy check = {0, 4, 2, memory[1], host, most - 12345, 1 << 20, 0}, back = check;
    back.out = 1, back.host = pages(most);
    staged(&check), staged(&back);
    ROW("G0", "bytes sent and brought back by four threads", "%s", memcmp(host, back.host, check.bytes) ? "DIFFER" : "the same");
    for (int out = 0; out < 2; out++)
        for (int kind = 0; kind < 2; kind++) {
            struct copy c = {out, 1, 2, memory[kind], host, most, 1 << 20, 0};
            const char *where = out ? "out of" : "into", *what = kind ? "mapped memory" : "memory of cuMemAlloc";
            snprintf(row, sizeof row, "%s %s: the driver's own copy", where, what);
            ROW("G1", row, "%.1f GB/s", most / median(natively, &c, TIMES) / 1e3);
            for (c.threads = 1; c.threads <= MAX_THREADS; c.threads = c.threads < 4 ? c.threads + 1 : c.threads * 2) {
                char line[160] = "";
                for (c.piece = 256 << 10; c.piece <= LARGEST_PIECE; c.piece *= 2)
                    snprintf(line + strlen(line), sizeof line - strlen(line), "%s%.1f", *line ? ", " : "", most / median(staged, &c, TIMES) / 1e3);
                snprintf(row, sizeof row, "%s %s: %d threads, pieces of 256 KiB to 4 MiB", where, what, c.threads);
                ROW("G1", row, "%s GB/s", line);
            }
            c.threads = 4, c.piece = 1 << 20;
            for (c.each = 1; c.each <= MAX_BUFFERS; c.each++) {
                snprintf(row, sizeof row, "%s %s: 4 threads, 1 MiB, %d buffers each", where, what, c.each);
                ROW("G2", row, "%.1f GB/s", most / median(staged, &c, TIMES) / 1e3);
            }
            c.each = 2;
            for (c.bytes = 1 << 20; c.bytes <= most && c.bytes <= 64 << 20; c.bytes *= 2) {
                double own = median(natively, &c, 30);
                c.threads = 2;
                double two = median(staged, &c, 30);
                c.threads = 4;
                double four = median(staged, &c, 30);
                snprintf(row, sizeof row, "%s %s, %zu MiB: the driver, 2 threads, 4 threads", where, what, c.bytes >> 20);
                ROW("G3", row, "%.0f, %.0f, %.0f us", own, two, four);
            }
        }
    // Memory that the program has not touched yet: its pages are made on the way.
    for (int how = 0; how < 2; how++) {
        double all = 0;
        for (int i = 0; i < TIMES; i++) {
            char *fresh = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            struct copy c = {1, 4, 2, memory[1], fresh, most, 1 << 20, 0};
            all += (how ? staged : natively)(&c);
            munmap(fresh, most);
        }
        ROW("G4", how ? "out to untouched memory: 4 threads" : "out to untouched memory: the driver", "%.1f GB/s", TIMES * most / all / 1e3);
    }
    return 0;
}
