// Keys and values of attention where a word is one value: they are read where they are.
#pragma once

#include "head.hpp"

namespace genrec {

constexpr int KEYS = 128;  // of a block: its scores stay in the first cache

struct Laid {
  const Value *k, *v;  // of a block, both [key][D]
};

inline std::size_t room_of(int, int) { return 0; }
inline void lay_out(const Head<Value>&, int, Value*) {}

inline Laid laid_out(const Head<Value>& h, const Value*, int first) {
  return {h.k + std::size_t(first) * h.size, h.v + std::size_t(first) * h.size};
}

}  // namespace genrec
