// A million events, made and destroyed: some recorded, some waited for, some timed. At any time only a few are alive.
#include "program.cuh"

constexpr int BATCH = 250;
constexpr int KEPT = 8;

__global__ void step(unsigned long long *sum, long round) { *sum = *sum * 3 + round; }

constexpr int ENDED = 24;

// Events that have happened and were ended, and one that was ended before it has happened: what is made next was never recorded.
static long made_again(cudaStream_t now, cudaStream_t next, cudaEvent_t start) {
    long wrong = 0;
    float ms;
    cudaEvent_t ended[ENDED], busy, fresh[2 * ENDED];
    for (cudaEvent_t &event : ended) {
        CHECK(cudaEventCreate(&event));
        CHECK(cudaEventRecord(event, now));
    }
    for (int i = 0; i < ENDED; i++) {
        if (i % 2) CHECK(cudaEventSynchronize(ended[i]));
        else while (cudaEventQuery(ended[i]) == cudaErrorNotReady) {}
    }
    for (cudaEvent_t event : ended) CHECK(cudaEventDestroy(event));
    CHECK(cudaEventCreate(&busy));
    program::linger<<<1, 1, 0, now>>>(300000);
    CHECK_LAUNCH();
    CHECK(cudaEventRecord(busy, now));
    CHECK(cudaEventDestroy(busy));
    for (cudaEvent_t &event : fresh) {
        CHECK(cudaEventCreate(&event));
        wrong += cudaEventQuery(event) != cudaSuccess;
        wrong += cudaEventElapsedTime(&ms, start, event) != cudaErrorInvalidResourceHandle;
        (void)cudaGetLastError();
        CHECK(cudaStreamWaitEvent(next, event, 0));
    }
    CHECK(cudaStreamSynchronize(next));
    for (cudaEvent_t event : fresh) CHECK(cudaEventRecord(event, now));
    // Not before what was recorded in this life has happened.
    CHECK(cudaEventSynchronize(fresh[2 * ENDED - 1]));
    CHECK(cudaStreamSynchronize(now));
    for (cudaEvent_t event : fresh) {
        wrong += cudaEventElapsedTime(&ms, start, event) != cudaSuccess || ms < 0.0f;
        CHECK(cudaEventDestroy(event));
    }
    return wrong;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 4000);
    unsigned long long *sum, host = 0;
    CHECK(cudaMalloc(&sum, sizeof *sum));
    CHECK(cudaMemset(sum, 0, sizeof *sum));
    cudaStream_t streams[2];
    for (cudaStream_t &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    // One of each: blocking waits, no timing, both, neither. Recorded in turn, so that each may be older than a move.
    const unsigned flags[4] = {cudaEventBlockingSync, cudaEventDisableTiming, cudaEventBlockingSync | cudaEventDisableTiming, 0};
    cudaEvent_t kept[KEPT], never, start;
    for (int i = 0; i < KEPT; i++) CHECK(cudaEventCreateWithFlags(&kept[i], flags[i % 4]));
    CHECK(cudaEventCreate(&never));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventRecord(start, streams[0]));
    long made = 0, wrong = 0;
    float since = 0.0f;
    for (long round = 0; round < options.steps; round++) {
        cudaEvent_t events[BATCH];
        for (int i = 0; i < BATCH; i++) CHECK(cudaEventCreateWithFlags(&events[i], i % 2 ? cudaEventDisableTiming : cudaEventDefault));
        made += BATCH;
        cudaStream_t now = streams[round & 1], next = streams[1 - (round & 1)];
        CHECK(cudaEventRecord(events[0], now));
        step<<<1, 1, 0, now>>>(sum, round);
        CHECK_LAUNCH();
        host = host * 3 + round;
        CHECK(cudaEventRecordWithFlags(events[2], now, cudaEventRecordDefault));
        CHECK(cudaEventRecord(kept[round % KEPT], now));
        // The other stream goes on after this one.
        CHECK(cudaStreamWaitEvent(next, kept[round % KEPT], 0));
        if (round % 50 == 0) {
            float ms = -1.0f, all = -1.0f;
            wrong += cudaEventElapsedTime(&ms, events[0], events[1]) != cudaErrorInvalidResourceHandle; // not timed
            wrong += cudaEventElapsedTime(&ms, events[0], never) != cudaErrorInvalidResourceHandle;    // not recorded
            CHECK(cudaEventSynchronize(events[2]));
            CHECK(cudaEventElapsedTime(&ms, events[0], events[2]));
            CHECK(cudaEventElapsedTime(&all, start, events[2]));
            wrong += !(ms >= 0.0f && ms <= all && all >= since);
            since = all;
            wrong += cudaEventQuery(never) != cudaSuccess;
            (void)cudaGetLastError();
            wrong += made_again(now, next, start);
        }
        if (round % 16 == 15) CHECK(cudaEventSynchronize(kept[(round - 7) % KEPT]));
        for (cudaEvent_t event : events) CHECK(cudaEventDestroy(event));
        if (round % 8 == 0) options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    for (cudaEvent_t event : kept) CHECK(cudaEventQuery(event));
    std::printf("events %ld\n", made);
    program::Report report;
    report.expect_value("wrong answers", wrong, 0);
    report.expect_device("sum", sum, &host, sizeof host);
    report.allocation("sum", sum, sizeof host);
    for (cudaEvent_t event : kept) CHECK(cudaEventDestroy(event));
    CHECK(cudaEventDestroy(never));
    CHECK(cudaEventDestroy(start));
    for (cudaStream_t s : streams) CHECK(cudaStreamDestroy(s));
    CHECK(cudaFree(sum));
    return report.finish();
}
