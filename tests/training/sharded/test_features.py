"""Merging tables by their features, and packing ids into one table."""

from __future__ import annotations

import numpy as np
import pytest

from genrec.errors import InputError
from training.sharded.features import FeatureConfig, MergedTable, merge

HISTORY, CANDIDATE = FeatureConfig("history", "item", 64), FeatureConfig("candidate", "item", 64)
USER, SHOP, WIDE = (
    FeatureConfig("user", "user", 64),
    FeatureConfig("shop", "shop", 64),
    FeatureConfig("x", "x", 128),
)


def test_tables_of_one_dimension_become_one() -> None:
    assert merge([HISTORY, WIDE, CANDIDATE, USER]) == [
        MergedTable(64, ("item", "user")),
        MergedTable(128, ("x",)),
    ]


@pytest.mark.parametrize(("tables", "bits"), [(1, 62), (2, 61), (3, 61), (4, 60), (7, 60), (8, 59)])
def test_bits_of_the_paper(tables: int, bits: int) -> None:
    """k = ceil(log2(m + 1)); the text's example has three tables, 2 bits and room for 2^61."""
    assert (
        MergedTable(8, tuple(map(str, range(tables)))).id_bits
        == bits
        == 63 - int(np.ceil(np.log2(tables + 1)))
    )


def test_ids_of_different_tables_never_meet() -> None:
    merged = merge([HISTORY, USER, SHOP])[0]
    ends = np.array([0, 1, 2**61 - 1])
    packed = [merged.pack(each, ends) for each in (HISTORY, USER, SHOP)]
    assert len(np.unique(packed)) == 9 and np.min(packed) >= 0
    for number, each in enumerate(packed):
        tables, raw = merged.unpack(each)
        assert (tables == number).all() and np.array_equal(raw, ends)


def test_features_of_one_table_share_rows() -> None:
    merged = merge([HISTORY, CANDIDATE, USER])[0]
    ids = np.array([3, 4])
    assert np.array_equal(merged.pack(HISTORY, ids), merged.pack(CANDIDATE, ids))


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([5, -1], f"user: has id -1 .*0 to {2**61 - 1}"),
        ([2**61], f"user: has id {2**61} .*0 to {2**61 - 1}"),
        ([1.0], "user: is float64"),
    ],
)
def test_ids_that_would_be_another_tables_are_refused(ids: list, says: str) -> None:
    with pytest.raises(InputError, match=says):
        merge([HISTORY, USER])[0].pack(USER, np.array(ids))


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ([USER, USER], "features: has 'user' twice"),
        (
            [HISTORY, FeatureConfig("other", "item", 32)],
            "dimension of other: is 32, but its table 'item' has 64",
        ),
    ],
)
def test_features_that_contradict_each_other_are_refused(features: list[FeatureConfig], says: str) -> None:
    with pytest.raises(InputError, match=says):
        merge(features)


@pytest.mark.parametrize(
    ("given", "says"),
    [(("", "t", 4), "feature: is ''"), (("f", "t", 0), "is 0")],
)
def test_a_feature_that_cannot_be_is_refused(given: tuple, says: str) -> None:
    with pytest.raises(InputError, match=says):
        FeatureConfig(*given)
