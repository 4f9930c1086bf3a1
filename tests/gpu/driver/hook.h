// Watching and steering what libcuda asks of the C library: its slots for mmap, mmap64 and getenv
// are pointed at functions of ours. Nothing else in the process sees the change.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Where answers to mmap(NULL, ...) come from: a bump pointer through a range.
struct range {
    uintptr_t next, end;
};

// One request of libcuda, as it was asked and answered.
struct request {
    void *hint;
    size_t size;
    int protection, flags, fd;
    uintptr_t answer;
    int thread; // 0: the thread that installed the hook
};

// Serves requests that name no address, from the thread that set it; NULL: hook_scratch.
extern _Thread_local struct range *hook_range;
// Serves what no hook_range serves; NULL: the kernel chooses.
extern struct range *hook_scratch;
// Requests whose hint lies inside become MAP_FIXED: a placeholder is exchanged for them.
extern uintptr_t hook_exchange_from, hook_exchange_to;
// Smallest request that is steered; smaller ones are the driver's own host memory.
extern size_t hook_smallest;

// Answers getenv for libcuda; NULL: the real one. `*known` says whether the answer counts.
extern const char *(*hook_getenv)(const char *name, int *known);
// Names that libcuda asked getenv for, in order, each once.
extern const char *hook_names[512];
extern int hook_name_count;

// Every mmap request so far.
extern struct request hook_log[65536];
extern int hook_log_count;

// Patches the slots of a library given by its dlopen handle; answers how many were found.
int hook_install(void *library);
