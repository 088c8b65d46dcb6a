// What one KV head of one request reads and writes; rows are queries of all heads that share it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace genrec {

// Places and steps are counted in values.
template <typename Value>
struct Head {
  const Value *q, *k, *v;          // q of row 0; keys and values [S, D] ...
  const Value *new_k, *new_v;      // ... and where causal those behind the past, [rows / R, D]
  const Value* own_q;              // what own keys are met with: q, or another turn of it
  const Value *own_k, *own_v;      // of beam 0, one key each `own_step`
  const std::int32_t* chosen;      // of every beam, where its own keys are; none: one after the other
  Value* out;                      // as q
  int rows, group, size, own;      // N * R, R, D, U
  int each;                        // queries of one beam; several see own keys up to their own place
  std::size_t next, own_next;      // from one position to the next of q and out, from one beam's own keys to the next's
  std::size_t own_step;            // and from one own key to the next
  int length;                      // shared keys that every row sees ...
  bool causal;                     // ... or each those up to its own position,
  int past;                        // which is behind so many keys
  int tokens;                      // none: the past's keys are one behind the other; else so many of every item, ...
  const std::int32_t* items;       // ... whose rows these are; none: 0, 1, 2, ...
  std::size_t row, step;           // from one row to the next, and from one token's key to the next

  std::size_t place(int row) const { return row / group * next + row % group * size; }
  int seen() const { return causal ? past + rows / group : length; }
  int sees(int row) const { return causal ? past + row / group + 1 : length; }
  const Value* key(int place) const { return at(k, new_k, place); }
  const Value* value(int place) const { return at(v, new_v, place); }
  // Whether `keys` keys from `first` on are not one behind the other: some are of the past and some behind it, or of items.
  bool divided(int first, int keys) const { return causal && first < past && (tokens || past < first + keys); }
  // Whether they can be read where they lie: all are seen, one behind the other, and rows of `deep` need no zeros.
  bool ready(int first, int keys, int deep) const {
    return size == deep && first + keys <= seen() && !divided(first, keys);
  }
  int beam(int row) const { return row / group / each; }
  int sees_own(int row) const { return each == 1 ? own : row / group % each + 1; }
  const Value* own_key(int row, int u) const { return own_k + own_place(row, u); }
  const Value* own_value(int row, int u) const { return own_v + own_place(row, u); }
  // The own keys of `beams` beams from `first` on, one beam's behind the other's, as a past.
  Head own_keys(int first, int beams) const {
    Head keys{};
    keys.k = own_k + (chosen ? 0 : first * own_next);
    keys.v = own_v + (chosen ? 0 : first * own_next);
    keys.items = chosen ? chosen + first : nullptr;
    keys.tokens = own;
    keys.row = own_next;
    keys.step = own_step;
    keys.past = beams * own;
    keys.causal = true;
    keys.group = 1;
    keys.size = size;
    return keys;
  }

 private:
  const Value* at(const Value* before, const Value* behind, int place) const {
    if (causal && place >= past) return behind + std::size_t(place - past) * size;
    if (!tokens) return before + std::size_t(place) * size;
    const int item = place / tokens;
    return before + (items ? items[item] : item) * row + place % tokens * step;
  }
  std::size_t own_place(int row, int u) const {
    return (chosen ? chosen[beam(row)] : beam(row)) * own_next + u * own_step;
  }
};

}  // namespace genrec
