"""The node `genrec::XAttention` and its body as an ONNX function.

ONNX Runtime runs the body, TensorRT maps the node to the plugin, OpenVINO gets the body inlined by `build/`.
"""

from __future__ import annotations

import torch
from onnxscript import opset20 as op
from onnxscript import script
from onnxscript.values import Opset
from torch import Tensor

from export.generator import DOMAIN


@script(Opset(DOMAIN, 1), default_opset=op)
def XAttention(q, shared_k, shared_v, unshared_k, unshared_v, prompt_length):
    """Staged attention; shapes and steps as in `genrec.nn.xattention.xattention`, the same names."""
    batch, beams, heads, size = op.Split(op.Shape(q), num_outputs=4)
    kv_heads = op.Shape(shared_k, start=1, end=2)
    span = op.Squeeze(op.Shape(shared_k, start=2, end=3))
    group = heads / kv_heads
    rows = beams * group
    scaled = op.Div(q, op.Sqrt(op.CastLike(op.Squeeze(size), q)))
    grouped = op.Reshape(scaled, op.Concat(batch, beams, kv_heads, group, size, axis=0))

    stacked = op.Reshape(
        op.Transpose(grouped, perm=[0, 2, 1, 3, 4]), op.Concat(batch, kv_heads, rows, size, axis=0)
    )
    real = op.Less(op.Range(0, span, 1), op.Unsqueeze(op.Cast(prompt_length, to=7), [1, 2, 3]))
    bias = op.Log(op.CastLike(real, q))
    score = op.Add(op.MatMul(stacked, op.Transpose(shared_k, perm=[0, 1, 3, 2])), bias)
    row_top = op.ReduceMax(score, [-1], keepdims=1)
    weight = op.Exp(op.Sub(score, row_top))
    column = op.Concat(batch, kv_heads, beams, group, [1], axis=0)
    block = op.Concat(batch, kv_heads, beams, group, size, axis=0)
    top_s = op.Transpose(op.Reshape(row_top, column), perm=[0, 2, 1, 3, 4])
    total_s = op.Transpose(op.Reshape(op.ReduceSum(weight, [-1], keepdims=1), column), perm=[0, 2, 1, 3, 4])
    out_s = op.Transpose(op.Reshape(op.MatMul(weight, shared_v), block), perm=[0, 2, 1, 3, 4])

    score_u = op.ReduceSum(
        op.Mul(op.Unsqueeze(grouped, [2]), op.Unsqueeze(unshared_k, [4])), [-1], keepdims=1
    )
    top = op.Max(top_s, op.ReduceMax(score_u, [2], keepdims=0))
    weight_u = op.Exp(op.Sub(score_u, op.Unsqueeze(top, [2])))
    shrink = op.Exp(op.Sub(top_s, top))
    out_u = op.ReduceSum(op.Mul(weight_u, op.Unsqueeze(unshared_v, [4])), [2], keepdims=0)
    total = op.Add(op.Mul(total_s, shrink), op.ReduceSum(weight_u, [2], keepdims=0))
    return op.Reshape(op.Div(op.Add(op.Mul(out_s, shrink), out_u), total), op.Shape(q))


def symbolic(q: Tensor, *rest: Tensor) -> Tensor:
    """The node itself, put into a graph while torch exports it."""
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::XAttention", (q, *rest), dtype=q.dtype, shape=q.shape, version=1
    )
