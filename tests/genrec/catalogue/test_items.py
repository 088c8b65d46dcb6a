"""The catalogue keeps what it is given, finds any id, and refuses what does not fit."""

from __future__ import annotations

import inspect
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT64 = st.integers(INT64_MIN, INT64_MAX)
NEAR = st.sampled_from([0, 1, -1, 2, -2, 300, -300, 2**32, -(2**32), 2**63])


def small() -> Catalogue:
    return Catalogue(
        item_ids=np.array([7, -3, 2**62]),
        codes=np.array([[0, 1], [2, 0], [0, 1]]),
        titles=["a", "", "é"],
        popularity=np.array([4, 0, 9]),
        codebook_sizes=(8, 4),
    )


def test_round_trip(tmp_path: Path) -> None:
    small().save(tmp_path / "c.parquet")
    back = Catalogue.load(tmp_path / "c.parquet")
    np.testing.assert_array_equal(back.item_ids, small().item_ids)
    np.testing.assert_array_equal(back.codes, small().codes)
    np.testing.assert_array_equal(back.popularity, small().popularity)
    assert (list(back.titles), back.codebook_sizes, back.levels) == (["a", "", "é"], (8, 4), 2)
    assert (back.item_ids.dtype, back.codes.dtype) == (np.int64, np.int32)


def test_sizes_default_to_largest_code() -> None:
    assert replace(small(), codebook_sizes=()).codebook_sizes == (3, 2)


def of_ids(ids: Sequence[int]) -> Catalogue:
    n = len(ids)
    return Catalogue(np.array(ids, np.int64), np.zeros((n, 1)), [""] * n, np.zeros(n))


@st.composite
def close_ids(draw: st.DrawFn) -> list[int]:
    """Distinct, within some hundred of each other, anywhere in int64: its ends too."""
    least = draw(st.one_of(INT64, st.sampled_from([INT64_MIN, 0, INT64_MAX])))
    places = draw(st.lists(st.integers(0, 300), min_size=1, max_size=60, unique=True))
    return [min(least, INT64_MAX - 300) + place for place in places]


@given(data=st.data())
def test_rows_of_equals_dictionary(data: st.DataObject) -> None:
    ids = data.draw(st.one_of(close_ids(), st.lists(INT64, min_size=1, max_size=30, unique=True)))
    others = st.one_of(INT64, st.sampled_from([INT64_MIN, -1, 0, INT64_MAX]))
    near = st.builds(lambda item, by: (item + by - INT64_MIN) % 2**64 + INT64_MIN, st.sampled_from(ids), NEAR)
    asked = data.draw(st.lists(st.one_of(others, near), max_size=60))
    twin = {item: row for row, item in enumerate(ids)}
    rows = of_ids(ids).rows_of(np.array(asked, np.int64))
    assert rows.dtype == np.int32 and rows.shape == (len(asked),)
    assert rows.tolist() == [twin.get(item, -1) for item in asked]


@pytest.mark.parametrize("span", [2**20, 2**20 + 1])
def test_rows_of_ids_as_far_apart_as_a_table_may_be_and_further(span: int) -> None:
    ids = [-5, -6 + span, 70]
    asked = [-6, -5, -4, 70, 71, span - 7, span - 6, span - 5, INT64_MIN, INT64_MAX]
    assert of_ids(ids).rows_of(asked).tolist() == [-1, 0, -1, 2, -1, -1, 1, -1, -1, -1]


@pytest.mark.parametrize(
    ("items", "apart", "entries"),
    [(1000, 1, 1000), (1000, 1000, 999_001), (1000, 1100, 0), (300_000, 4, 1_199_997), (300_000, 5, 0)],
)
def test_ids_that_lie_close_have_a_table_of_limited_size(items: int, apart: int, entries: int) -> None:
    catalogue = of_ids(np.arange(items) * apart + 10**15)
    tracemalloc.start(10)  # frames: what threads of other tests take meanwhile is not the catalogue's
    try:
        catalogue.rows_of([])
        its_own = tracemalloc.Filter(True, inspect.getfile(Catalogue), all_frames=True)
        traces = tracemalloc.take_snapshot().filter_traces([its_own]).traces
    finally:
        tracemalloc.stop()
    assert 4 * entries <= sum(trace.size for trace in traces) < 4 * entries + 1000
    asked = catalogue.item_ids[[3, 0, items - 1, 3]]
    assert catalogue.rows_of(asked).tolist() == [3, 0, items - 1, 3]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"item_ids": np.array([7, 7, 9])}, "item_id 7 appears twice"),
        ({"codes": np.array([[0, 1], [2, 4], [0, 1]])}, "code_2 of item -3 is 4, outside 0..3"),
        ({"codes": np.array([[0, 1], [2, 0]])}, "not (3, L)"),
        ({"codebook_sizes": (8,)}, "1 codebook sizes for 2 levels"),
        ({"popularity": np.array([1, -1, 0])}, "negative"),
        ({"titles": ["a"]}, "1 titles"),
        ({"item_ids": np.array([])}, "no items"),
    ],
)
def test_refuses(change: dict[str, object], problem: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        replace(small(), **change)  # type: ignore[arg-type]
    assert problem in str(caught.value)


def test_load_names_file_and_problem(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.parquet"
    with pytest.raises(ArtifactError, match=r"catalogue\.parquet: cannot be read: No such file"):
        Catalogue.load(path)
    good = {"item_id": [1], "code_1": [0], "title": ["t"], "popularity": [1]}
    for table, problem in [
        ({k: v for k, v in good.items() if k != "title"}, "lacks the columns title"),
        ({**good, "code_3": [0]}, "not code_1..code_L"),
        ({**good, "item_id": ["x"]}, "item_id holds nulls or is not"),
        ({**good, "code_1": pa.array([None], pa.int32())}, "code_1 holds nulls"),
    ]:
        pq.write_table(pa.table(table), path)
        with pytest.raises(ArtifactError) as caught:
            Catalogue.load(path)
        assert problem in str(caught.value) and str(path) in str(caught.value)
