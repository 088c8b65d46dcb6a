// Attention as an operation: XAttention over
//   q [B, N, H, D], shared k, v [B, G, S, D]: causal, query n sees the keys up to n; or with three inputs more,
//   own k, v [B, N, U, G, D] and prompt_length int32 [B]: all queries see the prompt and the keys of their own beam.
// Gives [B, N, H, D]. Shapes are what the graphs of export/ make; values are float32 or, compiled for AMX, bf16.
#pragma once

#include <oneapi/tbb/parallel_for.h>

#include <openvino/op/op.hpp>

#ifdef __AMX_BF16__
#include "attention_bf16.hpp"
#else
#include "attention_f32.hpp"
#endif

namespace genrec {

const ov::element::Type TYPE = sizeof(Value) == 2 ? ov::element::bf16 : ov::element::f32;

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
    const auto shape = inputs[0].get_shape(), keys = inputs[1].get_shape();
    outputs[0].set_shape(shape);
    const std::size_t batch = shape[0], places = shape[1], heads = shape[2], size = shape[3];
    const std::size_t kv_heads = keys[1], span = keys[2], group = heads / kv_heads;
    const bool causal = inputs.size() == 3;
    const std::size_t own = causal ? 0 : inputs[3].get_shape()[2];
    const auto values = [&](const ov::Tensor& tensor) { return static_cast<const Value*>(tensor.data()); };
    const auto head_of = [&](std::size_t b, std::size_t g) {
      const std::size_t row = (b * places * heads + g * group) * size, of_head = (b * kv_heads + g) * span * size;
      const std::size_t of_beam = (b * places * own * kv_heads + g) * size;
      Head<Value> head{};
      head.q = values(inputs[0]) + row;
      head.out = static_cast<Value*>(outputs[0].data()) + row;
      head.k = values(inputs[1]) + of_head;
      head.v = values(inputs[2]) + of_head;
      head.rows = int(places * group);
      head.group = int(group);
      head.size = int(size);
      head.next = heads * size;
      head.causal = causal;
      if (!causal) {
        head.own_k = values(inputs[3]) + of_beam;
        head.own_v = values(inputs[4]) + of_beam;
        head.own = int(own);
        head.own_next = own * kv_heads * size;
        head.own_step = kv_heads * size;
        head.length = std::min(inputs[5].data<const std::int32_t>()[b], std::int32_t(span));
      }
      return head;
    };
    const std::size_t blocks = (span + KEYS - 1) / KEYS, tiles = (places * group + ROWS - 1) / ROWS;
    const std::size_t room = room_of(int(size), int(span));
    const std::unique_ptr<Value, decltype(&std::free)> laid_out(
        static_cast<Value*>(room ? std::aligned_alloc(64, batch * kv_heads * room * sizeof(Value)) : nullptr), &std::free);
    const auto each = [&](std::size_t parts, auto run) {
      oneapi::tbb::parallel_for(std::size_t(0), batch * kv_heads * parts, [&](std::size_t task) {
        const std::size_t head = task / parts;
        run(head_of(head / kv_heads, head % kv_heads), laid_out.get() + head * room, int(task % parts));
      });
    };
    if (room)
      each(blocks, [](const Head<Value>& head, Value* to, int block) { lay_out(head, block * KEYS, to); });
    each(tiles, [](const Head<Value>& head, const Value* from, int tile) { attend(head, from, tile * ROWS); });
    return true;
  }
};

}  // namespace genrec
