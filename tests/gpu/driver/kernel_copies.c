// Copies between memory of the process and a shared file that the kernel makes (process_vm_readv, process_vm_writev), by several threads: how
// long the part of each should be (executor/src/staging/sizes.rs). Needs no GPU.
#define _GNU_SOURCE
#include "facts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_THREADS = 12, TIMES = 8 };
static const size_t BYTES = 64 << 20;

static char *own, *shared;
static size_t part;
static int out;
static atomic_size_t next_part;

static void *work(void *unused) {
    (void)unused;
    for (;;) {
        size_t at = atomic_fetch_add(&next_part, part);
        if (at >= TIMES * BYTES) return NULL;
        at %= BYTES;
        struct iovec local = {shared + at, part}, remote = {own + at, part};
        ssize_t n = out ? process_vm_writev(getpid(), &local, 1, &remote, 1, 0) : process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
        if (n != (ssize_t)part) exit(2);
    }
}

int main(void) {
    own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = memfd_create("shared", 0);
    if (ftruncate(file, (off_t)BYTES)) return 2;
    shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (own == MAP_FAILED || shared == MAP_FAILED) return 2;
    madvise(own, BYTES, MADV_NOHUGEPAGE);
    memset(own, 1, BYTES);
    memset(shared, 1, BYTES);
    static const int threads[] = {1, 4, 8, MAX_THREADS};
    for (out = 0; out < 2; out++)
        for (part = 128 << 10; part <= 8 << 20; part *= 2) {
            double gb[4];
            for (int k = 0; k < 4; k++) {
                pthread_t all[MAX_THREADS];
                atomic_store(&next_part, 0);
                double since = now_us();
                for (int i = 0; i < threads[k]; i++)
                    if (pthread_create(&all[i], NULL, work, NULL)) return 2;
                for (int i = 0; i < threads[k]; i++) pthread_join(all[i], NULL);
                gb[k] = TIMES * BYTES / (now_us() - since) / 1e3;
            }
            char what[70];
            snprintf(what, sizeof what, "the kernel copies %s, parts of %zu KiB; 1, 4, 8, 12 threads", out ? "out" : "in", part >> 10);
            ROW("C7", what, "%.1f, %.1f, %.1f, %.1f GB/s", gb[0], gb[1], gb[2], gb[3]);
        }
    return 0;
}
