// Queries or keys between their product and the attention, in bf16: every head divided by its root mean square, times
// weights, then turned by the angle of its position. In float32 from the first to the last.
#pragma once

#include <cmath>

#include "tiles.hpp"

namespace genrec {

// 1 / sqrt(mean of squares + eps)
inline float shrink_of(const Value* x, int size, float eps) {
  __m512 sum{};
  for (int i = 0; i < size; i += DEEP) {
    const __m512bh part = (__m512bh)_mm512_maskz_loadu_epi16(first_of(size - i), x + i);
    sum = _mm512_dpbf16_ps(sum, part, part);
  }
  return 1 / std::sqrt(_mm512_reduce_add_ps(sum) / size + eps);
}

// One head x [D] to out [D]; weights [D], cosine and sine [D / 2]. The halves of a head are the two axes that turn.
inline void rotate(const Value* x, const float* weights, float shrink, const float* cosine, const float* sine, int size,
                   Value* out) {
  const int half = size / 2;
  const __m512 times = _mm512_set1_ps(shrink);
  for (int i = 0; i < half; i += 16) {
    const __mmask16 some = first_of(half - i);
    const __m512 a = wide_of(_mm256_maskz_loadu_epi16(some, x + i)) * _mm512_maskz_loadu_ps(some, weights + i) * times;
    const __m512 b =
        wide_of(_mm256_maskz_loadu_epi16(some, x + half + i)) * _mm512_maskz_loadu_ps(some, weights + half + i) * times;
    const __m512 c = _mm512_maskz_loadu_ps(some, cosine + i), s = _mm512_maskz_loadu_ps(some, sine + i);
    _mm256_mask_storeu_epi16(out + i, some, (__m256i)_mm512_cvtneps_pbh(a * c - b * s));
    _mm256_mask_storeu_epi16(out + half + i, some, (__m256i)_mm512_cvtneps_pbh(b * c + a * s));
  }
}

}  // namespace genrec
