"""Vectors in blocks equal those of the obvious way over everything at once."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.vectors import cooccurrence, reduce
from training.vectors.cooccurrence import WINDOW, cooccurrence_vectors, mutual_information, row_limit
from training.vectors.reduce import Sparse, svd_by_torch, svd_in_blocks, truncated_svd
from training.vectors.stored import Stored, spans
from training.vectors.text import WORD_BINS, word_matrix

ROWS = st.lists(st.lists(st.integers(0, 11), max_size=14), min_size=1, max_size=8)
ALL = 1 << 40


def flat(histories: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.array([item for history in histories for item in history], np.int32)
    return rows, np.cumsum([0, *map(len, histories)])


def dense(matrix: Sparse) -> np.ndarray:
    whole = np.zeros((len(matrix), matrix.width))
    owner = np.repeat(np.arange(len(matrix)), np.diff(matrix.offsets))
    np.add.at(whole, (owner, matrix.columns), matrix.values)
    return whole


def slow_pairs(histories: list[list[int]]) -> dict[tuple[int, int], float]:
    """Every pair of places of a history within WINDOW, one after the other."""
    found: dict[tuple[int, int], float] = defaultdict(float)
    for history in histories:
        for a in range(len(history)):
            for b in range(a + 1, min(a + WINDOW + 1, len(history))):
                found[history[a], history[b]] += 1 / (b - a)
                found[history[b], history[a]] += 1 / (b - a)
    return found


def slow_information(histories: list[list[int]], n: int) -> np.ndarray:
    pairs, total = slow_pairs(histories), np.zeros(n)
    for (a, _), count in pairs.items():
        total[a] += count
    context, whole = total**0.75, np.zeros((n, n))
    for (a, b), count in pairs.items():
        whole[a, b] = max(0.0, np.log(count * context.sum() / (total[a] * context[b])))
    return whole


@settings(deadline=None)
@given(ROWS, st.integers(1, 40))
def test_pairs_are_counted_as_one_by_one(histories: list[list[int]], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooccurrence, "BLOCK_PAIRS", block)
        found = mutual_information(*flat(histories), 12, ALL)
    np.testing.assert_allclose(dense(found), slow_information(histories, 12), rtol=1e-5, atol=1e-6)
    assert (found.values > 0).all()


@settings(deadline=None)
@given(ROWS, st.integers(12, 60))
def test_of_too_many_pairs_each_item_keeps_the_strongest(histories: list[list[int]], most: int) -> None:
    rows, offsets = flat(histories)
    found = dense(mutual_information(rows, offsets, 12, most))
    whole, pairs = slow_information(histories, 12), slow_pairs(histories)
    sizes = np.minimum(np.bincount(rows, minlength=12) * 2 * WINDOW, 12)
    limit = row_limit(sizes, most)
    assert (found > 0).sum() <= max(most, 12)
    for a in range(12):
        strength = np.array([pairs.get((a, b), 0) * whole[a, b] for b in range(12)])
        kept = np.flatnonzero(found[a] > 1e-9)  # what is less is rounding of zero, in either way
        assert len(kept) == min(limit, (whole[a] > 1e-9).sum())
        np.testing.assert_allclose(found[a, kept], whole[a, kept], rtol=1e-5)
        left = np.setdiff1d(np.arange(12), kept)
        if len(kept) and len(left):
            assert strength[kept].min() >= strength[left].max() - 1e-9


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(9, 200))
def test_the_row_limit_is_the_largest_that_fits(sizes: list[int], most: int) -> None:
    limits = [k for k in range(1, max(*sizes, 1) + 1) if sum(min(s, k) for s in sizes) <= most]
    assert row_limit(np.array(sizes), most) == max(limits)


def low_rank(rows: int, columns: int, rank: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    values = 2.0 ** -np.arange(rank)
    left, right = (np.linalg.qr(draw.normal(size=(n, rank)))[0] for n in (rows, columns))
    return (left * values) @ right.T


def sparse(whole: np.ndarray) -> Sparse:
    rows, columns = np.nonzero(whole)
    offsets = np.cumsum([0, *np.bincount(rows, minlength=len(whole))])
    return Sparse(offsets, columns.astype(np.int32), whole[rows, columns].astype(np.float32), whole.shape[1])


@pytest.mark.parametrize(("shape", "rank"), [((300, 40), 5), ((40, 300), 5), ((9, 9), 3), ((60, 20), 1)])
def test_svd_in_blocks_is_the_svd(
    tmp_path: Path, shape: tuple[int, int], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left vectors are only defined up to their signs, so their outer product is compared."""
    monkeypatch.setattr(reduce, "spans", lambda count: spans(count, 7))
    whole = low_rank(*shape, rank, seed=1)
    svd_in_blocks(sparse(whole), 6, 3, tmp_path / "v", "")
    found = Stored.of(tmp_path / "v", shape[0]).rows(0, shape[0])
    u, s, _ = np.linalg.svd(whole)
    wanted = (u[:, :rank] * s[:rank]) @ u[:, :rank].T
    assert found.shape[1] == min(6, *shape)
    np.testing.assert_allclose(found @ found.T, wanted, atol=1e-5)
    by_torch = svd_by_torch(sparse(whole), 6, 3)
    np.testing.assert_allclose(by_torch @ by_torch.T, wanted, atol=1e-5)


def test_svd_in_blocks_of_nothing_is_zero(tmp_path: Path) -> None:
    nothing = Sparse(np.zeros(9, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), 5)
    svd_in_blocks(nothing, 3, 0, tmp_path / "v", "")
    assert not Stored.of(tmp_path / "v", 8).rows(0, 8).any()


def test_where_it_fits_torch_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = sparse(low_rank(30, 20, 4, seed=2))
    whole = truncated_svd(matrix, 4, 0, tmp_path / "v", "").rows(0, 30)
    np.testing.assert_array_equal(whole, svd_by_torch(matrix, 4, 0))
    monkeypatch.setattr(reduce, "IN_MEMORY", 10)
    blocks = truncated_svd(matrix, 4, 0, tmp_path / "v", "").rows(0, 30)
    np.testing.assert_allclose(blocks @ blocks.T, whole @ whole.T, atol=1e-5)


def test_items_nobody_saw_together_have_no_vector(tmp_path: Path) -> None:
    found = cooccurrence_vectors(*flat([[1], [2]]), 4, 8, 0, tmp_path / "v")
    assert (found.count, found.width) == (4, 1) and not found.rows(0, 4).any()


@settings(deadline=None)
@given(st.lists(st.text("ab c1", max_size=12), min_size=1, max_size=20), st.integers(1, 7))
def test_words_weigh_as_one_by_one(titles: list[str], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.vectors.text.spans", lambda count: spans(count, block))
        found = word_matrix(pa.array(titles), pa.array(["g"] * len(titles)))
    assert found.width == WORD_BINS
    whole = dense(found)
    seen = (whole > 0).sum(0)
    for row in whole:
        place = np.flatnonzero(row)
        weight = np.log((1 + len(titles)) / (1 + seen[place])) + 1e-3
        np.testing.assert_allclose(row[place], weight / np.linalg.norm(weight), rtol=1e-5)


def test_stored_rows_are_picked_in_any_order(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    values.tofile(tmp_path / "v")
    places = np.random.default_rng(1).integers(0, 50, 99)
    np.testing.assert_array_equal(Stored.of(tmp_path / "v", 50).pick(places), values[places])
