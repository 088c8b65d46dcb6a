// The list of `device.cuh` on a CPU, so that the kernels' own source runs in a test without a GPU.
//
// A block's threads are fibers that give way at every collective call. A warp goes on once all its lanes have come to
// a warp call, a block once all its warps have come to a block call; lanes at different kinds of call abort the run, as
// they would hang or corrupt a GPU. What this cannot show: races between collectives, memory order, speed.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define XATT_FN inline
#define XATT_UNROLL
#define XATT_UNROLL_TWO

namespace genrec {

struct Float16 { uint16_t bits; };
struct BFloat16 { uint16_t bits; };

namespace emulate {

enum Call { RUNNING, WARP, BLOCK, WAIT, DONE };  // WAIT: for what other warps do, looked at again in every round
struct Slot { uint32_t words[8]; const void* address; };
using Place = void* [5];  // of GCC's own setjmp: swapcontext asks the system at every turn, and longjmp may look for misuse
struct Fiber {
  Place place;  // where it goes on
  bool begun = false;
  std::vector<char> stack = std::vector<char>(256 << 10);
  Call call = RUNNING;
  int turn = 0;
};
struct Barrier { int here = 0, times = 0; };
struct Block {
  int thread = 0, x = 0, y = 0, z = 0, blocks_x = 0;
  Place scheduler;
  std::vector<Fiber> fibers;
  std::vector<Slot> slots[2];  // by turn: nobody can be two calls ahead of a lane of its warp
  std::function<void()> body, when_idle;  // of a thread; of a block in which every warp waits
  Barrier barriers[16];
  bool moved = false;  // whether a round of turns changed anything
};
inline Block block;

[[noreturn]] __attribute__((noinline)) inline void jump(Place& place) { __builtin_longjmp(place, 1); }

[[noreturn]] inline void give_up(const char* why) {
  std::fprintf(stderr, "xattention: %s\n", why);
  std::abort();
}

__attribute__((noinline)) inline void give_way(Call call) {
  Fiber& me = block.fibers[block.thread];
  me.call = call;
  if (!__builtin_setjmp(me.place)) jump(block.scheduler);
}

// Leave words for the warp; what lane l left is then `exchange(...)[l]`.
inline const Slot* exchange(const Slot& mine) {
  const int turn = block.fibers[block.thread].turn ^= 1;
  block.slots[turn][block.thread] = mine;
  give_way(WARP);
  return &block.slots[turn][block.thread / 32 * 32];
}

inline void fiber_main() {
  for (;;) {  // block after block
    block.body();
    give_way(DONE);
  }
}

// Let a fiber run until it gives way. Its first turn begins on a stack of its own.
__attribute__((noinline)) inline void turn(Fiber& fiber) {
  if (__builtin_setjmp(block.scheduler)) return;
  if (fiber.begun) jump(fiber.place);
  fiber.begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.data();
  context.uc_stack.ss_size = fiber.stack.size();
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
}

inline Call run_warp(int warp) {
  for (;;) {
    for (int lane = 0; lane < 32; ++lane) {
      block.thread = warp * 32 + lane;
      turn(block.fibers[block.thread]);
    }
    const Call call = block.fibers[warp * 32].call;
    for (int lane = 1; lane < 32; ++lane) {
      if (block.fibers[warp * 32 + lane].call != call) {
        give_up("lanes of a warp are at different collectives");
      }
    }
    if (call != WARP) return call;
  }
}

// Go on when `ready` says so, and not before all other warps had a turn.
template <typename Ready> void wait_until(const Ready& ready) {
  do give_way(WAIT);
  while (!ready());
  block.moved = true;
}

// One block: its warps take turns until each waits for something, round after round.
inline void run_block(int warps) {
  std::vector<Call> at(warps, RUNNING);
  for (;;) {
    block.moved = false;
    int held = 0, done = 0;
    for (int warp = 0; warp < warps; ++warp) {
      if (at[warp] != BLOCK && at[warp] != DONE) block.moved |= (at[warp] = run_warp(warp)) != WAIT;
      held += at[warp] == BLOCK;
      done += at[warp] == DONE;
    }
    if (done == warps) return;
    if (held && done) give_up("warps of a block are at different collectives");
    if (held == warps) std::fill(at.begin(), at.end(), RUNNING);
    if (!block.moved && block.when_idle) block.when_idle();
    if (!block.moved) give_up("every warp of a block waits");
  }
}

// Every block of a grid, one after the other.
inline void launch(int grid_x, int grid_y, int grid_z, int threads, const std::function<void()>& body) {
  block.body = body;
  block.blocks_x = grid_x;
  for (auto& slots : block.slots) slots.resize(threads);
  if (int(block.fibers.size()) < threads) block.fibers.resize(threads);  // stacks stay for launches to come
  for (block.z = 0; block.z < grid_z; ++block.z)
    for (block.y = 0; block.y < grid_y; ++block.y)
      for (block.x = 0; block.x < grid_x; ++block.x) {
        run_block(threads / 32);
        for (const Barrier& barrier : block.barriers)
          if (barrier.here) give_up("a block leaves a barrier that threads have come to");
      }
}

inline float bits_to_float(uint32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline uint32_t float_to_bits(float x) { uint32_t bits; std::memcpy(&bits, &x, 4); return bits; }

}  // namespace emulate

XATT_FN int thread_index() { return emulate::block.thread; }
XATT_FN int block_x() { return emulate::block.x; }
XATT_FN int block_y() { return emulate::block.y; }
XATT_FN int block_z() { return emulate::block.z; }
XATT_FN int blocks_x() { return emulate::block.blocks_x; }
XATT_FN void sync_block() { emulate::give_way(emulate::BLOCK); }
XATT_FN void arrive_at(int barrier, int threads) {
  emulate::Barrier& at = emulate::block.barriers[barrier];
  if (++at.here == threads) at.here = 0, ++at.times;
  emulate::block.moved = true;
}
XATT_FN void sync_at(int barrier, int threads) {
  const int times = emulate::block.barriers[barrier].times;
  arrive_at(barrier, threads);
  emulate::wait_until([&] { return emulate::block.barriers[barrier].times != times; });
}
XATT_FN float power_of_two(float x) { return std::exp2(x); }
XATT_FN float larger(float a, float b) { return std::fmax(a, b); }
XATT_FN float shuffle_xor(float x, int mask) {
  const emulate::Slot* all = emulate::exchange({{emulate::float_to_bits(x)}, nullptr});
  return emulate::bits_to_float(all[(thread_index() % 32) ^ mask].words[0]);
}

XATT_FN float widen(float x) { return x; }
XATT_FN float widen(BFloat16 x) { return emulate::bits_to_float(uint32_t(x.bits) << 16); }
XATT_FN float widen(Float16 x) {
  const int sign = x.bits >> 15, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                               : std::ldexp(float(fraction + (exponent ? 1024 : 0)), (exponent ? exponent : 1) - 25);
  return sign ? -value : value;
}

template <typename T> T narrow(float x);
template <> inline float narrow<float>(float x) { return x; }
template <> inline BFloat16 narrow<BFloat16>(float x) {  // to nearest, ties to even
  const uint32_t bits = emulate::float_to_bits(x);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <> inline Float16 narrow<Float16>(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (!(size < 65520.0f)) return {uint16_t(sign | (std::isnan(x) ? 0x7e00 : 0x7c00))};
  int exponent = -13;
  if (size > 0) std::frexp(size, &exponent);
  const int step = (exponent < -13 ? -13 : exponent) - 11;  // of the last bit
  const long units = std::lrint(std::ldexp(size, -step));    // to nearest, ties to even
  return {uint16_t(sign | (units + (long(step + 24) << 10)))};
}

template <typename T> uint32_t pack(float first, float second) {
  return narrow<T>(first).bits | uint32_t(narrow<T>(second).bits) << 16;
}

namespace emulate {
template <typename T> float half_of(uint32_t word, int which) { return widen(T{uint16_t(word >> 16 * which)}); }
}  // namespace emulate

template <typename T> void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const emulate::Slot* all = emulate::exchange({{a[0], a[1], a[2], a[3], b0, b1}, nullptr});
  const int lane = thread_index() % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t left = all[row % 8 * 4 + k % 8 / 2].words[row / 8 + 2 * (k / 8)];
      const uint32_t right = all[column * 4 + k % 8 / 2].words[4 + k / 8];
      c[i] += emulate::half_of<T>(left, k % 2) * emulate::half_of<T>(right, k % 2);
    }
  }
}

namespace emulate {
inline void load(uint32_t (&r)[4], const void* row, bool transposed) {
  const Slot* all = exchange({{}, row});
  const int lane = block.thread % 32, q = lane / 4, p = 2 * (lane % 4);
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t element[2];
    for (int i = 0; i < 2; ++i) {
      const int line = transposed ? p + i : q, column = transposed ? q : p + i;
      element[i] = static_cast<const uint16_t*>(all[matrix * 8 + line].address)[column];
    }
    r[matrix] = element[0] | uint32_t(element[1]) << 16;
  }
}
}  // namespace emulate

XATT_FN void load_matrices(uint32_t (&r)[4], const void* row) { emulate::load(r, row, false); }
XATT_FN void load_matrices_transposed(uint32_t (&r)[4], const void* row) { emulate::load(r, row, true); }

XATT_FN void copy_16(void* shared, const void* global, bool real) {
  real ? std::memcpy(shared, global, 16) : std::memset(shared, 0, 16);
}
XATT_FN void copies_close() {}
template <int LEFT> void copies_wait() {}

XATT_FN bool last_to_arrive(int* counter, int total, int threads) {
  static bool last;  // as one thread of a block would leave it in shared memory
  sync_at(1, threads);
  if (thread_index() == 0) {
    last = (*counter)++ == total - 1;
    if (last) *counter = 0;
  }
  sync_at(1, threads);
  return last;
}

}  // namespace genrec
