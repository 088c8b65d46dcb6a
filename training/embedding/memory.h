// How a dynamic embedding table lies in memory, and how its lines and rows are gone through.
//
// A table is 2^bits lines of 8 slots. A line of keys is one cache line; the rows of its slots lie apart. A slot holds
// its id with the sign bit turned, and row + 1; zeros are an empty slot, so fresh pages of the system are a table.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

constexpr uint64_t SIGN = 1ull << 63;
constexpr int LINE = 8, NEAR = 32, AHEAD = 6;
constexpr int64_t PAST_CACHES = 8 << 20;  // bytes that no core keeps until they are read

struct Table {
    uint64_t* keys;
    int32_t* rows;
    int64_t bits;
};

struct Chunks {
    char** starts;
    int64_t shift;
    template <typename T> T* row(int64_t row, int64_t width) const {
        return reinterpret_cast<T*>(starts[row >> shift]) + (row & ((int64_t(1) << shift) - 1)) * width;
    }
};

// The finaliser of MurmurHash3 for 64 bits.
inline uint64_t mix(uint64_t h) {
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 33;
}

// The high bits: the low ones say which rank an id belongs to, and are alike for all ids of a rank.
inline uint64_t home(uint64_t hash, int64_t bits) { return bits ? hash >> (64 - bits) : 0; }

// Equation 5 over lines: odd, so that a power of two of lines are all visited.
inline uint64_t stride(uint64_t hash, int64_t bits) {
    return bits ? ((hash & 0xffffffff) % ((1ull << bits) - 1) + 1) | 1 : 1;
}

inline unsigned equal(const uint64_t* line, uint64_t key) {
#ifdef __AVX512F__  // GCC's own name for _mm512_cmpeq_epi64_mask: the header of intrinsics doubles the time to compile
    using Keys = long long __attribute__((vector_size(64)));
    return __builtin_ia32_pcmpeqq512_mask(*reinterpret_cast<const Keys*>(line), Keys{} + (long long)(key), 255);
#else
    unsigned found = 0;
    for (int j = 0; j < LINE; ++j) found |= unsigned(line[j] == key) << j;
    return found;
#endif
}

// The slot of a key, or ~ the slot where it would go. A table is never full, so there is one.
inline int64_t seek(const Table& t, uint64_t key, uint64_t hash) {
    uint64_t at = home(hash, t.bits), by = 0;
    for (;;) {
        const uint64_t* line = t.keys + at * LINE;
        if (unsigned hit = equal(line, key)) return int64_t(at * LINE + __builtin_ctz(hit));
        if (unsigned gap = equal(line, 0)) return ~int64_t(at * LINE + __builtin_ctz(gap));
        if (!by) by = stride(hash, t.bits);
        at = (at + by) & ((1ull << t.bits) - 1);
    }
}

// The slot where a key goes that is not there.
inline int64_t vacant(const Table& t, uint64_t hash) {
    for (uint64_t at = home(hash, t.bits), by = stride(hash, t.bits);; at = (at + by) & ((1ull << t.bits) - 1))
        if (unsigned gap = equal(t.keys + at * LINE, 0)) return int64_t(at * LINE + __builtin_ctz(gap));
}

inline void expect(const Table& t, uint64_t hash) {
    const uint64_t at = home(hash, t.bits) * LINE;
    __builtin_prefetch(t.keys + at);
    __builtin_prefetch(t.rows + at);
}

// visit(i, key, hash) of ids [first, last) while it says true; what a visit reads is fetched NEAR visits before. Returns
// where it ended.
template <typename Visit> int64_t each_of(const int64_t* ids, int64_t first, int64_t last, const Table& t, Visit visit) {
    uint64_t hash[NEAR];
    for (int64_t i = first; i < first + NEAR && i < last; ++i) expect(t, hash[i % NEAR] = mix(uint64_t(ids[i])));
    for (int64_t i = first; i < last; ++i) {
        const uint64_t mine = hash[i % NEAR];
        if (i + NEAR < last) expect(t, hash[i % NEAR] = mix(uint64_t(ids[i + NEAR])));
        if (!visit(i, uint64_t(ids[i]) ^ SIGN, mine)) return i;
    }
    return last;
}

#ifdef __AVX512F__
constexpr int PART = 64;
#else
constexpr int PART = 32;
#endif
using Part = float __attribute__((vector_size(PART), aligned(4)));

// Writes past the caches, which else read each line of `to` first.
inline void write_past(float* to, const float* from) {
#ifdef __AVX512F__
    __builtin_ia32_movntps512(to, *reinterpret_cast<const Part*>(from));
#elif defined __AVX__
    __builtin_ia32_movntps256(to, *reinterpret_cast<const Part*>(from));
#else
    memcpy(to, from, PART);
#endif
}

// What gather does; PAST the caches only where `out` is aligned to a part and rows are of whole parts.
template <bool PAST>
void copy_rows(Chunks values, const int32_t* rows, int64_t n, int64_t dim, const float* absent, float* out) {
    constexpr int ahead = PAST ? 2 * AHEAD : AHEAD, level = PAST ? 2 : 3;  // the second cache has room for more
    for (int64_t i = 0; i < n; ++i, out += dim) {
        if (i + ahead < n && rows[i + ahead] >= 0) {
            const char* next = reinterpret_cast<const char*>(values.row<float>(rows[i + ahead], dim));
            for (int64_t at = 0; at < dim * 4 && at < 1024; at += 64) __builtin_prefetch(next + at, 0, level);
        }
        const float* from = rows[i] < 0 ? absent : values.row<float>(rows[i], dim);
        if (!PAST) memcpy(out, from, dim * sizeof(float));
        else for (int64_t d = 0; d < dim; d += PART / 4) write_past(out + d, from + d);
    }
    if (PAST) __builtin_ia32_sfence();  // so that whoever is told that this is done sees it
}

inline void put(Table& t, int64_t slot, uint64_t key, int32_t row) {
    t.keys[slot] = key;
    t.rows[slot] = row + 1;
}

}  // namespace
