// What the apps share: arguments, checks, and the digest of everything that they hold.
//
//   APP [--size small|large] [--pace MICROSECONDS]
//
// An app prints `digest XXXXXXXX` and `OK` or `WRONG`, nothing else on stdout, and ends with status 0 only if all was right. The
// digest is the same for every run of one size: fixed seeds, and every sum in an order of its own. All apps are compiled without
// fused multiply-add, so that the host's own results are the device's, bit for bit.
#pragma once

#include "../cuda/program.cuh"

#include <algorithm>

namespace app {

using program::mix;

class App {
  public:
    // Small is for a CPU driver: less than a second or two. Large keeps an H200 busy for one to five seconds.
    App(int argc, char **argv) {
        for (int i = 1; i < argc; i++) {
            const bool value = i + 1 < argc;
            if (value && std::strcmp(argv[i], "--size") == 0 && std::strcmp(argv[i + 1], "small") == 0) large_ = false;
            else if (value && std::strcmp(argv[i], "--size") == 0 && std::strcmp(argv[i + 1], "large") == 0) large_ = true;
            else if (value && std::strcmp(argv[i], "--pace") == 0) pace_us_ = std::strtoul(argv[i + 1], nullptr, 10);
            else {
                std::fprintf(stderr, "usage: %s [--size small|large] [--pace MICROSECONDS]\n", argv[0]);
                std::_Exit(64);
            }
            i++;
        }
    }

    template <class T> T pick(T small, T large) const { return large_ ? large : small; }

    // Between two steps of the work: rests as long as was asked for, so that somebody can move the program before it ends.
    void step() const {
        if (pace_us_ > 0) usleep(static_cast<useconds_t>(pace_us_));
    }

    // Adds memory that the host can read to the digest.
    void host(const void *bytes, size_t size) {
        const unsigned char *p = static_cast<const unsigned char *>(bytes);
        add(size);
        for (; size >= 8; p += 8, size -= 8) {
            uint64_t word;
            std::memcpy(&word, p, 8);
            add(word);
        }
        uint64_t rest = 0;
        std::memcpy(&rest, p, size);
        add(rest);
    }

    // Adds memory of the device.
    void device(const void *from, size_t size) {
        const size_t part = std::min<size_t>(size, 16 << 20);
        buffer_.resize(std::max(buffer_.size(), part));
        for (size_t at = 0; at < size; at += part) {
            size_t bytes = std::min(part, size - at);
            CHECK(cudaMemcpy(buffer_.data(), static_cast<const char *>(from) + at, bytes, cudaMemcpyDeviceToHost));
            host(buffer_.data(), bytes);
        }
    }

    // Adds a __device__ or __constant__ variable.
    template <class T> void variable(const T &symbol) {
        std::vector<unsigned char> bytes(sizeof(T));
        CHECK(cudaMemcpyFromSymbol(bytes.data(), symbol, sizeof(T)));
        host(bytes.data(), bytes.size());
    }

    // What the host knows must be so.
    void expect(bool right, const char *what) {
        if (right) return;
        if (right_) std::fprintf(stderr, "wrong: %s\n", what);
        right_ = false;
    }

    template <class T> void equal(const T *got, const T *want, size_t count, const char *what) {
        for (size_t i = 0; i < count; i++) {
            if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
            if (right_) std::fprintf(stderr, "wrong: %s, element %zu of %zu\n", what, i, count);
            right_ = false;
            return;
        }
    }

    // The same for memory of the device.
    template <class T> void equal_device(const T *got, const T *want, size_t count, const char *what) {
        std::vector<T> copy(count);
        CHECK(cudaMemcpy(copy.data(), got, count * sizeof(T), cudaMemcpyDeviceToHost));
        equal(copy.data(), want, count, what);
    }

    // Prints the report; the exit status.
    int finish() const {
        std::printf("digest %08x\n%s\n", static_cast<unsigned>(digest_ ^ digest_ >> 32), right_ ? "OK" : "WRONG");
        std::fflush(stdout);
        return right_ ? 0 : 1;
    }

  private:
    // The multiplication carries each bit upwards only, the shift brings the upper ones down.
    void add(uint64_t word) {
        digest_ = (digest_ ^ word) * 0x9E3779B97F4A7C15ull;
        digest_ ^= digest_ >> 29;
    }

    bool large_ = false;
    bool right_ = true;
    unsigned long pace_us_ = 0;
    uint64_t digest_ = 0xCBF29CE484222325ull;
    std::vector<unsigned char> buffer_;
};

template <class T> T *device_array(size_t count) {
    T *p;
    CHECK(cudaMalloc(&p, count * sizeof(T)));
    return p;
}

template <class T> T *device_copy(const std::vector<T> &values) {
    T *p = device_array<T>(values.size());
    CHECK(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

// Blocks for so many threads.
inline unsigned blocks(size_t threads, unsigned block) { return static_cast<unsigned>((threads + block - 1) / block); }

} // namespace app
