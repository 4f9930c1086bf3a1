// Counts the allocations of a process, of all its libraries: `microbench graphs` prints them if this is loaded before it.
//   cc -O2 -shared -fPIC -o malloc_count.so malloc_count.c
//   LD_PRELOAD=./malloc_count.so microbench graphs
#include <errno.h>
#include <stddef.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

// Of the calling thread: other threads allocate when they like.
static __thread unsigned long allocations __attribute__((tls_model("initial-exec")));

unsigned long malloc_count(void) { return allocations; }

void *malloc(size_t n) { return allocations++, __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return allocations++, __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return allocations++, __libc_realloc(p, n); }
void *memalign(size_t align, size_t n) { return allocations++, __libc_memalign(align, n); }
void *aligned_alloc(size_t align, size_t n) { return memalign(align, n); }
int posix_memalign(void **to, size_t align, size_t n) { return (*to = memalign(align, n)) == NULL ? ENOMEM : 0; }
