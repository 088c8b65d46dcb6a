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

// 2^x of x <= 0 to 2e-7 of the result; 0 below -125, of -inf too; NaN stays NaN.
inline Vec exp2_of(Vec x) {
  const Vec rounder = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold
  const Vec shifted = x + rounder, f = (x - (shifted - rounder)) * 0.693147182f;
  Vec sum = all(1.38145985e-3f);  // e^f = 1 + f + f^2 p(f), p of least relative error for |f| <= ln 2 / 2
  for (float c : {8.36871689e-3f, 4.16683881e-2f, 1.66665206e-1f, 4.99999935e-1f}) sum = sum * f + c;
  sum = sum * (f * f) + (f + 1.0f);
  return (Vec)(((Words)sum + ((Words)shifted << 23)) & ~(x < -125.0f));
}

// 2^((score - high) * scale)
inline Vec weight_of(Vec score, Vec high, float scale) { return exp2_of((score - high) * scale); }

}  // namespace genrec
