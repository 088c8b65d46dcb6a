// Keys and values of attention in words of two bf16, laid out once for all queries of a KV head.
#pragma once

#include "head.hpp"

namespace genrec {

constexpr int KEYS = 128;  // of a block: its scores stay in the first cache

struct Laid {
  const Value *k, *v;  // of a block: [key][D], and of pairs of keys [key / 2][D][2]
};

// What a KV head's keys and values take: blocks of both, D in whole words.
inline std::size_t room_of(int size, int span, bool) { return std::size_t(2) * padded(span, KEYS) * padded(size, WORD); }

inline Laid laid_out(const Head<Value>& h, const Value* room, int first) {
  const int deep = padded(h.size, WORD);
  const Value* k = room + std::size_t(2) * first * deep;
  return {h.ready(first, KEYS, deep) ? h.key(first) : k, k + KEYS * deep};
}

// Lays out the block from key `first` on: zeros behind D and the last key that is seen, up to whole words. Keys in whole
// words stay where they are.
inline void lay_out(const Head<Value>& h, int first, Value* room) {
  const int deep = padded(h.size, WORD), count = std::clamp(h.seen() - first, 0, KEYS);
  Value *k = room + std::size_t(2) * first * deep, *v = k + KEYS * deep;
  for (int key = 0; key < padded(count, WORD) && !h.ready(first, KEYS, deep); ++key)
    for (int d = 0; d < h.size; d += LANES * WORD)
      put_first(k + key * deep + d, first_of<Words>(h.key(first + key) + d, key < count ? h.size - d : 0), deep - d);
  for (int key = 0; key < count; key += WORD)
    for (int d = 0; d < h.size; d += LANES) {
      const Value *even = h.value(first + key) + d, *odd = h.value(first + key + 1) + d;
      const Words both = pairs_of(even, odd, h.size - d, key + 1 < count ? h.size - d : 0);
      put_first(reinterpret_cast<Word*>(v + key * deep) + d, both, deep - d);
    }
}

}  // namespace genrec
