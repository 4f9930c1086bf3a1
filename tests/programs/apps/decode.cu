// Decoding with a cache of keys and values that grows with each token, and code that is made and loaded for each length, as libraries do
// that compile at run time. Attention is over whole numbers, so the host knows every word of the result.
#include "app.cuh"

#include "../cuda/driver.cuh"

#include <deque>

constexpr int DIM = 64;   // words of a key or a value
constexpr int HEADS = 4;
constexpr int LAYERS = 3;
constexpr int THREADS = 64;
constexpr size_t TOKEN = size_t(LAYERS) * HEADS * DIM; // words that a token adds to each cache
constexpr size_t LOADED = 24;                          // libraries that stay loaded

// Query, key and value of the next token from what the last one gave.
__global__ void project(const unsigned *hidden, unsigned *query, unsigned *keys, unsigned *values, unsigned at, unsigned layer) {
    unsigned i = threadIdx.x + blockIdx.x * blockDim.x, slot = (at * LAYERS + layer) * HEADS * DIM + i;
    query[i] = static_cast<unsigned>(app::mix(hidden[i] + layer * 3));
    keys[slot] = static_cast<unsigned>(app::mix(hidden[i] + layer * 3 + 1));
    values[slot] = static_cast<unsigned>(app::mix(hidden[i] + layer * 3 + 2));
}

// The code for one length: attend(query, keys, values, hidden). A block is a head. Scores go to shared memory; then each thread sums
// one word over all positions.
static std::string code(unsigned length) {
    std::string t = ".version 7.0\n.target sm_75\n.address_size 64\n"
                    ".visible .entry attend(.param .u64 pq, .param .u64 pk, .param .u64 pv, .param .u64 ph)\n{\n"
                    "  .reg .b32 %t, %h, %j, %s, %a, %b, %o, %q<64>;\n  .reg .b64 %Q, %K, %V, %H, %x, %y, %z;\n  .reg .pred %p;\n"
                    "  .shared .align 4 .b8 scores[" + std::to_string(length * 4) + "];\n"
                    "  mov.u32 %t, %tid.x;\n  mov.u32 %h, %ctaid.x;\n  ld.param.u64 %Q, [pq];\n  ld.param.u64 %K, [pk];\n"
                    "  ld.param.u64 %V, [pv];\n  ld.param.u64 %H, [ph];\n"
                    "  mul.wide.u32 %x, %h, " + std::to_string(DIM * 4) + ";\n  add.u64 %Q, %Q, %x;\n  add.u64 %K, %K, %x;\n"
                    "  add.u64 %V, %V, %x;\n  add.u64 %H, %H, %x;\n  mov.u64 %z, scores;\n";
    for (int d = 0; d < DIM; d++) t += "  ld.global.u32 %q" + std::to_string(d) + ", [%Q+" + std::to_string(d * 4) + "];\n";
    const std::string row = std::to_string(TOKEN * 4), count = std::to_string(length);
    t += "  mov.u32 %j, %t;\nscore:\n  setp.ge.u32 %p, %j, " + count + ";\n  @%p bra scored;\n"
         "  mul.wide.u32 %x, %j, " + row + ";\n  add.u64 %x, %x, %K;\n  mov.u32 %s, 0;\n";
    for (int d = 0; d < DIM; d++) {
        const std::string n = std::to_string(d);
        t += "  ld.global.u32 %a, [%x+" + std::to_string(d * 4) + "];\n  mad.lo.u32 %s, %a, %q" + n + ", %s;\n";
    }
    t += "  shr.u32 %s, %s, 20;\n  mul.wide.u32 %y, %j, 4;\n  add.u64 %y, %y, %z;\n  st.shared.u32 [%y], %s;\n"
         "  add.u32 %j, %j, " + std::to_string(THREADS) + ";\n  bra score;\nscored:\n  bar.sync 0;\n"
         "  mul.wide.u32 %x, %t, 4;\n  add.u64 %V, %V, %x;\n  add.u64 %H, %H, %x;\n  mov.u32 %o, " + count + ";\n";
    // All positions one after the other, as long as that is not too much code; the rest by a loop.
    const unsigned unrolled = std::min(length, 96u);
    for (unsigned j = 0; j < unrolled; j++)
        t += "  ld.shared.u32 %a, [scores+" + std::to_string(j * 4) + "];\n  ld.global.u32 %b, [%V+" + std::to_string(j * TOKEN * 4) +
             "];\n  mad.lo.u32 %o, %a, %b, %o;\n";
    if (unrolled < length)
        t += "  mov.u32 %j, " + std::to_string(unrolled) + ";\nmore:\n  mul.wide.u32 %y, %j, 4;\n  add.u64 %y, %y, %z;\n"
             "  ld.shared.u32 %a, [%y];\n  mul.wide.u32 %x, %j, " + row + ";\n  add.u64 %x, %x, %V;\n  ld.global.u32 %b, [%x];\n"
             "  mad.lo.u32 %o, %a, %b, %o;\n  add.u32 %j, %j, 1;\n  setp.lt.u32 %p, %j, " + count + ";\n  @%p bra more;\n";
    return t + "  st.global.u32 [%H], %o;\n  ret;\n}\n";
}

struct Loaded {
    CUlibrary library;
    CUkernel kernel;
};

static Loaded load(unsigned length) {
    Loaded made;
    DRIVER(cuLibraryLoadData, &made.library, code(length).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    DRIVER(cuLibraryGetKernel, &made.kernel, made.library, "attend");
    return made;
}

// The same on the host.
struct Model {
    std::vector<unsigned> hidden, keys, values;

    void token(unsigned at, unsigned first) {
        keys.resize((at + 1) * TOKEN), values.resize((at + 1) * TOKEN);
        std::vector<unsigned> query(HEADS * DIM);
        for (int layer = 0; layer < LAYERS; layer++) {
            const size_t slot = (size_t(at) * LAYERS + layer) * HEADS * DIM;
            for (int i = 0; i < HEADS * DIM; i++) {
                query[i] = static_cast<unsigned>(app::mix(hidden[i] + layer * 3));
                keys[slot + i] = static_cast<unsigned>(app::mix(hidden[i] + layer * 3 + 1));
                values[slot + i] = static_cast<unsigned>(app::mix(hidden[i] + layer * 3 + 2));
            }
            if (at < first) continue;
            for (int head = 0; head < HEADS; head++) {
                std::vector<unsigned> sum(DIM, at + 1);
                for (unsigned j = 0; j <= at; j++) {
                    const size_t row = j * TOKEN + size_t(layer) * HEADS * DIM + head * DIM;
                    unsigned score = 0;
                    for (int d = 0; d < DIM; d++) score += keys[row + d] * query[head * DIM + d];
                    for (int d = 0; d < DIM; d++) sum[d] += (score >> 20) * values[row + d];
                }
                std::copy(sum.begin(), sum.end(), hidden.begin() + head * DIM);
            }
        }
    }
};

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const unsigned prompt = 8, tokens = app.pick(40u, 400u);
    Model model;
    for (int i = 0; i < HEADS * DIM; i++) model.hidden.push_back(static_cast<unsigned>(app::mix(i)));
    unsigned *hidden = app::device_copy(model.hidden), *query = app::device_array<unsigned>(HEADS * DIM);
    size_t room = 16;
    unsigned *keys = app::device_array<unsigned>(room * TOKEN), *values = app::device_array<unsigned>(room * TOKEN);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::deque<Loaded> loaded;
    unsigned *shown;
    CHECK(cudaMallocHost(&shown, HEADS * DIM * 4));
    CHECK(cudaDeviceSynchronize());

    for (unsigned at = 0; at < tokens; at++) {
        if (at == room) {
            // The caches move to larger memory.
            for (unsigned **cache : {&keys, &values}) {
                unsigned *larger = app::device_array<unsigned>(room * 2 * TOKEN);
                CHECK(cudaMemcpyAsync(larger, *cache, room * TOKEN * 4, cudaMemcpyDeviceToDevice, stream));
                CHECK(cudaStreamSynchronize(stream));
                CHECK(cudaFree(*cache));
                *cache = larger;
            }
            room *= 2;
        }
        if (at >= prompt) loaded.push_back(load(at + 1));
        for (int layer = 0; layer < LAYERS; layer++) {
            project<<<HEADS, DIM, 0, stream>>>(hidden, query, keys, values, at, layer);
            CHECK_LAUNCH();
            if (at < prompt) continue;
            unsigned *own_keys = keys + layer * HEADS * DIM, *own_values = values + layer * HEADS * DIM;
            void *params[] = {&query, &own_keys, &own_values, &hidden};
            DRIVER(cuLaunchKernel, reinterpret_cast<CUfunction>(loaded.back().kernel), HEADS, 1, 1, THREADS, 1, 1, 0, stream, params,
                   nullptr);
        }
        // The host looks at each token, as a sampler does.
        CHECK(cudaMemcpyAsync(shown, hidden, HEADS * DIM * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        model.token(at, prompt);
        app.equal(shown, model.hidden.data(), HEADS * DIM, "a token");
        if (loaded.size() > LOADED) {
            DRIVER(cuLibraryUnload, loaded.front().library);
            loaded.pop_front();
        }
        app.step();
    }
    app.equal_device(keys, model.keys.data(), model.keys.size(), "the keys");
    app.equal_device(values, model.values.data(), model.values.size(), "the values");
    app.device(keys, tokens * TOKEN * 4);
    app.device(values, tokens * TOKEN * 4);
    app.device(query, HEADS * DIM * 4);
    app.device(hidden, HEADS * DIM * 4);
    for (Loaded &l : loaded) DRIVER(cuLibraryUnload, l.library);
    CHECK(cudaStreamDestroy(stream));
    for (unsigned *p : {keys, values, query, hidden}) CHECK(cudaFree(p));
    CHECK(cudaFreeHost(shown));
    return app.finish();
}
