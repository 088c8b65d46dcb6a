"""Beams that are known beforehand, against the paths of the items themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from genrec.catalogue.answerable import THESE_ALONE
from genrec.catalogue.validity import ValidityIndex
from genrec.search.constraint import Constraint
from genrec.search.known import Known, known_beams

SIZES, ITEMS = (4, 5, 3, 6), 150


@pytest.fixture(scope="module")
def codes() -> Any:
    return np.random.default_rng(3).integers(0, SIZES, (ITEMS, len(SIZES)))


@pytest.fixture(scope="module")
def index(codes: Any) -> ValidityIndex:
    return ValidityIndex.build(codes, SIZES, np.zeros(ITEMS, np.int64), np.arange(ITEMS))


def constraint(index: ValidityIndex, rows: Any, wanted: int) -> Constraint:
    return Constraint(index, index.blocked(np.array([THESE_ALONE, *rows], np.int32)), wanted)


def paths_of(known: Known) -> list[list[tuple[int, ...]]]:
    """Of each level, by the codes and the places of their parents."""
    paths = [[(int(code),) for code in known.codes[0]]]
    for of_level, parents in zip(known.codes[1:], known.parents, strict=True):
        pairs = zip(of_level.tolist(), parents.tolist(), strict=True)
        paths.append([(*paths[-1][parent], code) for code, parent in pairs])
    return paths


@pytest.mark.parametrize("seed", range(30))
def test_they_are_the_ways_to_the_items_that_lead_to_others_too(
    codes: Any, index: ValidityIndex, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.choice(ITEMS, int(draw.integers(1, 40)), replace=False)
    known = known_beams(constraint(index, rows, len(rows)), 64)
    below = defaultdict[Any, set[Any]](set)
    for row in codes.tolist():
        for level in range(1, len(SIZES)):
            below[tuple(row[:level])].add(tuple(row))
    want = [
        sorted(path for path in {tuple(row[:level]) for row in codes[rows].tolist()} if len(below[path]) > 1)
        for level in range(1, len(SIZES))
    ]
    if any(want[1:]):
        assert known and paths_of(known) == want
    else:
        assert known is None


def test_none_where_some_of_them_may_leave(index: ValidityIndex) -> None:
    rows = np.arange(20)
    leaves = len(np.unique(index.row_leaf[rows]))
    assert known_beams(constraint(index, rows, leaves), 20)
    assert known_beams(constraint(index, rows, leaves - 1), 20) is None, "the best of them alone"
    assert known_beams(constraint(index, rows, leaves), leaves - 1) is None, "more than beams"
    assert known_beams(Constraint(index), 20) is None, "all items"
    assert known_beams(Constraint(index, index.blocked(np.array([0, 1], np.int32))), 20) is None
