// Large buffers of ordinary memory: copied in, encoded as base64, copied out, copied in again, decoded, copied out.
#include "app.cuh"

__constant__ char letters[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

__global__ void encode(const unsigned char *in, uchar4 *out, size_t groups) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += gridDim.x * blockDim.x) {
        unsigned v = in[i * 3] << 16 | in[i * 3 + 1] << 8 | in[i * 3 + 2];
        out[i] = make_uchar4(letters[v >> 18], letters[v >> 12 & 63], letters[v >> 6 & 63], letters[v & 63]);
    }
}

__device__ unsigned value(unsigned char c) {
    if (c >= 'a') return c - 'a' + 26;
    if (c >= 'A') return c - 'A';
    return c >= '0' ? c - '0' + 52 : c == '+' ? 62 : 63;
}

__global__ void decode(const uchar4 *in, unsigned char *out, size_t groups) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += gridDim.x * blockDim.x) {
        uchar4 c = in[i];
        unsigned v = value(c.x) << 18 | value(c.y) << 12 | value(c.z) << 6 | value(c.w);
        out[i * 3] = v >> 16, out[i * 3 + 1] = v >> 8, out[i * 3 + 2] = v;
    }
}

int main(int argc, char **argv) {
    app::App app(argc, argv);
    const size_t groups = app.pick<size_t>(20 << 10, 32 << 20);
    const int rounds = 10;
    unsigned char *raw = app::device_array<unsigned char>(groups * 3);
    uchar4 *text = app::device_array<uchar4>(groups);
    std::vector<unsigned char> data(groups * 3), back(groups * 3);
    std::vector<uchar4> encoded(groups);
    const unsigned grid = std::min(app::blocks(groups, 256), 2048u);
    for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<unsigned char>(app::mix(i / 8) >> i % 8 * 8);

    for (int round = 0; round < rounds; round++) {
        for (size_t i = round; i < data.size(); i += 1021) data[i] = static_cast<unsigned char>(app::mix(round + i));
        CHECK(cudaMemcpy(raw, data.data(), data.size(), cudaMemcpyHostToDevice));
        encode<<<grid, 256>>>(raw, text, groups);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(encoded.data(), text, groups * 4, cudaMemcpyDeviceToHost));
        static const char table[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for (size_t i = 0; i < groups; i += 127) {
            unsigned v = data[i * 3] << 16 | data[i * 3 + 1] << 8 | data[i * 3 + 2];
            uchar4 c = encoded[i];
            bool right = c.x == table[v >> 18] && c.y == table[v >> 12 & 63] && c.z == table[v >> 6 & 63] && c.w == table[v & 63];
            app.expect(right, "the text of three bytes");
        }
        app.step();
        CHECK(cudaMemset(raw, 0, data.size()));
        CHECK(cudaMemset(text, 0, groups * 4));
        CHECK(cudaMemcpy(text, encoded.data(), groups * 4, cudaMemcpyHostToDevice));
        decode<<<grid, 256>>>(text, raw, groups);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(back.data(), raw, back.size(), cudaMemcpyDeviceToHost));
        app.expect(back == data, "what was decoded");
        app.step();
    }
    app.host(encoded.data(), groups * 4);
    app.device(raw, groups * 3);
    app.device(text, groups * 4);
    app.variable(letters);
    CHECK(cudaFree(raw));
    CHECK(cudaFree(text));
    return app.finish();
}
