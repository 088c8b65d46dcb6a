// Values in float32: a word is one of them.
#pragma once

#include "vectors.hpp"

namespace genrec {

using Value = float;
constexpr int WORD = 1;  // values of a word of 32 bits

inline Vec multiply_add(Vec sum, Words a, Words b) { return sum + (Vec)a * (Vec)b; }

// The first `count` values at x in float32, zeros behind; and back.
inline Vec wide_of(const Value* x, int count = LANES) { return first_of<Vec>(x, count); }
inline void put(Value* x, Vec values, int count = LANES) { put_first(x, values, count); }

// Vectors of WORD values that stand one behind the other, as words.
inline Words packed(const Vec (&values)[WORD]) { return (Words)values[0]; }

inline Vec inverse_of(Vec x) { return 1.0f / x; }

// 2^(x * scale) of x <= 0 to 2e-7 of the result; 0 where that is below -125, of -inf too; NaN stays NaN.
inline Vec exp2_of(Vec x, float scale = 1) {
  const Vec rounder = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold
  const Vec shifted = x * scale + rounder, f = x * scale - (shifted - rounder);
  Vec sum = all(1.5353362e-4f);  // 2^f = 1 + c1 f + ... + c6 f^6, of least relative error for |f| <= 1/2
  for (float c : {1.3398875e-3f, 9.618437e-3f, 5.5503324e-2f, 0.24022648f, 0.6931472f, 1.0f}) sum = sum * f + c;
  return (Vec)(bits_added((Words)sum, (Words)shifted << 23) & ~(shifted < 12582912.0f - 125.0f));
}

// 2^((score - high) * scale)
inline Vec weight_of(Vec score, Vec high, float scale) { return exp2_of(score - high, scale); }

}  // namespace genrec
