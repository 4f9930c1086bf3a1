// Constant memory and symbols, both ways: arrays written and read in parts, asynchronously and between devices' symbols, and
// symbols that hold pointers to allocations and to other symbols.
#include "program.cuh"
#include "driver.cuh"

constexpr int CELLS = 512;
constexpr int COEFFICIENTS = 64;

struct Node {
    Node *next;
    const int *data;
    int length;
};

__constant__ int coefficients[COEFFICIENTS];
__constant__ Node *entry;
__constant__ float scale = 0.5f;
__device__ int cells[CELLS];
__device__ int results[CELLS] = {1, 2, 3};
__device__ int *target;
__device__ Node nodes[4];
__device__ unsigned long long walked;

__global__ void advance(long round) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int c = coefficients[(i + round) % COEFFICIENTS];
    target[i] = target[i] * 3 + cells[i] * c + static_cast<int>(scale * 8.0f);
}

__global__ void walk() {
    unsigned long long sum = 0;
    int steps = 0;
    for (const Node *n = entry; n != nullptr && steps < 4; n = n->next, steps++) {
        for (int i = 0; i < n->length; i++) sum = sum * 31 + static_cast<unsigned>(n->data[i]);
    }
    walked += sum;
}

int main(int argc, char **argv) {
    program::Options options(argc, argv, 150);
    std::vector<int> host_cells(CELLS), host_results(CELLS, 0), host_target(CELLS), host_coefficients(COEFFICIENTS);
    for (int i = 0; i < CELLS; i++) host_cells[i] = static_cast<int>(program::mix(i) % 1000);
    for (int i = 0; i < COEFFICIENTS; i++) host_coefficients[i] = static_cast<int>(program::mix(i + 7777) % 100) - 50;
    CHECK(cudaMemcpyFromSymbol(host_results.data(), results, sizeof results));
    program::Report report;
    report.expect_value("initial values", host_results[0] * 100 + host_results[1] * 10 + host_results[2], 123);

    program::Bystanders bystanders;
    int *memory;
    size_t size;
    void *nodes_at, *cells_at, *results_at;
    CHECK(cudaGetSymbolAddress(&nodes_at, nodes));
    CHECK(cudaGetSymbolAddress(&cells_at, cells));
    CHECK(cudaGetSymbolAddress(&results_at, results));
    CHECK(cudaGetSymbolSize(&size, coefficients));
    report.expect_value("size of coefficients", size, sizeof(int) * COEFFICIENTS);
    // What is known of an address inside a variable.
    CUdeviceptr start;
    DRIVER(cuMemGetAddressRange, &start, &size, reinterpret_cast<CUdeviceptr>(cells_at) + 100);
    report.expect_value("size of cells", size, sizeof cells);
    report.expect_value("start of cells", start == reinterpret_cast<CUdeviceptr>(cells_at), true);
    cudaPointerAttributes about;
    CHECK(cudaPointerGetAttributes(&about, static_cast<char *>(results_at) + 8));
    report.expect_value("kind of memory", about.type, cudaMemoryTypeDevice);
    report.expect_value("device", about.device, 0);
    CHECK(cudaMalloc(&memory, sizeof(int) * CELLS));
    CHECK(cudaMemset(memory, 0, sizeof(int) * CELLS));
    CHECK(cudaMemcpyToSymbol(coefficients, host_coefficients.data(), sizeof(int) * COEFFICIENTS));
    CHECK(cudaMemcpyToSymbol(cells, host_cells.data(), sizeof(int) * CELLS));
    CHECK(cudaMemcpyToSymbol(target, &memory, sizeof memory));
    Node *first = static_cast<Node *>(nodes_at);
    const int *arrays[4] = {static_cast<int *>(cells_at), memory, static_cast<int *>(results_at), memory + 100};
    Node host_nodes[4];
    for (int i = 0; i < 4; i++) host_nodes[i] = Node{i < 3 ? first + i + 1 : nullptr, arrays[i], 100 + i};
    CHECK(cudaMemcpyToSymbol(nodes, host_nodes, sizeof host_nodes));
    CHECK(cudaMemcpyToSymbol(entry, &first, sizeof first));

    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    unsigned long long host_walked = 0;
    float host_scale = 0.5f;
    for (long round = 0; round < options.steps; round++) {
        // A part of each array, at an offset that changes.
        int at = static_cast<int>(program::mix(round) % (COEFFICIENTS - 8));
        for (int i = at; i < at + 8; i++) host_coefficients[i] += static_cast<int>(round % 5) - 2;
        CHECK(cudaMemcpyToSymbolAsync(coefficients, &host_coefficients[at], sizeof(int) * 8, sizeof(int) * at,
                                      cudaMemcpyHostToDevice, stream));
        if (round % 10 == 9) {
            host_scale = 0.125f * static_cast<float>(1 + round % 7);
            CHECK(cudaMemcpyToSymbolAsync(scale, &host_scale, sizeof host_scale, 0, cudaMemcpyHostToDevice, stream));
        }
        advance<<<CELLS / 128, 128, 0, stream>>>(round);
        CHECK_LAUNCH();
        for (int i = 0; i < CELLS; i++) {
            unsigned next = static_cast<unsigned>(host_target[i]) * 3u +
                            static_cast<unsigned>(host_cells[i] * host_coefficients[(i + round) % COEFFICIENTS]) +
                            static_cast<unsigned>(host_scale * 8.0f);
            host_target[i] = static_cast<int>(next);
        }
        // From memory to a symbol and from it to the next, all on the device.
        size_t part = sizeof(int) * 64, offset = part * (round % 8);
        CHECK(cudaMemcpyToSymbolAsync(results, memory, part, offset, cudaMemcpyDeviceToDevice, stream));
        for (int i = 0; i < 64; i++) host_results[64 * (round % 8) + i] = host_target[i];
        walk<<<1, 1, 0, stream>>>();
        CHECK_LAUNCH();
        const int *lists[4] = {host_cells.data(), host_target.data(), host_results.data(), host_target.data() + 100};
        unsigned long long sum = 0;
        for (int n = 0; n < 4; n++) {
            for (int i = 0; i < 100 + n; i++) sum = sum * 31 + static_cast<unsigned>(lists[n][i]);
        }
        host_walked += sum;
        if (round % 16 == 15) {
            int back[8];
            CHECK(cudaMemcpyFromSymbolAsync(back, coefficients, sizeof back, sizeof(int) * at, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
            report.expect("coefficients", back, &host_coefficients[at], sizeof back);
        }
        if (round % 6 == 5) CHECK(cudaStreamSynchronize(stream));
        options.pace();
    }
    CHECK(cudaDeviceSynchronize());
    unsigned long long got;
    CHECK(cudaMemcpyFromSymbol(&got, walked, sizeof got));
    report.expect_value("walked", got, host_walked);
    report.expect_device("memory", memory, host_target.data(), sizeof(int) * CELLS);
    report.expect_device("results", results_at, host_results.data(), sizeof(int) * CELLS);
    report.allocation("memory", memory, sizeof(int) * CELLS);
    report.global("coefficients", coefficients);
    report.global("scale", scale);
    report.global("cells", cells);
    report.global("results", results);
    report.global("walked", walked);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(memory));
    bystanders.end(report);
    return report.finish();
}
