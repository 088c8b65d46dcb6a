// The same attention in bf16 on CPUs with AMX: both products are of tiles.
//
// Scores stand as [key][lane] again: keys are the left operand, queries the right one. Their weights are rounded to bf16
// and are the right operand of the second product, whose left one is the values, transposed. That, and keys padded to
// whole tiles, is laid out once for all queries of a KV head.
#pragma once

#include <cmath>

#include "head.hpp"
#include "tiles.hpp"

namespace genrec {

constexpr int LANES = 16;
constexpr int TILES = 4;             // of queries, whose sums a thread holds at once
constexpr int ROWS = TILES * LANES;
constexpr int KEYS = 128;            // of a block

// Work arrays of one thread.
class Scratch {
 public:
  Value *q, *weights;          // [TILES][D / 32][pair][lane][2], [KEYS / 2][lane][2]
  float *sums, *scores, *own;  // [TILES][D][lane], [KEYS][lane], [U][lane]

  void fit(int size, int unshared) {
    const std::size_t tile = std::size_t(padded(size, DEEP)) * LANES;
    sums = memory_.of<float>(TILES * tile + KEYS * LANES + unshared * LANES + (TILES * tile + KEYS * LANES) / 2);
    scores = sums + TILES * tile;
    own = scores + KEYS * LANES;
    q = reinterpret_cast<Value*>(own + unshared * LANES);
    weights = q + TILES * tile;
  }

 private:
  Memory memory_;
};

// 16 rows of queries as right operands, zeros beyond D: [D / 32][pair][lane][2].
inline void pack_queries(const Head<Value>& h, int first, int rows, Value* out) {
  for (int d = 0; d < h.size; d += DEEP, out += 2 * TILE) {
    __m512i each[16];
    for (int lane = 0; lane < LANES; ++lane)  // lanes without a row repeat the last
      each[lane] = _mm512_maskz_loadu_epi16(first_of(h.size - d), h.q + h.place(first + std::min(lane, rows - 1)) + d);
    transpose(each);
    for (int pair = 0; pair < PAIRS; ++pair) _mm512_store_si512(out + pair * DEEP, each[pair]);
  }
}

// What a KV head's keys and values take as they are laid out: blocks of [key][D] and [D][key], D in whole operands.
inline std::size_t room_of(int size, int span) { return std::size_t(2) * padded(span, KEYS) * padded(size, DEEP); }

// Lays out the block from key `first` on: zeros beyond D and, up to whole operands, beyond the last key that is seen.
inline void lay_out(const Head<Value>& h, int first, Value* room) {
  const int deep = padded(h.size, DEEP), count = std::clamp(h.seen() - first, 0, KEYS), keys = padded(count, DEEP);
  Value *k = room + std::size_t(2) * first * deep, *v = k + KEYS * deep;
  const std::size_t from = std::size_t(first) * h.size;
  for (int key = 0; key < keys; ++key)
    for (int d = 0; d < deep; d += DEEP)
      _mm512_store_si512(k + key * deep + d,
                         _mm512_maskz_loadu_epi16(key < count ? first_of(h.size - d) : 0, h.k + from + key * h.size + d));
  for (int d = 0; d < h.size; d += 16)
    for (int key = 0; key < keys; key += DEEP) {
      __m512i pairs[16];
      const __mmask16 some = first_of(h.size - d);
#pragma GCC unroll 16
      for (int pair = 0; pair < PAIRS; ++pair) {
        const Value* value = h.v + from + std::size_t(key + 2 * pair) * h.size + d;
        const int left = count - key - 2 * pair;
        const __m256i even = _mm256_maskz_loadu_epi16(left > 0 ? some : 0, value);
        const __m256i odd = _mm256_maskz_loadu_epi16(left > 1 ? some : 0, value + h.size);
        pairs[pair] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
      }
      transpose(pairs);
#pragma GCC unroll 16
      for (int row = 0; row < 16; ++row) _mm512_store_si512(v + (d + row) * KEYS + key, pairs[row]);
    }
}

// A tile of queries so far, by lane: the highest score, the sum of all weights.
struct Lanes {
  __m512 top, total;
};

// The highest score of every lane, four keys apart so that no comparison waits for the last; keys that a lane does not see
// get -inf.
template <bool MASKED>
inline __m512 highest(float* scores, int keys, int first_key, __m512i sees, __m512 top) {
  __m512 high[4] = {top, top, top, top};
  for (int key = 0; key < keys; key += 4)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512 score = _mm512_load_ps(scores + (key + i) * LANES);
      if constexpr (MASKED) {
        const __mmask16 seen = _mm512_cmpgt_epi32_mask(sees, _mm512_set1_epi32(first_key + key + i));
        score = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, score);
        _mm512_store_ps(scores + (key + i) * LANES, score);
      }
      high[i] = _mm512_max_ps(high[i], score);
    }
  return _mm512_max_ps(_mm512_max_ps(high[0], high[1]), _mm512_max_ps(high[2], high[3]));
}

// One block of keys for one tile: scores, online softmax, weighted values. `scale` is log2(e) / sqrt(D).
template <bool MASKED>
inline void block(int size, int first_key, int count, __m512i sees, float scale, const Value* q, const Value* k, float* sums,
                  Scratch& s, Lanes& lanes) {
  const int deep = padded(size, DEEP), keys = padded(count, DEEP);
  products<false>(keys / 16, k, 16 * deep, deep, q, deep / DEEP, s.scores);
  const __m512 high = highest<MASKED>(s.scores, keys, first_key, sees, lanes.top);
  const __m512 times = _mm512_set1_ps(scale), less = high * -scale;
  const __m512i together = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                            5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512 even_sum{}, odd_sum{};
  for (int key = 0; key < keys; key += 2) {
    const __m512 even = exp2_of(_mm512_fmadd_ps(_mm512_load_ps(s.scores + key * LANES), times, less));
    const __m512 odd = exp2_of(_mm512_fmadd_ps(_mm512_load_ps(s.scores + key * LANES + LANES), times, less));
    even_sum += even;
    odd_sum += odd;
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_store_si512(s.weights + key * LANES, _mm512_permutexvar_epi16(together, both));
  }
  if (_mm512_cmp_ps_mask(high, lanes.top, _CMP_NEQ_UQ)) {
    const __m512 shrink = exp2_of((lanes.top - high) * scale);
    for (int d = 0; d < size; ++d) _mm512_store_ps(sums + d * LANES, _mm512_load_ps(sums + d * LANES) * shrink);
    lanes = {high, lanes.total * shrink};
  }
  lanes.total += even_sum + odd_sum;
  products<true>(padded(size, 16) / 16, k + KEYS * deep, 16 * KEYS, KEYS, s.weights, keys / DEEP, sums);
}

inline float dot(const Value* a, const Value* b, int count) {
  __m512 sum{};
  for (int i = 0; i < count; i += DEEP) {
    const __mmask32 some = first_of(count - i);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(some, a + i), (__m512bh)_mm512_maskz_loadu_epi16(some, b + i));
  }
  return _mm512_reduce_add_ps(sum);
}

// The own keys of a tile's rows, merged with what the shared ones gave, divided and written.
inline void finish(const Head<Value>& h, int first, int rows, float scale, const float* sums, Scratch& s, Lanes lanes) {
  __m512 high = lanes.top;
  for (int u = 0; u < h.own; ++u) {
    for (int lane = 0; lane < LANES; ++lane) {
      const int row = first + std::min(lane, rows - 1);
      s.own[u * LANES + lane] =
          u < h.sees_own(row) ? dot(h.own_q + h.place(row), h.own_key(row, u), h.size) : -INFINITY;
    }
    high = _mm512_max_ps(high, _mm512_load_ps(s.own + u * LANES));
  }
  const __m512 shrink = exp2_of((lanes.top - high) * scale);
  __m512 total = lanes.total * shrink;
  for (int u = 0; u < h.own; ++u) {
    const __m512 weight = exp2_of((_mm512_load_ps(s.own + u * LANES) - high) * scale);
    _mm512_store_ps(s.own + u * LANES, weight);
    total += weight;
  }
  const __m512 once = _mm512_set1_ps(1.0f) / total;
  for (int d = 0; d < h.size; d += 16) {
    __m512i each[16];
    for (int row = 0; row < 16; ++row)
      each[row] = _mm512_castps_si512(_mm512_load_ps(sums + (d + row) * LANES) * shrink * once);
    transpose(each);
    const __mmask16 some = first_of(h.size - d);
    for (int lane = 0; lane < rows; ++lane) {
      __m512 sum = _mm512_castsi512_ps(each[lane]);
      for (int u = 0; u < h.sees_own(first + lane); ++u) {
        const __m512 value = wide_of(_mm256_maskz_loadu_epi16(some, h.own_value(first + lane, u) + d));
        sum += value * _mm512_set1_ps(s.own[u * LANES + lane] * once[lane]);
      }
      _mm256_mask_storeu_epi16(h.out + h.place(first + lane) + d, some, (__m256i)_mm512_cvtneps_pbh(sum));
    }
  }
}

// Attention of the rows from `first` on, ROWS or fewer, over what is laid out in `room`.
inline void attend(const Head<Value>& h, const Value* room, int first) {
  thread_local Scratch s;
  s.fit(h.size, h.own);
  const Tiles configured;
  const int rows = std::min(ROWS, h.rows - first), many = (rows + LANES - 1) / LANES;
  const std::size_t of_tile = padded(h.size, DEEP) * LANES;
  const float scale = 1.44269504f / std::sqrt(float(h.size));
  alignas(64) std::int32_t sees[ROWS];
  Lanes lanes[TILES];
  for (int row = 0; row < many * LANES; ++row) sees[row] = h.sees(first + std::min(row, rows - 1));
  for (int tile = 0; tile < many; ++tile) {
    pack_queries(h, first + tile * LANES, rows - tile * LANES, s.q + tile * of_tile);
    lanes[tile] = {_mm512_set1_ps(-1e30f), _mm512_setzero_ps()};
  }
  std::fill(s.sums, s.sums + many * of_tile, 0.0f);
  const int keys = sees[many * LANES - 1];
  for (int key = 0; key < keys; key += KEYS) {
    const int left = std::min(KEYS, keys - key);
    const Value* k = room + std::size_t(2) * key * padded(h.size, DEEP);
    for (int tile = 0; tile < many; ++tile) {
      const std::int32_t *of = sees + tile * LANES;
      const int count = std::min(left, of[LANES - 1] - key);  // no lane of the tile sees those behind
      if (count <= 0) continue;
      const auto run = padded(count, DEEP) > of[0] - key ? block<true> : block<false>;
      run(h.size, key, count, _mm512_load_si512(of), scale, s.q + tile * of_tile, k, s.sums + tile * of_tile, s,
          lanes[tile]);
    }
  }
  for (int tile = 0; tile < many; ++tile)
    finish(h, first + tile * LANES, std::min(LANES, rows - tile * LANES), scale, s.sums + tile * of_tile, s, lanes[tile]);
}

}  // namespace genrec
