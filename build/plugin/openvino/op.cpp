// What the CPU device of OpenVINO learns from this library.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>

#include "attention_op.hpp"
#ifdef __AMX_BF16__
#include "linear_op.hpp"
#include "rotate_op.hpp"
#include "rows_op.hpp"
#endif

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
    std::make_shared<ov::OpExtension<genrec::XAttention>>(),
    std::make_shared<ov::OpExtension<genrec::XDiscriminant>>(),
#ifdef __AMX_BF16__
    std::make_shared<ov::OpExtension<genrec::XLinear>>(),
    std::make_shared<ov::OpExtension<genrec::XRotate>>(),
    std::make_shared<ov::OpExtension<genrec::XRows>>(),
#endif
}));
