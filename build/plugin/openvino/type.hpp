// What tensors of values are to OpenVINO.
#pragma once

#include <openvino/core/type/element_type.hpp>

namespace genrec {

const ov::element::Type TYPE = WORD == 2 ? ov::element::bf16 : ov::element::f32;

}  // namespace genrec
