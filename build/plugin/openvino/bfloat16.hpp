// Values in bf16: a word is two of them, the first in its low half. Instruction sets add `multiply_add`, `packed` and `put`.
#pragma once

#include "vectors.hpp"

namespace genrec {

using Value = std::uint16_t;  // bf16, of which C++17 has no type
constexpr int WORD = 2;       // values of a word of 32 bits

typedef Value Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

// The first `count` values at x in float32, zeros behind.
inline Vec wide_of(const Value* x, int count = LANES) {
  return (Vec)(__builtin_convertvector(first_of<Halves>(x, count), Words) << 16);
}

// Words of the first values at `even` and at `odd`, zeros behind.
inline Words pairs_of(const Value* even, const Value* odd, int even_count, int odd_count) {
  const Halves low = first_of<Halves>(even, even_count), high = first_of<Halves>(odd, odd_count);
  return __builtin_convertvector(low, Words) | __builtin_convertvector(high, Words) << 16;
}

// 1 / x to 14 bits.
inline Vec inverse_of(Vec x) { return (Vec)_mm512_rcp14_ps((__m512)x); }

// 2^x for x <= 0 to 1e-4 of the result, which will have 8 bits; next to 0 below -126, of -inf too; NaN stays NaN.
inline Vec exp2_of(Vec x) {
  const Vec rounder = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  x = larger(all(-126.0f), x);
  const Vec shifted = x + rounder, f = x - (shifted - rounder);
  Vec sum = all(0.0558263f);  // 2^f = c0 + c1 f + c2 f^2 + c3 f^3 for |f| <= 1/2
  for (float c : {0.2402265f, 0.6931472f, 1.0f}) sum = sum * f + c;
  return (Vec)bits_added((Words)sum, (Words)shifted << 23);
}

// 2^((score - high) * scale)
inline Vec weight_of(Vec score, Vec high, float scale) { return exp2_of(score * scale - high * scale); }

}  // namespace genrec
