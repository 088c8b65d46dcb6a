// What both kernels on tensor cores share: the rows of a block, what a lane knows of two of them, and their ends.
//
// A block takes a tile of rows of one KV head of one request, over its part of the prompt. Fragments are those of
// device.cuh, also in wgmma: of a warp's 16 rows, lane l holds row l / 4 and row l / 4 + 8, in columns
// 8 * n + 2 * (l % 4) and the next. So a warp's rows never leave it, whichever instruction multiplies them.
#pragma once

#ifdef __CUDACC__
#include "device.cuh"
#else
#include "emulate.hpp"
#endif

namespace genrec {

struct Shape {
  int requests, beams, heads, kv_heads, size, span, unshared, splits;  // B W H G D S U
};

struct Tensors {
  const void *q, *shared_k, *shared_v, *unshared_k, *unshared_v;
  const int64_t* prompt_length;
  const void* own_q;    // what reads the unshared tokens, where that is another query than q
  const int64_t* rows;  // [B, W], of unshared [M, U, G, D]: which are a beam's; null: a row each, in their order
  void* out;
  float* partial;  // of splits: per block, its rows of D sums, then as many pairs (maximum, sum of weights)
  int* counter;    // of splits: per tile of rows of a KV head, 0 before and after a launch
};

constexpr float LOG2_E = 1.4426950408889634f;

XATT_FN int ceil_div(int a, int b) { return (a + b - 1) / b; }
XATT_FN constexpr int smaller(int a, int b) { return a < b ? a : b; }

template <typename T> XATT_FN float dot_pair(uint32_t a, uint32_t b) {
  return widen(T{uint16_t(a)}) * widen(T{uint16_t(b)}) + widen(T{uint16_t(a >> 16)}) * widen(T{uint16_t(b >> 16)});
}
template <typename T> XATT_FN uint32_t pair_at(const T* p) { return *reinterpret_cast<const uint32_t*>(p); }

XATT_FN float sum_of_four(float x) {  // over the four lanes that hold one row of a fragment
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}
XATT_FN float top_of_four(float x) {
  x = larger(x, shuffle_xor(x, 1));
  return larger(x, shuffle_xor(x, 2));
}

// Which rows and keys are this block's. Grid: (tiles of rows, G * splits, B).
struct Place {
  int head, split, request, group, heads, rows, first_row, begin, end, stages;
  int row[2];  // this lane's
  long base;   // in heads: row 0 in q and out

  XATT_FN long head_of(int line) const { return base + long(line / group) * heads + line % group; }
};

template <int ROWS, int KEYS> XATT_FN Place place_of(const Shape& s, const Tensors& t) {
  Place p;
  p.head = block_y() % s.kv_heads, p.split = block_y() / s.kv_heads, p.request = block_z();
  p.group = s.heads / s.kv_heads, p.heads = s.heads, p.rows = s.beams * p.group, p.first_row = block_x() * ROWS;
  XATT_UNROLL for (int i = 0; i < 2; ++i) p.row[i] = p.first_row + thread_index() / 32 * 16 + thread_index() % 32 / 4 + 8 * i;
  p.base = long(p.request) * s.beams * s.heads + p.head * p.group;
  const int length = t.prompt_length[p.request] < s.span ? int(t.prompt_length[p.request]) : s.span;
  const int part = ceil_div(ceil_div(length, KEYS), s.splits) * KEYS;
  p.begin = p.split * part, p.end = smaller(length, p.begin + part);
  p.stages = p.begin < p.end ? ceil_div(p.end - p.begin, KEYS) : 0;
  return p;
}

// The A fragments of this lane's two rows of `queries` [B, W, H, D]; zeros for rows that are not there.
template <typename T, int D> XATT_FN void load_queries(uint32_t (&q)[D / 16][4], const Place& p, const void* queries) {
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    const T* const from = static_cast<const T*>(queries) + p.head_of(p.row[i]) * D + 2 * (thread_index() % 4);
    XATT_UNROLL for (int step = 0; step < D / 16; ++step) {
      q[step][i] = p.row[i] < p.rows ? pair_at(from + 16 * step) : 0;
      q[step][2 + i] = p.row[i] < p.rows ? pair_at(from + 16 * step + 8) : 0;
    }
  }
}

// What a lane knows of its rows lane / 4 and lane / 4 + 8: running maximum, sum of weights, weighted sum of v.
template <int D> struct Running {
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, out[D / 8][4] = {};

  // Let `score` be a candidate for the maximum of row `i`; the factor for what was summed under the old one.
  XATT_FN float raise_top(int i, float score) {
    const float former = top[i];
    top[i] = larger(former, score);
    const float shrink = power_of_two(former - top[i]);
    total[i] *= shrink;
    return shrink;
  }
  XATT_FN void shrink_out(int i, float shrink) {
    XATT_UNROLL for (int n = 0; n < D / 8; ++n) {
      out[n][2 * i] *= shrink;
      out[n][2 * i + 1] *= shrink;
    }
  }
  XATT_FN void raise(int i, float score) { shrink_out(i, raise_top(i, score)); }
};

// Which row of the unshared KV is a beam's, of B * W beams.
XATT_FN int unshared_row(const Tensors& t, int beam) { return t.rows ? int(t.rows[beam]) : beam; }

// The beams' own tokens, in the layout the fragments have anyway, before all else, while the prompt's first keys are on their
// way; each split takes its part, the last at least one. Leaves in `q` the queries of the prompt. A token's loads, of both
// rows, come before what uses them, and rows that are not there read the last one's: without a branch all loads are under
// way together.
template <typename T, int D>
XATT_FN void take_unshared(Running<D>& run, uint32_t (&q)[D / 16][4], const Place& p, const Shape& s, const Tensors& t, float scale) {
  load_queries<T, D>(q, p, t.own_q ? t.own_q : t.q);
  const long token = long(s.kv_heads) * D;
  for (int u = s.unshared * p.split / s.splits; u < s.unshared * (p.split + 1) / s.splits; ++u) {
    uint32_t k[2][D / 8], v[2][D / 8];
    XATT_UNROLL for (int i = 0; i < 2; ++i) {
      const int own = unshared_row(t, p.request * s.beams + smaller(p.row[i], p.rows - 1) / p.group);
      const long at = (long(own) * s.unshared + u) * token + p.head * D + 2 * (thread_index() % 4);
      XATT_UNROLL for (int n = 0; n < D / 8; ++n) k[i][n] = pair_at(static_cast<const T*>(t.unshared_k) + at + 8 * n);
      XATT_UNROLL for (int n = 0; n < D / 8; ++n) v[i][n] = pair_at(static_cast<const T*>(t.unshared_v) + at + 8 * n);
    }
    XATT_UNROLL for (int i = 0; i < 2; ++i) {
      float score = 0;
      XATT_UNROLL for (int n = 0; n < D / 8; ++n) score += dot_pair<T>(q[n / 2][i + n % 2 * 2], k[i][n]);
      score = sum_of_four(score) * scale;
      run.raise(i, score);
      const float weight = power_of_two(score - run.top[i]);
      if (thread_index() % 4 == 0) run.total[i] += weight;
      XATT_UNROLL for (int n = 0; n < D / 8; ++n) {
        run.out[n][2 * i] += weight * widen(T{uint16_t(v[i][n])});
        run.out[n][2 * i + 1] += weight * widen(T{uint16_t(v[i][n] >> 16)});
      }
    }
  }
  if (t.own_q) load_queries<T, D>(q, p, t.q);
}

// Without splits: this lane's part of its rows of the output.
template <typename T, int D> XATT_FN void write_rows(const Running<D>& run, const Place& p, const Tensors& t) {
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    if (p.row[i] >= p.rows) continue;
    T* const out = static_cast<T*>(t.out) + p.head_of(p.row[i]) * D + 2 * (thread_index() % 4);
    const float share = 1 / run.total[i];
    XATT_UNROLL for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + 8 * n) = pack<T>(run.out[n][2 * i] * share, run.out[n][2 * i + 1] * share);
  }
}

struct alignas(8) Two { float x[2]; };
struct alignas(8) TwoPairs { uint32_t first, second; };
struct alignas(16) Four { float x[4]; };

// With splits: sums, maximum and sum of weights of this lane's rows, for whichever block merges.
template <int D, int ROWS> XATT_FN void leave_part(const Running<D>& run, const Place& p, float* left) {
  const int pair = 2 * (thread_index() % 4);
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    const int line = p.row[i] - p.first_row;
    XATT_UNROLL for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<Two*>(left + line * D + 8 * n + pair) = {run.out[n][2 * i], run.out[n][2 * i + 1]};
    if (pair == 0) *reinterpret_cast<Two*>(left + ROWS * D + 2 * line) = {run.top[i], run.total[i]};
  }
}

// Add up what the splits of one tile left, `parts` being the first's. A thread takes four columns of every so many rows, of
// several rows and two splits at a time: the time is that of the loads, so many of them must be under way, as many as there
// are registers. From the last split to the first: the last one's maximum is finite, with its beams' own tokens.
template <typename T, int D, int ROWS, int THREADS>
XATT_FN void merge_splits(const Shape& s, const Tensors& t, const float* parts, const Place& p) {
  constexpr int APART = THREADS / (D / 4), LINES = ROWS / APART, AT_ONCE = smaller(LINES, D / 16);
  const int column = thread_index() % (D / 4) * 4;
  for (int first = thread_index() / (D / 4); first < ROWS; first += APART * AT_ONCE) {
    float top[AT_ONCE], total[AT_ONCE] = {};
    Four sum[AT_ONCE] = {};
    XATT_UNROLL for (int i = 0; i < AT_ONCE; ++i) top[i] = -INFINITY;
    XATT_UNROLL_TWO for (int split = s.splits - 1; split >= 0; --split) {
      const float* const left = parts + long(split) * ROWS * (D + 2);
      Four more[AT_ONCE];
      Two ends[AT_ONCE];
      XATT_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
        const int line = first + APART * i;
        more[i] = *reinterpret_cast<const Four*>(left + line * D + column);
        ends[i] = *reinterpret_cast<const Two*>(left + ROWS * D + 2 * line);
      }
      XATT_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
        const float former = top[i];
        top[i] = larger(former, ends[i].x[0]);
        const float shrink = power_of_two(former - top[i]), weight = power_of_two(ends[i].x[0] - top[i]);
        total[i] = total[i] * shrink + ends[i].x[1] * weight;
        XATT_UNROLL for (int c = 0; c < 4; ++c) sum[i].x[c] = sum[i].x[c] * shrink + more[i].x[c] * weight;
      }
    }
    XATT_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      const int row = p.first_row + first + APART * i;
      if (row >= p.rows) continue;
      const float share = 1 / total[i];
      *reinterpret_cast<TwoPairs*>(static_cast<T*>(t.out) + p.head_of(row) * D + column) = {
          pack<T>(sum[i].x[0] * share, sum[i].x[1] * share), pack<T>(sum[i].x[2] * share, sum[i].x[3] * share)};
    }
  }
}

// Write a tile's rows, or leave them to the last of its splits, which merges; by the first THREADS of a block, which hold them.
template <typename T, int D, int ROWS, int THREADS>
XATT_FN void end_rows(Running<D>& run, const Place& p, const Shape& s, const Tensors& t) {
  XATT_UNROLL for (int i = 0; i < 2; ++i) run.total[i] = sum_of_four(run.total[i]);
  if (s.splits == 1) return write_rows<T, D>(run, p, t);
  const long tile = (long(p.request) * s.kv_heads + p.head) * blocks_x() + block_x();
  float* const parts = t.partial + tile * s.splits * ROWS * (D + 2);
  leave_part<D, ROWS>(run, p, parts + long(p.split) * ROWS * (D + 2));
  if (last_to_arrive(t.counter + tile, s.splits, THREADS)) merge_splits<T, D, ROWS, THREADS>(s, t, parts, p);
}

}  // namespace genrec
