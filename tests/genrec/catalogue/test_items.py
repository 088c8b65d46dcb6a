"""The catalogue keeps what it is given, finds any id, and refuses what does not fit."""

from __future__ import annotations

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

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)


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


@given(ids=st.lists(INT64, min_size=1, max_size=30, unique=True), asked=st.lists(INT64, max_size=30))
def test_rows_of_equals_dictionary(ids: list[int], asked: list[int]) -> None:
    n = len(ids)
    catalogue = Catalogue(np.array(ids), np.zeros((n, 1)), [""] * n, np.zeros(n))
    twin = {item: row for row, item in enumerate(ids)}
    rows = catalogue.rows_of(np.array(asked + ids, np.int64))
    assert rows.dtype == np.int32
    assert rows.tolist() == [twin.get(item, -1) for item in asked + ids]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"item_ids": np.array([7, 7, 1])}, "item_id 7 appears twice"),
        ({"codes": np.array([[0, 1], [2, 4], [0, 1]])}, "code_2 of item -3 is 4, outside 0..3"),
        ({"codes": np.array([[0, 1], [2, 0]])}, "not (3, L)"),
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
