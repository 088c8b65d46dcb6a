// XRows: rows of a table [V, N] in the type of values, N the attribute `wide`, by ids int32 [...]: [..., N].
#pragma once

#include <cstring>
#include <openvino/op/op.hpp>

#include "type.hpp"

namespace genrec {

class XRows : public ov::op::Op {
 public:
  OPENVINO_OP("XRows", "genrec");

  XRows() = default;
  XRows(const ov::OutputVector& inputs, std::int64_t wide) : Op(inputs), wide_(wide) { constructor_validate_and_infer_types(); }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("wide", wide_);
    return true;
  }

  void validate_and_infer_types() override {
    OPENVINO_ASSERT(get_input_size() == 2 && get_input_element_type(0) == TYPE &&
                        get_input_element_type(1) == ov::element::i32,
                    "XRows: inputs are not a table in ", TYPE, " and ids in int32");
    auto shape = get_input_partial_shape(1);
    shape.push_back(wide_);
    set_output_type(0, TYPE, shape);
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<XRows>(inputs, wide_);
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    auto shape = inputs[1].get_shape();
    const std::size_t count = inputs[1].get_size(), rows = inputs[0].get_shape()[0], bytes = sizeof(Value) * wide_;
    OPENVINO_ASSERT(inputs[0].get_shape() == (ov::Shape{rows, std::size_t(wide_)}), "XRows: the table is ", inputs[0].get_shape(),
                    ", not [V, ", wide_, "]");
    shape.push_back(wide_);
    outputs[0].set_shape(shape);
    const auto* ids = inputs[1].data<const std::int32_t>();
    for (std::size_t i = 0; i < count; ++i) {
      OPENVINO_ASSERT(ids[i] >= 0 && std::size_t(ids[i]) < rows, "XRows: id ", ids[i], ", the table has ", rows, " rows");
      std::memcpy(static_cast<char*>(outputs[0].data()) + i * bytes, static_cast<const char*>(inputs[0].data()) + ids[i] * bytes,
                  bytes);
    }
    return true;
  }

 private:
  std::int64_t wide_ = 0;
};

}  // namespace genrec
