"""Causal attention of a prefill graph in blocks of queries, each of which reads the keys up to its end.

For where it is not one operation (build/openvino/attention.py). OpenVINO computes all S x S scores and masks half of
them. Slices have constant bounds: computed ones would hold up the inference of shapes, which OpenVINO does ahead of
the work. Blocks that a short prompt does not reach are empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as op

QUERIES = 512  # of a block: 192 to 512 took 7 to 12 % off a prefill of 1,023 tokens; smaller ones cost short prompts
END = np.iinfo(np.int32).max


class CausalAttention(NamedTuple):
    """softmax(q k + mask) v of one layer: q [B, H, S, D], k [B, H, D, S], mask [S, S], v [B, H, S, D]."""

    q: ov.Output
    k: ov.Output
    mask: ov.Output
    v: ov.Output
    out: ov.Output


def in_blocks(model: ov.Model, longest: int, queries: int = QUERIES) -> ov.Model:
    """The same prefill, whose prompts have at most `longest` tokens, in blocks of `queries`; changes the model."""
    bounds = list(pairwise([*range(0, longest, queries), END]))
    masks = None
    for layer in list(causal_attentions(model)) if len(bounds) > 1 else ():
        masks = masks or [_slice(_slice(layer.mask, 0, start, end), 1, 0, end) for start, end in bounds]
        blocks = [
            _attend(_slice(layer.q, 2, start, end), _slice(layer.k, 3, 0, end), mask, _slice(layer.v, 2, 0, end))
            for (start, end), mask in zip(bounds, masks, strict=True)
        ]  # fmt: skip
        readers = layer.out.get_target_inputs()
        whole = op.concat(blocks, 2).output(0)
        for reader in readers:
            reader.replace_source_output(whole)
    model.validate_nodes_and_infer_types()
    return model


def causal_attentions(model: ov.Model) -> Iterator[CausalAttention]:
    """Of the layers that work for every position: the last one's mask differs from row to row of a batch."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Softmax":
            continue
        score, mask = (value.get_node() for value in node.input_value(0).get_node().input_values())
        if len(mask.output(0).get_partial_shape()) == 2:
            (reader,) = node.output(0).get_target_inputs()
            product = reader.get_node()
            q, k = score.input_values()
            yield CausalAttention(q, k, mask.output(0), product.input_value(1), product.output(0))


def _attend(q: ov.Node, k: ov.Node, mask: ov.Node, v: ov.Node) -> ov.Node:
    weight = op.softmax(op.add(op.matmul(q, k, False, False), mask), -1)
    return op.matmul(weight, v, False, False)


def _slice(x: ov.Output | ov.Node, axis: int, start: int, end: int) -> ov.Output | ov.Node:
    """x[start:end] along an axis, bounds beyond its end cut to it."""
    if (start, end) == (0, END):
        return x
    one = [op.constant(np.array([value], np.int64)) for value in (start, end, 1, axis)]
    return op.slice(x, *one)
