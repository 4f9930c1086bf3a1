// Copies between GPUs of every size and shape, in the streams of either end and of a third GPU, by calls that wait and calls that do not,
// between kernels that write their source and read their destination, and between frees and new allocations. The order is by events
// alone. The host repeats everything and compares. With fewer GPUs several parts run on one; the result is the same.
#include "program.cuh"

constexpr int GPUS = 3;
constexpr int STREAMS = 2;
constexpr int BUFFERS = 3;
constexpr size_t LARGEST = 3 << 20;
// Kernels touch one word in so many: most bytes are only ever copied.
constexpr size_t APART = 61;

__global__ void scramble(uint32_t *words, size_t count, uint32_t by) {
    for (size_t i = (blockIdx.x * blockDim.x + threadIdx.x) * APART; i < count; i += gridDim.x * blockDim.x * APART) {
        words[i] = words[i] * 1664525u + by + static_cast<uint32_t>(i);
    }
}

__global__ void sum_up(const uint32_t *words, size_t count, unsigned long long *sum) {
    unsigned long long own = 0;
    for (size_t i = (blockIdx.x * blockDim.x + threadIdx.x) * APART; i < count; i += gridDim.x * blockDim.x * APART) {
        own += words[i] * static_cast<unsigned long long>(i + 1);
    }
    atomicAdd(sum, own);
}

struct Random {
    uint64_t state;
    uint64_t next() { return program::mix(state++); }
    size_t below(size_t n) { return static_cast<size_t>(next() % n); }
};

struct Buffer {
    unsigned char *at;
    std::vector<unsigned char> want;
    bool pooled;
    // Behind everything that has used it.
    cudaEvent_t used;
};

struct Gpu {
    int device;
    cudaStream_t streams[STREAMS];
    Buffer buffers[BUFFERS];
    unsigned long long *sum;
    unsigned long long want_sum;
    // Orders the additions to the sum.
    cudaEvent_t summed;
};

static Gpu gpus[GPUS];

static void use(const Gpu &gpu) { CHECK(cudaSetDevice(gpu.device)); }

static size_t some_size(Random &random) {
    switch (random.below(4)) {
    case 0: return 4096 + random.below(60000);
    case 1: return (256 << 10) - 8 + random.below(16);
    default: return (256 << 10) + random.below(LARGEST - (256 << 10));
    }
}

// New memory, whose bytes are all the same.
static void fill(Gpu &gpu, Buffer &buffer, Random &random) {
    use(gpu);
    const size_t size = some_size(random);
    const unsigned char value = static_cast<unsigned char>(random.next());
    cudaStream_t stream = gpu.streams[0];
    buffer.pooled = random.below(3) == 0;
    if (buffer.pooled) CHECK(cudaMallocAsync(&buffer.at, size, stream));
    else CHECK(cudaMalloc(&buffer.at, size));
    CHECK(cudaMemsetAsync(buffer.at, value, size, stream));
    CHECK(cudaEventRecord(buffer.used, stream));
    buffer.want.assign(size, value);
}

static void release(Gpu &gpu, Buffer &buffer) {
    CHECK(cudaEventSynchronize(buffer.used));
    use(gpu);
    if (buffer.pooled) CHECK(cudaFreeAsync(buffer.at, gpu.streams[0]));
    else CHECK(cudaFree(buffer.at));
}

// The stream waits for what has used the buffer; `done_with` records that this has, too.
static void wait_for(cudaStream_t stream, const Buffer &buffer) { CHECK(cudaStreamWaitEvent(stream, buffer.used, 0)); }

// An event is recorded on the device where it was created.
static void done_with(Buffer &buffer, const Gpu &by, cudaStream_t stream) {
    use(by);
    CHECK(cudaEventDestroy(buffer.used));
    CHECK(cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming));
    CHECK(cudaEventRecord(buffer.used, stream));
}

static void copy(Gpu &from, Buffer &src, Gpu &to, Buffer &dst, Random &random) {
    Gpu &by = gpus[random.below(GPUS)];
    cudaStream_t stream = by.streams[random.below(STREAMS)];
    const size_t most = src.want.size() < dst.want.size() ? src.want.size() : dst.want.size();
    const size_t bytes = random.below(4) == 0 ? most : 1 + random.below(most);
    size_t there = random.below(src.want.size() - bytes + 1), here = random.below(dst.want.size() - bytes + 1);
    const size_t kind = random.below(6);
    use(by);
    if (kind == 0) {
        // Calls that wait.
        CHECK(cudaEventSynchronize(src.used));
        CHECK(cudaEventSynchronize(dst.used));
        if (random.below(2) == 0) CHECK(cudaMemcpyPeer(dst.at + here, to.device, src.at + there, from.device, bytes));
        else CHECK(cudaMemcpy(dst.at + here, src.at + there, bytes, cudaMemcpyDefault));
        // They wait for the order of the default stream, but need not wait for the bytes.
        CHECK(cudaStreamSynchronize(nullptr));
        std::memcpy(&dst.want[here], &src.want[there], bytes);
        return;
    }
    wait_for(stream, src);
    wait_for(stream, dst);
    if (kind == 1 && bytes > 4096) {
        // Rows, from one pitch to another.
        const size_t rows = 2 + random.below(14), pitch = bytes / rows, width = 1 + random.below(pitch);
        const size_t other = width + random.below(pitch - width + 1);
        there = random.below(src.want.size() - pitch * rows + 1);
        here = random.below(dst.want.size() - other * rows + 1);
        CHECK(cudaMemcpy2DAsync(dst.at + here, other, src.at + there, pitch, width, rows, cudaMemcpyDefault, stream));
        for (size_t row = 0; row < rows; row++) std::memcpy(&dst.want[here + row * other], &src.want[there + row * pitch], width);
    } else {
        if (kind == 2) CHECK(cudaMemcpyAsync(dst.at + here, src.at + there, bytes, cudaMemcpyDefault, stream));
        else CHECK(cudaMemcpyPeerAsync(dst.at + here, to.device, src.at + there, from.device, bytes, stream));
        std::memcpy(&dst.want[here], &src.want[there], bytes);
    }
    done_with(src, by, stream);
    done_with(dst, by, stream);
}

static void work(Gpu &gpu, Buffer &buffer, Random &random) {
    use(gpu);
    cudaStream_t stream = gpu.streams[random.below(STREAMS)];
    const size_t count = buffer.want.size() / 4;
    const uint32_t by = static_cast<uint32_t>(random.next());
    const bool sums = random.below(3) == 0;
    wait_for(stream, buffer);
    if (sums) {
        CHECK(cudaStreamWaitEvent(stream, gpu.summed, 0));
        sum_up<<<4, 64, 0, stream>>>(reinterpret_cast<uint32_t *>(buffer.at), count, gpu.sum);
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(gpu.summed, stream));
    } else {
        scramble<<<4, 64, 0, stream>>>(reinterpret_cast<uint32_t *>(buffer.at), count, by);
        CHECK_LAUNCH();
    }
    done_with(buffer, gpu, stream);
    for (size_t i = 0; i < count; i += APART) {
        uint32_t word;
        std::memcpy(&word, &buffer.want[i * 4], 4);
        if (sums) gpu.want_sum += word * static_cast<unsigned long long>(i + 1);
        word = word * 1664525u + by + static_cast<uint32_t>(i);
        if (!sums) std::memcpy(&buffer.want[i * 4], &word, 4);
    }
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    Random random{42};
    int there = 0;
    CHECK(cudaGetDeviceCount(&there));
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        gpu.device = g % there;
        use(gpu);
        for (cudaStream_t &stream : gpu.streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaMalloc(&gpu.sum, sizeof *gpu.sum));
        CHECK(cudaMemset(gpu.sum, 0, sizeof *gpu.sum));
        // All code is loaded before the first copy.
        scramble<<<1, 1>>>(nullptr, 0, 0);
        CHECK_LAUNCH();
        sum_up<<<1, 1>>>(nullptr, 0, gpu.sum);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaEventCreateWithFlags(&gpu.summed, cudaEventDisableTiming));
        for (Buffer &buffer : gpu.buffers) {
            CHECK(cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming));
            fill(gpu, buffer, random);
        }
    }
    for (long step = 0; step < options.steps; step++) {
        for (int n = 0; n < 4; n++) {
            const size_t g = random.below(GPUS);
            Gpu &gpu = gpus[g], &other = gpus[(g + 1 + random.below(GPUS - 1)) % GPUS];
            Buffer &buffer = gpu.buffers[random.below(BUFFERS)];
            switch (random.below(8)) {
            case 0:
                release(gpu, buffer);
                CHECK(cudaEventDestroy(buffer.used));
                CHECK(cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming));
                fill(gpu, buffer, random);
                break;
            case 1: case 2: case 3: work(gpu, buffer, random); break;
            default: copy(other, other.buffers[random.below(BUFFERS)], gpu, buffer, random);
            }
        }
        options.pace();
    }
    program::Report report;
    for (int g = 0; g < GPUS; g++) {
        Gpu &gpu = gpus[g];
        for (Buffer &buffer : gpu.buffers) {
            CHECK(cudaEventSynchronize(buffer.used));
            use(gpu);
            report.expect_device("a buffer", buffer.at, buffer.want.data(), buffer.want.size());
            report.allocation("buffer", buffer.at, buffer.want.size());
        }
        unsigned long long sum = 0;
        CHECK(cudaEventSynchronize(gpu.summed));
        CHECK(cudaMemcpy(&sum, gpu.sum, sizeof sum, cudaMemcpyDeviceToHost));
        report.expect_value("a sum", sum, gpu.want_sum);
        report.line("sum", "read", &sum, sizeof sum);
    }
    for (Gpu &gpu : gpus) {
        for (Buffer &buffer : gpu.buffers) {
            release(gpu, buffer);
            CHECK(cudaEventDestroy(buffer.used));
        }
        use(gpu);
        CHECK(cudaEventDestroy(gpu.summed));
        CHECK(cudaFree(gpu.sum));
        for (cudaStream_t stream : gpu.streams) {
            CHECK(cudaStreamSynchronize(stream));
            CHECK(cudaStreamDestroy(stream));
        }
    }
    return report.finish();
}
