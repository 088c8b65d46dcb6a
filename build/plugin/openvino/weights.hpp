// Softmax's weights of scores, for sets without bytes to look up.
#pragma once

#include "head.hpp"

namespace genrec {

// The score of weight 1 if `highest` is the highest so far.
inline Vec weight_one(Vec highest, float) { return highest; }

// Turns scores into weights for queries in lanes.
class Weigher {
 public:
  // Weights are 2^((score - one) * scale).
  Weigher(Vec one, float scale) : one_(one), scale_(scale) {}

  // Scores [key][lane] become weights [key / WORD][lane]; out may be where scores are.
  void weigh(const float* scores, int keys, float* out) {
    for (int key = 0; key < keys; key += WORD, scores += WORD * WIDE, out += WIDE) {
      Vec weights[WORD];
      for (int i = 0; i < WORD; ++i) sums_[i] += weights[i] = weight_of(at(scores + i * WIDE), one_, scale_);
      at(out) = (Vec)packed(weights);
    }
  }

  Vec sum() const { return WORD == 1 ? sums_[0] : sums_[0] + sums_[WORD - 1]; }

 private:
  Vec one_, sums_[WORD]{};
  float scale_;
};

// See looked_up.hpp. Here the highest score is always looked for.
inline bool at_once(int, int, Laid, const std::int32_t*, const float*, float, float*, float*, float*) { return false; }

}  // namespace genrec
