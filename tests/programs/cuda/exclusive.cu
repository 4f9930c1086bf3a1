// Managed memory of a program whose host does not touch it while kernels run, as GPUs without concurrent managed access require: large blocks that
// the host fills and reads and that several kernels change between, prefetches, copies and fills of all kinds, graphs with copies of such memory,
// host functions that use it, and a block that belongs to a stream, which the host uses while a kernel runs in another stream.
#include "program.cuh"

constexpr int WORDS = (1 << 19) + 1027;
constexpr size_t BYTES = WORDS * sizeof(uint32_t);
constexpr int MINE = 1 << 19;
constexpr int WINDOW = 2048;
constexpr int BLOCK = 128;
constexpr int KERNELS = 5;

__global__ void stir(uint32_t *words, uint32_t from, uint32_t step, uint32_t key) {
    const uint32_t at = (from + (blockIdx.x * BLOCK + threadIdx.x) * step) % WORDS;
    words[at] = words[at] * 1664525u + key;
}

static void stir_here(uint32_t *words, uint32_t from, uint32_t step, uint32_t key) {
    for (uint32_t i = 0; i < WINDOW; i++) {
        uint32_t &word = words[(from + i * step) % WORDS];
        word = word * 1664525u + key;
    }
}

__global__ void add(uint32_t *words, uint32_t n, uint32_t key) {
    const uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) words[i] += key;
}

struct Both {
    uint32_t *words;
    std::vector<uint32_t> *want;
    uint32_t key;
    bool right;
};

// A host function: nothing else runs on the GPU.
static void use(void *data) {
    Both *both = static_cast<Both *>(data);
    both->right = std::memcmp(both->words, both->want->data(), WINDOW * 4) == 0;
    for (int i = 0; i < 64; i++) both->words[i * 31] ^= both->key, (*both->want)[i * 31] ^= both->key;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 16);
    program::Report report;
    int device, concurrent = -1;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device));
    const char *managed = std::getenv("MRCUDA_MANAGED");
    const bool told = managed != nullptr && std::strcmp(managed, "exclusive") == 0;
    report.expect_value("concurrent managed access", concurrent, told ? 0 : 1);
    const cudaMemLocation gpu = {cudaMemLocationTypeDevice, device}, host = {cudaMemLocationTypeHost, 0};

    uint32_t *words, *mine, *own;
    cudaStream_t work, other;
    CHECK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaMallocManaged(&words, BYTES));
    CHECK(cudaMallocManaged(&mine, MINE * 4, cudaMemAttachHost));
    CHECK(cudaMalloc(&own, BYTES));
    CHECK(cudaStreamAttachMemAsync(work, mine, 0, cudaMemAttachSingle));
    CHECK(cudaStreamSynchronize(work));
    std::vector<uint32_t> want(WORDS), want_mine(MINE), bytes(WINDOW);
    CHECK(cudaMemAdvise(words, BYTES, cudaMemAdviseSetPreferredLocation, gpu));

    // From the host to the GPU's memory, a kernel on it, and back.
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamBeginCapture(work, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(own, words + 4096, WINDOW * 4, cudaMemcpyHostToDevice, work));
    add<<<WINDOW / BLOCK, BLOCK, 0, work>>>(own, WINDOW, 77);
    CHECK(cudaMemcpyAsync(words + 40000, own, WINDOW * 4, cudaMemcpyDeviceToHost, work));
    stir<<<WINDOW / BLOCK, BLOCK, 0, work>>>(words, 5, 511, 99);
    CHECK(cudaStreamEndCapture(work, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));

    // The host fills all of it; floats differ from zero in some of their bytes only.
    for (int i = 0; i < WORDS; i++) {
        const float value = static_cast<float>(i % 1000) / 8;
        std::memcpy(&words[i], &value, 4);
        want[i] = words[i];
    }
    for (long round = 0; round < options.steps; round++) {
        const uint32_t key = static_cast<uint32_t>(program::mix(round)), from = key % WORDS;
        // The host changes some, up to the last word.
        for (uint32_t i = 0; i < 700; i++) {
            const uint32_t at = (from + i * 997) % WORDS;
            words[at] += i, want[at] += i;
        }
        words[WORDS - 1] = want[WORDS - 1] = key;
        for (uint32_t i = 0; i < WINDOW; i++) words[i] = want[i] = want[i] + round % 2;
        if (round % 3 == 0) CHECK(cudaMemPrefetchAsync(words, BYTES, gpu, 0, work));
        for (uint32_t k = 0; k < KERNELS; k++) {
            stir<<<WINDOW / BLOCK, BLOCK, 0, work>>>(words, from + k, 3 + 64 * k, key + k);
            CHECK_LAUNCH();
            stir_here(want.data(), from + k, 3 + 64 * k, key + k);
        }
        if (round % 3 == 1) CHECK(cudaMemPrefetchAsync(words, BYTES, host, 0, work));
        switch (round % 8) {
        case 0:
            CHECK(cudaStreamSynchronize(work));
            break;
        case 1: {
            cudaEvent_t event;
            CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            CHECK(cudaEventRecord(event, work));
            while (cudaEventQuery(event) == cudaErrorNotReady) {
            }
            CHECK(cudaEventDestroy(event));
            break;
        }
        case 2:
            // By copies between device and managed memory, and inside managed memory.
            CHECK(cudaMemcpyAsync(own, words, BYTES, cudaMemcpyDefault, work));
            CHECK(cudaMemcpyAsync(words + 100000, own, 40000, cudaMemcpyDeviceToDevice, work));
            std::memcpy(&want[100000], &want[0], 40000);
            CHECK(cudaMemcpy2DAsync(words + 200000, 4000, own, 8000, 2000, 50, cudaMemcpyDefault, work));
            for (int row = 0; row < 50; row++) std::memcpy(&want[200000 + row * 1000], &want[row * 2000], 2000);
            CHECK(cudaStreamSynchronize(work));
            CHECK(cudaMemcpy(words + 300000, words + 100, 20000, cudaMemcpyDefault));
            std::memcpy(&want[300000], &want[100], 20000);
            break;
        case 3:
            CHECK(cudaMemsetAsync(words + 5000, 0x5a, 70000, work));
            std::memset(&want[5000], 0x5a, 70000);
            while (cudaStreamQuery(work) == cudaErrorNotReady) {
            }
            break;
        case 4:
            CHECK(cudaStreamSynchronize(work));
            // By the host's memory.
            CHECK(cudaMemcpy(bytes.data(), words + 777, WINDOW * 4, cudaMemcpyDeviceToHost));
            report.expect("read by a copy", bytes.data(), &want[777], WINDOW * 4);
            for (uint32_t &word : bytes) word ^= key;
            CHECK(cudaMemcpy(words + 7777, bytes.data(), WINDOW * 4, cudaMemcpyHostToDevice));
            std::memcpy(&want[7777], bytes.data(), WINDOW * 4);
            break;
        case 5:
            for (int i = 0; i < 2; i++) {
                CHECK(cudaGraphLaunch(instance, work));
                for (uint32_t k = 0; k < WINDOW; k++) want[40000 + k] = want[4096 + k] + 77;
                stir_here(want.data(), 5, 511, 99);
            }
            CHECK(cudaStreamSynchronize(work));
            break;
        case 6: {
            CHECK(cudaStreamSynchronize(work));
            Both both = {words, &want, key, false};
            CHECK(cudaLaunchHostFunc(work, use, &both));
            CHECK(cudaStreamSynchronize(work));
            report.expect_value("in a host function", both.right, 1);
            stir<<<WINDOW / BLOCK, BLOCK, 0, work>>>(words, 1, 7, key);
            stir_here(want.data(), 1, 7, key);
            CHECK(cudaStreamSynchronize(work));
            break;
        }
        default:
            // A copy to the device that waits.
            CHECK(cudaStreamSynchronize(work));
            stir<<<WINDOW / BLOCK, BLOCK>>>(words, 9, 13, key);
            stir_here(want.data(), 9, 13, key);
            CHECK(cudaMemcpy(own, bytes.data(), WINDOW * 4, cudaMemcpyHostToDevice));
        }
        report.expect("words", words, want.data(), BYTES);
        // This block is the stream's, so the host may use it beside the kernel in the other one.
        program::linger<<<1, 1, 0, other>>>(2000000);
        CHECK_LAUNCH();
        for (int turn = 0; turn < 2; turn++) {
            for (int i = 0; i < 300; i++) mine[i * 1000] += key, want_mine[i * 1000] += key;
            add<<<WINDOW / BLOCK, BLOCK, 0, work>>>(mine + MINE - WINDOW, WINDOW, key);
            CHECK_LAUNCH();
            for (int i = MINE - WINDOW; i < MINE; i++) want_mine[i] += key;
            CHECK(cudaStreamSynchronize(work));
            report.expect("of the stream", mine, want_mine.data(), MINE * 4);
        }
        CHECK(cudaStreamSynchronize(other));
        if (round % 5 == 4) {
            uint32_t *brief;
            CHECK(cudaMallocManaged(&brief, BYTES));
            report.expect_value("fresh", brief[WORDS - 1], 0);
            stir<<<WINDOW / BLOCK, BLOCK, 0, work>>>(brief, 0, 500, key);
            CHECK(cudaStreamSynchronize(work));
            report.expect_value("brief", brief[500], key);
            CHECK(cudaFree(brief));
        }
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    report.line("managed", "words", words, BYTES);
    report.line("managed", "mine", mine, MINE * 4);
    CHECK(cudaGraphExecDestroy(instance));
    CHECK(cudaGraphDestroy(graph));
    for (void *p : {static_cast<void *>(words), static_cast<void *>(mine), static_cast<void *>(own)}) CHECK(cudaFree(p));
    return report.finish();
}
