// Vectors of float32 in the compiler's own notation, as wide as the CPUs that are compiled for have them; and memory.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace genrec {

#ifdef __AVX512F__
constexpr int LANES = 16;  // floats, or words of 32 bits, of a vector
#else
constexpr int LANES = 8;
#endif

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef std::int32_t Words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef std::uint32_t Bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef std::int32_t Word __attribute__((aligned(2), may_alias));  // one float, or two bf16

inline Vec& at(float* x) { return *reinterpret_cast<Vec*>(x); }
inline const Vec& at(const float* x) { return *reinterpret_cast<const Vec*>(x); }
inline const Words& at(const std::int32_t* x) { return *reinterpret_cast<const Words*>(x); }
inline Vec all(float x) { return x - Vec{}; }
inline Words all(std::int32_t x) { return x - Words{}; }

// Of numbers of 32 bits, without an end: a sum that goes past it is one that nobody looks at.
inline Words bits_added(Words a, Words b) { return (Words)((Bits)a + (Bits)b); }

// Of a NaN and a number, the second.
inline Vec larger(Vec a, Vec b) {
#ifdef __AVX512F__
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#endif
}

// 0, 1, 2, ...
inline Words places() {
  Words found{};
  for (int lane = 0; lane < LANES; ++lane) found[lane] = lane;
  return found;
}

// Of all lanes: those HALF apart, then half as far.
template <int HALF = LANES / 2>
inline float sum_of(Vec x) {
  x += __builtin_shuffle(x, places() ^ HALF);
  if constexpr (HALF > 1)
    return sum_of<HALF / 2>(x);
  else
    return x[0];
}

// Rows and columns exchanged: the two halves of a square change places, then quarters and so on.
template <int HALF = LANES / 2>
inline void transpose(Words (&rows)[LANES]) {
  const Words place = places(), upper = (place & HALF) != 0;
  // Of a row in the upper half (b), LANES on; of one in the lower (a), as is.
  const Words low = place + (upper & (LANES - HALF)), high = place + HALF + (upper & (LANES - HALF));
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i)
    if (!(i & HALF)) {
      const Words a = rows[i], b = rows[i + HALF];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + HALF] = __builtin_shuffle(a, b, high);
    }
  if constexpr (HALF > 1) transpose<HALF / 2>(rows);
}

// The first `count` values of a vector's worth of them at x, zeros behind; what lies behind is not read.
template <typename Vector, typename Value>
inline Vector first_of(const Value* x, int count) {
  Vector found{};
  if (count >= int(sizeof(Vector) / sizeof(Value)))
    std::memcpy(&found, x, sizeof(Vector));
  else if (count > 0)
    std::memcpy(&found, x, count * sizeof(Value));
  return found;
}

// And back. By value: a reference would be to a vector on a boundary of its own size, which ours need not be on.
template <typename Vector, typename Value>
inline void put_first(Value* x, Vector vector, int count) {
  if (count >= int(sizeof(Vector) / sizeof(Value)))
    std::memcpy(x, &vector, sizeof(Vector));
  else if (count > 0)
    std::memcpy(x, &vector, count * sizeof(Value));
}

inline int padded(int count, int to) { return (count + to - 1) / to * to; }

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
