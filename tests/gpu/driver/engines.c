// Copies of 64 KiB in a stream beside 1 GiB in others: what makes the engine for copies in a direction turn to another stream
// (executor/src/turns.rs).
#include "facts.h"

#include <unistd.h>

enum { STREAMS = 8, TIMES = 21 };
static const size_t SHORT = 64 << 10, LARGE = 1ull << 30;

enum between { NOTHING, EVENT, TIMED_EVENT, WRITE };

static CUstream large[STREAMS], other;
static CUevent events[2];
static CUdeviceptr device, word;
static char *host, *pinned, *pageable;

// Copies of 1 GiB to the device, each in its stream, in pieces.
static void submit(int streams, size_t piece, enum between between) {
    for (int s = 0; s < streams; s++)
        for (size_t at = 0; at < LARGE; at += piece) {
            CK(cuMemcpyHtoDAsync(device + SHORT + at, host + at, piece, large[s]));
            if (between == EVENT || between == TIMED_EVENT) CK(cuEventRecord(events[between == TIMED_EVENT], large[s]));
            if (between == WRITE) CK(cuStreamWriteValue32(large[s], word + 4 * s, (cuuint32_t)(at / piece + 1), 0));
        }
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a - *(const double *)b;
    return x < 0 ? -1 : x > 0;
}

static void row(const char *what, int streams, size_t piece, enum between between) {
    static const char *const kinds[] = {"pinned, in", "pageable, in", "pinned, out"};
    double all = 1e9, submitted = 1e9;
    char text[200] = "", *end = text;
    for (int kind = 0; kind < 3; kind++) {
        double us[TIMES];
        for (int i = 0; i < TIMES; i++) {
            double begin = now_us();
            submit(streams, piece, between);
            double took = now_us() - begin;
            submitted = took < submitted ? took : submitted;
            usleep(300 + rand() % 12000);
            double since = now_us();
            if (kind == 0) CK(cuMemcpyHtoDAsync(device, pinned, SHORT, other));
            if (kind == 1) CK(cuMemcpyHtoDAsync(device, pageable, SHORT, other));
            if (kind == 2) CK(cuMemcpyDtoHAsync(pinned, device, SHORT, other));
            CK(cuStreamSynchronize(other));
            us[i] = now_us() - since;
            CK(cuCtxSynchronize());
            took = now_us() - begin;
            all = took < all ? took : all;
        }
        qsort(us, TIMES, sizeof *us, order);
        end += sprintf(end, "%s: %.0f / %.0f; ", kinds[kind], us[TIMES / 2], us[TIMES - 1]);
    }
    ROW("C6", what, "%ssubmitted in %.0f, all %.0f us", text, submitted, all);
}

int main(void) {
    CUdevice gpu;
    CUcontext context;
    CK(cuInit(0));
    CK(cuDeviceGet(&gpu, 0));
    CK(cuDevicePrimaryCtxRetain(&context, gpu));
    CK(cuCtxSetCurrent(context));
    CK(cuMemAlloc(&device, LARGE + SHORT));
    CK(cuMemHostAlloc((void **)&host, LARGE, 0));
    CK(cuMemHostAlloc((void **)&pinned, SHORT, 0));
    void *words;
    CK(cuMemHostAlloc(&words, 4096, 0));
    word = (CUdeviceptr)words;
    pageable = calloc(1, SHORT);
    memset(host, 1, LARGE);
    for (int s = 0; s < STREAMS; s++) CK(cuStreamCreate(&large[s], CU_STREAM_NON_BLOCKING));
    CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CK(cuEventCreate(&events[0], CU_EVENT_DISABLE_TIMING));
    CK(cuEventCreate(&events[1], CU_EVENT_DEFAULT));
    const size_t mib = 1 << 20;
    row("64 KiB beside 1 GiB, p50 / max: one copy", 1, LARGE, NOTHING);
    row("4 MiB pieces", 1, 4 * mib, NOTHING);
    row("4 MiB pieces, an event between", 1, 4 * mib, EVENT);
    row("4 MiB pieces, an event with a time between", 1, 4 * mib, TIMED_EVENT);
    row("8 MiB pieces, a write between", 1, 8 * mib, WRITE);
    row("16 MiB pieces, a write between", 1, 16 * mib, WRITE);
    row("32 MiB pieces, a write between", 1, 32 * mib, WRITE);
    row("16 MiB pieces, a write between, in three streams", 3, 16 * mib, WRITE);
    row("16 MiB pieces, a write between, in eight streams", STREAMS, 16 * mib, WRITE);
    return 0;
}
