// Attention of many queries over one shared prompt and over a few keys of their own, for one KV head (xGR, section 5.2).
//
// A tile is ROWS queries, each a lane of VECS vectors. Scores stand as [key][lane], so that softmax works down the keys,
// lane by lane, and both products are the same kernel: STEP values are broadcast and multiplied with a tile's vectors.
// Keys come in blocks whose scores stay in the first cache; online softmax merges blocks, then the queries' own keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "head.hpp"

namespace genrec {

using Value = float;
constexpr int LANES = 8;             // floats of a vector
constexpr int VECS = 3;              // with STEP 4: 12 sums, 3 operands and a broadcast fill the 16 registers of AVX2
constexpr int ROWS = VECS * LANES;
constexpr int STEP = 4;
constexpr int KEYS = 128;            // of a block: its scores are 12 KB

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef std::int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Vec& at(float* x) { return *reinterpret_cast<Vec*>(x); }
inline const Vec& at(const float* x) { return *reinterpret_cast<const Vec*>(x); }
inline Vec all(float x) { return x - Vec{}; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// e^x of x <= 0 to 2e-7 of the result; 0 below -87, of -inf too; NaN stays NaN.
inline Vec exp_of(Vec x) {
  const Vec rounder = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold
  Vec shifted = x * 1.44269504f + rounder;
  Vec whole = shifted - rounder;
  Vec f = x - whole * 0.693147182f + whole * 1.90465432e-9f;  // x - whole * ln 2, in two parts
  Vec sum = all(1.38145985e-3f);  // e^f = 1 + f + f^2 p(f), p of least relative error for |f| <= ln 2 / 2
  for (float c : {8.36871689e-3f, 4.16683881e-2f, 1.66665206e-1f, 4.99999935e-1f}) sum = sum * f + c;
  sum = sum * (f * f) + (f + 1.0f);
  Ints bits = reinterpret_cast<Ints&>(sum) + (reinterpret_cast<Ints&>(shifted) << 23);
  bits &= ~(x < -87.0f);
  return reinterpret_cast<Vec&>(bits);
}

// out[m][lane] (+)= sum over i < count of a[m * across + i * along] * b[i][lane], for m < M.
template <int M, bool ADD>
inline void product(const float* a, std::size_t across, std::size_t along, const float* b, int count, float* out) {
  Vec sum[M][VECS];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < VECS; ++v) sum[m][v] = ADD ? at(out + m * ROWS + v * LANES) : Vec{};
  for (int i = 0; i < count; ++i, a += along, b += ROWS) {
    const Vec lanes[VECS] = {at(b), at(b + LANES), at(b + 2 * LANES)};
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < VECS; ++v) sum[m][v] += a[m * across] * lanes[v];
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < VECS; ++v) at(out + m * ROWS + v * LANES) = sum[m][v];
}

// The same for any number of m.
template <bool ADD>
inline void products(int many, const float* a, std::size_t across, std::size_t along, const float* b, int count,
                     float* out) {
  int m = 0;
  for (; m + STEP <= many; m += STEP) product<STEP, ADD>(a + m * across, across, along, b, count, out + m * ROWS);
  for (; m < many; ++m) product<1, ADD>(a + m * across, across, along, b, count, out + m * ROWS);
}

// Work arrays of one thread.
class Scratch {
 public:
  float *q, *scores, *sums, *own;  // [D][lane], [KEYS][lane], [D][lane], [U]

  void fit(const Head<Value>& h) {
    const std::size_t tile = std::size_t(h.size) * ROWS, floats = 2 * tile + KEYS * ROWS + h.own;
    if (lines_.size() * LINE < floats) lines_.resize(floats / LINE + 1);
    q = lines_[0].values;
    sums = q + tile;
    scores = sums + tile;
    own = scores + KEYS * ROWS;
  }

 private:
  static constexpr std::size_t LINE = 16;
  struct alignas(64) Line {  // a vector across two lines of the cache takes twice as long
    float values[LINE];
  };
  std::vector<Line> lines_;
};

// One block of keys: scores, online softmax, weighted values. `top` and `total` are of every lane so far.
inline void block(const Head<Value>& h, int first_key, int count, const std::int32_t* sees, bool masked, Scratch& s, float* top,
                  float* total) {
  products<false>(count, h.k + std::size_t(first_key) * h.size, h.size, 1, s.q, h.size, s.scores);
  for (int v = 0; v < ROWS; v += LANES) {
    Vec high = at(top + v);
    Ints limit = *reinterpret_cast<const Ints*>(sees + v);
    for (int key = 0; key < count; ++key) {
      Vec& score = at(&s.scores[key * ROWS + v]);
      if (masked) score = limit > first_key + key ? score : all(-INFINITY);
      high = larger(high, score);
    }
    Vec shrink = exp_of(at(top + v) - high), sum = at(total + v) * shrink;
    for (int key = 0; key < count; ++key) {
      Vec& score = at(&s.scores[key * ROWS + v]);
      score = exp_of(score - high);
      sum += score;
    }
    at(top + v) = high;
    at(total + v) = sum;
    for (int d = 0; d < h.size; ++d) at(&s.sums[d * ROWS + v]) *= shrink;
  }
  products<true>(h.size, h.v + std::size_t(first_key) * h.size, 1, h.size, s.scores, count, s.sums);
}

inline float dot(const float* a, const float* b, int count) {
  Vec sums{};
  int i = 0;
  for (; i + LANES <= count; i += LANES) sums += at(a + i) * at(b + i);
  float sum = 0;
  for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// A row's own keys, merged with what the shared ones gave, divided and written.
inline void finish(const Head<Value>& h, int row, int lane, const Scratch& s, float top, float total) {
  const float* q = h.own_q + h.place(row);
  const int own = h.sees_own(row);
  float* out = h.out + h.place(row);
  float high = top;
  for (int u = 0; u < own; ++u) {
    s.own[u] = dot(q, h.own_key(row, u), h.size) / std::sqrt(float(h.size));
    high = std::max(high, s.own[u]);
  }
  float shrink = std::exp(top - high);
  total *= shrink;
  for (int u = 0; u < own; ++u) total += s.own[u] = std::exp(s.own[u] - high);
  for (int d = 0; d < h.size; ++d) out[d] = s.sums[d * ROWS + lane] * (shrink / total);
  for (int u = 0; u < own; ++u) {
    const float* value = h.own_value(row, u);
    for (int d = 0; d < h.size; ++d) out[d] += value[d] * (s.own[u] / total);
  }
}

// Keys and values are read where they are.
inline std::size_t room_of(int, int) { return 0; }
inline void lay_out(const Head<Value>&, int, Value*) {}

// Attention of the rows from `first` on, ROWS or fewer.
inline void attend(const Head<Value>& h, const Value*, int first) {
  thread_local Scratch s;
  s.fit(h);
  const int rows = std::min(ROWS, h.rows - first);
  const float scale = 1 / std::sqrt(float(h.size));
  std::int32_t sees[ROWS];
  float top[ROWS], total[ROWS] = {};
  for (int lane = 0; lane < ROWS; ++lane) {
    const int row = first + std::min(lane, rows - 1);  // lanes without a row repeat the last
    const float* q = h.q + h.place(row);
    for (int d = 0; d < h.size; ++d) s.q[d * ROWS + lane] = q[d] * scale;
    sees[lane] = h.sees(row);
    top[lane] = -1e30f;
  }
  std::fill(s.sums, s.sums + h.size * ROWS, 0.0f);
  const int keys = sees[ROWS - 1];
  for (int key = 0; key < keys; key += KEYS) {
    const int count = std::min(KEYS, keys - key);
    block(h, key, count, sees, key + count > sees[0], s, top, total);
  }
  for (int lane = 0; lane < rows; ++lane) finish(h, first + lane, lane, s, top[lane], total[lane]);
}

}  // namespace genrec
