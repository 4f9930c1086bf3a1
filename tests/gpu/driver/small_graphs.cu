// What each call costs in a loop of small graphs that are made, instantiated, launched, changed and destroyed: microseconds, mean.
// Built with nvcc alone; run natively and with `mrcuda run`.
#include "timed.cuh"

constexpr int ROUNDS = 3000, WARM_UP = 50;
constexpr size_t BYTES = 2048;

__global__ void stir(const unsigned long *from, unsigned long *to, unsigned long salt) {
    const int i = threadIdx.x;
    to[i] = (from[i] ^ salt) + to[i] * 3;
}

int main() {
    unsigned long *a, *b, *pinned;
    CHECK(cudaMalloc(&a, BYTES));
    CHECK(cudaMalloc(&b, BYTES));
    CHECK(cudaMallocHost(&pinned, BYTES));
    cudaStream_t s, side;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    cudaEvent_t fork, join;
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    for (int round = 0; round < ROUNDS; round++) {
        if (round == WARM_UP) times.clear();
        // Made node by node: a copy in, a kernel, a copy out.
        unsigned long salt = round;
        void *args[] = {&a, &b, &salt};
        cudaKernelNodeParams p = {};
        p.func = reinterpret_cast<void *>(stir);
        p.gridDim = dim3(1), p.blockDim = dim3(256);
        p.kernelParams = args;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        cudaGraphNode_t in, kernel, out;
        timed("1 create", [&] { return cudaGraphCreate(&graph, 0); });
        timed("1 add copy in", [&] { return cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, a, pinned, BYTES, cudaMemcpyHostToDevice); });
        timed("1 add kernel", [&] { return cudaGraphAddKernelNode(&kernel, graph, &in, 1, &p); });
        timed("1 add copy out", [&] { return cudaGraphAddMemcpyNode1D(&out, graph, &kernel, 1, pinned, b, BYTES, cudaMemcpyDeviceToHost); });
        timed("1 instantiate", [&] { return cudaGraphInstantiate(&exec, graph, 0); });
        timed("1 launch", [&] { return cudaGraphLaunch(exec, s); });
        timed("1 wait", [&] { return cudaStreamSynchronize(s); });
        salt++;
        timed("1 set parameters", [&] { return cudaGraphExecKernelNodeSetParams(exec, kernel, &p); });
        timed("1 launch again", [&] { return cudaGraphLaunch(exec, s); });
        timed("1 wait again", [&] { return cudaStreamSynchronize(s); });
        timed("1 destroy instance", [&] { return cudaGraphExecDestroy(exec); });
        timed("1 destroy", [&] { return cudaGraphDestroy(graph); });
        // Captured: two kernels beside each other, and a fill.
        auto captured = [&](const char *name) {
            cudaGraph_t made;
            timed(name, [&] {
                CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
                CHECK(cudaEventRecord(fork, s));
                CHECK(cudaStreamWaitEvent(side, fork, 0));
                stir<<<1, 256, 0, s>>>(a, b, salt);
                stir<<<1, 256, 0, side>>>(a, b, salt + 1);
                CHECK(cudaEventRecord(join, side));
                CHECK(cudaStreamWaitEvent(s, join, 0));
                CHECK(cudaMemsetAsync(a, 1, BYTES / 2, s));
                return cudaStreamEndCapture(s, &made);
            });
            return made;
        };
        graph = captured("2 capture");
        timed("2 instantiate", [&] { return cudaGraphInstantiate(&exec, graph, 0); });
        for (int i = 0; i < 3; i++) timed("2 launch", [&] { return cudaGraphLaunch(exec, s); });
        cudaGraph_t other = captured("2 capture again");
        cudaGraphExecUpdateResultInfo info;
        timed("2 update", [&] { return cudaGraphExecUpdate(exec, other, &info); });
        timed("2 launch again", [&] { return cudaGraphLaunch(exec, s); });
        timed("2 destroy", [&] { return cudaGraphDestroy(other); });
        timed("2 destroy instance", [&] { return cudaGraphExecDestroy(exec); });
        timed("2 destroy", [&] { return cudaGraphDestroy(graph); });
        timed("2 wait", [&] { return cudaStreamSynchronize(s); });
    }
    print_times(ROUNDS - WARM_UP);
}
