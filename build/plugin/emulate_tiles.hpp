// AMX in plain C++, so that tests run what is written for it on other CPUs: included before all else, it stands in for
// the intrinsics that the kernels use. Tiles are of 16 rows of 64 bytes; a thread has eight.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {

inline thread_local std::uint8_t tiles[8][16][64];

inline void load(int tile, const void* from, std::size_t stride) {
  for (int row = 0; row < 16; ++row) std::memcpy(tiles[tile][row], static_cast<const char*>(from) + row * stride, 64);
}

inline void store(int tile, void* to, std::size_t stride) {
  for (int row = 0; row < 16; ++row) std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile][row], 64);
}

inline float wide(const std::uint8_t* bf16) {
  std::uint8_t bytes[4] = {0, 0, bf16[0], bf16[1]};
  float found;
  std::memcpy(&found, bytes, 4);
  return found;
}

// sums [m][n] += sum over pairs p of a[m][p] . b[p][n]
inline void multiply(int sums, int a, int b) {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float sum;
      std::memcpy(&sum, tiles[sums][m] + 4 * n, 4);
      for (int p = 0; p < 16; ++p)
        for (int i = 0; i < 4; i += 2) sum += wide(tiles[a][m] + 4 * p + i) * wide(tiles[b][p] + 4 * n + i);
      std::memcpy(tiles[sums][m] + 4 * n, &sum, 4);
    }
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_zero(tile) std::memset(emulated::tiles[tile], 0, sizeof emulated::tiles[tile])
#define _tile_dpbf16ps emulated::multiply
#define _tile_loadconfig(shape) (void)(shape)
#define _tile_release() (void)0
