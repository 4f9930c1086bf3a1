/* Preloaded into a program: it rests before each of the first things that it prints, so that it lasts long enough to be moved.
 * What it prints stays the same. Compiled by run.py. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void rest(void) {
    static atomic_int done;
    const char *times = getenv("PACE_TIMES"), *microseconds = getenv("PACE_US");
    if (times && microseconds && atomic_fetch_add(&done, 1) < atoi(times)) usleep((useconds_t)atoi(microseconds));
}

int printf(const char *format, ...) {
    va_list args;
    rest();
    va_start(args, format);
    int written = vprintf(format, args);
    va_end(args);
    return written;
}

int puts(const char *text) {
    rest();
    return fputs(text, stdout) < 0 || fputc('\n', stdout) == EOF ? EOF : (int)strlen(text) + 1;
}
