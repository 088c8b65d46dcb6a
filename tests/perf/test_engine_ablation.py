"""The ways that perf.parts.engine_ablation compares: every one against the slow engine; no timings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from genrec.artifact import engines_folder, load_config
from genrec.catalogue.indices import load_validity
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.host import HostExecutor
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams
from perf.parts.engine_ablation import BASE, COMPILED, FILTERED, OPERATION, STREAMS, measure, ways
from tests.oracles.twin import TwinPasses

WIDTH = 12
PROMPTS = [(np.array([[1, 13, 25, 2, 14, 26]]), np.array([6])), (np.array([[3, 15, 27]]), np.array([3]))]


def every_tuple(sizes: tuple[int, ...]) -> ValidityIndex:
    """All tuples of codes as items."""
    codes = np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), axis=1)
    return ValidityIndex.build(codes, sizes, np.ones(len(codes), np.int64), np.arange(len(codes)))


@pytest.mark.parametrize("name", [BASE, FILTERED, COMPILED, OPERATION, STREAMS])
def test_every_way_finds_what_the_slow_engine_finds(tiny: Path, tmp_path: Path, name: str) -> None:
    config = load_config(tiny)
    index = load_validity(tiny, config)
    free = Constraint(index, index.blocked(np.array([-1], np.int32)))
    _, seconds, found = measure(ways(tiny, WIDTH, tmp_path)[name], PROMPTS, free)
    slow = HostExecutor(TwinPasses(engines_folder(tiny, "twin"), "f32", 1, 1), config, WIDTH, "f32")
    whole = every_tuple(config.codebook_sizes) if name == BASE else index
    for (tokens, lengths), beams in zip(PROMPTS, found, strict=True):
        (want,) = slow.answers(tokens, lengths, [Constraint(whole, whole.blocked(np.array([-1], np.int32)))])
        assert isinstance(beams, Beams) and len(beams) == WIDTH
        np.testing.assert_array_equal(beams.paths, want.paths)
        np.testing.assert_allclose(beams.scores, want.scores, atol=1e-4)
    assert len(seconds) == len(PROMPTS)
