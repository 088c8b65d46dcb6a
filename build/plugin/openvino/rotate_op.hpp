// XRotate over x [B, N, H * D], weights [D], and cosine and sine in float32, [N, D / 2] or [B, N or 1, D / 2].
// Gives [B, N, H, D], or [B, H, N, D] where `heads_first`. Where `eps` is 0, heads are not divided.
#pragma once

#include <oneapi/tbb/parallel_for.h>

#include <openvino/op/op.hpp>

#include "rotate.hpp"
#include "type.hpp"

namespace genrec {

class XRotate : public ov::op::Op {
 public:
  OPENVINO_OP("XRotate", "genrec");

  XRotate() = default;
  XRotate(const ov::OutputVector& inputs, float eps, bool heads_first) : Op(inputs), eps_(eps), heads_first_(heads_first) {
    constructor_validate_and_infer_types();
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("eps", eps_);
    visitor.on_attribute("heads_first", heads_first_);
    return true;
  }

  void validate_and_infer_types() override {
    OPENVINO_ASSERT(get_input_size() == 4, "XRotate has ", get_input_size(), " inputs, not 4");
    OPENVINO_ASSERT(get_input_element_type(0) == TYPE, "XRotate: x is not ", TYPE);
    for (std::size_t i = 1; i < 4; ++i)
      OPENVINO_ASSERT(get_input_element_type(i) == ov::element::f32, "XRotate: input ", i, " is not float32");
    const auto x = get_input_partial_shape(0), weights = get_input_partial_shape(1);
    OPENVINO_ASSERT(x.size() == 3 && x[2].is_static() && weights.is_static() && weights.size() == 1 &&
                        x[2].get_length() % weights[0].get_length() == 0 && weights[0].get_length() % 2 == 0,
                    "XRotate: x is ", x, ", weights are ", weights);
    const ov::Dimension heads = x[2].get_length() / weights[0].get_length();
    set_output_type(0, TYPE,
                    heads_first_ ? ov::PartialShape{x[0], heads, x[1], weights[0]} : ov::PartialShape{x[0], x[1], heads, weights[0]});
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<XRotate>(inputs, eps_, heads_first_);
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    const auto shape = inputs[0].get_shape(), angles = inputs[2].get_shape();
    const std::size_t batch = shape[0], places = shape[1], size = inputs[1].get_size(), heads = shape[2] / size;
    outputs[0].set_shape(heads_first_ ? ov::Shape{batch, heads, places, size} : ov::Shape{batch, places, heads, size});
    const Value* x = static_cast<const Value*>(inputs[0].data());
    Value* out = static_cast<Value*>(outputs[0].data());
    const float *weights = inputs[1].data<const float>(), *cosine = inputs[2].data<const float>(),
                *sine = inputs[3].data<const float>();
    const bool of_request = angles.size() == 3, one = of_request && angles[1] == 1;
    oneapi::tbb::parallel_for(std::size_t(0), batch * places, [&](std::size_t row) {
      const std::size_t b = row / places, n = row % places;
      const std::size_t angle = (one ? b : of_request ? row : n) * (size / 2);
      for (std::size_t h = 0; h < heads; ++h) {
        const Value* from = x + (row * heads + h) * size;
        Value* to = out + (heads_first_ ? (b * heads + h) * places + n : row * heads + h) * size;
        const float shrink = eps_ ? shrink_of(from, int(size), eps_) : 1.0f;
        rotate(from, weights, shrink, cosine + angle, sine + angle, int(size), to);
      }
    });
    return true;
  }

 private:
  float eps_ = 0;
  bool heads_first_ = false;
};

}  // namespace genrec
