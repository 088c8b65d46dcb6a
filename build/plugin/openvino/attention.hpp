// Attention of many queries over one shared prompt and over a few keys of their own, for one KV head (xGR, section 5.2).
//
// A tile is WIDE queries, a lane each. Scores stand as [key][lane], so that softmax works down the keys, lane by lane, and
// queries are the right operand of the first product, weights of the second (panels.hpp, tiles.hpp). Keys come in blocks
// whose scores stay in the first cache; online softmax merges blocks. Own keys of all beams of a tile, or of several, are
// such blocks too, of which a lane sees those of its beam.
#pragma once

#include <cmath>

#include "head.hpp"

namespace genrec {

constexpr int ROWS = TILES * WIDE;

// Work arrays of one thread.
class Scratch {
 public:
  float *q, *sums, *scores;   // [TILES][D / WORD][lane], [TILES][D][lane], [KEYS][lane] and later weights
  std::size_t of_q, of_sums;  // floats of a tile
  Value* room;                // own keys and values of a tile's beams, as they are laid out

  void fit(int size, int own, int rows_of_beam) {
    of_q = std::size_t(padded(size, LANES * WORD) / WORD) * WIDE;
    of_sums = std::size_t(padded(size, LANES)) * WIDE;
    q = memory_.of<float>(TILES * (of_q + of_sums) + KEYS * WIDE);
    sums = q + TILES * of_q;
    scores = sums + TILES * of_sums;
    room = own ? own_.of<Value>(room_of(size, (WIDE / rows_of_beam + 2) * own, true)) : nullptr;
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

// Rows of so many tiles, from `first` on, and the own keys of their beams. A tile's queries are in `q`, its sums in `sums`.
inline void attend_own(const Head<Value>& h, int first, int rows, float scale, float* q, Scratch& s, float* sums, Tile* tiles) {
  const int beam = h.beam(first), many = (rows + WIDE - 1) / WIDE;
  const Head<Value> own = h.own_keys(beam, h.beams(first, rows));
  for (int t = 0; t < many; ++t) {
    for (int lane = 0; lane < WIDE; ++lane) {
      const int row = first + std::min(t * WIDE + lane, rows - 1);
      tiles[t].from[lane] = (h.beam(row) - beam) * h.own;
      tiles[t].sees[lane] = tiles[t].from[lane] + h.sees_own(row);
    }
    if (h.own_q != h.q) pack_queries(h, h.own_q, first + t * WIDE, rows - t * WIDE, q + t * s.of_q);
  }
  for (int key = 0; key < own.past; key += KEYS) {
    lay_out(own, key, s.room);
    for (int t = 0; t < many; ++t)
      block<true>(h.size, key, padded(std::min(KEYS, own.past - key), DEEP), scale, q + t * s.of_q,
                  laid_out(own, s.room, key), s.scores, sums + t * s.of_sums, tiles[t]);
  }
}

// A vector of a tile's rows, from `first` on: divided by the sum of their weights, and written.
inline void finish(const Head<Value>& h, int first, int rows, const float* sums, Vec total) {
  const Vec once = 1.0f / total;
  for (int d = 0; d < h.size; d += LANES) {
    Words each[LANES];
#pragma GCC unroll 16
    for (int row = 0; row < LANES; ++row) each[row] = (Words)(at(sums + (d + row) * WIDE) * once);
    transpose(each);
    for (int lane = 0; lane < rows; ++lane) put(h.out + h.place(first + lane) + d, (Vec)each[lane], h.size - d);
  }
}

// Attention of the rows from `first` on, ROWS or fewer, over what is laid out in `room`.
inline void attend(const Head<Value>& h, const Value* room, int first) {
  thread_local Scratch s;
  s.fit(h.size, h.own, h.group * h.each);
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
  // One operand of own keys serves all tiles; of more keys than that, a tile meets its own alone.
  const int together = h.beams(first, rows) * h.own <= DEEP ? TILES : 1;
  for (int t = 0; h.own && t < many; t += together)
    attend_own(h, first + t * WIDE, std::min(together * WIDE, rows - t * WIDE), scale, s.q + t * s.of_q, s,
               s.sums + t * s.of_sums, tiles + t);
  for (int t = 0; t < many; ++t) {
    const int from = first + t * WIDE, count = std::min(WIDE, rows - t * WIDE);
    const float* sums = s.sums + t * s.of_sums;
    for (int v = 0; v < count; v += LANES) finish(h, from + v, std::min(LANES, count - v), sums + v, at(tiles[t].total + v));
  }
}

}  // namespace genrec
