// Products in vectors, for every instruction set without tiles: of rows of words one word at a time is broadcast and
// multiplied with vectors of lanes, whose sums stay in registers. Attention and products with weights are both of these.
// Instruction sets say how many: VECS and STEP of attention, COLUMN_VECS and ROWS_AT_ONCE of weights.
#pragma once

#include <utility>

namespace genrec {

constexpr int WIDE = VECS * LANES;  // queries of a tile, a lane each
constexpr int TILES = 1;            // of queries that a thread works for at once
constexpr int DEEP = WORD;          // values that a sum takes at a time
constexpr int BLOCK = 32;           // columns of weights that lie together
constexpr int LINE_WORDS = 16;      // of the cache
// Words deep of weights that all rows are multiplied with before the next: half a block stays in the first cache. Weights come
// from beyond the second one, and the next are fetched meanwhile, a few lines at a time: of 25 rows a product took 0.68 ms with
// it and 1.15 without (AVX2, K 2,240, N 384).
constexpr int CHUNK = 128;
constexpr int HALF_BLOCK = 256;     // words of half their columns, 16 deep (build/openvino/linear.py)

struct Ready {  // what a thread must do before it multiplies: nothing
  Ready() {}
};

// What will be multiplied soon: so many lines of the cache are fetched before each block of rows.
struct Soon {
  const std::int32_t* place = nullptr;
  int lines = 0;
};

// How the right operand and the sums lie, in words: from one vector to the next, from one row, from one block of rows, and
// from one row of sums.
struct Queries {
  static constexpr int vecs = VECS, apart = LANES, row = WIDE, block = 0, next = WIDE;
};
struct Columns {
  static constexpr int vecs = COLUMN_VECS, apart = LANES == 16 ? HALF_BLOCK : LANES, row = 16, block = 2 * HALF_BLOCK;
  static constexpr int next = BLOCK;
};

// out[m][lane] (+)= sum over i < blocks * count of a[m * across + i * along] * b[i][lane], for m < M.
// Alone, as GCC takes sums out of their registers where it knows how far loops go.
template <typename Right, bool ADD, int M>
__attribute__((noipa)) void product(const Word* a, std::size_t across, std::size_t along, const std::int32_t* b, int blocks, int count,
             Soon soon, float* out) {
  Vec sum[M][Right::vecs];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < Right::vecs; ++v) sum[m][v] = ADD ? at(out + m * Right::next + v * LANES) : Vec{};
  for (int block = 0; block < blocks; ++block, b += Right::block) {
    const std::int32_t* row = b;
    for (int line = 0; line < soon.lines; ++line, soon.place += LINE_WORDS) __builtin_prefetch(soon.place, 0, 2);
    for (int i = 0; i < count; ++i, a += along, row += Right::row) {
      Words lanes[Right::vecs];
#pragma GCC unroll 4
      for (int v = 0; v < Right::vecs; ++v) lanes[v] = at(row + v * Right::apart);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Words word = all(std::int32_t(a[m * across]));
#pragma GCC unroll 4
        for (int v = 0; v < Right::vecs; ++v) sum[m][v] = multiply_add(sum[m][v], word, lanes[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < Right::vecs; ++v) at(out + m * Right::next + v * LANES) = sum[m][v];
}

// In how many shares `many` are multiplied, as there are registers for `most` at once.
inline int shares_of(int many, int most) { return (many + most - 1) / most; }

// The same for any number of m, in even shares. Where to go on with what will be multiplied soon.
template <typename Right, bool ADD, int... M>
inline Soon shared_out(int many, const Word* a, std::size_t across, std::size_t along, const std::int32_t* b, int blocks,
                       int count, Soon soon, float* out, std::integer_sequence<int, M...>) {
  static constexpr decltype(&product<Right, ADD, 1>) OF[] = {product<Right, ADD, M + 1>...};
  if (many <= 0) return soon;
  const int shares = shares_of(many, sizeof...(M)), share = (many + shares - 1) / shares;
  for (; many > 0; many -= share, a += share * across, out += share * Right::next) {
    OF[std::min(share, many) - 1](a, across, along, b, blocks, count, soon, out);
    soon.place += soon.lines * blocks * LINE_WORDS;
  }
  return soon;
}

inline const Word* words_of(const Value* x) { return reinterpret_cast<const Word*>(x); }

// scores[key][lane] = keys [key][D] x queries [D / WORD][lane]
inline void score(int keys, int size, const Value* k, const std::int32_t* q, float* scores) {
  const int deep = padded(size, DEEP) / WORD;
  shared_out<Queries, false>(keys, words_of(k), deep, 1, q, 1, deep, {}, scores, std::make_integer_sequence<int, STEP>());
}

// sums[d][lane] += values, transposed, x weights [key / WORD][lane]
inline void weigh(int size, int keys, const Value* v, const std::int32_t* weights, float* sums) {
  shared_out<Queries, true>(size, words_of(v), 1, padded(size, DEEP), weights, 1, keys / WORD, {}, sums,
                            std::make_integer_sequence<int, STEP>());
}

// Rows [rows, deep] of a left operand.
class Rows {
 public:
  Rows(const Value* x, int rows, int deep) : x_(words_of(x)), rows_(rows), words_(deep / WORD) {}

  // Products with one block of weights. `done` gets sums [count][BLOCK] from a row on; `begun` is told of them before.
  template <typename Begun, typename Done>
  void times(const Value* weights, float* sums, Begun begun, Done done) const {
    constexpr int HALVES = BLOCK / LANES / COLUMN_VECS;
    const auto up_to = std::make_integer_sequence<int, ROWS_AT_ONCE>();
    const auto* chunk = reinterpret_cast<const std::int32_t*>(weights);
    for (int first = 0; first < words_; first += CHUNK) {
      const int count = std::min(CHUNK, words_ - first), blocks = count / 16;
      const int turns = shares_of(rows_, ROWS_AT_ONCE) * HALVES * blocks;
      Soon soon{chunk + count * BLOCK, (CHUNK * BLOCK / LINE_WORDS + turns - 1) / turns};
      if (first + count == words_) begun(0, rows_);
      for (int v = 0; v < BLOCK / LANES; v += COLUMN_VECS) {
        const auto* of = chunk + v * LANES / 16 * HALF_BLOCK + v * LANES % 16;
        soon = first ? shared_out<Columns, true>(rows_, x_ + first, words_, 1, of, blocks, 16, soon, sums + v * LANES, up_to)
                     : shared_out<Columns, false>(rows_, x_, words_, 1, of, blocks, 16, soon, sums + v * LANES, up_to);
      }
      chunk += count * BLOCK;
    }
    done(0, rows_, sums);
  }

 private:
  const Word* x_;
  int rows_, words_;
};

}  // namespace genrec
