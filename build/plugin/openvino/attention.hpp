// Attention of many queries over one shared prompt and over a few keys of their own, for one KV head (xGR, section 5.2).
//
// A tile is WIDE queries, a lane each. Scores stand as [key][lane], so that softmax works down the keys, lane by lane, and
// queries are the right operand of the first product, weights of the second (panels.hpp, tiles.hpp). Keys come in blocks
// whose scores stay in the first cache; online softmax merges blocks. Where a tile has few beams, the own keys of all of them
// are such blocks too, of which a lane sees those of its beam; else queries meet their own keys one by one.
#pragma once

#include <cmath>

#include "head.hpp"

namespace genrec {

constexpr int ROWS = TILES * WIDE;
constexpr int FEW = 3;  // beams of a tile whose own keys are met in blocks: every query is multiplied with those of all

// Whether no tile has more beams than that.
inline bool few_beams(const Head<Value>& h) { return h.own && 2 * h.group * h.each >= WIDE; }

// Work arrays of one thread.
class Scratch {
 public:
  float *q, *sums, *scores, *own;  // [TILES][D / WORD][lane], [TILES][D][lane], [KEYS][lane] and later weights, [U][lane]
  std::size_t of_q, of_sums;       // floats of a tile
  Value* room;                     // own keys and values of a tile's few beams, as they are laid out

  void fit(int size, int unshared, bool few) {
    of_q = std::size_t(padded(size, LANES * WORD) / WORD) * WIDE;
    of_sums = std::size_t(padded(size, LANES)) * WIDE;
    q = memory_.of<float>(TILES * (of_q + of_sums) + (KEYS + unshared) * WIDE);
    sums = q + TILES * of_q;
    scores = sums + TILES * of_sums;
    own = scores + KEYS * WIDE;
    room = few ? own_.of<Value>(room_of(size, FEW * unshared, true)) : nullptr;
  }

 private:
  Memory memory_, own_;
};

constexpr float LOWEST = -1e30f;

// A tile of queries so far, by lane: the keys it sees, from one up to another; the score of weight 1, the sum of all weights.
struct Tile {
  std::int32_t from[WIDE], sees[WIDE];
  float one[WIDE], total[WIDE];
};

// A tile's queries as words, zeros beyond D: [D / WORD][lane]. Lanes without a row repeat the last.
inline void pack_queries(const Head<Value>& h, const Value* q, int first, int rows, float* out) {
  for (int d = 0; d < h.size; d += LANES * WORD)
    for (int v = 0; v < WIDE; v += LANES) {
      Words each[LANES];
      for (int lane = 0; lane < LANES; ++lane)
        each[lane] = first_of<Words>(q + h.place(first + std::min(v + lane, rows - 1)) + d, h.size - d);
      transpose(each);
#pragma GCC unroll 16
      for (int word = 0; word < LANES; ++word) at(out + (d / WORD + word) * WIDE + v) = (Vec)each[word];
    }
}

// The highest score of every lane, four keys apart so that no comparison waits for the last; keys that a lane does not see
// get -inf.
template <bool MASKED>
inline Vec highest(float* scores, int keys, int first_key, Words from, Words sees) {
  const Vec lowest = all(LOWEST);
  Vec high[4] = {lowest, lowest, lowest, lowest};
  const auto next = [&](int key, Vec& high) {
    Vec& score = at(scores + key * WIDE);
    if constexpr (MASKED) score = (from <= first_key + key) & (sees > first_key + key) ? score : all(-INFINITY);
    high = larger(high, score);
  };
  int key = 0;
  for (; key + 4 <= keys; key += 4)
    for (int i = 0; i < 4; ++i) next(key + i, high[i]);
  for (; key < keys; ++key) next(key, high[0]);
  return larger(larger(high[0], high[1]), larger(high[2], high[3]));
}

// One block of keys for one tile: scores, online softmax, weighted values. `scale` is log2(e) / sqrt(D).
template <bool MASKED>
inline void block(int size, int first_key, int keys, float scale, const float* q, Laid laid, float* scores, float* sums,
                  Tile& tile) {
  const auto* queries = reinterpret_cast<const std::int32_t*>(q);
  if constexpr (!MASKED)
    if (at_once(size, keys, laid, queries, tile.one, scale, scores, sums, tile.total)) return;
  score(keys, size, laid.k, queries, scores);
  for (int v = 0; v < WIDE; v += LANES) {
    const Vec before = at(tile.one + v);
    const Vec high = highest<MASKED>(scores + v, keys, first_key, at(tile.from + v), at(tile.sees + v));
    const Vec one = larger(before, weight_one(high, scale));
    Weigher weigher(one, scale);
    weigher.weigh(scores + v, keys, scores + v);
    if (std::memcmp(&one, &before, sizeof one)) {
      const Vec shrink = exp2_of((before - one) * scale);
      for (int d = 0; d < size; ++d) at(sums + d * WIDE + v) *= shrink;
      at(tile.one + v) = one;
      at(tile.total + v) *= shrink;
    }
    at(tile.total + v) += weigher.sum();
  }
  weigh(size, keys, laid.v, reinterpret_cast<const std::int32_t*>(scores), sums);
}

// A tile's rows and the own keys of their few beams, in blocks.
inline void attend_own(const Head<Value>& h, int first, int rows, float scale, float* q, Scratch& s, float* sums, Tile& tile) {
  const int beam = h.beam(first);
  const Head<Value> own = h.own_keys(beam, h.beam(first + rows - 1) + 1 - beam);
  for (int lane = 0; lane < WIDE; ++lane) {
    const int row = first + std::min(lane, rows - 1);
    tile.from[lane] = (h.beam(row) - beam) * h.own;
    tile.sees[lane] = tile.from[lane] + h.sees_own(row);
  }
  if (h.own_q != h.q) pack_queries(h, h.own_q, first, rows, q);
  for (int key = 0; key < own.past; key += KEYS) {
    lay_out(own, key, s.room);
    block<true>(h.size, key, padded(std::min(KEYS, own.past - key), DEEP), scale, q, laid_out(own, s.room, key), s.scores, sums,
                tile);
  }
}

inline float dot(const Value* a, const Value* b, int count) {
  Vec sum{};
  for (int i = 0; i < count; i += LANES * WORD)
    sum = multiply_add(sum, first_of<Words>(a + i, count - i), first_of<Words>(b + i, count - i));
  return sum_of(sum);
}

// Scores of a vector of rows, from `first` on, with `many` own keys each, one by one: [U][lane].
inline void score_own(const Head<Value>& h, int first, int rows, int many, float* scores) {
  for (int u = 0; u < many; ++u)
    for (int lane = 0; lane < LANES; ++lane) {
      const int row = first + std::min(lane, rows - 1);
      scores[u * LANES + lane] = u < h.sees_own(row) ? dot(h.own_q + h.place(row), h.own_key(row, u), h.size) : -INFINITY;
    }
}

// A vector of a tile's rows, from `first` on: `many` own keys each are merged with what blocks gave, and all is divided and
// written. `own` are their scores, [U][lane].
inline void finish(const Head<Value>& h, int first, int rows, int many, float scale, const float* sums, Vec top, Vec total,
                   float* own) {
  Vec high = top;
  for (int u = 0; u < many; ++u) high = larger(high, at(own + u * LANES));
  const Vec shrink = exp2_of((top - high) * scale);
  total *= shrink;
  for (int u = 0; u < many; ++u) {
    at(own + u * LANES) = exp2_of((at(own + u * LANES) - high) * scale);
    total += at(own + u * LANES);
  }
  const Vec once = 1.0f / total;
  for (int d = 0; d < h.size; d += LANES) {
    Words each[LANES];
#pragma GCC unroll 16
    for (int row = 0; row < LANES; ++row) each[row] = (Words)(at(sums + (d + row) * WIDE) * shrink * once);
    transpose(each);
    for (int lane = 0; lane < rows; ++lane) {
      Vec sum = (Vec)each[lane];
      for (int u = 0; u < std::min(many, h.sees_own(first + lane)); ++u)
        sum += wide_of(h.own_value(first + lane, u) + d, h.size - d) * (own[u * LANES + lane] * once[lane]);
      put(h.out + h.place(first + lane) + d, sum, h.size - d);
    }
  }
}

// Attention of the rows from `first` on, ROWS or fewer, over what is laid out in `room`.
inline void attend(const Head<Value>& h, const Value* room, int first) {
  thread_local Scratch s;
  const bool few = few_beams(h);
  s.fit(h.size, h.own, few);
  const Ready ready;
  const int rows = std::min(ROWS, h.rows - first), many = (rows + WIDE - 1) / WIDE;
  const float scale = 1.44269504f / std::sqrt(float(h.size));
  Tile tiles[TILES];
  for (int t = 0; t < many; ++t) {
    for (int lane = 0; lane < WIDE; ++lane) {
      tiles[t].from[lane] = 0;
      tiles[t].sees[lane] = h.sees(first + std::min(t * WIDE + lane, rows - 1));
      tiles[t].one[lane] = LOWEST;
      tiles[t].total[lane] = 0;
    }
    pack_queries(h, h.q, first + t * WIDE, rows - t * WIDE, s.q + t * s.of_q);
  }
  std::fill(s.sums, s.sums + many * s.of_sums, 0.0f);
  for (int key = 0; key < tiles[many - 1].sees[WIDE - 1]; key += KEYS)
    for (int t = 0; t < many; ++t) {
      const std::int32_t* sees = tiles[t].sees;
      const int keys = padded(std::min(KEYS, sees[WIDE - 1] - key), DEEP);  // no lane of the tile sees those behind
      if (keys <= 0) continue;
      const auto run = keys > sees[0] - key ? block<true> : block<false>;
      run(h.size, key, keys, scale, s.q + t * s.of_q, laid_out(h, room, key), s.scores, s.sums + t * s.of_sums, tiles[t]);
    }
  for (int t = 0; few && t < many; ++t)
    attend_own(h, first + t * WIDE, std::min(WIDE, rows - t * WIDE), scale, s.q + t * s.of_q, s, s.sums + t * s.of_sums,
               tiles[t]);
  const int alone = few ? 0 : h.own;
  for (int lane = 0; lane < rows; lane += LANES) {
    const int count = std::min(LANES, rows - lane), t = lane / WIDE, v = lane % WIDE;
    score_own(h, first + lane, count, alone, s.own);
    finish(h, first + lane, count, alone, scale, s.sums + t * s.of_sums + v, at(tiles[t].one + v), at(tiles[t].total + v), s.own);
  }
}

}  // namespace genrec
