// Softmax's weights of a block of scores in bf16, whose 7 bits of mantissa are looked up: half the instructions of a
// polynomial, of which bf16 would keep 8 bits. For sets with AVX512-BF16 and AVX512-VBMI.
#pragma once

#include <cmath>

#include "head.hpp"

namespace genrec {

// 2^(i / 128) - 1 in 128ths, for every mantissa that a bf16 has.
struct Mantissas {
  alignas(64) std::uint8_t of[128];
  Mantissas() {
    for (int i = 0; i < 128; ++i) of[i] = std::uint8_t(std::lround((std::exp2(i / 128.0) - 1) * 128));
  }
};
inline const Mantissas mantissas;

// Scores [key][lane] become weights [key / WORD][lane], 2^((score - high) * scale), in place; returns the sums of what bf16
// holds. Off by 0.7 % at most and by nothing on average; 0 below 2^-127. NaN stays NaN, in the sum.
//
// y = 127 + x in 128ths, as an integer, has the exponent of 2^x as bf16 has it, and below it the fraction of x, for which
// the mantissa stands in the table. The second key of a word is counted in 128ths of 2^-16, so that its y lies in the high
// half of its integer; there 0.5 rounds, as what lies below is cut off.
inline Vec weigh_scores(float* scores, int keys, Vec high, float scale) {
  const __m512i lower = _mm512_load_si512(mantissas.of), upper = _mm512_load_si512(mantissas.of + 64);
  const __m512i mantissa = _mm512_set1_epi16(0x7f), ones = _mm512_set1_epi16(0x3f80);
  const float low_step = scale * 128, high_step = low_step * 65536;
  const Vec low_base = high * low_step - 127 * 128.0f, high_base = high * high_step - (127 * 128 + 0.5f) * 65536;
  __m512 sum = _mm512_setzero_ps();
  __m512i seen{};
  for (int key = 0; key < keys; key += WORD) {
    float* of_key = scores + key * WIDE;
    // Of a NaN and a number, the second; as an integer, NaN is the sign bit alone.
    const __m512i low = _mm512_cvtps_epi32((__m512)larger(Vec{}, at(of_key) * low_step - low_base));
    const __m512i up = _mm512_cvtps_epi32((__m512)larger(Vec{}, at(of_key + WIDE) * high_step - high_base));
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaa, low, up);
    const __m512i found = _mm512_permutex2var_epi8(lower, both, upper);  // by the low 7 bits of every byte
    const __m512i weights = _mm512_ternarylogic_epi32(mantissa, found, both, 0xca);  // mantissa ? found : both
    seen = _mm512_ternarylogic_epi32(seen, low, up, 0xfe);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)ones);
    _mm512_storeu_si512(scores + key / WORD * WIDE, weights);
  }
  return (Words)seen < 0 ? all(NAN) : (Vec)sum;
}

}  // namespace genrec
