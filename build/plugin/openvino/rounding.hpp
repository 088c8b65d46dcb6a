// What CPUs without instructions for bf16 need of it: products of float32, and rounding by hand.
#pragma once

#include "bfloat16.hpp"

namespace genrec {

// sum + the products of both values of each word.
inline Vec multiply_add(Vec sum, Words a, Words b) {
  constexpr std::int32_t HIGH = -65536;
  return sum + (Vec)(a << 16) * (Vec)(b << 16) + (Vec)(a & HIGH) * (Vec)(b & HIGH);
}

// The bits of bf16, to even, in the high half of each word; below them what rounding left.
inline Words rounded(Vec x) {
  const Words bits = (Words)x, round = bits_added(bits, 0x7fff + ((bits >> 16) & 1)), nan = x != x;
  return (nan & (bits | 0x400000)) | (~nan & round);
}

// Vectors of WORD values that stand one behind the other, as words.
inline Words packed(const Vec (&values)[WORD]) {
  return ((rounded(values[0]) >> 16) & 0xffff) | (rounded(values[1]) & -65536);
}

// The first `count` of a vector in bf16.
inline void put(Value* x, Vec values, int count = LANES) {
  put_first(x, __builtin_convertvector((rounded(values) >> 16) & 0xffff, Halves), count);
}

}  // namespace genrec
