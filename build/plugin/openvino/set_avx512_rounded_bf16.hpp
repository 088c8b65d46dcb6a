// bf16 on CPUs with AVX-512 and no instructions for it, which compute in float32: for artifacts that were built elsewhere.
#pragma once

#include "rounding.hpp"

namespace genrec {

constexpr int VECS = 2, STEP = 8;                  // 16 sums, 4 halves of operands and 2 of a broadcast
constexpr int COLUMN_VECS = 2, ROWS_AT_ONCE = 8;  // as many

}  // namespace genrec

#include "pairs.hpp"
#include "panels.hpp"
#include "weights.hpp"
