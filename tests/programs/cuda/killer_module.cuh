// What killer.cu and its three modules agree on. The arithmetic is here once, so that the host can
// repeat it.
#pragma once

namespace killer {

constexpr int MODULES = 3;
constexpr int MODULE_THREADS = 128; // how many numbers a module works on
constexpr int MODULE_OPS = 4;       // function pointers in each module

// Words of the module's big variable: different for each, so that the order of loading shows in
// where things land.
__host__ __device__ constexpr int module_words(int which) {
    return which == 0 ? 1 << 10 : which == 1 ? 1 << 16 : 1 << 13;
}

// Function `k` of module `which`.
__host__ __device__ inline unsigned module_op(int which, int k, unsigned x) {
    return (x * (2654435761u + 2u * static_cast<unsigned>(which * 8 + k))) ^ (x >> (k + 3));
}

__host__ __device__ inline unsigned module_salt(int which) { return 40503u * static_cast<unsigned>(which + 1); }

// Which word of the big variable thread `i` changes in step `step`; never the same for two threads.
__host__ __device__ inline int module_word(int which, int i, long step) {
    return static_cast<int>((i * 7 + step) % module_words(which));
}

// Addresses inside a module, as the module itself wrote them into memory of the program.
struct ModuleAddresses {
    unsigned *state;
    unsigned *hits;
    unsigned (*ops[MODULE_OPS])(unsigned);
    const unsigned *salt;
};

} // namespace killer
