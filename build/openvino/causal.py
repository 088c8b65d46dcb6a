"""Causal attention of a prefill in OpenVINO's own nodes, in blocks of queries that read the keys up to their end.

For where it is not one operation. As a whole, all S x S scores would be computed and half of them masked. Slices have
constant bounds: computed ones would hold up the inference of shapes, which OpenVINO does ahead of the work. Blocks that
a short prompt does not reach are empty.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import openvino as ov
from openvino import opset13 as op

QUERIES = 512  # of a block: 192 to 512 took 7 to 12 % off a prefill of 1,023 tokens; smaller ones cost short prompts
END = np.iinfo(np.int32).max


class InBlocks:
    """Makes the attention of all layers of one graph, whose prompts have at most `longest` tokens."""

    def __init__(self, longest: int, queries: int = QUERIES) -> None:
        self._bounds = list(pairwise([*range(0, longest, queries), END]))
        self._masks: list[ov.Node] = []

    def __call__(self, q: ov.Output, k: ov.Output, v: ov.Output) -> ov.Node:
        """q [B, S, H, D], k, v [B, G, S, D] -> [B, S, H, D]."""
        shape, kv_heads = q.get_partial_shape(), k.get_partial_shape()[1].get_length()
        heads, size = shape[2].get_length(), shape[3].get_length()
        self._masks = self._masks or [_mask(k, start, end) for start, end in self._bounds]
        scale = op.constant(np.float32(size**-0.25))  # of both, as torch has it
        queries = op.multiply(op.transpose(q, [0, 2, 1, 3]), scale)
        keys, values = (_for_every_head(each, heads // kv_heads) for each in (k, v))
        turned = op.multiply(op.transpose(keys, [0, 1, 3, 2]), scale)
        blocks = []
        for (start, end), mask in zip(self._bounds, self._masks, strict=True):
            score = op.matmul(_slice(queries, 2, start, end), _slice(turned, 3, 0, end), False, False)
            weight = op.softmax(op.add(score, mask), -1)
            blocks.append(op.matmul(weight, _slice(values, 2, 0, end), False, False))
        whole = op.concat(blocks, 2) if len(blocks) > 1 else blocks[0]
        return op.transpose(whole, [0, 2, 1, 3])


def _mask(k: ov.Output, start: int, end: int) -> ov.Node:
    """For queries start:end of the keys' positions, what is added to scores of keys up to `end`."""
    span = op.gather(op.shape_of(k, "i64"), op.constant(2), op.constant(0))
    places = op.range(op.constant(0, np.int64), span, op.constant(1, np.int64), "i64")
    seen = op.less_equal(
        op.unsqueeze(_slice(places, 0, 0, end), 0), op.unsqueeze(_slice(places, 0, start, end), 1)
    )
    return op.select(seen, op.constant(np.float32(0)), op.constant(np.float32(-np.inf)))


def _for_every_head(x: ov.Output, group: int) -> ov.Node:
    """[B, G, S, D] -> [B, G * group, S, D], each KV head for `group` query heads."""
    shape = op.shape_of(x, "i64")
    batch, kv_heads, span, size = (op.gather(shape, op.constant([n]), op.constant(0)) for n in range(4))
    repeat = op.constant([group])
    wide = op.broadcast(op.unsqueeze(x, 2), op.concat([batch, kv_heads, repeat, span, size], 0))
    return op.reshape(wide, op.concat([batch, op.multiply(kv_heads, repeat), span, size], 0), False)


def _slice(x: ov.Node, axis: int, start: int, end: int) -> ov.Node:
    """x[start:end] along an axis, bounds beyond its end cut to it."""
    if (start, end) == (0, END):
        return x
    one = [op.constant(np.array([value], np.int64)) for value in (start, end, 1, axis)]
    return op.slice(x, *one)
