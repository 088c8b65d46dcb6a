// Queries or keys between their product and the attention: every head divided by its root mean square, times weights, then
// turned by the angle of its position. In float32 from the first to the last.
#pragma once

#include <cmath>

#include "vectors.hpp"

namespace genrec {

// 1 / sqrt(mean of squares + eps)
inline float shrink_of(const Value* x, int size, float eps) {
  Vec sum{};
  for (int i = 0; i < size; i += LANES * WORD) {
    const Words part = first_of<Words>(x + i, size - i);
    sum = multiply_add(sum, part, part);
  }
  return 1 / std::sqrt(sum_of(sum) / size + eps);
}

// One head x [D] to out [D]; weights [D], cosine and sine [D / 2]. The halves of a head are the two axes that turn.
inline void rotate(const Value* x, const float* weights, float shrink, const float* cosine, const float* sine, int size,
                   Value* out) {
  const int half = size / 2;
  for (int i = 0; i < half; i += LANES) {
    const int count = half - i;
    const Vec a = wide_of(x + i, count) * first_of<Vec>(weights + i, count) * shrink;
    const Vec b = wide_of(x + half + i, count) * first_of<Vec>(weights + half + i, count) * shrink;
    const Vec c = first_of<Vec>(cosine + i, count), s = first_of<Vec>(sine + i, count);
    put(out + i, a * c - b * s, count);
    put(out + half + i, b * c + a * s, count);
  }
}

}  // namespace genrec
