// What the CPU device of OpenVINO learns from this library. SET is the instruction set that it is compiled for: a header
// (set_*.hpp) with the type of values, products, and their sizes. All else is written once.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>

#include SET

#include "attention_op.hpp"
#include "linear_op.hpp"
#include "rotate_op.hpp"
#include "rows_op.hpp"

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
    std::make_shared<ov::OpExtension<genrec::XAttention>>(),
    std::make_shared<ov::OpExtension<genrec::XPast>>(),
    std::make_shared<ov::OpExtension<genrec::XBehindItems>>(),
    std::make_shared<ov::OpExtension<genrec::XDiscriminant>>(),
    std::make_shared<ov::OpExtension<genrec::XLinear>>(),
    std::make_shared<ov::OpExtension<genrec::XRotate>>(),
    std::make_shared<ov::OpExtension<genrec::XRows>>(),
}));
