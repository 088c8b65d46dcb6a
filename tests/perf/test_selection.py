"""Every way to choose the best candidates against one that sorts everything; no timings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.main import main
from perf.parts.selection import GIVEN, INPUTS, fastest, measure, scores_of, sorted_lists, table, ways

SHAPES = [(1, 1), (1, 7), (2, 1), (3, 2), (8, 64), (64, 8), (33, 129)]


def twin(scores: np.ndarray) -> np.ndarray:
    """Score descending, then flat index ascending; the first W of them, ascending."""
    flat = scores.reshape(-1)
    return np.sort(np.lexsort((np.arange(flat.size), -flat))[: len(scores)])


def check(scores: np.ndarray) -> None:
    for name, choose in ways(scores).items():
        chosen = choose()
        assert chosen.dtype == np.int64, name
        np.testing.assert_array_equal(chosen, twin(scores), err_msg=name)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize(("width", "candidates"), SHAPES)
def test_inputs(name: str, width: int, candidates: int) -> None:
    check(scores_of(name, width, candidates))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_any_ties(width: int, candidates: int, values: int, seed: int) -> None:
    """Scores out of a few values, of both signs, -inf among them."""
    draw = np.random.default_rng(seed)
    few = np.append(draw.standard_normal(values), [-np.inf, 0.0]).astype(np.float32)
    check(draw.choice(few, (width, candidates)))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_any_floats(width: int, candidates: int, data: st.DataObject) -> None:
    """From the smallest denormal to the largest float; -0.0 is what `largest` is never given."""
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
    flat = data.draw(st.lists(floats, min_size=width * candidates, max_size=width * candidates))
    check(np.array(flat, np.float32).reshape(width, candidates))


def test_lists_are_sorted_best_first() -> None:
    scores = np.array([[0.0, 2.0, -np.inf, 2.0], [-1.0, -3.0, -2.0, -1.0]], np.float32)
    ranked, order = sorted_lists(scores)
    assert order.tolist() == [[1, 3, 0, 2], [4, 7, 6, 5]]
    np.testing.assert_array_equal(ranked, scores.reshape(-1)[order])


def test_every_candidate_of_ascending_lists_beats_those_before() -> None:
    scores = scores_of("ascending", 5, 9)
    assert (scores[1:].min(1) > scores[:-1].max(1)).all()
    one = scores_of("one list", 6, 9)
    assert set(twin(one) // 9) == {3}, "all winners lie in one list"


def test_the_table_has_a_line_for_random_and_one_for_the_worst() -> None:
    cells = [
        {"beam_width": 4, "candidates": 8, "input": name, "us": measure(scores_of(name, 4, 8), 1)}
        for name in INPUTS
    ]
    lines = table(cells).splitlines()
    assert len(lines) == 3 and "random" in lines[1] and "adversarial" in lines[2]
    us = {GIVEN: 1.0, "heap": 3.0, "counting": 2.0}
    assert fastest(us, given=False) == "counting" and fastest(us, given=True) == GIVEN


def test_what_is_too_large_to_be_measured_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "selection", "--repeats", "1", "--beam-widths"]
    assert main([*asked, "2,1024", "--candidates", "8,2048"]) == 0
    assert "left out: 1024 beams of 2048 candidates" in capsys.readouterr().out
    assert main([*asked, "1024", "--candidates", "2048"]) == 2
    assert "candidates: is '2048' of each of 1024 beams (accepted: 1048576 in all)" in capsys.readouterr().err
