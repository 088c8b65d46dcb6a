// Products of activations and weights, and what follows them while the sums are in the cache.
//
// Weights come laid out (build/openvino/linear.py), in words: [N / 32][K / 16][2][16 deep][16 columns], so that every operand
// is read in one go, from the file, by all graphs.
#pragma once

#include "rotate.hpp"

namespace genrec {

enum class After {
  nothing,
  add,      // another tensor of the output's shape
  silu,     // columns alternate, 16 and 16: silu of the first times the second, half as many
  widen     // to float32
};

constexpr int ROWS_OF_TASK = 256;  // at most: their activations stay in the second cache
constexpr int HALF = BLOCK / 2;
constexpr int LINE = 16 * WORD;  // values deep of a block of weights

struct Linear {
  const Value *x, *weights, *added;  // [M, K], laid out, [M, N] or null
  void* out;                         // [M, N], or [M, N / 2] after silu
  int rows, deep, wide;              // M, K, N
  float eps;                         // unless 0, rows of x are divided by the root of their mean square, which this is added to
};

// x / (1 + e^-x); of a negative x, whose e^-x may have no float, e^x / (1 + e^x).
inline Vec silu_of(Vec x) {
  const Vec small = exp2_of((x < 0 ? x : -x) * 1.44269504f);
  const Vec share = inverse_of(small + 1.0f);
  return x * (x < 0 ? share * small : share);
}

// One row of a block of sums, columns from `first` on, to where it belongs.
template <After AFTER>
inline void write(const Linear& l, int row, int first, float times, const float* sums) {
  const std::size_t place = std::size_t(row) * l.wide + first;
  Value* out = static_cast<Value*>(l.out);
  if constexpr (AFTER == After::silu) {
    for (int i = 0; i < HALF; i += LANES) put(out + place / 2 + i, silu_of(at(sums + i) * times) * (at(sums + HALF + i) * times));
    return;
  }
  for (int i = 0; i < BLOCK; i += LANES) {
    Vec sum = at(sums + i) * times;
    if constexpr (AFTER == After::add) sum += wide_of(l.added + place + i);
    if constexpr (AFTER == After::widen)
      at(static_cast<float*>(l.out) + place + i) = sum;
    else
      put(out + place + i, sum);
  }
}

// So many rows from `first_row` on, ROWS_OF_TASK at most, and columns from `first_column` on. Rows are normed when they are
// multiplied already.
template <After AFTER>
inline void multiply(const Linear& l, int first_row, int most_rows, int first_column, int columns) {
  const Ready ready;
  alignas(64) float sums[ROWS_OF_TASK * BLOCK];
  const int rows = std::min(l.rows - first_row, most_rows), last_column = std::min(l.wide, first_column + columns);
  const std::size_t bytes = AFTER == After::silu ? sizeof(Value) / 2 : AFTER == After::widen ? 4 : sizeof(Value);  // of a column
  const Value* x = l.x + std::size_t(first_row) * l.deep;
  const Rows left(x, rows, l.deep);
  float shrink[ROWS_OF_TASK];
  for (int row = 0; row < rows; ++row) shrink[row] = l.eps ? shrink_of(x + std::size_t(row) * l.deep, l.deep, l.eps) : 1.0f;
  for (int column = first_column; column < last_column; column += BLOCK) {
    const auto begun = [&](int row, int count) {  // to be written soon
      for (int i = first_row + row; i < first_row + row + count; ++i)
        __builtin_prefetch(static_cast<char*>(l.out) + (std::size_t(i) * l.wide + column) * bytes, 1);
    };
    const auto done = [&](int row, int count, const float* of) {
      for (int i = 0; i < count; ++i) write<AFTER>(l, first_row + row + i, column, shrink[row + i], of + i * BLOCK);
    };
    left.times(l.weights + std::size_t(column) * l.deep, sums, begun, done);
  }
}

}  // namespace genrec
