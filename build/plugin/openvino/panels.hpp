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
constexpr int PARTS = 8;            // in which the weights of the next block are fetched: see tiles.hpp
constexpr int LINE_WORDS = 16;      // of the cache
// Words before they are multiplied weights are fetched. They come from beyond the second cache, in pieces too short for
// the CPU to foresee the next: of 25 rows a product took 0.66 ms with it and 0.87 without (AVX2, K 2,240, N 384).
constexpr int AHEAD = 1024;
constexpr int HALF_BLOCK = 256;     // words of half their columns, 16 deep (build/openvino/linear.py)

struct Ready {  // what a thread must do before it multiplies: nothing
  Ready() {}
};

// How the right operand and the sums lie, in words: from one vector to the next, from one row, from one block of rows, and
// from one row of sums. What lies `ahead` is fetched.
struct Queries {
  static constexpr int vecs = VECS, apart = LANES, row = WIDE, block = 0, next = WIDE, ahead = 0;
};
struct Columns {
  static constexpr int vecs = COLUMN_VECS, apart = LANES == 16 ? HALF_BLOCK : LANES, row = 16, block = 2 * HALF_BLOCK;
  static constexpr int next = BLOCK, ahead = AHEAD;
};

// out[m][lane] (+)= sum over i < blocks * count of a[m * across + i * along] * b[i][lane], for m < M.
// Alone, as GCC takes sums out of their registers where it knows how far loops go.
template <typename Right, bool ADD, int M>
__attribute__((noipa)) void product(const Word* a, std::size_t across, std::size_t along, const std::int32_t* b, int blocks, int count,
             float* out) {
  Vec sum[M][Right::vecs];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < Right::vecs; ++v) sum[m][v] = ADD ? at(out + m * Right::next + v * LANES) : Vec{};
  for (int block = 0; block < blocks; ++block, b += Right::block) {
    const std::int32_t* row = b;
    for (int i = 0; i < count; ++i, a += along, row += Right::row) {
      Words lanes[Right::vecs];
#pragma GCC unroll 4
      for (int v = 0; v < Right::vecs; ++v) {
        if (Right::ahead && v * Right::apart % LINE_WORDS == 0) __builtin_prefetch(row + v * Right::apart + Right::ahead);
        lanes[v] = at(row + v * Right::apart);
      }
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

// An even share of `many`, as there are registers for `most` at once.
inline int share_of(int many, int most) {
  const int parts = std::max(1, (many + most - 1) / most);
  return (many + parts - 1) / parts;
}

// The same for any number of m, in even shares.
template <typename Right, bool ADD, int... M>
inline void shared_out(int many, const Word* a, std::size_t across, std::size_t along, const std::int32_t* b, int blocks,
                       int count, float* out, std::integer_sequence<int, M...>) {
  static constexpr decltype(&product<Right, ADD, 1>) OF[] = {product<Right, ADD, M + 1>...};
  const int share = share_of(many, sizeof...(M));
  for (; many > 0; many -= share, a += share * across, out += share * Right::next)
    OF[std::min(share, many) - 1](a, across, along, b, blocks, count, out);
}

inline const Word* words_of(const Value* x) { return reinterpret_cast<const Word*>(x); }

// scores[key][lane] = keys [key][D] x queries [D / WORD][lane]
inline void score(int keys, int size, const Value* k, const std::int32_t* q, float* scores) {
  const int deep = padded(size, DEEP) / WORD;
  shared_out<Queries, false>(keys, words_of(k), deep, 1, q, 1, deep, scores, std::make_integer_sequence<int, STEP>());
}

// sums[d][lane] += values, transposed, x weights [key / WORD][lane]
inline void weigh(int size, int keys, const Value* v, const std::int32_t* weights, float* sums) {
  shared_out<Queries, true>(size, words_of(v), 1, padded(size, DEEP), weights, 1, keys / WORD, sums,
                            std::make_integer_sequence<int, STEP>());
}

// Rows that do not fill a block of them are multiplied as they are.
inline const Value* padded_rows(const Value* x, int, int) { return x; }

// As many rows as are multiplied at once, of `rows` that there are.
inline int share_of(int rows) { return share_of(rows, ROWS_AT_ONCE); }

// sums[row][BLOCK] = rows of a [rows, deep] x one block of weights. What `soon` points to will be wanted.
inline void block_product(const Value* a, int rows, int deep, const Value* weights, const Value* soon, float* sums) {
  constexpr int OF_LINE = 64 / sizeof(Value);  // of the cache
  for (int i = 0; i < BLOCK / PARTS * deep; i += OF_LINE) __builtin_prefetch(soon + i, 0, 2);
  const auto* b = reinterpret_cast<const std::int32_t*>(weights);
  for (int v = 0; v < BLOCK / LANES; v += COLUMN_VECS)
    shared_out<Columns, false>(rows, words_of(a), deep / WORD, 1, b + v * LANES / 16 * HALF_BLOCK + v * LANES % 16,
                               deep / WORD / 16, 16, sums + v * LANES, std::make_integer_sequence<int, ROWS_AT_ONCE>());
}

}  // namespace genrec
