// Attention of a decode step on Hopper (compute capability 9.0): the tensors of xattention.cuh, types of 16 bits, D of 64
// and 128, and rows enough for tiles of 128. In the manner of FlashAttention-3.
//
// A block has two warpgroups of 64 rows each, and a third of which one warp feeds them. The feeder's TMA fills a ring of
// STAGES stages, each a tile of 128 keys and one of 128 values; mbarriers tell when a tile is full, and when both warpgroups
// have left it. A warpgroup holds q, the weights of a stage and its sums in registers. It issues the scores of a stage and
// the sums over the one before together, and computes the softmax of the former while the latter go on. The two warpgroups
// issue in turns, so that one has the tensor cores while the other computes its softmax.
//
// Stages are taken from the last to the first. So the one that the prompt may end in comes before the loop, and the loop
// has no mask. TMA reads beyond a prompt's end what memory holds there: those scores are masked, those values zeroed.
#pragma once

#include "rows.cuh"
#ifdef __CUDACC__
#include "hopper_device.cuh"
#else
#include "emulate_hopper.hpp"
#endif

namespace genrec {

constexpr int HOPPER_ROWS = 128, HOPPER_KEYS = 128, STAGES = 3;
constexpr int CONSUMERS = 256, HOPPER_THREADS = CONSUMERS + 128;  // registers are handed over between warpgroups
constexpr int PANEL = HOPPER_KEYS * 128;  // bytes: 64 columns of a tile, each row 128 bytes, as the swizzle wants them
constexpr int TURN = 2;                   // named barriers: 1 is of all consumers, 2 and 3 of each warpgroup's turn

// In shared memory. A tile [128 keys, D] is D / 64 panels [128 keys, 64], swizzled; the memory is aligned to 1024 bytes.
template <int D> struct Stages {
  static constexpr int TILE = D / 64 * PANEL, ARRIVALS = 4 * STAGES;
  static constexpr int BYTES = 2 * STAGES * TILE + ARRIVALS * int(sizeof(Arrivals));
  unsigned char* memory;

  XATT_FN unsigned char* keys(int n) const { return memory + 2 * (n % STAGES) * TILE; }
  XATT_FN unsigned char* values(int n) const { return keys(n) + TILE; }
  XATT_FN Arrivals* arrivals(int n) const { return reinterpret_cast<Arrivals*>(memory + 2 * STAGES * TILE) + 4 * (n % STAGES); }
  XATT_FN Arrivals* full_keys(int n) const { return arrivals(n); }
  XATT_FN Arrivals* full_values(int n) const { return arrivals(n) + 1; }
  XATT_FN Arrivals* empty_keys(int n) const { return arrivals(n) + 2; }
  XATT_FN Arrivals* empty_values(int n) const { return arrivals(n) + 3; }
  static XATT_FN int parity(int n) { return n / STAGES % 2; }
};

// A wgmma descriptor of B in shared memory with a swizzle of 128 bytes; `leading` and `stride` in bytes, below.
XATT_FN uint64_t describe(uint32_t address, int leading, int stride) {
  return uint64_t(1) << 62 | uint64_t(stride >> 4) << 32 | uint64_t(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// score [64, 128 keys] = q k^T. A step of 16 columns is 32 bytes of a panel's rows; 8 keys are 1024 bytes.
template <typename T, int D>
XATT_FN void score_keys(float (&score)[HOPPER_KEYS / 8][4], const uint32_t (&q)[D / 16][4], const unsigned char* keys) {
  const uint32_t tile = shared_address(keys);
  XATT_UNROLL for (int step = 0; step < D / 16; ++step)
    wgmma<T, false>(score, q[step], describe(tile + step / 4 * PANEL + step % 4 * 32, 16, 1024), step > 0);
}

// out [64, D] += weight v. A step of 16 keys is 2048 bytes of a panel, 8 keys 1024; the next 64 columns are in the next panel.
template <typename T, int D>
XATT_FN void add_values(float (&out)[D / 8][4], const uint32_t (&weight)[HOPPER_KEYS / 16][4], const unsigned char* values) {
  const uint32_t tile = shared_address(values);
  XATT_UNROLL for (int step = 0; step < HOPPER_KEYS / 16; ++step)
    wgmma<T, true>(out, weight[step], describe(tile + step * 2048, PANEL, 1024), true);
}

// Scores of keys from `real` on, of a stage, are none.
XATT_FN void mask_keys(float (&score)[HOPPER_KEYS / 8][4], int real) {
  const int pair = 2 * (thread_index() % 4);
  XATT_UNROLL for (int n = 0; n < HOPPER_KEYS / 8; ++n) {
    XATT_UNROLL for (int i = 0; i < 4; ++i)
      if (8 * n + pair + i % 2 >= real) score[n][i] = -INFINITY;
  }
}

// Values of keys from `real` on are 0: their weight is, but memory may hold NaN there. All consumers; a row of a panel is
// zeroed as a whole, so the swizzle does not matter.
template <int D> XATT_FN void zero_values(unsigned char* values, int real) {
  struct alignas(16) Chunk { uint32_t words[4]; };
  for (int i = thread_index(); i < D / 64 * (HOPPER_KEYS - real) * 8; i += CONSUMERS) {
    const int panel = i / (8 * (HOPPER_KEYS - real)), rest = i % (8 * (HOPPER_KEYS - real));
    reinterpret_cast<Chunk*>(values + panel * PANEL + real * 128)[rest] = Chunk{};
  }
  show_to_engines();
  sync_at(1, CONSUMERS);
}

// Online softmax of a stage: scores become weights; `shrink` is what the sums of former stages have yet to be multiplied by.
template <int D>
XATT_FN void soften(Running<D>& run, float (&score)[HOPPER_KEYS / 8][4], float (&shrink)[2], float scale) {
  XATT_UNROLL for (int i = 0; i < 2; ++i) {
    float top = -INFINITY;
    XATT_UNROLL for (int n = 0; n < HOPPER_KEYS / 8; ++n) top = larger(top, larger(score[n][2 * i], score[n][2 * i + 1]));
    shrink[i] = run.raise_top(i, top_of_four(top) * scale);  // a stage has at least one real key, so this is finite
    XATT_UNROLL for (int n = 0; n < HOPPER_KEYS / 8; ++n) {
      XATT_UNROLL for (int c = 0; c < 2; ++c) {
        float& x = score[n][2 * i + c];
        x = power_of_two(x * scale - run.top[i]);
        run.total[i] += x;  // of this lane's keys; the four lanes of a row are added up at the end
      }
    }
  }
}

// Weights as the A fragments of 16 keys a step: an accumulator's columns lie as an A fragment's do.
template <typename T> XATT_FN void pack_weights(uint32_t (&weight)[HOPPER_KEYS / 16][4], const float (&score)[HOPPER_KEYS / 8][4]) {
  XATT_UNROLL for (int step = 0; step < HOPPER_KEYS / 16; ++step) {
    XATT_UNROLL for (int i = 0; i < 4; ++i)
      weight[step][i] = pack<T>(score[2 * step + i / 2][i % 2 * 2], score[2 * step + i / 2][i % 2 * 2 + 1]);
  }
}

// The feeding warp: stage n of p.stages, counted from the last, into the ring as soon as it is left.
template <int D> XATT_FN void feed(const Stages<D>& ring, const Place& p, const Shape& s, const TensorMap* k, const TensorMap* v) {
  const bool one = thread_index() % 32 == 0;
  const int plane = p.request * s.kv_heads + p.head;
  for (int n = 0; n < p.stages; ++n) {
    const int first = p.begin + (p.stages - 1 - n) * HOPPER_KEYS;
    wait_for(ring.empty_keys(n), 1 - ring.parity(n));
    if (one) {
      arrive_before_bytes(ring.full_keys(n), ring.TILE);
      for (int panel = 0; panel < D / 64; ++panel)
        copy_box(ring.keys(n) + panel * PANEL, k, 64 * panel, first, plane, ring.full_keys(n));
    }
    wait_for(ring.empty_values(n), 1 - ring.parity(n));
    if (one) {
      arrive_before_bytes(ring.full_values(n), ring.TILE);
      for (int panel = 0; panel < D / 64; ++panel)
        copy_box(ring.values(n) + panel * PANEL, v, 64 * panel, first, plane, ring.full_values(n));
    }
  }
}

// This warp has left a tile.
XATT_FN void leave(Arrivals* empty) {
  if (thread_index() % 32 == 0) arrive(empty);
}

// A warpgroup's way over the stages; `run` has then summed up all of them.
template <typename T, int D>
XATT_FN void consume(Running<D>& run, const uint32_t (&q)[D / 16][4], const Stages<D>& ring, const Place& p, float scale) {
  const int mine = thread_index() / 128, other = 1 - mine, real = p.end - p.begin - (p.stages - 1) * HOPPER_KEYS;
  float score[HOPPER_KEYS / 8][4], shrink[2];
  uint32_t weight[HOPPER_KEYS / 16][4];

  wait_for(ring.full_keys(0), 0);
  wgmma_begin();
  score_keys<T, D>(score, q, ring.keys(0));
  wgmma_close();
  wgmma_wait<0>();
  settle(score);
  leave(ring.empty_keys(0));
  mask_keys(score, real);
  soften(run, score, shrink, scale);
  XATT_UNROLL for (int i = 0; i < 2; ++i) run.shrink_out(i, shrink[i]);
  pack_weights<T>(weight, score);
  wait_for(ring.full_values(0), 0);
  if (real < HOPPER_KEYS) zero_values<D>(ring.values(0), real);

  for (int n = 1; n < p.stages; ++n) {
    wait_for(ring.full_keys(n), ring.parity(n));
    if (mine == 1 || n > 1) sync_at(TURN + mine, CONSUMERS);  // the first warpgroup begins
    wgmma_begin();
    score_keys<T, D>(score, q, ring.keys(n));
    wgmma_close();
    add_values<T, D>(run.out, weight, ring.values(n - 1));
    wgmma_close();
    if (mine == 0 || n + 1 < p.stages) arrive_at(TURN + other, CONSUMERS);
    wgmma_wait<1>();
    settle(score);
    leave(ring.empty_keys(n));
    soften(run, score, shrink, scale);
    wait_for(ring.full_values(n), ring.parity(n));  // here, a loop: ptxas would move the wait below to before the softmax
    wgmma_wait<0>();
    settle(run.out);
    leave(ring.empty_values(n - 1));
    XATT_UNROLL for (int i = 0; i < 2; ++i) run.shrink_out(i, shrink[i]);
    pack_weights<T>(weight, score);
  }
  const int last = p.stages - 1;
  wgmma_begin();
  add_values<T, D>(run.out, weight, ring.values(last));
  wgmma_close();
  wgmma_wait<0>();
  settle(run.out);
}

// One block: 128 rows of one KV head of one request, over its part of the prompt. Grid: (rows / 128, G * splits, B).
template <typename T, int D>
XATT_FN void attend_on_hopper(const Shape& s, const Tensors& t, const TensorMap* k, const TensorMap* v, void* memory) {
  const Stages<D> ring{static_cast<unsigned char*>(memory)};
  const Place p = place_of<HOPPER_ROWS, HOPPER_KEYS>(s, t);
  if (thread_index() == 0) {
    for (int n = 0; n < STAGES; ++n) {
      expect_arrivals(ring.full_keys(n), 1);
      expect_arrivals(ring.full_values(n), 1);
      expect_arrivals(ring.empty_keys(n), CONSUMERS / 32);
      expect_arrivals(ring.empty_values(n), CONSUMERS / 32);
    }
    show_to_engines();
  }
  sync_block();
  if (thread_index() >= CONSUMERS) {
    give_registers<24>();
    if (thread_index() < CONSUMERS + 32) feed<D>(ring, p, s, k, v);
  } else {
    take_registers<240>();
    const float scale = LOG2_E / sqrtf(float(D));
    uint32_t q[D / 16][4];
    Running<D> run;
    take_unshared<T, D>(run, q, p, s, t, scale);
    if (p.stages) consume<T, D>(run, q, ring, p, scale);
    end_rows<T, D, HOPPER_ROWS, CONSUMERS>(run, p, s, t);
  }
}

}  // namespace genrec
