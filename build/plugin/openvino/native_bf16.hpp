// Instructions for bf16, of AVX512-BF16.
#pragma once

#include "bfloat16.hpp"

namespace genrec {

// sum + the products of both values of each word.
inline Vec multiply_add(Vec sum, Words a, Words b) {
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
}

// Vectors of WORD values that stand one behind the other, as words.
inline Words packed(const Vec (&values)[WORD]) {
  typedef std::int16_t Shorts __attribute__((vector_size(64)));
  const auto both = (Shorts)_mm512_cvtne2ps_pbh((__m512)values[1], (__m512)values[0]);
  return (Words)__builtin_shuffle(both, Shorts{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}

// The first `count` of a vector in bf16.
inline void put(Value* x, Vec values, int count = LANES) {
  put_first(x, (Halves)(__m256i)_mm512_cvtneps_pbh((__m512)values), count);
}

}  // namespace genrec
