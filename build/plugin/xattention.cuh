// Attention of a decode step: all beams of a request over one shared prompt (xGR, section 5.2), in one launch.
//
// q, out [B, W, H, D]; shared k, v [B, G, S, D]; unshared k, v [B, W, U, G, D]; prompt_length int64 [B].
// H = G * R query heads: KV head g serves heads g * R .. g * R + R - 1. A ROW is a (beam, head of g) pair, W * R of them.
//
// `attend` (16-bit types, D of 16, 32, 64, 128): a block of four warps takes 64 rows of one KV head and walks over the
// prompt's KV once for all of them, on tensor cores; the KV is read W * R / 64 times rather than W * R. Then each row
// takes its beam's few unshared tokens, merged into the same running maximum and sum (online softmax). With `splits` > 1
// the prompt is cut among as many blocks, and the last of them to finish merges (the paper's soft synchronisation,
// without waiting). `attend_by_row` (any type, D up to 256) takes one row per warp: for fp32 and odd head sizes.
//
// No framework here: raw pointers, and `device.cuh` or, on a CPU, `emulate.hpp` below it.
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
  void* out;
  float* partial;  // of splits: per block, 64 rows of D sums, then 64 pairs (maximum, sum of weights)
  int* counter;    // of splits: per 64 rows of a KV head, 0 before and after a launch
};

constexpr int WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS, KEYS = 32;
constexpr float LOG2_E = 1.4426950408889634f;

XATT_FN int ceil_div(int a, int b) { return (a + b - 1) / b; }
XATT_FN int smaller(int a, int b) { return a < b ? a : b; }
XATT_FN float larger(float a, float b) { return a > b ? a : b; }

template <typename T> XATT_FN uint32_t pack(float first, float second) {
  return narrow<T>(first).bits | uint32_t(narrow<T>(second).bits) << 16;
}
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

template <typename T, int D> struct Tile {
  // 8 elements of padding put the 8 rows of a matrix load into different banks; two stages of k and v.
  static constexpr int STRIDE = D + 8, ELEMENTS = KEYS * STRIDE, BYTES = 4 * ELEMENTS * int(sizeof(T));
};

// Start copying keys `first` .. `first` + KEYS - 1 (zeros from `end` on) of one head into one stage.
template <typename T, int D>
XATT_FN void stage_keys(T* k, T* v, const T* shared_k, const T* shared_v, int first, int end) {
  for (int i = thread_index(); i < KEYS * D / 8; i += THREADS) {
    const int key = i / (D / 8), column = i % (D / 8) * 8;
    const bool real = first + key < end;
    const long from = real ? long(first + key) * D + column : 0;
    copy_16(k + key * Tile<T, D>::STRIDE + column, shared_k + from, real);
    copy_16(v + key * Tile<T, D>::STRIDE + column, shared_v + from, real);
  }
}

// What a lane knows of its rows lane / 4 and lane / 4 + 8: running maximum, sum of weights, weighted sum of v.
template <int D> struct Running {
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, out[D / 8][4] = {};

  // Let `score` be a candidate for the maximum of row `i`; the factor for what was summed under the old one.
  XATT_FN void raise(int i, float score) {
    const float former = top[i];
    top[i] = larger(former, score);
    const float shrink = power_of_two(former - top[i]);
    total[i] *= shrink;
    XATT_UNROLL for (int n = 0; n < D / 8; ++n) {
      out[n][2 * i] *= shrink;
      out[n][2 * i + 1] *= shrink;
    }
  }
};

// One stage of keys: scores on tensor cores, online softmax, weighted values on tensor cores.
template <typename T, int D>
XATT_FN void take_stage(Running<D>& run, const uint32_t (&q)[D / 16][4], const T* k, const T* v, int first, int end, float scale) {
  constexpr int STRIDE = Tile<T, D>::STRIDE;
  const int lane = thread_index() % 32, matrix = lane / 8, line = lane % 8, pair = 2 * (lane % 4);
  float score[KEYS / 8][4] = {};
  XATT_UNROLL for (int step = 0; step < D / 16; ++step) {
    XATT_UNROLL for (int m = 0; m < KEYS / 16; ++m) {
      uint32_t b[4];
      load_matrices(b, k + (16 * m + matrix / 2 * 8 + line) * STRIDE + 16 * step + matrix % 2 * 8);
      mma<T>(score[2 * m], q[step], b[0], b[1]);
      mma<T>(score[2 * m + 1], q[step], b[2], b[3]);
    }
  }
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    float top = -INFINITY;
    XATT_UNROLL for (int n = 0; n < KEYS / 8; ++n) {
      XATT_UNROLL for (int c = 0; c < 2; ++c) {
        float& x = score[n][2 * i + c];
        x = first + 8 * n + pair + c < end ? x * scale : -INFINITY;
        top = larger(top, x);
      }
    }
    run.raise(i, top_of_four(top));  // a stage has at least one real key, so this is finite
    XATT_UNROLL for (int n = 0; n < KEYS / 8; ++n) {
      XATT_UNROLL for (int c = 0; c < 2; ++c) {
        float& x = score[n][2 * i + c];
        x = power_of_two(x - run.top[i]);
        run.total[i] += x;  // of this lane's keys; the four lanes of a row are added up at the end
      }
    }
  }
  XATT_UNROLL for (int step = 0; step < KEYS / 16; ++step) {
    const float(&low)[4] = score[2 * step];
    const float(&high)[4] = score[2 * step + 1];
    const uint32_t weight[4] = {pack<T>(low[0], low[1]), pack<T>(low[2], low[3]), pack<T>(high[0], high[1]), pack<T>(high[2], high[3])};
    XATT_UNROLL for (int m = 0; m < D / 16; ++m) {
      uint32_t b[4];
      load_matrices_transposed(b, v + (16 * step + matrix % 2 * 8 + line) * STRIDE + 16 * m + matrix / 2 * 8);
      mma<T>(run.out[2 * m], weight, b[0], b[1]);
      mma<T>(run.out[2 * m + 1], weight, b[2], b[3]);
    }
  }
}

// The beam's own tokens of row `i`, `at` being [beam, token 0, head] in k and v; in the layout the fragments have anyway.
template <typename T, int D>
XATT_FN void take_unshared(Running<D>& run, int i, const uint32_t (&q)[D / 16][4], const T* k, const T* v, long at, const Shape& s, bool real, float scale) {
  const int pair = 2 * (thread_index() % 4);
  for (int u = 0; u < s.unshared; ++u, at += long(s.kv_heads) * D) {
    float score = 0;
    if (real) {
      XATT_UNROLL for (int step = 0; step < D / 16; ++step)
        score += dot_pair<T>(q[step][i], pair_at(k + at + 16 * step + pair)) +
                 dot_pair<T>(q[step][2 + i], pair_at(k + at + 16 * step + 8 + pair));
    }
    score = sum_of_four(score) * scale;
    run.raise(i, score);
    const float weight = power_of_two(score - run.top[i]);
    run.total[i] += weight;
    if (!real) continue;
    XATT_UNROLL for (int n = 0; n < D / 8; ++n) {
      const uint32_t two = pair_at(v + at + 8 * n + pair);
      run.out[n][2 * i] += weight * widen(T{uint16_t(two)});
      run.out[n][2 * i + 1] += weight * widen(T{uint16_t(two >> 16)});
    }
  }
}

// Add up what the splits of one tile left; the whole block, every thread two neighbours of a row at a time.
template <typename T, int D>
XATT_FN void merge_splits(const Shape& s, const Tensors& t, long first_part, int rows, int first_row, long base) {
  const int group = s.heads / s.kv_heads;
  for (int i = thread_index(); i < smaller(ROWS, rows - first_row) * D / 2; i += THREADS) {
    const int line = i / (D / 2), column = i % (D / 2) * 2;
    float top = -INFINITY, total = 0, first = 0, second = 0;
    for (int part = 0; part < s.splits; ++part)
      top = larger(top, t.partial[(first_part + part) * ROWS * (D + 2) + ROWS * D + 2 * line]);
    for (int part = 0; part < s.splits; ++part) {
      const float* left = t.partial + (first_part + part) * ROWS * (D + 2);
      const float weight = power_of_two(left[ROWS * D + 2 * line] - top);
      total += weight * left[ROWS * D + 2 * line + 1];
      first += weight * left[line * D + column];
      second += weight * left[line * D + column + 1];
    }
    const int row = first_row + line;
    const long to = (base + long(row / group) * s.heads + row % group) * D + column;
    *reinterpret_cast<uint32_t*>(static_cast<T*>(t.out) + to) = pack<T>(first / total, second / total);
  }
}

// One block: 64 rows of one KV head of one request, over its part of the prompt. Grid: (rows / 64, G * splits, B).
template <typename T, int D> XATT_FN void attend(const Shape& s, const Tensors& t, void* memory) {
  using Stage = Tile<T, D>;
  const int lane = thread_index() % 32, pair = 2 * (lane % 4);
  const int head = block_y() % s.kv_heads, split = block_y() / s.kv_heads, request = block_z();
  const int group = s.heads / s.kv_heads, rows = s.beams * group, first_row = block_x() * ROWS;
  const int row[2] = {first_row + thread_index() / 32 * 16 + lane / 4, first_row + thread_index() / 32 * 16 + lane / 4 + 8};
  const long base = long(request) * s.beams * s.heads + head * group;  // in heads: row 0 in q and out
  const float scale = LOG2_E / sqrtf(float(D));

  uint32_t q[D / 16][4];
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    const long at = (base + long(row[i] / group) * s.heads + row[i] % group) * D + pair;
    XATT_UNROLL for (int step = 0; step < D / 16; ++step) {
      q[step][i] = row[i] < rows ? pair_at(static_cast<const T*>(t.q) + at + 16 * step) : 0;
      q[step][2 + i] = row[i] < rows ? pair_at(static_cast<const T*>(t.q) + at + 16 * step + 8) : 0;
    }
  }

  const int length = t.prompt_length[request] < s.span ? int(t.prompt_length[request]) : s.span;
  const int part = ceil_div(ceil_div(length, KEYS), s.splits) * KEYS;
  const int begin = split * part, end = smaller(length, begin + part);
  const int stages = begin < end ? ceil_div(end - begin, KEYS) : 0;
  const T* shared_k = static_cast<const T*>(t.shared_k) + (long(request) * s.kv_heads + head) * s.span * D;
  const T* shared_v = static_cast<const T*>(t.shared_v) + (long(request) * s.kv_heads + head) * s.span * D;
  T* const tile = static_cast<T*>(memory);
  Running<D> run;
  if (stages) stage_keys<T, D>(tile, tile + Stage::ELEMENTS, shared_k, shared_v, begin, end);
  copies_close();
  for (int n = 0; n < stages; ++n) {
    T* const here = tile + n % 2 * 2 * Stage::ELEMENTS;
    T* const next = tile + (n + 1) % 2 * 2 * Stage::ELEMENTS;
    if (n + 1 < stages) stage_keys<T, D>(next, next + Stage::ELEMENTS, shared_k, shared_v, begin + (n + 1) * KEYS, end);
    copies_close();  // an empty group at the end keeps the count of groups the same
    copies_wait<1>();
    sync_block();
    take_stage<T, D>(run, q, here, here + Stage::ELEMENTS, begin + n * KEYS, end, scale);
    sync_block();  // nobody may still read what the next copies overwrite
  }
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    run.total[i] = sum_of_four(run.total[i]);
    if (split < s.splits - 1) continue;
    const long own = ((long(request) * s.beams + row[i] / group) * s.unshared * s.kv_heads + head) * D;
    take_unshared<T, D>(run, i, q, static_cast<const T*>(t.unshared_k), static_cast<const T*>(t.unshared_v), own, s, row[i] < rows, scale);
  }

  if (s.splits == 1) {
    XATT_UNROLL for (int i = 0; i < 2; ++i) {
      if (row[i] >= rows) continue;
      T* const out = static_cast<T*>(t.out) + (base + long(row[i] / group) * s.heads + row[i] % group) * D + pair;
      XATT_UNROLL for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<uint32_t*>(out + 8 * n) = pack<T>(run.out[n][2 * i] / run.total[i], run.out[n][2 * i + 1] / run.total[i]);
    }
    return;
  }
  const long place = (long(request) * s.kv_heads + head) * blocks_x() + block_x();
  float* const left = t.partial + (place * s.splits + split) * ROWS * (D + 2);
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    const int line = row[i] - first_row;
    XATT_UNROLL for (int n = 0; n < D / 8; ++n) {
      left[line * D + 8 * n + pair] = run.out[n][2 * i];
      left[line * D + 8 * n + pair + 1] = run.out[n][2 * i + 1];
    }
    if (pair == 0) {
      left[ROWS * D + 2 * line] = run.top[i];
      left[ROWS * D + 2 * line + 1] = run.total[i];
    }
  }
  if (last_to_arrive(t.counter + place, s.splits)) merge_splits<T, D>(s, t, place * s.splits, rows, first_row, base);
}

constexpr int LARGEST = 256;  // D of `attend_by_row`, 8 elements for each lane

// One warp: one beam's one head, key after key. Grid: (W * H / WARPS, 1, B).
template <typename T> XATT_FN void attend_by_row(const Shape& s, const Tensors& t) {
  const int lane = thread_index() % 32, place = block_x() * WARPS + thread_index() / 32, request = block_z();
  if (place >= s.beams * s.heads) return;
  const int beam = place / s.heads, head = place % s.heads / (s.heads / s.kv_heads);
  const float scale = LOG2_E / sqrtf(float(s.size));
  const long at = (long(request) * s.beams * s.heads + place) * s.size;
  const int length = t.prompt_length[request] < s.span ? int(t.prompt_length[request]) : s.span;
  float q[LARGEST / 32], out[LARGEST / 32] = {}, top = -INFINITY, total = 0;
  XATT_UNROLL for (int e = 0; e < LARGEST / 32; ++e)
    q[e] = lane + 32 * e < s.size ? widen(static_cast<const T*>(t.q)[at + lane + 32 * e]) * scale : 0;
  for (int n = 0; n < length + s.unshared; ++n) {
    const bool shared = n < length;
    const long from = shared ? ((long(request) * s.kv_heads + head) * s.span + n) * s.size
                             : (((long(request) * s.beams + beam) * s.unshared + n - length) * s.kv_heads + head) * s.size;
    const T* const k = static_cast<const T*>(shared ? t.shared_k : t.unshared_k) + from;
    const T* const v = static_cast<const T*>(shared ? t.shared_v : t.unshared_v) + from;
    float score = 0;
    XATT_UNROLL for (int e = 0; e < LARGEST / 32; ++e)
      if (lane + 32 * e < s.size) score += q[e] * widen(k[lane + 32 * e]);
    XATT_UNROLL for (int mask = 16; mask; mask /= 2) score += shuffle_xor(score, mask);
    const float former = top;
    top = larger(top, score);
    const float shrink = power_of_two(former - top), weight = power_of_two(score - top);
    total = total * shrink + weight;
    XATT_UNROLL for (int e = 0; e < LARGEST / 32; ++e)
      if (lane + 32 * e < s.size) out[e] = out[e] * shrink + weight * widen(v[lane + 32 * e]);
  }
  XATT_UNROLL for (int e = 0; e < LARGEST / 32; ++e)
    if (lane + 32 * e < s.size) static_cast<T*>(t.out)[at + lane + 32 * e] = narrow<T>(out[e] / total);
}

}  // namespace genrec
