// Keys and values of attention where a word is one value: they are read where they are. A block that is divided is
// copied.
#pragma once

#include "head.hpp"

namespace genrec {

constexpr int KEYS = 128;  // of a block: its scores stay in the first cache

struct Laid {
  const Value *k, *v;  // of a block, both [key][D]
};

inline std::size_t room_of(int size, int span, bool joined) { return joined ? std::size_t(2) * padded(span, KEYS) * size : 0; }

inline void lay_out(const Head<Value>& h, int first, Value* room) {
  if (!h.divided(first, KEYS)) return;
  Value *k = room + std::size_t(2) * first * h.size, *v = k + std::size_t(KEYS) * h.size;
  for (int key = 0; key < KEYS && first + key < h.seen(); ++key, k += h.size, v += h.size) {
    std::memcpy(k, h.key(first + key), h.size * sizeof(Value));
    std::memcpy(v, h.value(first + key), h.size * sizeof(Value));
  }
}

inline Laid laid_out(const Head<Value>& h, const Value* room, int first) {
  if (!h.divided(first, KEYS)) return {h.key(first), h.value(first)};
  const Value* k = room + std::size_t(2) * first * h.size;
  return {k, k + std::size_t(KEYS) * h.size};
}

}  // namespace genrec
