// bf16 on CPUs with AMX: products of tiles, 16 x 32 values with 32 x 16 into 16 x 16 sums.
#pragma once

#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "head.hpp"

namespace genrec {

constexpr int WIDE = 16;             // queries of a tile, a lane each
constexpr int TILES = 4;             // of queries, whose sums a thread holds at once
constexpr int KEYS = 128;            // of a block
constexpr int PAIRS = 16;            // a row of an operand is 32 values: 16 pairs, which the right operand keeps together
constexpr int DEEP = 2 * PAIRS;
constexpr int TILE = 256;            // sums, or pairs, of a tile
constexpr int BLOCK = 32;            // columns of weights that lie together, and rows that are multiplied at once
constexpr int ROWS_AT_ONCE = BLOCK;
constexpr int PARTS = 8;  // at most, in which the weights of the next block of columns are fetched: one per block of rows
constexpr int AHEAD = 2048;  // values from what one block of rows is multiplied with to what is fetched

// Compilers must have stored what tiles are about to read: GCC's tile loads do not say that they read memory.
inline void written() { asm volatile("" ::: "memory"); }

// What the kernel asks of a thread before it may use tiles, and what they are: 16 rows of 64 bytes.
class Ready {
 public:
  Ready() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
    (void)allowed;
    alignas(64) std::uint8_t shape[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
      shape[16 + 2 * tile] = 64;
      shape[48 + tile] = 16;
    }
    written();
    _tile_loadconfig(shape);
  }
  ~Ready() { _tile_release(); }
};

// out[m] (+)= sum over i < count of a[m][i] b[i] for m < M. Rows of a are `stride` apart, a[m] is `across` from a[m - 1].
template <int M, bool ADD>
inline void product(const Value* a, std::size_t across, std::size_t stride, const Value* b, int count, float* out) {
#define EACH(DO) DO(0) if constexpr (M > 1) { DO(1) } if constexpr (M > 2) { DO(2) } if constexpr (M > 3) { DO(3) }
#define BEGIN(m) if constexpr (ADD) _tile_loadd(m, out + m * TILE, 64); else _tile_zero(m);
#define STEP(m) _tile_loadd(5, a + m * across, 2 * stride); _tile_dpbf16ps(m, 5, 4);
#define END(m) _tile_stored(m, out + m * TILE, 64);
  written();
  EACH(BEGIN)
  for (int i = 0; i < count; ++i, a += DEEP, b += 2 * TILE) {
    _tile_loadd(4, b, 64);
    EACH(STEP)
  }
  EACH(END)
#undef EACH
#undef BEGIN
#undef STEP
#undef END
}

// The same for any number of m.
template <bool ADD>
inline void products(int many, const Value* a, std::size_t across, std::size_t stride, const Value* b, int count, float* out) {
  for (; many >= 4; many -= 4, a += 4 * across, out += 4 * TILE) product<4, ADD>(a, across, stride, b, count, out);
  if (many == 3) product<3, ADD>(a, across, stride, b, count, out);
  if (many == 2) product<2, ADD>(a, across, stride, b, count, out);
  if (many == 1) product<1, ADD>(a, across, stride, b, count, out);
}

// Keys and values of a block, as tiles read them: [key][D] and [D][key], D and keys in whole operands.
struct Laid {
  const Value *k, *v;
};

// What a KV head's keys and values take as they are laid out: blocks of both.
inline std::size_t room_of(int size, int span, bool) { return std::size_t(2) * padded(span, KEYS) * padded(size, DEEP); }

// Lays out the block from key `first` on: zeros beyond D and, up to whole operands, beyond the last key that is seen. Keys
// that are as tiles want them stay where they are.
inline void lay_out(const Head<Value>& h, int first, Value* room) {
  const int deep = padded(h.size, DEEP), count = std::clamp(h.seen() - first, 0, KEYS), keys = padded(count, DEEP);
  Value *k = room + std::size_t(2) * first * deep, *v = k + KEYS * deep;
  for (int key = 0; key < keys && !h.ready(first, KEYS, deep); ++key)
    for (int d = 0; d < deep; d += WORD * LANES)
      put_first(k + key * deep + d, first_of<Words>(h.key(first + key) + d, key < count ? h.size - d : 0), deep);
  for (int key = 0; key < keys; key += DEEP) {
    const Value* values[DEEP];
    for (int i = 0; i < DEEP; ++i) values[i] = h.value(first + key + i);
    for (int d = 0; d < h.size; d += LANES) {
      const auto seen = [&](int i) { return key + i < count ? h.size - d : 0; };
      Words pairs[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < DEEP; i += 2) pairs[i / 2] = pairs_of(values[i] + d, values[i + 1] + d, seen(i), seen(i + 1));
      transpose(pairs);
#pragma GCC unroll 16
      for (int row = 0; row < LANES; ++row) put_first(v + (d + row) * KEYS + key, pairs[row], DEEP);
    }
  }
}

inline Laid laid_out(const Head<Value>& h, const Value* room, int first) {
  const int deep = padded(h.size, DEEP);
  const Value* k = room + std::size_t(2) * first * deep;
  return {h.ready(first, KEYS, deep) ? h.key(first) : k, k + KEYS * deep};
}

inline const Value* values_in(const std::int32_t* words) { return reinterpret_cast<const Value*>(words); }

// scores[key][lane] = keys [key][D] x queries [D / WORD][lane]
inline void score(int keys, int size, const Value* k, const std::int32_t* q, float* scores) {
  const int deep = padded(size, DEEP);
  products<false>(keys / 16, k, 16 * deep, deep, values_in(q), deep / DEEP, scores);
}

// sums[d][lane] += values, transposed, x weights [key / WORD][lane]
inline void weigh(int size, int keys, const Value* v, const std::int32_t* weights, float* sums) {
  products<true>(padded(size, 16) / 16, v, 16 * KEYS, KEYS, values_in(weights), keys / DEEP, sums);
}

// sums[row][BLOCK] = 32 rows of a [32, deep] x one block of weights. What `soon` points to will be wanted: weights come from
// beyond the second cache, and fetching them meanwhile saves a tenth; so many blocks as OF fetch all of them. `meanwhile` is run
// at every step: tiles are multiplied by a unit of their own, and vectors are free. Inlined, as calls are 2 % slower.
template <int OF, typename Meanwhile>
[[gnu::always_inline]] inline void block_product(const Value* a, int deep, const Value* b, const Value* soon, float* sums,
                                                 Meanwhile meanwhile) {
  written();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int i = 0; i < deep / DEEP; ++i, a += DEEP, b += 4 * TILE, soon += 4 * TILE / OF) {
    for (int line = 0; line < 4 * TILE / OF; line += DEEP) __builtin_prefetch(soon + line, 0, 2);
    _tile_loadd(4, a, 2 * deep);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 2 * TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + 16 * deep, 2 * deep);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    meanwhile();
  }
  _tile_stored(0, sums, 4 * BLOCK);
  _tile_stored(1, sums + 16, 4 * BLOCK);
  _tile_stored(2, sums + 16 * BLOCK, 4 * BLOCK);
  _tile_stored(3, sums + 16 * BLOCK + 16, 4 * BLOCK);
}

// Rows [rows, deep] of a left operand. Those that do not fill a block are copied, zeros behind them: what lies behind is not to
// be read.
class Rows {
 public:
  Rows(const Value* x, int rows, int deep) : x_(x), rows_(rows), deep_(deep), whole_(rows - rows % BLOCK) {
    if (whole_ == rows) return;
    thread_local Memory memory;
    const std::size_t left = std::size_t(rows - whole_) * deep;
    Value* rest = memory.of<Value>(std::size_t(BLOCK) * deep);
    std::memcpy(rest, x + std::size_t(whole_) * deep, left * sizeof(Value));
    std::memset(rest + left, 0, (std::size_t(BLOCK) * deep - left) * sizeof(Value));
    rest_ = rest;
  }

  // Products with one block of weights. `done` gets sums [count][BLOCK] from a row on: those of a block of rows while the next
  // is multiplied. `begun` is told of them while they are.
  template <typename Begun, typename Done>
  void times(const Value* weights, float* sums, Begun begun, Done done) const {
    const int blocks = (rows_ + BLOCK - 1) / BLOCK;
    blocks > 4   ? times_in<PARTS>(weights, sums, begun, done)
    : blocks > 1 ? times_in<4>(weights, sums, begun, done)
                 : times_in<1>(weights, sums, begun, done);
  }

 private:
  template <int OF, typename Begun, typename Done>
  [[gnu::always_inline]] void times_in(const Value* weights, float* sums, Begun begun, Done done) const {
    const int steps = deep_ / DEEP, rows_of_step = (BLOCK + steps - 1) / steps;
    const auto sums_of = [&](int row) { return sums + row % (2 * BLOCK) * BLOCK; };
    int next = 0, soonest = 0;  // rows to be done and begun
    for (int row = 0, part = 0; row < rows_; row += BLOCK, ++part) {
      const Value* soon = weights + (OF == 1 ? AHEAD : (BLOCK + part % OF * (BLOCK / OF)) * std::size_t(deep_));
      block_product<OF>(row < whole_ ? x_ + std::size_t(row) * deep_ : rest_, deep_, weights, soon, sums_of(row), [&] {
        const int last = std::min(next + rows_of_step, row), begins = std::min(soonest + rows_of_step, rows_);
        if (next < last) done(next, last - next, sums_of(next));
        begun(soonest, begins - soonest);
        next = last;
        soonest = begins;
      });
    }
    done(next, rows_ - next, sums_of(next));
  }

  const Value *x_, *rest_ = nullptr;
  int rows_, deep_, whole_;
};

}  // namespace genrec
