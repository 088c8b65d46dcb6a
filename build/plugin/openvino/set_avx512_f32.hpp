// float32 on CPUs with AVX-512: 32 registers of 16.
#pragma once

#include "float32.hpp"

namespace genrec {

constexpr int VECS = 2, STEP = 12;                  // 24 sums, 2 operands and a broadcast
constexpr int COLUMN_VECS = 2, ROWS_AT_ONCE = 12;  // as many

}  // namespace genrec

#include "in_place.hpp"
#include "panels.hpp"
#include "weights.hpp"
