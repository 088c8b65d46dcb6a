"""The functions of `genrec.nn.functions` as ONNX functions of domain `genrec`, the same names, shapes and steps.

ONNX Runtime runs these bodies. What `build/` has an operation for it puts in a node's place, and inlines the rest.
"""

# ruff: noqa: D103  (each is documented where torch has it)
from __future__ import annotations

from typing import Sequence  # noqa: UP035  onnxscript takes the other one for a class on Python 3.10

import onnx
from onnxscript import opset20 as op
from onnxscript import script
from onnxscript.values import Opset

from genrec.models.registry import DOMAIN

genrec = Opset(DOMAIN, 1)


@script(genrec, default_opset=op)
def Rows(table, ids):
    return op.Gather(table, ids, axis=0)


@script(genrec, default_opset=op)
def RMSNorm(x, weight, eps: float):
    squares = op.ReduceMean(op.Pow(x, op.Constant(value_float=2.0)), op.Constant(value_ints=[-1]))
    root = op.Sqrt(op.Add(squares, op.Constant(value_float=eps)))
    return op.Mul(weight, op.Mul(x, op.Reciprocal(root)))


@script(genrec, default_opset=op)
def Linear(x, weight):
    return op.MatMul(x, weight)


@script(genrec, default_opset=op)
def AddLinear(x, inner, weight):
    return op.Add(x, op.MatMul(inner, weight))


@script(genrec, default_opset=op)
def SwiGLU(x, gate, up):
    gated = op.MatMul(x, gate)
    return op.Mul(op.Mul(gated, op.Sigmoid(gated)), op.MatMul(x, up))


@script(genrec, default_opset=op)
def Angles(positions, frequency):
    angle = op.Mul(op.Unsqueeze(op.Cast(positions, to=1), op.Constant(value_ints=[-1])), frequency)
    return op.Cos(angle), op.Sin(angle)


@script(genrec, default_opset=op)
def Turn(x, cosine, sine):
    cos, sin = (
        op.Unsqueeze(cosine, op.Constant(value_ints=[-2])),
        op.Unsqueeze(sine, op.Constant(value_ints=[-2])),
    )
    first, second = op.Split(x, num_outputs=2, axis=-1)
    return op.Concat(
        op.Sub(op.Mul(first, cos), op.Mul(second, sin)),
        op.Add(op.Mul(second, cos), op.Mul(first, sin)),
        axis=-1,
    )


@script(genrec, default_opset=op)
def Rotate(x, cosine, sine, heads: Sequence[int]):
    return Turn(op.Reshape(x, op.Constant(value_ints=heads)), cosine, sine)


@script(genrec, default_opset=op)
def NormRotate(x, weight, cosine, sine, heads: Sequence[int], eps: float):
    return Turn(RMSNorm(op.Reshape(x, op.Constant(value_ints=heads)), weight, eps=eps), cosine, sine)


@script(genrec, default_opset=op)
def MaskedAttention(q, k, v, seen):
    batch, span, heads, size = op.Split(op.Shape(q), num_outputs=4)
    kv_heads = op.Shape(k, start=1, end=2)
    group = heads / kv_heads
    scaled = op.Div(q, op.Sqrt(op.Cast(op.Squeeze(size), to=1)))
    split = op.Reshape(scaled, op.Concat(batch, span, kv_heads, group, size, axis=0))
    grouped = op.Transpose(split, perm=[0, 2, 3, 1, 4])  # [B, G, R, S, D]
    two = op.Constant(value_ints=[2])
    score = op.MatMul(grouped, op.Transpose(op.Unsqueeze(k, two), perm=[0, 1, 2, 4, 3]))
    hidden = op.Constant(value_float=float("-inf"))
    weight = op.Softmax(op.Add(score, op.Where(seen, op.Constant(value_float=0.0), hidden)), axis=-1)
    out = op.Transpose(op.MatMul(weight, op.Unsqueeze(v, two)), perm=[0, 3, 1, 2, 4])
    return op.Reshape(out, op.Shape(q))


@script(genrec, default_opset=op)
def CausalAttention(q, k, v):
    place = op.Range(0, op.Squeeze(op.Shape(q, start=1, end=2)), 1)
    return MaskedAttention(q, k, v, op.LessOrEqual(place, op.Unsqueeze(place, op.Constant(value_ints=[1]))))


@script(genrec, default_opset=op)
def PastAttention(q, past_k, past_v, k, v, past_length):
    batch, new = op.Shape(q, start=0, end=1), op.Shape(q, start=1, end=2)
    span = op.Shape(past_k, start=2, end=3)
    one = op.Constant(value_ints=[1])
    real = op.Less(op.Range(0, op.Squeeze(span), 1), op.Unsqueeze(op.Cast(past_length, to=7), [1, 2, 3, 4]))
    of_past = op.Expand(real, op.Concat(batch, one, one, new, span, axis=0))
    place = op.Range(0, op.Squeeze(new), 1)
    behind = op.LessOrEqual(place, op.Unsqueeze(place, one))
    of_new = op.Expand(behind, op.Concat(batch, one, one, new, new, axis=0))
    seen = op.Concat(of_past, of_new, axis=4)
    return MaskedAttention(q, op.Concat(past_k, k, axis=2), op.Concat(past_v, v, axis=2), seen)


@script(genrec, default_opset=op)
def BehindItemsAttention(q, k, v, items, rows, layer: int):
    kv_heads, size = op.Shape(items, start=2, end=3), op.Shape(items, start=4, end=5)
    first = op.Constant(value_int=layer) * op.Constant(value_int=2)
    batch = op.Shape(rows, start=0, end=1)
    shape = op.Concat(batch, kv_heads, op.Constant(value_ints=[-1]), size, axis=0)
    item_k = op.Gather(op.Gather(items, first, axis=1), rows, axis=0)  # [B, C, G, t, D]
    item_v = op.Gather(op.Gather(items, first + op.Constant(value_int=1), axis=1), rows, axis=0)
    past_k = op.Reshape(op.Transpose(item_k, perm=[0, 2, 1, 3, 4]), shape)
    past_v = op.Reshape(op.Transpose(item_v, perm=[0, 2, 1, 3, 4]), shape)
    length = op.Expand(op.Shape(past_k, start=2, end=3), batch)
    return PastAttention(q, past_k, past_v, k, v, length)


@script(genrec, default_opset=op)
def SharedPart(q, shared_k, shared_v, prompt_length, reach: int):
    place = op.Range(0, op.Squeeze(op.Shape(shared_k, start=2, end=3)), 1)
    end = op.Unsqueeze(op.Cast(prompt_length, to=7), [1, 2, 3])
    newest = op.Constant(value_int=reach)
    limited = op.Min(newest, op.Constant(value_int=1))  # 0: all are seen
    real = op.And(op.Less(place, end), op.GreaterOrEqual(place, (end - newest) * limited))
    score = op.Add(op.MatMul(q, op.Transpose(shared_k, perm=[0, 1, 3, 2])), op.Log(op.CastLike(real, q)))
    top = op.ReduceMax(score, [-1], keepdims=1)
    weight = op.Exp(op.Sub(score, top))
    return top, op.ReduceSum(weight, [-1], keepdims=1), op.MatMul(weight, shared_v)


@script(genrec, default_opset=op)
def Merged(top_s, total_s, out_s, score_u, v):
    top = op.Max(top_s, op.ReduceMax(score_u, [-1], keepdims=1))
    weight = op.Exp(op.Sub(score_u, top))
    shrink = op.Exp(op.Sub(top_s, top))
    total = op.Add(op.Mul(total_s, shrink), op.ReduceSum(weight, [-1], keepdims=1))
    return op.Div(op.Add(op.Mul(out_s, shrink), op.MatMul(weight, v)), total)


@script(genrec, default_opset=op)
def ItemAttention(q, shared_k, shared_v, k, v, prompt_length):
    batch, many, count, heads, size = op.Split(op.Shape(q), num_outputs=5)
    kv_heads = op.Shape(shared_k, start=1, end=2)
    group = heads / kv_heads
    scaled = op.Div(q, op.Sqrt(op.CastLike(op.Squeeze(size), q)))
    split = op.Reshape(scaled, op.Concat(batch, many, count, kv_heads, group, size, axis=0))
    stacked = op.Reshape(  # [B, G, C * t * R, D]
        op.Transpose(split, perm=[0, 3, 1, 2, 4, 5]),
        op.Concat(batch, kv_heads, many * count * group, size, axis=0),
    )
    top, total, out = SharedPart(stacked, shared_k, shared_v, prompt_length, reach=0)
    column = op.Concat(batch, kv_heads, many, count * group, [1], axis=0)
    block = op.Concat(batch, kv_heads, many, count * group, size, axis=0)
    own = op.Reshape(op.Transpose(split, perm=[0, 3, 1, 2, 4, 5]), block)  # [B, G, C, t * R, D]
    score = op.MatMul(own, op.Transpose(k, perm=[0, 3, 1, 4, 2]))
    place = op.Range(0, op.Squeeze(count), 1)
    of_row = op.Unsqueeze(
        op.Range(0, op.Squeeze(count * group), 1) / op.Squeeze(group), op.Constant(value_ints=[1])
    )
    hidden = op.Constant(value_float=float("-inf"))
    masked = op.Add(score, op.Where(op.LessOrEqual(place, of_row), op.Constant(value_float=0.0), hidden))
    merged = Merged(
        op.Reshape(top, column), op.Reshape(total, column), op.Reshape(out, block),
        masked, op.Transpose(v, perm=[0, 3, 1, 2, 4]),
    )  # fmt: skip
    parts = op.Reshape(merged, op.Concat(batch, kv_heads, many, count, group, size, axis=0))
    return op.Reshape(op.Transpose(parts, perm=[0, 2, 3, 1, 4, 5]), op.Shape(q))


@script(genrec, default_opset=op)
def DiscriminantAttention(q, shared_k, shared_v, items, rows, prompt_length, q_item, layer: int, reach: int):
    batch, many, heads, size = op.Split(op.Shape(q), num_outputs=4)
    kv_heads = op.Shape(shared_k, start=1, end=2)
    group = heads / kv_heads
    root = op.Sqrt(op.CastLike(op.Squeeze(size), q))
    grouped = op.Concat(batch, many, kv_heads, group, size, axis=0)
    stacked = op.Reshape(
        op.Transpose(op.Reshape(op.Div(q, root), grouped), perm=[0, 2, 1, 3, 4]),
        op.Concat(batch, kv_heads, many * group, size, axis=0),
    )
    top, total, out = SharedPart(stacked, shared_k, shared_v, prompt_length, reach=reach)
    column = op.Concat(batch, kv_heads, many, group, [1], axis=0)
    block = op.Concat(batch, kv_heads, many, group, size, axis=0)
    first = op.Constant(value_int=layer) * op.Constant(value_int=2)
    k = op.Gather(op.Gather(items, first, axis=1), rows, axis=0)  # [B, C, G, t, D]
    v = op.Gather(op.Gather(items, first + op.Constant(value_int=1), axis=1), rows, axis=0)
    own = op.Transpose(op.Reshape(op.Div(q_item, root), grouped), perm=[0, 2, 1, 3, 4])
    score = op.MatMul(own, op.Transpose(k, perm=[0, 2, 1, 4, 3]))
    merged = Merged(
        op.Reshape(top, column), op.Reshape(total, column), op.Reshape(out, block),
        score, op.Transpose(v, perm=[0, 2, 1, 3, 4]),
    )  # fmt: skip
    return op.Reshape(op.Transpose(merged, perm=[0, 2, 1, 3, 4]), op.Shape(q))


@script(genrec, default_opset=op)
def XAttention(q, shared_k, shared_v, unshared_k, unshared_v, prompt_length):
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


BODIES = {
    body.name: body
    for body in (
        Rows,
        RMSNorm,
        Linear,
        AddLinear,
        SwiGLU,
        Angles,
        Turn,
        Rotate,
        NormRotate,
        MaskedAttention,
        CausalAttention,
        PastAttention,
        BehindItemsAttention,
        SharedPart,
        Merged,
        ItemAttention,
        DiscriminantAttention,
        XAttention,
    )
}
CALLS = {
    "Rotate": ["Turn"],
    "NormRotate": ["Turn", "RMSNorm"],
    "CausalAttention": ["MaskedAttention"],
    "PastAttention": ["MaskedAttention"],
    "BehindItemsAttention": ["PastAttention", "MaskedAttention"],
    "ItemAttention": ["SharedPart", "Merged"],
    "DiscriminantAttention": ["SharedPart", "Merged"],
}


def bodies(names: set[str]) -> list[onnx.FunctionProto]:
    """Of the functions of these names, and of those that they call. KeyError for a name that has none."""
    needed = names.union(*(CALLS.get(name, []) for name in names))
    return [BODIES[name].to_function_proto() for name in sorted(needed)]
