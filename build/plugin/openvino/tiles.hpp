// bf16 on CPUs with AMX: products of tiles, 16 x 32 values with 32 x 16 into 16 x 16 sums, and what surrounds them.
#pragma once

#include <asm/prctl.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace genrec {

using Value = std::uint16_t;         // bf16, of which C++17 has no type
constexpr int PAIRS = 16;            // a row of an operand is 32 values: 16 pairs, which the right operand keeps together
constexpr int DEEP = 2 * PAIRS;
constexpr int TILE = 256;            // sums, or pairs, of a tile

// Compilers must have stored what tiles are about to read: GCC's tile loads do not say that they read memory.
inline void written() { asm volatile("" ::: "memory"); }

// What the kernel asks of a thread before it may use tiles, and what they are: 16 rows of 64 bytes.
class Tiles {
 public:
  Tiles() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
    (void)allowed;
    alignas(64) std::uint8_t shape[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
      shape[16 + 2 * tile] = 64;
      shape[48 + tile] = 16;
    }
    written();
    _tile_loadconfig(shape);
  }
  ~Tiles() { _tile_release(); }
};

// out[m] (+)= sum over i < count of a[m][i] b[i] for m < M. Rows of a are `stride` apart, a[m] is `across` from a[m - 1].
template <int M, bool ADD>
inline void product(const Value* a, std::size_t across, std::size_t stride, const Value* b, int count, float* out) {
#define EACH(DO) DO(0) if constexpr (M > 1) { DO(1) } if constexpr (M > 2) { DO(2) } if constexpr (M > 3) { DO(3) }
#define BEGIN(m) if constexpr (ADD) _tile_loadd(m, out + m * TILE, 64); else _tile_zero(m);
#define STEP(m) _tile_loadd(5, a + m * across, 2 * stride); _tile_dpbf16ps(m, 5, 4);
#define END(m) _tile_stored(m, out + m * TILE, 64);
  written();
  EACH(BEGIN)
  for (int i = 0; i < count; ++i, a += DEEP, b += 2 * TILE) {
    _tile_loadd(4, b, 64);
    EACH(STEP)
  }
  EACH(END)
#undef EACH
#undef BEGIN
#undef STEP
#undef END
}

// The same for any number of m.
template <bool ADD>
inline void products(int many, const Value* a, std::size_t across, std::size_t stride, const Value* b, int count, float* out) {
  for (; many >= 4; many -= 4, a += 4 * across, out += 4 * TILE) product<4, ADD>(a, across, stride, b, count, out);
  if (many == 3) product<3, ADD>(a, across, stride, b, count, out);
  if (many == 2) product<2, ADD>(a, across, stride, b, count, out);
  if (many == 1) product<1, ADD>(a, across, stride, b, count, out);
}

// 16 x 16 words of 32 bits, rows and columns exchanged: blocks of 8 x 8 change places, then of 4, 2 and 1.
template <int HALF = 8>
inline void transpose(__m512i (&rows)[16]) {
  const __m512i place = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __mmask16 upper = _mm512_test_epi32_mask(place, _mm512_set1_epi32(HALF));
  // Of a row in the upper half (b), 16 on; of one in the lower (a), as is.
  const __m512i of_upper = _mm512_set1_epi32(16 - HALF), of_lower = _mm512_set1_epi32(HALF);
  const __m512i low = _mm512_mask_add_epi32(place, upper, place, of_upper);
  const __m512i high = _mm512_mask_add_epi32(_mm512_add_epi32(place, of_lower), upper, place, _mm512_set1_epi32(16));
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    if (!(i & HALF)) {
      const __m512i a = rows[i], b = rows[i + HALF];
      rows[i] = _mm512_permutex2var_epi32(a, low, b);
      rows[i + HALF] = _mm512_permutex2var_epi32(a, high, b);
    }
  if constexpr (HALF > 1) transpose<HALF / 2>(rows);
}

// 2^x for x <= 0 to 1e-4 of the result, which will have 8 bits; next to 0 below -126, of -inf too; NaN stays NaN.
inline __m512 exp2_of(__m512 x) {
  const __m512 rounder = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
  const __m512 shifted = x + rounder, f = x - (shifted - rounder);
  __m512 sum = _mm512_set1_ps(0.0558263f);  // 2^f = c0 + c1 f + c2 f^2 + c3 f^3 for |f| <= 1/2
  for (float c : {0.2402265f, 0.6931472f, 1.0f}) sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(c));
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

inline int padded(int count, int to) { return (count + to - 1) / to * to; }

// bf16 as float32.
inline __m512 wide_of(__m256i values) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16)); }

inline __mmask32 first_of(int count) { return count >= 32 ? ~0u : (1u << std::max(count, 0)) - 1; }

// Work arrays of a thread, on cache lines; what they held is gone when they grow.
class Memory {
 public:
  template <typename T>
  T* of(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > bytes_) {
      memory_.reset(std::aligned_alloc(64, bytes));
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace genrec
