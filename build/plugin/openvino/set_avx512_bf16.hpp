// bf16 on CPUs with AVX512-BF16: vdpbf16ps, in 32 registers of 16 words.
#pragma once

#include "native_bf16.hpp"

namespace genrec {

constexpr int VECS = 2, STEP = 8;                   // 16 sums, 2 operands and a broadcast
constexpr int COLUMN_VECS = 2, ROWS_AT_ONCE = 12;  // 24 sums

}  // namespace genrec

#include "pairs.hpp"
#include "panels.hpp"
#include "looked_up.hpp"
