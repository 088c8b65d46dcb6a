// Products of activations and weights in bf16 on CPUs with AMX, and what follows them while the sums are in the cache.
//
// Blocks of 32 x 32 sums are four tiles. Weights come laid out (build/openvino/linear.py): [N / 32][K / 32][2][pair][column][2],
// so that every operand is read in one go, from the file, by all graphs.
#pragma once

#include "rotate.hpp"
#include "tiles.hpp"

namespace genrec {

enum class After {
  nothing,
  add,      // another tensor of the output's shape
  silu,     // columns alternate, 16 and 16: silu of the first times the second, half as many
  widen     // to float32
};

constexpr int BLOCK = 32;
constexpr int ROWS_OF_TASK = 256;  // whose activations stay in the second cache
constexpr int PARTS = 8;  // in which the weights of the next block of columns are fetched, one per block of rows

struct Linear {
  const Value *x, *weights, *added;  // [M, K], laid out, [M, N] or null
  void* out;                         // [M, N], or [M, N / 2] after silu
  int rows, deep, wide;              // M, K, N
  float eps;                         // unless 0, rows of x are divided by the root of their mean square, which this is added to
};

// sums[2][2] = 32 rows of a [32, deep] times one block of columns. What `soon` points to will be wanted: weights come
// from beyond the second cache, and fetching them meanwhile saves a tenth.
inline void block_product(const Value* a, int deep, const Value* b, const Value* soon, float* sums) {
  written();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int i = 0; i < deep / DEEP; ++i, a += DEEP, b += 4 * TILE, soon += 4 * TILE / PARTS) {
    for (int line = 0; line < 4 * TILE / PARTS; line += DEEP) __builtin_prefetch(soon + line, 0, 2);
    _tile_loadd(4, a, 2 * deep);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 2 * TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + 16 * deep, 2 * deep);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + TILE, 64);
  _tile_stored(2, sums + 2 * TILE, 64);
  _tile_stored(3, sums + 3 * TILE, 64);
}

// The rows that do not fill a block, zeros behind them: what lies behind is not to be read.
inline const Value* padded_rows(const Value* x, int rows, int deep) {
  thread_local Memory memory;
  Value* whole = memory.of<Value>(std::size_t(BLOCK) * deep);
  std::memcpy(whole, x, std::size_t(rows) * deep * sizeof(Value));
  std::memset(whole + std::size_t(rows) * deep, 0, std::size_t(BLOCK - rows) * deep * sizeof(Value));
  return whole;
}

// x / (1 + e^-x), to the 14 bits of the reciprocal.
inline __m512 silu_of(__m512 x) {
  const __m512 small = exp2_of(_mm512_abs_ps(x) * -1.44269504f);
  const __m512 share = _mm512_rcp14_ps(small + 1.0f);
  return x * _mm512_mask_mul_ps(share, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), share, small);
}

// One row of a block of sums, columns from `first` on, to where it belongs.
template <After AFTER>
inline void write(const Linear& l, int row, int first, __m512 left, __m512 right) {
  const std::size_t place = std::size_t(row) * l.wide + first;
  Value* out = static_cast<Value*>(l.out);
  if constexpr (AFTER == After::widen) {
    _mm512_storeu_ps(static_cast<float*>(l.out) + place, left);
    _mm512_storeu_ps(static_cast<float*>(l.out) + place + 16, right);
  } else if constexpr (AFTER == After::silu) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + place / 2), (__m256i)_mm512_cvtneps_pbh(silu_of(left) * right));
  } else {
    if constexpr (AFTER == After::add) {
      const __m256i* added = reinterpret_cast<const __m256i*>(l.added + place);
      left += wide_of(_mm256_loadu_si256(added));
      right += wide_of(_mm256_loadu_si256(added + 1));
    }
    _mm512_storeu_si512(out + place, (__m512i)_mm512_cvtne2ps_pbh(right, left));
  }
}

// ROWS_OF_TASK rows from `first_row` and columns from `first_column` on. Rows are normed when they are multiplied already.
template <After AFTER>
inline void multiply(const Linear& l, int first_row, int first_column, int columns) {
  const Tiles configured;
  alignas(64) float sums[4 * TILE];
  const int last_row = std::min(l.rows, first_row + ROWS_OF_TASK), last_column = std::min(l.wide, first_column + columns);
  const std::size_t bytes = AFTER == After::silu ? 1 : AFTER == After::widen ? 4 : 2;  // of the output, for a column
  float shrink[ROWS_OF_TASK];
  for (int row = first_row; row < last_row; ++row)
    shrink[row - first_row] = l.eps ? shrink_of(l.x + std::size_t(row) * l.deep, l.deep, l.eps) : 1.0f;
  const int whole_rows = first_row + (last_row - first_row) / BLOCK * BLOCK;
  const Value* rest = nullptr;
  if (whole_rows < last_row) rest = padded_rows(l.x + std::size_t(whole_rows) * l.deep, last_row - whole_rows, l.deep);
  for (int column = first_column; column < last_column; column += BLOCK) {
    const Value* b = l.weights + std::size_t(column) * l.deep;
    for (int row = first_row; row < last_row; row += BLOCK) {
      const int count = std::min(BLOCK, last_row - row);
      for (int i = 0; i < count; ++i)  // to be written soon
        __builtin_prefetch(static_cast<char*>(l.out) + (std::size_t(row + i) * l.wide + column) * bytes, 1);
      const Value* soon = b + (BLOCK + (row - first_row) / BLOCK % PARTS * (BLOCK / PARTS)) * std::size_t(l.deep);
      block_product(row < whole_rows ? l.x + std::size_t(row) * l.deep : rest, l.deep, b, soon, sums);
      for (int i = 0; i < count; ++i) {
        const float* sum = sums + i / 16 * 2 * TILE + i % 16 * 16;
        const __m512 times = _mm512_set1_ps(shrink[row + i - first_row]);
        write<AFTER>(l, row + i, column, _mm512_load_ps(sum) * times, _mm512_load_ps(sum + TILE) * times);
      }
    }
  }
}

}  // namespace genrec
