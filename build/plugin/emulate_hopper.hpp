// The list of `hopper_device.cuh` on a CPU: shared memory, swizzle, tensor maps, mbarriers and wgmma descriptors as the PTX
// manual has them.
//
// What runs in the background on a GPU is done as late as it may be: a product at its wgmma_wait, after all other warps had
// a turn; a copy when every warp waits, or, by dice, at once. So a missing wait reads old numbers, and a tile that is left
// too early is overwritten.
#pragma once

#include <algorithm>

#include "emulate.hpp"

namespace genrec {

struct TensorMap { const unsigned char* from; int columns, keys, planes, box_keys; };  // 16-bit [planes, keys, columns], boxes [keys, 64]
struct Arrivals { uint16_t expected, missing; uint8_t phase; int64_t bytes; };

namespace emulate {

struct Product {
  float* c;
  const uint32_t* a;
  uint64_t b;
  int columns, group;
  bool add, transposed;
  float (*wide)(uint16_t);
};
struct Copy { unsigned char* to; const TensorMap* map; int column, key, plane; Arrivals* at; };
struct Background {
  unsigned char* shared = nullptr;  // of the block; shared addresses count from it
  std::vector<std::vector<Product>> products;  // of a thread
  std::vector<int> groups;                     // of a thread: closed so far
  std::vector<Copy> copies;
  uint32_t dice = 1;
};
inline Background background;

inline void end_phase_if_complete(Arrivals* at) {
  block.moved = true;
  if (at->missing || at->bytes) return;
  at->phase ^= 1;
  at->missing = at->expected;
}

inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

inline void copy(const Copy& c) {
  const TensorMap& map = *c.map;
  for (int row = 0; row < map.box_keys; ++row)
    for (int column = 0; column < 64; ++column) {
      const bool inside = c.key + row < map.keys && c.column + column < map.columns && c.plane < map.planes;
      const size_t from = 2 * ((size_t(c.plane) * map.keys + c.key + row) * map.columns + c.column + column);
      uint16_t element = 0;
      if (inside) std::memcpy(&element, map.from + from, 2);
      std::memcpy(background.shared + swizzled(uint32_t(c.to - background.shared) + row * 128 + column * 2), &element, 2);
    }
  c.at->bytes -= map.box_keys * 128;
  end_phase_if_complete(c.at);
}

// When every warp waits: one of the copies that are under way lands.
inline void land_a_copy() {
  if (background.copies.empty()) return;
  copy(background.copies.front());
  background.copies.erase(background.copies.begin());
}

// Element (k, n) of a [16, N] operand in shared memory, by its descriptor.
inline uint16_t element_of(uint64_t descriptor, bool transposed, int k, int n) {
  if (descriptor >> 62 != 1) give_up("a descriptor without a swizzle of 128 bytes");
  const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t address = transposed ? start + n / 64 * leading + n % 64 * 2 + k / 8 * stride + k % 8 * 128
                                      : start + n / 8 * stride + n % 8 * 128 + k * 2;
  uint16_t element;
  std::memcpy(&element, background.shared + swizzled(address), 2);
  return element;
}

// One product's part in this lane's registers; the whole warp.
inline void multiply(const Product& p) {
  const Slot* all = exchange({{p.a[0], p.a[1], p.a[2], p.a[3]}, nullptr});
  const int lane = block.thread % 32;
  float a[2][16];
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 16; ++k) a[i][k] = p.wide(uint16_t(all[lane / 4 * 4 + k % 8 / 2].words[i + 2 * (k / 8)] >> 16 * (k % 2)));
  for (int n = 0; n < p.columns / 8; ++n)
    for (int c = 0; c < 2; ++c) {
      float sum[2] = {0, 0};
      for (int k = 0; k < 16; ++k) {
        const float b = p.wide(element_of(p.b, p.transposed, k, 8 * n + 2 * (lane % 4) + c));
        for (int i = 0; i < 2; ++i) sum[i] += a[i][k] * b;
      }
      for (int i = 0; i < 2; ++i) p.c[4 * n + 2 * i + c] = (p.add ? p.c[4 * n + 2 * i + c] : 0) + sum[i];
    }
}

// A grid of blocks with so much shared memory, poisoned between them: a block must not find what another left.
inline void launch_with_background(int grid_x, int grid_y, int grid_z, int threads, size_t bytes, const std::function<void(void*)>& body) {
  std::vector<unsigned char> memory(bytes + 1024);
  unsigned char* const aligned = memory.data() + (1024 - reinterpret_cast<uintptr_t>(memory.data()) % 1024) % 1024;
  background = Background{aligned, std::vector<std::vector<Product>>(threads), std::vector<int>(threads), {}, 1};
  block.when_idle = land_a_copy;
  launch(grid_x, grid_y, grid_z, threads, [&] {
    if (!background.copies.empty()) give_up("a block has ended with copies under way");
    sync_block();
    if (block.thread == 0) std::memset(aligned, 0xff, bytes);
    sync_block();
    body(aligned);
    if (!background.products[block.thread].empty()) give_up("a thread ends with products under way");
  });
  block.when_idle = nullptr;
}

}  // namespace emulate

XATT_FN uint32_t shared_address(const void* shared) { return uint32_t(static_cast<const unsigned char*>(shared) - emulate::background.shared); }
XATT_FN void expect_arrivals(Arrivals* at, int count) { *at = {uint16_t(count), uint16_t(count), 0, 0}; }
XATT_FN void show_to_engines() {}
XATT_FN void arrive(Arrivals* at) {
  --at->missing;
  emulate::end_phase_if_complete(at);
}
XATT_FN void arrive_before_bytes(Arrivals* at, int bytes) {
  at->bytes += bytes;
  arrive(at);
}
XATT_FN void wait_for(Arrivals* at, int parity) {
  emulate::wait_until([=] { return at->phase != parity; });
}
XATT_FN void copy_box(void* shared, const TensorMap* map, int column, int key, int plane, Arrivals* at) {
  const emulate::Copy copy{static_cast<unsigned char*>(shared), map, column, key, plane, at};
  uint32_t& dice = emulate::background.dice;
  dice = dice * 1664525 + 1013904223;
  dice >> 31 ? emulate::copy(copy) : emulate::background.copies.push_back(copy);
}

template <int> void give_registers() {}
template <int> void take_registers() {}
XATT_FN void wgmma_begin() {}
XATT_FN void wgmma_close() { ++emulate::background.groups[thread_index()]; }
template <int LEFT> void wgmma_wait() {
  emulate::wait_until([] { return true; });
  std::vector<emulate::Product>& mine = emulate::background.products[thread_index()];
  const int closed = emulate::background.groups[thread_index()];
  size_t done = 0;
  while (done < mine.size() && mine[done].group < closed - LEFT) emulate::multiply(mine[done++]);
  mine.erase(mine.begin(), mine.begin() + done);
}
template <int N> void settle(float (&)[N][4]) {}

template <typename T, bool TRANSPOSED, int TILES>
void wgmma(float (&c)[TILES][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  const int group = emulate::background.groups[thread_index()];
  emulate::background.products[thread_index()].push_back(
      {c[0], a, b, 8 * TILES, group, add, TRANSPOSED, [](uint16_t bits) { return widen(T{bits}); }});
}

}  // namespace genrec
