#define _GNU_SOURCE
#include "hook.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Thread_local struct range *hook_range;
struct range *hook_scratch;
uintptr_t hook_exchange_from, hook_exchange_to;
size_t hook_smallest = 2 << 20;
const char *(*hook_getenv)(const char *name, int *known);
const char *hook_names[512];
int hook_name_count;
struct request hook_log[65536];
int hook_log_count;
static int hook_thread;

static uintptr_t raw_mmap(void *hint, size_t size, int protection, int flags, int fd, off_t offset) {
    return (uintptr_t)syscall(SYS_mmap, hint, size, protection, flags, fd, offset);
}

// Big requests are aligned as coarsely as the driver could wish, so that it need not ask again.
static uintptr_t take(struct range *range, size_t size) {
    uintptr_t align = size >= (1ul << 30) ? 1ul << 30 : 2ul << 20;
    uintptr_t at = (range->next + align - 1) & ~(align - 1);
    if (at + size > range->end) return 0;
    range->next = at + size;
    return at;
}

static void *steered_mmap(void *hint, size_t size, int protection, int flags, int fd, off_t offset) {
    struct range *range = hook_range ? hook_range : hook_scratch;
    uintptr_t answer = 0;
    if (!hint && !(flags & MAP_FIXED) && range && size >= hook_smallest) {
        uintptr_t at = take(range, size);
        if (at) answer = raw_mmap((void *)at, size, protection, flags | MAP_FIXED_NOREPLACE, fd, offset);
        if (!at || answer != at) {
            // Something is there already: a finding, and the test goes on with the kernel's choice.
            fprintf(stderr, "not steered to %lx: size %zx\n", at, size);
            answer = raw_mmap(NULL, size, protection, flags, fd, offset);
        }
    } else {
        int exchange = (uintptr_t)hint >= hook_exchange_from && (uintptr_t)hint < hook_exchange_to;
        answer = raw_mmap(hint, size, protection, exchange ? flags | MAP_FIXED : flags, fd, offset);
    }
    int slot = __sync_fetch_and_add(&hook_log_count, 1);
    if (slot < (int)(sizeof hook_log / sizeof *hook_log)) {
        int thread = (int)syscall(SYS_gettid);
        hook_log[slot] = (struct request){hint, size, protection, flags, fd, answer, thread == hook_thread ? 0 : thread};
    }
    if (answer > -4096ul) {
        errno = -(int)answer;
        return MAP_FAILED;
    }
    return (void *)answer;
}

static char *answered_getenv(const char *name) {
    int seen = 0;
    for (int i = 0; i < hook_name_count; i++) seen |= !strcmp(hook_names[i], name);
    if (!seen && hook_name_count < 512) hook_names[hook_name_count++] = strdup(name);
    int known = 0;
    const char *answer = hook_getenv ? hook_getenv(name, &known) : NULL;
    return known ? (char *)answer : getenv(name);
}

int hook_install(void *library) {
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map)) return 0;
    hook_thread = (int)syscall(SYS_gettid);
    ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    struct {
        ElfW(Rela) *at;
        size_t bytes;
    } tables[2] = {{NULL, 0}, {NULL, 0}};
    for (ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELA) tables[0].at = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELASZ) tables[0].bytes = entry->d_un.d_val;
        if (entry->d_tag == DT_JMPREL) tables[1].at = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_PLTRELSZ) tables[1].bytes = entry->d_un.d_val;
    }
    int patched = 0;
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < tables[t].bytes / sizeof(ElfW(Rela)); i++) {
            ElfW(Rela) *entry = &tables[t].at[i];
            unsigned symbol = ELF64_R_SYM(entry->r_info);
            if (!symbol) continue;
            const char *name = strings + symbols[symbol].st_name;
            void *with = !strcmp(name, "mmap") || !strcmp(name, "mmap64")           ? (void *)steered_mmap
                         : !strcmp(name, "getenv") || !strcmp(name, "secure_getenv") ? (void *)answered_getenv
                                                                                     : NULL;
            if (!with) continue;
            void **slot = (void **)(map->l_addr + entry->r_offset);
            // The slots may lie in pages that the loader made read-only.
            mprotect((void *)((uintptr_t)slot & ~4095ul), 8192, PROT_READ | PROT_WRITE);
            *slot = with;
            patched++;
        }
    }
    return patched;
}
