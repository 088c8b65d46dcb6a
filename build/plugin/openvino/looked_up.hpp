// Softmax's weights of scores in bf16, whose 7 bits of mantissa are looked up. For sets with AVX512-BF16 and AVX512-VBMI.
//
// y = 127 + x in 128ths, as an integer, has the exponent of 2^x as bf16 has it, and below it the fraction of x, for which
// the mantissa stands in a table. A sum with MAGIC rounds to integers and has y in its low bits; its other bits change where
// y is 128 * 128 or more, so a look at the bits of all sums tells whether a weight was 2 or more.
#pragma once

#include <cmath>

#include "head.hpp"

namespace genrec {

constexpr float MAGIC = 8388608;  // 2^23: floats from there on are the integers
constexpr std::int32_t MAGIC_BITS = 0x4b000000, BELOW_2 = 0x3fff;
constexpr float ROOM = 32;  // weights are 2^-ROOM and less, so that scores of later keys may be higher by as much

// 2^(i / 128) - 1 in 128ths, for every mantissa that a bf16 has.
struct Mantissas {
  alignas(64) std::uint8_t of[128];
  Mantissas() {
    for (int i = 0; i < 128; ++i) of[i] = std::uint8_t(std::lround((std::exp2(i / 128.0) - 1) * 128));
  }
};
inline const Mantissas mantissas;

// The score of weight 1 if `highest` is the highest so far, a whole number of 128ths.
inline Vec weight_one(Vec highest, float scale) {
  const float step = scale * 128;
  return (Vec)_mm512_ceil_ps((__m512)((highest + ROOM / scale) * step)) / step;
}

// Turns scores into weights for queries in lanes.
class Weigher {
 public:
  // Weights are 2^((score - one) * scale).
  Weigher(Vec one, float scale)
      : lower_(_mm512_load_si512(mantissas.of)), upper_(_mm512_load_si512(mantissas.of + 64)), step_(all(scale * 128)),
        base_(MAGIC + 127 * 128 - one * step_) {}

  // Scores [key][lane] become weights [key / WORD][lane]; out may be where scores are.
  // Off by 0.7 % at most and by nothing on average; 0 below 2^-127.
  void weigh(const float* scores, int keys, float* out) {
    const __m512i ones = _mm512_set1_epi16(0x3f80), mantissa = _mm512_set1_epi16(0x7f);
    // By bytes of 16, of which words of 32 bits get their upper half from another's lower.
    const __m512i to_upper = _mm512_broadcast_i32x4(_mm_set_epi8(13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0));
    for (int key = 0; key < keys; key += WORD, scores += WORD * WIDE, out += WIDE) {
      // Of a NaN and a number, the second.
      const auto low = (__m512i)larger(all(MAGIC), at(scores) * step_ + base_);
      const auto up = (__m512i)larger(all(MAGIC), at(scores + WIDE) * step_ + base_);
      seen_ = _mm512_ternarylogic_epi32(seen_, low, up, 0xfe);
      const __m512i both = _mm512_mask_shuffle_epi8(low, 0xcccccccccccccccc, up, to_upper);
      const __m512i found = _mm512_permutex2var_epi8(lower_, both, upper_);  // by the low 7 bits of every byte
      const __m512i weights = _mm512_ternarylogic_epi32(mantissa, found, both, 0xca);  // mantissa ? found : both
      sum_ = _mm512_dpbf16_ps(sum_, (__m512bh)weights, (__m512bh)ones);
      _mm512_storeu_si512(out, weights);
    }
  }

  // Whether all weights were below 2.
  bool fits() const {
    const __m512i others = _mm512_xor_si512(seen_, _mm512_set1_epi32(MAGIC_BITS));
    return !_mm512_test_epi32_mask(others, _mm512_set1_epi32(~BELOW_2));
  }

  // What bf16 holds; NaN where a score was.
  Vec sum() const { return ((Words)seen_ & ~BELOW_2) == MAGIC_BITS ? (Vec)sum_ : all(NAN); }

 private:
  __m512i lower_, upper_, seen_ = _mm512_set1_epi32(MAGIC_BITS);
  Vec step_, base_;
  __m512 sum_ = _mm512_setzero_ps();
};

// One block of keys, all of which a tile of queries sees: scores, weights, and sums of weights and of weighted values, which
// stay as they are if a weight would be 2 or more. `one` is by lane.
inline bool at_once(int size, int keys, Laid laid, const std::int32_t* q, const float* one, float scale, float* scores,
                    float* sums, float* total) {
  score(keys, size, laid.k, q, scores);
  Vec found[WIDE / LANES];
  for (int v = 0; v < WIDE; v += LANES) {
    Weigher weigher(at(one + v), scale);
    weigher.weigh(scores + v, keys, scores + v);
    if (!weigher.fits()) return false;
    found[v / LANES] = weigher.sum();
  }
  for (int v = 0; v < WIDE; v += LANES) at(total + v) += found[v / LANES];
  weigh(size, keys, laid.v, reinterpret_cast<const std::int32_t*>(scores), sums);
  return true;
}

}  // namespace genrec
