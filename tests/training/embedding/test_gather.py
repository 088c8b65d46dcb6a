"""Vectors of many rows, which go past the caches of a CPU, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from genrec.compiled import can_be_compiled
from training.embedding.arrays import CACHE_LINE, empty_lines
from training.embedding.compiled import Compiled
from training.embedding.kernels import Kernels
from training.embedding.portable import Portable
from training.embedding.table import DynamicTable

no_compiler = pytest.mark.skipif(not can_be_compiled(), reason="no g++: the compiled kernels are not here")


@pytest.mark.parametrize("kind", [pytest.param(Compiled, marks=no_compiler), Portable])
@pytest.mark.parametrize("width", [1, 7, 8, 16, 20, 64])
def test_more_than_the_caches_keep_is_gathered_whole(
    kind: type[Kernels], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.embedding.arrays.CHUNK_BYTES", 1 << 16)
    table = DynamicTable(width, default=np.arange(width), kernels=kind())
    rows = table.rows_of(np.arange(3000))
    known = np.concatenate([table.default[None], *table.values.parts])
    asked = (
        np.random.default_rng(width).choice(np.append(rows, -1), (9 << 20) // (4 * width)).astype(np.int32)
    )
    assert np.array_equal(table.vectors(asked), known[asked + 1])


def test_a_result_begins_with_a_cache_line() -> None:
    for rows, width in ((1, 1), (5, 7), (100_000, 64)):
        made = empty_lines(rows, width)
        assert made.shape == (rows, width) and made.ctypes.data % CACHE_LINE == 0
