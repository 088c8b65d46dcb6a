// Attention of a decode step: all beams of a request over one shared prompt (xGR, section 5.2), in one launch.
//
// q, out [B, W, H, D]; shared k, v [B, G, S, D]; unshared k, v [B, W, U, G, D]; prompt_length int64 [B]. Of a ranking the
// beams are candidates, and the unshared KV is a table [M, U, G, D] of items' with a row for each, read by queries turned to
// their places in an item (BAT, section 4).
// H = G * R query heads: KV head g serves heads g * R .. g * R + R - 1. A ROW is a (beam, head of g) pair, W * R of them.
//
// `attend` (16-bit types, D of 16, 32, 64, 128): a block of four warps takes 64 rows of one KV head and walks over the
// prompt's KV once for all of them, on tensor cores; the KV is read W * R / 64 times rather than W * R. Each row also takes
// its beam's few unshared tokens, into the same running maximum and sum (online softmax). With `splits` > 1
// the prompt is cut among as many blocks, and the last of them to finish merges (the paper's soft synchronisation,
// without waiting). `attend_by_row` (any type, D up to 256) takes one row per warp: for fp32 and odd head sizes.
//
// No framework here: raw pointers, and `device.cuh` or, on a CPU, `emulate.hpp` below it.
#pragma once

#include "rows.cuh"

namespace genrec {

constexpr int WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS, KEYS = 32;

template <typename T, int D> struct Tile {
  // 8 elements of padding put the 8 rows of a matrix load into different banks; two stages of k and v.
  static constexpr int STRIDE = D + 8, ELEMENTS = KEYS * STRIDE, BYTES = 4 * ELEMENTS * int(sizeof(T));
  static constexpr int BLOCKS = D > 64 ? 3 : D > 32 ? 4 : 5;  // on a multiprocessor: what a block may take of its registers
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

// One block: 64 rows of one KV head of one request, over its part of the prompt. Grid: (rows / 64, G * splits, B).
template <typename T, int D> XATT_FN void attend(const Shape& s, const Tensors& t, void* memory) {
  using Stage = Tile<T, D>;
  const Place p = place_of<ROWS, KEYS>(s, t);
  const float scale = LOG2_E / sqrtf(float(D));
  uint32_t q[D / 16][4];
  const long head = (long(p.request) * s.kv_heads + p.head) * s.span * D;
  const T *const shared_k = static_cast<const T*>(t.shared_k) + head, *const shared_v = static_cast<const T*>(t.shared_v) + head;
  T* const tile = static_cast<T*>(memory);
  Running<D> run;
  if (p.stages) stage_keys<T, D>(tile, tile + Stage::ELEMENTS, shared_k, shared_v, p.begin, p.end);
  copies_close();
  take_unshared<T, D>(run, q, p, s, t, scale);
  for (int n = 0; n < p.stages; ++n) {
    T* const here = tile + n % 2 * 2 * Stage::ELEMENTS;
    T* const next = tile + (n + 1) % 2 * 2 * Stage::ELEMENTS;
    if (n + 1 < p.stages) stage_keys<T, D>(next, next + Stage::ELEMENTS, shared_k, shared_v, p.begin + (n + 1) * KEYS, p.end);
    copies_close();  // an empty group at the end keeps the count of groups the same
    copies_wait<1>();
    sync_block();
    take_stage<T, D>(run, q, here, here + Stage::ELEMENTS, p.begin + n * KEYS, p.end, scale);
    sync_block();  // nobody may still read what the next copies overwrite
  }
  end_rows<T, D, ROWS, THREADS>(run, p, s, t);
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
  const long own = long(unshared_row(t, request * s.beams + beam)) * s.unshared;
  float q[LARGEST / 32], out[LARGEST / 32] = {}, top = -INFINITY, total = 0;
  const auto load = [&](const void* queries) {
    XATT_UNROLL for (int e = 0; e < LARGEST / 32; ++e)
      q[e] = lane + 32 * e < s.size ? widen(static_cast<const T*>(queries)[at + lane + 32 * e]) * scale : 0;
  };
  load(t.q);
  for (int n = 0; n < length + s.unshared; ++n) {
    const bool shared = n < length;
    if (n == length && t.own_q) load(t.own_q);
    const long from = shared ? ((long(request) * s.kv_heads + head) * s.span + n) * s.size
                             : ((own + n - length) * s.kv_heads + head) * s.size;
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
