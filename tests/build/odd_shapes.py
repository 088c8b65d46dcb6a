"""Our C++ for CPUs over odd shapes, compiled with sanitizers: a process of `test_sanitized.py`, which preloads theirs.

What they find ends it. That answers are right is tested elsewhere.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genrec import compiled
from genrec.nn.hstu_attention import hstu_attention
from genrec.nn.hstu_layout import Layout
from training.embedding import arrays
from training.embedding.compiled import SHARED, Compiled

SANITIZED = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-g1", "-O1")
DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> NDArray[np.float32]:
    """Of a normal distribution."""
    return DRAW.standard_normal(shape).astype(np.float32)


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
    arrays.zeros = heap_zeros
    {"hstu": hstu, "table": table}[sys.argv[1]]()
    print("sound")
