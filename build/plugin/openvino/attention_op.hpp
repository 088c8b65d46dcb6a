// Attention as operations. XAttention over q [B, N, H, D], shared k, v [B, G, S, D], of which query n sees
//   with three inputs, keys up to its own: S is N;
//   with own k, v [B, N, U, G, D] and prompt_length int32 [B] too, the prompt and the keys of its own beam;
//   with q [B, N, U, H, D] and the same, the prompt and its own item's keys up to its own.
// XPast, XBehindItems, XDiscriminant: see there. All give what q is. Shapes are what the graphs of export/ make.
#pragma once

#include <oneapi/tbb/parallel_for.h>

#include <openvino/op/op.hpp>

#include "attention.hpp"
#include "type.hpp"

namespace genrec {

inline const Value* values_of(const ov::Tensor& tensor) { return static_cast<const Value*>(tensor.data()); }

// Sizes of q [B, ..., H, D] and shared keys [B, G, S, D]; `places` are all queries of a request.
struct Sizes {
  std::size_t batch, places, heads, size, kv_heads, span;

  Sizes(const ov::Shape& q, const ov::Shape& keys)
      : batch(q[0]), places(q.size() == 5 ? q[1] * q[2] : q[1]), heads(q[q.size() - 2]), size(q.back()), kv_heads(keys[1]),
        span(keys[2]) {}
};

// What is alike for all kinds: KV head g of request b, with no keys yet.
inline Head<Value> head_over(const Sizes& s, std::size_t b, std::size_t g, const ov::Tensor& q, ov::Tensor& out) {
  const std::size_t group = s.heads / s.kv_heads, row = (b * s.places * s.heads + g * group) * s.size;
  Head<Value> head{};
  head.q = head.own_q = values_of(q) + row;
  head.out = static_cast<Value*>(out.data()) + row;
  head.rows = int(s.places * group);
  head.group = int(group);
  head.size = int(s.size);
  head.each = 1;
  head.next = s.heads * s.size;
  return head;
}

// The same over q, shared k and v.
inline Head<Value> head_over(const Sizes& s, std::size_t b, std::size_t g, const ov::TensorVector& inputs, ov::Tensor& out) {
  Head<Value> head = head_over(s, b, g, inputs[0], out);
  const std::size_t of_head = (b * s.kv_heads + g) * s.span * s.size;
  head.k = values_of(inputs[1]) + of_head;
  head.v = values_of(inputs[2]) + of_head;
  return head;
}

// Attention of all heads of all requests over `span` keys, at most; `head_of(b, g)` says what one reads and writes. `joined`:
// keys of a past and others behind it.
template <typename HeadOf>
void attend_all(const Sizes& s, std::size_t span, bool joined, HeadOf head_of) {
  const std::size_t heads = s.batch * s.kv_heads, rows = s.places * (s.heads / s.kv_heads);
  const std::size_t blocks = (span + KEYS - 1) / KEYS, tiles = (rows + ROWS - 1) / ROWS;
  const std::size_t room = room_of(int(s.size), int(span), joined);
  const std::unique_ptr<Value, decltype(&std::free)> laid_out(
      static_cast<Value*>(room ? std::aligned_alloc(64, heads * room * sizeof(Value)) : nullptr), &std::free);
  const auto each = [&](std::size_t parts, auto run) {
    oneapi::tbb::parallel_for(std::size_t(0), heads * parts, [&](std::size_t task) {
      const std::size_t head = task / parts;
      run(head_of(head / s.kv_heads, head % s.kv_heads), laid_out.get() + head * room, int(task % parts));
    });
  };
  if (room) each(blocks, [](const Head<Value>& head, Value* to, int block) { lay_out(head, block * KEYS, to); });
  each(tiles, [](const Head<Value>& head, const Value* from, int tile) { attend(head, from, tile * ROWS); });
}

class XAttention : public ov::op::Op {
 public:
  OPENVINO_OP("XAttention", "genrec");

  XAttention() = default;
  explicit XAttention(const ov::OutputVector& inputs) : Op(inputs) { constructor_validate_and_infer_types(); }

  void validate_and_infer_types() override {
    const auto count = get_input_size();
    OPENVINO_ASSERT(count == 3 || count == 6, "XAttention has ", count, " inputs, not 3 or 6");
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 5); ++i)
      OPENVINO_ASSERT(get_input_element_type(i) == TYPE, "XAttention: input ", i, " is not ", TYPE);
    set_output_type(0, TYPE, get_input_partial_shape(0));
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<XAttention>(inputs);
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    const auto shape = inputs[0].get_shape();
    outputs[0].set_shape(shape);
    const Sizes s(shape, inputs[1].get_shape());
    const bool causal = inputs.size() == 3;
    const std::size_t own = causal ? 0 : inputs[3].get_shape()[2], per = shape.size() == 5 ? std::max<std::size_t>(own, 1) : 1;
    OPENVINO_ASSERT(!causal || s.span == s.places, "XAttention: ", s.places, " queries, ", s.span, " keys");
    attend_all(s, s.span, false, [&](std::size_t b, std::size_t g) {
      Head<Value> head = head_over(s, b, g, inputs, outputs[0]);
      head.causal = causal;
      head.new_k = head.k;
      head.new_v = head.v;
      if (!causal) {
        const std::size_t of_beam = (b * (s.places / per) * own * s.kv_heads + g) * s.size;
        head.own_k = values_of(inputs[3]) + of_beam;
        head.own_v = values_of(inputs[4]) + of_beam;
        head.own = int(own);
        head.each = int(per);
        head.own_next = own * s.kv_heads * s.size;
        head.own_step = s.kv_heads * s.size;
        head.length = std::min(inputs[5].data<const std::int32_t>()[b], std::int32_t(s.span));
      }
      return head;
    });
    return true;
  }
};

// Over q [B, N, H, D], a past's k, v [B, G, P, D], k, v [B, G, N, D] and past_length int32 [B]: query n sees so many keys of
// the past, which are read where they lie, and of the others those up to its own.
class XPast : public ov::op::Op {
 public:
  OPENVINO_OP("XPast", "genrec");

  XPast() = default;
  explicit XPast(const ov::OutputVector& inputs) : Op(inputs) { constructor_validate_and_infer_types(); }

  void validate_and_infer_types() override {
    OPENVINO_ASSERT(get_input_size() == 6, "XPast has ", get_input_size(), " inputs, not 6");
    for (std::size_t i = 0; i < 5; ++i)
      OPENVINO_ASSERT(get_input_element_type(i) == TYPE, "XPast: input ", i, " is not ", TYPE);
    set_output_type(0, TYPE, get_input_partial_shape(0));
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<XPast>(inputs);
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    outputs[0].set_shape(inputs[0].get_shape());
    const Sizes s(inputs[0].get_shape(), inputs[1].get_shape());
    const auto* past = inputs[5].data<const std::int32_t>();
    std::size_t longest = 0;  // of no requests too
    for (std::size_t b = 0; b < s.batch; ++b) {
      OPENVINO_ASSERT(past[b] >= 0 && std::size_t(past[b]) <= s.span, "XPast: ", past[b], " of ", s.span, " keys");
      longest = std::max(longest, std::size_t(past[b]));
    }
    attend_all(s, longest + s.places, true, [&](std::size_t b, std::size_t g) {
      Head<Value> head = head_over(s, b, g, inputs, outputs[0]);
      const std::size_t behind = (b * s.kv_heads + g) * s.places * s.size;
      head.new_k = values_of(inputs[3]) + behind;
      head.new_v = values_of(inputs[4]) + behind;
      head.past = past[b];
      head.causal = true;
      return head;
    });
    return true;
  }
};

// Over q [B, N, H, D], k, v [B, G, N, D], items [M, 2N, G, t, D] and rows int32 [B, C]: query n sees the keys of all items
// rows[b] at `layer`, which are read where they lie, and of the others those up to its own.
class XBehindItems : public ov::op::Op {
 public:
  OPENVINO_OP("XBehindItems", "genrec");

  XBehindItems() = default;
  XBehindItems(const ov::OutputVector& inputs, std::int64_t layer) : Op(inputs), layer_(layer) {
    constructor_validate_and_infer_types();
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("layer", layer_);
    return true;
  }

  void validate_and_infer_types() override {
    OPENVINO_ASSERT(get_input_size() == 5, "XBehindItems has ", get_input_size(), " inputs, not 5");
    for (std::size_t i = 0; i < 4; ++i)
      OPENVINO_ASSERT(get_input_element_type(i) == TYPE, "XBehindItems: input ", i, " is not ", TYPE);
    set_output_type(0, TYPE, get_input_partial_shape(0));
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<XBehindItems>(inputs, layer_);
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    outputs[0].set_shape(inputs[0].get_shape());
    const Sizes s(inputs[0].get_shape(), inputs[1].get_shape());
    const auto items = inputs[3].get_shape();
    const std::size_t many = inputs[4].get_shape()[1], tokens = items[3], tensor = s.kv_heads * tokens * s.size;
    const auto* rows = inputs[4].data<const std::int32_t>();
    for (std::size_t i = 0; i < s.batch * many; ++i)
      OPENVINO_ASSERT(rows[i] >= 0 && std::size_t(rows[i]) < items[0], "XBehindItems: row ", rows[i], " of ", items[0]);
    attend_all(s, many * tokens + s.places, true, [&](std::size_t b, std::size_t g) {
      Head<Value> head = head_over(s, b, g, inputs, outputs[0]);
      head.new_k = head.k;
      head.new_v = head.v;
      head.k = values_of(inputs[3]) + 2 * layer_ * tensor + g * tokens * s.size;
      head.v = head.k + tensor;
      head.items = rows + b * many;
      head.tokens = int(tokens);
      head.row = items[1] * tensor;
      head.step = s.size;
      head.past = int(many * tokens);
      head.causal = true;
      return head;
    });
    return true;
  }

 private:
  std::int64_t layer_ = 0;
};

// Over q [B, C, H, D], items [M, 2N, G, t, D], q of items [B, C, H, D], shared k, v [B, G, S, D], rows int32 [B, C] and
// prompt_length int32 [B]: query c sees the prompt, with a `reach` the last so many keys of it, and, by its other turn, the
// keys of item rows[c] at `layer`. No other keys are read: so a `reach` is even, as keys are read by two at most.
// In the place of k, v there may be whole entries of users, [1, 2N, G, S, D] each, at least B: their keys at `layer` are read
// where they lie.
class XDiscriminant : public ov::op::Op {
 public:
  OPENVINO_OP("XDiscriminant", "genrec");

  XDiscriminant() = default;
  XDiscriminant(const ov::OutputVector& inputs, std::int64_t layer, std::int64_t reach)
      : Op(inputs), layer_(layer), reach_(reach) {
    constructor_validate_and_infer_types();
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("layer", layer_);
    visitor.on_attribute("reach", reach_);
    return true;
  }

  void validate_and_infer_types() override {
    const auto count = get_input_size();
    OPENVINO_ASSERT(count >= 6, "XDiscriminant has ", count, " inputs, not 6 or more");
    for (std::size_t i = 0; i + 2 < count; ++i)
      OPENVINO_ASSERT(get_input_element_type(i) == TYPE, "XDiscriminant: input ", i, " is not ", TYPE);
    set_output_type(0, TYPE, get_input_partial_shape(0));
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<XDiscriminant>(inputs, layer_, reach_);
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    outputs[0].set_shape(inputs[0].get_shape());
    const std::size_t last = inputs.size() - 1;
    const bool whole = inputs[3].get_shape().size() == 5;  // entries
    const auto items = inputs[1].get_shape();
    const Sizes s(inputs[0].get_shape(), {1, items[2], 0, items[4]});
    const std::size_t own = items[3], tensor = s.kv_heads * own * s.size;
    const auto* rows = inputs[last - 1].data<const std::int32_t>();
    for (std::size_t i = 0; i < s.batch * s.places; ++i)
      OPENVINO_ASSERT(rows[i] >= 0 && std::size_t(rows[i]) < items[0], "XDiscriminant: row ", rows[i], " of ", items[0]);
    OPENVINO_ASSERT(!whole || s.batch <= last - 4, "XDiscriminant: ", s.batch, " prompts, entries of ", last - 4);
    const auto reach = [&](std::size_t span) { return reach_ ? std::min(span, std::size_t(reach_)) : span; };
    std::vector<std::size_t> spans(s.batch);
    std::size_t longest = 0;  // of no requests too
    for (std::size_t b = 0; b < s.batch; ++b) {
      spans[b] = whole ? inputs[3 + b].get_shape()[3] : inputs[3].get_shape()[2];
      longest = std::max(longest, reach(spans[b]));
    }
    attend_all(s, longest, false, [&](std::size_t b, std::size_t g) {
      Head<Value> head = head_over(s, b, g, inputs[0], outputs[0]);
      const std::size_t of_head = spans[b] * s.size, of_tensor = s.kv_heads * of_head;
      head.k = values_of(inputs[whole ? 3 + b : 3]) + g * of_head + (whole ? 2 * layer_ : b) * of_tensor;
      head.v = whole ? head.k + of_tensor : values_of(inputs[4]) + (head.k - values_of(inputs[3]));
      head.own_q = values_of(inputs[2]) + (head.q - values_of(inputs[0]));
      head.own_k = values_of(inputs[1]) + 2 * layer_ * tensor + g * own * s.size;
      head.own_v = head.own_k + tensor;
      head.chosen = rows + b * s.places;
      head.own = int(own);
      head.own_next = items[1] * tensor;
      head.own_step = s.size;
      const std::size_t length = std::min(std::size_t(inputs[last].data<const std::int32_t>()[b]), spans[b]);
      head.length = int(std::min(length, reach(spans[b])));
      head.k += (length - head.length) * s.size;
      head.v += (length - head.length) * s.size;
      return head;
    });
    return true;
  }

 private:
  std::int64_t layer_ = 0, reach_ = 0;
};

}  // namespace genrec
