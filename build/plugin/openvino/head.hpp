// What one KV head of one request reads and writes; rows are queries of all heads that share it.
#pragma once

#include <cstddef>

namespace genrec {

// Places and steps are counted in values.
template <typename Value>
struct Head {
  const Value *q, *k, *v;          // q of row 0; keys and values [S, D]
  const Value *own_k, *own_v;      // of row 0's beam: [U, G, D] from here, G * D apart
  Value* out;                      // as q
  int rows, group, size, own;      // N * R, R, D, U
  std::size_t next, own_next;      // from one position to the next: of q and out, of own keys
  std::size_t own_step;            // and from one own key to the next
  int length;                      // shared keys that every row sees ...
  bool causal;                     // ... or each those up to its own position

  std::size_t place(int row) const { return row / group * next + row % group * size; }
  int seen() const { return causal ? rows / group : length; }
  int sees(int row) const { return causal ? row / group + 1 : length; }
  const Value* own_key(int row, int u) const { return own_k + row / group * own_next + u * own_step; }
  const Value* own_value(int row, int u) const { return own_v + row / group * own_next + u * own_step; }
};

}  // namespace genrec
