// Host memory that kernels read and write in place: requests in mapped memory, answers in mapped memory, and a table on the device.
#include "app.cuh"

struct Request {
    unsigned key, operation;
};

constexpr unsigned TABLE = 1 << 12;

// A thread serves a request; each one has words of the table of its own.
__global__ void serve(const Request *requests, unsigned *answers, unsigned *table, unsigned count, unsigned round) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Request r = requests[i];
    unsigned word = table[i];
    if (r.operation == 0) word += r.key;
    if (r.operation == 1) word ^= static_cast<unsigned>(app::mix(r.key));
    if (r.operation == 2) word = word * 33 + round;
    table[i] = word;
    answers[i] = word + r.key;
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const unsigned count = app.pick(TABLE, TABLE * 64), rounds = app.pick(60, 3000);
    Request *requests;
    unsigned *answers, *table = app::device_array<unsigned>(count);
    CHECK(cudaHostAlloc(&requests, count * sizeof(Request), cudaHostAllocMapped | cudaHostAllocWriteCombined));
    CHECK(cudaHostAlloc(&answers, count * 4, cudaHostAllocMapped));
    CHECK(cudaMemset(table, 0, count * 4));
    Request *requests_there;
    unsigned *answers_there;
    CHECK(cudaHostGetDevicePointer(&requests_there, requests, 0));
    CHECK(cudaHostGetDevicePointer(&answers_there, answers, 0));
    std::vector<Request> model(count);
    std::vector<unsigned> words(count);
    for (unsigned i = 0; i < count; i++) requests[i] = model[i] = {static_cast<unsigned>(app::mix(i)), i % 4};
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    const unsigned watched = app.pick(1, 61);
    for (unsigned round = 0; round < rounds; round++) {
        // A sixteenth of the requests is new.
        for (unsigned i = round % 16; i < count; i += 16)
            requests[i] = model[i] = {static_cast<unsigned>(app::mix(i + round * 7919ull)), (i + round) % 4};
        serve<<<app::blocks(count, 128), 128, 0, stream>>>(requests_there, answers_there, table, count, round);
        CHECK_LAUNCH();
        CHECK(cudaStreamSynchronize(stream));
        for (unsigned i = 0; i < count; i += watched) {
            unsigned &word = words[i];
            if (model[i].operation == 0) word += model[i].key;
            if (model[i].operation == 1) word ^= static_cast<unsigned>(app::mix(model[i].key));
            if (model[i].operation == 2) word = word * 33 + round;
            app.expect(answers[i] == word + model[i].key, "an answer");
        }
        app.step();
    }
    app.host(requests, count * sizeof(Request));
    app.host(answers, count * 4);
    app.device(table, count * 4);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(table));
    CHECK(cudaFreeHost(requests));
    CHECK(cudaFreeHost(answers));
    return app.finish();
}
