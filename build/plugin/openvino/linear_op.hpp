// A product with weights as an operation: XLinear over x [..., K] and weights as linear.hpp has them, and after "add" a
// third tensor. Rows of x are normed first where `eps` is not 0 (the norm's weights are in `weights` by then).
// Gives [..., N], or [..., N / 2] after "silu", in the type of x, or in float32 after "widen". N is the attribute `wide`, so that the
// shape of `weights` may be left open: OpenVINO keeps memory of its own for an input whose shape it knows.
#pragma once

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <openvino/op/op.hpp>
#include <set>

#include "linear.hpp"
#include "type.hpp"

namespace genrec {

class XLinear : public ov::op::Op {
 public:
  OPENVINO_OP("XLinear", "genrec");

  XLinear() = default;
  XLinear(const ov::OutputVector& inputs, const std::string& after, float eps, std::int64_t wide)
      : Op(inputs), after_(after), eps_(eps), wide_(wide) {
    constructor_validate_and_infer_types();
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("after", after_);
    visitor.on_attribute("eps", eps_);
    visitor.on_attribute("wide", wide_);
    return true;
  }

  void validate_and_infer_types() override {
    const std::set<std::string> known = {"nothing", "add", "silu", "widen"};
    OPENVINO_ASSERT(known.count(after_), "XLinear: after is \"", after_, "\", not \"nothing\", \"add\", \"silu\" or \"widen\"");
    OPENVINO_ASSERT(get_input_size() == (after_ == "add" ? 3 : 2), "XLinear, after \"", after_, "\", has ",
                    get_input_size(), " inputs");
    for (std::size_t i = 0; i < get_input_size(); ++i)
      OPENVINO_ASSERT(get_input_element_type(i) == TYPE, "XLinear: input ", i, " is ", get_input_element_type(i),
                      ", not ", TYPE);
    OPENVINO_ASSERT(wide_ > 0 && wide_ % BLOCK == 0, "XLinear: wide is ", wide_, ", not a multiple of ", BLOCK);
    auto shape = get_input_partial_shape(0);
    *shape.rbegin() = after_ == "silu" ? wide_ / 2 : wide_;
    set_output_type(0, after_ == "widen" ? ov::element::f32 : TYPE, shape);
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<XLinear>(inputs, after_, eps_, wide_);
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    auto shape = inputs[0].get_shape();
    Linear linear{};
    linear.wide = int(wide_);
    linear.deep = int(shape.back());
    const ov::Shape weights{std::size_t(wide_ / BLOCK), shape.back() / LINE, LINE * BLOCK};
    OPENVINO_ASSERT(inputs[1].get_shape() == weights && shape.back() % LINE == 0, "XLinear: x is ", inputs[0].get_shape(),
                    ", weights are ", inputs[1].get_shape(), ", not ", weights);
    linear.rows = int(inputs[0].get_size() / shape.back());
    shape.back() = after_ == "silu" ? linear.wide / 2 : linear.wide;
    outputs[0].set_shape(shape);
    linear.x = static_cast<const Value*>(inputs[0].data());
    linear.weights = static_cast<const Value*>(inputs[1].data());
    linear.added = inputs.size() > 2 ? static_cast<const Value*>(inputs[2].data()) : nullptr;
    linear.out = outputs[0].data();
    linear.eps = eps_;
    const auto run = after_ == "add"     ? multiply<After::add>
                     : after_ == "silu"  ? multiply<After::silu>
                     : after_ == "widen" ? multiply<After::widen>
                                         : multiply<After::nothing>;
    const int down = (linear.rows + ROWS_OF_TASK - 1) / ROWS_OF_TASK;
    // Shares are even, so that nobody waits for who has the largest: 290 rows are not 256 and 34.
    const int rows = std::min(padded((linear.rows + down - 1) / std::max(down, 1), ROWS_AT_ONCE), ROWS_OF_TASK);
    const int tasks = 2 * oneapi::tbb::this_task_arena::max_concurrency();  // so that nobody waits long for the last
    const int columns = padded(std::max(1, linear.wide * down / tasks), BLOCK);  // a block where there are more cores
    const int across = (linear.wide + columns - 1) / columns;
    oneapi::tbb::parallel_for(0, across * down, [&](int task) {
      run(linear, task / across * rows, rows, task % across * columns, columns);
    });
    return true;
  }

 private:
  std::string after_;
  float eps_ = 0;
  std::int64_t wide_ = 0;
};

}  // namespace genrec
