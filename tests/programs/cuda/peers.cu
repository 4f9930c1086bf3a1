// Two GPUs that exchange on the device side alone: streams wait for the other GPU's events, bytes go by copies from GPU to GPU, and
// where one GPU can use the other's memory kernels do so too. The host waits for nothing between the rounds but what bounds its queue.
// With one GPU both halves run on it; the result is the same.
#include "program.cuh"

constexpr int N = 4096;
constexpr int BLOCK = 128;
constexpr int GPUS = 2;
constexpr long EXCHANGE = 4;
constexpr int BIG = 3 << 20;

__device__ __host__ inline uint32_t step_of(uint32_t x, uint32_t neighbour, uint32_t step) {
    return x * 1664525u + neighbour + step;
}

__global__ void advance(const uint32_t *from, uint32_t *to, uint32_t step) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    to[i] = step_of(from[i], from[(i + 1) % N], step);
}

__global__ void blend(uint32_t *own, const uint32_t *other) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    own[i] ^= other[i] >> 3;
}

// Reads the other GPU's memory in place of a copy, and counts there.
__global__ void pull(uint32_t *inbox, const uint32_t *other, unsigned int *their_count) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    inbox[i] = other[i];
    if (i == 0) atomicAdd(their_count, 1u);
}

struct Gpu {
    int device;
    cudaStream_t stream;
    cudaEvent_t computed, taken;
    uint32_t *a, *b, *inbox;
    unsigned int *count;
    program::Window *window;
    // Copies what the other one has to the inbox.
    cudaGraphExec_t fetch;
};

static void host_step(std::vector<uint32_t> &x, uint32_t step) {
    std::vector<uint32_t> next(N);
    for (int i = 0; i < N; i++) next[i] = step_of(x[i], x[(i + 1) % N], step);
    x = next;
}

// Two large buffers and a box, copied to the other GPU and back in one stream, and by the calls that wait.
static void large_copies(Gpu *gpus, program::Report &report) {
    std::vector<unsigned char> bytes(BIG), back(BIG);
    for (int i = 0; i < BIG; i++) bytes[i] = static_cast<unsigned char>(program::mix(i) >> 17);
    unsigned char *first, *second;
    CHECK(cudaSetDevice(gpus[1].device));
    CHECK(cudaMalloc(&second, BIG));
    CHECK(cudaMemset(second, 0, BIG));
    // A stream of the other GPU does not wait for it.
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(gpus[0].device));
    CHECK(cudaMalloc(&first, BIG));
    // In the stream of one GPU: host, this GPU, the other one, this one again at another place, host.
    cudaStream_t stream = gpus[0].stream;
    CHECK(cudaMemcpyAsync(first, bytes.data(), BIG, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyPeerAsync(second, gpus[1].device, first, gpus[0].device, BIG, stream));
    CHECK(cudaMemsetAsync(first, 0x5a, BIG, stream));
    CHECK(cudaMemcpyPeerAsync(first, gpus[0].device, second + 1, gpus[1].device, BIG - 1, stream));
    CHECK(cudaMemcpyAsync(back.data(), first, BIG, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::vector<unsigned char> want(bytes.begin() + 1, bytes.end());
    want.push_back(0x5a);
    report.expect("there and back", back.data(), want.data(), BIG);
    // A box of 3 x 5 rows, from a pitch of 256 to one of 512, by the call that names both devices.
    CHECK(cudaMemset(second, 0, BIG));
    cudaMemcpy3DPeerParms box = {};
    box.srcDevice = gpus[0].device;
    box.srcPtr = make_cudaPitchedPtr(first, 256, 256, 8);
    box.srcPos = make_cudaPos(16, 1, 0);
    box.dstDevice = gpus[1].device;
    box.dstPtr = make_cudaPitchedPtr(second, 512, 512, 16);
    box.dstPos = make_cudaPos(3, 2, 1);
    box.extent = make_cudaExtent(100, 5, 3);
    CHECK(cudaMemcpy3DPeer(&box));
    CHECK(cudaMemcpy(back.data(), second, BIG, cudaMemcpyDeviceToHost));
    std::vector<unsigned char> boxed(BIG);
    for (size_t z = 0; z < 3; z++) {
        for (size_t y = 0; y < 5; y++) {
            std::memcpy(&boxed[((z + 1) * 16 + y + 2) * 512 + 3], &want[(z * 8 + y + 1) * 256 + 16], 100);
        }
    }
    report.expect("a box", back.data(), boxed.data(), BIG);
    // Without a stream, and with the other GPU's memory while this one is current.
    CHECK(cudaMemcpy(second, bytes.data(), BIG, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(first, second, BIG, cudaMemcpyDefault));
    CHECK(cudaMemcpyPeer(second + 64, gpus[1].device, first, gpus[0].device, BIG - 64));
    CHECK(cudaMemset(second, 7, 64));
    CHECK(cudaMemcpy(back.data(), second, BIG, cudaMemcpyDeviceToHost));
    std::memcpy(want.data() + 64, bytes.data(), BIG - 64);
    std::memset(want.data(), 7, 64);
    report.expect("without a stream", back.data(), want.data(), BIG);
    report.line("copied", "large", back.data(), BIG);
    CHECK(cudaFree(first));
    CHECK(cudaFree(second));
}

// Whether a capture may go on in a stream of another GPU; whatever the answer, both streams work afterwards.
static void capture_across(Gpu *gpus) {
    CHECK(cudaSetDevice(gpus[0].device));
    CHECK(cudaStreamBeginCapture(gpus[0].stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaEventRecord(gpus[0].computed, gpus[0].stream));
    CHECK(cudaSetDevice(gpus[1].device));
    const cudaError_t joined = cudaStreamWaitEvent(gpus[1].stream, gpus[0].computed, 0);
    std::fprintf(stderr, "a capture from GPU to GPU: %d\n", static_cast<int>(joined));
    if (joined == cudaSuccess) {
        CHECK(cudaEventRecord(gpus[1].computed, gpus[1].stream));
        CHECK(cudaSetDevice(gpus[0].device));
        CHECK(cudaStreamWaitEvent(gpus[0].stream, gpus[1].computed, 0));
    }
    (void)cudaGetLastError();
    CHECK(cudaSetDevice(gpus[0].device));
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(gpus[0].stream, &graph));
    CHECK(cudaGraphDestroy(graph));
    for (int g = 0; g < GPUS; g++) {
        CHECK(cudaSetDevice(gpus[g].device));
        CHECK(cudaStreamSynchronize(gpus[g].stream));
    }
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    int there = 0;
    CHECK(cudaGetDeviceCount(&there));
    Gpu gpus[GPUS];
    std::vector<uint32_t> host[GPUS];
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        gpu.device = g % there;
        CHECK(cudaSetDevice(gpu.device));
        CHECK(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&gpu.computed, cudaEventDisableTiming));
        CHECK(cudaEventCreateWithFlags(&gpu.taken, cudaEventDisableTiming));
        gpu.window = new program::Window();
        for (uint32_t **p : {&gpu.a, &gpu.b, &gpu.inbox}) CHECK(cudaMalloc(p, sizeof(uint32_t) * N));
        CHECK(cudaMalloc(&gpu.count, sizeof *gpu.count));
        CHECK(cudaMemsetAsync(gpu.count, 0, sizeof *gpu.count, gpu.stream));
        host[g].resize(N);
        for (int i = 0; i < N; i++) host[g][i] = static_cast<uint32_t>(program::mix(i + g * N));
        CHECK(cudaMemcpyAsync(gpu.a, host[g].data(), sizeof(uint32_t) * N, cudaMemcpyHostToDevice, gpu.stream));
        CHECK(cudaStreamSynchronize(gpu.stream));
    }
    bool access = gpus[0].device != gpus[1].device;
    for (int g = 0; access && g < GPUS; g++) {
        int can = 0;
        CHECK(cudaDeviceCanAccessPeer(&can, gpus[g].device, gpus[1 - g].device));
        access = can != 0;
    }
    for (int g = 0; access && g < GPUS; g++) {
        CHECK(cudaSetDevice(gpus[g].device));
        CHECK(cudaDeviceEnablePeerAccess(gpus[1 - g].device, 0));
        if (cudaDeviceEnablePeerAccess(gpus[1 - g].device, 0) != cudaErrorPeerAccessAlreadyEnabled) std::abort();
        (void)cudaGetLastError();
    }
    std::fprintf(stderr, "peer access: %s\n", access ? "yes" : "no");
    // Memory that is made later is accessible like that made before.
    uint32_t *late[GPUS];
    for (int g = 0; g < GPUS; g++) {
        CHECK(cudaSetDevice(gpus[g].device));
        CHECK(cudaMalloc(&late[g], 5 << 20));
        CHECK(cudaFree(gpus[g].b));
        gpus[g].b = late[g];
    }
    const bool alone = gpus[0].device == gpus[1].device;
    for (int g = 0; (access || alone) && g < GPUS; g++) {
        CHECK(cudaSetDevice(gpus[g].device));
        cudaGraph_t graph;
        cudaGraphNode_t node;
        CHECK(cudaGraphCreate(&graph, 0));
        CHECK(cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, gpus[g].inbox, gpus[1 - g].a, sizeof(uint32_t) * N, cudaMemcpyDefault));
        CHECK(cudaGraphInstantiate(&gpus[g].fetch, graph, 0));
        CHECK(cudaGraphDestroy(graph));
    }
    for (long step = 0; step < options.steps; step++) {
        const bool exchange = step % EXCHANGE == EXCHANGE - 1;
        for (Gpu &gpu : gpus) {
            CHECK(cudaSetDevice(gpu.device));
            advance<<<N / BLOCK, BLOCK, 0, gpu.stream>>>(gpu.a, gpu.b, static_cast<uint32_t>(step));
            CHECK_LAUNCH();
            std::swap(gpu.a, gpu.b);
            // Recorded anew before the last record has happened: a wait is for what was there when it was made.
            CHECK(cudaEventRecord(gpu.computed, gpu.stream));
        }
        for (int g = 0; exchange && g < GPUS; g++) {
            Gpu &gpu = gpus[g], &other = gpus[1 - g];
            CHECK(cudaSetDevice(gpu.device));
            CHECK(cudaStreamWaitEvent(gpu.stream, other.computed, 0));
            if ((access || alone) && step / EXCHANGE % 2 == 0) {
                pull<<<N / BLOCK, BLOCK, 0, gpu.stream>>>(gpu.inbox, other.a, other.count);
                CHECK_LAUNCH();
            } else if ((access || alone) && step / EXCHANGE % 4 == 1) {
                // Exchanges come after an even number of steps: what is read then is always the same buffer.
                CHECK(cudaGraphLaunch(gpu.fetch, gpu.stream));
            } else {
                CHECK(cudaMemcpyPeerAsync(gpu.inbox, gpu.device, other.a, other.device, sizeof(uint32_t) * N, gpu.stream));
            }
            CHECK(cudaEventRecord(gpu.taken, gpu.stream));
        }
        for (int g = 0; exchange && g < GPUS; g++) {
            // What the other one reads must stay until it has it.
            Gpu &gpu = gpus[g], &other = gpus[1 - g];
            CHECK(cudaSetDevice(gpu.device));
            CHECK(cudaStreamWaitEvent(gpu.stream, other.taken, 0));
            blend<<<N / BLOCK, BLOCK, 0, gpu.stream>>>(gpu.a, gpu.inbox);
            CHECK_LAUNCH();
        }
        for (Gpu &gpu : gpus) {
            CHECK(cudaSetDevice(gpu.device));
            gpu.window->round_done(gpu.stream);
        }
        options.pace();
    }

    std::vector<uint32_t> before[GPUS], out[GPUS];
    for (long step = 0; step < options.steps; step++) {
        for (int g = 0; g < GPUS; g++) {
            before[g] = host[g];
            host_step(host[g], static_cast<uint32_t>(step));
        }
        if (step % EXCHANGE == EXCHANGE - 1) {
            for (int g = 0; g < GPUS; g++) out[g] = host[g];
            for (int g = 0; g < GPUS; g++) {
                for (int i = 0; i < N; i++) host[g][i] ^= out[1 - g][i] >> 3;
            }
        }
    }
    program::Report report;
    const long exchanges = options.steps / EXCHANGE;
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        CHECK(cudaSetDevice(gpu.device));
        CHECK(cudaStreamSynchronize(gpu.stream));
        report.expect_device(g == 0 ? "first" : "second", gpu.a, host[g].data(), sizeof(uint32_t) * N);
        report.allocation(g == 0 ? "first" : "second", gpu.a, sizeof(uint32_t) * N);
        if (options.steps > 0) report.expect_device("before", gpu.b, before[g].data(), sizeof(uint32_t) * N);
        if (exchanges > 0) report.expect_device("received", gpu.inbox, out[1 - g].data(), sizeof(uint32_t) * N);
        unsigned int count = 0;
        CHECK(cudaMemcpy(&count, gpu.count, sizeof count, cudaMemcpyDeviceToHost));
        if (access || alone) report.expect_value("counted by the other one", count, (exchanges + 1) / 2);
    }
    large_copies(gpus, report);
    if (gpus[0].device != gpus[1].device) capture_across(gpus);
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        CHECK(cudaSetDevice(gpu.device));
        if (access || alone) CHECK(cudaGraphExecDestroy(gpu.fetch));
        if (access) {
            CHECK(cudaDeviceDisablePeerAccess(gpus[1 - g].device));
            if (cudaDeviceDisablePeerAccess(gpus[1 - g].device) != cudaErrorPeerAccessNotEnabled) std::abort();
            (void)cudaGetLastError();
        }
        gpu.window->destroy();
        delete gpu.window;
        CHECK(cudaEventDestroy(gpu.computed));
        CHECK(cudaEventDestroy(gpu.taken));
        CHECK(cudaStreamDestroy(gpu.stream));
        for (uint32_t *p : {gpu.a, gpu.b, gpu.inbox}) CHECK(cudaFree(p));
        CHECK(cudaFree(gpu.count));
    }
    return report.finish();
}
