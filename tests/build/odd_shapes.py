"""Our C++ for CPUs over odd shapes, compiled with sanitizers: a process of `test_sanitized.py`, which preloads theirs.

What they find ends it. That answers are right is tested elsewhere.
"""

from __future__ import annotations

import itertools
import os
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from build.openvino import operations
from build.openvino.linear import laid_out
from genrec import compiled
from genrec.engine.instructions import SETS
from genrec.nn.hstu_attention import hstu_attention
from genrec.nn.hstu_layout import Layout
from tests.build.sets import NUMPY_TYPES, library_of
from training.embedding import arrays
from training.embedding.compiled import SHARED, Compiled

SANITIZED = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-g1", "-O1")
DRAW = np.random.default_rng(0)


def numbers(*shape: int, odd: bool = False) -> NDArray[np.float32]:
    """Of a normal distribution; some of them, where `odd`, as large as there are, endless or none."""
    drawn = DRAW.standard_normal(shape).astype(np.float32)
    if odd and drawn.size:
        drawn.flat[:: 1 + drawn.size // 9] = DRAW.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42])
    return drawn


class Graphs:
    """Graphs of one operation each, of a library for one instruction set."""

    def __init__(self, library: Path, kv_type: str) -> None:
        self.core, self.nodes, self.kv_type = ov.Core(), NodeFactory(), kv_type
        self.core.add_extension(str(library))
        self.nodes.add_extension(str(library))
        self.request = cache(self._request)

    def _request(self, kind: str, ports: tuple[tuple[tuple[int, ...], Any], ...], how: Any) -> Any:
        inputs = [op.parameter(shape, type_) for shape, type_ in ports]
        node = self.nodes.create(kind, [each.output(0) for each in inputs], dict(how))
        hints = {"INFERENCE_PRECISION_HINT": self.kv_type}
        return self.core.compile_model(ov.Model([node], inputs), "CPU", hints).create_infer_request()

    def run(
        self, kind: str, *given: NDArray, fixed: dict[int, tuple[int, ...]] | None = None, **how: Any
    ) -> None:
        """Arrays of float32 become the set's own type, but for those whose shape is `fixed`, and then for good."""
        values, ports = getattr(ov.Type, self.kv_type), []
        arrays_ = []
        for place, each in enumerate(given):
            whole, real = each.dtype.kind == "i", place in (fixed or {}) and place > 0
            type_ = ov.Type.i32 if whole else ov.Type.f32 if real else values
            array = np.ascontiguousarray(
                each, np.int32 if whole else NUMPY_TYPES["f32" if real else self.kv_type]
            )
            arrays_.append(array.view(np.uint16) if type_ == ov.Type.bf16 else array)
            ports.append(((fixed or {}).get(place, (-1,) * each.ndim), type_))
        request = self.request(kind, tuple(ports), tuple(how.items()))
        for place, (array, (_, type_)) in enumerate(zip(arrays_, ports, strict=True)):
            request.set_input_tensor(place, ov.Tensor(array, array.shape, type_))
        request.infer()


def attention(graphs: Graphs) -> None:
    """Requests, queries, heads, heads of keys, size, keys and own keys; none of any, and no multiple of any vector."""
    shapes = [
        (1, 1, 1, 1, 1, 1, 1), (0, 3, 2, 1, 8, 5, 2), (2, 0, 2, 1, 8, 5, 2), (2, 3, 2, 2, 10, 0, 0),
        (2, 33, 4, 2, 63, 129, 3), (1, 17, 34, 2, 33, 257, 16), (3, 70, 3, 3, 64, 128, 1), (2, 5, 16, 1, 17, 300, 15),
        (1, 24, 2, 1, 7, 31, 0), (2, 16, 6, 2, 130, 256, 2),
    ]  # fmt: skip
    for (b, n, h, g, d, s, u), odd in itertools.product(shapes, (False, True)):
        draw = partial(numbers, odd=odd)
        q, new = draw(b, n, h, d), [draw(b, g, n, d) for _ in range(2)]
        shared = [draw(b, g, s, d) for _ in range(2)]
        graphs.run("XAttention", q, *new)
        for length in (np.full(b, 0), np.full(b, s), DRAW.integers(0, s + 1, b)):
            graphs.run("XAttention", q, *shared, *(draw(b, n, u, g, d) for _ in range(2)), length)
            items = [draw(b, n, u, g, d) for _ in range(2)]
            graphs.run("XAttention", draw(b, n, u, h, d), *shared, *items, length)
            graphs.run("XPast", q, *shared, *new, length)
            items, rows = draw(3, 4, g, u, d), DRAW.integers(0, 3, (b, n))
            for reach in (0, 128):
                graphs.run(
                    "XDiscriminant", q, items, draw(b, n, h, d), *shared, rows, length, layer=1, reach=reach
                )
                entries = [draw(1, 4, g, s + more, d) for more in range(max(b, 2))]
                graphs.run(
                    "XDiscriminant", q, items, draw(b, n, h, d), *entries, rows, length, layer=1, reach=reach
                )
        for many in (0, 1, 9):
            graphs.run("XBehindItems", q, *new, draw(3, 4, g, u, d), DRAW.integers(0, 3, (b, many)), layer=1)


def products(graphs: Graphs) -> None:
    """Rows of activations by weights, rows of tables, and heads turned."""
    line = 16 * (2 if graphs.kv_type == "bf16" else 1)
    for rows, deep, wide in itertools.product((0, 1, 13, 129, 290), (1, 9, 17), (1, 3)):
        weights = laid_out(numbers(32 * wide, line * deep), graphs.kv_type).view(NUMPY_TYPES[graphs.kv_type])
        for after, eps in itertools.product(("nothing", "add", "silu", "widen"), (0.0, 1e-6)):
            added = [numbers(2, rows, 32 * wide)] if after == "add" else []
            x = numbers(2, rows, line * deep, odd=eps > 0)
            graphs.run("XLinear", x, weights, *added, after=after, eps=eps, wide=32 * wide)
    for places, heads, half in itertools.product((0, 1, 33), (1, 3), (1, 9, 16, 33)):
        fixed = {0: (-1, -1, heads * 2 * half), 1: (2 * half,)}
        for first in ((places,), (2, 1), (2, places)):
            angles = [numbers(*first, half) for _ in range(2)]
            fixed |= {2: (-1,) * angles[0].ndim, 3: (-1,) * angles[0].ndim}
            x = numbers(2, places, heads * 2 * half, odd=True)
            graphs.run("XRotate", x, numbers(2 * half), *angles, fixed=fixed, eps=1e-6, heads_first=half > 9)
    for wide in (1, 5, 64):
        graphs.run("XRows", numbers(3, wide), np.array([[0, 2, 1]]), wide=wide)
        for wrong in (-1, 3, 2**31 - 1, -(2**31)):
            try:
                graphs.run("XRows", numbers(3, wide), np.array([[wrong]]), wide=wide)
            except RuntimeError:
                continue
            raise AssertionError(f"row {wrong} of 3 is not refused")


def hstu() -> None:
    """Forward and backward: sequences without tokens, masks that allow nothing, marks as far apart as can be."""
    sequences = ([], [0], [0, 1, 0], [63, 64, 65, 0], [200, 1, 129])
    far = 2**31 - 1
    for lengths, heads, size, scale in itertools.product(sequences, (1, 3), (1, 16, 33), (1.0, np.nan, 1e20)):
        total = sum(lengths)
        causal = torch.cat([torch.arange(each) for each in (0, *lengths)])
        marks = torch.arange(total) % 2 * far
        q, k, v = (torch.randn(total, heads, size) for _ in range(3))
        for reach, threads in ((causal, 1), (0 * causal, 2), (causal, 33)):
            torch.set_num_threads(threads)
            layout = Layout.of(torch.tensor(lengths, dtype=torch.int64), reach, marks, marks)
            given = [(scale * q).requires_grad_(), k, v, torch.randn(heads, 1), torch.randn(heads, 2)]
            hstu_attention(*given[:3], layout, *given[3:], 7.0).sum().backward()


def heap_zeros(count: int, dtype: Any) -> NDArray:
    """As `arrays.zeros`, but with ends that a sanitizer knows; torch's memory begins at a cache line."""
    return torch.zeros(count * np.dtype(dtype).itemsize, dtype=torch.uint8).numpy().view(dtype)


def table() -> None:
    """A dynamic table, from one without ids to one that several threads look up."""
    kernels, far = Compiled(), 2**63 - 1
    for count, dim, shift in (*itertools.product((0, 1, 33), (1, 16, 33), (0, 8)), (SHARED, 16, 8)):
        ids = DRAW.integers(-far, far, count)
        ids[: count // 2] = ids[count - count // 2 :]
        ids[:1] = far
        torch.set_num_threads(3)
        distinct, _ = kernels.unique(ids)
        kernels.by_owner(ids, 3)
        bits, state = max(len(distinct) // 6, 1).bit_length(), np.zeros(4, np.int64)
        rows, fresh = np.empty(count, np.int32), np.empty(count, np.int64)
        lines, larger = arrays.Lines.empty(bits), arrays.Lines.empty(bits + 1)
        none = np.empty(0, np.int32)
        done = kernels.insert(ids, lines, arrays.NO_LINES, lines.slots * 3 // 4, none, state, rows, fresh)
        assert done == count and state[0] == len(distinct)
        kernels.move(lines, 0, 1 << bits, np.zeros(max(count, 1), np.uint8), larger)
        assert np.array_equal(kernels.find(ids, larger, lines), rows)
        values, sums, marks = (
            arrays.Chunks(*each, shift)
            for each in ((dim, np.float32), (3 * dim + 1, np.float32), (2, np.uint32))
        )
        for each in (values, sums, marks):
            each.reserve(len(distinct))
        given, gradients = np.arange(len(distinct), dtype=np.int32), numbers(len(distinct), dim)
        kernels.initialise(values, given, distinct, 0.1, 1)
        kernels.gather(values, np.append(rows, np.int32(-1)), numbers(dim))
        kernels.touch(marks, rows, 2**32 - 1)
        kernels.adam(values, sums, given, given, gradients, (1.0, 0.1, 1e-8, 0.9, 0.99, 0.01, 0.9))


if __name__ == "__main__":
    del os.environ["LD_PRELOAD"]  # not for the compiler
    compiled.FLAGS += SANITIZED
    operations.FLAGS += SANITIZED
    arrays.zeros = heap_zeros
    instructions = next((each for each in SETS if each.name == sys.argv[1]), None)
    if instructions is None:
        {"hstu": hstu, "table": table}[sys.argv[1]]()
    else:
        with TemporaryDirectory() as folder:
            graphs = Graphs(library_of(instructions, Path(folder)), instructions.kv_type)
        attention(graphs)
        products(graphs)
    print("sound")
