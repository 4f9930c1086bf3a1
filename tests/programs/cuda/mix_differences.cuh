// For mix.cu: changes of a few words that weak sums over a page do not see (differences.cu has more of them).
#pragma once

#include <cstdint>

namespace mix {

// Words of a page that a move compares, and of the row that a block of 256 threads reads at a time.
constexpr uint32_t PAGE_WORDS = 16384, ROW_WORDS = 1024;

// One change of a part of so many words: `a` says which, `b` where. Most of them cancel when they are made twice.
__host__ __device__ inline void disturb_part(uint32_t *part, uint32_t n, uint32_t a, uint64_t b) {
    const uint32_t one = static_cast<uint32_t>(b % n), rows = n > ROW_WORDS ? (n - 1 - one) / ROW_WORDS : 0;
    // The same lane in a later row; in a short part or a last row the same word.
    const uint32_t two = rows == 0 ? one : one + ROW_WORDS * (a % 4 == 1 ? 1 : 1 + static_cast<uint32_t>((b >> 32) % rows));
    const uint32_t beside = two + 1 < n ? two + 1 : two;
    const uint32_t SIGN = 0x80000000u;
    switch ((a >> 8) % 8) {
    case 0: // signs of three neighbours
        part[one] ^= SIGN, part[two] ^= SIGN, part[beside] ^= SIGN;
        return;
    case 1:
        part[one | (one + 1 < n ? 1 : 0)] ^= SIGN, part[two | (two + 1 < n ? 1 : 0)] ^= SIGN;
        return;
    case 2: // an amount
        part[one] += a, part[two] -= a;
        return;
    case 3: // counters
        for (uint32_t i = 0; i < 16 && two + i < n; i++) part[one + i]++, part[two + i]--;
        return;
    case 4: {
        const uint32_t was = part[one];
        part[one] = part[two], part[two] = was;
        return;
    }
    case 5: { // a rotated row
        const uint32_t from = one / 64 * 64, end = from + 64 < n ? from + 64 : n, first = part[from];
        for (uint32_t i = from; i + 1 < end; i++) part[i] = part[i + 1];
        part[end - 1] = first;
        return;
    }
    case 6: // a word that leaves zero behind
        part[two] = part[one];
        if (one != two) part[one] = 0;
        return;
    default: part[one] ^= 1u << (b >> 40) % 32; return;
    }
}

// The same for part `t` of a larger memory: positions differ from part to part.
__host__ __device__ inline void disturb_one(uint32_t *to, uint32_t n, uint32_t t, uint32_t a, uint32_t b) {
    const uint32_t from = t * PAGE_WORDS, words = n - from < PAGE_WORDS ? n - from : PAGE_WORDS;
    disturb_part(to + from, words, a, program::mix(uint64_t(b) << 32 | t));
}

inline uint32_t parts_of(uint32_t n) { return (n + PAGE_WORDS - 1) / PAGE_WORDS; }

inline void disturb_here(uint32_t *to, uint32_t n, uint32_t a, uint32_t b) {
    for (uint32_t t = 0; t < parts_of(n); t++) disturb_one(to, n, t, a, b);
}

} // namespace mix
