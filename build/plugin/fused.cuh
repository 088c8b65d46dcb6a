// What lies between the matrix products of a layer, one launch each: heads, residual and norm, SwiGLU.
//
// Sums and products are of float, and each result is rounded once. N elements are moved at once, where sizes and
// addresses allow it. No framework here: raw pointers, and `device.cuh` or, on a CPU, `emulate.hpp` below them.
#pragma once

#include "fused_device.cuh"

namespace genrec::fused {

constexpr int WARPS = 4, THREADS = 32 * WARPS, LARGEST = 256;  // of D

struct Heads {
  int positions, heads, kv_heads, size;                                     // X H G D
  long table_request, table_position, kv_request, kv_position, kv_head;  // strides in elements
  float eps;
};

struct Inherit {
  int requests, parents, width, size, token;  // B W' W, elements of the earlier tokens and of one
};

struct HeadTensors {
  const void *product, *q_norm, *k_norm, *cos, *sin;
  void *q, *k, *v;
};

// LANES of a warp: one head of one position, N elements of each half at a time. Grid: (all heads / heads of a block, X, B).
// Half-split rotation: element i turns with i + D/2. Values pass unchanged. No lane leaves before the sum over its head.
template <typename T, int N, int LANES> XATT_FN void turn_head(const Heads& s, const HeadTensors& t) {
  constexpr int STEPS = (LARGEST / 2 + LANES * N - 1) / (LANES * N);
  const int lane = thread_index() % LANES, head = (block_x() * THREADS + thread_index()) / LANES, all = s.heads + 2 * s.kv_heads;
  const bool is_q = head < s.heads, is_v = head >= s.heads + s.kv_heads;
  const int half = s.size / 2, mine = head < all ? half : 0;
  const long row = long(block_z()) * s.positions + block_y(), table = block_z() * s.table_request + block_y() * s.table_position;
  const T* const from = static_cast<const T*>(t.product) + (row * all + head) * s.size;
  const T* const weight = static_cast<const T*>(is_q ? t.q_norm : t.k_norm);
  T* to = static_cast<T*>(t.q) + (row * s.heads + head) * s.size;
  if (!is_q && mine)
    to = static_cast<T*>(is_v ? t.v : t.k) + block_z() * s.kv_request + block_y() * s.kv_position + (head - s.heads) % s.kv_heads * s.kv_head;

  Pack<T, N> first[STEPS] = {}, second[STEPS] = {};
  float total = 0;
  XATT_UNROLL for (int step = 0; step < STEPS; ++step) {
    const int at = (lane + LANES * step) * N;
    if (at >= mine) continue;
    first[step] = load<N>(from + at);
    second[step] = load<N>(from + half + at);
    XATT_UNROLL for (int i = 0; i < N; ++i) {
      const float a = widen(first[step].at[i]), b = widen(second[step].at[i]);
      total += a * a + b * b;
    }
  }
  const float scale = weight ? 1 / sqrtf(sum_among<LANES>(total) / s.size + s.eps) : 1;
  XATT_UNROLL for (int step = 0; step < STEPS; ++step) {
    const int at = (lane + LANES * step) * N;
    if (at >= mine) continue;
    if (!is_v) {
      const Pack<T, N> cos = load<N>(static_cast<const T*>(t.cos) + table + at), sin = load<N>(static_cast<const T*>(t.sin) + table + at);
      XATT_UNROLL for (int i = 0; i < N; ++i) {
        const float a = widen(first[step].at[i]) * scale * (weight ? widen(weight[at + i]) : 1);
        const float b = widen(second[step].at[i]) * scale * (weight ? widen(weight[half + at + i]) : 1);
        first[step].at[i] = narrow<T>(a * widen(cos.at[i]) - b * widen(sin.at[i]));
        second[step].at[i] = narrow<T>(b * widen(cos.at[i]) + a * widen(sin.at[i]));
      }
    }
    store(to + at, first[step]);
    store(to + half + at, second[step]);
  }
}

// One block: one row. x += y, out = x / rms(x) * weight; the norm is of x as it was rounded. Grid: (rows, 1, 1).
template <typename T, int N> XATT_FN void add_norm(int size, T* x, const T* y, const T* weight, T* out, float eps, float* sums) {
  x += long(block_x()) * size;
  if (y) y += long(block_x()) * size;
  out += long(block_x()) * size;
  float total = 0;
  for (int at = thread_index() * N; at < size; at += THREADS * N) {
    Pack<T, N> a = load<N>(x + at);
    if (y) {
      const Pack<T, N> b = load<N>(y + at);
      XATT_UNROLL for (int i = 0; i < N; ++i) a.at[i] = narrow<T>(widen(a.at[i]) + widen(b.at[i]));
      store(x + at, a);
    }
    XATT_UNROLL for (int i = 0; i < N; ++i) total += widen(a.at[i]) * widen(a.at[i]);
  }
  total = sum_of_warp(total);
  if (thread_index() % 32 == 0) sums[thread_index() / 32] = total;
  sync_block();
  total = 0;
  XATT_UNROLL for (int warp = 0; warp < WARPS; ++warp) total += sums[warp];
  const float scale = 1 / sqrtf(total / size + eps);
  for (int at = thread_index() * N; at < size; at += THREADS * N) {
    Pack<T, N> a = load<N>(x + at);  // what this thread has just read or written: it is in the cache
    const Pack<T, N> w = load<N>(weight + at);
    XATT_UNROLL for (int i = 0; i < N; ++i) a.at[i] = narrow<T>(widen(a.at[i]) * scale * widen(w.at[i]));
    store(out + at, a);
  }
}

// silu(gate) * up of one row's part. Grid: (rows, size / (THREADS * N), 1).
template <typename T, int N> XATT_FN void swiglu(int size, const T* x, T* out) {
  const int at = (block_y() * THREADS + thread_index()) * N;
  if (at >= size) return;
  Pack<T, N> gate = load<N>(x + long(block_x()) * 2 * size + at);
  const Pack<T, N> up = load<N>(x + (long(block_x()) * 2 + 1) * size + at);
  XATT_UNROLL for (int i = 0; i < N; ++i) {
    const float g = widen(gate.at[i]);
    gate.at[i] = narrow<T>(g / (1 + expf(-g)) * widen(up.at[i]));
  }
  store(out + long(block_x()) * size + at, gate);
}

// A beam's earlier tokens are its parent's: one row of one plane. Grid: (W, planes, B); see `FusedInherit`.
template <typename T, int N> XATT_FN void inherit(const Inherit& s, const T* from, const int64_t* parents, T* to) {
  const long beam = long(block_z()) * s.width + block_x(), plane = long(block_y()) * s.requests + block_z();
  from += (plane * s.parents + parents[beam]) * s.size;
  to += (plane * s.width + block_x()) * (s.size + s.token);
  for (int at = thread_index() * N; at < s.size; at += THREADS * N) store(to + at, load<N>(from + at));
}

}  // namespace genrec::fused
