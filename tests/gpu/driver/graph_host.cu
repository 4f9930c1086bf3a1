// Graphs and host memory: when a node reads pageable or pinned memory, when what it wrote is there for a host function behind it,
// and when device text is shown before a host function. Lines beginning with `|` are results.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#define CK(call)                                                                              \
    do {                                                                                      \
        cudaError_t rc = (call);                                                              \
        if (rc != cudaSuccess) { printf("%s: %s\n", #call, cudaGetErrorName(rc)); exit(1); }  \
    } while (0)

__global__ void spin(unsigned long long ns) {
    unsigned long long a, b;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(a));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(b)); while (b - a < ns);
}
__global__ void put(int *to, const int *round) { *to = *round; }
__global__ void bump(int *round) { ++*round; }
__global__ void say() { printf("text\n"); }

struct Box { int *from, *into; long wrong, calls; };

// What the copy before has left is compared, then what the copy behind reads is written.
static void CUDART_CB look(void *data) {
    Box *b = static_cast<Box *>(data);
    b->calls++;
    if (*b->from != b->calls) b->wrong++;
    *b->into = static_cast<int>(b->calls) * 3;
}
static void CUDART_CB shown(void *) { fprintf(stderr, "function\n"); }

__global__ void check(const int *got, const int *round, int *wrong) { if (*got != 3 * *round) ++*wrong; }

int main() {
    cudaStream_t s;
    CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    int *round, *out, *back, *wrong;
    for (int **p : {&round, &out, &back, &wrong}) CK(cudaMalloc(p, 4));
    for (int kind = 0; kind < 8; kind++) {
        bool from_pinned = kind & 1, into_pinned = kind & 2, captured = kind & 4;
        Box box = {};
        if (from_pinned) CK(cudaMallocHost(&box.from, 4)); else box.from = static_cast<int *>(malloc(4096));
        if (into_pinned) CK(cudaMallocHost(&box.into, 4)); else box.into = static_cast<int *>(malloc(4096));
        CK(cudaMemset(round, 0, 4));
        CK(cudaMemset(wrong, 0, 4));
        CK(cudaDeviceSynchronize());
        cudaGraph_t g;
        cudaGraphExec_t e = nullptr;
        int launches = 2000;
        auto body = [&] {
            bump<<<1, 1, 0, s>>>(round);
            put<<<1, 1, 0, s>>>(out, round);
            CK(cudaMemcpyAsync(box.from, out, 4, cudaMemcpyDeviceToHost, s));
            CK(cudaLaunchHostFunc(s, look, &box));
            CK(cudaMemcpyAsync(back, box.into, 4, cudaMemcpyHostToDevice, s));
            check<<<1, 1, 0, s>>>(back, round, wrong);
        };
        if (captured) {
            CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
            body();
            CK(cudaStreamEndCapture(s, &g));
            CK(cudaGraphInstantiate(&e, g, 0));
        }
        for (int i = 0; i < launches; i++) {
            if (captured) CK(cudaGraphLaunch(e, s)); else body();
        }
        CK(cudaStreamSynchronize(s));
        int bad;
        CK(cudaMemcpy(&bad, wrong, 4, cudaMemcpyDeviceToHost));
        printf("| %s, out to %s, in from %s: %d rounds | function saw another value %ld, kernel behind it %d |\n", captured ? "graph" : "stream",
               from_pinned ? "pinned" : "pageable", into_pinned ? "pinned" : "pageable", launches, box.wrong, bad);
    }
    // When the bytes are read: the host changes them while a kernel before the copy still works.
    for (int kind = 0; kind < 4; kind++) {
        bool pinned = kind & 1, captured = kind & 2;
        int *buffer;
        if (pinned) CK(cudaMallocHost(&buffer, 4)); else buffer = static_cast<int *>(malloc(4096));
        *buffer = 1;
        cudaGraph_t g;
        cudaGraphExec_t e;
        auto body = [&] {
            spin<<<1, 1, 0, s>>>(50000000);
            CK(cudaMemcpyAsync(back, buffer, 4, cudaMemcpyHostToDevice, s));
        };
        if (captured) {
            CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
            body();
            CK(cudaStreamEndCapture(s, &g));
            *buffer = 2;
            CK(cudaGraphInstantiate(&e, g, 0));
            *buffer = 3;
            CK(cudaGraphLaunch(e, s));
        } else body();
        *buffer = 4;
        CK(cudaStreamSynchronize(s));
        int got;
        CK(cudaMemcpy(&got, back, 4, cudaMemcpyDeviceToHost));
        printf("| %s, %s: 1 at capture, 2 at instantiation, 3 at launch, 4 after it | %d was copied |\n", captured ? "graph" : "stream",
               pinned ? "pinned" : "pageable", got);
    }
    fflush(stdout);
    // The order of text and a host function behind the kernel: both on one descriptor, unbuffered.
    setvbuf(stdout, nullptr, _IONBF, 0);
    dup2(1, 2);
    for (int i = 0; i < 3; i++) {
        say<<<1, 1, 0, s>>>();
        CK(cudaLaunchHostFunc(s, shown, nullptr));
        usleep(100000);
        fprintf(stderr, "slept\n");
        say<<<1, 1, 0, s>>>();
        fprintf(stderr, "launched\n");
        CK(cudaStreamSynchronize(s));
        fprintf(stderr, "waited\n");
    }
}
