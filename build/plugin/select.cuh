// A step of beam search in one launch: constraint, log-softmax over each family, the best W of W' * F candidates.
//
// Every warp scores the children of one beam and leaves a key per candidate. The last block of a request to come that
// far (the soft synchronisation of the attention kernel's splits) finds the key of the last candidate that is kept, by
// radix selection with 8 bits a pass, and writes what is kept in the order of the candidates' places: that is by path.
// Scores and ties are those of `genrec/engine/cuda/beams.py`: score descending, then path ascending.
#pragma once

#include "fused_device.cuh"

namespace genrec::fused {

constexpr int CHOOSING = 512, DIGITS = 256, GROUP = 16;  // threads of a block; values of a digit; digits summed at once
constexpr int32_t LEAST = INT32_MIN;                     // the key of what is no candidate, behind those of all scores

struct Expand {
  int requests, parents, family, size, width;  // B W' F T W
  long nodes;                                   // P
};

struct Level {
  const float* logits;
  const int64_t *pointers, *codes;
  const uint8_t* blocked;
  int32_t* keys;
  int* counters;  // per request: blocks that have come, and whether a logit was bad
};

struct Beams {
  int64_t *paths, *nodes;
  float* scores;
  int64_t* parents;
  uint8_t* bad;
};

struct Choice {  // in shared memory
  int counts[DIGITS * 32];  // by digit and lane: no two lanes of a warp add to one place
  int digits[DIGITS], groups[DIGITS / GROUP], above[CHOOSING / 32], equal[CHOOSING / 32];
  int digit, wanted;
};

// Keys order as float scores do; both ways the same.
XATT_FN int32_t flip(int32_t bits) { return bits < 0 ? bits ^ INT32_MAX : bits; }

// By one warp: the keys of one beam's children. An only child has its parent's score; what is blocked takes its share.
XATT_FN void score_family(const Expand& s, const Level& t, const Beams& from, int request, int parent) {
  const int lane = thread_index() % 32;
  const long beam = long(request) * s.parents + parent;
  const int64_t node = from.nodes[beam];
  const long first = node < 0 ? 0 : t.pointers[node];
  const int count = node < 0 ? 0 : int(t.pointers[node + 1] - first);
  const float* const logits = t.logits + beam * s.size;
  const int64_t* const codes = t.codes + first;
  float best = -INFINITY;
  bool bad = false;
  for (int child = lane; child < count; child += 32) {
    const float x = count == 1 ? 0 : logits[codes[child]];
    bad = bad || !(x < INFINITY);
    best = x > best ? x : best;
  }
  best = top_of_warp(best);
  const bool none = best == -INFINITY;  // a family without probability stays at -inf, not NaN
  const float known = none ? 0 : best;
  double total = 0;
  for (int child = lane; child < count; child += 32) total += expf((count == 1 ? 0 : logits[codes[child]]) - known);
  total = sum_of_warp(total);
  const double shift = known + (none ? 0 : log(total)), before = from.scores[beam];
  const uint8_t* const blocked = t.blocked ? t.blocked + request * s.nodes + first : nullptr;
  for (int child = lane; child < s.family; child += 32) {
    int32_t key = LEAST;
    if (child < count && !(blocked && blocked[child])) {
      const double x = count == 1 ? 0 : logits[codes[child]];
      key = flip(bits_of(float(x - shift + before) + 0.0f));  // no -0.0: equals are equal bits
    }
    t.keys[beam * s.family + child] = key;
  }
  if (bad) t.counters[2 * request + 1] = 1;
}

// By the block: of `count` keys the one at place `wanted` from the top, and how many of its equals are kept.
XATT_FN int32_t last_kept(const int32_t* keys, int count, int& wanted, Choice& m) {
  const int thread = thread_index(), lane = thread % 32;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread; i < DIGITS * 32; i += CHOOSING) m.counts[i] = 0;
    sync_block();
    const uint32_t known = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int i = thread; i < count; i += CHOOSING) {
      const uint32_t key = uint32_t(keys[i]) ^ 1u << 31;  // unsigned, in the same order
      if ((key & known) == prefix) add_shared(&m.counts[(key >> shift) % DIGITS * 32 + lane], 1);
    }
    sync_block();
    if (thread < DIGITS) {
      int sum = 0;
      for (int i = 0; i < 32; ++i) sum += m.counts[thread * 32 + (i + lane) % 32];  // each lane in a bank of its own
      m.digits[thread] = sum;
    }
    sync_block();
    if (thread < DIGITS / GROUP) {
      int sum = 0;
      for (int i = 0; i < GROUP; ++i) sum += m.digits[thread * GROUP + i];
      m.groups[thread] = sum;
    }
    sync_block();
    if (thread < DIGITS) {
      int above = 0;
      for (int i = thread + 1; i % GROUP; ++i) above += m.digits[i];
      for (int i = thread / GROUP + 1; i < DIGITS / GROUP; ++i) above += m.groups[i];
      if (above < wanted && above + m.digits[thread] >= wanted) {
        m.digit = thread;
        m.wanted = wanted - above;
      }
    }
    sync_block();
    prefix |= uint32_t(m.digit) << shift;
    wanted = m.wanted;
  }
  return int32_t(prefix ^ 1u << 31);
}

// Beam `slot` of a request: the candidate at `place`, or a dead one.
XATT_FN void write_beam(const Expand& s, const Level& t, const Beams& from, const Beams& to, int request, int slot, int place, bool alive) {
  const int parent = place / s.family;
  const long beam = long(request) * s.parents + parent, into = long(request) * s.width + slot;
  const int64_t node = from.nodes[beam] < 0 ? 0 : from.nodes[beam];
  const long child = t.pointers[node] + place % s.family, real = child < s.nodes ? child : s.nodes - 1;
  to.paths[into] = from.paths[beam] * s.size + t.codes[real];
  to.nodes[into] = alive ? real : -1;
  to.scores[into] = alive ? float_of(flip(t.keys[beam * s.family + place % s.family])) : -INFINITY;
  to.parents[into] = parent;
}

// By the block: a request's candidates are scored; keep the best. Each warp has a part of them, one behind the other.
XATT_FN void choose(const Expand& s, const Level& t, const Beams& from, const Beams& to, int request, Choice& m) {
  const int lane = thread_index() % 32, warp = thread_index() / 32, count = s.parents * s.family;
  const int32_t* const keys = t.keys + long(request) * count;
  int room = s.width;
  const int32_t last = last_kept(keys, count, room, m);
  if (last == LEAST) room = 0;  // fewer candidates than beams: all are above
  const int part = (count + CHOOSING - 1) / CHOOSING * 32, begin = warp * part, end = begin + part < count ? begin + part : count;
  int above = 0, equal = 0;
  for (int row = begin; row < end; row += 32) {
    const int32_t key = row + lane < end ? keys[row + lane] : LEAST;
    above += bits_set(ballot(key > last));
    equal += bits_set(ballot(key == last));
  }
  m.above[warp] = above;  // the same of all lanes
  m.equal[warp] = equal;
  sync_block();
  int all_above = 0, all_equal = 0;
  above = equal = 0;
  for (int i = 0; i < CHOOSING / 32; ++i) {
    if (i == warp) above = all_above, equal = all_equal;
    all_above += m.above[i];
    all_equal += m.equal[i];
  }
  const uint32_t before = (1u << lane) - 1;
  for (int row = begin; row < end; row += 32) {
    const int32_t key = row + lane < end ? keys[row + lane] : LEAST;
    const uint32_t over = ballot(key > last), same = ballot(key == last);
    const int equals = equal + bits_set(same & before), taken = equals < room ? equals : room;
    if (key > last || (key == last && equals < room))
      write_beam(s, t, from, to, request, above + bits_set(over & before) + taken, row + lane, true);
    above += bits_set(over);
    equal += bits_set(same);
  }
  const int kept = all_above + (all_equal < room ? all_equal : room);
  for (int slot = kept + thread_index(); slot < s.width; slot += CHOOSING) write_beam(s, t, from, to, request, slot, 0, false);
  if (thread_index() == 0) {
    to.bad[request] = from.bad[request] || t.counters[2 * request + 1];
    t.counters[2 * request + 1] = 0;
  }
}

// Grid: (W' / warps, 1, B).
XATT_FN void expand(const Expand& s, const Level& t, const Beams& from, const Beams& to, Choice& m) {
  const int request = block_z(), parent = block_x() * (CHOOSING / 32) + thread_index() / 32;
  if (parent < s.parents) score_family(s, t, from, request, parent);
  if (last_to_arrive(t.counters + 2 * request, blocks_x(), CHOOSING)) choose(s, t, from, to, request, m);
}

}  // namespace genrec::fused
