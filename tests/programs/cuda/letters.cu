// Two GPUs that are told where host memory lies: fresh pinned blocks whose addresses are stored in managed memory, in mapped memory, in
// another such block, in the memory of either GPU, given to kernels, or handed on from GPU to GPU. Each GPU in turn is the first to be
// told. With one GPU both halves run on it.
#include "program.cuh"

constexpr int WORDS = 1500;
constexpr int GPUS = 2;
constexpr long KEPT = 12;

struct Letter {
    uint64_t *next;
    uint64_t sum[GPUS];
    uint64_t words[WORDS];
};

// Follows an address to a letter, and through it to the next one; leaves sums in them, and the address where it is told to.
__global__ void read(Letter *const *box, int reader, Letter **keep) {
    __shared__ unsigned long long sum;
    Letter *first = *box;
    if (threadIdx.x == 0 && keep != nullptr) *keep = first;
    for (Letter *letter = first; letter != nullptr; letter = reinterpret_cast<Letter *>(letter->next)) {
        if (threadIdx.x == 0) sum = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < WORDS; i += blockDim.x) atomicAdd(&sum, static_cast<unsigned long long>(letter->words[i] * (i + 1)));
        __syncthreads();
        if (threadIdx.x == 0) letter->sum[reader] = sum + reader;
        __syncthreads();
    }
}

// The same with the address itself.
__global__ void open(Letter *letter, int reader) {
    uint64_t sum = reader;
    for (int i = 0; i < WORDS; i++) sum += letter->words[i] * (i + 1);
    letter->sum[reader] = sum;
}

struct Gpu {
    int device;
    cudaStream_t stream;
    Letter **box;
};

static Letter *write(uint64_t seed) {
    Letter *letter;
    CHECK(cudaMallocHost(&letter, sizeof(Letter)));
    letter->next = nullptr;
    for (uint64_t &sum : letter->sum) sum = 0;
    for (int i = 0; i < WORDS; i++) letter->words[i] = program::mix(seed * WORDS + i);
    return letter;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 60);
    program::Report report;
    int there = 0;
    CHECK(cudaGetDeviceCount(&there));
    Gpu gpus[GPUS];
    for (int g = 0; g < GPUS; g++) {
        gpus[g].device = g % there;
        CHECK(cudaSetDevice(gpus[g].device));
        CHECK(cudaStreamCreateWithFlags(&gpus[g].stream, cudaStreamNonBlocking));
        CHECK(cudaMalloc(&gpus[g].box, sizeof(Letter *)));
    }
    Letter **managed, **mapped;
    CHECK(cudaMallocManaged(&managed, 4096));
    CHECK(cudaHostAlloc(&mapped, 4096, cudaHostAllocMapped));
    Letter **device_mapped;
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void **>(&device_mapped), mapped, 0));
    std::vector<Letter *> letters;
    std::vector<uint64_t> sums;
    for (long step = 0; step < options.steps; step++) {
        const int first = static_cast<int>(program::mix(step) % GPUS);
        Gpu &one = gpus[first], &two = gpus[1 - first];
        const int way = static_cast<int>(step % 7);
        Letter *letter = write(step), *inner = nullptr;
        if (way == 2 || way == 5) {
            inner = write(step + 1000003);
            letter->next = reinterpret_cast<uint64_t *>(inner);
        }
        auto at = [&](Gpu &gpu) { CHECK(cudaSetDevice(gpu.device)); };
        auto follow = [&](Gpu &gpu, Letter **box, Letter **keep) {
            at(gpu);
            read<<<1, 64, 0, gpu.stream>>>(box, static_cast<int>(&gpu - gpus), keep);
            CHECK_LAUNCH();
        };
        auto wait = [&](Gpu &gpu) {
            at(gpu);
            CHECK(cudaStreamSynchronize(gpu.stream));
        };
        auto tell = [&](Gpu &gpu) {
            at(gpu);
            CHECK(cudaMemcpyAsync(gpu.box, &letter, sizeof letter, cudaMemcpyHostToDevice, gpu.stream));
        };
        auto pass_on = [&] {
            wait(one);
            CHECK(cudaMemcpyPeerAsync(two.box, two.device, one.box, one.device, sizeof letter, one.stream));
            wait(one);
        };
        switch (way) {
        case 0:
        case 2:
            *managed = letter;
            follow(one, managed, nullptr);
            wait(one);
            options.pace();
            follow(two, managed, nullptr);
            break;
        case 1:
            *mapped = letter;
            follow(one, device_mapped, nullptr);
            if (step % 2 == 0) wait(one);
            follow(two, device_mapped, nullptr);
            break;
        case 3:
            tell(one);
            follow(one, one.box, nullptr);
            pass_on();
            follow(two, two.box, nullptr);
            break;
        case 4:
            at(one);
            open<<<1, 1, 0, one.stream>>>(letter, first);
            CHECK_LAUNCH();
            *managed = letter;
            follow(two, managed, nullptr);
            break;
        case 5:
            *managed = letter;
            follow(one, managed, one.box);
            pass_on();
            options.pace();
            follow(two, two.box, nullptr);
            break;
        default:
            *managed = letter;
            follow(one, managed, nullptr);
            wait(one);
            at(two);
            open<<<1, 1, 0, two.stream>>>(letter, 1 - first);
            CHECK_LAUNCH();
            wait(two);
            letter->sum[1 - first] = 0;
            tell(two);
            follow(two, two.box, nullptr);
        }
        wait(one);
        wait(two);
        for (Letter *l : {letter, inner}) {
            if (l == nullptr) continue;
            uint64_t want = 0;
            for (int i = 0; i < WORDS; i++) want += l->words[i] * (i + 1);
            for (int g = 0; g < GPUS; g++) report.expect_value("a sum", l->sum[g], want + g);
            sums.push_back(l->sum[0] ^ l->sum[1]);
            letters.push_back(l);
        }
        *managed = *mapped = nullptr;
        while (letters.size() > KEPT) {
            CHECK(cudaFreeHost(letters.front()));
            letters.erase(letters.begin());
        }
        options.pace();
    }
    for (Letter *letter : letters) CHECK(cudaFreeHost(letter));
    report.line("letters", "sums", sums.data(), sums.size() * sizeof sums[0]);
    for (Gpu &gpu : gpus) {
        CHECK(cudaSetDevice(gpu.device));
        CHECK(cudaStreamDestroy(gpu.stream));
        CHECK(cudaFree(gpu.box));
    }
    CHECK(cudaFree(managed));
    CHECK(cudaFreeHost(mapped));
    return report.finish();
}
