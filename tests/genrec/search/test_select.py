"""The score of the last beam kept: both ways against a sort, and the choice between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.search import select as selection
from genrec.search.select import by_counting, by_heap, learn, threshold


def work(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(n, np.uint32), np.empty(2048, np.int32)


def twin(score: np.ndarray, kept: int) -> tuple[float, int]:
    best = np.sort(score)[::-1][:kept]
    return float(best[-1]), int((best == best[-1]).sum())


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), st.data())
def test_both_ways_are_a_sort(n: int, values: int, data: st.DataObject) -> None:
    kept, draw = data.draw(st.integers(1, n)), np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    few = np.append(draw.standard_normal(values), [-np.inf, 0.0]).astype(np.float32)
    score = draw.choice(few, n) if data.draw(st.booleans()) else draw.standard_normal(n).astype(np.float32)
    keys, histogram = work(n)
    assert by_counting(score, n, kept, keys, histogram) == twin(score, kept)
    assert by_heap(score, n, kept, keys) in (twin(score, kept), (0.0, 0))


def test_a_heap_gives_up_only_where_scores_ascend() -> None:
    keys, histogram = work(10_000)
    ascending = np.arange(10_000, dtype=np.float32)
    assert by_heap(ascending, 10_000, 100, keys)[1] == 0
    assert by_heap(ascending[::-1].copy(), 10_000, 100, keys) == (9900.0, 1)
    mixed = np.random.default_rng(0).permutation(ascending)
    assert (
        by_heap(mixed, 10_000, 100, keys) == by_counting(mixed, 10_000, 100, keys, histogram) == (9900.0, 1)
    )


@pytest.mark.parametrize("heap", [True, False])
def test_what_was_measured_decides_and_the_answer_is_the_same(
    monkeypatch: pytest.MonkeyPatch, heap: bool
) -> None:
    ran = []
    monkeypatch.setattr(selection, "_HEAP_IS_FASTER", {(7, (1000).bit_length()): heap})
    for way in ("by_heap", "by_counting"):
        real = getattr(selection, way)
        monkeypatch.setattr(selection, way, lambda *a, real=real, way=way: ran.append(way) or real(*a))
    score = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert threshold(score, 1000, 7, *work(1000)) == twin(score, 7)
    assert ran == ["by_heap" if heap else "by_counting"]
    assert threshold(np.sort(score), 1000, 7, *work(1000)) == twin(score, 7)
    assert ran[-1] == "by_counting", "also where the heap gave up"


def test_little_is_no_work_for_a_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_HEAP_IS_FASTER", {})
    score = np.random.default_rng(0).standard_normal(selection.FEW + 1).astype(np.float32)
    assert threshold(score, len(score), 7, *work(len(score))) == twin(score, 7)
    monkeypatch.delattr(selection, "by_counting")
    assert threshold(score, selection.FEW, 7, *work(selection.FEW)) == twin(score[:-1], 7)


def test_learning_measures_every_size_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: dict[tuple[int, int], bool] = {}
    monkeypatch.setattr(selection, "_HEAP_IS_FASTER", learnt)
    learn(32, 5000)
    assert set(learnt) == {(32, n.bit_length()) for n in range(33, 5001)}
    for kept, most in ((32, 20), (32, 32), (300, 275)):  # also where both numbers have as many bits
        learn(kept, most)
    assert len(learnt) == len({n.bit_length() for n in range(33, 5001)}), "nothing to choose among"
