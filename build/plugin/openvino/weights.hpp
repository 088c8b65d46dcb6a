// Softmax's weights of a block of scores, for sets without bytes to look up.
#pragma once

#include "head.hpp"

namespace genrec {

// Scores [key][lane] become weights [key / WORD][lane], in place; returns their sums.
inline Vec weigh_scores(float* scores, int keys, Vec high, float scale) {
  Vec sums[WORD]{};
  for (int key = 0; key < keys; key += WORD) {
    Vec weights[WORD];
    for (int i = 0; i < WORD; ++i) sums[i] += weights[i] = weight_of(at(scores + (key + i) * WIDE), high, scale);
    at(scores + key / WORD * WIDE) = (Vec)packed(weights);
  }
  return WORD == 1 ? sums[0] : sums[0] + sums[WORD - 1];
}

}  // namespace genrec
