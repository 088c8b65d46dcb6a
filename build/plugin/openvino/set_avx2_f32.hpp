// float32 on CPUs with AVX2: 16 registers of 8.
#pragma once

#include "float32.hpp"

namespace genrec {

constexpr int VECS = 3, STEP = 4;                  // 12 sums, 3 operands and a broadcast
constexpr int COLUMN_VECS = 2, ROWS_AT_ONCE = 6;  // as many sums

}  // namespace genrec

#include "in_place.hpp"
#include "panels.hpp"
#include "weights.hpp"
